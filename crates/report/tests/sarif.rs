//! The SARIF form: word for word, against rules of the 2.1.0 specification
//! (numbers are its sections) and within the limits of code scanning.

mod support;

use race::{Mark, Report, Standing, Suppressed};
use serde_json::Value;
use std::path::Path;
use support::{counter, golden, half_seen, mixed};

fn sarif(report: &Report) -> Value {
    serde_json::from_str(&report::sarif(report, Some(Path::new("/src/server")))).unwrap()
}

/// The rules of the specification that a log of ours could break.
fn broken_rules(log: &Value) -> Vec<String> {
    let mut broken = Vec::new();
    let mut rule = |holds: bool, what: &str| {
        if !holds {
            broken.push(what.to_string());
        }
    };
    rule(log["version"] == "2.1.0", "3.13.2 version");
    rule(
        log["$schema"]
            .as_str()
            .is_some_and(|s| s.ends_with("sarif-schema-2.1.0.json")),
        "3.13.3 $schema",
    );
    for run in log["runs"].as_array().unwrap() {
        let driver = &run["tool"]["driver"];
        rule(
            driver["name"].as_str().is_some_and(|name| !name.is_empty()),
            "3.19.8 name",
        );
        let rules = driver["rules"].as_array().unwrap();
        for descriptor in rules {
            rule(descriptor["id"].is_string(), "3.49.3 id");
            rule(
                descriptor["shortDescription"]["text"].is_string(),
                "3.49.9 shortDescription",
            );
            let tags = descriptor["properties"]["tags"].as_array().unwrap();
            rule(tags.len() <= 10, "code scanning: tags per rule");
        }
        let results = run["results"].as_array().unwrap();
        rule(results.len() <= 25_000, "code scanning: results per run");
        let with_suppressions = results
            .iter()
            .filter(|r| r.get("suppressions").is_some())
            .count();
        rule(
            with_suppressions == 0 || with_suppressions == results.len(),
            "3.27.23 suppressions on all or none",
        );
        let with_state = results
            .iter()
            .filter(|r| r.get("baselineState").is_some())
            .count();
        rule(
            with_state == 0 || with_state == results.len(),
            "3.27.24 baselineState on all or none",
        );
        for result in results {
            let index = result["ruleIndex"].as_u64().unwrap() as usize;
            rule(
                rules[index]["id"] == result["ruleId"],
                "3.27.6 ruleIndex names ruleId",
            );
            let (kind, level) = (&result["kind"], &result["level"]);
            rule(
                (kind == "fail") == (level != "none"),
                "3.27.10 level is none exactly if kind is not fail",
            );
            rule(
                result["message"]["text"]
                    .as_str()
                    .is_some_and(|t| !t.is_empty()),
                "3.27.11 message",
            );
            rule(
                result["occurrenceCount"].as_u64().is_some_and(|n| n > 0),
                "3.27.19 occurrenceCount",
            );
            rule(
                !result["locations"].as_array().unwrap().is_empty(),
                "code scanning: a location",
            );
            rule(
                result["partialFingerprints"]["primaryLocationLineHash"].is_string(),
                "code scanning: primaryLocationLineHash",
            );
            let mut ids = Vec::new();
            for related in result["relatedLocations"].as_array().into_iter().flatten() {
                ids.push(related["id"].as_i64().unwrap());
            }
            let linked = result["message"]["text"].as_str().unwrap().contains("](1)");
            rule(
                linked == ids.contains(&1),
                "3.11.6 an embedded link names a related location",
            );
            let mut steps = 0;
            for flow in result["codeFlows"].as_array().unwrap() {
                let threads = flow["threadFlows"].as_array().unwrap();
                rule(!threads.is_empty(), "3.36.3 a code flow has a thread flow");
                let mut names = Vec::new();
                for thread in threads {
                    names.push(thread["id"].clone());
                    let locations = thread["locations"].as_array().unwrap();
                    rule(!locations.is_empty(), "3.37.6 a thread flow has a location");
                    steps += locations.len();
                    for step in locations {
                        rule(
                            step.get("executionOrder")
                                .is_none_or(|n| n.as_i64() > Some(0)),
                            "3.38.11 executionOrder from 1 (0 is for unordered)",
                        );
                    }
                }
                names.dedup();
                rule(names.len() == threads.len(), "one thread flow per thread");
            }
            rule(
                steps <= 1000,
                "code scanning: thread flow locations per result",
            );
            for one in result["suppressions"].as_array().into_iter().flatten() {
                rule(
                    matches!(one["kind"].as_str(), Some("inSource" | "external")),
                    "3.35.2 kind",
                );
            }
        }
        for invocation in run["invocations"].as_array().unwrap() {
            rule(
                invocation["executionSuccessful"].is_boolean(),
                "3.20.14 executionSuccessful",
            );
        }
        visit(run, &mut |name, value| {
            if name == "artifactLocation" {
                let uri = value["uri"].as_str().unwrap_or("");
                let legal = |b: u8| b.is_ascii_alphanumeric() || b"-._~/:%".contains(&b);
                rule(
                    !uri.is_empty() && uri.bytes().all(legal),
                    "3.4.3 uri is a URI reference",
                );
                rule(!uri.starts_with('/'), "3.4.3 no bare absolute path");
                let based = value.get("uriBaseId").is_none_or(|_| !uri.contains(':'));
                rule(based, "3.4.4 uriBaseId only with a relative uri");
                let known = value.get("uriBaseId").is_none_or(|id| {
                    run["originalUriBaseIds"]
                        .get(id.as_str().unwrap())
                        .is_some()
                });
                rule(known, "3.14.14 uriBaseId is defined");
            }
            if name == "region" {
                rule(
                    value["startLine"].as_u64().is_some_and(|n| n >= 1),
                    "3.30.5 startLine from 1",
                );
            }
        });
    }
    broken
}

