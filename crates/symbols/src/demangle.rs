//! Names as people write them.
//!
//! C++ names lose parameters and return type (`Table::add`, as one would type
//! it for a breakpoint), Rust names lose the hash, everything else (C, Go,
//! assembly) stays as it is.

use cpp_demangle::{DemangleOptions, Symbol};

/// Longer names are left mangled: demangling can grow exponentially.
const LONGEST: usize = 16 * 1024;

/// The readable form of a symbol name.
pub fn demangle(name: &str) -> String {
    if name.len() > LONGEST {
        return name.to_string();
    }
    // Suffixes of compiler-made clones and parts (`.constprop.0`, `.cold`,
    // `.0`) are no part of the name. In Rust's older mangling `..` is a path
    // separator inside of it.
    let base = match name.rfind("E.") {
        Some(end) if name.starts_with("_ZN") && !name[end + 1..].contains("..") => &name[..=end],
        _ => name,
    };
    if let Ok(rust) = rustc_demangle::try_demangle(base) {
        return inherent(format!("{rust:#}"));
    }
    if name.starts_with("_Z") {
        let base = name.split('.').next().unwrap_or(name);
        let options = DemangleOptions::new().no_params().no_return_type();
        if let Some(text) = Symbol::new(base)
            .ok()
            .and_then(|symbol| symbol.demangle_with_options(&options).ok())
        {
            return text;
        }
    }
    name.to_string()
}

/// `<core::sync::atomic::AtomicU64>::load` is written without the brackets.
fn inherent(name: String) -> String {
    let Some(rest) = name.strip_prefix('<') else {
        return name;
    };
    let mut depth = 1;
    for (index, byte) in rest.bytes().enumerate() {
        match byte {
            b'<' => depth += 1,
            // Not the arrow of a function type.
            b'>' if index > 0 && rest.as_bytes()[index - 1] != b'-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let (kind, behind) = (&rest[..index], &rest[index + 1..]);
            let path = kind.starts_with(|first: char| first.is_alphabetic() || first == '_');
            return if path && !kind.contains(" as ") {
                format!("{kind}{behind}")
            } else {
                name
            };
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::demangle;

    #[test]
    fn each_language_reads_as_it_is_written() {
        for (mangled, readable) in [
            ("main", "main"),
            ("main.worker", "main.worker"),
            ("runtime.(*mheap).alloc", "runtime.(*mheap).alloc"),
            ("_ZN5Table3addEi", "Table::add"),
            ("_ZNK5Table3getEv", "Table::get"),
            ("_Z4spinPVi.constprop.0", "spin"),
            (
                "_ZNSt6vectorIiSaIiEE9push_backERKi",
                "std::vector<int, std::allocator<int> >::push_back",
            ),
            ("_Z5twiceIiET_S0_", "twice<int>"),
            (
                "_ZN4core4sync6atomic11AtomicUsize9fetch_add17h0123456789abcdefE",
                "core::sync::atomic::AtomicUsize::fetch_add",
            ),
            ("_ZN7atomics4LONG17h0a8fc07dae6d8bedE.0", "atomics::LONG"),
            (
                "_ZN60_$LT$alloc..string..String$u20$as$u20$core..fmt..Display$GT$3fmt17h0123456789abcdefE",
                "<alloc::string::String as core::fmt::Display>::fmt",
            ),
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
            (
                "_RNvMs_NtNtCs1234_4core4sync6atomicNtB4_9AtomicU644load",
                "core::sync::atomic::AtomicU64::load",
            ),
            ("_Znonsense", "_Znonsense"),
            ("", ""),
        ] {
            assert_eq!(demangle(mangled), readable);
        }
    }
}
