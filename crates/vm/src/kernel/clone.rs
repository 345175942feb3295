//! Threads: creation, exit, ids.

use super::{Call, Halt, Outcome};
use crate::Error;
use crate::context::reg;
use crate::layout;
use crate::machine::Vm;
use crate::memory;
use crate::observe::ThreadEvent;
use crate::record::ProcessStatus;
use crate::thread::{State, Thread};

/// What makes a thread to the kernel.
const THREAD_FLAGS: u64 = (libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD) as u64;
/// What every thread library passes as well.
const SHARED_FILES: u64 = (libc::CLONE_FS | libc::CLONE_FILES) as u64;

impl Vm {
    pub(super) fn current_tid(&self) -> i32 {
        self.threads
            .get(&self.current)
            .map_or(0, |thread| thread.tid)
    }

    pub(super) fn sys_clone(&mut self, call: &Call) -> Outcome {
        let [flags, stack, parent_tid, child_tid, tls, _] = call.arguments;
        if flags & THREAD_FLAGS != THREAD_FLAGS {
            return self.clone_process(call);
        }
        if flags & SHARED_FILES != SHARED_FILES {
            self.say_once(
                "a thread made without CLONE_FILES or CLONE_FS shares descriptors and folder \
                 with the others here all the same"
                    .into(),
            );
        }
        if flags & libc::CLONE_SETTLS as u64 != 0
            && (tls >= layout::GUEST_TOP || memory::is_vm(tls))
        {
            return Err(Halt::Errno(libc::EPERM));
        }
        self.room_for_thread()?;
        let id = self.kernel.process.next_thread();
        let tid = self.kernel.process.tid_of(id);
        let mut regs = *self.regs();
        regs.gpr[reg::RAX] = 0;
        if stack != 0 {
            regs.gpr[reg::RSP] = stack;
        }
        if flags & libc::CLONE_SETTLS as u64 != 0 {
            regs.fs_base = tls;
        }
        let Some(parent) = self.threads.get(&self.current) else {
            return Err(Halt::Errno(libc::EAGAIN));
        };
        let mut thread = Thread::new(id, tid, regs);
        thread.vector = parent.vector.clone();
        thread.name = parent.name;
        thread.time_stamps_fault = parent.time_stamps_fault;
        thread.signals = parent.signals.inherited();
        thread.scheduling = parent.scheduling.inherited();
        if flags & libc::CLONE_CHILD_CLEARTID as u64 != 0 {
            thread.clear_child_tid = child_tid;
        }
        if flags & libc::CLONE_PARENT_SETTID as u64 != 0 {
            memory::put(parent_tid, tid)?;
        }
        if flags & libc::CLONE_CHILD_SETTID as u64 != 0 {
            memory::put(child_tid, tid)?;
        }
        self.threads.insert(id, thread);
        let parent = self.current;
        self.tell_thread(ThreadEvent::Started { thread: id, parent });
        Ok(i64::from(tid))
    }

    pub(super) fn sys_exit(&mut self, code: u64) -> Outcome {
        let current = self.current;
        let Some(thread) = self.threads.get(&current) else {
            return Err(Halt::NoReturn);
        };
        let (robust, tid, clear) = (thread.robust_list, thread.tid, thread.clear_child_tid);
        self.release_robust_list(robust, tid);
        if clear != 0 && memory::put(clear, 0u32).is_ok() {
            self.futex_wake_anywhere(clear, 1)?;
        }
        self.kernel.futexes.forget(current);
        self.tell_thread(ThreadEvent::Exited { thread: current });
        if let Some(thread) = self.threads.get_mut(&current) {
            thread.state = State::Exited;
        }
        let last = self
            .threads
            .values()
            .all(|thread| thread.state == State::Exited);
        if last {
            self.ended = Some(ProcessStatus::Exited(code as i32 & 0xff));
        }
        Err(Halt::NoReturn)
    }

    pub(super) fn sys_exit_group(&mut self, code: u64) -> Outcome {
        self.ended = Some(ProcessStatus::Exited(code as i32 & 0xff));
        Err(Halt::NoReturn)
    }

    /// The process ends: mutexes that other processes use as well are given up,
    /// those that are robust.
    pub(crate) fn give_up_mutexes(&mut self) -> Result<(), Error> {
        if !self.space.shares_memory && !self.space.shares_files {
            return Ok(());
        }
        self.take_turn()?;
        self.receive_last_memory()?;
        let lists: Vec<(u64, i32)> = self
            .threads
            .values()
            .map(|thread| (thread.robust_list, thread.tid))
            .chain([self.kernel.process.last_robust_list])
            .collect();
        for (list, tid) in lists {
            self.release_robust_list(list, tid);
        }
        self.forget_shared_futexes();
        Ok(())
    }

    /// No thread of this process waits for a futex of others any more.
    pub(super) fn forget_shared_futexes(&self) {
        if self.io.is_live()
            && let Some(tree) = &self.tree
        {
            tree.forget_futexes();
        }
    }
}
