//! The world outside the guest: waiting until a thread can run, looking for what
//! arrived, signals sent from outside, and flushing the recording in time.

use super::slices::ROUNDS_OF_WAITING;
use super::{Pace, Vm};
use crate::copy::OutsideSignal;
use crate::kernel::signal::SignalInfo;
use crate::record::{ProcessStatus, Step};
use crate::thread::{State, Thread, WaitOn};
use crate::{Error, host_signals, kernel};
use std::io::Write;

/// Something outside that cannot be polled is looked at this often, in
/// nanoseconds.
pub(super) const RETRY_INTERVAL: u64 = 500_000;

/// A killed vm loses at most this much of its recording, in nanoseconds.
pub(super) const FLUSH_INTERVAL: u64 = 100_000_000;

/// So long nothing can happen before it is said, in nanoseconds.
const PATIENCE: u64 = 2_000_000_000;

impl Vm {
    fn let_time_pass(&mut self, nanoseconds: u64) -> Result<(), Error> {
        self.clock.jumped += nanoseconds;
        self.waits += 1;
        self.note(Step::Advance(nanoseconds))
    }

    /// Threads that can run, waiting for time or the outside if there are
    /// none.
    pub(super) fn wait_for_runnable(&mut self) -> Result<Vec<u32>, Error> {
        loop {
            self.take_outside_signals()?;
            self.expire_timers()?;
            if self.ended.is_some() || self.has_waited_enough() {
                return Ok(Vec::new());
            }
            self.look_outside(Some(0))?;
            self.end_holds();
            let now = self.now();
            let mut runnable = Vec::new();
            let mut next_deadline = self.next_timer();
            // Other processes of the guest live in host time.
            let mut outside = self
                .tree
                .as_ref()
                .is_some_and(|tree| tree.ordered || tree.forked);
            for (id, thread) in &self.threads {
                if self.is_frozen(*id) || self.is_held(*id) || self.policy_holds(*id) {
                    continue;
                }
                match &thread.state {
                    State::Runnable => runnable.push(*id),
                    State::Blocked(wait) => {
                        if wait.deadline.is_some_and(|deadline| deadline <= now) {
                            runnable.push(*id);
                            continue;
                        }
                        outside |= wait.on.is_outside();
                        next_deadline = match (next_deadline, wait.deadline) {
                            (Some(one), Some(other)) => Some(one.min(other)),
                            (one, other) => one.or(other),
                        };
                    }
                    State::Exited => {}
                }
            }
            // Threads that do nothing but yield wait for somebody who sleeps.
            if self.waits_in_vain > ROUNDS_OF_WAITING * runnable.len()
                && !outside
                && !runnable.is_empty()
                && let Some(deadline) = next_deadline
            {
                self.waits_in_vain = 0;
                self.let_time_pass(deadline.saturating_sub(now))?;
                continue;
            }
            if !runnable.is_empty() {
                for id in &runnable {
                    if let Some(thread) = self.threads.get_mut(id) {
                        thread.state = State::Runnable;
                    }
                }
                return Ok(runnable);
            }
            if !self.held.is_empty() {
                match self.wait_while_held(next_deadline, outside) {
                    Some(deadline) => next_deadline = Some(deadline),
                    None => continue,
                }
            }
            let signal = self.next_signal().map(|signal| signal.time);
            let arrival = match outside {
                true => self.next_arrival(now),
                false => None,
            };
            if let Some(signal) = signal
                && [next_deadline, arrival]
                    .iter()
                    .flatten()
                    .all(|time| signal <= *time)
            {
                // As for what arrives below.
                self.let_time_pass(signal.saturating_sub(now))?;
                continue;
            }
            if let Some(arrival) = arrival {
                // Every thread waits: what came next in the recorded run
                // comes now, unless a timer is earlier.
                if next_deadline.is_none_or(|deadline| arrival <= deadline) {
                    if let Some(copy) = self.io.copy() {
                        copy.inputs().release(arrival);
                    }
                    self.clock.jumped += arrival.saturating_sub(now);
                    self.wake_outside_waiters();
                    continue;
                }
            }
            match next_deadline {
                // Nothing else comes from outside into a copy: time just
                // passes.
                Some(deadline) if !outside || self.copy.is_some() => {
                    self.let_time_pass(deadline.saturating_sub(now))?;
                }
                _ if self.lets_go() => {}
                _ if self.copy.is_some() => return Ok(runnable),
                None if self.stops_when_stuck && !outside => return Ok(runnable),
                deadline => {
                    // Nothing can happen here before the outside moves (or a
                    // timer that runs with it).
                    self.flush_recording()?;
                    self.give_turn(true);
                    let before = host_nanoseconds();
                    let mut patience = deadline.map(|deadline| deadline.saturating_sub(now));
                    let stuck = !outside && deadline.is_none() && self.may_be_stuck();
                    if stuck {
                        patience = Some(PATIENCE);
                    }
                    self.look_outside(patience)?;
                    let waited = host_nanoseconds() - before;
                    self.let_time_pass(waited)?;
                    if stuck && waited >= PATIENCE {
                        self.say_stuck();
                    }
                }
            }
        }
    }

