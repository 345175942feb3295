//! Slices of the schedule: choosing or reading the next one, counting what a
//! thread executed in it, writing it down, and checking it on replay.

use super::outside::{FLUSH_INTERVAL, host_nanoseconds};
use super::{Pace, Slice, Vm};
use crate::context::BREAK;
use crate::observe::ThreadEvent;
use crate::record::check::{Check, Checkpoint};
use crate::record::{Ending, LONGEST_SLICE, ProcessStatus, Step};
use crate::schedule::{Choice, SliceEnd};
use crate::state::HashedMemory;
use crate::thread::State;
use crate::translate::MAX_BLOCK;
use crate::{Difference, Divergence, Error};
use race::Moment;
use xxhash_rust::xxh3::Xxh3;

/// Longest slice when only one thread can run: bounds the distance between
/// checks of a replay and between looks at host descriptors.
pub(super) const LONE_SLICE: u64 = 20_000_000;

/// The same for a process that takes turns with others (about a millisecond).
pub(super) const SHARING_SLICE: u64 = 2_000_000;

/// A slice that gave way after fewer instructions only waited.
const SHORT_WAIT: u64 = 1000;

/// Times round all threads that may do nothing but wait.
pub(super) const ROUNDS_OF_WAITING: usize = 8;

/// Where everybody only waits, somebody may give way always at a moment when
/// the others can do nothing, a lock in hand: after so many rounds slices are
/// cut short, at varying lengths. After so many more a waiting thread is not
/// let give way for once: its loop may count.
const ROUNDS_OF_CUTS: usize = 64;
const LONGEST_CUT: u64 = 48;

impl Vm {
    /// Instructions the slice under way has left.
    pub(crate) fn left_in_slice(&self) -> u64 {
        let planned = self.slice.map_or(0, |slice| slice.planned - slice.done);
        planned.max(self.remaining())
    }

    pub(super) fn begin_slice(&mut self, choice: Choice) -> Slice {
        let from = self.last_slice.map(|(thread, _)| thread);
        if self.current != choice.thread {
            self.switch_to(choice.thread);
            let event = ThreadEvent::Switched {
                from,
                to: choice.thread,
            };
            self.tell_thread(event);
        }
        Slice {
            thread: choice.thread,
            planned: choice.instructions,
            done: 0,
        }
    }

    /// Puts another thread's registers into the context.
    pub(crate) fn switch_to(&mut self, thread: u32) {
        if let Some(current) = self.threads.get_mut(&self.current) {
            current.regs = self.context.regs;
        }
        if let Some(next) = self.threads.get(&thread) {
            self.context.regs = next.regs;
        }
        self.current = thread;
    }

    /// Adds what the finished part executed to the books; returns it.
    pub(super) fn retire(&mut self) -> u64 {
        self.drain_ring();
        self.granted -= self.remaining();
        self.since_sample = (self.since_sample + self.granted) % self.sample;
        self.set_remaining(0);
        self.total += self.granted;
        if let Some(thread) = self.threads.get_mut(&self.current) {
            thread.executed += self.granted;
        }
        std::mem::take(&mut self.granted)
    }

    /// Writes the slice down, or compares it with the recorded one.
    pub(super) fn finish_slice(&mut self, slice: Slice, end: SliceEnd) -> Result<(), Error> {
        self.last_slice = Some((slice.thread, end));
        self.context.gives_way = 0;
        let was_cut = std::mem::take(&mut self.is_cut) && end == SliceEnd::Expired;
        let gave_way = end == SliceEnd::Yielded && slice.done < SHORT_WAIT;
        self.waits_in_vain = if gave_way || was_cut {
            self.waits_in_vain + 1
        } else {
            0
        };
        if end == SliceEnd::Exited
            && let Some(thread) = self.threads.remove(&slice.thread)
        {
            self.kernel.process.last_robust_list = (thread.robust_list, thread.tid);
        }
        if let Some(copy) = self.copy.as_mut().filter(|copy| copy.tracked) {
            copy.slices.push(Choice {
                thread: slice.thread,
                instructions: slice.done,
            });
        }
        // Nobody reads what a copy would write down.
        if matches!(self.pace, Pace::Policy { steps: None, .. }) {
            return Ok(());
        }
        let check = Check::of(&self.context.regs, self.trail);
        let step = Step::Slice {
            thread: slice.thread,
            instructions: slice.done,
            check,
        };
        match &mut self.pace {
            Pace::Policy { steps, policy } => {
                policy.ran(slice.thread, slice.done);
                if let Some(steps) = steps {
                    steps.push(&step)?;
                    self.checkpoint_if_due()?;
                }
                Ok(())
            }
            Pace::Follow(steps) => {
                let recorded = steps.next_step()?;
                if recorded.as_ref() == Some(&step) {
                    return Ok(());
                }
                Err(self.other_slice(slice, &step, recorded, end).into())
            }
        }
    }

