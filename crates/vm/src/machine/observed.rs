//! What observers are told and how they get it: the ring of accesses the
//! translated code fills, hooks at code, and events of the machine itself.

use super::code::{PendingReturn, count_mask};
use super::{Pace, Vm};
use crate::context::{Registers, reg};
use crate::observe::{AccessEvent, AfterHook, Interest, Observer, ThreadEvent, complex};
use crate::space::Backing;
use crate::translate::{REPEAT_PART, SLACK, is_long_repeat, is_repeated};
use crate::{layout, memory};
use iced_x86::{Decoder, DecoderOptions, Instruction};
use race::Moment;

/// What becomes of a block that began with a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hooked {
    GoesOn,
    /// Before its first instruction.
    SliceEnds,
    /// The call is not made.
    Elsewhere,
}

impl Vm {
    /// Adds an analysis. Observers are added before the guest runs.
    pub fn observe(&mut self, observer: Box<dyn Observer>) {
        self.observers.push(observer);
        self.instrument();
        for (range, path, offset) in self.mapped_code() {
            self.tell_code_mapped(range, &path, offset);
        }
    }

    /// This process has just been forked while it was recorded: observers that
    /// stay behind are not told what it does, nor what its parent did last.
    pub(crate) fn leave_observers_behind(&mut self) {
        if !self.observers.iter().any(|one| one.stays_behind()) {
            return;
        }
        self.context.ring_position = 0;
        self.observers.retain(|observer| !observer.stays_behind());
        if self.observers.is_empty() {
            self.entries.clear();
            self.returns.clear();
            self.instrumentation.hooks.clear();
            self.guard_loaded_code();
        }
        self.instrument();
    }

    /// Code is made anew, with what the observers ask for.
    fn instrument(&mut self) {
        let interests: Vec<Interest> = self
            .observers
            .iter()
            .map(|observer| observer.interest())
            .filter(|interest| interest.accesses)
            .collect();
        self.instrumentation.accesses = !interests.is_empty();
        // There is one shadow, and who has none needs every access.
        self.instrumentation.only_unknown = interests.len() == 1 && interests[0].only_unknown;
        let only = self
            .observers
            .iter()
            .find(|observer| observer.interest().accesses)
            .filter(|_| self.instrumentation.only_unknown);
        self.instrumentation.reads_by_start =
            only.is_some_and(|observer| observer.reads_by_start());
        self.instrumentation.watches = only.is_some_and(|observer| observer.watches());
        self.instrumentation.epochs =
            only.is_some_and(|observer| observer.has_epochs() && !observer.watches());
        self.instrumentation.stack = interests.iter().any(|interest| interest.stack);
        self.flush_cache();
    }

    /// Executable code of files, with where in them it is.
    fn mapped_code(
        &self,
    ) -> Vec<(
        std::ops::Range<u64>,
        std::sync::Arc<std::path::PathBuf>,
        u64,
    )> {
        self.space
            .mappings()
            .filter(|(_, mapping)| mapping.protection & libc::PROT_EXEC != 0)
            .filter_map(|(range, mapping)| match &mapping.backing {
                Backing::File { path, offset } => Some((range, path.clone(), *offset)),
                _ => None,
            })
            .collect()
    }

    /// A replay from here on does not show what the program writes.
    pub fn mute(&mut self) {
        self.muted = true;
    }

    /// Output that is shown goes to a terminal as the program wrote it, with
    /// everything that moves the cursor.
    pub fn show_raw(&mut self) {
        self.shows_raw = true;
    }

    /// From here on the program's output to standard streams is shown, also
    /// that of a copy.
    pub fn unmute(&mut self) {
        self.muted = false;
    }

    /// Makes a trace of every block met at a look every `instructions`
    /// instructions, however seldom it runs: for tests of traces.
    pub fn trace_eagerly(&mut self, instructions: u64) {
        self.sample = instructions.max(2 * SLACK);
        self.since_sample = 0;
        self.hot_after = 1;
    }

    /// Takes the observers back, in the order they were added.
    pub fn take_observers(&mut self) -> Vec<Box<dyn Observer>> {
        self.drain_ring();
        std::mem::take(&mut self.observers)
    }

    /// Accesses recorded by the faulting instruction did not happen.
    pub(crate) fn drop_records_after_fault(&mut self) {
        let pc = self.context.regs.rip;
        while self.context.ring_position >= 16 {
            let (_, site, counter) = self.record_at(self.context.ring_position - 16);
            let site = self.sites.get(site);
            let remaining = (counter as i32).wrapping_add(site.correction);
            if site.pc != pc || remaining != self.context.remaining as i32 {
                break;
            }
            self.context.ring_position -= 16;
        }
    }

