//! What an instruction means to a region: accesses, acquires, releases (paper
//! 004, section 3.5 and figure 6).
//!
//! Three facts per instruction decide everything: does it end the search for
//! later accesses (`kills_backward`: an acquire, or a call that may acquire,
//! never return or unwind), may a release happen inside it (`kills_forward`:
//! what was started before is gone after), and must the pass itself announce a
//! release before it (`stop_before`: the run-time has no other way to see it).
//! Releases inside pthread and the like are seen by the run-time, which
//! interposes them, so a call to them needs no `stop_before`.
//!
//! Beyond the paper: calls that LLVM proves `nosync` are transparent, and
//! copying functions are accesses.

use crate::without::Without;
use crate::{ir, shim};
use inkwell::llvm_sys::core::*;
use inkwell::llvm_sys::prelude::*;
use inkwell::llvm_sys::{LLVMAtomicOrdering, LLVMOpcode, LLVMTypeKind};

/// A load or store of a fixed number of bytes.
#[derive(Clone, Copy)]
pub struct Access {
    pub pointer: LLVMValueRef,
    pub size: u64,
    pub alignment: u64,
    pub write: bool,
    pub volatile: bool,
}

/// Bytes that a call touches at once.
#[derive(Clone, Copy)]
pub enum Bulk {
    /// `length` bytes from `pointer`, touched by the call that follows.
    Bytes {
        pointer: LLVMValueRef,
        length: LLVMValueRef,
        write: bool,
    },
    /// A structure passed by value.
    ByValue { pointer: LLVMValueRef, size: u64 },
    /// The call prints into the bytes from `pointer` on, a 0 behind what it says to
    /// have printed, but not beyond `limit`.
    Printed {
        pointer: LLVMValueRef,
        limit: Option<LLVMValueRef>,
    },
    /// The string at `source` is read, and written to `target` if there is one.
    String {
        source: LLVMValueRef,
        target: Option<LLVMValueRef>,
    },
    /// The length of a `std::string`, which the call has used when it returns.
    Length { string: LLVMValueRef, write: bool },
}

#[derive(Default)]
pub struct Effect {
    pub access: Option<Access>,
    pub bulk: Vec<Bulk>,
    pub kills_backward: bool,
    pub kills_forward: bool,
    pub stop_before: bool,
}

fn releases(order: LLVMAtomicOrdering) -> bool {
    use LLVMAtomicOrdering::*;
    matches!(
        order,
        LLVMAtomicOrderingRelease
            | LLVMAtomicOrderingAcquireRelease
            | LLVMAtomicOrderingSequentiallyConsistent
    )
}

fn is_atomic(order: LLVMAtomicOrdering) -> bool {
    order != LLVMAtomicOrdering::LLVMAtomicOrderingNotAtomic
}

