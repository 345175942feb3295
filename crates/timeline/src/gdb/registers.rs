//! The registers in gdb's order, and the description of them that gdb reads.
//!
//! x87, SSE, AVX and, where the machine has it, AVX-512, as gdb's own
//! `i386` features lay them out. Components that the machine keeps in their
//! initial state are shown as that, whatever the save area holds.

use gdbstub::arch::{Arch, Registers};
use std::ops::Range;
use vm::context::reg;
use vm::vector;

/// gdb's order of the general registers.
const GENERAL: [usize; 16] = [
    reg::RAX,
    reg::RBX,
    reg::RCX,
    reg::RDX,
    reg::RSI,
    reg::RDI,
    reg::RBP,
    reg::RSP,
    reg::R8,
    reg::R9,
    reg::R10,
    reg::R11,
    reg::R12,
    reg::R13,
    reg::R14,
    reg::R15,
];

/// Selectors of a Linux process: they never change in 64-bit code.
const SELECTORS: [u32; 6] = [0x33, 0x2b, 0, 0, 0, 0];

/// Bytes of an XSAVE area up to the end of what gdb is shown.
const AREA: usize = 2688;

/// Indices into the list of words a world gives.
const RIP: usize = 16;
const FLAGS: usize = 17;
const FS_BASE: usize = 18;
const GS_BASE: usize = 19;
const WORDS: usize = 20;

/// Parts of the XSAVE area in the standard format, by component.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Part(u32);

const X87: Part = Part(0);
const SSE: Part = Part(1);
const AVX: Part = Part(vector::UPPER_256);
const MASKS: Part = Part(vector::OPMASK);
/// Upper halves of zmm0 to zmm15.
const UPPER: Part = Part(vector::UPPER_512);
/// zmm16 to zmm31.
const HIGH: Part = Part(vector::HIGH_512);

impl Part {
    fn place(self) -> Range<usize> {
        match self {
            X87 => 0..160,
            SSE => 160..416,
            Part(component) => vector::component(component),
        }
    }
}

pub fn has_avx512() -> bool {
    vector::guest_xcr0() & 0xe0 == 0xe0
}

/// One register's place.
#[derive(Clone, Copy)]
enum Place {
    Word {
        index: usize,
        bytes: usize,
    },
    Constant(u32),
    /// Bytes of the XSAVE area.
    Area {
        part: Part,
        offset: usize,
        bytes: usize,
    },
    /// A 16-bit x87 register, shown as 32 bits.
    Narrow(usize),
    Tags,
    Unknown(usize),
}

impl Place {
    fn bytes(self) -> usize {
        match self {
            Place::Word { bytes, .. } | Place::Area { bytes, .. } | Place::Unknown(bytes) => bytes,
            Place::Constant(_) | Place::Narrow(_) | Place::Tags => 4,
        }
    }
}

