//! From addresses to names: ELF, DWARF, inlined frames, unwinding, demangling
//! and descriptions of variables.
//!
//! [`ModuleMap`] holds the modules of one address space, be it the guest of
//! the vm, a process under the sampler, or this process. It is fed with file
//! mappings and asked about addresses; memory of the program, where it is
//! needed, is read through the caller's closure.
//!
//! Guarantees: no answer depends on anything but the files, the mappings and
//! the memory given; no host threads; a file that is missing, truncated or
//! malformed costs its own names and nothing else. Unknown is none, never a
//! guess: an address behind a symbol's end has no function.

mod atomics;
mod bytes;
mod cfi;
mod chosen;
mod debug;
mod demangle;
mod elf;
mod functions;
mod map;
mod module;
mod pclntab;
mod places;
mod pointers;
mod registers;
mod roles;
mod rows;
mod table;
mod types;
mod unwind;
mod usage;
mod variables;

pub use atomics::{AtomicOperation, AtomicUse, OrderArguments};
pub use cfi::ReadMemory;
pub use chosen::{Chosen, Roles, allocated_by};
pub use demangle::demangle;
pub use elf::{Section, Segment};
pub use map::{LoadedModule, ModuleMap};
pub use module::Module;
pub use places::{NamedPlace, PathStep, PlaceError, PlaceStep, Shape};
pub use pointers::Pointed;
pub use registers::Registers;
pub use roles::Role;
pub use rows::{CodeRow, CodeRows, Position};
pub use table::{DataSymbol, FunctionSymbol};
pub use unwind::StackFrame;
pub use usage::{Usage, usage};
pub use variables::Variable;

/// A map may be given to, and asked from, any thread.
const _: () = {
    const fn is_shareable<T: Send + Sync>() {}
    is_shareable::<ModuleMap>();
};