    pub(super) fn record_at(&self, position: u64) -> (u64, u32, u32) {
        let at = layout::RING + position;
        // SAFETY: positions below ring_position lie in the mapped ring and
        // were written by translated code.
        unsafe {
            (
                *(at as *const u64),
                *((at + 8) as *const u32),
                *((at + 12) as *const u32),
            )
        }
    }

    /// Hands recorded accesses to the observers.
    pub(super) fn drain_ring(&mut self) {
        let end = std::mem::take(&mut self.context.ring_position);
        if end == 0 || self.observers.iter().all(|one| one.is_deaf(self.current)) {
            return;
        }
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        let done = self
            .threads
            .get(&self.current)
            .map_or(0, |thread| thread.executed);
        for position in (0..end).step_by(16) {
            let (address, site, counter) = self.record_at(position);
            let site = self.sites.get(site);
            // The counter's low half and the slice's length give the count.
            let remaining = i64::from(counter as i32) + SLACK as i64 + i64::from(site.correction);
            let executed = (self.granted - self.reserve) as i64 - remaining;
            batch.push(AccessEvent {
                moment: Moment::new(self.current, done + executed as u64),
                pc: site.pc,
                address,
                size: site.size,
                read: site.read,
                write: site.write,
                locked: site.locked,
            });
        }
        for observer in &mut self.observers {
            observer.accesses(&batch);
        }
        self.batch = batch;
    }

    pub(crate) fn observed(&self) -> bool {
        !self.observers.is_empty()
    }

    /// Tells every observer something, after all accesses before it.
    pub(crate) fn tell_observers(&mut self, tell: impl Fn(&mut dyn Observer, &Registers)) {
        self.drain_ring();
        for observer in &mut self.observers {
            tell(observer.as_mut(), &self.context.regs);
        }
    }

    /// Control reached an address that somebody asked for.
    pub(super) fn hooked(&mut self) -> Hooked {
        let hooked = self.tell_hooked();
        if hooked == Hooked::GoesOn
            && let Some(guard) = &self.guard
        {
            guard.enlarge(&mut self.context.regs);
        }
        hooked
    }

    /// Control reached an address an observer asked for, or returned from
    /// there.
    fn tell_hooked(&mut self) -> Hooked {
        let moment = self.moment();
        let regs = self.context.regs;
        let stack = regs.gpr[reg::RSP];
        let thread = self.current;
        if !self.stopped_at.is_empty() && self.stopped_at.get(&thread) == Some(&moment) {
            return Hooked::GoesOn;
        }
        let mut returned = std::mem::take(&mut self.returned);
        if let Some(pending) = self.returns.get_mut(&thread) {
            pending.retain(|pending| {
                if pending.stack > stack {
                    return true;
                }
                // Frames below the stack pointer were left some other way.
                if pending.stack == stack && pending.pc == regs.rip {
                    returned.push(pending.function);
                }
                false
            });
        }
        for function in returned.drain(..) {
            for observer in &mut self.observers {
                observer.returned(moment, function, &regs);
            }
        }
        self.returned = returned;
        if !self.entries.contains(&regs.rip) {
            return Hooked::GoesOn;
        }
        let (mut follow, mut skip) = (false, false);
        let mut hold = None;
        let mut release = None;
        let mut argument = None;
        for observer in &mut self.observers {
            match observer.hook(moment, &regs) {
                AfterHook::Nothing => {}
                AfterHook::TellReturn => follow = true,
                AfterHook::SkipCall => skip = self.copy.is_some(),
                AfterHook::FirstArgument(value) => {
                    follow = true;
                    argument = self.copy.is_some().then_some(value);
                }
                AfterHook::Hold(patience) => hold = Some(patience),
                AfterHook::Release(thread) => release = Some(thread),
            }
        }
        self.take_more_hooks();
        let Ok(back) = memory::get::<u64>(stack) else {
            return Hooked::GoesOn;
        };
        if skip {
            self.context.regs.rip = back;
            self.context.regs.gpr[reg::RSP] = stack + 8;
            return Hooked::Elsewhere;
        }
        if let Some(value) = argument {
            self.context.regs.gpr[reg::RDI] = value;
        }
        if follow {
            self.returns.entry(thread).or_default().push(PendingReturn {
                stack: stack + 8,
                pc: back,
                function: regs.rip,
            });
            self.add_hook(back);
        }
        // A followed recording knows better who runs.
        if !matches!(self.pace, Pace::Policy { .. }) {
            return Hooked::GoesOn;
        }
        let mut stops = false;
        if let Some(other) = release {
            self.release(other);
            stops = true;
        }
        if let Some(patience) = hold {
            stops |= self.hold(patience);
        }
        if stops {
            self.stopped_at.insert(thread, moment);
            return Hooked::SliceEnds;
        }
        Hooked::GoesOn
    }

    pub(crate) fn tell_unmapped(&mut self, range: std::ops::Range<u64>) {
        if self.observers.is_empty() {
            return;
        }
        self.drain_ring();
        let moment = self.moment();
        for observer in &mut self.observers {
            observer.unmapped(moment, range.clone());
        }
    }

