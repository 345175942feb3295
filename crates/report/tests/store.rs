//! The store: what goes in comes out, also with two writers and when a writer
//! is killed.

mod support;

use race::{Mark, Race, Report, Suppressed, Verdict};
use report::{Comparison, Store};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use support::{counter, mixed};

const FOLDER: &str = "DEADHEAT_TEST_STORE";
const RUNS: &str = "DEADHEAT_TEST_RUNS";

/// The body of the writer processes of the tests below, which start this test
/// again with a folder in the environment; without one it has nothing to do.
#[test]
fn writer_process() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let runs: u64 = std::env::var(RUNS).unwrap().parse().unwrap();
    let mut store = Store::create(Path::new(&folder)).unwrap();
    for _ in 0..runs {
        let (number, path) = store.begin_recording(&["./prog".into()]).unwrap();
        let mut report = mixed();
        report.recordings = vec![path.to_str().unwrap().into()];
        assert_eq!(store.keep(&mut report).unwrap(), number);
        println!("kept {number}");
    }
}

fn writer(folder: &Path, runs: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "writer_process", "--nocapture"])
        .env(FOLDER, folder)
        .env(RUNS, runs.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn whole(store: &Store) -> Vec<u64> {
    let runs = store.runs().unwrap();
    for run in &runs {
        let report = store.report(run.number).unwrap();
        assert_eq!(
            report.races.len(),
            mixed().races.len(),
            "run {}",
            run.number
        );
        assert_eq!(run.races(), 4);
    }
    runs.iter().map(|run| run.number).collect()
}

#[test]
fn a_report_comes_back_as_it_went_in() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut report = mixed();
    report.races[0].suppressed = Some(Suppressed {
        by: "a:1".into(),
        reason: None,
    });
    report.unused_suppressions = vec!["a:2 race:x".into()];
    let mut store = Store::create(&path).unwrap();
    assert_eq!(store.keep(&mut report).unwrap(), 1);
    assert_eq!(report.run, Some(1));
    drop(store);
    let store = Store::open(&path).unwrap();
    assert_eq!(store.report(1).unwrap(), report);
    assert_eq!(store.latest().unwrap(), 1);
    let run = &store.runs().unwrap()[0];
    assert_eq!((run.races(), run.suppressed), (3, 1));
    assert_eq!(run.counts[1], (Verdict::OutputDiffers, 1));
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    assert_eq!(mode(&path.join("deadheat.sqlite")), 0o600);
}

#[test]
fn a_run_has_the_number_of_its_recording() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::create(folder.path()).unwrap();
    let (one, first) = store.begin_recording(&["./prog".into()]).unwrap();
    let (two, second) = store.begin_recording(&["./prog".into()]).unwrap();
    assert_eq!((one, two), (1, 2));
    assert!(second.is_dir());
    let mut report = mixed();
    report.recordings = vec![second.to_str().unwrap().into()];
    assert_eq!(store.keep(&mut report).unwrap(), 2);
    assert_eq!(
        store.keep(&mut report).unwrap(),
        3,
        "a second look at it is another run"
    );
    report.recordings.push(first.to_str().unwrap().into());
    assert_eq!(store.keep(&mut report).unwrap(), 4);
    report.recordings = vec!["/elsewhere/1".into()];
    assert_eq!(store.keep(&mut report).unwrap(), 5);
}

#[test]
fn marks_and_history_are_kept_by_fingerprint() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::create(folder.path()).unwrap();
    let mut report = mixed();
    store.keep(&mut report).unwrap();
    let fingerprint = report.races[1].fingerprint.clone();
    report.races[1].verdict = Verdict::SpecViolated;
    report.races[1].instances = 7;
    store.keep(&mut report).unwrap();
    let verdicts: Vec<_> = store
        .history(&fingerprint)
        .unwrap()
        .iter()
        .map(|s| (s.run, s.verdict, s.instances))
        .collect();
    assert_eq!(
        verdicts,
        [
            (1, Verdict::OutputDiffers, 41),
            (2, Verdict::SpecViolated, 7)
        ]
    );
    assert_eq!(store.histories(2, 1).unwrap()[&fingerprint].len(), 1);
    assert!(store.knows(&fingerprint).unwrap());

    let mut mark = Mark {
        state: "accepted".into(),
        author: "ada".into(),
        date: report::clock::now(),
        reason: "advisory".into(),
    };
    store.mark(&fingerprint, &mark).unwrap();
    assert_eq!(store.report(1).unwrap().races[1].mark.as_ref(), Some(&mark));
    mark.state = "none".into();
    store.mark(&fingerprint, &mark).unwrap();
    assert_eq!(store.report(1).unwrap().races[1].mark, None);
    assert_eq!(
        store.mark_history(&fingerprint).unwrap().len(),
        2,
        "nothing said is forgotten"
    );
}

