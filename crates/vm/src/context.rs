//! The guest registers while translated code runs, and the way in and out of
//! the code cache.
//!
//! One `Context` lies at a fixed address (`layout::CONTEXT`). Translated code
//! addresses it RIP-relative; the two assembly routines below address it
//! through GS, whose base is set to it once per vm process. While translated
//! code runs, every general, vector and flags register holds the guest's value
//! and FS is the guest's; on the way out they are saved here (vector state to
//! the thread's own XSAVE area) and the host's restored. So Rust code never
//! sees guest state in machine registers and cannot damage it.

use crate::layout;
use crate::vector::{self, VectorState, guest_xcr0};
use std::arch::global_asm;
use std::mem::offset_of;

/// Index of a general register in `Registers::gpr`: the machine's own
/// numbering.
pub mod reg {
    pub const RAX: usize = 0;
    pub const RCX: usize = 1;
    pub const RDX: usize = 2;
    pub const RBX: usize = 3;
    pub const RSP: usize = 4;
    pub const RBP: usize = 5;
    pub const RSI: usize = 6;
    pub const RDI: usize = 7;
    pub const R8: usize = 8;
    pub const R9: usize = 9;
    pub const R10: usize = 10;
    pub const R11: usize = 11;
    pub const R12: usize = 12;
    pub const R13: usize = 13;
    pub const R14: usize = 14;
    pub const R15: usize = 15;
    pub const NAMES: [&str; 16] = [
        "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12",
        "r13", "r14", "r15",
    ];
}

/// The flags that are a guest thread's state: carry, parity, adjust, zero,
/// sign, direction and overflow.
pub const GUEST_FLAGS: u64 = 0xcd5;

/// The integer state of a guest thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Registers {
    pub gpr: [u64; 16],
    pub rip: u64,
    pub rflags: u64,
    pub fs_base: u64,
    pub gs_base: u64,
}

/// What translated code and the vm share.
#[repr(C)]
pub struct Context {
    pub regs: Registers,
    /// Instructions the running thread may still execute, less
    /// `translate::SLACK`: negative sends it back to the scheduler.
    pub remaining: i64,
    /// Index into the cache's exit table: why translated code was left.
    pub exit: u64,
    /// Where translated code keeps a guest register it borrows.
    pub spill: [u64; 16],
    /// Where it puts saved flags while it needs rax once more.
    flags: u64,
    /// Where it is about to store (`translate/stores.rs`).
    store_address: u64,
    /// Not zero: a loop that only waits gives way when it repeats.
    pub gives_way: u64,
    /// The same for one that counts its rounds.
    pub counting_gives_way: u64,
    /// Not zero: code that was made to tell of locked instructions does.
    pub tells_sequencers: u64,
    /// Next free byte of the access ring, as an offset from its start.
    pub ring_position: u64,
    /// What translated code compares shadow words with (`observe/known.rs`).
    pub known: crate::observe::known::Comparison,
    target: u64,
    host_rsp: u64,
    host_fs: u64,
    exit_routine: u64,
    xsave_area: u64,
    xsave_mask: u64,
    /// Vector registers are saved by hand (`QUICK`, `QUICK_512`).
    quick: u64,
    /// Where the components are that have no place of their own by definition.
    opmask_at: u64,
    upper_at: u64,
    high_at: u64,
    /// What a host signal handler took from `remaining` to end the slice:
    /// nothing or `BREAK`.
    pub broken: i64,
    /// Set by the host signal handler when translated code faults.
    pub fault: HostFault,
}

/// Taken from the counter to end a slice at once. Its low half is zero: the
/// records of accesses carry the low half of the counter.
pub const BREAK: i64 = 1 << 40;

/// What the host kernel said about a fault in translated code.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct HostFault {
    pub host_pc: u64,
    pub signal: i32,
    pub code: i32,
    pub address: u64,
    pub trap_number: u64,
    pub trap_error: u64,
}

macro_rules! context_offsets {
    ($($name:ident = $($field:tt).+;)*) => {
        /// Offsets of `Context` fields, for code generation.
        pub mod offset {
            use super::*;
            $(pub const $name: usize = offset_of!(Context, $($field).+);)*
        }
    };
}

