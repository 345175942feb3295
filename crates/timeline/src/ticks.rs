//! The one total order of an execution: which thread executes the
//! instruction with a given number.
//!
//! A tick is the number of instructions that all threads together have
//! executed. The schedule of a recording says everything about the mapping
//! between ticks and moments, so no execution is needed for it.

use crate::Error;
use race::Moment;
use std::collections::BTreeMap;
use vm::record::{ProcessStatus, Recording, Step, StepReader};
use vm::schedule::Choice;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slice {
    /// Tick and count of the thread at its start.
    tick: u64,
    thread: u32,
    count: u64,
    length: u64,
}

#[derive(Debug, Clone, Default)]
pub struct Ticks {
    slices: Vec<Slice>,
    /// For each thread the indices of its slices.
    threads: BTreeMap<u32, Vec<usize>>,
    /// How the process ended, where it did.
    pub ending: Option<ProcessStatus>,
}

impl Ticks {
    /// The order of one process of a recording.
    pub fn of_process(recording: &Recording, process: u32) -> Result<Ticks, Error> {
        let mut ticks = Ticks::default();
        let mut steps = StepReader::open(&recording.process(process).join("schedule"))?;
        while let Some(step) = steps.next_step()? {
            match step {
                Step::Slice {
                    thread,
                    instructions,
                    ..
                } => ticks.push(Choice {
                    thread,
                    instructions,
                }),
                Step::End(ending) => ticks.ending = Some(ending.status),
                Step::Advance(_) | Step::Signal { .. } | Step::Memory | Step::Checkpoint(_) => {}
            }
        }
        Ok(ticks)
    }

    pub fn push(&mut self, choice: Choice) {
        if choice.instructions == 0 {
            return;
        }
        let own = self.threads.entry(choice.thread).or_default();
        let before = own.last().map(|index| self.slices[*index]);
        let slice = Slice {
            tick: self.slices.last().map_or(0, |last| last.tick + last.length),
            thread: choice.thread,
            count: before.map_or(0, |before| before.count + before.length),
            length: choice.instructions,
        };
        own.push(self.slices.len());
        self.slices.push(slice);
    }

    /// This order up to `tick`, and `slices` from there on.
    pub fn branch(&self, tick: u64, slices: &[Choice]) -> Ticks {
        let mut branch = Ticks::default();
        for slice in self.slices.iter().take_while(|slice| slice.tick < tick) {
            branch.push(Choice {
                thread: slice.thread,
                instructions: slice.length.min(tick - slice.tick),
            });
        }
        for slice in slices {
            branch.push(*slice);
        }
        branch
    }

    /// What is to be executed from `tick` on.
    pub fn rest(&self, tick: u64) -> Vec<Choice> {
        let first = self
            .slices
            .partition_point(|slice| slice.tick + slice.length <= tick);
        self.slices[first..]
            .iter()
            .map(|slice| Choice {
                thread: slice.thread,
                instructions: slice.length - tick.saturating_sub(slice.tick),
            })
            .collect()
    }

    /// Instructions of all threads.
    pub fn end(&self) -> u64 {
        self.slices.last().map_or(0, |last| last.tick + last.length)
    }

    /// The instruction that is executed at this tick; none at the end.
    pub fn moment(&self, tick: u64) -> Option<Moment> {
        let after = self.slices.partition_point(|slice| slice.tick <= tick);
        let slice = self.slices.get(after.checked_sub(1)?)?;
        (tick - slice.tick < slice.length)
            .then(|| Moment::new(slice.thread, slice.count + (tick - slice.tick)))
    }

    /// When a thread executes its instruction number `moment.count`.
    pub fn tick(&self, moment: Moment) -> Option<u64> {
        let own = self.threads.get(&moment.thread)?;
        let after = own.partition_point(|index| self.slices[*index].count <= moment.count);
        let slice = self.slices[*own.get(after.checked_sub(1)?)?];
        let offset = moment.count - slice.count;
        (offset < slice.length).then_some(slice.tick + offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(slices: &[(u32, u64)]) -> Ticks {
        let mut ticks = Ticks::default();
        for (thread, instructions) in slices {
            ticks.push(Choice {
                thread: *thread,
                instructions: *instructions,
            });
        }
        ticks
    }

    #[test]
    fn ticks_and_moments_are_one_to_one() {
        let order = ticks(&[(1, 10), (2, 0), (2, 5), (1, 3), (3, 1), (2, 4)]);
        assert_eq!(order.end(), 23);
        for tick in 0..order.end() {
            let moment = order.moment(tick).unwrap();
            assert_eq!(order.tick(moment), Some(tick));
        }
        assert_eq!(order.moment(10), Some(Moment::new(2, 0)));
        assert_eq!(order.moment(15), Some(Moment::new(1, 10)));
        assert_eq!(order.moment(23), None);
        assert_eq!(order.tick(Moment::new(1, 13)), None);
        assert_eq!(order.tick(Moment::new(7, 0)), None);
    }

    #[test]
    fn a_branch_keeps_what_came_before() {
        let order = ticks(&[(1, 10), (2, 5), (1, 3)]);
        let new = [Choice {
            thread: 2,
            instructions: 7,
        }];
        let branch = order.branch(12, &new);
        assert_eq!(branch.end(), 19);
        assert_eq!(branch.moment(11), order.moment(11));
        assert_eq!(branch.moment(12), Some(Moment::new(2, 2)));
        assert_eq!(branch.moment(18), Some(Moment::new(2, 8)));
        let rest: Vec<(u32, u64)> = order
            .rest(12)
            .iter()
            .map(|choice| (choice.thread, choice.instructions))
            .collect();
        assert_eq!(rest, [(2, 3), (1, 3)]);
    }
}
