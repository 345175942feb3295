//! Damaged files: truncated and with bytes changed, everywhere and in each
//! section of interest. Every question is asked of each; the answer may be
//! anything, but there is one, and it comes.

mod support;

use std::ops::Range;
use std::path::Path;
use std::process::Command;
use support::{Workshop, run};
use symbols::{Module, ModuleMap, Registers, StackFrame};

/// Damages per section; `DAMAGE_ROUNDS` asks for more.
fn rounds() -> usize {
    let asked = std::env::var("DAMAGE_ROUNDS").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(25)
}

/// Small xorshift generator: the same damage in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// Asks a module everything, at addresses that the undamaged file has.
fn ask_everything(bytes: Vec<u8>, code: &[u64], data: &[u64]) {
    let module = std::sync::Arc::new(Module::from_memory("damaged", bytes));
    let mut map = ModuleMap::new();
    let bias = 0x10_0000;
    map.insert_module(bias..bias + 0x10_0000, std::sync::Arc::clone(&module), 0);
    let _ = (
        module.build_id(),
        module.has_debug_info(),
        module.sections(),
    );
    let _ = (module.functions().count(), module.variables().count());
    let _ = module.unwind_ranges().count();
    let _ = (
        module.functions_named("main"),
        module.variables_named("stats"),
    );
    for address in code {
        assert!(!module.frames(*address).is_empty());
        let _ = module.site(*address);
        let _ = module.function_at(*address);
        let _ = module.atomic_access(*address);
        let _ = module.unwind_range_at(*address);
        let registers = Registers {
            general: [0x7fff_0000; 16],
            rip: address + bias,
        };
        // A stack full of addresses of the module.
        let word = code[code.len() / 2] + bias;
        let frames = map.walk(&registers, &mut |_| Some(word), 50);
        assert!(!frames.is_empty() && frames.len() <= 50);
        let _ = map.stack(&registers, &mut |at| Some(at), 5);
        let frame = StackFrame {
            address: registers.rip,
            is_return_address: false,
            registers,
        };
        let _ = map.local_over(&frame, &mut |_| Some(word), 0x7fff_0010, 1);
        let _ = map.atomic_access_in(&frame, &mut |_| Some(word));
    }
    for address in data {
        let _ = module.variable_at(*address);
        let _ = map.variable_at(*address + bias);
    }
}

/// File ranges of the sections whose parsers are this crate's business, and
/// of the headers.
fn ranges(program: &Path, length: usize) -> Vec<Range<usize>> {
    let listing = run(Command::new("readelf").arg("-SW").arg(program));
    let mut found = vec![0..64, length - length.min(40 * 64)..length, 0..length];
    for line in listing.lines() {
        let Some((_, rest)) = line.split_once("] ") else {
            continue;
        };
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let [name, _, _, offset, size, ..] = fields[..] else {
            continue;
        };
        if name.starts_with(".debug_")
            || [
                ".eh_frame",
                ".symtab",
                ".strtab",
                ".dynsym",
                ".gnu.version",
                ".note.gnu.build-id",
            ]
            .contains(&name)
        {
            let parse = |text| usize::from_str_radix(text, 16).unwrap();
            let (offset, size) = (parse(offset), parse(size));
            if size > 0 {
                found.push(offset..offset + size);
            }
        }
    }
    assert!(found.len() > 8);
    found
}

fn damage(program: &str, flags: &[&str], seed: u64) {
    let shop = Workshop::new();
    let path = shop.compile(program, "program", flags);
    let bytes = std::fs::read(&path).unwrap();
    let module = Module::open(&path);
    let spread = |mut all: Vec<u64>, count: usize| {
        all.sort();
        let step = (all.len() / count).max(1);
        all.into_iter().step_by(step).collect::<Vec<u64>>()
    };
    let code = spread(
        module
            .functions()
            .flat_map(|function| function.start..function.start + function.size)
            .collect(),
        12,
    );
    let data = spread(
        module
            .variables()
            .flat_map(|variable| variable.start..variable.start + variable.size)
            .collect(),
        8,
    );
    assert!(code.len() >= 12 && data.len() >= 8);
    ask_everything(bytes.clone(), &code, &data);

    let mut random = Random(seed);
    for step in 0..60 {
        let length = bytes.len() * step / 60;
        ask_everything(bytes[..length].to_vec(), &code, &data);
    }
    for range in ranges(&path, bytes.len()) {
        for _ in 0..rounds() {
            let mut copy = bytes.clone();
            for _ in 0..1 + random.below(8) {
                let at = range.start + random.below(range.len());
                copy[at] = match random.below(4) {
                    0 => copy[at] ^ (1 << random.below(8)),
                    1 => 0xff,
                    2 => 0,
                    _ => random.next() as u8,
                };
            }
            ask_everything(copy, &code, &data);
        }
    }
}

#[test]
fn c() {
    damage("data.c", &["-O2", "-g"], 0x1234_5678_9abc_def1);
}

#[test]
fn c_compressed() {
    damage("data.c", &["-O1", "-g", "-gz=zlib"], 0x0bad_cafe_1234_5671);
}

#[test]
fn c_dwarf_4() {
    damage(
        "stack.c",
        &["-O2", "-gdwarf-4", "-fno-asynchronous-unwind-tables"],
        0x5eed_5eed_5eed_5eed,
    );
}

#[test]
fn cpp() {
    damage("atomics.cpp", &["-O2", "-g"], 0xfeed_face_dead_beef);
}

#[test]
fn no_file_at_all() {
    for bytes in [
        vec![],
        vec![0x7f],
        b"\x7fELF".to_vec(),
        vec![0; 4096],
        vec![0xff; 4096],
    ] {
        ask_everything(bytes, &[0, 1, u64::MAX - 0x20_0000], &[0, 8]);
    }
}

#[test]
fn inlined_calls_nested_without_end() {
    let shop = Workshop::new();
    let program = shop.path("deep");
    run(Command::new("gcc")
        .arg(support::source("deep.s"))
        .arg("-o")
        .arg(&program));
    let bytes = std::fs::read(&program).unwrap();
    let module = Module::open(&program);
    let main = module.functions_named("main")[0].clone();
    let frames = module.frames(main.start);
    assert!(frames.len() > 10 && frames.len() < 1000, "{}", frames.len());
    assert_eq!(frames.last().unwrap().function.as_deref(), Some("main"));
    ask_everything(bytes, &[main.start, main.start + 1], &[main.start]);
}
