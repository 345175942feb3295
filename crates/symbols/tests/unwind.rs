//! Stacks of real programs, checked at every single instruction against the
//! calls and returns that the program was seen to make.

mod support;

use std::path::Path;
use support::{Stop, Traced, Workshop, run};
use symbols::{Module, ModuleMap, Registers};

fn address_of(map: &ModuleMap, name: &str) -> u64 {
    let found = map.functions_named(name);
    assert_eq!(found.len(), 1, "one {name}");
    found[0].1.start
}

fn names(map: &ModuleMap, addresses: &[u64]) -> Vec<String> {
    addresses
        .iter()
        .enumerate()
        .map(|(index, address)| {
            let frames = map.frames(*address, index > 0);
            let outermost = frames.last().unwrap();
            outermost.function.clone().unwrap_or_else(|| "?".into())
        })
        .collect()
}

/// What single-stepping showed.
struct Walked {
    steps: usize,
    wrong: Vec<String>,
}

/// Steps through a function and all it calls, keeping the list of return
/// addresses by watching calls and returns, and compares each instruction's
/// unwound stack with it.
fn step_through(program: &Path, function: &str, stack: [&str; 2], bottom_name: &str) -> Walked {
    let mut traced = Traced::start(program);
    let pid = traced.pid();
    let map = ModuleMap::from_proc_maps(pid).unwrap();
    traced.run_to(address_of(&map, function));
    let map = ModuleMap::from_proc_maps(pid).unwrap();
    let unwind = |traced: &Traced, registers: &Registers| {
        map.unwind(registers, &mut |address| traced.read(address), 100)
    };
    let mut registers = traced.registers();
    let base = unwind(&traced, &registers);
    let base_names = names(&map, &base);
    assert_eq!(base_names[..2], stack, "{base_names:?}");
    assert_eq!(base_names.last().map(String::as_str), Some(bottom_name));
    let bottom = registers.rsp();
    let on_stack =
        |registers: &Registers| (bottom - (60 << 10)..=bottom + 8).contains(&registers.rsp());
    let forget_returned = |calls: &mut Vec<(u64, u64)>, registers: &Registers| {
        if on_stack(registers) {
            let returned = |(slot, _): &(u64, u64)| *slot < registers.rsp();
            while calls.last().is_some_and(returned) {
                calls.pop();
            }
        }
    };
    // (where on the stack, return address)
    let mut calls: Vec<(u64, u64)> = Vec::new();
    let mut walked = Walked {
        steps: 0,
        wrong: Vec::new(),
    };
    while registers.rip != base[1] || registers.rsp() != bottom + 8 {
        // Go's run-time goes to other stacks and comes back.
        if !on_stack(&registers) {
            assert_eq!(traced.step(0), Stop::Signal(libc::SIGTRAP));
            registers = traced.registers();
            forget_returned(&mut calls, &registers);
            continue;
        }
        let mut expected = vec![registers.rip];
        expected.extend(calls.iter().rev().map(|(_, address)| *address));
        expected.extend(&base[1..]);
        let found = unwind(&traced, &registers);
        walked.steps += 1;
        if found != expected && walked.wrong.len() < 1000 {
            walked.wrong.push(format!(
                "{:#x}: {:?}\n  instead of {:?}",
                registers.rip,
                names(&map, &found),
                names(&map, &expected)
            ));
        }
        assert_eq!(traced.step(0), Stop::Signal(libc::SIGTRAP));
        let before = registers;
        registers = traced.registers();
        let pushed = registers.rsp() == before.rsp().wrapping_sub(8);
        let top = traced.read(registers.rsp()).unwrap();
        let behind = top.wrapping_sub(before.rip);
        if pushed && (2..=8).contains(&behind) && registers.rip != top {
            calls.push((registers.rsp(), top));
        }
        forget_returned(&mut calls, &registers);
    }
    walked
}

fn check_every_step(flags: &[&str]) {
    let shop = Workshop::new();
    let program = shop.compile("stack.c", "stack", flags);
    check_walk(&step_through(&program, "work", ["work", "main"], "_start"));
}

fn check_walk(walked: &Walked) {
    assert!(walked.steps > 2000, "{} steps only", walked.steps);
    assert!(
        walked.wrong.is_empty(),
        "{} of {} stacks differ:\n{}",
        walked.wrong.len(),
        walked.steps,
        walked.wrong[..walked.wrong.len().min(5)].join("\n")
    );
}

#[test]
fn every_instruction_unoptimised() {
    check_every_step(&["-O0", "-g"]);
}

#[test]
fn every_instruction_optimised() {
    check_every_step(&["-O2", "-g"]);
}

#[test]
fn every_instruction_static_and_position_dependent() {
    check_every_step(&["-O2", "-static", "-no-pie"]);
}

#[test]
fn every_instruction_by_debug_frame() {
    let flags = ["-O2", "-g", "-fno-asynchronous-unwind-tables"];
    let shop = Workshop::new();
    let program = shop.compile("stack.c", "stack", &flags);
    let sections = run(std::process::Command::new("readelf")
        .arg("-SW")
        .arg(&program));
    assert!(sections.contains(".debug_frame"));
    check_every_step(&flags);
}

