//! Which lock functions the two orders call, for the timeline of a race.
//!
//! Follows the functions of pthreads by their symbols, as `detect` does; what a
//! lock is called comes from debug info. Only what is told: no verdict rests on
//! this.

use race::EventKind;
use std::collections::HashMap;
use std::ops::Range;
use symbols::ModuleMap;

/// Taking a lock is told when the function returns, giving it back when it is
/// called.
const TAKES: [&str; 4] = [
    "pthread_mutex_lock",
    "pthread_rwlock_rdlock",
    "pthread_rwlock_wrlock",
    "pthread_spin_lock",
];
const GIVES: [&str; 3] = [
    "pthread_mutex_unlock",
    "pthread_rwlock_unlock",
    "pthread_spin_unlock",
];

/// Uses of locks told of an execution: the ones nearest to the race, and room
/// is left for what comes of it.
const TOLD: usize = 12;

#[derive(Default)]
pub struct LockCalls {
    functions: HashMap<u64, EventKind>,
    /// Locks being taken, by thread.
    asked: HashMap<u32, u64>,
    told: usize,
}

impl LockCalls {
    /// The addresses of lock functions in code that is mapped at `range`.
    pub fn functions_in(&mut self, modules: &ModuleMap, range: &Range<u64>) -> Vec<u64> {
        let kinds = [
            (&TAKES[..], EventKind::Acquire),
            (&GIVES[..], EventKind::Release),
        ];
        let mut found = Vec::new();
        for (names, kind) in kinds {
            for (_, function) in names.iter().flat_map(|name| modules.functions_named(name)) {
                if range.contains(&function.start) {
                    self.functions.insert(function.start, kind);
                    found.push(function.start);
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// A lock function is called: says whether its return is wanted, and what
    /// to tell.
    pub fn called(
        &mut self,
        modules: &ModuleMap,
        thread: u32,
        function: u64,
        lock: u64,
    ) -> (bool, Option<String>) {
        match self.functions.get(&function) {
            Some(EventKind::Acquire) if self.told < TOLD => {
                self.asked.insert(thread, lock);
                (true, None)
            }
            Some(EventKind::Release) if self.told < TOLD => {
                self.told += 1;
                (false, Some(format!("unlock {}", name(modules, lock))))
            }
            _ => (false, None),
        }
    }

    /// The lock function that `thread` had called has returned.
    pub fn returned(&mut self, modules: &ModuleMap, thread: u32) -> Option<String> {
        let lock = self.asked.remove(&thread)?;
        self.told += 1;
        Some(format!("lock {}", name(modules, lock)))
    }
}

fn name(modules: &ModuleMap, lock: u64) -> String {
    match modules.variable_at(lock) {
        // `lock.__data.__lock` is the lock's first member.
        Some(variable) => {
            let path = variable.path;
            path.split(".__").next().unwrap_or(&path).to_string()
        }
        None => format!("{lock:#x}"),
    }
}
