//! Functions known by name and what they promise (rules 0 and 1).
//!
//! The documented edges are those of POSIX (XBD 4.12 and the pages of each
//! function), the C and C++ standards, and the headers of the annotation
//! families. C11's `thrd_create` and `call_once` need no entries: in the C
//! libraries met here they call the pthread functions by the addresses followed
//! anyway (in musl, `mtx_lock` does not).

use crate::fences::Edges;
use crate::golang::GoCall;
use symbols::OrderArguments;

/// Which accesses a program asks not to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ignored {
    Reads,
    Writes,
}

/// What a function does that matters here. Numbers are argument positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    MutexInit,
    MutexDestroy,
    /// Returns 0 when the lock was taken.
    MutexLock,
    /// The same, and does not wait for ever.
    MutexTry,
    SpinTry,
    ReadTry,
    WriteTry,
    /// Returns nothing; the lock is always taken.
    VoidLock,
    MutexUnlock,
    SpinLock,
    SpinUnlock,
    ReadLock,
    WriteLock,
    RwUnlock,
    CondWait,
    CondSignal,
    CondBroadcast,
    BarrierInit,
    BarrierWait,
    Once,
    GuardAcquire,
    GuardRelease,
    SemaphorePost,
    SemaphoreWait,
    StreamLock,
    StreamUnlock,
    Create,
    Join,
    SetName,
    /// Synchronisation without an edge of its own.
    Quiet,
    Malloc,
    /// Says how much of a block may be used.
    UsableSize,
    Calloc,
    Realloc,
    ReallocArray,
    Free,
    /// `memalign(alignment, size)`
    AlignedAlloc,
    PosixMemalign,
    /// The caller gives the memory it gets to its own caller.
    AllocatesForCaller,
    /// The argument at this position is released / acquired.
    HappensBefore(u8),
    HappensAfter(u8),
    HappensForget(u8),
    LockCreate(u8),
    LockAcquired(u8),
    LockReleased(u8),
    /// Races on the memory at the third argument are meant; the fourth says
    /// how much it is, or it is a byte.
    MeantToRace,
    MeantToRaceSized,
    /// The thread's own reads or writes are not to be looked at, from here to
    /// the end of it.
    Ignore(Ignored, bool),
    /// Address of the magic instruction of Valgrind's client requests.
    ClientRequest,
    /// An atomic operation out of line that gets its memory order in a
    /// register.
    AtomicOperation(OrderArguments),
    /// A stand-alone fence is before this instruction, or is it.
    Fence(Edges),
    /// A lock without an address of its own; the number tells them apart.
    NamelessLock(u8),
    NamelessUnlock(u8),
    /// Returns other than 0 when the lock was taken.
    TestLock,
    /// A function of the Go run-time, and the return from one.
    Go(GoCall),
    GoReturn,
    /// A signal handler, by the address its installation named.
    SignalHandler,
    ConditionDestroy,
    RwInit,
    RwDestroy,
    BarrierDestroy,
    /// Asks for the number of the thread in its team.
    ThreadNumber,
    OrderedStart,
    OrderedEnd,
    /// Returns when all tasks of the team are done.
    TeamBarrier,
    TaskCreate,
    TaskLoop,
    /// The body of a task, by the address its creation named.
    TaskBody,
    TaskWait,
    TaskWaitDepend,
    TaskGroupStart,
    TaskGroupEnd,
    TaskYield,
}

impl Known {
    /// The user's own code runs inside, and is watched there.
    pub fn calls_back(self) -> bool {
        use Known::*;
        matches!(
            self,
            Once | AllocatesForCaller | TeamBarrier | TaskBody | SignalHandler | AtomicOperation(_)
        ) || self.hands_out_tasks()
    }

    /// The run-time's own accesses inside say nothing about the order of the
    /// program's: queues of tasks are guarded by locks that every thread
    /// takes.
    pub fn hands_out_tasks(self) -> bool {
        use Known::*;
        matches!(
            self,
            TaskCreate
                | TaskLoop
                | TaskWait
                | TaskWaitDepend
                | TaskGroupStart
                | TaskGroupEnd
                | TaskYield
        )
    }

