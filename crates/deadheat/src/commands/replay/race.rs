//! `deadheat replay --race`, `--order`, `--gdb`: one race of a recording, in
//! either order, alone or under gdb.

use super::Failure;
use clap::{Args, ValueEnum};
use race::{Instance, Moment, Race, Report};
use report::Store;
use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use timeline::gdb::{Door, Landmarks, Session};
use timeline::{Alternative, Timeline};
use vm::Stop;
use vm::record::{ProcessStatus, Recording};
use vm::schedule::Choice;

/// How far an order is followed after the race, in instructions.
const LIMIT: u64 = 2_000_000_000;

#[derive(Args)]
#[command(next_help_heading = "Race and debugger")]
pub struct RaceArguments {
    /// Go to this race: its number in the report of the recording, or its
    /// fingerprint
    #[arg(long, value_name = "RACE")]
    race: Option<String>,
    /// Play the accesses of the race in this order
    #[arg(long, value_name = "ORDER")]
    order: Option<OrderName>,
    /// Which instance of the race, counted from 1 [default: the one the report
    /// tells of]
    #[arg(long, value_name = "N", requires = "race")]
    instance: Option<usize>,
    /// The report that numbers the races, as --json=FILE wrote it [default:
    /// the store's, or the races are searched again]
    #[arg(long, value_name = "FILE", requires = "race")]
    report: Option<PathBuf>,
    /// Serve the replay to gdb: at HOST:PORT, :PORT, the path of a socket, or
    /// `-` for standard input and output. Without an address gdb is started.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    gdb: Option<String>,
    /// Let gdb change memory and registers, in a copy that goes its own way
    #[arg(long, requires = "gdb")]
    allow_write: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OrderName {
    /// As in the recording
    Recorded,
    /// The other way round
    Swapped,
}

impl RaceArguments {
    pub fn wants_gdb(&self) -> bool {
        self.gdb.is_some()
    }

    pub fn names_a_race(&self) -> bool {
        self.race.is_some() || self.order.is_some()
    }

