//! Addresses of data, named down to the field.

mod support;

use support::{Stop, Traced, Workshop, split_debug};
use symbols::{Module, ModuleMap, StackFrame, Variable};

fn at(module: &Module, symbol: &str, offset: u64) -> Variable {
    let found = module.variables_named(symbol);
    assert_eq!(found.len(), 1, "one {symbol}");
    let address = found[0].start + offset;
    module
        .variable_at(address)
        .unwrap_or_else(|| panic!("no variable at {symbol}+{offset}"))
}

fn paths(module: &Module, expected: &[(&str, u64, &str)]) {
    for (symbol, offset, path) in expected {
        assert_eq!(at(module, symbol, *offset).path, *path, "{symbol}+{offset}");
    }
}

/// `_Atomic` is not known to DWARF 4.
fn check_c(module: &Module, knows_atomic: bool) {
    paths(
        module,
        &[
            ("stats", 0, "stats.hits"),
            ("stats", 3, "stats.hits"),
            ("stats", 4, "stats+4"),
            ("stats", 8, "stats.total"),
            ("stats", 16, "stats.low"),
            ("stats", 18, "stats.high"),
            ("stats", 20, "stats.value.number"),
            ("stats", 24, "stats.ready"),
            ("stats", 28, "stats.users"),
            ("stats", 32, "stats.{first,second}"),
            ("stats", 33, "stats.second"),
            ("table", 0, "table[0].next"),
            ("table", 24 * 3, "table[3].next"),
            ("table", 24 * 7 + 16, "table[7].keys[2]"),
            ("matrix", 4 * 7, "matrix[1][2]"),
            ("flag", 0, "flag"),
            ("counter", 0, "counter"),
            ("words", 8, "words[1]"),
            ("bytes", 99, "bytes[99]"),
        ],
    );
    let marks = |symbol, offset| {
        let variable = at(module, symbol, offset);
        (variable.volatile, variable.atomic)
    };
    assert_eq!(marks("stats", 0), (false, false));
    assert_eq!(marks("stats", 24), (true, false));
    assert_eq!(marks("stats", 28), (false, knows_atomic));
    assert_eq!(marks("flag", 0), (true, false));
    assert_eq!(marks("counter", 0), (false, knows_atomic));
    let part = at(module, "table", 24 * 3 + 13);
    assert_eq!(part.path, "table[3].keys[1]");
    assert_eq!(part.part, Some((part.start + 24 * 3 + 12, 4)));
    assert_eq!(part.type_name.as_deref(), Some("int"));
    assert_eq!(part.size, 24 * 8);
    let data = module.variables_named("stats")[0].start;
    assert_eq!(
        at(module, "stats", 0).line,
        Some(support::line_of("data.c", "stats_t stats;"))
    );
    assert_ne!(
        module.variable_at(data + 1_000_000).map(|found| found.name),
        Some("stats".into())
    );
}

#[test]
fn c_with_debug_info() {
    let shop = Workshop::new();
    for flags in [
        &["-O0", "-g"][..],
        &["-O2", "-g"],
        &["-O2", "-gdwarf-4"],
        &["-O2", "-g", "-static"],
        &["-O2", "-g", "-gz=zlib"],
    ] {
        let module = Module::open(&shop.compile("data.c", "data", flags));
        check_c(&module, !flags.contains(&"-gdwarf-4"));
    }
}

#[test]
fn c_with_debug_info_beside_it() {
    let shop = Workshop::new();
    let program = shop.compile("data.c", "data", &["-O2", "-g"]);
    split_debug(&program, &shop.path("data.debug"));
    check_c(&Module::open(&program), true);
}

#[test]
fn symbols_alone_give_name_and_offset() {
    let shop = Workshop::new();
    let module = Module::open(&shop.compile("data.c", "data", &["-O2"]));
    paths(
        &module,
        &[
            ("stats", 0, "stats"),
            ("stats", 8, "stats+8"),
            ("table", 73, "table+73"),
        ],
    );
    let variable = at(&module, "stats", 8);
    assert_eq!((variable.part, variable.type_name), (None, None));
}

#[test]
fn cpp_classes() {
    let shop = Workshop::new();
    for flags in [&["-O0", "-g"], &["-O2", "-g"]] {
        let module = Module::open(&shop.compile("data.cpp", "data", flags));
        paths(
            &module,
            &[
                ("_ZN4shop5itemsE", 4, "shop::items[0].kind"),
                ("_ZN4shop5itemsE", 40 * 2 + 8, "shop::items[2].price"),
                ("_ZN4shop5itemsE", 40 + 16, "shop::items[1].stock"),
                ("_ZN4shop5itemsE", 40 + 32, "shop::items[1].size.second"),
                ("_ZN4shop4Item4madeE", 0, "shop::Item::made"),
                ("_ZZ5callsvE6number", 0, "calls()::number"),
                ("done", 0, "done"),
                ("_ZN4shop8impostorE", 4, "shop::impostor.value[1]"),
            ],
        );
        assert!(at(&module, "_ZN4shop5itemsE", 16).atomic);
        assert!(!at(&module, "_ZN4shop5itemsE", 8).atomic);
        assert!(at(&module, "done", 0).atomic);
        assert!(!at(&module, "_ZN4shop8impostorE", 0).atomic);
    }
}

