//! Atomic operations that look like plain `mov`: recognised by debug info.
//!
//! On x86-64 an acquire load and a release store are ordinary instructions.
//! What tells them apart is that the instruction was written in
//! `std::atomic<…>::load` or `core::sync::atomic::…`, inlined or not, and the
//! memory order is a constant parameter there. Where the call is out of line
//! (no optimisation) the parameter is read from the frame, or from the register
//! that it is in when the function is entered ([`OrderArguments`]).

use crate::cfi::ReadMemory;
use crate::debug::{DebugInfo, Entry};
use crate::demangle::demangle;
use crate::map::ModuleMap;
use crate::module::Module;
use crate::registers::Registers;
use crate::types::{children, is_alias};
use crate::unwind::StackFrame;
use crate::variables::{FrameBase, Place};
use std::sync::atomic::Ordering;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AtomicOperation {
    Load,
    Store,
    ReadModifyWrite,
    Fence,
}

/// An atomic operation that an instruction is part of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AtomicUse {
    /// Memory order; of the success case of a compare-and-exchange. None when
    /// debug info does not say.
    pub order: Option<Ordering>,
    /// Of a compare-and-exchange, the order if it fails, where debug info says.
    pub failure: Option<Ordering>,
    pub operation: AtomicOperation,
    /// The function as the program called it.
    pub function: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    Cpp,
    Rust,
}

/// Which arguments of an atomic operation out of line are memory orders, as
/// places among the six registers of integer arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderArguments {
    language: Language,
    operation: AtomicOperation,
    order: u8,
    /// Of a compare-and-exchange that says by its result (true or false)
    /// whether it succeeded: the order if it did not.
    failure: Option<u8>,
}

impl OrderArguments {
    fn read(self, place: u8, registers: &[u64; 6]) -> Option<Ordering> {
        let value = *registers.get(usize::from(place))?;
        // The upper part of the register is anything.
        order(
            self.language,
            match self.language {
                Language::Cpp => value & 0xffff_ffff,
                Language::Rust => value & 0xff,
            },
        )
    }

    /// It is a fence by itself.
    pub fn is_fence(self) -> bool {
        self.operation == AtomicOperation::Fence
    }

    /// The order, with the registers as the function is entered.
    pub fn order(self, registers: &[u64; 6]) -> Option<Ordering> {
        self.read(self.order, registers)
    }

    /// The order if the compare-and-exchange fails.
    pub fn failure_order(self, registers: &[u64; 6]) -> Option<Ordering> {
        self.read(self.failure?, registers)
    }
}

/// Names that a type may have for another one.
const LONGEST_ALIAS: usize = 32;

/// Names of the parameter that carries the order, in libstdc++, libc++ and
/// core.
const ORDER_PARAMETERS: [&str; 9] = [
    "__m",
    "__m1",
    "__order",
    "__s",
    "__success",
    "__mo",
    "order",
    "success",
    "set_order",
];

/// And those of the order of a compare-and-exchange that fails.
const FAILURE_PARAMETERS: [&str; 3] = ["__m2", "__f", "failure"];

/// What a function is by its demangled name.
fn recognise(name: &str) -> Option<(Language, AtomicOperation, bool)> {
    let plain = name.replace("std::__1::", "std::");
    let plain = plain.trim_start_matches('<');
    let (language, scope_end) = if plain.starts_with("core::sync::atomic::") {
        (Language::Rust, "core::sync::atomic::".len())
    } else if ["std::atomic", "std::__atomic", "std::__cxx_atomic"]
        .iter()
        .any(|start| plain.starts_with(start))
    {
        (Language::Cpp, "std::".len())
    } else {
        return None;
    };
    let rest = plain.get(scope_end..)?;
    // Template arguments may contain anything; the last component is what
    // follows the last `::` outside of them.
    let last = last_component(rest);
    let base = last.split('<').next().unwrap_or(last);
    let operator = last.starts_with("operator");
    let operation = if operator {
        match last.trim_start_matches("operator").trim() {
            "=" => AtomicOperation::Store,
            "++" | "--" | "+=" | "-=" | "&=" | "|=" | "^=" => AtomicOperation::ReadModifyWrite,
            _ => AtomicOperation::Load,
        }
    } else {
        operation_of(base)?
    };
    Some((language, operation, operator))
}

