//! Happens-before over the events of an execution.
//!
//! Papers 000 (section 3.2) and 003 (section 4.5) order accesses by the
//! synchronisation between them; so does this observer, with vector clocks,
//! which order exactly what the edges order (paper 000's sequencers order
//! more, see `sequencer`). Edges come from the rules of design "what counts as
//! synchronisation": annotations, known functions, the kernel, locked
//! instructions, debug info. What is done with accesses is a `Checker`'s
//! business: the first pass keeps epochs for all memory, the second full
//! history for a few addresses.
//!
//! Guarantees: no edge is missed that the listed rules give, so two accesses
//! called concurrent are concurrent under these rules. Accesses inside a known
//! function are its own affair and not checked.

use crate::clock::{Epoch, SLOTS, Slot, VectorClock};
use crate::code::{Atomic, Code, Origin};
use crate::golang::{GoCall, Goroutines, Pending, Routine};
use crate::heap::{Block, Heap};
use crate::known::{Known, request};
use crate::sync::{Barrier, Object, Objects};
use crate::tasks::{self, Current, Suspended, TASK_SLOTS, Task, Tasks};
use race::Moment;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;
use vm::context::{Registers, reg};
use vm::memory;
use vm::observe::known::Compare;
use vm::observe::{AccessEvent, AfterHook, Interest, Observer, SyscallEvent, ThreadEvent};

/// How an access is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Meaning {
    Plain,
    /// A locked instruction, or atomic by debug info.
    Atomic {
        order_unknown: bool,
    },
    /// A block given back to the allocator.
    Free,
}

/// An access that a checker must look at.
#[derive(Debug, Clone, Copy)]
pub struct Access {
    pub moment: Moment,
    /// Position in the order of all events looked at.
    pub order: u64,
    pub pc: u64,
    pub address: u64,
    pub size: u64,
    pub read: bool,
    pub write: bool,
    pub meaning: Meaning,
}

/// A lock that a thread holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    pub address: u64,
    pub kind: LockKind,
    pub moment: Moment,
    pub order: u64,
    /// Times taken (recursive mutexes, readers).
    pub times: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum LockKind {
    Mutex,
    Spin,
    Read,
    Write,
    Stream,
    Annotated,
    /// `critical` or `atomic` without a name.
    Critical,
}

/// A thread of the program.
#[derive(Debug)]
pub struct Thread {
    pub number: u32,
    pub slot: Slot,
    pub clock: VectorClock,
    /// The thread's own component of its clock.
    pub epoch: Epoch,
    pub held: Vec<Held>,
    pub name: Option<String>,
    /// The call of clone, by the creator.
    pub created: Option<(Moment, u64)>,
    pub stack: Option<Range<u64>>,
    /// Descriptor and thread-local variables, above the stack proper.
    local: Range<u64>,
    calls: Vec<Call>,
    inside: u32,
    /// The OpenMP task it runs, what it did before, and the one it is
    /// creating.
    task: Current,
    suspended: Vec<Suspended>,
    creating: Option<Task>,
    /// The goroutine it runs, and what it was before.
    goroutine: Option<u64>,
    between: Option<Routine>,
    pending: Vec<Pending>,
}

/// A known function under way.
#[derive(Debug, Clone, Copy)]
struct Call {
    known: Known,
    function: u64,
    stack: u64,
    arguments: [u64; 4],
    /// The barrier's cycle, or another number the return needs; on entry the
    /// sixth argument.
    cycle: u64,
    caller: u64,
    moment: Moment,
    order: u64,
    /// Counted in `inside`.
    counts: bool,
}

impl Thread {
    fn advance(&mut self) {
        let tick = self.clock.get(self.slot) + 1;
        self.clock.set(self.slot, tick);
        self.epoch = Epoch::new(self.slot, tick);
    }

    fn acquire(&mut self, clock: &VectorClock) {
        self.clock.join(clock);
    }

    /// The address is the thread's own, whatever task it runs.
    pub fn is_local(&self, address: u64) -> bool {
        self.local.contains(&address)
    }

    /// The run-time is handing out tasks.
    fn hands_out_tasks(&self) -> bool {
        self.calls
            .last()
            .is_some_and(|call| call.known.hands_out_tasks())
    }
}

/// A misuse of a lock or an order that can deadlock, as the engine sees it.
#[derive(Debug, Clone)]
pub enum LockEvent<'a> {
    Locking {
        thread: &'a Thread,
        address: u64,
        moment: Moment,
        order: u64,
    },
    NotHeld {
        address: u64,
        owner: Option<u32>,
        moment: Moment,
        order: u64,
    },
    DestroyedHeld {
        address: u64,
        owner: u32,
        moment: Moment,
        order: u64,
    },
}

/// What a pass does with accesses.
pub trait Checker {
    /// Nothing new in this access (tested before anything else).
    fn is_known(&self, address: u64, size: u32, write: bool, epoch: Epoch) -> bool;
    /// What accesses of a thread in `epoch` are known by: `is_known` as
    /// translated code can ask it.
    fn known_by(&self, epoch: Epoch) -> Compare;
    /// Accesses matter at all.
    fn wants_accesses(&self) -> bool {
        true
    }
    /// Every access that gets this far is worth a look into debug info.
    fn is_exact(&self) -> bool;
    fn access(&mut self, access: &Access, thread: &Thread, heap: &Heap);
    /// A plain access was nothing but synchronisation: all of them there are.
    fn synchronised(&mut self, _address: u64, _size: u32) {}
    /// The memory is new.
    fn clear(&mut self, range: Range<u64>);
    fn lock(&mut self, _event: LockEvent<'_>) {}
}

/// Descriptors that carry synchronisation from writers to readers.
#[derive(Debug, Default)]
struct Channels {
    by_descriptor: HashMap<u64, u64>,
    clocks: HashMap<u64, VectorClock>,
    next: u64,
}

/// All sockets that are not made as pairs share one channel: who is connected
/// to whom may be decided outside.
const SOCKETS: u64 = 0;

impl Channels {
    fn send(&mut self, channel: u64, thread: &mut Thread) {
        self.clocks.entry(channel).or_default().join(&thread.clock);
        thread.advance();
    }