/// Library functions that neither synchronise nor fail to return.
fn is_quiet_library(name: &str) -> bool {
    const EXACT: &[&str] = &[
        "memcpy",
        "memmove",
        "memset",
        "memcmp",
        "bcmp",
        "memchr",
        "memrchr",
        "strlen",
        "strnlen",
        "strcpy",
        "strncpy",
        "strcat",
        "strncat",
        "strcmp",
        "strncmp",
        "strcasecmp",
        "strncasecmp",
        "strchr",
        "strrchr",
        "strstr",
        "strspn",
        "strcspn",
        "strpbrk",
        "strdup",
        "strndup",
        "strtol",
        "strtoul",
        "strtoll",
        "strtoull",
        "strtod",
        "atoi",
        "atol",
        "atoll",
        "atof",
        "isalpha",
        "isdigit",
        "isspace",
        "isalnum",
        "isupper",
        "islower",
        "isprint",
        "ispunct",
        "isxdigit",
        "toupper",
        "tolower",
        "__ctype_b_loc",
        "__ctype_tolower_loc",
        "__ctype_toupper_loc",
        "__errno_location",
        "abs",
        "labs",
        "llabs",
        "malloc",
        "calloc",
        "realloc",
        "free",
        "aligned_alloc",
        "posix_memalign",
        "memalign",
        "_Znwm",
        "_Znam",
        "_ZdlPv",
        "_ZdaPv",
        "_ZdlPvm",
        "_ZdaPvm",
        "_ZnwmRKSt9nothrow_t",
        "_ZdlPvSt11align_val_t",
        "getpid",
        "time",
        "clock_gettime",
        "gettimeofday",
        "sysconf",
        "rand_r",
        "erand48",
        "nrand48",
        "drand48_r",
        "pthread_self",
        "pthread_equal",
        "__memcpy_chk",
        "__memset_chk",
        "__memmove_chk",
        "__strcpy_chk",
        "snprintf",
        "sprintf",
        "vsnprintf",
        "__snprintf_chk",
        "__sprintf_chk",
        "vsprintf",
        "__vsprintf_chk",
        "__vsnprintf_chk",
        "mempcpy",
        "stpcpy",
        "bzero",
        "malloc_usable_size",
        "__rust_alloc",
        "__rust_dealloc",
        "__rust_realloc",
        "__rust_alloc_zeroed",
    ];
    const MATHS: &[&str] = &[
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "atan2",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "pow",
        "sqrt",
        "cbrt",
        "hypot",
        "floor",
        "ceil",
        "round",
        "trunc",
        "fmod",
        "remainder",
        "fabs",
        "fmin",
        "fmax",
        "fdim",
        "fma",
        "ldexp",
        "scalbn",
        "frexp",
        "modf",
        "lround",
        "llround",
        "lrint",
        "llrint",
        "rint",
        "nearbyint",
        "erf",
        "erfc",
        "tgamma",
        "lgamma",
        "sincos",
        "copysign",
        "nextafter",
        "ilogb",
        "logb",
    ];
    EXACT.contains(&name)
        || MATHS.contains(&name)
        || name
            .strip_suffix(['f', 'l'])
            .is_some_and(|stem| MATHS.contains(&stem))
}

/// Functions of the C and C++ libraries that may publish what came before
/// (a file lock, a pipe at the other end, a guard) without any interposed call.
fn is_hidden_release(name: &str) -> bool {
    const EXACT: &[&str] = &[
        "printf",
        "fprintf",
        "vprintf",
        "vfprintf",
        "dprintf",
        "vdprintf",
        "puts",
        "putchar",
        "putc",
        "fputc",
        "fputs",
        "fwrite",
        "fflush",
        "fclose",
        "pclose",
        "perror",
        "syslog",
        "vsyslog",
        "system",
        "popen",
        "__printf_chk",
        "__fprintf_chk",
        "putchar_unlocked",
        "__overflow",
        "_IO_putc",
        "fputs_unlocked",
        "fwrite_unlocked",
        "__cxa_guard_release",
        "__cxa_guard_abort",
        "__cxa_end_catch",
        "__cxa_throw",
        "__cxa_rethrow",
        "_Unwind_Resume",
        "_Unwind_RaiseException",
        "longjmp",
        "siglongjmp",
        "_longjmp",
        "__longjmp_chk",
        "fcntl",
        "fcntl64",
        "ioctl",
        "open",
        "open64",
        "openat",
        "prctl",
        "execl",
        "execlp",
        "execle",
        "execv",
        "execve",
        "execvp",
        "semctl",
        "shmctl",
        "mq_open",
        "sem_open",
        "ptrace",
        "swapcontext",
        "setcontext",
        "getcontext",
        "makecontext",
        "atexit",
        "on_exit",
        "__cxa_atexit",
        "__cxa_thread_atexit",
        "exit",
        "dlopen",
        "dlclose",
    ];
    const PREFIX: &[&str] = &[
        "_ZNSt15__exception_ptr",
        "_ZNKSt15__exception_ptr",
        "_ZSt17rethrow_exception",
        "_ZSt17current_exception",
        "_ZNSo",
        "_ZNSi",
        "_ZStlsI",
        "_ZSt4endlI",
        "_ZNSt6locale",
        "_ZNSt9basic_",
        "_ZNSt14basic_",
        "_ZNSt16__atomic_futex",
        "_ZNSt28__atomic_futex",
        "_ZNSt13__future_base",
    ];
    EXACT.contains(&name) || PREFIX.iter().any(|prefix| name.starts_with(prefix))
}