    /// The slice did not end as the recorded one.
    fn other_slice(
        &self,
        slice: Slice,
        replayed: &Step,
        recorded: Option<Step>,
        end: SliceEnd,
    ) -> Box<Divergence> {
        let words = |step: Option<&Step>| step.map_or("nothing".to_string(), Step::to_string);
        let difference = match (&recorded, replayed) {
            (
                Some(Step::Slice {
                    thread,
                    instructions,
                    check: then,
                }),
                Step::Slice { check: now, .. },
            ) if (*thread, *instructions) == (slice.thread, slice.done) => {
                Some(Difference::Registers {
                    thread: slice.thread,
                    names: then.differing(now),
                })
            }
            _ => None,
        };
        Box::new(Divergence {
            path: match &self.pace {
                Pace::Follow(steps) => Some(steps.path().to_path_buf()),
                Pace::Policy { .. } => None,
            },
            moment: Some(Moment::new(slice.thread, self.executed(slice.thread))),
            since: Some(self.instructions() - slice.done),
            regs: Some(self.context.regs),
            difference,
            ..*Divergence::new(format!(
                "recorded: {}; replayed: {replayed} (stopped: {end:?})",
                words(recorded.as_ref())
            ))
        })
    }

    /// Adds a system call and what it did to the trail.
    pub(crate) fn leave_trail(&mut self, words: &[u64]) {
        let mut hash = Xxh3::with_seed(self.trail);
        for word in words {
            hash.update(&word.to_le_bytes());
        }
        self.trail = hash.digest();
    }

    /// The process is over: write or check its final state.
    pub(super) fn finish(&mut self, status: ProcessStatus) -> Result<(), Error> {
        if self.ending.is_some() {
            return Ok(());
        }
        self.drain_ring();
        self.release_vfork_parent(true);
        let memory = match self.pace {
            Pace::Policy { steps: None, .. } => None,
            _ => Some(self.hash_memory()),
        };
        let state = memory.as_ref().map(|memory| self.state_hash_with(memory));
        let ending = Ending {
            status,
            state: state.unwrap_or_default(),
        };
        if let Some(memory) = &memory {
            if matches!(self.pace, Pace::Follow(_)) {
                self.follow_end(ending, memory)?;
            } else {
                let checkpoint = self.checkpoint(memory);
                self.note(Step::Checkpoint(Box::new(checkpoint)))?;
            }
        }
        if let Pace::Policy {
            steps: Some(steps), ..
        } = &mut self.pace
        {
            // Inputs first, as ever; both ends in one go.
            steps.push(&Step::End(ending))?;
            self.io.finish()?;
            steps.finish()?;
        }
        self.ending = Some(ending);
        Ok(())
    }

    /// Compares the end with the recorded one, if the recording has it.
    fn follow_end(&mut self, ending: Ending, memory: &HashedMemory) -> Result<(), Error> {
        if let Some(checkpoint) = self.take_checkpoint()? {
            self.compare_checkpoint(&checkpoint, memory)?;
        }
        let Pace::Follow(steps) = &mut self.pace else {
            return Ok(());
        };
        let Some(recorded) = steps.next_step()? else {
            return Ok(());
        };
        if steps.rewrites()
            && let Step::End(Ending { status, .. }) = &recorded
            && *status == ending.status
        {
            steps.expect_end()?;
            steps.rewrite(&Step::End(ending))?;
            return self.io.expect_end();
        }
        if recorded != Step::End(ending) {
            return Err(Divergence::new(format!(
                "the end differs; recorded: {recorded}; replayed: {}",
                Step::End(ending)
            ))
            .into());
        }
        steps.expect_end()?;
        self.io.expect_end()
    }

    /// The checkpoint that the recording has here, if it has one.
    fn take_checkpoint(&mut self) -> Result<Option<Box<Checkpoint>>, Error> {
        let Pace::Follow(steps) = &mut self.pace else {
            return Ok(None);
        };
        if !matches!(steps.peek()?, Some(Step::Checkpoint(_))) {
            return Ok(None);
        }
        match steps.next_step()? {
            Some(Step::Checkpoint(checkpoint)) => Ok(Some(checkpoint)),
            _ => Ok(None),
        }
    }

