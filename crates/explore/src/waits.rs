//! Who waits for whom, when no thread can run.
//!
//! Paper 003, section 4.6, keeps a graph of locks by following the pthread
//! calls. Here the graph is read off the memory of the threads that wait: the
//! C library's mutexes and the words that joins wait on hold the id of the
//! thread that has to move. That needs no symbols and follows no call; a lock
//! that does not say who holds it makes no edge, and a wait without an edge is
//! reported as a hang, not as a deadlock.

use crate::names;
use race::Frame;
use std::collections::BTreeMap;
use symbols::ModuleMap;
use vm::Vm;
use vm::thread::{State, WaitOn};

/// Distance from the futex word of a mutex to its owner.
const OWNER: u64 = 8;

/// A thread id in a futex word; the upper bits tell of waiters.
const TID: u32 = 0x3fff_ffff;

/// One thread that waits.
pub struct Waiting {
    pub thread: u32,
    /// The word it waits on, if it is a futex.
    pub word: Option<u64>,
    /// The thread that would have to move, if the word tells.
    pub awaits: Option<u32>,
    /// It joins that thread rather than wants a lock of it.
    pub joins: bool,
    pub stack: Vec<Frame>,
}

impl Waiting {
    pub fn describe(&self, modules: &ModuleMap) -> String {
        let at = names::own_place(&self.stack);
        let thread = self.thread;
        match (self.word, self.awaits) {
            (Some(_), Some(other)) if self.joins => {
                format!("thread {thread} waits for thread {other} to end ({at})")
            }
            (Some(word), Some(other)) => format!(
                "thread {thread} waits for {}, which thread {other} holds ({at})",
                names::variable(modules, word, 1)
            ),
            (Some(word), None) => format!(
                "thread {thread} waits to be woken at {} ({at})",
                names::variable(modules, word, 1)
            ),
            (None, _) => format!("thread {thread} waits ({at})"),
        }
    }
}

/// Every thread that waits.
pub fn waiting(vm: &Vm, modules: &ModuleMap) -> Vec<Waiting> {
    let by_tid: BTreeMap<u32, u32> = vm
        .threads
        .values()
        .map(|thread| (thread.tid as u32, thread.id))
        .collect();
    vm.threads
        .values()
        .filter_map(|thread| {
            let State::Blocked(wait) = &thread.state else {
                return None;
            };
            let word = match (&wait.on, &thread.call) {
                (WaitOn::Futex, Some(call)) => Some(call.arguments[0]),
                _ => None,
            };
            let tid_at = |address: u64| {
                let value = vm::memory::get::<u32>(address).ok()? & TID;
                by_tid
                    .get(&value)
                    .copied()
                    .filter(|other| *other != thread.id)
            };
            let joined = word.and_then(tid_at);
            let owner = word.and_then(|word| tid_at(word + OWNER));
            let stack = vm
                .registers(thread.id)
                .map(|regs| names::stack(modules, &regs))
                .unwrap_or_default();
            Some(Waiting {
                thread: thread.id,
                word,
                awaits: joined.or(owner),
                joins: joined.is_some(),
                stack,
            })
        })
        .collect()
}

/// Threads that wait for one another in a circle, in order.
pub fn cycle(waiting: &[Waiting]) -> Option<Vec<&Waiting>> {
    let next: BTreeMap<u32, u32> = waiting
        .iter()
        .filter_map(|wait| Some((wait.thread, wait.awaits?)))
        .collect();
    for start in next.keys() {
        let mut path = vec![*start];
        let mut at = *start;
        while let Some(then) = next.get(&at) {
            if let Some(begin) = path.iter().position(|thread| thread == then) {
                let circle = &path[begin..];
                return Some(
                    circle
                        .iter()
                        .filter_map(|thread| waiting.iter().find(|wait| wait.thread == *thread))
                        .collect(),
                );
            }
            path.push(*then);
            at = *then;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(thread: u32, awaits: Option<u32>) -> Waiting {
        Waiting {
            thread,
            word: Some(0x1000),
            awaits,
            joins: false,
            stack: Vec::new(),
        }
    }

    #[test]
    fn a_circle_is_found_behind_whoever_waits_for_it() {
        let all = [
            wait(1, Some(2)),
            wait(2, Some(3)),
            wait(3, Some(2)),
            wait(4, None),
        ];
        let circle = cycle(&all).expect("a circle");
        let threads: Vec<u32> = circle.iter().map(|wait| wait.thread).collect();
        assert_eq!(threads, [2, 3]);
        assert!(cycle(&all[..2]).is_none());
        assert!(cycle(&all[3..]).is_none());
    }
}
