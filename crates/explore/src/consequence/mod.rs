//! What goes wrong in an execution although it goes on: memory errors and
//! broken invariants (paper 003, sections 3.5 and 4.6: violations of the
//! specification other than crashes and hangs), and reads that see what no
//! write has written (section 7).
//!
//! `Watching` follows a replay from its beginning: allocators (`heap`,
//! `blocks`, `allocators`) and the variables of invariants (`invariant`). At the race
//! point it begins to judge, return addresses on the stacks included
//! (`returns`); copies made from there take it along. Stacks are read in a
//! second run of the same execution (`scenes`).
//!
//! Guarantee: watching changes nothing; judging leaves out frees, in both
//! orders alike. Whatever is found is found again when its evidence is
//! replayed.

mod allocators;
mod blocks;
mod checks;
mod code;
mod finding;
mod follower;
mod heap;
mod invariant;
mod judge;
mod returns;
mod scenes;
mod shadow;
mod state;
mod torn;

pub use allocators::{AllocatorError, guarded_functions};
pub use checks::{CheckError, Checks};
pub use code::program_of;
pub use finding::{ErrorKind, Finding};
pub use invariant::InvariantError;
pub use torn::Mixed;

pub(crate) use scenes::{Scenes, fill, recorded, wanted};
pub(crate) use torn::{look as look_for_torn, watch_births};

use crate::names;
use allocators::Followed;
use code::{Function, Origin, SYNCHRONISATION, directory_of, functions_in, origin_of};
use follower::Follower;
use heap::Heap;
use invariant::{Violation, Watched};
use returns::Returns;
use rustc_hash::{FxHashMap, FxHashSet};
use shadow::Marks;
use state::State;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::rc::Rc;
use symbols::ModuleMap;
use vm::Vm;
use vm::record::Recording;
use xxhash_rust::xxh3::Xxh3;

/// A replay that is watched, and every copy made of it.
#[derive(Clone)]
pub struct Watching {
    state: Rc<RefCell<State>>,
}

impl Watching {
    /// Watches a replay from its beginning; none if nothing is to be watched.
    pub fn begin(
        vm: &mut Vm,
        checks: &Checks,
        recording: &Recording,
    ) -> Result<Option<Watching>, vm::Error> {
        if checks.is_none() {
            return Ok(None);
        }
        let program = program_of(recording);
        let (customs, invariants) = checks
            .read(&program)
            .map_err(|error| vm::Error::Machine(error.to_string()))?;
        let marks = Marks::install().map_err(|error| {
            vm::Error::Machine(format!(
                "cannot reserve 4 TiB of address space for shadow memory: {error}; raise \
                 `ulimit -v`, or set vm.overcommit_memory to 0 or 1, or use --no-heap"
            ))
        })?;
        let mut names: Vec<(String, Function)> = Vec::new();
        if checks.heap {
            for (name, role) in customs.into_iter().flat_map(|custom| custom.functions) {
                names.push((name, Function::Allocator(Followed { role, custom: true })));
            }
            for (name, role) in allocators::standard() {
                let followed = Followed {
                    role,
                    custom: false,
                };
                names.push((name, Function::Allocator(followed)));
            }
        }
        if !invariants.is_empty() {
            names.extend(
                SYNCHRONISATION
                    .iter()
                    .map(|(name, function)| (name.to_string(), *function)),
            );
        }
        let state = State {
            heap: checks
                .heap
                .then(|| Heap::guarded(recording.manifest.guard.unwrap_or(0))),
            returns: Returns::default(),
            invariants: invariants.into_iter().map(Watched::new).collect(),
            program,
            directory: directory_of(recording),
            bias: None,
            names,
            functions: FxHashMap::default(),
            mapped: HashMap::new(),
            modules: Rc::new(ModuleMap::new()),
            marks,
            not_followed: Vec::new(),
            followed: false,
            held: HashMap::new(),
            after: FxHashSet::default(),
            more: Vec::new(),
            judging: false,
            findings: Vec::new(),
            seen: HashSet::new(),
            origins: FxHashMap::default(),
        };
        let state = Rc::new(RefCell::new(state));
        vm.observe(Box::new(Follower(state.clone())));
        Ok(Some(Watching { state }))
    }

    /// At the race point: from here on what is wrong counts.
    pub fn judge(&self, vm: &mut Vm) {
        {
            let mut state = self.state.borrow_mut();
            let state = &mut *state;
            state.modules = names::modules(vm);
            state.origins.clear();
            state.judging = true;
            for watched in &mut state.invariants {
                watched.begin();
            }
            if let Some(heap) = &mut state.heap {
                heap.mark(state.marks);
                state.returns.begin(vm, &state.modules, state.marks);
            }
            state.mark_reads();
        }
        // The observer wants more than before.
        for observer in vm.take_observers() {
            vm.observe(observer);
        }
    }

    /// The program has ended: what it leaves must be right as well.
    pub fn end(&self) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let Some(bias) = state.bias else {
            return;
        };
        let violations: Vec<Violation> = state
            .invariants
            .iter_mut()
            .filter_map(|watched| watched.ended(bias))
            .collect();
        for violation in violations {
            state.violated(violation);
        }
    }

    /// What was found since the race point, without stacks.
    /// A number for what is known of blocks and invariants: two executions with the
    /// same one, and the same state, break the same rules from here on.
    pub fn digest(&self) -> u64 {
        let state = self.state.borrow();
        let mut hash = Xxh3::new();
        if let Some(heap) = &state.heap {
            heap.hash_blocks(&mut hash);
        }
        for watched in &state.invariants {
            watched.is_violated().hash(&mut hash);
        }
        hash.finish()
    }

    pub fn findings(&self) -> Vec<Finding> {
        self.state.borrow().findings.clone()
    }

    /// What was not watched, in sentences.
    pub fn not_checked(&self) -> Vec<String> {
        let state = self.state.borrow();
        let mut sentences = Vec::new();
        if state.heap.is_none() {
            return sentences;
        }
        if !state.followed {
            sentences.push(
                "the heap was not checked: the program and its libraries have no malloc symbol \
                 (name the functions with --allocator)"
                    .to_string(),
            );
        }
        for words in &state.not_followed {
            sentences.push(format!(
                "the heap was not checked inside {words}, which hands out parts of larger blocks"
            ));
        }
        sentences
    }
}

/// Drops what only code of the C library and of the linker did, and what has
/// no stack to tell.
pub(crate) fn keep_own(findings: &mut Vec<Finding>) {
    findings.retain(|finding| {
        finding.stack.iter().any(|frame| {
            frame.module.as_ref().is_none_or(|module| {
                let name = module.rsplit('/').next().unwrap_or(module);
                origin_of(name) == Origin::Program
            })
        })
    });
}

/// Findings of each of two executions that the other does not have, and those
/// that both have.
pub(crate) fn compare(one: &[Finding], other: &[Finding]) -> ([Vec<Finding>; 2], Vec<Finding>) {
    let without = |these: &[Finding], those: &[Finding]| -> Vec<Finding> {
        these
            .iter()
            .filter(|finding| !those.iter().any(|known| known.is_same(finding)))
            .cloned()
            .collect()
    };
    let common = one
        .iter()
        .filter(|finding| other.iter().any(|known| known.is_same(finding)))
        .cloned()
        .collect();
    ([without(one, other), without(other, one)], common)
}

/// What tells findings apart before their stacks are known.
pub(crate) fn sites(findings: &[Finding]) -> BTreeSet<(ErrorKind, u64)> {
    findings
        .iter()
        .map(|finding| (finding.kind, finding.site))
        .collect()
}
