//! The page in a real browser: what it shows, filters, keys, the phone, the
//! dark, and a program that attacks it. `make test-all` runs these (they need
//! Debian's chromium) and leaves pictures to look at in the target folder,
//! `tmp/pictures/`.

#[path = "support/browser.rs"]
mod browser;
#[path = "support/many.rs"]
mod many;

use browser::Browser;
use race::{LockCall, LockFinding, Mark, Moment, Report, Suppressed, Verdict};
use report::Sighting;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

const ROWS: &str = "[...document.querySelectorAll('nav li')].filter((row) => !row.hidden).length";
const TITLE: &str = "document.querySelector('article h2').textContent";

fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn write(folder: &Path, report: &Report) -> PathBuf {
    let mut histories = HashMap::new();
    for race in &report.races {
        let sighting = |run, verdict| Sighting {
            run,
            started: format!("2026-11-{run:02}T10:00:00Z"),
            verdict,
            instances: race.instances,
        };
        let history = vec![
            sighting(6, Verdict::Unclassified),
            sighting(7, race.verdict),
        ];
        histories.insert(race.fingerprint.clone(), history);
    }
    let file = folder.join("page.html");
    std::fs::write(&file, report::page(report, &histories)).unwrap();
    file
}

fn forty() -> Report {
    let mut report = many::report(40, sources(), 0);
    report.run = Some(7);
    report.started = Some("2026-11-07T10:00:00Z".into());
    report.races[1].mark = Some(Mark {
        state: "bug".into(),
        author: "ada".into(),
        date: "2026-11-07T10:00:00Z".into(),
        reason: "ticket 12".into(),
    });
    report.locks = vec![LockFinding {
        kind: "lock-order-inversion".into(),
        text: "<b>one</b> and two are taken in either order".into(),
        locks: vec!["0x10".into(), "0x20".into()],
        stacks: vec![LockCall {
            what: "two taken while one is held".into(),
            moment: Moment::new(2, 7),
            stack: report.races[0].accesses[0].stack.clone(),
        }],
    }];
    report.races[39].suppressed = Some(Suppressed {
        by: "team.supp:3".into(),
        reason: Some("vendored".into()),
    });
    report
}

/// Nothing went wrong in the page and nothing was asked of the network.
fn assert_quiet(browser: &Browser) {
    for event in &browser.events {
        let method = event["method"].as_str().unwrap_or("");
        assert_ne!(method, "Runtime.exceptionThrown", "{event}");
        assert_ne!(method, "Page.javascriptDialogOpening", "{event}");
        assert_ne!(method, "Log.entryAdded", "{event}");
        if method == "Network.requestWillBeSent" {
            let url = event["params"]["request"]["url"].as_str().unwrap();
            assert!(
                url.starts_with("file:///") && url.contains("page.html"),
                "{url}"
            );
        }
    }
}

#[test]
#[ignore = "needs chromium; make test-all runs it"]
fn a_reader_finds_the_way_around() {
    let folder = tempfile::tempdir().unwrap();
    let report = forty();
    let page = write(folder.path(), &report);
    let mut browser = Browser::start();
    browser.window(1400, 1000, false);
    browser.open(&page);
    browser.picture("light.png");

    let of = |verdict| {
        report
            .races
            .iter()
            .filter(|race| race.verdict == verdict && race.suppressed.is_none())
            .count()
    };
    for verdict in Verdict::REPORT_ORDER {
        let shown = browser.eval(&format!(
            "document.querySelector('[data-verdict=\"{}\"] b').textContent",
            verdict.rank()
        ));
        assert_eq!(shown, of(verdict).to_string(), "{verdict}");
    }
    assert_eq!(browser.eval(ROWS), 39, "the suppressed one is not listed");
    browser.eval("document.querySelector('[type=checkbox]').click()");
    assert_eq!(browser.eval(ROWS), 40);
    browser.eval("document.querySelector('[type=checkbox]').click()");

    browser.eval("document.querySelector('[data-verdict=\"0\"]').click()");
    assert_eq!(browser.eval(ROWS), 39 - of(Verdict::SpecViolated));
    browser.key("1");
    assert_eq!(browser.eval(ROWS), 39);

    assert!(browser.eval(TITLE).as_str().unwrap().starts_with("#1 "));
    browser.key("j");
    browser.key("j");
    assert!(browser.eval(TITLE).as_str().unwrap().starts_with("#3 "));
    browser.key("ArrowUp");
    assert!(browser.eval(TITLE).as_str().unwrap().starts_with("#2 "));
    assert_eq!(browser.eval("location.hash"), "#race-2");
    let text = browser.eval("document.querySelector('article').textContent");
    assert!(
        text.as_str()
            .unwrap()
            .contains("bug by ada on 2026-11-07: ticket 12")
    );
    assert!(text.as_str().unwrap().contains("run 6: unclassified"));

    let wanted = report.races[9].accesses[0]
        .site
        .function
        .clone()
        .unwrap()
        .to_lowercase();
    let expected = report.races.iter().filter(|race| {
        let frames = race
            .accesses
            .iter()
            .flat_map(|a| a.stack.iter().chain(&a.thread_created_at));
        frames.into_iter().any(|frame| {
            frame
                .function
                .as_ref()
                .unwrap()
                .to_lowercase()
                .contains(&wanted)
        }) && race.suppressed.is_none()
    });
    browser.key("/");
    browser.call("Input.insertText", serde_json::json!({ "text": wanted }));
    assert_eq!(browser.eval(ROWS), expected.count());
    browser.key("Escape");
    assert_eq!(browser.eval(ROWS), 39);

    let locks = browser.eval("document.querySelector('footer .locks').textContent");
    let locks = locks.as_str().unwrap();
    assert!(locks.starts_with("1 lock problem"), "{locks}");
    assert!(
        locks.contains("lock order inversion: <b>one</b> and two"),
        "{locks}"
    );
    assert!(
        locks.contains("thread 2: two taken while one is held"),
        "{locks}"
    );

    browser.eval("{ const s = document.querySelector('select'); s.value = 'double-check'; s.dispatchEvent(new Event('change')); }");
    let labelled = |race: &&race::Race| {
        race.labels.contains(&"double-check".to_string()) && race.suppressed.is_none()
    };
    assert_eq!(
        browser.eval(ROWS),
        report.races.iter().filter(labelled).count()
    );
    assert_quiet(&browser);
}

