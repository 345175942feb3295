//! Prints the frames of addresses of a file (`symbolize FILE ADDRESS…`), or
//! the modules of a process (`symbolize --pid PID`).

use std::path::Path;
use symbols::{Module, ModuleMap};

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
        _ => eprintln!("usage: symbolize FILE ADDRESS… | symbolize --pid PID"),
    }
}
