//! Reading LLVM IR: iteration, names, attributes, and the marks the pass
//! leaves on functions.

use crate::shim;
use inkwell::llvm_sys::core::*;
use inkwell::llvm_sys::prelude::*;
use inkwell::llvm_sys::{LLVMAttributeFunctionIndex, LLVMOpcode};

/// The function has its placeholders; a second run leaves it alone.
pub const PLACED: &str = "deadheat-ifr-placed";

/// Blocks of a function in layout order.
pub fn blocks(function: LLVMValueRef) -> Vec<LLVMBasicBlockRef> {
    let mut found = Vec::new();
    // SAFETY: the function is live; the list is only read.
    unsafe {
        let mut block = LLVMGetFirstBasicBlock(function);
        while !block.is_null() {
            found.push(block);
            block = LLVMGetNextBasicBlock(block);
        }
    }
    found
}

/// Instructions of a block in order.
pub fn instructions(block: LLVMBasicBlockRef) -> Vec<LLVMValueRef> {
    let mut found = Vec::new();
    // SAFETY: the block is live; the list is only read.
    unsafe {
        let mut instruction = LLVMGetFirstInstruction(block);
        while !instruction.is_null() {
            found.push(instruction);
            instruction = LLVMGetNextInstruction(instruction);
        }
    }
    found
}

/// Functions of a module.
pub fn functions(module: LLVMModuleRef) -> Vec<LLVMValueRef> {
    let mut found = Vec::new();
    // SAFETY: the module is live; the list is only read.
    unsafe {
        let mut function = LLVMGetFirstFunction(module);
        while !function.is_null() {
            found.push(function);
            function = LLVMGetNextFunction(function);
        }
    }
    found
}

pub fn is_declaration(function: LLVMValueRef) -> bool {
    // SAFETY: a live global value.
    unsafe { LLVMIsDeclaration(function) != 0 }
}

pub fn opcode(instruction: LLVMValueRef) -> LLVMOpcode {
    // SAFETY: a live instruction.
    unsafe { LLVMGetInstructionOpcode(instruction) }
}

pub fn operand(instruction: LLVMValueRef, index: u32) -> LLVMValueRef {
    // SAFETY: a live user; the callers know the operand exists.
    unsafe { LLVMGetOperand(instruction, index) }
}

pub fn parent(instruction: LLVMValueRef) -> LLVMBasicBlockRef {
    // SAFETY: a live instruction in a block.
    unsafe { LLVMGetInstructionParent(instruction) }
}

pub fn module_of(function: LLVMValueRef) -> LLVMModuleRef {
    // SAFETY: a live function.
    unsafe { LLVMGetGlobalParent(function) }
}

pub fn successors(block: LLVMBasicBlockRef) -> Vec<LLVMBasicBlockRef> {
    // SAFETY: a live block with a terminator.
    unsafe {
        let end = LLVMGetBasicBlockTerminator(block);
        (0..LLVMGetNumSuccessors(end))
            .map(|index| LLVMGetSuccessor(end, index))
            .collect()
    }
}

/// Name of a value, empty if it has none.
pub fn name(value: LLVMValueRef) -> String {
    let mut length = 0;
    // SAFETY: LLVM returns a pointer to `length` bytes that live as long as
    // the value.
    unsafe {
        let start = LLVMGetValueName2(value, &mut length);
        if start.is_null() {
            return String::new();
        }
        String::from_utf8_lossy(std::slice::from_raw_parts(start.cast::<u8>(), length)).into_owned()
    }
}

/// The function a call names directly, if it does.
pub fn callee(call: LLVMValueRef) -> Option<LLVMValueRef> {
    // SAFETY: a live call or invoke.
    unsafe {
        let target = LLVMGetCalledValue(call);
        (!target.is_null() && !LLVMIsAFunction(target).is_null()).then_some(target)
    }
}

