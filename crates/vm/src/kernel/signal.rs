//! Signals: actions, masks, pending sets, sending, waiting and delivery.
//!
//! A signal that the guest sends to itself, a timer or a fault lives entirely
//! inside the vm. One from outside becomes pending between two slices
//! (`Vm::signal_from_outside`), at a point the recording names. From there on
//! everything is the same: whatever is pending and not blocked is delivered
//! when the thread next leaves a system call or begins a slice, so delivery
//! points follow from the schedule and need no record of their own. Which
//! thread takes a signal sent to the process depends on nothing but masks and
//! thread numbers.

use super::{Call, Halt, Outcome};
use crate::context::reg;
use crate::machine::{GuestFault, Vm};
use crate::memory;
use crate::record::ProcessStatus;
use crate::schedule::SliceEnd;
use crate::thread::{State, Wait, WaitOn};
use crate::{Error, host_signals};

/// The kernel's own form of a signal action.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Action {
    pub handler: u64,
    pub flags: u64,
    pub restorer: u64,
    pub mask: u64,
}

// SAFETY: four integers without padding.
unsafe impl memory::Plain for Action {}

const IGNORE: u64 = 1;

/// SIGKILL and SIGSTOP can be neither blocked nor handled.
const UNBLOCKABLE: u64 = bit(libc::SIGKILL) | bit(libc::SIGSTOP);
const STOPPING: u64 =
    bit(libc::SIGSTOP) | bit(libc::SIGTSTP) | bit(libc::SIGTTIN) | bit(libc::SIGTTOU);
const IGNORED_BY_DEFAULT: u64 =
    bit(libc::SIGCHLD) | bit(libc::SIGCONT) | bit(libc::SIGURG) | bit(libc::SIGWINCH);
/// Signals of the machine's own exceptions, delivered before all others.
const SYNCHRONOUS: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGILL)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGFPE)
    | bit(libc::SIGSYS);

/// The place of a signal in the kernel's 64-bit sets.
pub(super) const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// What happens when a signal is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disposition {
    Ignore,
    Terminate,
    Stop,
    Handle(Action),
}

/// The kernel's siginfo_t.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SignalInfo {
    pub bytes: [u8; 128],
}

impl SignalInfo {
    pub fn new(signal: i32, code: i32) -> Self {
        let mut info = SignalInfo { bytes: [0; 128] };
        info.put(0, signal as u32);
        info.put(8, code as u32);
        info
    }

    /// As the recording has it, without the zeros at its end.
    pub fn from_recorded(bytes: &[u8]) -> Self {
        let mut info = SignalInfo { bytes: [0; 128] };
        let length = bytes.len().min(128);
        info.bytes[..length].copy_from_slice(&bytes[..length]);
        info
    }

    pub fn recorded(&self) -> Vec<u8> {
        let used = self.bytes.iter().rposition(|byte| *byte != 0);
        self.bytes[..used.map_or(0, |last| last + 1)].to_vec()
    }

    fn word(&self, at: usize) -> u32 {
        let mut word = [0; 4];
        word.copy_from_slice(&self.bytes[at..at + 4]);
        u32::from_le_bytes(word)
    }

    pub fn put(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    pub fn put_long(&mut self, at: usize, value: u64) {
        self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// The signal; 0 if it is none (a damaged recording).
    pub fn signal(&self) -> i32 {
        match self.word(0) {
            signal @ 1..=64 => signal as i32,
            _ => 0,
        }
    }

    /// The process that sent it, or that it tells of (SIGCHLD).
    pub fn sender(&self) -> i32 {
        self.word(16) as i32
    }

    pub fn code(&self) -> i32 {
        self.word(8) as i32
    }
}

/// Signals that wait to be delivered, in the order in which they came.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Pending {
    queue: Vec<SignalInfo>,
}

impl Pending {
    pub fn set(&self) -> u64 {
        self.queue
            .iter()
            .fold(0, |set, info| set | bit(info.signal()))
    }

