//! Evidence: executions that show what a race does, to be run again.
//!
//! A witness is data: where the first access is held, where the second is,
//! which order, which schedule. Running it again gives the same execution to
//! the last instruction (paper 003, section 4.7). They are kept in the
//! recording's directory, `evidence.json`, numbered from 1.

use crate::consequence::{Checks, Finding, Watching};
use crate::pair::{self, Plan};
use crate::point;
use crate::run::{self, Ending, Run};
use crate::{
    Bytes, Error, Looked, Occurrence, Origin, Outcome, OutputComparison, Pair, Poised, Schedule,
    SequentialConsistency,
};
use folder::Place;
use race::Moment;
use serde::{Deserialize, Serialize};

use std::rc::Rc;
use vm::copy::InputIndex;
use vm::record::Recording;
use vm::schedule::Choice;
use vm::snapshot::{Failed, Limits};
use vm::{Stop, Vm};

/// What is to be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Play {
    /// One order.
    Order { swapped: bool },
    /// Both, to compare their outputs.
    Both,
    /// The first thread held until the others stop, then released.
    Held,
}

/// One piece of evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Witness {
    pub id: u32,
    pub occurrence: Occurrence,
    pub second: Moment,
    pub play: Play,
    pub schedule: Schedule,
    pub racy: Vec<u64>,
    pub limit: u64,
    /// What was seen, in words.
    pub seen: String,
    /// What was watched, and what of it was seen to be wrong.
    #[serde(default)]
    pub checks: Checks,
    #[serde(default)]
    pub error: Option<Finding>,
}

/// What running a witness again gave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replayed {
    /// The execution in recorded order, and swapped; only those that were run.
    pub recorded: Option<Run>,
    pub swapped: Option<Run>,
    /// It did the same again.
    pub still_there: bool,
    pub seen: String,
}

/// One execution of a piece of evidence, from start to end.
pub struct Scripted {
    /// The recording is left when this moment comes; at its very start if
    /// there is none.
    pub leave: Option<Moment>,
    /// Instructions of all threads there.
    pub left_at: u64,
    /// The same at the race point: the first of the two accesses to be made
    /// is next.
    pub point: u64,
    /// The same where the other one is next.
    pub between: u64,
    pub swapped: bool,
    /// What runs from `left_at` on.
    pub slices: Vec<Choice>,
    /// Which stream takes each recorded input: whoever follows the slices
    /// must take them the same way.
    pub inputs: InputIndex,
    pub ending: Ending,
}

impl Witness {
    pub(crate) fn of(looked: &Looked, pair: &Pair, play: Play, seen: String) -> Witness {
        let instance = looked.occurrence.instance;
        Witness {
            id: 0,
            occurrence: looked.occurrence,
            second: looked
                .poised
                .map_or(instance.second, |poised| poised.second),
            play,
            schedule: pair.schedule,
            racy: looked.racy.clone(),
            limit: looked.limit,
            seen,
            checks: looked.checks.clone(),
            error: match &pair.outcome {
                Outcome::Violation {
                    ending: Ending::Erred(error),
                    ..
                } => Some(error.as_ref().clone()),
                _ => None,
            },
        }
    }

    pub(crate) fn held(looked: &Looked, ending: &Ending) -> Witness {
        Witness {
            id: 0,
            occurrence: looked.occurrence,
            second: looked.occurrence.instance.second,
            play: Play::Held,
            schedule: Schedule::Recorded,
            racy: looked.racy.clone(),
            limit: looked.limit,
            seen: ending.describe(),
            checks: Checks::default(),
            error: None,
        }
    }

    /// The schedule in words.
    pub fn words(&self) -> Vec<String> {
        let first = self.occurrence.instance.first;
        let second = self.second;
        let how = match self.occurrence.before {
            None => "run as recorded".to_string(),
            Some(Origin::Schedule(schedule)) => {
                format!("run under {schedule} from the start")
            }
            Some(origin) => format!("run {origin},"),
        };
        let mut words = vec![
            format!(
                "{how} until thread {} is about to make the first access ({first})",
                first.thread
            ),
            format!("hold thread {} there", first.thread),
        ];
        let swap = |swapped: bool| {
            let [one, other] = if swapped {
                [second.thread, first.thread]
            } else {
                [first.thread, second.thread]
            };
            format!("let thread {one} make its access, then thread {other}")
        };
        if self.play == Play::Held {
            words.push("run the other threads until none can go on".to_string());
            words.push(format!(
                "release thread {} and run to the end",
                first.thread
            ));
            return words;
        }
        words.push(format!(
            "run the others until thread {} is about to make the second access ({second})",
            second.thread
        ));
        match self.play {
            Play::Order { swapped } => words.push(swap(swapped)),
            Play::Both | Play::Held => {
                words.push(format!("once {}", swap(false)));
                words.push(format!("and once {}", swap(true)));
            }
        }
        words.push(match (self.schedule, self.occurrence.before) {
            (Schedule::Recorded, Some(_)) => "go on as before to the end".to_string(),
            (schedule, _) => format!("go on under {schedule} to the end"),
        });
        words
    }

