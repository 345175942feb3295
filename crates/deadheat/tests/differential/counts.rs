//! Exact counts: the vm stopped after every single instruction shows the
//! registers that native single-stepping shows there, ends after as many
//! instructions, and an observer sees each access at its instruction, with the
//! address that the registers there give.

use crate::child::{Drive, Report};
use crate::generate::Generator;
use crate::program::{Case, Layout, PLACES, Program};
use crate::random::Random;
use crate::run;
use crate::sequences::text;
use crate::tracer::{Stopped, Tracee};
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic};
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// rflags without the trap and resume flags, which belong to the tracer.
const FLAGS: u64 = 0x4_0cd5;

/// Registers before every instruction, natively. The iterations of a repeated
/// string instruction are one instruction.
fn single_step(
    program: &Path,
    code: &dyn Fn(u64) -> Option<Instruction>,
) -> Result<Vec<[u64; 18]>, String> {
    let mut tracee = Tracee::start(program)?;
    let mut states: Vec<[u64; 18]> = vec![tracee.registers()];
    // syscall leaves the flags in r11, and with them the tracer's trap flag.
    let mut with_trap_flag = None;
    loop {
        match tracee.step() {
            Stopped::Signal(libc::SIGTRAP) => {
                let mut state = tracee.registers();
                let before = states.last().map_or(0, |state| state[16]);
                let repeated = state[16] == before
                    && code(before).is_some_and(|instruction| {
                        instruction.is_string_instruction()
                            && (instruction.has_rep_prefix() || instruction.has_repne_prefix())
                    });
                if code(before).is_some_and(|one| one.mnemonic() == Mnemonic::Syscall) {
                    with_trap_flag = Some(state[11]);
                }
                if with_trap_flag == Some(state[11]) {
                    state[11] &= !0x100;
                } else {
                    with_trap_flag = None;
                }
                if !repeated {
                    states.push(state);
                }
            }
            Stopped::Exited(0) => return Ok(states),
            other => return Err(format!("stepping ended with {other:?}")),
        }
    }
}

/// Single-stepping does not tell what such a case does: it shows the tracer's
/// trap flag, or has an instruction that the kernel makes up for (user-mode
/// instruction prevention), and a step over that is one over the next as well.
fn misleads_stepping(case: &Case) -> bool {
    let made_up_for = ["sgdt", "sidt", "sldt", "smsw", "str"];
    text(case, 0).lines().any(|line| {
        let word = line.split_whitespace().next().unwrap_or_default();
        word.starts_with("pushf") || made_up_for.contains(&word)
    })
}

pub fn run(folder: &Path, seed: u64, codes: &[Code]) -> Result<usize, String> {
    let layout = Layout::new(PLACES[seed as usize % PLACES.len()]);
    let mut cases = Vec::new();
    for index in 0..12 {
        let seed = Random::new(seed.wrapping_mul(0x10_0000) + index).next();
        let mut generator = Generator {
            random: Random::new(seed),
            layout: &layout,
        };
        let mut case = if index % 2 == 0 {
            generator.control_flow(seed, codes)
        } else {
            generator.straight_line(seed, codes, None)
        };
        case.rounds = 5;
        let one = std::slice::from_ref(&case);
        let Ok(program) = Program::new(one, seed, layout, false) else {
            continue;
        };
        let path = folder.join("counted");
        program
            .write(&path, false)
            .map_err(|error| error.to_string())?;
        let ends = Tracee::start(&path)?.go() == Stopped::Exited(0);
        if ends && !misleads_stepping(&case) {
            cases.push(case);
        }
    }
    let program = Program::new(&cases, seed, layout, false)?;
    let path = folder.join("counted");
    program
        .write(&path, false)
        .map_err(|error| error.to_string())?;
    let decode = |pc: u64| program.instruction(pc);
    let native = single_step(&path, &decode)?;
    let fail = |what: String, case: Option<u64>| {
        let case = case
            .and_then(|pc| program.case_at(pc))
            .map_or(String::new(), |at| text(&cases[at], layout.code));
        Err(format!("counting, seed {seed}: {what}\n{case}"))
    };
    let report_path = folder.join("report");
    // Slices long enough for linked blocks and traces, ending everywhere.
    let long = [83, 101, 157, 211, 307, 409].iter().flat_map(|step| {
        [false, true].map(|observe| Drive {
            trace: true,
            observe,
            step: Some(*step),
            eager: Some(150),
            ..Drive::default()
        })
    });
    for drive in [
        Drive {
            trace: true,
            step: Some(1),
            ..Drive::default()
        },
        Drive {
            trace: true,
            observe: true,
            ..Drive::default()
        },
        Drive {
            trace: true,
            observe: true,
            eager: Some(150),
            ..Drive::default()
        },
        Drive {
            trace: true,
            observe: true,
            step: Some(5),
            ..Drive::default()
        },
    ]
    .into_iter()
    .chain(long)
    {
        let _ = std::fs::remove_file(&report_path);
        let outcome = run::run(drive.command(&path, &report_path), folder, LIMIT);
        let Some(report) = Report::read(&report_path) else {
            return fail(
                format!(
                    "{drive:?} ended with {:?}: {}",
                    outcome.status, outcome.errors
                ),
                None,
            );
        };
        let step = drive.step.unwrap_or(u64::MAX);
        for (index, state) in report.states.iter().enumerate() {
            let count = (index as u64).saturating_mul(step) as usize;
            let Some(expected) = native.get(count) else {
                continue;
            };
            // The stack of the kernel's making differs.
            let stack_differs = |register: usize| register == 4 && count == 0;
            for register in 0..18 {
                let mask = if register == 17 { FLAGS } else { u64::MAX };
                let (one, two) = (expected[register] & mask, state[register] & mask);
                if one != two && !stack_differs(register) {
                    return fail(
                        format!(
                            "{drive:?}: register {register} after {count} instructions (rip {:#x}): native {one:#x}, vm {two:#x}",
                            expected[16]
                        ),
                        Some(expected[16]),
                    );
                }
            }
        }
        // The state after the last instruction is not seen natively.
        if report.instructions != native.len() as u64 {
            return fail(
                format!(
                    "{drive:?}: {} instructions natively, {} under the vm",
                    native.len(),
                    report.instructions
                ),
                None,
            );
        }
        if let Err((what, pc)) = check_accesses(&report, &native, &decode) {
            return fail(format!("{drive:?}: {what}"), Some(pc));
        }
        if drive.observe && report.accesses.is_empty() {
            return fail(format!("{drive:?}: no access was seen"), None);
        }
    }
    Ok(native.len())
}