#[test]
fn comparing_two_runs() {
    let before = mixed();
    let mut after = mixed();
    after.races.remove(0);
    after.races[0].verdict = Verdict::SpecViolated;
    after.races[1].verdict = Verdict::NotARace;
    let comparison = Comparison::of(&before, &after);
    assert_eq!(comparison.gone, [before.races[0].clone()]);
    assert_eq!(comparison.new, []);
    assert_eq!(comparison.same, 1);
    let changed: Vec<_> = comparison
        .changed
        .iter()
        .map(|c| (c.before, c.worse))
        .collect();
    assert_eq!(
        changed,
        [
            (Verdict::OutputDiffers, true),
            (Verdict::Unclassified, false)
        ]
    );
    assert_eq!(
        Comparison::of(&after, &before).new,
        [before.races[0].clone()]
    );
}

#[test]
fn gc_drops_old_recordings_and_details_but_no_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::create(folder.path()).unwrap();
    let mut fingerprint = None;
    for _ in 0..5 {
        let (_, path) = store.begin_recording(&[]).unwrap();
        std::fs::write(path.join("schedule"), [0; 1000]).unwrap();
        let mut report = mixed();
        report.recordings = vec![path.to_str().unwrap().into()];
        store.keep(&mut report).unwrap();
        fingerprint = Some(report.races[0].fingerprint.clone());
    }
    let (_, running) = store.begin_recording(&[]).unwrap();
    let would = store.collect(2, true).unwrap();
    assert_eq!((would.recordings.len(), would.bytes), (4, 4000));
    assert!(
        folder.path().join("1").is_dir(),
        "a dry run touches nothing"
    );
    let did = store.collect(2, false).unwrap();
    assert_eq!(did, would);
    assert_eq!(did.runs, [1, 2, 3]);
    assert!(!folder.path().join("4").exists());
    assert!(folder.path().join("5").is_dir());
    assert!(
        running.is_dir(),
        "a recording that is going on is left alone"
    );
    let gone = store.report(2).unwrap_err().to_string();
    assert!(gone.contains("deadheat gc"), "{gone}");
    assert_eq!(store.report(5).unwrap().races.len(), 4);
    assert_eq!(store.history(&fingerprint.unwrap()).unwrap().len(), 5);
    assert_eq!(store.collect(2, false).unwrap().recordings.len(), 0);
    let last = store.collect(0, false).unwrap();
    assert_eq!(
        last.recordings,
        [folder.path().join("5")],
        "not the one without a run"
    );
    assert!(running.is_dir());
}

#[test]
fn what_is_missing_or_newer_is_refused_in_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let error = Store::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("deadheat run -- PROG"), "{error}");
    let store = Store::create(folder.path()).unwrap();
    let error = store.latest().unwrap_err().to_string();
    assert!(error.contains("no runs yet"), "{error}");
    let error = store.report(9).unwrap_err().to_string();
    assert!(
        error.contains("no run 9") && error.contains("deadheat list"),
        "{error}"
    );
    drop(store);
    let file = folder.path().join("deadheat.sqlite");
    let database = rusqlite::Connection::open(&file).unwrap();
    database.pragma_update(None, "user_version", 99).unwrap();
    drop(database);
    let error = Store::create(folder.path()).unwrap_err();
    assert_eq!(error.exit_code(), race::exit_code::USAGE);
    let error = error.to_string();
    assert!(
        error.contains("version 99") && error.contains("newer deadheat"),
        "{error}"
    );
    std::fs::write(&file, "this is not a database, whatever its name is").unwrap();
    let error = Store::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("deadheat.sqlite"), "{error}");
}

