//! The JSON form against the published schema.

#[path = "support/schema.rs"]
mod schema;
mod support;

use race::{
    Consequence, DifferenceKind, EventKind, Mark, Report, Standing, States, Suppressed, Verdict,
};
use report::{Form, Options};
use schema::Schema;
use serde_json::Value;
use support::{golden, mixed};

const SCHEMA: &str = include_str!("../../../docs/report.schema.json");

fn json(report: &Report) -> String {
    let options = Options {
        form: Form::Json,
        ..Options::default()
    };
    report::text(report, &options)
}

/// A report in which every optional field is present.
fn full() -> Report {
    let mut report = mixed();
    report.run = Some(7);
    report.started = Some("2026-11-15T21:40:00Z".into());
    for race in &mut report.races {
        race.suppressed = Some(Suppressed {
            by: "a.supp:1".into(),
            reason: Some("vendored".into()),
        });
        race.mark = Some(Mark {
            state: "bug".into(),
            author: "ada".into(),
            date: "2026-11-15T21:40:00Z".into(),
            reason: "known".into(),
        });
        race.standing = Some(Standing::New);
        race.ordering = Some("ordered only by a spin on a plain flag".into());
    }
    report
}

#[test]
fn word_for_word() {
    golden("mixed.json", &json(&mixed()));
}

#[test]
fn reports_keep_the_schema_and_the_schema_knows_every_field() {
    let schema = Schema::new(SCHEMA, true);
    for report in [mixed(), full(), Report::new("import:tsan", vec![])] {
        let text = json(&report);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(schema.errors(&value), Vec::<String>::new());
        assert_eq!(
            serde_json::from_str::<Report>(&text).unwrap(),
            report,
            "reads back"
        );
    }
}

#[test]
fn every_word_the_vocabulary_has_is_in_the_schema() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let words = |path: &str| schema.pointer(path).unwrap_or(&Value::Null)["enum"].clone();
    let race = "/$defs/race/properties";
    let check = |path: String, word: Value| {
        let known = words(&path);
        assert!(
            known.as_array().unwrap().contains(&word),
            "{path} lacks {word}"
        );
    };
    for verdict in Verdict::REPORT_ORDER {
        check(
            "/$defs/verdict".into(),
            serde_json::to_value(verdict).unwrap(),
        );
    }
    use Consequence::*;
    for consequence in [
        Crash,
        Deadlock,
        Hang,
        MemoryError,
        Assert,
        Invariant,
        Output,
    ] {
        check(
            format!("{race}/consequence"),
            serde_json::to_value(consequence).unwrap(),
        );
    }
    for states in [
        States::NoStateChange,
        States::StateChange,
        States::ReplayFailure,
    ] {
        check(
            format!("{race}/states"),
            serde_json::to_value(states).unwrap(),
        );
    }
    for standing in [Standing::New, Standing::Worse, Standing::Known] {
        check(
            format!("{race}/standing"),
            serde_json::to_value(standing).unwrap(),
        );
    }
    {
        use DifferenceKind::*;
        for kind in [Output, Memory, Register, Kernel, File, Exit] {
            check(
                "/$defs/difference/properties/kind".into(),
                serde_json::to_value(kind).unwrap(),
            );
        }
    }
    {
        use EventKind::*;
        for kind in [Access, Acquire, Release, Switch, Block, Output, Signal, End] {
            let path = "/$defs/order/properties/events/items/properties/kind";
            check(path.into(), serde_json::to_value(kind).unwrap());
        }
    }
}

#[test]
fn what_breaks_the_schema_is_found() {
    let schema = Schema::new(SCHEMA, false);
    let good: Value = serde_json::from_str(&json(&full())).unwrap();
    let spoil = |path: &str, value: Value| {
        let mut bad = good.clone();
        *bad.pointer_mut(path).unwrap() = value;
        assert_ne!(schema.errors(&bad), Vec::<String>::new(), "{path}");
    };
    spoil("/schema", 2.into());
    spoil("/started", "yesterday".into());
    spoil("/races/0/verdict", "fine".into());
    spoil("/races/0/accesses/0/offset", 4096.into());
    spoil("/races/0/accesses", Value::Array(vec![]));
    spoil("/races/0/fingerprint", "".into());
    spoil("/races/1/accesses/0/moment", "2".into());
    spoil("/races/1/orders/0/events/1/access", 2.into());
    let mut bad = good.clone();
    bad["races"][0].as_object_mut().unwrap().remove("labels");
    assert_ne!(schema.errors(&bad), Vec::<String>::new());
}
