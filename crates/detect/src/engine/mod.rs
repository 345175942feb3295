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

mod accesses;
mod calls;
mod channels;
mod held;
mod kernel;
mod routines;

use crate::added_lock::{AddedLock, Inside, Passing};
use crate::clock::{Epoch, SLOTS, Slot, VectorClock};
use crate::code::{Code, Origin};
use crate::fences::Edges;
use crate::golang::{Goroutines, Pending, Routine};
use crate::heap::Heap;
use crate::known::Known;
use crate::sync::Objects;
use crate::tasks;
use crate::tasks::{Current, Suspended, Task, Tasks};
use calls::{Call, cut};
use channels::Channels;
pub use channels::KernelEdges;
pub use held::{HeldLocks, HeldNames};
pub use kernel::descriptor_at;
use race::Moment;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;
use vm::context::{Registers, reg};
use vm::memory;
use vm::observe::known::{Compare, Told};
use vm::observe::{AccessEvent, AfterHook, Interest, Observer, SyscallEvent, ThreadEvent};

/// What orders two accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HappensBefore {
    /// The rules of synchronisation, exactly.
    #[default]
    VectorClock,
    /// Paper 000: every locked instruction, system call and call of a known
    /// function is a sequencer with a place in one total order; accesses race
    /// if the regions between sequencers that they lie in overlap. Orders
    /// more than synchronisation does, so it misses more; what it reports
    /// has really happened at the same time.
    Sequencer,
}