#[test]
fn writers_at_the_same_time_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut writers: Vec<Child> = (0..3).map(|_| writer(folder.path(), 20)).collect();
    for writer in &mut writers {
        assert!(writer.wait().unwrap().success());
    }
    let store = Store::open(folder.path()).unwrap();
    let mut numbers = whole(&store);
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=60).collect::<Vec<u64>>());
}

#[test]
fn a_killed_writer_leaves_whole_runs_and_a_usable_store() {
    let folder = tempfile::tempdir().unwrap();
    for round in 1..=3u64 {
        let mut victim = writer(folder.path(), 1_000_000);
        let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        let told: Vec<u64> = lines
            .map_while(Result::ok)
            .filter_map(|line| line.strip_prefix("kept ")?.parse().ok())
            .take(4 + round as usize)
            .collect();
        victim.kill().unwrap();
        victim.wait().unwrap();
        let mut store = Store::open(folder.path()).unwrap();
        assert!(store.sound().unwrap());
        let numbers = whole(&store);
        for number in told {
            assert!(
                numbers.contains(&number),
                "run {number} was told to be kept"
            );
        }
        store.keep(&mut Report::new("vm", vec![])).unwrap();
        let last = store.latest().unwrap();
        assert_eq!(store.report(last).unwrap().races, []);
        // `whole` expects four races in every run of the next round.
        let file = folder.path().join("deadheat.sqlite");
        let database = rusqlite::Connection::open(file).unwrap();
        database
            .execute("DELETE FROM runs WHERE id = ?1", [last as i64])
            .unwrap();
    }
}

#[test]
fn a_mark_that_new_evidence_contradicts_comes_back_with_both() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::create(folder.path()).unwrap();
    let mut first = mixed();
    first.started = Some("2026-11-15T10:00:00Z".into());
    store.keep(&mut first).unwrap();
    let race = &first.races[1];
    let mark = Mark {
        state: "harmless".into(),
        author: "ada".into(),
        date: "2026-11-15T11:00:00Z".into(),
        reason: "either value will do".into(),
    };
    store.mark(&race.fingerprint, &mark).unwrap();
    let seen_again = |verdict: Verdict, started: &str| {
        let mut later = mixed();
        later.started = Some(started.into());
        later.races[1].verdict = verdict;
        store.put_marks(&mut later).unwrap();
        let race = later.races.remove(1);
        (race.mark, race.contradicted)
    };
    let same = seen_again(race.verdict, "2026-11-15T12:00:00Z");
    assert_eq!(same, (Some(mark.clone()), None));
    let (kept, against) = seen_again(Verdict::SpecViolated, "2026-11-15T12:00:00Z");
    assert_eq!(kept, Some(mark.clone()), "the mark itself is not lost");
    assert!(
        against.is_some_and(|text| text.contains("spec violated now")),
        "and what speaks against it is told"
    );
    let before = seen_again(Verdict::SpecViolated, "2026-11-15T09:00:00Z");
    assert_eq!(
        before.1, None,
        "a run from before the mark says nothing new"
    );
}

#[test]
fn marks_in_a_damaged_store_are_refused_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("deadheat.sqlite");
    let mut store = Store::create(folder.path()).unwrap();
    let mut report = mixed();
    store.keep(&mut report).unwrap();
    drop(store);
    let mut bytes = std::fs::read(&file).unwrap();
    for byte in &mut bytes[..100] {
        *byte = 0x5a;
    }
    std::fs::write(&file, &bytes).unwrap();
    let refused = Store::create(folder.path()).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("deadheat.sqlite"), "{refused}");
    assert_eq!(
        std::fs::read(&file).unwrap(),
        bytes,
        "the damaged file is as it was, for whoever mends it"
    );
}