#[test]
#[ignore = "needs chromium; make test-all runs it"]
fn a_race_is_drawn_with_source_orders_and_differences() {
    let folder = tempfile::tempdir().unwrap();
    let report = forty();
    let page = write(folder.path(), &report);
    let mut browser = Browser::start();
    browser.window(1400, 2400, false);
    browser.open(&page);
    browser.picture("race.png");
    let hit = "document.querySelector('.source .hit').textContent";
    // The access that came first is on the left.
    let site = &report.races[0].accesses[1].site;
    let source = std::fs::read_to_string(site.file.as_ref().unwrap()).unwrap();
    let line = source.lines().nth(site.line.unwrap() as usize - 1).unwrap();
    assert!(
        browser
            .eval(hit)
            .as_str()
            .unwrap()
            .ends_with(line.trim_end()),
        "{line}"
    );
    assert_eq!(
        browser.eval("document.querySelectorAll('.order').length"),
        2
    );
    // In the recorded order the reader's access (the second) is above, in the
    // swapped order below, each in its own lane.
    let top = |browser: &mut Browser, order: u32, which: &str, edge: &str| {
        let at = format!(
            "document.querySelectorAll('.order')[{order}].querySelector('.event.{which}').getBoundingClientRect().{edge}"
        );
        browser.eval(&at).as_f64().unwrap()
    };
    assert!(top(&mut browser, 0, "second", "bottom") <= top(&mut browser, 0, "first", "top"));
    assert!(top(&mut browser, 1, "first", "bottom") <= top(&mut browser, 1, "second", "top"));
    assert!(top(&mut browser, 0, "second", "right") <= top(&mut browser, 0, "first", "left"));
    assert_eq!(
        browser.eval("document.querySelectorAll('.order')[0].querySelectorAll('.switch').length"),
        2
    );
    assert_eq!(
        browser.eval("document.querySelectorAll('.order .acquire').length"),
        2
    );
    let cells = browser.eval("[...document.querySelectorAll('table.diff tbody tr:first-child td')].map((cell) => cell.textContent)");
    assert_eq!(cells[0], report.races[0].differences[0].recorded.as_str());
    assert_eq!(cells[1], report.races[0].differences[0].swapped.as_str());
    assert_eq!(
        browser.eval("document.querySelector('.command code').textContent"),
        report.races[0].replay[0].as_str()
    );
    // A race of which only the accesses are known has its orders all the same.
    let bare = report
        .races
        .iter()
        .find(|race| race.orders.is_empty() && race.suppressed.is_none())
        .unwrap();
    browser.eval(&format!(
        "location.hash = '#race-{}'; new Promise((done) => setTimeout(done, 50))",
        bare.id
    ));
    assert_eq!(
        browser.eval("document.querySelectorAll('.order').length"),
        2
    );
    assert_quiet(&browser);
}

