//! The orders in which threads took the locks of a circle, and the inversions
//! among them: each with the locks held at the time, which may be a gate.
//!
//! Guarantees: an inversion told has all that `locks` asks of one. Of orders
//! there may be as many as pairs of locks, so the search ends when it has done
//! `WORK`, and says so.

use crate::engine::{LockKind, Thread};
use crate::locks::{LockProblem, LockProblemKind};
use race::Moment;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

/// An order in which two locks were taken: the first held while the second
/// was taken.
#[derive(Debug, Clone)]
struct LockOrder {
    thread: u32,
    first: (Moment, u64),
    second: (Moment, u64),
    /// All locks held: those other than the first may guard the inversion.
    held: Rc<FxHashSet<u64>>,
    lock: u64,
    /// Only read, and so wanted by readers too.
    reads: [bool; 2],
}

impl LockOrder {
    /// The two can be under way at the same time.
    fn may_meet(&self, other: &LockOrder, work: &mut u64) -> bool {
        if self.thread == other.thread {
            return false;
        }
        let (few, many) = match self.held.len() <= other.held.len() {
            true => (self, other),
            false => (other, self),
        };
        let mut others = few.held.iter().filter(|lock| **lock != few.lock);
        !others.any(|lock| {
            *work += 1;
            *lock != many.lock && many.held.contains(lock)
        })
    }
}

/// Threads in one cycle.
const LONGEST_CYCLE: usize = 16;

/// Orders looked at for one cycle.
const STEPS: usize = 1024;

/// Orders of two locks kept: by other threads, or with other locks held.
const ORDERS_KEPT: usize = 32;

/// Steps of all searches together, and what an order kept counts as: half a
/// second, and some 50 MB. A million steps search the orders of a hundred locks
/// taken in all orders.
const WORK: u64 = 1 << 26;
const WORK_OF_ORDER: u64 = 1 << 8;

/// A cycle that is looked for.
struct Search<'a> {
    orders: &'a BTreeMap<(u64, u64), Vec<LockOrder>>,
    /// Where it ends.
    target: u64,
    path: Vec<(u64, &'a LockOrder)>,
    steps: usize,
    work: u64,
}

impl<'a> Search<'a> {
    /// Goes on from a lock that the last order of the path waits for.
    fn follow(&mut self, newest: &LockOrder, lock: u64) -> bool {
        if self.path.len() + 1 >= LONGEST_CYCLE {
            return false;
        }
        let orders = self.orders;
        // The short way first: the steps may not do for all others.
        let target = self.target;
        let closing = orders.get_key_value(&(lock, target));
        let further = orders
            .range((lock, 0)..=(lock, u64::MAX))
            .filter(|((_, next), _)| *next != target);
        for ((_, next), known) in closing.into_iter().chain(further) {
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
                    || !order.may_meet(newest, &mut self.work)
                    || !self.meets_all(order)
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

    fn meets_all(&mut self, order: &LockOrder) -> bool {
        let work = &mut self.work;
        self.path
            .iter()
            .all(|(_, passed)| order.may_meet(passed, work))
    }
}

/// All orders of the locks that are worth it.
#[derive(Debug, Default)]
pub struct Orders {
    suspects: FxHashSet<u64>,
    orders: BTreeMap<(u64, u64), Vec<LockOrder>>,
    /// Locks that come second in orders, with those that come first.
    firsts: BTreeMap<u64, BTreeSet<u64>>,
    /// Sets of locks held, by the sum of their mixed addresses.
    sets: FxHashMap<u64, Vec<Rc<FxHashSet<u64>>>>,
    work: u64,
}

impl Orders {
    pub fn of(suspects: Vec<u64>) -> Orders {
        Orders {
            suspects: suspects.into_iter().collect(),
            ..Orders::default()
        }
    }

    pub fn gave_up(&self) -> bool {
        self.work > WORK
    }

    /// The memory is something else from now on.
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

    /// The locks that the thread holds, one set for all times it holds them.
    fn set(&mut self, thread: &Thread) -> Rc<FxHashSet<u64>> {
        self.work += thread.held.len() as u64;
        let mixed = |address: u64| address.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        let addresses = || thread.held.iter().map(|held| held.address);
        let sum = addresses().fold(0u64, |sum, address| sum.wrapping_add(mixed(address)));
        let alike = self.sets.entry(sum).or_default();
        let known = alike.iter().find(|set| {
            set.len() == thread.held.len() && addresses().all(|address| set.contains(&address))
        });
        if let Some(known) = known {
            return Rc::clone(known);
        }
        let set = Rc::new(addresses().collect());
        alike.push(Rc::clone(&set));
        set
    }

    /// A lock is waited for while others are held: notes the orders and looks
    /// for cycles that they close.
    pub fn taking(
        &mut self,
        thread: &Thread,
        address: u64,
        kind: LockKind,
        at: (Moment, u64),
    ) -> Vec<LockProblem> {
        let mut found = Vec::new();
        if !self.suspects.contains(&address) || thread.held.is_empty() || self.gave_up() {
            return found;
        }
        let set = self.set(thread);
        for held in thread.held.iter() {
            if !self.suspects.contains(&held.address) {
                continue;
            }
            let order = LockOrder {
                thread: thread.number,
                first: (held.moment, held.order),
                second: at,
                held: Rc::clone(&set),
                lock: held.address,
                reads: [held.kind, kind].map(|kind| kind == LockKind::Read),
            };
            let orders = self.orders.entry((held.address, address)).or_default();
            let known = orders.iter().any(|known| {
                known.thread == order.thread
                    && Rc::ptr_eq(&known.held, &order.held)
                    && known.reads == order.reads
            });
            if known || orders.len() >= ORDERS_KEPT {
                continue;
            }
            found.extend(self.inversion(&order, address));
            let orders = self.orders.entry((held.address, address)).or_default();
            orders.push(order);
            self.firsts.entry(address).or_default().insert(held.address);
            self.work += WORK_OF_ORDER;
            if self.gave_up() {
                break;
            }
        }
        found
    }

    /// The cycle that a new order closes.
    fn inversion(&mut self, order: &LockOrder, second: u64) -> Option<LockProblem> {
        let mut search = Search {
            orders: &self.orders,
            target: order.lock,
            path: Vec::new(),
            steps: 0,
            work: 0,
        };
        let closes = search.follow(order, second);
        let further = search.path.iter();
        let inversion = closes.then(|| LockProblem {
            what: LockProblemKind::OrderInversion,
            locks: std::iter::once(order.lock)
                .chain(further.clone().map(|(lock, _)| *lock))
                .collect(),
            at: [order.first, order.second]
                .into_iter()
                .chain(further.flat_map(|(_, order)| [order.first, order.second]))
                .collect(),
            owner: None,
        });
        self.work += search.steps as u64 + search.work;
        inversion
    }
}
