//! What long holds may cost: a share of the time, never more.
//!
//! Where code runs rarely a thread is held for longer than the usual moment.
//! How many such sites a program has is not known beforehand, so what they ask
//! for together is scaled down to the share, each in proportion, and nothing is
//! given that has not been saved up.

use std::time::{Duration, Instant};

/// Seconds over which the demand is averaged.
const MEMORY: f64 = 2.0;
/// Seconds of income that can be saved.
const SAVED: f64 = 4.0;

#[derive(Debug)]
pub struct Purse {
    /// The share of the time that may be spent.
    share: f64,
    /// Seconds saved up.
    saved: f64,
    /// Seconds asked for, older ones fading.
    demand: f64,
    last: Instant,
}

impl Purse {
    pub fn new(now: Instant) -> Purse {
        Purse {
            share: 0.0,
            saved: 0.0,
            demand: 0.0,
            last: now,
        }
    }

    pub fn set_share(&mut self, share: f64) {
        self.share = share;
    }

    /// How much of a longer hold is granted.
    pub fn ask(&mut self, wish: Duration, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.last).as_secs_f64();
        self.last = now;
        self.saved = (self.saved + passed * self.share).min(self.share * SAVED);
        let wish = wish.as_secs_f64();
        self.demand = self.demand * (-passed / MEMORY).exp() + wish;
        let scale = (self.share * MEMORY / self.demand.max(1e-9)).min(1.0);
        let granted = (wish * scale).min(self.saved).max(0.0);
        self.saved -= granted;
        Duration::from_secs_f64(granted)
    }

    /// A hold that was granted has ended early.
    pub fn give_back(&mut self, left: Duration) {
        self.saved = (self.saved + left.as_secs_f64()).min(self.share * SAVED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds granted, each second, to somebody who asks `wish` every `every`.
    fn granted(share: f64, wish: Duration, every: Duration, seconds: u32) -> Vec<f64> {
        let begun = Instant::now();
        let mut purse = Purse::new(begun);
        purse.set_share(share);
        let mut sums = vec![0.0; seconds as usize];
        let mut at = every;
        while at < Duration::from_secs(u64::from(seconds)) {
            sums[at.as_secs() as usize] += purse.ask(wish, begun + at).as_secs_f64();
            at += every;
        }
        sums
    }

    #[test]
    fn never_more_than_the_share() {
        let sums = granted(0.01, Duration::from_millis(3), Duration::from_millis(5), 10);
        assert!(sums.iter().all(|sum| *sum < 0.0125), "{sums:?}");
        assert!(sums[9] > 0.007, "{sums:?}");
    }

    #[test]
    fn who_asks_for_little_gets_it_all() {
        let sums = granted(
            0.01,
            Duration::from_micros(500),
            Duration::from_millis(100),
            5,
        );
        assert!((sums[4] - 0.005).abs() < 1e-4, "{sums:?}");
    }

    #[test]
    fn what_was_not_used_can_be_granted_again() {
        let begun = Instant::now();
        let mut purse = Purse::new(begun);
        purse.set_share(0.01);
        let now = begun + Duration::from_secs(1);
        let first = purse.ask(Duration::from_millis(10), now);
        assert!(first > Duration::from_millis(9), "{first:?}");
        assert!(purse.ask(Duration::from_millis(10), now) < Duration::from_millis(1));
        purse.give_back(first);
        assert!(purse.ask(Duration::from_millis(10), now) > Duration::from_millis(3));
    }
}