    /// Takes a replay to where it leaves the recording, and makes it a copy:
    /// before the first access, or at the start if another schedule leads
    /// there. What is watched is watched from the start.
    fn leave(
        &self,
        recording: &Recording,
        inputs: &InputIndex,
        checks: &Checks,
    ) -> Result<Option<(Vm, Option<Watching>)>, vm::Error> {
        if let Some(origin) = self.occurrence.before {
            let all = u64::MAX / 2;
            let mut vm = origin.start(recording, inputs, &self.racy, all)?;
            let watching = Watching::begin(&mut vm, checks, recording)?;
            return Ok(Some((vm, watching)));
        }
        let mut vm = Vm::replay(recording)?;
        vm.may_read_files();
        vm.mute();
        vm.know_inputs(Rc::new(inputs.clone()));
        let watching = Watching::begin(&mut vm, checks, recording)?;
        if !self.at_first(&mut vm)? {
            return Ok(None);
        }
        vm.detach(Limits {
            instructions: u64::MAX / 2,
            ..Limits::default()
        })?;
        Ok(Some((vm, watching)))
    }

    fn at_first(&self, vm: &mut Vm) -> Result<bool, vm::Error> {
        let first = self.occurrence.instance.first;
        Ok(matches!(vm.run(Some(first))?, Stop::Reached(_))
            && vm.executed(first.thread) == first.count)
    }

    /// From where the recording is left to the race point. False if it is not
    /// reached: the recording is another one.
    fn approach(&self, vm: &mut Vm, watching: Option<&Watching>) -> Result<bool, vm::Error> {
        if self.occurrence.before.is_some() && !self.at_first(vm)? {
            return Ok(false);
        }
        if self.play == Play::Held {
            return Ok(true);
        }
        if !point::reach(vm, self.occurrence, self.second, self.limit)? {
            return Ok(false);
        }
        if let Some(watching) = watching {
            watching.judge(vm);
        }
        Ok(true)
    }

    fn plan<'a>(&'a self, watching: Option<&'a Watching>) -> Plan<'a> {
        Plan {
            poised: self.poised(),
            racy: &self.racy,
            sites: &self.racy,
            comparison: &Bytes,
            model: &SequentialConsistency,
            watching,
        }
    }

    /// One execution of this evidence as slices that can be followed again, by
    /// a debugger for instance. Of evidence that compares two, `swapped`
    /// chooses.
    pub fn script(&self, recording: &Recording, swapped: bool) -> Result<Scripted, Error> {
        let inputs =
            vm::snapshot::index_inputs(recording).map_err(|error| Error::Replay(error.into()))?;
        let index = inputs.clone();
        let swapped = match self.play {
            Play::Order { swapped } => swapped,
            Play::Both => swapped,
            Play::Held => false,
        };
        let answer = vm::snapshot::isolated(|| {
            // As the program runs by itself: nothing is watched in a debugger.
            let nothing = Checks::default();
            let Some((mut vm, _)) = self.leave(recording, &index, &nothing)? else {
                return Ok(None);
            };
            let left_at = vm.instructions();
            if !self.approach(&mut vm, None)? {
                return Ok(None);
            }
            let point = vm.instructions();
            let mut between = point;
            let ending = if self.play == Play::Held {
                match point::barrier(&mut vm, self.occurrence, self.limit)? {
                    crate::Barrier::Violates(ending) => ending,
                    crate::Barrier::Ordered(why) | crate::Barrier::Unknown(why) => {
                        Ending::Lost(why)
                    }
                }
            } else {
                for thread in self.poised().order(swapped) {
                    between = vm.instructions();
                    reorder::make_access(&mut vm, thread)?;
                }
                run::schedule(&mut vm, self.schedule, &self.racy);
                run::finish(&mut vm, self.limit)?
            };
            let slices: Vec<(u32, u64)> = vm
                .slices()
                .into_iter()
                .map(|choice| (choice.thread, choice.instructions))
                .collect();
            Ok(Some((left_at, point, between, ending, slices)))
        })?;
        let (left_at, point, between, ending, slices) = answer
            .join()?
            .map_err(Error::Replay)?
            .ok_or_else(not_there)?;
        Ok(Scripted {
            leave: self
                .occurrence
                .before
                .is_none()
                .then_some(self.occurrence.instance.first),
            left_at,
            point,
            between,
            swapped,
            slices: slices
                .into_iter()
                .map(|(thread, instructions)| Choice {
                    thread,
                    instructions,
                })
                .collect(),
            inputs,
            ending,
        })
    }

    fn poised(&self) -> Poised {
        Poised {
            first: self.occurrence.instance.first,
            second: self.second,
        }
    }

