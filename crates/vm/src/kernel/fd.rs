//! The guest's descriptor table.
//!
//! Descriptor numbers are the guest's own; behind each is a shared description
//! (as in the kernel), behind that an object. Host descriptors exist only
//! while recording: a replay has none. A description that has lost its last
//! reference is put aside and dealt with after the system call (`settle`), so
//! that whoever closes descriptors need not know what hangs on them.

use super::epoll::Epoll;
use super::eventfd::EventCounter;
use super::pipe::PipeEnd;
use super::proc_files::Listing;
use super::socketpair::PairEnd;
use super::timerfd::Timer;
use super::{Halt, Outcome};
use crate::machine::Vm;
use crate::thread::{State, WaitOn};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

pub type DescriptionId = u32;

/// Which file, whatever its name: device and inode.
pub type Identity = [u64; 2];

/// Device and inode as bytes of the recording; nothing if they are not known.
pub fn identity_of(fd: i32) -> Vec<u8> {
    // SAFETY: plain out-parameter.
    let stat = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        if libc::fstat(fd, &mut stat) != 0 {
            return vec![0; 16];
        }
        stat
    };
    [stat.st_dev.to_le_bytes(), stat.st_ino.to_le_bytes()].concat()
}

pub fn identity_from(bytes: &[u8]) -> Option<Identity> {
    let (device, rest) = bytes.split_first_chunk::<8>()?;
    let (inode, _) = rest.split_first_chunk::<8>()?;
    Some([u64::from_le_bytes(*device), u64::from_le_bytes(*inode)])
}

/// Names something inside the vm that threads can wait for.
pub type ObjectId = u64;

/// An open file description.
#[derive(Hash)]
pub struct Description {
    pub object: Object,
    /// O_APPEND, O_NONBLOCK and the access mode.
    pub flags: i32,
    /// Position, where the vm keeps it.
    pub offset: u64,
    /// Some epoll instance has it in its set.
    pub watched: bool,
    references: u32,
}
#[derive(Hash)]
pub enum Object {
    /// Something outside the vm.
    Host(HostFile),
    Pipe(PipeEnd),
    /// One end of a socket pair.
    Pair(PairEnd),
    Event(EventCounter),
    Timer(Timer),
    Epoll(Epoll),
    /// A signalfd for these signals.
    Signals(u64),
    /// A file of /proc as it was when opened.
    Bytes {
        path: PathBuf,
        content: Vec<u8>,
    },
    /// A directory of /proc that shows the guest.
    Listing(Listing),
}

/// What a host descriptor refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Regular,
    Directory,
    Fifo,
    Socket,
    Character,
    Other,
}

impl Kind {
    const ALL: [Kind; 6] = [
        Kind::Regular,
        Kind::Directory,
        Kind::Fifo,
        Kind::Socket,
        Kind::Character,
        Kind::Other,
    ];

    pub fn of(fd: i32) -> Kind {
        // SAFETY: plain out-parameter.
        let mode = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            if libc::fstat(fd, &mut stat) != 0 {
                return Kind::Other;
            }
            stat.st_mode & libc::S_IFMT
        };
        match mode {
            libc::S_IFREG | libc::S_IFBLK => Kind::Regular,
            libc::S_IFDIR => Kind::Directory,
            libc::S_IFIFO => Kind::Fifo,
            libc::S_IFSOCK => Kind::Socket,
            libc::S_IFCHR => Kind::Character,
            _ => Kind::Other,
        }
    }

    /// As a byte of the recording, and back.
    pub fn code(self) -> u8 {
        Self::ALL.iter().position(|kind| *kind == self).unwrap_or(5) as u8
    }

    pub fn from_code(code: u8) -> Kind {
        Self::ALL
            .get(usize::from(code))
            .copied()
            .unwrap_or(Kind::Other)
    }
}

