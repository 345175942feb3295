//! A world: a process of its own with a vm at some tick, doing as it is told.
//!
//! A vm has its guest at fixed addresses, so there is one per process; a
//! snapshot is such a process that waits. `World` is the end of it that the
//! travelling process holds; dropping it ends the process.

use crate::ticks::Ticks;
use crate::{Error, wire};
use race::Moment;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::cell::RefCell;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use vm::context::Registers;
use vm::copy::InputIndex;
use vm::observe::{AccessEvent, AfterHook, Interest, Observer, ThreadEvent};
use vm::record::{ProcessStatus, Recording};
use vm::schedule::{Choice, Recorded};
use vm::snapshot::Failed;
use vm::thread::State;
use vm::{Stop, Vm};

/// Another way on from a moment of the recording: one order of a race.
#[derive(Debug, Clone)]
pub struct Alternative {
    /// The recording is left when this moment is first reached; at its very
    /// start if there is none.
    pub leave: Option<Moment>,
    /// The tick at which that is.
    pub tick: u64,
    /// What runs from there on.
    pub slices: Vec<Choice>,
    /// Recorded inputs are matched per stream, as they were when the slices
    /// were written down.
    pub inputs: Option<Rc<InputIndex>>,
    /// How it ends, where it does.
    pub ending: Option<ProcessStatus>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WatchKind {
    Read,
    Write,
    Access,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    pub address: u64,
    pub length: u64,
    pub kind: WatchKind,
}

/// What a search looks for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    pub breakpoints: Vec<u64>,
    pub watches: Vec<Watch>,
}

impl Wanted {
    pub fn is_empty(&self) -> bool {
        self.breakpoints.is_empty() && self.watches.is_empty()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HitKind {
    Breakpoint,
    Watch(Watch),
}

/// A break- or watchpoint met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hit {
    pub thread: u32,
    pub kind: HitKind,
    /// Tick at which the instruction is about to be executed.
    pub before: u64,
    /// Tick at which its effect is there; for a breakpoint the same.
    pub after: u64,
}

/// A thread as a debugger sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadState {
    pub id: u32,
    pub name: String,
    pub executed: u64,
    pub waits: bool,
}

/// Registers of a thread: general ones in the machine's numbering, rip,
/// flags, FS and GS base; and the vector state as XSAVE lays it out.
pub type AllRegisters = (Vec<u64>, Vec<u8>);

#[derive(Serialize, Deserialize)]
enum Request {
    Fork,
    RunTo(u64),
    /// Looks for what is wanted between the current tick and `to`.
    Search {
        wanted: Wanted,
        to: u64,
        last: bool,
        /// Only what is met before this tick counts.
        below: u64,
    },
    Threads,
    Registers(u32),
    Memory {
        address: u64,
        length: usize,
    },
    AuxiliaryVector,
    SetRegisters {
        thread: u32,
        registers: AllRegisters,
    },
    SetMemory {
        address: u64,
        bytes: Vec<u8>,
    },
    /// Runs to the end, at most this many instructions; tells the slices.
    Scout(u64),
    /// Follows these slices from here on.
    Follow(Vec<(u32, u64)>),
    /// Lets a thread execute while its program counter is in the range, at
    /// most `steps` instructions and while no other thread's turn comes.
    StepRange {
        thread: u32,
        start: u64,
        end: u64,
        steps: u64,
        stops: Vec<u64>,
    },
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Done,
    Tick(u64),
    Hit(Option<Hit>),
    Threads(Vec<ThreadState>),
    Registers(Option<AllRegisters>),
    Memory(Vec<u8>),
    Slices(Vec<(u32, u64)>),
    Range { tick: u64, left: bool },
}

pub struct World {
    stream: UnixStream,
    pub tick: u64,
}

impl World {
    /// The world at the start of a process of a recording.
    pub fn start(
        recording: &Recording,
        process: u32,
        ticks: &Rc<Ticks>,
        alternative: Option<Rc<Alternative>>,
    ) -> Result<World, Error> {
        let (mine, theirs) = UnixStream::pair().map_err(Error::Lost)?;
        confine::share_refusals();
        // SAFETY: this process has no other threads; the child leaves by
        // `_exit`.
        match unsafe { libc::fork() } {
            -1 => Err(Error::Lost(io::Error::last_os_error())),
            0 => {
                drop(mine);
                confine::answer_to_parent();
                keep_only(theirs.as_raw_fd());
                // SAFETY: worlds that end are waited for by nobody.
                unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
                let mut stream = theirs;
                match at_start(recording, process) {
                    Ok(mut vm) => {
                        let _ = wire::send(&mut stream, &Ok::<_, Failed>(Answer::Done));
                        Serving {
                            ticks: ticks.clone(),
                            alternative,
                            scout: None,
                        }
                        .serve(&mut vm, stream);
                    }
                    Err(error) => {
                        let answer: Result<Answer, Failed> = Err(error.into());
                        let _ = wire::send(&mut stream, &answer);
                    }
                }
                // SAFETY: ends the child without the parent's exit handlers.
                unsafe { libc::_exit(0) }
            }
            _ => {
                let mut world = World {
                    stream: mine,
                    tick: 0,
                };
                world.answer()?;
                world.run_to(0)?;
                Ok(world)
            }
        }
    }

