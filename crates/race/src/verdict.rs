//! The answers deadheat can give about a race, in the order in which a report
//! lists them.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The final word on a race, worst first (paper 003, section 2.3, with the
/// states answer of paper 000 while exploration has not run).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    SpecViolated,
    OutputDiffers,
    StateChange,
    SingleOrdering,
    KWitnessHarmless,
    NotARace,
    #[default]
    Unclassified,
}

impl Verdict {
    /// Every verdict in report order; a race nobody has looked at yet comes
    /// before those that were looked at and found harmless.
    pub const REPORT_ORDER: [Verdict; 7] = [
        Verdict::SpecViolated,
        Verdict::OutputDiffers,
        Verdict::StateChange,
        Verdict::Unclassified,
        Verdict::SingleOrdering,
        Verdict::KWitnessHarmless,
        Verdict::NotARace,
    ];

    /// Position in `REPORT_ORDER`.
    pub fn rank(self) -> usize {
        Self::REPORT_ORDER
            .iter()
            .position(|verdict| *verdict == self)
            .unwrap_or(usize::MAX)
    }

    /// The name used in JSON, on the command line and in rule ids.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::SpecViolated => "spec-violated",
            Verdict::OutputDiffers => "output-differs",
            Verdict::StateChange => "state-change",
            Verdict::SingleOrdering => "single-ordering",
            Verdict::KWitnessHarmless => "k-witness-harmless",
            Verdict::NotARace => "not-a-race",
            Verdict::Unclassified => "unclassified",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name().replace('-', " "))
    }
}

/// What a spec-violated or output-differs race does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Consequence {
    Crash,
    Deadlock,
    Hang,
    MemoryError,
    Assert,
    Invariant,
    Output,
}

/// The Record/Replay Analyzer's answer over all instances (paper 000, section
/// 4.2), kept in the paper's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum States {
    NoStateChange,
    StateChange,
    ReplayFailure,
}

impl fmt::Display for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            States::NoStateChange => "No-State-Change",
            States::StateChange => "State-Change",
            States::ReplayFailure => "Replay-Failure",
        })
    }
}

/// Labels a detector or a pruning step may put on a race. A label says what
/// was recognised; it never hides the race.
pub mod labels {
    pub const MIXED_ATOMIC: &str = "mixed-atomic";
    pub const ORDER_UNKNOWN: &str = "order-unknown";
    pub const HOME_MADE_LOCK: &str = "home-made-lock";
    pub const AD_HOC_SYNC: &str = "ad-hoc-sync";
    pub const STATISTICS_COUNTER: &str = "statistics-counter";
    pub const REFERENCE_COUNT: &str = "reference-count";
    pub const DISJOINT_BITS: &str = "disjoint-bits";
    pub const REDUNDANT_WRITE: &str = "redundant-write";
    pub const DOUBLE_CHECK: &str = "double-check";
    pub const BOTH_VALUES_VALID: &str = "both-values-valid";
    pub const SPECIAL_VARIABLE: &str = "special-variable";
    pub const SCHEDULE_DEPENDENT_OUTPUT: &str = "schedule-dependent-output";
    pub const APPROXIMATE: &str = "approximate-computation";
    pub const DIFFERENCE_DIES: &str = "difference-dies";
    pub const ALLOCATOR_ONLY: &str = "allocator-only";
    pub const UNKNOWN_WRITER: &str = "unknown-writer";
    pub const TORN_READ: &str = "torn-read";
    pub const UNINITIALISED_READ: &str = "uninitialised-read";
}
