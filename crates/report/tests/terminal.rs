//! The terminal report, word for word.

mod support;

use race::{Mark, Report, Standing, Suppressed};
use report::{Color, Options};
use support::{counter, golden, mixed, use_after_free};

fn text(report: &Report, options: &Options) -> String {
    report::text(report, options)
}

fn plain() -> Options {
    Options {
        color: Color::Never,
        width: Some(100),
        ..Options::default()
    }
}

#[test]
fn a_report_of_most_kinds() {
    golden("mixed.txt", &text(&mixed(), &plain()));
}

#[test]
fn in_color() {
    let colored = text(
        &mixed(),
        &Options {
            color: Color::Always,
            ..plain()
        },
    );
    golden("mixed.ansi.txt", &colored);
    let mut stripped = String::new();
    let mut rest = colored.as_str();
    while let Some(start) = rest.find("\x1b[") {
        stripped.push_str(&rest[..start]);
        rest = &rest[start..];
        rest = &rest[rest.find('m').unwrap() + 1..];
    }
    stripped.push_str(rest);
    assert_eq!(
        stripped,
        text(&mixed(), &plain()),
        "colour adds nothing but colour"
    );
}

#[test]
fn no_races() {
    let mut report = Report::new("vm", vec!["./prog".into()]);
    report.exit.program = Some(139);
    golden("none.txt", &text(&report, &plain()));
}

#[test]
fn marks_baseline_and_suppressions_are_told() {
    let mut report = Report::new("vm", vec!["./prog".into()]);
    let mut marked = counter();
    marked.mark = Some(Mark {
        state: "accepted".into(),
        author: "ada".into(),
        date: "2026-11-15T21:40:00Z".into(),
        reason: "the total is advisory".into(),
    });
    marked.standing = Some(Standing::Worse);
    let mut hidden = use_after_free();
    hidden.suppressed = Some(Suppressed {
        by: "team.supp:12".into(),
        reason: Some("vendored code".into()),
    });
    report.races = vec![hidden, marked];
    golden("people.txt", &text(&report, &plain()));
    let all = text(
        &report,
        &Options {
            verbose: true,
            ..plain()
        },
    );
    assert!(
        all.contains("suppressed by team.supp:12: vendored code"),
        "{all}"
    );
}

#[test]
fn source_is_shown_where_it_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("table.c");
    let source: String = (1..60).map(|n| format!("\tline({n});\n")).collect();
    std::fs::write(&file, source).unwrap();
    let mut report = Report::new("vm", vec!["./prog".into()]);
    let mut race = counter();
    race.accesses[0].stack[0].file = Some(file.to_str().unwrap().into());
    report.races = vec![race];
    let shown = text(&report, &plain());
    assert!(shown.contains("           52 |     line(52);\n"), "{shown}");
    let more = text(
        &report,
        &Options {
            source_lines: 3,
            ..plain()
        },
    );
    assert!(more.contains("      >    52 |     line(52);\n"), "{more}");
    assert!(more.contains("           53 |     line(53);\n"), "{more}");
    let none = text(
        &report,
        &Options {
            source_lines: 0,
            ..plain()
        },
    );
    assert!(!none.contains("line(52)"), "{none}");
}

#[test]
fn a_program_cannot_steer_the_terminal() {
    let attack = "\x1b]0;owned\x07\x1b[2J\r\u{202e}\n==================\ndata race #9";
    let mut report = Report::new(attack, vec![attack.into()]);
    let mut race = counter();
    for access in &mut race.accesses {
        access.thread_name = Some(attack.into());
        access.value_before = Some(attack.into());
        access.value_after = Some(attack.into());
        access.locks = vec![attack.into()];
        for frame in access.stack.iter_mut().chain(&mut access.thread_created_at) {
            frame.function = Some(attack.into());
            frame.file = Some(attack.into());
        }
    }
    race.place.as_mut().unwrap().description = attack.into();
    race.explanation = Some(attack.into());
    race.ordering = Some(attack.into());
    race.memory_model = Some(attack.into());
    race.labels = vec![attack.into()];
    race.replay = vec![attack.into()];
    race.differences[0].recorded = attack.into();
    race.differences[0].what = attack.into();
    race.evidence[0].text = attack.into();
    race.suppressed = Some(Suppressed {
        by: attack.into(),
        reason: Some(attack.into()),
    });
    race.mark = Some(Mark {
        state: attack.into(),
        author: attack.into(),
        date: attack.into(),
        reason: attack.into(),
    });
    report.races = vec![race];
    report.not_checked = vec![attack.into()];
    let shown = text(
        &report,
        &Options {
            verbose: true,
            ..plain()
        },
    );
    let steering = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    assert_eq!(shown.chars().find(|c| steering(*c)), None, "{shown}");
    let rules = shown
        .lines()
        .filter(|line| line.starts_with("===="))
        .count();
    assert_eq!(rules, 2, "no line of the report can be forged: {shown}");
}

#[test]
fn long_stacks_are_cut_and_told() {
    let mut report = Report::new("vm", vec!["./prog".into()]);
    let mut race = counter();
    race.accesses[0].stack = (0..40)
        .map(|n| support::frame("recurse", "deep.c", n))
        .collect();
    report.races = vec![race];
    let shown = text(&report, &plain());
    assert!(shown.contains("#15 recurse"), "{shown}");
    assert!(!shown.contains("#16 recurse"), "{shown}");
    assert!(shown.contains("… and 24 more frames"), "{shown}");
}

#[test]
fn a_race_as_a_story() {
    let report = mixed();
    let story: String = report
        .races
        .iter()
        .map(|race| report::explain(&report, race))
        .collect::<Vec<_>>()
        .join("\n\n");
    golden("mixed.story.txt", &story);
}

#[test]
fn no_race_is_ever_called_what_it_must_not_be() {
    let report = mixed();
    let shown = text(&report, &plain())
        + &report
            .races
            .iter()
            .map(|race| report::explain(&report, race))
            .collect::<String>()
        + &report::sarif(&report, None)
        + &report::junit(&report, &|_| true);
    assert!(!shown.to_lowercase().contains("benign"));
}
