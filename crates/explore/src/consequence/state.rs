//! What is known of a watched execution, and what was found wrong with it.

use super::bounds::{Bounds, Outside};
use super::code::{Function, Origin, behind, origin_of};
use super::finding::{ErrorKind, Finding};
use super::heap::{Heap, Wrong};
use super::invariant::{Violation, Watched, When, Written};
use super::returns::{Returns, Slot};
use super::shadow::Marks;
use crate::names;
use race::Moment;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::rc::Rc;
use symbols::ModuleMap;
use vm::context::{Registers, reg};
use vm::observe::AccessEvent;

/// Findings kept of one execution.
const KEPT: usize = 16;

pub struct State {
    pub heap: Option<Heap>,
    pub returns: Returns,
    pub bounds: Bounds,
    pub invariants: Vec<Watched>,
    /// The file whose variables invariants are about, and where it is mapped.
    pub program: PathBuf,
    pub directory: PathBuf,
    pub bias: Option<u64>,
    pub names: Vec<(String, Function)>,
    pub functions: FxHashMap<u64, Function>,
    /// What was found in modules mapped before.
    pub mapped: HashMap<(u64, PathBuf), Vec<u64>>,
    pub modules: Rc<ModuleMap>,
    pub marks: Marks,
    /// Allocators seen that hand out parts of blocks, by their names.
    pub not_followed: Vec<&'static str>,
    pub followed: bool,
    /// Locks held, by thread.
    pub held: HashMap<u32, u32>,
    /// Instructions behind writes that `@write` invariants are about.
    pub after: FxHashSet<u64>,
    pub more: Vec<u64>,
    pub judging: bool,
    pub findings: Vec<Finding>,
    pub seen: HashSet<(ErrorKind, u64)>,
    pub origins: FxHashMap<u64, Origin>,
}

impl State {
    pub fn origin(&mut self, pc: u64) -> Origin {
        if let Some(known) = self.origins.get(&pc) {
            return *known;
        }
        let origin = self
            .modules
            .find(pc)
            .map_or(Origin::Program, |(module, _)| origin_of(module.name()));
        self.origins.insert(pc, origin);
        origin
    }

    pub fn report(&mut self, finding: Finding) {
        if self.judging
            && self.findings.len() < KEPT
            && self.seen.insert((finding.kind, finding.site))
        {
            self.findings.push(finding);
        }
    }

    pub fn access(&mut self, access: &AccessEvent) {
        let size = u64::from(access.size);
        if access.write
            && let Some((_, slot)) = self.returns.touched(access.address, size)
        {
            self.overwrites(slot, access);
        }
        let Some(heap) = &self.heap else {
            return;
        };
        if !heap.may_be_wrong(access.address, size) || heap.is_inside(access.moment.thread) {
            return;
        }
        let Some(wrong) = heap.judge(access.address, size, access.write) else {
            return;
        };
        if self.origin(access.pc) == Origin::Trusted {
            return;
        }
        self.wrong(
            wrong,
            access.moment,
            access.pc,
            access.address,
            size,
            access.write,
        );
    }

    /// A write that a function's return address does not survive.
    fn overwrites(&mut self, slot: Slot, access: &AccessEvent) {
        if self.origin(access.pc) == Origin::Trusted || self.unwinds(access.pc) {
            return;
        }
        let call = names::own_place(&self.modules.frames(slot.address, true));
        self.report(Finding {
            kind: ErrorKind::ReturnAddress,
            moment: Moment::new(access.moment.thread, access.moment.count),
            pc: access.pc,
            site: access.pc,
            address: access.address,
            size: u64::from(access.size),
            write: true,
            memory: None,
            detail: format!("that of the call at {call}"),
            stack: Vec::new(),
            allocated_at: Vec::new(),
            freed_at: Vec::new(),
        });
    }

    /// A thread is about to execute an instruction: it may index an array beyond
    /// its end.
    pub fn passed(&mut self, moment: Moment, registers: &Registers) {
        if !self.judging {
            return;
        }
        let outside = self.bounds.passed(registers.rip, &self.modules, registers);
        let Some(outside) = outside else {
            return;
        };
        let Outside {
            address,
            size,
            write,
            detail,
        } = outside;
        self.report(Finding {
            kind: ErrorKind::OutOfBounds,
            moment: Moment::new(moment.thread, moment.count),
            pc: registers.rip,
            site: registers.rip,
            address,
            size,
            write,
            memory: None,
            detail,
            stack: Vec::new(),
            allocated_at: Vec::new(),
            freed_at: Vec::new(),
        });
    }

    /// The code of the unwinder, which sends an exception to its handler by
    /// way of a return address.
    fn unwinds(&self, pc: u64) -> bool {
        let of_library = |(module, _): (&symbols::Module, u64)| {
            ["libgcc_s", "libunwind"]
                .iter()
                .any(|name| module.name().starts_with(name))
        };
        self.modules.find(pc).is_some_and(of_library)
            || self
                .modules
                .function_at(pc)
                .is_some_and(|function| function.name.starts_with("_Unwind_"))
    }

