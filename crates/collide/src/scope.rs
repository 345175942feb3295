//! What is sampled and what is not, by module, function and file.
//!
//! By default everything but routines that synchronise, which race on purpose,
//! and the insides of the C library, the loader and allocators, which consist
//! of such routines; of the C library the functions that copy and compare
//! memory are sampled, because their accesses are the program's own.
//! `--include` brings any of it in, `--exclude` leaves more out.

use symbols::Module;

/// A pattern with `*` for any text.
#[derive(Debug, Clone)]
pub struct Pattern(String);

impl Pattern {
    pub fn new(text: &str) -> Pattern {
        Pattern(text.to_string())
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    pub fn matches(&self, text: &str) -> bool {
        fn glob(pattern: &[u8], text: &[u8]) -> bool {
            // Linear: on a mismatch only the latest star moves on.
            let (mut p, mut t) = (0, 0);
            let mut star = None;
            while t < text.len() {
                if p < pattern.len() && pattern[p] == b'*' {
                    star = Some((p, t));
                    p += 1;
                } else if p < pattern.len() && pattern[p] == text[t] {
                    p += 1;
                    t += 1;
                } else if let Some((at, from)) = star {
                    p = at + 1;
                    t = from + 1;
                    star = Some((at, from + 1));
                } else {
                    return false;
                }
            }
            pattern[p..].iter().all(|byte| *byte == b'*')
        }
        glob(self.0.as_bytes(), text.as_bytes())
    }

    /// Looks like a source file rather than a module or function.
    fn is_file(&self) -> bool {
        let extensions = [
            ".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".rs", ".go", ".S", ".s",
        ];
        extensions
            .iter()
            .any(|extension| self.0.ends_with(extension))
    }
}

#[derive(Debug, Clone, Default)]
pub struct Scope {
    pub include: Vec<Pattern>,
    pub exclude: Vec<Pattern>,
}

impl Scope {
    /// Whether a function is sampled; `string_function` marks those of the C
    /// library that are known to copy or compare memory.
    pub fn samples(
        &self,
        module: &Module,
        function: Option<&str>,
        start: u64,
        string_function: bool,
    ) -> bool {
        let hit = |patterns: &[Pattern]| {
            patterns
                .iter()
                .any(|pattern| self.hits(pattern, module, function, start))
        };
        if hit(&self.exclude) {
            return false;
        }
        if !self.include.is_empty() {
            return hit(&self.include);
        }
        let plain = function.map(|name| name.trim_start_matches('_'));
        if is_c_library(module.name()) {
            return string_function || plain.is_some_and(copies_or_compares);
        }
        !is_internal_module(module.name())
            && !function.is_some_and(synchronises)
            && !plain.is_some_and(is_library_internal)
    }

    fn hits(&self, pattern: &Pattern, module: &Module, function: Option<&str>, start: u64) -> bool {
        if pattern.matches(module.name()) {
            return true;
        }
        if let Some(name) = function
            && (pattern.matches(name) || pattern.matches(&symbols::demangle(name)))
        {
            return true;
        }
        pattern.is_file()
            && module.frames(start).iter().any(|frame| {
                frame.file.as_ref().is_some_and(|file| {
                    pattern.matches(file)
                        || file
                            .rsplit('/')
                            .next()
                            .is_some_and(|base| pattern.matches(base))
                })
            })
    }

    /// Why a module is left out as a whole, for the report.
    pub fn left_out(&self, module: &str) -> Option<&'static str> {
        if self.include.is_empty() && is_internal_module(module) {
            return Some("its accesses are internal to loading and allocation");
        }
        None
    }
}

fn is_c_library(module: &str) -> bool {
    ["libc.so", "libc-2", "libpthread", "ld-musl", "libc.musl"]
        .iter()
        .any(|name| module.starts_with(name))
}

fn is_internal_module(module: &str) -> bool {
    [
        "ld-linux",
        "ld-2",
        "librt.so",
        "libdl.so",
        "libjemalloc",
        "libtcmalloc",
        "libmimalloc",
        "libtsan",
        "libasan",
        "libgomp",
        "libiomp",
        "libomp",
        "[vdso]",
        "[vsyscall]",
    ]
    .iter()
    .any(|name| module.starts_with(name))
}

/// `memcpy`, `strlen`, `wmemset` and their variants (`__memmove_avx_…`).
pub fn copies_or_compares(name: &str) -> bool {
    let stems = [
        "mem", "str", "stp", "wcs", "wmem", "wcp", "rawmem", "bcopy", "bzero", "bcmp", "index",
        "rindex",
    ];
    let not = [
        "strerror",
        "strftime",
        "strfmon",
        "strsignal",
        "strfrom",
        "stpm",
        "strtok",
    ];
    stems.iter().any(|stem| name.starts_with(stem)) && !not.iter().any(|no| name.starts_with(no))
}

