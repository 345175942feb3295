//! Stacks and names in a copy of the world.

use race::Frame;
use std::rc::Rc;
use symbols::ModuleMap;
use vm::Vm;
use vm::context::Registers;
use vm::space::Backing;

/// Frames kept of a stack.
const DEPTH: usize = 32;

/// The modules the guest has mapped now.
pub fn modules(vm: &Vm) -> Rc<ModuleMap> {
    let mut modules = ModuleMap::new();
    for (range, mapping) in vm.space.mappings() {
        if let Backing::File { path, offset } = &mapping.backing {
            modules.insert(range, path, *offset);
        }
    }
    Rc::new(modules)
}

/// The stack of a thread with these registers, innermost frame first.
pub fn stack(modules: &ModuleMap, regs: &Registers) -> Vec<Frame> {
    let machine = symbols::Registers {
        general: regs.gpr,
        rip: regs.rip,
    };
    let mut read = |address: u64| vm::memory::get::<u64>(address).ok();
    modules
        .unwind(&machine, &mut read, DEPTH)
        .into_iter()
        .enumerate()
        .flat_map(|(depth, pc)| modules.frames(pc, depth > 0))
        .collect()
}

/// `worker main.c:31`, as much of it as is known.
pub fn place(frame: &Frame) -> String {
    let function = frame.function.as_deref().unwrap_or("??");
    match (&frame.file, frame.line, &frame.module, frame.offset) {
        (Some(file), Some(line), ..) => {
            let name = file.rsplit('/').next().unwrap_or(file);
            format!("{function} {name}:{line}")
        }
        (_, _, Some(module), Some(offset)) => format!("{function} {module}+{offset:#x}"),
        (_, _, _, Some(offset)) => format!("{offset:#x}"),
        _ => function.to_string(),
    }
}

/// Where that is in the program's own code.
pub fn own_place(stack: &[Frame]) -> String {
    own_frame(stack).map_or_else(|| "??".to_string(), place)
}

/// The innermost frame of the program's own code: with a source line, and not
/// in the C or C++ library, nor of a header or crate of theirs.
pub fn own_frame(stack: &[Frame]) -> Option<&Frame> {
    const LIBRARIES: [&str; 6] = [
        "libc.",
        "libc-",
        "ld-linux",
        "libpthread",
        "libstdc++",
        "libm.",
    ];
    let in_library = |frame: &Frame| {
        frame.module.as_ref().is_some_and(|module| {
            let name = module.rsplit('/').next().unwrap_or(module);
            LIBRARIES.iter().any(|library| name.starts_with(library))
        })
    };
    let of_language = |frame: &Frame| {
        frame
            .file
            .as_ref()
            .is_some_and(|file| file.contains("/include/c++/") || file.starts_with("/rustc/"))
    };
    let with_line = |frame: &&Frame| frame.line.is_some();
    stack
        .iter()
        .find(|frame| with_line(frame) && !in_library(frame) && !of_language(frame))
        .or_else(|| {
            stack
                .iter()
                .find(|frame| with_line(frame) && !in_library(frame))
        })
        .or_else(|| stack.iter().find(with_line))
        .or(stack.first())
}

/// What lies at an address: a variable's name, or the address.
pub fn variable(modules: &ModuleMap, address: u64) -> String {
    modules.variable_at(address).map_or_else(
        || format!("the word at {address:#x}"),
        |variable| format!("`{}`", variable.path),
    )
}