    /// Tells observers that the system call just executed read or wrote guest
    /// memory; its moment is that of the instruction.
    pub(crate) fn tell_kernel_access(&mut self, address: u64, size: u64, write: bool) {
        if self.observers.is_empty() || size == 0 {
            return;
        }
        self.drain_ring();
        let mut moment = self.moment();
        moment.count = moment.count.saturating_sub(1);
        for observer in &mut self.observers {
            observer.kernel_access(moment, address, size, write);
        }
    }

    /// Hooks that observers have found a need for while running.
    pub(crate) fn take_more_hooks(&mut self) {
        let mut more = Vec::new();
        for observer in &mut self.observers {
            more.extend(observer.more_hooks());
        }
        for pc in more {
            self.entries.insert(pc);
            self.add_hook(pc);
        }
    }

    pub(super) fn add_hook(&mut self, pc: u64) {
        if self.instrumentation.hooks.insert(pc) {
            self.cache.invalidate(pc..pc + 1);
        }
    }

    /// Code of a file was mapped: observers may want to follow functions in
    /// it.
    pub(crate) fn tell_code_mapped(
        &mut self,
        range: std::ops::Range<u64>,
        path: &std::path::Path,
        offset: u64,
    ) {
        let mut wanted = Vec::new();
        for observer in &mut self.observers {
            wanted.extend(observer.code_mapped(range.clone(), path, offset));
        }
        self.guard_code(&range, path, offset);
        for pc in wanted {
            self.entries.insert(pc);
            self.add_hook(pc);
        }
        self.make_code_anew_if_asked();
    }

    fn make_code_anew_if_asked(&mut self) {
        let mut asked = false;
        for observer in &mut self.observers {
            asked |= observer.tells_otherwise();
        }
        if asked {
            self.flush_cache();
        }
    }

    /// Finds the functions of allocators in code that was mapped.
    fn guard_code(&mut self, range: &std::ops::Range<u64>, path: &std::path::Path, offset: u64) {
        let Some(guard) = &mut self.guard else {
            return;
        };
        match guard.mapped(range, path, offset) {
            Ok(pcs) => {
                for pc in pcs {
                    self.add_hook(pc);
                }
            }
            // A recording that lacks it would not replay.
            Err(error) => self.guard_failed = Some(error),
        }
    }

    /// The same for all code that is mapped already.
    pub(crate) fn guard_loaded_code(&mut self) {
        for (range, path, offset) in self.mapped_code() {
            self.guard_code(&range, &path, offset);
        }
    }

    /// Address of the memory operand of an instruction about to be executed or
    /// just executed without changing a register.
    pub(crate) fn memory_operand(&self, instruction: &Instruction) -> u64 {
        self.threads.get(&self.current).map_or(0, |thread| {
            let machine = complex::Machine {
                regs: &self.context.regs,
                vector: &thread.vector,
            };
            machine.address(instruction)
        })
    }

    /// The accesses of the instruction at rip, whose extent its state tells.
    pub(super) fn complex_access(&mut self) {
        let batch = self.complex_accesses();
        for observer in &mut self.observers {
            observer.accesses(&batch);
        }
    }

    /// Where the instruction at rip stores, as far as only the machine's state
    /// tells.
    pub(super) fn complex_stores(&self) -> Vec<u64> {
        let accesses = self.complex_accesses();
        let stores = accesses.iter().filter(|access| access.write);
        stores.map(|access| access.address).collect()
    }

    fn complex_accesses(&self) -> Vec<AccessEvent> {
        let moment = self.moment();
        let mut code = [0; 15];
        let length = self.space.fetch(self.context.regs.rip, &mut code);
        let Some(thread) = self.threads.get(&self.current) else {
            return Vec::new();
        };
        let mut regs = self.context.regs;
        let rcx = &mut regs.gpr[reg::RCX];
        if is_long_repeat(*rcx) {
            let pc = regs.rip;
            let instruction =
                Decoder::with_ip(64, &code[..length], pc, DecoderOptions::NONE).decode();
            if is_repeated(&instruction) {
                // The accesses of this part.
                *rcx = (*rcx & count_mask(&instruction)).min(REPEAT_PART);
            }
        }
        let machine = complex::Machine {
            regs: &regs,
            vector: &thread.vector,
        };
        complex::accesses(&machine, &code[..length], moment)
    }

    pub(crate) fn tell_thread(&mut self, event: ThreadEvent) {
        if self.observers.is_empty() {
            return;
        }
        self.drain_ring();
        let moment = self.moment();
        for observer in &mut self.observers {
            observer.thread(moment, event);
        }
        if matches!(event, ThreadEvent::Started { .. }) {
            self.make_code_anew_if_asked();
        }
    }
}