fn operation_of(name: &str) -> Option<AtomicOperation> {
    let name = name
        .trim_start_matches("__cxx_")
        .trim_start_matches("atomic_flag_")
        .trim_start_matches("atomic_")
        .trim_end_matches("_explicit");
    let has = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
    // A fence for the compiler alone (`signal_fence`, `compiler_fence`) is none
    // between threads.
    if has(&["thread_fence"]) || name == "fence" {
        Some(AtomicOperation::Fence)
    } else if has(&["load", "test_explicit"]) || name == "test" {
        Some(AtomicOperation::Load)
    } else if has(&["store", "clear"]) {
        Some(AtomicOperation::Store)
    } else if has(&[
        "exchange",
        "swap",
        "compare_exchange",
        "compare_and_swap",
        "__compare_exchange",
        "fetch_",
        "__fetch_",
        "test_and_set",
        "try_update",
        "update",
    ]) || matches!(
        name,
        "add"
            | "sub"
            | "and"
            | "nand"
            | "or"
            | "xor"
            | "max"
            | "min"
            | "umax"
            | "umin"
            | "add_fetch"
    ) {
        Some(AtomicOperation::ReadModifyWrite)
    } else {
        None
    }
}

/// `__atomic_load_16`, `libat_store_8_i1`.
fn library_operation(symbol: &str) -> Option<AtomicOperation> {
    let name = symbol
        .strip_prefix("__atomic_")
        .or_else(|| symbol.strip_prefix("libat_"))?;
    operation_of(name)
}

fn last_component(name: &str) -> &str {
    let bytes = name.as_bytes();
    let mut depth = 0i32;
    let mut start = 0;
    let mut index = 0;
    while index < bytes.len() {
        match bytes[index] {
            // `operator<` and friends end the scan: nothing follows them.
            b'o' if depth == 0 && name[index..].starts_with("operator") => return &name[index..],
            b'<' | b'(' => depth += 1,
            b'>' | b')' => depth -= 1,
            b':' if depth <= 0 && bytes.get(index + 1) == Some(&b':') => {
                let rest = &name[index + 2..];
                // A turbofish at the end is no component.
                if !rest.starts_with('<') {
                    start = index + 2;
                    depth = 0;
                }
                index += 1;
            }
            _ => {}
        }
        index += 1;
    }
    &name[start..]
}

fn order(language: Language, number: u64) -> Option<Ordering> {
    Some(match (language, number) {
        (_, 0) => Ordering::Relaxed,
        // `consume` is implemented as `acquire` everywhere.
        (Language::Cpp, 1 | 2) | (Language::Rust, 2) => Ordering::Acquire,
        (Language::Cpp, 3) | (Language::Rust, 1) => Ordering::Release,
        (Language::Cpp, 4) | (Language::Rust, 3) => Ordering::AcqRel,
        (Language::Cpp, 5) | (Language::Rust, 4) => Ordering::SeqCst,
        _ => return None,
    })
}

impl ModuleMap {
    /// The atomic operation that the instruction at `pc` is part of, with its
    /// order where it is a constant.
    pub fn atomic_access(&self, pc: u64) -> Option<AtomicUse> {
        let (module, offset) = self.find(pc)?;
        module.atomic_access(offset)
    }

    /// As [`atomic_access`](Self::atomic_access) for the instruction of a
    /// stopped frame: the order is also found where it is a variable.
    pub fn atomic_access_in(
        &self,
        frame: &StackFrame,
        read: &mut ReadMemory<'_>,
    ) -> Option<AtomicUse> {
        let pc = frame
            .address
            .wrapping_sub(u64::from(frame.is_return_address));
        let (module, offset) = self.find(pc)?;
        let cfa = module.cfa(offset, &frame.registers, read);
        let by_debug_info = module.debug().and_then(|debug| {
            let base = cfa.and_then(|cfa| debug.frame_at(offset, cfa, &frame.registers, read));
            debug.atomic_access(offset, base.as_ref(), &frame.registers, read)
        });
        by_debug_info.or_else(|| module.library_atomic(offset))
    }
}

