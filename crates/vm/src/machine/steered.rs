//! A machine under another hand: copies with limits, threads held back, slices
//! chosen one by one, preemption at given code.

use super::{Pace, Slice, Stop, Vm};
use crate::Error;
use crate::context::reg;
use crate::kernel::signal::SignalInfo;
use crate::record::Step;
use crate::schedule::{Choice, Here, Policy, Recorded, Script, SliceEnd};
use crate::thread::State;
use race::Moment;
use std::collections::BTreeSet;

/// Waits that a copy may make beside those of the recorded run, times what it
/// may take more (paper 003, section 5, as for instructions). A wait costs the
/// vm as much as some 20,000 instructions: together they stay below a tenth of
/// a second.
const IDLE: u64 = 1_000;
const TIMES_RECORDED: u64 = 5;

/// More instructions than any execution has: no limit is meant.
const UNLIMITED: u64 = u64::MAX / 4;

/// What makes a vm a copy (see `snapshot`).
pub(super) struct CopyState {
    /// Instructions of all threads at which it stops.
    pub(super) limit: u64,
    /// Waits of all threads at which it stops.
    pub(super) waits: u64,
    /// Threads that are held back.
    pub(super) frozen: BTreeSet<u32>,
    /// Every slice the copy has run.
    pub(super) slices: Vec<Choice>,
    /// They are written down.
    pub(super) tracked: bool,
    /// Virtual time up to which arrivals have been looked for.
    pub(super) looked_at: u64,
}

/// Where a replay leaves its recording, and what it follows from there on.
pub(super) struct Departure {
    at: Moment,
    slices: Vec<Choice>,
}

impl Vm {
    pub(super) fn is_frozen(&self, thread: u32) -> bool {
        self.copy
            .as_ref()
            .is_some_and(|copy| copy.frozen.contains(&thread))
    }

    /// Makes this vm a copy that stops after `instructions` more: the recorded
    /// schedule becomes a guide, and nothing reaches the outside.
    pub(crate) fn become_copy(&mut self, instructions: u64) -> Result<(), Error> {
        // A copy of a copy goes on as that one would.
        if let Some(copy) = &mut self.copy {
            copy.slices.clear();
        } else {
            self.make_schedule_a_guide()?;
            self.cache.short_lived = true;
            self.io.become_copy()?;
            self.muted = true;
            self.tree = None;
            self.copy = Some(CopyState {
                limit: 0,
                waits: 0,
                frozen: BTreeSet::new(),
                slices: Vec::new(),
                tracked: true,
                looked_at: self.now(),
            });
            self.preempt.clear();
            self.preempted.clear();
        }
        self.limit(instructions);
        Ok(())
    }

    /// A replay leaves its recording at a moment: from there on it is a copy
    /// that follows `slices` to the letter. It knows the streams of inputs from
    /// `know_inputs`.
    pub fn depart_at(&mut self, at: Moment, slices: Vec<Choice>) {
        self.departure = Some(Departure { at, slices });
    }

    pub(super) fn depart(&mut self) -> Result<(), Error> {
        let is_due = self.departure.as_ref().is_some_and(|departure| {
            let Moment { thread, count, .. } = departure.at;
            self.threads.contains_key(&thread) && self.executed(thread) >= count
        });
        if is_due && let Some(departure) = self.departure.take() {
            self.follow_script(departure.slices)?;
        }
        Ok(())
    }

    /// Instructions that this thread may still execute before the departure.
    pub(super) fn left_to_departure(&self, thread: u32) -> Option<u64> {
        let at = self.departure.as_ref()?.at;
        (at.thread == thread).then(|| at.count.saturating_sub(self.executed(thread)))
    }

    pub(super) fn can_follow(&self, thread: u32) -> bool {
        self.threads.contains_key(&thread) && !self.is_frozen(thread)
    }

    /// In a copy: stops after this many instructions from here on. One that
    /// knows its inputs also stops after as many waits of all threads for time
    /// to pass as a program makes that only waits: a server whose timer goes on
    /// without requests does little else, and would go on for hours.
    pub fn limit(&mut self, instructions: u64) {
        let limit = self.instructions().saturating_add(instructions);
        let recorded = self.recorded_waits.filter(|_| instructions < UNLIMITED);
        let waits = recorded.map_or(u64::MAX, |recorded| {
            self.waits + IDLE + recorded.saturating_mul(TIMES_RECORDED)
        });
        if let Some(copy) = &mut self.copy {
            copy.limit = limit;
            copy.waits = waits;
        }
    }

