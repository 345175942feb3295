//! `deadheat ifr-report`: names the races that an instrumented program saw.
//! The run-time starts it at the program's end with its log on standard input.

use super::Failure;
use ifr_runtime::log::{End, Kind, Log, LoggedRace, Side};
use race::{Access, AccessKind, Fingerprint, Frame, Object, Place, Race, Report};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Read;
use std::path::PathBuf;
use symbols::{Chosen, ModuleMap, Registers, Roles, StackFrame, Variable};

#[derive(clap::Args)]
pub struct Arguments {
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE")]
    json_file: Option<PathBuf>,
    /// A log kept in a file, instead of standard input
    #[arg(value_name = "LOG")]
    log: Option<PathBuf>,
}

fn frames(map: &ModuleMap, addresses: &[u64]) -> Vec<Frame> {
    // What calls the program's code (our run-time, Rust's) is of no interest.
    let outside = |frame: &Frame| {
        frame.function.as_deref().is_some_and(|function| {
            function.starts_with("deadheat_ifr::")
                || function.contains("__rust_begin_short_backtrace")
        })
    };
    addresses
        .iter()
        .flat_map(|&address| map.frames(address, true))
        .take_while(|frame| !outside(frame))
        .collect()
}

/// Who made the access, by the return addresses that were logged: memory is not
/// there to be read any more.
fn chosen(map: &ModuleMap, side: &Side, object: Option<&Variable>) -> Chosen {
    let frames: Vec<StackFrame> = side
        .frames
        .iter()
        .map(|address| StackFrame {
            address: *address,
            is_return_address: true,
            registers: Registers::default(),
        })
        .collect();
    let object = object.map(|found| found.start..found.start.saturating_add(found.size));
    Roles::default().chosen(map, &frames, object.as_ref(), &mut |_| None)
}

fn access(map: &ModuleMap, side: &Side, address: u64, object: Option<&Variable>) -> Access {
    let kind = match side.kind {
        Kind::Read | Kind::AtomicRead => AccessKind::Read,
        Kind::Write | Kind::AtomicWrite => AccessKind::Write,
        Kind::Free => AccessKind::Free,
        Kind::Unknown => AccessKind::Unknown,
    };
    // The site is where the monitor's call returns to: the call before it
    // carries the line of the access.
    let site = side
        .frames
        .first()
        .map(|site| map.site(site.saturating_sub(1)))
        .unwrap_or_default();
    let mut access = Access::new(kind, side.size, site);
    access.caller = chosen(map, side, object).caller;
    access.atomic = matches!(side.kind, Kind::AtomicRead | Kind::AtomicWrite);
    access.address = Some(address);
    access.thread = Some(side.kernel_thread);
    access.stack = frames(map, &side.frames);
    access.thread_created_at = frames(map, &side.created_at);
    access
}

/// What the bytes are, if of a variable of the program.
fn variable(map: &ModuleMap, race: &LoggedRace) -> Option<Variable> {
    let sizes = race.sides.iter().map(|side| u64::from(side.size));
    // A walk over many bytes has no size.
    let size = sizes.filter(|size| *size > 0).min().unwrap_or(1);
    map.variable_over(race.address, size)
}

fn name(map: &ModuleMap, races: &[LoggedRace]) -> Vec<Race> {
    // Inlining makes many sites of one source line: the same race, unless it is
    // about another variable.
    let mut known: HashMap<Fingerprint, usize> = HashMap::new();
    let mut named: Vec<Race> = Vec::new();
    for logged in races {
        let [first, second] = logged.sides.as_slice() else {
            continue;
        };
        let variable = variable(map, logged);
        let accesses =
            [first, second].map(|side| access(map, side, logged.address, variable.as_ref()));
        let mut race = Race::new(0, logged.instances, accesses);
        if let Some(variable) = variable {
            race.set_object(Object::variable(
                &variable.name,
                &variable.path,
                variable.start,
            ));
            race.place = Some(Place {
                address: Some(logged.address),
                description: variable.path,
                allocated_at: Vec::new(),
            });
        }
        match known.entry(race.fingerprint.clone()) {
            Entry::Occupied(index) => {
                let known = &mut named[*index.get()];
                known.instances += race.instances;
                known.join_objects(&race);
            }
            Entry::Vacant(vacant) => {
                vacant.insert(named.len());
                named.push(race);
            }
        }
    }
    named
}

fn not_checked(log: &Log) -> Vec<String> {
    let mut said = Vec::new();
    let list = |names: &[String]| names.join(", ");
    if !log.trusted.is_empty() {
        said.push(format!(
            "code without monitors, trusted to synchronise only by functions that are seen: {}",
            list(&log.trusted)
        ));
    }
    if !log.foreign.is_empty() {
        said.push(format!(
            "code without monitors that synchronises by itself; monitors were stopped around it: {}",
            list(&log.foreign)
        ));
    }
    if log.sample < 100 {
        said.push(format!("monitors ran {} % of the time", log.sample));
    }
    if log.cap > 0 {
        said.push(format!(
            "at most {} monitors per site between two releases",
            log.cap
        ));
    }
    if log.budget > 0 {
        said.push(format!(
            "monitors rested whenever they had taken more than {} % of the time",
            log.budget
        ));
    }
    if log.unmonitored_threads > 0 {
        said.push(format!(
            "{} threads beyond 254 at once ran without monitors",
            log.unmonitored_threads
        ));
    }
    if log.lost > 0 {
        said.push(format!(
            "{} more occurrences of further races were not kept",
            log.lost
        ));
    }
    said
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let mut bytes = Vec::new();
    let read = match &arguments.log {
        Some(path) => std::fs::read(path).map(|read| bytes = read),
        None => std::io::stdin().lock().read_to_end(&mut bytes).map(|_| ()),
    };
    read.map_err(|error| Failure::own(format!("cannot read the monitor log: {error}")))?;
    let log = Log::parse(&bytes).map_err(Failure::own)?;
    let mut map = ModuleMap::new();
    for mapping in &log.mappings {
        map.insert(mapping.range.clone(), &mapping.path, mapping.offset);
    }
    let mut report = Report::new("ifr", log.arguments.clone());
    report.races = name(&map, &log.races);
    report.sort_and_number();
    report.not_checked = not_checked(&log);
    report.exit.program = log.end.map(|end| match end {
        End::Code(code) => code,
        End::Signal(signal) => 128 + signal,
    });
    report.exit.deadheat = if report.races.is_empty() {
        0
    } else {
        race::exit_code::RACES
    };
    let options = report::Options {
        stream: report::Stream::Stderr,
        source_lines: 0,
        ..report::Options::default()
    };
    if !report.races.is_empty() {
        report::print(&report, &options)
            .map_err(|error| Failure::own(format!("cannot print the report: {error}")))?;
    }
    if let Some(path) = &arguments.json_file {
        std::fs::write(path, report::json_text(&report))
            .map_err(|error| Failure::usage(format!("cannot write {}: {error}", path.display())))?;
    }
    Ok(0)
}
