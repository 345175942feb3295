//! Holds the sampling rate or the overhead where the user wants it (paper 002,
//! section 3.1.2, which holds a rate only).
//!
//! The cost of sampling is measured, not assumed: the time threads were
//! stopped, the CPU time of holder and front end that was not spent while a
//! thread was stopped anyway, and the traps. Time stopped counts in full, as
//! if everybody had waited, because at a lock or barrier everybody does. Long
//! waits, which end early when nobody makes progress, and holds in which another
//! thread is let run are divided by the number of CPUs the program keeps busy.
//! Waits, at code that runs rarely enough to earn more than the short hold, have
//! a share of their own, which the holder keeps (`holder::purse`). The pace
//! follows what the rest costs, in what the waits have left.

/// What the user asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// Samples per second, whatever they cost.
    Rate(f64),
    /// Share of the program's time.
    Overhead(f64),
}

/// What one interval cost.
#[derive(Debug, Clone, Copy, Default)]
pub struct Interval {
    pub seconds: f64,
    /// CPU seconds of both processes, without those spent while a thread was
    /// held anyway.
    pub tool_cpu: f64,
    /// Seconds threads were stopped, without what follows.
    pub short_stops: f64,
    /// Seconds threads were stopped while another ran in the holder's place.
    pub naps: f64,
    /// Seconds threads were held for longer, up to a millisecond.
    pub middle_stops: f64,
    /// Seconds threads were held longer than a millisecond.
    pub long_stops: f64,
    /// Breakpoints and data breakpoints hit.
    pub traps: u64,
    /// Breakpoints run into when another thread was being held at them.
    pub bounced: u64,
    /// Data breakpoints set on other CPUs.
    pub armed: u64,
    pub samples: u64,
    /// CPU seconds the program used.
    pub program_cpu: f64,
    pub cpus: f64,
}

/// CPU seconds that a trap costs the program beyond the time its thread is seen
/// to be stopped: entry and signal, caches that the holder has used meanwhile,
/// a CPU that stands idle until threads are spread again. Measured as the loss
/// of compressors and of threads that take locks, with sampling and without.
const TRAP: f64 = 60e-6;
/// CPU seconds that a data breakpoint takes from the CPU it is set on: two
/// interrupts. Measured with a thread that looks at the clock all the time.
const ARM: f64 = 25e-6;
/// The same for a thread that comes second to a breakpoint and is sent on:
/// measured with 64 threads, of which three do for every one that is held.
const BOUNCE: f64 = 40e-6;
/// Seconds between two settings of the pace: long enough to see what the last
/// one did.
const SETTING: f64 = 0.4;
/// With this many live locations there is enough to sample, and looking for
/// more has time.
const ENOUGH: usize = 64;
/// The share of the goal that waits may use.
const WAITS: f64 = 0.12;
/// Samples a second that the default goal gives most programs.
const USUAL_RATE: f64 = 300.0;

/// Sums since the pace was last set.
#[derive(Debug, Clone, Default)]
struct Since {
    seconds: f64,
    /// All costs but waits.
    rest: f64,
    samples: f64,
}

#[derive(Debug, Clone)]
pub struct Controller {
    goal: Goal,
    /// Breakpoints planted at live code per second.
    pace: f64,
    /// Averages over about a second.
    overhead: f64,
    waits: f64,
    rate: f64,
    age: f64,
    since: Since,
}

impl Controller {
    pub fn new(goal: Goal) -> Controller {
        let pace = match goal {
            Goal::Rate(rate) => rate,
            Goal::Overhead(share) => (share * 6000.0).clamp(1.0, 500.0),
        };
        Controller {
            goal,
            pace,
            overhead: 0.0,
            waits: 0.0,
            rate: 0.0,
            age: 0.0,
            since: Since::default(),
        }
    }

    /// Takes in what the last interval cost and sets the pace anew.
    pub fn measure(&mut self, interval: &Interval) {
        if interval.seconds <= 0.0 {
            return;
        }
        let parallel = (interval.program_cpu / interval.seconds).max(1.0);
        let waits = (interval.middle_stops + interval.long_stops / parallel) / interval.seconds;
        let cpu = interval.tool_cpu
            + interval.traps as f64 * TRAP
            + interval.armed as f64 * ARM
            + interval.bounced as f64 * BOUNCE;
        let stops = interval.short_stops + interval.naps / parallel;
        let rest = (stops + cpu / interval.cpus.max(1.0)) / interval.seconds;
        // Averages over about a second; at the beginning over what there is.
        self.age += interval.seconds;
        let weight = (interval.seconds / self.age.min(1.0)).min(1.0);
        self.overhead += weight * (waits + rest - self.overhead);
        self.waits += weight * (waits - self.waits);
        self.rate += weight * (interval.samples as f64 / interval.seconds - self.rate);
        self.since.seconds += interval.seconds;
        self.since.rest += rest * interval.seconds;
        self.since.samples += interval.samples as f64;
        // What costs far more than was thought does not wait for its turn.
        let overspent = self.since.rest > 2.0 * self.goal_share() * SETTING;
        if self.since.seconds >= SETTING || overspent {
            self.set_pace();
        }
    }

