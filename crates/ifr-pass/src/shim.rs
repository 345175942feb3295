//! Declarations of the C++ edge (shim/shim.cpp): what LLVM's C interface does
//! not offer.

use inkwell::llvm_sys::prelude::{LLVMBasicBlockRef, LLVMModuleRef, LLVMTypeRef, LLVMValueRef};
use std::ffi::{c_int, c_uint, c_void};

/// The analyses of one function, valid while it is being analysed.
#[derive(Clone, Copy)]
pub struct Session(pub *mut c_void);

pub type Quiet = extern "C" fn(*mut c_void, LLVMBasicBlockRef) -> c_int;

unsafe extern "C" {
    pub fn deadheat_ifr_register(builder: *mut c_void);
    pub fn dh_block_dominates(
        session: *mut c_void,
        a: LLVMBasicBlockRef,
        b: LLVMBasicBlockRef,
    ) -> c_int;
    pub fn dh_loop_may_hang(session: *mut c_void, header: LLVMBasicBlockRef) -> c_int;
    pub fn dh_varies_in_loop(
        session: *mut c_void,
        value: LLVMValueRef,
        block: LLVMBasicBlockRef,
    ) -> c_int;
    pub fn dh_decompose(
        pointer: LLVMValueRef,
        module: LLVMModuleRef,
        base: *mut LLVMValueRef,
        index: *mut LLVMValueRef,
        scale: *mut i64,
        offset: *mut i64,
    );
    pub fn dh_private(pointer: LLVMValueRef, follow_captures: c_int) -> c_int;
    pub fn dh_store_size(module: LLVMModuleRef, kind: LLVMTypeRef) -> u64;
    pub fn dh_is_debug_or_lifetime(instruction: LLVMValueRef) -> c_int;
    pub fn dh_call_facts(call: LLVMValueRef) -> c_uint;
    pub fn dh_byval_type(call: LLVMValueRef, argument: c_uint) -> LLVMTypeRef;
    pub fn dh_can_insert_after(instruction: LLVMValueRef) -> c_int;
    pub fn dh_is_musttail(instruction: LLVMValueRef) -> c_int;
    pub fn dh_range_before(
        session: *mut c_void,
        access: LLVMValueRef,
        pointer: LLVMValueRef,
        size: u64,
        quiet: Quiet,
        context: *mut c_void,
        lo: *mut LLVMValueRef,
        row: *mut LLVMValueRef,
        stride: *mut LLVMValueRef,
        rows: *mut LLVMValueRef,
        at: *mut LLVMValueRef,
    ) -> c_int;
    pub fn dh_range_after(
        session: *mut c_void,
        access: LLVMValueRef,
        pointer: LLVMValueRef,
        size: u64,
        quiet: Quiet,
        context: *mut c_void,
        first: *mut LLVMValueRef,
        exits: *mut LLVMBasicBlockRef,
        max_exits: c_uint,
    ) -> c_int;
    pub fn dh_split_if(condition: LLVMValueRef, at: LLVMValueRef, unlikely: c_int) -> LLVMValueRef;
    pub fn dh_guard(
        at: LLVMValueRef,
        tls: LLVMValueRef,
        place: u64,
        key: c_uint,
        shares: c_uint,
        capped: c_uint,
        now: *mut LLVMValueRef,
    ) -> LLVMValueRef;
    pub fn dh_gather_variables(function: LLVMValueRef);
    pub fn dh_first_insertion(block: LLVMBasicBlockRef) -> LLVMValueRef;
    pub fn dh_set_location(instruction: LLVMValueRef, from: LLVMValueRef, function: LLVMValueRef);
    pub fn dh_keep(module: LLVMModuleRef, global: LLVMValueRef);
    pub fn dh_forget_memory_facts(function: LLVMValueRef);
    pub fn dh_mark_placeholder(function: LLVMValueRef);
}