pub struct HostFile {
    /// None while replaying.
    pub fd: Option<OwnedFd>,
    pub kind: Kind,
    /// Device and inode of a regular file the guest opened.
    pub identity: Option<Identity>,
    /// Where it was opened, if it has a path.
    pub path: Option<PathBuf>,
    /// It shows the memory of this process, which opened it as its own.
    pub memory_of: Option<i32>,
    /// Inherited as this standard stream; a replay shows its output.
    pub standard_stream: Option<i32>,
    /// A regular file whose position the vm keeps; others are streams or
    /// share their position with another process.
    pub positioned: bool,
    /// How long a receive or a send waits (SO_RCVTIMEO, SO_SNDTIMEO), in
    /// nanoseconds.
    pub timeouts: [Option<u64>; 2],
    /// A connection is being made.
    pub connecting: bool,
    /// Which stream it is, by how it came to be, the same in every copy of the
    /// world; 0 if its path says so.
    pub stream: u64,
}

impl Hash for HostFile {
    /// What it is and how it came to be: the host's own number says nothing.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let HostFile {
            fd,
            kind,
            identity,
            path,
            memory_of,
            standard_stream,
            positioned,
            timeouts,
            connecting,
            stream,
        } = self;
        (fd.is_some(), kind, identity, path, memory_of).hash(state);
        (standard_stream, positioned, timeouts, connecting, stream).hash(state);
    }
}

impl HostFile {
    pub fn new(fd: Option<OwnedFd>, kind: Kind) -> Self {
        HostFile {
            fd,
            kind,
            identity: None,
            path: None,
            memory_of: None,
            standard_stream: None,
            positioned: false,
            timeouts: [None; 2],
            connecting: false,
            stream: 0,
        }
    }

