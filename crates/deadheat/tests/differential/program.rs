//! A freestanding program made of cases: each sets every register, flag and
//! byte of its memory, runs its instructions and writes the outcome to
//! descriptor 1.

use crate::assembler::{self, Assembled, Entry, Label, bytes, load};
use crate::elf::{self, Segment};
use crate::random::Random;
use iced_x86::{Code, Instruction, MemoryOperand, Register};
use std::path::Path;

/// Where a program lies. The translator has a different way with RIP-relative
/// operands for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Below 2 GiB, as non-PIE programs.
    Low,
    /// Out of reach of the code cache and above 2 GiB.
    Far,
    /// Where the vm puts PIE programs: in reach of the code cache.
    Near,
}

pub const PLACES: [Place; 3] = [Place::Low, Place::Far, Place::Near];

/// Addresses of everything a case can touch.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub code: u64,
    near: u64,
}

const LOW: u64 = 0x2000_0000;
const DATA_FROM_CODE: u64 = 64 << 20;

const RESUME: u64 = 0x0;
const COMPANION: u64 = 0x8;
const ROUND: u64 = 0xc;
const ALT_STACK: u64 = 0x10;
const PRISTINE: u64 = 0x1000;
const PRISTINE_LOW: u64 = 0x3000;
const CONSTANTS: u64 = 0x4000;
const RUNTIME_STACK_TOP: u64 = 0x7000;
const SIGNAL_STACK: u64 = 0x7000;
const SIGNAL_STACK_SIZE: u64 = 0x4000;
const COMPANION_STACK_TOP: u64 = 0xc000;
const DUMP: u64 = 0xc000;
const VECTORS: u64 = 0xc100;
const DATA: u64 = 0xcc00;
const TLS: u64 = 0xdc00;
const STACK: u64 = 0xdd00;
const DUMP_END: u64 = 0xe100;
const IMAGES: u64 = 0x1_0000;
const LOW_DATA: u64 = 0x800;

pub const DATA_SIZE: u64 = 4096;
pub const TLS_SIZE: u64 = 256;
pub const STACK_SIZE: u64 = 1024;
pub const IMAGE_SIZE: usize = 2752;
const SAVED_WORDS: u64 = 19;

/// Bytes written per case.
pub const RECORD: usize = (DUMP_END - DUMP + DATA_SIZE) as usize;

impl Layout {
    pub fn new(place: Place) -> Self {
        let code = match place {
            Place::Low => 0x40_0000,
            Place::Far => 0x12_3456_7000,
            Place::Near => 0x5fff_a000_0000,
        };
        Layout {
            code,
            near: code + DATA_FROM_CODE,
        }
    }

    /// Memory of the case beside its code; a page border runs through it.
    pub fn data(&self) -> u64 {
        self.near + DATA
    }

    /// The same below 2 GiB.
    pub fn low_data(&self) -> u64 {
        LOW + LOW_DATA
    }

    pub fn tls(&self) -> u64 {
        self.near + TLS + TLS_SIZE / 2
    }

    pub fn gs(&self) -> u64 {
        self.data()
    }

    pub fn stack(&self) -> u64 {
        self.near + STACK + STACK_SIZE / 2
    }

    /// The mapping below 2 GiB: nothing is mapped before and behind it.
    pub fn low_start(&self) -> u64 {
        LOW
    }

    pub fn low_end(&self) -> u64 {
        LOW + 0x2000
    }

    /// `cmp dword [round], 1`: equal in the last round of a case.
    pub fn compare_round(&self) -> Entry {
        plain(Instruction::with2(
            Code::Cmp_rm32_imm8,
            at(self.near + ROUND),
            1,
        ))
    }

    pub fn constants(&self) -> u64 {
        self.near + CONSTANTS
    }
}

/// What one case starts from and does.
#[derive(Clone)]
pub struct Case {
    pub gpr: [u64; 16],
    pub rflags: u64,
    pub image: Vec<u8>,
    pub body: Vec<Entry>,
    pub labels: usize,
    /// Times the case is run from its start; the last outcome is written.
    /// More than once, so that blocks are linked and become traces.
    pub rounds: i32,
}

pub const STATUS_FLAGS: u64 = 0x8d5;