/// Routines whose plain accesses are synchronisation, by the names their
/// libraries give them.
pub fn synchronises(name: &str) -> bool {
    let plain = name.trim_start_matches('_');
    let prefixes = [
        "pthread_",
        "nptl_",
        "lll_",
        "sem_",
        "new_sem_",
        "old_sem_",
        "mtx_",
        "cnd_",
        "thrd_",
        "tss_",
        "call_once",
        "futex",
        "atomic_",
        "sync_",
        "cxa_guard_",
        "gthread_",
        "gomp_",
        "GOMP_",
        "omp_",
        "kmp",
        "rseq",
        "tsan_",
    ];
    // Go's runtime and sync packages load their atomics with plain moves.
    let go = [
        "runtime.",
        "internal/runtime/",
        "runtime/internal/",
        "sync.",
        "sync/atomic.",
    ];
    if prefixes.iter().any(|prefix| plain.starts_with(prefix))
        || go.iter().any(|prefix| name.starts_with(prefix))
    {
        return true;
    }
    // Names stand in mangled ones as they are: most need not be demangled.
    let hints = [
        "atomic",
        "sync",
        "thread",
        "parking_lot",
        "mutex",
        "condition",
        "once",
        "_Sp_",
        "shared",
        "exchange_and_add",
    ];
    if !hints.iter().any(|hint| name.contains(hint)) {
        return false;
    }
    let readable = symbols::demangle(name);
    is_atomic_operation(&readable)
        || [
            "std::sync::",
            "std::sys::sync::",
            "std::thread::",
            "parking_lot",
            "std::mutex",
            "std::condition_variable",
            "std::shared_mutex",
            "std::__once",
            "std::call_once",
            "std::thread::",
            "std::__atomic",
            "std::_Sp_counted",
            "std::__shared_count",
        ]
        .iter()
        .any(|part| readable.starts_with(part) || readable.contains(&format!("<{part}")))
}

/// A function of C++'s, Rust's or C's atomics.
fn is_atomic_operation(function: &str) -> bool {
    [
        "core::sync::atomic::",
        "std::sync::atomic::",
        "std::atomic<",
        "std::atomic_",
        "std::__atomic_base<",
        "std::__atomic_float<",
        "std::atomic_ref<",
        "std::__atomic_ref<",
        "std::__atomic_impl::",
        "__gnu_cxx::__exchange_and_add",
        "__gnu_cxx::__atomic_add",
        "atomic_load",
        "atomic_store",
        "atomic_exchange",
        "atomic_compare_exchange",
        "atomic_fetch_",
    ]
    .iter()
    .any(|part| function.contains(part))
}

/// C library internals that a statically linked program carries in itself.
fn is_library_internal(name: &str) -> bool {
    let prefixes = [
        "dl_",
        "IO_",
        "libc_",
        "nl_",
        "int_malloc",
        "int_free",
        "int_realloc",
        "int_memalign",
        "tcache_",
        "malloc_consolidate",
        "sysmalloc",
        "systrim",
        "arena_get",
        "ptmalloc",
        "call_tls_dtors",
        "tls_get_addr",
        "ld_",
    ];
    let names = [
        "malloc",
        "free",
        "calloc",
        "realloc",
        "memalign",
        "unlink_chunk",
    ];
    prefixes.iter().any(|prefix| name.starts_with(prefix)) || names.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("add", "add", true),
            ("add", "adder", false),
            ("add*", "adder", true),
            ("*.so*", "libx.so.6", true),
            ("a*b*c", "aXXbYYc", true),
            ("a*b*c", "aXXbYY", false),
            ("*", "", true),
            ("a*aab", "aaaaab", true),
        ] {
            assert_eq!(
                Pattern::new(pattern).matches(text),
                expected,
                "{pattern} {text}"
            );
        }
    }

    #[test]
    fn routines_that_synchronise() {
        for name in [
            "pthread_mutex_lock",
            "___pthread_mutex_lock",
            "__lll_lock_wait",
            "sem_post",
            "sync/atomic.LoadInt32",
            "runtime.lock2",
            "_ZNSt6atomicIiE5storeEiSt12memory_order",
        ] {
            assert!(synchronises(name), "{name}");
        }
        for name in [
            "main",
            "worker",
            "synchronise_clocks",
            "std_dev",
            "main.increment",
        ] {
            assert!(!synchronises(name), "{name}");
        }
    }

    #[test]
    fn the_c_library_is_sampled_where_it_copies() {
        for name in [
            "memcpy",
            "memmove_avx_unaligned_erms",
            "strlen_sse2",
            "wcslen",
        ] {
            assert!(copies_or_compares(name), "{name}");
        }
        for name in ["malloc", "IO_file_write", "strerror_r", "vfprintf"] {
            assert!(!copies_or_compares(name), "{name}");
        }
    }
}
