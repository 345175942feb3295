//! SARIF 2.1.0 (OASIS), for code-scanning systems.
//!
//! One rule per verdict class and one per way to misuse a lock, one result per
//! race and per lock problem, one thread flow per
//! thread: the calls that lead to the access, outermost first, then the
//! access, with `executionOrder` where it is known which came first. The race
//! fingerprint identifies a result across uploads. What GitHub's code scanning
//! refuses or cuts off is kept within its limits (10 MB compressed, so the text
//! is compact and each stack is in it once), worst races first, and the file
//! says how many were left out.

use crate::words::{LockKind, calling_frame, failure_kinds, lock_kinds};
use crate::words::{
    access_words, between, earlier, executions, ordering, stack, thread_words, title, value_words,
    verdict_words,
};
use race::{
    Access, AccessKind, CutShort, Frame, LockCall, LockFinding, Race, Report, RunFailure, Standing,
    Verdict, plain_json,
};
use serde_json::{Map, Value, json};
use std::path::Path;

/// Code scanning refuses more results than this per run.
const RESULTS: usize = 25_000;
/// Code scanning shows no more flow steps than this per result.
const STEPS_PER_THREAD: usize = 400;

/// The SARIF document. Files under `root` (the checkout) are named relative
/// to it.
pub fn render(report: &Report, root: Option<&Path>) -> String {
    let writer = Writer {
        report,
        root,
        most: RESULTS,
    };
    let text = serde_json::to_string(&writer.log())
        .expect("a JSON value with string keys always has a text form");
    plain_json(&text).into_owned() + "\n"
}

struct Writer<'a> {
    report: &'a Report,
    root: Option<&'a Path>,
    /// Results written at most.
    most: usize,
}

