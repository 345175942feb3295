//! What went wrong in an execution that did not have to end for it.

use super::heap::Block;
use crate::names;
use race::{Consequence, ErrorFinding, Frame, LockCall, Moment};
use serde::{Deserialize, Serialize};

/// Which rule was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    HeapOverflow,
    HeapUnderflow,
    UseAfterFree,
    DoubleFree,
    InvalidFree,
    WildAccess,
    ReturnAddress,
    OutOfBounds,
    Invariant,
}

impl ErrorKind {
    /// The name in reports and tests.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::HeapOverflow => "heap-overflow",
            ErrorKind::HeapUnderflow => "heap-underflow",
            ErrorKind::UseAfterFree => "use-after-free",
            ErrorKind::DoubleFree => "double-free",
            ErrorKind::InvalidFree => "invalid-free",
            ErrorKind::WildAccess => "wild-access",
            ErrorKind::ReturnAddress => "return-address-overwritten",
            ErrorKind::OutOfBounds => "out-of-bounds",
            ErrorKind::Invariant => "invariant-violated",
        }
    }
}

/// The block concerned and where in it, or how far from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    pub start: u64,
    pub size: u64,
    pub allocated: Moment,
    pub freed: Option<Moment>,
    /// From the block's first byte.
    pub offset: i64,
}

impl Memory {
    pub fn of(block: &Block, address: u64) -> Memory {
        Memory {
            start: block.start,
            size: block.size,
            allocated: block.allocated,
            freed: block.freed,
            offset: address.wrapping_sub(block.start) as i64,
        }
    }

    fn describe(&self) -> String {
        let size = self.size;
        match self.offset {
            before @ ..0 => format!("{} before a block of {size} bytes", bytes(-before as u64)),
            within if (within as u64) < size => format!("{within} bytes into a block of {size}"),
            behind => format!(
                "{} behind a block of {size} bytes",
                bytes(behind as u64 - size + 1)
            ),
        }
    }
}

fn bytes(number: u64) -> String {
    format!("{number} byte{}", if number == 1 { "" } else { "s" })
}

/// One thing that went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub kind: ErrorKind,
    pub moment: Moment,
    /// The instruction, or the function that was called.
    pub pc: u64,
    /// What tells it from others of its kind: the instruction, or where the
    /// function was called.
    pub site: u64,
    pub address: u64,
    pub size: u64,
    pub write: bool,
    pub memory: Option<Memory>,
    /// What there is to say besides: the invariant and its values.
    pub detail: String,
    pub stack: Vec<Frame>,
    pub allocated_at: Vec<Frame>,
    pub freed_at: Vec<Frame>,
}

impl Finding {
    pub fn consequence(&self) -> Consequence {
        match self.kind {
            ErrorKind::Invariant => Consequence::Invariant,
            _ => Consequence::MemoryError,
        }
    }

    /// The same error, whichever execution it was seen in.
    pub fn is_same(&self, other: &Finding) -> bool {
        // Where an index leads may differ from one execution to the next.
        let is_array = self.kind == ErrorKind::OutOfBounds;
        self.kind == other.kind
            && (is_array || self.detail == other.detail)
            && names::own_place(&self.stack) == names::own_place(&other.stack)
    }

    /// Moments whose stacks belong to it.
    pub fn moments(&self) -> impl Iterator<Item = Moment> + use<> {
        let memory = self.memory;
        [
            Some(self.moment),
            memory.map(|memory| memory.allocated),
            memory.and_then(|memory| memory.freed),
        ]
        .into_iter()
        .flatten()
    }

    /// One sentence without a subject: `writes 4 bytes …`.
    pub fn describe(&self) -> String {
        let at = names::own_place(&self.stack);
        let thread = self.moment.thread;
        let verb = if self.write { "writes" } else { "reads" };
        let size = bytes(self.size);
        let place = self
            .memory
            .as_ref()
            .map(Memory::describe)
            .unwrap_or_default();
        let allocated = match own_words(&self.allocated_at) {
            Some(words) => format!(", allocated at {words}"),
            None => String::new(),
        };
        let freed = match (
            self.memory.and_then(|memory| memory.freed),
            own_words(&self.freed_at),
        ) {
            (Some(freed), Some(words)) => format!(", freed by thread {} at {words}", freed.thread),
            (Some(freed), None) => format!(", freed by thread {}", freed.thread),
            _ => String::new(),
        };
        match self.kind {
            ErrorKind::HeapOverflow => {
                format!(
                    "{verb} {size} past the end of a heap block in thread {thread} at {at} ({place}{allocated})"
                )
            }
            ErrorKind::HeapUnderflow => {
                format!(
                    "{verb} {size} before the beginning of a heap block in thread {thread} at {at} ({place}{allocated})"
                )
            }
            ErrorKind::UseAfterFree => {
                format!(
                    "{verb} {size} of freed memory in thread {thread} at {at} ({place}{allocated}{freed})"
                )
            }
            ErrorKind::DoubleFree => {
                format!(
                    "frees a block twice in thread {thread} at {at} ({place}{allocated}{freed})"
                )
            }
            ErrorKind::InvalidFree => {
                let what = match (&self.memory, self.detail.as_str()) {
                    (Some(_), _) => place,
                    (None, "") => format!("{:#x}", self.address),
                    (None, detail) => detail.to_string(),
                };
                format!("frees what is no block in thread {thread} at {at} ({what}{allocated})")
            }
            ErrorKind::WildAccess => {
                format!(
                    "{verb} {size} of memory that the allocator keeps for itself in thread {thread} at {at} (address {:#x}, in no block)",
                    self.address
                )
            }
            ErrorKind::ReturnAddress => {
                format!(
                    "overwrites a return address in thread {thread} at {at} ({})",
                    self.detail
                )
            }
            ErrorKind::OutOfBounds => {
                format!(
                    "{verb} {size} outside an array in thread {thread} at {at} ({})",
                    self.detail
                )
            }
            ErrorKind::Invariant => {
                format!(
                    "breaks the invariant {} by what thread {thread} writes at {at}",
                    self.detail
                )
            }
        }
    }

    /// As it stands in a report.
    pub fn reported(&self) -> ErrorFinding {
        let what = match self.kind {
            ErrorKind::DoubleFree | ErrorKind::InvalidFree => "frees",
            _ if self.write => "writes",
            _ => "reads",
        };
        let mut stacks = vec![LockCall {
            what: what.to_string(),
            moment: self.moment,
            stack: self.stack.clone(),
        }];
        if let Some(memory) = self.memory {
            if !self.allocated_at.is_empty() {
                stacks.push(LockCall {
                    what: "allocated the block".to_string(),
                    moment: memory.allocated,
                    stack: self.allocated_at.clone(),
                });
            }
            if let Some(freed) = memory.freed
                && !self.freed_at.is_empty()
            {
                stacks.push(LockCall {
                    what: "freed the block".to_string(),
                    moment: freed,
                    stack: self.freed_at.clone(),
                });
            }
        }
        ErrorFinding {
            kind: self.kind.name().to_string(),
            text: format!("the program {}", self.describe()),
            stacks,
        }
    }
}

fn own_words(stack: &[Frame]) -> Option<String> {
    names::own_frame(stack).map(names::place)
}
