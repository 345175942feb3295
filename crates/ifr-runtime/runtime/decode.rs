//! How long an x86-64 instruction is, and whether it locks memory: enough to
//! tell a `lock` prefix from a byte of an address that looks like one.
//!
//! A suspicious byte is approached from the start of its function, which the
//! tables for unwinding name. Where there are none, or data lies between, the
//! instructions are followed from each of several places a little before it: a
//! wrong beginning soon falls in with the right one, and the byte is believed to
//! be what it looks like if a quarter of the ways that arrive say so. That errs
//! to the safe side: what is wrongly believed costs monitors, what is not seen
//! could cost the truth.

/// Distances of the places from which a suspicious byte is approached.
const NEAREST: usize = 64;
const FARTHEST: usize = 96;

/// An instruction as far as it matters here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    pub length: usize,
    /// A `lock` prefix, or an exchange with memory, which needs none.
    pub locks: bool,
}

/// What follows the opcode besides the bytes that say where the operand is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Immediate {
    None,
    /// One byte, two, or so many.
    Bytes(usize),
    /// Two or four bytes by the operand's size.
    Word,
    /// The same, or eight with a wide register.
    Wide,
    /// An address.
    Address,
    /// By the operation that the operand bytes name: one byte, or a word.
    TestByte,
    TestWord,
}

/// The one-byte opcodes: whether operand bytes follow, and what else; nothing for
/// those that do not exist.
fn one_byte(opcode: u8) -> Option<(bool, Immediate)> {
    use Immediate::{Address, Bytes, None as No, TestByte, TestWord, Wide, Word};
    Some(match opcode {
        0x06 | 0x07 | 0x0e | 0x16 | 0x17 | 0x1e | 0x1f | 0x27 | 0x2f | 0x37 | 0x3f => return None,
        0x00..=0x3f => match opcode & 7 {
            0..=3 => (true, No),
            4 => (false, Bytes(1)),
            _ => (false, Word),
        },
        0x50..=0x5f => (false, No),
        0x60..=0x62 => return None,
        0x63 => (true, No),
        0x68 => (false, Word),
        0x69 => (true, Word),
        0x6a => (false, Bytes(1)),
        0x6b => (true, Bytes(1)),
        0x6c..=0x6f => (false, No),
        0x70..=0x7f => (false, Bytes(1)),
        0x80 | 0x83 => (true, Bytes(1)),
        0x81 => (true, Word),
        0x82 => return None,
        0x84..=0x8f => (true, No),
        0x9a => return None,
        0x90..=0x9f => (false, No),
        0xa0..=0xa3 => (false, Address),
        0xa8 => (false, Bytes(1)),
        0xa9 => (false, Word),
        0xa4..=0xaf => (false, No),
        0xb0..=0xb7 => (false, Bytes(1)),
        0xb8..=0xbf => (false, Wide),
        0xc0 | 0xc1 | 0xc6 => (true, Bytes(1)),
        0xc2 | 0xca => (false, Bytes(2)),
        0xc7 => (true, Word),
        0xc8 => (false, Bytes(3)),
        0xc3 | 0xc9 | 0xcb | 0xcc | 0xcf => (false, No),
        0xcd => (false, Bytes(1)),
        0xce | 0xd4..=0xd6 | 0xea => return None,
        0xd0..=0xd3 | 0xd8..=0xdf => (true, No),
        0xd7 => (false, No),
        0xe0..=0xe7 | 0xeb => (false, Bytes(1)),
        0xe8 | 0xe9 => (false, Bytes(4)),
        0xec..=0xef => (false, No),
        0xf6 => (true, TestByte),
        0xf7 => (true, TestWord),
        0xfe | 0xff => (true, No),
        0xf1 | 0xf4 | 0xf5 | 0xf8..=0xfd => (false, No),
        _ => return None,
    })
}

/// The opcodes after 0x0f.
fn two_bytes(opcode: u8) -> Option<(bool, Immediate)> {
    use Immediate::{Bytes, None as No};
    Some(match opcode {
        0x04 | 0x0a | 0x0c | 0x24..=0x27 | 0x36 | 0x39 | 0x3b..=0x3f => return None,
        0x05..=0x09 | 0x0b | 0x0e | 0x30..=0x37 | 0x77 => (false, No),
        0x80..=0x8f => (false, Bytes(4)),
        0xa0..=0xa2 | 0xa8..=0xaa | 0xc8..=0xcf => (false, No),
        0x0f | 0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6 => (true, Bytes(1)),
        _ => (true, No),
    })
}

