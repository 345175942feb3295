//! Reports with many races between lines of real source files, with stacks,
//! values, orders, differences and evidence as the analyses give them; and the
//! same with attacks in every text that a program could choose.

#![allow(dead_code, reason = "each user takes its part of this")]

use race::{
    Access, AccessKind, Consequence, Difference, DifferenceKind, Event, EventKind, Evidence, Frame,
    Moment, Order, Place, Race, Report, Site, States, Verdict, labels,
};
use std::path::Path;

pub const ATTACK: &str = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\u{202e}\x1b[31m{{data}}${alert(1)}'\"`";

/// A report of `number` races between lines of the `.rs` files under `folder`:
/// those from the `shift`-th on of one endless list, so that two reports can
/// overlap.
pub fn report(number: u32, folder: &Path, shift: u32) -> Report {
    let mut files = Vec::new();
    find_sources(folder, &mut files);
    files.sort();
    let mut report = Report::new("vm", vec!["./server".into(), "--threads=8".into()]);
    report.recordings = vec![".deadheat/7".into(), ".deadheat/8".into()];
    report.not_checked = vec![
        "schedules other than the 10 that were run, inputs other than the recorded one".into(),
        "code of libvendor.so.3, which has no symbols (accesses were watched, locks were not recognised)".into(),
    ];
    report.exit.program = Some(0);
    report.races = (shift..shift + number)
        .map(|seed| race(u64::from(seed), &files))
        .collect();
    report.sort_and_number();
    report
}

/// Puts an attack into every text of `report` that a program could choose.
pub fn make_hostile(report: &mut Report) {
    report.program = vec![ATTACK.into()];
    report.not_checked.push(ATTACK.into());
    report.unused_suppressions.push(ATTACK.into());
    report.races.iter_mut().for_each(spoil);
}

fn find_sources(folder: &Path, found: &mut Vec<(String, Vec<u32>)>) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            find_sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<u32> = text
                .lines()
                .zip(1..)
                .filter(|(line, _)| line.contains(';') && !line.trim().starts_with("//"))
                .map(|(_, number)| number)
                .collect();
            if !lines.is_empty() {
                found.push((path.display().to_string(), lines));
            }
        }
    }
}

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.roll(list.len())]
    }
}

const NAMES: [&str; 12] = [
    "table::add",
    "Session::flush",
    "queue_push",
    "reap_children",
    "update_stats",
    "<impl Drop for Pool>::drop",
    "std::vector<Job*>::push_back(Job* const&)",
    "log_line",
    "cache_lookup",
    "on_timer",
    "send_reply",
    "worker",
];

fn frame(dice: &mut Dice, files: &[(String, Vec<u32>)], depth: usize) -> Frame {
    let (file, lines) = dice.pick(files);
    Frame {
        function: Some(format!("{}_{}", dice.pick(&NAMES), dice.roll(90))),
        file: Some(file.clone()),
        line: Some(*dice.pick(lines)),
        module: Some("server".into()),
        offset: Some(0x1000 + dice.roll(1 << 20) as u64),
        inlined: depth == 0 && dice.roll(5) == 0,
    }
}

fn access(dice: &mut Dice, files: &[(String, Vec<u32>)], kind: AccessKind, thread: u32) -> Access {
    let depth = 3 + dice.roll(8);
    let stack: Vec<Frame> = (0..depth).map(|index| frame(dice, files, index)).collect();
    let top = &stack[0];
    let site = Site {
        module: top.module.clone(),
        offset: top.offset,
        function: top.function.clone(),
        file: top.file.clone(),
        line: top.line,
        function_line: top.line.map(|line| line.saturating_sub(5)),
        function_offset: None,
    };
    let mut access = Access::new(kind, *dice.pick(&[1, 2, 4, 8, 8, 8, 16]), site);
    access.address = Some(0x7f00_0000_0000 + dice.roll(1 << 24) as u64 * 8);
    access.thread = Some(thread);
    access.thread_name = (dice.roll(2) == 0).then(|| "worker".into());
    access.moment = Some(Moment::new(thread, dice.roll(1 << 28) as u64));
    access.stack = stack;
    access.thread_created_at = (0..2).map(|index| frame(dice, files, index + 1)).collect();
    let before = dice.roll(100_000);
    access.value_before = Some(before.to_string());
    if kind == AccessKind::Write {
        access.value_after = Some((before + 1).to_string());
    }
    if dice.roll(3) == 0 {
        access.locks = vec![format!("mutex table[{}].lock", dice.roll(16))];
    }
    access
}

