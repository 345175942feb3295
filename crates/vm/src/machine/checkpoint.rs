//! Checkpoints: while recording, when the state of the whole process is noted
//! and what of it; while replaying, the comparison and what it says.
//!
//! A check of a slice knows the registers of one thread. What else can differ
//! (memory, vector registers, other threads) would only be seen at the end, as
//! one hash, so the recorder notes it in between: a hash of every page that has
//! changed since. All pages are looked at, because the kernel's own books of
//! written pages (soft-dirty) cost a fault at each of them. When is decided by
//! what it costs.

use super::{Pace, Vm};
use crate::record::Step;
use crate::record::check::{Checkpoint, PageCheck, PageTable, ThreadCheck};
use crate::space::Backing;
use crate::state::HashedMemory;
use crate::{Difference, Divergence, Error, PageDifference};

/// What a checkpoint costs, in instructions that could have been executed
/// meanwhile (three in a nanosecond): to begin; for a page of the process's
/// own, half a microsecond to copy and to hash it; for any other page mapped, a
/// word of pagemap.
const COST: u64 = 100_000;
const COST_OF_OWN: u64 = 1_500;
const COST_OF_MAPPED: u64 = 20;

/// A hundredth of the time goes into checkpoints.
const SHARE: u64 = 100;

/// Programs begin with about 64 pages of their own.
const FIRST: u64 = SHARE * (COST + 64 * COST_OF_OWN);

/// A process that has run for long has checkpoints less often: their number
/// grows with the logarithm of its length, 64 for each factor of e.
const MOST_PER_LENGTH: u64 = 64;

/// Pages that a divergence names.
const NAMED: usize = 8;

/// When the next checkpoint is due, and what the last one held.
#[derive(Default)]
pub(crate) struct Checkpoints {
    /// Instructions of all threads at the last one.
    last: u64,
    due: u64,
    pages: PageTable,
    /// Pages that this process had in memory then, the vm's among them.
    resident: u64,
}

impl Checkpoints {
    pub(crate) fn new() -> Checkpoints {
        Checkpoints {
            due: FIRST,
            resident: resident_pages(),
            ..Checkpoints::default()
        }
    }

    /// Puts the checkpoint off while the memory that has come since the last
    /// one would make it too dear.
    fn is_too_dear(&mut self, now: u64, resident: u64) -> bool {
        let new = resident.saturating_sub(self.resident);
        let cost = COST.saturating_add(new.saturating_mul(COST_OF_OWN));
        let affordable = self.last.saturating_add(cost.saturating_mul(SHARE));
        self.due = self.due.max(affordable);
        now < self.due
    }

    /// The process has just been forked: it has executed nothing, and its
    /// memory is what it was.
    pub(crate) fn restart(&mut self) {
        self.last = 0;
        self.due = FIRST;
    }

    fn plan(&mut self, now: u64, memory: &HashedMemory) {
        let own = memory.pages.len() as u64;
        let cost = COST
            .saturating_add(own.saturating_mul(COST_OF_OWN))
            .saturating_add(memory.looked_at.saturating_mul(COST_OF_MAPPED));
        let distance = cost.saturating_mul(SHARE).max(now / MOST_PER_LENGTH);
        self.last = now;
        self.resident = resident_pages();
        self.due = now.saturating_add(distance);
    }
}

impl Vm {
    /// After a slice, while recording: notes the state if it is time to.
    pub(super) fn checkpoint_if_due(&mut self) -> Result<(), Error> {
        if self.total < self.checkpoints.due || self.ended.is_some() {
            return Ok(());
        }
        if self.checkpoints.is_too_dear(self.total, resident_pages()) {
            return Ok(());
        }
        let memory = self.hash_memory();
        let checkpoint = self.checkpoint(&memory);
        self.checkpoints.plan(self.total, &memory);
        self.note(Step::Checkpoint(Box::new(checkpoint)))
    }

    /// The state as it is, and takes note of it.
    pub(super) fn checkpoint(&mut self, memory: &HashedMemory) -> Checkpoint {
        let table = table_of(memory);
        let changed = self.checkpoints.pages.changes_to(&table);
        self.checkpoints.pages = table;
        Checkpoint {
            threads: self.thread_checks(),
            changed,
        }
    }

    fn thread_checks(&self) -> Vec<ThreadCheck> {
        let check = |id: &u32| {
            let regs = self.registers(*id)?;
            Some(ThreadCheck::of(*id, &regs, &self.vector_words(*id)))
        };
        self.threads.keys().filter_map(check).collect()
    }

