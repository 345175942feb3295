//! The guest process: identity, children, waiting for them.
//!
//! A guest fork is a fork of the vm. The new process goes on with the forking
//! thread alone and its own sub-recording; what passes between the two from
//! then on (pipes, files, wait) goes through the host and is recorded on each
//! side as coming from outside. So process ids are the host's own.
//!
//! vfork and posix_spawn (a clone that shares memory) are forks too, whose
//! parent waits until the child executes a program or exits. What a child that
//! exits without executing did to the shared memory is carried over to the
//! parent then (`vforked`): posix_spawn reports its errors that way.

use super::{Call, Halt, Outcome, vforked};
use crate::Error;
use crate::context::reg;
use crate::io::{Io, tag};
use crate::machine::{Pace, Vm};
use crate::record::{Files, InputReader, InputWriter, ProcessFacts, RecordError, StepWriter};
use crate::schedule::Random64;
use crate::space::Mapping;
use crate::thread::{HostInterest, State, Wait, WaitOn};
use crate::tree::{Children, OutputLock};
use crate::{host, host_signals, layout, memory};
use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

#[derive(Default)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    /// Real user id, for siginfo.
    pub user: u32,
    /// Absolute path of the program.
    pub executable: std::path::PathBuf,
    /// The path it was started by, which names the first thread.
    pub started_as: std::path::PathBuf,
    /// Where the first stack begins: the argument count, then the arguments.
    pub start_stack: u64,
    /// The sixteen random bytes every program is started with.
    pub start_random: [u8; 16],
    /// While a parent waits in vfork for this process: what to tell it.
    vfork_parent: Option<Borrowed>,
    /// Children that have not been waited for.
    pub children: BTreeSet<i32>,
    /// The list of robust mutexes and the id of the thread that exited last.
    pub last_robust_list: (u64, i32),
    threads: u32,
}

impl Hash for Process {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Process {
            pid,
            parent,
            group,
            session,
            user,
            executable,
            started_as,
            start_stack,
            start_random,
            vfork_parent,
            children,
            last_robust_list,
            threads,
        } = self;
        (pid, parent, group, session, user, executable, started_as).hash(state);
        (start_stack, start_random, vfork_parent.is_some(), children).hash(state);
        (last_robust_list, threads).hash(state);
    }
}

impl Process {
    /// The number of the next thread; the first one is 1.
    pub fn next_thread(&mut self) -> u32 {
        self.threads += 1;
        self.threads
    }

    /// Thread ids follow the process id, as they usually do natively.
    pub fn tid_of(&self, thread: u32) -> i32 {
        self.pid + thread as i32 - 1
    }

    /// Other random bytes for the next program, from the same seed.
    pub fn renew_random(&mut self) {
        let mut seed = [0; 8];
        seed.copy_from_slice(&self.start_random[..8]);
        let mut random = Random64::new(u64::from_le_bytes(seed));
        self.start_random[..8].copy_from_slice(&random.next().to_le_bytes());
        self.start_random[8..].copy_from_slice(&random.next().to_le_bytes());
    }
}

/// A parent's end of the line to its vfork child. None while replaying.
pub struct Vforked {
    pid: i32,
    line: Option<OwnedFd>,
}

impl Hash for Vforked {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Vforked { pid, line } = self;
        (pid, line.is_some()).hash(state);
    }
}

/// The line on which a vfork child tells its parent that it may go on, and if
/// the memory is the parent's, what was mapped at the start.
struct Borrowed {
    line: OwnedFd,
    mappings: Option<Vec<(Range<u64>, Mapping)>>,
}

const SHARES_MEMORY: u64 = libc::CLONE_VM as u64;
const VFORK: u64 = libc::CLONE_VFORK as u64;
const NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

impl Vm {
    pub(super) fn clone_process(&mut self, call: &Call) -> Outcome {
        let [flags, stack, parent_tid, child_tid, tls, _] = call.arguments;
        if flags & libc::CLONE_PIDFD as u64 != 0 {
            // As before Linux 5.2: programs do without.
            return Err(Halt::Errno(libc::EINVAL));
        }
        let has = |flag: i32| flags & flag as u64 != 0;
        if (has(libc::CLONE_SIGHAND) && !has(libc::CLONE_VM))
            || (has(libc::CLONE_THREAD) && !has(libc::CLONE_SIGHAND))
        {
            return Err(Halt::Errno(libc::EINVAL));
        }
        if flags & SHARES_MEMORY != 0 && flags & VFORK == 0 {
            // Two processes in one memory without the promise of an exec.
            let what = "clone with CLONE_VM, and without CLONE_THREAD or CLONE_VFORK,";
            return self.refuse(what, libc::ENOSYS);
        }
        if flags & NAMESPACES != 0 {
            return self.refuse("clone with a namespace of its own", libc::EPERM);
        }
        self.fork(call, flags, stack, [parent_tid, child_tid, tls])
    }

