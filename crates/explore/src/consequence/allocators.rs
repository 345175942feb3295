//! Allocators followed by the names of their functions: the C library's, the
//! well-known ones with their own prefixes, C++'s operators, and what the user
//! names (`--allocator alloc=pool_get:2,free=pool_put:2`).

use std::fmt;
use vm::guard::{GuardedFunction, SizeArgument};

/// What a function of an allocator does. Numbers are argument positions from
/// 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Returns a block of this size.
    Allocate {
        size: Size,
        zeroed: bool,
    },
    /// `realloc(block, size)` or `reallocarray(block, count, size)`.
    Reallocate {
        size: Size,
    },
    /// `posix_memalign(&block, alignment, size)`
    AllocateInto,
    Free {
        block: u8,
    },
    /// `malloc_usable_size(block)`: from here on the whole of it may be used.
    UsableSize,
    /// Works on its own memory.
    Internal,
}

/// How large a block is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    Argument(u8),
    Product(u8, u8),
    Bytes(u64),
}

/// A function of an allocator; the user's own work on memory that they got
/// from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Followed {
    pub role: Role,
    pub custom: bool,
}

const MALLOC: Role = Role::Allocate {
    size: Size::Argument(0),
    zeroed: false,
};

const ALIGNED: Role = Role::Allocate {
    size: Size::Argument(1),
    zeroed: false,
};

/// The functions of a C allocator by their standard names.
const STANDARD: &[(&str, Role)] = &[
    ("malloc", MALLOC),
    ("valloc", MALLOC),
    ("pvalloc", MALLOC),
    (
        "calloc",
        Role::Allocate {
            size: Size::Product(0, 1),
            zeroed: true,
        },
    ),
    (
        "realloc",
        Role::Reallocate {
            size: Size::Argument(1),
        },
    ),
    (
        "reallocarray",
        Role::Reallocate {
            size: Size::Product(1, 2),
        },
    ),
    ("memalign", ALIGNED),
    ("aligned_alloc", ALIGNED),
    ("posix_memalign", Role::AllocateInto),
    ("free", Role::Free { block: 0 }),
    ("cfree", Role::Free { block: 0 }),
    ("free_sized", Role::Free { block: 0 }),
    ("free_aligned_sized", Role::Free { block: 0 }),
    ("malloc_usable_size", Role::UsableSize),
    ("malloc_trim", Role::Internal),
    ("malloc_stats", Role::Internal),
    ("malloc_info", Role::Internal),
    ("mallopt", Role::Internal),
    ("mallinfo", Role::Internal),
    ("mallinfo2", Role::Internal),
];

/// Allocators that can be linked in under names of their own: jemalloc,
/// mimalloc, tcmalloc, TBB.
const PREFIXES: &[&str] = &["", "je_", "mi_", "tc_", "scalable_"];

/// C++'s replaceable operators that allocate, and those that free.
const NEW: &[&str] = &[
    "_Znwm",
    "_Znam",
    "_ZnwmRKSt9nothrow_t",
    "_ZnamRKSt9nothrow_t",
    "_ZnwmSt11align_val_t",
    "_ZnamSt11align_val_t",
    "_ZnwmSt11align_val_tRKSt9nothrow_t",
    "_ZnamSt11align_val_tRKSt9nothrow_t",
];

const DELETE: &[&str] = &[
    "_ZdlPv",
    "_ZdaPv",
    "_ZdlPvm",
    "_ZdaPvm",
    "_ZdlPvRKSt9nothrow_t",
    "_ZdaPvRKSt9nothrow_t",
    "_ZdlPvSt11align_val_t",
    "_ZdaPvSt11align_val_t",
    "_ZdlPvmSt11align_val_t",
    "_ZdaPvmSt11align_val_t",
    "_ZdlPvSt11align_val_tRKSt9nothrow_t",
    "_ZdaPvSt11align_val_tRKSt9nothrow_t",
];

/// Allocators that hand out parts of larger blocks, by a function of theirs:
/// what goes wrong inside those blocks is not seen.
pub const NOT_FOLLOWED: &[(&str, &str)] = &[
    ("runtime.mallocgc", "the Go run-time's heap"),
    ("PyObject_Malloc", "Python's object allocator"),
    ("apr_palloc", "APR's pools"),
    ("g_slice_alloc", "GLib's slices"),
    ("rpmalloc", "rpmalloc"),
    ("hoard", "Hoard"),
];

/// Every name that is followed without being asked for.
pub fn standard() -> Vec<(String, Role)> {
    let mut names: Vec<(String, Role)> = PREFIXES
        .iter()
        .flat_map(|prefix| {
            STANDARD
                .iter()
                .map(move |(name, role)| (format!("{prefix}{name}"), *role))
        })
        .collect();
    names.extend(NEW.iter().map(|name| (name.to_string(), MALLOC)));
    let free = Role::Free { block: 0 };
    names.extend(DELETE.iter().map(|name| (name.to_string(), free)));
    names
}