    /// The host's number; -1 while replaying, where it is never used.
    pub fn number(&self) -> i32 {
        self.fd.as_ref().map_or(-1, |fd| fd.as_raw_fd())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Entry {
    description: DescriptionId,
    close_on_exec: bool,
}
#[derive(Hash)]
pub struct Descriptors {
    table: BTreeMap<i32, Entry>,
    descriptions: BTreeMap<DescriptionId, Description>,
    next: DescriptionId,
    next_object: ObjectId,
    /// RLIMIT_NOFILE.
    pub limit: i32,
    /// Descriptions without references, not dealt with yet.
    closed: Vec<(DescriptionId, Description)>,
    /// What the blocked threads wait for, inside the vm.
    interests: BTreeMap<u32, Vec<ObjectId>>,
}

/// Most descriptors a process may have, whatever its limit says.
const LIMIT: i32 = 1 << 20;

impl Default for Descriptors {
    fn default() -> Self {
        Descriptors {
            table: BTreeMap::new(),
            descriptions: BTreeMap::new(),
            next: 0,
            next_object: 1,
            limit: LIMIT,
            closed: Vec::new(),
            interests: BTreeMap::new(),
        }
    }
}

impl Descriptors {
    /// A name for a new thing inside the vm.
    pub fn new_object(&mut self) -> ObjectId {
        self.next_object += 1;
        self.next_object - 1
    }

    /// Opens a new description at the lowest free number from `from` on.
    pub fn open(
        &mut self,
        from: i32,
        object: Object,
        flags: i32,
        close_on_exec: bool,
    ) -> Result<i32, Halt> {
        let fd = self.lowest_free(from)?;
        let id = self.describe(object, flags);
        self.install(fd, id, close_on_exec);
        Ok(fd)
    }

    /// A description that no number refers to yet.
    pub fn describe(&mut self, object: Object, flags: i32) -> DescriptionId {
        let id = self.next;
        self.next += 1;
        self.descriptions.insert(
            id,
            Description {
                object,
                flags,
                offset: 0,
                watched: false,
                references: 0,
            },
        );
        id
    }

    /// Fails with EMFILE if `count` more descriptors would not fit.
    pub fn room_for(&self, count: usize) -> Result<(), Halt> {
        if self.table.len() + count <= self.limit.max(0) as usize {
            Ok(())
        } else {
            Err(Halt::Errno(libc::EMFILE))
        }
    }

    fn lowest_free(&self, from: i32) -> Result<i32, Halt> {
        let mut candidate = from;
        for fd in self.table.range(from..).map(|(fd, _)| *fd) {
            if fd != candidate {
                break;
            }
            candidate += 1;
        }
        if candidate < self.limit.min(LIMIT) {
            Ok(candidate)
        } else {
            Err(Halt::Errno(libc::EMFILE))
        }
    }

    /// A number for a description that exists.
    pub fn install_new(
        &mut self,
        description: DescriptionId,
        close_on_exec: bool,
    ) -> Result<i32, Halt> {
        let fd = self.lowest_free(0)?;
        self.install(fd, description, close_on_exec);
        Ok(fd)
    }

    fn install(&mut self, fd: i32, description: DescriptionId, close_on_exec: bool) {
        let entry = Entry {
            description,
            close_on_exec,
        };
        self.hold(description);
        if let Some(old) = self.table.insert(fd, entry) {
            self.release(old.description);
        }
    }

    /// Keeps a description alive (a message in flight carries it).
    pub fn hold(&mut self, id: DescriptionId) {
        if let Some(description) = self.descriptions.get_mut(&id) {
            description.references += 1;
        }
    }

    pub fn release(&mut self, id: DescriptionId) {
        if let Some(description) = self.descriptions.get_mut(&id) {
            description.references = description.references.saturating_sub(1);
            if description.references == 0
                && let Some(description) = self.descriptions.remove(&id)
            {
                self.closed.push((id, description));
            }
        }
    }

    fn entry(&self, fd: i32) -> Result<Entry, Halt> {
        self.table.get(&fd).copied().ok_or(Halt::Errno(libc::EBADF))
    }

    pub fn id(&self, fd: i32) -> Result<DescriptionId, Halt> {
        Ok(self.entry(fd)?.description)
    }

    pub fn get(&mut self, fd: i32) -> Result<&mut Description, Halt> {
        let id = self.entry(fd)?.description;
        self.by_id(id)
    }

    pub fn by_id(&mut self, id: DescriptionId) -> Result<&mut Description, Halt> {
        self.descriptions
            .get_mut(&id)
            .ok_or(Halt::Errno(libc::EBADF))
    }

    pub fn peek(&self, id: DescriptionId) -> Option<&Description> {
        self.descriptions.get(&id)
    }

    pub fn peek_fd(&self, fd: i32) -> Option<&Description> {
        self.descriptions.get(&self.table.get(&fd)?.description)
    }

    /// Every descriptor number in use, ascending.
    pub fn numbers(&self) -> impl Iterator<Item = i32> + '_ {
        self.table.keys().copied()
    }

    /// Every description with its id.
    pub fn all(&mut self) -> impl Iterator<Item = (DescriptionId, &mut Description)> {
        self.descriptions
            .iter_mut()
            .map(|(id, description)| (*id, description))
    }

    pub fn close(&mut self, fd: i32) -> Result<(), Halt> {
        let entry = self.table.remove(&fd).ok_or(Halt::Errno(libc::EBADF))?;
        self.release(entry.description);
        Ok(())
    }

    /// What an exec does to the table.
    pub fn close_on_exec_all(&mut self) {
        let numbers: Vec<i32> = self
            .table
            .iter()
            .filter(|(_, entry)| entry.close_on_exec)
            .map(|(fd, _)| *fd)
            .collect();
        for fd in numbers {
            // The number was just in the table.
            let _ = self.close(fd);
        }
    }

    /// A second number for the same description.
    pub fn duplicate(&mut self, fd: i32, from: i32, close_on_exec: bool) -> Outcome {
        let id = self.entry(fd)?.description;
        let new = self.lowest_free(from)?;
        self.install(new, id, close_on_exec);
        Ok(i64::from(new))
    }

    pub fn duplicate_to(&mut self, fd: i32, to: i32, close_on_exec: bool) -> Outcome {
        let id = self.entry(fd)?.description;
        if !(0..self.limit.min(LIMIT)).contains(&to) {
            return Err(Halt::Errno(libc::EBADF));
        }
        self.install(to, id, close_on_exec);
        Ok(i64::from(to))
    }

    pub fn close_on_exec(&self, fd: i32) -> Result<bool, Halt> {
        Ok(self.entry(fd)?.close_on_exec)
    }

    pub fn set_close_on_exec(&mut self, fd: i32, value: bool) -> Result<(), Halt> {
        let entry = self.table.get_mut(&fd).ok_or(Halt::Errno(libc::EBADF))?;
        entry.close_on_exec = value;
        Ok(())
    }

    pub fn take_closed(&mut self) -> Vec<(DescriptionId, Description)> {
        std::mem::take(&mut self.closed)
    }

    /// Notes what `thread` is about to wait for inside the vm.
    pub fn wait_for(&mut self, thread: u32, objects: Vec<ObjectId>) {
        self.interests.insert(thread, objects);
    }

    fn waiting_for(&mut self, object: ObjectId) -> Vec<u32> {
        self.interests
            .iter()
            .filter(|(_, objects)| objects.contains(&object))
            .map(|(thread, _)| *thread)
            .collect()
    }

    pub fn stop_waiting(&mut self, thread: u32) {
        self.interests.remove(&thread);
    }
}

/// A host descriptor as a call needs it.
#[derive(Debug, Clone, Copy)]
pub struct HostUse {
    /// -1 while replaying.
    pub number: i32,
    pub kind: Kind,
    pub positioned: bool,
    pub offset: u64,
    pub flags: i32,
}

impl HostUse {
    pub fn blocking(&self) -> bool {
        self.flags & libc::O_NONBLOCK == 0
    }
}

impl Vm {
    /// The host descriptor behind a guest's; None for things inside the vm.
    pub(super) fn host_use(&mut self, fd: i32) -> Result<Option<HostUse>, Halt> {
        let description = self.kernel.fds.get(fd)?;
        let Object::Host(file) = &description.object else {
            return Ok(None);
        };
        Ok(Some(HostUse {
            number: file.number(),
            kind: file.kind,
            positioned: file.positioned,
            offset: description.offset,
            flags: description.flags,
        }))
    }