    /// The object at the first argument that the function uses (false) or
    /// makes and ends (true), with its size in glibc.
    pub fn object(self) -> Option<(bool, u64)> {
        use Known::*;
        Some(match self {
            MutexLock | MutexTry | MutexUnlock | ReadLock | ReadTry | WriteLock | WriteTry
            | RwUnlock | BarrierWait | CondSignal | CondBroadcast | CondWait => (false, 1),
            MutexInit | MutexDestroy => (true, 40),
            RwInit | RwDestroy => (true, 56),
            BarrierInit | BarrierDestroy => (true, 32),
            ConditionDestroy => (true, 48),
            _ => return None,
        })
    }

    /// It blocks until the lock is taken, so that threads can wait for each
    /// other.
    pub fn waits(self) -> bool {
        use Known::*;
        !matches!(self, MutexTry | SpinTry | ReadTry | WriteTry | TestLock)
    }

    pub fn is_allocator(self) -> bool {
        use Known::*;
        matches!(
            self,
            Malloc | Calloc | Realloc | ReallocArray | Free | AlignedAlloc | PosixMemalign
        )
    }
}

/// By symbol.
pub const FUNCTIONS: &[(&str, Known)] = &[
    ("pthread_mutex_init", Known::MutexInit),
    ("pthread_mutex_destroy", Known::MutexDestroy),
    ("pthread_mutex_lock", Known::MutexLock),
    ("pthread_mutex_trylock", Known::MutexTry),
    ("pthread_mutex_timedlock", Known::MutexTry),
    ("pthread_mutex_clocklock", Known::MutexTry),
    ("pthread_mutex_unlock", Known::MutexUnlock),
    ("pthread_spin_lock", Known::SpinLock),
    ("pthread_spin_trylock", Known::SpinTry),
    ("pthread_spin_unlock", Known::SpinUnlock),
    ("pthread_rwlock_rdlock", Known::ReadLock),
    ("pthread_rwlock_tryrdlock", Known::ReadTry),
    ("pthread_rwlock_timedrdlock", Known::ReadTry),
    ("pthread_rwlock_clockrdlock", Known::ReadTry),
    ("pthread_rwlock_wrlock", Known::WriteLock),
    ("pthread_rwlock_trywrlock", Known::WriteTry),
    ("pthread_rwlock_timedwrlock", Known::WriteTry),
    ("pthread_rwlock_clockwrlock", Known::WriteTry),
    ("pthread_rwlock_unlock", Known::RwUnlock),
    ("pthread_cond_wait", Known::CondWait),
    ("pthread_cond_timedwait", Known::CondWait),
    ("pthread_cond_clockwait", Known::CondWait),
    ("pthread_cond_signal", Known::CondSignal),
    ("pthread_cond_broadcast", Known::CondBroadcast),
    ("pthread_barrier_init", Known::BarrierInit),
    ("pthread_barrier_wait", Known::BarrierWait),
    ("pthread_barrier_destroy", Known::BarrierDestroy),
    ("pthread_rwlock_init", Known::RwInit),
    ("pthread_rwlock_destroy", Known::RwDestroy),
    ("pthread_cond_destroy", Known::ConditionDestroy),
    ("pthread_once", Known::Once),
    ("__cxa_guard_acquire", Known::GuardAcquire),
    ("__cxa_guard_release", Known::GuardRelease),
    ("sem_post", Known::SemaphorePost),
    ("sem_wait", Known::SemaphoreWait),
    ("sem_trywait", Known::SemaphoreWait),
    ("sem_timedwait", Known::SemaphoreWait),
    ("sem_clockwait", Known::SemaphoreWait),
    // They stop all threads by a signal to change identity everywhere.
    ("setuid", Known::Quiet),
    ("setgid", Known::Quiet),
    ("setreuid", Known::Quiet),
    ("setregid", Known::Quiet),
    ("setresuid", Known::Quiet),
    ("setresgid", Known::Quiet),
    ("seteuid", Known::Quiet),
    ("setegid", Known::Quiet),
    ("setgroups", Known::Quiet),
    ("sem_init", Known::Quiet),
    ("sem_destroy", Known::Quiet),
    ("sem_getvalue", Known::Quiet),
    ("flockfile", Known::StreamLock),
    ("ftrylockfile", Known::StreamLock),
    ("funlockfile", Known::StreamUnlock),
    ("pthread_create", Known::Create),
    ("pthread_join", Known::Join),
    ("pthread_tryjoin_np", Known::Join),
    ("pthread_timedjoin_np", Known::Join),
    ("pthread_clockjoin_np", Known::Join),
    ("thrd_join", Known::Join),
    ("mtx_init", Known::MutexInit),
    ("mtx_destroy", Known::MutexDestroy),
    ("mtx_lock", Known::MutexLock),
    ("mtx_trylock", Known::MutexTry),
    ("mtx_timedlock", Known::MutexTry),
    ("mtx_unlock", Known::MutexUnlock),
    ("cnd_wait", Known::CondWait),
    ("cnd_timedwait", Known::CondWait),
    ("cnd_signal", Known::CondSignal),
    ("cnd_broadcast", Known::CondBroadcast),
    ("cnd_destroy", Known::ConditionDestroy),
    ("pthread_setname_np", Known::SetName),
    ("malloc", Known::Malloc),
    ("valloc", Known::Malloc),
    ("pvalloc", Known::Malloc),
    ("calloc", Known::Calloc),
    ("realloc", Known::Realloc),
    ("reallocarray", Known::ReallocArray),
    ("free", Known::Free),
    ("cfree", Known::Free),
    ("memalign", Known::AlignedAlloc),
    ("aligned_alloc", Known::AlignedAlloc),
    ("posix_memalign", Known::PosixMemalign),
    ("malloc_usable_size", Known::UsableSize),
    ("malloc_trim", Known::Quiet),
    ("mallopt", Known::Quiet),
    ("mallinfo", Known::Quiet),
    ("mallinfo2", Known::Quiet),
    ("strdup", Known::AllocatesForCaller),
    ("__strdup", Known::AllocatesForCaller),
    ("strndup", Known::AllocatesForCaller),
    ("__strndup", Known::AllocatesForCaller),
    ("asprintf", Known::AllocatesForCaller),
    ("vasprintf", Known::AllocatesForCaller),
    ("__asprintf_chk", Known::AllocatesForCaller),
    ("__vasprintf_chk", Known::AllocatesForCaller),
    ("getline", Known::AllocatesForCaller),
    ("getdelim", Known::AllocatesForCaller),
    ("__getdelim", Known::AllocatesForCaller),
    ("realpath", Known::AllocatesForCaller),
    ("getcwd", Known::AllocatesForCaller),
    ("wcsdup", Known::AllocatesForCaller),
    // ThreadSanitizer's interface, and the annotations of its ancestors.
    ("__tsan_acquire", Known::HappensAfter(0)),
    ("__tsan_release", Known::HappensBefore(0)),
    ("AnnotateHappensBefore", Known::HappensBefore(2)),
    ("AnnotateHappensAfter", Known::HappensAfter(2)),
    ("AnnotateCondVarSignal", Known::HappensBefore(2)),
    ("AnnotateCondVarSignalAll", Known::HappensBefore(2)),
    ("AnnotateCondVarWait", Known::HappensAfter(2)),
    ("AnnotateRWLockCreate", Known::LockCreate(2)),
    ("AnnotateRWLockAcquired", Known::LockAcquired(2)),
    ("AnnotateRWLockReleased", Known::LockReleased(2)),
    ("AnnotateBenignRace", Known::MeantToRace),
    ("AnnotateBenignRaceSized", Known::MeantToRaceSized),
    (
        "AnnotateIgnoreReadsBegin",
        Known::Ignore(Ignored::Reads, true),
    ),
    (
        "AnnotateIgnoreReadsEnd",
        Known::Ignore(Ignored::Reads, false),
    ),
    (
        "AnnotateIgnoreWritesBegin",
        Known::Ignore(Ignored::Writes, true),
    ),
    (
        "AnnotateIgnoreWritesEnd",
        Known::Ignore(Ignored::Writes, false),
    ),
];