/// Components of the vector state that this machine has, of those the guest
/// can use.
pub fn components() -> u64 {
    // SAFETY: the vm needs XSAVE; so does its test.
    let enabled = unsafe { std::arch::x86_64::_xgetbv(0) };
    enabled & 0xe7
}

impl Case {
    /// Random registers and an empty body.
    pub fn new(seed: u64, layout: &Layout) -> Self {
        let mut random = Random::new(seed);
        let mut gpr = [0; 16];
        for value in &mut gpr {
            *value = random.word();
        }
        gpr[4] = layout.stack();
        let rflags = 0x202 | (random.next() & STATUS_FLAGS) | (random.below(8) / 7) << 10;
        Case {
            gpr,
            rflags,
            image: vector_image(&mut random),
            body: Vec::new(),
            labels: 0,
            rounds: 6,
        }
    }
}

/// A random XSAVE image: numbers of all kinds, all exceptions masked.
fn vector_image(random: &mut Random) -> Vec<u8> {
    let mut image = vec![0; IMAGE_SIZE];
    random.fill(&mut image[32..]);
    for chunk in image[160..].chunks_exact_mut(8) {
        match random.below(6) {
            0 => chunk.copy_from_slice(&(random.below(2000) as f64 - 1000.0).to_le_bytes()),
            1 => {
                let pair = [random.below(100) as f32 - 50.0, random.next() as f32];
                chunk[..4].copy_from_slice(&pair[0].to_le_bytes());
                chunk[4..].copy_from_slice(&pair[1].to_le_bytes());
            }
            2 => chunk.copy_from_slice(
                &random
                    .pick(&[f64::NAN, f64::INFINITY, -0.0, 1e-310, f64::MAX])
                    .to_le_bytes(),
            ),
            _ => {}
        }
    }
    for register in image[32..160].chunks_exact_mut(16) {
        register[10..].fill(0);
        if random.one_in(2) {
            // A normal number: explicit integer bit, moderate exponent.
            register[7] |= 0x80;
            let exponent = (16383 - 40 + random.below(80)) as u16 | (random.below(2) << 15) as u16;
            register[8..10].copy_from_slice(&exponent.to_le_bytes());
        }
    }
    let control = 0x3f | (random.below(4) << 10) as u16 | *random.pick(&[0, 0x200, 0x300]);
    image[0..2].copy_from_slice(&control.to_le_bytes());
    let status = (random.below(8) << 11) as u16 | (random.next() & 0x4700) as u16;
    image[2..4].copy_from_slice(&status.to_le_bytes());
    image[4] = random.next() as u8;
    // FOP, FIP and FDP stay zero.
    let mxcsr = 0x1f80 | (random.below(4) << 13) as u32 | ((random.below(4) / 3) << 15) as u32;
    image[24..28].copy_from_slice(&mxcsr.to_le_bytes());
    image[28..32].fill(0);
    image[512..576].fill(0);
    image[512..520].copy_from_slice(&components().to_le_bytes());
    image
}

fn plain(instruction: Result<Instruction, iced_x86::IcedError>) -> Entry {
    Entry::Plain(instruction.expect("an instruction of the frame"))
}

fn at(address: u64) -> MemoryOperand {
    MemoryOperand::with_base_displ(Register::RIP, address as i64)
}

fn store(address: u64, register: Register) -> Entry {
    plain(Instruction::with2(
        Code::Mov_rm64_r64,
        at(address),
        register,
    ))
}

pub const REGISTERS: [Register; 16] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RBX,
    Register::RSP,
    Register::RBP,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];

/// A program ready to be written.
pub struct Program {
    pub layout: Layout,
    code: Vec<u8>,
    images: Vec<u8>,
    pristine: Vec<u8>,
    pristine_low: Vec<u8>,
    constants: Vec<u8>,
    handlers: bool,
    /// Addresses of every entry of each case's body, and of its end.
    pub addresses: Vec<Vec<u64>>,
}

struct Builder {
    entries: Vec<Entry>,
    labels: usize,
}

impl Builder {
    fn label(&mut self) -> Label {
        self.labels += 1;
        self.labels - 1
    }
}