#[test]
#[ignore = "needs chromium; make test-all runs it"]
fn in_the_dark_and_on_a_phone() {
    let folder = tempfile::tempdir().unwrap();
    let page = write(folder.path(), &forty());
    let mut browser = Browser::start();
    browser.window(1400, 1000, true);
    browser.open(&page);
    let paper = "getComputedStyle(document.documentElement).backgroundColor";
    assert_eq!(browser.eval(paper), "rgb(13, 17, 23)");
    browser.picture("dark.png");
    browser.key("t");
    assert_eq!(browser.eval(paper), "rgb(255, 255, 255)");
    browser.eval("localStorage.clear()");

    browser.window(390, 844, false);
    browser.open(&page);
    let overflow = "document.documentElement.scrollWidth - innerWidth";
    browser.picture("phone-list.png");
    assert_eq!(browser.eval(overflow), 0);
    let visible = |what: &str| format!("document.querySelector('{what}').checkVisibility()");
    assert_eq!(browser.eval(&visible("nav")), true);
    assert_eq!(browser.eval(&visible("article")), false);
    browser.eval(
        "document.querySelector('nav a').click(); new Promise((done) => setTimeout(done, 50))",
    );
    browser.picture("phone-race.png");
    assert_eq!(browser.eval(&visible("nav")), false);
    assert_eq!(browser.eval(&visible("article")), true);
    assert_eq!(browser.eval(overflow), 0);
    browser.eval(
        "document.querySelector('.back').click(); new Promise((done) => setTimeout(done, 50))",
    );
    assert_eq!(browser.eval(&visible("nav")), true);
    assert_quiet(&browser);
}

#[test]
#[ignore = "needs chromium; make test-all runs it"]
fn a_hostile_program_shows_as_text() {
    let folder = tempfile::tempdir().unwrap();
    let mut report = many::report(12, sources(), 0);
    many::make_hostile(&mut report);
    report.races[0].mark = Some(Mark {
        state: many::ATTACK.into(),
        author: many::ATTACK.into(),
        date: many::ATTACK.into(),
        reason: many::ATTACK.into(),
    });
    report.races[1].suppressed = Some(Suppressed {
        by: many::ATTACK.into(),
        reason: Some(many::ATTACK.into()),
    });
    let page = write(folder.path(), &report);
    let mut browser = Browser::start();
    browser.window(1400, 1000, false);
    browser.open(&page);
    browser.picture("hostile.png");
    browser.eval("document.querySelector('[type=checkbox]').click()");
    for _ in 0..12 {
        browser.key("j");
        browser.eval("document.querySelectorAll('details').forEach((one) => { one.open = true; })");
        assert_eq!(
            browser
                .eval("document.querySelectorAll('img, iframe, object, embed, svg, link').length"),
            0
        );
        assert_eq!(browser.eval("document.scripts.length"), 2);
        assert_ne!(browser.eval("document.title"), "owned");
        let article = browser.eval("document.querySelector('article').textContent");
        assert!(
            article
                .as_str()
                .unwrap()
                .contains("</script><script>document.title"),
            "{article}"
        );
        let lane = browser.eval("['header', 'main', 'footer'].some((part) => document.querySelector(part).textContent.includes('\\u202e'))");
        assert_eq!(lane, false, "nothing turns the direction of writing");
    }
    assert_quiet(&browser);

    // What the escaping stops, the policy would stop as well.
    browser.eval("{ const s = document.createElement('script'); s.textContent = \"document.title = 'owned'\"; document.body.append(s); }");
    assert_ne!(browser.eval("document.title"), "owned");
}

#[test]
#[ignore = "needs chromium; make test-all runs it"]
fn two_thousand_races() {
    let folder = tempfile::tempdir().unwrap();
    let report = many::report(2000, sources(), 0);
    let page = write(folder.path(), &report);
    let size = page.metadata().unwrap().len();
    assert!(size < 5_000_000, "{size} bytes");
    let mut browser = Browser::start();
    browser.window(1400, 1000, false);
    browser.open(&page);
    browser.picture("many.png");
    assert_eq!(browser.eval(ROWS), 2000);
    for _ in 0..5 {
        browser.key("j");
    }
    assert!(browser.eval(TITLE).as_str().unwrap().starts_with("#6 "));
    browser.key("/");
    browser.call("Input.insertText", serde_json::json!({ "text": "#1999" }));
    assert_eq!(browser.eval(ROWS), 1);
    println!(
        "{size} bytes, drawn after {} ms",
        browser
            .eval("document.documentElement.dataset.ready")
            .as_str()
            .unwrap()
    );
    assert_quiet(&browser);
}

#[test]
fn the_page_is_small_and_whole_without_a_browser() {
    let report = many::report(200, sources(), 0);
    let page = report::page(&report, &HashMap::new());
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    assert!(page.len() < 700_000, "{}", page.len());
    assert!(page.contains("default-src 'none'"));
}
