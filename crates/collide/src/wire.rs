//! What front end and holder say to each other, over a stream socket.
//!
//! The front end decides what to sample; the holder does it and tells what
//! happened. A message is a length (u32), a tag (u8) and the fields in order,
//! little-endian: both ends are the same program, so there is no versioning.

use iced_x86::Register;
use std::io;

/// Integer registers of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RegisterFile {
    /// rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 … r15.
    pub general: [u64; 16],
    pub rip: u64,
    pub flags: u64,
}

impl RegisterFile {
    pub fn rcx(&self) -> u64 {
        self.general[1]
    }

    pub fn rsp(&self) -> u64 {
        self.general[4]
    }

    /// The value of a register of any width as part of an address.
    pub fn value(&self, register: Register) -> Option<u64> {
        if register.is_segment_register() {
            // Segment bases are 0 in 64-bit code but for fs and gs, which
            // are not sampled.
            return Some(0);
        }
        let full = register.full_register();
        if !full.is_gpr64() {
            return (full == Register::RIP).then_some(self.rip);
        }
        let value = self.general[full.number()];
        Some(match register.size() {
            8 => value,
            4 => value & 0xffff_ffff,
            2 => value & 0xffff,
            _ => value & 0xff,
        })
    }
}

impl From<&libc::user_regs_struct> for RegisterFile {
    fn from(r: &libc::user_regs_struct) -> Self {
        RegisterFile {
            general: [
                r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11,
                r.r12, r.r13, r.r14, r.r15,
            ],
            rip: r.rip,
            flags: r.eflags,
        }
    }
}

/// Why a breakpoint is planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Learn whether the code runs at all: short delays only.
    Sweep,
    /// Code seen to run.
    Live,
    /// Code not seen to run yet, left standing for a while: a sample if it
    /// fires.
    Cold,
}

impl Purpose {
    fn of(number: u8) -> Purpose {
        match number {
            0 => Purpose::Sweep,
            1 => Purpose::Live,
            _ => Purpose::Cold,
        }
    }
}

/// A program location chosen for a one-shot breakpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// The front end's number of the site.
    pub site: u32,
    /// The address space, by the holder's number.
    pub space: u32,
    pub address: u64,
    pub purpose: Purpose,
    /// rbp is the frame pointer here.
    pub frame: bool,
    /// Microseconds the breakpoint may stand.
    pub dwell: u32,
    /// Microseconds the thread may be held at most.
    pub delay: u32,
    pub length: u8,
    /// The instruction; nothing is planted where memory holds another.
    pub bytes: [u8; 15],
    /// Sites that follow and of which can be told at this one what they touch.
    pub foretold: [Option<ForetoldSite>; MOST_FORETOLD],
}

/// Sites that may be watched from one before them: there are four debug
/// registers.
pub const MOST_FORETOLD: usize = 3;

/// A site that is watched from one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForetoldSite {
    pub site: u32,
    pub address: u64,
    pub length: u8,
    pub bytes: [u8; 15],
}

/// What the front end tells the holder.
#[derive(Debug, Clone, PartialEq)]
pub enum Order {
    Picks(Vec<Pick>),
    /// Plant this many live picks a second, spread evenly; hold a thread no
    /// longer than `share` (in millionths) of the time its breakpoint stood,
    /// but `short` µs always; longer holds may take `waits` millionths of the
    /// time.
    Pace {
        per_second: u32,
        share: u32,
        waits: u32,
        short: u32,
    },
    /// Put everything back, let go, exit.
    Stop,
    /// Write a core file at the next catch, into this folder.
    Core(String),
}

/// How a planted breakpoint ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Fired; conflicts were looked for.
    Sampled,
    /// Conflicts were looked for from the site before it, which fired.
    Foretold,
    /// Fired; the access could not be watched (own stack, device, no
    /// operand).
    Passed,
    /// Fired while the program was let go.
    Seen,
    /// Stood until its time was over.
    Expired,
    /// Never planted: there is a breakpoint already.
    Occupied,
    /// Never planted: memory holds something else, or the table is full.
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    pub site: u32,
    pub space: u32,
    pub purpose: Purpose,
    pub outcome: Outcome,
    /// Nanoseconds the thread was stopped.
    pub stopped: u64,
    /// Nanoseconds of it that were a hold longer than the short one.
    pub waited: u64,
    /// Nanoseconds of a short hold in which another thread ran on the holder's
    /// CPU.
    pub napped: u64,
    /// The wait was cut short because nobody made progress.
    pub stalled: bool,
}