impl Writer<'_> {
    fn log(&self) -> Value {
        let report = self.report;
        let mut worst_first: Vec<&Race> = report.races.iter().collect();
        worst_first.sort_by_key(|race| (race.verdict.rank(), race.id));
        let left_out = worst_first.len().saturating_sub(self.most);
        worst_first.truncate(self.most);
        let failures = report.failures.iter().take(self.most);
        let mut results: Vec<Value> = failures.map(|failure| self.failure(failure)).collect();
        let left_out = left_out + (worst_first.len() + results.len()).saturating_sub(self.most);
        worst_first.truncate(self.most - results.len());
        results.extend(worst_first.iter().map(|race| self.result(race)));
        let room = self.most - results.len();
        let locks = report.locks.iter().take(room);
        results.extend(locks.map(|finding| self.lock_result(finding)));
        let left_out = left_out + report.locks.len().saturating_sub(room);

        let cut_short = report.cut_short.iter().flat_map(CutShort::sentences);
        let mut notes: Vec<Value> = cut_short.map(|text| note(&text)).collect();
        notes.extend(
            report
                .not_checked
                .iter()
                .map(|text| note(&format!("Not checked: {text}"))),
        );
        let unused = report.unused_suppressions.iter();
        notes.extend(unused.map(|one| note(&format!("Unused suppression: {one}"))));
        if left_out > 0 {
            notes.push(note(&format!(
                "{left_out} findings, the least bad ones, were left out: \
                 code scanning takes no more than {} results",
                self.most
            )));
        }
        let mut invocation = json!({
            "executionSuccessful": true,
            "toolExecutionNotifications": notes,
            "exitCode": report.exit.deadheat,
        });
        if !report.program.is_empty() {
            invocation["commandLine"] = report.program.join(" ").into();
        }
        if let Some(started) = &report.started {
            invocation["startTimeUtc"] = started.as_str().into();
        }
        json!({
            "$schema": "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
            "version": "2.1.0",
            "runs": [{
                "tool": { "driver": {
                    "name": "deadheat",
                    "version": env!("CARGO_PKG_VERSION"),
                    "semanticVersion": env!("CARGO_PKG_VERSION"),
                    "rules": self.rules(),
                }},
                "automationDetails": { "id": format!("deadheat/{}/", report.tool) },
                "columnKind": "unicodeCodePoints",
                "originalUriBaseIds": { "SRCROOT": { "description": {
                    "text": "The folder with the sources, where deadheat was run."
                }}},
                "invocations": [invocation],
                "results": results,
            }]
        })
    }

    fn rules(&self) -> Vec<Value> {
        let verdicts = Verdict::REPORT_ORDER.map(rule).into_iter();
        let locks = lock_kinds().iter().map(|kind| named_rule(kind, "warning"));
        let failures = failure_kinds().iter().map(|kind| named_rule(kind, "error"));
        verdicts.chain(locks).chain(failures).collect()
    }

    /// A crash, deadlock or hang of the program.
    fn failure(&self, failure: &RunFailure) -> Value {
        let mut text = format!("The program {}.", failure.text);
        let replay = failure.replay.first();
        let replay = replay.map(|command| format!("Replay: `{command}`"));
        for sentence in failure.around.iter().chain(&replay) {
            text.push(' ');
            text.push_str(&sentence_case(sentence));
        }
        let rule = failure_kinds()
            .iter()
            .position(|kind| kind.name == failure.kind)
            .map(|position| Verdict::REPORT_ORDER.len() + lock_kinds().len() + position);
        let fingerprint = hashed(&format!("{} {}", failure.kind, failure.at.join(" ")));
        let mut result =
            self.calls_result(&failure.kind, &text, &failure.stacks, &fingerprint, rule);
        result["level"] = "error".into();
        if !failure.replay.is_empty() {
            result["properties"] = json!({ "replay": failure.replay });
        }
        result
    }

    /// A lock used wrongly: the calls concerned, each a flow of its own, since
    /// each may be another thread's.
    fn lock_result(&self, finding: &LockFinding) -> Value {
        let rule = lock_kinds()
            .iter()
            .position(|kind| kind.name == finding.kind)
            .map(|position| Verdict::REPORT_ORDER.len() + position);
        let fingerprint = lock_fingerprint(finding);
        self.calls_result(
            &finding.kind,
            &finding.text,
            &finding.stacks,
            &fingerprint,
            rule,
        )
    }

    /// What some calls together did, a warning.
    fn calls_result(
        &self,
        kind: &str,
        text: &str,
        stacks: &[LockCall],
        fingerprint: &str,
        rule: Option<usize>,
    ) -> Value {
        let first = stacks.first();
        let place = match first.and_then(|call| calling_frame(&call.stack)) {
            Some(frame) => self.location(frame, Some(text)),
            None => self.location(&Frame::default(), Some(text)),
        };
        let flows: Vec<Value> = stacks
            .iter()
            .filter(|call| !call.stack.is_empty())
            .map(|call| {
                let shown = call.stack.len().min(STEPS_PER_THREAD);
                let steps: Vec<Value> = call.stack[..shown]
                    .iter()
                    .rev()
                    .enumerate()
                    .map(|(depth, frame)| {
                        let last = depth + 1 == shown;
                        let said = if last { call.what.as_str() } else { "calls" };
                        json!({
                            "location": self.location(frame, Some(said)),
                            "nestingLevel": depth,
                            "importance": if last { "essential" } else { "unimportant" },
                            "kinds": [if last { "lock" } else { "call" }],
                        })
                    })
                    .collect();
                json!({
                    "id": format!("thread {}: {}", call.moment.thread, call.what),
                    "message": { "text": call.what },
                    "locations": steps,
                })
            })
            .collect();
        let mut result = json!({
            "ruleId": kind,
            "kind": "fail",
            "level": "warning",
            "message": { "text": sentence_case(text) },
            "locations": [place],
            "occurrenceCount": 1,
            "partialFingerprints": {
                "deadheatLock/v1": fingerprint,
                "primaryLocationLineHash": format!("{fingerprint}:1"),
            },
            "suppressions": [],
        });
        if let Some(rule) = rule {
            result["ruleIndex"] = rule.into();
        }
        // Either every result says how it stands to the baseline or none does;
        // a baseline has no lock problems.
        if self.report.races.iter().any(|race| race.standing.is_some()) {
            result["baselineState"] = "new".into();
        }
        if !flows.is_empty() {
            result["codeFlows"] = json!([{
                "message": { "text": "The calls up to each use of the lock" },
                "threadFlows": flows,
            }]);
        }
        result
    }

    fn result(&self, race: &Race) -> Value {
        let [first, second] = &race.accesses;
        let (kind, level) = level(race.verdict);
        let mut result = json!({
            "ruleId": race.verdict.name(),
            "ruleIndex": race.verdict.rank(),
            "kind": kind,
            "level": level,
            "message": { "text": self.message(race) },
            "locations": [self.access_location(first)],
            "occurrenceCount": race.instances.max(1),
            "partialFingerprints": {
                "deadheatRace/v1": race.former_fingerprint,
                "deadheatRace/v2": race.fingerprint,
                "primaryLocationLineHash": format!("{}:1", race.fingerprint.0),
            },
            "codeFlows": [{
                "message": { "text": "The calls of each thread up to its access" },
                "threadFlows": self.thread_flows(race),
            }],
            "suppressions": suppressions(race),
        });
        if second.kind != AccessKind::Unknown {
            let mut other = self.access_location(second);
            other["id"] = 1.into();
            result["relatedLocations"] = json!([other]);
        }
        if let Some(standing) = race.standing {
            result["baselineState"] = match standing {
                Standing::New => "new",
                Standing::Worse => "updated",
                Standing::Known => "unchanged",
            }
            .into();
        }
        let mut properties = Map::new();
        if !race.labels.is_empty() {
            properties.insert("tags".into(), json!(race.labels));
        }
        if let Some(states) = race.states {
            properties.insert("states".into(), states.to_string().into());
        }
        if !race.replay.is_empty() {
            properties.insert("replay".into(), json!(race.replay));
        }
        if !properties.is_empty() {
            result["properties"] = properties.into();
        }
        result
    }

    fn message(&self, race: &Race) -> String {
        let [one, two] = between(race);
        let mut text = format!("Data race, {}: {one} and {two}.", title(race));
        // `[text](1)` links to the related location with that id.
        if race.accesses[1].kind != AccessKind::Unknown {
            text.push_str(" See [the other access](1).");
        }
        for sentence in [
            race.explanation.clone(),
            ordering(race, &self.report.tool),
            executions(race),
            race.replay
                .first()
                .map(|command| format!("Replay: `{command}`")),
        ]
        .into_iter()
        .flatten()
        {
            text.push(' ');
            text.push_str(&sentence_case(&sentence));
        }
        text
    }

    fn thread_flows(&self, race: &Race) -> Vec<Value> {
        let mut order = [0, 1];
        if earlier(race) == Some(1) {
            order.reverse();
        }
        let known = earlier(race).is_some();
        let mut step = 0;
        let mut flows = Vec::new();
        for index in order {
            let access = &race.accesses[index];
            let frames = stack(access);
            if frames.is_empty() && access.kind == AccessKind::Unknown {
                continue;
            }
            let mut steps = Vec::new();
            let shown = frames.len().min(STEPS_PER_THREAD);
            for (depth, frame) in frames[..shown].iter().rev().enumerate() {
                let last = depth + 1 == shown;
                step += 1;
                let said = if last {
                    said(access)
                } else {
                    "calls".to_string()
                };
                let mut one = json!({
                    "location": self.location(frame, Some(&said)),
                    "nestingLevel": depth,
                    "importance": if last { "essential" } else { "unimportant" },
                    "kinds": if last { vec!["memory"] } else { vec!["call"] },
                });
                if known {
                    one["executionOrder"] = step.into();
                }
                if last && let Some(value) = value_words(access) {
                    one["state"] = json!({ "value": { "text": value } });
                }
                steps.push(one);
            }
            if steps.is_empty() {
                steps.push(json!({ "location": { "message": { "text": said(access) } } }));
            }
            flows.push(json!({
                "id": thread_words(access).unwrap_or_else(|| format!("access {}", index + 1)),
                "locations": steps,
            }));
        }
        if flows.is_empty() {
            flows.push(json!({ "locations": [
                { "location": { "message": { "text": "neither access was seen" } } }
            ]}));
        }
        flows
    }

    fn access_location(&self, access: &Access) -> Value {
        match stack(access).first() {
            Some(frame) => self.location(frame, Some(&said(access))),
            None => self.location(&Frame::default(), Some(&said(access))),
        }
    }

    /// Code scanning wants a file and a line for every location, so code
    /// without debug info is placed on the first line of its module, and the
    /// `address` says where in it.
    fn location(&self, frame: &Frame, message: Option<&str>) -> Value {
        let artifact = match (&frame.file, &frame.module) {
            (Some(file), _) => self.artifact(file),
            (None, Some(module)) => self.artifact(module),
            (None, None) => self.artifact(self.report.program.first().map_or("unknown", |p| p)),
        };
        let line = match &frame.file {
            Some(_) => frame.line.unwrap_or(1).max(1),
            None => 1,
        };
        let mut physical = json!({
            "artifactLocation": artifact,
            "region": { "startLine": line },
        });
        if let (None, Some(module), Some(offset)) = (&frame.file, &frame.module, frame.offset)
            && let Ok(offset) = i64::try_from(offset)
        {
            physical["address"] = json!({
                "kind": "instruction",
                "offsetFromParent": offset,
                "fullyQualifiedName": format!("{module}+{offset:#x}"),
            });
        }
        let mut place = json!({ "physicalLocation": physical });
        if let Some(function) = &frame.function {
            place["logicalLocations"] =
                json!([{ "fullyQualifiedName": function, "kind": "function" }]);
        }
        if let Some(message) = message {
            place["message"] = json!({ "text": message });
        }
        place
    }

    /// A relative path counts from the source root; an absolute one outside
    /// it is a `file:` address.
    fn artifact(&self, path: &str) -> Value {
        let inside = match self.root.and_then(Path::to_str) {
            Some(root) if path.starts_with('/') => path
                .strip_prefix(root)
                .and_then(|rest| rest.strip_prefix('/')),
            _ => None,
        };
        match inside {
            Some(inside) => json!({ "uri": percent(inside), "uriBaseId": "SRCROOT" }),
            None if path.starts_with('/') => json!({ "uri": format!("file://{}", percent(path)) }),
            None => {
                let path = path.strip_prefix("./").unwrap_or(path);
                json!({ "uri": percent(path), "uriBaseId": "SRCROOT" })
            }
        }
    }
}

