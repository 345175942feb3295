//! Functions, inlined calls and lines, checked against what the sources say
//! and, for every instruction, against the binutils.

mod support;

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use support::{Workshop, line_of, run, split_debug};
use symbols::{Module, ModuleMap};

/// `function:line`, innermost first, `*` for inlined.
fn chain(module: &Module, address: u64) -> Vec<String> {
    module
        .frames(address)
        .iter()
        .map(|frame| {
            format!(
                "{}{}:{}",
                frame.function.as_deref().unwrap_or("?"),
                if frame.inlined { "*" } else { "" },
                frame.line.unwrap_or(0)
            )
        })
        .collect()
}

/// Every chain that an instruction of `worker` has.
fn worker_chains(module: &Module) -> Vec<Vec<String>> {
    let worker = &module.functions_named("worker")[0];
    let mut chains: Vec<_> = (worker.start..worker.start + worker.size)
        .map(|address| chain(module, address))
        .collect();
    chains.sort();
    chains.dedup();
    chains
}

fn check_inline(module: &Module) {
    let line = |text| line_of("inline.c", text);
    let chains = worker_chains(module);
    for call in ["// first bump", "// second bump"] {
        let expected = [
            format!("bump*:{}", line("// bump")),
            format!("twice*:{}", line(call)),
            format!("worker:{}", line("// call of twice")),
        ];
        assert!(
            chains.iter().any(|chain| chain == &expected),
            "{expected:?} in {chains:?}"
        );
    }
    // The site names the innermost function and where it begins.
    let worker = &module.functions_named("worker")[0];
    let site = (worker.start..worker.start + worker.size)
        .map(|address| module.site(address))
        .find(|site| site.function.as_deref() == Some("bump"))
        .unwrap();
    assert_eq!(site.line, Some(line("// bump")));
    assert_eq!(site.function_line, Some(line("void bump(long by)")));
    assert!(site.file.unwrap().ends_with("inline.c"));
    assert_eq!(
        site.module.as_deref(),
        module.path().file_name().and_then(OsStr::to_str)
    );
}

#[test]
fn inlined_calls_in_every_form_of_debug_info() {
    for flags in [
        &["-O0", "-g"][..],
        &["-O2", "-g"],
        &["-O2", "-gdwarf-4"],
        &["-O2", "-g", "-gz=zlib"],
        &["-O2", "-g", "-gsplit-dwarf"],
        &["-O2", "-g", "-no-pie", "-static"],
        &["-O2", "-g", "-flto"],
    ] {
        let shop = Workshop::new();
        let program = shop.compile("inline.c", "inline", flags);
        eprintln!("{flags:?}");
        check_inline(&Module::open(&program));
    }
}

#[test]
fn debug_info_in_a_file_beside_the_program() {
    let shop = Workshop::new();
    let program = shop.compile("inline.c", "inline", &["-O2", "-g"]);
    split_debug(&program, &shop.path("inline.debug"));
    check_inline(&Module::open(&program));

    // In the folder `.debug`, and without a build id to compare.
    let program = shop.compile("inline.c", "other", &["-O2", "-g", "-Wl,--build-id=none"]);
    std::fs::create_dir(shop.path(".debug")).unwrap();
    split_debug(&program, &shop.path(".debug/other.debug"));
    check_inline(&Module::open(&program));

    // Another build's debug file is not taken.
    let program = shop.compile("inline.c", "inline", &["-O2", "-g", "-DOTHER"]);
    split_debug(&program, &shop.path("inline.debug"));
    shop.compile("inline.c", "inline.debug", &["-O1", "-g"]);
    assert!(!Module::open(&program).has_debug_info());
}

#[test]
fn sections_compressed_with_zstd() {
    let shop = Workshop::new();
    let program = shop.compile("inline.c", "inline", &["-O2", "-g"]);
    run(Command::new("objcopy")
        .arg("--compress-debug-sections=zstd")
        .arg(&program));
    let sections = run(Command::new("readelf").arg("-tW").arg(&program));
    assert!(sections.contains("ZSTD"), "{sections}");
    check_inline(&Module::open(&program));
}

#[test]
fn debug_info_shared_by_dwz() {
    let shop = Workshop::new();
    let one = shop.compile("inline.c", "one", &["-O2", "-g"]);
    let two = shop.compile("inline.c", "two", &["-O2", "-g"]);
    let shared = shop.path("shared.debug");
    run(Command::new("dwz")
        .arg("-m")
        .arg(&shared)
        .arg("-M")
        .arg(&shared)
        .args([&one, &two]));
    let sections = run(Command::new("readelf").arg("-SW").arg(&one));
    assert!(sections.contains(".gnu_debugaltlink"));
    check_inline(&Module::open(&one));
    check_inline(&Module::open(&two));
    let total = Module::open(&two).variables_named("total")[0].start;
    let variable = Module::open(&two).variable_at(total).unwrap();
    assert_eq!((variable.path.as_str(), variable.volatile), ("total", true));
    // Without the shared file the rest still works.
    std::fs::remove_file(&shared).unwrap();
    let module = Module::open(&one);
    let worker = module.functions_named("worker")[0].start;
    assert_eq!(
        module.frames(worker).last().unwrap().function.as_deref(),
        Some("worker")
    );
}

