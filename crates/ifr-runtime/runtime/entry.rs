//! What instrumented code calls, and the thread-local block it reads.
//!
//! The calls follow LLVM's `preserve_most`: all general registers but r11 are
//! kept, so the inline fast path spills nothing. `start`, `range` and `string`
//! pass on where they return to (the site) and the caller's frame pointer.

use crate::monitor::{self, Asker, PLACE, VERY_MANY, VOLATILE, WRITE};
use crate::threads::{SITES, Thread};
use core::arch::global_asm;
use core::sync::atomic::Ordering;

/// A site that only reads is checked so many times, in a loop and elsewhere, and
/// then every few times (paper 004, section 8: with a probability that falls with
/// the number of its monitors).
const WARM_IN_LOOP: i32 = 256;
const WARM: i32 = 1 << 10;
/// So many times in a thread that has started very many monitors.
const WARM_AT_LAST: i32 = 64;
/// A warm site that was due so many times is due a quarter as often from then on.
const HOT: i32 = 1 << 9;
/// And after so many times, a quarter of that.
const VERY_HOT: i32 = 1 << 12;

macro_rules! tls {
    () => {
        concat!(
            "__deadheat_ifr_tls__rebuild_all_objects_with_one_deadheat__",
            env!("DEADHEAT_IFR_FINGERPRINT")
        )
    };
}

global_asm!(
    ".section .tbss.__deadheat_ifr_tls,\"awT\",@nobits",
    // The pass knows it by the name of this build.
    concat!(".globl ", tls!()),
    concat!(".type ", tls!(), ",@object"),
    concat!(".size ", tls!(), ", 64"),
    ".type __deadheat_ifr_tls,@object",
    ".p2align 6",
    concat!(tls!(), ":"),
    "__deadheat_ifr_tls:",
    ".zero 64",
    // 1 while code that synchronises unseen may call back (module `foreign`).
    ".bss",
    ".globl __deadheat_ifr_foreign",
    ".type __deadheat_ifr_foreign,@object",
    ".size __deadheat_ifr_foreign, 1",
    "__deadheat_ifr_foreign:",
    ".zero 1",
    // How many threads wait at granules with this number (module `pauses`).
    ".globl __deadheat_ifr_watched",
    ".hidden __deadheat_ifr_watched",
    ".type __deadheat_ifr_watched,@object",
    ".size __deadheat_ifr_watched, 256",
    ".p2align 6",
    "__deadheat_ifr_watched:",
    ".zero 256",
    ".text",
);

/// Saves the registers that a call of a Rust function may change and the caller
/// keeps: eight words.
macro_rules! save {
    () => {
        "push rax
         .cfi_adjust_cfa_offset 8
         push rcx
         .cfi_adjust_cfa_offset 8
         push rdx
         .cfi_adjust_cfa_offset 8
         push rsi
         .cfi_adjust_cfa_offset 8
         push rdi
         .cfi_adjust_cfa_offset 8
         push r8
         .cfi_adjust_cfa_offset 8
         push r9
         .cfi_adjust_cfa_offset 8
         push r10
         .cfi_adjust_cfa_offset 8"
    };
}

/// Takes one more word off the stack, brings the saved ones back and returns.
macro_rules! restore_and_return {
    () => {
        "add rsp, 8
         .cfi_adjust_cfa_offset -8
         pop r10
         .cfi_adjust_cfa_offset -8
         pop r9
         .cfi_adjust_cfa_offset -8
         pop r8
         .cfi_adjust_cfa_offset -8
         pop rdi
         .cfi_adjust_cfa_offset -8
         pop rsi
         .cfi_adjust_cfa_offset -8
         pop rdx
         .cfi_adjust_cfa_offset -8
         pop rcx
         .cfi_adjust_cfa_offset -8
         pop rax
         .cfi_adjust_cfa_offset -8
         ret"
    };
}

/// The start of an entry that works with three registers of its caller and the
/// thread-local block in r11.
macro_rules! open_check_entry {
    ($name:literal) => {
        concat!(
            ".globl ",
            $name,
            "\n.type ",
            $name,
            ",@function\n",
            $name,
            ":
             .cfi_startproc
             push rax
             .cfi_adjust_cfa_offset 8
             push rcx
             .cfi_adjust_cfa_offset 8
             push rdx
             .cfi_adjust_cfa_offset 8
             mov r11, qword ptr [rip + __deadheat_ifr_tls@GOTTPOFF]"
        )
    };
}

