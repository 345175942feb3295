//! Blocks that an allocator has handed out, and those that came back and were not
//! handed out again.

use race::Moment;
use std::collections::BTreeMap;
use std::ops::Range;

/// One block, alive or freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Block {
    pub start: u64,
    pub size: u64,
    pub allocated: Moment,
    pub freed: Option<Moment>,
    /// It does not begin without values.
    pub zeroed: bool,
}

impl Block {
    pub fn end(&self) -> u64 {
        self.start + self.size
    }

    /// `malloc(0)` has an address of its own all the same.
    pub fn extent(&self) -> Range<u64> {
        self.start..self.start + self.size.max(1)
    }
}

/// Blocks of one kind of allocator.
#[derive(Default, Hash)]
pub struct Blocks {
    pub live: BTreeMap<u64, Block>,
    /// What was freed and not handed out again, by its first byte.
    pub freed: BTreeMap<u64, (u64, Block)>,
}

impl Blocks {
    pub fn at(&self, address: u64) -> Option<&Block> {
        let (_, block) = self.live.range(..=address).next_back()?;
        (address < block.end()).then_some(block)
    }

    pub fn freed_at(&self, address: u64) -> Option<&Block> {
        let (_, (end, block)) = self.freed.range(..=address).next_back()?;
        (address < *end).then_some(block)
    }

    /// What was freed in this range is no more.
    pub fn forget_freed(&mut self, range: &Range<u64>) {
        let touched: Vec<(u64, u64, Block)> = self
            .freed
            .range(..range.end)
            .rev()
            .take_while(|(_, (end, _))| *end > range.start)
            .map(|(start, (end, block))| (*start, *end, *block))
            .collect();
        for (start, end, block) in touched {
            self.freed.remove(&start);
            if start < range.start {
                self.freed.insert(start, (range.start, block));
            }
            if end > range.end {
                self.freed.insert(range.end, (end, block));
            }
        }
    }

    pub fn forget_live(&mut self, range: &Range<u64>) {
        let touched: Vec<u64> = self
            .live
            .range(..range.end)
            .rev()
            .take_while(|(_, block)| block.extent().end > range.start)
            .map(|(start, _)| *start)
            .collect();
        for start in touched {
            self.live.remove(&start);
        }
    }

    pub fn allocate(&mut self, block: Block) {
        self.forget_live(&block.extent());
        self.forget_freed(&block.extent());
        self.live.insert(block.start, block);
    }

    pub fn free(&mut self, start: u64, moment: Moment) -> Option<Block> {
        let mut block = self.live.remove(&start)?;
        block.freed = Some(moment);
        self.freed.insert(start, (block.extent().end, block));
        Some(block)
    }
}