impl Program {
    /// `handlers`: catch signals, note them and go on with the next case.
    /// Only for native runs that find out which cases fault.
    pub fn new(cases: &[Case], seed: u64, layout: Layout, handlers: bool) -> Result<Self, String> {
        let mut b = Builder {
            entries: Vec::new(),
            labels: 0,
        };
        let near = layout.near;
        let [setup, dump, handler, companion, start] = std::array::from_fn(|_| b.label());
        b.entries.push(Entry::Label(start));
        b.entries
            .push(load(Register::RSP, near + RUNTIME_STACK_TOP));
        install_handlers(&mut b, near, handlers);
        start_companion(&mut b, near, companion);
        let mut bodies = Vec::new();
        for (index, case) in cases.iter().enumerate() {
            bodies.push(emit_case(&mut b, &layout, case, index, setup, dump));
        }
        // exit_group(0)
        b.entries.push(bytes(&[
            0x31, 0xff, 0xb8, 0xe7, 0, 0, 0, 0x0f, 0x05, 0x0f, 0x0b,
        ]));
        emit_setup(&mut b, &layout, setup);
        emit_dump(&mut b, &layout, dump);
        emit_handler(&mut b, near, handler);
        emit_companion(&mut b, companion);
        let Assembled {
            bytes: code,
            labels,
            entries: entry_at,
        } = assembler::assemble(&b.entries, layout.code, b.labels)?;
        let addresses = bodies
            .iter()
            .map(|range| entry_at[range.start..=range.end].to_vec())
            .collect();
        let mut random = Random::new(seed ^ 0x1234_5678);
        let mut pristine = vec![0; (DUMP_END - DATA) as usize];
        random.fill(&mut pristine);
        let mut pristine_low = vec![0; DATA_SIZE as usize];
        random.fill(&mut pristine_low);
        let mut constants = vec![0; 4096];
        // Small offsets, for gathers and scatters: as dwords and as qwords.
        for (index, chunk) in constants[..1024].chunks_exact_mut(4).enumerate() {
            let value = (random.below(200) as u32 / 8 * 8) & 0xff;
            let value = if index >= 128 && index % 2 == 1 {
                0
            } else {
                value
            };
            chunk.copy_from_slice(&value.to_le_bytes());
        }
        random.fill(&mut constants[1024..]);
        // Address of the signal handler, for `install_handlers`.
        constants[4088..].copy_from_slice(&labels[handler].to_le_bytes());
        Ok(Program {
            layout,
            code,
            images: cases.iter().flat_map(|case| case.image.clone()).collect(),
            pristine,
            pristine_low,
            constants,
            handlers,
            addresses,
        })
    }

    /// The round a running program is in, by its memory.
    pub fn round(&self, read: impl Fn(u64, &mut [u8])) -> u32 {
        let mut word = [0; 4];
        read(self.layout.near + ROUND, &mut word);
        u32::from_le_bytes(word)
    }

    /// The instruction at `pc`.
    pub fn instruction(&self, pc: u64) -> Option<Instruction> {
        let at = pc.checked_sub(self.layout.code)? as usize;
        let bytes = self.code.get(at..(at + 15).min(self.code.len()))?;
        crate::counts::decode(bytes, pc)
    }

    /// The case whose body holds `pc`.
    pub fn case_at(&self, pc: u64) -> Option<usize> {
        self.addresses.iter().position(|body| {
            body.first()
                .zip(body.last())
                .is_some_and(|(first, last)| (*first..=*last).contains(&pc))
        })
    }

