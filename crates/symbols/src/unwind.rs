//! Walking a stack: the callers of a stopped thread.
//!
//! Unwind tables are followed with the complete register set (not only rsp
//! and rbp), so frames whose address is kept in other registers, realigned
//! stacks and signal frames come out right. Where a module has no table for
//! an instruction: the return address on top of the stack for a leaf that has
//! not touched it, then frame pointers (Go, generated code). Both fallbacks
//! accept an address only if it lies behind a call instruction of known code,
//! so a broken stack ends the walk instead of inventing callers.
//!
//! The walk ends: frames must climb the stack, except out of a signal frame
//! (signal stacks lie anywhere), and there is a limit on their number.

use crate::cfi::ReadMemory;
use crate::map::ModuleMap;
use crate::registers::Registers;
use race::Frame;

/// One frame of a walked stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StackFrame {
    /// The instruction of the innermost frame and of frames interrupted by a
    /// signal, the return address of all others.
    pub address: u64,
    pub is_return_address: bool,
    /// Registers as they are in this frame; those that a callee need not keep
    /// hold the callee's values.
    pub registers: Registers,
}

impl StackFrame {
    /// The instruction that is executed, or the last byte of the call.
    pub(crate) fn instruction(&self) -> u64 {
        self.address.wrapping_sub(u64::from(self.is_return_address))
    }
}

/// How far the word on top of the stack is to be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Likelihood {
    Sure,
    /// Its call led to another function: a leftover, or a tail call.
    Leftover,
}

/// A frame larger than this is taken for a broken frame pointer.
const LARGEST_FRAME: u64 = 64 << 20;

impl ModuleMap {
    /// The instruction pointer, then the return addresses of all callers;
    /// at most `limit`.
    pub fn unwind(
        &self,
        registers: &Registers,
        read: &mut ReadMemory<'_>,
        limit: usize,
    ) -> Vec<u64> {
        self.walk(registers, read, limit)
            .into_iter()
            .map(|frame| frame.address)
            .collect()
    }

    /// The stack of a stopped thread with the source of each frame, inlined
    /// ones included; at most `limit` frames before inlining.
    pub fn stack(
        &self,
        registers: &Registers,
        read: &mut ReadMemory<'_>,
        limit: usize,
    ) -> Vec<Frame> {
        self.walk(registers, read, limit)
            .into_iter()
            .flat_map(|frame| self.frames(frame.address, frame.is_return_address))
            .collect()
    }

    /// The frames of a stopped thread, innermost first; at most `limit`.
    pub fn walk(
        &self,
        registers: &Registers,
        read: &mut ReadMemory<'_>,
        limit: usize,
    ) -> Vec<StackFrame> {
        let mut frames: Vec<StackFrame> = Vec::new();
        let mut frame = StackFrame {
            address: registers.rip,
            is_return_address: false,
            registers: *registers,
        };
        while frames.len() < limit {
            frames.push(frame);
            let Some(caller) = self.caller(&frame, read) else {
                break;
            };
            // Only a signal frame may lead to a lower stack; a cycle through
            // signal frames is caught by comparing with all frames seen.
            let climbs = caller.registers.rsp() > frame.registers.rsp();
            if caller.address == 0
                || (!climbs && caller.is_return_address)
                || frames.contains(&caller)
            {
                break;
            }
            frame = caller;
        }
        frames
    }

    /// The caller of a frame.
    pub fn caller(&self, frame: &StackFrame, read: &mut ReadMemory<'_>) -> Option<StackFrame> {
        let registers = &frame.registers;
        // A return address may be the first byte of the next function (the
        // call does not return); the trampoline of a signal is entered by a
        // return address that is its own first byte.
        let lookups = [
            frame
                .address
                .wrapping_sub(u64::from(frame.is_return_address)),
            frame.address,
        ];
        for lookup in lookups {
            let Some((module, offset)) = self.find(lookup) else {
                continue;
            };
            let Some(cfi) = module.cfi() else {
                continue;
            };
            let Some(row) = cfi.row(offset) else {
                continue;
            };
            let caller = cfi.caller(&row, registers, read)?;
            return Some(StackFrame {
                address: caller.rip,
                is_return_address: !row.is_signal_frame,
                registers: caller,
            });
        }
        let leaf = (!frame.is_return_address)
            .then(|| self.leaf_caller(registers, read))
            .flatten();
        match leaf {
            Some((caller, Likelihood::Sure)) => Some(caller),
            unsure => self
                .frame_pointer_caller(registers, read)
                .or(unsure.map(|(caller, _)| caller)),
        }
    }