    /// The recording has a checkpoint here: everything must be as it says.
    pub(super) fn compare_checkpoint(
        &mut self,
        recorded: &Checkpoint,
        memory: &HashedMemory,
    ) -> Result<(), Error> {
        if self.rewrites_checks() {
            let checkpoint = self.checkpoint(memory);
            if let Pace::Follow(steps) = &mut self.pace {
                steps.rewrite(&Step::Checkpoint(Box::new(checkpoint)))?;
            }
            return Ok(());
        }
        let expected = self.checkpoints.pages.changed_by(&recorded.changed);
        let found = table_of(memory);
        let pages = expected.changes_to(&found);
        let threads = self.thread_checks();
        if threads == recorded.threads && pages.is_empty() {
            self.checkpoints.last = self.total;
            self.checkpoints.pages = expected;
            return Ok(());
        }
        let same_threads = threads
            .iter()
            .map(|one| one.thread)
            .eq(recorded.threads.iter().map(|one| one.thread));
        if !same_threads {
            return Err(Divergence::new(format!(
                "other threads are alive than in the recorded run: {:?}, recorded {:?}",
                numbers(&threads),
                numbers(&recorded.threads)
            ))
            .into());
        }
        let registers = threads
            .iter()
            .zip(&recorded.threads)
            .find(|(now, then)| now != then)
            .map(|(now, then)| Difference::Registers {
                thread: now.thread,
                names: then.differing(now),
            });
        let difference = registers.unwrap_or_else(|| self.page_difference(&pages));
        Err(Box::new(Divergence {
            since: Some(self.checkpoints.last),
            until: Some(self.instructions()),
            difference: Some(difference),
            ..*Divergence::new("the state is not the recorded one".to_string())
        })
        .into())
    }

    fn rewrites_checks(&self) -> bool {
        matches!(&self.pace, Pace::Follow(steps) if steps.rewrites())
    }

    fn page_difference(&self, pages: &[PageCheck]) -> Difference {
        let first = pages.iter().take(NAMED).map(|page| PageDifference {
            address: page.address,
            what: self.name_of(page.address),
            missing: page.hash == 0,
        });
        Difference::Pages {
            first: first.collect(),
            count: pages.len(),
        }
    }

    /// What lies at an address, in words.
    pub fn name_of(&self, address: u64) -> String {
        let Some((range, mapping)) = self.space.find(address) else {
            return "nothing is mapped there".to_string();
        };
        let stack = self.threads.keys().find_map(|id| {
            let top = self.registers(*id)?.gpr[crate::context::reg::RSP];
            range.contains(&top).then_some((*id, top))
        });
        match (&mapping.backing, stack) {
            (Backing::File { path, offset }, _) => format!(
                "written memory of {}, from {:#x} in the file on",
                path.display(),
                offset + (address - range.start)
            ),
            (Backing::Heap, _) => format!(
                "the heap, {:#x} bytes from its start",
                address - range.start
            ),
            (_, Some((thread, top))) if address + crate::layout::PAGE <= top => format!(
                "the stack of thread {thread}, {:#x} bytes below its stack pointer and unused",
                top - address
            ),
            (_, Some((thread, _))) => format!("the stack of thread {thread}"),
            (Backing::Stack, None) => "the stack of the first thread".to_string(),
            (Backing::Vdso, None) => "the vdso".to_string(),
            (Backing::Anonymous, None) => format!(
                "anonymous memory of {:#x} bytes, {:#x} from its start",
                range.end - range.start,
                address - range.start
            ),
        }
    }
}

/// Pages of this process that are in memory; 0 where the kernel does not tell.
fn resident_pages() -> u64 {
    std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').nth(1)?.parse().ok())
        .unwrap_or(0)
}

fn table_of(memory: &HashedMemory) -> PageTable {
    let page = |page: &crate::state::HashedPage| PageCheck::new(page.address, page.digest);
    PageTable::new(memory.pages.iter().map(page).collect())
}

fn numbers(threads: &[ThreadCheck]) -> Vec<u32> {
    threads.iter().map(|one| one.thread).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_become_rarer() {
        let memory = HashedMemory {
            looked_at: 2000,
            ..HashedMemory::default()
        };
        let mut checkpoints = Checkpoints::new();
        let (mut now, mut count) = (0, 0);
        // An hour at three instructions in a nanosecond.
        while now < 3_600 * 3_000_000_000 {
            now = checkpoints.due;
            checkpoints.plan(now, &memory);
            count += 1;
        }
        assert!((300..1000).contains(&count), "{count}");
    }

    #[test]
    fn memory_that_came_at_once_puts_a_checkpoint_off() {
        let mut checkpoints = Checkpoints::new();
        let before = checkpoints.resident;
        assert!(!checkpoints.is_too_dear(FIRST, before));
        assert!(checkpoints.is_too_dear(FIRST, before + 100_000));
        let later = SHARE * (COST + 100_000 * COST_OF_OWN);
        assert!(!checkpoints.is_too_dear(later, before + 100_000));
    }

    #[test]
    fn much_memory_is_looked_at_seldom() {
        let mut checkpoints = Checkpoints::new();
        let memory = HashedMemory {
            looked_at: u64::MAX,
            ..HashedMemory::default()
        };
        checkpoints.plan(1000, &memory);
        assert_eq!(checkpoints.due, u64::MAX);
    }
}
