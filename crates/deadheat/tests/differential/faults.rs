//! Precise state at faults: signal, address, every register and the memory of
//! a case when its instruction faults, natively and under the vm.
//!
//! Cases run many rounds and fault in the last one, so that the faulting
//! instruction sits in a linked block, a trace or instrumented code.

use crate::assembler::{Entry, bytes, load};
use crate::child::{Drive, Fault, Report};
use crate::generate::Generator;
use crate::program::{Case, Layout, Place, Program};
use crate::random::Random;
use crate::run;
use crate::sequences::text;
use crate::tracer::{Stopped, Tracee};
use iced_x86::{Code, Register};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);

/// Compared bits of rflags: status, direction, alignment check.
const FLAGS: u64 = 0x4_0cd5;

/// Ways in which an instruction can fault through the pointer in r14, which is
/// good until the last round.
pub struct Shape {
    pub name: &'static str,
    /// What r14 is in the last round.
    bad: Bad,
    code: &'static [u8],
}

#[derive(Clone, Copy)]
enum Bad {
    Null,
    NonCanonical,
    /// So many bytes before unmapped memory.
    BeforeEnd(u64),
    /// This misaligned.
    Misaligned(u64),
    /// The code segment, which cannot be written.
    Code,
    /// Memory that cannot be executed.
    Data,
    /// So many bytes above unmapped memory.
    AboveStart(u64),
}

/// Every shape works on valid memory too; code that jumps through r14 jumps to
/// the instruction behind it in all rounds but the last.
pub const SHAPES: &[Shape] = &[
    Shape {
        name: "load from null",
        bad: Bad::Null,
        // mov rbx, [r14]
        code: &[0x49, 0x8b, 0x1e],
    },
    Shape {
        name: "store to null",
        bad: Bad::Null,
        // mov [r14 + 8], ecx
        code: &[0x41, 0x89, 0x4e, 0x08],
    },
    Shape {
        name: "read-modify-write of null",
        bad: Bad::Null,
        // lock add [r14], rdx
        code: &[0xf0, 0x49, 0x01, 0x16],
    },
    Shape {
        name: "non-canonical load",
        bad: Bad::NonCanonical,
        // mov rcx, [r14]
        code: &[0x49, 0x8b, 0x0e],
    },
    Shape {
        name: "store across the end of a mapping",
        bad: Bad::BeforeEnd(3),
        // mov [r14], rax
        code: &[0x49, 0x89, 0x06],
    },
    Shape {
        name: "vector load across the end of a mapping",
        bad: Bad::BeforeEnd(7),
        // movups xmm3, [r14]
        code: &[0x41, 0x0f, 0x10, 0x1e],
    },
    Shape {
        name: "misaligned movaps",
        bad: Bad::Misaligned(4),
        // movaps [r14], xmm5
        code: &[0x41, 0x0f, 0x29, 0x2e],
    },
    Shape {
        name: "store to code",
        bad: Bad::Code,
        // mov [r14], sil
        code: &[0x41, 0x88, 0x36],
    },
    Shape {
        name: "push below a mapping",
        bad: Bad::AboveStart(0),
        // mov rbp, rsp; mov rsp, r14; push rdi; mov rsp, rbp
        code: &[0x48, 0x89, 0xe5, 0x4c, 0x89, 0xf4, 0x57, 0x48, 0x89, 0xec],
    },
    Shape {
        name: "call below a mapping",
        bad: Bad::AboveStart(4),
        // mov rbp, rsp; mov rsp, r14; call next; next: mov rsp, rbp
        code: &[
            0x48, 0x89, 0xe5, 0x4c, 0x89, 0xf4, 0xe8, 0, 0, 0, 0, 0x48, 0x89, 0xec,
        ],
    },
    Shape {
        name: "indirect call below a mapping",
        bad: Bad::AboveStart(0),
        // mov rbp, rsp; lea rbx, [rip + 5]; mov rsp, r14; call rbx; mov rsp, rbp
        code: &[
            0x48, 0x89, 0xe5, 0x48, 0x8d, 0x1d, 5, 0, 0, 0, 0x4c, 0x89, 0xf4, 0xff, 0xd3, 0x48,
            0x89, 0xec,
        ],
    },
    Shape {
        name: "pop from behind a mapping",
        bad: Bad::BeforeEnd(0),
        // mov rbp, rsp; mov rsp, r14; pop rdi; mov rsp, rbp
        code: &[0x48, 0x89, 0xe5, 0x4c, 0x89, 0xf4, 0x5f, 0x48, 0x89, 0xec],
    },
    Shape {
        name: "rep movsb into unmapped memory",
        bad: Bad::BeforeEnd(21),
        // cld; mov rdi, r14; mov ecx, 40; rep movsb with rsi on the stack
        code: &[
            0xfc, 0x4c, 0x89, 0xf7, 0x48, 0x89, 0xe6, 0xb9, 40, 0, 0, 0, 0xf3, 0xa4,
        ],
    },
    Shape {
        name: "rep stosq into unmapped memory",
        bad: Bad::BeforeEnd(27),
        // cld; mov rdi, r14; mov ecx, 9; rep stosq
        code: &[0xfc, 0x4c, 0x89, 0xf7, 0xb9, 9, 0, 0, 0, 0xf3, 0x48, 0xab],
    },
    Shape {
        name: "rep cmpsb from unmapped memory",
        bad: Bad::BeforeEnd(5),
        // cld; mov rdi, r14; mov rsi, r14; mov ecx, 30; repe cmpsb
        code: &[
            0xfc, 0x4c, 0x89, 0xf7, 0x4c, 0x89, 0xf6, 0xb9, 30, 0, 0, 0, 0xf3, 0xa6,
        ],
    },
    Shape {
        name: "division by zero",
        bad: Bad::Null,
        // xor edx, edx; div r14
        code: &[0x31, 0xd2, 0x49, 0xf7, 0xf6],
    },
    Shape {
        name: "jump to unmapped memory",
        bad: Bad::BeforeEnd(0),
        code: JUMP,
    },
    Shape {
        name: "jump to null",
        bad: Bad::Null,
        code: JUMP,
    },
    Shape {
        name: "jump to data",
        bad: Bad::Data,
        code: JUMP,
    },
    Shape {
        name: "call of unmapped memory",
        bad: Bad::BeforeEnd(0),
        code: CALL,
    },
    Shape {
        name: "return to unmapped memory",
        bad: Bad::BeforeEnd(0),
        code: RETURN,
    },
    Shape {
        name: "non-canonical jump",
        bad: Bad::NonCanonical,
        code: JUMP,
    },
    Shape {
        name: "non-canonical call",
        bad: Bad::NonCanonical,
        code: CALL,
    },
    Shape {
        name: "non-canonical return",
        bad: Bad::NonCanonical,
        code: RETURN,
    },
    Shape {
        name: "illegal instruction",
        bad: Bad::Null,
        code: SKIPPED,
    },
];

