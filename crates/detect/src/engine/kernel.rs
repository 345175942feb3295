//! System calls: signals, new threads, and descriptors as things that are used and
//! closed. Descriptors as channels between threads are next door.

use super::{Access, Checker, Engine, Meaning, Thread};
use crate::code::Origin;
use crate::known::Known;
use race::Moment;
use vm::memory;
use vm::observe::SyscallEvent;

impl<C: Checker> Engine<C> {
    /// Edges and facts that system calls give.
    pub(super) fn system_call(&mut self, event: &SyscallEvent, thread: &mut Thread) {
        self.pass_channels(event, thread);
        let [first, second, _, fourth, fifth, _] = event.arguments;
        if event.result < 0 {
            return;
        }
        let result = event.result as u64;
        match event.number as i64 {
            libc::SYS_mmap if fourth as i32 & libc::MAP_STACK != 0 => {
                self.stacks.insert(result, second);
            }
            libc::SYS_mmap if thread.inside > 0 => {
                self.library_maps.insert(result, second);
            }
            libc::SYS_brk if result > 0 => {
                let start = match self.break_area.start {
                    0 => result,
                    start => start.min(result),
                };
                self.break_area = start..self.break_area.end.max(result);
            }
            libc::SYS_clone => self.cloned(second, fifth),
            libc::SYS_clone3 => {
                // struct clone_args: stack, stack_size, tls at 40, 48, 56.
                if let Ok([stack, size, pointer]) = memory::get::<[u64; 3]>(first + 40) {
                    self.cloned(stack.wrapping_add(size), pointer);
                }
            }
            libc::SYS_prctl if first as i32 == libc::PR_SET_NAME => {
                let name = memory::read_c_string(second, 16).unwrap_or_default();
                thread.name = Some(String::from_utf8_lossy(&name).into_owned());
            }
            libc::SYS_rt_sigaction if second != 0 => {
                let handler = memory::get::<u64>(second).unwrap_or(0);
                // SIG_DFL and SIG_IGN are no addresses.
                if handler > 1 && self.code.follow(handler, Known::SignalHandler) {
                    self.more_hooks.push(handler);
                }
            }
            _ => {}
        }
    }

    /// A descriptor that is used by one thread while another closes it may be
    /// somebody else's by then: using it reads it, closing it writes it.
    pub(super) fn use_descriptor(
        &mut self,
        event: &SyscallEvent,
        order: u64,
        thread: &Thread,
        pc: u64,
    ) {
        let first = event.arguments[0];
        let number = event.number as i64;
        if event.result >= 0 {
            let made = event.result as u64;
            match number {
                libc::SYS_open
                | libc::SYS_openat
                | libc::SYS_creat
                | libc::SYS_socket
                | libc::SYS_accept
                | libc::SYS_accept4
                | libc::SYS_eventfd
                | libc::SYS_eventfd2
                | libc::SYS_epoll_create
                | libc::SYS_epoll_create1
                | libc::SYS_timerfd_create
                | libc::SYS_memfd_create => self.new_descriptor(made),
                libc::SYS_dup | libc::SYS_dup3 | libc::SYS_dup2 if made != first => {
                    self.new_descriptor(made);
                }
                libc::SYS_pipe | libc::SYS_pipe2 => {
                    if let Ok([one, other]) = memory::get::<[u32; 2]>(first) {
                        self.new_descriptor(one.into());
                        self.new_descriptor(other.into());
                    }
                }
                _ => {}
            }
        }
        let (used, write) = match number {
            libc::SYS_read
            | libc::SYS_write
            | libc::SYS_readv
            | libc::SYS_writev
            | libc::SYS_pread64
            | libc::SYS_pwrite64
            | libc::SYS_sendto
            | libc::SYS_recvfrom
            | libc::SYS_sendmsg
            | libc::SYS_recvmsg
            | libc::SYS_dup => (first, false),
            libc::SYS_close => (first, true),
            // What had the number is closed, which daemons do to a standard
            // stream in use, and others so that no close can hit a stranger's.
            libc::SYS_dup2 | libc::SYS_dup3 if event.result >= 0 && event.arguments[1] != first => {
                (event.arguments[1], false)
            }
            _ => return,
        };
        if event.result == -i64::from(libc::EBADF) && !write {
            return;
        }
        // A run-time's own threads agree about theirs.
        if used > 0xffff || thread.goroutine.is_some() {
            return;
        }
        if self.code.origin(pc) == Origin::Threading || thread.inside > 0 {
            return;
        }
        let access = Access {
            moment: Moment {
                count: event.moment.count.saturating_sub(1),
                ..event.moment
            },
            order,
            pc: pc.wrapping_sub(2),
            address: descriptor(used),
            size: 8,
            read: !write,
            write,
            meaning: Meaning::Plain,
        };
        self.checker.access(&access, thread, &self.heap);
    }

    pub(super) fn new_descriptor(&mut self, number: u64) {
        let address = descriptor(number);
        self.checker.clear(address..address + 8, &|_| false);
    }

    /// The thread that just started has this stack and thread pointer: its
    /// stack may have been another thread's before.
    pub(super) fn cloned(&mut self, stack_top: u64, pointer: u64) {
        let Some(number) = self.last_started.take() else {
            return;
        };
        self.by_pointer.insert(pointer, number);
        let stack = self
            .stacks
            .range(..stack_top)
            .next_back()
            .map(|(start, size)| *start..*start + *size)
            .filter(|stack| stack_top <= stack.end);
        if let Some(stack) = &stack {
            // Above the first frame lie the thread's descriptor and TLS,
            // which its creator has just filled in, unseen.
            self.renew(stack.clone());
        }
        let mut thread = self.take(number);
        thread.local = stack_top..stack.as_ref().map_or(stack_top, |stack| stack.end);
        thread.stack = stack;
        self.put(thread);
    }
}

/// And for descriptors.
pub(super) fn descriptor(number: u64) -> u64 {
    (1 << 20) + 8 * (number & 0xffff)
}

/// The descriptor that such an address stands for.
pub fn descriptor_at(address: u64) -> Option<u64> {
    let range = descriptor(0)..descriptor(0xffff) + 8;
    range
        .contains(&address)
        .then(|| (address - range.start) / 8)
}

/// And for the order of `ordered` regions.
pub(super) const ORDERED: u64 = 16;