    /// Writes the executable, with or without a second thread that only
    /// burns its time slices.
    pub fn write(&self, path: &Path, companion: bool) -> std::io::Result<()> {
        let mut near = vec![0; IMAGES as usize];
        let mut put = |at: u64, bytes: &[u8]| {
            near[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        };
        put(COMPANION, &[u8::from(companion)]);
        let base = self.layout.near;
        put(ALT_STACK, &(base + SIGNAL_STACK).to_le_bytes());
        put(ALT_STACK + 16, &SIGNAL_STACK_SIZE.to_le_bytes());
        put(PRISTINE, &self.pristine);
        put(PRISTINE_LOW, &self.pristine_low);
        put(CONSTANTS, &self.constants);
        let action = [
            u64::from_le_bytes(self.constants[4088..].try_into().expect("eight bytes")),
            // SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTORER
            0x4c00_0004,
            self.layout.code,
            0,
        ];
        for (index, word) in action.iter().enumerate() {
            put(ALT_STACK + 24 + 8 * index as u64, &word.to_le_bytes());
        }
        near.extend_from_slice(&self.images);
        debug_assert!((self.code.len() as u64) < DATA_FROM_CODE);
        let segment = |address, bytes: &[u8], write| Segment {
            address,
            bytes: bytes.to_vec(),
            size: bytes.len() as u64,
            write,
            execute: !write,
        };
        let _ = self.handlers;
        elf::write(
            path,
            self.layout.code,
            &[
                segment(self.layout.code, &self.code, false),
                segment(base, &near, true),
                segment(LOW, &[0; 0x2000], true),
            ],
        )
    }
}

/// rt_sigaction for what the machine can raise, on its own stack.
fn install_handlers(b: &mut Builder, near: u64, handlers: bool) {
    let mut calls = vec![
        // sigaltstack(&stack, 0)
        load(Register::RDI, near + ALT_STACK),
        bytes(&[0x31, 0xf6, 0xb8, 131, 0, 0, 0, 0x0f, 0x05]),
    ];
    for signal in [4u8, 5, 7, 8, 11] {
        calls.push(load(Register::RSI, near + ALT_STACK + 24));
        // rt_sigaction(signal, rsi, 0, 8)
        calls.push(bytes(&[
            0xbf, signal, 0, 0, 0, 0x31, 0xd2, 0x41, 0xba, 8, 0, 0, 0, 0xb8, 13, 0, 0, 0, 0x0f,
            0x05,
        ]));
    }
    if !handlers {
        // The same addresses without the calls.
        let skip = b.label();
        b.entries.push(Entry::Branch(Code::Jmp_rel32_64, skip));
        b.entries.extend(calls);
        b.entries.push(Entry::Label(skip));
    } else {
        // jmp to the next instruction keeps the length.
        let next = b.label();
        b.entries.push(Entry::Branch(Code::Jmp_rel32_64, next));
        b.entries.push(Entry::Label(next));
        b.entries.extend(calls);
    }
}

fn start_companion(b: &mut Builder, near: u64, companion: Label) {
    let alone = b.label();
    b.entries.push(plain(Instruction::with2(
        Code::Cmp_rm8_imm8,
        at(near + COMPANION),
        0,
    )));
    b.entries.push(Entry::Branch(Code::Je_rel32_64, alone));
    // clone(VM|FS|FILES|SIGHAND|THREAD|SYSVSEM, stack)
    b.entries.push(load(Register::RDI, 0x5_0f00));
    b.entries
        .push(load(Register::RSI, near + COMPANION_STACK_TOP));
    b.entries.push(bytes(&[
        0x31, 0xd2, 0x45, 0x31, 0xd2, 0x45, 0x31, 0xc0, 0xb8, 56, 0, 0, 0, 0x0f, 0x05, 0x85, 0xc0,
    ]));
    b.entries.push(Entry::Branch(Code::Je_rel32_64, companion));
    b.entries.push(Entry::Label(alone));
}

/// A thread that keeps changing every kind of register.
fn emit_companion(b: &mut Builder, companion: Label) {
    b.entries.push(Entry::Label(companion));
    // fld1; fld1
    b.entries.push(bytes(&[0xd9, 0xe8, 0xd9, 0xe8]));
    let again = b.label();
    b.entries.push(Entry::Label(again));
    for register in REGISTERS.iter().filter(|one| **one != Register::RSP) {
        b.entries.push(plain(Instruction::with2(
            Code::Add_rm64_imm8,
            *register,
            0x5b,
        )));
    }
    // fadd st0, st1; paddd xmm0, xmm0; pcmpeqd xmm7, xmm7; stc; std; cld
    b.entries.push(bytes(&[
        0xd8, 0xc1, 0x66, 0x0f, 0xfe, 0xc0, 0x66, 0x0f, 0x76, 0xff, 0xf9, 0xfd, 0xfc,
    ]));
    b.entries.push(Entry::Branch(Code::Jmp_rel32_64, again));
}

/// Shared start of a case: rsi has the vector image. Fills memory, sets the
/// segment bases and the vector state.
fn emit_setup(b: &mut Builder, layout: &Layout, setup: Label) {
    let near = layout.near;
    b.entries.push(Entry::Label(setup));
    b.entries.push(bytes(&[0xfc, 0x48, 0x89, 0xf3])); // cld; mov rbx, rsi
    for (from, to, length) in [
        (near + PRISTINE, near + DATA, DUMP_END - DATA),
        (near + PRISTINE_LOW, LOW + LOW_DATA, DATA_SIZE),
    ] {
        b.entries.push(load(Register::RSI, from));
        b.entries.push(load(Register::RDI, to));
        b.entries.push(load(Register::RCX, length));
        b.entries.push(bytes(&[0xf3, 0xa4]));
    }
    b.entries.push(load(Register::RAX, layout.tls()));
    b.entries.push(bytes(&[0xf3, 0x48, 0x0f, 0xae, 0xd0])); // wrfsbase rax
    b.entries.push(load(Register::RAX, layout.gs()));
    b.entries.push(bytes(&[0xf3, 0x48, 0x0f, 0xae, 0xd8])); // wrgsbase rax
    b.entries.push(load(Register::RAX, components()));
    b.entries
        .push(bytes(&[0x31, 0xd2, 0x48, 0x0f, 0xae, 0x2b, 0xc3])); // xor edx, edx; xrstor64 [rbx]; ret
}

fn emit_case(
    b: &mut Builder,
    layout: &Layout,
    case: &Case,
    index: usize,
    setup: Label,
    dump: Label,
) -> std::ops::Range<usize> {
    let near = layout.near;
    let [end, again] = [b.label(), b.label()];
    b.entries.push(plain(Instruction::with2(
        Code::Mov_rm32_imm32,
        at(near + ROUND),
        case.rounds,
    )));
    b.entries.push(Entry::Label(again));
    b.entries
        .push(load(Register::RSP, near + RUNTIME_STACK_TOP));
    b.entries.push(Entry::LoadAddress(Register::RAX, end));
    b.entries.push(store(near + RESUME, Register::RAX));
    b.entries.push(load(
        Register::RSI,
        near + IMAGES + (index * IMAGE_SIZE) as u64,
    ));
    b.entries.push(Entry::Branch(Code::Call_rel32_64, setup));
    b.entries.push(load(Register::RAX, case.rflags));
    b.entries.push(bytes(&[0x50, 0x9d])); // push rax; popfq
    for (register, value) in REGISTERS.iter().zip(case.gpr) {
        b.entries.push(load(*register, value));
    }
    let first = b.entries.len();
    let base = b.labels;
    b.labels += case.labels;
    for entry in &case.body {
        b.entries.push(match entry.clone() {
            Entry::Branch(code, label) => Entry::Branch(code, base + label),
            Entry::LoadAddress(register, label) => Entry::LoadAddress(register, base + label),
            Entry::Through(code, label) => Entry::Through(code, base + label),
            Entry::Label(label) => Entry::Label(base + label),
            Entry::Quad(label) => Entry::Quad(base + label),
            other => other,
        });
    }
    let range = first..b.entries.len();
    b.entries.push(Entry::Label(end));
    for (number, register) in REGISTERS.iter().enumerate() {
        b.entries
            .push(store(near + DUMP + 8 * number as u64, *register));
    }
    b.entries
        .push(load(Register::RSP, near + RUNTIME_STACK_TOP));
    b.entries.push(bytes(&[0x9c])); // pushfq
    b.entries.push(plain(Instruction::with1(
        Code::Pop_rm64,
        at(near + DUMP + 128),
    )));
    b.entries
        .push(plain(Instruction::with1(Code::Dec_rm32, at(near + ROUND))));
    b.entries.push(Entry::Branch(Code::Jne_rel32_64, again));
    b.entries.push(Entry::Branch(Code::Call_rel32_64, dump));
    range
}

/// Shared end of a case: everything else into the record, and out with it.
fn emit_dump(b: &mut Builder, layout: &Layout, dump: Label) {
    let near = layout.near;
    b.entries.push(Entry::Label(dump));
    b.entries.push(bytes(&[0x68, 0x02, 0x02, 0, 0, 0x9d])); // push 0x202; popfq
    b.entries.push(bytes(&[0xf3, 0x48, 0x0f, 0xae, 0xc0])); // rdfsbase rax
    b.entries.push(store(near + DUMP + 136, Register::RAX));
    b.entries.push(load(Register::RAX, components()));
    b.entries.push(load(Register::RBX, near + VECTORS));
    b.entries.push(bytes(&[0x31, 0xd2, 0x48, 0x0f, 0xae, 0x23])); // xor edx, edx; xsave64 [rbx]
    b.entries.push(bytes(&[0x31, 0xc0]));
    // The x87 opcode, instruction and data pointers, which components are in
    // use.
    b.entries.push(plain(Instruction::with2(
        Code::Mov_rm16_r16,
        at(near + VECTORS + 6),
        Register::AX,
    )));
    for offset in [8, 16, 512, 520] {
        b.entries
            .push(store(near + VECTORS + offset, Register::RAX));
    }
    for (from, length) in [(near + DUMP, DUMP_END - DUMP), (LOW + LOW_DATA, DATA_SIZE)] {
        b.entries.push(load(Register::RSI, from));
        b.entries.push(load(Register::RDX, length));
        // write(1, rsi, rdx)
        b.entries
            .push(bytes(&[0xbf, 1, 0, 0, 0, 0xb8, 1, 0, 0, 0, 0x0f, 0x05]));
    }
    b.entries.push(bytes(&[0x31, 0xc0]));
    b.entries.push(store(near + DUMP + 144, Register::RAX));
    b.entries.push(bytes(&[0xc3]));
}

/// Notes the signal and goes to the end of the case.
fn emit_handler(b: &mut Builder, near: u64, handler: Label) {
    b.entries.push(Entry::Label(handler));
    b.entries.push(store(near + DUMP + 144, Register::RDI));
    b.entries
        .push(plain(Instruction::with1(Code::Jmp_rm64, at(near + RESUME))));
}

/// One case's outcome.
#[derive(PartialEq, Eq)]
pub struct Record<'a>(pub &'a [u8]);