    /// Real-time signals queue; of the others one is kept.
    fn add(&mut self, info: SignalInfo) {
        if info.signal() >= 32 || self.set() & bit(info.signal()) == 0 {
            self.queue.push(info);
        }
    }

    /// Takes the next signal of `wanted`: exceptions first, then the lowest
    /// number.
    fn take(&mut self, wanted: u64) -> Option<SignalInfo> {
        let present = self.set() & wanted;
        let preferred = if present & SYNCHRONOUS != 0 {
            present & SYNCHRONOUS
        } else {
            present
        };
        if preferred == 0 {
            return None;
        }
        let signal = preferred.trailing_zeros() as i32 + 1;
        let index = self.queue.iter().position(|info| info.signal() == signal)?;
        Some(self.queue.remove(index))
    }

    fn discard(&mut self, set: u64) {
        self.queue.retain(|info| bit(info.signal()) & set == 0);
    }

    /// The pending signal of a timer, if it has not been delivered yet.
    pub fn of_timer(&mut self, timer: u32) -> Option<&mut SignalInfo> {
        self.queue
            .iter_mut()
            .find(|info| info.code() == SI_TIMER && info.word(16) == timer)
    }
}

pub(super) const SI_USER: i32 = 0;
pub(super) const SI_TIMER: i32 = -2;
const SI_TKILL: i32 = -6;
pub(crate) const SI_KERNEL: i32 = 0x80;
/// Nothing is mapped at the address.
pub(crate) const SEGV_MAPERR: i32 = 1;

/// An alternate signal stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct AlternateStack {
    pub start: u64,
    pub flags: u64,
    pub size: u64,
}

// SAFETY: three integers; the kernel's flags are the low half of the second.
unsafe impl memory::Plain for AlternateStack {}

const SS_ONSTACK: u64 = 1;
const SS_DISABLE: u64 = 2;
const SS_AUTODISARM: u64 = 1 << 31;
/// Smallest alternate stack the kernel accepts.
const MINIMUM_STACK: u64 = 2048;

impl Default for AlternateStack {
    fn default() -> Self {
        AlternateStack {
            start: 0,
            flags: SS_DISABLE,
            size: 0,
        }
    }
}

impl AlternateStack {
    pub fn contains(&self, stack: u64) -> bool {
        self.flags & SS_AUTODISARM == 0
            && stack > self.start
            && stack - self.start <= self.size
            && self.flags & SS_DISABLE == 0
    }

    /// It exists and the thread is not on it.
    pub fn usable(&self, stack: u64) -> bool {
        self.flags & SS_DISABLE == 0 && self.size != 0 && !self.contains(stack)
    }

    /// As sigaltstack and the frame show it.
    pub fn shown(&self, stack: u64) -> AlternateStack {
        let mut shown = *self;
        if self.contains(stack) {
            shown.flags |= SS_ONSTACK;
        }
        shown
    }

    pub fn disarm_if_automatic(&mut self) {
        if self.flags & SS_AUTODISARM != 0 {
            *self = AlternateStack::default();
        }
    }
}

/// What the machine says about an exception: vector number, error code and
/// address, as they go into a signal frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Trap {
    pub number: u64,
    pub error: u64,
    pub address: u64,
}

/// Per-thread signal state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ThreadSignals {
    pub mask: u64,
    pub pending: Pending,
    pub stack: AlternateStack,
    /// The mask to go back to after a call with a mask of its own
    /// (sigsuspend, ppoll…).
    pub restore_mask: Option<u64>,
    /// Signals a sigtimedwait is blocked for.
    awaited: u64,
    pub trap: Trap,
}

impl ThreadSignals {
    /// What a new thread has from the one that made it.
    pub fn inherited(&self) -> Self {
        ThreadSignals {
            mask: self.mask,
            ..ThreadSignals::default()
        }
    }
}
#[derive(Hash)]
pub struct Signals {
    actions: [Action; 65],
    /// For any thread of the process.
    pending: Pending,
}

