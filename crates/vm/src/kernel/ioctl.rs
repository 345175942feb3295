//! ioctl: terminals, sockets and files.
//!
//! The vm must know how many bytes a request writes, so requests are listed.
//! One that is not listed is refused with a message.

use super::fd::{Kind, Object};
use super::{Call, Halt, Outcome};
use crate::machine::Vm;
use crate::memory;
use crate::thread::{Wait, WaitOn};

/// What a request does with its argument.
enum Argument {
    /// Nothing, or it is a number, or it is only read.
    In,
    /// So many bytes are written there.
    Out(usize),
    /// A list of interfaces.
    Interfaces,
    /// The result is a new descriptor.
    Opens,
    /// Refused with this errno, which makes programs do without.
    Refused(i32),
}

#[rustfmt::skip]
const KNOWN: &[(u32, Argument)] = &[
    // Terminals.
    (0x5401, Argument::Out(36)), // TCGETS
    (0x5402, Argument::In), (0x5403, Argument::In), (0x5404, Argument::In), // TCSETS, W, F
    (0x5405, Argument::Out(18)), // TCGETA
    (0x5406, Argument::In), (0x5407, Argument::In), (0x5408, Argument::In), // TCSETA, W, F
    (0x5409, Argument::In), (0x540a, Argument::In), (0x540b, Argument::In), // TCSBRK, TCXONC, TCFLSH
    (0x540c, Argument::In), (0x540d, Argument::In), (0x540e, Argument::In), // TIOCEXCL, TIOCNXCL, TIOCSCTTY
    (0x540f, Argument::Out(4)), (0x5410, Argument::In), // TIOCGPGRP, TIOCSPGRP
    (0x5411, Argument::Out(4)), // TIOCOUTQ
    (0x5412, Argument::Refused(libc::EPERM)), // TIOCSTI
    (0x5413, Argument::Out(8)), (0x5414, Argument::In), // TIOCGWINSZ, TIOCSWINSZ
    (0x5415, Argument::Out(4)), (0x5416, Argument::In), (0x5417, Argument::In), (0x5418, Argument::In), // TIOCM*
    (0x5419, Argument::Out(4)), (0x541a, Argument::In), // TIOCGSOFTCAR, TIOCSSOFTCAR
    (0x541b, Argument::Out(4)), // FIONREAD
    (0x541d, Argument::Refused(libc::EPERM)), // TIOCCONS
    (0x5420, Argument::In), // TIOCPKT
    (0x5422, Argument::In), // TIOCNOTTY
    (0x5423, Argument::In), (0x5424, Argument::Out(4)), // TIOCSETD, TIOCGETD
    (0x5425, Argument::In), (0x5427, Argument::In), (0x5428, Argument::In), // TCSBRKP, TIOCSBRK, TIOCCBRK
    (0x5429, Argument::Out(4)), // TIOCGSID
    (0x802c_542a, Argument::Out(44)), // TCGETS2
    (0x402c_542b, Argument::In), (0x402c_542c, Argument::In), (0x402c_542d, Argument::In), // TCSETS2, W, F
    (0x8004_5430, Argument::Out(4)), (0x4004_5431, Argument::In), // TIOCGPTN, TIOCSPTLCK
    (0x8004_5438, Argument::Out(4)), (0x8004_5439, Argument::Out(4)), // TIOCGPKT, TIOCGPTLCK
    (0x8004_5440, Argument::Out(4)), // TIOCGEXCL
    (0x545d, Argument::Out(80)), (0x5459, Argument::Out(4)), // TIOCGICOUNT, TIOCSERGETLSR
    (0x5600, Argument::Out(4)), (0x5603, Argument::Out(6)), // VT_OPENQRY, VT_GETSTATE
    (0x4b3b, Argument::Out(4)), (0x4b44, Argument::Out(4)), (0x4b33, Argument::Out(1)), // KDGETMODE, KDGKBMODE, KDGKBTYPE
    (0x5441, Argument::Opens), // TIOCGPTPEER
    // Sockets.
    (0x8905, Argument::Out(4)), (0x8906, Argument::Out(16)), (0x8907, Argument::Out(16)), // SIOCATMARK, SIOCGSTAMP*
    (0x8912, Argument::Interfaces), // SIOCGIFCONF
    (0x8910, Argument::Out(40)), (0x8913, Argument::Out(40)), (0x8915, Argument::Out(40)), // SIOCGIFNAME, FLAGS, ADDR
    (0x8917, Argument::Out(40)), (0x8919, Argument::Out(40)), (0x891b, Argument::Out(40)), // DSTADDR, BRDADDR, NETMASK
    (0x891d, Argument::Out(40)), (0x8921, Argument::Out(40)), (0x8927, Argument::Out(40)), // METRIC, MTU, HWADDR
    (0x8933, Argument::Out(40)), (0x8942, Argument::Out(40)), (0x8970, Argument::Out(40)), // INDEX, TXQLEN, MAP
    (0x8946, Argument::Refused(libc::EOPNOTSUPP)), // SIOCETHTOOL
    // Files and devices.
    (0x8008_6601, Argument::Out(8)), (0x4008_6602, Argument::In), // FS_IOC_GETFLAGS, SETFLAGS
    (0x8008_7601, Argument::Out(8)), // FS_IOC_GETVERSION
    (0x801c_581f, Argument::Out(28)), // FS_IOC_FSGETXATTR
    (0x4004_9409, Argument::Refused(libc::EOPNOTSUPP)), // FICLONE
    (0x4020_940d, Argument::Refused(libc::EOPNOTSUPP)), // FICLONERANGE
    (0xc020_660b, Argument::Refused(libc::EOPNOTSUPP)), // FS_IOC_FIEMAP
    (0x1, Argument::Refused(libc::EPERM)), // FIBMAP
    (0x2, Argument::Out(4)), // FIGETBSZ
    (0x1260, Argument::Out(8)), (0x1268, Argument::Out(4)), (0x8008_1272, Argument::Out(8)), // BLKGETSIZE, BLKSSZGET, BLKGETSIZE64
    (0x8004_5200, Argument::Out(4)), // RNDGETENTCNT
];