#[test]
fn rust_statics() {
    let shop = Workshop::new();
    for flags in [&["-g"][..], &["-g", "-O"]] {
        let module = Module::open(&shop.compile("data.rs", "data", flags));
        // rustc orders fields as it likes: collect all bytes.
        let start = module.variables_named("STATS")[0].clone();
        let mut seen: Vec<(String, bool)> = (0..start.size)
            .filter_map(|offset| module.variable_at(start.start + offset))
            .map(|variable| (variable.path, variable.atomic))
            .filter(|(path, _)| !path.contains('+'))
            .collect();
        seen.sort();
        seen.dedup();
        let expected: Vec<(String, bool)> = [
            ("STATS.busy", true),
            ("STATS.hits", false),
            ("STATS.numbers[0]", false),
            ("STATS.numbers[1]", false),
            ("STATS.numbers[2]", false),
            ("STATS.numbers[3]", false),
            ("STATS.numbers[4]", false),
            ("STATS.pair.0", false),
            ("STATS.pair.1", false),
        ]
        .map(|(path, atomic)| (format!("data::{path}"), atomic))
        .to_vec();
        let seen: Vec<(String, bool)> = seen
            .into_iter()
            .map(|(path, atomic)| match path.strip_prefix("data::") {
                Some(_) => (path, atomic),
                None => (format!("data::{path}"), atomic),
            })
            .collect();
        assert_eq!(seen, expected);
        let second = at(&module, "COUNTERS", 8);
        assert!(
            second.path.ends_with("COUNTERS[1]") && second.atomic,
            "{second:?}"
        );
        let locked = module.variables_named("LOCKED")[0].clone();
        let inside = (0..locked.size).filter_map(|byte| module.variable_at(locked.start + byte));
        assert!(inside.into_iter().any(|variable| variable.atomic));
    }
}

#[test]
fn variables_of_a_running_program() {
    let shop = Workshop::new();
    for flags in [
        &["-O0", "-g"][..],
        &["-O2", "-g"],
        &["-O2", "-g", "-no-pie"],
    ] {
        let program = shop.compile("data.c", "data", flags);
        let mut traced = Traced::start(&program);
        assert_eq!(traced.cont(0), Stop::Signal(libc::SIGTRAP));
        let map = ModuleMap::from_proc_maps(traced.pid()).unwrap();
        // `.bss` is not part of any file mapping.
        let loaded = map.modules();
        let program = loaded
            .iter()
            .find(|loaded| loaded.module.name() == "data")
            .unwrap();
        let table = program.module.variables_named("table")[0].start + program.bias;
        let variable = map.variable_at(table + 24 * 5).unwrap();
        assert_eq!(
            (variable.path.as_str(), variable.start),
            ("table[5].next", table)
        );
        assert_eq!(variable.part, Some((table + 24 * 5, 8)));
    }
}

#[test]
fn variables_on_the_stack() {
    let shop = Workshop::new();
    for flags in [&["-O0", "-g"], &["-O2", "-g"], &["-Og", "-g"]] {
        let program = shop.compile("data.c", "data", flags);
        let mut traced = Traced::start(&program);
        assert_eq!(traced.cont(0), Stop::Signal(libc::SIGTRAP));
        let map = ModuleMap::from_proc_maps(traced.pid()).unwrap();
        let frames = map.walk(&traced.registers(), &mut |at| traced.read(at), 10);
        // The trap is behind its instruction, and behind the inner block.
        let frame = StackFrame {
            is_return_address: true,
            ..frames[0]
        };
        assert_eq!(
            map.frames(frame.address, true)[0].function.as_deref(),
            Some("locals")
        );
        // Everything that the frame's part of the stack holds.
        let mut seen: Vec<String> = (frame.registers.rsp() - 128..frames[1].registers.rsp())
            .filter_map(|at| map.local_over(&frame, &mut |word| traced.read(word), at, 1))
            .inspect(|variable| assert_eq!(variable.function.as_deref(), Some("locals")))
            .map(|variable| variable.path)
            .collect();
        seen.sort();
        seen.dedup();
        for name in [
            "inner",
            "numbers[3]",
            "numbers[9]",
            "here.keys[3]",
            "here.next",
        ] {
            assert!(
                seen.iter().any(|path| path == name),
                "{name} in {seen:?} with {flags:?}"
            );
        }
    }
}