/// Names with this beginning that are not listed are synchronisation without
/// an edge of their own; those that run the user's code are not.
pub const QUIET_PREFIX: &str = "pthread_";
pub const NOT_QUIET: &[&str] = &["pthread_exit", "pthread_atfork"];

/// Functions of an OpenMP run-time (libgomp). Handing out iterations, sections
/// and tasks orders nothing; barriers, locks, `ordered` and the end of tasks
/// do. Barriers are followed through the run-time's own words, so that teams
/// need not be modelled.
pub fn openmp(name: &str) -> Option<Known> {
    let known = match name {
        "GOMP_critical_start" => Known::NamelessLock(1),
        "GOMP_critical_end" => Known::NamelessUnlock(1),
        "GOMP_atomic_start" => Known::NamelessLock(2),
        "GOMP_atomic_end" => Known::NamelessUnlock(2),
        "GOMP_critical_name_start" | "omp_set_lock" | "omp_set_nest_lock" => Known::VoidLock,
        "GOMP_critical_name_end" | "omp_unset_lock" | "omp_unset_nest_lock" => Known::MutexUnlock,
        "omp_test_lock" | "omp_test_nest_lock" => Known::TestLock,
        "omp_init_lock" | "omp_init_nest_lock" => Known::MutexInit,
        "omp_destroy_lock" | "omp_destroy_nest_lock" => Known::MutexDestroy,
        "omp_get_thread_num" => Known::ThreadNumber,
        "GOMP_ordered_start" => Known::OrderedStart,
        "GOMP_ordered_end" => Known::OrderedEnd,
        "GOMP_task" => Known::TaskCreate,
        "GOMP_taskloop" | "GOMP_taskloop_ull" => Known::TaskLoop,
        "GOMP_taskwait" => Known::TaskWait,
        "GOMP_taskwait_depend" => Known::TaskWaitDepend,
        "GOMP_taskgroup_start" => Known::TaskGroupStart,
        "GOMP_taskgroup_end" => Known::TaskGroupEnd,
        "GOMP_taskyield" => Known::TaskYield,
        "GOMP_sections_start"
        | "GOMP_sections2_start"
        | "GOMP_sections_next"
        | "GOMP_single_start"
        | "GOMP_scope_start" => Known::Quiet,
        _ if name.contains("doacross") => return None,
        _ if name.starts_with("GOMP_parallel") && !name.ends_with("_start") => Known::TeamBarrier,
        _ if ["GOMP_loop_", "GOMP_sections_", "GOMP_barrier"]
            .iter()
            .any(|begin| name.starts_with(begin)) =>
        {
            let hands_out = ["_start", "_next", "_nowait"];
            match hands_out.iter().any(|end| name.ends_with(end)) {
                true => Known::Quiet,
                false => Known::TeamBarrier,
            }
        }
        _ => return None,
    };
    Some(known)
}

