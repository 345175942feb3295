//! Red zones: every block that the guest asks an allocator for is made larger
//! (`record --guard`), so that who runs past its end meets memory that is
//! nobody's.
//!
//! The size is changed in the guest's registers when an allocator's function
//! is entered, on every run alike: the bytes added and the functions found are
//! part of the recording, so a replay needs no symbols. Observers are told of a
//! call before its size is changed: they see what the program asked for.

use crate::context::{Registers, reg};
use crate::record::RecordError;
use folder::Place;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Which arguments of a function say how large a block is; positions from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SizeArgument {
    One(u8),
    /// Multiplied with one another.
    Product(u8, u8),
}

/// A function of an allocator, by its place in the file it is mapped from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardedFunction {
    pub offset: u64,
    pub size: SizeArgument,
}

/// Finds the functions of allocators in a file.
pub type FindAllocators = fn(&Path) -> Vec<GuardedFunction>;

/// One line of the file in the recording.
#[derive(Serialize, Deserialize)]
struct Entry {
    path: PathBuf,
    functions: Vec<GuardedFunction>,
}

/// The guard of a running guest.
pub(crate) struct Guard {
    bytes: u64,
    find: Option<FindAllocators>,
    known: BTreeMap<PathBuf, Vec<GuardedFunction>>,
    entries: HashMap<u64, SizeArgument>,
    file: Place,
}

fn file_in(directory: &Path) -> Place {
    Place::of(directory).join("guard.jsonl")
}

fn argument(regs: &mut Registers, number: u8) -> Option<&mut u64> {
    const ORDER: [usize; 6] = [reg::RDI, reg::RSI, reg::RDX, reg::RCX, reg::R8, reg::R9];
    Some(&mut regs.gpr[*ORDER.get(usize::from(number))?])
}

impl Guard {
    pub(crate) fn record(bytes: u64, find: FindAllocators, directory: &Path) -> Guard {
        Guard {
            bytes,
            find: Some(find),
            known: BTreeMap::new(),
            entries: HashMap::new(),
            file: file_in(directory),
        }
    }

    pub(crate) fn replay(bytes: u64, directory: &Path) -> Result<Guard, RecordError> {
        let file = file_in(directory);
        let text = file
            .read(folder::TEXT)
            .map_err(|error| RecordError::read(&file.path(), error))?;
        let mut known = BTreeMap::new();
        for line in text.split(|byte| *byte == b'\n') {
            if line.is_empty() {
                continue;
            }
            let entry: Entry = serde_json::from_slice(line)
                .map_err(|error| RecordError::damaged(&file.path(), &error.to_string()))?;
            known.insert(entry.path, entry.functions);
        }
        Ok(Guard {
            bytes,
            find: None,
            known,
            entries: HashMap::new(),
            file,
        })
    }

    /// Code of a file was mapped; returns the addresses to stop at.
    pub(crate) fn mapped(
        &mut self,
        range: &Range<u64>,
        path: &Path,
        offset: u64,
    ) -> Result<Vec<u64>, RecordError> {
        if let Some(find) = self.find
            && !self.known.contains_key(path)
        {
            let functions = find(path);
            self.write(path, &functions)?;
            self.known.insert(path.to_path_buf(), functions);
        }
        let mut pcs = Vec::new();
        for function in self.known.get(path).into_iter().flatten() {
            let Some(inside) = function.offset.checked_sub(offset) else {
                continue;
            };
            let pc = range.start.wrapping_add(inside);
            if range.contains(&pc) {
                self.entries.insert(pc, function.size);
                pcs.push(pc);
            }
        }
        Ok(pcs)
    }

    fn write(&self, path: &Path, functions: &[GuardedFunction]) -> Result<(), RecordError> {
        let entry = Entry {
            path: path.to_path_buf(),
            functions: functions.to_vec(),
        };
        let fail = |error: std::io::Error| RecordError::write(&self.file.path(), error);
        let mut line = serde_json::to_vec(&entry).map_err(|error| fail(error.into()))?;
        line.push(b'\n');
        // Processes of one recording write to the same file, a line at a time.
        self.file
            .append()
            .and_then(|mut file| file.write_all(&line))
            .map_err(fail)
    }

    /// A function is about to be entered: asks it for more.
    pub(crate) fn enlarge(&self, regs: &mut Registers) {
        let Some(size) = self.entries.get(&regs.rip).copied() else {
            return;
        };
        match size {
            SizeArgument::One(number) => {
                if let Some(size) = argument(regs, number)
                    // Nothing is asked for, or more than there can be.
                    && *size != 0
                    && *size < 1 << 46
                {
                    *size += self.bytes;
                }
            }
            SizeArgument::Product(one, other) => {
                let first = argument(regs, one).map_or(0, |size| *size);
                let second = argument(regs, other).map_or(0, |size| *size);
                if let Some(whole @ 1..) = first.checked_mul(second).filter(|size| *size < 1 << 46)
                {
                    for (number, value) in [(one, 1), (other, whole + self.bytes)] {
                        if let Some(size) = argument(regs, number) {
                            *size = value;
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(size: SizeArgument) -> Guard {
        Guard {
            bytes: 64,
            find: None,
            known: BTreeMap::new(),
            entries: HashMap::from([(0x10, size)]),
            file: Place::of(Path::new("")),
        }
    }

    fn enlarged(size: SizeArgument, arguments: [u64; 2]) -> [u64; 2] {
        let mut regs = Registers {
            rip: 0x10,
            ..Registers::default()
        };
        regs.gpr[reg::RDI] = arguments[0];
        regs.gpr[reg::RSI] = arguments[1];
        guard(size).enlarge(&mut regs);
        [regs.gpr[reg::RDI], regs.gpr[reg::RSI]]
    }

    #[test]
    fn sizes_grow_and_absurd_ones_stay() {
        assert_eq!(enlarged(SizeArgument::One(0), [10, 7]), [74, 7]);
        assert_eq!(enlarged(SizeArgument::One(1), [10, 0]), [10, 0]);
        assert_eq!(enlarged(SizeArgument::One(0), [u64::MAX, 0]), [u64::MAX, 0]);
        assert_eq!(enlarged(SizeArgument::Product(0, 1), [3, 5]), [1, 79]);
        let huge = [u64::MAX, 5];
        assert_eq!(enlarged(SizeArgument::Product(0, 1), huge), huge);
    }

    #[test]
    fn functions_are_found_where_their_file_is_mapped() {
        let mut guard = guard(SizeArgument::One(0));
        let function = GuardedFunction {
            offset: 0x2345,
            size: SizeArgument::One(0),
        };
        guard.known.insert("/lib/a".into(), vec![function]);
        let path = Path::new("/lib/a");
        let at = |guard: &mut Guard, range: Range<u64>, offset| {
            guard
                .mapped(&range, path, offset)
                .expect("nothing is written")
        };
        assert_eq!(at(&mut guard, 0x7000..0x9000, 0x2000), [0x7345]);
        assert!(at(&mut guard, 0x7000..0x9000, 0x3000).is_empty());
        assert!(at(&mut guard, 0x7000..0x7100, 0x2000).is_empty());
    }
}
