//! Atomic operations in C++ and Rust programs, optimised and not: each
//! function of the programs is one operation, and its comment says which.

mod support;

use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind, Register};
use std::path::Path;
use std::sync::atomic::Ordering;
use support::{Stop, Traced, Workshop, source};
use symbols::{AtomicOperation, AtomicUse, ModuleMap, StackFrame};

/// The variables of both programs; others belong to libraries.
const VARIABLES: [&str; 10] = [
    "number",
    "flag",
    "pointer",
    "bit",
    "plain",
    "atomics::NUMBER",
    "atomics::LONG",
    "atomics::FLAG",
    "atomics::POINTER",
    "atomics::PLAIN",
];

/// `name` and comment of every function with an expectation.
fn expectations(program: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(source(program)).unwrap();
    let found: Vec<_> = text
        .lines()
        .filter(|line| line.contains("ONE ") || line.contains("no_mangle"))
        .filter_map(|line| {
            let (code, comment) = line.rsplit_once("// ")?;
            let (head, _) = code.split_once("()")?;
            let name = head.rsplit([' ', '*']).next()?;
            Some((name.to_string(), comment.trim().to_string()))
        })
        .collect();
    assert!(found.len() > 10);
    found
}

fn decode(traced: &Traced, rip: u64) -> Instruction {
    let bytes: Vec<u8> = [rip, rip + 8]
        .into_iter()
        .filter_map(|at| traced.read(at))
        .flat_map(u64::to_le_bytes)
        .collect();
    Decoder::with_ip(64, &bytes, rip, DecoderOptions::NONE).decode()
}

/// Addresses of data that the instruction is about to touch.
fn touched(traced: &Traced, instruction: &Instruction) -> Vec<u64> {
    let registers = traced.registers();
    let value = |register: Register, _: usize, _: usize| {
        Some(match register {
            Register::RIP => registers.rip,
            Register::DS | Register::ES | Register::SS | Register::CS => 0,
            Register::None => 0,
            register if register.is_gpr64() => registers.general[register.number()],
            _ => return None,
        })
    };
    (0..instruction.op_count())
        .filter(|operand| instruction.op_kind(*operand) == OpKind::Memory)
        .filter(|_| instruction.mnemonic() != iced_x86::Mnemonic::Lea)
        .filter_map(|operand| instruction.virtual_address(operand, 0, value))
        .collect()
}

/// Runs each function and collects what is said about its accesses to
/// variables of the program.
fn check(program: &Path, name: &str) {
    for (function, expected) in expectations(name) {
        let mut traced = Traced::start(program);
        let map = ModuleMap::from_proc_maps(traced.pid()).unwrap();
        let found = map.functions_named(&function);
        assert_eq!(found.len(), 1, "{function}");
        let start = found[0].1.start;
        traced.run_to(start);
        let map = ModuleMap::from_proc_maps(traced.pid()).unwrap();
        let bottom = traced.registers().rsp();
        let mut seen: Vec<Option<AtomicUse>> = Vec::new();
        while traced.registers().rsp() <= bottom {
            let registers = traced.registers();
            let instruction = decode(&traced, registers.rip);
            for address in touched(&traced, &instruction) {
                let Some(variable) = map.variable_at(address) else {
                    continue;
                };
                if !VARIABLES.contains(&variable.name.as_str()) {
                    continue;
                }
                assert_eq!(
                    variable.atomic,
                    expected != "none",
                    "{function} touches {variable:?}"
                );
                let frame = StackFrame {
                    address: registers.rip,
                    is_return_address: false,
                    registers,
                };
                seen.push(map.atomic_access_in(&frame, &mut |at| traced.read(at)));
            }
            assert_eq!(traced.step(0), Stop::Signal(libc::SIGTRAP));
        }
        assert!(!seen.is_empty(), "{function} touches no variable");
        for access in seen {
            let text = match &access {
                None => "none".to_string(),
                Some(access) => format!(
                    "{} {}",
                    match access.operation {
                        AtomicOperation::Load => "load",
                        AtomicOperation::Store => "store",
                        AtomicOperation::ReadModifyWrite => "rmw",
                        AtomicOperation::Fence => "fence",
                    },
                    access
                        .order
                        .map_or("unknown".to_string(), |order: Ordering| format!(
                            "{order:?}"
                        ))
                ),
            };
            assert_eq!(text, expected, "{function} in {name}: {access:?}");
        }
    }
}

fn check_with(name: &str, flags: &[&str]) {
    let shop = Workshop::new();
    check(&shop.compile(name, "atomics", flags), name);
}

#[test]
fn cpp_unoptimised() {
    check_with("atomics.cpp", &["-O0", "-g"]);
}

#[test]
fn cpp_optimised() {
    check_with("atomics.cpp", &["-O2", "-g"]);
}

#[test]
fn rust_unoptimised() {
    check_with("atomics.rs", &["-g"]);
}

#[test]
fn rust_optimised() {
    check_with("atomics.rs", &["-O", "-g"]);
}