    fn wrong(
        &mut self,
        wrong: Wrong,
        moment: Moment,
        pc: u64,
        address: u64,
        size: u64,
        write: bool,
    ) {
        self.report(Finding {
            kind: wrong.kind,
            moment: Moment::new(moment.thread, moment.count),
            pc,
            site: pc,
            address,
            size,
            write,
            memory: wrong.memory,
            detail: String::new(),
            stack: Vec::new(),
            allocated_at: Vec::new(),
            freed_at: Vec::new(),
        });
    }

    /// A call of an allocator that it should not get.
    pub fn wrong_call(&mut self, wrong: Wrong, moment: Moment, registers: &Registers, block: u64) {
        if !self.judging {
            return;
        }
        let stack = registers.gpr[reg::RSP];
        let caller = vm::memory::get::<u64>(stack).unwrap_or(0);
        // The C library frees what it keeps of a thread that ends by the same
        // function, although the program has freed it before.
        let tidies = self
            .modules
            .function_at(caller.wrapping_sub(1))
            .is_some_and(|function| {
                ["tcache", "freeres", "arena"]
                    .iter()
                    .any(|part| function.name.contains(part))
            });
        if tidies || self.origin(caller) != Origin::Program {
            return;
        }
        let mut detail = String::new();
        if wrong.memory.is_none() {
            // Not a block that anybody knows: an error only where no block
            // can be.
            const STACK: u64 = 1 << 20;
            let on_stack = block >= stack
                && block - stack < STACK
                && self
                    .heap
                    .as_ref()
                    .is_none_or(|heap| !heap.is_allocators(block));
            if let Some(variable) = self.modules.variable_at(block) {
                detail = format!("the variable `{}`", variable.path);
            } else if on_stack {
                detail = "memory of the stack".to_string();
            } else {
                return;
            }
        }
        self.report(Finding {
            kind: wrong.kind,
            moment: Moment::new(moment.thread, moment.count),
            pc: registers.rip,
            site: caller,
            address: block,
            size: 0,
            write: true,
            memory: wrong.memory,
            detail,
            stack: Vec::new(),
            allocated_at: Vec::new(),
            freed_at: Vec::new(),
        });
    }

    pub fn violated(&mut self, violation: Violation) {
        let Violation {
            text,
            values,
            written,
        } = violation;
        let values: Vec<String> = values.iter().map(i64::to_string).collect();
        self.report(Finding {
            kind: ErrorKind::Invariant,
            moment: Moment::new(written.moment.thread, written.moment.count),
            pc: written.pc,
            site: xxhash_rust::xxh3::xxh3_64(text.as_bytes()),
            address: written.address,
            size: written.size,
            write: true,
            memory: None,
            detail: format!("`{text}` (values read: {})", values.join(", ")),
            stack: Vec::new(),
            allocated_at: Vec::new(),
            freed_at: Vec::new(),
        });
    }

    pub fn released(&mut self, thread: u32) {
        let Some(bias) = self.bias else {
            return;
        };
        let violations: Vec<Violation> = self
            .invariants
            .iter_mut()
            .filter_map(|watched| watched.released(thread, bias))
            .collect();
        for violation in violations {
            self.violated(violation);
        }
    }

    /// Writes to what invariants read, in a batch of accesses.
    pub fn writes(&mut self, batch: &[AccessEvent]) {
        let Some(bias) = self.bias else {
            return;
        };
        let mut last = None;
        for (index, access) in batch.iter().enumerate().filter(|(_, access)| access.write) {
            let written = Written {
                moment: access.moment,
                pc: access.pc,
                address: access.address,
                size: u64::from(access.size),
            };
            for watched in &mut self.invariants {
                if watched.wrote(written) {
                    last = Some(index);
                    if watched.invariant.when == When::Write
                        && let Some(next) = behind(access.pc)
                        && self.after.insert(next)
                    {
                        self.more.push(next);
                    }
                }
            }
        }
        if let Some(last) = last {
            // Seen for the first time from here: the values are those of now.
            let written_now = batch.len() - last <= 1;
            let violations: Vec<Violation> = self
                .invariants
                .iter_mut()
                .filter(|watched| written_now && watched.invariant.when == When::Write)
                .filter_map(|watched| watched.after_write(bias))
                .collect();
            for violation in violations {
                self.violated(violation);
            }
            self.mark_reads();
        }
        // Locked instructions outside locks release as well; what they show is
        // known where nothing was written after them.
        for access in batch
            .iter()
            .skip(last.unwrap_or(0))
            .filter(|access| access.locked && access.write)
        {
            let thread = access.moment.thread;
            if self.held.get(&thread).copied().unwrap_or(0) == 0
                && self.origin(access.pc) == Origin::Program
            {
                self.released(thread);
            }
        }
    }

    /// Makes sure that writes to what invariants read are seen.
    pub fn mark_reads(&mut self) {
        let Some(bias) = self.bias else {
            return;
        };
        for watched in &mut self.invariants {
            watched.look(bias);
            for (address, size) in watched.reads() {
                self.marks.set(*address..address + size);
            }
        }
    }
}