    /// What the kernel told the program when it was started.
    pub fn auxiliary_vector(&mut self) -> Result<Vec<u8>, Error> {
        match self.ask(&Request::AuxiliaryVector)? {
            Answer::Memory(bytes) => Ok(bytes),
            _ => Err(unexpected()),
        }
    }

    fn answer(&mut self) -> Result<Answer, Error> {
        let answer: Result<Answer, Failed> =
            wire::receive(&mut self.stream).map_err(|error| match confine::refused() {
                Some(call) => Error::Replay(Failed::own(confine::sentence(Some(call)))),
                None => Error::Lost(error),
            })?;
        answer.map_err(Error::Replay)
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, Error> {
        wire::send(&mut self.stream, request).map_err(Error::Lost)?;
        self.answer()
    }

    /// A second world at the same tick.
    pub fn fork(&mut self) -> Result<World, Error> {
        self.ask(&Request::Fork)?;
        let stream = wire::receive_descriptor(&self.stream).map_err(Error::Lost)?;
        Ok(World {
            stream: stream.into(),
            tick: self.tick,
        })
    }

    /// Goes on to `tick`.
    pub fn run_to(&mut self, tick: u64) -> Result<(), Error> {
        match self.ask(&Request::RunTo(tick))? {
            Answer::Tick(tick) => {
                self.tick = tick;
                Ok(())
            }
            _ => Err(unexpected()),
        }
    }

    pub fn search(
        &mut self,
        wanted: &Wanted,
        to: u64,
        last: bool,
        below: u64,
    ) -> Result<Option<Hit>, Error> {
        let request = Request::Search {
            wanted: wanted.clone(),
            to,
            last,
            below,
        };
        match self.ask(&request)? {
            Answer::Hit(hit) => {
                self.tick = to;
                Ok(hit)
            }
            _ => Err(unexpected()),
        }
    }

    pub fn threads(&mut self) -> Result<Vec<ThreadState>, Error> {
        match self.ask(&Request::Threads)? {
            Answer::Threads(threads) => Ok(threads),
            _ => Err(unexpected()),
        }
    }

    pub fn registers(&mut self, thread: u32) -> Result<Option<AllRegisters>, Error> {
        match self.ask(&Request::Registers(thread))? {
            Answer::Registers(registers) => Ok(registers),
            _ => Err(unexpected()),
        }
    }

    /// Memory from `address` on, as far as there is any.
    pub fn memory(&mut self, address: u64, length: usize) -> Result<Vec<u8>, Error> {
        match self.ask(&Request::Memory { address, length })? {
            Answer::Memory(bytes) => Ok(bytes),
            _ => Err(unexpected()),
        }
    }

    pub fn set_registers(&mut self, thread: u32, registers: AllRegisters) -> Result<(), Error> {
        self.ask(&Request::SetRegisters { thread, registers })?;
        Ok(())
    }

    pub fn set_memory(&mut self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        let bytes = bytes.to_vec();
        self.ask(&Request::SetMemory { address, bytes })?;
        Ok(())
    }

    /// Runs this world to its end; what it ran.
    pub fn scout(&mut self, limit: u64) -> Result<Vec<Choice>, Error> {
        match self.ask(&Request::Scout(limit))? {
            Answer::Slices(slices) => Ok(slices
                .into_iter()
                .map(|(thread, instructions)| Choice {
                    thread,
                    instructions,
                })
                .collect()),
            _ => Err(unexpected()),
        }
    }

    pub fn follow(&mut self, slices: &[Choice]) -> Result<(), Error> {
        let slices = slices
            .iter()
            .map(|choice| (choice.thread, choice.instructions))
            .collect();
        self.ask(&Request::Follow(slices))?;
        Ok(())
    }

    /// Steps a thread while it stays in a range of code; true when it has left
    /// the range or met one of `stops`.
    pub fn step_range(
        &mut self,
        thread: u32,
        start: u64,
        end: u64,
        steps: u64,
        stops: &[u64],
    ) -> Result<bool, Error> {
        let request = Request::StepRange {
            thread,
            start,
            end,
            steps,
            stops: stops.to_vec(),
        };
        match self.ask(&request)? {
            Answer::Range { tick, left } => {
                self.tick = tick;
                Ok(left)
            }
            _ => Err(unexpected()),
        }
    }
}

/// A replay of the process, at its first instruction.
/// A world talks to whoever asks it. The descriptors of its parent are not its
/// business: gdb, which obeys what comes through the connection, is behind one.
fn keep_only(line: i32) {
    const FIRST: i32 = 3;
    // SAFETY: this process was just forked and leaves by `_exit`: nobody in it
    // uses or closes the descriptors of its parent. The line is not among them.
    unsafe {
        let nowhere = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for stream in [libc::STDIN_FILENO, libc::STDOUT_FILENO] {
            libc::dup2(nowhere, stream);
        }
        for (first, last) in [(FIRST, line - 1), (line + 1, i32::MAX)] {
            if first <= last {
                libc::syscall(libc::SYS_close_range, first, last, 0);
            }
        }
    }
}

fn at_start(recording: &Recording, process: u32) -> Result<Vm, vm::Error> {
    let mut vm = match process {
        0 => Vm::replay(recording)?,
        process => Vm::replay_process(recording, process)?,
    };
    vm.may_read_files();
    vm.mute();
    if process > 0 {
        // Its ancestors up to the forks.
        vm.run(Some(Moment::new(1, 0)))?;
    }
    Ok(vm)
}

fn unexpected() -> Error {
    Error::Lost(io::Error::other("it gave the answer to another question"))
}

/// The other end: what a world's process knows besides its vm.
struct Serving {
    ticks: Rc<Ticks>,
    /// Where the recording is left, until it has been.
    alternative: Option<Rc<Alternative>>,
    scout: Option<Rc<RefCell<Found>>>,
}

impl Serving {
    /// Answers until the other end is gone.
    fn serve(&mut self, vm: &mut Vm, mut stream: UnixStream) {
        while let Ok(request) = wire::receive::<Request>(&mut stream) {
            if matches!(request, Request::Fork) {
                if self.fork(vm, &mut stream).is_err() {
                    return;
                }
                continue;
            }
            let answer = self.perform(vm, request).map_err(Failed::from);
            if wire::send(&mut stream, &answer).is_err() {
                return;
            }
        }
    }

