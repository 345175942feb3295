//! A timeline as gdb's debuggee.

use super::Session;
use super::registers::{Shown, X8664, description, has_avx512};
use crate::Error;
use crate::travel::{Interrupt, Sought};
use crate::world::{Hit, HitKind, ThreadState, Wanted, Watch, WatchKind};
use gdbstub::common::{Pid, Signal, Tid};
use gdbstub::stub::MultiThreadStopReason;
use gdbstub::target::ext::auxv::{Auxv, AuxvOps};
use gdbstub::target::ext::base::BaseOps;
use gdbstub::target::ext::base::multithread::{
    MultiThreadBase, MultiThreadRangeStepping, MultiThreadRangeSteppingOps, MultiThreadResume,
    MultiThreadResumeOps, MultiThreadSchedulerLocking, MultiThreadSchedulerLockingOps,
    MultiThreadSingleStep, MultiThreadSingleStepOps,
};
use gdbstub::target::ext::base::reverse_exec::{
    ReplayLogPosition, ReverseCont, ReverseContOps, ReverseStep, ReverseStepOps,
};
use gdbstub::target::ext::breakpoints::{
    self, Breakpoints, BreakpointsOps, HwBreakpoint, HwBreakpointOps, HwWatchpoint,
    HwWatchpointOps, SwBreakpoint, SwBreakpointOps,
};
use gdbstub::target::ext::exec_file::{ExecFile, ExecFileOps};
use gdbstub::target::ext::monitor_cmd::{ConsoleOutput, MonitorCmd, MonitorCmdOps};
use gdbstub::target::ext::target_description_xml_override::{
    TargetDescriptionXmlOverride, TargetDescriptionXmlOverrideOps,
};
use gdbstub::target::ext::thread_extra_info::{ThreadExtraInfo, ThreadExtraInfoOps};
use gdbstub::target::{Target, TargetError, TargetResult};
use race::plain;
use std::num::NonZeroUsize;
use vm::record::ProcessStatus;

/// Steps of a thread within a range of code between looks at gdb.
const RANGE_STEPS: u64 = 20_000;

type Stop = MultiThreadStopReason<u64>;

/// Places of a timeline that have a name.
#[derive(Debug, Clone, Default)]
pub struct Landmarks {
    /// What the race is, in one line.
    pub title: String,
    /// Tick before each access, and who makes it.
    pub first: Option<(u64, Option<u32>)>,
    pub second: Option<(u64, Option<u32>)>,
    /// Where both orders begin.
    pub point: Option<u64>,
}

/// What gdb has asked for next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Continue,
    Step(u32),
    Range { thread: u32, start: u64, end: u64 },
    Back,
    StepBack(u32),
}

pub struct Debuggee {
    pub(super) session: Session,
    wanted: Wanted,
    way: Way,
    /// The thread gdb is shown, and all threads at this place.
    thread: u32,
    threads: Vec<ThreadState>,
    description: String,
    /// The fatal signal was shown already.
    told_end: bool,
    pub(super) quits: bool,
    /// Why the protocol was left, where it was our fault.
    pub(super) failure: Option<Error>,
}

impl Debuggee {
    pub fn new(session: Session) -> Result<Self, Error> {
        let mut debuggee = Debuggee {
            session,
            wanted: Wanted::default(),
            way: Way::Continue,
            thread: 1,
            threads: Vec::new(),
            description: description(has_avx512()),
            told_end: false,
            quits: false,
            failure: None,
        };
        debuggee.arrive(None)?;
        Ok(debuggee)
    }

    /// A new conversation brings its own break- and watchpoints.
    pub fn forget_stops(&mut self) {
        self.wanted = Wanted::default();
    }

    pub(super) fn thread(&self) -> u32 {
        self.thread
    }

    /// Takes note of a new place; `thread` is shown there, or the one that
    /// executes next.
    pub(super) fn arrive(&mut self, thread: Option<u32>) -> Result<(), Error> {
        let timeline = &mut self.session.timeline;
        self.threads = timeline.threads()?;
        let next = timeline
            .ticks()
            .moment(timeline.tick())
            .map(|moment| moment.thread);
        let known = |id: &u32| self.threads.iter().any(|thread| thread.id == *id);
        self.thread = thread
            .filter(known)
            .or(next.filter(known))
            .or(self.threads.first().map(|thread| thread.id))
            .unwrap_or(self.thread);
        Ok(())
    }