    /// The caller of code without unwind tables that has pushed nothing yet,
    /// or only the frame pointer.
    fn leaf_caller(
        &self,
        registers: &Registers,
        read: &mut ReadMemory<'_>,
    ) -> Option<(StackFrame, Likelihood)> {
        let rsp = registers.rsp();
        let top = read(rsp)?;
        let (address, popped) = if self.is_behind_call(top, read) {
            (top, 8)
        } else {
            let below = read(rsp.wrapping_add(8))?;
            if top != registers.rbp() || !self.is_behind_call(below, read) {
                return None;
            }
            (below, 16)
        };
        let likelihood = if self.call_can_lead_to(address, registers.rip, read) {
            Likelihood::Sure
        } else {
            Likelihood::Leftover
        };
        let mut caller = *registers;
        caller.rip = address;
        caller.general[Registers::RSP] = rsp.wrapping_add(popped);
        let caller = StackFrame {
            address,
            is_return_address: true,
            registers: caller,
        };
        Some((caller, likelihood))
    }

    fn frame_pointer_caller(
        &self,
        registers: &Registers,
        read: &mut ReadMemory<'_>,
    ) -> Option<StackFrame> {
        let (rsp, rbp) = (registers.rsp(), registers.rbp());
        if !rbp.is_multiple_of(8) || rbp < rsp || rbp - rsp > LARGEST_FRAME {
            return None;
        }
        let saved = read(rbp)?;
        let address = read(rbp.wrapping_add(8))?;
        if !self.is_behind_call(address, read) {
            return None;
        }
        let mut caller = *registers;
        caller.rip = address;
        caller.general[Registers::RSP] = rbp.wrapping_add(16);
        caller.general[Registers::RBP] = saved;
        Some(StackFrame {
            address,
            is_return_address: true,
            registers: caller,
        })
    }

    /// False if the call before `address` is a direct one to another function
    /// than that of `rip`.
    fn call_can_lead_to(&self, address: u64, rip: u64, read: &mut ReadMemory<'_>) -> bool {
        let Some(word) = read(address.wrapping_sub(8)) else {
            return true;
        };
        let bytes = word.to_le_bytes();
        if bytes[3] != 0xe8 {
            return true;
        }
        let distance = i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let target = address.wrapping_add_signed(i64::from(distance));
        let in_text = self.find(target).is_some_and(|(module, offset)| {
            module
                .section_at(offset)
                .is_some_and(|section| !section.name.starts_with(".plt"))
        });
        // Through the PLT, or where nothing is known, anything may come.
        match (in_text, self.function_at(target), self.function_at(rip)) {
            (true, Some(called), Some(current)) => called.start == current.start,
            _ => true,
        }
    }

    /// A return address lies in known code, behind a call instruction.
    fn is_behind_call(&self, address: u64, read: &mut ReadMemory<'_>) -> bool {
        let Some((module, offset)) = self.find(address.wrapping_sub(1)) else {
            return false;
        };
        let before = match module.bytes_at(offset.wrapping_sub(7), 8) {
            Some(bytes) => {
                let executable = module
                    .segments()
                    .iter()
                    .any(|segment| segment.executable && segment.addresses.contains(&offset));
                if !executable {
                    return false;
                }
                <[u8; 8]>::try_from(bytes).ok()
            }
            None => read(address.wrapping_sub(8)).map(u64::to_le_bytes),
        };
        before.is_some_and(ends_in_call)
    }
}

/// `call rel32`, or `call r/m64` (FF /2) in any of its lengths.
fn ends_in_call(bytes: [u8; 8]) -> bool {
    let indirect = |length: usize, form: fn(u8, u8) -> bool| {
        let [opcode, modrm] = [bytes[8 - length], bytes[8 - length + 1]];
        opcode == 0xff && (modrm >> 3) & 7 == 2 && form(modrm >> 6, modrm & 7)
    };
    bytes[3] == 0xe8
        || indirect(2, |mode, rm| mode == 3 || (mode == 0 && rm != 4 && rm != 5))
        || indirect(3, |mode, rm| {
            (mode == 1 && rm != 4) || (mode == 0 && rm == 4)
        })
        || indirect(4, |mode, rm| mode == 1 && rm == 4)
        || indirect(6, |mode, rm| {
            (mode == 2 && rm != 4) || (mode == 0 && rm == 5)
        })
        || indirect(7, |mode, rm| (mode == 2 || mode == 0) && rm == 4)
}

#[cfg(test)]
mod tests {
    use super::ends_in_call;

    #[test]
    fn calls_are_told_from_other_bytes() {
        for call in [
            [0x90, 0x90, 0x90, 0xe8, 1, 2, 3, 4],             // call rel32
            [0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0], // call rax
            [0x90, 0x90, 0x90, 0x90, 0x90, 0x41, 0xff, 0xd4], // call r12
            [0x90, 0x90, 0xff, 0x15, 1, 2, 3, 4],             // call [rip+x]
            [0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0x53, 8],    // call [rbx+8]
            [0x90, 0xff, 0x94, 0xc3, 0, 1, 0, 0],             // call [rbx+rax*8+256]
            [0x90, 0x90, 0x90, 0x90, 0xff, 0x54, 0x24, 8],    // call [rsp+8]
        ] {
            assert!(ends_in_call(call), "{call:x?}");
        }
        for other in [
            [0x90; 8],
            [0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xe0], // jmp rax
            [0xe8, 0, 0, 0, 0, 0x90, 0x90, 0x90],
        ] {
            assert!(!ends_in_call(other), "{other:x?}");
        }
    }
}