    fn fork(&mut self, vm: &mut Vm, stream: &mut UnixStream) -> io::Result<()> {
        let (sent, theirs) = UnixStream::pair()?;
        let not_theirs = [stream.as_raw_fd(), sent.as_raw_fd()];
        let forked = vm.branch(|vm| {
            for descriptor in not_theirs {
                // SAFETY: this conversation is not the new world's, which
                // uses neither descriptor and leaves by `_exit`.
                unsafe { libc::close(descriptor) };
            }
            self.serve(vm, theirs);
        });
        match forked {
            Ok(_) => {
                wire::send(stream, &Ok::<_, Failed>(Answer::Done))?;
                wire::send_descriptor(stream, sent.as_raw_fd())
            }
            Err(error) => wire::send(stream, &Err::<Answer, _>(Failed::from(error))),
        }
    }

    fn perform(&mut self, vm: &mut Vm, request: Request) -> Result<Answer, vm::Error> {
        Ok(match request {
            Request::Fork => Answer::Done,
            Request::RunTo(tick) => {
                self.run_to(vm, tick)?;
                Answer::Tick(vm.instructions())
            }
            Request::Search {
                wanted,
                to,
                last,
                below,
            } => Answer::Hit(self.search(vm, wanted, to, last, below)?),
            Request::Threads => Answer::Threads(threads(vm)),
            Request::Registers(thread) => Answer::Registers(registers(vm, thread)),
            Request::Memory { address, length } => Answer::Memory(memory(address, length)),
            Request::AuxiliaryVector => Answer::Memory(vm.auxiliary_vector()),
            Request::SetRegisters { thread, registers } => {
                self.become_own(vm)?;
                set_registers(vm, thread, &registers)?;
                Answer::Done
            }
            Request::SetMemory { address, bytes } => {
                self.become_own(vm)?;
                if !vm.write_memory(address, &bytes) {
                    return Err(vm::Error::Unsupported(format!(
                        "there is no memory to write at {address:#x}"
                    )));
                }
                Answer::Done
            }
            Request::Scout(limit) => {
                let end = vm.instructions().saturating_add(limit);
                // Where it stops is all that counts.
                vm.run_to(end)?;
                let slices = vm.slices();
                Answer::Slices(
                    slices
                        .into_iter()
                        .map(|choice| (choice.thread, choice.instructions))
                        .collect(),
                )
            }
            Request::Follow(slices) => {
                let slices: Vec<Choice> = slices
                    .into_iter()
                    .map(|(thread, instructions)| Choice {
                        thread,
                        instructions,
                    })
                    .collect();
                self.ticks = Rc::new(self.ticks.branch(vm.instructions(), &slices));
                self.alternative = None;
                vm.follow_script(slices)?;
                vm.run_to(vm.instructions())?;
                Answer::Done
            }
            Request::StepRange {
                thread,
                start,
                end,
                steps,
                stops,
            } => {
                let mut left = false;
                for _ in 0..steps {
                    let own = Moment::new(thread, vm.executed(thread));
                    if self.ticks.tick(own) != Some(vm.instructions()) {
                        break;
                    }
                    self.run_to(vm, vm.instructions() + 1)?;
                    let pc = vm.registers(thread).map_or(0, |registers| registers.rip);
                    if !(start..end).contains(&pc) || stops.contains(&pc) {
                        left = true;
                        break;
                    }
                }
                Answer::Range {
                    tick: vm.instructions(),
                    left,
                }
            }
        })
    }

