//! Whose business an instruction is: which functions only work on what they are
//! given.
//!
//! `put(&slot, value)`, `operator[]`, `std::vector::push_back`, `memcpy` say
//! nothing about the object they work on; whoever calls them does. Told from
//! debug info alone, so that the answer is the same in every run: a function is
//! general if it is part of the language's library or an operator, or if what it
//! gets by address has no fields to be named (`int *`, `char *`, `void *`,
//! `T **`). A function that gets a structure names the field itself.
//!
//! A guess by the signature, and on the safe side for telling races apart: a
//! function that is wrongly called general only adds its caller.

use crate::debug::{DebugInfo, Entry};
use crate::module::Module;
use crate::types::{children, is_alias};
use race::Site;

/// One of the functions whose code an instruction is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// The function, and the line it is on there.
    pub site: Site,
    /// It works on what it is given.
    pub general: bool,
    /// It hands out memory of which it does not know what it is for: what it
    /// returns has no fields.
    pub allocates: bool,
}

/// Links of a type before it is taken for a cycle.
pub(crate) const LONGEST_TYPE: usize = 16;

impl Module {
    /// The functions at a link-time address, innermost first.
    pub(crate) fn roles(&self, address: u64) -> Vec<Role> {
        let frames = self.frames(address);
        let debug = self.debug();
        let chain = debug.as_ref().and_then(|debug| debug.functions_at(address));
        frames
            .into_iter()
            .enumerate()
            .map(|(depth, frame)| {
                let entry = chain.as_ref().and_then(|chain| chain.functions.get(depth));
                let entry = entry.map(|found| found.entry);
                let named = frame.function.as_deref().is_some_and(is_general_name);
                let (gets, returns) = match (&debug, entry) {
                    (Some(debug), Some(entry)) => (
                        debug.gets_plain_memory(entry),
                        debug.returns_plain_memory(entry),
                    ),
                    _ => (false, false),
                };
                let line = debug
                    .as_ref()
                    .and_then(|debug| debug.line_of_function(entry?));
                Role {
                    general: named || gets,
                    allocates: named || returns,
                    site: Site {
                        function_offset: self.unnamed_function(&frame, address),
                        function_line: frame.file.as_ref().and(line),
                        module: frame.module,
                        offset: frame.offset,
                        function: frame.function,
                        file: frame.file,
                        line: frame.line,
                    },
                }
            })
            .collect()
    }
}

/// The language's library, or an operator (but not a call operator, which is how
/// lambdas and jobs are written).
fn is_general_name(name: &str) -> bool {
    const LIBRARIES: [&str; 9] = [
        "std::",
        "core::",
        "alloc::",
        "__gnu_cxx::",
        "__cxxabiv1::",
        "hashbrown::",
        "<core::",
        "<alloc::",
        "<std::",
    ];
    let is_library = |name: &str| LIBRARIES.iter().any(|library| name.starts_with(library));
    // Templates are demangled with what they return.
    let declarator = name.split('(').next().unwrap_or(name);
    let own = without_arguments(declarator);
    let own = own
        .rsplit(' ')
        .next()
        .unwrap_or(&own)
        .trim_start_matches(['*', '&']);
    if is_library(name) || is_library(own) {
        return true;
    }
    // `<T as core::ops::index::Index>::index`
    let of_trait = name.split_once(" as ").is_some_and(|(_, trait_name)| {
        trait_name.starts_with("core::ops::") && !trait_name.starts_with("core::ops::function")
    });
    of_trait || is_operator(declarator)
}

/// The last part of the name is `operator` and its sign.
fn is_operator(declarator: &str) -> bool {
    declarator.rmatch_indices("operator").any(|(at, word)| {
        let before = declarator[..at].chars().next_back();
        let sign = declarator[at + word.len()..].chars().next();
        let begins = before.is_none_or(|letter| !letter.is_alphanumeric() && letter != '_');
        begins && sign.is_some_and(|sign| !sign.is_alphanumeric() && sign != '_' && sign != ':')
    })
}

/// Without what is between `<` and `>`.
fn without_arguments(name: &str) -> String {
    let mut depth = 0usize;
    let mut kept = String::new();
    for letter in name.chars() {
        match letter {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ if depth == 0 => kept.push(letter),
            _ => {}
        }
    }
    kept
}