pub fn has_mark(function: LLVMValueRef, mark: &str) -> bool {
    // SAFETY: a live function; the key is passed with its length.
    unsafe {
        !LLVMGetStringAttributeAtIndex(
            function,
            LLVMAttributeFunctionIndex,
            mark.as_ptr().cast(),
            mark.len() as u32,
        )
        .is_null()
    }
}

pub fn set_mark(function: LLVMValueRef, mark: &str) {
    // SAFETY: a live function; key and value are passed with their lengths.
    unsafe {
        let context = LLVMGetModuleContext(module_of(function));
        let attribute = LLVMCreateStringAttribute(
            context,
            mark.as_ptr().cast(),
            mark.len() as u32,
            c"".as_ptr(),
            0,
        );
        LLVMAddAttributeAtIndex(function, LLVMAttributeFunctionIndex, attribute);
    }
}

fn attribute_kind(word: &str) -> u32 {
    // SAFETY: the word is passed with its length.
    unsafe { LLVMGetEnumAttributeKindForName(word.as_ptr().cast(), word.len()) }
}

pub fn has_attribute(function: LLVMValueRef, word: &str) -> bool {
    // SAFETY: a live function.
    unsafe {
        !LLVMGetEnumAttributeAtIndex(function, LLVMAttributeFunctionIndex, attribute_kind(word))
            .is_null()
    }
}

/// Functions that must keep every instruction as it is, or that ask to be left
/// alone.
fn left_alone(function: LLVMValueRef) -> bool {
    [
        "naked",
        "disable_sanitizer_instrumentation",
        "presplitcoroutine",
    ]
    .iter()
    .any(|word| has_attribute(function, word))
        || name(function).starts_with("__deadheat_ifr")
}

/// `sanitize_thread` on every function: LLVM then makes no load the source
/// does not make (a speculated load would be a race that nobody wrote).
pub fn prepare(module: LLVMModuleRef) {
    for function in functions(module) {
        if is_declaration(function) || left_alone(function) {
            continue;
        }
        if has_attribute(function, "sanitize_thread") {
            continue;
        }
        // SAFETY: a live function; the attribute takes no value.
        unsafe {
            let context = LLVMGetModuleContext(module);
            let attribute = LLVMCreateEnumAttribute(context, attribute_kind("sanitize_thread"), 0);
            LLVMAddAttributeAtIndex(function, LLVMAttributeFunctionIndex, attribute);
        }
    }
}

/// Takes `sanitize_thread` off again once the pass has done its work.
pub fn unprepare(function: LLVMValueRef) {
    // SAFETY: a live function; removing an absent attribute does nothing.
    unsafe {
        LLVMRemoveEnumAttributeAtIndex(
            function,
            LLVMAttributeFunctionIndex,
            attribute_kind("sanitize_thread"),
        );
    }
}

pub fn wants_analysis(function: LLVMValueRef) -> bool {
    !is_declaration(function)
        && !left_alone(function)
        && !has_mark(function, PLACED)
        // SAFETY: a live function.
        && unsafe { LLVMGetLinkage(function) }
            != inkwell::llvm_sys::LLVMLinkage::LLVMAvailableExternallyLinkage
}

/// Size in bytes of what a value of this type takes in memory; 0 if not fixed.
pub fn store_size(module: LLVMModuleRef, kind: LLVMTypeRef) -> u64 {
    // SAFETY: a live module and a sized type (of a load or store).
    unsafe { shim::dh_store_size(module, kind) }
}

/// Constant value of an integer, if it is one that fits.
pub fn constant(value: LLVMValueRef) -> Option<u64> {
    // SAFETY: a live value; the cast is checked.
    unsafe {
        let integer = LLVMIsAConstantInt(value);
        (!integer.is_null() && LLVMGetIntTypeWidth(LLVMTypeOf(integer)) <= 64)
            .then(|| LLVMConstIntGetZExtValue(integer))
    }
}
