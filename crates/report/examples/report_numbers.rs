//! Measures what a user waits for, in processor time (the page in wall time): rendering 2,000 races in every form, the
//! page in a browser, and queries of a store with 100 runs of 500 races.
//! `bench/report` runs it; the limits are those the project set itself.
//!
//! ```text
//! report_numbers SOURCE_FOLDER [DEADHEAT]
//! ```
//!
//! With the path of the deadheat binary, `--help` is measured as well; with
//! chromium in the PATH, the page.

#[path = "../tests/support/browser.rs"]
mod browser;
#[path = "../tests/support/many.rs"]
mod many;

use report::{Color, Comparison, Form, Options, Store};
use std::collections::HashMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Processor time of this process and of the children it waited for.
fn processor_time() -> Duration {
    let of = |who| {
        // SAFETY: rusage is plain integers, for which all-zero is a value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: getrusage writes one rusage through a valid pointer.
        unsafe { libc::getrusage(who, &mut usage) };
        [usage.ru_utime, usage.ru_stime]
            .iter()
            .map(|time| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000))
            .sum::<Duration>()
    };
    of(libc::RUSAGE_SELF) + of(libc::RUSAGE_CHILDREN)
}

/// The fastest of a few runs, in processor time: what the machine needs
/// without disturbance by others.
fn best<T>(mut work: impl FnMut() -> T) -> Duration {
    (0..5)
        .map(|_| {
            let start = processor_time();
            black_box(work());
            processor_time() - start
        })
        .min()
        .unwrap_or_default()
}

fn line(what: &str, value: f64, unit: &str, limit: f64) {
    let verdict = if value < limit { "ok" } else { "OVER" };
    println!("{what:54} {value:10.2} {unit:2}  limit {limit:7.0} {unit:2}  {verdict}");
}

fn milliseconds(what: &str, time: Duration, limit: f64) {
    line(what, time.as_secs_f64() * 1e3, "ms", limit);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let sources = PathBuf::from(
        arguments
            .first()
            .expect("usage: report_numbers SOURCE_FOLDER [DEADHEAT]"),
    );
    let folder = tempfile::tempdir().expect("a temporary folder");

    let report = many::report(2000, &sources, 0);
    let options = Options {
        color: Color::Always,
        ..Options::default()
    };
    let json = Options {
        form: Form::Json,
        ..options.clone()
    };
    milliseconds(
        "2,000 races as text, with source",
        best(|| report::text(&report, &options)),
        1000.0,
    );
    milliseconds(
        "2,000 races as JSON",
        best(|| report::text(&report, &json)),
        1000.0,
    );
    milliseconds(
        "2,000 races as SARIF",
        best(|| report::sarif(&report, None)),
        1000.0,
    );
    milliseconds(
        "2,000 races as JUnit XML",
        best(|| report::junit(&report, &|_| true)),
        1000.0,
    );
    milliseconds(
        "2,000 races as a page",
        best(|| report::page(&report, &HashMap::new())),
        1000.0,
    );
    let page = folder.path().join("page.html");
    std::fs::write(&page, report::page(&report, &HashMap::new())).expect("the page is written");
    let size = page.metadata().map_or(0, |facts| facts.len());
    line("size of that page", size as f64 / 1e6, "MB", 5.0);
    in_browser(&page);
    store(&folder.path().join("store"), &sources);
    if let Some(binary) = arguments.get(1) {
        let help = best(|| {
            Command::new(binary)
                .arg("--help")
                .stdout(Stdio::null())
                .status()
        });
        milliseconds("deadheat --help", help, 30.0);
    }
}

fn in_browser(page: &Path) {
    let found = Command::new("chromium")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !found.is_ok_and(|status| status.success()) {
        println!("(no chromium: the page was not measured)");
        return;
    }
    let mut browser = browser::Browser::start();
    browser.window(1400, 1000, false);
    let mut ready: Vec<f64> = (0..3)
        .map(|_| {
            browser.open(page);
            browser
                .eval("Number(document.documentElement.dataset.ready)")
                .as_f64()
                .unwrap_or(f64::NAN)
        })
        .collect();
    ready.sort_by(f64::total_cmp);
    line(
        "that page, from navigation to interactive",
        ready[0],
        "ms",
        2000.0,
    );
    let filter = "(() => { const start = performance.now();
        const box = document.querySelector('input[type=search]');
        box.value = 'flush worker'; box.dispatchEvent(new Event('input'));
        document.body.offsetHeight; return performance.now() - start; })()";
    line(
        "that page, one search over everything",
        browser.eval(filter).as_f64().unwrap_or(f64::NAN),
        "ms",
        500.0,
    );
}

fn store(folder: &Path, sources: &Path) {
    let mut store = Store::create(folder).expect("the store is made");
    let mut keeping = Duration::ZERO;
    for run in 0..100 {
        let mut report = many::report(500, sources, run * 3);
        let start = processor_time();
        store.keep(&mut report).expect("the run is kept");
        keeping += processor_time() - start;
    }
    milliseconds(
        "store: keep a run of 500 races (mean of 100)",
        keeping / 100,
        1000.0,
    );
    drop(store);
    let open = || Store::open(folder).expect("the store opens");
    milliseconds(
        "store of 100 runs: list",
        best(|| open().runs().expect("runs")),
        100.0,
    );
    milliseconds(
        "store of 100 runs: latest report",
        best(|| open().report(100).expect("report")),
        100.0,
    );
    let last = open().report(100).expect("report");
    let one = &last.races[0].fingerprint;
    milliseconds(
        "store of 100 runs: history of one race",
        best(|| open().history(one).expect("history")),
        100.0,
    );
    milliseconds(
        "store of 100 runs: histories for the page",
        best(|| open().histories(100, 20).expect("histories")),
        100.0,
    );
    milliseconds(
        "store of 100 runs: marks",
        best(|| open().marks().expect("marks")),
        100.0,
    );
    let compare = || {
        let store = open();
        Comparison::of(
            &store.report(1).expect("report"),
            &store.report(100).expect("report"),
        )
    };
    milliseconds(
        "store of 100 runs: compare the first and the last",
        best(compare),
        100.0,
    );
}