/// The other side of a catch.
#[derive(Debug, Clone, PartialEq)]
pub struct Opponent {
    pub pid: i32,
    pub tid: i32,
    pub name: String,
    pub registers: RegisterFile,
    /// The kernel made the access in a system call of this thread.
    pub in_kernel: bool,
    /// Address of the first stack byte and the bytes.
    pub stack: Vec<u8>,
}

/// A race caught in the act.
#[derive(Debug, Clone, PartialEq)]
pub struct Catch {
    pub site: u32,
    pub space: u32,
    pub pid: i32,
    pub tid: i32,
    pub name: String,
    pub registers: RegisterFile,
    pub stack: Vec<u8>,
    pub address: u64,
    pub size: u32,
    pub write: bool,
    pub before: Vec<u8>,
    pub after: Vec<u8>,
    pub opponents: Vec<Opponent>,
    /// Core file written for it.
    pub core: Option<String>,
}

/// What the holder tells the front end.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Holding; how data breakpoints work here.
    Holding {
        scope: u8,
        sees_kernel: bool,
        why_not: String,
    },
    /// A new address space: a process began to be held, was forked or called
    /// exec.
    Space {
        space: u32,
        pid: i32,
    },
    SpaceGone {
        space: u32,
    },
    Ended(Vec<Ended>),
    Caught(Box<Catch>),
    Cost {
        /// Nanoseconds of CPU the holder has used so far.
        cpu: u64,
        /// Nanoseconds threads were stopped so far.
        stopped: u64,
        /// Threads that came second to a breakpoint so far, and were sent on.
        bounced: u64,
        /// Data breakpoints set on other CPUs so far.
        armed: u64,
        /// CPU nanoseconds used while a thread was stopped anyway.
        overlapped: u64,
        standing: u32,
        /// Live picks that wait to be planted.
        queued: u32,
    },
    /// The program that was launched has ended: exit code, or 128 + signal.
    ProgramEnded {
        status: i32,
    },
    /// Everything is restored; the holder exits. `left` tasks could not be
    /// checked, `note` says what went wrong, if anything.
    Released {
        left: u32,
        note: String,
    },
    /// The holder cannot go on or begin.
    Failed {
        code: i32,
        text: String,
    },
}

#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }
    fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }
    fn blob(&mut self, value: &[u8]) {
        self.u32(value.len() as u32);
        self.bytes.extend_from_slice(value);
    }
    fn registers(&mut self, value: &RegisterFile) {
        for register in value.general {
            self.u64(register);
        }
        self.u64(value.rip);
        self.u64(value.flags);
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

fn malformed() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "malformed message between front end and holder",
    )
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> io::Result<&'a [u8]> {
        if self.bytes.len() < length {
            return Err(malformed());
        }
        let (head, tail) = self.bytes.split_at(length);
        self.bytes = tail;
        Ok(head)
    }
    fn u8(&mut self) -> io::Result<u8> {
        Ok(self.take(1)?[0])
    }
    fn u32(&mut self) -> io::Result<u32> {
        Ok(u32::from_le_bytes(
            self.take(4)?.try_into().map_err(|_| malformed())?,
        ))
    }
    fn i32(&mut self) -> io::Result<i32> {
        Ok(self.u32()? as i32)
    }
    fn u64(&mut self) -> io::Result<u64> {
        Ok(u64::from_le_bytes(
            self.take(8)?.try_into().map_err(|_| malformed())?,
        ))
    }
    fn bool(&mut self) -> io::Result<bool> {
        Ok(self.u8()? != 0)
    }
    fn blob(&mut self) -> io::Result<Vec<u8>> {
        let length = self.u32()? as usize;
        Ok(self.take(length)?.to_vec())
    }
    fn text(&mut self) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&self.blob()?).into_owned())
    }
    fn registers(&mut self) -> io::Result<RegisterFile> {
        let mut file = RegisterFile::default();
        for register in &mut file.general {
            *register = self.u64()?;
        }
        file.rip = self.u64()?;
        file.flags = self.u64()?;
        Ok(file)
    }
}

/// A message that can cross the socket.
pub trait Message: Sized {
    fn encode(&self) -> Vec<u8>;
    fn decode(bytes: &[u8]) -> io::Result<Self>;
}