/// Functions that release and do not acquire: later accesses stay in the sets.
fn is_release_only(name: &str) -> bool {
    const EXACT: &[&str] = &[
        "pthread_mutex_unlock",
        "pthread_rwlock_unlock",
        "pthread_spin_unlock",
        "pthread_cond_signal",
        "pthread_cond_broadcast",
        "pthread_create",
        "sem_post",
        "mtx_unlock",
        "cnd_signal",
        "cnd_broadcast",
        "thrd_create",
    ];
    EXACT.contains(&name)
}

/// Functions that acquire and do not release: what is started goes on.
fn is_acquire_only(name: &str) -> bool {
    const EXACT: &[&str] = &[
        "pthread_mutex_lock",
        "pthread_mutex_trylock",
        "pthread_mutex_timedlock",
        "pthread_rwlock_rdlock",
        "pthread_rwlock_wrlock",
        "pthread_rwlock_tryrdlock",
        "pthread_rwlock_trywrlock",
        "pthread_spin_lock",
        "pthread_spin_trylock",
        "pthread_join",
        "sem_wait",
        "sem_trywait",
        "mtx_lock",
        "mtx_trylock",
        "thrd_join",
    ];
    EXACT.contains(&name)
}

/// A symbol of Rust code: legacy mangling with its hash, or v0.
pub fn is_rust_symbol(name: &str) -> bool {
    if name.starts_with("_R") {
        return true;
    }
    let Some(body) = name
        .strip_prefix("_ZN")
        .and_then(|rest| rest.split('.').next())
    else {
        return false;
    };
    body.strip_suffix('E')
        .and_then(|body| body.len().checked_sub(19).map(|at| body.get(at..)))
        .flatten()
        .is_some_and(|tail| {
            tail.starts_with("17h") && tail[3..].bytes().all(|byte| byte.is_ascii_hexdigit())
        })
}

/// Member functions of `std::string` in the C++ library that use the length of
/// their object whatever else they do; whether they write it. Those that may leave
/// it alone (`a = a`, `erase` of nothing) are not among them.
fn uses_string_length(name: &str) -> Option<bool> {
    const CLASS: &str = "St7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE";
    const WRITE: &[&str] = &[
        "9_M_append",
        "6append",
        "9push_back",
        "pL",
        "6insert",
        "6assign",
        "7replace",
        "10_M_replace",
        "14_M_replace_aux",
        "8_M_erase",
    ];
    const READ: &[&str] = &[
        "4size", "6length", "5empty", "4find", "5rfind", "7compare", "2at",
    ];
    let is_one_of = |members: &[&str], rest: &str| {
        // `E` ends the name; the parameters follow.
        members.iter().any(|member| {
            rest.strip_prefix(member)
                .is_some_and(|end| end.starts_with('E'))
        })
    };
    match name.strip_prefix("_ZN")?.strip_prefix('K') {
        Some(constant) => is_one_of(READ, constant.strip_prefix(CLASS)?).then_some(false),
        None => is_one_of(WRITE, name.strip_prefix("_ZN")?.strip_prefix(CLASS)?).then_some(true),
    }
}

fn argument(call: LLVMValueRef, index: u32) -> LLVMValueRef {
    ir::operand(call, index)
}

fn is_integer(value: LLVMValueRef) -> bool {
    // SAFETY: a live value.
    unsafe { LLVMGetTypeKind(LLVMTypeOf(value)) == LLVMTypeKind::LLVMIntegerTypeKind }
}

