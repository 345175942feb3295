//! Running translated code: finding or making the block to enter, what its exits
//! ask for, and the faults met in it.

use super::observed::Hooked;
use super::{Pace, Vm};
use crate::cache::{ExitKind, LINKED, REPEAT, Translation, pages_of};
use crate::context::{BREAK, HostFault, reg};
use crate::kernel::signal::{SEGV_MAPERR, SI_KERNEL, Trap};
use crate::observe::known::{Compare, Told};
use crate::schedule::SliceEnd;
use crate::space::SharedObject;
use crate::translate::{
    MAX_BLOCK, REPEAT_PART, RING_MARGIN, SLACK, Shape, is_masked_store, is_repeated,
    stores_elsewhere,
};
use crate::{Error, layout, memory, protection};
use iced_x86::{Decoder, DecoderError, DecoderOptions, Instruction, Mnemonic};

/// Translated code comes back to the vm this often, to see what is hot. At
/// 0.3 microseconds each time that costs a hundredth.
pub(super) const SAMPLE: u64 = 100_000;

/// A block met at this many samples becomes a trace.
pub(super) const HOT: u8 = 2;

/// A call of a followed function.
pub(super) struct PendingReturn {
    /// Stack pointer after the return.
    pub(super) stack: u64,
    /// Return address.
    pub(super) pc: u64,
    pub(super) function: u64,
}

impl Vm {
    pub(super) fn flush_cache(&mut self) {
        self.drain_ring();
        self.cache.flush();
        self.sites.clear();
    }

    /// Drops every translation (the guest executes another program).
    pub(crate) fn forget_code(&mut self) {
        self.flush_cache();
    }