    pub fn is_asked_for(&self) -> bool {
        self.race.is_some() || self.gdb.is_some() || self.order.is_some()
    }
}

/// Where `replay` is to stop and show the thread, if nothing else was asked.
pub enum Next {
    Done(i32),
    Show(Moment),
}

/// Serves one piece of evidence to gdb.
pub fn evidence(
    directory: &Path,
    process: u32,
    number: u32,
    arguments: &RaceArguments,
) -> Result<i32, Failure> {
    let recording = Recording::open(directory)?.of_process(process);
    let failure = crate::exploration::failure;
    let witness = explore::read_evidence(&recording, number).map_err(failure)?;
    let swapped = arguments.order != Some(OrderName::Recorded);
    let scripted = witness.script(&recording, swapped).map_err(failure)?;
    let plan = Plan {
        recording: &recording,
        process,
        race: None,
        instance: Some(witness.occurrence.instance),
        way: Some(Way::of_evidence(number, scripted)),
        until: None,
        allow_write: arguments.allow_write,
    };
    debug(&plan, arguments.gdb.as_deref().unwrap_or_default())
}

pub fn run(
    directory: &Path,
    process: u32,
    until: Option<Moment>,
    arguments: &RaceArguments,
) -> Result<Next, Failure> {
    let race = match &arguments.race {
        Some(name) => Some(find(directory, name, arguments.report.as_deref())?),
        None => None,
    };
    let own = race.as_ref().and_then(|race| race.process);
    let process = own.unwrap_or(process);
    let recording = Recording::open(directory)?.of_process(process);
    let instance = match &race {
        Some(race) => Some(instance(race, arguments.instance)?),
        None => None,
    };
    let script = match (arguments.order, instance) {
        (Some(order), Some(instance)) => Some(script(&recording, instance, order)?),
        _ => None,
    };
    if let Some(address) = &arguments.gdb {
        let plan = Plan {
            recording: &recording,
            process,
            race: race.as_ref(),
            instance,
            way: script
                .as_ref()
                .zip(arguments.order)
                .zip(instance)
                .map(|((script, order), instance)| Way::of_order(script, order, instance)),
            until,
            allow_write: arguments.allow_write,
        };
        return debug(&plan, address).map(Next::Done);
    }
    match (instance, script) {
        (Some(instance), Some(script)) => {
            let stop = reorder::show(&recording, instance, &script)?;
            say!("deadheat: {}", report::plain(&script.ending));
            Ok(Next::Done(match stop {
                Stop::Ended(status) => super::end_like(status),
                _ => race::exit_code::FAILURE,
            }))
        }
        (Some(instance), None) => Ok(Next::Show(instance.first)),
        (None, _) => Err(Failure::usage("--order needs --race")),
    }
}

/// The race that `name` means in the recording's report.
fn find(directory: &Path, name: &str, file: Option<&Path>) -> Result<Race, Failure> {
    let report = match file {
        Some(file) => report::read(file)?,
        None => match stored(directory) {
            Some(report) => report,
            None => detect::detect_tree(directory, &detect::Options::default(), None)?,
        },
    };
    crate::runs::find(&report, name).cloned()
}

/// The report that the store keeps with this recording.
fn stored(directory: &Path) -> Option<Report> {
    let full = directory.canonicalize().ok()?;
    let number = full.file_name()?.to_str()?.parse().ok()?;
    Store::open(full.parent()?).ok()?.report(number).ok()
}

fn instance(race: &Race, number: Option<usize>) -> Result<Instance, Failure> {
    let told = race.evidence.iter().find_map(|evidence| evidence.instance);
    let chosen = match number {
        Some(number) => number
            .checked_sub(1)
            .and_then(|index| race.occurrences.get(index).copied()),
        None => told.or(race.occurrences.first().copied()),
    };
    chosen.ok_or_else(|| {
        Failure::usage(match (number, race.occurrences.len()) {
            (_, 0) => format!(
                "race {} has no instance in this recording that could be replayed",
                race.id
            ),
            (_, known) => format!(
                "the report lists {known} instances of race {}: give --instance 1 to {known}",
                race.id
            ),
        })
    })
}

fn script(
    recording: &Recording,
    instance: Instance,
    order: OrderName,
) -> Result<reorder::Script, Failure> {
    let order = match order {
        OrderName::Recorded => reorder::Order::Recorded,
        OrderName::Swapped => reorder::Order::Swapped,
    };
    reorder::script(recording, instance, order, LIMIT)
        .map_err(|error| Failure {
            code: error.exit_code(),
            message: error.to_string(),
        })?
        .map_err(|why| Failure::own(format!("this order cannot be played: {why}")))
}

/// An execution that leaves the recording.
struct Way {
    alternative: Alternative,
    /// Where both accesses are about to be made, and where only the other one
    /// still is.
    point: u64,
    between: u64,
    swapped: bool,
    title: String,
}

impl Way {
    fn of_order(script: &reorder::Script, order: OrderName, instance: Instance) -> Way {
        let words = match order {
            OrderName::Recorded => "in recorded order",
            OrderName::Swapped => "swapped",
        };
        Way {
            alternative: Alternative {
                leave: Some(instance.first),
                tick: script.left_at,
                slices: script
                    .slices
                    .iter()
                    .map(|(thread, instructions)| Choice {
                        thread: *thread,
                        instructions: *instructions,
                    })
                    .collect(),
                inputs: None,
                ending: None,
            },
            point: script.point,
            between: script.between,
            swapped: order == OrderName::Swapped,
            title: format!("{words}; {}", script.ending),
        }
    }

    fn of_evidence(number: u32, scripted: explore::Scripted) -> Way {
        let words = if scripted.swapped {
            "swapped"
        } else {
            "in recorded order"
        };
        Way {
            title: format!(
                "evidence {number}, {words}; the program {}",
                scripted.ending.describe()
            ),
            alternative: Alternative {
                leave: scripted.leave,
                tick: scripted.left_at,
                slices: scripted.slices,
                inputs: Some(Rc::new(scripted.inputs)),
                ending: match scripted.ending {
                    explore::Ending::Killed { signal, .. } => Some(ProcessStatus::Killed(signal)),
                    explore::Ending::Exited(code) => Some(ProcessStatus::Exited(code)),
                    _ => None,
                },
            },
            point: scripted.point,
            between: scripted.between,
            swapped: scripted.swapped,
        }
    }
}

/// What gdb is to be shown.
struct Plan<'a> {
    recording: &'a Recording,
    /// Which process of it.
    process: u32,
    race: Option<&'a Race>,
    instance: Option<Instance>,
    way: Option<Way>,
    until: Option<Moment>,
    allow_write: bool,
}

