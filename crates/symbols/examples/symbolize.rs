//! Prints the frames of addresses of a file (`symbolize FILE ADDRESS…`), or
//! the modules of a process (`symbolize --pid PID`). `symbolize --stack PID`
//! prints the stacks of all threads of a process; `symbolize --time FILE`
//! says how long opening and 2,000 lookups of each kind take.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;
use symbols::{Module, ModuleMap, Registers};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--pid", pid] => {
            let pid = pid.parse().expect("a process id");
            let map = ModuleMap::from_proc_maps(pid).expect("a process to look at");
            for loaded in map.modules() {
                println!(
                    "{:#x}..{:#x} bias {:#x} {}",
                    loaded.range.start,
                    loaded.range.end,
                    loaded.bias,
                    loaded.module.path().display()
                );
            }
        }
        ["--stack", pid] => stacks(pid.parse().expect("a process id")),
        ["--time", file] => time(Path::new(file)),
        [file, ref addresses @ ..] => {
            let module = Module::open(Path::new(file));
            for address in addresses {
                let digits = address.trim_start_matches("0x");
                let address = u64::from_str_radix(digits, 16).expect("a hexadecimal address");
                println!("{address:#x} {:?}", module.site(address));
                for frame in module.frames(address) {
                    println!(
                        "  {}{} {}:{}",
                        frame.function.as_deref().unwrap_or("?"),
                        if frame.inlined { " (inlined)" } else { "" },
                        frame.file.as_deref().unwrap_or("?"),
                        frame.line.unwrap_or(0)
                    );
                }
            }
        }
        _ => eprintln!("usage: symbolize FILE ADDRESS… | --pid PID | --stack PID | --time FILE"),
    }
}

fn stacks(pid: u32) {
    let map = ModuleMap::from_proc_maps(pid).expect("a process to look at");
    let memory = File::open(format!("/proc/{pid}/mem")).expect("its memory");
    let mut read = |address| {
        let mut word = [0; 8];
        memory.read_exact_at(&mut word, address).ok()?;
        Some(u64::from_le_bytes(word))
    };
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
    for thread in threads.flatten() {
        let name = thread.file_name();
        let thread: i32 = name.to_string_lossy().parse().expect("a thread id");
        println!("thread {thread}");
        // SAFETY: the requests take the thread id and, for GETREGS, a pointer
        // to a structure that outlives the call.
        let registers = unsafe {
            let mut raw: libc::user_regs_struct = std::mem::zeroed();
            assert_eq!(libc::ptrace(libc::PTRACE_ATTACH, thread, 0, 0), 0);
            libc::waitpid(thread, std::ptr::null_mut(), libc::__WALL);
            assert_eq!(
                libc::ptrace(libc::PTRACE_GETREGS, thread, 0, &raw mut raw),
                0
            );
            Registers::from(&raw)
        };
        for frame in map.stack(&registers, &mut read, 200) {
            let function = frame.function.as_deref().unwrap_or("?");
            let module = frame.module.as_deref().unwrap_or("?");
            let file = frame.file.as_deref().unwrap_or("");
            println!("  {function} {module} {file}:{}", frame.line.unwrap_or(0));
        }
        // SAFETY: as above.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, thread, 0, 0) };
    }
}

fn time(file: &Path) {
    let clock = Instant::now();
    let module = Module::open(file);
    let mut functions: Vec<_> = module.functions().collect();
    println!("{} functions: {:?}", functions.len(), clock.elapsed());
    functions.retain(|function| function.size > 1);
    let step = (functions.len() / 2000).max(1);
    let addresses: Vec<u64> = functions
        .iter()
        .step_by(step)
        .take(2000)
        .map(|function| function.start + function.size / 2)
        .collect();
    let clock = Instant::now();
    println!(
        "debug info {}: {:?}",
        module.has_debug_info(),
        clock.elapsed()
    );
    let clock = Instant::now();
    let frames: usize = addresses.iter().map(|at| module.frames(*at).len()).sum();
    println!(
        "{} addresses, {frames} frames: {:?}",
        addresses.len(),
        clock.elapsed()
    );
    let clock = Instant::now();
    let frames: usize = addresses.iter().map(|at| module.frames(*at).len()).sum();
    println!("again, {frames} frames: {:?}", clock.elapsed());
    let clock = Instant::now();
    let lines = addresses
        .iter()
        .filter(|at| module.site(**at).function_line.is_some());
    println!("{} function lines: {:?}", lines.count(), clock.elapsed());
    let clock = Instant::now();
    let atomic = addresses
        .iter()
        .filter(|at| module.atomic_access(**at).is_some());
    println!("{} atomic: {:?}", atomic.count(), clock.elapsed());
    let clock = Instant::now();
    println!(
        "{} unwind ranges: {:?}",
        module.unwind_ranges().count(),
        clock.elapsed()
    );
    let data: Vec<u64> = module
        .variables()
        .map(|variable| variable.start)
        .take(2000)
        .collect();
    let clock = Instant::now();
    let first = data.first().map(|at| module.variable_at(*at));
    println!("first variable {}: {:?}", first.is_some(), clock.elapsed());
    let clock = Instant::now();
    let known = data.iter().filter_map(|at| module.variable_at(*at));
    let typed = known.filter(|variable| variable.part.is_some()).count();
    println!(
        "{} variables, {typed} with types: {:?}",
        data.len(),
        clock.elapsed()
    );
}