    fn receive(&self, channel: u64, thread: &mut Thread) {
        if let Some(clock) = self.clocks.get(&channel) {
            thread.acquire(clock);
        }
    }
}

pub struct Engine<C> {
    pub checker: C,
    pub code: Code,
    pub heap: Heap,
    threads: Vec<Option<Box<Thread>>>,
    /// Slots of ended threads: slot, final clock value.
    idle_slots: Vec<(Slot, u64)>,
    slots: usize,
    /// Objects of known functions, by address.
    objects: Objects,
    /// Words that carry edges by themselves, by address of four bytes.
    words: Objects,
    /// Words that any access synchronises by (guards of static variables),
    /// and those that only library code does (once controls).
    guards: rustc_hash::FxHashMap<u64, bool>,
    /// Threads by thread pointer (`pthread_t`).
    by_pointer: HashMap<u64, u32>,
    last_started: Option<u32>,
    stacks: BTreeMap<u64, u64>,
    /// Mappings that allocators and the C library made for themselves.
    library_maps: BTreeMap<u64, u64>,
    /// What `brk` gave: outside of blocks it is the allocator's.
    break_area: Range<u64>,
    channels: Channels,
    owners: HashMap<u64, Vec<u32>>,
    order: u64,
    tasks: Tasks,
    goroutines: Goroutines,
    more_hooks: Vec<u64>,
    pub not_checked: Vec<String>,
}

impl<C: Checker> Engine<C> {
    pub fn new(checker: C) -> Self {
        let mut engine = Engine {
            checker,
            code: Code::default(),
            heap: Heap::default(),
            threads: Vec::new(),
            idle_slots: Vec::new(),
            slots: 0,
            objects: Objects::default(),
            words: Objects::default(),
            guards: rustc_hash::FxHashMap::default(),
            by_pointer: HashMap::new(),
            last_started: None,
            stacks: BTreeMap::new(),
            library_maps: BTreeMap::new(),
            break_area: 0..0,
            channels: Channels::default(),
            owners: HashMap::new(),
            order: 0,
            tasks: Tasks::default(),
            goroutines: Goroutines::default(),
            more_hooks: Vec::new(),
            not_checked: Vec::new(),
        };
        engine.start_thread(1, None, Moment::new(1, 0));
        engine
    }

    pub fn threads(&self) -> impl Iterator<Item = &Thread> {
        self.threads.iter().flatten().map(|thread| &**thread)
    }

    pub fn thread_state(&self, number: u32) -> Option<&Thread> {
        self.threads.get(number as usize)?.as_deref()
    }

    fn next_order(&mut self) -> u64 {
        self.order += 1;
        self.order
    }

    /// Takes a thread out to work on it beside the rest of the engine.
    fn take(&mut self, number: u32) -> Box<Thread> {
        if self.thread_state(number).is_none() {
            self.start_thread(number, None, Moment::new(number, 0));
        }
        match self.threads[number as usize].take() {
            Some(thread) => thread,
            None => unreachable!("started above"),
        }
    }

    fn put(&mut self, thread: Box<Thread>) {
        let index = thread.number as usize;
        self.threads[index] = Some(thread);
    }

    /// A slot whose last user ended before this clock, and its next tick.
    fn idle_slot(&mut self, clock: &VectorClock) -> Option<(Slot, u64)> {
        let index = self
            .idle_slots
            .iter()
            .position(|(slot, tick)| clock.get(*slot) >= *tick)?;
        let (slot, tick) = self.idle_slots.swap_remove(index);
        Some((slot, tick + 1))
    }

    /// A thread begins to run a task that was created earlier.
    fn begin_task(&mut self, task: Task, thread: &mut Thread, stack: u64) {
        let mut clock = task.clock.clone();
        clock.join(&self.tasks.clock_after(&task));
        for address in &task.exclusive {
            clock.join(&self.objects.entry(*address).clock);
        }
        let slot = self.idle_slot(&clock).or_else(|| {
            (self.slots < TASK_SLOTS).then(|| {
                self.slots += 1;
                ((self.slots - 1) as Slot, 1)
            })
        });
        let current = Current {
            id: task.id,
            groups: task.groups.clone(),
        };
        let Some((slot, tick)) = slot else {
            thread.acquire(&clock);
            thread.suspended.push(Suspended {
                slot: thread.slot,
                clock: VectorClock::default(),
                epoch: thread.epoch,
                current: std::mem::replace(&mut thread.task, current),
                stack,
                knows_thread: false,
                finishing: None,
            });
            return;
        };
        let tick = tick.max(clock.get(slot) + 1);
        clock.set(slot, tick);
        self.renew(tasks::fresh_stack(stack, thread.stack.as_ref()));
        thread.suspended.push(Suspended {
            slot: std::mem::replace(&mut thread.slot, slot),
            clock: std::mem::replace(&mut thread.clock, clock),
            epoch: std::mem::replace(&mut thread.epoch, Epoch::new(slot, tick)),
            current: std::mem::replace(&mut thread.task, current),
            stack,
            knows_thread: false,
            finishing: Some(task),
        });
    }

    /// The thread goes back to what it did before the task.
    fn end_task(&mut self, thread: &mut Thread) {
        let Some(suspended) = thread.suspended.pop() else {
            return;
        };
        thread.task = suspended.current;
        let Some(task) = suspended.finishing else {
            // It had the thread's own clock.
            return;
        };
        for address in &task.exclusive {
            self.objects.entry(*address).clock.join(&thread.clock);
        }
        if suspended.knows_thread {
            let number = numbered(thread.number);
            self.objects.entry(number).clock.join(&thread.clock);
        }
        self.tasks.finish(&task, &thread.clock);
        self.idle_slots
            .push((thread.slot, thread.clock.get(thread.slot)));
        thread.slot = suspended.slot;
        thread.clock = suspended.clock;
        thread.epoch = suspended.epoch;
        self.renew(tasks::fresh_stack(suspended.stack, thread.stack.as_ref()));
    }

    /// A slot for a goroutine that begins with this clock.
    fn new_routine(&mut self, mut clock: VectorClock) -> Routine {
        let (slot, tick) = self.idle_slot(&clock).unwrap_or_else(|| {
            if self.slots + 2 < SLOTS {
                self.slots += 1;
            }
            ((self.slots - 1) as Slot, 1)
        });
        let tick = tick.max(clock.get(slot) + 1);
        clock.set(slot, tick);
        Routine {
            slot,
            clock,
            epoch: Epoch::new(slot, tick),
            pending: Vec::new(),
        }
    }

    /// Makes the thread what `routine` says, and returns what it was.
    fn exchange(thread: &mut Thread, routine: Routine) -> Routine {
        Routine {
            slot: std::mem::replace(&mut thread.slot, routine.slot),
            clock: std::mem::replace(&mut thread.clock, routine.clock),
            epoch: std::mem::replace(&mut thread.epoch, routine.epoch),
            pending: std::mem::replace(&mut thread.pending, routine.pending),
        }
    }

    fn leave_goroutine(&mut self, thread: &mut Thread) {
        if let Some(between) = thread.between.take() {
            let state = Self::exchange(thread, between);
            if let Some(goroutine) = thread.goroutine.take() {
                self.goroutines.park(goroutine, state);
            }
        }
    }

    fn renew_go_stack(&mut self, goroutine: u64) {
        // struct g begins with the bounds of its stack.
        if let Ok([low, high]) = memory::get::<[u64; 2]>(goroutine)
            && low < high
            && high - low <= 1 << 30
        {
            self.renew(low..high);
        }
    }