    /// Runs the current thread for at most `budget` instructions.
    pub(super) fn run_part(&mut self, budget: u64) -> Result<SliceEnd, Error> {
        self.confine()?;
        self.granted = budget;
        self.cut = false;
        self.context.tells_sequencers = u64::from(match &self.pace {
            _ if self.one_thread => self.before_syscalls,
            Pace::Policy { policy, .. } => policy.at_sequencers(),
            Pace::Follow(_) => false,
        });
        self.set_remaining(budget);
        if let Some(end) = self.resume_call()? {
            return Ok(end);
        }
        // Near the end of the slice linked blocks are too coarse.
        let mut walking = false;
        loop {
            let remaining = self.remaining();
            if remaining == 0 {
                return Ok(if self.cut {
                    SliceEnd::Interrupted
                } else {
                    SliceEnd::Expired
                });
            }
            walking |= remaining < SLACK;
            if self.stack_is_wild() {
                if let Some(end) = self.stack_fault()? {
                    return Ok(end);
                }
                continue;
            }
            let mut host = self.entry(walking)?;
            // A hook or complex access at the block's start goes on behind it.
            loop {
                let exit_id = self.execute(host);
                let mut broken = self.mend_counter();
                let exit = self.cache.exit(exit_id);
                self.context.remaining += i64::from(exit.adjust);
                if exit.kind != ExitKind::Indirect && exit.kind != ExitKind::Fault {
                    self.context.regs.rip = exit.pc;
                }
                let end = match exit.kind {
                    ExitKind::Indirect if !is_canonical(self.context.regs.rip) => {
                        self.bad_branch(exit.pc)?
                    }
                    ExitKind::Indirect => {
                        if !walking {
                            let pc = self.context.regs.rip;
                            if let Some(block) = self.block(pc, LINKED) {
                                self.cache.enter_in_indirect_table(block);
                            }
                        }
                        None
                    }
                    ExitKind::Direct => {
                        if !walking {
                            let flushes = self.cache.flushes;
                            if let Some(block) = self.block(exit.pc, LINKED)
                                && self.cache.flushes == flushes
                            {
                                self.cache.link(exit_id, block);
                            }
                        }
                        None
                    }
                    // Not the end of a chunk, but a signal.
                    ExitKind::Quantum if broken => None,
                    ExitKind::Quantum => {
                        walking = !self.next_chunk(exit.block);
                        None
                    }
                    ExitKind::Syscall if self.before_syscalls => {
                        // Back to the two bytes of the instruction, uncounted.
                        self.context.regs.rip -= 2;
                        self.context.remaining += 1;
                        Some(SliceEnd::Sequencer)
                    }
                    ExitKind::Syscall => match self.system_call()? {
                        None => self.weigh_call(),
                        end => end,
                    },
                    ExitKind::Emulate => self.emulate()?,
                    ExitKind::Pause => self.give_way(SliceEnd::Yielded),
                    ExitKind::Counts => {
                        if let Some(thread) = self.threads.get_mut(&self.current) {
                            thread.counted += 1;
                        }
                        self.give_way(SliceEnd::Yielded)
                    }
                    ExitKind::Sequencer => self.give_way(SliceEnd::Sequencer),
                    // The attempt counts, so it needs an instruction left.
                    ExitKind::Undecodable if self.remaining() == 0 => None,
                    ExitKind::Undecodable => self.bad_fetch()?,
                    ExitKind::Fault => self.host_fault()?,
                    ExitKind::RingFull => {
                        self.drain_ring();
                        None
                    }
                    ExitKind::LongRepeat => self.repeat_part(&mut broken)?,
                    ExitKind::PointersStored => {
                        self.clear_stored_pointers();
                        None
                    }
                    ExitKind::Hook if self.leaves_out_call() => None,
                    ExitKind::Hook if self.preempts() => Some(SliceEnd::Sequencer),
                    ExitKind::Hook => {
                        self.drain_ring();
                        match self.hooked() {
                            Hooked::SliceEnds => Some(SliceEnd::Sequencer),
                            Hooked::Elsewhere => None,
                            Hooked::GoesOn => {
                                host = self.cache.block(exit.block).after_hook;
                                self.break_again(broken);
                                continue;
                            }
                        }
                    }
                    ExitKind::Complex if let Some(address) = self.elsewhere_in_vm() => {
                        let fault = as_natively(self.context.fault, address, USER_WRITE);
                        let trap = Trap {
                            number: fault.trap_number,
                            error: fault.trap_error,
                            address: fault.address,
                        };
                        self.guest_fault(libc::SIGSEGV, fault.code, fault.address, trap)?
                    }
                    ExitKind::Complex => {
                        self.drain_ring();
                        self.complex_access();
                        host = self.cache.block(exit.block).after_complex;
                        self.break_again(broken);
                        continue;
                    }
                };
                if let Some(end) = end {
                    return Ok(end);
                }
                if broken && self.cut_slice() {
                    walking = false;
                }
                break;
            }
        }
    }

    /// The block goes on; its slice ends at the next one all the same.
    pub(super) fn break_again(&mut self, broken: bool) {
        if broken {
            self.context.remaining -= BREAK;
            self.context.broken = BREAK;
        }
    }

    /// Ends the slice here, if a policy decides (a followed recording knows
    /// better).
    pub(crate) fn give_way(&mut self, end: SliceEnd) -> Option<SliceEnd> {
        let here = self.here(end == SliceEnd::Sequencer);
        if here.sequencer && self.one_thread {
            return self.before_syscalls.then_some(end);
        }
        match &mut self.pace {
            Pace::Policy { policy, .. } if here.sequencer => {
                (policy.at_sequencers() && policy.ends_here(&here)).then_some(end)
            }
            Pace::Policy { .. } => Some(end),
            Pace::Follow(_) => None,
        }
    }

    /// A system call is a sequencer, for policies that ask for them.
    pub(crate) fn sequencer_after_call(&mut self) -> Option<SliceEnd> {
        if self.instrumentation.sequencers {
            self.give_way(SliceEnd::Sequencer)
        } else {
            None
        }
    }

    /// Enters translated code; returns the exit taken.
    pub(super) fn execute(&mut self, host: u64) -> u32 {
        if self.context.ring_position > layout::RING_SIZE - RING_MARGIN {
            self.drain_ring();
        }
        if self.instrumentation.only_unknown && self.context.ring_position == 0 {
            let compare = self
                .observers
                .iter()
                .find(|observer| observer.interest().only_unknown)
                .map_or(Compare::Nothing, |observer| observer.known_by(self.current));
            self.context.known.renew(compare);
        }
        let Some(thread) = self.threads.get_mut(&self.current) else {
            unreachable!("the running thread exists");
        };
        // SAFETY: `host` is the entry of a block of the cache, whose common
        // exit was emitted when it was installed.
        unsafe { self.context.enter(host, &mut thread.vector) };
        self.context.exit as u32
    }

