//! Function names of Go binaries without a symbol table.
//!
//! The Go run-time needs the names of functions for its own stack traces, so
//! `.gopclntab` survives `-ldflags=-s` and `strip`. Read for Go 1.16 and later
//! (three layouts of the header); anything that does not fit is passed over.

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

/// Start, end and name of every function.
pub(crate) fn functions(table: &'static [u8]) -> Vec<(u64, u64, &'static str)> {
    read(table).unwrap_or_default()
}

fn read(table: &'static [u8]) -> Option<Vec<(u64, u64, &'static str)>> {
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
        (field(2)?, field(3)?, field(7)?)
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
        assert_eq!(functions(table), [(0x401020, 0x401050, "main.main")]);
    }

    #[test]
    fn damage_gives_nothing() {
        for length in 0..table().len() {
            let cut: &'static [u8] = table()[..length].to_vec().leak();
            assert!(functions(cut).len() <= 1);
        }
        let mut wrong = table();
        wrong[8..16].fill(0xff);
        assert!(functions(wrong.leak()).is_empty());
    }
}
