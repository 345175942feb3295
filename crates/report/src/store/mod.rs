//! The store `.deadheat/`: recordings, runs, races over time, marks.
//!
//! One SQLite file beside the recording folders. A run is kept in one
//! transaction, so it is there whole or not at all, whatever kills the
//! process; writers wait for one another (write-ahead log, busy timeout,
//! immediate transactions), readers wait for nobody. The folder is 0700 and
//! the file 0600: reports hold values from the program's memory.
//!
//! Recordings and runs are numbered from one sequence; a run of one recording
//! has the recording's number, so "run 7" and `.deadheat/7` belong together.
//! Races are kept by fingerprint: their verdicts over time and what people
//! said about them survive rebuilds and outlive the recordings. What was kept
//! under the first form of fingerprints is found by `former_fingerprint`
//! (`carry`).

mod carry;
mod compare;
mod migrate;

pub use compare::{Changed, Comparison};

use crate::{Error, clock};
use folder::Place;
use race::{Fingerprint, Mark, Race, Report, Verdict};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const FILE: &str = "deadheat.sqlite";
/// A run takes some kilobytes; SQLite reads what it needs.
const LARGEST: u64 = 1 << 40;
/// A race with its stacks, values and evidence has some kilobytes.
const LARGEST_RACE: usize = 64 << 20;
/// How long a writer waits for another; keeping a run takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// An open store.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    database: Connection,
}

/// One line of `deadheat list`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub number: u64,
    pub started: String,
    pub tool: String,
    pub program: Vec<String>,
    pub exit: i32,
    /// Races per verdict, suppressed ones left out, in report order.
    pub counts: Vec<(Verdict, u64)>,
    pub suppressed: u64,
    /// Causes of these races; runs of older versions do not say.
    pub causes: Option<u64>,
}

impl Run {
    /// All races that are not suppressed.
    pub fn races(&self) -> u64 {
        self.counts.iter().map(|(_, number)| number).sum()
    }
}

/// A race as one run saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    pub run: u64,
    pub started: String,
    pub verdict: Verdict,
    pub instances: u64,
}

/// What `gc` took away.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Collected {
    pub recordings: Vec<PathBuf>,
    /// Runs whose details were dropped; their verdicts stay.
    pub runs: Vec<u64>,
    pub bytes: u64,
}