    /// The instruction at `pc` alone, from pages left writable. What was made
    /// of them is forgotten before anything else runs.
    pub(super) fn alone(&mut self, pc: u64, variant: u32) -> u64 {
        let (translation, pages) = self.translate(pc, variant);
        self.stale.extend(pages);
        let block = self.cache.insert(variant, translation);
        self.cache.block(block).host
    }

    /// Executes one part of the long repeated string instruction at rip, as
    /// one instruction. A fault leaves the registers as the machine does: rcx
    /// holds all iterations that are left.
    pub(super) fn repeat_part(&mut self, broken: &mut bool) -> Result<Option<SliceEnd>, Error> {
        let pc = self.context.regs.rip;
        let instruction = self.instruction_at(pc);
        let left = self.context.regs.gpr[reg::RCX] & count_mask(&instruction);
        if left > REPEAT_PART {
            self.later_parts = left - REPEAT_PART;
            self.context.regs.gpr[reg::RCX] = REPEAT_PART;
        }
        // Made from pages left writable, if the block before was.
        let guarded = self.stale.is_empty();
        let mut host = match guarded.then(|| self.block(pc, REPEAT)).flatten() {
            Some(block) => self.cache.block(block).host,
            None => self.alone(pc, REPEAT),
        };
        loop {
            let exit = self.execute(host);
            *broken |= self.mend_counter();
            let exit = self.cache.exit(exit);
            self.context.remaining += i64::from(exit.adjust);
            if exit.kind != ExitKind::Fault {
                break;
            }
            let end = self.host_fault()?;
            if !std::mem::take(&mut self.alone) {
                return Ok(end);
            }
            // It wrote to translated code: the rest of the part.
            host = self.alone(pc, REPEAT);
        }
        let later = std::mem::take(&mut self.later_parts);
        let regs = &mut self.context.regs;
        let rest = regs.gpr[reg::RCX] & count_mask(&instruction);
        let again = later > 0 && rest == 0 && !is_decided(&instruction, regs.rflags);
        regs.rip = if again { pc } else { instruction.next_ip() };
        if later > 0 {
            regs.gpr[reg::RCX] = rest + later;
        }
        Ok(None)
    }

    pub(crate) fn instruction_at(&self, pc: u64) -> Instruction {
        let mut bytes = [0; 15];
        let length = self.space.fetch(pc, &mut bytes);
        Decoder::with_ip(64, &bytes[..length], pc, DecoderOptions::NONE).decode()
    }

    /// Host address at which the current thread goes on.
    pub(super) fn entry(&mut self, walking: bool) -> Result<u64, Error> {
        let pc = self.context.regs.rip;
        self.forget_written_code();
        if std::mem::take(&mut self.alone) {
            return Ok(self.alone(pc, 1));
        }
        if !walking {
            // A block can always be made, if only to say that there is none.
            if let Some(block) = self.block(pc, LINKED) {
                return Ok(self.cache.block(block).host);
            }
        }
        let remaining = self.remaining();
        let whole = MAX_BLOCK as u32;
        for variant in [whole, remaining.min(u64::from(whole)) as u32] {
            if let Some(block) = self.block(pc, variant) {
                let block = self.cache.block(block);
                if u64::from(block.instructions) <= remaining {
                    return Ok(block.host);
                }
            }
        }
        Err(Error::Machine(format!("no code could be made for {pc:#x}")))
    }

    /// The block at `pc`, translated if need be.
    pub(super) fn block(&mut self, pc: u64, variant: u32) -> Option<u32> {
        if let Some(block) = self.cache.find(pc, variant) {
            return Some(block);
        }
        let (translation, pages) = self.translate(pc, variant);
        for page in pages {
            self.space.translated_from(page);
        }
        Some(self.cache.insert(variant, translation))
    }

