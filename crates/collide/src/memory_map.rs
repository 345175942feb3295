//! `/proc/PID/maps`, read the same way by the holder and the front end.

use std::fs;
use std::io;

/// One line of the maps file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub read: bool,
    pub write: bool,
    pub execute: bool,
    /// MAP_SHARED: other processes may see the same memory.
    pub shared: bool,
    pub offset: u64,
    /// Major and minor device number as the kernel prints them.
    pub device: String,
    pub inode: u64,
    /// File, `[stack]`, `[heap]`, `anon_inode:…`, or empty.
    pub name: String,
}

impl Mapping {
    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// The mapping is shared with a device or with the kernel, whose protocol
    /// nobody here knows: accesses there prove nothing.
    pub fn is_device(&self) -> bool {
        self.name.starts_with("[vvar")
            || self.name.starts_with("[vsyscall")
            || self.name.starts_with("anon_inode:")
            || (self.name.starts_with("/dev/")
                && !self.name.starts_with("/dev/shm/")
                && !self.name.starts_with("/dev/zero"))
    }
}

/// All mappings of a process, by address.
pub fn read(pid: i32) -> io::Result<Vec<Mapping>> {
    Ok(parse(&fs::read_to_string(format!("/proc/{pid}/maps"))?))
}

pub fn parse(text: &str) -> Vec<Mapping> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut word = || {
        rest = rest.trim_start();
        let end = rest.find(' ').unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        rest = tail;
        (!word.is_empty()).then_some(word)
    };
    let (start, end) = word()?.split_once('-')?;
    let rights = word()?.as_bytes();
    let offset = word()?;
    let device = word()?.to_string();
    let inode = word()?.parse().ok()?;
    let right = |at: usize, letter: u8| rights.get(at) == Some(&letter);
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        read: right(0, b'r'),
        write: right(1, b'w'),
        execute: right(2, b'x'),
        shared: right(3, b's'),
        offset: u64::from_str_radix(offset, 16).ok()?,
        device,
        inode,
        name: rest.trim_start().to_string(),
    })
}

/// The mapping that holds `address`, in a list ordered by address.
pub fn find(mappings: &[Mapping], address: u64) -> Option<&Mapping> {
    let at = mappings.partition_point(|mapping| mapping.end <= address);
    mappings.get(at).filter(|mapping| mapping.contains(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_and_without_a_name() {
        let text = "\
55d0-55e0 r-xp 00001000 fe:01 131 /tmp/a b (deleted)
7f00-7f10 rw-s 00000000 00:01 4 /dev/zero (deleted)
8000-9000 rw-p 00000000 00:00 0 
";
        let mappings = parse(text);
        assert_eq!(mappings.len(), 3);
        assert_eq!(mappings[0].name, "/tmp/a b (deleted)");
        assert!(mappings[0].execute && !mappings[0].shared);
        assert!(mappings[1].shared && !mappings[1].is_device());
        assert_eq!(mappings[2].name, "");
        assert_eq!(find(&mappings, 0x8fff).unwrap().start, 0x8000);
        assert_eq!(find(&mappings, 0x7fff), None);
    }
}