/// A register: its name, gdb's type for it, its place.
type Register = (String, &'static str, Place);

/// Every register in gdb's order, by feature.
fn features(avx512: bool) -> Vec<(&'static str, Vec<Register>)> {
    let word = |index, bytes| Place::Word { index, bytes };
    let area = |part: Part, index: usize, stride: usize, inner: usize, bytes: usize| Place::Area {
        part,
        offset: part.place().start + index * stride + inner,
        bytes,
    };
    let mut core: Vec<Register> = GENERAL
        .iter()
        .map(|index| {
            let kind = match *index {
                reg::RSP | reg::RBP => "data_ptr",
                _ => "int64",
            };
            (reg::NAMES[*index].to_string(), kind, word(*index, 8))
        })
        .collect();
    core.push(("rip".into(), "code_ptr", word(RIP, 8)));
    core.push(("eflags".into(), "i386_eflags", word(FLAGS, 4)));
    for (name, value) in ["cs", "ss", "ds", "es", "fs", "gs"].iter().zip(SELECTORS) {
        core.push((name.to_string(), "int32", Place::Constant(value)));
    }
    for index in 0..8 {
        let place = Place::Area {
            part: X87,
            offset: 32 + index * 16,
            bytes: 10,
        };
        core.push((format!("st{index}"), "i387_ext", place));
    }
    for (name, place) in [
        ("fctrl", Place::Narrow(0)),
        ("fstat", Place::Narrow(2)),
        ("ftag", Place::Tags),
        ("fiseg", Place::Constant(0)),
        ("fioff", area(X87, 0, 0, 8, 4)),
        ("foseg", Place::Constant(0)),
        ("fooff", area(X87, 0, 0, 16, 4)),
        ("fop", Place::Narrow(6)),
    ] {
        core.push((name.into(), "float-group", place));
    }
    let mut sse: Vec<Register> = (0..16)
        .map(|index| (format!("xmm{index}"), "vec128", area(SSE, index, 16, 0, 16)))
        .collect();
    sse.push((
        "mxcsr".into(),
        "i386_mxcsr",
        Place::Area {
            part: SSE,
            offset: 24,
            bytes: 4,
        },
    ));
    let mut list = vec![
        ("org.gnu.gdb.i386.core", core),
        ("org.gnu.gdb.i386.sse", sse),
        (
            "org.gnu.gdb.i386.linux",
            vec![("orig_rax".to_string(), "int64", Place::Unknown(8))],
        ),
        (
            "org.gnu.gdb.i386.segments",
            vec![
                ("fs_base".to_string(), "int64", word(FS_BASE, 8)),
                ("gs_base".to_string(), "int64", word(GS_BASE, 8)),
            ],
        ),
        (
            "org.gnu.gdb.i386.avx",
            (0..16)
                .map(|index| {
                    (
                        format!("ymm{index}h"),
                        "uint128",
                        area(AVX, index, 16, 0, 16),
                    )
                })
                .collect(),
        ),
    ];
    if avx512 {
        let mut registers = Vec::new();
        for index in 0..8 {
            registers.push((format!("k{index}"), "uint64", area(MASKS, index, 8, 0, 8)));
        }
        for index in 0..16 {
            let place = area(UPPER, index, 32, 0, 32);
            registers.push((format!("zmm{index}h"), "v2ui128", place));
        }
        for index in 0..16 {
            let place = area(HIGH, index, 64, 0, 16);
            registers.push((format!("xmm{}", index + 16), "vec128", place));
        }
        for index in 0..16 {
            let place = area(HIGH, index, 64, 16, 16);
            registers.push((format!("ymm{}h", index + 16), "uint128", place));
        }
        for index in 0..16 {
            let place = area(HIGH, index, 64, 32, 32);
            registers.push((format!("zmm{}h", index + 16), "v2ui128", place));
        }
        list.push(("org.gnu.gdb.i386.avx512", registers));
    }
    list
}

/// The target description.
pub fn description(avx512: bool) -> String {
    const FLAGS: [(&str, u32); 17] = [
        ("CF", 0),
        ("", 1),
        ("PF", 2),
        ("AF", 4),
        ("ZF", 6),
        ("SF", 7),
        ("TF", 8),
        ("IF", 9),
        ("DF", 10),
        ("OF", 11),
        ("NT", 14),
        ("RF", 16),
        ("VM", 17),
        ("AC", 18),
        ("VIF", 19),
        ("VIP", 20),
        ("ID", 21),
    ];
    const MXCSR: [(&str, u32); 14] = [
        ("IE", 0),
        ("DE", 1),
        ("ZE", 2),
        ("OE", 3),
        ("UE", 4),
        ("PE", 5),
        ("DAZ", 6),
        ("IM", 7),
        ("DM", 8),
        ("ZM", 9),
        ("OM", 10),
        ("UM", 11),
        ("PM", 12),
        ("FZ", 15),
    ];
    let flags = |id: &str, fields: &[(&str, u32)]| {
        let fields: String = fields
            .iter()
            .map(|(name, bit)| format!("<field name=\"{name}\" start=\"{bit}\" end=\"{bit}\"/>"))
            .collect();
        format!("<flags id=\"{id}\" size=\"4\">{fields}</flags>")
    };
    let mut text = String::from(
        "<?xml version=\"1.0\"?><!DOCTYPE target SYSTEM \"gdb-target.dtd\">\
         <target><architecture>i386:x86-64</architecture><osabi>GNU/Linux</osabi>",
    );
    for (name, registers) in features(avx512) {
        text.push_str(&format!("<feature name=\"{name}\">"));
        text.push_str(&flags("i386_eflags", &FLAGS));
        text.push_str(&flags("i386_mxcsr", &MXCSR));
        text.push_str(
            "<vector id=\"v4f\" type=\"ieee_single\" count=\"4\"/>\
             <vector id=\"v2d\" type=\"ieee_double\" count=\"2\"/>\
             <vector id=\"v16i8\" type=\"int8\" count=\"16\"/>\
             <vector id=\"v8i16\" type=\"int16\" count=\"8\"/>\
             <vector id=\"v4i32\" type=\"int32\" count=\"4\"/>\
             <vector id=\"v2i64\" type=\"int64\" count=\"2\"/>\
             <vector id=\"v2ui128\" type=\"uint128\" count=\"2\"/>\
             <union id=\"vec128\"><field name=\"v4_float\" type=\"v4f\"/>\
             <field name=\"v2_double\" type=\"v2d\"/><field name=\"v16_int8\" type=\"v16i8\"/>\
             <field name=\"v8_int16\" type=\"v8i16\"/><field name=\"v4_int32\" type=\"v4i32\"/>\
             <field name=\"v2_int64\" type=\"v2i64\"/><field name=\"uint128\" type=\"uint128\"/>\
             </union>",
        );
        for (name, kind, place) in registers {
            let bits = place.bytes() * 8;
            let (kind, group) = match kind {
                "float-group" => ("int", " group=\"float\""),
                kind => (kind, ""),
            };
            text.push_str(&format!(
                "<reg name=\"{name}\" bitsize=\"{bits}\" type=\"{kind}\"{group}/>"
            ));
        }
        text.push_str("</feature>");
    }
    text.push_str("</target>");
    text
}

/// Words and XSAVE area of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    pub words: Vec<u64>,
    pub area: Vec<u8>,
}