/// Brings the three registers back.
macro_rules! restore_three {
    () => {
        "pop rdx
         .cfi_adjust_cfa_offset -8
         pop rcx
         .cfi_adjust_cfa_offset -8
         pop rax
         .cfi_adjust_cfa_offset -8"
    };
}

macro_rules! keeping_registers {
    ($name:literal, $target:literal, $site:literal, $frame:literal $(, $first:literal)*) => {
        global_asm!(
            concat!(".globl ", $name),
            concat!(".type ", $name, ",@function"),
            concat!($name, ":"),
            ".cfi_startproc",
            $($first,)*
            save!(),
            // Eight registers and the return address: one more word aligns.
            "sub rsp, 8",
            ".cfi_adjust_cfa_offset 8",
            // Where the call returns to lies above the nine words.
            concat!("mov ", $site, ", [rsp + 72]"),
            concat!("mov ", $frame, ", rbp"),
            concat!("call ", $target),
            restore_and_return!(),
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
        );
    };
}

// Before anything is saved: what may be left to chance mostly goes back from here
// (see `monitor::not_drawn`, which says the same; what others use as well a site
// leaves out as often as `monitor::begin_again` allows). The numbers are those of
// `shadow` (bit 16 of a slot is `SHARED`) and `threads::Local`; bit 22 of the
// description is `ADAPTIVE`, bit 16 `WRITE`, bit 25 `GATED`: the site has left out
// its share already; `Thread::skips` lies 131,072 bytes
// behind `Thread::counts`.
keeping_registers!(
    "__deadheat_ifr_start",
    "__deadheat_ifr_start_slow",
    "rdx",
    "rcx",
    "test esi, 0x400000",
    "je 4f",
    "push rax",
    ".cfi_adjust_cfa_offset 8",
    "push rcx",
    ".cfi_adjust_cfa_offset 8",
    "mov r11, qword ptr [rip + __deadheat_ifr_tls@GOTTPOFF]",
    "movabs rax, 0x3ffffffffff8",
    "and rax, rdi",
    "movabs rcx, 0x100000000840",
    "mov rax, qword ptr [rax + rcx]",
    "test rax, rax",
    "je 2f",
    "mov rcx, qword ptr fs:[r11 + 8]",
    "test rcx, rcx",
    "je 3f",
    "mov rcx, qword ptr [rcx]",
    "xor rcx, rax",
    "shr rcx, 56",
    "jne 5f",
    "test eax, 0x10000",
    "je 2f",
    // Another's, or shared: only a read of what is only read.
    "5:",
    "test esi, 0x10000",
    "jne 6f",
    "test eax, 0xff00",
    "jne 6f",
    "2:",
    "mov eax, esi",
    "shr eax, 15",
    "and eax, 2",
    "inc eax",
    "sub qword ptr fs:[r11 + 32], rax",
    "jle 3f",
    "7:",
    "pop rcx",
    ".cfi_adjust_cfa_offset -8",
    "pop rax",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_adjust_cfa_offset 16",
    "6:",
    "test esi, 0x2000000",
    "jne 3f",
    "mov rcx, qword ptr fs:[r11 + 56]",
    "mov rax, rsi",
    "shr rax, 32",
    "dec dword ptr [rcx + 4*rax + 0x20000]",
    "js 3f",
    // Nor is it left out where a thread waits.
    "mov eax, edi",
    "shr eax, 3",
    "movzx eax, al",
    "lea rcx, [rip + __deadheat_ifr_watched]",
    "cmp byte ptr [rcx + rax], 0",
    "je 7b",
    "3:",
    "pop rcx",
    ".cfi_adjust_cfa_offset -8",
    "pop rax",
    ".cfi_adjust_cfa_offset -8",
    "4:"
);
// The whole of the inline check, for functions in which it would be too much code,
// and for sites that are due now and then. Two entries: `due` first says
// in how many turns the site is due again (each time until it is warm, then one in
// 6 to 9, in a site that was due `HOT` times one in 21 to 33, and `VERY_HOT` times
// one in 81 to 129; one that writes one in 3, then one in 6 to 9); its count is in `Thread::counts`, times two, and odd once the
// site is warm, and `Thread::turns` lies right behind. The words of
// `threads::Local` are `now` (0), `thread` (16), `key` (24), `shares` (40), `capped` (48) and
// `counts` (56); bit 18 of the description says that one granule has all bytes.
global_asm!(
    open_check_entry!("__deadheat_ifr_due"),
    "mov rcx, qword ptr fs:[r11 + 56]",
    "mov rax, rsi",
    "shr rax, 32",
    "lea rcx, [rcx + 4*rax]",
    "mov eax, dword ptr [rcx]",
    "test al, 1",
    "jne 2f",
    "test esi, 0x800000",
    "mov edx, {warm}",
    "mov r11d, {warm_in_loop}",
    "cmovne edx, r11d",
    "mov r11, qword ptr [rip + __deadheat_ifr_tls@GOTTPOFF]",
    "mov r11, qword ptr fs:[r11 + 16]",
    "cmp qword ptr [r11 + {started}], {very_many}",
    "mov r11d, {warm_at_last}",
    "cmova edx, r11d",
    "cmp eax, edx",
    "jge 4f",
    "2:",
    "mov eax, dword ptr [rcx + {turns}]",
    "inc eax",
    "mov dword ptr [rcx + {turns}], eax",
    // Not always the same turns: the epoch and the address stir.
    "mov edx, edi",
    "shr edx, 2",
    "mov r11, qword ptr [rip + __deadheat_ifr_tls@GOTTPOFF]",
    "mov r11, qword ptr fs:[r11]",
    "shr r11, 16",
    "xor edx, r11d",
    "and edx, 6",
    "add edx, 10",
    // A site that writes: one in three at first, and then as above.
    "test esi, 0x10000",
    "je 5f",
    "cmp eax, {hot}",
    "jae 3f",
    "mov edx, 4",
    "jmp 3f",
    "5:",
    "cmp eax, {hot}",
    "jb 3f",
    "shl edx, 2",
    "cmp eax, {very_hot}",
    "jb 3f",
    "shl edx, 2",
    "3:",
    "or edx, 1",
    "mov dword ptr [rcx], edx",
    "4:",
    restore_three!(),
    "jmp __deadheat_ifr_check",
    ".cfi_endproc",
    ".size __deadheat_ifr_due, . - __deadheat_ifr_due",
    ".p2align 4",
    open_check_entry!("__deadheat_ifr_check"),
    "mov rdx, qword ptr fs:[r11]",
    "cmp rdx, 1",
    "jbe 6f",
    "2:",
    "test esi, 0x40000",
    "je 5f",
    "mov ecx, esi",
    "mov eax, 1",
    "shl eax, cl",
    "dec eax",
    "test esi, 0x10000",
    "je 3f",
    "imul eax, eax, 0x101",
    "3:",
    "mov ecx, edi",
    "and ecx, 7",
    "shl eax, cl",
    "or rax, -0x20000",
    "movabs rcx, 0x3ffffffffff8",
    "and rcx, rdi",
    "movabs r11, 0x100000000840",
    "xor rdx, qword ptr [rcx + r11]",
    "test rdx, rax",
    "jne 5f",
    "4:",
    restore_three!(),
    "ret",
    ".cfi_adjust_cfa_offset 24",
    "5:",
    restore_three!(),
    "jmp __deadheat_ifr_start",
    ".cfi_adjust_cfa_offset 24",
    // No monitors are wanted, or there is a cap and the word is elsewhere.
    "6:",
    "jb 4b",
    "mov rax, rsi",
    "shr rax, 32",
    "mov rcx, qword ptr fs:[r11 + 40]",
    "mov rax, qword ptr [rcx + 8*rax]",
    "cmp rax, qword ptr fs:[r11 + 24]",
    "jae 4b",
    "mov rdx, qword ptr fs:[r11 + 48]",
    "jmp 2b",
    ".cfi_endproc",
    ".size __deadheat_ifr_check, . - __deadheat_ifr_check",
    warm = const -2 * WARM,
    warm_in_loop = const -2 * WARM_IN_LOOP,
    warm_at_last = const -2 * WARM_AT_LAST,
    started = const core::mem::offset_of!(Thread, started),
    very_many = const VERY_MANY,
    turns = const 4 * SITES as i32,
    hot = const HOT,
    very_hot = const VERY_HOT,
);
keeping_registers!(
    "__deadheat_ifr_atomic",
    "__deadheat_ifr_atomic_slow",
    "rcx",
    "r8"
);
keeping_registers!(
    "__deadheat_ifr_string",
    "__deadheat_ifr_string_slow",
    "rcx",
    "r8"
);