context_offsets! {
    GPR = regs.gpr;
    RIP = regs.rip;
    RFLAGS = regs.rflags;
    FS_BASE = regs.fs_base;
    GS_BASE = regs.gs_base;
    REMAINING = remaining;
    EXIT = exit;
    SPILL = spill;
    FLAGS = flags;
    STORE_ADDRESS = store_address;
    GIVES_WAY = gives_way;
    COUNTING_GIVES_WAY = counting_gives_way;
    TELLS_SEQUENCERS = tells_sequencers;
    RING_POSITION = ring_position;
    KNOWN_WORD = known.word;
    KNOWN_MARKED = known.marked;
    KNOWN_STALE = known.stale;
    KNOWN_OWN = known.own;
    KNOWN_OWN_WHEN_STALE = known.own_when_stale;
    KNOWN_CLOCK = known.clock;
    KNOWN_SLOTS = known.slots;
    KNOWN_FOLD = known.fold;
    KNOWN_ADDRESS = known.address;
    KNOWN_SIZE = known.size;
    KNOWN_BACK = known.back;
    KNOWN_SAVED = known.saved;
    KNOWN_NOTE_READ = known.note_read;
    KNOWN_NOTE_WRITE = known.note_write;
    KNOWN_MASKS = known.masks;
    TARGET = target;
    HOST_RSP = host_rsp;
    HOST_FS = host_fs;
    EXIT_ROUTINE = exit_routine;
    XSAVE_AREA = xsave_area;
    XSAVE_MASK = xsave_mask;
    QUICK = quick;
    OPMASK_AT = opmask_at;
    UPPER_AT = upper_at;
    HIGH_AT = high_at;
}

/// There are vector registers of 256 bits.
const QUICK: u64 = 1;
/// Of 512 bits, 32 of them, and mask registers of 64 bits.
const QUICK_512: u64 = 2;

