//! Whose code an instruction is, and the functions that are followed.

use super::allocators::{self, Followed};
use std::ops::Range;
use std::path::{Path, PathBuf};
use symbols::ModuleMap;
use vm::record::Recording;

/// A function of the program that is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    Allocator(Followed),
    /// Returns 0 when a lock was taken.
    Lock,
    Unlock,
    /// Others may see what was written, unless a lock is held.
    Release,
    /// Gives up the lock it was called with.
    Wait,
}

/// Functions that lock, unlock and release, for invariants.
pub const SYNCHRONISATION: &[(&str, Function)] = &[
    ("pthread_mutex_lock", Function::Lock),
    ("pthread_mutex_trylock", Function::Lock),
    ("pthread_mutex_timedlock", Function::Lock),
    ("pthread_mutex_clocklock", Function::Lock),
    ("pthread_spin_lock", Function::Lock),
    ("pthread_spin_trylock", Function::Lock),
    ("pthread_rwlock_rdlock", Function::Lock),
    ("pthread_rwlock_wrlock", Function::Lock),
    ("pthread_rwlock_tryrdlock", Function::Lock),
    ("pthread_rwlock_trywrlock", Function::Lock),
    ("pthread_mutex_unlock", Function::Unlock),
    ("pthread_spin_unlock", Function::Unlock),
    ("pthread_rwlock_unlock", Function::Unlock),
    ("pthread_cond_wait", Function::Wait),
    ("pthread_cond_timedwait", Function::Wait),
    ("pthread_cond_clockwait", Function::Wait),
    ("pthread_barrier_wait", Function::Release),
    ("pthread_create", Function::Release),
    ("pthread_exit", Function::Release),
    ("sem_post", Function::Release),
];

/// Whose code an instruction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    Program,
    CLibrary,
    /// The dynamic linker's or an allocator's, which know what they do.
    Trusted,
}

pub fn origin_of(name: &str) -> Origin {
    let begins = |names: &[&str]| names.iter().any(|begin| name.starts_with(begin));
    if begins(&["ld-linux", "ld-2", "ld.so", "[vdso]"]) || begins(allocators::LIBRARIES) {
        Origin::Trusted
    } else if begins(&["libc.", "libc-", "libpthread", "ld-musl"]) {
        Origin::CLibrary
    } else {
        Origin::Program
    }
}

/// Where the recorded program was started.
pub fn directory_of(recording: &Recording) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::OsStr::from_bytes(&recording.manifest.directory).into()
}

/// The recorded program, wherever it was called from.
pub fn program_of(recording: &Recording) -> PathBuf {
    directory_of(recording).join(recording.program_path())
}

pub fn is_same_file(one: &Path, other: &Path, directory: &Path) -> bool {
    let real = |path: &Path| directory.join(path).canonicalize().ok();
    one == other || matches!((real(one), real(other)), (Some(one), Some(other)) if one == other)
}

/// The functions of these names in a module that was just mapped.
pub fn functions_in<'a>(
    modules: &ModuleMap,
    range: &Range<u64>,
    path: &Path,
    names: impl Iterator<Item = &'a String>,
) -> Vec<(&'a String, u64)> {
    let loaded = modules.modules();
    let Some(loaded) = loaded
        .iter()
        .find(|loaded| loaded.module.path() == path && loaded.range.contains(&range.start))
    else {
        return Vec::new();
    };
    if matches!(loaded.module.name(), name if name.starts_with("ld-linux") || name.starts_with("ld-2") || name.starts_with("ld.so"))
    {
        return Vec::new();
    }
    // The C++ library's operators call malloc and free, which are followed.
    let in_terms_of_malloc = ["libstdc++", "libc++"]
        .iter()
        .any(|library| loaded.module.name().starts_with(library));
    names
        .filter(|name| !(in_terms_of_malloc && name.starts_with("_Z")))
        .flat_map(|name| {
            loaded
                .module
                .functions_named(name)
                .into_iter()
                .filter(|function| !function.indirect)
                .map(move |function| (name, function.start.wrapping_add(loaded.bias)))
        })
        .collect()
}

/// The address of the next instruction.
pub fn behind(pc: u64) -> Option<u64> {
    let mut code = [0; 15];
    let mut length = code.len();
    while length > 0 && vm::memory::read(pc, &mut code[..length]).is_err() {
        length -= 1;
    }
    let mut decoder =
        iced_x86::Decoder::with_ip(64, &code[..length], pc, iced_x86::DecoderOptions::NONE);
    let instruction = decoder.decode();
    (!instruction.is_invalid()).then(|| instruction.next_ip())
}