    /// A function of the Go run-time is entered.
    fn go_call(&mut self, called: GoCall, registers: &Registers, thread: &mut Thread, call: &Call) {
        let gpr = &registers.gpr;
        let arguments = [
            gpr[reg::RAX],
            gpr[reg::RBX],
            gpr[reg::RCX],
            gpr[reg::RDI],
            gpr[reg::RSI],
        ];
        let first = arguments[0];
        let mut follow = false;
        match called {
            GoCall::Resume => {
                // gogo(*gobuf) has its argument on the stack; the third word
                // of it is the goroutine.
                let goroutine = memory::get::<u64>(call.stack + 8)
                    .and_then(|buffer| memory::get::<u64>(buffer + 16))
                    .unwrap_or(0);
                self.leave_goroutine(thread);
                let state = match self.goroutines.take(goroutine) {
                    Some(state) => state,
                    None => self.new_routine(thread.clock.clone()),
                };
                thread.between = Some(Self::exchange(thread, state));
                thread.goroutine = Some(goroutine);
            }
            GoCall::Schedule => self.leave_goroutine(thread),
            GoCall::Send => {
                self.objects.entry(first).clock.join(&thread.clock);
                thread.advance();
                follow = true;
            }
            GoCall::Receive => {
                self.objects.entry(first).readers.join(&thread.clock);
                thread.advance();
                follow = true;
            }
            GoCall::Close | GoCall::SemaphoreRelease | GoCall::Release => {
                Self::release(thread, self.objects.entry(first));
            }
            GoCall::Select => {
                let (sends, receives) = (arguments[3], arguments[4]);
                for index in 0..sends.saturating_add(receives).min(65536) {
                    // scase: channel, element.
                    let Ok(channel) = memory::get::<u64>(first + 16 * index) else {
                        break;
                    };
                    let object = self.objects.entry(channel);
                    if index < sends {
                        object.clock.join(&thread.clock);
                    } else {
                        object.readers.join(&thread.clock);
                    }
                }
                thread.advance();
                follow = true;
            }
            GoCall::New
            | GoCall::SemaphoreAcquire
            | GoCall::Acquire
            | GoCall::Allocate
            | GoCall::MoveStack => follow = true,
            GoCall::MapRead | GoCall::MapWrite => {
                let write = called == GoCall::MapWrite;
                if arguments[1] != 0 {
                    let access = Access {
                        moment: call.moment,
                        order: call.order,
                        pc: call.caller,
                        address: arguments[1],
                        size: 8,
                        read: !write,
                        write,
                        meaning: Meaning::Plain,
                    };
                    self.checker.access(&access, thread, &self.heap);
                }
            }
        }
        if follow {
            if self.code.follow(call.caller, Known::GoReturn) {
                self.more_hooks.push(call.caller);
            }
            // Frames that a panic left behind do not pile up.
            if thread.pending.len() >= 256 {
                thread.pending.remove(0);
            }
            thread.pending.push(Pending {
                back: call.caller,
                call: called,
                arguments,
            });
        }
    }

    /// Control is where such a function returns to.
    fn go_returned(&mut self, registers: &Registers, thread: &mut Thread, call: &Call) {
        let Some(index) = thread
            .pending
            .iter()
            .rposition(|pending| pending.back == registers.rip)
        else {
            return;
        };
        let pending = thread.pending[index];
        thread.pending.truncate(index);
        let [first, _, _, sends, _] = pending.arguments;
        let result = registers.gpr[reg::RAX];
        match pending.call {
            GoCall::New => {
                let clock = thread.clock.clone();
                thread.advance();
                let routine = self.new_routine(clock);
                self.renew_go_stack(result);
                if let Some(old) = self.goroutines.take(result) {
                    self.idle_slots.push((old.slot, old.clock.get(old.slot)));
                }
                self.goroutines.park(result, routine);
            }
            GoCall::Send => thread.acquire(&self.objects.entry(first).readers),
            GoCall::Receive | GoCall::SemaphoreAcquire | GoCall::Acquire => {
                thread.acquire(&self.objects.entry(first).clock);
            }
            GoCall::Select => {
                if let Ok(channel) = memory::get::<u64>(first.wrapping_add(16 * result))
                    && (result as i64) >= 0
                {
                    let object = self.objects.entry(channel);
                    thread.acquire(if result < sends {
                        &object.readers
                    } else {
                        &object.clock
                    });
                }
            }
            GoCall::Allocate if result != 0 => {
                self.renew(result..result.saturating_add(first));
                self.heap.allocate(Block {
                    start: result,
                    size: first,
                    moment: call.moment,
                    order: call.order,
                    by_library: false,
                });
            }
            GoCall::MoveStack => self.renew_go_stack(first),
            _ => {}
        }
    }

    fn start_thread(&mut self, number: u32, parent: Option<u32>, moment: Moment) {
        let order = self.next_order();
        let mut clock = VectorClock::default();
        let mut name = None;
        if let Some(parent) = parent {
            let mut creator = self.take(parent);
            clock = creator.clock.clone();
            name = creator.name.clone();
            creator.advance();
            self.put(creator);
        }
        let (slot, tick) = match self.idle_slot(&clock) {
            Some(idle) => idle,
            None => {
                if self.slots + 1 >= SLOTS {
                    // Threads beyond share the last slot: their races with
                    // one another are missed, none is made up.
                    self.not_checked.push(format!(
                        "more than {SLOTS} threads at once: races among those beyond were not looked for"
                    ));
                    self.slots = SLOTS - 2;
                }
                self.slots += 1;
                ((self.slots - 1) as Slot, 1)
            }
        };
        let tick = tick.max(clock.get(slot) + 1);
        clock.set(slot, tick);
        let index = number as usize;
        if self.threads.len() <= index {
            self.threads.resize_with(index + 1, || None);
        }
        self.threads[index] = Some(Box::new(Thread {
            number,
            slot,
            clock,
            epoch: Epoch::new(slot, tick),
            held: Vec::new(),
            name,
            created: parent.map(|_| (moment, order)),
            stack: None,
            local: 0..0,
            calls: Vec::new(),
            inside: 0,
            task: Current::default(),
            suspended: Vec::new(),
            creating: None,
            goroutine: None,
            between: None,
            pending: Vec::new(),
        }));
    }

    /// Everything the thread did so far happens before what follows an
    /// acquire of the object.
    fn release(thread: &mut Thread, object: &mut Object) {
        object.clock.join(&thread.clock);
        thread.advance();
    }

    /// An access the fast check did not know.
    fn slow(&mut self, event: &AccessEvent, thread: &mut Thread) {
        let origin = self.code.origin(event.pc);
        match origin {
            Origin::Linker => return,
            Origin::CLibrary if self.is_library_memory(event.address, thread) => return,
            Origin::GoRuntime => return,
            Origin::GoSync if !event.locked && self.words.get(event.address & !3).is_none() => {
                return;
            }
            Origin::GoSync if !event.locked => return self.synchronise(event, thread),
            Origin::Threading if thread.hands_out_tasks() => return,
            Origin::Threading => return self.synchronise(event, thread),
            _ => {}
        }
        if let Some(only_library) = self.guards.get(&(event.address & !3))
            && (!only_library || origin == Origin::CLibrary)
        {
            return self.synchronise(event, thread);
        }
        let order = self.next_order();
        let mut access = Access {
            moment: event.moment,
            order,
            pc: event.pc,
            address: event.address,
            size: u64::from(event.size),
            read: event.read,
            write: event.write,
            meaning: Meaning::Plain,
        };
        let mut released = event.locked;
        if event.locked {
            self.locked(event, thread, &mut access);
        } else if event.size <= 16 {
            released = self.plain(event, thread, &mut access);
        }
        self.checker.access(&access, thread, &self.heap);
        if released {
            thread.advance();
        }
    }