    /// What a process of one thread shares with nobody is its own already.
    pub(super) fn sys_unshare(&mut self, flags: u64) -> Outcome {
        const OWN: u64 = (libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_SYSVSEM) as u64;
        let alone = self
            .threads
            .values()
            .filter(|thread| thread.state != State::Exited)
            .count()
            == 1;
        if flags & !OWN == 0 && alone {
            return Ok(0);
        }
        let what = match flags & NAMESPACES {
            0 => "unshare in a program with threads",
            _ => "unshare with a namespace of its own",
        };
        self.refuse(what, libc::EPERM)
    }

    pub(super) fn sys_fork(&mut self, call: &Call) -> Outcome {
        self.fork(call, libc::SIGCHLD as u64, 0, [0; 3])
    }

    pub(super) fn sys_vfork(&mut self, call: &Call) -> Outcome {
        let flags = SHARES_MEMORY | VFORK | libc::SIGCHLD as u64;
        self.fork(call, flags, 0, [0; 3])
    }

    /// The vm forks: the child in `Halt::Forked`, the parent with its id.
    fn fork(&mut self, call: &Call, flags: u64, stack: u64, pointers: [u64; 3]) -> Outcome {
        if call.again {
            return self.await_vfork();
        }
        let [parent_tid, child_tid, tls] = pointers;
        if flags & libc::CLONE_SETTLS as u64 != 0
            && (tls >= layout::GUEST_TOP || memory::is_vm(tls))
        {
            return Err(Halt::Errno(libc::EPERM));
        }
        self.externalise()?;
        self.flush_recording()?;
        if let Some(tree) = &mut self.tree {
            tree.ordered = true;
        }
        let vfork = flags & VFORK != 0;
        let number = match &self.tree {
            Some(tree) if self.io.is_live() => tree.next_number(),
            _ => 0,
        };
        let mut lines = (None, None);
        let mut forked = 0;
        if self.io.is_live() {
            if self.space.shares_memory || self.space.shares_files {
                self.take_turn_now()?;
                self.remember_shared_memory();
            }
            if vfork {
                lines = line().map_or((None, None), |(ours, theirs)| (Some(ours), Some(theirs)));
            }
            forked = self.within_processes(|| host_fork(Kinship::of(flags)));
            if forked == 0 {
                return self.become_child(number, flags, stack, [child_tid, tls], lines.1);
            }
            // The line ends when the child closes it; it may be quick.
            lines.1 = None;
        }
        let (pid, facts) = self.io.external_bytes(libc::SYS_fork as u32, || {
            (forked, number.to_le_bytes().to_vec())
        })?;
        if pid < 0 {
            return Ok(pid);
        }
        if flags & libc::CLONE_PARENT as u64 == 0 {
            self.kernel.process.children.insert(pid as i32);
        }
        if !self.io.is_live() {
            let number = facts.try_into().map_or(0, u32::from_le_bytes);
            if self.replay_child(number)? {
                return self.become_child(number, flags, stack, [child_tid, tls], None);
            }
        }
        if flags & libc::CLONE_PARENT_SETTID as u64 != 0 {
            memory::put(parent_tid, pid as i32)?;
        }
        if !vfork {
            return Ok(pid);
        }
        let current = self.current;
        if let Some(thread) = self.threads.get_mut(&current) {
            thread.vforked = Some(Vforked {
                pid: pid as i32,
                line: lines.0,
            });
        }
        self.await_vfork()
    }