    /// Runs it again.
    pub fn replay(&self, recording: &Recording) -> Result<Replayed, Error> {
        let index =
            vm::snapshot::index_inputs(recording).map_err(|error| Error::Replay(error.into()))?;
        let witness = self.clone();
        let answer = vm::snapshot::isolated(|| {
            let Some((mut vm, watching)) = witness.leave(recording, &index, &witness.checks)?
            else {
                return Ok(None);
            };
            if !witness.approach(&mut vm, watching.as_ref())? {
                return Ok(None);
            }
            let plan = witness.plan(watching.as_ref());
            let mut run = |swapped: bool| {
                let limits = Limits {
                    instructions: u64::MAX / 2,
                    ..Limits::default()
                };
                let copy = vm.copy(limits, |vm| {
                    pair::play(vm, &plan, swapped, witness.schedule, witness.limit)
                });
                let mut run = match copy.and_then(|running| running.join()) {
                    Ok(Ok(run)) => run,
                    Ok(Err(why)) => Run::lost(why),
                    Err(error) => Run::lost(error.to_string()),
                };
                let (schedule, limit) = (witness.schedule, witness.limit);
                pair::tell_findings(&mut vm, &plan, swapped, schedule, limit, &mut run);
                run
            };
            Ok(Some(match witness.play {
                Play::Held => {
                    let barrier = point::barrier(&mut vm, witness.occurrence, witness.limit)?;
                    let ending = match barrier {
                        crate::Barrier::Violates(ending) => ending,
                        crate::Barrier::Ordered(why) | crate::Barrier::Unknown(why) => {
                            Ending::Lost(why)
                        }
                    };
                    Replayed {
                        still_there: ending.violation().is_some(),
                        seen: ending.describe(),
                        recorded: None,
                        swapped: Some(Run {
                            ending,
                            instructions: 0,
                            outputs: vm.captured(),
                            inputs: 0,
                            findings: Vec::new(),
                        }),
                    }
                }
                Play::Order { swapped } => {
                    let one = run(swapped);
                    let again = witness.error.as_ref().and_then(|error| {
                        one.findings.iter().find(|finding| finding.is_same(error))
                    });
                    Replayed {
                        still_there: match witness.error {
                            Some(_) => again.is_some(),
                            None => one.ending.violation().is_some(),
                        },
                        seen: again.map_or_else(|| one.ending.describe(), Finding::describe),
                        recorded: (!swapped).then(|| one.clone()),
                        swapped: swapped.then_some(one),
                    }
                }
                Play::Both => {
                    let (one, other) = (run(false), run(true));
                    let (schedule, limit) = (witness.schedule, witness.limit);
                    let difference = Bytes.compare(&one, &other).and_then(|found| {
                        let runs = [&one, &other];
                        pair::told_apart(&mut vm, &plan, schedule, limit, runs, &found).difference
                    });
                    Replayed {
                        still_there: difference.is_some(),
                        seen: difference.map_or_else(
                            || "the outputs are the same".to_string(),
                            |difference| {
                                format!(
                                    "{} at byte {}: {} instead of {}",
                                    difference.name,
                                    difference.offset,
                                    difference.swapped,
                                    difference.recorded
                                )
                            },
                        ),
                        recorded: Some(one),
                        swapped: Some(other),
                    }
                }
            }))
        })?;
        answer.join()?.map_err(Error::Replay)?.ok_or_else(not_there)
    }
}

fn not_there() -> Error {
    Error::Replay(Failed::own(
        "the race point of this evidence is not in the recording",
    ))
}

fn place(recording: &Recording) -> Place {
    recording.place("evidence.json")
}

/// Keeps the evidence with the recording. Numbers are given here, by position.
pub fn write_evidence(recording: &Recording, witnesses: &mut [Witness]) -> Result<(), Error> {
    for (witness, id) in witnesses.iter_mut().zip(1..) {
        witness.id = id;
    }
    let place = place(recording);
    serde_json::to_vec_pretty(witnesses)
        .map_err(std::io::Error::from)
        .and_then(|text| place.write(&text))
        .map_err(|error| Error::Evidence {
            path: place.path(),
            error,
        })
}

/// One piece of evidence of a recording.
pub fn read_evidence(recording: &Recording, number: u32) -> Result<Witness, Error> {
    let place = place(recording);
    let path = place.path();
    let text = match place.read(folder::TEXT) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        other => other.map_err(|error| Error::Evidence {
            path: path.clone(),
            error,
        })?,
    };
    let all: Vec<Witness> = if text.is_empty() {
        Vec::new()
    } else {
        serde_json::from_slice(&text).map_err(|error| Error::Evidence {
            path: path.clone(),
            error: error.into(),
        })?
    };
    all.into_iter()
        .find(|witness| witness.id == number)
        .ok_or(Error::NoEvidence { number, path })
}
