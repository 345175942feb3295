//! Function names of Go binaries without a symbol table.
//!
//! The Go run-time needs the names of functions for its own stack traces, so
//! `.gopclntab` survives `-ldflags=-s` and `strip`. Read for Go 1.16 and later
//! (three layouts of the header); anything that does not fit is passed over. In a
//! position-independent program the address that the table counts from is
//! filled in by a relocation.

use crate::elf::Elf;
use object::{Object, ObjectSection, RelocationFlags, elf::R_X86_64_RELATIVE};

/// Tables larger than any program has are damaged.
const MOST: u64 = 1 << 24;

fn word(table: &[u8], at: u64) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let bytes = table.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

fn half(table: &[u8], at: u64) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let bytes = table.get(at..at.checked_add(4)?)?;
    Some(u64::from(u32::from_le_bytes(bytes.try_into().ok()?)))
}

fn name(table: &'static [u8], at: u64) -> Option<&'static str> {
    let rest = table.get(usize::try_from(at).ok()?..)?;
    let end = rest.iter().take(4096).position(|byte| *byte == 0)?;
    std::str::from_utf8(&rest[..end]).ok()
}

type Function = (u64, u64, &'static str);

/// Start, end and name of every function.
pub(crate) fn of_module(elf: &Elf) -> Vec<Function> {
    let data = |name| {
        let section = elf.file.section_by_name(name)?;
        Some((section.address(), section.data().ok()?))
    };
    let own = data(".gopclntab").or_else(|| data(".data.rel.ro.gopclntab"));
    if let Some((address, table)) = own {
        return functions(table, || relocated(elf, address + TEXT));
    }
    // The linker of a program that also has C in it may have put the table
    // among other constants.
    let Some((address, constants)) =
        data(".data.rel.ro").filter(|_| data(".go.buildinfo").is_some())
    else {
        return Vec::new();
    };
    (0..constants.len())
        .step_by(8)
        .filter(|at| begins_table(&constants[*at..]))
        .map(|at| {
            functions(&constants[at..], || {
                relocated(elf, address + at as u64 + TEXT)
            })
        })
        .find(|found| !found.is_empty())
        .unwrap_or_default()
}

/// Magic number of Go 1.18 and later, two zeros, instructions of one byte and
/// more, words of eight.
fn begins_table(bytes: &[u8]) -> bool {
    matches!(bytes, [0xf0 | 0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8, ..])
}

/// Where the header has the address of the text, since Go 1.18.
const TEXT: u64 = 24;

/// What is put at `place` when a position-independent program is loaded.
fn relocated(elf: &Elf, place: u64) -> Option<u64> {
    let mut all = elf.file.dynamic_relocations()?;
    let (_, relocation) = all.find(|(at, _)| *at == place)?;
    let relative = RelocationFlags::Elf {
        r_type: R_X86_64_RELATIVE,
    };
    (relocation.flags() == relative).then_some(relocation.addend() as u64)
}

fn functions(table: &'static [u8], text: impl FnOnce() -> Option<u64>) -> Vec<Function> {
    read(table, text).unwrap_or_default()
}

fn read(table: &'static [u8], text: impl FnOnce() -> Option<u64>) -> Option<Vec<Function>> {
    let relative = match half(table, 0)? {
        0xffff_fff0 | 0xffff_fff1 => true,
        0xffff_fffa => false,
        _ => return None,
    };
    // Words of eight bytes: x86-64.
    if table.get(7) != Some(&8) {
        return None;
    }
    let field = |index: u64| word(table, 8 + 8 * index);
    let count = field(0)?;
    if count > MOST {
        return None;
    }
    let (text, names, places) = if relative {
        let written = field(2)?;
        let start = if written == 0 { text()? } else { written };
        (start, field(3)?, field(7)?)
    } else {
        (0, field(2)?, field(6)?)
    };
    // Pairs of address and offset, one more than there are functions.
    let (entry_size, start_size) = if relative { (8, 4) } else { (16, 8) };
    let number = |at: u64| {
        if relative {
            half(table, at)
        } else {
            word(table, at)
        }
    };
    let mut found = Vec::new();
    for index in 0..count {
        let at = places.checked_add(index.checked_mul(entry_size)?)?;
        let start = text.wrapping_add(number(at)?);
        let end = text.wrapping_add(number(at.checked_add(entry_size)?)?);
        let function = places.checked_add(number(at + start_size)?)?;
        let name_at = half(table, function.checked_add(start_size)?)?;
        if let Some(name) = name(table, names.checked_add(name_at)?) {
            found.push((start, end, name));
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Vec<u8> {
        let mut table = vec![0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8];
        let names = 72u64;
        let places = 96u64;
        for field in [1, 0, 0x401000, names, 0, 0, 0, places] {
            table.extend_from_slice(&u64::to_le_bytes(field));
        }
        table.extend_from_slice(b"\0main.main\0");
        table.resize(places as usize, 0);
        // The function at 0x20..0x50, its record 16 bytes into the table.
        for field in [0x20u32, 16, 0x50, 0, 0x20, 1] {
            table.extend_from_slice(&field.to_le_bytes());
        }
        table
    }

    #[test]
    fn names_are_read() {
        let table: &'static [u8] = table().leak();
        assert_eq!(
            functions(table, || None),
            [(0x401020, 0x401050, "main.main")]
        );
    }

    #[test]
    fn damage_gives_nothing() {
        for length in 0..table().len() {
            let cut: &'static [u8] = table()[..length].to_vec().leak();
            assert!(functions(cut, || None).len() <= 1);
        }
        let mut wrong = table();
        wrong[8..16].fill(0xff);
        assert!(functions(wrong.leak(), || None).is_empty());
        let mut relocated = table();
        relocated[24..32].fill(0);
        let relocated: &'static [u8] = relocated.leak();
        assert!(functions(relocated, || None).is_empty());
        assert_eq!(functions(relocated, || Some(0x7000))[0].0, 0x7020);
    }
}
