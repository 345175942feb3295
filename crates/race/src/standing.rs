//! What people have said about a race, and how it stands against what was
//! known before. Analyses leave these empty; the report fills them in.

use crate::Verdict;
use serde::{Deserialize, Serialize};

/// The suppression that matched a race.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suppressed {
    /// File and line of the suppression, `team.supp:12`.
    pub by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a person decided about a race.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// `harmless`, `harmful`, `ignore`, `accepted`, `bug`, `fixed`, `question`.
    pub state: String,
    pub author: String,
    /// UTC, `2026-11-15T21:40:00Z`.
    pub date: String,
    pub reason: String,
}

impl Mark {
    /// Somebody has looked at the race and decided to live with it.
    pub fn accepts(&self) -> bool {
        ["accepted", "harmless", "ignore"].contains(&self.state.as_str())
    }

    /// Why the verdict found `now` speaks against this mark, which was given
    /// when the verdict was `then`. A race that is to be ignored is ignored
    /// whatever it does.
    pub fn contradicted_by(&self, then: Verdict, now: Verdict) -> Option<String> {
        let worse = now.rank() < then.rank();
        let cleared = now.rank() > Verdict::Unclassified.rank() && now.rank() > then.rank();
        let against = match self.state.as_str() {
            "harmless" | "accepted" => worse,
            "harmful" | "bug" => cleared,
            "fixed" => true,
            _ => false,
        };
        against.then(|| match self.state.as_str() {
            "fixed" => format!("seen again since: {now}"),
            _ => format!("{then} when it was marked, {now} now"),
        })
    }
}

/// A race against a baseline file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// The baseline does not have it.
    New,
    /// The baseline has it with a verdict that is less bad.
    Worse,
    /// The baseline has it with this verdict or a worse one.
    Known,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(state: &str) -> Mark {
        Mark {
            state: state.into(),
            author: "ada".into(),
            date: "2026-11-15T21:40:00Z".into(),
            reason: "because".into(),
        }
    }

    #[test]
    fn new_evidence_speaks_against_a_mark() {
        use Verdict::*;
        for (state, then, now, against) in [
            ("harmless", Unclassified, StateChange, true),
            ("harmless", StateChange, StateChange, false),
            ("harmless", StateChange, SpecViolated, true),
            ("harmless", StateChange, KWitnessHarmless, false),
            ("accepted", StateChange, OutputDiffers, true),
            ("ignore", Unclassified, SpecViolated, false),
            ("harmful", StateChange, KWitnessHarmless, true),
            ("harmful", StateChange, SpecViolated, false),
            ("harmful", StateChange, Unclassified, false),
            ("fixed", StateChange, StateChange, true),
            ("question", StateChange, SpecViolated, false),
        ] {
            let found = mark(state).contradicted_by(then, now);
            assert_eq!(found.is_some(), against, "{state}: {then} then, {now} now");
        }
    }
}
