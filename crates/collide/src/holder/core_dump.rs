//! The core file of `--core`: the whole process at the moment of a catch, for
//! a debugger. The held thread stands right before its access; an opponent's
//! registers are those of the trap, taken right after its access.

use super::ptrace::{self, Tid};
use crate::memory_map;
use crate::wire::{Opponent, RegisterFile};
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

const NT_PRSTATUS: u32 = 1;
const NT_FPREGSET: u32 = 2;
const NT_PRPSINFO: u32 = 3;
const NT_AUXV: u32 = 6;
const NT_FILE: u32 = 0x4649_4c45;
const PAGE: u64 = 4096;

/// Writes the core of `pid`; every thread in `threads` must be stopped.
pub fn write(
    path: &str,
    pid: Tid,
    held: Tid,
    threads: &[Tid],
    opponents: &[Opponent],
) -> io::Result<()> {
    let mappings: Vec<_> = memory_map::read(pid)?
        .into_iter()
        .filter(|mapping| mapping.read && !mapping.is_device())
        .collect();
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let mut notes = Vec::new();
    // The first thread is the one a debugger shows.
    let mut order = vec![held];
    order.extend(threads.iter().copied().filter(|tid| *tid != held));
    for (at, tid) in order.iter().enumerate() {
        let caught = opponents.iter().find(|opponent| opponent.tid == *tid);
        let Ok(mut registers) = ptrace::registers(*tid) else {
            continue;
        };
        if let Some(opponent) = caught {
            set_registers(&mut registers, &opponent.registers);
        }
        note(&mut notes, NT_PRSTATUS, &status(*tid, &registers));
        if at == 0 {
            note(&mut notes, NT_PRPSINFO, &process_info(pid));
            note(
                &mut notes,
                NT_AUXV,
                &std::fs::read(format!("/proc/{pid}/auxv")).unwrap_or_default(),
            );
            note(&mut notes, NT_FILE, &files(&mappings));
        }
        if let Ok(float) = ptrace::float_registers(*tid) {
            note(&mut notes, NT_FPREGSET, &float);
        }
    }
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let headers = mappings.len() as u64 + 1;
    let notes_at = 64 + 56 * headers;
    let data_at = (notes_at + notes.len() as u64).next_multiple_of(PAGE);
    out.write_all(&elf_header(headers as u16))?;
    out.write_all(&program_header(4, 0, notes_at, 0, notes.len() as u64, 0, 4))?;
    let mut at = data_at;
    for mapping in &mappings {
        let size = mapping.end - mapping.start;
        let flags = u32::from(mapping.execute)
            | u32::from(mapping.write) << 1
            | u32::from(mapping.read) << 2;
        out.write_all(&program_header(
            1,
            flags,
            at,
            mapping.start,
            size,
            size,
            PAGE,
        ))?;
        at += size;
    }
    out.write_all(&notes)?;
    let padding = data_at - notes_at - notes.len() as u64;
    out.write_all(&vec![0; padding as usize])?;
    let mut buffer = vec![0u8; 1 << 16];
    for mapping in &mappings {
        let mut from = mapping.start;
        while from < mapping.end {
            let length = buffer.len().min((mapping.end - from) as usize);
            let piece = &mut buffer[..length];
            // Guard pages and pages past the end of a file read as zeros.
            if memory.read_exact_at(piece, from).is_err() {
                for (page, at) in piece.chunks_mut(PAGE as usize).zip(0..) {
                    if memory.read_exact_at(page, from + at * PAGE).is_err() {
                        page.fill(0);
                    }
                }
            }
            out.write_all(piece)?;
            from += length as u64;
        }
    }
    out.flush()
}

fn set_registers(registers: &mut libc::user_regs_struct, from: &RegisterFile) {
    let g = &from.general;
    registers.rax = g[0];
    registers.rcx = g[1];
    registers.rdx = g[2];
    registers.rbx = g[3];
    registers.rsp = g[4];
    registers.rbp = g[5];
    registers.rsi = g[6];
    registers.rdi = g[7];
    registers.r8 = g[8];
    registers.r9 = g[9];
    registers.r10 = g[10];
    registers.r11 = g[11];
    registers.r12 = g[12];
    registers.r13 = g[13];
    registers.r14 = g[14];
    registers.r15 = g[15];
    registers.rip = from.rip;
    registers.eflags = from.flags;
}