    /// Memory that the C library uses for itself.
    fn is_library_memory(&mut self, address: u64, thread: &Thread) -> bool {
        if let Some(block) = self.heap.find(address) {
            return block.by_library;
        }
        thread.local.contains(&address)
            || self.break_area.contains(&address)
            || self
                .library_maps
                .range(..=address)
                .next_back()
                .is_some_and(|(start, size)| address < start + size)
            || self.code.is_library_data(address)
    }

    /// An access that is nothing but synchronisation.
    fn synchronise(&mut self, event: &AccessEvent, thread: &mut Thread) {
        self.checker.synchronised(event.address, event.size);
        let mut released = false;
        for word in words_of(event.address, event.size) {
            if event.read
                && let Some(object) = self.words.get(word)
            {
                thread.acquire(&object.clock);
            }
            if event.write {
                let object = self.words.entry(word);
                object.clock.join(&thread.clock);
                released = true;
            }
        }
        if released {
            thread.advance();
        }
    }

    /// Rule 3: acquire and release, unless debug info says relaxed.
    fn locked(&mut self, event: &AccessEvent, thread: &mut Thread, access: &mut Access) {
        let (mut acquires, mut releases) = (true, event.write);
        access.meaning = Meaning::Atomic {
            order_unknown: false,
        };
        if let Some(atomic) = self.atomic_by_source(event)
            && !atomic.acquires
            && !atomic.releases
        {
            (acquires, releases) = (false, false);
        }
        for word in words_of(event.address, event.size) {
            let object = self.words.entry(word);
            if !object.locked_by.contains(&thread.number) {
                object.locked_by.push(thread.number);
            }
            if acquires {
                thread.acquire(&object.clock);
            }
            if releases {
                object.clock.join(&thread.clock);
            }
        }
    }

    /// A plain instruction: rules 3 and 4 decide whether it is more.
    /// Returns whether it released.
    fn plain(&mut self, event: &AccessEvent, thread: &mut Thread, access: &mut Access) -> bool {
        let word = event.address & !3;
        let object = self.words.get(word);
        if object.is_none() && !self.checker.is_exact() {
            return false;
        }
        let locked = object.is_some_and(|object| !object.locked_by.is_empty());
        let locked_by_me = object.is_some_and(|object| object.locked_by.contains(&thread.number));
        let atomic = self.atomic_by_source(event);
        let (acquires, releases, order_unknown) = match atomic {
            Some(atomic) => (atomic.acquires, atomic.releases, atomic.order_unknown),
            None if self.is_atomic_variable(event.address) => (true, true, true),
            // A spin unlock.
            None if locked_by_me && event.write && !event.read => (false, true, false),
            // A spin, or a check.
            None if locked && event.read && !event.write && self.code.feeds_branch(event.pc) => {
                (true, false, false)
            }
            None => return false,
        };
        access.meaning = Meaning::Atomic { order_unknown };
        for word in words_of(event.address, event.size) {
            if event.read
                && acquires
                && let Some(object) = self.words.get(word)
            {
                thread.acquire(&object.clock);
            }
            if event.write && releases {
                self.words.entry(word).clock = thread.clock.clone();
            }
        }
        event.write && releases
    }

    /// Rule 4, from debug info or else the source text.
    fn atomic_by_source(&mut self, event: &AccessEvent) -> Option<Atomic> {
        self.code.atomic(event.pc).or_else(|| {
            self.code
                .atomic_in_source(event.pc, (event.read, event.write), event.address)
        })
    }

    fn is_atomic_variable(&self, address: u64) -> bool {
        self.checker.is_exact()
            && self
                .code
                .modules
                .variable_at(address)
                .is_some_and(|variable| variable.atomic)
    }

    /// The memory is new: nothing that happened there before matters.
    fn renew(&mut self, range: Range<u64>) {
        self.words.forget(range.clone());
        self.objects.forget(range.clone());
        self.checker.clear(range);
    }

    fn free_block(&mut self, call: &Call, start: u64, thread: &Thread) {
        let Some(block) = self.heap.find(start).copied() else {
            return;
        };
        if block.start != start {
            return;
        }
        // What a run-time frees it has allocated itself, and orders its uses
        // by means of its own.
        let by_runtime = self.code.origin(call.caller) == Origin::Threading;
        if !block.by_library && !by_runtime && block.size > 0 {
            let access = Access {
                moment: call.moment,
                order: call.order,
                pc: call.function,
                address: start,
                size: block.size,
                read: false,
                write: true,
                meaning: Meaning::Free,
            };
            self.checker.access(&access, thread, &self.heap);
        }
        self.heap.free(start);
        self.tasks.forget(start);
        let range = start..start + block.size;
        self.words.forget(range.clone());
        self.objects.forget(range);
    }

    fn allocate(&mut self, call: &Call, start: u64, size: u64, thread: &Thread) {
        if start == 0 {
            return;
        }
        // An allocator above another one (operator new, reallocarray) gives
        // out the block it got: the outermost call is the user's.
        let outermost = thread
            .calls
            .iter()
            .find(|outer| outer.known.is_allocator() || outer.known == Known::AllocatesForCaller)
            .unwrap_or(call);
        let by_library = outermost.known != Known::AllocatesForCaller
            && self.code.origin(outermost.caller) == Origin::CLibrary;
        let (moment, order) = (outermost.moment, outermost.order);
        self.renew(start..start + size);
        if let Some(task) = &thread.creating {
            self.tasks.wait_in(start, task.clone());
        }
        self.heap.allocate(Block {
            start,
            size,
            moment,
            order,
            by_library,
        });
    }

    fn acquire_lock(&mut self, thread: &mut Thread, address: u64, kind: LockKind, call: &Call) {
        let object = self.objects.entry(address);
        thread.acquire(&object.clock);
        if kind != LockKind::Read {
            thread.acquire(&object.readers);
        }
        match thread.held.iter_mut().find(|held| held.address == address) {
            Some(held) => held.times += 1,
            None => {
                self.checker.lock(LockEvent::Locking {
                    thread,
                    address,
                    moment: call.moment,
                    order: call.order,
                });
                thread.held.push(Held {
                    address,
                    kind,
                    moment: call.moment,
                    order: call.order,
                    times: 1,
                });
                self.owners.entry(address).or_default().push(thread.number);
            }
        }
    }

    fn release_lock(&mut self, thread: &mut Thread, address: u64, call: &Call) {
        let mut shared = false;
        match thread.held.iter().position(|held| held.address == address) {
            Some(index) => {
                shared = thread.held[index].kind == LockKind::Read;
                thread.held[index].times -= 1;
                if thread.held[index].times == 0 {
                    thread.held.remove(index);
                    if let Some(owners) = self.owners.get_mut(&address) {
                        owners.retain(|owner| *owner != thread.number);
                    }
                }
            }
            // glibc's pthread_spin_init and pthread_spin_unlock are one
            // function: an unlock that nobody locked may be an initialisation.
            None if call.known == Known::SpinUnlock => {}
            None => {
                let owner = self
                    .owners
                    .get(&address)
                    .and_then(|owners| owners.first().copied());
                self.checker.lock(LockEvent::NotHeld {
                    address,
                    owner,
                    moment: call.moment,
                    order: call.order,
                });
            }
        }
        let object = self.objects.entry(address);
        if shared {
            object.readers.join(&thread.clock);
        } else {
            object.clock.join(&thread.clock);
        }
        thread.advance();
    }