/// The functions of allocators in a file whose blocks can be made larger
/// (`record --guard`).
pub fn guarded_functions(path: &std::path::Path) -> Vec<GuardedFunction> {
    let module = symbols::Module::open(path);
    if module.name().starts_with("ld-linux") || module.name().starts_with("ld.so") {
        return Vec::new();
    }
    let mut found = Vec::new();
    for prefix in PREFIXES {
        for (name, role) in STANDARD {
            let size = match role {
                Role::Allocate { size, .. } | Role::Reallocate { size } => *size,
                Role::AllocateInto => Size::Argument(2),
                _ => continue,
            };
            let size = match size {
                Size::Argument(number) => SizeArgument::One(number),
                Size::Product(one, other) => SizeArgument::Product(one, other),
                Size::Bytes(_) => continue,
            };
            for function in module.functions_named(&format!("{prefix}{name}")) {
                let segment = module
                    .segments()
                    .iter()
                    .find(|segment| segment.addresses.contains(&function.start));
                if let Some(segment) = segment
                    && !function.indirect
                {
                    let offset = segment.file_offset + (function.start - segment.addresses.start);
                    // One function may have several names.
                    if !found
                        .iter()
                        .any(|known: &GuardedFunction| known.offset == offset)
                    {
                        found.push(GuardedFunction { offset, size });
                    }
                }
            }
        }
    }
    found
}

/// Modules that are allocators as a whole: their accesses are their own.
pub const LIBRARIES: &[&str] = &[
    "libjemalloc",
    "libtcmalloc",
    "libmimalloc",
    "libtbbmalloc",
    "libhoard",
    "librpmalloc",
    "libscudo",
];

/// What is wrong with an `--allocator`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "--allocator {text:?}: {what}; write `alloc=FUNCTION,free=FUNCTION`, with `:N` for the argument that is the size or the block (`alloc=pool_get:2`), or `:=BYTES` for blocks of one size"
)]
pub struct AllocatorError {
    text: String,
    what: String,
}

/// An allocator named by the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Custom {
    pub functions: Vec<(String, Role)>,
}

impl Custom {
    /// `alloc=pool_get:2,free=pool_put:2`; numbers count from 1.
    pub fn parse(text: &str) -> Result<Custom, AllocatorError> {
        let wrong = |what: fmt::Arguments<'_>| AllocatorError {
            text: text.to_string(),
            what: what.to_string(),
        };
        let mut functions = Vec::new();
        for part in text.split(',') {
            let Some((key, value)) = part.split_once('=') else {
                return Err(wrong(format_args!("`{part}` has no `=`")));
            };
            let (name, place) = match value.split_once(':') {
                Some((name, place)) => (name, Some(place)),
                None => (value, None),
            };
            if name.is_empty() {
                return Err(wrong(format_args!("`{part}` names no function")));
            }
            let position = |place: &str| match place.parse::<u8>() {
                Ok(number @ 1..=6) => Ok(number - 1),
                _ => Err(wrong(format_args!(
                    "`{place}` is not an argument's position from 1 to 6"
                ))),
            };
            let role = match (key, place) {
                ("alloc", None) => MALLOC,
                ("alloc", Some(place)) => {
                    let size = match place.strip_prefix('=') {
                        Some(bytes) => Size::Bytes(bytes.parse().map_err(|_| {
                            wrong(format_args!("`{bytes}` is not a number of bytes"))
                        })?),
                        None => Size::Argument(position(place)?),
                    };
                    Role::Allocate {
                        size,
                        zeroed: false,
                    }
                }
                ("free", None) => Role::Free { block: 0 },
                ("free", Some(place)) => Role::Free {
                    block: position(place)?,
                },
                ("internal", None) => Role::Internal,
                _ => {
                    return Err(wrong(format_args!(
                        "`{key}` is none of alloc, free, internal"
                    )));
                }
            };
            functions.push((name.to_string(), role));
        }
        let has = |wanted: fn(&Role) -> bool| functions.iter().any(|(_, role)| wanted(role));
        if !has(|role| matches!(role, Role::Allocate { .. })) {
            return Err(wrong(format_args!("no function that allocates is named")));
        }
        if !has(|role| matches!(role, Role::Free { .. })) {
            return Err(wrong(format_args!("no function that frees is named")));
        }
        Ok(Custom { functions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_and_sizes_of_a_named_allocator() {
        let named = Custom::parse("alloc=pool_get:2,free=pool_put:2").expect("it is right");
        assert_eq!(
            named.functions,
            [
                (
                    "pool_get".to_string(),
                    Role::Allocate {
                        size: Size::Argument(1),
                        zeroed: false
                    }
                ),
                ("pool_put".to_string(), Role::Free { block: 1 }),
            ]
        );
        let fixed = Custom::parse("alloc=node_new:=32,free=node_old,internal=sweep");
        assert_eq!(
            fixed.expect("it is right").functions[0].1,
            Role::Allocate {
                size: Size::Bytes(32),
                zeroed: false
            }
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, what) in [
            ("alloc", "has no `=`"),
            ("alloc=,free=b", "names no function"),
            ("alloc=a:0,free=b", "not an argument's position"),
            ("alloc=a", "no function that frees"),
            ("free=b", "no function that allocates"),
            ("take=a,free=b", "`take` is none of"),
            ("alloc=a:=x,free=b", "not a number of bytes"),
        ] {
            let error = Custom::parse(text).expect_err(text).to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