/// What an access does, for a reader of a list of locations.
fn said(access: &Access) -> String {
    match thread_words(access) {
        Some(thread) => format!("{} by {thread}", access_words(access)),
        None => access_words(access),
    }
}

fn sentence_case(text: &str) -> String {
    let mut letters = text.trim().chars();
    let first = letters
        .next()
        .map(|c| c.to_uppercase().to_string())
        .unwrap_or_default();
    let end = if text.ends_with(['.', '!', '?']) {
        ""
    } else {
        "."
    };
    format!("{first}{}{end}", letters.as_str())
}

fn note(text: &str) -> Value {
    json!({ "level": "note", "message": { "text": text } })
}

fn suppressions(race: &Race) -> Vec<Value> {
    let mut list = Vec::new();
    if let Some(suppressed) = &race.suppressed {
        let reason = suppressed.reason.as_deref().unwrap_or("no reason given");
        list.push(json!({
            "kind": "external",
            "status": "accepted",
            "justification": format!("{} ({})", reason, suppressed.by),
        }));
    }
    if let Some(mark) = race
        .mark
        .as_ref()
        .filter(|mark| mark.accepts() && race.contradicted.is_none())
    {
        list.push(json!({
            "kind": "external",
            "status": "accepted",
            "justification": format!("{} ({}, {})", mark.reason, mark.author, mark.date),
        }));
    }
    list
}