    /// While replaying: true in the process that is to replay the child.
    fn replay_child(&mut self, number: u32) -> Result<bool, Error> {
        let Some(tree) = &mut self.tree else {
            return Ok(false);
        };
        match &tree.children {
            Children::None => Ok(false),
            Children::Path(path) => Ok(path.contains(&number)),
            Children::All => {
                tree.expect_child();
                // The child's shared memory becomes its own before the parent
                // goes on.
                let separate = self.space.mappings().any(|(_, mapping)| mapping.shared);
                let line = if separate { line() } else { None };
                match host_fork(Kinship::OWN_CHILD) {
                    0 => {
                        tree.forked = true;
                        if separate {
                            self.isolate_shared_memory().map_err(|error| {
                                Error::Machine(format!("cannot copy shared memory: {error}"))
                            })?;
                        }
                        Ok(true)
                    }
                    pid if pid > 0 => {
                        if let Some((ours, theirs)) = line {
                            drop(theirs);
                            let mut byte = [0];
                            // The end of the line is the answer.
                            let _ = std::io::Read::read(&mut std::fs::File::from(ours), &mut byte);
                        }
                        Ok(false)
                    }
                    errno => Err(Error::Machine(format!(
                        "cannot fork to replay process {number}: {}",
                        std::io::Error::from_raw_os_error(-errno as i32)
                    ))),
                }
            }
        }
    }