    fn set_pace(&mut self) {
        let Since {
            seconds,
            rest,
            samples,
        } = std::mem::take(&mut self.since);
        let (factor, lowest, highest) = match self.goal {
            Goal::Rate(rate) if rate > 0.0 => {
                (rate / (samples / seconds).max(rate / 2.0), 1.0, rate * 4.0)
            }
            Goal::Rate(_) => (0.0, 0.0, 0.0),
            Goal::Overhead(share) => {
                let left = (share - self.waits).max(share / 4.0);
                let factor = left / (rest / seconds).max(left / 2.0);
                (factor, (share * 200.0).clamp(1.0, 20.0), 5000.0)
            }
        };
        self.pace = (self.pace * factor.clamp(0.2, 1.4)).clamp(lowest, highest);
    }

    /// Breakpoints to plant at live code per second.
    pub fn pace(&self) -> f64 {
        self.pace
    }

    /// Locations that may be swept or stand cold in an interval, by what is
    /// left of the goal. `each` is the cost of one in CPU seconds, `live` how
    /// many locations there are to sample.
    pub fn allowance(&self, seconds: f64, each: f64, cpus: f64, live: usize) -> usize {
        let share = self.goal_share();
        let left = match self.goal {
            Goal::Rate(rate) if rate <= 0.0 => return 0,
            Goal::Rate(_) => share,
            // A sweep may always use a part, so that it comes to an end.
            Goal::Overhead(_) if live < ENOUGH => (share - self.overhead).max(share / 4.0),
            Goal::Overhead(_) => (share - self.overhead).max(share / 10.0),
        };
        (left * seconds * cpus / each) as usize
    }

    /// The share of the time that waits may take. Where a rate is asked for that
    /// says what the rest may cost, and waits may take all of the default goal;
    /// less at a low rate, which is asked for to be cheap.
    pub fn wait_share(&self) -> f64 {
        match self.goal {
            Goal::Overhead(share) => share * WAITS,
            Goal::Rate(rate) => self.goal_share() * (rate / USUAL_RATE).min(1.0),
        }
    }

    /// The share of the time that may be spent: the goal, or the default goal
    /// where a rate is asked for.
    pub fn goal_share(&self) -> f64 {
        match self.goal {
            Goal::Overhead(share) => share,
            Goal::Rate(_) => 0.05,
        }
    }

    pub fn overhead(&self) -> f64 {
        self.overhead
    }

    pub fn rate(&self) -> f64 {
        self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program in which every sample costs `each` seconds.
    fn settle(goal: Goal, each: f64) -> Controller {
        let mut controller = Controller::new(goal);
        for _ in 0..200 {
            let samples = (controller.pace() * 0.1) as u64;
            controller.measure(&Interval {
                seconds: 0.1,
                short_stops: samples as f64 * each,
                samples,
                program_cpu: 0.1,
                cpus: 2.0,
                ..Interval::default()
            });
        }
        controller
    }

    #[test]
    fn overhead_settles_at_the_goal() {
        for each in [20e-6, 100e-6, 1e-3] {
            let controller = settle(Goal::Overhead(0.05), each);
            assert!(
                (0.035..0.065).contains(&controller.overhead()),
                "{each}: {controller:?}"
            );
        }
    }

    #[test]
    fn rate_settles_at_the_goal() {
        let controller = settle(Goal::Rate(300.0), 1e-4);
        assert!(
            (250.0..350.0).contains(&controller.rate()),
            "{controller:?}"
        );
    }

    #[test]
    fn waits_cost_little_at_a_low_rate() {
        let share = |rate| Controller::new(Goal::Rate(rate)).wait_share();
        assert_eq!(share(1000.0), 0.05);
        assert!(share(30.0) < 0.006);
    }

    #[test]
    fn rate_zero_plants_nothing() {
        let controller = settle(Goal::Rate(0.0), 1e-4);
        assert_eq!(controller.pace(), 0.0);
        assert_eq!(controller.allowance(1.0, 1e-6, 2.0, 0), 0);
    }

    #[test]
    fn what_waits_cost_is_not_there_for_samples() {
        let mut controller = Controller::new(Goal::Overhead(0.05));
        for _ in 0..200 {
            let samples = (controller.pace() * 0.1) as u64;
            controller.measure(&Interval {
                seconds: 0.1,
                short_stops: samples as f64 * 100e-6,
                middle_stops: 0.002,
                samples,
                program_cpu: 0.1,
                cpus: 2.0,
                ..Interval::default()
            });
        }
        assert!(
            (0.045..0.055).contains(&controller.overhead()),
            "{controller:?}"
        );
    }
}