    /// In a copy: all that its threads have done for long is to wait.
    pub(super) fn has_waited_enough(&self) -> bool {
        let copy = self.copy.as_ref();
        copy.is_some_and(|copy| self.waits >= copy.waits)
    }

    /// In a copy: instructions that are left before it stops.
    pub fn left_to_limit(&self) -> u64 {
        let limit = self.copy.as_ref().map_or(u64::MAX, |copy| copy.limit);
        limit.saturating_sub(self.instructions())
    }

    pub(super) fn make_schedule_a_guide(&mut self) -> Result<(), Error> {
        // The slice under way goes on first.
        let rest = self.slice.take();
        let first = rest.map(|slice| Choice {
            thread: slice.thread,
            instructions: slice.planned - slice.done,
        });
        let mut guide = Recorded::new(first.into_iter().collect(), crate::DEFAULT_QUANTUM);
        if let Pace::Follow(steps) = &mut self.pace
            && rest.is_some()
        {
            steps.next_step()?;
        }
        let aimless = Pace::Policy {
            policy: Box::new(Script::new(Vec::new())),
            steps: None,
        };
        if let Pace::Follow(steps) = std::mem::replace(&mut self.pace, aimless) {
            guide = guide.then(steps);
        }
        self.pace = Pace::Policy {
            policy: Box::new(guide),
            steps: None,
        };
        Ok(())
    }

    /// In a copy: the slices it has run so far, the one under way included.
    /// A copy of the same world that follows them does the same.
    pub fn slices(&self) -> Vec<Choice> {
        let mut slices = self
            .copy
            .as_ref()
            .map_or_else(Vec::new, |copy| copy.slices.clone());
        if let Some(slice) = self.slice.filter(|slice| slice.done > 0) {
            slices.push(Choice {
                thread: slice.thread,
                instructions: slice.done,
            });
        }
        slices
    }

    /// Slices may end before the instructions at these addresses, as they do
    /// at sequencers, if a policy decides.
    pub fn preempt_at(&mut self, pcs: impl IntoIterator<Item = u64>) {
        for pc in pcs {
            self.preempt.insert(pc);
            self.add_hook(pc);
        }
    }

    /// Where the running thread is, for a policy.
    pub(super) fn here(&self, sequencer: bool) -> Here {
        Here {
            moment: self.moment(),
            pc: self.context.regs.rip,
            stack: self.context.regs.gpr[reg::RSP],
            sequencer,
        }
    }

    /// `run` comes back where every thread waits for another one, instead of
    /// waiting with them.
    pub fn stop_when_stuck(&mut self) {
        self.stops_when_stuck = true;
    }

    /// `run` comes back after this many instructions of all threads.
    pub fn stop_after(&mut self, instructions: u64) {
        self.stops_after = instructions;
    }

    /// Ends the guest where it is, as by `kill -KILL` from outside, so that its
    /// recording has an end.
    pub fn kill(&mut self) -> Result<Stop, Error> {
        if let Some(slice) = self.slice.take().filter(|slice| slice.done > 0) {
            self.finish_slice(slice, SliceEnd::Interrupted)?;
        }
        const SI_USER: i32 = 0;
        let info = SignalInfo::new(libc::SIGKILL, SI_USER).recorded();
        self.signal_from_outside(0, &info)?;
        self.note(Step::Signal { thread: 0, info })?;
        self.stops_after = u64::MAX;
        while self.lets_go() {}
        self.run(None)
    }

    pub(super) fn policy_holds(&self, thread: u32) -> bool {
        match &self.pace {
            Pace::Policy { policy, .. } => policy.holds(thread),
            Pace::Follow(_) => false,
        }
    }

    pub(super) fn lets_go(&mut self) -> bool {
        match &mut self.pace {
            Pace::Policy { policy, .. } => policy.lets_go(),
            Pace::Follow(_) => false,
        }
    }

    /// Ends the slice here, before an instruction of `preempt_at`; once.
    pub(super) fn preempts(&mut self) -> bool {
        let here = self.here(false);
        let Pace::Policy { policy, .. } = &mut self.pace else {
            return false;
        };
        let Moment { thread, count, .. } = here.moment;
        if !self.preempt.contains(&here.pc)
            || self.preempted.get(&thread) == Some(&count)
            || self.before_syscalls
        {
            return false;
        }
        self.preempted.insert(thread, count);
        policy.ends_here(&here)
    }

