//! Futexes: wait, wake, requeue, bitsets, wake-op and priority inheritance.
//!
//! Waiters queue in the order in which they came. PI futexes keep the owner's
//! thread id in the word as the kernel does; since there are no priorities
//! here, inheritance itself has nothing to do.

use super::{Call, Halt, Outcome};
use crate::machine::Vm;
use crate::memory;
use crate::observe::ThreadEvent;
use crate::thread::{State, Wait, WaitOn};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Waiter {
    address: u64,
    thread: u32,
    bitset: u32,
}

/// All waiters of the process, oldest first.
#[derive(Default, Hash)]
pub struct Futexes {
    waiters: Vec<Waiter>,
}

const MATCH_ANY: u32 = u32::MAX;
const WAITERS: u32 = 0x8000_0000;
const OWNER_DIED: u32 = 0x4000_0000;
const TID_MASK: u32 = 0x3fff_ffff;

impl Futexes {
    /// A thread is gone, or gives up waiting.
    pub fn forget(&mut self, thread: u32) {
        self.waiters.retain(|waiter| waiter.thread != thread);
    }
}

impl Vm {
    pub(super) fn sys_futex(&mut self, call: &mut Call) -> Outcome {
        let [address, operation, value, timeout, address2, value3] = call.arguments;
        let command = operation as i32 & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
        if address % 4 != 0 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let private = operation as i32 & libc::FUTEX_PRIVATE_FLAG != 0;
        if !private && let Some(slot) = self.shared_futex(address) {
            match command {
                libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET => {
                    return self.shared_futex_wait(call, slot);
                }
                libc::FUTEX_WAKE | libc::FUTEX_WAKE_BITSET => {
                    return self.shared_futex_wake(slot, value as u32);
                }
                // Whoever would be moved is woken, and waits there by itself.
                libc::FUTEX_CMP_REQUEUE if memory::get::<u32>(address)? != value3 as u32 => {
                    return Err(Halt::Errno(libc::EAGAIN));
                }
                libc::FUTEX_REQUEUE | libc::FUTEX_CMP_REQUEUE => {
                    return self.shared_futex_wake(slot, value as u32);
                }
                _ => {}
            }
        }
        match command {
            libc::FUTEX_WAIT => self.futex_wait(call, MATCH_ANY, false),
            libc::FUTEX_WAIT_BITSET => self.futex_wait(call, value3 as u32, true),
            libc::FUTEX_WAKE => Ok(self.futex_wake(address, value as u32, MATCH_ANY)),
            libc::FUTEX_WAKE_BITSET => {
                if value3 as u32 == 0 {
                    return Err(Halt::Errno(libc::EINVAL));
                }
                Ok(self.futex_wake(address, value as u32, value3 as u32))
            }
            libc::FUTEX_REQUEUE => Ok(self.futex_requeue(address, value, address2, timeout)),
            libc::FUTEX_CMP_REQUEUE => {
                if memory::get::<u32>(address)? != value3 as u32 {
                    return Err(Halt::Errno(libc::EAGAIN));
                }
                Ok(self.futex_requeue(address, value, address2, timeout))
            }
            libc::FUTEX_WAKE_OP => self.futex_wake_op(call),
            libc::FUTEX_LOCK_PI | libc::FUTEX_TRYLOCK_PI => {
                self.futex_lock_pi(call, command == libc::FUTEX_TRYLOCK_PI, false)
            }
            // FUTEX_LOCK_PI2 takes its time from the monotonic clock.
            13 => self.futex_lock_pi(call, false, true),
            libc::FUTEX_UNLOCK_PI => self.futex_unlock_pi(address),
            // Requeueing to a PI futex: glibc no longer uses it.
            _ => Err(Halt::Errno(libc::ENOSYS)),
        }
    }