#[test]
fn frame_pointers_without_tables() {
    let flags = [
        "-O0",
        "-g0",
        "-fno-asynchronous-unwind-tables",
        "-fno-unwind-tables",
    ];
    let shop = Workshop::new();
    let module = Module::open(&shop.compile("stack.c", "stack", &flags));
    let leaf = &module.functions_named("leaf")[0];
    assert_eq!(module.unwind_range_at(leaf.start), None);
    check_every_step(&flags);
}

#[test]
fn every_instruction_of_go() {
    let shop = Workshop::new();
    let program = shop.compile("stack.go", "stack", &[]);
    check_walk(&step_through(
        &program,
        "main.work",
        ["main.work", "main.main"],
        "runtime.goexit",
    ));
}

#[test]
fn a_signal_handler_has_the_interrupted_function_above_it() {
    for flags in [&["-O0", "-g"], &["-O2", "-g"]] {
        let shop = Workshop::new();
        let program = shop.compile("stack.c", "stack", flags);
        let mut traced = Traced::start(&program);
        assert_eq!(traced.cont(0), Stop::Signal(libc::SIGUSR1));
        assert_eq!(traced.cont(libc::SIGUSR1), Stop::Signal(libc::SIGTRAP));
        let map = ModuleMap::from_proc_maps(traced.pid()).unwrap();
        let frames = map.walk(&traced.registers(), &mut |at| traced.read(at), 100);
        let addresses: Vec<u64> = frames.iter().map(|frame| frame.address).collect();
        let names = names(&map, &addresses);
        let position = |name: &str| {
            names
                .iter()
                .position(|found| found == name)
                .unwrap_or_else(|| panic!("{name} in {names:?}"))
        };
        assert_eq!(position("handler"), 0);
        assert!(
            !frames[2].is_return_address,
            "the signal came at an instruction"
        );
        assert!(position("interrupted") > 2);
        assert_eq!(position("main"), position("interrupted") + 1);
        assert_eq!(names.last().map(String::as_str), Some("_start"));
    }
}

#[test]
fn broken_stacks_end() {
    let shop = Workshop::new();
    let program = shop.compile("stack.c", "stack", &["-O0", "-g"]);
    let mut traced = Traced::start(&program);
    let map = ModuleMap::from_proc_maps(traced.pid()).unwrap();
    traced.run_to(address_of(&map, "leaf"));
    let map = ModuleMap::from_proc_maps(traced.pid()).unwrap();
    let good = traced.registers();
    let leaf = address_of(&map, "leaf");
    // Memory that says the same everywhere: own address, code, nothing.
    for word in [0, 1, leaf, leaf + 1, good.rsp(), u64::MAX] {
        for rsp in [good.rsp(), 0, 8, u64::MAX - 7, leaf] {
            let mut registers = good;
            registers.general[Registers::RSP] = rsp;
            registers.general[Registers::RBP] = rsp;
            let stack = map.unwind(&registers, &mut |_| Some(word), 1000);
            assert!(!stack.is_empty() && stack.len() <= 1000);
            let stack = map.unwind(&registers, &mut |_| None, 1000);
            assert_eq!(stack, [registers.rip]);
            // A stack that points at itself.
            let stack = map.unwind(&registers, &mut |at| Some(at), 1000);
            assert!(stack.len() <= 1000);
        }
    }
}

/// The registers here, as far as a walk needs them. Inlined: the frame that
/// they describe must still be there when it is walked.
#[inline(always)]
fn capture() -> Registers {
    let mut registers = Registers::default();
    // SAFETY: stores the registers into a live array and changes nothing else.
    unsafe {
        std::arch::asm!(
            "mov [{to} + 24], rbx",
            "mov [{to} + 32], rsp",
            "mov [{to} + 40], rbp",
            "mov [{to} + 96], r12",
            "mov [{to} + 104], r13",
            "mov [{to} + 112], r14",
            "mov [{to} + 120], r15",
            "lea {here}, [rip]",
            to = in(reg) registers.general.as_mut_ptr(),
            here = out(reg) registers.rip,
            options(nostack),
        );
    }
    registers
}

#[inline(never)]
fn own_stack(depth: u32) -> Vec<String> {
    if depth > 0 {
        return std::hint::black_box(own_stack(depth - 1));
    }
    std::hint::black_box(capture_and_walk())
}

#[inline(never)]
fn capture_and_walk() -> Vec<String> {
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    let map = ModuleMap::from_proc_maps(std::process::id()).unwrap();
    let mut read = |address| {
        let mut word = [0; 8];
        std::os::unix::fs::FileExt::read_exact_at(&memory, &mut word, address).ok()?;
        Some(u64::from_le_bytes(word))
    };
    let registers = capture();
    let frames = map.stack(&registers, &mut read, 100);
    frames
        .into_iter()
        .map(|frame| frame.function.unwrap_or_else(|| "?".into()))
        .collect()
}

#[test]
fn a_thread_of_this_process_down_to_its_first_function() {
    let thread = std::thread::spawn(|| own_stack(3));
    let names = thread.join().unwrap();
    let count = |name: &str| names.iter().filter(|found| found.ends_with(name)).count();
    assert_eq!(count("own_stack"), 4, "{names:?}");
    assert_eq!(count("start_thread"), 1, "{names:?}");
    let last = names.last().unwrap();
    assert!(last.contains("clone"), "{names:?}");
}