fn race(seed: u64, files: &[(String, Vec<u32>)]) -> Race {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1);
    dice.roll(2);
    let other = *dice.pick(&[AccessKind::Read, AccessKind::Read, AccessKind::Write]);
    let threads = [2 + dice.roll(6) as u32, 1];
    let accesses = [
        access(&mut dice, files, AccessKind::Write, threads[0]),
        access(&mut dice, files, other, threads[1]),
    ];
    let mut race = Race::new(0, 1 + dice.roll(500) as u64, accesses);
    race.verdict = *dice.pick(&[
        Verdict::SpecViolated,
        Verdict::OutputDiffers,
        Verdict::StateChange,
        Verdict::SingleOrdering,
        Verdict::KWitnessHarmless,
        Verdict::KWitnessHarmless,
        Verdict::NotARace,
        Verdict::Unclassified,
    ]);
    race.recordings_seen = Some(1 + dice.roll(2) as u32);
    race.place = Some(Place {
        address: race.accesses[0].address,
        description: format!("stats[{}].total, heap block of 64 bytes", dice.roll(64)),
        allocated_at: vec![frame(&mut dice, files, 1)],
    });
    if matches!(race.verdict, Verdict::Unclassified | Verdict::NotARace) {
        return race;
    }
    race.k = Some(10);
    race.paths = Some(5);
    race.schedules = Some(2);
    race.memory_model = Some("sc".into());
    race.labels = vec![
        dice.pick(&[
            labels::STATISTICS_COUNTER,
            labels::AD_HOC_SYNC,
            labels::DOUBLE_CHECK,
        ])
        .to_string(),
    ];
    race.evidence = vec![Evidence {
        id: 1,
        text: format!(
            "order swapped at {}: both remainders followed to the next sequencer",
            race.accesses[0].moment.unwrap()
        ),
        instance: None,
        replay: None,
    }];
    race.replay = vec![format!(
        "deadheat replay .deadheat/7 --race {seed} --order swapped --gdb"
    )];
    race.states = Some(States::NoStateChange);
    if matches!(
        race.verdict,
        Verdict::KWitnessHarmless | Verdict::SingleOrdering
    ) {
        return race;
    }
    race.states = Some(States::StateChange);
    race.consequence = match race.verdict {
        Verdict::SpecViolated => Some(*dice.pick(&[
            Consequence::Crash,
            Consequence::Deadlock,
            Consequence::Assert,
        ])),
        Verdict::OutputDiffers => Some(Consequence::Output),
        _ => None,
    };
    let (one, two) = (dice.roll(100), dice.roll(100));
    race.explanation = Some(format!(
        "with the accesses swapped, the program prints \"total {two}\" instead of \"total {one}\""
    ));
    race.differences = vec![
        Difference {
            kind: DifferenceKind::Output,
            what: "fd 1".into(),
            at: Some(frame(&mut dice, files, 1)),
            recorded: format!("total {one}\nclients 4\n"),
            swapped: format!("total {two}\nclients 4\n"),
        },
        Difference {
            kind: DifferenceKind::Memory,
            what: format!("stats[{}].total", dice.roll(64)),
            at: None,
            recorded: one.to_string(),
            swapped: two.to_string(),
        },
    ];
    race.orders = orders(threads, one, two);
    race
}

fn orders(threads: [u32; 2], one: usize, two: usize) -> Vec<Order> {
    let event = |thread, kind, text: &str, access| Event {
        thread,
        kind,
        text: text.into(),
        access,
        moment: None,
    };
    let [writer, reader] = threads;
    let write = |access| {
        event(
            writer,
            EventKind::Access,
            "write stats.total 17 -> 18",
            access,
        )
    };
    vec![
        Order {
            name: "recorded".into(),
            events: vec![
                event(reader, EventKind::Access, "read stats.total 17", Some(1)),
                event(writer, EventKind::Acquire, "lock table.lock", None),
                write(Some(0)),
                event(writer, EventKind::Release, "unlock table.lock", None),
                event(
                    reader,
                    EventKind::Output,
                    &format!("write(1, \"total {one}\\n\")"),
                    None,
                ),
                event(reader, EventKind::End, "next sequencer", None),
            ],
            outcome: Some(format!("prints \"total {one}\"")),
        },
        Order {
            name: "swapped".into(),
            events: vec![
                event(writer, EventKind::Acquire, "lock table.lock", None),
                write(Some(0)),
                event(reader, EventKind::Access, "read stats.total 18", Some(1)),
                event(
                    reader,
                    EventKind::Output,
                    &format!("write(1, \"total {two}\\n\")"),
                    None,
                ),
                event(writer, EventKind::Release, "unlock table.lock", None),
                event(reader, EventKind::Signal, "SIGSEGV", None),
            ],
            outcome: Some(format!("prints \"total {two}\"")),
        },
    ]
}

/// Puts an attack into every text that a program could choose.
fn spoil(race: &mut Race) {
    let put = |text: &mut Option<String>| *text = Some(ATTACK.into());
    for access in &mut race.accesses {
        put(&mut access.thread_name);
        put(&mut access.value_before);
        put(&mut access.value_after);
        access.locks = vec![ATTACK.into()];
        for frame in access.stack.iter_mut().chain(&mut access.thread_created_at) {
            put(&mut frame.function);
            put(&mut frame.file);
            put(&mut frame.module);
        }
    }
    put(&mut race.explanation);
    put(&mut race.ordering);
    put(&mut race.memory_model);
    race.labels = vec![ATTACK.into()];
    race.replay = vec![ATTACK.into()];
    if let Some(place) = &mut race.place {
        place.description = ATTACK.into();
    }
    for difference in &mut race.differences {
        difference.what = ATTACK.into();
        difference.recorded = ATTACK.into();
        difference.swapped = format!("{ATTACK}!");
    }
    for evidence in &mut race.evidence {
        evidence.text = ATTACK.into();
        evidence.replay = Some(ATTACK.into());
    }
    for order in &mut race.orders {
        order.name = ATTACK.into();
        order.outcome = Some(ATTACK.into());
        order
            .events
            .iter_mut()
            .for_each(|event| event.text = ATTACK.into());
    }
}
