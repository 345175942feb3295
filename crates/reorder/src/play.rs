//! The race point, and what each order does from there.

use crate::after;
use crate::compare::{self, Difference, Left};
use crate::pages::{self, Page};
use crate::{Budget, Outcome};
use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register,
};
use race::Instance;
use std::ops::Range;
use vm::context::reg;
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
                    return Ok(Err("blocked: with the first access held back the second \
                                   is not made, its thread goes another way"
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

    /// Plays both orders at the same time, the recorded one in a copy, the
    /// swapped one in this process (which is at the race point no more), and
    /// compares what they leave.
    pub fn both_orders(&self, vm: &mut Vm, remainder: u64) -> Result<Outcome, Error> {
        let failed = |why: String| Ok(Outcome::ReplayFailure(why));
        let (mut asked, mut asking) = std::io::pipe().map_err(no_pipe)?;
        let (mut told, telling) = std::io::pipe().map_err(no_pipe)?;
        // What the copy keeps open of this process's ends does not matter: it
        // reads exactly what is written, and ends with this process.
        let mut answers = telling.try_clone().map_err(no_pipe)?;
        let copy = vm.copy(limits(remainder), |vm| {
            self.advance(vm, self.order(false), remainder)?;
            pages::answer(vm, &mut asked, &mut answers).map_err(no_pipe)?;
            Ok(self.left(vm))
        });
        // The answer ends where the copy does.
        drop((telling, answers, asked));
        self.advance(vm, self.order(true), remainder)?;
        let pages = pages::tell(vm, &mut asking).and_then(|()| pages::read(&mut told));
        match (copy.and_then(|running| running.join()), pages) {
            (Ok(Ok(recorded)), Ok(pages)) => {
                let swapped = self.left(vm);
                Ok(self.compare(&recorded, &pages, &swapped))
            }
            (Ok(Err(error)), _) => failed(error),
            (Err(error), _) => failed(error.to_string()),
            (_, Err(error)) => failed(error.to_string()),
        }
    }

    fn compare(&self, recorded: &Left, pages: &[Page], swapped: &Left) -> Outcome {
        let differences = compare::differences(recorded, pages, swapped, self.racy.clone());
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

    fn left(&self, vm: &Vm) -> Left {
        Left::behind(vm, [self.first, self.second])
    }

    fn order(&self, swapped: bool) -> [u32; 2] {
        match swapped {
            false => [self.first, self.second],
            true => [self.second, self.first],
        }
    }

    /// The two accesses, then each thread to its next sequencer.
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

fn no_pipe(error: std::io::Error) -> Error {
    Error::Machine(format!("comparing both orders: {error}"))
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

/// The access that a thread is about to make may write.
pub fn may_write(vm: &Vm, thread: u32) -> bool {
    let Some(regs) = vm.registers(thread) else {
        return false;
    };
    kind_of(vm, regs.rip) != Poised::Access
        || InstructionInfoFactory::new()
            .info(&decode(vm, regs.rip))
            .used_memory()
            .iter()
            .any(|used| !matches!(used.access(), OpAccess::Read | OpAccess::CondRead))
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