fn visit(value: &Value, see: &mut dyn FnMut(&str, &Value)) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                see(name, field);
                visit(field, see);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| visit(item, see)),
        _ => {}
    }
}

#[test]
fn word_for_word() {
    golden("mixed.sarif", &format!("{:#}\n", sarif(&mixed())));
}

#[test]
fn the_rules_of_the_specification_hold() {
    let mut judged = mixed();
    for race in &mut judged.races {
        race.standing = Some(Standing::Known);
    }
    judged.races[0].suppressed = Some(Suppressed {
        by: "a.supp:1".into(),
        reason: None,
    });
    judged.races[1].mark = Some(Mark {
        state: "accepted".into(),
        author: "ada".into(),
        date: "2026-11-15T21:40:00Z".into(),
        reason: "advisory".into(),
    });
    let mut deep = Report::new("vm", vec![]);
    let mut race = counter();
    for access in &mut race.accesses {
        access.stack = (0..5000)
            .map(|n| support::frame("f", "deep.c", n))
            .collect();
    }
    deep.races = vec![race];
    for report in [mixed(), judged, deep, Report::new("collide", vec![])] {
        assert_eq!(broken_rules(&sarif(&report)), Vec::<String>::new());
    }
}

#[test]
fn the_rules_can_be_broken() {
    let good = sarif(&mixed());
    let spoil = |path: &str, value: Value| {
        let mut bad = good.clone();
        *bad.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value;
        assert_ne!(broken_rules(&bad), Vec::<String>::new(), "{path}");
    };
    spoil("/version", "2.0.0".into());
    spoil("/runs/0/results/0/ruleIndex", 3.into());
    spoil("/runs/0/results/0/level", "none".into());
    spoil("/runs/0/results/0/relatedLocations/0/id", 2.into());
    spoil(
        "/runs/0/results/0/locations/0/physicalLocation/artifactLocation/uri",
        "/a b".into(),
    );
    spoil(
        "/runs/0/results/0/locations/0/physicalLocation/region/startLine",
        0.into(),
    );
    spoil(
        "/runs/0/results/1/codeFlows/0/threadFlows/0/locations",
        Value::Array(vec![]),
    );
}

#[test]
fn one_thread_flow_per_thread_in_the_order_they_ran() {
    let mut report = Report::new("vm", vec![]);
    report.races = vec![counter()];
    let flows = sarif(&report)["runs"][0]["results"][0]["codeFlows"][0]["threadFlows"].clone();
    let ids: Vec<_> = flows
        .as_array()
        .unwrap()
        .iter()
        .map(|flow| flow["id"].clone())
        .collect();
    assert_eq!(
        ids,
        ["thread 1", "thread 2 \"worker\""],
        "the earlier access first"
    );
    let last = flows[1]["locations"].as_array().unwrap().last().unwrap();
    assert_eq!(last["executionOrder"], 3);
    assert_eq!(last["importance"], "essential");
    assert_eq!(
        last["location"]["physicalLocation"]["region"]["startLine"],
        52
    );

    report.races = vec![half_seen()];
    let log = sarif(&report);
    let result = &log["runs"][0]["results"][0];
    assert_eq!(
        result["codeFlows"][0]["threadFlows"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let address = &result["locations"][0]["physicalLocation"]["address"];
    assert_eq!(address["fullyQualifiedName"], "libfoo.so.1+0x8c31");
}