    /// Translates the block at `pc`; says which pages it was made from.
    pub(super) fn translate(&mut self, pc: u64, variant: u32) -> (Translation, Vec<u64>) {
        let flushes = self.cache.flushes;
        let shape = if variant == LINKED && self.hot.contains(&pc) {
            Shape::Trace
        } else {
            Shape::Basic
        };
        let space = &self.space;
        let observers = &mut self.observers;
        let fetch = |pc: u64, buffer: &mut [u8; 15]| space.fetch(pc, buffer);
        let translation = self.translator.translate(
            &mut self.cache,
            pc,
            variant,
            shape,
            &fetch,
            &self.instrumentation,
            &mut self.sites,
            &mut |pc| {
                observers
                    .iter_mut()
                    .find(|observer| observer.interest().only_unknown)
                    .map_or(Told::Unknown, |observer| observer.told(pc))
            },
        );
        if self.cache.flushes != flushes {
            // The sites of the dropped code go with it at the next flush by
            // the vm; records already in the ring still name them.
            self.drain_ring();
        }
        let pages = pages_of(&translation.guest).collect();
        (translation, pages)
    }

    /// Forgets what was made of pages that have been written since.
    fn forget_written_code(&mut self) {
        for page in std::mem::take(&mut self.stale) {
            self.cache.invalidate(page..page + layout::PAGE);
        }
        for page in protection::take_lifted() {
            self.memory_written(page..page + layout::PAGE);
        }
    }

    /// Guest memory was written other than by the guest's instructions: forgets
    /// translations of it, wherever its bytes are mapped.
    pub(crate) fn memory_written(&mut self, range: std::ops::Range<u64>) {
        for page in self.space.stale_after_write(range) {
            self.cache.invalidate(page..page + layout::PAGE);
        }
    }

    /// The same for bytes of an object that were written without a mapping.
    pub(crate) fn object_written(&mut self, object: SharedObject, bytes: std::ops::Range<u64>) {
        for page in self.space.stale_after_change(object, bytes) {
            self.cache.invalidate(page..page + layout::PAGE);
        }
    }

    /// Forgets translations of a guest range that changed.
    pub(crate) fn code_changed(&mut self, range: std::ops::Range<u64>) {
        self.cache.invalidate(range);
    }

    /// The indirect branch at `pc` went to an address that no program counter
    /// can hold. The machine raises that in the branch itself: takes it back.
    pub(super) fn bad_branch(&mut self, pc: u64) -> Result<Option<SliceEnd>, Error> {
        let branch = self.instruction_at(pc);
        // A call has pushed eight bytes, a return popped them and more.
        let moved = branch.stack_pointer_increment() as i64 as u64;
        let stack = &mut self.context.regs.gpr[reg::RSP];
        *stack = stack.wrapping_sub(moved);
        self.context.regs.rip = pc;
        self.context.remaining += 1;
        // A general protection fault.
        let trap = Trap {
            number: 13,
            ..Trap::default()
        };
        self.guest_fault(libc::SIGSEGV, SI_KERNEL, 0, trap)
    }

    /// No instruction can be executed at rip.
    pub(super) fn bad_fetch(&mut self) -> Result<Option<SliceEnd>, Error> {
        let pc = self.context.regs.rip;
        let mut bytes = [0; 15];
        let length = self.space.fetch(pc, &mut bytes);
        // The decoder asks for more bytes than the machine does.
        let is_none = |behind: u8| {
            let mut bytes = bytes;
            bytes[length..].fill(behind);
            let mut decoder = Decoder::with_ip(64, &bytes, pc, DecoderOptions::NONE);
            let _ = decoder.decode();
            decoder.last_error() == DecoderError::InvalidInstruction
        };
        if length == 15 || (length > 0 && is_none(0) && is_none(0xff)) {
            let trap = Trap {
                number: 6,
                ..Trap::default()
            };
            self.guest_fault(libc::SIGILL, 2 /* ILL_ILLOPN */, pc, trap)
        } else {
            let address = pc + length as u64;
            let mapped = self.space.find(address).is_some();
            // A page fault of an instruction fetch in user mode.
            let trap = Trap {
                number: 14,
                error: 0x14 | u64::from(mapped),
                address,
            };
            let code = if mapped { 2 } else { 1 };
            self.guest_fault(libc::SIGSEGV, code, address, trap)
        }
    }

