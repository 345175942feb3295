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

use crate::engine::{LockEvent, LockKind, Thread};
use race::Moment;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashSet};
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

/// An order in which two locks were taken: the first held while the second
/// was taken.
#[derive(Debug, Clone)]
struct LockOrder {
    thread: u32,
    first: (Moment, u64),
    second: (Moment, u64),
    /// Other locks held, which may guard the inversion.
    others: HashSet<u64>,
    /// Only read, and so wanted by readers too.
    reads: [bool; 2],
}

impl LockOrder {
    /// The two can be under way at the same time.
    fn may_meet(&self, other: &LockOrder) -> bool {
        self.thread != other.thread && self.others.is_disjoint(&other.others)
    }
}

/// Threads in one cycle.
const LONGEST_CYCLE: usize = 16;

/// Orders looked at for one cycle.
const STEPS: usize = 1024;

/// Orders of two locks kept: by other threads, or with other locks held.
const ORDERS_KEPT: usize = 32;

/// A cycle that is looked for.
struct Search<'a> {
    orders: &'a BTreeMap<(u64, u64), Vec<LockOrder>>,
    /// Where it ends.
    target: u64,
    path: Vec<(u64, &'a LockOrder)>,
    steps: usize,
}

impl<'a> Search<'a> {
    /// Goes on from a lock that the last order of the path waits for.
    fn follow(&mut self, newest: &LockOrder, lock: u64) -> bool {
        if self.path.len() + 1 >= LONGEST_CYCLE {
            return false;
        }
        let orders = self.orders;
        for ((_, next), known) in orders.range((lock, 0)..=(lock, u64::MAX)) {
            if self.path.iter().any(|(passed, _)| passed == next) || *next == lock {
                continue;
            }
            for order in known {
                self.steps += 1;
                if self.steps > STEPS {
                    return false;
                }
                let waits_for = self
                    .path
                    .last()
                    .map_or(newest.reads[1], |last| last.1.reads[1]);
                let closes = *next == self.target;
                if (waits_for && order.reads[0])
                    || (closes && order.reads[1] && newest.reads[0])
                    || !order.may_meet(newest)
                    || !self.path.iter().all(|(_, passed)| order.may_meet(passed))
                {
                    continue;
                }
                self.path.push((lock, order));
                if closes || self.follow(newest, *next) {
                    return true;
                }
                self.path.pop();
            }
        }
        false
    }
}

/// Locks as the program uses them, and what is wrong with that.
#[derive(Debug, Default)]
pub struct Locks {
    orders: BTreeMap<(u64, u64), Vec<LockOrder>>,
    /// Locks that come second in orders, with those that come first.
    firsts: BTreeMap<u64, BTreeSet<u64>>,
    pub problems: Vec<LockProblem>,
    seen: HashSet<(LockProblemKind, Vec<u64>)>,
}

impl Locks {
    pub fn note(&mut self, event: LockEvent<'_>) {
        match event {
            LockEvent::Made { address } => self.forget(address..address + 1),
            LockEvent::Locking {
                thread,
                address,
                kind,
                moment,
                order,
            } => self.taking(thread, address, kind, (moment, order)),
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
        if self.seen.insert((problem.what, locks)) {
            self.problems.push(problem);
        }
    }

    /// The memory is something else from now on: what locks there were are no
    /// more.
    pub fn forget(&mut self, range: Range<u64>) {
        if self.orders.is_empty() {
            return;
        }
        let gone: Vec<(u64, u64)> = self
            .orders
            .range((range.start, 0)..(range.end, 0))
            .map(|(key, _)| *key)
            .chain(
                self.firsts
                    .range(range)
                    .flat_map(|(second, firsts)| firsts.iter().map(|first| (*first, *second))),
            )
            .collect();
        for (first, second) in gone {
            self.orders.remove(&(first, second));
            if let Some(firsts) = self.firsts.get_mut(&second) {
                firsts.remove(&first);
                if firsts.is_empty() {
                    self.firsts.remove(&second);
                }
            }
        }
    }

    /// A lock is waited for while others are held: notes the order and looks for
    /// a cycle that it closes.
    fn taking(&mut self, thread: &Thread, address: u64, kind: LockKind, at: (Moment, u64)) {
        for held in &thread.held {
            let order = LockOrder {
                thread: thread.number,
                first: (held.moment, held.order),
                second: at,
                others: thread
                    .held
                    .iter()
                    .map(|other| other.address)
                    .filter(|other| *other != held.address)
                    .collect(),
                reads: [held.kind, kind].map(|kind| kind == LockKind::Read),
            };
            let orders = self.orders.entry((held.address, address)).or_default();
            let known = orders.iter().any(|known| {
                known.thread == order.thread
                    && known.others == order.others
                    && known.reads == order.reads
            });
            if known || orders.len() >= ORDERS_KEPT {
                continue;
            }
            let mut search = Search {
                orders: &self.orders,
                target: held.address,
                path: Vec::new(),
                steps: 0,
            };
            let cycle = search.follow(&order, address).then(|| {
                let further = search.path.iter();
                LockProblem {
                    what: LockProblemKind::OrderInversion,
                    locks: std::iter::once(held.address)
                        .chain(further.clone().map(|(lock, _)| *lock))
                        .collect(),
                    at: [order.first, order.second]
                        .into_iter()
                        .chain(further.flat_map(|(_, order)| [order.first, order.second]))
                        .collect(),
                    owner: None,
                }
            });
            if let Some(cycle) = cycle {
                self.problem(cycle);
            }
            let orders = self.orders.entry((held.address, address)).or_default();
            orders.push(order);
            self.firsts.entry(address).or_default().insert(held.address);
        }
    }
}
