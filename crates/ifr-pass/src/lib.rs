//! The compile-time half of interference-free regions (paper 004, IFRit,
//! sections 2 and 3): an LLVM 22 pass plugin that decides where monitors start
//! and stop.
//!
//! A function goes through three stations. `prepare`, at the start of the
//! pipeline, asks LLVM not to invent loads the source does not make. `analyse`,
//! before the vectoriser, finds which locations must be accessed before the
//! next acquire (`regions`), chooses where monitors start (`placement`), turns
//! array walks into ranges (`ranges`), and leaves placeholders so that loops
//! without monitors inside still vectorise. `lower`, at the end, replaces the
//! placeholders by the inline check (`lower`).
//!
//! Where this differs from the paper: a release does not stop monitors one by
//! one; the run-time counts an epoch before it and everything older is dead, so
//! what survives is started again after the release. Calls that LLVM or
//! `effects` proves free of synchronisation do not end a region. Array walks
//! are one monitor.
//!
//! Guarantee: every point at which a monitor starts lies inside an
//! interference-free region of an access that is executed, so that a report is
//! a race as long as the run-time sees every release.

mod effects;
mod ir;
mod lower;
mod placement;
mod ranges;
mod regions;
mod shim;
mod without;

use inkwell::llvm_sys::prelude::{LLVMModuleRef, LLVMValueRef};
use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// LLVM's `PassPluginLibraryInfo`.
#[repr(C)]
pub struct PluginInfo {
    api_version: u32,
    name: *const c_char,
    version: *const c_char,
    register: unsafe extern "C" fn(*mut c_void),
    before_code_generation: Option<unsafe extern "C" fn()>,
}

/// Which build of the run-time the code is for, as deadheat says.
const BUILD_VARIABLE: &str = "DEADHEAT_IFR_BUILD";

/// Code for another run-time than the one it will be linked with would start no
/// monitors, or wrong ones.
fn refuse_another_build() {
    let mine = env!("DEADHEAT_IFR_FINGERPRINT");
    let Some(wanted) = std::env::var_os(BUILD_VARIABLE) else {
        return;
    };
    if wanted != mine {
        eprintln!(
            "deadheat: the monitor pass libifr_pass.so ({mine}) and this deadheat ({}) are of different builds; build or install both together (cargo build --release --workspace)",
            wanted.to_string_lossy()
        );
        std::process::exit(70);
    }
}

/// The entry point LLVM looks for in a plugin.
#[unsafe(no_mangle)]
pub extern "C" fn llvmGetPassPluginInfo() -> PluginInfo {
    refuse_another_build();
    PluginInfo {
        api_version: 2,
        name: c"deadheat-ifr".as_ptr(),
        version: c"0.1".as_ptr(),
        register: shim::deadheat_ifr_register,
        before_code_generation: None,
    }
}

/// A defect of the pass must not pass silently as uninstrumented code.
fn guarded<T>(what: &str, work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        eprintln!("deadheat: the monitor pass failed while it tried to {what}; this is a defect of deadheat. Build this file with plain clang to go on.");
        std::process::exit(70)
    })
}

/// Marks every function so that LLVM makes no loads that the source does not
/// make.
#[unsafe(no_mangle)]
pub extern "C" fn deadheat_ifr_prepare(module: LLVMModuleRef) {
    guarded("prepare a module", || ir::prepare(module));
}

/// Whether the function still has to be analysed.
#[unsafe(no_mangle)]
pub extern "C" fn deadheat_ifr_wants(function: LLVMValueRef) -> c_int {
    guarded("look at a function", || {
        c_int::from(ir::wants_analysis(function))
    })
}

/// Puts placeholders into one function; says whether anything changed.
#[unsafe(no_mangle)]
pub extern "C" fn deadheat_ifr_analyse(function: LLVMValueRef, session: *mut c_void) -> c_int {
    guarded("place monitors", || {
        placement::place(function, shim::Session(session));
        1
    })
}

/// Replaces all placeholders of a module by the inline checks.
#[unsafe(no_mangle)]
pub extern "C" fn deadheat_ifr_lower(module: LLVMModuleRef, is_lto: c_int) -> c_int {
    guarded("lower monitors", || {
        c_int::from(lower::lower(module, is_lto != 0))
    })
}
