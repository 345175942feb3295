//! One side of a race.

use crate::site::hex;
use crate::{Frame, Moment, Site};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What an access does to its location.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessKind {
    Read,
    Write,
    /// The block was given back to its allocator: counts as a write of all of
    /// it.
    Free,
    /// The other side was not seen (a repeated-read catch of the sampler).
    Unknown,
}

/// One access of a race: where in the code, which thread, when, and what it
/// read or wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    pub kind: AccessKind,
    /// Bytes touched; 0 when not known.
    pub size: u32,
    /// The program means this access to be atomic (locked instruction, or
    /// debug info says so).
    pub atomic: bool,
    #[serde(flatten)]
    pub site: Site,
    /// The call that says what it works on, where the access is in a function
    /// that works on whatever it is given (`put(&slot)`, an operator).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<Site>,
    #[serde(default, with = "hex", skip_serializing_if = "Option::is_none")]
    pub address: Option<u64>,
    /// Guest thread number in the vm, kernel thread id in native tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moment: Option<Moment>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<Frame>,
    /// Where the thread was created, innermost frame first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub thread_created_at: Vec<Frame>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_before: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_after: Option<String>,
    /// Integer registers at the access, as a native tool saw them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub registers: BTreeMap<String, String>,
    /// Locks held, as text (`mutex table.lock`, `mutex at 0x…`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locks: Vec<String>,
}

impl Access {
    /// An access of which only the bare facts are known.
    pub fn new(kind: AccessKind, size: u32, site: Site) -> Self {
        Access {
            kind,
            size,
            atomic: false,
            site,
            caller: None,
            address: None,
            thread: None,
            thread_name: None,
            moment: None,
            stack: Vec::new(),
            thread_created_at: Vec::new(),
            value_before: None,
            value_after: None,
            registers: BTreeMap::new(),
            locks: Vec::new(),
        }
    }

    /// The function whose business the access is: the one that chose the
    /// object.
    pub fn role(&self) -> &Site {
        self.caller.as_ref().unwrap_or(&self.site)
    }

    /// The other side of a race when nobody saw it.
    pub fn unseen() -> Self {
        Access::new(AccessKind::Unknown, 0, Site::default())
    }
}