impl Default for Signals {
    fn default() -> Self {
        Signals {
            actions: [Action::default(); 65],
            pending: Pending::default(),
        }
    }
}

impl Signals {
    fn disposition(&self, signal: i32) -> Disposition {
        let action = self.actions[signal as usize];
        match action.handler {
            0 if bit(signal) & IGNORED_BY_DEFAULT != 0 => Disposition::Ignore,
            0 if bit(signal) & STOPPING != 0 => Disposition::Stop,
            0 => Disposition::Terminate,
            IGNORE => Disposition::Ignore,
            _ => Disposition::Handle(action),
        }
    }

    /// Signals ignored at the start (nohup).
    pub fn ignore(&mut self, set: u64) {
        for signal in 1..=64 {
            if bit(signal) & set & !UNBLOCKABLE != 0 {
                self.actions[signal as usize].handler = IGNORE;
            }
        }
    }

    /// What execve leaves: handlers are gone, ignored stays ignored.
    pub fn after_exec(&mut self) {
        for action in &mut self.actions {
            let handler = if action.handler == IGNORE { IGNORE } else { 0 };
            *action = Action {
                handler,
                ..Action::default()
            };
        }
    }

    /// What fork leaves.
    pub fn after_fork(&mut self) {
        self.pending = Pending::default();
    }

    pub fn pending_of_timer(&mut self, timer: u32) -> Option<&mut SignalInfo> {
        self.pending.of_timer(timer)
    }
}

/// Whom a signal is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    Process,
    Thread(u32),
}

/// How a system call that a signal broke off goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interrupted {
    pub number: u64,
    /// A handler with SA_RESTART makes it start again.
    pub restartable: bool,
}

impl Interrupted {
    pub fn new(call: &Call) -> Self {
        let command = call.arguments[1] as i32 & 0x7f;
        let timed_futex = call.number as i64 == libc::SYS_futex
            && call.arguments[3] != 0
            && (command == libc::FUTEX_WAIT || command == libc::FUTEX_WAIT_BITSET);
        let never = matches!(
            call.number as i64,
            libc::SYS_nanosleep
                | libc::SYS_clock_nanosleep
                | libc::SYS_poll
                | libc::SYS_ppoll
                | libc::SYS_select
                | libc::SYS_pselect6
                | libc::SYS_epoll_wait
                | libc::SYS_epoll_pwait
                | libc::SYS_epoll_pwait2
                | libc::SYS_pause
                | libc::SYS_rt_sigsuspend
                | libc::SYS_rt_sigtimedwait
                | libc::SYS_semop
                | libc::SYS_semtimedop
                | libc::SYS_msgrcv
                | libc::SYS_msgsnd
        );
        Interrupted {
            number: call.number,
            restartable: !never && !timed_futex,
        }
    }
}

impl Vm {
    fn signals(&mut self) -> &mut ThreadSignals {
        let current = self.current;
        match self.threads.get_mut(&current) {
            Some(thread) => &mut thread.signals,
            None => unreachable!("the running thread exists"),
        }
    }

    pub(super) fn sys_rt_sigaction(&mut self, call: &Call) -> Outcome {
        let [signal, new, old, size, ..] = call.arguments;
        if !(1..=64).contains(&signal) || size != 8 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let slot = signal as usize;
        let previous = self.kernel.signals.actions[slot];
        if new != 0 {
            if bit(signal as i32) & UNBLOCKABLE != 0 {
                return Err(Halt::Errno(libc::EINVAL));
            }
            let mut action: Action = memory::get(new)?;
            action.mask &= !UNBLOCKABLE;
            self.kernel.signals.actions[slot] = action;
            if self.io.is_live() {
                let action = self.kernel.signals.actions[slot];
                host_signals::mirror(signal as i32, action.handler == IGNORE, action.flags);
            }
            if self.kernel.signals.disposition(signal as i32) == Disposition::Ignore {
                let set = bit(signal as i32);
                self.kernel.signals.pending.discard(set);
                for thread in self.threads.values_mut() {
                    thread.signals.pending.discard(set);
                }
            }
        }
        if old != 0 {
            memory::put(old, previous)?;
        }
        Ok(0)
    }