#[test]
fn marks_in_a_store_that_cannot_be_written_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::create(folder.path()).unwrap();
    let mut report = mixed();
    store.keep(&mut report).unwrap();
    let fingerprint = report.races[0].fingerprint.clone();
    // Whoever may write anything (root) is stopped by the file itself.
    let database = rusqlite::Connection::open(folder.path().join("deadheat.sqlite")).unwrap();
    database
        .execute_batch(
            "CREATE TRIGGER refuse BEFORE INSERT ON marks
             BEGIN SELECT RAISE(ABORT, 'attempt to write a readonly database'); END",
        )
        .unwrap();
    let mark = Mark {
        state: "harmless".into(),
        author: "ada".into(),
        date: report::clock::now(),
        reason: "no".into(),
    };
    let refused = store.mark(&fingerprint, &mark).unwrap_err().to_string();
    assert!(refused.contains("readonly"), "{refused}");
    assert_eq!(store.mark_history(&fingerprint).unwrap(), []);
    assert_eq!(store.runs().unwrap().len(), 1, "all else is there");
}

/// A store of a version whose fingerprints knew two lines and no object, with a
/// mark on the race there.
fn old_store(folder: &Path, variable: &str) -> Race {
    let mut old = counter();
    let former = old.former_fingerprint.take().unwrap();
    old.fingerprint = former.clone();
    old.place.get_or_insert_default().description = variable.into();
    let mut report = mixed();
    report.races = vec![old.clone()];
    report.started = Some("2026-01-01T00:00:00Z".into());
    let mut store = Store::create(folder).unwrap();
    store.keep(&mut report).unwrap();
    let mark = Mark {
        state: "accepted".into(),
        author: "ada".into(),
        date: "2026-01-02T00:00:00Z".into(),
        reason: "advisory".into(),
    };
    store.mark(&former, &mark).unwrap();
    old
}

fn on(variable: &str) -> Race {
    let mut race = counter();
    race.place.get_or_insert_default().description = variable.into();
    race.set_object(race::Object::variable(variable, variable, 0x10));
    race
}

#[test]
fn marks_of_the_first_form_are_carried_over_and_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    let old = old_store(folder.path(), "total");
    let mut store = Store::open(folder.path()).unwrap();
    let mut report = mixed();
    report.races = vec![on("total")];
    store.put_marks(&mut report).unwrap();
    assert_eq!(report.races[0].mark.as_ref().unwrap().state, "accepted");
    assert!(report.not_checked.iter().all(|said| !said.contains("mark")));
    store.keep(&mut report).unwrap();
    let own = store.marks().unwrap();
    assert!(own.contains_key(&report.races[0].fingerprint));
    // The verdicts of both names are one history.
    let past = store.past(&report.races[0]).unwrap();
    assert_eq!(past.iter().map(|one| one.run).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(store.all_said(&report.races[0]).unwrap().len(), 1);
    // Taken back under the new name, the old one does not come back.
    let none = Mark {
        state: "none".into(),
        ..report.races[0].mark.clone().unwrap()
    };
    store.mark(&report.races[0].fingerprint, &none).unwrap();
    store.put_marks(&mut report).unwrap();
    assert_eq!(report.races[0].mark, None);
    // To compare an old run with a new one they are the same race.
    let mut before = mixed();
    before.races = vec![old];
    let compared = Comparison::of(&before, &report);
    assert_eq!(
        (compared.same, compared.new.len(), compared.gone.len()),
        (1, 0, 0)
    );
}

#[test]
fn marks_of_the_first_form_that_may_mean_another_race_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    old_store(folder.path(), "total");
    let store = Store::open(folder.path()).unwrap();
    for races in [vec!["total", "count"], vec!["count"]] {
        let mut report = mixed();
        report.races = races.iter().map(|name| on(name)).collect();
        report.sort_and_number();
        for _ in 0..2 {
            store.put_marks(&mut report).unwrap();
        }
        assert!(
            report.races.iter().all(|race| race.mark.is_none()),
            "{races:?}"
        );
        let said = report
            .not_checked
            .iter()
            .filter(|said| said.contains("accepted"));
        let said: Vec<&String> = said.collect();
        assert_eq!(said.len(), 1, "said once: {said:?}");
        assert!(said[0].contains("by ada"), "{said:?}");
    }
}