impl Store {
    /// Opens the store in `folder`, which must have one.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        if !Place::of(folder).join(FILE).exists() {
            return Err(Error::NoStore {
                path: folder.to_path_buf(),
            });
        }
        Self::connect(folder)
    }

    /// Opens the store in `folder`, making it if there is none.
    pub fn create(folder: &Path) -> Result<Self, Error> {
        let cannot = |source| Error::Write {
            path: folder.to_path_buf(),
            source,
        };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(cannot)?;
        // SQLite would make the file with the umask's permissions.
        Place::of(folder)
            .join(FILE)
            .append()
            .map_err(|source| Error::Write {
                path: folder.join(FILE),
                source,
            })?;
        Self::connect(folder)
    }

    fn connect(folder: &Path) -> Result<Self, Error> {
        let path = folder.join(FILE);
        // What SQLite would open: it follows no links at the end of a name, but
        // waits for pipes.
        for suffix in ["", "-wal", "-journal", "-shm"] {
            match Place::of(folder)
                .join(format!("{FILE}{suffix}"))
                .open(LARGEST)
            {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::Read {
                        path: folder.join(format!("{FILE}{suffix}")),
                        source: error,
                    });
                }
                _ => {}
            }
        }
        let connect = || -> Result<Connection, migrate::Failure> {
            let mut database = Connection::open(&path)?;
            database.busy_timeout(PATIENCE)?;
            // A store from elsewhere may have views and triggers in it.
            database.execute_batch("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON")?;
            // Where the file system cannot do it (some network ones) SQLite
            // stays with its rollback journal, which is as safe and slower.
            let _: String =
                database.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
            database.execute_batch("PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON")?;
            migrate::migrate(&mut database, migrate::STEPS)?;
            Ok(database)
        };
        let database = connect().map_err(|failure| match failure {
            migrate::Failure::Newer { found } => Error::NewerStore {
                path: folder.to_path_buf(),
                found,
                known: migrate::STEPS.len(),
            },
            migrate::Failure::Sqlite(source) => Error::Store {
                path: path.clone(),
                source,
            },
        })?;
        Ok(Store {
            folder: folder.to_path_buf(),
            database,
        })
    }

    /// The folder it lives in.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Takes the next number for a recording that is about to begin and makes
    /// its folder, `.deadheat/7`.
    pub fn begin_recording(&mut self, program: &[String]) -> Result<(u64, PathBuf), Error> {
        let program = to_json(&program);
        let number = self.write(|transaction| {
            let number = next_number(transaction)?;
            transaction.execute(
                "INSERT INTO recordings (id, started, program) VALUES (?1, ?2, ?3)",
                params![number, clock::now(), program],
            )?;
            Ok(number)
        })?;
        let path = self.folder.join(number.to_string());
        folder::make(&path).map_err(|source| Error::Write {
            path: path.clone(),
            source,
        })?;
        Ok((number, path))
    }

    /// Keeps a finished report and gives it its run number.
    pub fn keep(&mut self, report: &mut Report) -> Result<u64, Error> {
        let wanted = self.recording_number(report);
        let number = self.write(|transaction| {
            let taken = |number: u64| -> rusqlite::Result<bool> {
                let found: Option<u64> = transaction
                    .query_row("SELECT id FROM runs WHERE id = ?1", [number], |row| {
                        row.get(0)
                    })
                    .optional()?;
                Ok(found.is_some())
            };
            let number = match wanted {
                Some(number) if !taken(number)? => number,
                _ => next_number(transaction)?,
            };
            report.run = Some(number);
            report.started.get_or_insert_with(clock::now);
            insert_run(transaction, number, report)?;
            carry::write_anew(transaction, report)?;
            Ok(number)
        })?;
        Ok(number)
    }

    /// The number of the one recording a report is about, if it is in this
    /// store.
    fn recording_number(&self, report: &Report) -> Option<u64> {
        let [recording] = report.recordings.as_slice() else {
            return None;
        };
        let path = Path::new(recording);
        let same = |one: &Path| match (fs::canonicalize(one), fs::canonicalize(&self.folder)) {
            (Ok(one), Ok(folder)) => one == folder,
            _ => one == self.folder,
        };
        if !same(path.parent()?) {
            return None;
        }
        path.file_name()?.to_str()?.parse().ok()
    }

    /// The runs of the store, newest first.
    pub fn runs(&self) -> Result<Vec<Run>, Error> {
        self.read(|database| {
            let mut query = database.prepare(
                "SELECT id, started, tool, program, exit_deadheat, counts, suppressed, causes
                 FROM runs ORDER BY id DESC",
            )?;
            let rows = query.query_map([], |row| {
                let counts: Vec<u64> = from_json(&row.get::<_, String>(5)?)?;
                Ok(Run {
                    number: row.get(0)?,
                    started: row.get(1)?,
                    tool: row.get(2)?,
                    program: from_json(&row.get::<_, String>(3)?)?,
                    exit: row.get(4)?,
                    counts: Verdict::REPORT_ORDER.into_iter().zip(counts).collect(),
                    suppressed: row.get(6)?,
                    causes: row.get(7)?,
                })
            })?;
            rows.collect()
        })
    }

    /// The number of the newest run.
    pub fn latest(&self) -> Result<u64, Error> {
        let found: Option<u64> = self.read(|database| {
            database.query_row("SELECT max(id) FROM runs", [], |row| row.get(0))
        })?;
        found.ok_or_else(|| Error::NoRuns {
            path: self.folder.clone(),
        })
    }

    /// The report of a run as it was kept, with today's marks.
    pub fn report(&self, run: u64) -> Result<Report, Error> {
        let found = self.read(|database| {
            let head: Option<String> = database
                .query_row("SELECT report FROM runs WHERE id = ?1", [run], |row| {
                    row.get(0)
                })
                .optional()?;
            let Some(head) = head else {
                return Ok(None);
            };
            let mut report: Report = from_json(&head)?;
            let mut query =
                database.prepare("SELECT body FROM sightings WHERE run = ?1 ORDER BY race")?;
            let bodies = query.query_map([run], |row| row.get::<_, Option<Vec<u8>>>(0))?;
            for body in bodies {
                let Some(body) = body? else {
                    return Ok(Some(None));
                };
                report.races.push(unpack(&body)?);
            }
            Ok(Some(Some(report)))
        })?;
        let mut report = match found {
            None => {
                return Err(Error::NoRun {
                    path: self.folder.clone(),
                    run,
                });
            }
            Some(None) => return Err(Error::Collected { run }),
            Some(Some(report)) => report,
        };
        self.put_marks(&mut report)?;
        Ok(report)
    }

    /// Puts the marks that people gave on the races of `report`.
    pub fn put_marks(&self, report: &mut Report) -> Result<(), Error> {
        let said = self.last_said()?;
        let carried = self.carried(report, &said)?;
        for (race, carried) in report.races.iter_mut().zip(carried.marks) {
            let holds = |mark: &Mark| mark.state != "none";
            let own = said.get(&race.fingerprint).cloned();
            race.mark = own.filter(holds).or(carried);
            race.contradicted = match &race.mark {
                // A run from before the mark is what the mark was about.
                Some(mark) if report.started.as_ref().is_none_or(|at| *at > mark.date) => self
                    .verdict_at(race, &mark.date)?
                    .and_then(|then| mark.contradicted_by(then, race.verdict)),
                _ => None,
            };
        }
        for sentence in carried.refused {
            if !report.not_checked.contains(&sentence) {
                report.not_checked.push(sentence);
            }
        }
        Ok(())
    }

    /// The verdict on a race that somebody could know at this date.
    fn verdict_at(&self, race: &Race, date: &str) -> Result<Option<Verdict>, Error> {
        let known = self.past(race)?;
        let then = known
            .iter()
            .rfind(|sighting| sighting.started.as_str() <= date);
        Ok(then.map(|sighting| sighting.verdict))
    }

    /// The marks that hold, by race.
    pub fn marks(&self) -> Result<HashMap<Fingerprint, Mark>, Error> {
        let mut marks = self.last_said()?;
        marks.retain(|_, mark| mark.state != "none");
        Ok(marks)
    }

    /// What was said last about each race, marks taken back included.
    fn last_said(&self) -> Result<HashMap<Fingerprint, Mark>, Error> {
        self.read(|database| {
            let mut query = database.prepare(
                "SELECT fingerprint, state, author, date, reason FROM marks ORDER BY id",
            )?;
            let rows = query.query_map([], |row| {
                let mark = Mark {
                    state: row.get(1)?,
                    author: row.get(2)?,
                    date: row.get(3)?,
                    reason: row.get(4)?,
                };
                Ok((Fingerprint(row.get(0)?), mark))
            })?;
            rows.collect()
        })
    }

    /// Everything that was ever said about a race, oldest first.
    pub fn mark_history(&self, fingerprint: &Fingerprint) -> Result<Vec<Mark>, Error> {
        self.read(|database| {
            let mut query = database.prepare(
                "SELECT state, author, date, reason FROM marks WHERE fingerprint = ?1 ORDER BY id",
            )?;
            let rows = query.query_map([&fingerprint.0], |row| {
                Ok(Mark {
                    state: row.get(0)?,
                    author: row.get(1)?,
                    date: row.get(2)?,
                    reason: row.get(3)?,
                })
            })?;
            rows.collect()
        })
    }

    /// Says something about a race; the state `none` takes earlier marks
    /// back.
    pub fn mark(&mut self, fingerprint: &Fingerprint, mark: &Mark) -> Result<(), Error> {
        self.write(|transaction| {
            transaction.execute(
                "INSERT INTO marks (fingerprint, state, author, date, reason)
                 VALUES (?1, ?2, ?3, ?4, ?5)",
                params![
                    fingerprint.0,
                    mark.state,
                    mark.author,
                    mark.date,
                    mark.reason
                ],
            )?;
            Ok(())
        })
    }

    /// Whether any run saw this race.
    pub fn knows(&self, fingerprint: &Fingerprint) -> Result<bool, Error> {
        Ok(!self.history(fingerprint)?.is_empty())
    }

    /// The verdicts of a race over time, oldest run first.
    pub fn history(&self, fingerprint: &Fingerprint) -> Result<Vec<Sighting>, Error> {
        self.read(|database| {
            let mut query = database.prepare(
                "SELECT run, started, verdict, instances FROM sightings
                 JOIN runs ON runs.id = run WHERE fingerprint = ?1 ORDER BY run",
            )?;
            let rows = query.query_map([&fingerprint.0], |row| {
                Ok(Sighting {
                    run: row.get(0)?,
                    started: row.get(1)?,
                    verdict: verdict(&row.get::<_, String>(2)?)?,
                    instances: row.get(3)?,
                })
            })?;
            rows.collect()
        })
    }

    /// The history of every race of a run at once, for the page; at most the
    /// `latest` sightings of each, oldest first.
    pub fn histories(
        &self,
        run: u64,
        latest: usize,
    ) -> Result<HashMap<Fingerprint, Vec<Sighting>>, Error> {
        self.read(|database| {
            let mut query = database.prepare(
                "SELECT s.fingerprint, s.run, started, s.verdict, s.instances
                 FROM sightings AS s JOIN runs ON runs.id = s.run
                 WHERE s.fingerprint IN (SELECT fingerprint FROM sightings WHERE run = ?1)
                 ORDER BY s.run",
            )?;
            let rows = query.query_map([run], |row| {
                let sighting = Sighting {
                    run: row.get(1)?,
                    started: row.get(2)?,
                    verdict: verdict(&row.get::<_, String>(3)?)?,
                    instances: row.get(4)?,
                };
                Ok((Fingerprint(row.get(0)?), sighting))
            })?;
            let mut all: HashMap<Fingerprint, Vec<Sighting>> = HashMap::new();
            for row in rows {
                let (fingerprint, sighting) = row?;
                all.entry(fingerprint).or_default().push(sighting);
            }
            for list in all.values_mut() {
                list.drain(..list.len().saturating_sub(latest));
            }
            Ok(all)
        })
    }

    /// Drops recordings and the details of runs, all but the newest `keep` of
    /// each; what each race's verdicts were, and the marks, stay. A recording
    /// that has no run yet is left alone for a day: it may still be going on.
    pub fn collect(&mut self, keep: usize, dry: bool) -> Result<Collected, Error> {
        let yesterday = clock::before_now(86_400);
        let keep = i64::try_from(keep).unwrap_or(i64::MAX);
        let (recordings, runs) = self.read(|database| {
            let mut query = database.prepare(
                "SELECT id FROM recordings WHERE NOT gone
                 AND id NOT IN (SELECT id FROM recordings WHERE NOT gone ORDER BY id DESC LIMIT ?1)
                 AND (id IN (SELECT id FROM runs) OR started < ?2) ORDER BY id",
            )?;
            let recordings: Vec<u64> = query
                .query_map(params![keep, yesterday], |row| row.get(0))?
                .collect::<Result<_, _>>()?;
            let mut query = database.prepare(
                "SELECT DISTINCT run FROM sightings WHERE body IS NOT NULL
                 AND run NOT IN (SELECT id FROM runs ORDER BY id DESC LIMIT ?1) ORDER BY run",
            )?;
            let runs: Vec<u64> = query
                .query_map([keep], |row| row.get(0))?
                .collect::<Result<_, _>>()?;
            Ok((recordings, runs))
        })?;
        let mut collected = Collected {
            runs,
            ..Collected::default()
        };
        for number in recordings {
            let path = self.folder.join(number.to_string());
            collected.bytes += Place::of(&self.folder).join(number.to_string()).size();
            if !dry {
                match fs::remove_dir_all(&path) {
                    Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                        return Err(Error::Write { path, source });
                    }
                    _ => {}
                }
                self.write(|transaction| {
                    transaction
                        .execute("UPDATE recordings SET gone = 1 WHERE id = ?1", [number])?;
                    Ok(())
                })?;
            }
            collected.recordings.push(path);
        }
        if !dry && !collected.runs.is_empty() {
            self.write(|transaction| {
                for run in &collected.runs {
                    transaction
                        .execute("UPDATE sightings SET body = NULL WHERE run = ?1", [run])?;
                }
                Ok(())
            })?;
            self.read(|database| database.execute_batch("VACUUM"))?;
        }
        Ok(collected)
    }

    /// Whether SQLite finds its file in order.
    pub fn sound(&self) -> Result<bool, Error> {
        self.read(|database| {
            let answer: String =
                database.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
            Ok(answer == "ok")
        })
    }

    fn read<T>(&self, ask: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Error> {
        ask(&self.database).map_err(|source| self.failed(source))
    }

    fn write<T>(
        &mut self,
        change: impl FnOnce(&Transaction) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        let run = |database: &mut Connection| {
            let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let value = change(&transaction)?;
            transaction.commit()?;
            Ok(value)
        };
        run(&mut self.database).map_err(|source| self.failed(source))
    }

    fn failed(&self, source: rusqlite::Error) -> Error {
        Error::Store {
            path: self.folder.join(FILE),
            source,
        }
    }
}

