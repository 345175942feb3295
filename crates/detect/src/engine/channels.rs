//! Descriptors, message queues, semaphores and signals as channels: what a
//! thread did before it sent, wrote or closed happens before what another does
//! after it received, read, met the end, or was told that something is ready
//! (rule 2).
//!
//! One channel per pipe, socket pair, event counter and queue, one for all other
//! sockets (who is connected to whom may be decided outside): sometimes too much
//! order, never too little; and one for signals. The number of a socket is a
//! channel as well: it is given out again only after it was closed, and servers
//! keep what belongs to a connection in tables by that number. A file is a
//! channel by its name: writing, making, renaming or closing it sends, opening
//! and reading it receive. Devices and `/proc` are none.

use super::{Checker, Engine, Thread};
use crate::clock::VectorClock;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use vm::memory;
use vm::observe::SyscallEvent;

/// Which descriptors carry order between threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KernelEdges {
    /// Pipes, sockets, event counters, queues, semaphores.
    #[default]
    All,
    /// All but sockets that were not made as a pair: their other end may be
    /// another program.
    Inside,
    /// None.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Channel {
    /// Made by the program: pipes, socket pairs, event counters.
    Made(u64),
    Sockets,
    /// A file of this name.
    File(u64),
    /// A socket's number.
    Number(u64),
    Semaphores(u64),
    Messages(u64),
    /// What is done before a signal is sent, or its handler installed, happens
    /// before the handler runs and before what a wait for it returns to.
    Signals,
}

#[derive(Debug, Default)]
pub(super) struct Channels {
    pub(super) edges: KernelEdges,
    by_descriptor: FxHashMap<u64, Channel>,
    clocks: FxHashMap<Channel, VectorClock>,
    made: u64,
    /// Numbers of files: the folder they were named in (none for the current
    /// one) and the name.
    files: FxHashMap<(Option<u64>, Vec<u8>), u64>,
    /// What the user data of an epoll instance stands for: instance, data,
    /// descriptor.
    watched: BTreeSet<(u64, u64, u64)>,
    /// The data of a descriptor in an epoll instance.
    data: FxHashMap<(u64, u64), u64>,
}

impl Channels {
    fn draws(&self, channel: Channel) -> bool {
        match self.edges {
            KernelEdges::All => true,
            KernelEdges::Inside => channel != Channel::Sockets,
            KernelEdges::None => channel == Channel::Signals,
        }
    }

    fn send(&mut self, channel: Channel, thread: &mut Thread) {
        if self.draws(channel) {
            self.clocks.entry(channel).or_default().join(&thread.clock);
            thread.advance();
        }
    }

    fn receive(&self, channel: Channel, thread: &mut Thread) {
        if self.draws(channel)
            && let Some(clock) = self.clocks.get(&channel)
        {
            thread.acquire(clock);
        }
    }

    fn send_to(&mut self, descriptor: u64, thread: &mut Thread) {
        if let Some(channel) = self.by_descriptor.get(&descriptor) {
            self.send(*channel, thread);
        }
    }

    fn receive_from(&self, descriptor: u64, thread: &mut Thread) {
        if let Some(channel) = self.by_descriptor.get(&descriptor) {
            self.receive(*channel, thread);
        }
    }

    fn make(&mut self) -> Channel {
        self.made += 1;
        Channel::Made(self.made)
    }

    fn new_socket(&mut self, number: u64, thread: &mut Thread) {
        self.by_descriptor.insert(number, Channel::Sockets);
        self.receive(Channel::Number(number), thread);
    }

    pub(super) fn receive_signal(&self, thread: &mut Thread) {
        self.receive(Channel::Signals, thread);
    }

    /// Two descriptors at `address`: what is written to one is read from the
    /// other.
    fn pair(&mut self, address: u64) {
        let Ok(pair) = memory::get::<[u32; 2]>(address) else {
            return;
        };
        let channel = self.make();
        for descriptor in pair {
            self.by_descriptor.insert(descriptor.into(), channel);
        }
    }

    /// The file of this name; none if what is there is no file.
    fn file(&mut self, folder: Option<u64>, name: u64) -> Option<Channel> {
        let name = memory::read_c_string(name, LONGEST_NAME).ok()?;
        let elsewhere: [&[u8]; 3] = [b"/dev/", b"/proc/", b"/sys/"];
        if elsewhere.iter().any(|start| name.starts_with(start)) {
            return None;
        }
        let folder = folder.filter(|_| !name.starts_with(b"/"));
        let next = self.files.len() as u64;
        let number = *self.files.entry((folder, name)).or_insert(next);
        Some(Channel::File(number))
    }

    /// A file was opened: what it has was written before, and that it is there
    /// may say something by itself.
    fn open(&mut self, file: Option<Channel>, made: bool, number: u64, thread: &mut Thread) {
        let Some(file) = file else {
            self.by_descriptor.remove(&number);
            return;
        };
        self.receive(file, thread);
        if made {
            self.send(file, thread);
        }
        self.by_descriptor.insert(number, file);
    }