    /// Like `host_use`, for calls that only make sense outside: `errno` for
    /// the rest.
    pub(super) fn host_only(&mut self, fd: i32, errno: i32) -> Result<HostUse, Halt> {
        self.host_use(fd)?.ok_or(Halt::Errno(errno))
    }

    /// Something inside the vm has changed: whoever waits for it looks again.
    pub(crate) fn wake_objects(&mut self, object: ObjectId) {
        for thread in self.kernel.fds.waiting_for(object) {
            if let Some(thread) = self.threads.get_mut(&thread)
                && let State::Blocked(wait) = &thread.state
                && matches!(wait.on, WaitOn::Objects | WaitOn::Host(_))
            {
                thread.state = State::Runnable;
            }
        }
    }

    /// Deals with descriptions nobody refers to any more.
    pub(super) fn settle(&mut self) {
        loop {
            let closed = self.kernel.fds.take_closed();
            if closed.is_empty() {
                return;
            }
            for (id, description) in closed {
                if description.watched {
                    self.forget_watched(id, &description);
                }
                match description.object {
                    Object::Pipe(end) => self.close_pipe(&end),
                    Object::Pair(end) => self.close_pair(&end),
                    Object::Host(file) => self.close_host(file),
                    Object::Epoll(epoll) => self.wake_objects(epoll.id),
                    Object::Event(_)
                    | Object::Timer(_)
                    | Object::Signals(_)
                    | Object::Bytes { .. }
                    | Object::Listing(_) => {}
                }
            }
        }
    }

    fn close_host(&mut self, file: HostFile) {
        if let Some(stream) = file.standard_stream
            && file.fd.is_some()
        {
            // The vm's own copy must go as well, or a reader at the other end
            // would wait for the vm.
            // SAFETY: replacing one of the vm's standard streams by
            // /dev/null; failure leaves it as it was.
            unsafe {
                let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
                if null >= 0 {
                    libc::dup2(null, stream);
                    libc::close(null);
                }
            }
        }
    }

