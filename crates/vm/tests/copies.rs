//! Copies of the world: many of them leave nothing behind, and none sees what
//! another writes.

use std::path::Path;
use std::process::Command;
use vm::record::{FORMAT, Manifest, Recording};
use vm::snapshot::{CopyError, Limits};
use vm::{Program, ScheduleChoice, Vm};

const SOURCE: &str = r#"
    #include <sys/mman.h>
    #include <unistd.h>
    long *shared;
    int main(void) {
        shared = mmap((void *)0x10000000, 4096, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        for (long i = 0; i < 1000; i++) (*shared)++;
        for (;;) (*shared)++;
    }
"#;

const SHARED: u64 = 0x1000_0000;

fn manifest(program: &Program) -> Manifest {
    Manifest {
        format: u32::from(FORMAT),
        made_by: "test".into(),
        program: program.path.as_os_str().as_encoded_bytes().to_vec(),
        arguments: program.arguments.clone(),
        environment: Vec::new(),
        directory: b"/".to_vec(),
        schedule: "random".into(),
        seed: 0,
        quantum: vm::DEFAULT_QUANTUM,
    }
}

/// A vm somewhere in the program's second loop.
fn vm_in_loop(folder: &Path) -> Result<Vm, vm::Error> {
    let (code, path) = (folder.join("program.c"), folder.join("program"));
    std::fs::write(&code, SOURCE).expect("the folder can be written");
    let compiled = Command::new("gcc")
        .args(["-O0", "-static", "-o"])
        .args([&path, &code])
        .status()
        .expect("gcc runs");
    assert!(compiled.success());
    let program = Program::find(path.as_os_str(), &[])?;
    let recording = Recording::create(&folder.join("recording"), manifest(&program))?;
    let mut vm = Vm::record(&recording, &program, ScheduleChoice::default())?;
    vm.run(Some(race::Moment::new(1, 200_000)))?;
    Ok(vm)
}

fn counter() -> i64 {
    vm::memory::get(SHARED).unwrap_or(-1)
}

fn children_and_descriptors() -> (usize, usize) {
    let count = |path: &str| std::fs::read_dir(path).map_or(0, |entries| entries.count());
    let children = std::fs::read_to_string("/proc/self/task/self/children")
        .or_else(|_| {
            let pid = std::process::id();
            std::fs::read_to_string(format!("/proc/self/task/{pid}/children"))
        })
        .map_or(0, |text| text.split_whitespace().count());
    (children, count("/proc/self/fd"))
}

#[test]
fn ten_thousand_copies_leave_nothing_behind_and_keep_to_themselves() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_path_buf();
    let told: Result<(i64, bool), String> = vm::snapshot::isolated(move || {
        let mut vm = vm_in_loop(&path)?;
        let before = children_and_descriptors();
        let start = counter();
        let mut alike = true;
        for _ in 0..10_000 {
            let copy = vm.copy(Limits::default(), |vm| {
                vm.run_thread(1, 300, false)?;
                Ok(counter())
            });
            let seen = copy.and_then(|running| running.join());
            // Each copy counts on from the same value; nobody sees another's.
            alike &= matches!(seen, Ok(Ok(value)) if value > start) && counter() == start;
        }
        Ok((start, alike && before == children_and_descriptors()))
    })
    .expect("a fork")
    .join()
    .expect("an answer");
    let (start, clean) = told.expect("the vm runs");
    assert!(start > 0, "the program has counted: {start}");
    assert!(
        clean,
        "a copy left something behind or saw another's memory"
    );
}

#[test]
fn a_copy_that_runs_away_or_dies_hurts_nobody() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_path_buf();
    let told: Result<(bool, bool), String> = vm::snapshot::isolated(move || {
        let mut vm = vm_in_loop(&path)?;
        let limits = Limits {
            instructions: 50_000,
            ..Limits::default()
        };
        let stopped = vm.copy(limits, |vm| Ok(vm.run(None)? == vm::Stop::Limit));
        let limited = matches!(stopped.and_then(|running| running.join()), Ok(Ok(true)));
        let killed = vm.copy(Limits::default(), |_| -> Result<(), vm::Error> {
            std::process::abort()
        });
        let died = matches!(
            killed.and_then(|running| running.join()),
            Err(CopyError::Died(_))
        );
        Ok((limited, died))
    })
    .expect("a fork")
    .join()
    .expect("an answer");
    assert_eq!(told, Ok((true, true)));
}
