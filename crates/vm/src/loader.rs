//! Loading an ELF executable and its interpreter, and the first stack.
//!
//! What execve does, except that the vm chooses the addresses and maps a vdso of
//! its own (`vdso`), so that clocks come through system calls.

use crate::context::{Registers, reg};
use crate::io::tag;
use crate::layout::{self, PAGE, page_down, page_up};
use crate::machine::Vm;
use crate::memory;
use crate::space::{Backing, Placement, Request};
use crate::{Error, ProgramError, vdso};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A program to run.
#[derive(Debug, Clone)]
pub struct Program {
    /// Path of the executable or script, as execve is given it.
    pub path: PathBuf,
    pub arguments: Vec<Vec<u8>>,
    pub environment: Vec<Vec<u8>>,
}

/// One loadable ELF file.
struct Image {
    position_independent: bool,
    entry: u64,
    headers_offset: u64,
    header_count: u16,
    segments: Vec<Segment>,
    interpreter: Option<PathBuf>,
}

struct Segment {
    address: u64,
    offset: u64,
    file_size: u64,
    memory_size: u64,
    flags: u32,
}

struct Loaded {
    entry: u64,
    bias: u64,
    headers: u64,
    header_count: u16,
    end: u64,
}

const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const HEADER_SIZE: u64 = 56;

fn word<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut word = [0; N];
    word.copy_from_slice(&bytes[at..at + N]);
    word
}

fn parse(path: &Path, file: &File) -> Result<Image, ProgramError> {
    let bad = |what: &str| ProgramError::NotExecutable {
        path: path.to_path_buf(),
        what: what.to_string(),
    };
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0)
        .map_err(|_| bad("it is too short to be an ELF file"))?;
    if header[..4] != *b"\x7fELF" {
        return Err(bad("it is not an ELF executable"));
    }
    let machine = u16::from_le_bytes(word(&header, 18));
    if header[4] != 2 || machine != 62 {
        return Err(bad("it is not a 64-bit x86 program"));
    }
    let kind = u16::from_le_bytes(word(&header, 16));
    if kind != 2 && kind != 3 {
        return Err(bad("it is an ELF file, but not a program"));
    }
    let headers_offset = u64::from_le_bytes(word(&header, 32));
    let header_count = u16::from_le_bytes(word(&header, 56));
    if u64::from(u16::from_le_bytes(word(&header, 54))) != HEADER_SIZE {
        return Err(bad("its program headers have an unknown size"));
    }
    let mut headers = vec![0; usize::from(header_count) * HEADER_SIZE as usize];
    file.read_exact_at(&mut headers, headers_offset)
        .map_err(|_| bad("its program headers are missing"))?;
    let mut image = Image {
        position_independent: kind == 3,
        entry: u64::from_le_bytes(word(&header, 24)),
        headers_offset,
        header_count,
        segments: Vec::new(),
        interpreter: None,
    };
    for header in headers.chunks_exact(HEADER_SIZE as usize) {
        let segment = Segment {
            flags: u32::from_le_bytes(word(header, 4)),
            offset: u64::from_le_bytes(word(header, 8)),
            address: u64::from_le_bytes(word(header, 16)),
            file_size: u64::from_le_bytes(word(header, 32)),
            memory_size: u64::from_le_bytes(word(header, 40)),
        };
        match u32::from_le_bytes(word(header, 0)) {
            PT_LOAD => {
                let fits = segment
                    .address
                    .checked_add(segment.memory_size)
                    .is_some_and(|end| end <= layout::GUEST_TOP)
                    && segment.offset.checked_add(segment.file_size).is_some()
                    && segment.address % PAGE == segment.offset % PAGE
                    && segment.file_size <= segment.memory_size;
                if !fits {
                    return Err(bad("one of its segments makes no sense"));
                }
                image.segments.push(segment);
            }
            // The first counts.
            PT_INTERP if image.interpreter.is_none() => {
                let mut name = vec![0; segment.file_size.min(4096) as usize];
                file.read_exact_at(&mut name, segment.offset)
                    .map_err(|_| bad("the name of its interpreter is missing"))?;
                let Some(end) = name.iter().position(|byte| *byte == 0) else {
                    return Err(bad("the name of its interpreter has no end"));
                };
                image.interpreter = Some(std::ffi::OsStr::from_bytes(&name[..end]).into());
            }
            _ => {}
        }
    }
    if image.segments.is_empty() {
        return Err(bad("it has nothing to load"));
    }
    Ok(image)
}