    pub fn interrupted(&self) -> Stop {
        MultiThreadStopReason::SignalWithThread {
            tid: tid(self.thread),
            signal: Signal::SIGINT,
        }
    }

    fn trapped(&self) -> Stop {
        MultiThreadStopReason::SignalWithThread {
            tid: tid(self.thread),
            signal: Signal::SIGTRAP,
        }
    }

    fn edge(&self, pos: ReplayLogPosition) -> Stop {
        MultiThreadStopReason::ReplayLog {
            tid: Some(tid(self.thread)),
            pos,
        }
    }

    /// Goes where gdb asked to go; why it stopped there.
    pub fn go(&mut self, interrupt: Interrupt) -> Result<Stop, Error> {
        match self.way {
            Way::Continue => self.go_on(u64::MAX, None, interrupt),
            Way::Step(thread) => self.step(thread, interrupt),
            Way::Range { thread, start, end } => self.step_range(thread, start, end, interrupt),
            Way::Back => self.go_back(0, interrupt),
            Way::StepBack(thread) => self.step_back(thread, interrupt),
        }
    }

    /// On to the next hit before `limit`; without one to `limit`, which
    /// `stepping` has reached by a step, or to the end.
    fn go_on(
        &mut self,
        limit: u64,
        stepping: Option<u32>,
        interrupt: Interrupt,
    ) -> Result<Stop, Error> {
        let timeline = &mut self.session.timeline;
        match timeline.next_hit(&self.wanted, limit, interrupt)? {
            Sought::Hit(hit) => {
                timeline.seek(hit.after, &mut || false)?;
                self.arrive(Some(hit.thread))?;
                return Ok(self.hit(hit));
            }
            Sought::Interrupted => {
                self.arrive(None)?;
                return Ok(self.interrupted());
            }
            Sought::Edge => {}
        }
        let timeline = &mut self.session.timeline;
        let there = timeline.seek(limit, interrupt)?;
        self.arrive(stepping)?;
        if !there {
            return Ok(self.interrupted());
        }
        if stepping.is_some() && self.session.timeline.tick() == limit {
            return Ok(self.trapped());
        }
        Ok(self.end())
    }

    /// The last instruction: of a program that dies of a signal this is the
    /// one that kills it.
    fn end(&mut self) -> Stop {
        let ending = self.session.timeline.ticks().ending;
        match ending {
            Some(ProcessStatus::Killed(signal)) if !self.told_end => {
                self.told_end = true;
                MultiThreadStopReason::SignalWithThread {
                    tid: tid(self.thread),
                    signal: gdb_signal(signal),
                }
            }
            _ => self.edge(ReplayLogPosition::End),
        }
    }

    fn go_back(&mut self, limit: u64, interrupt: Interrupt) -> Result<Stop, Error> {
        self.told_end = false;
        let timeline = &mut self.session.timeline;
        match timeline.last_hit(&self.wanted, limit, interrupt)? {
            Sought::Hit(hit) => {
                timeline.seek(hit.before, &mut || false)?;
                self.arrive(Some(hit.thread))?;
                Ok(self.hit(hit))
            }
            Sought::Interrupted => {
                self.arrive(None)?;
                Ok(self.interrupted())
            }
            Sought::Edge => {
                timeline.seek(limit, &mut || false)?;
                self.arrive(None)?;
                Ok(self.edge(ReplayLogPosition::Begin))
            }
        }
    }

    fn hit(&self, hit: Hit) -> Stop {
        let tid = tid(hit.thread);
        match hit.kind {
            HitKind::Breakpoint => MultiThreadStopReason::SwBreak(tid),
            HitKind::Watch(watch) => MultiThreadStopReason::Watch {
                tid,
                kind: match watch.kind {
                    WatchKind::Read => breakpoints::WatchKind::Read,
                    WatchKind::Write => breakpoints::WatchKind::Write,
                    WatchKind::Access => breakpoints::WatchKind::ReadWrite,
                },
                addr: watch.address,
            },
        }
    }

    fn step(&mut self, thread: u32, interrupt: Interrupt) -> Result<Stop, Error> {
        match self.session.timeline.next_of(thread)? {
            Some(tick) if tick < self.session.timeline.last_tick() => {
                self.go_on(tick + 1, Some(thread), interrupt)
            }
            _ => self.go_on(u64::MAX, None, interrupt),
        }
    }