impl Record<'_> {
    pub fn word(&self, index: usize) -> u64 {
        u64::from_le_bytes(
            self.0[8 * index..8 * index + 8]
                .try_into()
                .expect("eight bytes"),
        )
    }

    fn words(&self) -> impl Iterator<Item = u64> + '_ {
        (0..SAVED_WORDS as usize).map(|index| self.word(index))
    }

    /// The signal that ended the case, if it was run with handlers.
    pub fn signal(&self) -> u64 {
        self.word(18)
    }

    /// What differs, in words.
    pub fn differences(&self, other: &Record, flags_mask: u64) -> Vec<String> {
        let mut found = Vec::new();
        for (index, (mut one, mut two)) in self.words().zip(other.words()).enumerate() {
            let name = match index {
                16 => {
                    one &= flags_mask;
                    two &= flags_mask;
                    "rflags".to_string()
                }
                17 => "fs base".to_string(),
                18 => "signal".to_string(),
                _ => format!("{:?}", REGISTERS[index]).to_lowercase(),
            };
            if one != two {
                found.push(format!("{name}: native {one:#x}, vm {two:#x}"));
            }
        }
        let low = (DUMP_END - DUMP) as usize;
        let regions = [
            ("x87/vector state", VECTORS - DUMP, DATA - DUMP, 0),
            ("data", DATA - DUMP, TLS - DUMP, DATA),
            ("fs area", TLS - DUMP, STACK - DUMP, TLS),
            ("stack", STACK - DUMP, DUMP_END - DUMP, STACK),
            ("low data", low as u64, RECORD as u64, 0),
        ];
        for (name, from, to, _) in regions {
            let range = from as usize..to as usize;
            let (one, two) = (&self.0[range.clone()], &other.0[range]);
            let differing: Vec<usize> = (0..one.len()).filter(|at| one[*at] != two[*at]).collect();
            if let (Some(first), Some(last)) = (differing.first(), differing.last()) {
                let shown = (last + 1 - first).min(32);
                found.push(format!(
                    "{name} +{first:#x}..{:#x}: native {:02x?}, vm {:02x?}",
                    last + 1,
                    &one[*first..first + shown],
                    &two[*first..first + shown]
                ));
            }
        }
        found
    }
}