/// The interpreter and its argument, if the file is a script.
pub(crate) fn script(file: &File) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    let mut start = vec![0; 256];
    let length = file.read_at(&mut start, 0).ok()?;
    start.truncate(length);
    let line = start
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let line = line.trim_ascii();
    let end = line
        .iter()
        .position(|byte| byte.is_ascii_whitespace())
        .unwrap_or(line.len());
    if end == 0 {
        return None;
    }
    let argument = line[end..].trim_ascii();
    Some((
        line[..end].to_vec(),
        (!argument.is_empty()).then(|| argument.to_vec()),
    ))
}

impl Vm {
    /// Loads `program` into the empty address space and makes its first
    /// thread's registers.
    pub(crate) fn load(&mut self, program: &Program) -> Result<Registers, Error> {
        let mut path = program.path.clone();
        let mut arguments = program.arguments.clone();
        let (mut real, mut file) = self.open_program(&path)?;
        // Scripts may name scripts; the kernel follows four.
        for _ in 0..4 {
            let Some((interpreter, argument)) = script(&file) else {
                break;
            };
            let mut full = vec![interpreter.clone()];
            full.extend(argument);
            full.push(path.as_os_str().as_bytes().to_vec());
            full.extend(arguments.into_iter().skip(1));
            arguments = full;
            path = std::ffi::OsStr::from_bytes(&interpreter).into();
            (real, file) = self.open_program(&path)?;
        }
        let image = parse(&path, &file)?;
        self.tell_ignored_rights(&real, &file);
        let bias = if image.position_independent {
            layout::PIE_BASE
        } else {
            0
        };
        let main = self.load_image(&real, &file, &image, bias)?;
        self.space.brk_start = page_up(main.end);
        self.space.brk = self.space.brk_start;
        self.kernel.process.executable = real;
        self.kernel.process.started_as = program.path.clone();
        let (entry, base) = match &image.interpreter {
            None => (main.entry, 0),
            Some(name) => {
                let (real, file) = self.open_program(name)?;
                let interpreter = parse(name, &file)?;
                let length = page_up(
                    interpreter
                        .segments
                        .iter()
                        .map(|segment| segment.address + segment.memory_size)
                        .max()
                        .unwrap_or(PAGE),
                );
                let bias = self.space.reserve(length).ok_or_else(|| {
                    Error::Machine("no room for the program's interpreter".into())
                })?;
                let loaded = self.load_image(&real, &file, &interpreter, bias)?;
                (loaded.entry, loaded.bias)
            }
        };
        let stack = self.make_stack(program, &program.path, &arguments, &main, base)?;
        self.kernel.process.start_stack = stack;
        let mut regs = Registers {
            rip: entry,
            rflags: 0x202,
            ..Registers::default()
        };
        regs.gpr[reg::RSP] = stack;
        Ok(regs)
    }