    /// A use of a mutex, barrier and so on reads it; making and ending it
    /// writes it: a lock that is made while another thread takes it guards
    /// nothing.
    fn use_object(&mut self, call: &Call, thread: &Thread, (writes, size): (bool, u64)) {
        let address = call.arguments[0];
        if self
            .checker
            .is_known(address, size as u32, writes, thread.epoch)
            || self.code.origin(call.caller) != Origin::Program
        {
            return;
        }
        let access = Access {
            moment: call.moment,
            order: call.order,
            pc: call.function,
            address,
            size,
            read: !writes,
            write: writes,
            meaning: Meaning::Plain,
        };
        self.checker.access(&access, thread, &self.heap);
    }

    fn entered(&mut self, call: &mut Call, thread: &mut Thread) {
        let [first, second, third, _] = call.arguments;
        if let Some(object) = call.known.object() {
            self.use_object(call, thread, object);
        }
        match call.known {
            Known::MutexInit => self.objects.forget(first..first + 1),
            Known::MutexDestroy => {
                if let Some(owner) = self
                    .owners
                    .get(&first)
                    .and_then(|owners| owners.first().copied())
                {
                    self.checker.lock(LockEvent::DestroyedHeld {
                        address: first,
                        owner,
                        moment: call.moment,
                        order: call.order,
                    });
                }
            }
            Known::MutexUnlock | Known::SpinUnlock | Known::RwUnlock | Known::StreamUnlock => {
                self.release_lock(thread, first, call);
            }
            Known::CondWait => self.release_lock(thread, second, call),
            Known::CondSignal | Known::SemaphorePost => {
                Self::release(thread, self.objects.entry(first));
            }
            Known::BarrierInit => {
                self.objects.entry(first).barrier = Some(Barrier::new(third));
            }
            Known::BarrierWait => {
                let barrier = self
                    .objects
                    .entry(first)
                    .barrier
                    .get_or_insert_with(|| Barrier::new(1));
                call.cycle = barrier.arrive(&thread.clock);
                thread.advance();
            }
            Known::Once => {
                self.guards.insert(first & !3, true);
            }
            Known::GuardAcquire => {
                self.guards.insert(first & !3, false);
            }
            Known::GuardRelease => {
                Self::release(thread, self.objects.entry(first));
                Self::release(thread, self.words.entry(first & !3));
            }
            Known::SetName => {
                let name = memory::read_c_string(second, 16).unwrap_or_default();
                let name = Some(String::from_utf8_lossy(&name).into_owned());
                match self.by_pointer.get(&first).copied() {
                    Some(number) if number != thread.number => {
                        let mut named = self.take(number);
                        named.name = name;
                        self.put(named);
                    }
                    _ => thread.name = name,
                }
            }
            Known::Free => self.free_block(call, first, thread),
            Known::NamelessUnlock(number) => {
                self.release_lock(thread, nameless_lock(number), call);
            }
            Known::OrderedEnd => Self::release(thread, self.objects.entry(ORDERED)),
            Known::TaskCreate | Known::TaskLoop => {
                if self.code.follow(first, Known::TaskBody) {
                    self.more_hooks.push(first);
                }
                if call.known == Known::TaskLoop {
                    self.open_group(thread);
                }
                let task = self.tasks.created(
                    &thread.task,
                    &thread.clock,
                    match call.known {
                        Known::TaskCreate => Some(call.stack),
                        _ => None,
                    },
                );
                thread.creating = Some(task);
            }
            Known::TaskBody => {
                call.cycle = 0;
                let waiting = self
                    .heap
                    .find(first)
                    // A task without data points behind its block.
                    .or_else(|| self.heap.find(first.wrapping_sub(1)))
                    .map(|block| block.start)
                    .and_then(|block| self.tasks.begin(block));
                match waiting {
                    Some(task) => {
                        call.cycle = 1;
                        self.begin_task(task, thread, call.stack);
                    }
                    // At once, inside its creation.
                    None => {
                        if let Some(task) = thread.creating.take() {
                            let clock = self.tasks.clock_after(&task);
                            thread.acquire(&clock);
                        }
                    }
                }
            }
            Known::TaskGroupStart => self.open_group(thread),
            Known::Connect => self.channels.send(SOCKETS, thread),
            Known::SignalHandler => {
                let clock = self.objects.entry(SIGNALS).clock.clone();
                thread.acquire(&clock);
            }
            _ => {}
        }
    }

    fn open_group(&mut self, thread: &mut Thread) {
        let group = self.tasks.next_id();
        thread.task.groups.push(group);
    }

    fn close_group(&mut self, thread: &mut Thread) {
        if let Some(group) = thread.task.groups.pop()
            && let Some(clock) = self.tasks.group(group)
        {
            thread.acquire(clock);
        }
    }