fn copies(name: &str, call: LLVMValueRef) -> Vec<Bulk> {
    // SAFETY: a live call.
    let arguments = unsafe { LLVMGetNumArgOperands(call) };
    let bytes = |index: u32, write| Bulk::Bytes {
        pointer: argument(call, index),
        length: argument(call, 2),
        write,
    };
    match name {
        _ if name.starts_with("llvm.memcpy")
            || name.starts_with("llvm.memmove")
            || (matches!(name, "memcpy" | "memmove") && arguments == 3) =>
        {
            vec![bytes(1, false), bytes(0, true)]
        }
        _ if name.starts_with("llvm.memset") || (name == "memset" && arguments == 3) => {
            vec![bytes(0, true)]
        }
        // C lets it look at all bytes even where the first ones differ.
        "memcmp" | "bcmp" if arguments == 3 => vec![bytes(0, false), bytes(1, false)],
        "strlen" | "strdup" if arguments == 1 => vec![Bulk::String {
            source: argument(call, 0),
            target: None,
        }],
        "strncpy" if arguments == 3 => vec![bytes(0, true)],
        "sprintf" | "__sprintf_chk" | "vsprintf" | "__vsprintf_chk"
            if arguments > 1 && is_integer(call) =>
        {
            vec![Bulk::Printed {
                pointer: argument(call, 0),
                limit: None,
            }]
        }
        "snprintf" | "__snprintf_chk" | "vsnprintf" | "__vsnprintf_chk"
            if arguments > 2 && is_integer(call) && is_integer(argument(call, 1)) =>
        {
            vec![Bulk::Printed {
                pointer: argument(call, 0),
                limit: Some(argument(call, 1)),
            }]
        }
        "mempcpy" if arguments == 3 => vec![bytes(1, false), bytes(0, true)],
        "bzero" if arguments == 2 => vec![Bulk::Bytes {
            pointer: argument(call, 0),
            length: argument(call, 1),
            write: true,
        }],
        "strcpy" | "stpcpy" if arguments == 2 => vec![Bulk::String {
            source: argument(call, 1),
            target: Some(argument(call, 0)),
        }],
        _ if arguments > 0 => match uses_string_length(name) {
            Some(write) => vec![Bulk::Length {
                string: argument(call, 0),
                write,
            }],
            None => Vec::new(),
        },
        _ => Vec::new(),
    }
}

fn of_call(call: LLVMValueRef, in_rust: bool, without: Without) -> Effect {
    let mut effect = Effect::default();
    // SAFETY: a live call or invoke, as the opcode said.
    let (facts, arguments) = unsafe {
        if shim::dh_is_debug_or_lifetime(call) != 0 {
            return effect;
        }
        (shim::dh_call_facts(call), LLVMGetNumArgOperands(call))
    };
    for index in 0..if without.library { 0 } else { arguments } {
        // SAFETY: `index` is an argument of this live call.
        let kind = unsafe { shim::dh_byval_type(call, index) };
        if !kind.is_null() {
            // SAFETY: the call sits in a block of a function of a module.
            let module = unsafe { ir::module_of(LLVMGetBasicBlockParent(ir::parent(call))) };
            effect.bulk.push(Bulk::ByValue {
                pointer: argument(call, index),
                size: ir::store_size(module, kind),
            });
        }
    }
    let known = !without.summaries;
    let (no_sync, returns, no_unwind) = (
        known && facts & 1 != 0,
        known && facts & 2 != 0,
        known && facts & 4 != 0,
    );
    let Some(target) = ir::callee(call) else {
        // SAFETY: a live call; the query accepts any value.
        let assembly = unsafe { LLVMIsAInlineAsm(LLVMGetCalledValue(call)) };
        if !assembly.is_null() {
            // SAFETY: checked to be inline assembly.
            let acts = unsafe { LLVMGetInlineAsmHasSideEffects(assembly) } != 0;
            effect.kills_backward = acts;
            effect.kills_forward = acts;
            effect.stop_before = acts;
            return effect;
        }
        effect.kills_forward = !no_sync;
        effect.kills_backward = !(no_sync && returns && no_unwind);
        effect.stop_before = in_rust && !no_sync;
        return effect;
    };
    let name = ir::name(target);
    if name.starts_with("__deadheat_ifr") {
        return effect;
    }
    let declared = ir::is_declaration(target);
    if declared {
        if !without.library {
            effect.bulk.extend(copies(&name, call));
        }
        if name.starts_with("llvm.") {
            effect.kills_backward = facts & 2 == 0 && !name.starts_with("llvm.mem");
            return effect;
        }
        if is_quiet_library(&name) && !without.library {
            return effect;
        }
        if is_release_only(&name) {
            effect.kills_forward = true;
            return effect;
        }
        if is_acquire_only(&name) {
            effect.kills_backward = true;
            return effect;
        }
        if is_hidden_release(&name) || is_rust_symbol(&name) {
            effect.kills_backward = true;
            effect.kills_forward = true;
            effect.stop_before = facts & 8 == 0;
            return effect;
        }
    }
    effect.kills_forward = !no_sync;
    effect.kills_backward = !(no_sync && returns && no_unwind);
    effect
}

