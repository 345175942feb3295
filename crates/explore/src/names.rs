//! Stacks and names in a copy of the world.

use race::Frame;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use symbols::{Module, ModuleMap};
use vm::Vm;
use vm::context::Registers;
use vm::space::Backing;

/// Frames kept of a stack.
const DEPTH: usize = 32;

thread_local! {
    /// Files that have been opened in this process or before the fork that
    /// made it: reading debug info costs more than most copies run.
    static OPENED: RefCell<HashMap<PathBuf, Arc<Module>>> = RefCell::default();
}

/// The modules the guest has mapped now.
pub fn modules(vm: &Vm) -> Rc<ModuleMap> {
    let mut modules = ModuleMap::new();
    OPENED.with_borrow_mut(|opened| {
        for (range, mapping) in vm.space.mappings() {
            if let Backing::File { path, offset } = &mapping.backing {
                let path: &PathBuf = path;
                let module = match opened.get(path) {
                    Some(module) => Arc::clone(module),
                    None => {
                        let module = Arc::new(Module::open(path));
                        opened.insert(path.clone(), Arc::clone(&module));
                        module
                    }
                };
                modules.insert_module(range, module, *offset);
            }
        }
    });
    Rc::new(modules)
}

/// Reads what copies made from here on will need to name the places where the
/// threads are.
pub fn read_ahead(vm: &Vm) {
    let modules = modules(vm);
    for thread in vm.threads.keys() {
        if let Some(regs) = vm.registers(*thread) {
            stack(&modules, &regs);
        }
    }
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
    let with_line = |frame: &&Frame| frame.line.is_some();
    stack
        .iter()
        .find(|frame| is_own(frame))
        .or_else(|| {
            stack
                .iter()
                .find(|frame| with_line(frame) && !in_library(frame))
        })
        .or_else(|| stack.iter().find(with_line))
        .or(stack.first())
}

/// The frame is of the program's own code, by its source line.
pub fn is_own(frame: &Frame) -> bool {
    let of_language = frame.file.as_ref().is_some_and(|file| {
        file.starts_with("/rustc/") || (file.contains("/include/") && file.contains("/c++/"))
    });
    frame.line.is_some() && !in_library(frame) && !of_language
}

fn in_library(frame: &Frame) -> bool {
    const LIBRARIES: [&str; 6] = [
        "libc.",
        "libc-",
        "ld-linux",
        "libpthread",
        "libstdc++",
        "libm.",
    ];
    frame.module.as_ref().is_some_and(|module| {
        let name = module.rsplit('/').next().unwrap_or(module);
        LIBRARIES.iter().any(|library| name.starts_with(library))
    })
}

/// What these bytes are: a variable's name, or the address.
pub fn variable(modules: &ModuleMap, address: u64, size: u64) -> String {
    modules.variable_over(address, size).map_or_else(
        || format!("the word at {address:#x}"),
        |variable| format!("`{}`", variable.path),
    )
}
