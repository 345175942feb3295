//! One measured session: `bench-sample [OPTIONS] -- PROGRAM ARGUMENTS`, or
//! `bench-sample [OPTIONS] --pid PID`.
//!
//! Prints one line of numbers, `key=value`, that `bench/sample/run` makes
//! tables of: wall and CPU time of the program, samples, and what the sampler
//! itself used. With `--native` the program runs without sampling.

use collide::{Goal, Options, Target};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn children_cpu() -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage fills one rusage; all-zero is a valid one otherwise.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn native(command: &[String]) -> ExitCode {
    let begun = Instant::now();
    let status = Command::new(&command[0]).args(&command[1..]).status();
    let wall = begun.elapsed().as_secs_f64();
    match status {
        Ok(status) if status.success() => {
            println!("wall={wall:.4} cpu={:.4}", children_cpu());
            ExitCode::SUCCESS
        }
        Ok(status) => {
            eprintln!("{}: {status}", command[0]);
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{}: {error}", command[0]);
            ExitCode::FAILURE
        }
    }
}

fn main() -> ExitCode {
    let mut options = Options::default();
    let mut arguments = std::env::args().skip(1);
    let (mut run_native, mut until_race, mut attaches) = (false, false, false);
    let number = |arguments: &mut dyn Iterator<Item = String>| -> Option<f64> {
        arguments.next()?.parse().ok()
    };
    loop {
        let Some(argument) = arguments.next() else {
            if attaches {
                break;
            }
            eprintln!(
                "usage: bench-sample [--native] [--until-race] [--rate N] [--overhead PERCENT] [--delay US] [--unprivileged] [--duration S] (-- PROGRAM … | --pid PID)"
            );
            return ExitCode::from(2);
        };
        attaches |= argument == "--pid";
        let known = match argument.as_str() {
            "--" => break,
            "--native" => {
                run_native = true;
                Some(())
            }
            "--until-race" => {
                until_race = true;
                Some(())
            }
            "--unprivileged" => {
                options.per_thread = true;
                Some(())
            }
            "--pid" => {
                number(&mut arguments).map(|n| options.target = Target::Attach(vec![n as i32]))
            }
            "--rate" => number(&mut arguments).map(|n| options.goal = Goal::Rate(n)),
            "--overhead" => {
                number(&mut arguments).map(|n| options.goal = Goal::Overhead(n / 100.0))
            }
            "--delay" => {
                number(&mut arguments).map(|n| options.delay = Duration::from_micros(n as u64))
            }
            "--duration" => {
                number(&mut arguments).map(|n| options.duration = Some(Duration::from_secs_f64(n)))
            }
            _ => None,
        };
        if known.is_none() {
            eprintln!("bench-sample: `{argument}` is not understood");
            return ExitCode::from(2);
        }
    }
    let command: Vec<String> = arguments.collect();
    if command.is_empty() && !attaches {
        eprintln!("bench-sample: no program");
        return ExitCode::from(2);
    }
    if run_native {
        return native(&command);
    }
    if !attaches {
        options.target = Target::Launch(command);
    }
    let begun = Instant::now();
    let stop = AtomicBool::new(false);
    let mut first = None;
    let watch = |status: &collide::Status| {
        if status.races > 0 {
            first.get_or_insert(status.elapsed.as_secs_f64());
            stop.store(until_race, Ordering::Relaxed);
        }
    };
    match collide::run(&options, || stop.load(Ordering::Relaxed), watch) {
        Ok(finished) => {
            let totals = finished.totals;
            let wall = begun.elapsed().as_secs_f64();
            // The program is a child of the holder, the holder one of ours.
            let program = (children_cpu() - totals.holder_cpu).max(0.0);
            let each = |seconds: f64| seconds * 1e6 / totals.fired.max(1) as f64;
            println!(
                "wall={wall:.4} cpu={program:.4} samples={} fired={} bounced={} armed={} rate={:.1} races={} catches={} holder={:.4} front={:.4} stopped={:.4} us_stopped={:.1} us_holder={:.1} status={} {}",
                totals.samples,
                totals.fired,
                totals.bounced,
                totals.armed,
                totals.samples as f64 / totals.seconds.max(1e-9),
                finished.report.races.len(),
                totals.catches,
                totals.holder_cpu,
                totals.front_cpu,
                totals.stopped,
                each(totals.stopped),
                each(totals.holder_cpu),
                finished.report.exit.program.unwrap_or(-1),
                first.map_or(String::new(), |first| format!("first={first:.2}")),
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench-sample: {error}");
            ExitCode::FAILURE
        }
    }
}
