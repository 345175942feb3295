//! The observer that follows an execution and tells `State` of it.

use super::allocators::{Followed, NOT_FOLLOWED, Role};
use super::code::{Function, functions_in, is_same_file};
use super::heap;
use super::invariant::{Violation, When};
use super::state::State;
use race::Moment;
use std::any::Any;
use std::cell::RefCell;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use vm::context::{Registers, reg};
use vm::observe::known::Compare;
use vm::observe::{AccessEvent, AfterHook, Interest, Observer, SyscallEvent, ThreadEvent};

/// The observer that follows an execution.
pub struct Follower(pub Rc<RefCell<State>>);

impl Observer for Follower {
    fn interest(&self) -> Interest {
        let state = self.0.borrow();
        Interest {
            accesses: !state.invariants.is_empty() || (state.judging && state.heap.is_some()),
            only_unknown: true,
            stack: false,
        }
    }

    fn reads_by_start(&self) -> bool {
        true
    }

    fn has_epochs(&self) -> bool {
        false
    }

    fn known_by(&self, thread: u32) -> Compare {
        let state = self.0.borrow();
        // What an allocator does to its own memory is its own business.
        let inside = state
            .heap
            .as_ref()
            .is_some_and(|heap| heap.is_inside(thread));
        if inside && state.invariants.is_empty() {
            Compare::Everything
        } else {
            Compare::Zero
        }
    }

    fn accesses(&mut self, batch: &[AccessEvent]) {
        let mut state = self.0.borrow_mut();
        if state.judging {
            for access in batch {
                state.access(access);
            }
        }
        if !state.invariants.is_empty() {
            state.writes(batch);
        }
    }

    fn kernel_access(&mut self, moment: Moment, address: u64, size: u64, write: bool) {
        let mut state = self.0.borrow_mut();
        let access = AccessEvent::by_kernel(moment, address, size, write);
        if state.judging {
            state.access(&access);
        }
        if !state.invariants.is_empty() {
            state.writes(&[access]);
        }
    }

    fn syscall(&mut self, event: &SyscallEvent, _registers: &Registers) {
        let mut state = self.0.borrow_mut();
        if let Some(heap) = &mut state.heap {
            heap.system_call(
                event.moment.thread,
                event.number,
                &event.arguments,
                event.result,
            );
        }
    }

    fn thread(&mut self, _moment: Moment, event: ThreadEvent) {
        if let ThreadEvent::Exited { thread } = event {
            let mut state = self.0.borrow_mut();
            state.released(thread);
            state.returns.exited(thread);
        }
    }

    fn code_mapped(&mut self, range: Range<u64>, path: &Path, offset: u64) -> Vec<u64> {
        let mut state = self.0.borrow_mut();
        let key = (range.start, path.to_path_buf());
        if let Some(known) = state.mapped.get(&key) {
            let mut known = known.clone();
            known.extend(state.returns.hooks(&range));
            if state.judging {
                known.extend(state.bounds.hooks(&range));
            }
            return known;
        }
        let state = &mut *state;
        let modules = Rc::make_mut(&mut state.modules);
        modules.insert(range.clone(), path, offset);
        state.origins.clear();
        let found = functions_in(
            modules,
            &range,
            path,
            state.names.iter().map(|(name, _)| name),
        );
        let found: Vec<(u64, Function)> = found
            .into_iter()
            .filter_map(|(name, pc)| {
                let (_, function) = state.names.iter().find(|(known, _)| known == name)?;
                Some((pc, *function))
            })
            .collect();
        state.followed |= found.iter().any(|(_, function)| {
            matches!(
                function,
                Function::Allocator(Followed {
                    role: Role::Allocate { .. },
                    ..
                })
            )
        });
        for loaded in modules.modules() {
            if loaded.module.path() != path {
                continue;
            }
            if state.heap.is_some() && loaded.range.contains(&range.start) {
                state.returns.search(&loaded);
            }
            if is_same_file(path, &state.program, &state.directory) {
                state.bias = Some(loaded.bias);
            }
            for (function, words) in NOT_FOLLOWED {
                if !loaded.module.functions_named(function).is_empty()
                    && !state.not_followed.contains(words)
                {
                    state.not_followed.push(words);
                }
            }
        }
        state.functions.extend(found.iter().copied());
        let pcs: Vec<u64> = found.into_iter().map(|(pc, _)| pc).collect();
        state.mapped.insert(key, pcs.clone());
        state.mark_reads();
        pcs
    }

    fn unmapped(&mut self, _moment: Moment, range: Range<u64>) {
        let mut state = self.0.borrow_mut();
        if let Some(heap) = &mut state.heap {
            heap.unmapped(&range);
        }
        state.returns.unmapped(&range);
        let gone = |start: u64| range.contains(&start);
        state.mapped.retain(|(start, _), _| !gone(*start));
        state.functions.retain(|pc, _| !gone(*pc));
    }

    fn hook(&mut self, moment: Moment, registers: &Registers) -> AfterHook {
        let mut state = self.0.borrow_mut();
        let state = &mut *state;
        if !state.after.is_empty()
            && state.after.contains(&registers.rip)
            && let Some(bias) = state.bias
        {
            let violations: Vec<Violation> = state
                .invariants
                .iter_mut()
                .filter(|watched| watched.invariant.when == When::Write)
                .filter_map(|watched| watched.after_write(bias))
                .collect();
            for violation in violations {
                state.violated(violation);
            }
        }
        state.passed(moment, registers);
        let entered = state
            .returns
            .passed(moment.thread, registers.rip, registers.gpr[reg::RSP]);
        let Some(function) = state.functions.get(&registers.rip).copied() else {
            return if entered {
                AfterHook::TellReturn
            } else {
                AfterHook::Nothing
            };
        };
        match function {
            Function::Allocator(followed) => {
                let Some(heap) = &mut state.heap else {
                    return AfterHook::Nothing;
                };
                let (after, wrong) = heap.called(followed, moment, registers, state.judging);
                if let Some(wrong) = wrong {
                    let block = match followed.role {
                        Role::Free { block } => block,
                        _ => 0,
                    };
                    let block = heap::argument(registers, block);
                    state.wrong_call(wrong, moment, registers, block);
                }
                after
            }
            Function::Lock => AfterHook::TellReturn,
            Function::Unlock => {
                let held = state.held.entry(moment.thread).or_default();
                *held = held.saturating_sub(1);
                state.released(moment.thread);
                AfterHook::Nothing
            }
            Function::Wait => {
                state.released(moment.thread);
                AfterHook::Nothing
            }
            Function::Release => {
                if state.held.get(&moment.thread).copied().unwrap_or(0) == 0 {
                    state.released(moment.thread);
                }
                AfterHook::Nothing
            }
        }
    }

    fn more_hooks(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.0.borrow_mut().more)
    }

    fn returned(&mut self, moment: Moment, function: u64, registers: &Registers) {
        let mut state = self.0.borrow_mut();
        state.returns.left(moment.thread, registers.gpr[reg::RSP]);
        match state.functions.get(&function).copied() {
            Some(Function::Allocator(_)) => {
                if let Some(heap) = &mut state.heap {
                    heap.returned(function, moment, registers);
                }
                if !state.invariants.is_empty() {
                    state.mark_reads();
                }
            }
            Some(Function::Lock) if registers.gpr[reg::RAX] as u32 == 0 => {
                *state.held.entry(moment.thread).or_default() += 1;
            }
            _ => {}
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
