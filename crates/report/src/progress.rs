//! Progress of a long phase, on one line of standard error.
//!
//! Silent unless standard error is a terminal, so logs and pipes stay clean,
//! and silent for phases that end quickly. The line is wiped when the phase is
//! over or given up.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// A phase shorter than this shows nothing.
const PATIENCE: Duration = Duration::from_millis(700);
/// Time between two lines.
const PACE: Duration = Duration::from_millis(120);

/// One phase, `classifying 12 of 340 races`.
#[derive(Debug)]
pub struct Progress {
    label: String,
    unit: &'static str,
    total: Option<u64>,
    started: Instant,
    shown: Option<Instant>,
    wanted: bool,
}

impl Progress {
    /// Begins a phase of `total` steps, if it is known how many.
    pub fn new(label: &str, unit: &'static str, total: Option<u64>) -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Progress {
            label: label.to_string(),
            unit,
            total,
            started: Instant::now(),
            shown: None,
            wanted: std::io::stderr().is_terminal() && !dumb,
        }
    }

    /// `done` steps are behind us. Cheap: call it as often as you like.
    pub fn at(&mut self, done: u64) {
        if !self.wanted || self.started.elapsed() < PATIENCE {
            return;
        }
        if self.shown.is_none_or(|before| before.elapsed() >= PACE) {
            self.shown = Some(Instant::now());
            let line = self.line(done, self.started.elapsed());
            // A terminal that cannot be written to must not stop the work.
            let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
        }
    }

    fn line(&self, done: u64, so_far: Duration) -> String {
        let Progress { label, unit, .. } = self;
        let seconds = so_far.as_secs();
        match self.total {
            Some(total) if total > 0 => {
                let left = match done {
                    0 => String::new(),
                    _ => {
                        let all = so_far.as_secs_f64() * total as f64 / done as f64;
                        let left = (all - so_far.as_secs_f64()).max(0.0);
                        format!(", about {left:.0} s left")
                    }
                };
                format!("{label} {done} of {total} {unit}, {seconds} s{left}")
            }
            _ => format!("{label} {done} {unit}, {seconds} s"),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_how_far_and_how_long() {
        let known = Progress::new("classifying", "races", Some(340));
        assert_eq!(
            known.line(34, Duration::from_secs(10)),
            "classifying 34 of 340 races, 10 s, about 90 s left"
        );
        assert_eq!(
            known.line(0, Duration::from_secs(1)),
            "classifying 0 of 340 races, 1 s"
        );
        let open = Progress::new("recording", "switches", None);
        assert_eq!(
            open.line(7, Duration::from_secs(2)),
            "recording 7 switches, 2 s"
        );
    }
}
