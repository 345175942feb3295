//! Reports like those the analyses produce, for the tests of every form.

#![allow(dead_code, reason = "each test binary uses its part of this")]

use race::{
    Access, AccessKind, Consequence, Difference, DifferenceKind, Event, EventKind, Evidence, Frame,
    Instance, LockCall, LockFinding, Moment, Order, Place, Race, Report, Site, States, Verdict,
    labels,
};
use std::path::Path;

pub fn frame(function: &str, file: &str, line: u32) -> Frame {
    Frame {
        function: Some(function.into()),
        file: Some(file.into()),
        line: Some(line),
        module: Some("prog".into()),
        offset: Some(0x1000 + u64::from(line) * 4),
        inlined: false,
    }
}

pub fn site(function: &str, file: &str, line: u32, function_line: u32) -> Site {
    Site {
        module: Some("prog".into()),
        offset: Some(0x1000 + u64::from(line) * 4),
        function: Some(function.into()),
        file: Some(file.into()),
        line: Some(line),
        function_line: Some(function_line),
        function_offset: None,
    }
}

/// A counter that is added to without its lock and printed by another thread.
pub fn counter() -> Race {
    let mut add = Access::new(AccessKind::Write, 8, site("add", "table.c", 52, 50));
    add.address = Some(0x7f00_1234_5640);
    add.thread = Some(2);
    add.thread_name = Some("worker".into());
    add.moment = Some(Moment::new(2, 18234));
    add.stack = vec![frame("add", "table.c", 52), frame("worker", "main.c", 31)];
    add.thread_created_at = vec![frame("spawn", "main.c", 44), frame("main", "main.c", 71)];
    add.value_before = Some("17".into());
    add.value_after = Some("18".into());
    add.locks = vec!["mutex table.lock".into()];
    let mut report = Access::new(AccessKind::Read, 8, site("report", "main.c", 77, 75));
    report.address = add.address;
    report.thread = Some(1);
    report.moment = Some(Moment::new(1, 9120));
    report.stack = vec![frame("report", "main.c", 77)];
    report.value_before = Some("17".into());

    let mut race = Race::new(3, 41, [add, report]);
    let instance = Instance {
        first: Moment::new(1, 9120),
        second: Moment::new(2, 18234),
        address: 0x7f00_1234_5640,
        size: 8,
    };
    race.verdict = Verdict::OutputDiffers;
    race.consequence = Some(Consequence::Output);
    race.states = Some(States::StateChange);
    race.k = Some(10);
    race.paths = Some(5);
    race.schedules = Some(2);
    race.memory_model = Some("sc".into());
    race.labels = vec![labels::STATISTICS_COUNTER.into()];
    race.recordings_seen = Some(2);
    race.place = Some(Place {
        address: Some(0x7f00_1234_5640),
        description: "stats.total, heap block of 64 bytes".into(),
        allocated_at: vec![frame("table_new", "table.c", 18)],
    });
    race.explanation = Some(
        "with the accesses swapped, the program prints \"total 17\" instead of \"total 18\" \
         (main.c:79, fd 1)"
            .into(),
    );
    race.differences = vec![Difference {
        kind: DifferenceKind::Output,
        what: "fd 1".into(),
        at: Some(frame("report", "main.c", 79)),
        recorded: "total 18\n".into(),
        swapped: "total 17\n".into(),
    }];
    let event = |thread, kind, text: &str, access| Event {
        thread,
        kind,
        text: text.into(),
        access,
        moment: None,
    };
    race.orders = vec![
        Order {
            name: "recorded".into(),
            events: vec![
                event(1, EventKind::Switch, "runs", None),
                event(1, EventKind::Access, "read stats.total 17", Some(1)),
                event(2, EventKind::Switch, "runs", None),
                event(2, EventKind::Acquire, "lock table.lock", None),
                event(2, EventKind::Access, "write stats.total 17 -> 18", Some(0)),
                event(2, EventKind::Release, "unlock table.lock", None),
                event(1, EventKind::Output, "write(1, \"total 18\\n\")", None),
            ],
            outcome: Some("prints \"total 18\"".into()),
        },
        Order {
            name: "swapped".into(),
            events: vec![
                event(2, EventKind::Switch, "runs", None),
                event(2, EventKind::Access, "write stats.total 17 -> 18", Some(0)),
                event(1, EventKind::Switch, "runs", None),
                event(1, EventKind::Access, "read stats.total 18", Some(1)),
                event(1, EventKind::Output, "write(1, \"total 17\\n\")", None),
                event(1, EventKind::End, "exit 0", None),
            ],
            outcome: Some("prints \"total 17\"".into()),
        },
    ];
    race.evidence = vec![Evidence {
        id: 1,
        text: "order swapped at 2:18234: fd 1 differs at byte 7".into(),
        instance: Some(instance),
        replay: Some("deadheat replay .deadheat/7 --race 3 --order swapped".into()),
    }];
    race.replay = vec!["deadheat replay .deadheat/7 --race 3 --order swapped --gdb".into()];
    race
}