    /// Every thread waits for another one of them, and nobody has been told.
    fn may_be_stuck(&self) -> bool {
        let waits_inside = |thread: &Thread| match &thread.state {
            State::Blocked(wait) => matches!(wait.on, WaitOn::Futex | WaitOn::Objects),
            State::Exited => true,
            State::Runnable => false,
        };
        self.io.is_live()
            && !self.said_stuck
            && self.held.is_empty()
            && self.threads.values().all(waits_inside)
    }

    fn say_stuck(&mut self) {
        self.said_stuck = true;
        let numbers: Vec<String> = self.threads.keys().map(u32::to_string).collect();
        let who = match numbers.as_slice() {
            [one] => format!("thread {one}, its only one, waits"),
            all => format!("its threads {} wait for one another", all.join(", ")),
        };
        // Nobody may be reading.
        let _ = writeln!(
            std::io::stderr(),
            "deadheat: the program is stuck: {who}, and only a signal could wake them. \
             Ctrl-C ends it and keeps what is recorded."
        );
    }

    /// In a copy: when the next input arrives.
    pub(super) fn next_arrival(&mut self, now: u64) -> Option<u64> {
        self.io.copy()?.inputs().next_arrival(now)
    }

    /// A replay has met a signal from outside.
    pub(super) fn note_signal(&mut self, thread: u32, info: &[u8]) {
        let (time, info) = (self.now(), info.to_vec());
        self.signals_seen.push(OutsideSignal { time, thread, info });
    }

    /// In a copy: the signal from outside that comes next, if it knows those of
    /// the recorded run.
    fn next_signal(&self) -> Option<&OutsideSignal> {
        self.copy.as_ref()?;
        self.recorded_signals.get(self.signals_seen.len())
    }

    /// In a copy: how many signals from outside are still to come.
    pub fn signals_to_come(&self) -> usize {
        match self.copy {
            Some(_) => self
                .recorded_signals
                .len()
                .saturating_sub(self.signals_seen.len()),
            None => 0,
        }
    }

    /// In a copy: the next signal from outside comes now, whatever the time.
    pub fn send_next_signal(&mut self) -> Result<(), Error> {
        if let Some(signal) = self.next_signal().cloned() {
            self.signal_from_outside(signal.thread, &signal.info)?;
            self.signals_seen.push(signal);
        }
        Ok(())
    }

    /// In a copy: signals from outside come when they came in the recorded run.
    fn take_recorded_signals(&mut self) -> Result<(), Error> {
        while self.ended.is_none()
            && let Some(signal) = self.next_signal()
            && signal.time <= self.now()
        {
            self.send_next_signal()?;
        }
        Ok(())
    }

    /// Signals that have reached the vm become the guest's.
    pub(super) fn take_outside_signals(&mut self) -> Result<(), Error> {
        if self.copy.is_some() {
            return self.take_recorded_signals();
        }
        if !self.io.is_live() {
            return Ok(());
        }
        // Nothing comes after the one that ends it.
        while self.ended.is_none()
            && let Some(info) = host_signals::take()
        {
            self.may_ask_to_end(&info);
            let info = info.recorded();
            self.signal_from_outside(0, &info)?;
            self.note(Step::Signal { thread: 0, info })?;
        }
        Ok(())
    }

    /// From now on whoever sends SIGINT or SIGTERM from outside the recording
    /// wants it to come to an end: a program that does not die of it soon is ended
    /// as if by SIGKILL, at once when it is sent again.
    pub fn end_when_asked(&mut self) {
        host_signals::end_when_asked();
    }

    /// The signal that the program was ended for, if it did not end of it. Its
    /// other processes are ended as well.
    pub fn was_ended_by(&self) -> Option<i32> {
        let killed = self.ended == Some(ProcessStatus::Killed(libc::SIGKILL));
        let signal = host_signals::asked_to_end().filter(|_| killed)?;
        crate::recorder::end_others();
        Some(signal)
    }

    fn may_ask_to_end(&self, info: &SignalInfo) {
        let of_the_program = |pid| self.tree.as_ref().is_some_and(|tree| tree.has_process(pid));
        if host_signals::ENDING.contains(&info.signal()) && !of_the_program(info.sender()) {
            host_signals::ask_to_end(info.signal());
        }
    }