    fn rename(&mut self, from: Option<Channel>, to: Option<Channel>, thread: &mut Thread) {
        let (Some(from), Some(to)) = (from, to) else {
            return;
        };
        // Who has written it under its first name is known as well.
        if let Some(clock) = self.clocks.get(&from).cloned() {
            self.clocks.entry(to).or_default().join(&clock);
        }
        self.send(to, thread);
    }

    fn duplicate(&mut self, from: u64, to: u64) {
        match self.by_descriptor.get(&from).copied() {
            Some(channel) => {
                self.by_descriptor.insert(to, channel);
            }
            None => {
                self.by_descriptor.remove(&to);
            }
        }
    }

    /// Whoever reads at the other end sees the end, and whoever is given the
    /// number next comes after.
    fn close(&mut self, number: u64, thread: &mut Thread) {
        let Some(channel) = self.by_descriptor.remove(&number) else {
            return;
        };
        self.send(channel, thread);
        if channel == Channel::Sockets {
            self.send(Channel::Number(number), thread);
        }
    }

    fn watch(&mut self, [instance, operation, descriptor, event, ..]: [u64; 6]) {
        let key = (instance, descriptor);
        if let Some(data) = self.data.remove(&key) {
            self.watched.remove(&(instance, data, descriptor));
        }
        // struct epoll_event is packed: the data follows four bytes of events.
        if operation as i32 != libc::EPOLL_CTL_DEL
            && let Ok(data) = memory::get::<u64>(event.wrapping_add(4))
        {
            self.data.insert(key, data);
            self.watched.insert((instance, data, descriptor));
        }
    }

    /// Events of an epoll instance were told to the thread.
    fn ready(&self, instance: u64, events: u64, count: u64, thread: &mut Thread) {
        self.receive_from(instance, thread);
        for index in 0..count {
            let Ok(data) = memory::get::<u64>(events + 12 * index + 4) else {
                return;
            };
            let those = (instance, data, 0)..=(instance, data, u64::MAX);
            for (_, _, descriptor) in self.watched.range(those) {
                self.receive_from(*descriptor, thread);
            }
        }
    }

    /// The `revents` of a `poll`.
    fn polled(&self, list: u64, count: u64, thread: &mut Thread) {
        for index in 0..count.min(MOST_POLLED) {
            let Ok([descriptor, events]) = memory::get::<[u32; 2]>(list + 8 * index) else {
                return;
            };
            if events >> 16 != 0 {
                self.receive_from(descriptor.into(), thread);
            }
        }
    }

    /// The sets that a `select` left.
    fn selected(&self, count: u64, sets: [u64; 3], thread: &mut Thread) {
        for set in sets.into_iter().filter(|set| *set != 0) {
            for word in 0..count.min(MOST_POLLED).div_ceil(64) {
                let mut bits = memory::get::<u64>(set + 8 * word).unwrap_or(0);
                while bits != 0 {
                    let bit = u64::from(bits.trailing_zeros());
                    bits &= bits - 1;
                    self.receive_from(64 * word + bit, thread);
                }
            }
        }
    }

    /// A `semop`: raising a semaphore sends, lowering and waiting for zero
    /// receive.
    fn semaphores(&mut self, set: u64, operations: u64, count: u64, thread: &mut Thread) {
        let mut raises = false;
        for index in 0..count.min(MOST_POLLED) {
            // struct sembuf: number, operation, flags, two bytes each.
            let operation = memory::get::<u16>(operations + 6 * index + 2).unwrap_or(0) as i16;
            raises |= operation > 0;
            if operation <= 0 {
                self.receive(Channel::Semaphores(set), thread);
            }
        }
        if raises {
            self.send(Channel::Semaphores(set), thread);
        }
    }
}

/// The folder that a name is relative to; none for the current one.
fn folder(descriptor: u64) -> Option<u64> {
    (descriptor as i32 != libc::AT_FDCWD).then_some(descriptor)
}

/// PATH_MAX.
const LONGEST_NAME: usize = 4096;

/// No list of a poll, select or semop is longer.
const MOST_POLLED: u64 = 1 << 20;

impl<C: Checker> Engine<C> {
    /// What a call that waits has sent can be received.
    pub(super) fn send_and_wait(&mut self, event: &SyscallEvent, thread: &mut Thread) {
        let descriptor = match event.number as i64 {
            libc::SYS_splice => event.arguments[2],
            _ if sends(event.number) => event.arguments[0],
            _ => return,
        };
        self.channels.send_to(descriptor, thread);
    }