/// The first instruction of `code`; nothing if there is none, or it does not end.
pub fn shape(code: &[u8]) -> Option<Shape> {
    let mut at = 0;
    let (mut short, mut locked) = (false, false);
    let mut opcode = loop {
        let byte = *code.get(at)?;
        match byte {
            0x66 => short = true,
            0xf0 => locked = true,
            0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0x67 | 0xf2 | 0xf3 => {}
            _ => break byte,
        }
        at += 1;
    };
    let mut wide = false;
    if opcode & 0xf0 == 0x40 {
        wide = opcode & 8 != 0;
        at += 1;
        opcode = *code.get(at)?;
    }
    at += 1;
    // Which table the opcode is of: 0 the first, 1 after 0x0f, 2 and 3 after 0x38
    // and 0x3a.
    let mut table = 0;
    match opcode {
        0x0f => {
            table = 1;
            opcode = *code.get(at)?;
            at += 1;
            if let 0x38 | 0x3a = opcode {
                table = if opcode == 0x38 { 2 } else { 3 };
                opcode = *code.get(at)?;
                at += 1;
            }
        }
        0xc5 => {
            table = 1;
            opcode = *code.get(at + 1)?;
            at += 2;
        }
        0xc4 => {
            table = *code.get(at)? & 0x1f;
            opcode = *code.get(at + 2)?;
            at += 3;
        }
        0x62 => {
            table = *code.get(at)? & 7;
            opcode = *code.get(at + 3)?;
            at += 4;
        }
        _ => {}
    }
    let (operand, immediate) = match table {
        0 => one_byte(opcode)?,
        1 => two_bytes(opcode)?,
        2 | 5 | 6 => (true, Immediate::None),
        3 => (true, Immediate::Bytes(1)),
        _ => return None,
    };
    let mut locks = locked;
    let mut operation = 0;
    if operand {
        let byte = *code.get(at)?;
        let (mode, base) = (byte >> 6, byte & 7);
        operation = byte >> 3 & 7;
        at += 1;
        if mode != 3 {
            locks |= table == 0 && (opcode == 0x86 || opcode == 0x87);
            let mut far = mode == 0 && base == 5;
            if base == 4 {
                far |= mode == 0 && *code.get(at)? & 7 == 5;
                at += 1;
            }
            at += match mode {
                _ if far => 4,
                1 => 1,
                2 => 4,
                _ => 0,
            };
        }
    }
    let word = if short && !wide { 2 } else { 4 };
    at += match immediate {
        Immediate::None => 0,
        Immediate::Bytes(count) => count,
        Immediate::Word => word,
        Immediate::Wide if wide => 8,
        Immediate::Wide => word,
        Immediate::Address => 8,
        Immediate::TestByte => usize::from(operation < 2),
        Immediate::TestWord if operation < 2 => word,
        Immediate::TestWord => 0,
    };
    (at <= code.len() && at <= 15).then_some(Shape { length: at, locks })
}

/// Whether the byte at `suspect` makes an instruction lock memory, by the
/// instructions from `at` on; nothing if they do not lead there.
fn follow(code: &[u8], mut at: usize, suspect: usize) -> Option<bool> {
    while at <= suspect {
        let found = shape(code.get(at..)?)?;
        let end = at + found.length;
        if end > suspect {
            // A prefix of it, or its opcode.
            return Some(found.locks && suspect - at < 4);
        }
        at = end;
    }
    None
}

fn is_locking(code: &[u8], function: Option<usize>, suspect: usize) -> bool {
    if let Some(answer) = function.and_then(|start| follow(code, start, suspect)) {
        return answer;
    }
    let (mut arrived, mut locking) = (0, 0);
    for distance in NEAREST..FARTHEST {
        let start = suspect.checked_sub(distance);
        if let Some(answer) = start.and_then(|start| follow(code, start, suspect)) {
            arrived += 1;
            locking += usize::from(answer);
        }
    }
    // At the beginning of the code, or in the middle of what is none.
    arrived == 0 || locking * 4 >= arrived
}

/// Whether any instruction of the code locks memory; `function` gives the start
/// of the function that a place of the code is in, as far as it is known.
pub fn has_locked_instruction(code: &[u8], function: impl Fn(usize) -> Option<usize>) -> bool {
    code.windows(4).enumerate().any(|(at, window)| {
        let [first, a, b, c] = [window[0], window[1], window[2], window[3]];
        let suspicious = match first {
            0xf0 => {
                // A REX prefix or one of size may stand between.
                let (opcode, next) = if a == 0x66 || a & 0xf0 == 0x40 {
                    (b, c)
                } else {
                    (a, b)
                };
                matches!(opcode, 0x00..=0x01 | 0x08..=0x09 | 0x10..=0x11 | 0x18..=0x19
                    | 0x20..=0x21 | 0x28..=0x29 | 0x30..=0x31 | 0x80 | 0x81 | 0x83
                    | 0x86 | 0x87 | 0xf6 | 0xf7 | 0xfe | 0xff)
                    || (opcode == 0x0f
                        && matches!(
                            next,
                            0xb0 | 0xb1 | 0xc0 | 0xc1 | 0xc7 | 0xab | 0xb3 | 0xba | 0xbb
                        ))
            }
            0x86 | 0x87 => a >> 6 != 3,
            _ => false,
        };
        suspicious && is_locking(code, function(at), at)
    })
}
