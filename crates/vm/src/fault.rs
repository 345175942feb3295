//! Host signals that translated code or the vm's own guarded copies raise.
//!
//! The handler only notes what happened and where to go on: a fault in the
//! code cache leaves through the common exit as if the block had ended there
//! (the vm then works out the guest's precise state from the block's map); a
//! fault in a guarded copy ends that copy. Anything else is a fault of the vm
//! itself and kills it with the signal's default action. The handler touches
//! neither thread-local storage nor the allocator, because FS may be the
//! guest's when it runs.

use crate::cache::FAULT_EXIT;
use crate::context::Context;
use crate::{Error, host_signals, layout, memory};
use std::io;

pub const SIGNALS: [i32; 5] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
];

/// Address of the common exit, for the handler.
static mut COMMON_EXIT: u64 = 0;

/// Signals from outside are noted for the guest (while recording).
static mut NOTING: bool = false;

/// From now on these signals, when sent by another process, are the guest's.
pub fn note_foreign_signals() {
    // SAFETY: read by the handler only; the vm has one thread.
    unsafe { NOTING = true };
}

/// Handles the machine's exception signals on a stack of their own.
pub fn install(common_exit: u64) -> Result<(), Error> {
    let failed = |what: &str| {
        Error::Machine(format!(
            "cannot {what} for guest faults: {}",
            io::Error::last_os_error()
        ))
    };
    // The frame holds the whole vector state: 64 KiB is ample.
    const STACK: usize = 64 << 10;
    // SAFETY: a fresh mapping that is never unmapped serves as the signal
    // stack; the handler matches SA_SIGINFO's signature.
    unsafe {
        COMMON_EXIT = common_exit;
        let stack = libc::mmap(
            std::ptr::null_mut(),
            STACK,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if stack == libc::MAP_FAILED {
            return Err(failed("map a signal stack"));
        }
        let stack = libc::stack_t {
            ss_sp: stack,
            ss_flags: 0,
            ss_size: STACK,
        };
        if libc::sigaltstack(&stack, std::ptr::null_mut()) != 0 {
            return Err(failed("set a signal stack"));
        }
        for signal in SIGNALS {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            libc::sigemptyset(&mut action.sa_mask);
            if libc::sigaction(signal, &action, std::ptr::null_mut()) != 0 {
                return Err(failed("install a signal handler"));
            }
        }
    }
    Ok(())
}

extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes valid pointers to the signal's frame; the
    // context is mapped before any code that can fault in the cache runs.
    unsafe {
        let machine = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext;
        let pc = machine.gregs[libc::REG_RIP as usize] as u64;
        let from_kernel = (*info).si_code > 0;
        if from_kernel && let Some(continuation) = memory::fault_continuation(pc) {
            machine.gregs[libc::REG_RIP as usize] = continuation as i64;
            return;
        }
        // int3 reports the address after itself.
        if (layout::CACHE..=layout::CACHE + layout::CACHE_SIZE).contains(&pc) && from_kernel {
            // The fault may have come while the guest's GS was in place.
            std::arch::asm!("wrgsbase {}", in(reg) layout::CONTEXT);
            let vm = &mut *(layout::CONTEXT as *mut Context);
            vm.fault.host_pc = pc;
            vm.fault.signal = signal;
            vm.fault.code = (*info).si_code;
            vm.fault.address = (*info).si_addr() as u64;
            vm.fault.trap_number = machine.gregs[libc::REG_TRAPNO as usize] as u64;
            vm.fault.trap_error = machine.gregs[libc::REG_ERR as usize] as u64;
            vm.exit = u64::from(FAULT_EXIT);
            machine.gregs[libc::REG_RIP as usize] = COMMON_EXIT as i64;
            // A trap flag set by the guest must not follow us out.
            machine.gregs[libc::REG_EFL as usize] &= !0x100;
            return;
        }
        if !from_kernel && NOTING {
            // Somebody sent it: for the guest, or to end it.
            if !host_signals::take_request(info) {
                host_signals::note(info);
            }
            host_signals::break_slice(pc);
            return;
        }
        // Not ours: die of it, as the default action would have it.
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &action, std::ptr::null_mut());
    }
}
