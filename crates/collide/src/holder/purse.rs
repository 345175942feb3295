//! What long holds may cost: a share of the time, never more.
//!
//! Where code runs rarely a thread is held for longer than the usual moment.
//! How many such sites a program has is not known beforehand. If they ask for
//! more than the share together, chance decides, the same for all; nothing is
//! given that has not been saved up. All or nothing, because many holds of a
//! medium length cost more than few long ones and see no more.

use std::time::{Duration, Instant};

/// Seconds over which the demand is averaged.
const MEMORY: f64 = 2.0;
/// Seconds of income that can be saved.
const SAVED: f64 = 4.0;

/// Few holds are this many times as long as a site has earned: others come by later
/// than that.
const STRETCH: u32 = 8;

/// How long a thread is held at a site that may be held for `granted` and has
/// `earned` so much: that on average, most of the time the short hold and now
/// and then a long one. `luck` is a random number below one.
pub fn length(granted: Duration, earned: Duration, short: Duration, luck: f64) -> Duration {
    let long = granted.min(earned * STRETCH);
    if long > short && luck * long.as_secs_f64() < earned.as_secs_f64() {
        long
    } else {
        short.min(granted)
    }
}

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

    /// Whether a longer hold is granted. `dice` is a random number below one.
    pub fn ask(&mut self, wish: Duration, dice: f64, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.last).as_secs_f64();
        self.last = now;
        self.saved = (self.saved + passed * self.share).min(self.share * SAVED);
        let wish = wish.as_secs_f64();
        self.demand = self.demand * (-passed / MEMORY).exp() + wish;
        let granted = wish <= self.saved && dice * self.demand < self.share * MEMORY;
        if granted {
            self.saved -= wish;
        }
        granted
    }

    /// A hold took longer than was granted.
    pub fn spend(&mut self, more: Duration) {
        self.saved -= more.as_secs_f64();
    }

    /// A hold that was granted has ended early.
    pub fn give_back(&mut self, left: Duration) {
        self.saved = (self.saved + left.as_secs_f64()).min(self.share * SAVED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_what_was_earned_on_average() {
        let [granted, short] = [15_000, 50].map(Duration::from_micros);
        for micros in [0, 10, 200, 1000, 5000, 100_000] {
            let earned = Duration::from_micros(micros);
            let lengths: Vec<Duration> = (0..1000)
                .map(|luck| length(granted, earned, short, f64::from(luck) / 1000.0))
                .collect();
            assert!(lengths.iter().all(|one| *one <= granted), "{micros}");
            let mean = lengths.iter().sum::<Duration>() / 1000;
            assert!(mean <= earned.min(granted) + short, "{micros}: {mean:?}");
            if earned >= granted {
                assert!(lengths.iter().all(|one| *one == granted));
            } else if micros > 10 {
                assert!(lengths.contains(&granted.min(earned * 8)), "{micros}");
                assert!(mean >= earned, "{micros}: {mean:?}");
            }
        }
    }

    /// Seconds granted, each second, to somebody who asks `wish` every `every`.
    fn granted(share: f64, wish: Duration, every: Duration, seconds: u32) -> Vec<f64> {
        let begun = Instant::now();
        let mut purse = Purse::new(begun);
        purse.set_share(share);
        let mut sums = vec![0.0; seconds as usize];
        let mut at = every;
        let mut dice = 0.3;
        while at < Duration::from_secs(u64::from(seconds)) {
            dice = (dice + 0.618_034) % 1.0;
            if purse.ask(wish, dice, begun + at) {
                sums[at.as_secs() as usize] += wish.as_secs_f64();
            }
            at += every;
        }
        sums
    }

    #[test]
    fn never_more_than_the_share() {
        let sums = granted(0.01, Duration::from_millis(3), Duration::from_millis(5), 10);
        let sum: f64 = sums.iter().sum();
        assert!(sums.iter().all(|sum| *sum < 0.02), "{sums:?}");
        assert!((0.07..0.1).contains(&sum), "{sums:?}");
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
        let wish = Duration::from_micros(9_500);
        assert!(purse.ask(wish, 0.5, now));
        assert!(!purse.ask(wish, 0.5, now));
        purse.give_back(wish);
        assert!(purse.ask(wish, 0.5, now));
    }
}