impl Vm {
    pub(super) fn sys_ioctl(&mut self, call: &Call) -> Outcome {
        let [fd, request, argument, ..] = call.arguments;
        let (fd, request) = (fd as i32, request as u32);
        match u64::from(request) {
            libc::FIONBIO => {
                let on = memory::get::<i32>(argument)? != 0;
                let description = self.kernel.fds.get(fd)?;
                description.flags &= !libc::O_NONBLOCK;
                if on {
                    description.flags |= libc::O_NONBLOCK;
                }
                return Ok(0);
            }
            libc::FIOASYNC => {
                let on = memory::get::<i32>(argument)? != 0;
                let description = self.kernel.fds.get(fd)?;
                description.flags &= !libc::O_ASYNC;
                if on {
                    description.flags |= libc::O_ASYNC;
                }
                return self.set_async(fd, on);
            }
            libc::FIOCLEX | libc::FIONCLEX => {
                let value = u64::from(request) == libc::FIOCLEX;
                self.kernel.fds.set_close_on_exec(fd, value)?;
                return Ok(0);
            }
            _ => {}
        }
        let Some(host) = self.host_use(fd)? else {
            return self.inner_ioctl(fd, request, argument);
        };
        let known = KNOWN.iter().find(|(number, _)| *number == request);
        let arguments = [host.number as u64, u64::from(request), argument, 0, 0, 0];
        match known.map(|(_, kind)| kind) {
            Some(Argument::In) if call.again && call.interrupted => Err(Halt::Errno(libc::EINTR)),
            Some(Argument::In) => {
                let result = self.host_call(libc::SYS_ioctl, arguments)?;
                self.unless_stopped(result)
            }
            Some(Argument::Out(size)) => {
                self.host_call_writing(libc::SYS_ioctl, arguments, |_| vec![(argument, *size)])
            }
            Some(Argument::Interfaces) => {
                let buffer = memory::get::<u64>(argument.wrapping_add(8))?;
                if memory::is_vm(buffer) {
                    return Err(Halt::Errno(libc::EFAULT));
                }
                self.host_call_writing(libc::SYS_ioctl, arguments, |_| {
                    let length = memory::get::<u32>(argument).unwrap_or(0) as usize;
                    let length = if buffer == 0 { 0 } else { length };
                    vec![(argument, 4), (buffer, length)]
                })
            }
            Some(Argument::Opens) => {
                let flags = argument as i32;
                self.open_host_object(
                    libc::SYS_ioctl,
                    [
                        arguments[0],
                        arguments[1],
                        (flags | libc::O_CLOEXEC) as u64,
                        0,
                        0,
                        0,
                    ],
                    Kind::Character,
                    flags & !libc::O_CLOEXEC,
                    flags & libc::O_CLOEXEC != 0,
                )
            }
            Some(Argument::Refused(errno)) => Err(Halt::Errno(*errno)),
            None => {
                if self.kernel.machine.reported_ioctls.insert(request) {
                    self.say(&format!(
                        "ioctl request {request:#x} is not supported; the program is told so (ENOTTY)"
                    ));
                }
                Err(Halt::Errno(libc::ENOTTY))
            }
        }
    }

    /// A process in the background that changes its terminal gets SIGTTOU, and
    /// the host breaks the call off. What becomes of it depends on what the
    /// guest does with the signal, which reaches it next: a handler may end the
    /// call, a process that was stopped makes it again when it goes on.
    fn unless_stopped(&self, result: i64) -> Outcome {
        if result != -i64::from(libc::EINTR) {
            return Ok(result);
        }
        Err(Halt::Block(Wait {
            on: WaitOn::Retry,
            deadline: None,
        }))
    }

    fn inner_ioctl(&mut self, fd: i32, request: u32, argument: u64) -> Outcome {
        if request != libc::FIONREAD as u32 {
            return Err(Halt::Errno(libc::ENOTTY));
        }
        let available = match &self.kernel.fds.get(fd)?.object {
            Object::Pipe(end) => end.pipe.borrow().buffer.len(),
            Object::Pair(end) => end.available(),
            _ => return Err(Halt::Errno(libc::ENOTTY)),
        };
        memory::put(argument, available as i32)?;
        Ok(0)
    }
}