/// The magic of Valgrind's client requests on amd64: four rotations of rdi
/// that amount to nothing, then `xchg rbx, rbx`.
pub const CLIENT_REQUEST: [u8; 19] = [
    0x48, 0xc1, 0xc7, 0x03, 0x48, 0xc1, 0xc7, 0x0d, 0x48, 0xc1, 0xc7, 0x3d, 0x48, 0xc1, 0xc7, 0x33,
    0x48, 0x87, 0xdb,
];

/// Requests of Helgrind that matter here (helgrind.h); most of DRD's annotations
/// are made with the same numbers, some with its own (drd.h).
pub mod request {
    const HELGRIND: u64 = ((b'H' as u64) << 24) | ((b'G' as u64) << 16);
    pub const CLEAN_MEMORY: u64 = HELGRIND;
    pub const LOCK_ACQUIRED: u64 = HELGRIND + 0x111;
    pub const LOCK_RELEASED: u64 = HELGRIND + 0x112;
    pub const HAPPENS_BEFORE: u64 = HELGRIND + 0x121;
    pub const HAPPENS_AFTER: u64 = HELGRIND + 0x122;
    pub const FORGET: u64 = HELGRIND + 0x123;
    pub const UNTRACK: u64 = HELGRIND + 0x127;
    pub const TRACK: u64 = HELGRIND + 0x128;
    const DRD: u64 = ((b'D' as u64) << 24) | ((b'R' as u64) << 16);
    pub const START_SUPPRESSION: u64 = DRD + 2;
    pub const FINISH_SUPPRESSION: u64 = DRD + 3;
    pub const RECORD_LOADS: u64 = DRD + 6;
    pub const RECORD_STORES: u64 = DRD + 7;
}
