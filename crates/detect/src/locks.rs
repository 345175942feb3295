//! Lock-order inversions and locks used against their rules, which users of
//! Helgrind and ThreadSanitizer rely on.
//!
//! An inversion is a cycle of locks that as many threads took, each holding one
//! and waiting for the next, while no further lock was held in two of the cases
//! (a gate). It is no inversion if one of the threads only tried for its lock,
//! or if a lock of the cycle was only read by both its threads. That one thread
//! may have ended before another began does not matter: the next run may be
//! another. Helgrind and ThreadSanitizer report orders of one thread too. Both
//! passes keep this: the first to know whether there is anything to report, the
//! second to say where.

use crate::engine::LockEvent;
use crate::lock_graph::LockGraph;
use crate::lock_orders::Orders;
use race::Moment;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::ops::Range;

/// A lock used against its rules, or in an order that can deadlock.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LockProblem {
    pub what: LockProblemKind,
    pub locks: Vec<u64>,
    /// Where it happened and what it conflicts with. Of an inversion two for
    /// each thread: where the first lock was taken, and where the second.
    pub at: Vec<(Moment, u64)>,
    pub owner: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LockProblemKind {
    OrderInversion,
    UnlockNotHeld,
    DestroyHeld,
    DestroyAwaited,
    EndHolding,
}

/// Problems kept: each is shown with its stacks. What lies beyond is counted.
const PROBLEMS_KEPT: usize = 1000;

/// How closely orders are looked at.
#[derive(Debug)]
enum Look {
    /// The first pass: which locks may be taken in a circle.
    Graph(LockGraph),
    /// The second pass: just those.
    Orders(Orders),
}

/// Locks as the program uses them, and what is wrong with that.
#[derive(Debug)]
pub struct Locks {
    look: Look,
    pub problems: Vec<LockProblem>,
    seen: HashSet<(LockProblemKind, Vec<u64>)>,
    pub problems_left_out: u64,
}

impl Locks {
    /// Finds the locks that are worth a second look.
    pub fn suspecting() -> Locks {
        Locks::new(Look::Graph(LockGraph::default()))
    }

    /// Finds the inversions of these locks.
    pub fn searching(suspects: Vec<u64>) -> Locks {
        Locks::new(Look::Orders(Orders::of(suspects)))
    }

    fn new(look: Look) -> Locks {
        Locks {
            look,
            problems: Vec::new(),
            seen: HashSet::new(),
            problems_left_out: 0,
        }
    }

    /// What `searching` is to be given.
    pub fn suspects(&self) -> Vec<u64> {
        match &self.look {
            Look::Graph(graph) => graph.in_circles(),
            Look::Orders(_) => Vec::new(),
        }
    }

    /// There were more orders than are looked at.
    pub fn gave_up(&self) -> bool {
        matches!(&self.look, Look::Orders(orders) if orders.gave_up())
    }

    pub fn note(&mut self, event: LockEvent<'_>) {
        match event {
            LockEvent::Made { address, held } => {
                self.forget(address..address + 1, &|_| held);
            }
            LockEvent::Locking {
                thread,
                address,
                kind,
                waits,
                moment,
                order,
            } => match &mut self.look {
                Look::Graph(graph) => graph.taking(thread, address),
                Look::Orders(_) if !waits => {}
                Look::Orders(orders) => {
                    for inversion in orders.taking(thread, address, kind, (moment, order)) {
                        self.problem(inversion);
                    }
                }
            },
            LockEvent::NotHeld {
                address,
                owner,
                moment,
                order,
                ..
            } => self.problem(LockProblem {
                what: LockProblemKind::UnlockNotHeld,
                locks: vec![address],
                at: vec![(moment, order)],
                owner,
            }),
            LockEvent::DestroyedHeld {
                address,
                owner,
                moment,
                order,
                ..
            } => self.problem(LockProblem {
                what: LockProblemKind::DestroyHeld,
                locks: vec![address],
                at: vec![(moment, order)],
                owner: Some(owner),
            }),
            LockEvent::DestroyedAwaited {
                address,
                waiting,
                moment,
                order,
            } => self.problem(LockProblem {
                what: LockProblemKind::DestroyAwaited,
                locks: vec![address],
                at: vec![(moment, order)],
                owner: waiting,
            }),
            LockEvent::EndedHolding {
                address,
                thread,
                moment,
                order,
            } => self.problem(LockProblem {
                what: LockProblemKind::EndHolding,
                locks: vec![address],
                at: vec![(moment, order)],
                owner: Some(thread),
            }),
        }
    }

    fn problem(&mut self, problem: LockProblem) {
        let mut locks = problem.locks.clone();
        locks.sort_unstable();
        if self.seen.contains(&(problem.what, locks.clone())) {
            return;
        }
        if self.problems.len() >= PROBLEMS_KEPT {
            self.problems_left_out += 1;
            return;
        }
        self.seen.insert((problem.what, locks));
        self.problems.push(problem);
    }

    /// The memory is something else from now on: what locks there were are no
    /// more.
    pub fn forget(&mut self, range: Range<u64>, is_held: &dyn Fn(u64) -> bool) {
        match &mut self.look {
            Look::Graph(graph) => graph.forget(range, is_held),
            Look::Orders(orders) => orders.forget(range),
        }
    }
}