/// SARIF's kind and level of a verdict class.
fn level(verdict: Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::SpecViolated | Verdict::OutputDiffers => ("fail", "error"),
        Verdict::StateChange | Verdict::Unclassified => ("fail", "warning"),
        Verdict::SingleOrdering | Verdict::KWitnessHarmless => ("fail", "note"),
        Verdict::NotARace => ("pass", "none"),
    }
}

fn rule(verdict: Verdict) -> Value {
    let (short, full) = match verdict {
        Verdict::SpecViolated => (
            "Data race that breaks the program",
            "With the two accesses in the other order the program crashes, hangs, deadlocks or breaks an assertion or invariant.",
        ),
        Verdict::OutputDiffers => (
            "Data race that changes the output",
            "With the two accesses in the other order the program writes something else.",
        ),
        Verdict::StateChange => (
            "Data race that changes the state",
            "With the two accesses in the other order memory or registers end up different; what follows from that was not explored.",
        ),
        Verdict::Unclassified => (
            "Data race",
            "Two threads access the same memory, at least one writes, and nothing orders them. What it can do was not examined.",
        ),
        Verdict::SingleOrdering => (
            "Data race with one possible order",
            "The accesses are ordered by something that is not correct synchronisation; the other order could not be produced.",
        ),
        Verdict::KWitnessHarmless => (
            "Data race without effect in the executions tried",
            "No harm was seen in the executions, paths and schedules that were tried. It is still undefined behaviour in C and C++.",
        ),
        Verdict::NotARace => (
            "Not a race",
            "A candidate that was examined and found to be ordered.",
        ),
    };
    let (_, level) = level(verdict);
    let severity = match level {
        "error" => "error",
        "warning" => "warning",
        _ => "recommendation",
    };
    json!({
        "id": verdict.name(),
        "name": camel(verdict.name()),
        "shortDescription": { "text": short },
        "fullDescription": { "text": full },
        "help": { "text": format!(
            "{full} Verdict class: {}. `deadheat explain N` tells one race as a story; \
             the replay command of a result shows it again, step by step.",
            verdict_words(verdict)
        )},
        "defaultConfiguration": { "level": level },
        "properties": {
            "tags": ["concurrency", "data-race", "external/cwe/cwe-362"],
            "problem.severity": severity,
            "precision": "high",
        },
    })
}