    fn left(&mut self, call: &Call, thread: &mut Thread, result: u64) {
        let [first, second, ..] = call.arguments;
        // EOWNERDEAD: the lock is taken all the same.
        let taken = matches!(result as i32, 0 | libc::EOWNERDEAD);
        match call.known {
            Known::MutexLock if taken => self.acquire_lock(thread, first, LockKind::Mutex, call),
            Known::SpinLock if taken => self.acquire_lock(thread, first, LockKind::Spin, call),
            Known::ReadLock if taken => self.acquire_lock(thread, first, LockKind::Read, call),
            Known::WriteLock if taken => self.acquire_lock(thread, first, LockKind::Write, call),
            Known::StreamLock if taken => self.acquire_lock(thread, first, LockKind::Stream, call),
            Known::CondWait => {
                self.acquire_lock(thread, second, LockKind::Mutex, call);
                if taken {
                    let clock = self.objects.entry(first).clock.clone();
                    thread.acquire(&clock);
                }
            }
            Known::SemaphoreWait if taken => {
                let clock = self.objects.entry(first).clock.clone();
                thread.acquire(&clock);
            }
            Known::BarrierWait => {
                if let Some(barrier) = &mut self.objects.entry(first).barrier {
                    let clock = barrier.leave(call.cycle);
                    thread.acquire(&clock);
                }
            }
            Known::GuardAcquire => {
                if let Some(object) = self.objects.get(first) {
                    let clock = object.clock.clone();
                    thread.acquire(&clock);
                }
            }
            Known::Join if result as i32 == 0 => {
                if let Some(number) = self.by_pointer.get(&first)
                    && let Some(joined) = self.thread_state(*number)
                {
                    let clock = joined.clock.clone();
                    thread.acquire(&clock);
                }
            }
            Known::VoidLock => self.acquire_lock(thread, first, LockKind::Mutex, call),
            Known::TestLock if result as i32 != 0 => {
                self.acquire_lock(thread, first, LockKind::Mutex, call);
            }
            Known::NamelessLock(number) => {
                self.acquire_lock(thread, nameless_lock(number), LockKind::Critical, call);
            }
            Known::OrderedStart => {
                let clock = self.objects.entry(ORDERED).clock.clone();
                thread.acquire(&clock);
            }
            Known::ThreadNumber if !thread.suspended.is_empty() => {
                // Tasks that go by the number of their thread share what
                // belongs to it, one after the other.
                thread.acquire(&self.objects.entry(numbered(thread.number)).clock);
                if let Some(suspended) = thread.suspended.last_mut() {
                    suspended.knows_thread = true;
                }
            }
            Known::TeamBarrier => thread.clock.join(&self.tasks.all),
            Known::TaskCreate => {
                thread.creating = None;
                thread.advance();
            }
            Known::TaskLoop => {
                thread.creating = None;
                thread.advance();
                // The flags are the sixth argument: kept in `cycle`.
                if tasks::loop_waits(call.cycle) {
                    self.close_group(thread);
                } else {
                    thread.task.groups.pop();
                }
            }
            Known::TaskBody if call.cycle == 1 => self.end_task(thread),
            Known::TaskWait => {
                if let Some(clock) = self.tasks.children_of(thread.task.id) {
                    thread.clock.join(clock);
                }
            }
            Known::TaskWaitDepend => {
                let clock = self.tasks.awaited(&thread.task, first);
                thread.acquire(&clock);
            }
            Known::TaskGroupEnd => self.close_group(thread),
            Known::Malloc => self.allocate(call, result, first, thread),
            Known::Calloc => {
                self.allocate(call, result, first.saturating_mul(second), thread);
            }
            Known::AlignedAlloc => self.allocate(call, result, second, thread),
            Known::PosixMemalign if result as i32 == 0 => {
                let start = memory::get::<u64>(first).unwrap_or(0);
                self.allocate(call, start, call.arguments[2], thread);
            }
            Known::Realloc | Known::ReallocArray if result != 0 => {
                let size = if call.known == Known::Realloc {
                    second
                } else {
                    second.saturating_mul(call.arguments[2])
                };
                self.reallocate(call, first, result, size, thread);
            }
            _ => {}
        }
    }

    fn reallocate(&mut self, call: &Call, old: u64, new: u64, size: u64, thread: &Thread) {
        if old != new {
            self.free_block(call, old, thread);
            return self.allocate(call, new, size, thread);
        }
        // Grown or shrunk in place: what is kept keeps its past.
        let Some(block) = self.heap.free(old) else {
            return self.allocate(call, new, size, thread);
        };
        if size > block.size {
            self.renew(old + block.size..old + size);
        }
        self.heap.allocate(Block { size, ..block });
    }

    fn annotated(&mut self, known: Known, arguments: &[u64; 4], thread: &mut Thread, call: &Call) {
        let at = |position: u8| arguments.get(usize::from(position)).copied().unwrap_or(0);
        match known {
            Known::HappensBefore(position) => {
                Self::release(thread, self.objects.entry(at(position)));
            }
            Known::HappensAfter(position) => {
                if let Some(object) = self.objects.get(at(position)) {
                    let clock = object.clock.clone();
                    thread.acquire(&clock);
                }
            }
            Known::HappensForget(position) => {
                let address = at(position);
                self.objects.forget(address..address + 1);
            }
            Known::LockAcquired(position) => {
                self.acquire_lock(thread, at(position), LockKind::Annotated, call);
            }
            Known::LockReleased(position) => self.release_lock(thread, at(position), call),
            Known::ClientRequest => self.client_request(thread, call),
            _ => {}
        }
    }

    /// Rule 0: what the program says through Valgrind's client requests.
    fn client_request(&mut self, thread: &mut Thread, call: &Call) {
        let Ok(words) = memory::get::<[u64; 4]>(call.arguments[0]) else {
            return;
        };
        let [number, first, second, _] = words;
        let arguments = [first, second, 0, 0];
        let known = match number {
            request::HAPPENS_BEFORE => Known::HappensBefore(0),
            request::HAPPENS_AFTER => Known::HappensAfter(0),
            request::FORGET => Known::HappensForget(0),
            request::LOCK_ACQUIRED => Known::LockAcquired(0),
            request::LOCK_RELEASED => Known::LockReleased(0),
            request::CLEAN_MEMORY => {
                return self.renew(first..first.saturating_add(second));
            }
            _ => return,
        };
        self.annotated(known, &arguments, thread, call);
    }

    /// Edges and facts that system calls give.
    fn system_call(&mut self, event: &SyscallEvent, thread: &mut Thread) {
        let [first, second, _, fourth, fifth, _] = event.arguments;
        if event.result < 0 {
            return;
        }
        let result = event.result as u64;
        match event.number as i64 {
            libc::SYS_mmap if fourth as i32 & libc::MAP_STACK != 0 => {
                self.stacks.insert(result, second);
            }
            libc::SYS_mmap if thread.inside > 0 => {
                self.library_maps.insert(result, second);
            }
            libc::SYS_brk if result > 0 => {
                let start = match self.break_area.start {
                    0 => result,
                    start => start.min(result),
                };
                self.break_area = start..self.break_area.end.max(result);
            }
            libc::SYS_clone => self.cloned(second, fifth),
            libc::SYS_clone3 => {
                // struct clone_args: stack, stack_size, tls at 40, 48, 56.
                if let Ok([stack, size, pointer]) = memory::get::<[u64; 3]>(first + 40) {
                    self.cloned(stack.wrapping_add(size), pointer);
                }
            }
            libc::SYS_prctl if first as i32 == libc::PR_SET_NAME => {
                let name = memory::read_c_string(second, 16).unwrap_or_default();
                thread.name = Some(String::from_utf8_lossy(&name).into_owned());
            }
            libc::SYS_pipe | libc::SYS_pipe2 => self.paired(first),
            libc::SYS_socketpair => self.paired(fourth),
            libc::SYS_socket => {
                self.channels.by_descriptor.insert(result, SOCKETS);
            }
            libc::SYS_accept | libc::SYS_accept4 => {
                self.channels.by_descriptor.insert(result, SOCKETS);
                self.channels.receive(SOCKETS, thread);
            }
            libc::SYS_listen => self.channels.send(SOCKETS, thread),
            libc::SYS_epoll_create | libc::SYS_epoll_create1 => {
                let channel = self.new_channel();
                self.channels.by_descriptor.insert(result, channel);
            }
            libc::SYS_epoll_ctl => {
                if let Some(channel) = self.channels.by_descriptor.get(&first).copied() {
                    self.channels.send(channel, thread);
                }
            }
            libc::SYS_epoll_wait | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 if result > 0 => {
                if let Some(channel) = self.channels.by_descriptor.get(&first).copied() {
                    self.channels.receive(channel, thread);
                }
            }
            libc::SYS_rt_sigaction if second != 0 => {
                let handler = memory::get::<u64>(second).unwrap_or(0);
                // SIG_DFL and SIG_IGN are no addresses.
                if handler > 1 && self.code.follow(handler, Known::SignalHandler) {
                    self.more_hooks.push(handler);
                }
                Self::release(thread, self.objects.entry(SIGNALS));
            }
            libc::SYS_kill | libc::SYS_tkill | libc::SYS_tgkill | libc::SYS_rt_sigqueueinfo => {
                Self::release(thread, self.objects.entry(SIGNALS));
            }
            libc::SYS_eventfd | libc::SYS_eventfd2 => {
                let channel = self.new_channel();
                self.channels.by_descriptor.insert(result, channel);
            }
            libc::SYS_dup | libc::SYS_dup2 | libc::SYS_dup3 => self.duplicated(first, result),
            libc::SYS_fcntl if matches!(second as i32, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) => {
                self.duplicated(first, result);
            }
            libc::SYS_close => {
                self.channels.by_descriptor.remove(&first);
            }
            libc::SYS_write | libc::SYS_writev | libc::SYS_sendto | libc::SYS_sendmsg => {
                if let Some(channel) = self.channels.by_descriptor.get(&first).copied() {
                    self.channels.send(channel, thread);
                }
            }
            libc::SYS_read | libc::SYS_readv | libc::SYS_recvfrom | libc::SYS_recvmsg => {
                if let Some(channel) = self.channels.by_descriptor.get(&first).copied() {
                    self.channels.receive(channel, thread);
                }
            }
            _ => {}
        }
    }