/// The next number for a recording or run; both count from one sequence.
fn next_number(transaction: &Transaction) -> rusqlite::Result<u64> {
    transaction.query_row(
        "SELECT 1 + max(coalesce((SELECT max(id) FROM recordings), 0),
                        coalesce((SELECT max(id) FROM runs), 0))",
        [],
        |row| row.get(0),
    )
}

/// The report without its races, which have rows of their own.
fn head(report: &Report) -> Report {
    Report {
        schema: report.schema,
        tool: report.tool.clone(),
        program: report.program.clone(),
        recordings: report.recordings.clone(),
        run: report.run,
        started: report.started.clone(),
        races: Vec::new(),
        causes: report.causes.clone(),
        failures: report.failures.clone(),
        locks: report.locks.clone(),
        errors: report.errors.clone(),
        not_checked: report.not_checked.clone(),
        cut_short: report.cut_short.clone(),
        unused_suppressions: report.unused_suppressions.clone(),
        exit: report.exit,
    }
}

fn insert_run(transaction: &Transaction, number: u64, report: &Report) -> rusqlite::Result<()> {
    let counts = Verdict::REPORT_ORDER.map(|verdict| {
        let counted = |race: &&Race| race.verdict == verdict && race.suppressed.is_none();
        report.races.iter().filter(counted).count() as u64
    });
    let suppressed = report
        .races
        .iter()
        .filter(|race| race.suppressed.is_some())
        .count() as u64;
    let head = head(report);
    transaction.execute(
        "INSERT INTO runs
             (id, started, tool, program, exit_deadheat, counts, suppressed, report, causes)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            number,
            report.started,
            report.tool,
            to_json(&report.program),
            report.exit.deadheat,
            to_json(&counts),
            suppressed,
            to_json(&head),
            report.causes_that_count() as u64
        ],
    )?;
    let mut insert = transaction.prepare(
        "INSERT INTO sightings (run, race, fingerprint, verdict, instances, suppressed, body)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?;
    for (race, index) in report.races.iter().zip(1u64..) {
        insert.execute(params![
            number,
            index,
            race.fingerprint.0,
            race.verdict.name(),
            race.instances.min(i64::MAX as u64),
            race.suppressed.is_some(),
            pack(race)
        ])?;
    }
    Ok(())
}

fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("plain data always has a JSON form")
}

fn from_json<T: serde::de::DeserializeOwned>(text: &str) -> rusqlite::Result<T> {
    serde_json::from_str(text).map_err(|error| unreadable(Box::new(error)))
}

/// A race as it is kept: JSON, compressed.
fn pack(race: &Race) -> Vec<u8> {
    lz4_flex::compress_prepend_size(to_json(race).as_bytes())
}

fn unpack(bytes: &[u8]) -> rusqlite::Result<Race> {
    let (size, packed) =
        lz4_flex::block::uncompressed_size(bytes).map_err(|error| unreadable(Box::new(error)))?;
    if size > LARGEST_RACE {
        return Err(unreadable(format!("a race of {size} bytes").into()));
    }
    let text = lz4_flex::decompress(packed, size).map_err(|error| unreadable(Box::new(error)))?;
    from_json(&String::from_utf8_lossy(&text))
}

fn verdict(name: &str) -> rusqlite::Result<Verdict> {
    let found = Verdict::REPORT_ORDER
        .into_iter()
        .find(|verdict| verdict.name() == name);
    found.ok_or_else(|| unreadable(format!("no verdict is called `{name}`").into()))
}

fn unreadable(error: Box<dyn std::error::Error + Send + Sync>) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Blob, error)
}
