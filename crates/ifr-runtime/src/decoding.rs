//! The run-time's decoder beside a complete one, on real code.

use crate::decode::{has_locked_instruction, shape};
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, OpKind};

/// The code of this test's own executable: compiler's output of all kinds.
fn own_code() -> Vec<u8> {
    let bytes = std::fs::read("/proc/self/exe").unwrap();
    let number = |at: usize, size: usize| {
        bytes[at..at + size]
            .iter()
            .rev()
            .fold(0usize, |sum, byte| sum << 8 | usize::from(*byte))
    };
    let (table, size, count) = (number(0x20, 8), number(0x36, 2), number(0x38, 2));
    let header = (0..count)
        .map(|index| table + index * size)
        .find(|&at| number(at, 4) == 1 && number(at + 4, 4) & 1 != 0)
        .unwrap();
    let (offset, length) = (number(header + 8, 8), number(header + 0x20, 8));
    bytes[offset..offset + length].to_vec()
}

fn locks(instruction: &Instruction) -> bool {
    let exchanges = matches!(
        instruction.code(),
        Code::Xchg_rm8_r8 | Code::Xchg_rm16_r16 | Code::Xchg_rm32_r32 | Code::Xchg_rm64_r64
    );
    instruction.has_lock_prefix() || (exchanges && instruction.op0_kind() == OpKind::Memory)
}

#[test]
fn instructions_are_as_long_as_they_are() {
    let code = own_code();
    let mut decoder = Decoder::new(64, &code, DecoderOptions::NONE);
    let mut seen = 0;
    while decoder.can_decode() {
        let at = decoder.position();
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            continue;
        }
        seen += 1;
        let ours = shape(&code[at..]);
        let theirs = Some((instruction.len(), locks(&instruction)));
        assert_eq!(
            ours.map(|shape| (shape.length, shape.locks)),
            theirs,
            "{instruction} at {at:#x}: {:02x?}",
            &code[at..at + instruction.len()]
        );
    }
    assert!(seen > 50_000, "{seen}");
}

#[test]
fn bytes_that_only_look_like_locks_are_none() {
    // Every locked instruction of real code is taken out of it; what is left
    // has many bytes that look like one.
    let mut code = own_code();
    let mut places = Vec::new();
    let mut starts = Vec::new();
    let mut decoder = Decoder::new(64, &code, DecoderOptions::NONE);
    while decoder.can_decode() {
        let at = decoder.position();
        let instruction = decoder.decode();
        starts.push(at);
        if !instruction.is_invalid() && locks(&instruction) {
            places.push((at, instruction.len()));
        }
    }
    assert!(places.len() > 100);
    for &(at, length) in &places {
        code[at..at + length].fill(0x90);
    }
    assert!(!places.is_empty());
    let looks = code
        .windows(2)
        .filter(|pair| *pair == [0xf0, 0x83] || *pair == [0xf0, 0xff])
        .count();
    assert!(looks > 10, "{looks}");
    // Some instruction before the place, as the start of a function would be.
    let known = |at: usize| {
        let index = starts.partition_point(|&start| start <= at);
        starts.get(index.saturating_sub(40)).copied()
    };
    assert!(!has_locked_instruction(&code, known));
    // And any one of them alone is found.
    let whole = own_code();
    for &(at, length) in places.iter().step_by(places.len() / 50) {
        code[at..at + length].copy_from_slice(&whole[at..at + length]);
        assert!(has_locked_instruction(&code, known), "at {at:#x}");
        let near = &code[at.saturating_sub(200)..at + length + 20];
        assert!(has_locked_instruction(near, |_| None), "at {at:#x}");
        code[at..at + length].fill(0x90);
    }
}
