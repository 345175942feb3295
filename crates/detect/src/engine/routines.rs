//! More than one flow of control on a thread: OpenMP tasks and goroutines, each with
//! a clock of its own.

use super::calls::Call;
use super::{Access, Checker, Engine, Meaning, Thread, numbered};
use crate::clock::{Epoch, SLOTS, Slot, VectorClock};
use crate::code::Origin;
use crate::gochannel::{Channel, End};
use crate::golang::{self, GoCall, Pending, Routine, Transfer};
use crate::heap::Block;
use crate::known::Known;
use crate::tasks;
use crate::tasks::{Current, Suspended, TASK_SLOTS, Task};
use vm::context::{Registers, reg};
use vm::memory;

/// Where struct hchan points to its buffer: the program itself reads what lies
/// before, by `len` and `cap`.
const BUFFER: u64 = 16;

impl<C: Checker> Engine<C> {
    /// A slot whose last user ended before this clock, and its next tick.
    pub(super) fn idle_slot(&mut self, clock: &VectorClock) -> Option<(Slot, u64)> {
        let index = self
            .idle_slots
            .iter()
            .position(|(slot, tick)| clock.get(*slot) >= *tick)?;
        let (slot, tick) = self.idle_slots.swap_remove(index);
        Some((slot, tick + 1))
    }

