//! The commands of the documents, executed as they are written.
//!
//! In a block marked `console` a line that begins with `$ ` is a command and
//! what follows is what it prints (or more of the command, after a backslash
//! and in a here-document that ends with END). All commands of a document run in one
//! shell, in a fresh folder that has `examples/`. A printed line must be in
//! the output of its command; runs of digits stand for any number, `…` for any
//! text. A command must succeed, or find races (66) if it is deadheat's,
//! unless the next command is `echo $?`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[derive(Debug)]
struct Step {
    line: usize,
    command: String,
    prints: Vec<String>,
}

fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut inside = false;
    for (line, number) in text.lines().zip(1..) {
        if line.trim_start().starts_with("```") {
            inside = !inside && line.trim() == "```console";
        } else if !inside {
        } else if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step {
                line: number,
                command: command.to_string(),
                prints: Vec::new(),
            });
        } else if let Some(step) = steps.last_mut() {
            match goes_on(&step.command) {
                true => {
                    step.command.push('\n');
                    step.command.push_str(line);
                }
                false => step.prints.push(line.to_string()),
            }
        }
    }
    steps
}

/// A backslash at the end, or a here-document without its end.
fn goes_on(command: &str) -> bool {
    command.ends_with('\\') || (command.contains("<< 'END'") && !command.ends_with("\nEND"))
}

/// One shell for all of them; the status of a command reaches the next one.
fn script(steps: &[Step]) -> String {
    let mut script = String::from("exec 2>&1\nstatus=0\n");
    for (number, step) in steps.iter().enumerate() {
        script.push_str(&format!(
            "echo; echo '@@ {number}'; (exit $status)\n{}\nstatus=$?\necho; echo \"@@ {number} ends $status\"\n",
            step.command
        ));
    }
    script
}

