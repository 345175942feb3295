//! The race point, and what each order does from there.

use crate::after;
use crate::compare::{self, Difference, Left};
use crate::{Budget, Outcome};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use race::Instance;
use std::any::Any;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use vm::context::reg;
use vm::observe::{AccessEvent, Interest, Observer};
use vm::schedule::SliceEnd;
use vm::snapshot::Limits;
use vm::{Error, Stop, Vm};

/// Both accesses poised, in this copy of the world.
pub struct RacePoint {
    first: u32,
    second: u32,
    /// The racy bytes.
    racy: Range<u64>,
}

/// No heap block of a `free` that races is larger.
const LARGEST_BLOCK: u64 = 1 << 30;

/// Instructions of a function that makes the access (such as `free`).
const LONGEST_ACCESS: u64 = 100_000;

impl RacePoint {
    /// From just before the first access: holds its thread and runs the others
    /// until the second access is about to be made. The inner error says why
    /// that cannot be.
    pub fn reach(vm: &mut Vm, instance: Instance) -> Result<Result<RacePoint, String>, Error> {
        let (first, second) = (instance.first.thread, instance.second.thread);
        vm.freeze(first, true);
        let why = match vm.run(Some(instance.second))? {
            Stop::Reached(_) => {
                vm.freeze(first, false);
                let racy = instance.address..instance.address + u64::from(instance.size.max(1));
                if !touches(vm, second, &racy) {
                    return Ok(Err("dependent: without the first access its thread takes \
                                   another way and does not make the second"
                        .into()));
                }
                return Ok(Ok(RacePoint {
                    first,
                    second,
                    racy,
                }));
            }
            Stop::Stuck { input: true } => {
                "input-exhausted: the second access waits for input that was not recorded"
            }
            Stop::Stuck { input: false } => {
                "blocked: the second access cannot be made before the first"
            }
            Stop::Ended(_) | Stop::RecordingEnds => {
                "blocked: the program ends before the second access when the first is held back"
            }
            Stop::Limit => "limit: the second access was not reached in time",
        };
        Ok(Err(why.to_string()))
    }

    /// Plays both orders in copies, at the same time, and compares what they
    /// leave. This process stays at the race point.
    pub fn both_orders(&self, vm: &mut Vm, remainder: u64) -> Result<Outcome, Error> {
        let running = [false, true].map(|swapped| {
            vm.copy(limits(remainder), |vm| {
                let written = self.play(vm, swapped, remainder)?;
                Ok(self.left(vm, written))
            })
        });
        let mut left = Vec::new();
        for copy in running {
            match copy.and_then(|running| running.join()) {
                Ok(Ok(state)) => left.push(state),
                Ok(Err(error)) => return Ok(Outcome::ReplayFailure(error)),
                Err(error) => return Ok(Outcome::ReplayFailure(error.to_string())),
            }
        }
        Ok(self.compare(&left[0], &left[1]))
    }

    /// The same with one copy less: this process plays the swapped order
    /// itself and is at the race point no more.
    pub fn both_orders_here(&self, vm: &mut Vm, remainder: u64) -> Result<Outcome, Error> {
        let failed = |why: String| Ok(Outcome::ReplayFailure(why));
        // The copy tells what it has in all words that either order writes;
        // where it has not written itself, that is what the race point has.
        let (mut asked, mut asking) = match std::io::pipe() {
            Ok(ends) => ends,
            Err(error) => return failed(error.to_string()),
        };
        let copy = vm.copy(limits(remainder), |vm| {
            let mut written = self.play(vm, false, remainder)?;
            // This end is the copy's own: only the other process writes.
            // SAFETY: closes a descriptor that nothing uses in the copy any
            // more; the copy leaves by `_exit` and drops nothing.
            unsafe { libc::close(asking.as_raw_fd()) };
            let mut bytes = Vec::new();
            asked
                .read_to_end(&mut bytes)
                .map_err(|error| Error::Machine(error.to_string()))?;
            let words = bytes.chunks_exact(8).map(|word| {
                let mut value = [0; 8];
                value.copy_from_slice(word);
                u64::from_le_bytes(value)
            });
            written.extend(words);
            written.sort_unstable();
            written.dedup();
            Ok(self.left(vm, written))
        });
        let written = self.play(vm, true, remainder)?;
        let words: Vec<u8> = written.iter().flat_map(|word| word.to_le_bytes()).collect();
        let told = asking.write_all(&words);
        drop(asking);
        match (told, copy.and_then(|running| running.join())) {
            (Ok(()), Ok(Ok(recorded))) => {
                let swapped = self.left(vm, written);
                Ok(self.compare(&recorded, &swapped))
            }
            (_, Ok(Err(error))) => failed(error),
            (_, Err(error)) => failed(error.to_string()),
            (Err(error), _) => failed(error.to_string()),
        }
    }

