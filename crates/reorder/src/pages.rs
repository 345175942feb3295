//! Which memory two orders have left different, found page by page.
//!
//! Paper 000 compares what both orders wrote. Following every write would need
//! other code than the replay's and a record of each; here the two worlds that
//! played the orders are processes of one origin, and the kernel knows which
//! pages each has written since (`Vm::own_pages`). One tells the other the
//! digests of its own, and gets back the pages whose contents differ.
//! Guarantee: every byte that differs is on a page that is handed over; two
//! pages with one 64-bit digest are taken for equal.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use vm::Vm;
use xxhash_rust::xxh3::xxh3_64;

pub const PAGE: usize = 4096;

/// A page as one order left it; without bytes where it cannot be read.
pub struct Page {
    pub address: u64,
    pub bytes: Option<Vec<u8>>,
}

/// Stands for a page that cannot be read.
const UNREADABLE: u64 = 0;

fn digest(bytes: Option<&[u8]>) -> u64 {
    bytes.map_or(UNREADABLE, |bytes| xxh3_64(bytes).max(1))
}

/// Reads a page of the guest into `buffer`.
fn contents(page: u64, buffer: &mut [u8; PAGE]) -> Option<&[u8]> {
    match vm::memory::read(page, buffer) {
        Ok(()) => Some(buffer),
        Err(_) => None,
    }
}

/// Tells the other process which pages this one has written, and what is
/// there.
pub fn tell(vm: &Vm, to: &mut impl Write) -> io::Result<()> {
    let pages = vm.own_pages();
    let mut message = Vec::with_capacity(8 + 16 * pages.len());
    message.extend_from_slice(&(pages.len() as u64).to_le_bytes());
    let mut buffer = [0; PAGE];
    for page in pages {
        message.extend_from_slice(&page.to_le_bytes());
        let digest = digest(contents(page, &mut buffer));
        message.extend_from_slice(&digest.to_le_bytes());
    }
    to.write_all(&message)
}

fn number(from: &mut impl Read) -> io::Result<u64> {
    let mut word = [0; 8];
    from.read_exact(&mut word)?;
    Ok(u64::from_le_bytes(word))
}

/// Answers `tell`: the pages of either process that are not the same here.
pub fn answer(vm: &Vm, from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut theirs = HashMap::new();
    let mut list = vec![0; 16 * number(from)? as usize];
    from.read_exact(&mut list)?;
    let mut list = list.as_slice();
    while !list.is_empty() {
        theirs.insert(number(&mut list)?, number(&mut list)?);
    }
    let mut pages = vm.own_pages();
    pages.extend(theirs.keys().copied());
    pages.sort_unstable();
    pages.dedup();
    let mut message = Vec::new();
    let mut buffer = [0; PAGE];
    for page in pages {
        let here = contents(page, &mut buffer);
        if theirs.get(&page) == Some(&digest(here)) {
            continue;
        }
        message.extend_from_slice(&page.to_le_bytes());
        message.push(u8::from(here.is_some()));
        message.extend_from_slice(here.unwrap_or_default());
    }
    to.write_all(&message)
}

/// What `answer` wrote.
pub fn read(from: &mut impl Read) -> io::Result<Vec<Page>> {
    let mut message = Vec::new();
    from.read_to_end(&mut message)?;
    let mut rest = message.as_slice();
    let mut pages = Vec::new();
    while !rest.is_empty() {
        let address = number(&mut rest)?;
        let mut readable = [0];
        rest.read_exact(&mut readable)?;
        let mut bytes = vec![0; if readable[0] == 0 { 0 } else { PAGE }];
        rest.read_exact(&mut bytes)?;
        pages.push(Page {
            address,
            bytes: (readable[0] != 0).then_some(bytes),
        });
    }
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_as_they_were_written() {
        let mut message = 0x5000u64.to_le_bytes().to_vec();
        message.push(1);
        message.extend_from_slice(&[7; PAGE]);
        message.extend_from_slice(&0x9000u64.to_le_bytes());
        message.push(0);
        let pages = read(&mut message.as_slice()).expect("it can be read");
        assert_eq!((pages[0].address, pages[1].address), (0x5000, 0x9000));
        assert_eq!(pages[0].bytes.as_deref(), Some([7; PAGE].as_slice()));
        assert_eq!(pages[1].bytes, None);
        message.pop();
        assert!(read(&mut message.as_slice()).is_err(), "it was cut off");
    }
}