fn note(notes: &mut Vec<u8>, kind: u32, body: &[u8]) {
    notes.extend_from_slice(&5u32.to_le_bytes());
    notes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    notes.extend_from_slice(&kind.to_le_bytes());
    notes.extend_from_slice(b"CORE\0\0\0\0");
    notes.extend_from_slice(body);
    while !notes.len().is_multiple_of(4) {
        notes.push(0);
    }
}

/// `struct elf_prstatus`: 336 bytes, pid at 32, registers at 112.
fn status(tid: Tid, registers: &libc::user_regs_struct) -> Vec<u8> {
    let mut body = vec![0; 336];
    body[0..4].copy_from_slice(&libc::SIGTRAP.to_le_bytes());
    body[12..14].copy_from_slice(&(libc::SIGTRAP as u16).to_le_bytes());
    body[32..36].copy_from_slice(&tid.to_le_bytes());
    // SAFETY: user_regs_struct is 27 words without padding.
    let raw = unsafe {
        std::slice::from_raw_parts(
            std::ptr::from_ref(registers).cast::<u8>(),
            size_of::<libc::user_regs_struct>(),
        )
    };
    body[112..112 + raw.len()].copy_from_slice(raw);
    body
}

/// `struct elf_prpsinfo`: 136 bytes, pid at 24, name at 40, arguments at 56.
fn process_info(pid: Tid) -> Vec<u8> {
    let mut body = vec![0; 136];
    body[24..28].copy_from_slice(&pid.to_le_bytes());
    let name = super::task::name(pid);
    let name = &name.as_bytes()[..name.len().min(15)];
    body[40..40 + name.len()].copy_from_slice(name);
    let arguments: Vec<u8> = std::fs::read(format!("/proc/{pid}/cmdline"))
        .unwrap_or_default()
        .iter()
        .map(|byte| if *byte == 0 { b' ' } else { *byte })
        .take(79)
        .collect();
    body[56..56 + arguments.len()].copy_from_slice(&arguments);
    body
}

fn files(mappings: &[memory_map::Mapping]) -> Vec<u8> {
    let named: Vec<_> = mappings
        .iter()
        .filter(|mapping| mapping.name.starts_with('/'))
        .collect();
    let mut body = Vec::new();
    body.extend_from_slice(&(named.len() as u64).to_le_bytes());
    body.extend_from_slice(&PAGE.to_le_bytes());
    for mapping in &named {
        for word in [mapping.start, mapping.end, mapping.offset / PAGE] {
            body.extend_from_slice(&word.to_le_bytes());
        }
    }
    for mapping in &named {
        body.extend_from_slice(mapping.name.as_bytes());
        body.push(0);
    }
    body
}

fn elf_header(headers: u16) -> [u8; 64] {
    let mut header = [0; 64];
    header[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    header[16..18].copy_from_slice(&4u16.to_le_bytes()); // ET_CORE
    header[18..20].copy_from_slice(&62u16.to_le_bytes()); // EM_X86_64
    header[20..24].copy_from_slice(&1u32.to_le_bytes());
    header[32..40].copy_from_slice(&64u64.to_le_bytes());
    header[52..54].copy_from_slice(&64u16.to_le_bytes());
    header[54..56].copy_from_slice(&56u16.to_le_bytes());
    header[56..58].copy_from_slice(&headers.to_le_bytes());
    header
}

fn program_header(
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    file_size: u64,
    memory_size: u64,
    align: u64,
) -> [u8; 56] {
    let mut header = [0; 56];
    header[..4].copy_from_slice(&kind.to_le_bytes());
    header[4..8].copy_from_slice(&flags.to_le_bytes());
    for (at, word) in [offset, address, 0, file_size, memory_size, align]
        .iter()
        .enumerate()
    {
        header[8 + at * 8..16 + at * 8].copy_from_slice(&word.to_le_bytes());
    }
    header
}