    /// A program that would run as somebody else natively runs as the same user
    /// here: the vm is not started with its rights.
    fn tell_ignored_rights(&self, path: &Path, file: &File) {
        use std::os::unix::fs::MetadataExt;
        if !self.io.is_live() || self.kernel.machine.no_new_privileges {
            return;
        }
        let Ok(data) = file.metadata() else {
            return;
        };
        // SAFETY: an out-parameter; calls without preconditions.
        let (nosuid, user, group) = unsafe {
            let mut system: libc::statvfs = std::mem::zeroed();
            let told = libc::fstatvfs(file.as_raw_fd(), &mut system) == 0;
            let nosuid = told && system.f_flag & libc::ST_NOSUID != 0;
            (nosuid, libc::geteuid(), libc::getegid())
        };
        if nosuid {
            return;
        }
        let path = path.display();
        if data.mode() & libc::S_ISUID != 0 && data.uid() != user {
            self.say(&format!(
                "{path} has the setuid bit, which has no effect here: it runs as user {user}, not {}",
                data.uid()
            ));
        }
        let both = libc::S_ISGID | libc::S_IXGRP;
        if data.mode() & both == both && data.gid() != group {
            self.say(&format!(
                "{path} has the setgid bit, which has no effect here: it runs as group {group}, not {}",
                data.gid()
            ));
        }
        // SAFETY: a literal name; only the size is asked for.
        let capabilities = unsafe {
            let name = c"security.capability".as_ptr();
            libc::fgetxattr(file.as_raw_fd(), name, std::ptr::null_mut(), 0)
        };
        if capabilities > 0 && user != 0 {
            self.say(&format!(
                "{path} has capabilities of its own, which have no effect here"
            ));
        }
    }

