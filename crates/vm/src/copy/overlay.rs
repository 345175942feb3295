//! Files as a copy has changed them. The host's files stay as they are.
//!
//! A file is known by its path. What was written lies over what the file held;
//! where the recorded run itself wrote a file before the copy was made, what
//! lies below is known only as far as the recorded run read it.

use super::outputs::{BLOCK, Captured, KEPT_BLOCKS, WriteNote, block_hash};
use race::Moment;
use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Writes whose place is remembered, per file.
const NOTES: usize = 20_000;

struct Page {
    bytes: Box<[u8; BLOCK as usize]>,
    /// Which bytes were written.
    written: [u64; BLOCK as usize / 64],
}

impl Page {
    fn new() -> Self {
        Page {
            bytes: Box::new([0; BLOCK as usize]),
            written: [0; BLOCK as usize / 64],
        }
    }
}

#[derive(Default)]
struct Changed {
    pages: BTreeMap<u64, Page>,
    /// The contents below are visible up to here.
    below: Option<u64>,
    /// The end, as far as writes and truncation decide it.
    end: u64,
    removed: bool,
    writes: Vec<WriteNote>,
}

pub(crate) struct Overlay {
    files: BTreeMap<PathBuf, Changed>,
    /// Files of the host that are not newer than this are as they were.
    recorded_at: Option<SystemTime>,
}

impl Hash for Overlay {
    /// Contents, not the writes that made them.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Overlay {
            files,
            recorded_at: _,
        } = self;
        for (path, file) in files {
            let Changed {
                pages,
                below,
                end,
                removed,
                writes: _,
            } = file;
            (path, below, end, removed).hash(state);
            for (number, Page { bytes, written }) in pages {
                (number, bytes, written).hash(state);
            }
        }
    }
}

impl Overlay {
    pub fn new(recorded_at: Option<SystemTime>) -> Self {
        Overlay {
            files: BTreeMap::new(),
            recorded_at,
        }
    }

    fn changed(&mut self, path: &Path) -> &mut Changed {
        self.files.entry(path.to_path_buf()).or_default()
    }

    /// The host's file, if it is as the recorded run found it.
    fn unmodified(&self, path: &Path) -> Option<File> {
        let file = folder::open_regular(path, folder::STREAM).ok()?;
        let data = file.metadata().ok()?;
        let modified = data.modified().ok()?;
        self.recorded_at
            .is_some_and(|then| modified <= then)
            .then_some(file)
    }

    pub fn write(&mut self, path: &Path, position: u64, bytes: &[u8], moment: Moment, inputs: u64) {
        let file = self.changed(path);
        file.removed = false;
        if file.writes.len() < NOTES {
            file.writes.push(WriteNote {
                offset: position,
                length: bytes.len() as u64,
                moment,
                inputs,
            });
        }
        for (at, byte) in (position..).zip(bytes) {
            let page = file.pages.entry(at / BLOCK).or_insert_with(Page::new);
            let index = (at % BLOCK) as usize;
            page.bytes[index] = *byte;
            page.written[index / 64] |= 1 << (index % 64);
        }
        file.end = file.end.max(position + bytes.len() as u64);
    }

    pub fn truncate(&mut self, path: &Path, length: u64) {
        let file = self.changed(path);
        file.removed = false;
        file.below = Some(file.below.map_or(length, |below| below.min(length)));
        file.end = length;
        file.pages.retain(|page, _| page * BLOCK < length);
        if let Some(page) = file.pages.get_mut(&(length / BLOCK)) {
            for index in (length % BLOCK) as usize..BLOCK as usize {
                page.bytes[index] = 0;
                page.written[index / 64] &= !(1 << (index % 64));
            }
        }
    }

    pub fn remove(&mut self, path: &Path) {
        *self.changed(path) = Changed {
            below: Some(0),
            removed: true,
            ..Changed::default()
        };
    }

    pub fn rename(&mut self, from: &Path, to: &Path) {
        if let Some(file) = self.files.remove(from) {
            self.files.insert(to.to_path_buf(), file);
            self.remove(from);
        }
    }

    /// `Some(false)`: removed; `Some(true)`: made or written; `None`: as it was.
    pub fn exists(&self, path: &Path) -> Option<bool> {
        self.files.get(path).map(|file| !file.removed)
    }

