//! Files of /proc that describe the process: the guest is shown, not the vm.
//!
//! A file is written when it is opened and then stays as it is.

use super::Halt;
use super::fd::{DescriptionId, Object};
use crate::layout::PAGE;
use crate::machine::Vm;
use crate::memory;
use crate::space::Backing;
use std::fmt::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// What is to be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    Maps,
    DetailedMaps,
    Status(i32),
    Stat(i32),
    Sizes,
    Arguments,
    Environment,
    Vector,
    Name(i32),
    Descriptors,
    DescriptorState(i32),
    Threads,
}

/// A directory of /proc.
#[derive(Hash)]
pub struct Listing {
    pub path: String,
    /// Names with their inode and type.
    names: Vec<(String, u8)>,
}

impl Listing {
    /// Directory entries in the kernel's form from entry `from` on, and the
    /// entry to go on with.
    pub fn entries(&self, from: usize, size: usize) -> (Vec<u8>, usize) {
        let mut bytes = Vec::new();
        let mut next = from;
        for (index, (name, kind)) in self.names.iter().enumerate().skip(from) {
            let length = (19 + name.len() + 1).next_multiple_of(8);
            if bytes.len() + length > size {
                break;
            }
            let start = bytes.len();
            bytes.extend_from_slice(&(index as u64 + 0x20_0000).to_le_bytes());
            bytes.extend_from_slice(&(index as u64 + 1).to_le_bytes());
            bytes.extend_from_slice(&(length as u16).to_le_bytes());
            bytes.push(*kind);
            bytes.extend_from_slice(name.as_bytes());
            bytes.resize(start + length, 0);
            next = index + 1;
        }
        (bytes, next)
    }

    pub fn at_end(&self, from: usize) -> bool {
        from >= self.names.len()
    }
}

impl Vm {
    /// Opens a file or directory of /proc.
    pub(super) fn show(&mut self, shown: Shown, path: Vec<u8>) -> Result<Object, Halt> {
        let content = match shown {
            Shown::Maps => self.maps(false).into_bytes(),
            Shown::DetailedMaps => self.maps(true).into_bytes(),
            Shown::Status(tid) => self.status(tid)?,
            Shown::Stat(tid) => self.stat_line(tid)?,
            Shown::Sizes => {
                let pages = self.mapped_bytes() / PAGE;
                format!("{pages} {pages} 0 0 0 {pages} 0\n").into_bytes()
            }
            Shown::Arguments => self.start_area(0),
            Shown::Environment => self.start_area(1),
            Shown::Vector => self.start_area(2),
            Shown::Name(tid) => [&self.thread_name(tid)[..], b"\n"].concat(),
            Shown::DescriptorState(fd) => {
                let description = self
                    .kernel
                    .fds
                    .get(fd)
                    .map_err(|_| Halt::Errno(libc::ENOENT))?;
                format!(
                    "pos:\t{}\nflags:\t0{:o}\nmnt_id:\t15\n",
                    description.offset, description.flags
                )
                .into_bytes()
            }
            Shown::Descriptors => {
                let numbers: Vec<i32> = self.kernel.fds.numbers().collect();
                // The one that is being opened shows itself, as natively.
                let own = (0..).find(|number| !numbers.contains(number));
                let mut all = numbers;
                all.extend(own);
                all.sort_unstable();
                return Ok(listing(
                    "/proc/self/fd",
                    all.iter().map(|fd| (fd.to_string(), libc::DT_LNK)),
                ));
            }
            Shown::Threads => {
                let tids: Vec<String> = self
                    .threads
                    .values()
                    .map(|thread| thread.tid.to_string())
                    .collect();
                return Ok(listing(
                    "/proc/self/task",
                    tids.into_iter().map(|tid| (tid, libc::DT_DIR)),
                ));
            }
        };
        Ok(Object::Bytes {
            path: PathBuf::from(std::ffi::OsString::from_vec(path)),
            content,
        })
    }

    fn mapped_bytes(&self) -> u64 {
        self.space
            .mappings()
            .map(|(range, _)| range.end - range.start)
            .sum()
    }

    fn maps(&self, detailed: bool) -> String {
        let mut text = String::new();
        for (range, mapping) in self.space.mappings() {
            let flag = |bit, letter| {
                if mapping.protection & bit != 0 {
                    letter
                } else {
                    '-'
                }
            };
            let (offset, device, inode, name) = match &mapping.backing {
                Backing::File { path, offset } => {
                    let name = path.to_string_lossy().into_owned();
                    let inode = xxhash_rust::xxh3::xxh3_64(name.as_bytes()) % 10_000_000 + 1;
                    (*offset, "08:01", inode, name)
                }
                Backing::Anonymous => (0, "00:00", 0, String::new()),
                Backing::Stack => (0, "00:00", 0, "[stack]".to_string()),
                Backing::Heap => (0, "00:00", 0, "[heap]".to_string()),
                Backing::Vdso => (0, "00:00", 0, "[vdso]".to_string()),
            };
            let line = format!(
                "{:08x}-{:08x} {}{}{}{} {offset:08x} {device} {inode} ",
                range.start,
                range.end,
                flag(libc::PROT_READ, 'r'),
                flag(libc::PROT_WRITE, 'w'),
                flag(libc::PROT_EXEC, 'x'),
                if mapping.shared { 's' } else { 'p' },
            );
            // Writing to a string cannot fail.
            let _ = if name.is_empty() {
                writeln!(text, "{line}")
            } else {
                writeln!(text, "{line:<73}{name}")
            };
            if detailed {
                let size = (range.end - range.start) / 1024;
                let _ = writeln!(
                    text,
                    "Size:           {size:8} kB\nKernelPageSize:        4 kB\nMMUPageSize:           4 kB\nRss:            {size:8} kB\nPss:            {size:8} kB"
                );
            }
        }
        text
    }

