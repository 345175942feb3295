//! The two orders of a race side by side: what happened in each, and what
//! came out different.
//!
//! Whoever plays both orders (paper 000, section 4; paper 003, section 3)
//! fills these in; the terminal, the page and CI show them. All of it is
//! optional: a race straight from a detector has none.

use crate::{Frame, Moment};
use serde::{Deserialize, Serialize};

/// What kind of thing differs between the two orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DifferenceKind {
    /// Bytes written to a descriptor.
    Output,
    Memory,
    Register,
    /// What the kernel keeps for the program: descriptors, signals, timers.
    Kernel,
    /// Content of a file the program wrote.
    File,
    /// How the program ended.
    Exit,
}

/// One thing that is not the same in the two orders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    pub kind: DifferenceKind,
    /// `fd 1`, `stats.total`, `rax of thread 2`, `exit code`.
    pub what: String,
    /// The code that produced it (the write call, the last store).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Frame>,
    /// As it was with the accesses in recorded order.
    pub recorded: String,
    /// As it was with the accesses swapped.
    pub swapped: String,
}

/// How many instances of a race were played in both orders, and what they
/// left (paper 000, figures 3 to 5).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Played {
    pub no_state_change: u64,
    pub state_change: u64,
    pub replay_failure: u64,
}

impl Played {
    pub fn all(&self) -> u64 {
        self.no_state_change + self.state_change + self.replay_failure
    }

    /// The instances of another recording as well.
    pub fn add(&mut self, other: &Played) {
        self.no_state_change += other.no_state_change;
        self.state_change += other.state_change;
        self.replay_failure += other.replay_failure;
    }
}

/// What an event of an order is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// One of the two racing accesses, or another access worth showing.
    Access,
    Acquire,
    Release,
    /// The scheduler went on with this thread.
    Switch,
    /// The thread began to wait.
    Block,
    Output,
    /// A signal or fault was delivered.
    Signal,
    /// The thread ended, or this is where the comparison stopped.
    End,
}

/// One thing a thread did, in an [`Order`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    pub thread: u32,
    pub kind: EventKind,
    /// `write stats.total 17 -> 18`, `lock table.lock`, `write(1, "total 17")`.
    pub text: String,
    /// Index into the race's `accesses` when this is one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moment: Option<Moment>,
}

/// One of the two executions, from the race point on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// `recorded` or `swapped`.
    pub name: String,
    /// What the threads did, in the order in which it happened.
    pub events: Vec<Event>,
    /// How it ended, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
}