/// How an access is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Meaning {
    Plain,
    /// A locked instruction, or atomic by debug info.
    Atomic {
        order_unknown: bool,
    },
    /// A load that decides a branch, in code without debug info, where an
    /// atomic load looks the same: not told from one.
    Check,
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
    /// What is in order by ad hoc synchronisation only (rule 5).
    pub ad_hoc: VectorClock,
    /// The thread's own component of its clock.
    pub epoch: Epoch,
    pub held: HeldLocks,
    pub name: Option<String>,
    /// The call of clone, by the creator.
    pub created: Option<(Moment, u64)>,
    pub stack: Option<Range<u64>>,
    /// Descriptor and thread-local variables, above the stack proper.
    local: Range<u64>,
    calls: Vec<Call>,
    pub inside: u32,
    /// The OpenMP task it runs, what it did before, and the one it is
    /// creating.
    task: Current,
    suspended: Vec<Suspended>,
    creating: Option<Task>,
    /// The goroutine it runs, and what it was before.
    goroutine: Option<u64>,
    runs_goroutines: bool,
    between: Option<Routine>,
    pending: Vec<Pending>,
    /// How often it has asked not to look at its reads and its writes.
    ignores: [u32; 2],
    /// Memory orders that atomic operations out of line were last called with,
    /// by function.
    orders: FxHashMap<u64, Ordering>,
    /// What a compare-and-exchange under way has seen.
    learnt: VectorClock,
    /// What relaxed operations have seen: an acquire fence makes it known.
    seen: VectorClock,
    /// What was done before the last release fence: relaxed stores publish it.
    fenced: VectorClock,
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

    /// A stand-alone fence.
    fn fence(&mut self, edges: Edges) {
        if edges.acquires {
            self.clock.join(&self.seen);
        }
        if edges.releases {
            self.fenced = self.clock.clone();
            self.advance();
        }
    }

    /// Reads what an atomic operation has published.
    fn read(&mut self, clock: &VectorClock, acquires: bool) {
        match acquires {
            true => self.acquire(clock),
            false => self.seen.join(clock),
        }
    }

    /// The address is the thread's own, whatever task it runs. Goroutines have
    /// stacks of their own; calls that they make on the stack of the thread
    /// (into C) leave nothing there.
    pub fn is_local(&self, address: u64) -> bool {
        let stack = self.stack.as_ref().filter(|_| self.runs_goroutines);
        self.local.contains(&address) || stack.is_some_and(|stack| stack.contains(&address))
    }

    /// It is in a compare-and-exchange out of line, and what that learns
    /// depends on its success.
    fn is_exchanging(&self) -> bool {
        self.calls
            .last()
            .is_some_and(|call| matches!(call.known, Known::AtomicOperation(_)))
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
    /// Another lock than was there before, which may be held.
    Made { address: u64, held: bool },
    /// A lock is taken, waited for or only tried.
    Locking {
        thread: &'a Thread,
        address: u64,
        kind: LockKind,
        waits: bool,
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
    /// A condition or a barrier that a thread is blocked on is destroyed.
    DestroyedAwaited {
        address: u64,
        waiting: Option<u32>,
        moment: Moment,
        order: u64,
    },
    /// A thread ends and still holds the lock that it took there.
    EndedHolding {
        address: u64,
        thread: u32,
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
    fn known_by(&self, thread: &Thread) -> Compare;
    /// Only a few granules matter, by words other than zero.
    fn watches(&self) -> bool {
        false
    }
    /// Accesses matter at all.
    fn wants_accesses(&self) -> bool {
        true
    }
    /// Every access that gets this far is worth a look into debug info.
    fn is_exact(&self) -> bool;
    /// An earlier pass has seen atomic accesses to the word.
    fn is_used_atomically(&self, _address: u64) -> bool {
        false
    }
    fn access(&mut self, access: &Access, thread: &Thread, heap: &Heap);
    /// A plain access was nothing but synchronisation: all of them there are.
    fn synchronised(&mut self, _address: u64, _size: u32) {}
    /// The memory is new. Locks may be held there all the same.
    fn clear(&mut self, range: Range<u64>, is_held: &dyn Fn(u64) -> bool);
    fn lock(&mut self, _event: LockEvent<'_>) {}
    /// The word is a lock that the program has made itself.
    fn home_made_lock(&mut self, _word: u64) {}
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
    /// Memory on which races are meant, by the program's own word: start, size.
    meant: BTreeMap<u64, u64>,
    /// Words that carry edges by themselves, by address of four bytes.
    words: Objects,
    /// Words that any access synchronises by (guards of static variables),
    /// and those that only library code does (once controls).
    guards: FxHashMap<u64, bool>,
    /// Also accesses that are known already.
    pub tell_all: bool,
    /// There has been one thread only, and nothing that has tasks or routines:
    /// what it does happens before all that can ever race, so only what makes
    /// words atomic is looked at. Whether that has just ended.
    alone: bool,
    joined: bool,
    /// Threads by thread pointer (`pthread_t`).
    by_pointer: FxHashMap<u64, u32>,
    last_started: Option<u32>,
    stacks: BTreeMap<u64, u64>,
    /// Mappings that allocators and the C library made for themselves.
    library_maps: BTreeMap<u64, u64>,
    /// What `brk` gave: outside of blocks it is the allocator's.
    break_area: Range<u64>,
    channels: Channels,
    /// Threads that hold a lock, where any does.
    owners: FxHashMap<u64, Vec<u32>>,
    order: u64,
    mode: HappensBefore,
    /// Clocks of plain stores to racy words, for rule 5.
    stores: FxHashMap<u64, VectorClock>,
    tasks: Tasks,
    goroutines: Goroutines,
    more_hooks: Vec<u64>,
    added_lock: Option<(AddedLock, Inside)>,
    pub not_checked: Vec<String>,
}

impl<C: Checker> Engine<C> {
    pub fn new(checker: C, mode: HappensBefore) -> Self {
        let mut engine = Engine {
            checker,
            code: Code::default(),
            heap: Heap::default(),
            threads: Vec::new(),
            idle_slots: Vec::new(),
            slots: 0,
            objects: Objects::default(),
            meant: BTreeMap::new(),
            words: Objects::default(),
            guards: FxHashMap::default(),
            tell_all: false,
            alone: true,
            joined: false,
            by_pointer: FxHashMap::default(),
            last_started: None,
            stacks: BTreeMap::new(),
            library_maps: BTreeMap::new(),
            break_area: 0..0,
            channels: Channels::default(),
            owners: FxHashMap::default(),
            order: 0,
            mode,
            stores: FxHashMap::default(),
            tasks: Tasks::default(),
            goroutines: Goroutines::default(),
            more_hooks: Vec::new(),
            added_lock: None,
            not_checked: Vec::new(),
        };
        engine.start_thread(1, None, Moment::new(1, 0));
        engine
    }

    pub fn draw_kernel_edges(&mut self, edges: KernelEdges) {
        self.channels.edges = edges;
    }

    pub fn threads(&self) -> impl Iterator<Item = &Thread> {
        self.threads.iter().flatten().map(|thread| &**thread)
    }

    pub fn thread_state(&self, number: u32) -> Option<&Thread> {
        self.threads.get(number as usize)?.as_deref()
    }

    /// From here on there may be somebody else.
    fn is_joined(&mut self) {
        self.joined |= std::mem::take(&mut self.alone);
    }

    fn next_order(&mut self) -> u64 {
        self.order += 1;
        self.order
    }

    /// Draws the edges of a lock that the program does not have.
    pub fn add_lock(&mut self, lock: AddedLock) {
        self.more_hooks.extend(lock.instructions());
        self.added_lock = Some((lock, Inside::default()));
    }

    fn pass_added_lock(&mut self, number: u32, registers: &Registers) {
        let Some((lock, inside)) = &mut self.added_lock else {
            return;
        };
        let stack = registers.gpr[reg::RSP];
        let Some(passing) = lock.passes(inside, number, registers.rip, stack) else {
            return;
        };
        match passing {
            Passing::Enters => inside.enter(number, stack),
            Passing::Leaves => inside.leave(number),
        }
        let mut thread = self.take(number);
        let object = self.objects.entry(ADDED_LOCK);
        match passing {
            Passing::Enters => thread.acquire(&object.clock),
            Passing::Leaves => Self::release(&mut thread, object),
        }
        self.put(thread);
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
            ad_hoc: VectorClock::default(),
            epoch: Epoch::new(slot, tick),
            held: HeldLocks::default(),
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
            runs_goroutines: false,
            between: None,
            pending: Vec::new(),
            ignores: [0; 2],
            orders: FxHashMap::default(),
            learnt: VectorClock::default(),
            seen: VectorClock::default(),
            fenced: VectorClock::default(),
        }));
    }
}

