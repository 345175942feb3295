//! Calls that concern the machine and the process's limits.

use super::{Call, Halt, Outcome};
use crate::machine::Vm;
use crate::memory;

impl Vm {
    pub(super) fn sys_arch_prctl(&mut self, code: u64, address: u64) -> Outcome {
        const SET_GS: u64 = 0x1001;
        const SET_FS: u64 = 0x1002;
        const GET_FS: u64 = 0x1003;
        const GET_GS: u64 = 0x1004;
        match code {
            SET_FS => self.regs().fs_base = address,
            SET_GS => self.regs().gs_base = address,
            GET_FS => memory::put(address, self.regs().fs_base)?,
            GET_GS => memory::put(address, self.regs().gs_base)?,
            // CET, AMX permissions and the like: not for the guest.
            _ => return Err(Halt::Errno(libc::EINVAL)),
        }
        Ok(0)
    }

    pub(super) fn sys_getrandom(&mut self, call: &Call) -> Outcome {
        let [buffer, ..] = call.arguments;
        self.host_call_writing(libc::SYS_getrandom, call.arguments, |result| {
            vec![(buffer, result as usize)]
        })
    }

    pub(super) fn sys_set_tid_address(&mut self, address: u64) -> Outcome {
        let current = self.current;
        if let Some(thread) = self.threads.get_mut(&current) {
            thread.clear_child_tid = address;
        }
        Ok(i64::from(self.current_tid()))
    }

    pub(super) fn sys_set_robust_list(&mut self, head: u64) -> Outcome {
        let current = self.current;
        if let Some(thread) = self.threads.get_mut(&current) {
            thread.robust_list = head;
        }
        Ok(0)
    }
}