    fn futex_wait(&mut self, call: &mut Call, bitset: u32, absolute: bool) -> Outcome {
        let [address, operation, value, timeout, ..] = call.arguments;
        if bitset == 0 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        if call.woken {
            return Ok(0);
        }
        if !call.again {
            if memory::get::<u32>(address)? != value as u32 {
                return Err(Halt::Errno(libc::EAGAIN));
            }
            let realtime = operation as i32 & libc::FUTEX_CLOCK_REALTIME != 0;
            call.deadline = self.deadline(timeout, absolute, realtime)?;
            self.kernel.futexes.waiters.push(Waiter {
                address,
                thread: self.current,
                bitset,
            });
        }
        if let Some(errno) = self.wait_is_over(call) {
            self.kernel.futexes.forget(self.current);
            return Err(Halt::Errno(errno));
        }
        Err(Halt::Block(Wait {
            on: WaitOn::Futex,
            deadline: call.deadline,
        }))
    }

    /// The errno with which a wait that nobody ended gives up now, if it does.
    pub(super) fn wait_is_over(&self, call: &Call) -> Option<i32> {
        if call.deadline.is_some_and(|deadline| deadline <= self.now()) {
            Some(libc::ETIMEDOUT)
        } else if call.interrupted {
            Some(libc::EINTR)
        } else {
            None
        }
    }

    /// Wakes up to `count` waiters; returns how many.
    pub(super) fn futex_wake(&mut self, address: u64, count: u32, bitset: u32) -> i64 {
        let mut woken = Vec::new();
        self.kernel.futexes.waiters.retain(|waiter| {
            let take = waiter.address == address
                && waiter.bitset & bitset != 0
                && (woken.len() as u32) < count;
            if take {
                woken.push(waiter.thread);
            }
            !take
        });
        for thread in &woken {
            self.wake(*thread, address);
        }
        woken.len() as i64
    }

    /// Wakes waiters of this process and, in shared memory, of others.
    pub(super) fn futex_wake_anywhere(&mut self, address: u64, count: u32) -> Outcome {
        let here = self.futex_wake(address, count, MATCH_ANY);
        match self.shared_futex(address) {
            Some(slot) => Ok(here + self.shared_futex_wake(slot, count)?),
            None => Ok(here),
        }
    }

    fn wake(&mut self, thread: u32, address: u64) {
        if let Some(waiting) = self.threads.get_mut(&thread) {
            waiting.state = State::Runnable;
            if let Some(call) = &mut waiting.call {
                call.woken = true;
            }
        }
        let event = ThreadEvent::FutexWake {
            waker: self.current,
            woken: thread,
            address,
        };
        self.tell_thread(event);
    }

    fn futex_requeue(&mut self, address: u64, wake: u64, to: u64, move_limit: u64) -> i64 {
        let woken = self.futex_wake(address, wake as u32, MATCH_ANY);
        let mut moved = 0;
        for waiter in &mut self.kernel.futexes.waiters {
            if waiter.address == address && moved < i64::from(move_limit as u32) {
                waiter.address = to;
                moved += 1;
            }
        }
        woken + moved
    }

    fn futex_wake_op(&mut self, call: &Call) -> Outcome {
        let [address, _, count, count2, address2, operation] = call.arguments;
        let operation = operation as u32;
        let signed12 = |value: u32| ((value << 20) as i32) >> 20;
        let (kind, compare) = ((operation >> 28) & 7, (operation >> 24) & 15);
        let mut argument = signed12((operation >> 12) & 0xfff);
        if operation & 0x8000_0000 != 0 {
            argument = 1i32.wrapping_shl(argument as u32);
        }
        let against = signed12(operation & 0xfff);
        let old = memory::get::<i32>(address2)?;
        let new = match kind {
            0 => argument,
            1 => old.wrapping_add(argument),
            2 => old | argument,
            3 => old & !argument,
            4 => old ^ argument,
            _ => return Err(Halt::Errno(libc::ENOSYS)),
        };
        memory::put(address2, new)?;
        let also = match compare {
            0 => old == against,
            1 => old != against,
            2 => old < against,
            3 => old <= against,
            4 => old > against,
            5 => old >= against,
            _ => return Err(Halt::Errno(libc::ENOSYS)),
        };
        let mut woken = self.futex_wake_anywhere(address, count as u32)?;
        if also {
            woken += self.futex_wake_anywhere(address2, count2 as u32)?;
        }
        Ok(woken)
    }