    fn run_to(&mut self, vm: &mut Vm, tick: u64) -> Result<(), vm::Error> {
        if let Some(alternative) = self.alternative.clone()
            && tick >= alternative.tick
        {
            if let Some(leave) = alternative.leave {
                vm.run(Some(leave))?;
            }
            if let Some(inputs) = &alternative.inputs {
                vm.know_inputs(inputs.clone());
            }
            vm.follow_script(alternative.slices.clone())?;
            self.alternative = None;
        }
        match vm.run_to(tick)? {
            Stop::Reached(_) => Ok(()),
            _ if vm.instructions() >= tick => Ok(()),
            stop => Err(vm::Error::Unsupported(format!(
                "tick {tick} is not reached, only {} ({stop:?})",
                vm.instructions()
            ))),
        }
    }

    /// What is changed by a debugger goes its own way from here.
    fn become_own(&mut self, vm: &mut Vm) -> Result<(), vm::Error> {
        let rest = self.ticks.rest(vm.instructions());
        self.alternative = None;
        vm.follow_script(Vec::new())?;
        vm.schedule_by(Box::new(Recorded::new(rest.into(), vm::DEFAULT_QUANTUM)));
        Ok(())
    }

    fn search(
        &mut self,
        vm: &mut Vm,
        wanted: Wanted,
        to: u64,
        last: bool,
        below: u64,
    ) -> Result<Option<Hit>, vm::Error> {
        let found = match &self.scout {
            Some(found) => found.clone(),
            None => {
                let found = Rc::new(RefCell::new(Found {
                    last,
                    below,
                    hit: None,
                }));
                for pc in &wanted.breakpoints {
                    vm.watch_code(*pc);
                }
                vm.observe(Box::new(Scout::new(
                    wanted,
                    self.ticks.clone(),
                    found.clone(),
                )));
                self.scout = Some(found.clone());
                found
            }
        };
        self.run_to(vm, to)?;
        let hit = found.borrow_mut().hit.take();
        Ok(hit)
    }
}

fn threads(vm: &Vm) -> Vec<ThreadState> {
    vm.threads
        .values()
        .map(|thread| {
            let name = thread.name.split(|byte| *byte == 0).next().unwrap_or(&[]);
            ThreadState {
                id: thread.id,
                name: String::from_utf8_lossy(name).into_owned(),
                executed: vm.executed(thread.id),
                waits: matches!(thread.state, State::Blocked(_)),
            }
        })
        .collect()
}

fn registers(vm: &Vm, thread: u32) -> Option<AllRegisters> {
    let regs = vm.registers(thread)?;
    let vector = vm.threads.get(&thread)?.vector.bytes.to_vec();
    let mut values = regs.gpr.to_vec();
    values.extend([regs.rip, regs.rflags, regs.fs_base, regs.gs_base]);
    Some((values, vector))
}

fn set_registers(vm: &mut Vm, thread: u32, registers: &AllRegisters) -> Result<(), vm::Error> {
    let (values, vector) = registers;
    let (Ok(gpr), [rip, rflags, fs_base, gs_base]) = (
        values[..16.min(values.len())].try_into(),
        &values[16.min(values.len())..],
    ) else {
        return Err(vm::Error::Unsupported("registers are missing".into()));
    };
    vm.set_registers(
        thread,
        Registers {
            gpr,
            rip: *rip,
            rflags: *rflags,
            fs_base: *fs_base,
            gs_base: *gs_base,
        },
    );
    if let Some(thread) = vm.threads.get_mut(&thread)
        && vector.len() == thread.vector.bytes.len()
    {
        thread.vector.bytes.copy_from_slice(vector);
    }
    Ok(())
}

fn memory(address: u64, length: usize) -> Vec<u8> {
    const PAGE: u64 = 4096;
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let at = address.wrapping_add(bytes.len() as u64);
        let chunk = ((PAGE - at % PAGE) as usize).min(length - bytes.len());
        match vm::memory::read_vec(at, chunk) {
            Ok(part) => bytes.extend(part),
            Err(_) => break,
        }
    }
    bytes
}