    fn compare(&self, recorded: &Left, swapped: &Left) -> Outcome {
        let differences = compare::differences(recorded, swapped, self.racy.clone());
        if differences.is_empty() {
            Outcome::NoStateChange
        } else {
            Outcome::StateChange(differences)
        }
    }

    /// Plays both orders again and runs on, to see what becomes of the
    /// differences.
    pub fn follow(
        &self,
        vm: &mut Vm,
        instance: Instance,
        budget: Budget,
        differences: &mut [Difference],
    ) -> Result<(), Error> {
        let mut seen = Vec::new();
        for swapped in [false, true] {
            let order = self.order(swapped);
            let limits = Limits {
                instructions: 4 * budget.remainder + budget.run_on,
                ..Limits::default()
            };
            let list = &*differences;
            let copy = vm.copy(limits, |vm| {
                let watch = after::Watch::begin(vm, instance, list);
                self.advance(vm, order, budget.remainder)?;
                watch.look_on(vm, instance, list, swapped)
            });
            // What cannot be followed is not known; the answer stands.
            match copy.and_then(|running| running.join()) {
                Ok(Ok(one)) => seen.push(one),
                Ok(Err(_)) | Err(_) => return Ok(()),
            }
        }
        after::judge(differences, instance, [&seen[0], &seen[1]]);
        Ok(())
    }

    /// The two accesses, then each thread to its next sequencer; the words
    /// that were written, in order.
    fn play(&self, vm: &mut Vm, swapped: bool, remainder: u64) -> Result<Vec<u64>, Error> {
        vm.observe(Box::new(Written::default()));
        self.advance(vm, self.order(swapped), remainder)?;
        Ok(vm
            .take_observers()
            .into_iter()
            .filter_map(|observer| observer.into_any().downcast::<Written>().ok())
            .flat_map(|mut written| {
                written.settle();
                written.words
            })
            .collect())
    }

    fn left(&self, vm: &Vm, written: Vec<u64>) -> Left {
        Left::behind(vm, [self.first, self.second], written)
    }

    fn order(&self, swapped: bool) -> [u32; 2] {
        match swapped {
            false => [self.first, self.second],
            true => [self.second, self.first],
        }
    }

    fn advance(&self, vm: &mut Vm, order: [u32; 2], remainder: u64) -> Result<(), Error> {
        for thread in order {
            make_access(vm, thread)?;
        }
        for thread in [self.first, self.second] {
            vm.run_thread(thread, remainder, true)?;
        }
        Ok(())
    }
}

/// What a copy that plays one order may use.
fn limits(remainder: u64) -> Limits {
    Limits {
        instructions: 4 * remainder + 2,
        ..Limits::default()
    }
}

/// Lets a thread make the access it is about to make: one instruction, or the
/// whole call if it stands at the beginning of a function that counts as an
/// access (`free` releases the block when it returns, not when it is entered).
pub fn make_access(vm: &mut Vm, thread: u32) -> Result<(), Error> {
    let Some(regs) = vm.registers(thread) else {
        return Ok(());
    };
    match kind_of(vm, regs.rip) {
        Poised::Function => {}
        // A system call would be stopped before; for all else there is no
        // difference, and the remainders need no other code then.
        poised => {
            vm.run_thread(thread, 1, poised != Poised::Call)?;
            return Ok(());
        }
    }
    let stack = regs.gpr[reg::RSP];
    for _ in 0..LONGEST_ACCESS {
        let end = vm.run_thread(thread, 1, false)?;
        let returned = vm
            .registers(thread)
            .is_none_or(|regs| regs.gpr[reg::RSP] > stack);
        if returned || !matches!(end, SliceEnd::Expired | SliceEnd::Sequencer) {
            break;
        }
    }
    Ok(())
}