/// And for the one order of sequencers.
const SEQUENCERS: u64 = 32;

/// The lock that the program does not have.
const ADDED_LOCK: u64 = 40;

/// And for the number of a thread.
fn numbered(thread: u32) -> u64 {
    64 + u64::from(thread)
}

impl<C: Checker + 'static> Observer for Engine<C> {
    fn interest(&self) -> Interest {
        let wanted = self.checker.wants_accesses();
        Interest {
            accesses: wanted,
            only_unknown: wanted && !self.tell_all,
            stack: false,
        }
    }

    fn known_by(&self, thread: u32) -> Compare {
        self.thread_state(thread)
            .filter(|thread| thread.ignores == [0; 2])
            .map_or(Compare::Nothing, |thread| self.checker.known_by(thread))
    }

    fn is_deaf(&self, thread: u32) -> bool {
        self.thread_state(thread)
            .is_some_and(|thread| thread.inside > 0)
    }

    fn watches(&self) -> bool {
        self.checker.watches()
    }

    fn told(&mut self, pc: u64) -> Told {
        match self.code.origin(pc) {
            Origin::Linker | Origin::GoRuntime => Told::Nothing,
            Origin::Threading | Origin::GoSync => Told::Always,
            _ if self.alone => Told::Locked,
            _ => Told::Unknown,
        }
    }

    fn tells_otherwise(&mut self) -> bool {
        std::mem::take(&mut self.joined)
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
            || self.alone
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
        self.sequencer(&mut thread);
        self.system_call(event, &mut thread);
        self.put(thread);
    }

    fn syscall_waits(&mut self, event: &SyscallEvent) {
        let mut thread = self.take(event.moment.thread);
        self.send_and_wait(event, &mut thread);
        self.put(thread);
    }

    fn thread(&mut self, moment: Moment, event: ThreadEvent) {
        match event {
            ThreadEvent::Started { thread, parent } => {
                self.start_thread(thread, Some(parent), moment);
                self.last_started = Some(thread);
                self.is_joined();
            }
            ThreadEvent::Exited { thread } => {
                let mut thread = self.take(thread);
                thread.calls.clear();
                thread.inside = 0;
                self.ends_holding(&mut thread);
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
        let exact = self.checker.is_exact();
        let hooks = self.code.mapped(range, path, offset, exact);
        let has_tasks = |pc: &u64| {
            let known = self.code.known_at(*pc);
            known.is_some_and(|known| known.hands_out_tasks() || matches!(known, Known::Go(_)))
        };
        if hooks.iter().any(has_tasks) {
            self.is_joined();
        }
        hooks
    }

    fn unmapped(&mut self, _moment: Moment, range: Range<u64>) {
        self.code.unmapped(range.clone());
        cut(&mut self.stacks, &range);
        cut(&mut self.library_maps, &range);
        self.renew(range);
    }

    fn hook(&mut self, moment: Moment, registers: &Registers) -> AfterHook {
        self.pass_added_lock(moment.thread, registers);
        let Some(known) = self.code.known_at(registers.rip) else {
            return AfterHook::Nothing;
        };
        let gpr = &registers.gpr;
        let stack = gpr[reg::RSP];
        let order = self.next_order();
        let mut thread = self.take(moment.thread);
        if thread.local.is_empty() {
            thread.local = tasks::main_thread_locals(registers.fs_base);
            thread.stack = Some(tasks::main_thread_stack(stack));
            // It can be joined as well, once it has ended by `pthread_exit`.
            self.by_pointer.insert(registers.fs_base, thread.number);
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
            | Known::LockReleased(_)
            | Known::MeantToRace
            | Known::MeantToRaceSized
            | Known::Ignore(..) => {
                let arguments = call.arguments;
                self.annotated(known, &arguments, &mut thread, &call);
                false
            }
            Known::ClientRequest => {
                call.arguments[0] = gpr[reg::RAX];
                self.annotated(known, &[0; 4], &mut thread, &call);
                false
            }
            Known::Fence(edges) => {
                let order = self.code.fence_order(registers.rip).flatten();
                thread.fence(order.map_or(edges, Edges::from));
                false
            }
            Known::AtomicOperation(arguments) => {
                self.atomic_call(arguments, registers, &mut thread, &mut call)
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
                if !known.is_allocator() {
                    self.sequencer(&mut thread);
                }
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
            self.left(&call, &mut thread, moment, registers.gpr[reg::RAX]);
        }
        self.put(thread);
    }

    fn stays_behind(&self) -> bool {
        true
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }
}