// `range` has five arguments already: the site goes into the sixth register and
// the frame pointer is found below it by the callee.
global_asm!(
    ".globl __deadheat_ifr_range",
    ".type __deadheat_ifr_range,@function",
    "__deadheat_ifr_range:",
    ".cfi_startproc",
    save!(),
    "mov r9, [rsp + 64]",
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    // The seventh argument is on the stack, where rbp was just pushed.
    "call __deadheat_ifr_range_slow",
    restore_and_return!(),
    ".cfi_endproc",
    ".size __deadheat_ifr_range, . - __deadheat_ifr_range",
    // Counts the epoch; the same as `threads::release`.
    ".globl __deadheat_ifr_release",
    ".type __deadheat_ifr_release,@function",
    "__deadheat_ifr_release:",
    ".cfi_startproc",
    "push rax",
    ".cfi_adjust_cfa_offset 8",
    "mov r11, qword ptr [rip + __deadheat_ifr_tls@GOTTPOFF]",
    "mov rax, qword ptr fs:[r11 + 8]",
    "test rax, rax",
    "je 2f",
    "add qword ptr [rax], 0x20000",
    "add qword ptr fs:[r11 + 24], 2",
    "mov rax, qword ptr [rax]",
    "cmp qword ptr fs:[r11], 1",
    "jbe 3f",
    "mov qword ptr fs:[r11], rax",
    "2:",
    "pop rax",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_adjust_cfa_offset 8",
    // Under `cap` the word is in another place.
    "3:",
    "cmp qword ptr fs:[r11 + 48], 0",
    "je 2b",
    "mov qword ptr fs:[r11 + 48], rax",
    "jmp 2b",
    ".cfi_endproc",
    ".size __deadheat_ifr_release, . - __deadheat_ifr_release",
);