/// Digits and `…` of the expectation match more than themselves.
fn matches(expected: &str, actual: &str) -> bool {
    let words = |text: &str| {
        let mut out = String::new();
        let mut digits = false;
        for letter in text.chars() {
            let digit = letter.is_ascii_digit();
            if !(digit && digits) {
                out.push(if digit { '0' } else { letter });
            }
            digits = digit;
        }
        out.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let (expected, actual) = (words(expected), words(actual));
    let mut pieces = expected.split('…');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = actual.strip_prefix(first) else {
        return false;
    };
    let mut open = false;
    for piece in pieces {
        open = true;
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.is_empty() || (open && expected.ends_with('…'))
}

fn holds(document: &str) {
    let text = std::fs::read_to_string(root().join(document)).unwrap();
    let steps = steps(&text);
    assert!(steps.len() >= 3, "{document} has commands");
    let folder = tempfile::tempdir().unwrap();
    let examples = folder.path().join("examples");
    std::fs::create_dir(&examples).unwrap();
    for file in std::fs::read_dir(root().join("examples")).unwrap() {
        let file = file.unwrap();
        if file.file_type().unwrap().is_file() {
            std::fs::copy(file.path(), examples.join(file.file_name())).unwrap();
        }
    }
    let ours = Path::new(env!("CARGO_BIN_EXE_deadheat")).parent().unwrap();
    let path = format!(
        "{}:{}",
        ours.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let output = Command::new("bash")
        .arg("-c")
        .arg(script(&steps))
        .current_dir(folder.path())
        .env("PATH", path)
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("DEADHEAT_STORE")
        .env_remove("DEADHEAT_IFR")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    for (number, step) in steps.iter().enumerate() {
        let at = |what: &str| format!("{document}:{}: `{}` {what}", step.line, step.command);
        let begin = format!("\n@@ {number}\n");
        let end = format!("\n@@ {number} ends ");
        let printed = output
            .split_once(&begin)
            .and_then(|(_, rest)| rest.split_once(&end));
        let Some((printed, rest)) = printed else {
            panic!("{}\n{output}", at("did not run to its end"));
        };
        let status = rest.lines().next().unwrap_or_default();
        let told = steps.get(number + 1).map(|next| next.command.as_str()) == Some("echo $?");
        let ours = step.command.contains("deadheat");
        assert!(
            told || status == "0" || (ours && status == "66"),
            "{}:\n{printed}",
            at(&format!("ends with {status}"))
        );
        for line in step.prints.iter().filter(|line| !line.trim().is_empty()) {
            assert!(
                printed.lines().any(|actual| matches(line, actual)),
                "{}:\n{line}\nbut:\n{printed}",
                at("does not print")
            );
        }
    }
}

#[test]
fn readme() {
    holds("README.md");
}

#[test]
fn tutorial() {
    holds("docs/tutorial.md");
}

#[test]
#[ignore = "needs cmake, meson and ninja; make test-all runs it"]
fn build_systems() {
    holds("docs/build-systems.md");
}

#[test]
fn a_wrong_document_is_found() {
    assert!(matches("run 1: … story", "run 27: `explain` is a story"));
    assert!(matches("a …", "a whatever"));
    assert!(!matches("a … b", "a whatever"));
    assert!(!matches("no races", "1 race"));
    let steps =
        steps("```console\n$ one \\\n  two\nout\n$ three\n```\n$ four\n```sh\n$ five\n```\n");
    let commands: Vec<_> = steps.iter().map(|step| step.command.as_str()).collect();
    assert_eq!(commands, ["one \\\n  two", "three"]);
    assert_eq!(steps[0].prints, ["out"]);
}

/// What the README tells people to make is there to be made, and the files
/// it points to exist.
#[test]
fn makefile_and_links() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let mut targets = 0;
    for line in readme.lines() {
        if let Some(target) = line.strip_prefix("    make ") {
            let target = target.split_whitespace().next().unwrap();
            assert!(makefile.contains(&format!("\n{target}:")), "make {target}");
            targets += 1;
        }
    }
    assert!(targets >= 2);
    let mut documents = vec![root().join("README.md")];
    for file in std::fs::read_dir(root().join("docs")).unwrap() {
        let file = file.unwrap().path();
        if file.extension().is_some_and(|end| end == "md") {
            documents.push(file);
        }
    }
    for document in documents {
        let text = std::fs::read_to_string(&document).unwrap();
        for piece in text.split("](").skip(1) {
            let link = piece.split([')', '#']).next().unwrap();
            if !link.contains("://") && !link.is_empty() {
                let target = document.parent().unwrap().join(link);
                assert!(target.exists(), "{}: {link}", document.display());
            }
        }
    }
}

/// Every page of results says on its third line with which command it was made, and
/// on which commit; both are there. The table of the long tests says so in each row.
#[test]
fn results_name_their_command_and_commit() {
    let folder = root().join("docs/results");
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let has_history = root().join(".git").exists();
    for page in std::fs::read_dir(folder).unwrap() {
        let page = page.unwrap().path();
        let name = page.display();
        let text = std::fs::read_to_string(&page).unwrap();
        if page.ends_with("test-all.md") {
            assert!(text.contains("Written by `make test-all`"), "{name}");
            continue;
        }
        let line = text.lines().nth(2).unwrap_or_default();
        let said: Vec<&str> = line.split('`').collect();
        assert!(
            said.len() >= 5 && said[0] == "Made with " && said[2].ends_with("commit "),
            "{name}: {line}"
        );
        let words: Vec<&str> = said[1].split_whitespace().collect();
        match words[..] {
            ["make", target, ..] => {
                assert!(makefile.contains(&format!("\n{target}:")), "{name}: {line}");
            }
            [command, ..] => assert!(root().join(command).is_file(), "{name}: {line}"),
            [] => panic!("{name}: {line}"),
        }
        let commit = said[3];
        assert!(commit.len() >= 7 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if has_history {
            let known = Command::new("git")
                .args(["cat-file", "-e", &format!("{commit}^{{commit}}")])
                .current_dir(root())
                .status();
            assert!(known.is_ok_and(|status| status.success()), "{name}: {line}");
        }
    }
}

/// What measures a page is run by `make results`, `make bench` or `make test-all`.
#[test]
fn results_are_renewed_by_make() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    for page in std::fs::read_dir(root().join("docs/results")).unwrap() {
        let page = page.unwrap().file_name().into_string().unwrap();
        // Of others' programs, which are not here; of several commands; their own.
        const OTHERWISE: [&str; 5] = [
            "rr-tests.md",
            "posix-tests.md",
            "detect.md",
            "test-all.md",
            "growth.md",
        ];
        if OTHERWISE.contains(&page.as_str()) {
            continue;
        }
        assert!(makefile.contains(&format!("docs/results/{page}")), "{page}");
    }
}
