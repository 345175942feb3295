//! Puts generated instructions, labels and data at fixed addresses.

use iced_x86::{Code, Encoder, Instruction, MemoryOperand, Register};

pub type Label = usize;

#[derive(Clone, Debug)]
pub enum Entry {
    Plain(Instruction),
    /// A branch whose target is a label.
    Branch(Code, Label),
    /// `lea register, [rip + label]`
    LoadAddress(Register, Label),
    /// An indirect branch through the quadword at a label.
    Through(Code, Label),
    Label(Label),
    /// The address of a label, as data.
    Quad(Label),
    Bytes(Vec<u8>),
    /// Skips to this offset in a page (with one-byte nops).
    PageOffset(u64),
}

impl Entry {
    fn instruction(&self, address_of: impl Fn(Label) -> u64) -> Option<Instruction> {
        let at = |label| MemoryOperand::with_base_displ(Register::RIP, address_of(label) as i64);
        match self {
            Entry::Plain(instruction) => Some(*instruction),
            Entry::Branch(code, label) => Instruction::with_branch(*code, address_of(*label)).ok(),
            Entry::LoadAddress(register, label) => {
                Instruction::with2(Code::Lea_r64_m, *register, at(*label)).ok()
            }
            Entry::Through(code, label) => Instruction::with1(*code, at(*label)).ok(),
            _ => None,
        }
    }
}

/// Code at its place.
pub struct Assembled {
    pub bytes: Vec<u8>,
    /// Addresses by label.
    pub labels: Vec<u64>,
    /// Addresses by entry.
    pub entries: Vec<u64>,
}

/// Encodes `entries` at `base`.
pub fn assemble(entries: &[Entry], base: u64, labels: usize) -> Result<Assembled, String> {
    let mut encoder = Encoder::new(64);
    let mut label_at = vec![0u64; labels];
    let mut entry_at = vec![base; entries.len()];
    let mut bytes = Vec::new();
    for pass in 0..2 {
        bytes.clear();
        for (index, entry) in entries.iter().enumerate() {
            let here = base + bytes.len() as u64;
            entry_at[index] = here;
            match entry {
                Entry::Label(label) => label_at[*label] = here,
                Entry::Quad(label) => bytes.extend_from_slice(&label_at[*label].to_le_bytes()),
                Entry::Bytes(data) => bytes.extend_from_slice(data),
                Entry::PageOffset(offset) => {
                    let skip = offset.wrapping_sub(here) & 4095;
                    bytes.resize(bytes.len() + skip as usize, 0x90);
                }
                _ => {
                    let resolve = |label: Label| if pass == 0 { here } else { label_at[label] };
                    let instruction = entry
                        .instruction(resolve)
                        .ok_or_else(|| format!("cannot build {entry:?}"))?;
                    encoder
                        .encode(&instruction, here)
                        .map_err(|error| format!("{instruction}: {error}"))?;
                    bytes.extend_from_slice(&encoder.take_buffer());
                }
            }
        }
    }
    Ok(Assembled {
        bytes,
        labels: label_at,
        entries: entry_at,
    })
}

/// True if the machine has an encoding for this instruction.
pub fn encodes(instruction: &Instruction, at: u64) -> bool {
    Encoder::new(64).encode(instruction, at).is_ok()
}

pub fn load(register: Register, value: u64) -> Entry {
    Entry::Plain(
        Instruction::with2(Code::Mov_r64_imm64, register, value).expect("mov r64, imm64 exists"),
    )
}

pub fn bytes(bytes: &[u8]) -> Entry {
    Entry::Bytes(bytes.to_vec())
}
