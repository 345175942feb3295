//! Both orders of hand-made instances of a static two-thread program.

use race::{Instance, Moment, States};
use reorder::{Budget, Location, Outcome};
use std::any::Any;
use std::path::{Path, PathBuf};
use std::process::Command;
use vm::observe::{AccessEvent, Interest, Observer};
use vm::record::{FORMAT, Manifest, Recording};
use vm::{Program, ScheduleChoice, Vm};

/// Compiles `source` into a static program in `folder`.
fn compile(folder: &Path, source: &str) -> PathBuf {
    let (code, program) = (folder.join("program.c"), folder.join("program"));
    std::fs::write(&code, source).unwrap();
    let status = Command::new("gcc")
        .args(["-O0", "-g", "-static", "-pthread", "-o"])
        .arg(&program)
        .arg(&code)
        .status()
        .unwrap();
    assert!(status.success());
    program
}

fn record(folder: &Path, program: &Path) -> Recording {
    let program = Program::find(program.as_os_str(), &[]).unwrap();
    let schedule = ScheduleChoice {
        quantum: 500,
        ..ScheduleChoice::default()
    };
    let manifest = Manifest {
        format: u32::from(FORMAT),
        made_by: "test".into(),
        program: program.path.as_os_str().as_encoded_bytes().to_vec(),
        arguments: program.arguments.clone(),
        environment: program.environment.clone(),
        directory: b"/".to_vec(),
        schedule: "random".into(),
        seed: schedule.seed,
        quantum: schedule.quantum,
        left_out: Vec::new(),
        guard: None,
        redacted: Vec::new(),
    };
    let directory = folder.join("recording");
    let recording = Recording::create(&directory, manifest).unwrap();
    let copy = recording.clone();
    vm::snapshot::isolated(move || {
        let mut vm = Vm::record(&copy, &program, schedule)?;
        vm.run(None)?;
        Ok(())
    })
    .unwrap()
    .join()
    .unwrap()
    .unwrap();
    recording
}

/// Accesses to the eight bytes at `address` by threads other than the first.
struct Watch {
    address: u64,
    seen: Vec<(Moment, bool)>,
}

impl Observer for Watch {
    fn interest(&self) -> Interest {
        Interest {
            accesses: true,
            ..Interest::default()
        }
    }

    fn accesses(&mut self, batch: &[AccessEvent]) {
        for access in batch {
            if access.address == self.address && access.moment.thread > 1 {
                self.seen.push((access.moment, access.write));
            }
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Neighbouring conflicting accesses of different threads to the global
/// variable `name`.
fn instances(recording: &Recording, program: &Path, name: &str) -> (u64, Vec<Instance>) {
    let symbols = Command::new("nm").arg(program).output().unwrap();
    let address = String::from_utf8(symbols.stdout)
        .unwrap()
        .lines()
        .find(|line| line.ends_with(&format!(" {name}")))
        .and_then(|line| u64::from_str_radix(line.split(' ').next()?, 16).ok())
        .unwrap();
    let copy = recording.clone();
    let seen: Vec<(Moment, bool)> = vm::snapshot::isolated(move || {
        let mut vm = Vm::replay(&copy)?;
        vm.observe(Box::new(Watch {
            address,
            seen: Vec::new(),
        }));
        vm.run(None)?;
        let watch = vm.take_observers().remove(0).into_any();
        Ok(watch.downcast::<Watch>().unwrap().seen)
    })
    .unwrap()
    .join()
    .unwrap()
    .unwrap();
    let pairs = seen
        .windows(2)
        .filter(|pair| pair[0].0.thread != pair[1].0.thread && (pair[0].1 || pair[1].1))
        .map(|pair| Instance {
            first: pair[0].0,
            second: pair[1].0,
            address,
            size: 8,
        })
        .collect();
    (address, pairs)
}

fn analyse(source: &str, name: &str) -> (u64, Vec<Outcome>) {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), source);
    let recording = record(folder.path(), &program);
    let (address, instances) = instances(&recording, &program, name);
    assert!(
        !instances.is_empty(),
        "the schedule brings the accesses together"
    );
    let outcomes = reorder::both_orders(&recording, &instances, Budget::default()).unwrap();
    (address, outcomes.into_iter().map(Option::unwrap).collect())
}

const TWO_THREADS: &str = "
    int main(void) {
        pthread_t one, two;
        pthread_create(&one, 0, work, (void *)1);
        pthread_create(&two, 0, work, (void *)2);
        pthread_join(one, 0);
        pthread_join(two, 0);
        return 0;
    }";

#[test]
fn a_lost_update_changes_the_state() {
    let source = format!(
        "#include <pthread.h>
         long counter;
         static void *work(void *a) {{ for (int i = 0; i < 500; i++) counter++; return a; }}
         {TWO_THREADS}"
    );
    let (address, outcomes) = analyse(&source, "counter");
    assert_eq!(reorder::verdict(outcomes.iter()), Some(States::StateChange));
    let named = outcomes.iter().any(|outcome| match outcome {
        Outcome::StateChange(differences) => differences
            .iter()
            .any(|difference| difference.location == Location::Memory(address)),
        _ => false,
    });
    assert!(named, "the counter is among the differences: {outcomes:?}");
}

#[test]
fn writing_the_same_value_twice_changes_nothing() {
    let source = format!(
        "#include <pthread.h>
         long flag;
         static void *work(void *a) {{ for (int i = 0; i < 500; i++) flag = 7; return a; }}
         {TWO_THREADS}"
    );
    let (_, outcomes) = analyse(&source, "flag");
    assert_eq!(
        reorder::verdict(outcomes.iter()),
        Some(States::NoStateChange),
        "{outcomes:?}"
    );
}