impl Default for Shown {
    fn default() -> Self {
        Shown {
            words: vec![0; WORDS],
            area: vec![0; AREA],
        }
    }
}

impl Shown {
    /// None if something is missing.
    pub fn new(words: Vec<u64>, area: Vec<u8>) -> Option<Self> {
        (words.len() == WORDS && area.len() >= AREA).then_some(Shown { words, area })
    }

    fn in_use(&self) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.area[512..520]);
        u64::from_le_bytes(word)
    }

    fn is_in_use(&self, part: Part) -> bool {
        self.in_use() & (1 << part.0) != 0
    }

    fn bytes_of(&self, place: Place) -> Vec<Option<u8>> {
        let known = |bytes: &[u8]| bytes.iter().map(|byte| Some(*byte)).collect::<Vec<_>>();
        match place {
            Place::Word { index, bytes } => known(&self.words[index].to_le_bytes()[..bytes]),
            Place::Constant(value) => known(&value.to_le_bytes()),
            Place::Unknown(bytes) => vec![None; bytes],
            // The control word of SSE is not part of what is initialised.
            Place::Area { offset: 24, .. } => known(&self.area[24..28]),
            Place::Area {
                part,
                offset,
                bytes,
            } => {
                if self.is_in_use(part) {
                    known(&self.area[offset..offset + bytes])
                } else {
                    vec![Some(0); bytes]
                }
            }
            Place::Narrow(offset) => {
                let initial = if offset == 0 { 0x37f } else { 0 };
                let value = if self.is_in_use(X87) {
                    u16::from_le_bytes([self.area[offset], self.area[offset + 1]])
                } else {
                    initial
                };
                known(&u32::from(value).to_le_bytes())
            }
            Place::Tags => known(&u32::from(self.tags()).to_le_bytes()),
        }
    }

    /// The full tag word from the abridged one: valid, zero, special, empty.
    fn tags(&self) -> u16 {
        if !self.is_in_use(X87) {
            return 0xffff;
        }
        let abridged = self.area[4];
        let top = usize::from(u16::from_le_bytes([self.area[2], self.area[3]]) >> 11 & 7);
        let mut tags = 0;
        for register in 0..8 {
            let tag = if abridged & (1 << register) == 0 {
                3
            } else {
                let at = 32 + (register + 8 - top) % 8 * 16;
                let exponent = u16::from_le_bytes([self.area[at + 8], self.area[at + 9]]) & 0x7fff;
                let zero = self.area[at..at + 8].iter().all(|byte| *byte == 0);
                match exponent {
                    0 if zero => 1,
                    0 | 0x7fff => 2,
                    _ => 0,
                }
            };
            tags |= tag << (2 * register);
        }
        tags
    }

    fn set(&mut self, place: Place, bytes: &[u8]) {
        match place {
            Place::Word { index, .. } => {
                let mut word = self.words[index].to_le_bytes();
                word[..bytes.len()].copy_from_slice(bytes);
                self.words[index] = u64::from_le_bytes(word);
            }
            Place::Area {
                part, offset: at, ..
            } => {
                let own: Vec<Option<u8>> = self.bytes_of(place);
                if own.iter().copied().eq(bytes.iter().map(|byte| Some(*byte))) {
                    return;
                }
                if !self.is_in_use(part) && at != 24 {
                    if part != X87 {
                        self.area[part.place()].fill(0);
                    }
                    let in_use = self.in_use() | 1 << part.0;
                    self.area[512..520].copy_from_slice(&in_use.to_le_bytes());
                }
                self.area[at..at + bytes.len()].copy_from_slice(bytes);
            }
            // Selectors cannot be changed; the x87 control registers are left
            // to the program.
            Place::Constant(_) | Place::Narrow(_) | Place::Tags | Place::Unknown(_) => {}
        }
    }
}