    pub(super) fn sys_rt_sigprocmask(&mut self, call: &Call) -> Outcome {
        let [how, set, old, size, ..] = call.arguments;
        if size != 8 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let previous = self.signals().mask;
        if set != 0 {
            let set = memory::get::<u64>(set)?;
            let mask = match how as i32 {
                libc::SIG_BLOCK => previous | set,
                libc::SIG_UNBLOCK => previous & !set,
                libc::SIG_SETMASK => set,
                _ => return Err(Halt::Errno(libc::EINVAL)),
            } & !UNBLOCKABLE;
            self.signals().mask = mask;
            let terminal = bit(libc::SIGTTOU) | bit(libc::SIGTTIN);
            if self.io.is_live() && (previous ^ mask) & terminal != 0 {
                host_signals::block_terminal_signals(mask);
            }
        }
        if old != 0 {
            memory::put(old, previous)?;
        }
        Ok(0)
    }

    pub(super) fn sys_rt_sigpending(&mut self, set: u64) -> Outcome {
        let shared = self.kernel.signals.pending.set();
        let own = self.signals();
        let pending = (shared | own.pending.set()) & own.mask;
        memory::put(set, pending)?;
        Ok(0)
    }

    pub(super) fn sys_sigaltstack(&mut self, new: u64, old: u64) -> Outcome {
        let stack = self.regs().gpr[reg::RSP];
        let current = self.signals().stack;
        if new != 0 {
            let mut wanted: AlternateStack = memory::get(new)?;
            wanted.flags &= 0xffff_ffff;
            if current.contains(stack) {
                return Err(Halt::Errno(libc::EPERM));
            }
            match wanted.flags & !SS_AUTODISARM {
                SS_DISABLE => wanted = AlternateStack::default(),
                0 | SS_ONSTACK if wanted.size < MINIMUM_STACK => {
                    return Err(Halt::Errno(libc::ENOMEM));
                }
                0 | SS_ONSTACK => wanted.flags &= SS_AUTODISARM,
                _ => return Err(Halt::Errno(libc::EINVAL)),
            }
            self.signals().stack = wanted;
        }
        if old != 0 {
            memory::put(old, current.shown(stack))?;
        }
        Ok(0)
    }

    /// A call brings its own signal mask, which holds until it is over
    /// (ppoll, pselect, epoll_pwait, sigsuspend). Only on the first attempt.
    pub(super) fn set_temporary_mask(&mut self, call: &Call, mask: u64) {
        if call.again {
            return;
        }
        let signals = self.signals();
        signals.restore_mask = Some(signals.mask);
        signals.mask = mask & !UNBLOCKABLE;
    }

    pub(super) fn sys_rt_sigsuspend(&mut self, call: &Call) -> Outcome {
        let [set, size, ..] = call.arguments;
        if size != 8 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let mask = memory::get(set)?;
        self.set_temporary_mask(call, mask);
        self.sys_pause()
    }

    /// `perform` ends the wait when a handler is to run.
    pub(super) fn sys_pause(&mut self) -> Outcome {
        Err(Halt::Block(Wait {
            on: WaitOn::Signal,
            deadline: None,
        }))
    }

    pub(super) fn sys_rt_sigtimedwait(&mut self, call: &mut Call) -> Outcome {
        let [set, info, timeout, size, ..] = call.arguments;
        if size != 8 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let wanted = memory::get::<u64>(set)? & !UNBLOCKABLE;
        if !call.again {
            call.deadline = self.deadline(timeout, false, false)?;
        }
        self.signals().awaited = 0;
        if let Some(taken) = self.take_pending(wanted) {
            if info != 0 {
                memory::write(info, &taken.bytes)?;
            }
            return Ok(i64::from(taken.signal()));
        }
        if call.deadline.is_some_and(|deadline| deadline <= self.now()) {
            return Err(Halt::Errno(libc::EAGAIN));
        }
        if call.interrupted {
            return Err(Halt::Errno(libc::EINTR));
        }
        self.signals().awaited = wanted;
        Err(Halt::Block(Wait {
            on: WaitOn::Signal,
            deadline: call.deadline,
        }))
    }

