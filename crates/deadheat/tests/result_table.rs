//! The table of the long tests says what was tested, not what is checked out.
//!
//! `scripts/corpus` writes rows in a repository made for it: each states its
//! commit for ever, is marked when another is checked out, and tells changes
//! that no commit has.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Repository {
    folder: tempfile::TempDir,
}

impl Repository {
    fn new() -> Repository {
        let repository = Repository {
            folder: tempfile::tempdir().expect("a temporary folder"),
        };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/corpus");
        std::fs::create_dir(repository.path("scripts")).expect("a folder of ours");
        std::fs::copy(script, repository.path("scripts/corpus")).expect("a folder of ours");
        repository.git(&["init", "-q"]);
        repository.commit("first");
        repository
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn git(&self, arguments: &[&str]) -> String {
        let output = Command::new("git")
            .args(["-c", "user.name=n", "-c", "user.email=e"])
            .args(arguments)
            .current_dir(self.folder.path())
            .output()
            .expect("git can be started");
        assert!(output.status.success(), "git {arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_string()
    }

    /// Commits everything, with a file of this content; the commit.
    fn commit(&self, content: &str) -> String {
        std::fs::write(self.path("source"), content).expect("a folder of ours");
        self.git(&["add", "."]);
        self.git(&["commit", "-q", "-m", content]);
        self.git(&["rev-parse", "--short=12", "HEAD"])
    }

    fn corpus(&self, arguments: &[&str]) -> Output {
        Command::new(self.path("scripts/corpus"))
            .args(arguments)
            .output()
            .expect("the script can be started")
    }

    /// The cells of a row.
    fn row(&self, name: &str) -> Vec<String> {
        let table = std::fs::read_to_string(self.path("docs/results/test-all.md"));
        let table = table.expect("a table of ours");
        let start = format!("| {name} |");
        let mut rows = table.lines().filter(|line| line.starts_with(&start));
        let row = rows.next().unwrap_or_else(|| panic!("{name}: {table}"));
        assert_eq!(rows.next(), None, "{table}");
        row.split('|').map(|cell| cell.trim().to_string()).collect()
    }

    fn outcome(&self, name: &str) -> String {
        self.row(name)[2].clone()
    }

    fn made_on(&self, name: &str) -> String {
        let cell = &self.row(name)[3];
        cell.split(',').next().expect("a commit").to_string()
    }
}

#[test]
fn a_row_keeps_its_commit_and_is_marked_when_another_is_there() {
    let repository = Repository::new();
    assert!(repository.corpus(&["--begin"]).status.success());
    let first = repository.commit("one");
    repository.corpus(&["fast", "echo", "corpus: 3 cases"]);
    repository.corpus(&["slow", "true"]);
    assert_eq!(repository.outcome("fast"), "ok");
    assert_eq!(repository.made_on("fast"), first);
    assert_eq!(repository.row("fast")[7], "3 cases");

    let second = repository.commit("two");
    repository.corpus(&["fast", "true"]);
    assert_eq!(repository.outcome("slow"), "old: ok");
    assert_eq!(repository.made_on("slow"), first);
    assert_eq!(repository.outcome("fast"), "ok");
    assert_eq!(repository.made_on("fast"), second);

    repository.commit("three");
    assert!(repository.corpus(&["--begin"]).status.success());
    for (name, made_on) in [("slow", &first), ("fast", &second)] {
        assert_eq!(repository.outcome(name), "old: ok");
        assert_eq!(&repository.made_on(name), made_on);
    }
    let end = repository.corpus(&["--end"]);
    assert!(end.status.success());
    assert!(String::from_utf8_lossy(&end.stderr).contains("2 rows"));

    repository.git(&["checkout", "-q", "-f", &first]);
    repository.corpus(&["slow", "true"]);
    assert_eq!(repository.outcome("slow"), "ok");
}

#[test]
fn a_failed_row_fails_the_end_also_when_it_is_old() {
    let repository = Repository::new();
    repository.corpus(&["--begin"]);
    assert!(repository.corpus(&["bad", "false"]).status.success());
    assert_eq!(repository.outcome("bad"), "FAILED");
    assert!(!repository.corpus(&["--end"]).status.success());
    repository.commit("two");
    repository.corpus(&["--begin"]);
    assert_eq!(repository.outcome("bad"), "old: FAILED");
    assert!(!repository.corpus(&["--end"]).status.success());
    repository.corpus(&["bad", "true"]);
    assert!(repository.corpus(&["--end"]).status.success());
}

#[test]
fn changes_that_no_commit_has_are_told() {
    let repository = Repository::new();
    let commit = repository.commit("one");
    repository.corpus(&["clean", "true"]);
    // The tables themselves do not count.
    repository.corpus(&["clean", "true"]);
    assert_eq!(repository.made_on("clean"), commit);
    let changed = format!("{commit} + changes");
    repository.corpus(&["while it runs", "sh", "-c", "echo other > source"]);
    assert_eq!(repository.made_on("while it runs"), changed);
    repository.corpus(&["all the time", "true"]);
    assert_eq!(repository.made_on("all the time"), changed);
    assert_eq!(repository.outcome("all the time"), "ok");
    repository.git(&["checkout", "-q", "source"]);
    std::fs::write(repository.path("new"), "").expect("a folder of ours");
    repository.corpus(&["a new file", "true"]);
    assert_eq!(repository.made_on("a new file"), changed);
}
