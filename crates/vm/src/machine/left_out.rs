//! Calls that are not made, although the program makes them: what would happen
//! without this lock (paper 003, section 6.1)?
//!
//! At the entry of a function the return address tells which call it is, its
//! own or, where wrappers lie between, one further up the chain of frame
//! pointers. A call that is left out returns 0 at once, as if that were the
//! function's first instruction, and counts as that one instruction. So a run
//! with calls left out has moments like any other; a replay has to leave out
//! the same calls, which is why they are named in the manifest of the
//! recording. Observers are not told of the call: for them it was not made.

use super::Vm;
use crate::context::reg;
use crate::memory;
use crate::record::{LeftOut, Role};
use std::collections::{BTreeMap, HashMap};

/// Frames between a call and the wrapped function, at most.
const WRAPPERS: usize = 6;

#[derive(Default)]
pub(super) struct LeftOutCalls {
    by_function: HashMap<u64, LeftOut>,
    /// Locks whose taking was left out and not yet given back, by thread and
    /// address.
    owed: BTreeMap<(u32, u64), u32>,
}

impl LeftOutCalls {
    fn pay(&mut self, debt: (u32, u64)) {
        if let Some(count) = self.owed.get_mut(&debt) {
            *count -= 1;
            if *count == 0 {
                self.owed.remove(&debt);
            }
        }
    }
}

impl Vm {
    /// These calls are not made from here on.
    pub(crate) fn leave_out(&mut self, calls: &[LeftOut]) {
        for call in calls {
            self.left_out
                .by_function
                .insert(call.function, call.clone());
            self.add_hook(call.function);
        }
    }

    /// The function about to be executed returns instead, if this call of it is
    /// to be left out. True if it did, or will when the thread has an
    /// instruction left.
    pub(super) fn leaves_out_call(&mut self) -> bool {
        if self.left_out.by_function.is_empty() {
            return false;
        }
        let regs = &self.context.regs;
        let Some(call) = self.left_out.by_function.get(&regs.rip) else {
            return false;
        };
        let stack = regs.gpr[reg::RSP];
        let Ok(back) = memory::get::<u64>(stack) else {
            return false;
        };
        let is_named = || {
            let mut frame = regs.gpr[reg::RBP];
            let mut caller = back;
            for _ in 0..=WRAPPERS {
                if call.callers.contains(&caller) {
                    return true;
                }
                let above = memory::get::<u64>(frame).ok();
                let address = frame.checked_add(8);
                let next = address.and_then(|address| memory::get::<u64>(address).ok());
                let (Some(above), Some(next)) = (above, next) else {
                    return false;
                };
                if frame < stack || above <= frame {
                    return false;
                }
                (frame, caller) = (above, next);
            }
            false
        };
        let lock = (self.current, regs.gpr[reg::RDI]);
        let role = call.role;
        let left_out = match role {
            Role::Takes | Role::Stands => is_named(),
            Role::Gives => self.left_out.owed.contains_key(&lock),
            Role::Waits => {
                let waited = (self.current, regs.gpr[reg::RSI]);
                self.left_out.owed.remove(&waited);
                false
            }
        };
        if !left_out || self.remaining() == 0 {
            return left_out;
        }
        match role {
            Role::Takes => *self.left_out.owed.entry(lock).or_default() += 1,
            Role::Gives => self.left_out.pay(lock),
            Role::Waits | Role::Stands => {}
        }
        let regs = &mut self.context.regs;
        regs.rip = back;
        regs.gpr[reg::RSP] = stack + 8;
        regs.gpr[reg::RAX] = 0;
        self.context.remaining -= 1;
        true
    }
}
