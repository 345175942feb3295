//! JUnit XML, which every CI system can show: one test case per race, failed
//! if the race fails the run, skipped if it is suppressed, else passed. A crash,
//! deadlock or hang of the program is a case that failed. Locks
//! used wrongly are cases too; they do not fail a run, so they pass and say
//! what is wrong.

use crate::Options;
use crate::options::Color;
use crate::terminal;
use crate::words::{between, calling_frame, location, title};
use race::{CutShort, LockCall, LockFinding, Race, Report, RunFailure, plain_lines};
use std::fmt::Write;

/// The XML document; `fails` says which races fail the run.
pub fn render(report: &Report, fails: &dyn Fn(&Race) -> bool) -> String {
    let failures = report.races.iter().filter(|race| fails(race)).count() + report.failures.len();
    let skipped = report
        .races
        .iter()
        .filter(|race| race.suppressed.is_some())
        .count();
    let tests = (report.failures.len() + report.races.len() + report.locks.len()).max(1);
    let name = xml(&format!("deadheat {}", report.program.join(" ")));
    let counts =
        format!("tests=\"{tests}\" failures=\"{failures}\" errors=\"0\" skipped=\"{skipped}\"");
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(text, "<testsuites name=\"deadheat\" {counts}>");
    let when = match &report.started {
        Some(date) => format!(" timestamp=\"{}\"", xml(date.trim_end_matches('Z'))),
        None => String::new(),
    };
    let _ = writeln!(text, "  <testsuite name=\"{name}\" {counts}{when}>");
    let beside = report.failures.len() + report.locks.len();
    if report.races.is_empty() && beside == 0 {
        text.push_str("    <testcase classname=\"deadheat\" name=\"no data races found\"/>\n");
    }
    let options = Options {
        color: Color::Never,
        width: Some(100),
        verbose: true,
        ..Options::default()
    };
    for failure in &report.failures {
        failure_case(&mut text, failure);
    }
    let bodies = terminal::render_each(report, &options);
    for (race, body) in report.races.iter().zip(&bodies) {
        case(&mut text, race, body, fails(race));
    }
    for finding in &report.locks {
        lock_case(&mut text, finding);
    }
    let cut_short = report.cut_short.iter().flat_map(CutShort::sentences);
    let mut notes: Vec<String> = cut_short.collect();
    notes.extend(
        report
            .not_checked
            .iter()
            .map(|sentence| format!("not checked: {sentence}")),
    );
    notes.extend(
        report
            .unused_suppressions
            .iter()
            .map(|one| format!("unused suppression: {one}")),
    );
    if !notes.is_empty() {
        let _ = writeln!(
            text,
            "    <system-out>{}</system-out>",
            xml(&notes.join("\n"))
        );
    }
    text.push_str("  </testsuite>\n</testsuites>\n");
    text
}

fn case(text: &mut String, race: &Race, body: &str, fails: bool) {
    let [one, two] = between(race);
    let place = race
        .accesses
        .iter()
        .find_map(|access| Some((access.site.file.as_deref()?, access.site.line)));
    let _ = write!(
        text,
        "    <testcase classname=\"deadheat.{}\" name=\"{}\"",
        race.verdict.name(),
        xml(&format!("{one} / {two} [{}]", race.fingerprint)),
    );
    if let Some((file, line)) = place {
        let _ = write!(text, " file=\"{}\"", xml(file));
        if let Some(line) = line {
            let _ = write!(text, " line=\"{line}\"");
        }
    }
    text.push_str(">\n");
    if let Some(suppressed) = &race.suppressed {
        let reason = suppressed.reason.as_deref().unwrap_or("no reason given");
        let message = xml(&format!("suppressed by {}: {reason}", suppressed.by));
        let _ = writeln!(text, "      <skipped message=\"{message}\"/>");
    } else if fails {
        let message = race.explanation.clone().unwrap_or_else(|| title(race));
        let _ = writeln!(
            text,
            "      <failure type=\"{}\" message=\"{}\">{}</failure>",
            race.verdict.name(),
            xml(&message),
            xml(body)
        );
    } else {
        let _ = writeln!(text, "      <system-out>{}</system-out>", xml(body));
    }
    text.push_str("    </testcase>\n");
}

fn lock_case(text: &mut String, finding: &LockFinding) {
    open_case(text, &finding.kind, &finding.text, &finding.stacks);
    let body = calls(&finding.text, &finding.stacks);
    let _ = writeln!(
        text,
        ">\n      <system-out>{}</system-out>\n    </testcase>",
        xml(&body)
    );
}

fn failure_case(text: &mut String, failure: &RunFailure) {
    let said = format!("the program {}", failure.text);
    open_case(
        text,
        &failure.kind,
        &failure.at.join(" / "),
        &failure.stacks,
    );
    let mut body = calls(&said, &failure.stacks);
    for line in failure.around.iter().chain(&failure.replay) {
        let _ = writeln!(body, "{line}");
    }
    let _ = writeln!(
        text,
        ">\n      <failure type=\"{}\" message=\"{}\">{}</failure>\n    </testcase>",
        xml(&failure.kind),
        xml(&said),
        xml(&body)
    );
}

/// A case up to its attributes, where its first call in a source file is.
fn open_case(text: &mut String, kind: &str, name: &str, stacks: &[LockCall]) {
    let frame = stacks
        .iter()
        .find_map(|call| calling_frame(&call.stack).filter(|frame| frame.file.is_some()));
    let _ = write!(
        text,
        "    <testcase classname=\"deadheat.{}\" name=\"{}\"",
        xml(kind),
        xml(name),
    );
    if let Some(frame) = frame {
        let _ = write!(
            text,
            " file=\"{}\"",
            xml(frame.file.as_deref().unwrap_or(""))
        );
        if let Some(line) = frame.line {
            let _ = write!(text, " line=\"{line}\"");
        }
    }
}

fn calls(said: &str, stacks: &[LockCall]) -> String {
    let mut body = format!("{said}\n");
    for call in stacks {
        let _ = writeln!(body, "  {} ({})", call.what, call.moment);
        for (depth, frame) in call.stack.iter().enumerate() {
            let function = frame.function.as_deref().unwrap_or("??");
            let _ = writeln!(body, "    #{depth} {function} {}", location(frame));
        }
    }
    body
}

/// Text for XML 1.0 content and attribute values: the five characters
/// escaped, line breaks kept, control characters visible, and the two others
/// that XML cannot hold replaced.
fn xml(text: &str) -> String {
    let mut safe = String::with_capacity(text.len() + 16);
    for c in plain_lines(text).chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&apos;"),
            '\u{fffe}' | '\u{ffff}' => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::xml;

    #[test]
    fn nothing_leaves_its_attribute_or_element() {
        assert_eq!(
            xml("a\"><x>&]]>'\u{0}\u{1b}\u{fffe}\n"),
            "a&quot;&gt;&lt;x&gt;&amp;]]&gt;&apos;\\x00\\x1b\u{fffd}\n"
        );
    }
}