impl Plan<'_> {
    fn session(&self) -> Result<Session, timeline::Error> {
        let alternative = self.way.as_ref().map(|way| way.alternative.clone());
        let mut timeline = Timeline::of_process(self.recording, self.process, alternative)?;
        let landmarks = self.landmarks(&timeline);
        let start = landmarks
            .point
            .or(landmarks.first.map(|(tick, _)| tick))
            .or(self.until.and_then(|until| timeline.ticks().tick(until)));
        timeline.seek(start.unwrap_or(0), &mut || false)?;
        Ok(Session {
            timeline,
            landmarks,
            program: self.recording.manifest.program.clone(),
            allow_write: self.allow_write,
            again: true,
        })
    }

    fn landmarks(&self, timeline: &Timeline) -> Landmarks {
        let Some(instance) = self.instance else {
            return Landmarks::default();
        };
        let title = self.race.map_or_else(String::new, |race| {
            let [one, other] = report::between(race);
            format!("race {}: {one} / {other}", race.id)
        });
        let (first, second) = (instance.first.thread, instance.second.thread);
        match &self.way {
            None => Landmarks {
                title,
                first: timeline
                    .ticks()
                    .tick(instance.first)
                    .map(|tick| (tick, Some(first))),
                second: timeline
                    .ticks()
                    .tick(instance.second)
                    .map(|tick| (tick, Some(second))),
                point: None,
            },
            Some(way) => {
                let ticks = if way.swapped {
                    (way.between, way.point)
                } else {
                    (way.point, way.between)
                };
                let comma = if title.is_empty() { "" } else { ", " };
                Landmarks {
                    title: format!("{title}{comma}{}", way.title),
                    first: Some((ticks.0, Some(first))),
                    second: Some((ticks.1, Some(second))),
                    point: Some(way.point),
                }
            }
        }
    }
}

fn debug(plan: &Plan, address: &str) -> Result<i32, Failure> {
    let failed = |error: timeline::Error| Failure {
        code: error.exit_code(),
        message: error.to_string(),
    };
    if address.is_empty() && std::io::stdin().is_terminal() && has_gdb() {
        return with_gdb(plan);
    }
    let session = plan.session().map_err(failed)?;
    let address = if address.is_empty() { ":0" } else { address };
    let mut door = Door::open(address)
        .map_err(|error| Failure::usage(format!("cannot listen at `{address}`: {error}")))?;
    if address != "-" {
        say!(
            "deadheat: waiting for gdb: target remote {} (monitor help tells what else there is)",
            door.name()
        );
    }
    timeline::gdb::serve(session, &mut door).map_err(failed)?;
    Ok(0)
}

fn has_gdb() -> bool {
    Command::new("gdb")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Starts gdb on a socket of its own and serves it until it ends.
fn with_gdb(plan: &Plan) -> Result<i32, Failure> {
    let failure = |what: &str, error: std::io::Error| Failure {
        code: race::exit_code::FAILURE,
        message: format!("{what}: {error}"),
    };
    // SAFETY: an interrupt from the terminal is gdb's to handle.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
    let mut session = plan.session().map_err(|error| Failure {
        code: error.exit_code(),
        message: error.to_string(),
    })?;
    session.again = false;
    let socket = crate::temporary::folder()?.join("socket");
    let mut door = Door::open(&socket.display().to_string())
        .map_err(|error| failure("cannot listen for gdb", error))?;
    // The recording says what it is called: nothing that gdb would wait for.
    let program = Path::new(OsStr::from_bytes(&session.program)).to_path_buf();
    let is_file = folder::open_regular(&program, folder::STREAM).is_ok();
    let started = Command::new("gdb")
        .args(["-q", "-ex", "set confirm off"])
        // A jump by `monitor` changes what gdb has read before.
        .args(["-ex", "define hookpost-monitor\nmaintenance flush register-cache\nmaintenance flush dcache\nend"])
        .arg("-ex")
        .arg(format!("target remote {}", socket.display()))
        .args(["-ex", "monitor race"])
        // Nor an option: gdb executes what follows `-ex=`.
        .arg("--")
        .args(is_file.then_some(program))
        .spawn();
    let served = started
        .map_err(|error| failure("cannot start gdb", error))
        .and_then(|mut gdb| {
            let served = timeline::gdb::serve(session, &mut door);
            let ended = gdb.wait();
            served.map_err(|error| Failure {
                code: error.exit_code(),
                message: error.to_string(),
            })?;
            ended.map_err(|error| failure("waiting for gdb", error))
        });
    drop(door);
    served.map(|_| 0)
}