fn named_rule(kind: &LockKind, level: &str) -> Value {
    json!({
        "id": kind.name,
        "name": camel(kind.name),
        "shortDescription": { "text": kind.short },
        "fullDescription": { "text": kind.full },
        "help": { "text": kind.full },
        "defaultConfiguration": { "level": level },
        "properties": {
            "tags": ["concurrency", if level == "error" { "failure" } else { "locks" },
                     format!("external/cwe/{}", kind.weakness)],
            "problem.severity": level,
            "precision": "high",
        },
    })
}

/// The same in every run: what is wrong, and the functions it happens in.
/// Addresses of locks change.
fn lock_fingerprint(finding: &LockFinding) -> String {
    let mut text = finding.kind.clone();
    for call in &finding.stacks {
        if let Some(frame) = calling_frame(&call.stack) {
            let file = frame
                .file
                .as_deref()
                .and_then(|file| file.rsplit('/').next());
            for part in [frame.function.as_deref(), file, frame.module.as_deref()] {
                text.push('|');
                text.push_str(part.unwrap_or(""));
            }
        }
    }
    hashed(&text)
}

/// FNV-1a, 64 bits.
fn hashed(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

fn camel(name: &str) -> String {
    name.split('-')
        .map(|word| {
            let mut letters = word.chars();
            let first = letters.next().map(|c| c.to_ascii_uppercase());
            first.into_iter().chain(letters).collect::<String>()
        })
        .collect()
}

/// A path as part of a URI (RFC 3986): unreserved characters and slashes as
/// they are, all else as bytes in percent form.
fn percent(path: &str) -> String {
    let mut uri = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                uri.push(char::from(byte));
            }
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_results_than_code_scanning_takes_lose_the_least_bad() {
        let mut report = Report::new("vm", vec![]);
        for verdict in [Verdict::NotARace, Verdict::NotARace, Verdict::SpecViolated] {
            let mut race = Race::new(1, 1, [Access::unseen(), Access::unseen()]);
            race.verdict = verdict;
            report.races.push(race);
        }
        let writer = Writer {
            report: &report,
            root: None,
            most: 1,
        };
        let run = &writer.log()["runs"][0];
        assert_eq!(run["results"].as_array().map(Vec::len), Some(1));
        assert_eq!(run["results"][0]["ruleId"], "spec-violated");
        let notes = run["invocations"][0]["toolExecutionNotifications"].to_string();
        assert!(
            notes.contains("2 findings, the least bad ones, were left out"),
            "{notes}"
        );
    }

    #[test]
    fn paths_become_addresses() {
        let report = Report::new("vm", vec![]);
        let writer = Writer {
            report: &report,
            root: Some(Path::new("/home/ada/prog")),
            most: RESULTS,
        };
        let uri = |path| writer.artifact(path).to_string();
        assert_eq!(
            uri("/home/ada/prog/src/a b.c"),
            r#"{"uri":"src/a%20b.c","uriBaseId":"SRCROOT"}"#
        );
        assert_eq!(
            uri("/home/ada/program/a.c"),
            r#"{"uri":"file:///home/ada/program/a.c"}"#
        );
        assert_eq!(uri("./a.c"), r#"{"uri":"a.c","uriBaseId":"SRCROOT"}"#);
        assert_eq!(
            uri("\u{e9}\"\n"),
            r#"{"uri":"%C3%A9%22%0A","uriBaseId":"SRCROOT"}"#
        );
    }
}