    /// Sends and receives by this system call.
    pub(super) fn pass_channels(&mut self, event: &SyscallEvent, thread: &mut Thread) {
        let [first, second, third, fourth, ..] = event.arguments;
        let channels = &mut self.channels;
        // A connection that is being made can be accepted.
        let connecting = event.number as i64 == libc::SYS_connect
            && event.result == -i64::from(libc::EINPROGRESS);
        if event.result < 0 && !connecting {
            return;
        }
        let result = event.result as u64;
        if sends(event.number) {
            channels.send_to(first, thread);
        }
        match event.number as i64 {
            libc::SYS_open => {
                let file = channels.file(None, first);
                channels.open(file, second as i32 & libc::O_CREAT != 0, result, thread);
            }
            libc::SYS_creat => {
                let file = channels.file(None, first);
                channels.open(file, true, result, thread);
            }
            libc::SYS_openat => {
                let file = channels.file(folder(first), second);
                channels.open(file, third as i32 & libc::O_CREAT != 0, result, thread);
            }
            libc::SYS_rename => {
                let (from, to) = (channels.file(None, first), channels.file(None, second));
                channels.rename(from, to, thread);
            }
            libc::SYS_renameat | libc::SYS_renameat2 => {
                let from = channels.file(folder(first), second);
                let to = channels.file(folder(third), fourth);
                channels.rename(from, to, thread);
            }
            libc::SYS_pipe | libc::SYS_pipe2 => channels.pair(first),
            libc::SYS_socketpair => channels.pair(fourth),
            libc::SYS_socket => channels.new_socket(result, thread),
            libc::SYS_accept | libc::SYS_accept4 => {
                channels.new_socket(result, thread);
                channels.receive_from(first, thread);
            }
            libc::SYS_connect => channels.receive_from(first, thread),
            libc::SYS_eventfd
            | libc::SYS_eventfd2
            | libc::SYS_epoll_create
            | libc::SYS_epoll_create1
            | libc::SYS_mq_open => {
                let channel = channels.make();
                channels.by_descriptor.insert(result, channel);
            }
            libc::SYS_epoll_ctl => {
                channels.watch(event.arguments);
                channels.send_to(first, thread);
            }
            libc::SYS_epoll_wait | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 if result > 0 => {
                channels.ready(first, second, result, thread);
            }
            libc::SYS_poll | libc::SYS_ppoll if result > 0 => {
                channels.polled(first, second, thread);
            }
            libc::SYS_select | libc::SYS_pselect6 if result > 0 => {
                channels.selected(first, [second, third, fourth], thread);
            }
            libc::SYS_dup => channels.duplicate(first, result),
            libc::SYS_dup2 | libc::SYS_dup3 if result != first => {
                channels.close(result, thread);
                channels.duplicate(first, result);
            }
            libc::SYS_fcntl if matches!(second as i32, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) => {
                channels.duplicate(first, result);
            }
            libc::SYS_close => channels.close(first, thread),
            libc::SYS_read
            | libc::SYS_readv
            | libc::SYS_pread64
            | libc::SYS_preadv
            | libc::SYS_preadv2
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_recvmmsg
            | libc::SYS_mq_timedreceive => channels.receive_from(first, thread),
            libc::SYS_sendfile => channels.receive_from(second, thread),
            libc::SYS_splice => {
                channels.receive_from(first, thread);
                channels.send_to(third, thread);
            }
            libc::SYS_tee => {
                channels.receive_from(first, thread);
                channels.send_to(second, thread);
            }
            libc::SYS_semop | libc::SYS_semtimedop => {
                channels.semaphores(first, second, third, thread);
            }
            // SETVAL raises as well; SETALL and removal are nobody's order.
            libc::SYS_semctl if third as i32 == SETVAL => {
                channels.send(Channel::Semaphores(first), thread);
            }
            libc::SYS_kill
            | libc::SYS_tkill
            | libc::SYS_tgkill
            | libc::SYS_rt_sigqueueinfo
            | libc::SYS_rt_tgsigqueueinfo
            | libc::SYS_pidfd_send_signal => channels.send(Channel::Signals, thread),
            libc::SYS_rt_sigaction if second != 0 => channels.send(Channel::Signals, thread),
            libc::SYS_rt_sigtimedwait => channels.receive_signal(thread),
            libc::SYS_signalfd | libc::SYS_signalfd4 => {
                channels.by_descriptor.insert(result, Channel::Signals);
            }
            libc::SYS_msgsnd => channels.send(Channel::Messages(first), thread),
            libc::SYS_msgrcv => channels.receive(Channel::Messages(first), thread),
            _ => {}
        }
    }
}

/// The call gives something to whoever is at the other end of its first
/// argument.
fn sends(number: u64) -> bool {
    matches!(
        number as i64,
        libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_pwrite64
            | libc::SYS_pwritev
            | libc::SYS_pwritev2
            | libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_sendmmsg
            | libc::SYS_sendfile
            | libc::SYS_vmsplice
            | libc::SYS_mq_timedsend
            | libc::SYS_connect
            | libc::SYS_listen
            | libc::SYS_shutdown
    )
}

/// `semctl`'s command, which libc does not name.
const SETVAL: i32 = 16;