    fn step_range(
        &mut self,
        thread: u32,
        start: u64,
        end: u64,
        interrupt: Interrupt,
    ) -> Result<Stop, Error> {
        if !self.wanted.watches.is_empty() {
            return self.step(thread, interrupt);
        }
        let stops = self.wanted.breakpoints.clone();
        loop {
            let timeline = &mut self.session.timeline;
            let before = timeline.tick();
            if timeline.step_range(thread, (start, end), RANGE_STEPS, &stops)? {
                self.arrive(Some(thread))?;
                return Ok(self.trapped());
            }
            if timeline.tick() - before < RANGE_STEPS {
                // Other threads come first, or the end is near; gdb asks again
                // if this step has not left the range.
                return self.step(thread, interrupt);
            }
            if interrupt() {
                self.arrive(Some(thread))?;
                return Ok(self.interrupted());
            }
        }
    }

    fn step_back(&mut self, thread: u32, interrupt: Interrupt) -> Result<Stop, Error> {
        self.told_end = false;
        let timeline = &mut self.session.timeline;
        let Some(tick) = timeline.last_of(thread)? else {
            return self.go_back(0, interrupt);
        };
        // Other threads may meet something on the way.
        if timeline.tick() - tick > 1
            && let Sought::Hit(hit) = timeline.last_hit(&self.wanted, tick + 1, interrupt)?
        {
            timeline.seek(hit.before, &mut || false)?;
            self.arrive(Some(hit.thread))?;
            return Ok(self.hit(hit));
        }
        timeline.seek(tick, &mut || false)?;
        self.arrive(Some(thread))?;
        Ok(self.trapped())
    }

    fn known(&self, tid: Tid) -> TargetResult<u32, Self> {
        let id = u32::try_from(tid.get()).map_err(|_| TargetError::NonFatal)?;
        match self.threads.iter().any(|thread| thread.id == id) {
            true => Ok(id),
            false => Err(TargetError::NonFatal),
        }
    }

    fn watch(&self, address: u64, length: u64, kind: breakpoints::WatchKind) -> Watch {
        Watch {
            address,
            length,
            kind: match kind {
                breakpoints::WatchKind::Read => WatchKind::Read,
                breakpoints::WatchKind::Write => WatchKind::Write,
                breakpoints::WatchKind::ReadWrite => WatchKind::Access,
            },
        }
    }
}

/// Threads are numbered from one.
fn tid(thread: u32) -> Tid {
    NonZeroUsize::new(thread as usize).unwrap_or(NonZeroUsize::MIN)
}

/// gdb has numbers of its own for signals.
fn gdb_signal(signal: i32) -> Signal {
    match signal {
        libc::SIGABRT => Signal::SIGABRT,
        libc::SIGSEGV => Signal::SIGSEGV,
        libc::SIGBUS => Signal::SIGBUS,
        libc::SIGFPE => Signal::SIGFPE,
        libc::SIGILL => Signal::SIGILL,
        libc::SIGTRAP => Signal::SIGTRAP,
        libc::SIGTERM => Signal::SIGTERM,
        libc::SIGINT => Signal::SIGINT,
        libc::SIGPIPE => Signal::SIGPIPE,
        libc::SIGALRM => Signal::SIGALRM,
        _ => Signal::SIGKILL,
    }
}

/// The part of `all` that gdb asked for.
fn part(all: &[u8], offset: u64, length: usize, buffer: &mut [u8]) -> usize {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(all.len());
    let rest = &all[start..];
    let length = rest.len().min(length).min(buffer.len());
    buffer[..length].copy_from_slice(&rest[..length]);
    length
}

impl Target for Debuggee {
    type Arch = X8664;
    type Error = String;

    fn base_ops(&mut self) -> BaseOps<'_, X8664, String> {
        BaseOps::MultiThread(self)
    }

    fn support_breakpoints(&mut self) -> Option<BreakpointsOps<'_, Self>> {
        Some(self)
    }

    fn support_monitor_cmd(&mut self) -> Option<MonitorCmdOps<'_, Self>> {
        Some(self)
    }

    fn support_target_description_xml_override(
        &mut self,
    ) -> Option<TargetDescriptionXmlOverrideOps<'_, Self>> {
        Some(self)
    }

    fn support_exec_file(&mut self) -> Option<ExecFileOps<'_, Self>> {
        Some(self)
    }

    fn support_auxv(&mut self) -> Option<AuxvOps<'_, Self>> {
        Some(self)
    }
}

impl Debuggee {
    /// An error that ends the conversation, told in full where it began.
    fn fail<T>(&mut self, error: Error) -> Result<T, String> {
        let text = error.to_string();
        self.failure = Some(error);
        Err(text)
    }
}