    /// In a copy: holds a thread back, or lets it go on.
    pub fn freeze(&mut self, thread: u32, held: bool) {
        if let Some(copy) = &mut self.copy {
            if held {
                copy.frozen.insert(thread);
            } else {
                copy.frozen.remove(&thread);
            }
        }
        // The frozen thread's slice is over.
        self.break_off_slice();
    }

    /// The slice under way ends here, as far as it got.
    pub(super) fn break_off_slice(&mut self) {
        if let Some(slice) = self.slice.take().filter(|slice| slice.done > 0)
            && let Some(copy) = self.copy.as_mut().filter(|copy| copy.tracked)
        {
            copy.slices.push(Choice {
                thread: slice.thread,
                instructions: slice.done,
            });
        }
    }

    /// In a copy: schedules by `policy` from here on.
    pub fn schedule_by(&mut self, policy: Box<dyn Policy>) {
        if self.copy.is_some() {
            if policy.at_sequencers() {
                self.tell_sequencers();
            }
            self.break_off_slice();
            self.pace = Pace::Policy {
                policy,
                steps: None,
            };
        }
    }

    /// In a copy: `wrap` decides from here on, and may ask whoever decided before.
    pub fn schedule_through(&mut self, wrap: impl FnOnce(Box<dyn Policy>) -> Box<dyn Policy>) {
        if self.copy.is_none() {
            return;
        }
        let aimless = Pace::Policy {
            policy: Box::new(Script::new(Vec::new())),
            steps: None,
        };
        if let Pace::Policy { policy, .. } = std::mem::replace(&mut self.pace, aimless) {
            self.schedule_by(wrap(policy));
        }
    }

    /// In a copy: from here on the n-th time that a thread is shown depends on n
    /// alone. So two executions that ask alike are shown the same times, although
    /// one has executed more. What waits for a time goes on waiting as long.
    pub fn count_times(&mut self) {
        if self.copy.is_some() {
            self.clock.counted_from = Some(self.now());
        }
    }

    /// In a copy: the policy is not told who ran last, so that two copies that
    /// came here in different ways go on alike.
    pub fn forget_last_slice(&mut self) {
        self.slice = None;
        self.last_slice = None;
    }

    /// In a copy: its slices are not written down any more; a long run has
    /// millions.
    pub fn leave_no_slices(&mut self) {
        if let Some(copy) = &mut self.copy {
            copy.slices = Vec::new();
            copy.tracked = false;
        }
    }

    /// Translated code can come back after every locked instruction from here
    /// on. Whoever will stop copies at sequencers says so before the guest
    /// runs: the copies then go on with the code they find.
    pub fn tell_sequencers(&mut self) {
        if !self.instrumentation.sequencers {
            self.instrumentation.sequencers = true;
            self.flush_cache();
        }
    }

    /// In a copy: runs one thread alone for at most `instructions`. With
    /// `to_sequencer` it stops before its next system call and after its next
    /// locked instruction.
    pub fn run_thread(
        &mut self,
        thread: u32,
        instructions: u64,
        to_sequencer: bool,
    ) -> Result<SliceEnd, Error> {
        if self.ended.is_some() || !self.threads.contains_key(&thread) {
            return Ok(SliceEnd::Exited);
        }
        if to_sequencer {
            self.tell_sequencers();
        }
        self.before_syscalls = to_sequencer;
        self.one_thread = true;
        self.break_off_slice();
        // Whoever asks for this thread means its next instruction, also where
        // slices may end.
        let next = self.executed(thread);
        self.preempted.insert(thread, next);
        let slice = self.begin_slice(Choice {
            thread,
            instructions,
        });
        let end = self.run_part(slice.planned);
        self.before_syscalls = false;
        self.one_thread = false;
        let end = end?;
        let done = self.retire();
        self.finish_slice(Slice { done, ..slice }, end)?;
        Ok(end)
    }

    /// Why a copy cannot go on.
    pub(super) fn stuck(&self) -> Stop {
        let input = self.threads.values().any(|thread| {
            matches!(&thread.state, State::Blocked(wait)
                if wait.on.is_outside())
        });
        Stop::Stuck { input }
    }
}
