//! The frame that a signal handler finds on its stack, and the way back.
//!
//! Exactly the kernel's x86-64 `rt_sigframe`: programs and run-time libraries
//! (Go, unwinders, JITs) read and change it. The vector state is an XSAVE image
//! (`extended_state.rs`) with the kernel's magic words. Which components the
//! processor had in use is not in it, so that the same execution has the same
//! bytes on the stack every time.

use super::signal::{Action, AlternateStack, SignalInfo, Trap};
use super::{Halt, Outcome};
use crate::context::{Registers, reg};
use crate::extended_state;
use crate::machine::Vm;
use crate::memory::{self, BadAddress};
use crate::processor::{EXTENDED_AT, Processor};
use crate::vector::{MXCSR_AT, VectorState};

const RED_ZONE: u64 = 128;
const FRAME_SIZE: u64 = 440;
const CONTEXT_AT: u64 = 8;
const INFO_AT: u64 = 312;

// Offsets in the frame's ucontext.
const STACK_AT: usize = 16;
const MACHINE_AT: usize = 40;
const MASK_AT: usize = 296;
const CONTEXT_SIZE: usize = 304;
const VECTOR_POINTER_AT: usize = MACHINE_AT + 184;

/// The frame has vector state and a valid stack segment.
const CONTEXT_FLAGS: u64 = 7;
const MAGIC_1: u32 = 0x4650_5853;
const MAGIC_2: u32 = 0x4650_5845;
/// Bytes of the legacy part.
const LEGACY_SIZE: usize = extended_state::LEGACY_SIZE;
/// Where in it software keeps its own words.
const SOFTWARE_AT: usize = 464;

/// General registers in the order of `sigcontext`.
const ORDER: [usize; 16] = [
    reg::R8,
    reg::R9,
    reg::R10,
    reg::R11,
    reg::R12,
    reg::R13,
    reg::R14,
    reg::R15,
    reg::RDI,
    reg::RSI,
    reg::RBP,
    reg::RBX,
    reg::RDX,
    reg::RAX,
    reg::RCX,
    reg::RSP,
];

