//! Calls of known functions: allocation, locks and the other objects of thread
//! libraries, annotations.

use super::kernel::ORDERED;
use super::{Access, Checker, Engine, Held, LockEvent, LockKind, Meaning, Thread, numbered};
use crate::code::Origin;
use crate::fences::Edges;
use crate::heap::Block;
use crate::known::{Ignored, Known, request};
use crate::sync::Barrier;
use crate::tasks;
use race::Moment;
use std::collections::BTreeMap;
use std::ops::Range;
use symbols::OrderArguments;
use vm::context::{Registers, reg};
use vm::memory;

/// A known function under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) known: Known,
    pub(super) function: u64,
    pub(super) stack: u64,
    pub(super) arguments: [u64; 4],
    /// The barrier's cycle, or another number the return needs; on entry the
    /// sixth argument.
    pub(super) cycle: u64,
    pub(super) caller: u64,
    pub(super) moment: Moment,
    pub(super) order: u64,
    /// Counted in `inside`.
    pub(super) counts: bool,
}

impl<C: Checker> Engine<C> {
    /// The memory is new: nothing that happened there before matters.
    pub(super) fn renew(&mut self, range: Range<u64>) {
        self.words.forget(range.clone());
        self.objects.forget(range.clone());
        self.goroutines.forget_channels(range.clone());
        if !self.meant.is_empty() {
            cut(&mut self.meant, &range);
        }
        let owners = &self.owners;
        self.checker
            .clear(range, &|lock| owners.contains_key(&lock));
    }