/// Marks code that goes where r14 says in the last round only.
const JUMP: &[u8] = b"jump";
const CALL: &[u8] = b"call";
const RETURN: &[u8] = b"return";
/// Marks code that is jumped over in all rounds but the last.
const SKIPPED: &[u8] = b"skipped";

/// One-byte and longer instructions that always raise something.
const TRAPS: &[&[u8]] = &[
    &[0x0f, 0x0b],
    &[0xcc],
    &[0xf1],
    &[0xf4],
    &[0x0f, 0xff, 0xc0],
    &[0x0f, 0xb9, 0xc0],
    &[0xfa],
    &[0xe4, 0x10],
    &[0x0f, 0x30],
    &[0x06],
    &[0xcd, 0x21],
    &[0xcd, 0x03],
];

pub const ROUNDS: i32 = 40;

fn case(layout: &Layout, seed: u64, shape: &Shape, codes: &[Code]) -> Case {
    let mut case = Case::new(seed, layout);
    case.rounds = ROUNDS;
    let mut generator = Generator {
        random: Random::new(seed ^ 0xfa17),
        layout,
    };
    let bad = match shape.bad {
        Bad::Null => 0,
        Bad::NonCanonical => 0x8123_4567_89ab_cdef,
        Bad::BeforeEnd(bytes) => layout.low_end() - bytes,
        Bad::Misaligned(by) => layout.data() + 512 + by,
        Bad::Code => layout.code,
        Bad::Data => layout.data() + 100,
        Bad::AboveStart(bytes) => layout.low_start() + bytes,
    };
    let labels: Vec<usize> = (0..3).collect();
    case.labels = 3;
    let [good, over, last] = labels[..] else {
        unreachable!("three labels were made");
    };
    let goes = [JUMP, CALL, RETURN].contains(&shape.code);
    // r14 = last round ? bad : good, leaving the flags as they were.
    case.body.push(bytes(&[0x9c])); // pushfq
    case.body.push(layout.compare_round());
    if goes {
        case.body.push(Entry::LoadAddress(Register::R14, good));
    } else {
        case.body.push(load(Register::R14, layout.data() + 1024));
    }
    case.body.push(load(Register::R15, bad));
    case.body.push(bytes(&[0x4d, 0x0f, 0x44, 0xf7])); // cmove r14, r15
    case.body.push(bytes(&[0x9d])); // popfq
    generator.filler(codes, &mut case);
    match shape.code {
        JUMP => case.body.push(bytes(&[0x41, 0xff, 0xe6])),
        CALL => case.body.push(bytes(&[0x41, 0xff, 0xd6])),
        RETURN => case.body.push(bytes(&[0x41, 0x56, 0xc3])),
        SKIPPED => {
            // test r14, r14; jnz over; jmp last…
            case.body.push(bytes(&[0x4d, 0x85, 0xf6]));
            case.body.push(Entry::Branch(Code::Jne_rel32_64, over));
            case.body.push(Entry::Branch(Code::Jmp_rel32_64, last));
            case.body.push(Entry::Label(last));
            let trap = *generator.random.pick(TRAPS);
            case.body.push(bytes(trap));
            case.body.push(bytes(&[0x0f, 0x0b]));
            case.body.push(Entry::Label(over));
        }
        code => case.body.push(bytes(code)),
    }
    case.body.push(Entry::Label(good));
    generator.filler(codes, &mut case);
    case
}