    /// What to run next. `None` where a recording stops.
    pub(super) fn next_slice(&mut self) -> Result<Option<Choice>, Error> {
        if let Pace::Follow(_) = self.pace {
            return self.follow();
        }
        let now = host_nanoseconds();
        if now - self.flushed_at > FLUSH_INTERVAL {
            self.flushed_at = now;
            self.flush_recording()?;
        }
        let mut last = self.last_slice;
        let (mut choice, runnable) = loop {
            self.give_turn(false);
            let runnable = self.wait_for_runnable()?;
            if self.ended.is_some() {
                return Ok(None);
            }
            self.take_turn()?;
            if runnable.is_empty() {
                return Ok(None);
            }
            let Pace::Policy { policy, .. } = &mut self.pace else {
                unreachable!("following is handled above");
            };
            let mut choice = policy.choose(&runnable, last.take());
            // A script has slices of no instructions: a call that had waited was
            // completed, and a timer was due.
            if choice.instructions == 0 && !policy.is_exact() {
                // Whoever could run is held.
                continue;
            }
            if policy.is_exact() {
                // A script is passed over where somebody holds its thread.
                if !self.can_follow(choice.thread) {
                    continue;
                }
                choice.instructions = choice.instructions.min(LONGEST_SLICE);
                return Ok(Some(choice));
            }
            break (choice, runnable);
        };
        let rounds = self.waits_in_vain / runnable.len();
        self.context.gives_way = u64::from(runnable.len() > 1 && rounds <= ROUNDS_OF_CUTS);
        if runnable.len() > 1 && (ROUNDS_OF_WAITING..=ROUNDS_OF_CUTS).contains(&rounds) {
            self.cuts += 1;
            self.is_cut = true;
            let spread = self.cuts.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            choice.instructions = choice.instructions.min(1 + spread % LONGEST_CUT);
        }
        if runnable.len() == 1 && self.held.is_empty() {
            choice.instructions = if self.takes_turns() {
                SHARING_SLICE
            } else {
                LONE_SLICE
            };
        }
        choice.instructions = choice.instructions.min(LONGEST_SLICE);
        if let Some(left) = self.instructions_to_timer() {
            choice.instructions = choice.instructions.min(left);
        }
        Ok(Some(choice))
    }

    pub(super) fn follow(&mut self) -> Result<Option<Choice>, Error> {
        loop {
            if self.ended.is_some() {
                return Ok(None);
            }
            if let Some(checkpoint) = self.take_checkpoint()? {
                let memory = self.hash_memory();
                self.compare_checkpoint(&checkpoint, &memory)?;
            }
            let Pace::Follow(steps) = &mut self.pace else {
                unreachable!("only called while following");
            };
            // Timers are looked at where the recording vm did; one may have
            // ended the process.
            if matches!(
                steps.peek()?,
                Some(Step::Advance(_) | Step::Slice { .. } | Step::End(_))
            ) {
                self.expire_timers()?;
                if self.ended.is_some() {
                    return Ok(None);
                }
            }
            let Pace::Follow(steps) = &mut self.pace else {
                unreachable!("only called while following");
            };
            match steps.peek()? {
                None => return Ok(None),
                Some(Step::Slice {
                    thread,
                    instructions,
                    ..
                }) => {
                    let choice = Choice {
                        thread: *thread,
                        instructions: *instructions,
                    };
                    let Some(known) = self.threads.get_mut(&choice.thread) else {
                        return Err(Divergence::new(format!(
                            "the recording runs thread {}, which does not exist in the replay",
                            choice.thread
                        ))
                        .into());
                    };
                    known.state = State::Runnable;
                    return Ok(Some(choice));
                }
                Some(Step::Advance(nanoseconds)) => {
                    self.clock.jumped += *nanoseconds;
                    self.waits += 1;
                    steps.next_step()?;
                }
                Some(Step::Memory) => {
                    steps.next_step()?;
                    self.receive_memory()?;
                }
                // Taken above.
                Some(Step::Checkpoint(_)) => {}
                Some(Step::Signal { .. }) => {
                    if let Some(Step::Signal { thread, info }) = steps.next_step()? {
                        self.note_signal(thread, &info);
                        self.signal_from_outside(thread, &info)?;
                    }
                }
                Some(end @ Step::End(_)) => {
                    return Err(Divergence::new(format!(
                        "the recorded run ended here ({end}), the replay goes on"
                    ))
                    .into());
                }
            }
        }
    }

    /// While replaying: what others had written when this process ended.
    pub(crate) fn receive_last_memory(&mut self) -> Result<(), Error> {
        while let Pace::Follow(steps) = &mut self.pace
            && matches!(steps.peek()?, Some(Step::Memory))
        {
            steps.next_step()?;
            self.receive_memory()?;
        }
        Ok(())
    }

    /// Writes a step that is not a slice.
    pub(crate) fn note(&mut self, step: Step) -> Result<(), Error> {
        if let Pace::Policy {
            steps: Some(steps), ..
        } = &mut self.pace
        {
            steps.push(&step)?;
        }
        Ok(())
    }

    /// Gives back to the counter what a host signal handler took from it;
    /// true if one did: the slice is to end.
    pub(super) fn mend_counter(&mut self) -> bool {
        let broken = std::mem::take(&mut self.context.broken);
        // A signal between the load and the store of the counter takes nothing
        // from it: what was taken is overwritten.
        if self.context.remaining < -(BREAK / 2) {
            self.context.remaining += broken;
        }
        broken != 0
    }

    /// A signal from outside waits: the slice gets a new, near end. Not here:
    /// flags that the counter has destroyed must be overwritten first.
    pub(super) fn cut_slice(&mut self) -> bool {
        let remaining = self.remaining();
        let surplus = remaining.saturating_sub(4 * MAX_BLOCK as u64);
        self.granted -= surplus;
        self.set_remaining(remaining - surplus);
        self.cut |= surplus > 0;
        surplus > 0
    }
}