    pub(super) fn free_block(&mut self, call: &Call, start: u64, thread: &Thread) {
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

    pub(super) fn allocate(&mut self, call: &Call, start: u64, size: u64, thread: &Thread) {
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
        let usable = self.usable(call, size);
        self.renew(start..start + usable);
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

    /// What a block of this size has room for: programs may use the last bytes
    /// of the C library's (malloc_usable_size), so they are new with the block.
    fn usable(&mut self, call: &Call, size: u64) -> u64 {
        if self.code.origin(call.function) != Origin::CLibrary {
            return size;
        }
        ((size.saturating_add(23) & !15) - 8).max(24)
    }

    pub(super) fn acquire_lock(
        &mut self,
        thread: &mut Thread,
        address: u64,
        kind: LockKind,
        call: &Call,
    ) {
        let object = self.objects.entry(address);
        thread.acquire(&object.clock);
        if kind != LockKind::Read {
            thread.acquire(&object.readers);
        }
        match thread.held.get_mut(address) {
            Some(held) => held.times += 1,
            None => {
                self.checker.lock(LockEvent::Locking {
                    thread,
                    address,
                    kind,
                    waits: call.known.waits(),
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

    pub(super) fn release_lock(&mut self, thread: &mut Thread, address: u64, call: &Call) {
        let mut shared = false;
        match thread.held.get_mut(address) {
            Some(held) => {
                shared = held.kind == LockKind::Read;
                held.times -= 1;
                if held.times == 0 {
                    thread.held.remove(address);
                    self.owns_no_more(thread.number, address);
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
                // It is free all the same.
                if let Some(owner) = owner {
                    let mut owner = self.take(owner);
                    owner.held.remove(address);
                    self.put(owner);
                    self.owners.remove(&address);
                }
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

    fn owns_no_more(&mut self, thread: u32, lock: u64) {
        if let Some(owners) = self.owners.get_mut(&lock) {
            owners.retain(|owner| *owner != thread);
            if owners.is_empty() {
                self.owners.remove(&lock);
            }
        }
    }

    /// A thread ends: nobody will release what it holds. Robust mutexes are
    /// made for that.
    pub(super) fn ends_holding(&mut self, thread: &mut Thread) {
        /// In glibc's `__kind`, sixteen bytes into a mutex.
        const ROBUST: u32 = 16;
        for held in std::mem::take(&mut thread.held) {
            self.owns_no_more(thread.number, held.address);
            let robust = held.kind == LockKind::Mutex
                && memory::get::<u32>(held.address + 16).is_ok_and(|kind| kind & ROBUST != 0);
            let counts = matches!(
                held.kind,
                LockKind::Mutex | LockKind::Spin | LockKind::Read | LockKind::Write
            );
            if counts && !robust {
                self.checker.lock(LockEvent::EndedHolding {
                    address: held.address,
                    thread: thread.number,
                    moment: held.moment,
                    order: held.order,
                });
            }
        }
    }

    fn made(&self, lock: u64) -> LockEvent<'static> {
        LockEvent::Made {
            address: lock,
            held: self.owners.contains_key(&lock),
        }
    }

    fn destroyed_awaited(&mut self, call: &Call, waiting: Option<u32>) {
        self.checker.lock(LockEvent::DestroyedAwaited {
            address: call.arguments[0],
            waiting,
            moment: call.moment,
            order: call.order,
        });
    }

    /// A use of a mutex, barrier and so on reads it; making and ending it
    /// writes it: a lock that is made while another thread takes it guards
    /// nothing.
    pub(super) fn use_object(&mut self, call: &Call, thread: &Thread, (writes, size): (bool, u64)) {
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

    /// The object is in use until the last instruction of the call.
    fn use_to_the_end(&mut self, call: &Call, thread: &Thread, moment: Moment) {
        let last = Call {
            moment: Moment {
                count: moment.count.saturating_sub(1),
                ..moment
            },
            order: self.order,
            ..*call
        };
        self.use_object(&last, thread, (false, 1));
    }

    pub(super) fn entered(&mut self, call: &mut Call, thread: &mut Thread) {
        let [first, second, third, _] = call.arguments;
        if let Some(object) = call.known.object() {
            self.use_object(call, thread, object);
        }
        match call.known {
            Known::MutexInit => {
                self.objects.forget(first..first + 1);
                self.checker.lock(self.made(first));
            }
            Known::RwInit => self.checker.lock(self.made(first)),
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
            Known::CondWait => {
                self.release_lock(thread, second, call);
                self.objects.entry(first).waiting.push_back(thread.number);
            }
            Known::CondSignal | Known::CondBroadcast => {
                let object = self.objects.entry(first);
                let woken = match call.known {
                    Known::CondSignal => object.waiting.len().min(1),
                    _ => object.waiting.len(),
                };
                object.waiting.drain(..woken);
                Self::release(thread, object);
            }
            Known::SemaphorePost => Self::release(thread, self.objects.entry(first)),
            Known::ConditionDestroy => {
                let object = self.objects.get(first);
                if let Some(waiting) = object.and_then(|object| object.waiting.front()) {
                    self.destroyed_awaited(call, Some(*waiting));
                }
            }
            Known::BarrierDestroy => {
                let barrier = self
                    .objects
                    .get(first)
                    .and_then(|object| object.barrier.as_ref());
                if barrier.is_some_and(Barrier::is_awaited) {
                    self.destroyed_awaited(call, None);
                }
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
                self.checker.synchronised(first & !3, 4);
            }
            Known::GuardAcquire => {
                self.guards.insert(first & !3, false);
                self.checker.synchronised(first & !3, 4);
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
            Known::SignalHandler => self.channels.receive_signal(thread),
            _ => {}
        }
    }

    /// An atomic operation out of line: its memory order is in a register now.
    /// Returns whether its result matters.
    pub(super) fn atomic_call(
        &mut self,
        arguments: OrderArguments,
        registers: &Registers,
        thread: &mut Thread,
        call: &mut Call,
    ) -> bool {
        let gpr = &registers.gpr;
        let integers = [reg::RDI, reg::RSI, reg::RDX, reg::RCX, reg::R8, reg::R9]
            .map(|register| gpr[register]);
        let Some(order) = arguments.order(&integers) else {
            thread.orders.remove(&call.function);
            return false;
        };
        if arguments.is_fence() {
            thread.fence(order.into());
            return false;
        }
        thread.orders.insert(call.function, order);
        let Some(failure) = arguments.failure_order(&integers) else {
            return false;
        };
        // What is learnt on success and on failure, for the return.
        let learns = |order| Edges::from(order).acquires;
        call.cycle = u64::from(learns(order)) << 1 | u64::from(learns(failure));
        learns(order) != learns(failure)
    }

    pub(super) fn open_group(&mut self, thread: &mut Thread) {
        let group = self.tasks.next_id();
        thread.task.groups.push(group);
    }

    pub(super) fn close_group(&mut self, thread: &mut Thread) {
        if let Some(group) = thread.task.groups.pop()
            && let Some(clock) = self.tasks.group(group)
        {
            thread.acquire(clock);
        }
    }

    pub(super) fn left(&mut self, call: &Call, thread: &mut Thread, moment: Moment, result: u64) {
        let [first, second, ..] = call.arguments;
        // EOWNERDEAD: the lock is taken all the same.
        let taken = matches!(result as i32, 0 | libc::EOWNERDEAD);
        match call.known {
            Known::MutexLock | Known::MutexTry if taken => {
                self.acquire_lock(thread, first, LockKind::Mutex, call)
            }
            Known::SpinLock | Known::SpinTry if taken => {
                self.acquire_lock(thread, first, LockKind::Spin, call)
            }
            Known::ReadLock | Known::ReadTry if taken => {
                self.acquire_lock(thread, first, LockKind::Read, call)
            }
            Known::WriteLock | Known::WriteTry if taken => {
                self.acquire_lock(thread, first, LockKind::Write, call)
            }
            Known::StreamLock if taken => self.acquire_lock(thread, first, LockKind::Stream, call),
            Known::CondWait => {
                self.acquire_lock(thread, second, LockKind::Mutex, call);
                let waiting = &mut self.objects.entry(first).waiting;
                waiting.retain(|number| *number != thread.number);
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
                self.use_to_the_end(call, thread, moment);
            }
            // Whom it wakes may not end it before it is done.
            Known::CondSignal | Known::CondBroadcast => {
                self.use_to_the_end(call, thread, moment);
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
            Known::AtomicOperation(_) => {
                let succeeded = result & 1;
                let learnt = std::mem::take(&mut thread.learnt);
                thread.read(&learnt, call.cycle >> succeeded & 1 != 0);
            }
            Known::Malloc => self.allocate(call, result, first, thread),
            Known::Calloc => {
                self.allocate(call, result, first.saturating_mul(second), thread);
            }
            Known::AlignedAlloc => self.allocate(call, result, second, thread),
            Known::PosixMemalign if result as i32 == 0 => {
                let start = memory::get::<u64>(first).unwrap_or(0);
                self.allocate(call, start, call.arguments[2], thread);
            }
            // Aligned blocks can have more room than their size says.
            Known::UsableSize => {
                if let Some(block) = self.heap.find(first).copied()
                    && block.start == first
                    && result > block.size
                {
                    let known = self.usable(call, block.size).min(result);
                    self.renew(first + known..first + result);
                    self.heap.allocate(Block {
                        size: result,
                        ..block
                    });
                }
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

    pub(super) fn reallocate(
        &mut self,
        call: &Call,
        old: u64,
        new: u64,
        size: u64,
        thread: &Thread,
    ) {
        if old != new {
            self.free_block(call, old, thread);
            return self.allocate(call, new, size, thread);
        }
        // Grown or shrunk in place: what is kept keeps its past.
        let Some(block) = self.heap.free(old) else {
            return self.allocate(call, new, size, thread);
        };
        if size > block.size {
            let usable = self.usable(call, size);
            self.renew(old + block.size..old + usable);
        }
        self.heap.allocate(Block { size, ..block });
    }

    pub(super) fn annotated(
        &mut self,
        known: Known,
        arguments: &[u64; 4],
        thread: &mut Thread,
        call: &Call,
    ) {
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
            Known::MeantToRace => self.mean(at(2), 1),
            Known::MeantToRaceSized => self.mean(at(2), at(3)),
            Known::Ignore(what, begins) => {
                let count = &mut thread.ignores[what as usize];
                *count = if begins {
                    *count + 1
                } else {
                    count.saturating_sub(1)
                };
                self.say_what_is_meant();
            }
            Known::ClientRequest => self.client_request(thread, call),
            _ => {}
        }
    }

    /// Races on this memory are meant.
    fn mean(&mut self, start: u64, size: u64) {
        let range = start..start.saturating_add(size);
        cut(&mut self.meant, &range);
        if !range.is_empty() {
            self.meant.insert(start, size);
        }
        self.say_what_is_meant();
    }

    fn say_what_is_meant(&mut self) {
        const SENTENCE: &str = "accesses that the program says may race (annotations: benign races, ignored reads and writes)";
        if !self.not_checked.iter().any(|said| said == SENTENCE) {
            self.not_checked.push(SENTENCE.into());
        }
    }

    /// Rule 0: what the program says through Valgrind's client requests.
    pub(super) fn client_request(&mut self, thread: &mut Thread, call: &Call) {
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
            request::UNTRACK | request::START_SUPPRESSION => return self.mean(first, second),
            request::TRACK | request::FINISH_SUPPRESSION => {
                return cut(&mut self.meant, &(first..first.saturating_add(second)));
            }
            request::RECORD_LOADS => Known::Ignore(Ignored::Reads, first == 0),
            request::RECORD_STORES => Known::Ignore(Ignored::Writes, first == 0),
            _ => return,
        };
        self.annotated(known, &arguments, thread, call);
    }
}

/// What stands for the address of a lock that has none.
pub(super) fn nameless_lock(number: u8) -> u64 {
    u64::from(number)
}

/// Takes a range out of a set of ranges (start, size).
pub(super) fn cut(ranges: &mut BTreeMap<u64, u64>, gone: &Range<u64>) {
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
}