    /// Takes a pending signal of `wanted`, the thread's own before the
    /// process's.
    pub(super) fn take_pending(&mut self, wanted: u64) -> Option<SignalInfo> {
        let taken = self.signals().pending.take(wanted);
        let taken = taken.or_else(|| self.kernel.signals.pending.take(wanted))?;
        self.timer_signal_taken(&taken);
        Some(taken)
    }

    /// Pending signals of the current thread and the process.
    pub(super) fn pending_signals(&mut self) -> u64 {
        self.kernel.signals.pending.set() | self.signals().pending.set()
    }

    pub(super) fn user_signal(&self, signal: i32, code: i32) -> SignalInfo {
        let mut info = SignalInfo::new(signal, code);
        info.put(16, self.kernel.process.pid as u32);
        info.put(20, self.kernel.process.user);
        info
    }

    fn thread_with_tid(&self, tid: i32) -> Result<u32, Halt> {
        self.threads
            .values()
            .find(|thread| thread.tid == tid && thread.state != State::Exited)
            .map(|thread| thread.id)
            .ok_or(Halt::Errno(libc::ESRCH))
    }

    pub(super) fn sys_tgkill(&mut self, call: &Call) -> Outcome {
        let [process, tid, signal, ..] = call.arguments;
        if process as i32 != self.kernel.process.pid {
            return self.kill_other(call, process as i32, signal as i32);
        }
        self.kill_thread(tid as i32, signal as i32)
    }

    pub(super) fn sys_tkill(&mut self, call: &Call) -> Outcome {
        let [tid, signal, ..] = call.arguments;
        self.kill_thread(tid as i32, signal as i32)
    }

    fn kill_thread(&mut self, tid: i32, signal: i32) -> Outcome {
        if !(0..=64).contains(&signal) || tid <= 0 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let thread = self.thread_with_tid(tid)?;
        if signal != 0 {
            let info = self.user_signal(signal, SI_TKILL);
            self.send_signal(Target::Thread(thread), info)?;
        }
        Ok(0)
    }