/// What `instruction` does; `in_rust` says that it belongs to Rust code, whose
/// calls through pointers may land in the precompiled standard library.
pub fn of(
    instruction: LLVMValueRef,
    module: LLVMModuleRef,
    in_rust: bool,
    without: Without,
) -> Effect {
    let mut effect = Effect::default();
    match ir::opcode(instruction) {
        LLVMOpcode::LLVMLoad | LLVMOpcode::LLVMStore => {
            let write = ir::opcode(instruction) == LLVMOpcode::LLVMStore;
            // SAFETY: a live load or store.
            let (order, volatile, alignment, kind) = unsafe {
                (
                    LLVMGetOrdering(instruction),
                    LLVMGetVolatile(instruction) != 0,
                    LLVMGetAlignment(instruction),
                    if write {
                        LLVMTypeOf(ir::operand(instruction, 0))
                    } else {
                        LLVMTypeOf(instruction)
                    },
                )
            };
            if is_atomic(order) {
                // A spin on an atomic may never end, so even a relaxed load
                // ends the search.
                effect.kills_backward = !write || releases(order);
                effect.stop_before = write && releases(order);
                effect.kills_forward = effect.stop_before;
                return effect;
            }
            effect.kills_backward = volatile && !write;
            effect.access = Some(Access {
                pointer: ir::operand(instruction, u32::from(write)),
                size: ir::store_size(module, kind),
                alignment: u64::from(alignment),
                write,
                volatile,
            });
        }
        LLVMOpcode::LLVMAtomicRMW | LLVMOpcode::LLVMFence => {
            // SAFETY: a live atomic instruction.
            let order = unsafe { LLVMGetOrdering(instruction) };
            effect.kills_backward = true;
            effect.stop_before = releases(order);
            effect.kills_forward = effect.stop_before;
        }
        LLVMOpcode::LLVMAtomicCmpXchg => {
            // SAFETY: a live compare-and-exchange.
            let order = unsafe { LLVMGetCmpXchgSuccessOrdering(instruction) };
            effect.kills_backward = true;
            effect.stop_before = releases(order);
            effect.kills_forward = effect.stop_before;
        }
        LLVMOpcode::LLVMCall => return of_call(instruction, in_rust, without),
        LLVMOpcode::LLVMInvoke | LLVMOpcode::LLVMCallBr => {
            effect = of_call(instruction, in_rust, without);
            effect.kills_backward = true;
            effect.kills_forward = true;
        }
        LLVMOpcode::LLVMVAArg => {}
        _ => {}
    }
    effect
}
