//! Explicit tasks of OpenMP, each with a clock of its own.
//!
//! A task is ordered after its creation, and before what waits for it: a
//! `taskwait` of its parent, the end of its group, a barrier, a task that
//! depends on it. Which thread happens to run it, and one after which other,
//! orders nothing. So a thread that runs a task's body has that task's clock
//! meanwhile, and two tasks that one thread ran one after the other can race,
//! which no detector that goes by threads can see.
//!
//! Deviation: a task that the run-time runs at once inside its creation (an
//! undeferred one, or one too many in the queue) has its creator's clock.
//! When all slots for clocks are in use, a task has the clock of the thread
//! that runs it. Either can miss a race, neither makes one up.

use crate::clock::{Epoch, Slot, VectorClock};
use std::collections::HashMap;
use std::ops::Range;
use vm::memory;

/// Clocks that tasks may have at once.
pub const TASK_SLOTS: usize = 512;

/// Flags of `GOMP_task` and `GOMP_taskloop` (gomp-constants.h).
const FLAG_DEPEND: u64 = 1 << 3;
const FLAG_NOGROUP: u64 = 1 << 11;

/// Entries of a dependence list that are looked at.
const LONGEST_LIST: u64 = 256;

/// A task that has been created.
#[derive(Debug, Clone, Default)]
pub struct Task {
    pub id: u64,
    pub parent: u64,
    pub groups: Vec<u64>,
    /// The creator's clock.
    pub clock: VectorClock,
    /// Tasks that must have finished.
    pub after: Vec<u64>,
    /// Addresses it excludes others by (`mutexinoutset`).
    pub exclusive: Vec<u64>,
}

/// What a thread did before it began to run a task.
#[derive(Debug)]
pub struct Suspended {
    pub slot: Slot,
    pub clock: VectorClock,
    pub epoch: Epoch,
    pub current: Current,
    /// The stack from here down was free.
    pub stack: u64,
    /// The task asked for the number of its thread.
    pub knows_thread: bool,
    pub finishing: Option<Task>,
}

/// The task that a thread runs: 0 is the implicit one.
#[derive(Debug, Clone, Default)]
pub struct Current {
    pub id: u64,
    pub groups: Vec<u64>,
}

/// Who wrote and who read a dependence last, among siblings.
#[derive(Debug, Default)]
struct Dependence {
    writers: Vec<u64>,
    readers: Vec<u64>,
}

#[derive(Debug, Default)]
pub struct Tasks {
    last: u64,
    /// Tasks not begun, by the run-time's block for each.
    waiting: HashMap<u64, Task>,
    children: HashMap<u64, VectorClock>,
    groups: HashMap<u64, VectorClock>,
    finished: HashMap<u64, VectorClock>,
    /// Everything that finished tasks did.
    pub all: VectorClock,
    dependences: HashMap<(u64, u64), Dependence>,
}

fn words<const N: usize>(address: u64) -> Option<[u64; N]> {
    let mut words = [0; N];
    for (index, word) in words.iter_mut().enumerate() {
        *word = memory::get::<u64>(address + 8 * index as u64).ok()?;
    }
    Some(words)
}

/// The list of dependences at `list`: addresses written, excluding, read.
fn dependence_list(list: u64) -> Option<[Vec<u64>; 3]> {
    let [first, second, third, fourth, fifth] = words::<5>(list)?;
    let (writes, exclusive, reads, objects, start) = match first {
        // The later form: 0, all, written, excluding, read, then addresses;
        // what is left are objects of `depobj`.
        0 => (
            third,
            fourth,
            fifth,
            second.saturating_sub(third + fourth + fifth),
            list + 40,
        ),
        all => (second, 0, all.saturating_sub(second), 0, list + 16),
    };
    let mut at = start;
    let mut take = |number: u64| {
        let number = number.min(LONGEST_LIST);
        let taken: Vec<u64> = (0..number)
            .filter_map(|index| memory::get::<u64>(at + 8 * index).ok())
            .collect();
        at += 8 * number;
        taken
    };
    let mut lists = [take(writes), take(exclusive), take(reads)];
    for object in take(objects) {
        // omp_depend_t: address, then kind (1 is `in`).
        if let Some([address, kind]) = words::<2>(object) {
            lists[if kind == 1 { 2 } else { 0 }].push(address);
        }
    }
    Some(lists)
}