/// What a thread is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Poised {
    /// An instruction that reads or writes memory.
    Access,
    /// A system call: the kernel may read or write.
    Call,
    /// Neither: the beginning of a function that counts as an access.
    Function,
}

fn decode(vm: &Vm, pc: u64) -> Instruction {
    let mut bytes = [0; 15];
    let length = vm.space.fetch(pc, &mut bytes);
    Decoder::with_ip(64, &bytes[..length], pc, DecoderOptions::NONE).decode()
}

/// Operands that are neither registers nor constants.
fn memory_operands(instruction: &Instruction) -> impl Iterator<Item = u32> + '_ {
    (0..instruction.op_count()).filter(|index| {
        !matches!(
            instruction.op_kind(*index),
            OpKind::Register
                | OpKind::Immediate8
                | OpKind::Immediate16
                | OpKind::Immediate32
                | OpKind::Immediate64
                | OpKind::Immediate8to16
                | OpKind::Immediate8to32
                | OpKind::Immediate8to64
                | OpKind::Immediate32to64
                | OpKind::NearBranch64
        )
    })
}

fn kind_of(vm: &Vm, pc: u64) -> Poised {
    let instruction = decode(vm, pc);
    if instruction.mnemonic() == Mnemonic::Syscall {
        Poised::Call
    } else if instruction.is_invalid() || memory_operands(&instruction).next().is_some() {
        Poised::Access
    } else {
        Poised::Function
    }
}

/// The thread is about to touch the racy bytes. With the first access held
/// back its thread may have taken another way and be somewhere else. Where
/// that cannot be told from the instruction (system calls, string and gather
/// instructions) it is believed.
fn touches(vm: &Vm, thread: u32, racy: &Range<u64>) -> bool {
    let Some(regs) = vm.registers(thread) else {
        return false;
    };
    let instruction = decode(vm, regs.rip);
    match kind_of(vm, regs.rip) {
        Poised::Call => true,
        Poised::Function => {
            let argument = regs.gpr[reg::RDI];
            argument <= racy.start && racy.start - argument < LARGEST_BLOCK
        }
        Poised::Access if instruction.is_string_instruction() || instruction.is_vsib() => true,
        Poised::Access => memory_operands(&instruction).any(|index| {
            let address = instruction.virtual_address(index, 0, |register, _, _| {
                Some(match register {
                    Register::FS => regs.fs_base,
                    Register::GS => regs.gs_base,
                    register if register.is_segment_register() => 0,
                    register => regs.gpr[register.full_register().number()],
                })
            });
            let size = instruction.memory_size().size().max(1) as u64;
            address.is_none_or(|at| at < racy.end && racy.start < at.saturating_add(size))
        }),
    }
}

/// Every word of eight bytes that was written to.
#[derive(Default)]
struct Written {
    /// Addresses, in order and once each up to `settled`.
    words: Vec<u64>,
    settled: usize,
}

/// So many addresses are collected before they are put in order: a loop
/// writes the same ones again and again.
const UNSETTLED: usize = 1 << 14;

impl Written {
    fn settle(&mut self) {
        self.words.sort_unstable();
        self.words.dedup();
        self.settled = self.words.len();
    }
}

impl Observer for Written {
    fn interest(&self) -> Interest {
        Interest {
            accesses: true,
            ..Interest::default()
        }
    }

    fn accesses(&mut self, batch: &[AccessEvent]) {
        for access in batch.iter().filter(|access| access.write) {
            let last = access
                .address
                .saturating_add(u64::from(access.size).max(1) - 1);
            let mut word = access.address & !7;
            while word <= last {
                if self.words.last() != Some(&word) {
                    self.words.push(word);
                }
                word += 8;
            }
        }
        if self.words.len() > self.settled + UNSETTLED {
            self.settle();
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