impl MultiThreadBase for Debuggee {
    fn read_registers(&mut self, regs: &mut Shown, tid: Tid) -> TargetResult<(), Self> {
        let thread = self.known(tid)?;
        let registers = match self.session.timeline.registers(thread) {
            Ok(registers) => registers,
            Err(error) => return self.fail(error).map_err(TargetError::Fatal),
        };
        let shown = registers.and_then(|(words, area)| Shown::new(words, area));
        *regs = shown.ok_or(TargetError::NonFatal)?;
        Ok(())
    }

    fn write_registers(&mut self, regs: &Shown, tid: Tid) -> TargetResult<(), Self> {
        let thread = self.known(tid)?;
        if !self.session.allow_write {
            return Err(TargetError::Errno(libc::EROFS as u8));
        }
        let registers = (regs.words.clone(), regs.area.clone());
        match self.session.timeline.set_registers(thread, registers) {
            Ok(()) => Ok(()),
            Err(Error::Replay(_)) => Err(TargetError::NonFatal),
            Err(error) => self.fail(error).map_err(TargetError::Fatal),
        }
    }

    fn read_addrs(&mut self, start: u64, data: &mut [u8], _tid: Tid) -> TargetResult<usize, Self> {
        let bytes = match self.session.timeline.memory(start, data.len()) {
            Ok(bytes) => bytes,
            Err(error) => return self.fail(error).map_err(TargetError::Fatal),
        };
        if bytes.is_empty() && !data.is_empty() {
            return Err(TargetError::Errno(libc::EFAULT as u8));
        }
        data[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn write_addrs(&mut self, start: u64, data: &[u8], _tid: Tid) -> TargetResult<(), Self> {
        if !self.session.allow_write {
            return Err(TargetError::Errno(libc::EROFS as u8));
        }
        match self.session.timeline.set_memory(start, data) {
            Ok(()) => Ok(()),
            Err(Error::Replay(_)) => Err(TargetError::Errno(libc::EFAULT as u8)),
            Err(error) => self.fail(error).map_err(TargetError::Fatal),
        }
    }

    fn list_active_threads(&mut self, tell: &mut dyn FnMut(Tid)) -> Result<(), String> {
        // The first is the one that gdb shows when it attaches.
        tell(tid(self.thread));
        for thread in self
            .threads
            .iter()
            .filter(|thread| thread.id != self.thread)
        {
            tell(tid(thread.id));
        }
        Ok(())
    }

    fn support_resume(&mut self) -> Option<MultiThreadResumeOps<'_, Self>> {
        Some(self)
    }

    fn support_thread_extra_info(&mut self) -> Option<ThreadExtraInfoOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadResume for Debuggee {
    fn resume(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn clear_resume_actions(&mut self) -> Result<(), String> {
        self.way = Way::Continue;
        Ok(())
    }

    fn set_resume_action_continue(
        &mut self,
        _tid: Tid,
        _signal: Option<Signal>,
    ) -> Result<(), String> {
        Ok(())
    }

    fn support_single_step(&mut self) -> Option<MultiThreadSingleStepOps<'_, Self>> {
        Some(self)
    }

    fn support_range_step(&mut self) -> Option<MultiThreadRangeSteppingOps<'_, Self>> {
        Some(self)
    }

    fn support_reverse_step(&mut self) -> Option<ReverseStepOps<'_, Tid, Self>> {
        Some(self)
    }

    fn support_reverse_cont(&mut self) -> Option<ReverseContOps<'_, Tid, Self>> {
        Some(self)
    }

    fn support_scheduler_locking(&mut self) -> Option<MultiThreadSchedulerLockingOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadSingleStep for Debuggee {
    fn set_resume_action_step(&mut self, tid: Tid, _signal: Option<Signal>) -> Result<(), String> {
        self.way = Way::Step(tid.get() as u32);
        Ok(())
    }
}

impl MultiThreadRangeStepping for Debuggee {
    fn set_resume_action_range_step(
        &mut self,
        tid: Tid,
        start: u64,
        end: u64,
    ) -> Result<(), String> {
        self.way = Way::Range {
            thread: tid.get() as u32,
            start,
            end,
        };
        Ok(())
    }
}

impl MultiThreadSchedulerLocking for Debuggee {
    /// The others move as they did when recorded.
    fn set_resume_action_scheduler_lock(&mut self) -> Result<(), String> {
        Ok(())
    }
}

