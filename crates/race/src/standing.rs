//! What people have said about a race, and how it stands against what was
//! known before. Analyses leave these empty; the report fills them in.

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
    /// `accepted`, `bug`, `fixed`, `question`.
    pub state: String,
    pub author: String,
    /// UTC, `2026-11-15T21:40:00Z`.
    pub date: String,
    pub reason: String,
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