impl Module {
    /// The atomic operation that the instruction at link-time `pc` is part
    /// of.
    pub fn atomic_access(&self, pc: u64) -> Option<AtomicUse> {
        let none = Registers::default();
        let by_debug_info = self
            .debug()
            .and_then(|debug| debug.atomic_access(pc, None, &none, &mut |_| None));
        by_debug_info.or_else(|| self.library_atomic(pc))
    }

    /// Functions out of line that are atomic operations and get their memory
    /// order in a register: link-time address and which register.
    pub fn order_arguments(&self) -> Vec<(u64, OrderArguments)> {
        let Some(debug) = self.debug() else {
            return Vec::new();
        };
        self.functions()
            .filter(|function| function.name.contains("atomic") && !function.indirect)
            .filter_map(|function| {
                recognise(&demangle(&function.name))?;
                Some((function.start, debug.order_arguments(function.start)?))
            })
            .collect()
    }

    /// A function of libatomic, by its symbol; the order is in a register
    /// that its code no longer keeps.
    fn library_atomic(&self, pc: u64) -> Option<AtomicUse> {
        let name = self.function_at(pc)?.name;
        Some(AtomicUse {
            order: None,
            failure: None,
            operation: library_operation(&name)?,
            function: name,
        })
    }
}

impl DebugInfo {
    fn atomic_access(
        &self,
        pc: u64,
        frame: Option<&FrameBase<'_>>,
        registers: &Registers,
        read: &mut ReadMemory<'_>,
    ) -> Option<AtomicUse> {
        let (innermost, offsets) = self.function_entries(pc)?;
        let mut found: Option<AtomicUse> = None;
        for offset in offsets {
            let entry = Entry {
                offset,
                ..innermost
            };
            let name = self.full_name(entry)?;
            let Some((language, operation, is_operator)) = recognise(&name) else {
                break;
            };
            let mut order_of = |names: &[&str]| {
                self.order_parameter(entry, names, language, pc, frame, registers, read)
            };
            let failure = order_of(&FAILURE_PARAMETERS);
            let order = order_of(&ORDER_PARAMETERS).or(is_operator.then_some(Ordering::SeqCst));
            // The outer call says what the program meant; its order may be
            // lost where the inner one still has it.
            let inner = found.as_ref();
            found = Some(AtomicUse {
                order: order.or(inner.and_then(|inner| inner.order)),
                failure: failure.or(inner.and_then(|inner| inner.failure)),
                operation,
                function: name,
            });
        }
        found
    }

    fn order_arguments(&self, start: u64) -> Option<OrderArguments> {
        let (innermost, offsets) = self.function_entries(start)?;
        let function = Entry {
            offset: *offsets.last()?,
            ..innermost
        };
        let (language, operation, _) = recognise(&self.full_name(function)?)?;
        // A large result is written where a hidden first argument says.
        if let Some(result) = self.type_of(function)
            && self.size_of(result).is_none_or(|size| size > 16)
        {
            return None;
        }
        let mut next = 0;
        let (mut order, mut failure) = (None, None);
        for child in children(function) {
            let die = child.unit.entry(child.offset).ok()?;
            if die.tag() != gimli::DW_TAG_formal_parameter {
                continue;
            }
            let name = self.name_of(child).unwrap_or_default();
            let registers = self.registers_taken(child)?;
            if ORDER_PARAMETERS.contains(&name.as_str()) && order.is_none() {
                order = Some(next);
            } else if FAILURE_PARAMETERS.contains(&name.as_str()) {
                failure = Some(next);
            }
            next += registers;
        }
        Some(OrderArguments {
            language,
            operation,
            order: order?,
            failure: failure.filter(|_| language == Language::Cpp),
        })
    }

    /// Registers of integer arguments that a parameter takes; none if that
    /// needs the classes of the parts of a structure.
    fn registers_taken(&self, parameter: Entry<'_>) -> Option<u8> {
        let mut kind = self.type_of(parameter)?;
        for _ in 0..LONGEST_ALIAS {
            let die = kind.unit.entry(kind.offset).ok()?;
            match die.tag() {
                tag if is_alias(tag) => kind = self.type_of(kind)?,
                gimli::DW_TAG_base_type => {
                    let encoding = die.attr_value(gimli::DW_AT_encoding);
                    let float = matches!(
                        encoding,
                        Some(gimli::AttributeValue::Encoding(
                            gimli::DW_ATE_float | gimli::DW_ATE_complex_float
                        ))
                    );
                    return match self.size_of(kind)? {
                        0 => Some(0),
                        _ if float => None,
                        1..=8 => Some(1),
                        16 => Some(2),
                        _ => None,
                    };
                }
                gimli::DW_TAG_pointer_type
                | gimli::DW_TAG_reference_type
                | gimli::DW_TAG_rvalue_reference_type
                | gimli::DW_TAG_enumeration_type => return Some(1),
                _ => return None,
            }
        }
        None
    }