#[test]
fn symbols_without_debug_info() {
    let shop = Workshop::new();
    let module = Module::open(&shop.compile("inline.c", "inline", &["-O2"]));
    let worker = &module.functions_named("worker")[0];
    for address in [worker.start, worker.start + worker.size - 1] {
        let frames = module.frames(address);
        assert_eq!(frames.len(), 1);
        assert_eq!(frames[0].function.as_deref(), Some("worker"));
        assert_eq!((frames[0].file.as_deref(), frames[0].line), (None, None));
        assert_eq!(frames[0].offset, Some(address));
        assert_eq!(module.site(address).function_line, None);
    }
}

#[test]
fn stripped_code_has_module_offset_and_function_starts() {
    let shop = Workshop::new();
    let program = shop.compile("inline.c", "inline", &["-O2"]);
    let worker = Module::open(&program).functions_named("worker")[0].clone();
    run(Command::new("strip").arg(&program));
    let module = Module::open(&program);
    let frames = module.frames(worker.start);
    assert_eq!(frames[0].function, None);
    assert_eq!(frames[0].module.as_deref(), Some("inline"));
    assert_eq!(frames[0].offset, Some(worker.start));
    let range = worker.start..worker.start + worker.size;
    assert_eq!(
        module.unwind_range_at(worker.start + 1),
        Some(range.clone())
    );
    assert!(module.unwind_ranges().any(|found| found == range));
    let text = module.section_at(worker.start).unwrap();
    assert_eq!((text.name.as_str(), text.executable), (".text", true));
}

#[test]
fn files_that_are_no_programs_are_named_and_nothing_else() {
    let shop = Workshop::new();
    let path = shop.path("notes.txt");
    std::fs::write(&path, "no program").unwrap();
    for path in [
        path.as_path(),
        Path::new("/nowhere/libx.so"),
        shop.folder.path(),
    ] {
        let mut map = ModuleMap::new();
        map.insert(0x1000..0x3000, path, 0x1000);
        let frames = map.frames(0x1010, false);
        assert_eq!(frames.len(), 1);
        assert_eq!(
            frames[0].module.as_deref(),
            path.file_name().and_then(OsStr::to_str)
        );
        assert_eq!(frames[0].offset, Some(0x1010));
        assert_eq!(map.variable_at(0x1010), None);
        assert_eq!(map.function_at(0x1010), None);
        assert_eq!(map.atomic_access(0x1010), None);
    }
}

/// Lines of every instruction as the binutils tell them, innermost first.
fn binutils(program: &Path, addresses: &[u64]) -> Vec<Vec<(String, u32)>> {
    let mut child = Command::new("addr2line")
        .args(["-a", "-i", "-f", "-e"])
        .arg(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let text: String = addresses
        .iter()
        .map(|address| format!("{address:#x}\n"))
        .collect();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let mut answers: Vec<Vec<(String, u32)>> = Vec::new();
    let mut lines = output.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            answers.push(Vec::new());
            continue;
        }
        let place = lines.next().unwrap();
        let place = place.split(" (").next().unwrap();
        let (file, line) = place.rsplit_once(':').unwrap();
        let file = file.rsplit('/').next().unwrap();
        answers
            .last_mut()
            .unwrap()
            .push((file.to_string(), line.parse().unwrap_or(0)));
    }
    answers
}

/// Every byte of `.text` of functions with debug info: the same files and
/// lines, the same inlining. The source has `longest` lines.
fn agree_with_binutils(program: &Path, longest: u32) {
    let module = Module::open(program);
    let text = module
        .sections()
        .iter()
        .find(|section| section.name == ".text")
        .unwrap()
        .addresses
        .clone();
    let addresses: Vec<u64> = text.collect();
    let theirs = binutils(program, &addresses);
    assert_eq!(theirs.len(), addresses.len());
    let mut compared = 0;
    let mut different = Vec::new();
    for (address, theirs) in addresses.iter().zip(theirs) {
        let ours: Vec<(String, u32)> = module
            .frames(*address)
            .into_iter()
            .map(|frame| {
                let file = frame.file.unwrap_or_else(|| "??".into());
                let file = file.rsplit('/').next().unwrap().to_string();
                (file, frame.line.unwrap_or(0))
            })
            .collect();
        // Padding between functions belongs to nobody; opinions differ.
        if theirs[0].1 == 0 || module.function_at(*address).is_none() {
            continue;
        }
        compared += 1;
        let same_lines = ours
            .iter()
            .map(|place| place.1)
            .eq(theirs.iter().map(|place| place.1));
        // The binutils (2.40) name the wrong file for some functions of
        // headers: a line behind the end of the file shows it.
        let same_files = ours
            .iter()
            .zip(&theirs)
            .all(|(ours, theirs)| ours.0 == theirs.0 || theirs.1 > longest);
        if !same_lines || !same_files {
            different.push(format!("{address:#x}: {ours:?} instead of {theirs:?}"));
        }
    }
    assert!(compared > 50, "{compared}");
    assert!(
        different.is_empty(),
        "{} of {compared} differ:\n{}",
        different.len(),
        different[..different.len().min(10)].join("\n")
    );
}