impl Tasks {
    pub fn next_id(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The task that a call of `GOMP_task` makes; further arguments are on
    /// the stack above the return address. (A loop of tasks has no
    /// dependences.)
    pub fn created(&mut self, parent: &Current, clock: &VectorClock, stack: Option<u64>) -> Task {
        let mut task = Task {
            id: self.next_id(),
            parent: parent.id,
            groups: parent.groups.clone(),
            clock: clock.clone(),
            ..Task::default()
        };
        if let Some([flags, list]) = stack.and_then(|stack| words::<2>(stack + 8))
            && flags & FLAG_DEPEND != 0
        {
            self.depend(&mut task, list);
        }
        task
    }

    fn depend(&mut self, task: &mut Task, list: u64) {
        let Some([writes, exclusive, reads]) = dependence_list(list) else {
            return;
        };
        for address in &reads {
            let known = self.dependences.entry((task.parent, *address)).or_default();
            task.after.extend(&known.writers);
            known.readers.push(task.id);
        }
        for address in &exclusive {
            let known = self.dependences.entry((task.parent, *address)).or_default();
            let (writers, readers) = (&known.writers, &known.readers);
            task.after
                .extend(writers.iter().filter(|id| !readers.contains(id)));
            task.after
                .extend(readers.iter().filter(|id| !writers.contains(id)));
            // Those that exclude one another come in any order, but before
            // and after all others.
            known.readers.push(task.id);
        }
        for address in &writes {
            let known = self.dependences.entry((task.parent, *address)).or_default();
            task.after.append(&mut known.writers);
            task.after.append(&mut known.readers);
            known.writers.push(task.id);
        }
        for address in &exclusive {
            let known = self.dependences.entry((task.parent, *address)).or_default();
            if !known.writers.contains(&task.id) {
                known.writers.push(task.id);
            }
        }
        task.exclusive = exclusive;
    }

    /// Clocks of what a `taskwait` with dependences waits for.
    pub fn awaited(&mut self, parent: &Current, list: u64) -> VectorClock {
        let mut task = Task {
            parent: parent.id,
            ..Task::default()
        };
        self.depend(&mut task, list);
        self.clock_after(&task)
    }

    /// Joins the clocks of the tasks that `task` comes after.
    pub fn clock_after(&self, task: &Task) -> VectorClock {
        let mut clock = VectorClock::default();
        for id in &task.after {
            if let Some(finished) = self.finished.get(id) {
                clock.join(finished);
            }
        }
        clock
    }

    pub fn wait_in(&mut self, block: u64, task: Task) {
        self.waiting.insert(block, task);
    }

    pub fn begin(&mut self, block: u64) -> Option<Task> {
        self.waiting.remove(&block)
    }

    pub fn forget(&mut self, block: u64) {
        self.waiting.remove(&block);
    }

    pub fn finish(&mut self, task: &Task, clock: &VectorClock) {
        self.children.entry(task.parent).or_default().join(clock);
        for group in &task.groups {
            self.groups.entry(*group).or_default().join(clock);
        }
        self.all.join(clock);
        self.finished.insert(task.id, clock.clone());
    }

    pub fn children_of(&self, parent: u64) -> Option<&VectorClock> {
        self.children.get(&parent)
    }

    pub fn group(&self, group: u64) -> Option<&VectorClock> {
        self.groups.get(&group)
    }
}

/// A loop of tasks ends when its tasks do, unless it says otherwise.
pub fn loop_waits(flags: u64) -> bool {
    flags & FLAG_NOGROUP == 0
}

/// Thread-local variables and descriptor of the first thread, which the
/// dynamic linker placed: nobody says how far down they go.
pub fn main_thread_locals(pointer: u64) -> Range<u64> {
    const VARIABLES: u64 = 4096;
    /// struct pthread of glibc.
    const DESCRIPTOR: u64 = 2304;
    pointer.saturating_sub(VARIABLES)..pointer.saturating_add(DESCRIPTOR)
}

/// How far down frames of a thread go whose stack is not known.
const REACH: u64 = 1 << 20;

/// The stack of the first thread, which is at `stack` early in the program.
pub fn main_thread_stack(stack: u64) -> Range<u64> {
    const ABOVE: u64 = 1 << 16;
    stack.saturating_sub(REACH)..stack.saturating_add(ABOVE)
}

/// Where a new task's frames will be: everything below `stack`.
pub fn fresh_stack(stack: u64, known: Option<&Range<u64>>) -> Range<u64> {
    match known {
        Some(range) if range.contains(&stack) => range.start..stack,
        _ => stack.saturating_sub(REACH)..stack,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::tests::clock;

    #[test]
    fn what_waits_for_a_task_knows_what_it_did() {
        let mut tasks = Tasks::default();
        let parent = Current {
            id: 7,
            groups: vec![3],
        };
        let task = Task {
            id: tasks.next_id(),
            parent: parent.id,
            groups: parent.groups.clone(),
            ..Task::default()
        };
        tasks.wait_in(0x1000, task);
        let task = tasks.begin(0x1000).expect("it was created");
        assert!(tasks.begin(0x1000).is_none(), "a task begins once");
        tasks.finish(&task, &clock(4, 9));
        assert_eq!(tasks.children_of(7).map(|clock| clock.get(4)), Some(9));
        assert_eq!(tasks.group(3).map(|clock| clock.get(4)), Some(9));
        assert!(tasks.children_of(8).is_none());
        assert_eq!(tasks.all.get(4), 9);
    }

    #[test]
    fn a_new_task_has_the_stack_below() {
        assert_eq!(fresh_stack(0x5000, Some(&(0x1000..0x9000))), 0x1000..0x5000);
        assert_eq!(fresh_stack(0x5000, None), 0..0x5000);
    }
}