    /// The descriptors the guest inherits: the ones this process was started
    /// with, less the vm's own (which all close on exec).
    pub(crate) fn inherit_descriptors(&mut self) -> Result<(), crate::Error> {
        let mut opened = Vec::new();
        let (_, facts) = self.io.external_bytes(crate::io::tag::PROCESS, || {
            let mut facts = Vec::new();
            for number in inherited_numbers() {
                // SAFETY: duplicating a descriptor; failure means it is closed.
                let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 64) };
                if copy < 0 {
                    continue;
                }
                // SAFETY: just made, owned by nobody else; the other calls
                // have no preconditions.
                let (fd, flags) = unsafe {
                    let flags = libc::fcntl(number, libc::F_GETFL);
                    if number > 2 {
                        libc::close(number);
                    }
                    (OwnedFd::from_raw_fd(copy), flags)
                };
                let path = std::fs::read_link(format!("/proc/self/fd/{copy}")).unwrap_or_default();
                let path = path.as_os_str().as_encoded_bytes();
                facts.extend_from_slice(&number.to_le_bytes());
                facts.extend_from_slice(&flags.to_le_bytes());
                facts.push(Kind::of(copy).code());
                facts.extend_from_slice(&(path.len() as u32).to_le_bytes());
                facts.extend_from_slice(path);
                opened.push(fd);
            }
            (0, facts)
        })?;
        let mut opened = opened.into_iter();
        let mut facts = facts.as_slice();
        while facts.len() >= 13 {
            let word = |at: usize| {
                i32::from_le_bytes([facts[at], facts[at + 1], facts[at + 2], facts[at + 3]])
            };
            let (number, flags, kind, length) = (word(0), word(4), facts[8], word(9) as usize);
            let path = facts.get(13..13 + length).unwrap_or_default().to_vec();
            facts = facts.get(13 + length..).unwrap_or_default();
            let mut file = HostFile::new(opened.next(), Kind::from_code(kind));
            file.standard_stream = (0..3).contains(&number).then_some(number);
            file.stream = crate::copy::stream_key(&[b"inherited", &number.to_le_bytes()]);
            file.path = super::path::real_path(path);
            let id = self.kernel.fds.describe(Object::Host(file), flags);
            self.kernel.fds.install(number, id, false);
        }
        Ok(())
    }

    /// Before a guest fork, an exec or the passing of a descriptor: what lives
    /// inside the vm becomes a host object, and regular files keep their
    /// position on the host, because another process is going to share them.
    pub(crate) fn externalise(&mut self) -> Result<(), Halt> {
        let ids: Vec<DescriptionId> = self.kernel.fds.all().map(|(id, _)| id).collect();
        for id in ids {
            self.externalise_one(id)?;
        }
        self.externalise_watched()
    }

    pub(super) fn externalise_one(&mut self, id: DescriptionId) -> Result<(), Halt> {
        let description = self.kernel.fds.by_id(id)?;
        match &mut description.object {
            Object::Host(file) => {
                if file.positioned {
                    file.positioned = false;
                    let (number, offset) = (file.number(), description.offset);
                    if self.io.is_live() {
                        // SAFETY: moving the position of a file the vm opened.
                        unsafe { libc::lseek(number, offset as i64, libc::SEEK_SET) };
                    }
                }
                Ok(())
            }
            Object::Pipe(_) => self.externalise_pipe(id),
            Object::Pair(_) => self.externalise_pair(id),
            Object::Event(_) => self.externalise_event(id),
            Object::Timer(_) => self.externalise_timer(id),
            // The host's side of an epoll set exists from its creation; the
            // set itself moves in `externalise_watched`.
            Object::Epoll(_) | Object::Signals(_) | Object::Bytes { .. } | Object::Listing(_) => {
                Ok(())
            }
        }
    }
}

/// Numbers of the descriptors that came with this process's exec.
fn inherited_numbers() -> Vec<i32> {
    let mut numbers: Vec<i32> = std::fs::read_dir("/proc/self/fd")
        .map(|entries| {
            entries
                .flatten()
                .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
                .filter(|number| {
                    // SAFETY: no preconditions; fails for a number not open.
                    let flags = unsafe { libc::fcntl(*number, libc::F_GETFD) };
                    flags >= 0 && flags & libc::FD_CLOEXEC == 0
                })
                .collect()
        })
        .unwrap_or_else(|_| vec![0, 1, 2]);
    numbers.sort_unstable();
    numbers
}
