//! Translated code against native code, exact.
//!
//! Programs are generated from a seed: cases that set every register, flag,
//! x87 and vector register and byte of their memory, run a few instructions
//! drawn from the decoder's tables with random operands (or a shape of control
//! flow, string or stack code around them) and write the whole outcome to
//! descriptor 1. Each program runs natively and under `deadheat record` and
//! `deadheat replay`, in reach and out of reach of the code cache, alone and
//! beside a second thread with quanta down to one instruction; outcomes must
//! be equal byte for byte.
//!
//! Not compared, because the architecture or the vm's purpose makes them
//! differ: cpuid, time stamps, random numbers, the processor's number (rdpid,
//! lsl), xgetbv, where the machine's tables are (sgdt and its kin), transactions, protection keys, monitor and wait instructions, loads of segment
//! selectors;
//! the x87 opcode, instruction and data pointers, which natively are lost at a
//! switch of threads (processors save them while an exception is pending only)
//! and under the vm always read zero; and which XSAVE components are in use. Codes this processor does not have are left out by trying them; cases
//! that fault natively are compared by their fault state instead.
//!
//!     cargo test --release -p deadheat --test differential
//!     cargo test --release -p deadheat --test differential -- --seed 7 --case 12
//!
//! The gate runs a fixed number of programs; DEADHEAT_DIFFERENTIAL_SECONDS
//! searches on for that long (0: without end).

mod assembler;
mod child;
mod counts;
mod elf;
mod faults;
mod generate;
mod program;
mod random;
mod run;
mod sequences;
mod tracer;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.split_first() {
        Some((first, rest)) if first == child::CHILD => child::main(rest),
        _ => sequences::run(&arguments),
    };
    let code = match result {
        Ok(()) => 0,
        Err(message) => {
            eprintln!("{message}");
            1
        }
    };
    std::process::exit(code);
}