impl Message for Order {
    fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        match self {
            Order::Picks(picks) => {
                w.u8(1);
                w.u32(picks.len() as u32);
                for pick in picks {
                    w.u32(pick.site);
                    w.u32(pick.space);
                    w.u64(pick.address);
                    w.u8(pick.purpose as u8);
                    w.u8(pick.frame.into());
                    w.u32(pick.dwell);
                    w.u32(pick.delay);
                    w.u8(pick.length);
                    w.bytes.extend_from_slice(&pick.bytes);
                    for site in pick.foretold {
                        w.u8(site.map_or(0, |site| site.length));
                        if let Some(site) = site {
                            w.u32(site.site);
                            w.u64(site.address);
                            w.bytes.extend_from_slice(&site.bytes);
                        }
                    }
                }
            }
            Order::Pace {
                per_second,
                share,
                waits,
                short,
            } => {
                w.u8(2);
                w.u32(*per_second);
                w.u32(*share);
                w.u32(*waits);
                w.u32(*short);
            }
            Order::Stop => w.u8(3),
            Order::Core(folder) => {
                w.u8(4);
                w.blob(folder.as_bytes());
            }
        }
        w.bytes
    }

    fn decode(bytes: &[u8]) -> io::Result<Self> {
        let mut r = Reader { bytes };
        Ok(match r.u8()? {
            1 => {
                let count = r.u32()?;
                let mut picks = Vec::new();
                for _ in 0..count {
                    let mut pick = Pick {
                        site: r.u32()?,
                        space: r.u32()?,
                        address: r.u64()?,
                        purpose: Purpose::of(r.u8()?),
                        frame: r.bool()?,
                        dwell: r.u32()?,
                        delay: r.u32()?,
                        length: r.u8()?.clamp(1, 15),
                        bytes: r.take(15)?.try_into().map_err(|_| malformed())?,
                        foretold: [None; MOST_FORETOLD],
                    };
                    for site in &mut pick.foretold {
                        let length = r.u8()?.min(15);
                        if length > 0 {
                            *site = Some(ForetoldSite {
                                site: r.u32()?,
                                address: r.u64()?,
                                length,
                                bytes: r.take(15)?.try_into().map_err(|_| malformed())?,
                            });
                        }
                    }
                    picks.push(pick);
                }
                Order::Picks(picks)
            }
            2 => Order::Pace {
                per_second: r.u32()?,
                share: r.u32()?,
                waits: r.u32()?,
                short: r.u32()?,
            },
            3 => Order::Stop,
            4 => Order::Core(r.text()?),
            _ => return Err(malformed()),
        })
    }
}