/// What a type is an address of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pointee {
    /// Numbers, characters, pointers, nobody knows what.
    Plain,
    /// Something with fields.
    Class,
}

impl DebugInfo {
    /// It gets memory by address, and of none that it gets it knows fields.
    fn gets_plain_memory(&self, function: Entry<'_>) -> bool {
        let pointees: Vec<Pointee> = self
            .parameters(function)
            .into_iter()
            .filter_map(|parameter| self.pointee(self.type_of(parameter)?))
            .collect();
        !pointees.is_empty() && !pointees.contains(&Pointee::Class)
    }

    fn returns_plain_memory(&self, function: Entry<'_>) -> bool {
        let returned = self.type_of(function);
        returned.and_then(|returned| self.pointee(returned)) == Some(Pointee::Plain)
    }

    /// As the function was declared: an instance may lack some.
    fn parameters<'a>(&'a self, function: Entry<'a>) -> Vec<Entry<'a>> {
        let own = |function: Entry<'a>| -> Vec<Entry<'a>> {
            let is_parameter = |child: &Entry<'a>| {
                child
                    .unit
                    .entry(child.offset)
                    .is_ok_and(|die| die.tag() == gimli::DW_TAG_formal_parameter)
            };
            children(function)
                .into_iter()
                .filter(is_parameter)
                .collect()
        };
        let origin =
            function.unit.entry(function.offset).ok().and_then(|die| {
                self.follow(function, die.attr_value(gimli::DW_AT_abstract_origin)?)
            });
        let declared = origin.map(own).unwrap_or_default();
        if declared.is_empty() {
            own(function)
        } else {
            declared
        }
    }

    fn pointee(&self, type_entry: Entry<'_>) -> Option<Pointee> {
        let pointer = self.without_aliases(type_entry)?;
        let die = pointer.unit.entry(pointer.offset).ok()?;
        match die.tag() {
            gimli::DW_TAG_pointer_type
            | gimli::DW_TAG_reference_type
            | gimli::DW_TAG_rvalue_reference_type => {
                let target = self
                    .type_of(pointer)
                    .and_then(|target| self.without_aliases(target));
                Some(match target {
                    Some(target) if self.is_class(target) => Pointee::Class,
                    _ => Pointee::Plain,
                })
            }
            // `&[T]` and `&str` are an address and a length.
            gimli::DW_TAG_structure_type => {
                let name = self.name_of(pointer)?;
                name.starts_with(['&', '*']).then_some(Pointee::Plain)
            }
            _ => None,
        }
    }

    pub(crate) fn is_class(&self, entry: Entry<'_>) -> bool {
        entry.unit.entry(entry.offset).is_ok_and(|die| {
            matches!(
                die.tag(),
                gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type
            )
        })
    }

    /// The type behind `typedef`, `const`, `volatile` and their like.
    pub(crate) fn without_aliases<'a>(&'a self, entry: Entry<'a>) -> Option<Entry<'a>> {
        let mut entry = entry;
        for _ in 0..LONGEST_TYPE {
            let die = entry.unit.entry(entry.offset).ok()?;
            if !is_alias(die.tag()) {
                return Some(entry);
            }
            entry = self.type_of(entry)?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::is_general_name;

    #[test]
    fn libraries_and_operators_are_general() {
        for name in [
            "std::vector<Node, std::allocator<Node> >::push_back(Node const&)",
            "int* std::__copy_move<false, true>::__copy_m<int>(int*, int*, int*)",
            "core::ptr::write",
            "alloc::vec::Vec<T,A>::push",
            "<alloc::vec::Vec<T,A> as core::ops::deref::Deref>::deref",
            "<mine::Table as core::ops::index::Index<usize>>::index",
            "Matrix::operator[](int)",
            "operator<<(Stream&, int)",
            "Ref<Node>::operator->() const",
        ] {
            assert!(is_general_name(name), "{name}");
        }
        for name in [
            "worker",
            "main::{lambda()#1}::operator()() const",
            "Job::operator()(int)",
            "standard::add",
            "Table<std::string>::add(std::string const&)",
            "cooperator(int)",
            "operator_new_row(Table*)",
            "mine::main::{{closure}}",
            "<mine::Job as core::ops::function::FnOnce<()>>::call_once",
            "<mine::Table as mine::Store>::put",
        ] {
            assert!(!is_general_name(name), "{name}");
        }
    }
}