    /// A program's real path and a handle for it.
    fn open_program(&mut self, path: &Path) -> Result<(PathBuf, File), Error> {
        let wanted = path.to_path_buf();
        let opened = self.io.mapped_file(false, || {
            let file = File::open(&wanted)?;
            // What is removed, or never had a name (a memfd), has only what the
            // descriptor says.
            let resolved = wanted
                .canonicalize()
                .or_else(|_| std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())))?;
            Ok((resolved, file))
        })?;
        opened.map_err(|error| {
            let path = path.to_path_buf();
            ProgramError::CannotOpen { path, error }.into()
        })
    }

    fn load_image(
        &mut self,
        path: &Path,
        file: &File,
        image: &Image,
        bias: u64,
    ) -> Result<Loaded, Error> {
        let name = Arc::new(path.to_path_buf());
        let failed = |errno: i64| {
            Error::from(ProgramError::CannotOpen {
                path: path.to_path_buf(),
                error: std::io::Error::from_raw_os_error(-errno as i32),
            })
        };
        let mut headers = 0;
        let mut end = 0;
        for segment in &image.segments {
            let mut protection = 0;
            for (flag, value) in [
                (4, libc::PROT_READ),
                (2, libc::PROT_WRITE),
                (1, libc::PROT_EXEC),
            ] {
                if segment.flags & flag != 0 {
                    protection |= value;
                }
            }
            let address = segment.address + bias;
            let start = page_down(address);
            let file_end = address + segment.file_size;
            let memory_end = address + segment.memory_size;
            if segment.file_size > 0 {
                let offset = page_down(segment.offset);
                self.space
                    .map(
                        Placement::Fixed(start),
                        Request {
                            backing: Backing::File {
                                path: name.clone(),
                                offset,
                            },
                            file: Some((file.as_raw_fd(), offset)),
                            ..Request::anonymous(file_end - start, protection)
                        },
                    )
                    .map_err(failed)?;
                // The rest of the last page belongs to zeroed memory.
                if memory_end > file_end && protection & libc::PROT_WRITE != 0 {
                    let tail = vec![0; (page_up(file_end) - file_end) as usize];
                    let _ = memory::write(file_end, &tail);
                }
            }
            let zero_start = if segment.file_size > 0 {
                page_up(file_end)
            } else {
                start
            };
            if page_up(memory_end) > zero_start {
                self.space
                    .map(
                        Placement::Fixed(zero_start),
                        Request::anonymous(page_up(memory_end) - zero_start, protection),
                    )
                    .map_err(failed)?;
            }
            let covers = segment.offset <= image.headers_offset
                && image.headers_offset < segment.offset + segment.file_size;
            if covers {
                headers = address + image.headers_offset - segment.offset;
            }
            end = end.max(memory_end);
        }
        Ok(Loaded {
            entry: image.entry + bias,
            bias,
            headers,
            header_count: image.header_count,
            end,
        })
    }

    /// The functions that every program is given.
    fn map_vdso(&mut self) -> Result<u64, Error> {
        let image = vdso::image();
        let no_room = |_| Error::Machine("no room for the program's vdso".into());
        let request = Request {
            backing: Backing::Vdso,
            ..Request::anonymous(image.len() as u64, libc::PROT_READ | libc::PROT_EXEC)
        };
        let start = self
            .space
            .map(Placement::Anywhere, request)
            .map_err(no_room)?;
        match self.space.write_anyway(start, &image) {
            true => Ok(start),
            false => Err(no_room(0)),
        }
    }

    /// Arguments, environment and auxiliary vector, as execve lays them out.
    fn make_stack(
        &mut self,
        program: &Program,
        path: &Path,
        arguments: &[Vec<u8>],
        main: &Loaded,
        interpreter: u64,
    ) -> Result<u64, Error> {
        let vdso = self.map_vdso()?;
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let start = self
            .space
            .map(
                Placement::Anywhere,
                Request {
                    backing: Backing::Stack,
                    grows_down: true,
                    ..Request::anonymous(layout::STACK_SIZE, both)
                },
            )
            .map_err(|_| Error::Machine("no room for the program's stack".into()))?;
        self.space.stack_gap = start - layout::STACK_GAP..start;
        let mut top = start + layout::STACK_SIZE;
        let mut failed = false;
        let mut push = |bytes: &[u8], align: u64| {
            top = (top - bytes.len() as u64) & !(align - 1);
            failed |= memory::write(top, bytes).is_err();
            top
        };
        let mut push_string = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            bytes.push(0);
            push(&bytes, 1)
        };
        let executable_name = push_string(path.as_os_str().as_bytes());
        let platform = push_string(b"x86_64");
        let environment: Vec<u64> = program
            .environment
            .iter()
            .map(|text| push_string(text))
            .collect();
        let arguments: Vec<u64> = arguments.iter().map(|text| push_string(text)).collect();
        let random = push(&self.kernel.process.start_random, 16);
        let (_, facts) = self.io.external_bytes(tag::PROCESS, || {
            // SAFETY: these calls have no preconditions.
            let facts = unsafe {
                [
                    u64::from(libc::getuid()),
                    u64::from(libc::geteuid()),
                    u64::from(libc::getgid()),
                    u64::from(libc::getegid()),
                    libc::getauxval(libc::AT_HWCAP),
                ]
            };
            (
                0,
                facts.iter().flat_map(|fact| fact.to_le_bytes()).collect(),
            )
        })?;
        let fact = |index: usize| {
            facts
                .get(index * 8..index * 8 + 8)
                .map_or(0, |bytes| u64::from_le_bytes(word(bytes, 0)))
        };
        let vector = [
            (libc::AT_SYSINFO_EHDR, vdso),
            (libc::AT_PHDR, main.headers),
            (libc::AT_PHENT, HEADER_SIZE),
            (libc::AT_PHNUM, u64::from(main.header_count)),
            (libc::AT_PAGESZ, PAGE),
            (libc::AT_BASE, interpreter),
            (libc::AT_FLAGS, 0),
            (libc::AT_ENTRY, main.entry),
            (libc::AT_UID, fact(0)),
            (libc::AT_EUID, fact(1)),
            (libc::AT_GID, fact(2)),
            (libc::AT_EGID, fact(3)),
            (libc::AT_SECURE, 0),
            (libc::AT_CLKTCK, 100),
            (libc::AT_HWCAP, fact(4)),
            (libc::AT_RANDOM, random),
            (libc::AT_EXECFN, executable_name),
            (libc::AT_PLATFORM, platform),
            (libc::AT_NULL, 0),
        ];
        let mut words = vec![arguments.len() as u64];
        words.extend(arguments);
        words.push(0);
        words.extend(environment);
        words.push(0);
        for (key, value) in vector {
            words.extend([key, value]);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let stack = push(&bytes, 16);
        if failed {
            return Err(ProgramError::TooManyArguments.into());
        }
        Ok(stack)
    }
}
