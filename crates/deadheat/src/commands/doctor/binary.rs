//! What deadheat will be able to say about one program or library.

use super::{BINARY, Finding};
use crate::commands::Failure;
use std::fs;
use std::io::Read;
use std::path::Path;
use symbols::Module;

pub fn examine(path: &Path) -> Result<Vec<Finding>, Failure> {
    let name = path.display();
    let mut head = [0u8; 64];
    let mut file = fs::File::open(path)
        .map_err(|error| Failure::usage(format!("cannot read {name}: {error}")))?;
    let got = file
        .read(&mut head)
        .map_err(|error| Failure::usage(format!("cannot read {name}: {error}")))?;
    if let Some(finding) = not_elf(&head[..got]) {
        return Ok(vec![finding]);
    }
    let machine = u16::from_le_bytes([head[18], head[19]]);
    if head[4] != 2 || machine != 62 {
        return Ok(vec![Finding::missing(
            BINARY,
            format!("{name} is not 64-bit x86 code"),
            "build it for x86_64; deadheat runs x86-64 Linux programs only",
        )]);
    }
    let module = Module::open(path);
    if !module.is_readable() {
        return Ok(vec![Finding::missing(
            BINARY,
            format!("{name} has damaged ELF headers"),
            "build or install it again",
        )]);
    }
    let mut findings = vec![Finding::good(
        BINARY,
        format!("{name} is an x86-64 ELF file"),
    )];
    let set_id = {
        use std::os::unix::fs::PermissionsExt;
        fs::metadata(path).is_ok_and(|facts| facts.permissions().mode() & 0o6000 != 0)
    };
    if set_id {
        findings.push(Finding::limited(
            BINARY,
            "it is set-user-ID: under deadheat it runs with your own rights",
            "run a copy without the bit, as the user it needs",
        ));
    }
    findings.push(debug_info(&module));
    let functions = module.functions().count();
    findings.push(match functions {
        0 => Finding::limited(
            BINARY,
            "no symbols: functions are named by module and offset, locks of static libraries are not recognised",
            "do not strip it, or install its -dbgsym package",
        ),
        number => Finding::good(BINARY, format!("{number} functions with names")),
    });
    findings.push(match module.unwind_ranges().next() {
        Some(_) => Finding::good(BINARY, "unwind tables: full stacks"),
        None => Finding::limited(
            BINARY,
            "no unwind tables: stacks come from the vm's own record of calls",
            "compile with -fasynchronous-unwind-tables",
        ),
    });
    Ok(findings)
}

fn debug_info(module: &Module) -> Finding {
    if module.has_debug_info() {
        return Finding::good(BINARY, "debug info: files, lines, variables, memory orders");
    }
    let id: Option<String> = module
        .build_id()
        .map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect());
    let fetch = match id {
        Some(id) => format!(
            "compile with -g (cargo: debug = true), or install its debug package (build id {id}; debuginfod-find debuginfo {id})"
        ),
        None => "compile with -g (cargo: debug = true in the profile)".into(),
    };
    Finding::limited(
        BINARY,
        "no debug info: no files and lines, and C11 or C++ atomics are recognised only by their instructions",
        fetch,
    )
}

fn not_elf(head: &[u8]) -> Option<Finding> {
    if head.len() == 64 && head.starts_with(b"\x7fELF") {
        return None;
    }
    Some(match head.strip_prefix(b"#!") {
        Some(line) => {
            let line = String::from_utf8_lossy(line);
            let interpreter = line.lines().next().unwrap_or("").trim().to_string();
            Finding::limited(
                BINARY,
                format!("a script for {interpreter}"),
                format!(
                    "examine the interpreter: deadheat doctor {}",
                    interpreter.split(' ').next().unwrap_or("")
                ),
            )
        }
        None => Finding::missing(
            BINARY,
            "not a program (no ELF file)",
            "give an executable or a shared library",
        ),
    })
}