    /// This vm goes on as the new process `number`.
    fn become_child(
        &mut self,
        number: u32,
        flags: u64,
        stack: u64,
        pointers: [u64; 2],
        line: Option<OwnedFd>,
    ) -> Outcome {
        let [child_tid, tls] = pointers;
        if self.io.is_live()
            && let Some(tree) = &mut self.tree
        {
            tree.forked = true;
            tree.announce();
        }
        self.open_streams(number)?;
        if flags & SHARES_MEMORY == 0 {
            self.leave_memory_behind()?;
        }
        let (_, facts) = self.io.external_bytes(tag::PROCESS, || {
            // SAFETY: these calls have no preconditions.
            let (pid, parent) = unsafe { (libc::getpid(), libc::getppid()) };
            let facts = [pid.to_le_bytes(), parent.to_le_bytes()].concat();
            (0, facts)
        })?;
        let fact = |at: usize| {
            let bytes = facts
                .get(at..at + 4)
                .and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, i32::from_le_bytes)
        };
        let process = &mut self.kernel.process;
        process.pid = fact(0);
        process.parent = fact(4);
        let mappings = self.space.mappings();
        let mappings = mappings.map(|(range, mapping)| (range, mapping.clone()));
        process.vfork_parent = line.map(|line| Borrowed {
            line,
            mappings: (flags & SHARES_MEMORY != 0).then(|| mappings.collect()),
        });
        process.threads = 1;
        process.children.clear();
        self.kernel.futexes = Default::default();
        self.kernel.shared_memory.after_fork();
        if self.io.is_live() {
            self.own_host_sets();
            self.leave_observers_behind();
        }
        self.kernel.signals.after_fork();
        self.kernel.timers.after_fork();
        self.keep_only_current(1);
        self.start_books();
        self.set_processor_limit();
        let pid = self.kernel.process.pid;
        let regs = self.regs();
        regs.gpr[reg::RAX] = 0;
        if stack != 0 {
            regs.gpr[reg::RSP] = stack;
        }
        if flags & libc::CLONE_SETTLS as u64 != 0 {
            regs.fs_base = tls;
        }
        let current = self.current;
        if let Some(thread) = self.threads.get_mut(&current) {
            thread.tid = pid;
            thread.robust_list = 0;
            thread.clear_child_tid = 0;
            thread.signals.pending = Default::default();
            if flags & libc::CLONE_CHILD_CLEARTID as u64 != 0 {
                thread.clear_child_tid = child_tid;
            }
        }
        if flags & libc::CLONE_CHILD_SETTID as u64 != 0 {
            memory::put(child_tid, pid)?;
        }
        Err(Halt::Forked)
    }

    /// The recording of process `number` takes the place of the parent's.
    fn open_streams(&mut self, number: u32) -> Result<(), Error> {
        let Some(tree) = &mut self.tree else {
            return Ok(());
        };
        let parent = std::mem::replace(&mut tree.number, number);
        let folder = tree.folder();
        match (&mut self.io, &mut self.pace) {
            (Io::Record { inputs, files }, Pace::Policy { steps, .. }) => {
                crate::record::create_folder(&folder)?;
                *inputs = InputWriter::create(&folder.join("inputs"))?;
                *files = Files::create(&tree.directory, number);
                *steps = Some(StepWriter::create(&folder.join("schedule"))?);
                ProcessFacts { number, parent }.write(&folder)?;
            }
            (Io::Replay { inputs, files, .. }, Pace::Follow(steps)) => {
                let begun = |stream: &str| {
                    let opened = folder.join(stream).open(folder::STREAM);
                    let facts = opened.and_then(|file| file.metadata());
                    // What is no stream says so when it is opened.
                    facts.map_or_else(
                        |error| error.kind() != std::io::ErrorKind::NotFound,
                        |facts| facts.len() > 0,
                    )
                };
                // It was killed before it had begun.
                if !begun("inputs") || !begun("schedule") {
                    return Err(RecordError::Ended(folder.path()).into());
                }
                *inputs = InputReader::open(&folder.join("inputs"))?;
                *files = Files::open(&tree.directory, number)?;
                steps.go_on_as(number, &folder)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The parent of a vfork waits for the child's exec or exit.
    fn await_vfork(&mut self) -> Outcome {
        let current = self.current;
        let Some(Vforked { pid, line }) = self
            .threads
            .get_mut(&current)
            .and_then(|thread| thread.vforked.as_mut())
        else {
            return Err(Halt::Errno(libc::EAGAIN));
        };
        let pid = *pid;
        let descriptor = line.as_ref().map_or(-1, |line| line.as_raw_fd());
        let (result, told) = self.io.external_bytes(libc::SYS_vfork as u32, || {
            if descriptor < 0 {
                return (0, Vec::new());
            }
            match vforked::receive(descriptor) {
                Some(told) => (0, told),
                None => (super::file::WOULD_BLOCK, Vec::new()),
            }
        })?;
        if result == super::file::WOULD_BLOCK {
            return Err(Halt::Block(Wait {
                on: WaitOn::Host(vec![HostInterest {
                    fd: descriptor,
                    events: libc::POLLIN,
                }]),
                deadline: None,
            }));
        }
        self.take_over(&told)?;
        if let Some(thread) = self.threads.get_mut(&current) {
            thread.vforked = None;
        }
        Ok(i64::from(pid))
    }

    /// The child of a vfork executes a program or exits: its parent goes on.
    /// A child that exits hands over what it did to the shared memory.
    pub(crate) fn release_vfork_parent(&mut self, exits: bool) {
        if let Some(borrowed) = self.kernel.process.vfork_parent.take()
            && let Some(mappings) = borrowed.mappings.filter(|_| exits)
        {
            self.hand_over(borrowed.line.as_raw_fd(), &mappings);
        }
    }

    pub(super) fn sys_wait4(&mut self, call: &mut Call) -> Outcome {
        let [pid, status, options, usage, ..] = call.arguments;
        let mut bytes = [0u8; 4 + 144];
        let (result, facts) = self.io.external_bytes(libc::SYS_wait4 as u32, || {
            let arguments = [
                pid,
                bytes.as_mut_ptr() as u64,
                options | libc::WNOHANG as u64,
                bytes[4..].as_mut_ptr() as u64,
                0,
                0,
            ];
            // SAFETY: out-parameters are buffers of ours of sufficient size.
            let result = unsafe { host::syscall(libc::SYS_wait4, arguments) };
            let facts = if result > 0 {
                bytes.to_vec()
            } else {
                Vec::new()
            };
            (result, facts)
        })?;
        if result == 0 && options as i32 & libc::WNOHANG == 0 {
            return self.wait_for_child();
        }
        if result > 0 && facts.len() == bytes.len() {
            let state = i32::from_le_bytes([facts[0], facts[1], facts[2], facts[3]]);
            if libc::WIFEXITED(state) || libc::WIFSIGNALED(state) {
                self.kernel.process.children.remove(&(result as i32));
            }
            if status != 0 {
                memory::write(status, &facts[..4])?;
            }
            if usage != 0 {
                memory::write(usage, &facts[4..])?;
            }
        }
        Ok(result)
    }

    fn wait_for_child(&self) -> Outcome {
        Err(Halt::Block(Wait {
            on: WaitOn::Child,
            deadline: None,
        }))
    }

    pub(super) fn sys_waitid(&mut self, call: &mut Call) -> Outcome {
        let [kind, mut id, info, options, usage, _] = call.arguments;
        if kind as u32 == libc::P_PIDFD {
            id = self.host_only(id as i32, libc::EBADF)?.number as u64;
        }
        let mut bytes = [0u8; 128 + 144];
        let (result, facts) = self.io.external_bytes(libc::SYS_waitid as u32, || {
            let arguments = [
                kind,
                id,
                bytes.as_mut_ptr() as u64,
                options | libc::WNOHANG as u64,
                bytes[128..].as_mut_ptr() as u64,
                0,
            ];
            // SAFETY: out-parameters are buffers of ours of sufficient size.
            let result = unsafe { host::syscall(libc::SYS_waitid, arguments) };
            let facts = if result == 0 {
                bytes.to_vec()
            } else {
                Vec::new()
            };
            (result, facts)
        })?;
        if result < 0 || facts.len() != bytes.len() {
            return Ok(result);
        }
        // No signal number: no child has changed state.
        if facts[..4] == [0; 4] && options as i32 & libc::WNOHANG == 0 {
            return self.wait_for_child();
        }
        let told = super::signal::SignalInfo::from_recorded(&facts[..128]);
        let gone = [libc::CLD_EXITED, libc::CLD_KILLED, libc::CLD_DUMPED].contains(&told.code());
        if gone && options as i32 & libc::WNOWAIT == 0 {
            self.kernel.process.children.remove(&told.sender());
        }
        if info != 0 {
            memory::write(info, &facts[..128])?;
        }
        if usage != 0 {
            memory::write(usage, &facts[128..])?;
        }
        Ok(0)
    }
}

/// Whose child a new process is, and how its end is told.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kinship(u64);

impl Kinship {
    const OWN_CHILD: Kinship = Kinship(libc::SIGCHLD as u64);

    /// As the flags of clone say it: a signal, and CLONE_PARENT.
    fn of(flags: u64) -> Kinship {
        Kinship(flags & (0xff | libc::CLONE_PARENT as u64))
    }
}

/// Forks this process; the kernel's convention for errors.
fn host_fork(kinship: Kinship) -> i64 {
    // A child inherits no pending signals, but keeps those sent to itself.
    host_signals::held(|| {
        let pid = if kinship == Kinship::OWN_CHILD {
            // SAFETY: the vm has one thread, so the child finds every lock free.
            match unsafe { libc::fork() } {
                -1 => -i64::from(
                    std::io::Error::last_os_error()
                        .raw_os_error()
                        .unwrap_or(libc::EAGAIN),
                ),
                pid => i64::from(pid),
            }
        } else {
            // SAFETY: as fork, without the handlers that the C library runs at
            // one: nobody here has registered any.
            unsafe { host::syscall(libc::SYS_clone, [kinship.0, 0, 0, 0, 0, 0]) }
        };
        if pid == 0 {
            host_signals::forget();
        }
        pid
    })
}

/// A line from a vfork child (second) to its parent (first).
fn line() -> Option<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors, owned by nobody else afterwards. Far
    // from the numbers a program might be confused by.
    unsafe {
        if libc::socketpair(
            libc::AF_UNIX,
            libc::SOCK_STREAM | libc::SOCK_CLOEXEC,
            0,
            ends.as_mut_ptr(),
        ) != 0
        {
            return None;
        }
        Some((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

impl Vm {
    /// Before a host write to `fd`: while recording, keeps other processes from
    /// writing to the standard streams until it is dropped, so that writes have
    /// the order of their numbers. Nothing that waits may be done meanwhile.
    pub(super) fn lock_output(&self, fd: i32) -> Option<OutputLock> {
        if !self.io.is_live() {
            return None;
        }
        let tree = self.tree.as_ref().filter(|tree| tree.ordered)?;
        self.standard_stream(fd)?;
        tree.lock_output()
    }

    /// While recording: the number of a write to a standard stream that other
    /// processes write to as well. `None` where there are none.
    pub(super) fn order_output(&mut self) -> Result<Option<u64>, Error> {
        let Some(tree) = self.tree.as_ref().filter(|tree| tree.ordered) else {
            return Ok(None);
        };
        let number = self
            .io
            .external(tag::ORDER, || (tree.next_write() as i64, Vec::new()))?;
        // Others have seen it: it must be in the recording, whoever kills us.
        self.flush_soon();
        // Others would wait for ever for one that comes before all.
        let number = u64::try_from(number).map_err(|_| {
            crate::Divergence::new(format!("the recording has a write with number {number}"))
        })?;
        Ok(Some(number))
    }

    pub(super) fn shows_output(&self) -> bool {
        !self.muted && self.tree.as_ref().is_none_or(|tree| tree.shows_output())
    }

    pub(super) fn await_turn(&mut self, write: Option<u64>) -> Result<(), Error> {
        match (&self.tree, write) {
            (Some(tree), Some(write)) if !tree.await_turn(write) => Err(Error::ProcessFailed),
            _ => Ok(()),
        }
    }

    pub(super) fn had_turn(&mut self, write: Option<u64>) {
        if let (Some(tree), Some(write)) = (&self.tree, write) {
            tree.had_turn(write);
        }
    }
}