    /// A descriptor that is used by one thread while another closes it may be
    /// somebody else's by then: using it reads it, closing it writes it.
    fn use_descriptor(&mut self, event: &SyscallEvent, order: u64, thread: &Thread, pc: u64) {
        let first = event.arguments[0];
        let number = event.number as i64;
        if event.result >= 0 {
            let made = event.result as u64;
            match number {
                libc::SYS_open
                | libc::SYS_openat
                | libc::SYS_creat
                | libc::SYS_socket
                | libc::SYS_accept
                | libc::SYS_accept4
                | libc::SYS_eventfd
                | libc::SYS_eventfd2
                | libc::SYS_epoll_create
                | libc::SYS_epoll_create1
                | libc::SYS_timerfd_create
                | libc::SYS_memfd_create => self.new_descriptor(made),
                libc::SYS_dup | libc::SYS_dup3 | libc::SYS_dup2 if made != first => {
                    self.new_descriptor(made);
                }
                libc::SYS_pipe | libc::SYS_pipe2 => {
                    if let Ok([one, other]) = memory::get::<[u32; 2]>(first) {
                        self.new_descriptor(one.into());
                        self.new_descriptor(other.into());
                    }
                }
                _ => {}
            }
        }
        let (used, write) = match number {
            libc::SYS_read
            | libc::SYS_write
            | libc::SYS_readv
            | libc::SYS_writev
            | libc::SYS_pread64
            | libc::SYS_pwrite64
            | libc::SYS_sendto
            | libc::SYS_recvfrom
            | libc::SYS_sendmsg
            | libc::SYS_recvmsg
            | libc::SYS_dup => (first, false),
            libc::SYS_close => (first, true),
            _ => return,
        };
        if event.result == -i64::from(libc::EBADF) && !write {
            return;
        }
        // A run-time's own threads agree about theirs.
        if used > 0xffff || thread.goroutine.is_some() {
            return;
        }
        if self.code.origin(pc) == Origin::Threading || thread.inside > 0 {
            return;
        }
        let access = Access {
            moment: Moment {
                count: event.moment.count.saturating_sub(1),
                ..event.moment
            },
            order,
            pc: pc.wrapping_sub(2),
            address: descriptor(used),
            size: 8,
            read: !write,
            write,
            meaning: Meaning::Plain,
        };
        self.checker.access(&access, thread, &self.heap);
    }

    fn new_descriptor(&mut self, number: u64) {
        let address = descriptor(number);
        self.checker.clear(address..address + 8);
    }

    fn new_channel(&mut self) -> u64 {
        self.channels.next += 1;
        self.channels.next
    }

    /// Two descriptors at `address`: what is written to one is read from the
    /// other (both share one channel: a little too much order for socket
    /// pairs, never too little).
    fn paired(&mut self, address: u64) {
        let Ok([one, other]) = memory::get::<[u32; 2]>(address) else {
            return;
        };
        let channel = self.new_channel();
        self.channels.by_descriptor.insert(u64::from(one), channel);
        self.channels
            .by_descriptor
            .insert(u64::from(other), channel);
    }

    fn duplicated(&mut self, from: u64, to: u64) {
        match self.channels.by_descriptor.get(&from).copied() {
            Some(channel) => {
                self.channels.by_descriptor.insert(to, channel);
            }
            None => {
                self.channels.by_descriptor.remove(&to);
            }
        }
    }

    /// The thread that just started has this stack and thread pointer: its
    /// stack may have been another thread's before.
    fn cloned(&mut self, stack_top: u64, pointer: u64) {
        let Some(number) = self.last_started.take() else {
            return;
        };
        self.by_pointer.insert(pointer, number);
        let stack = self
            .stacks
            .range(..stack_top)
            .next_back()
            .map(|(start, size)| *start..*start + *size)
            .filter(|stack| stack_top <= stack.end);
        if let Some(stack) = &stack {
            // Above the first frame lie the thread's descriptor and TLS,
            // which its creator has just filled in, unseen.
            self.renew(stack.clone());
        }
        let mut thread = self.take(number);
        thread.local = stack_top..stack.as_ref().map_or(stack_top, |stack| stack.end);
        thread.stack = stack;
        self.put(thread);
    }
}

/// What stands for the address of a lock that has none.
fn nameless_lock(number: u8) -> u64 {
    u64::from(number)
}

/// And for signals: what is done before one is sent, or its handler
/// installed, happens before the handler runs.
const SIGNALS: u64 = 24;

/// And for descriptors.
fn descriptor(number: u64) -> u64 {
    (1 << 20) + 8 * (number & 0xffff)
}

/// The descriptor that such an address stands for.
pub fn descriptor_at(address: u64) -> Option<u64> {
    let range = descriptor(0)..descriptor(0xffff) + 8;
    range
        .contains(&address)
        .then(|| (address - range.start) / 8)
}

/// And for the number of a thread.
fn numbered(thread: u32) -> u64 {
    64 + u64::from(thread)
}

/// And for the order of `ordered` regions.
const ORDERED: u64 = 16;

/// Takes a range out of a set of ranges (start, size).
fn cut(ranges: &mut BTreeMap<u64, u64>, gone: &Range<u64>) {
    let touched: Vec<(u64, u64)> = ranges
        .range(..gone.end)
        .filter(|(start, size)| *start + *size > gone.start)
        .map(|(start, size)| (*start, *size))
        .collect();
    for (start, size) in touched {
        ranges.remove(&start);
        if start < gone.start {
            ranges.insert(start, gone.start - start);
        }
        if start + size > gone.end {
            ranges.insert(gone.end, start + size - gone.end);
        }
    }
}

/// The four-byte words that an access touches.
fn words_of(address: u64, size: u32) -> impl Iterator<Item = u64> {
    let first = address & !3;
    (first..address.saturating_add(u64::from(size))).step_by(4)
}

impl<C: Checker + 'static> Observer for Engine<C> {
    fn interest(&self) -> Interest {
        let wanted = self.checker.wants_accesses();
        Interest {
            accesses: wanted,
            only_unknown: wanted,
        }
    }