    #[allow(clippy::too_many_arguments)]
    fn order_parameter(
        &self,
        function: Entry<'_>,
        names: &[&str],
        language: Language,
        pc: u64,
        frame: Option<&FrameBase<'_>>,
        registers: &Registers,
        read: &mut ReadMemory<'_>,
    ) -> Option<Ordering> {
        for child in children(function) {
            let die = child.unit.entry(child.offset).ok()?;
            // rustc's own inliner turns parameters into variables.
            if !matches!(
                die.tag(),
                gimli::DW_TAG_formal_parameter | gimli::DW_TAG_variable
            ) {
                continue;
            }
            let Some(name) = self.name_of(child) else {
                continue;
            };
            if !names.contains(&name.as_str()) {
                continue;
            }
            // Without a frame, memory and registers mean nothing.
            let number = match (self.locate(child, pc, frame, registers, read)?, frame) {
                (Place::Constant(number), _) => number,
                (Place::Memory(address), Some(_)) => read(address)?,
                (Place::Register(register), Some(_)) => registers.dwarf(register)?,
                _ => return None,
            };
            let size = self.type_of(child).and_then(|kind| self.size_of(kind));
            let number = match size {
                Some(size @ 1..8) => number & ((1 << (8 * size)) - 1),
                _ => number,
            };
            return order(language, number);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_libatomic_are_known_by_symbol() {
        use AtomicOperation::{Load, ReadModifyWrite, Store};
        for (symbol, operation) in [
            ("__atomic_load_16", Some(Load)),
            ("__atomic_store", Some(Store)),
            ("libat_compare_exchange_16_i1", Some(ReadModifyWrite)),
            ("__atomic_fetch_add_8", Some(ReadModifyWrite)),
            ("__atomic_is_lock_free", None),
            ("atomic_load", None),
        ] {
            assert_eq!(library_operation(symbol), operation, "{symbol}");
        }
    }

    #[test]
    fn operations_are_known_by_name() {
        use AtomicOperation::{Fence, Load, ReadModifyWrite, Store};
        for (name, operation) in [
            ("std::atomic<int>::load", Load),
            ("std::__atomic_base<int>::load", Load),
            ("std::__1::atomic<Pair<int, long>*>::store", Store),
            ("std::__atomic_base<int>::operator int", Load),
            ("std::atomic<bool>::operator=", Store),
            (
                "std::__atomic_base<unsigned long>::operator++",
                ReadModifyWrite,
            ),
            ("std::atomic<int>::compare_exchange_weak", ReadModifyWrite),
            ("std::atomic_flag::test_and_set", ReadModifyWrite),
            ("std::atomic_load_explicit<int>", Load),
            ("std::atomic_thread_fence", Fence),
            ("core::sync::atomic::AtomicUsize::load", Load),
            (
                "<core::sync::atomic::AtomicU64>::fetch_add",
                ReadModifyWrite,
            ),
            ("core::sync::atomic::atomic_add", ReadModifyWrite),
            ("core::sync::atomic::atomic_load", Load),
            ("core::sync::atomic::atomic_store::<usize>", Store),
            ("core::sync::atomic::AtomicPtr<T>::swap", ReadModifyWrite),
            ("core::sync::atomic::fence", Fence),
        ] {
            assert_eq!(
                recognise(name).map(|found| found.1),
                Some(operation),
                "{name}"
            );
        }
        for name in [
            "load",
            "Table::load",
            "std::vector<std::atomic<int> >::operator[]",
            "std::atomic<int>::is_lock_free",
            "std::atomic<int>::atomic",
            "core::sync::atomic::AtomicUsize::new",
            "core::sync::atomic::AtomicUsize::get_mut",
            "core::cell::Cell<T>::swap",
        ] {
            assert!(recognise(name).is_none(), "{name}");
        }
    }
}