    /// The length of a changed file. `recorded` is what the recording says of
    /// the contents below, from a position on.
    pub fn length(&self, path: &Path, before: u64) -> Option<u64> {
        let file = self.files.get(path)?;
        let below = file.below.map_or(before, |below| before.min(below));
        Some(file.end.max(below))
    }

    /// Bytes of a file at `position`, at most `length`. `recorded` knows what
    /// the recorded run read there.
    pub fn read(
        &self,
        path: &Path,
        position: u64,
        length: usize,
        recorded: impl Fn(u64, usize) -> Vec<u8>,
    ) -> Vec<u8> {
        let below = |position: u64, length: usize| -> Vec<u8> {
            match self.unmodified(path) {
                Some(file) => {
                    let mut bytes = vec![0; length];
                    let mut filled = 0;
                    while let Ok(count) =
                        file.read_at(&mut bytes[filled..], position + filled as u64)
                    {
                        if count == 0 {
                            break;
                        }
                        filled += count;
                    }
                    bytes.truncate(filled);
                    bytes
                }
                None => recorded(position, length),
            }
        };
        let Some(file) = self.files.get(path) else {
            return below(position, length);
        };
        let visible = match file.below {
            Some(below) => (below.saturating_sub(position) as usize).min(length),
            None => length,
        };
        let mut bytes = below(position, visible);
        let end = file.end.saturating_sub(position).min(length as u64) as usize;
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        for (at, byte) in (position..).zip(bytes.iter_mut()) {
            if let Some(page) = file.pages.get(&(at / BLOCK)) {
                let index = (at % BLOCK) as usize;
                if page.written[index / 64] & (1 << (index % 64)) != 0 {
                    *byte = page.bytes[index];
                }
            }
        }
        bytes
    }

    /// Contents written, file by file.
    pub fn captured(&self) -> Vec<Captured> {
        self.files
            .iter()
            .filter(|(_, file)| !file.pages.is_empty() || file.removed)
            .map(|(path, file)| Captured {
                name: path.display().to_string(),
                file: true,
                length: file.end,
                blocks: file
                    .pages
                    .iter()
                    .map(|(page, content)| (*page, block_hash(&content.bytes[..])))
                    .collect(),
                kept: file
                    .pages
                    .iter()
                    .take(KEPT_BLOCKS)
                    .map(|(page, content)| {
                        let length = file.end.saturating_sub(page * BLOCK).min(BLOCK) as usize;
                        (page * BLOCK, content.bytes[..length].to_vec())
                    })
                    .collect(),
                writes: file.writes.clone(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_see_what_was_written_over_what_was_recorded() {
        let mut overlay = Overlay::new(None);
        let path = Path::new("/nowhere/file");
        let recorded = |position: u64, length: usize| {
            let all = b"0123456789";
            let from = (position as usize).min(all.len());
            all[from..(from + length).min(all.len())].to_vec()
        };
        assert_eq!(overlay.read(path, 2, 4, recorded), b"2345");
        overlay.write(path, 4, b"xy", Moment::new(1, 1), 0);
        assert_eq!(overlay.read(path, 0, 99, recorded), b"0123xy6789");
        overlay.write(path, 12, b"z", Moment::new(1, 2), 0);
        assert_eq!(overlay.read(path, 8, 99, recorded), b"89\0\0z");
        overlay.truncate(path, 5);
        assert_eq!(overlay.read(path, 0, 99, recorded), b"0123x");
        overlay.write(path, 6, b"!", Moment::new(1, 3), 0);
        assert_eq!(overlay.read(path, 0, 99, recorded), b"0123x\0!");
        overlay.remove(path);
        assert_eq!(overlay.exists(path), Some(false));
        assert!(overlay.read(path, 0, 99, recorded).is_empty());
    }

    #[test]
    fn the_order_of_writes_is_no_difference() {
        let path = Path::new("/nowhere/file");
        let mut one = Overlay::new(None);
        one.write(path, 0, b"a", Moment::new(1, 1), 0);
        one.write(path, 9000, b"b", Moment::new(2, 1), 0);
        let mut other = Overlay::new(None);
        other.write(path, 9000, b"b", Moment::new(2, 1), 0);
        other.write(path, 0, b"a", Moment::new(1, 1), 0);
        let (one, mut other) = (one.captured().remove(0), other.captured().remove(0));
        assert_eq!(super::super::first_difference(&one, &other), None);
        other.length += 1;
        assert!(super::super::first_difference(&one, &other).is_some());
    }
}