    pub(super) fn sys_rt_sigqueueinfo(&mut self, call: &Call, to_thread: bool) -> Outcome {
        let [process, a, b, c, ..] = call.arguments;
        let (tid, signal, address) = if to_thread {
            (a as i32, b as i32, c)
        } else {
            (0, a as i32, b)
        };
        if process as i32 != self.kernel.process.pid {
            return self.kill_other(call, process as i32, signal);
        }
        if !(0..=64).contains(&signal) {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let mut info = SignalInfo {
            bytes: memory::get(address)?,
        };
        let target = if to_thread {
            Target::Thread(self.thread_with_tid(tid)?)
        } else {
            Target::Process
        };
        if signal != 0 {
            info.put(0, signal as u32);
            self.send_signal(target, info)?;
        }
        Ok(0)
    }

    /// The kernel itself sends the current thread a signal (SIGPIPE).
    pub(crate) fn raise_signal(&mut self, signal: i32) -> Result<(), Error> {
        let info = self.user_signal(signal, SI_USER);
        let current = self.current;
        self.send_signal(Target::Thread(current), info)
    }

    /// Makes a signal pending and wakes the thread that is to take it.
    pub(crate) fn send_signal(&mut self, target: Target, info: SignalInfo) -> Result<(), Error> {
        let signal = info.signal();
        if signal == 0 {
            return Ok(());
        }
        let set = bit(signal);
        if signal == libc::SIGKILL {
            self.ended = Some(ProcessStatus::Killed(signal));
            return Ok(());
        }
        if signal == libc::SIGCONT {
            self.discard_everywhere(STOPPING);
        } else if set & STOPPING != 0 {
            self.discard_everywhere(bit(libc::SIGCONT));
        }
        let taker = self.taker(target, set);
        let disposition = self.kernel.signals.disposition(signal);
        match (taker, disposition) {
            (Some((_, false)), Disposition::Ignore) => return Ok(()),
            (Some((_, false)), Disposition::Stop) => {
                self.stop(signal);
                return Ok(());
            }
            _ => {}
        }
        match target {
            Target::Process => self.kernel.signals.pending.add(info),
            Target::Thread(id) => {
                if let Some(thread) = self.threads.get_mut(&id) {
                    thread.signals.pending.add(info);
                }
            }
        }
        self.wake_objects(super::signalfd::SIGNALS);
        if let Some((id, _)) = taker
            && let Some(thread) = self.threads.get_mut(&id)
            && let Some(call) = &mut thread.call
        {
            call.interrupted = true;
            thread.state = State::Runnable;
        }
        Ok(())
    }

    fn discard_everywhere(&mut self, set: u64) {
        self.kernel.signals.pending.discard(set);
        for thread in self.threads.values_mut() {
            thread.signals.pending.discard(set);
        }
    }

    /// The thread that can take a signal now, and whether it takes it by
    /// sigtimedwait. The first thread is preferred, as by the kernel.
    fn taker(&self, target: Target, set: u64) -> Option<(u32, bool)> {
        self.threads
            .values()
            .filter(|thread| thread.state != State::Exited)
            .filter(|thread| target == Target::Process || target == Target::Thread(thread.id))
            .find_map(|thread| {
                if thread.signals.awaited & set != 0 {
                    Some((thread.id, true))
                } else {
                    (thread.signals.mask & set == 0).then_some((thread.id, false))
                }
            })
    }

    /// Job control: the whole vm stops, as the program would. A replay has
    /// nobody who could continue it and goes on.
    fn stop(&mut self, signal: i32) {
        if self.io.is_live() {
            host_signals::stop(signal);
        }
    }

    /// A signal that came from outside becomes pending.
    pub(crate) fn signal_from_outside(&mut self, thread: u32, info: &[u8]) -> Result<(), Error> {
        let target = if thread == 0 {
            Target::Process
        } else {
            Target::Thread(thread)
        };
        self.send_signal(target, SignalInfo::from_recorded(info))
    }

    /// A pending signal will run a handler in this thread or end the process:
    /// a blocked call has to give up.
    pub(super) fn must_interrupt(&mut self) -> bool {
        let candidates = self.pending_signals() & !self.signals().mask;
        (1..=64)
            .filter(|signal| bit(*signal) & candidates != 0)
            .any(|signal| {
                matches!(
                    self.kernel.signals.disposition(signal),
                    Disposition::Handle(_) | Disposition::Terminate
                )
            })
    }

    /// Runs the handlers of pending signals, if there are any.
    pub(crate) fn deliver_signals(&mut self) -> Result<Option<SliceEnd>, Error> {
        self.deliver_after(None)
    }

    /// The same when the thread comes out of a system call that a signal
    /// broke off.
    pub(super) fn deliver_after(
        &mut self,
        mut interrupted: Option<Interrupted>,
    ) -> Result<Option<SliceEnd>, Error> {
        if self.ended.is_some() {
            return Ok(Some(SliceEnd::Exited));
        }
        loop {
            let wanted = !self.signals().mask;
            let Some(info) = self.take_pending(wanted) else {
                break;
            };
            match self.kernel.signals.disposition(info.signal()) {
                Disposition::Ignore => {}
                Disposition::Stop => self.stop(info.signal()),
                Disposition::Terminate => {
                    self.ended = Some(ProcessStatus::Killed(info.signal()));
                    return Ok(Some(SliceEnd::Exited));
                }
                Disposition::Handle(action) => {
                    let restart = action.flags & libc::SA_RESTART as u64 != 0;
                    if let Some(call) = interrupted.take()
                        && call.restartable
                        && restart
                    {
                        self.restart(call.number);
                    }
                    self.enter_handler(&info, action);
                    if self.ended.is_some() {
                        return Ok(Some(SliceEnd::Exited));
                    }
                }
            }
        }
        if let Some(call) = interrupted
            && call.restartable
        {
            // Nobody handled what broke it off.
            self.restart(call.number);
        }
        let signals = self.signals();
        if let Some(mask) = signals.restore_mask.take() {
            signals.mask = mask;
        }
        Ok(None)
    }

    /// The thread executes its `syscall` instruction (two bytes) again.
    fn restart(&mut self, number: u64) {
        let regs = self.regs();
        regs.rip -= 2;
        regs.gpr[reg::RAX] = number;
    }

    /// Puts the handler's frame on the stack and the thread at its start.
    fn enter_handler(&mut self, info: &SignalInfo, action: Action) {
        let signal = info.signal();
        let signals = self.signals();
        let saved = signals.restore_mask.take().unwrap_or(signals.mask);
        if self.push_frame(info, action, saved).is_err() {
            // As the kernel: no room for the frame is a segmentation fault,
            // and no room for that one is the end.
            self.force(
                SignalInfo::new(libc::SIGSEGV, SI_KERNEL),
                signal == libc::SIGSEGV,
            );
            return;
        }
        if action.flags & libc::SA_RESETHAND as u64 != 0 {
            self.kernel.signals.actions[signal as usize] = Action::default();
        }
        let mut mask = self.signals().mask | action.mask;
        if action.flags & libc::SA_NODEFER as u64 == 0 {
            mask |= bit(signal);
        }
        self.signals().mask = mask & !UNBLOCKABLE;
    }

    /// Delivers a signal that cannot wait: if it is blocked, ignored or
    /// without handler, the process dies of it.
    fn force(&mut self, info: SignalInfo, fatal: bool) {
        let signal = info.signal();
        let blocked = self.signals().mask & bit(signal) != 0;
        match self.kernel.signals.disposition(signal) {
            Disposition::Handle(action) if !blocked && !fatal => self.enter_handler(&info, action),
            _ => self.ended = Some(ProcessStatus::Killed(signal)),
        }
    }

    /// The instruction at rip faulted (or, for a trap, the one before it).
    pub(crate) fn guest_fault(
        &mut self,
        signal: i32,
        code: i32,
        address: u64,
        trap: Trap,
    ) -> Result<Option<SliceEnd>, Error> {
        let mut info = SignalInfo::new(signal, code);
        if code != SI_KERNEL {
            info.put_long(16, address);
        }
        self.signals().trap = trap;
        let regs = *self.regs();
        let moment = self.moment();
        if signal != libc::SIGTRAP {
            self.count_fault();
        }
        self.leave_trail(&[signal as u64, code as u64, address, regs.rip]);
        self.force(info, false);
        if self.ended.is_none() {
            return Ok(None);
        }
        self.fault = Some(GuestFault {
            moment,
            signal,
            pc: regs.rip,
            address,
            regs,
        });
        Ok(Some(SliceEnd::Exited))
    }
}

impl Vm {
    /// What a handler's return brings back besides the registers.
    pub(super) fn restore_after_handler(
        &mut self,
        mask: u64,
        mut stack: AlternateStack,
        vector: crate::vector::VectorState,
    ) {
        let current = self.current;
        if let Some(thread) = self.threads.get_mut(&current) {
            *thread.vector = vector;
            thread.signals.mask = mask & !UNBLOCKABLE;
            if stack.flags & SS_DISABLE != 0 {
                stack = AlternateStack::default();
            }
            stack.flags &= SS_DISABLE | SS_AUTODISARM;
            thread.signals.stack = stack;
        }
    }

    /// The guest's stack is of no use to the kernel: a segmentation fault.
    pub(super) fn raise_forced_segv(&mut self) {
        self.force(SignalInfo::new(libc::SIGSEGV, SI_KERNEL), false);
    }
}
