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

/// The innermost frame with a source line: the program's own code rather than
/// the library's below it.
pub fn own_place(stack: &[Frame]) -> String {
    let own = stack.iter().find(|frame| frame.line.is_some());
    own.or(stack.first())
        .map_or_else(|| "??".to_string(), place)
}

/// What lies at an address: a variable's name, or the address.
pub fn variable(modules: &ModuleMap, address: u64) -> String {
    modules.variable_at(address).map_or_else(
        || format!("the word at {address:#x}"),
        |variable| format!("`{}`", variable.path),
    )
}