    /// A thread begins to run a task that was created earlier.
    pub(super) fn begin_task(&mut self, task: Task, thread: &mut Thread, stack: u64) {
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
    pub(super) fn end_task(&mut self, thread: &mut Thread) {
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
    pub(super) fn new_routine(&mut self, mut clock: VectorClock) -> Routine {
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
    pub(super) fn exchange(thread: &mut Thread, routine: Routine) -> Routine {
        Routine {
            slot: std::mem::replace(&mut thread.slot, routine.slot),
            clock: std::mem::replace(&mut thread.clock, routine.clock),
            epoch: std::mem::replace(&mut thread.epoch, routine.epoch),
            pending: std::mem::replace(&mut thread.pending, routine.pending),
        }
    }

    pub(super) fn leave_goroutine(&mut self, thread: &mut Thread) {
        if let Some(between) = thread.between.take() {
            let state = Self::exchange(thread, between);
            if let Some(goroutine) = thread.goroutine.take() {
                self.goroutines.park(goroutine, state);
            }
        }
    }

    /// The goroutine was given up by a thread that has not got as far as the
    /// scheduler yet.
    fn leave_elsewhere(&mut self, goroutine: u64) {
        let running = self
            .threads()
            .find(|thread| thread.goroutine == Some(goroutine))
            .map(|thread| thread.number);
        if let Some(number) = running {
            let mut thread = self.take(number);
            self.leave_goroutine(&mut thread);
            self.put(thread);
        }
    }

    /// A use of a map or a channel.
    fn use_go_object(
        &mut self,
        address: u64,
        size: u64,
        write: bool,
        thread: &Thread,
        call: &Call,
    ) {
        let access = Access {
            moment: call.moment,
            order: call.order,
            pc: call.caller,
            address,
            size,
            read: !write,
            write,
            meaning: Meaning::Plain,
        };
        self.checker.access(&access, thread, &self.heap);
    }

    /// What the run-time reads and writes for the program, where its own code
    /// calls: what the run-time and `sync` do among themselves is their affair.
    fn transfer(&mut self, transfer: Transfer, arguments: &[u64; 5], thread: &Thread, call: &Call) {
        if thread.goroutine.is_none() || !self.is_called_by_program(call.caller) {
            return;
        }
        let word = |address| memory::get::<u64>(address).ok();
        let modules = &self.code.modules;
        let is_type = |address| modules.find(address).is_some();
        for (address, size, write) in transfer
            .touches(arguments, word, is_type)
            .into_iter()
            .flatten()
        {
            if size > 0 && address != 0 {
                self.use_go_object(address, size, write, thread, call);
            }
        }
    }

    fn is_called_by_program(&mut self, back: u64) -> bool {
        self.code.origin(back.wrapping_sub(1)) == Origin::Program
    }

    fn channel(&mut self, address: u64) -> &mut Channel {
        // struct hchan: values in it, room for values.
        self.goroutines
            .channel(address, || memory::get::<u64>(address + 8).unwrap_or(0))
    }

    /// What nobody refers to any more nobody uses any more: a finalizer comes
    /// after all that was done so far.
    fn acquire_everything(&mut self, thread: &mut Thread) {
        for other in self.threads.iter_mut().flatten() {
            thread.acquire(&other.clock);
            other.advance();
        }
        for routine in self.goroutines.parked() {
            thread.acquire(&routine.clock);
            let tick = routine.clock.get(routine.slot) + 1;
            routine.clock.set(routine.slot, tick);
            routine.epoch = Epoch::new(routine.slot, tick);
        }
    }

    pub(super) fn renew_go_stack(&mut self, goroutine: u64) {
        // struct g begins with the bounds of its stack.
        if let Ok([low, high]) = memory::get::<[u64; 2]>(goroutine)
            && low < high
            && high - low <= 1 << 30
        {
            self.renew(low..high);
        }
    }

    /// A function of the Go run-time is entered.
    pub(super) fn go_call(
        &mut self,
        called: GoCall,
        registers: &Registers,
        thread: &mut Thread,
        call: &Call,
    ) {
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
        let mut tokens = Vec::new();
        match called {
            GoCall::Resume => {
                // gogo(*gobuf) has its argument on the stack; the third word
                // of it is the goroutine.
                let goroutine = memory::get::<u64>(call.stack + 8)
                    .and_then(|buffer| memory::get::<u64>(buffer + 16))
                    .unwrap_or(0);
                self.leave_goroutine(thread);
                self.leave_elsewhere(goroutine);
                let state = match self.goroutines.take(goroutine) {
                    Some(state) => state,
                    None => self.new_routine(thread.clock.clone()),
                };
                thread.between = Some(Self::exchange(thread, state));
                thread.goroutine = Some(goroutine);
                thread.runs_goroutines = true;
            }
            GoCall::Schedule => self.leave_goroutine(thread),
            GoCall::Send | GoCall::Receive if first != 0 => {
                let end = match called {
                    GoCall::Send => {
                        self.use_go_object(first + BUFFER, 8, false, thread, call);
                        End::Send
                    }
                    _ => End::Receive,
                };
                tokens.push(self.channel(first).begin(end, &thread.clock, true));
                thread.advance();
                follow = true;
            }
            GoCall::Send | GoCall::Receive => {}
            GoCall::Close => {
                self.use_go_object(first + BUFFER, 8, true, thread, call);
                self.channel(first).close(&thread.clock);
                thread.advance();
            }
            GoCall::SemaphoreRelease | GoCall::Release => {
                Self::release(thread, self.objects.entry(first));
            }
            GoCall::RunTimer => {
                // runOneTimer has the timer second, its successor first.
                for timer in &arguments[..2] {
                    if let Some(object) = self.objects.get(*timer) {
                        thread.clock.join(&object.clock);
                    }
                }
            }
            GoCall::Finalizers => self.goroutines.finalizing = thread.goroutine,
            GoCall::CallBack => {
                if thread.goroutine.is_some() && thread.goroutine == self.goroutines.finalizing {
                    self.acquire_everything(thread);
                }
            }
            GoCall::Select => {
                let (sends, receives) = (arguments[3], arguments[4]);
                for index in 0..sends.saturating_add(receives).min(65536) {
                    // scase: channel, element.
                    let Ok(channel) = memory::get::<u64>(first + 16 * index) else {
                        break;
                    };
                    if channel == 0 {
                        tokens.push(0);
                        continue;
                    }
                    let end = if index < sends {
                        self.use_go_object(channel + BUFFER, 8, false, thread, call);
                        End::Send
                    } else {
                        End::Receive
                    };
                    tokens.push(self.channel(channel).begin(end, &thread.clock, false));
                }
                thread.advance();
                follow = true;
            }
            GoCall::New
            | GoCall::SemaphoreAcquire
            | GoCall::Acquire
            | GoCall::Allocate
            | GoCall::MoveStack => follow = true,
            GoCall::Transfer(transfer) => self.transfer(transfer, &arguments, thread, call),
            GoCall::ReceiveInto => {
                follow = first != 0 && arguments[1] != 0 && self.is_called_by_program(call.caller);
            }
            GoCall::MapNext => {
                // struct hiter: key, value, type, map.
                if let Ok(map) = memory::get::<u64>(first + 24)
                    && map != 0
                {
                    self.use_go_object(map, 8, false, thread, call);
                }
            }
            GoCall::MapRead | GoCall::MapWrite | GoCall::MapReadKey | GoCall::MapWriteKey => {
                let write = matches!(called, GoCall::MapWrite | GoCall::MapWriteKey);
                if matches!(called, GoCall::MapReadKey | GoCall::MapWriteKey) {
                    self.transfer(Transfer::Key, &arguments, thread, call);
                }
                if arguments[1] != 0 {
                    self.use_go_object(arguments[1], 8, write, thread, call);
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
                tokens,
            });
        }
    }

    /// Control is where such a function returns to.
    pub(super) fn go_returned(&mut self, registers: &Registers, thread: &mut Thread, call: &Call) {
        let Some(index) = thread
            .pending
            .iter()
            .rposition(|pending| pending.back == registers.rip)
        else {
            return;
        };
        thread.pending.truncate(index + 1);
        let Some(pending) = thread.pending.pop() else {
            return;
        };
        let first = pending.arguments[0];
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
            GoCall::Send | GoCall::Receive => {
                // Whether it was done: without blocking it may not be.
                let made = result & 0xff != 0;
                for token in pending.tokens {
                    let learnt = self.channel(first).end(token, made);
                    thread.acquire(&learnt);
                }
            }
            GoCall::SemaphoreAcquire | GoCall::Acquire => {
                thread.acquire(&self.objects.entry(first).clock);
            }
            GoCall::Select => {
                for (index, token) in (0u64..).zip(pending.tokens) {
                    if let Ok(channel) = memory::get::<u64>(first.wrapping_add(16 * index))
                        && channel != 0
                    {
                        let learnt = self.channel(channel).end(token, index == result);
                        thread.acquire(&learnt);
                    }
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
            GoCall::ReceiveInto => {
                let word = |address| memory::get::<u64>(address).ok();
                if let Some(size) = golang::element(first, word)
                    && size > 0
                {
                    let here = Call {
                        caller: registers.rip,
                        ..*call
                    };
                    self.use_go_object(pending.arguments[1], size, true, thread, &here);
                }
            }
            _ => {}
        }
    }
}