    /// The stack pointer, or the base of a thread's segment, is an address of the
    /// vm's: nothing may be run that stores there without a look.
    pub(super) fn stack_is_wild(&self) -> bool {
        let regs = &self.context.regs;
        [regs.gpr[reg::RSP], regs.fs_base, regs.gs_base]
            .iter()
            .any(|address| memory::is_vm(address & ((1 << 48) - 1)))
    }

    /// The fault that using this stack pointer would be.
    pub(super) fn stack_fault(&mut self) -> Result<Option<SliceEnd>, Error> {
        const STACK_SEGMENT: u64 = 12;
        const PAGE_FAULT: u64 = 14;
        let address = self.context.regs.gpr[reg::RSP];
        if is_canonical(address) {
            let trap = Trap {
                number: PAGE_FAULT,
                error: USER_WRITE,
                address,
            };
            return self.guest_fault(libc::SIGSEGV, SEGV_MAPERR, address, trap);
        }
        let trap = Trap {
            number: STACK_SEGMENT,
            ..Trap::default()
        };
        self.guest_fault(libc::SIGBUS, SI_KERNEL, 0, trap)
    }

    /// The instruction at rip, which stores where no operand says, would store
    /// to the vm: its fault.
    fn elsewhere_in_vm(&mut self) -> Option<u64> {
        let instruction = self.instruction_at(self.context.regs.rip);
        if !stores_elsewhere(&instruction) {
            return None;
        }
        let stores = self.complex_stores();
        stores
            .into_iter()
            .find(|address| memory::is_vm(address & ((1 << 48) - 1)))
    }

    /// A fault in translated code: restores the guest's state at the faulting
    /// instruction and decides whose fault it is.
    pub(super) fn host_fault(&mut self) -> Result<Option<SliceEnd>, Error> {
        let mut fault = self.context.fault;
        let trap = fault.signal == libc::SIGTRAP;
        let host_pc = fault.host_pc - u64::from(trap);
        let Some(block) = self.cache.block_at_host(host_pc) else {
            return Err(Error::Machine(format!(
                "signal {} outside any block of the code cache, at {host_pc:#x} (address {:#x})",
                fault.signal, fault.address
            )));
        };
        let state = block.state_at(host_pc);
        let instructions = block.instructions;
        self.context.regs.rip = block.pc.wrapping_add_signed(i64::from(state.guest));
        for register in 0..16 {
            if state.spilled & (1 << register) != 0 {
                self.context.regs.gpr[register] = self.context.spill[register];
            }
        }
        self.context.remaining += if state.counted {
            i64::from(instructions) - i64::from(state.index)
        } else {
            -i64::from(state.index)
        };
        self.drop_records_after_fault();
        let table = layout::STORE_TABLE..layout::STORE_TABLE + layout::STORE_TABLE_SIZE;
        if fault.signal == libc::SIGSEGV && table.contains(&fault.address) {
            let rip = self.context.regs.rip;
            let instruction = self.instruction_at(rip);
            if is_repeated(&instruction) && self.context.regs.gpr[reg::RCX] == 0 {
                // It does not store at all.
                self.context.regs.rip = instruction.next_ip();
                self.context.remaining -= 1;
                return Ok(None);
            }
            if is_masked_store(&instruction) && self.complex_stores().is_empty() {
                // Neither does this one.
                self.context.regs.rip = instruction.next_ip();
                self.context.remaining -= 1;
                return Ok(None);
            }
            let registers = &self.context.regs;
            let store = self.translator.store_to_vm(&instruction, registers);
            match store {
                Some(address) => fault = as_natively(fault, address, USER_WRITE),
                None if self.stack_is_wild() => return self.stack_fault(),
                // A load from the table.
                None => {}
            }
        }
        if fault.signal == libc::SIGSEGV && memory::is_vm(fault.address) {
            // A load, or a store that the machine refused: nothing is there.
            fault = as_natively(fault, fault.address, fault.trap_error & USER_WRITE);
        }
        if fault.signal == libc::SIGSEGV && protection::lift(fault.address) {
            // If the instruction writes to the page it lies on, translating it
            // the usual way would guard the page again before it has run.
            self.alone = true;
            return Ok(None);
        }
        self.context.regs.gpr[reg::RCX] += std::mem::take(&mut self.later_parts);
        if fault.signal == libc::SIGSEGV && self.grow_down(fault.address) {
            return Ok(None);
        }
        let pc = self.context.regs.rip;
        if trap {
            // int3 is complete when it traps, and may have prefixes.
            self.context.regs.rip = self.instruction_at(pc).next_ip();
            self.context.remaining -= 1;
        }
        let address = if fault.signal == libc::SIGSEGV || fault.signal == libc::SIGBUS {
            fault.address
        } else {
            pc
        };
        let is_page_fault = fault.trap_number == PAGE_FAULT;
        let trap = Trap {
            number: fault.trap_number,
            error: if is_page_fault {
                self.page_fault_error(&fault)
            } else {
                fault.trap_error
            },
            address: if is_page_fault { fault.address } else { 0 },
        };
        self.guest_fault(fault.signal, fault.code, address, trap)
    }