#[test]
fn every_instruction_agrees_with_the_binutils() {
    let shop = Workshop::new();
    for (program, flags) in [
        ("inline.c", &["-O0", "-g"][..]),
        ("inline.c", &["-O2", "-g"]),
        ("stack.c", &["-O2", "-g"]),
        ("stack.c", &["-O3", "-gdwarf-4"]),
        ("atomics.cpp", &["-O0", "-g"]),
        ("atomics.cpp", &["-O2", "-g"]),
    ] {
        eprintln!("{program} {flags:?}");
        let lines = std::fs::read_to_string(support::source(program)).unwrap();
        let program = shop.compile(program, "program", flags);
        agree_with_binutils(&program, lines.lines().count() as u32);
    }
}

#[test]
fn names_of_several_languages() {
    let shop = Workshop::new();
    let cpp = Module::open(&shop.compile("atomics.cpp", "cpp", &["-O0", "-g"]));
    let load = cpp
        .functions()
        .find(|function| function.name == "_ZNKSt6atomicIbE4loadESt12memory_order")
        .unwrap();
    let frames = cpp.frames(load.start);
    assert_eq!(
        frames[0].function.as_deref(),
        Some("std::atomic<bool>::load")
    );
    let rust = Module::open(&shop.compile("data.rs", "rust", &["-g"]));
    let main = rust
        .functions()
        .find(|function| symbols::demangle(&function.name) == "data::main")
        .unwrap();
    let site = rust.site(main.start);
    assert_eq!(site.function.as_deref(), Some("data::main"));
    assert_eq!(site.function_line, Some(line_of("data.rs", "fn main()")));
}

#[test]
fn go_names_lines_and_variables() {
    let shop = Workshop::new();
    let module = Module::open(&shop.compile("stack.go", "stack", &[]));
    let function = &module.functions_named("main.recurse")[0];
    let line = |text| line_of("stack.go", text);
    let expected = [
        format!("main.inlined*:{}", line("// inlined")),
        format!("main.recurse:{}", line("// call of inlined")),
    ];
    let mut all = function.start..function.start + function.size;
    assert!(all.any(|address| chain(&module, address) == expected));
    let site = module.site(function.start);
    assert_eq!(site.function_line, Some(line("func recurse")));
    let table = module.variables_named("main.table")[0].start;
    let path = |offset| module.variable_at(table + offset).unwrap().path;
    assert_eq!(path(24 * 2 + 16), "main.table[2].hits");
    assert_eq!(path(24 + 8), "main.table[1].name.len");
}

#[test]
fn versions_and_indirect_functions_of_the_c_library() {
    let map = ModuleMap::from_proc_maps(std::process::id()).unwrap();
    let memcpy = map.functions_named("memcpy");
    assert!(memcpy.iter().any(|(module, found)| {
        module.name() == "libc.so.6"
            && found.indirect
            && found.version.as_deref() == Some("GLIBC_2.14")
    }));
    // An exported function is found at the address that the linker gave it.
    let malloc = libc::malloc as *const () as u64;
    assert_eq!(map.function_at(malloc).unwrap().start, malloc);
    let named = map.functions_named("malloc");
    assert!(named.iter().any(|(_, found)| found.start == malloc));
    // This very function, in this very process.
    let own = versions_and_indirect_functions_of_the_c_library as *const () as u64;
    let frames = map.frames(own, false);
    let name = frames.last().unwrap().function.clone().unwrap();
    assert!(
        name.ends_with("versions_and_indirect_functions_of_the_c_library"),
        "{name}"
    );
}

#[test]
fn the_vdso_is_known() {
    let map = ModuleMap::from_proc_maps(std::process::id()).unwrap();
    let gettime = map.functions_named("__vdso_clock_gettime");
    assert_eq!(gettime.len(), 1);
    assert_eq!(gettime[0].0.name(), "[vdso]");
    let start = gettime[0].1.start;
    assert_eq!(map.find(start).unwrap().0.name(), "[vdso]");
    assert!(
        gettime[0]
            .0
            .unwind_range_at(map.find(start).unwrap().1)
            .is_some()
    );
}