// enter: host state goes to the host stack, guest state to the machine.
// exit: reached by a jump from the cache's common exit, which has already
// saved the guest's rsp and loaded the host's.
//
// xsave and xrstor take 80 ns each, moves by hand 15: those are used unless the
// x87 unit is in use. The area has the format of xsave all the same. Which
// components are in use (XINUSE; bits 2 and 6 the upper parts of registers 0 to
// 15, 5 masks, 7 registers 16 to 31) is between this code and the processor: the
// guest never sees it (`extended_state.rs`). Moves by hand cannot put a
// component back to where it is not in use, so where one is on the way in that
// must be in its initial state, xrstor has the last word.
global_asm!(
    ".global deadheat_vm_enter",
    "deadheat_vm_enter:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "sub rsp, 8",
    "stmxcsr [rsp]",
    "fnstcw [rsp + 4]",
    "mov gs:[{host_rsp}], rsp",
    "mov gs:[{target}], rdi",
    "rdfsbase rax",
    "mov gs:[{host_fs}], rax",
    "mov rax, gs:[{fs_base}]",
    "wrfsbase rax",
    "mov rcx, gs:[{xsave_area}]",
    "mov r8, [rcx + 512]",
    "mov rdx, gs:[{quick}]",
    "test edx, {has_256}",
    "jz 20f",
    "mov eax, r8d",
    "and eax, 3",
    "cmp eax, 2",
    "jne 20f",
    "mov eax, r8d",
    "and eax, 0x44",
    "cmp eax, 0x40",
    "je 20f",
    "test edx, {has_512}",
    "jz 21f",
    "mov eax, r8d",
    "and eax, 0xa0",
    "jz 21f",
    "cmp eax, 0xa0",
    "jne 20f",
    "mov rsi, gs:[{high_at}]",
    "add rsi, rcx",
    ".irp n, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31",
    "vmovdqu64 zmm\\n, [rsi + 64 * (\\n - 16)]",
    ".endr",
    "mov rsi, gs:[{opmask_at}]",
    "add rsi, rcx",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7",
    "kmovq k\\n, [rsi + 8 * \\n]",
    ".endr",
    "21:",
    "ldmxcsr [rcx + 24]",
    "vzeroupper",
    "test r8d, 0x44",
    "jnz 22f",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "movaps xmm\\n, [rcx + 160 + 16 * \\n]",
    ".endr",
    "jmp 24f",
    "22:",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "vmovdqa xmm\\n, [rcx + 160 + 16 * \\n]",
    "vinsertf128 ymm\\n, ymm\\n, [rcx + 576 + 16 * \\n], 1",
    ".endr",
    "test r8d, 0x40",
    "jz 24f",
    "mov rsi, gs:[{upper_at}]",
    "add rsi, rcx",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "vinserti64x4 zmm\\n, zmm\\n, [rsi + 32 * \\n], 1",
    ".endr",
    "24:",
    "mov ecx, 1",
    "xgetbv",
    "not r8d",
    "and eax, r8d",
    "test eax, 0xa1",
    "jz 29f",
    "mov rcx, gs:[{xsave_area}]",
    "20:",
    "mov eax, gs:[{xsave_mask}]",
    "mov edx, gs:[{xsave_mask} + 4]",
    "xrstor64 [rcx]",
    "29:",
    // Flags that are not arithmetic (trap, direction, alignment) are rare, and
    // popf is slow.
    "test dword ptr gs:[{rflags}], {special}",
    "jnz 2f",
    "mov al, gs:[{rflags} + 1]",
    "and al, 8",
    "add al, 0x78",
    "mov ah, gs:[{rflags}]",
    "sahf",
    "3:",
    "mov rax, gs:[{gpr} + 0]",
    "mov rcx, gs:[{gpr} + 8]",
    "mov rdx, gs:[{gpr} + 16]",
    "mov rbx, gs:[{gpr} + 24]",
    "mov rsp, gs:[{gpr} + 32]",
    "mov rbp, gs:[{gpr} + 40]",
    "mov rsi, gs:[{gpr} + 48]",
    "mov rdi, gs:[{gpr} + 56]",
    "mov r8, gs:[{gpr} + 64]",
    "mov r9, gs:[{gpr} + 72]",
    "mov r10, gs:[{gpr} + 80]",
    "mov r11, gs:[{gpr} + 88]",
    "mov r12, gs:[{gpr} + 96]",
    "mov r13, gs:[{gpr} + 104]",
    "mov r14, gs:[{gpr} + 112]",
    "mov r15, gs:[{gpr} + 120]",
    "jmp qword ptr gs:[{target}]",
    "2:",
    "push qword ptr gs:[{rflags}]",
    "popfq",
    "jmp 3b",
    //
    ".global deadheat_vm_exit",
    "deadheat_vm_exit:",
    "mov gs:[{gpr} + 0], rax",
    "mov gs:[{gpr} + 8], rcx",
    "mov gs:[{gpr} + 16], rdx",
    "mov gs:[{gpr} + 24], rbx",
    "mov gs:[{gpr} + 40], rbp",
    "mov gs:[{gpr} + 48], rsi",
    "mov gs:[{gpr} + 56], rdi",
    "mov gs:[{gpr} + 64], r8",
    "mov gs:[{gpr} + 72], r9",
    "mov gs:[{gpr} + 80], r10",
    "mov gs:[{gpr} + 88], r11",
    "mov gs:[{gpr} + 96], r12",
    "mov gs:[{gpr} + 104], r13",
    "mov gs:[{gpr} + 112], r14",
    "mov gs:[{gpr} + 120], r15",
    "pushfq",
    "pop qword ptr gs:[{rflags}]",
    "test dword ptr gs:[{rflags}], {special}",
    "jz 4f",
    "push 0x202",
    "popfq",
    "4:",
    "rdfsbase rax",
    "mov gs:[{fs_base}], rax",
    "mov rax, gs:[{host_fs}]",
    "wrfsbase rax",
    "mov r8, gs:[{quick}]",
    "test r8d, {has_256}",
    "jz 30f",
    "mov ecx, 1",
    "xgetbv",
    "and eax, gs:[{xsave_mask}]",
    "mov ecx, eax",
    "and ecx, 3",
    "cmp ecx, 2",
    "jne 30f",
    "mov ecx, eax",
    "and ecx, 0x44",
    "cmp ecx, 0x40",
    "je 30f",
    "mov rcx, gs:[{xsave_area}]",
    "test r8d, {has_512}",
    "jz 31f",
    "mov edx, eax",
    "and edx, 0xa0",
    "jz 33f",
    "cmp edx, 0xa0",
    "jne 30f",
    "mov rsi, gs:[{high_at}]",
    "add rsi, rcx",
    ".irp n, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31",
    "vmovdqu64 [rsi + 64 * (\\n - 16)], zmm\\n",
    ".endr",
    "mov rsi, gs:[{opmask_at}]",
    "add rsi, rcx",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7",
    "kmovq [rsi + 8 * \\n], k\\n",
    ".endr",
    "33:",
    "test eax, 0x40",
    "jz 31f",
    "mov rsi, gs:[{upper_at}]",
    "add rsi, rcx",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "vextracti64x4 [rsi + 32 * \\n], zmm\\n, 1",
    ".endr",
    "31:",
    "stmxcsr [rcx + 24]",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "movaps [rcx + 160 + 16 * \\n], xmm\\n",
    ".endr",
    "test eax, 4",
    "jz 32f",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "vextractf128 [rcx + 576 + 16 * \\n], ymm\\n, 1",
    ".endr",
    "vzeroupper",
    "32:",
    "mov [rcx + 512], rax",
    "ldmxcsr [rsp]",
    "jmp 5f",
    "30:",
    "mov rcx, gs:[{xsave_area}]",
    "mov eax, gs:[{xsave_mask}]",
    "mov edx, gs:[{xsave_mask} + 4]",
    "xsaveopt64 [rcx]",
    "ldmxcsr [rsp]",
    // XSTATE_BV: without bit 0 the x87 state is the initial one anyway.
    "test byte ptr [rcx + 512], 1",
    "jz 5f",
    // Nor does the host mind it while its control word is the usual one, no
    // exception is pending and no register in use: fninit is slow.
    "cmp dword ptr [rcx], 0x37f",
    "jne 6f",
    "cmp byte ptr [rcx + 4], 0",
    "je 5f",
    "6:",
    "fninit",
    "fldcw [rsp + 4]",
    "5:",
    "add rsp, 8",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    gpr = const offset::GPR,
    rflags = const offset::RFLAGS,
    fs_base = const offset::FS_BASE,
    target = const offset::TARGET,
    host_rsp = const offset::HOST_RSP,
    host_fs = const offset::HOST_FS,
    xsave_area = const offset::XSAVE_AREA,
    xsave_mask = const offset::XSAVE_MASK,
    quick = const offset::QUICK,
    has_256 = const QUICK,
    has_512 = const QUICK_512,
    opmask_at = const offset::OPMASK_AT,
    upper_at = const offset::UPPER_AT,
    high_at = const offset::HIGH_AT,
    special = const 0x40500,
);