    /// The error code of a page fault. Whether the page was in the machine's
    /// memory depends on what else has looked at it: the guest is told that it
    /// was there if the guest may use it otherwise. Linux says so of all its own
    /// addresses.
    fn page_fault_error(&self, fault: &HostFault) -> u64 {
        const PRESENT: u64 = 1;
        // TASK_SIZE_MAX: the upper half, and a page before the hole.
        const KERNEL: u64 = (1 << 47) - layout::PAGE;
        let may_use = |mapping: &crate::space::Mapping| mapping.protection != libc::PROT_NONE;
        let mapping = self.space.find(fault.address);
        let refused =
            fault.signal == libc::SIGSEGV && mapping.is_some_and(|(_, mapping)| may_use(mapping));
        let is_kernels = fault.address >= KERNEL;
        (fault.trap_error & !PRESENT) | u64::from(refused || is_kernels)
    }
}

/// The number of the exception of a page fault.
const PAGE_FAULT: u64 = 14;

/// The error code of a write from user mode to a page that is not there.
const USER_WRITE: u64 = 6;

/// What a machine without a vm says about an access to memory of the vm: nothing
/// is mapped there.
fn as_natively(fault: HostFault, address: u64, error: u64) -> HostFault {
    const NOT_CANONICAL: u64 = 13;
    if is_canonical(address) {
        return HostFault {
            code: SEGV_MAPERR,
            address,
            trap_number: PAGE_FAULT,
            trap_error: error,
            ..fault
        };
    }
    HostFault {
        code: SI_KERNEL,
        address: 0,
        trap_number: NOT_CANONICAL,
        trap_error: 0,
        ..fault
    }
}

/// The bits of rcx that count the iterations of a repeated string instruction.
pub(super) fn count_mask(instruction: &Instruction) -> u64 {
    use iced_x86::OpKind;
    let short = instruction
        .op_kinds()
        .any(|kind| matches!(kind, OpKind::MemorySegESI | OpKind::MemoryESEDI));
    if short { 0xffff_ffff } else { u64::MAX }
}

/// True if a repeated comparison stops because of what it compared last.
pub(super) fn is_decided(instruction: &Instruction, rflags: u64) -> bool {
    use Mnemonic::*;
    let compares = matches!(
        instruction.mnemonic(),
        Cmpsb | Cmpsw | Cmpsd | Cmpsq | Scasb | Scasw | Scasd | Scasq
    );
    let equal = rflags & 0x40 != 0;
    compares && equal == instruction.has_repne_prefix()
}

/// True if a branch to this address can be made, though it may fault there: its
/// upper bits repeat bit 47. (With five levels of page tables it would be bit
/// 56; the addresses between are never mapped and fault either way.)
pub(crate) fn is_canonical(address: u64) -> bool {
    const UNUSED: u32 = 64 - 48;
    ((address << UNUSED) as i64 >> UNUSED) as u64 == address
}
