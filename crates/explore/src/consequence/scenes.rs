//! Stacks at moments that are known only afterwards.
//!
//! An error is found after its instruction, and the call that allocated the
//! block lies long before. Executions are repeatable, so the stacks are read in
//! a second one, where the moments are known: at the entries of functions that
//! are followed, at instructions that are hooked, at system calls.

use super::finding::{ErrorKind, Finding};
use super::{allocators, returns};
use crate::names;
use race::{Frame, Moment};
use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use symbols::ModuleMap;
use vm::context::Registers;
use vm::observe::{AfterHook, Interest, Observer, SyscallEvent};
use vm::record::Recording;
use vm::{Error, Vm};

/// Stacks by moment; empty until it is reached.
pub type Stacks = BTreeMap<Moment, Vec<Frame>>;

/// What `findings` need.
pub fn wanted(findings: &[Finding]) -> Stacks {
    findings
        .iter()
        .flat_map(Finding::moments)
        .map(|moment| (moment, Vec::new()))
        .collect()
}

/// Puts the stacks where they belong.
pub fn fill(findings: &mut [Finding], stacks: &Stacks) {
    for finding in findings {
        let memory = finding.memory;
        let places = [
            (Some(finding.moment), &mut finding.stack),
            (
                memory.map(|memory| memory.allocated),
                &mut finding.allocated_at,
            ),
            (
                memory.and_then(|memory| memory.freed),
                &mut finding.freed_at,
            ),
        ];
        for (moment, place) in places {
            if place.is_empty()
                && let Some(stack) = moment.and_then(|moment| stacks.get(&moment))
            {
                place.clone_from(stack);
            }
        }
    }
}

/// Writes to return addresses: bytes from where and how many.
pub type Overwrites = BTreeMap<Moment, (u64, u64)>;

/// Those of `findings`.
pub fn overwrites(findings: &[Finding]) -> Overwrites {
    findings
        .iter()
        .filter(|finding| finding.kind == ErrorKind::ReturnAddress)
        .map(|finding| (finding.moment, (finding.address, finding.size)))
        .collect()
}

/// Reads the stacks of an execution.
pub struct Scenes {
    stacks: Rc<RefCell<Stacks>>,
    /// Where a stack is only read if the frame is there whose return address
    /// is written to.
    overwrites: Overwrites,
    modules: ModuleMap,
    /// Functions to stop at, by name, where the modules are mapped later.
    names: Vec<String>,
}

impl Scenes {
    /// In a copy: the moments of the findings lie between here and the end.
    pub fn watch(vm: &mut Vm, findings: &[Finding]) -> Rc<RefCell<Stacks>> {
        let stacks = Rc::new(RefCell::new(wanted(findings)));
        let scenes = Scenes {
            stacks: stacks.clone(),
            overwrites: overwrites(findings),
            modules: ModuleMap::new(),
            names: Vec::new(),
        };
        // The modules are told when the observer is added.
        vm.observe(Box::new(scenes));
        for finding in findings {
            vm.watch_code(finding.pc);
        }
        stacks
    }

    fn note(&mut self, moment: Moment, registers: &Registers) {
        if let Some(stack) = self.stacks.borrow_mut().get_mut(&moment)
            && stack.is_empty()
            && self.overwrites.get(&moment).is_none_or(|(address, size)| {
                returns::is_destroyed(&self.modules, registers, *address, *size)
            })
        {
            *stack = names::stack(&self.modules, registers);
        }
    }
}

impl Observer for Scenes {
    fn interest(&self) -> Interest {
        Interest::default()
    }

    fn code_mapped(&mut self, range: Range<u64>, path: &Path, offset: u64) -> Vec<u64> {
        self.modules.insert(range.clone(), path, offset);
        if self.names.is_empty() {
            return Vec::new();
        }
        super::functions_in(&self.modules, &range, path, self.names.iter())
            .into_iter()
            .map(|(_, pc)| pc)
            .collect()
    }

    fn hook(&mut self, moment: Moment, registers: &Registers) -> AfterHook {
        self.note(moment, registers);
        AfterHook::Nothing
    }

    fn syscall(&mut self, event: &SyscallEvent, registers: &Registers) {
        self.note(event.moment, registers);
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Reads stacks at calls of allocators in the recorded execution.
pub fn recorded(
    recording: &Recording,
    wanted: Stacks,
    custom: &[String],
) -> Result<Stacks, crate::Error> {
    let answer = vm::snapshot::isolated(|| -> Result<Vec<(Moment, Vec<Frame>)>, Error> {
        let mut vm = Vm::replay(recording)?;
        vm.may_read_files();
        vm.mute();
        let stacks = Rc::new(RefCell::new(wanted));
        let names = allocators::standard()
            .into_iter()
            .map(|(name, _)| name)
            .chain(custom.iter().cloned())
            .collect();
        vm.observe(Box::new(Scenes {
            stacks: stacks.clone(),
            overwrites: Overwrites::new(),
            modules: ModuleMap::new(),
            names,
        }));
        vm.run(None)?;
        vm.take_observers();
        Ok(stacks.take().into_iter().collect())
    })?;
    let stacks = answer.join()?.map_err(crate::Error::Replay)?;
    Ok(stacks.into_iter().collect())
}
