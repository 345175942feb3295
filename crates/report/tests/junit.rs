//! The JUnit form, word for word, and as well-formed XML.

mod support;

use race::{Race, Report, Suppressed, Verdict};
use support::{golden, mixed};

fn fails(race: &Race) -> bool {
    race.suppressed.is_none() && race.verdict != Verdict::KWitnessHarmless
}

/// Whether every element is closed in turn and every `&` begins an entity.
fn well_formed(xml: &str) -> bool {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = xml;
    while let Some(start) = rest.find('<') {
        if !entities(&rest[..start]) {
            return false;
        }
        let Some(end) = rest[start..].find('>') else {
            return false;
        };
        let tag = &rest[start + 1..start + end];
        rest = &rest[start + end + 1..];
        if tag.starts_with('?') || tag.ends_with('/') {
            continue;
        }
        if tag.contains('<') || !entities(tag) || !tag.matches('"').count().is_multiple_of(2) {
            return false;
        }
        match tag.strip_prefix('/') {
            Some(name) if open.pop() == Some(name) => {}
            Some(_) => return false,
            None => open.push(tag.split_whitespace().next().unwrap_or("")),
        }
    }
    open.is_empty() && rest.trim().is_empty()
}

fn entities(text: &str) -> bool {
    let known = ["amp;", "lt;", "gt;", "quot;", "apos;"];
    text.split('&')
        .skip(1)
        .all(|after| known.iter().any(|entity| after.starts_with(entity)))
}

#[test]
fn word_for_word() {
    let mut report = mixed();
    report.started = Some("2026-11-15T21:40:00Z".into());
    report.races[2].suppressed = Some(Suppressed {
        by: "a.supp:3".into(),
        reason: Some("vendored".into()),
    });
    report.unused_suppressions = vec!["a.supp:9 race:nothing".into()];
    let xml = report::junit(&report, &fails);
    golden("mixed.junit.xml", &xml);
    assert!(well_formed(&xml));
    assert!(xml.contains("tests=\"5\" failures=\"2\" errors=\"0\" skipped=\"1\""));
}

#[test]
fn no_races_is_one_passed_test() {
    let xml = report::junit(&Report::new("vm", vec!["./prog".into()]), &fails);
    golden("none.junit.xml", &xml);
    assert!(well_formed(&xml));
}

#[test]
fn hostile_names_stay_text() {
    let mut report = mixed();
    let attack = "\"/><script>&x;]]>\u{0}\u{1b}";
    report.program = vec![attack.into()];
    for race in &mut report.races {
        race.explanation = Some(attack.into());
        race.accesses[0].site.file = Some(attack.into());
        race.accesses[0].thread_name = Some(attack.into());
        race.accesses[0].stack.clear();
    }
    let xml = report::junit(&report, &fails);
    assert!(well_formed(&xml), "{xml}");
    assert!(!xml.contains("<script"), "{xml}");
    assert!(!xml.chars().any(|c| c.is_control() && c != '\n'), "{xml}");
}