/// A use after free that crashes.
pub fn use_after_free() -> Race {
    let mut free = Access::new(
        AccessKind::Free,
        0,
        site("conn_close", "/src/server/conn.cpp", 210, 201),
    );
    free.thread = Some(1);
    free.stack = vec![
        Frame {
            inlined: true,
            ..frame(
                "std::default_delete<Conn>::operator()(Conn*) const",
                "/build/include/bits/unique_ptr.h",
                95,
            )
        },
        frame("conn_close", "/src/server/conn.cpp", 210),
    ];
    let mut read = Access::new(
        AccessKind::Read,
        4,
        site("flush", "/src/server/conn.cpp", 88, 80),
    );
    read.thread = Some(3);
    read.thread_name = Some("flusher".into());
    let mut race = Race::new(1, 1, [free, read]);
    race.verdict = Verdict::SpecViolated;
    race.consequence = Some(Consequence::Crash);
    race.explanation = Some("with the accesses swapped, thread 3 dies of SIGSEGV in flush".into());
    race.replay = vec![
        "deadheat replay .deadheat/7 --race 1 --order swapped".into(),
        "deadheat replay .deadheat/7 --race 1 --order swapped --gdb".into(),
    ];
    race
}

/// A flag that several threads set to the same value.
pub fn same_flag() -> Race {
    let at = |thread| {
        let mut write = Access::new(AccessKind::Write, 1, site("stop", "pool.rs", 12, 10));
        write.thread = Some(thread);
        write.value_before = Some("1".into());
        write.value_after = Some("1".into());
        write
    };
    let mut race = Race::new(4, 1800, [at(2), at(5)]);
    race.verdict = Verdict::KWitnessHarmless;
    race.states = Some(States::NoStateChange);
    race.k = Some(4);
    race.paths = Some(2);
    race.schedules = Some(2);
    race.memory_model = Some("sc".into());
    race.labels = vec![labels::REDUNDANT_WRITE.into()];
    race
}

/// What the sampler catches when only one side was seen, in stripped code.
pub fn half_seen() -> Race {
    let mut write = Access::new(
        AccessKind::Write,
        4,
        Site {
            module: Some("libfoo.so.1".into()),
            offset: Some(0x8c31),
            ..Site::default()
        },
    );
    write.thread = Some(4711);
    let mut race = Race::new(5, 1, [write, Access::unseen()]);
    race.labels = vec![labels::UNKNOWN_WRITER.into()];
    race
}

/// Two locks that are taken in either order.
fn inversion() -> LockFinding {
    let call = |what: &str, moment, function: &str, line| LockCall {
        what: what.into(),
        moment,
        stack: vec![frame(function, "main.c", line)],
    };
    LockFinding {
        kind: "lock-order-inversion".into(),
        text: "table.lock and log.lock are taken in different orders: this can deadlock".into(),
        locks: vec!["0x4040".into(), "0x4080".into()],
        stacks: vec![
            call(
                "log.lock taken while table.lock is held",
                Moment::new(2, 512),
                "worker",
                33,
            ),
            call(
                "table.lock taken while log.lock is held",
                Moment::new(1, 90),
                "flush",
                71,
            ),
        ],
    }
}

/// A report with one race of most kinds.
pub fn mixed() -> Report {
    let mut report = Report::new("vm", vec!["./prog".into(), "--fast".into()]);
    report.recordings = vec![".deadheat/7".into(), ".deadheat/8".into()];
    report.races = vec![use_after_free(), counter(), same_flag(), half_seen()];
    report.locks = vec![inversion()];
    report.not_checked = vec![
        "schedules other than the 10 that were run, inputs other than the recorded one".into(),
        "the memory order of 3 C11 atomics in prog, which its debug info does not tell (counted as acquire and release)".into(),
    ];
    report.exit.program = Some(0);
    report.exit.deadheat = 66;
    report.sort_and_number();
    report
}

/// Compares `actual` with the file `tests/golden/NAME`; with
/// `UPDATE_GOLDEN=1` in the environment the file is written instead.
pub fn golden(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, actual).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; run with UPDATE_GOLDEN=1", path.display()));
    if expected != actual {
        let line = expected
            .lines()
            .zip(actual.lines())
            .position(|(left, right)| left != right);
        panic!(
            "{} differs from line {:?} on (UPDATE_GOLDEN=1 accepts this):\n{actual}",
            path.display(),
            line.map(|index| index + 1)
        );
    }
}
