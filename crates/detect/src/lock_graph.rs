//! Which locks may be taken in a circle at all.
//!
//! A thread that holds a hundred locks and takes one more orders it behind all
//! hundred. Here only one edge is drawn, from the lock taken last to the new
//! one: when the new one is taken, every lock held reaches it, because it
//! reached the one taken after it then. So each circle of real orders is a
//! circle of this graph, whose edges are at most as many as locks were taken.
//! The reverse does not hold: the second pass looks at the locks of circles
//! with everything that is known (`locks::Orders`).
//!
//! A lock that is made anew is another node, unless somebody holds it: then
//! the chain of those held must not break. A node that is gone and is on no
//! path is dropped.

use crate::engine::Thread;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::ops::Range;

type Node = u32;

/// Who has taken two locks in this order: one thread, or several.
type By = Option<u32>;

#[derive(Debug, Default)]
struct Neighbours {
    address: u64,
    after: FxHashMap<Node, By>,
    before: FxHashSet<Node>,
}

#[derive(Debug, Default)]
pub struct LockGraph {
    /// The locks there are now.
    present: BTreeMap<u64, Node>,
    nodes: FxHashMap<Node, Neighbours>,
    made: Node,
    #[cfg(test)]
    pub steps: u64,
}

impl LockGraph {
    fn node(&mut self, address: u64) -> Node {
        if let Some(node) = self.present.get(&address) {
            return *node;
        }
        self.made += 1;
        let neighbours = Neighbours {
            address,
            ..Neighbours::default()
        };
        self.nodes.insert(self.made, neighbours);
        self.present.insert(address, self.made);
        self.made
    }

    /// The thread takes a lock, and holds what it holds.
    pub fn taking(&mut self, thread: &Thread, address: u64) {
        if let Some(latest) = thread.held.latest() {
            self.order(thread.number, latest.address, address);
        }
    }

    fn order(&mut self, thread: u32, first: u64, second: u64) {
        #[cfg(test)]
        {
            self.steps += 1;
        }
        let (first, second) = (self.node(first), self.node(second));
        if let Some(before) = self.nodes.get_mut(&first) {
            let by = before.after.entry(second).or_insert(Some(thread));
            if *by != Some(thread) {
                *by = None;
            }
        }
        if let Some(after) = self.nodes.get_mut(&second) {
            after.before.insert(first);
        }
    }

    /// The memory is something else from now on, but for locks in use.
    pub fn forget(&mut self, range: Range<u64>, is_held: &dyn Fn(u64) -> bool) {
        let gone: Vec<(u64, Node)> = self
            .present
            .range(range)
            .filter(|(address, _)| !is_held(**address))
            .map(|(address, node)| (*address, *node))
            .collect();
        for (address, node) in gone {
            self.present.remove(&address);
            self.drop_if_on_no_path(node);
        }
    }

    fn drop_if_on_no_path(&mut self, node: Node) {
        let ends = |known: &mut Neighbours| known.after.is_empty() || known.before.is_empty();
        if !self.nodes.get_mut(&node).is_some_and(ends) {
            return;
        }
        let Some(gone) = self.nodes.remove(&node) else {
            return;
        };
        for before in gone.before {
            if let Some(known) = self.nodes.get_mut(&before) {
                known.after.remove(&node);
            }
        }
        for after in gone.after.into_keys() {
            if let Some(known) = self.nodes.get_mut(&after) {
                known.before.remove(&node);
            }
        }
    }

    /// Addresses of the locks that are in circles which one thread alone has
    /// not drawn.
    pub fn in_circles(&self) -> Vec<u64> {
        let component = self.components();
        let mut by: FxHashMap<u32, By> = FxHashMap::default();
        for (node, known) in &self.nodes {
            for (after, thread) in &known.after {
                if component.get(node) != component.get(after) {
                    continue;
                }
                if let Some(component) = component.get(node) {
                    let all = by.entry(*component).or_insert(*thread);
                    if *all != *thread {
                        *all = None;
                    }
                }
            }
        }
        let mut found: Vec<u64> = self
            .nodes
            .iter()
            .filter(|(node, _)| component.get(node).and_then(|one| by.get(one)) == Some(&None))
            .map(|(_, known)| known.address)
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Strongly connected components by Tarjan's algorithm (1972), without
    /// recursion: chains of locks are as long as the program likes.
    fn components(&self) -> FxHashMap<Node, u32> {
        let mut search = Components::default();
        for root in self.nodes.keys() {
            if !search.number.contains_key(root) {
                search.explore(self, *root);
            }
        }
        search.component
    }

    fn after(&self, node: Node) -> Vec<Node> {
        let known = self.nodes.get(&node);
        known.map_or_else(Vec::new, |known| known.after.keys().copied().collect())
    }
}

/// Tarjan's bookkeeping.
#[derive(Default)]
struct Components {
    /// In order of discovery.
    number: FxHashMap<Node, u32>,
    /// The earliest node known to be reached.
    low: FxHashMap<Node, u32>,
    open: Vec<Node>,
    component: FxHashMap<Node, u32>,
    components: u32,
}

impl Components {
    fn enter(&mut self, node: Node) {
        let number = self.number.len() as u32;
        self.number.insert(node, number);
        self.low.insert(node, number);
        self.open.push(node);
    }