    /// Writes everything that has gathered to the recording.
    /// Flushes at the end of the slice.
    pub(crate) fn flush_soon(&mut self) {
        self.flushed_at = 0;
    }

    pub(crate) fn flush_recording(&mut self) -> Result<(), Error> {
        // Inputs first: a schedule without its inputs is of no use.
        self.io.flush()?;
        if let Pace::Policy {
            steps: Some(steps), ..
        } = &mut self.pace
        {
            steps.flush()?;
        }
        Ok(())
    }

    /// Looks whether host descriptors or children that threads wait for are
    /// ready, waiting for at most `timeout` nanoseconds (for ever with
    /// `None`), and makes those threads runnable.
    pub(super) fn look_outside(&mut self, timeout: Option<u64>) -> Result<(), Error> {
        if self.copy.is_some() {
            self.look_at_arrivals();
            return Ok(());
        }
        let mut polled = Vec::new();
        let mut owners = Vec::new();
        let mut child_waiters = false;
        let mut retries = false;
        let (mut woken, mut again) = (Vec::new(), Vec::new());
        for (id, thread) in &self.threads {
            if let State::Blocked(wait) = &thread.state {
                match &wait.on {
                    WaitOn::Host(interests) => {
                        for interest in interests {
                            polled.push(libc::pollfd {
                                fd: interest.fd,
                                events: interest.events,
                                revents: 0,
                            });
                            owners.push(*id);
                        }
                    }
                    WaitOn::Child => child_waiters = true,
                    WaitOn::SharedFutex { slot, sequence } => {
                        let tree = self.tree.as_ref();
                        if tree.is_some_and(|tree| tree.futex_sequence(*slot) != *sequence) {
                            woken.push(*id);
                        }
                        retries = true;
                    }
                    WaitOn::Retry => {
                        if timeout != Some(0)
                            || host_nanoseconds() - self.retried_at > RETRY_INTERVAL
                        {
                            again.push(*id);
                        }
                        retries = true;
                    }
                    _ => {}
                }
            }
        }
        let mut timeout = timeout;
        if !woken.is_empty() {
            timeout = Some(0);
        } else if retries {
            timeout = Some(timeout.map_or(RETRY_INTERVAL, |time| time.min(RETRY_INTERVAL)));
        }
        if timeout != Some(0) || !polled.is_empty() || child_waiters {
            self.poll_outside(&mut polled, &owners, child_waiters, timeout);
        }
        if !again.is_empty() {
            self.retried_at = host_nanoseconds();
        }
        for id in woken.into_iter().chain(again) {
            if let Some(thread) = self.threads.get_mut(&id) {
                thread.state = State::Runnable;
            }
        }
        Ok(())
    }

    /// Waits for host descriptors and children; whoever waits for what has
    /// come can run.
    pub(super) fn poll_outside(
        &mut self,
        polled: &mut [libc::pollfd],
        owners: &[u32],
        child_waiters: bool,
        timeout: Option<u64>,
    ) {
        let ready = kernel::outside::wait(polled, child_waiters, timeout);
        for (entry, owner) in polled.iter().zip(owners) {
            if entry.revents != 0
                && let Some(thread) = self.threads.get_mut(owner)
            {
                thread.state = State::Runnable;
            }
        }
        if ready.child {
            for thread in self.threads.values_mut() {
                if let State::Blocked(wait) = &thread.state
                    && wait.on == WaitOn::Child
                {
                    thread.state = State::Runnable;
                }
            }
        }
    }

    /// In a copy: whoever waits for the outside looks again when something has
    /// arrived since the last look.
    pub(super) fn look_at_arrivals(&mut self) {
        let now = self.now();
        let Some(copy) = &mut self.copy else {
            return;
        };
        let Some(io) = self.io.copy() else {
            return;
        };
        let from = copy.looked_at;
        copy.looked_at = from.max(now);
        let waits = |thread: &Thread| {
            matches!(&thread.state, State::Blocked(wait)
                if matches!(wait.on, WaitOn::Host(_) | WaitOn::Child))
        };
        // Who comes to wait later looks for itself first.
        if !self.threads.values().any(waits) {
            return;
        }
        let next = io.inputs().next_arrival(from);
        if next.is_some_and(|time| time <= now) {
            self.wake_outside_waiters();
        }
    }

    pub(super) fn wake_outside_waiters(&mut self) {
        for thread in self.threads.values_mut() {
            if let State::Blocked(wait) = &thread.state
                && matches!(wait.on, WaitOn::Host(_) | WaitOn::Child)
            {
                thread.state = State::Runnable;
            }
        }
    }
}

pub(super) fn host_nanoseconds() -> u64 {
    // SAFETY: plain out-parameter.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}