/// Flags a program may set by returning from a handler. Not the trap flag: it
/// would single-step the vm. Not the alignment check: it would check the vm's
/// own instructions.
const SETTABLE_FLAGS: u64 = 0x0001_0cd5;

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn get(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// The image as it goes into a frame.
fn vector_image(state: &VectorState, processor: &Processor) -> Vec<u8> {
    let mut image = extended_state::image(state, processor);
    let size = image.len();
    let software = &mut image[SOFTWARE_AT..];
    software[..4].copy_from_slice(&MAGIC_1.to_le_bytes());
    software[4..8].copy_from_slice(&(size as u32 + 4).to_le_bytes());
    put(software, 8, processor.components());
    software[16..20].copy_from_slice(&(size as u32).to_le_bytes());
    image.extend_from_slice(&MAGIC_2.to_le_bytes());
    image
}

/// The vector state a frame asks for. `None`: it cannot be read.
fn vector_from(pointer: u64, processor: &Processor) -> Option<VectorState> {
    let mut state = VectorState::default();
    if pointer == 0 {
        return Some(state);
    }
    let mut beginning = [0; EXTENDED_AT];
    let legacy = memory::read_vec(pointer, LEGACY_SIZE).ok()?;
    beginning[..LEGACY_SIZE].copy_from_slice(&legacy);
    let word = |at: usize| get(&legacy, at) as u32;
    let size = word(SOFTWARE_AT + 16) as usize;
    let extended = word(SOFTWARE_AT) == MAGIC_1
        && (EXTENDED_AT..=processor.area_size()).contains(&size)
        && memory::get::<u32>(pointer + size as u64) == Ok(MAGIC_2);
    // Without the magic words the frame holds x87 and SSE only.
    let mut wanted = 3;
    beginning[LEGACY_SIZE] = 3;
    let mut rest = Vec::new();
    if extended {
        wanted = get(&legacy, SOFTWARE_AT + 8);
        rest = memory::read_vec(pointer, size).ok()?;
        beginning[LEGACY_SIZE..].copy_from_slice(&rest[LEGACY_SIZE..EXTENDED_AT]);
        let in_use = get(&beginning, LEGACY_SIZE) & wanted;
        put(&mut beginning, LEGACY_SIZE, in_use);
    }
    // Reserved bits of MXCSR would fault when it is loaded.
    let control = word(MXCSR_AT) & 0xffff;
    beginning[MXCSR_AT..MXCSR_AT + 4].copy_from_slice(&control.to_le_bytes());
    let area = extended_state::Area::new(beginning, processor).ok()?;
    let parts: Vec<(u32, Vec<u8>)> = area
        .parts(processor, wanted)
        .into_iter()
        .filter_map(|(number, at, length)| Some((number, rest.get(at..at + length)?.to_vec())))
        .collect();
    area.restore(&mut state, processor, u64::MAX, &parts).ok()?;
    Some(state)
}

fn machine_context(bytes: &mut [u8], regs: &Registers, trap: Trap, mask: u64, vector: u64) {
    for (index, register) in ORDER.iter().enumerate() {
        put(bytes, 8 * index, regs.gpr[*register]);
    }
    put(bytes, 128, regs.rip);
    put(bytes, 136, regs.rflags);
    // User code and stack segments.
    put(bytes, 144, 0x002b_0000_0000_0033);
    put(bytes, 152, trap.error);
    put(bytes, 160, trap.number);
    put(bytes, 168, mask);
    put(bytes, 176, trap.address);
    put(bytes, 184, vector);
}

impl Vm {
    /// Writes the frame for `info` and sends the current thread to its
    /// handler. Nothing has changed when the frame does not fit.
    pub(super) fn push_frame(
        &mut self,
        info: &SignalInfo,
        action: Action,
        mask: u64,
    ) -> Result<(), BadAddress> {
        const SA_RESTORER: u64 = 0x0400_0000;
        if action.flags & SA_RESTORER == 0 {
            return Err(BadAddress);
        }
        let regs = *self.regs();
        let current = self.current;
        let thread = self.threads.get_mut(&current).ok_or(BadAddress)?;
        let old_stack = regs.gpr[reg::RSP];
        let alternate = thread.signals.stack;
        let mut at = old_stack.wrapping_sub(RED_ZONE);
        let entering = action.flags & libc::SA_ONSTACK as u64 != 0 && alternate.usable(old_stack);
        if entering {
            at = alternate.start + alternate.size;
        }
        let image = vector_image(&thread.vector, &self.processor);
        at = at.wrapping_sub(image.len() as u64) & !63;
        let vector = at;
        at = (at.wrapping_sub(FRAME_SIZE) & !15).wrapping_sub(8);
        let on_alternate = entering || alternate.contains(old_stack);
        if on_alternate && !(alternate.start..alternate.start + alternate.size).contains(&at) {
            return Err(BadAddress);
        }
        let mut frame = vec![0; FRAME_SIZE as usize];
        put(&mut frame, 0, action.restorer);
        let context = &mut frame[CONTEXT_AT as usize..];
        put(context, 0, CONTEXT_FLAGS);
        let shown: AlternateStack = alternate.shown(old_stack);
        put(context, STACK_AT, shown.start);
        put(context, STACK_AT + 8, shown.flags);
        put(context, STACK_AT + 16, shown.size);
        machine_context(
            &mut context[MACHINE_AT..],
            &regs,
            thread.signals.trap,
            mask,
            vector,
        );
        put(context, MASK_AT, mask);
        frame[INFO_AT as usize..].copy_from_slice(&info.bytes);
        memory::write(vector, &image)?;
        memory::write(at, &frame)?;
        thread.signals.stack.disarm_if_automatic();
        *thread.vector = VectorState::default();
        let regs = self.regs();
        regs.gpr[reg::RDI] = info.signal() as u64;
        regs.gpr[reg::RSI] = at + INFO_AT;
        regs.gpr[reg::RDX] = at + CONTEXT_AT;
        regs.gpr[reg::RAX] = 0;
        regs.gpr[reg::RSP] = at;
        regs.rip = action.handler;
        // Direction, trap and resume are clear in a handler.
        regs.rflags &= !0x1_0500;
        Ok(())
    }

    pub(super) fn sys_rt_sigreturn(&mut self) -> Outcome {
        // The handler's `ret` has taken the restorer's address.
        let at = self.regs().gpr[reg::RSP];
        let restored = memory::read_vec(at, CONTEXT_SIZE).ok().and_then(|context| {
            let vector = vector_from(get(&context, VECTOR_POINTER_AT), &self.processor)?;
            Some((context, vector))
        });
        let Some((context, vector)) = restored else {
            // A bad frame is a segmentation fault in the program.
            self.raise_forced_segv();
            return Err(Halt::NoReturn);
        };
        let machine = &context[MACHINE_AT..];
        let regs = self.regs();
        for (index, register) in ORDER.iter().enumerate() {
            regs.gpr[*register] = get(machine, 8 * index);
        }
        regs.rip = get(machine, 128);
        regs.rflags = (regs.rflags & !SETTABLE_FLAGS) | (get(machine, 136) & SETTABLE_FLAGS);
        let stack = AlternateStack {
            start: get(&context, STACK_AT),
            flags: get(&context, STACK_AT + 8) & 0xffff_ffff,
            size: get(&context, STACK_AT + 16),
        };
        self.restore_after_handler(get(&context, MASK_AT), stack, vector);
        Err(Halt::NoReturn)
    }
}
