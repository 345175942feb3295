//! Lock-order inversions and locks used against their rules, which users of
//! Helgrind and ThreadSanitizer rely on.
//!
//! An inversion is two locks that two threads took in opposite orders while no
//! third lock was held in both cases. Both passes keep this: the first to know
//! whether there is anything to report, the second to say where.

use crate::engine::{LockEvent, Thread};
use race::Moment;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// A lock used against its rules, or in an order that can deadlock.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LockProblem {
    pub what: LockProblemKind,
    pub locks: Vec<u64>,
    /// Where it happened and what it conflicts with.
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
}

/// Locks as the program uses them, and what is wrong with that.
#[derive(Debug, Default)]
pub struct Locks {
    orders: HashMap<(u64, u64), Vec<LockOrder>>,
    pub problems: Vec<LockProblem>,
    seen: HashSet<(LockProblemKind, u64, u64)>,
}

impl Locks {
    pub fn note(&mut self, event: LockEvent<'_>) {
        match event {
            LockEvent::Locking {
                thread,
                address,
                moment,
                order,
            } => self.taking(thread, address, (moment, order)),
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
        let one = problem.locks.first().copied().unwrap_or(0);
        let other = problem.locks.get(1).copied().unwrap_or(0);
        if self
            .seen
            .insert((problem.what, one.min(other), one.max(other)))
        {
            self.problems.push(problem);
        }
    }

    /// A lock is taken while others are held: notes the order and looks for
    /// the opposite one by another thread.
    fn taking(&mut self, thread: &Thread, address: u64, at: (Moment, u64)) {
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
            };
            let opposite = self
                .orders
                .get(&(address, held.address))
                .into_iter()
                .flatten()
                .find(|known| {
                    known.thread != order.thread && known.others.is_disjoint(&order.others)
                })
                .cloned();
            if let Some(known) = opposite {
                self.problem(LockProblem {
                    what: LockProblemKind::OrderInversion,
                    locks: vec![held.address, address],
                    at: vec![order.first, order.second, known.first, known.second],
                    owner: None,
                });
            }
            let orders = self.orders.entry((held.address, address)).or_default();
            let known = orders
                .iter()
                .any(|known| known.thread == order.thread && known.others == order.others);
            if !known && orders.len() < 64 {
                orders.push(order);
            }
        }
    }
}