impl Message for Event {
    fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        match self {
            Event::Holding {
                scope,
                sees_kernel,
                why_not,
            } => {
                w.u8(1);
                w.u8(*scope);
                w.u8((*sees_kernel).into());
                w.blob(why_not.as_bytes());
            }
            Event::Space { space, pid } => {
                w.u8(2);
                w.u32(*space);
                w.u32(*pid as u32);
            }
            Event::SpaceGone { space } => {
                w.u8(3);
                w.u32(*space);
            }
            Event::Ended(list) => {
                w.u8(4);
                w.u32(list.len() as u32);
                for ended in list {
                    w.u32(ended.site);
                    w.u32(ended.space);
                    w.u8(ended.purpose as u8);
                    w.u8(match ended.outcome {
                        Outcome::Sampled => 0,
                        Outcome::Passed => 1,
                        Outcome::Seen => 2,
                        Outcome::Expired => 3,
                        Outcome::Refused => 4,
                        Outcome::Occupied => 5,
                        Outcome::Foretold => 6,
                    });
                    w.u64(ended.stopped);
                    w.u64(ended.waited);
                    w.u64(ended.napped);
                    w.u8(ended.stalled.into());
                }
            }
            Event::Caught(catch) => {
                w.u8(5);
                w.u32(catch.site);
                w.u32(catch.space);
                w.u32(catch.pid as u32);
                w.u32(catch.tid as u32);
                w.blob(catch.name.as_bytes());
                w.registers(&catch.registers);
                w.blob(&catch.stack);
                w.u64(catch.address);
                w.u32(catch.size);
                w.u8(catch.write.into());
                w.blob(&catch.before);
                w.blob(&catch.after);
                w.u32(catch.opponents.len() as u32);
                for opponent in &catch.opponents {
                    w.u32(opponent.pid as u32);
                    w.u32(opponent.tid as u32);
                    w.blob(opponent.name.as_bytes());
                    w.registers(&opponent.registers);
                    w.u8(opponent.in_kernel.into());
                    w.blob(&opponent.stack);
                }
                w.u8(catch.core.is_some().into());
                w.blob(catch.core.as_deref().unwrap_or_default().as_bytes());
            }
            Event::Cost {
                cpu,
                stopped,
                bounced,
                armed,
                overlapped,
                standing,
                queued,
            } => {
                w.u8(6);
                w.u64(*cpu);
                w.u64(*stopped);
                w.u64(*bounced);
                w.u64(*armed);
                w.u64(*overlapped);
                w.u32(*standing);
                w.u32(*queued);
            }
            Event::ProgramEnded { status } => {
                w.u8(7);
                w.u32(*status as u32);
            }
            Event::Released { left, note } => {
                w.u8(8);
                w.u32(*left);
                w.blob(note.as_bytes());
            }
            Event::Failed { code, text } => {
                w.u8(9);
                w.u32(*code as u32);
                w.blob(text.as_bytes());
            }
        }
        w.bytes
    }

    fn decode(bytes: &[u8]) -> io::Result<Self> {
        let mut r = Reader { bytes };
        Ok(match r.u8()? {
            1 => Event::Holding {
                scope: r.u8()?,
                sees_kernel: r.bool()?,
                why_not: r.text()?,
            },
            2 => Event::Space {
                space: r.u32()?,
                pid: r.i32()?,
            },
            3 => Event::SpaceGone { space: r.u32()? },
            4 => {
                let count = r.u32()?;
                let mut list = Vec::new();
                for _ in 0..count {
                    list.push(Ended {
                        site: r.u32()?,
                        space: r.u32()?,
                        purpose: Purpose::of(r.u8()?),
                        outcome: match r.u8()? {
                            0 => Outcome::Sampled,
                            1 => Outcome::Passed,
                            2 => Outcome::Seen,
                            3 => Outcome::Expired,
                            5 => Outcome::Occupied,
                            6 => Outcome::Foretold,
                            _ => Outcome::Refused,
                        },
                        stopped: r.u64()?,
                        waited: r.u64()?,
                        napped: r.u64()?,
                        stalled: r.bool()?,
                    });
                }
                Event::Ended(list)
            }
            5 => {
                let mut catch = Catch {
                    site: r.u32()?,
                    space: r.u32()?,
                    pid: r.i32()?,
                    tid: r.i32()?,
                    name: r.text()?,
                    registers: r.registers()?,
                    stack: r.blob()?,
                    address: r.u64()?,
                    size: r.u32()?,
                    write: r.bool()?,
                    before: r.blob()?,
                    after: r.blob()?,
                    opponents: Vec::new(),
                    core: None,
                };
                for _ in 0..r.u32()? {
                    catch.opponents.push(Opponent {
                        pid: r.i32()?,
                        tid: r.i32()?,
                        name: r.text()?,
                        registers: r.registers()?,
                        in_kernel: r.bool()?,
                        stack: r.blob()?,
                    });
                }
                let written = r.bool()?;
                let core = r.text()?;
                catch.core = written.then_some(core);
                Event::Caught(Box::new(catch))
            }
            6 => Event::Cost {
                cpu: r.u64()?,
                stopped: r.u64()?,
                bounced: r.u64()?,
                armed: r.u64()?,
                overlapped: r.u64()?,
                standing: r.u32()?,
                queued: r.u32()?,
            },
            7 => Event::ProgramEnded { status: r.i32()? },
            8 => Event::Released {
                left: r.u32()?,
                note: r.text()?,
            },
            9 => Event::Failed {
                code: r.i32()?,
                text: r.text()?,
            },
            _ => return Err(malformed()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let pick = Pick {
            site: 7,
            space: 2,
            address: 0x5000_1234,
            purpose: Purpose::Cold,
            frame: true,
            dwell: 40_000,
            delay: 15_000,
            length: 3,
            bytes: [9; 15],
            foretold: [None; MOST_FORETOLD],
        };
        let site = ForetoldSite {
            site: 8,
            address: 0x5000_1237,
            length: 4,
            bytes: [5; 15],
        };
        let followed = Pick {
            foretold: [Some(site), None, Some(ForetoldSite { site: 9, ..site })],
            ..pick
        };
        let order = Order::Picks(vec![pick, followed, pick]);
        assert_eq!(Order::decode(&order.encode()).unwrap(), order);
        let outcomes = [
            Outcome::Sampled,
            Outcome::Foretold,
            Outcome::Passed,
            Outcome::Seen,
            Outcome::Expired,
            Outcome::Occupied,
            Outcome::Refused,
        ];
        let ended = outcomes.map(|outcome| Ended {
            site: 1,
            space: 2,
            purpose: Purpose::Sweep,
            outcome,
            stopped: 4,
            waited: 3,
            napped: 1,
            stalled: true,
        });
        let event = Event::Ended(ended.to_vec());
        assert_eq!(Event::decode(&event.encode()).unwrap(), event);
    }
}