    fn lower(&mut self, node: Node, to: u32) {
        if let Some(low) = self.low.get_mut(&node) {
            *low = (*low).min(to);
        }
    }

    fn explore(&mut self, graph: &LockGraph, root: Node) {
        self.enter(root);
        let mut path = vec![(root, graph.after(root))];
        while let Some((node, rest)) = path.last_mut() {
            let node = *node;
            match rest.pop() {
                Some(next) => match self.number.get(&next).copied() {
                    None => {
                        self.enter(next);
                        path.push((next, graph.after(next)));
                    }
                    Some(number) if !self.component.contains_key(&next) => {
                        self.lower(node, number);
                    }
                    Some(_) => {}
                },
                None => {
                    path.pop();
                    let low = self.low.get(&node).copied().unwrap_or(0);
                    if let Some((parent, _)) = path.last() {
                        self.lower(*parent, low);
                    }
                    if self.number.get(&node) == Some(&low) {
                        self.close(node);
                    }
                }
            }
        }
    }

    /// All that is open down to the node is one component.
    fn close(&mut self, node: Node) {
        self.components += 1;
        while let Some(member) = self.open.pop() {
            self.component.insert(member, self.components);
            if member == node {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(orders: &[(u32, u64, u64)]) -> LockGraph {
        let mut graph = LockGraph::default();
        for (thread, first, second) in orders {
            graph.order(*thread, *first, *second);
        }
        graph
    }

    #[test]
    fn circles_of_several_threads_are_found() {
        let none: [u64; 0] = [];
        assert_eq!(graph(&[(1, 1, 2), (2, 2, 3), (1, 1, 3)]).in_circles(), none);
        assert_eq!(graph(&[(1, 1, 2), (2, 2, 1)]).in_circles(), [1, 2]);
        assert_eq!(graph(&[(1, 1, 2), (1, 2, 1)]).in_circles(), none);
        let orders = [(1, 1, 2), (2, 2, 3), (3, 3, 1), (1, 3, 4), (2, 5, 1)];
        assert_eq!(graph(&orders).in_circles(), [1, 2, 3]);
    }

    #[test]
    fn a_lock_made_anew_is_another_lock() {
        let mut graph = graph(&[(1, 1, 2)]);
        graph.forget(2..3, &|_| false);
        graph.order(2, 2, 1);
        assert!(graph.in_circles().is_empty());
        graph.forget(0..10, &|address| address == 1);
        graph.order(2, 2, 1);
        graph.order(1, 1, 2);
        assert_eq!(graph.in_circles(), [1, 2]);
    }

    #[test]
    fn a_circle_outlives_its_locks() {
        let mut graph = graph(&[(1, 1, 2), (2, 2, 1)]);
        graph.forget(0..10, &|_| false);
        assert_eq!(graph.in_circles(), [1, 2]);
    }

    #[test]
    fn locks_that_come_and_go_leave_nothing() {
        let mut graph = LockGraph::default();
        for _ in 0..100 {
            graph.order(1, 1, 2);
            graph.order(1, 2, 3);
            graph.forget(3..4, &|_| false);
            graph.forget(2..3, &|_| false);
        }
        assert!(graph.nodes.len() <= 2);
    }

    #[test]
    fn a_long_chain_is_no_recursion() {
        let orders: Vec<_> = (0..200_000).map(|lock| (1, lock, lock + 1)).collect();
        let mut graph = graph(&orders);
        assert!(graph.in_circles().is_empty());
        graph.order(2, 200_000, 0);
        assert_eq!(graph.in_circles().len(), 200_001);
    }
}
