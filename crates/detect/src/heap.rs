//! Blocks of the heap: where they are, who allocated them and when.

use race::Moment;
use std::collections::BTreeMap;

/// One allocated block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    pub start: u64,
    pub size: u64,
    /// The call of the allocator.
    pub moment: Moment,
    /// Position of that call in the order of all events.
    pub order: u64,
    /// Allocated by the C library for itself.
    pub by_library: bool,
}

/// All live blocks.
#[derive(Debug, Default)]
pub struct Heap {
    blocks: BTreeMap<u64, Block>,
}

impl Heap {
    /// Enters a block; what overlaps it cannot be alive any more.
    pub fn allocate(&mut self, block: Block) {
        let stale: Vec<u64> = self
            .blocks
            .range(..block.start.saturating_add(block.size.max(1)))
            .rev()
            .take_while(|(_, known)| known.start + known.size.max(1) > block.start)
            .map(|(start, _)| *start)
            .collect();
        for start in stale {
            self.blocks.remove(&start);
        }
        self.blocks.insert(block.start, block);
    }

    pub fn free(&mut self, start: u64) -> Option<Block> {
        self.blocks.remove(&start)
    }

    /// The live block that an address is in.
    pub fn find(&self, address: u64) -> Option<&Block> {
        self.blocks
            .range(..=address)
            .next_back()
            .map(|(_, block)| block)
            .filter(|block| address < block.start + block.size)
    }
}