    fn futex_lock_pi(&mut self, call: &mut Call, only_try: bool, monotonic: bool) -> Outcome {
        let [address, _, _, timeout, ..] = call.arguments;
        let own = self.current_tid() as u32;
        if call.woken {
            // The unlocker has put our id into the word.
            return Ok(0);
        }
        if !call.again {
            let word = memory::get::<u32>(address)?;
            if word & TID_MASK == own {
                return Err(Halt::Errno(libc::EDEADLK));
            }
            if word & TID_MASK == 0 || word & OWNER_DIED != 0 {
                memory::put(address, own | (word & (WAITERS | OWNER_DIED)))?;
                return Ok(0);
            }
            if only_try {
                return Err(Halt::Errno(libc::EAGAIN));
            }
            memory::put(address, word | WAITERS)?;
            call.deadline = self.deadline(timeout, true, !monotonic)?;
            self.kernel.futexes.waiters.push(Waiter {
                address,
                thread: self.current,
                bitset: MATCH_ANY,
            });
        }
        if let Some(errno) = self.wait_is_over(call) {
            self.kernel.futexes.forget(self.current);
            return Err(Halt::Errno(errno));
        }
        Err(Halt::Block(Wait {
            on: WaitOn::Futex,
            deadline: call.deadline,
        }))
    }

    fn futex_unlock_pi(&mut self, address: u64) -> Outcome {
        let word = memory::get::<u32>(address)?;
        if word & TID_MASK != self.current_tid() as u32 {
            return Err(Halt::Errno(libc::EPERM));
        }
        self.hand_over_pi(address, 0)?;
        Ok(0)
    }

    /// Gives a PI futex to its first waiter, or frees it.
    fn hand_over_pi(&mut self, address: u64, extra: u32) -> Result<(), Halt> {
        let mut queue = self
            .kernel
            .futexes
            .waiters
            .iter()
            .filter(|waiter| waiter.address == address);
        let next = queue.next().map(|waiter| waiter.thread);
        let more = queue.next().is_some();
        let Some(thread) = next else {
            memory::put(address, extra)?;
            return Ok(());
        };
        let tid = self.threads.get(&thread).map_or(0, |thread| thread.tid) as u32;
        memory::put(address, tid | extra | if more { WAITERS } else { 0 })?;
        self.kernel.futexes.forget(thread);
        self.wake(thread, address);
        Ok(())
    }

    /// Marks the robust mutexes of an exiting thread, as the kernel does.
    pub(super) fn release_robust_list(&mut self, head: u64, tid: i32) {
        // A damaged list ends the walk; 2048 entries are the kernel's limit.
        let mut walk = || -> Result<(), Halt> {
            if head == 0 {
                return Ok(());
            }
            let offset = memory::get::<u64>(head + 8)?;
            let pending = memory::get::<u64>(head + 16)?;
            let mut entry = memory::get::<u64>(head)?;
            for _ in 0..2048 {
                if entry & !1 == head {
                    break;
                }
                let next = memory::get::<u64>(entry & !1)?;
                if entry & !1 != pending & !1 {
                    self.release_robust((entry & !1).wrapping_add(offset), entry & 1 != 0, tid)?;
                }
                entry = next;
            }
            if pending & !1 != 0 {
                self.release_robust((pending & !1).wrapping_add(offset), pending & 1 != 0, tid)?;
            }
            Ok(())
        };
        let _ = walk();
    }

    fn release_robust(&mut self, address: u64, pi: bool, tid: i32) -> Result<(), Halt> {
        let word = memory::get::<u32>(address)?;
        if word & TID_MASK != tid as u32 {
            return Ok(());
        }
        if pi {
            return self.hand_over_pi(address, OWNER_DIED);
        }
        memory::put(address, (word & WAITERS) | OWNER_DIED)?;
        if word & WAITERS != 0 {
            self.futex_wake_anywhere(address, 1)?;
        }
        Ok(())
    }
}