impl ReverseCont<Tid> for Debuggee {
    fn reverse_cont(&mut self) -> Result<(), String> {
        self.way = Way::Back;
        Ok(())
    }
}

impl ReverseStep<Tid> for Debuggee {
    fn reverse_step(&mut self, tid: Tid) -> Result<(), String> {
        self.way = Way::StepBack(tid.get() as u32);
        Ok(())
    }
}

impl Breakpoints for Debuggee {
    fn support_sw_breakpoint(&mut self) -> Option<SwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_breakpoint(&mut self) -> Option<HwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_watchpoint(&mut self) -> Option<HwWatchpointOps<'_, Self>> {
        Some(self)
    }
}

impl SwBreakpoint for Debuggee {
    fn add_sw_breakpoint(&mut self, address: u64, _kind: usize) -> TargetResult<bool, Self> {
        if !self.wanted.breakpoints.contains(&address) {
            self.wanted.breakpoints.push(address);
        }
        Ok(true)
    }

    fn remove_sw_breakpoint(&mut self, address: u64, _kind: usize) -> TargetResult<bool, Self> {
        self.wanted.breakpoints.retain(|known| *known != address);
        Ok(true)
    }
}

impl HwBreakpoint for Debuggee {
    fn add_hw_breakpoint(&mut self, address: u64, kind: usize) -> TargetResult<bool, Self> {
        self.add_sw_breakpoint(address, kind)
    }

    fn remove_hw_breakpoint(&mut self, address: u64, kind: usize) -> TargetResult<bool, Self> {
        self.remove_sw_breakpoint(address, kind)
    }
}

impl HwWatchpoint for Debuggee {
    fn add_hw_watchpoint(
        &mut self,
        address: u64,
        length: u64,
        kind: breakpoints::WatchKind,
    ) -> TargetResult<bool, Self> {
        let watch = self.watch(address, length, kind);
        self.wanted.watches.push(watch);
        Ok(true)
    }

    fn remove_hw_watchpoint(
        &mut self,
        address: u64,
        length: u64,
        kind: breakpoints::WatchKind,
    ) -> TargetResult<bool, Self> {
        let watch = self.watch(address, length, kind);
        let before = self.wanted.watches.len();
        if let Some(index) = self.wanted.watches.iter().position(|known| *known == watch) {
            self.wanted.watches.remove(index);
        }
        Ok(self.wanted.watches.len() < before)
    }
}

impl MonitorCmd for Debuggee {
    fn handle_monitor_cmd(
        &mut self,
        command: &[u8],
        mut out: ConsoleOutput<'_>,
    ) -> Result<(), String> {
        match self.monitor(&String::from_utf8_lossy(command)) {
            Ok(text) => {
                out.write_raw(text.as_bytes());
                Ok(())
            }
            Err(error) => self.fail(error),
        }
    }
}

impl TargetDescriptionXmlOverride for Debuggee {
    fn target_description_xml(
        &self,
        annex: &[u8],
        offset: u64,
        length: usize,
        buffer: &mut [u8],
    ) -> TargetResult<usize, Self> {
        if annex != b"target.xml" {
            return Err(TargetError::NonFatal);
        }
        Ok(part(self.description.as_bytes(), offset, length, buffer))
    }
}

impl ThreadExtraInfo for Debuggee {
    fn thread_extra_info(&self, tid: Tid, buffer: &mut [u8]) -> Result<usize, String> {
        let text = self
            .threads
            .iter()
            .find(|thread| thread.id as usize == tid.get())
            .map_or_else(String::new, |thread| {
                let waits = if thread.waits { ", waits" } else { "" };
                format!(
                    "{} at {}:{}{waits}",
                    plain(&thread.name),
                    thread.id,
                    thread.executed
                )
            });
        Ok(part(text.as_bytes(), 0, text.len(), buffer))
    }
}

impl ExecFile for Debuggee {
    fn get_exec_file(
        &self,
        _pid: Option<Pid>,
        offset: u64,
        length: usize,
        buffer: &mut [u8],
    ) -> TargetResult<usize, Self> {
        Ok(part(&self.session.program, offset, length, buffer))
    }
}

impl Auxv for Debuggee {
    fn get_auxv(&self, offset: u64, length: usize, buffer: &mut [u8]) -> TargetResult<usize, Self> {
        Ok(part(self.session.timeline.auxv(), offset, length, buffer))
    }
}
