//! execve: another program in the same process.
//!
//! The vm stays; the guest's memory, translations and threads go, and the new
//! program is loaded as at the start. Whether it can be is asked before
//! anything is thrown away.

use super::{Call, Halt, Outcome};
use crate::host;
use crate::loader::Program;
use crate::machine::Vm;
use crate::memory;
use std::ffi::OsStr;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Most bytes of arguments and environment: what fits on the first stack.
const LONGEST: usize = 6 << 20;

/// The strings of a NULL-terminated array of pointers.
fn strings(mut at: u64) -> Result<Vec<Vec<u8>>, Halt> {
    let mut strings = Vec::new();
    let mut length = 0;
    if at == 0 {
        return Ok(strings);
    }
    loop {
        let pointer = memory::get::<u64>(at)?;
        if pointer == 0 {
            return Ok(strings);
        }
        let string = memory::read_c_string(pointer, LONGEST)?;
        length += string.len() + 9;
        if length > LONGEST {
            return Err(Halt::Errno(libc::E2BIG));
        }
        strings.push(string);
        at += 8;
    }
}

/// Why the file at `path` (from directory `directory`) cannot be executed, as
/// a negative errno; else 0.
fn executable(directory: i32, path: &[u8], depth: u32) -> i64 {
    let mut name = path.to_vec();
    name.push(0);
    // SAFETY: a terminated string of ours.
    let access = unsafe {
        host::syscall(
            libc::SYS_faccessat,
            [
                directory as u64,
                name.as_ptr() as u64,
                libc::X_OK as u64,
                0,
                0,
                0,
            ],
        )
    };
    if access < 0 {
        return access;
    }
    // SAFETY: as above; the descriptor is owned by nobody else.
    let file = unsafe {
        let opened = host::syscall(
            libc::SYS_openat,
            [
                directory as u64,
                name.as_ptr() as u64,
                (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK) as u64,
                0,
                0,
                0,
            ],
        );
        if opened < 0 {
            return opened;
        }
        std::fs::File::from_raw_fd(opened as i32)
    };
    if !file.metadata().is_ok_and(|data| data.is_file()) {
        return -i64::from(libc::EACCES);
    }
    let mut start = [0; 256];
    let length = file.read_at(&mut start, 0).unwrap_or(0);
    let start = &start[..length];
    if let Some((interpreter, _)) = crate::loader::script(&file) {
        if depth == 0 {
            return -i64::from(libc::ELOOP);
        }
        return executable(libc::AT_FDCWD, &interpreter, depth - 1);
    }
    if start.len() >= 64 && start[..5] == *b"\x7fELF\x02" && start[18..20] == [62, 0] {
        0
    } else {
        -i64::from(libc::ENOEXEC)
    }
}

impl Vm {
    pub(super) fn sys_execve(&mut self, call: &Call) -> Outcome {
        let [path, arguments, environment, ..] = call.arguments;
        let path = memory::read_c_string(path, 4096)?;
        self.execute_program(libc::AT_FDCWD, path, arguments, environment)
    }

    pub(super) fn sys_execveat(&mut self, call: &Call) -> Outcome {
        let [directory, path, arguments, environment, flags, _] = call.arguments;
        let mut path = memory::read_c_string(path, 4096)?;
        if path.is_empty() && flags as i32 & libc::AT_EMPTY_PATH != 0 {
            let number = self.host_only(directory as i32, libc::EACCES)?.number;
            path = self.recorded_path(number)?;
        } else {
            let host = self.host_directory(directory as i32, &path)?;
            if host != libc::AT_FDCWD {
                let mut full = self.recorded_path(host)?;
                full.push(b'/');
                full.extend_from_slice(&path);
                path = full;
            }
        }
        self.execute_program(libc::AT_FDCWD, path, arguments, environment)
    }

    /// Where a host descriptor's file lies; the descriptor's own name if the
    /// file has none any more (removed, or a memfd).
    fn recorded_path(&mut self, number: i32) -> Result<Vec<u8>, Halt> {
        let (_, path) = self.io.external_bytes(libc::SYS_execveat as u32, || {
            let descriptor = format!("/proc/self/fd/{number}");
            let identity = |path: &Path| {
                let data = std::fs::metadata(path).ok()?;
                Some((data.dev(), data.ino()))
            };
            let named = std::fs::read_link(&descriptor)
                .ok()
                .filter(|path| identity(path) == identity(descriptor.as_ref()));
            let path = named.unwrap_or_else(|| descriptor.into());
            (0, path.into_os_string().into_encoded_bytes())
        })?;
        Ok(path)
    }

    fn execute_program(
        &mut self,
        directory: i32,
        path: Vec<u8>,
        arguments: u64,
        environment: u64,
    ) -> Outcome {
        let path = self.program_path(path);
        let mut arguments = strings(arguments)?;
        let environment = strings(environment)?;
        if arguments.is_empty() {
            arguments.push(Vec::new());
        }
        let refused = self.io.external(libc::SYS_execve as u32, || {
            (executable(directory, &path, 4), Vec::new())
        })?;
        if refused < 0 {
            return Ok(refused);
        }
        let program = Program {
            path: OsStr::from_bytes(&path).into(),
            arguments,
            environment,
        };
        self.space.clear();
        self.forget_code();
        self.kernel.futexes = Default::default();
        self.forget_shared_futexes();
        self.kernel.signals.after_exec();
        self.kernel.timers.after_exec();
        self.kernel.process.renew_random();
        let id = self.current;
        self.keep_only_current(id);
        let pid = self.kernel.process.pid;
        let regs = self.load(&program)?;
        // Not before: it may be the program's own descriptor.
        self.kernel.fds.close_on_exec_all();
        *self.regs() = regs;
        let name = self.program_name();
        if let Some(thread) = self.threads.get_mut(&id) {
            thread.tid = pid;
            *thread.vector = Default::default();
            thread.clear_child_tid = 0;
            thread.robust_list = 0;
            thread.signals.stack = Default::default();
            thread.signals.restore_mask = None;
            thread.name = name;
        }
        self.release_vfork_parent(false);
        Err(Halt::NoReturn)
    }

    /// The name of a program's first thread.
    pub(crate) fn program_name(&self) -> [u8; 16] {
        let mut name = [0; 16];
        let executable = self.kernel.process.started_as.file_name();
        for (to, from) in name
            .iter_mut()
            .take(15)
            .zip(executable.map(OsStr::as_bytes).unwrap_or_default())
        {
            *to = *from;
        }
        name
    }
}