/// In how many turns a site that walks is due again: what `__deadheat_ifr_due` says
/// for one that reads a variable.
pub fn due_again(thread: &Thread, now: u64, address: usize, description: u64) {
    let place = (description >> PLACE) as usize % SITES;
    let (Some(count), Some(turns)) = (thread.counts.get(place), thread.turns.get(place)) else {
        return;
    };
    let left = count.load(Ordering::Relaxed) as i32;
    let certain = match thread.started.load(Ordering::Relaxed) {
        ..=VERY_MANY => WARM_IN_LOOP,
        _ => WARM_AT_LAST,
    };
    if left & 1 == 0 && left >= -2 * certain {
        return;
    }
    let turn = turns.load(Ordering::Relaxed).saturating_add(1);
    turns.store(turn, Ordering::Relaxed);
    let few = 10 + ((address >> 2) as u32 ^ (now >> 16) as u32) % 8 / 2 * 2;
    let next = match (turn as i32, description & WRITE != 0) {
        (..HOT, true) => 4,
        (..HOT, false) | (_, true) => few,
        (..VERY_HOT, false) => few << 2,
        _ => few << 4,
    };
    count.store(next | 1, Ordering::Relaxed);
}

#[unsafe(no_mangle)]
extern "C" fn __deadheat_ifr_start_slow(
    address: usize,
    description: u64,
    site: usize,
    frame: usize,
) {
    let volatile = description & VOLATILE != 0;
    let asker = Asker {
        site,
        frame,
        volatile,
    };
    monitor::start(address, description, asker);
}

#[unsafe(no_mangle)]
extern "C" fn __deadheat_ifr_range_slow(
    lo: usize,
    length: usize,
    stride: usize,
    rows: usize,
    description: u64,
    site: usize,
    frame: usize,
) {
    monitor::range(
        lo,
        length,
        stride,
        rows,
        description,
        Asker::at(site, frame),
    );
}

#[unsafe(no_mangle)]
extern "C" fn __deadheat_ifr_atomic_slow(
    address: usize,
    description: u64,
    held: u64,
    site: usize,
    frame: usize,
) {
    monitor::atomic(address, description, held, Asker::at(site, frame));
}

#[unsafe(no_mangle)]
extern "C" fn __deadheat_ifr_string_slow(
    source: usize,
    target: usize,
    place: u64,
    site: usize,
    frame: usize,
) {
    // SAFETY: the pass calls this right before the program reads the string.
    unsafe { monitor::string(source, target, place, Asker::at(site, frame)) };
}