    fn known_by(&self, thread: u32) -> Compare {
        self.thread_state(thread)
            .map_or(Compare::Nothing, |thread| {
                self.checker.known_by(thread.epoch)
            })
    }

    fn begins_epoch(&mut self, pc: u64) -> bool {
        self.code.origin(pc) == Origin::Threading
    }

    fn accesses(&mut self, batch: &[AccessEvent]) {
        let Some(first) = batch.first() else {
            return;
        };
        let mut thread = self.take(first.moment.thread);
        if thread.inside == 0 {
            for event in batch {
                let write = event.write;
                if !event.locked
                    && self
                        .checker
                        .is_known(event.address, event.size, write, thread.epoch)
                {
                    continue;
                }
                self.slow(event, &mut thread);
            }
        }
        self.put(thread);
    }

    fn kernel_access(&mut self, moment: Moment, address: u64, size: u64, write: bool) {
        let thread = self.take(moment.thread);
        let skipped = thread.inside > 0
            || self.is_library_memory(address, &thread)
            || self.guards.contains_key(&(address & !3))
            || self.words.get(address & !3).is_some();
        if !skipped {
            let access = Access {
                moment,
                order: self.next_order(),
                pc: 0,
                address,
                size,
                read: !write,
                write,
                meaning: Meaning::Plain,
            };
            self.checker.access(&access, &thread, &self.heap);
        }
        self.put(thread);
    }

    fn syscall(&mut self, event: &SyscallEvent, registers: &Registers) {
        let order = self.next_order();
        let mut thread = self.take(event.moment.thread);
        self.use_descriptor(event, order, &thread, registers.rip);
        self.system_call(event, &mut thread);
        self.put(thread);
    }

    fn thread(&mut self, moment: Moment, event: ThreadEvent) {
        match event {
            ThreadEvent::Started { thread, parent } => {
                self.start_thread(thread, Some(parent), moment);
                self.last_started = Some(thread);
            }
            ThreadEvent::Exited { thread } => {
                let mut thread = self.take(thread);
                thread.calls.clear();
                thread.inside = 0;
                while !thread.suspended.is_empty() {
                    self.end_task(&mut thread);
                }
                self.idle_slots
                    .push((thread.slot, thread.clock.get(thread.slot)));
                self.put(thread);
            }
            ThreadEvent::FutexWake { waker, woken, .. } => {
                let mut from = self.take(waker);
                if from.inside == 0
                    && !from.hands_out_tasks()
                    && from.goroutine.is_none()
                    && waker != woken
                {
                    let mut to = self.take(woken);
                    to.acquire(&from.clock);
                    self.put(to);
                    from.advance();
                }
                self.put(from);
            }
            ThreadEvent::Switched { .. } => {}
        }
    }

    fn code_mapped(&mut self, range: Range<u64>, path: &Path, offset: u64) -> Vec<u64> {
        self.code.mapped(range, path, offset)
    }

    fn unmapped(&mut self, _moment: Moment, range: Range<u64>) {
        self.code.unmapped(range.clone());
        cut(&mut self.stacks, &range);
        cut(&mut self.library_maps, &range);
        self.renew(range);
    }

    fn hook(&mut self, moment: Moment, registers: &Registers) -> AfterHook {
        let Some(known) = self.code.known_at(registers.rip) else {
            return AfterHook::Nothing;
        };
        let gpr = &registers.gpr;
        let stack = gpr[reg::RSP];
        let order = self.next_order();
        let mut thread = self.take(moment.thread);
        if thread.local.is_empty() {
            thread.local = tasks::main_thread_locals(registers.fs_base);
        }
        // Calls below the stack pointer were left some other way (a
        // cancellation, a longjmp).
        while thread.calls.last().is_some_and(|call| call.stack < stack) {
            if let Some(call) = thread.calls.pop()
                && call.counts
            {
                thread.inside -= 1;
            }
        }
        let mut call = Call {
            known,
            function: registers.rip,
            stack,
            arguments: [gpr[reg::RDI], gpr[reg::RSI], gpr[reg::RDX], gpr[reg::RCX]],
            cycle: gpr[reg::R9],
            caller: memory::get::<u64>(stack).unwrap_or(0),
            moment,
            order,
            counts: !known.calls_back(),
        };
        let follow = match known {
            Known::HappensBefore(_)
            | Known::HappensAfter(_)
            | Known::HappensForget(_)
            | Known::LockCreate(_)
            | Known::LockAcquired(_)
            | Known::LockReleased(_) => {
                let arguments = call.arguments;
                self.annotated(known, &arguments, &mut thread, &call);
                false
            }
            Known::ClientRequest => {
                call.arguments[0] = gpr[reg::RAX];
                self.annotated(known, &[0; 4], &mut thread, &call);
                false
            }
            Known::Go(called) => {
                self.go_call(called, registers, &mut thread, &call);
                false
            }
            Known::GoReturn => {
                self.go_returned(registers, &mut thread, &call);
                false
            }
            // What one known function does inside another is its own
            // affair; memory comes and goes all the same.
            _ if thread.inside > 0 && !known.is_allocator() => false,
            _ => {
                let nested = thread.calls.iter().any(|call| call.known.is_allocator());
                if !(nested && known == Known::Free) {
                    self.entered(&mut call, &mut thread);
                }
                true
            }
        };
        if follow {
            if call.counts {
                thread.inside += 1;
            }
            thread.calls.push(call);
        }
        self.put(thread);
        if follow {
            AfterHook::TellReturn
        } else {
            AfterHook::Nothing
        }
    }

    fn more_hooks(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.more_hooks)
    }

    fn returned(&mut self, moment: Moment, function: u64, registers: &Registers) {
        self.next_order();
        let mut thread = self.take(moment.thread);
        if let Some(index) = thread
            .calls
            .iter()
            .rposition(|call| call.function == function)
        {
            let call = thread.calls[index];
            for gone in thread.calls.drain(index..) {
                if gone.counts {
                    thread.inside -= 1;
                }
            }
            self.left(&call, &mut thread, registers.gpr[reg::RAX]);
        }
        self.put(thread);
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_range_is_kept() {
        let mut ranges = BTreeMap::from([(0x1000, 0x3000), (0x8000, 0x1000)]);
        cut(&mut ranges, &(0x2000..0x3000));
        assert_eq!(
            ranges,
            BTreeMap::from([(0x1000, 0x1000), (0x3000, 0x1000), (0x8000, 0x1000)])
        );
        cut(&mut ranges, &(0x0..0x1800));
        assert_eq!(ranges.get(&0x1800), Some(&0x800));
    }

    #[test]
    fn an_unaligned_word_touches_its_neighbour() {
        assert_eq!(words_of(0x1002, 4).collect::<Vec<_>>(), [0x1000, 0x1004]);
        assert_eq!(words_of(0x1000, 1).collect::<Vec<_>>(), [0x1000]);
    }
}