fn drives(random: &mut Random) -> Vec<Drive> {
    let plain = Drive::default();
    let eager = Drive {
        eager: Some(130 + random.below(100)),
        ..plain.clone()
    };
    let observed = Drive {
        observe: true,
        ..plain.clone()
    };
    let both = Drive {
        observe: true,
        ..eager.clone()
    };
    let stepped = Drive {
        step: Some(1 + random.below(7)),
        ..plain.clone()
    };
    vec![plain, eager, observed, both, stepped]
}

/// The state at the native fault, and the bytes of the case's memory.
pub fn native(program: &Path) -> Result<Fault, String> {
    let mut tracee = Tracee::start(program)?;
    match tracee.go() {
        Stopped::Signal(signal) => Ok(tracee.fault(signal)),
        other => Err(format!("the native run did not fault: {other:?}")),
    }
}

/// How the state under the vm differs from the native one.
fn differences(native: &Fault, vm: &Fault) -> Vec<String> {
    let mut found = Vec::new();
    let mut compare = |name: &str, one: u64, two: u64| {
        if one != two {
            found.push(format!("{name}: native {one:#x}, vm {two:#x}"));
        }
    };
    compare("signal", native.signal as u64, vm.signal as u64);
    if [libc::SIGSEGV, libc::SIGBUS].contains(&native.signal) {
        compare("address", native.address, vm.address);
    }
    for (index, name) in vm::context::reg::NAMES.iter().enumerate() {
        compare(name, native.regs[index], vm.regs[index]);
    }
    compare("rip", native.regs[16], vm.regs[16]);
    compare("rflags", native.regs[17] & FLAGS, vm.regs[17] & FLAGS);
    // The vm keeps the vector state only while the thread lives.
    if let Some(at) = (0..vm.vector.len()).find(|at| native.vector[*at] != vm.vector[*at]) {
        found.push(format!("x87/vector state differs from byte {at:#x}"));
    }
    found
}

/// Compares one case in every way of running it.
///
/// `seed` fills the memory of the case: whether it faults may depend on it.
pub fn check(
    folder: &Path,
    case: &Case,
    seed: u64,
    layout: Layout,
    drives: &[Drive],
) -> Result<(), String> {
    let path = folder.join("fault");
    let program = Program::new(std::slice::from_ref(case), seed, layout, false)?;
    program
        .write(&path, false)
        .map_err(|error| error.to_string())?;
    let native = native(&path)?;
    for drive in drives {
        let report_path = folder.join("report");
        let _ = std::fs::remove_file(&report_path);
        let outcome = run::run(drive.command(&path, &report_path), folder, LIMIT);
        let found = match Report::read(&report_path).and_then(|report| report.fault) {
            Some(fault) => differences(&native, &fault),
            None => vec![format!(
                "native died of signal {} at {:#x}; the vm ended with {:?}: {}",
                native.signal,
                native.regs[16],
                outcome.status,
                outcome.errors.trim()
            )],
        };
        if !found.is_empty() {
            return Err(format!(
                "{drive:?}:\n  {}\n{}",
                found.join("\n  "),
                text(case, layout.code)
            ));
        }
    }
    Ok(())
}

/// Every shape of fault, in every way of running.
pub fn run(folder: &Path, seed: u64, codes: &[Code]) -> Result<usize, String> {
    let mut random = Random::new(seed ^ 0xfa);
    let mut failures = Vec::new();
    let mut count = 0;
    for (index, shape) in SHAPES.iter().enumerate() {
        let place = [Place::Low, Place::Far, Place::Near][(seed as usize + index) % 3];
        let layout = Layout::new(place);
        let seed = seed.wrapping_mul(0x1_0000) + index as u64;
        // Filler may fault by itself or not encode; then another is drawn.
        let found = (0..20).find_map(|attempt| {
            let case = case(&layout, seed + attempt * 1_000_003, shape, codes);
            let program = Program::new(std::slice::from_ref(&case), seed, layout, false).ok()?;
            let path = folder.join("fault");
            program.write(&path, false).ok()?;
            let mut tracee = Tracee::start(&path).ok()?;
            let Stopped::Signal(_) = tracee.go() else {
                return None;
            };
            (program.round(|address, bytes| tracee.read(address, bytes)) == 1).then_some(case)
        });
        let Some(case) = found else {
            failures.push(format!("{}: no native fault in the last round", shape.name));
            continue;
        };
        count += 1;
        if let Err(what) = check(folder, &case, seed, layout, &drives(&mut random)) {
            failures.push(format!("{} ({place:?}): {what}", shape.name));
        }
    }
    if failures.is_empty() {
        Ok(count)
    } else {
        Err(failures.join("\n\n"))
    }
}