unsafe extern "C" {
    fn deadheat_vm_enter(target: u64);
    fn deadheat_vm_exit();
}

impl Context {
    /// The context of this process. The reference is only handed out by
    /// `install`, which maps it.
    fn at_fixed_address() -> *mut Context {
        layout::CONTEXT as *mut Context
    }

    /// Maps the context at its fixed address and points GS at it.
    pub fn install() -> Result<&'static mut Context, crate::Error> {
        check_machine()?;
        crate::host::map_fixed(
            layout::CONTEXT,
            layout::CONTEXT_SIZE,
            libc::PROT_READ | libc::PROT_WRITE,
        )?;
        // SAFETY: freshly mapped zeroed memory of sufficient size and
        // alignment; all fields are valid when zero. GS is unused by Rust and
        // libc code on x86-64 Linux.
        let context = unsafe {
            libc::syscall(
                libc::SYS_arch_prctl,
                0x1001, /* ARCH_SET_GS */
                layout::CONTEXT,
            );
            &mut *Self::at_fixed_address()
        };
        context.known.install();
        context.exit_routine = deadheat_vm_exit as *const () as u64;
        context.xsave_mask = guest_xcr0();
        context.quick = quick_registers();
        let place = |part| vector::component(part).start as u64;
        context.opmask_at = place(vector::OPMASK);
        context.upper_at = place(vector::UPPER_512);
        context.high_at = place(vector::HIGH_512);
        Ok(context)
    }

    /// Runs translated code at `target` with `vector` as the vector state
    /// until it exits.
    ///
    /// # Safety
    /// `target` must be an entry of the code cache, and the cache's common
    /// exit must be in place.
    pub unsafe fn enter(&mut self, target: u64, vector: &mut VectorState) {
        self.xsave_area = vector.bytes.as_mut_ptr() as u64;
        // SAFETY: by the caller's promise control comes back through
        // `deadheat_vm_exit`, which restores every host register that the
        // calling convention preserves.
        unsafe { deadheat_vm_enter(target) }
        vector.clear_x87_pointers();
    }
}

/// Which vector registers can be saved by hand: all that the guest has, or none.
fn quick_registers() -> u64 {
    const AVX: u64 = 0x7;
    const AVX_512: u64 = 0xe7;
    // Leaf 0xd exists wherever XSAVE does. Bit 2: XGETBV tells what is in use.
    let tells = std::arch::x86_64::__cpuid_count(0xd, 1).eax & 4 != 0;
    match guest_xcr0() {
        _ if !tells => 0,
        AVX => QUICK,
        AVX_512 if std::is_x86_feature_detected!("avx512bw") => QUICK | QUICK_512,
        _ => 0,
    }
}

fn check_machine() -> Result<(), crate::Error> {
    // SAFETY: getauxval has no preconditions.
    let fsgsbase = unsafe { libc::getauxval(libc::AT_HWCAP2) } & 2 != 0;
    if !fsgsbase {
        return Err(crate::Error::Machine(
            "the kernel does not let programs set FS and GS (FSGSBASE); Linux 5.9 or newer on a CPU of 2012 or newer is needed".into(),
        ));
    }
    for (name, present) in [
        ("SSE4.2", std::is_x86_feature_detected!("sse4.2")),
        ("XSAVEOPT", std::is_x86_feature_detected!("xsaveopt")),
    ] {
        if !present {
            return Err(crate::Error::Machine(format!(
                "the CPU lacks {name}, which translated code needs"
            )));
        }
    }
    Ok(())
}