/// What the observer of a search has seen.
struct Found {
    last: bool,
    below: u64,
    hit: Option<Hit>,
}

impl Found {
    fn add(&mut self, hit: Hit) {
        if hit.before < self.below && (self.last || self.hit.is_none()) {
            self.hit = Some(hit);
        }
    }
}

/// Notes break- and watchpoints met.
struct Scout {
    wanted: Wanted,
    /// Bounds of all watches.
    low: u64,
    high: u64,
    ticks: Rc<Ticks>,
    found: Rc<RefCell<Found>>,
    /// Where the slice under way began.
    slice: Moment,
}

impl Scout {
    fn new(wanted: Wanted, ticks: Rc<Ticks>, found: Rc<RefCell<Found>>) -> Self {
        let ends = wanted
            .watches
            .iter()
            .map(|watch| watch.address + watch.length);
        Scout {
            low: wanted
                .watches
                .iter()
                .map(|watch| watch.address)
                .min()
                .unwrap_or(u64::MAX),
            high: ends.max().unwrap_or(0),
            wanted,
            ticks,
            found,
            slice: Moment::new(0, 0),
        }
    }

    fn met(&self, address: u64, size: u64, read: bool, write: bool) -> Option<Watch> {
        if address >= self.high || address.saturating_add(size) <= self.low {
            return None;
        }
        self.wanted.watches.iter().copied().find(|watch| {
            let touches = address < watch.address + watch.length && watch.address < address + size;
            touches
                && match watch.kind {
                    WatchKind::Read => read,
                    WatchKind::Write => write,
                    WatchKind::Access => true,
                }
        })
    }

    fn add(&self, thread: u32, kind: HitKind, before: Option<u64>, length: u64) {
        if let Some(before) = before {
            self.found.borrow_mut().add(Hit {
                thread,
                kind,
                before,
                after: before + length,
            });
        }
    }
}

impl Observer for Scout {
    fn interest(&self) -> Interest {
        Interest {
            accesses: !self.wanted.watches.is_empty(),
            stack: true,
            ..Interest::default()
        }
    }

    fn accesses(&mut self, batch: &[AccessEvent]) {
        for access in batch {
            if let Some(watch) = self.met(
                access.address,
                u64::from(access.size),
                access.read,
                access.write,
            ) {
                let tick = self.ticks.tick(access.moment);
                self.add(access.moment.thread, HitKind::Watch(watch), tick, 1);
            }
        }
    }

    fn kernel_access(&mut self, moment: Moment, address: u64, size: u64, write: bool) {
        let Some(watch) = self.met(address, size, !write, write) else {
            return;
        };
        let next = Moment::new(moment.thread, moment.count + 1);
        // A call that had to wait acts when its thread's next slice begins.
        let tick = if next == self.slice {
            self.ticks.tick(next).and_then(|tick| tick.checked_sub(1))
        } else {
            self.ticks.tick(moment)
        };
        self.add(moment.thread, HitKind::Watch(watch), tick, 1);
    }

    fn thread(&mut self, moment: Moment, event: ThreadEvent) {
        if matches!(event, ThreadEvent::Switched { .. }) {
            self.slice = moment;
        }
    }

    fn hook(&mut self, moment: Moment, registers: &Registers) -> AfterHook {
        if self.wanted.breakpoints.contains(&registers.rip) {
            let tick = self.ticks.tick(moment);
            self.add(moment.thread, HitKind::Breakpoint, tick, 0);
        }
        AfterHook::Nothing
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