/// Every access seen lies at the instruction executed at its moment, and plain
/// operands have the address that the registers give.
fn check_accesses(
    report: &Report,
    native: &[[u64; 18]],
    decode: &dyn Fn(u64) -> Option<Instruction>,
) -> Result<(), (String, u64)> {
    let mut by_count: HashMap<u64, Vec<&[u64; 5]>> = HashMap::new();
    for access in &report.accesses {
        by_count.entry(access[0]).or_default().push(access);
        let Some(state) = native.get(access[0] as usize) else {
            return Err((format!("an access at moment {}", access[0]), access[1]));
        };
        if state[16] != access[1] {
            return Err((
                format!(
                    "moment {}: native at {:#x}, access of {:#x}",
                    access[0], state[16], access[1]
                ),
                state[16],
            ));
        }
    }
    if report.accesses.is_empty() {
        return Ok(());
    }
    for (count, state) in native.iter().enumerate() {
        let Some(instruction) = decode(state[16]) else {
            continue;
        };
        let Some(operand) = plain_operand(&instruction) else {
            continue;
        };
        let address = instruction.virtual_address(operand, 0, |register, _, _| {
            if register.is_segment_register() {
                return Some(0);
            }
            let value = state[register.full_register().number()];
            Some(match register.size() {
                4 => value & 0xffff_ffff,
                _ => value,
            })
        });
        let Some(address) = address else {
            continue;
        };
        let seen = by_count.get(&(count as u64));
        if !seen.is_some_and(|seen| seen.iter().any(|access| access[2] == address)) {
            return Err((
                format!(
                    "`{instruction}` after {count} instructions touches {address:#x}; seen: {seen:x?}"
                ),
                state[16],
            ));
        }
    }
    Ok(())
}

/// The memory operand of an instruction that surely touches it, where that is
/// simple to say.
fn plain_operand(instruction: &Instruction) -> Option<u32> {
    use iced_x86::{OpAccess, OpKind, Register};
    if instruction.segment_prefix() != Register::None
        || instruction.is_vsib()
        || instruction.op_mask() != Register::None
        || matches!(
            instruction.mnemonic(),
            Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
        )
    {
        return None;
    }
    let operand = (0..instruction.op_count())
        .find(|operand| instruction.op_kind(*operand) == OpKind::Memory)?;
    let mut factory = iced_x86::InstructionInfoFactory::new();
    let info = factory.info(instruction);
    matches!(
        info.op_access(operand),
        OpAccess::Read | OpAccess::Write | OpAccess::ReadWrite
    )
    .then_some(operand)
}

/// Decodes an instruction of a program.
pub fn decode(bytes: &[u8], pc: u64) -> Option<Instruction> {
    let instruction = Decoder::with_ip(64, bytes, pc, DecoderOptions::NONE).decode();
    (!instruction.is_invalid()).then_some(instruction)
}
