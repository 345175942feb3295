//! Atomic accesses look for plain ones (the run-time's `monitor::atomics` says why
//! that finds races only): the slot is read right before the access, and if it
//! names a monitor of another thread in conflict the run-time is called right
//! after it.

use super::{Lowering, SLOT_BASE, SLOT_MASK};
use crate::placement::describe;
use crate::{ir, shim};
use inkwell::llvm_sys::core::*;
use inkwell::llvm_sys::prelude::*;
use inkwell::llvm_sys::{LLVMAtomicOrdering, LLVMIntPredicate, LLVMOpcode};
use std::ffi::c_int;

/// An atomic access of one granule.
pub struct Atomic {
    instruction: LLVMValueRef,
    pointer: LLVMValueRef,
    size: u64,
    write: bool,
}

/// Where a slot says which bytes were accessed, and which written.
const ANY: u64 = 0xff;
const WRITTEN: u64 = 0xff00;

impl Lowering {
    /// What the instruction is, if an atomic access of memory that others may have.
    pub fn atomic(&self, instruction: LLVMValueRef) -> Option<Atomic> {
        use LLVMOpcode::*;
        let (operand, value, write) = match ir::opcode(instruction) {
            LLVMLoad => (0, instruction, false),
            LLVMStore => (1, ir::operand(instruction, 0), true),
            LLVMAtomicRMW => (0, ir::operand(instruction, 1), true),
            LLVMAtomicCmpXchg => (0, ir::operand(instruction, 1), true),
            _ => return None,
        };
        let pointer = ir::operand(instruction, operand);
        // SAFETY: a live load, store or atomic instruction and its operands.
        unsafe {
            let plain = matches!(ir::opcode(instruction), LLVMLoad | LLVMStore)
                && LLVMGetOrdering(instruction) == LLVMAtomicOrdering::LLVMAtomicOrderingNotAtomic;
            if plain
                || LLVMTypeOf(pointer) != self.pointer
                || shim::dh_private(pointer, c_int::from(!self.without.escape)) != 0
            {
                return None;
            }
            let size = ir::store_size(self.module, LLVMTypeOf(value));
            let fits = size.is_power_of_two() && size <= 8;
            fits.then_some(Atomic {
                instruction,
                pointer,
                size,
                write,
            })
        }
    }

    /// Puts the two halves of the check around the access.
    pub fn look_around(&self, function: LLVMValueRef, atomic: &Atomic) {
        let at = atomic.instruction;
        self.stand(at);
        // SAFETY: live values in scope at the builder; the shadow is mapped while
        // the thread's word is not 0.
        unsafe {
            let b = self.builder;
            let none = c"".as_ptr();
            let zero = self.number(0);
            let different = LLVMIntPredicate::LLVMIntNE;
            let address = LLVMBuildPtrToInt(b, atomic.pointer, self.i64, none);
            let now = self.state(0, self.i64);
            let head = ir::parent(at);
            let wants = LLVMBuildICmp(b, different, now, zero, none);
            let inside = shim::dh_split_if(wants, at, 0);
            self.stand(inside);
            let chosen = LLVMBuildAnd(b, address, self.number(SLOT_MASK), none);
            let slot = LLVMBuildAdd(b, chosen, self.number(SLOT_BASE), none);
            let slot = LLVMBuildIntToPtr(b, slot, self.pointer, none);
            let read = LLVMBuildLoad2(b, self.i64, slot, none);
            LLVMSetAlignment(read, 8);
            // Nothing may move it behind the access.
            LLVMSetVolatile(read, 1);
            let guarded = ir::parent(inside);
            self.stand(at);
            let held = LLVMBuildPhi(b, self.i64, none);
            let (mut values, mut blocks) = ([zero, read], [head, guarded]);
            LLVMAddIncoming(held, values.as_mut_ptr(), blocks.as_mut_ptr(), 2);

            let after = LLVMGetNextInstruction(at);
            self.stand(after);
            let mask = self.number(if atomic.write { ANY } else { WRITTEN });
            let met = LLVMBuildAnd(b, held, mask, none);
            let conflict = LLVMBuildICmp(b, different, met, zero, none);
            let differs = LLVMBuildXor(b, held, now, none);
            let owner = LLVMBuildLShr(b, differs, self.number(56), none);
            let anothers = LLVMBuildICmp(b, different, owner, zero, none);
            let cold = LLVMBuildAnd(b, conflict, anothers, none);
            let inside = shim::dh_split_if(cold, after, 1);
            self.stand(inside);
            let write = if atomic.write { describe::WRITE } else { 0 };
            let mut arguments = [address, self.number(atomic.size | write), held];
            self.call(function, c"__deadheat_ifr_atomic", &mut arguments, at);
        }
    }
}