    fn thread_name(&self, tid: i32) -> Vec<u8> {
        let name = self
            .threads
            .values()
            .find(|thread| thread.tid == tid)
            .map_or([0; 16], |thread| thread.name);
        name.iter().copied().take_while(|byte| *byte != 0).collect()
    }

    /// The host's file about the vm, to be corrected.
    fn host_file_text(&mut self, name: &'static str) -> Result<String, Halt> {
        let (_, bytes) = self.io.external_bytes(libc::SYS_openat as u32, || {
            (
                0,
                std::fs::read(format!("/proc/self/{name}")).unwrap_or_default(),
            )
        })?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn status(&mut self, tid: i32) -> Result<Vec<u8>, Halt> {
        let text = self.host_file_text("status")?;
        let name = String::from_utf8_lossy(&self.thread_name(tid)).into_owned();
        let threads = self.threads.len();
        let size = self.mapped_bytes() / 1024;
        let mut shown = String::new();
        for line in text.lines() {
            let key = line.split(':').next().unwrap_or_default();
            let _ = match key {
                "Name" => writeln!(shown, "Name:\t{name}"),
                "Pid" => writeln!(shown, "Pid:\t{tid}"),
                "Tgid" => writeln!(shown, "Tgid:\t{}", self.kernel.process.pid),
                "PPid" => writeln!(shown, "PPid:\t{}", self.kernel.process.parent),
                "TracerPid" => writeln!(shown, "TracerPid:\t0"),
                "Threads" => writeln!(shown, "Threads:\t{threads}"),
                "VmPeak" | "VmSize" => writeln!(shown, "{key}:\t{size:8} kB"),
                _ => writeln!(shown, "{line}"),
            };
        }
        Ok(shown.into_bytes())
    }

    fn stat_line(&mut self, tid: i32) -> Result<Vec<u8>, Halt> {
        let text = self.host_file_text("stat")?;
        let after = text.rfind(')').map_or("", |at| &text[at + 1..]);
        let mut fields: Vec<String> = after.split_whitespace().map(str::to_string).collect();
        // Numbered from 3, the state.
        let threads = self.threads.len().to_string();
        let size = self.mapped_bytes().to_string();
        for (number, value) in [(20, threads), (23, size)] {
            if let Some(field) = fields.get_mut(number - 3) {
                *field = value;
            }
        }
        let name = String::from_utf8_lossy(&self.thread_name(tid)).into_owned();
        Ok(format!("{tid} ({name}) {}\n", fields.join(" ")).into_bytes())
    }

    /// What the program was told of the machine when it was started.
    pub fn auxiliary_vector(&self) -> Vec<u8> {
        self.start_area(2)
    }

    /// Arguments, environment or auxiliary vector, read from the stack they
    /// were put on.
    fn start_area(&self, which: usize) -> Vec<u8> {
        let read = || -> Result<Vec<u8>, Halt> {
            let mut at = self.kernel.process.start_stack;
            if at == 0 {
                return Ok(Vec::new());
            }
            let count = memory::get::<u64>(at)?;
            at += 8;
            let mut areas = [Vec::new(), Vec::new()];
            for _ in 0..count {
                let text = memory::read_c_string(memory::get(at)?, 1 << 20)?;
                areas[0].extend(text);
                areas[0].push(0);
                at += 8;
            }
            at += 8;
            loop {
                let pointer = memory::get::<u64>(at)?;
                at += 8;
                if pointer == 0 {
                    break;
                }
                areas[1].extend(memory::read_c_string(pointer, 1 << 20)?);
                areas[1].push(0);
            }
            if which < 2 {
                return Ok(std::mem::take(&mut areas[which]));
            }
            let mut vector = Vec::new();
            loop {
                let pair = memory::get::<[u64; 2]>(at)?;
                vector.extend(pair.iter().flat_map(|word| word.to_le_bytes()));
                at += 16;
                if pair[0] == 0 {
                    return Ok(vector);
                }
            }
        };
        // The guest may have overwritten its own stack.
        read().unwrap_or_default()
    }

    /// What /proc/self/fd says about something inside the vm.
    pub(super) fn object_name(&self, id: DescriptionId) -> Option<Vec<u8>> {
        Some(match &self.kernel.fds.peek(id)?.object {
            Object::Host(_) => return None,
            Object::Pipe(end) => format!("pipe:[{}]", end.pipe.borrow().id).into_bytes(),
            Object::Pair(end) => format!("socket:[{}]", end.id()).into_bytes(),
            Object::Event(_) => b"anon_inode:[eventfd]".to_vec(),
            Object::Timer(_) => b"anon_inode:[timerfd]".to_vec(),
            Object::Signals(_) => b"anon_inode:[signalfd]".to_vec(),
            Object::Epoll(_) => b"anon_inode:[eventpoll]".to_vec(),
            Object::Bytes { path, .. } => path.as_os_str().as_bytes().to_vec(),
            Object::Listing(listing) => listing.path.clone().into_bytes(),
        })
    }
}

fn listing(path: &str, names: impl Iterator<Item = (String, u8)>) -> Object {
    let mut all = vec![
        (".".to_string(), libc::DT_DIR),
        ("..".to_string(), libc::DT_DIR),
    ];
    all.extend(names);
    Object::Listing(Listing {
        path: path.to_string(),
        names: all,
    })
}