impl Registers for Shown {
    type ProgramCounter = u64;

    fn pc(&self) -> u64 {
        self.words[RIP]
    }

    fn gdb_serialize(&self, mut write_byte: impl FnMut(Option<u8>)) {
        for (_, registers) in features(has_avx512()) {
            for (_, _, place) in registers {
                for byte in self.bytes_of(place) {
                    write_byte(byte);
                }
            }
        }
    }

    fn gdb_deserialize(&mut self, bytes: &[u8]) -> Result<(), ()> {
        let mut rest = bytes;
        for (_, registers) in features(has_avx512()) {
            for (_, _, place) in registers {
                if rest.len() < place.bytes() {
                    return if rest.is_empty() { Ok(()) } else { Err(()) };
                }
                let (own, others) = rest.split_at(place.bytes());
                self.set(place, own);
                rest = others;
            }
        }
        Ok(())
    }
}

/// x86-64 as gdb is told about it.
pub enum X8664 {}

impl Arch for X8664 {
    type Usize = u64;
    type Registers = Shown;
    type BreakpointKind = usize;
    type RegId = ();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serialized(shown: &Shown) -> Vec<u8> {
        let mut bytes = Vec::new();
        shown.gdb_serialize(|byte| bytes.push(byte.unwrap_or(0)));
        bytes
    }

    #[test]
    fn what_is_written_is_what_was_read() {
        let mut shown = Shown::default();
        for (index, word) in shown.words.iter_mut().enumerate() {
            *word = 0x0101_0101_0101_0101 * index as u64;
        }
        shown.words[FLAGS] = 0x246;
        for (index, byte) in shown.area[32..512].iter_mut().enumerate() {
            *byte = index as u8;
        }
        shown.area[512] = 7;
        let bytes = serialized(&shown);
        let mut other = shown.clone();
        other.gdb_deserialize(&bytes).unwrap();
        assert_eq!(serialized(&other), bytes);
        assert_eq!(other.words, shown.words);
    }

    #[test]
    fn a_component_in_its_initial_state_is_zero_until_written() {
        let mut shown = Shown::default();
        shown.area[576..832].fill(0xaa);
        let ymm3h = Place::Area {
            part: AVX,
            offset: AVX.place().start + 3 * 16,
            bytes: 16,
        };
        assert_eq!(shown.bytes_of(ymm3h), vec![Some(0); 16]);
        shown.set(ymm3h, &[7; 16]);
        assert_eq!(shown.bytes_of(ymm3h), vec![Some(7); 16]);
        assert_eq!(shown.area[576], 0, "its neighbours begin at zero");
    }

    #[test]
    fn the_description_names_every_register_once() {
        let text = description(true);
        for name in ["rax", "eflags", "st7", "xmm15", "ymm0h", "k7", "zmm31h"] {
            let entry = format!("<reg name=\"{name}\" ");
            assert_eq!(text.matches(&entry).count(), 1, "{name}");
        }
        assert!(!description(false).contains("zmm"));
    }
}
