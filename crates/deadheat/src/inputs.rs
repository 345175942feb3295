//! Alternative inputs of a program, for `--input`: other primaries than the
//! one run that the user gave (paper 003, section 4.3, finds them by symbolic
//! execution).
//!
//! A path is one of
//! - a file whose name ends in `.args`: each line is an argument vector, split
//!   into words as a shell does (blanks, `'…'`, `"…"`, `\`), without any
//!   expansion. `< FILE` at its end is the standard input of that run. Empty
//!   lines and lines that begin with `#` are skipped;
//! - any other file: a standard input;
//! - a folder: every file in it, in order of their names, as one of these.
//!
//! FILE is taken relative to the folder of the `.args` file.

use crate::commands::Failure;
use crate::commands::run::record_run;
use folder::Place;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use vm::record::Recording;
use vm::schedule::PolicyName;
use vm::{Program, ScheduleChoice};
use xxhash_rust::xxh3::Xxh3;

/// One run: what differs from the command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Input {
    /// Instead of the arguments given.
    pub arguments: Option<Vec<OsString>>,
    pub stdin: Option<PathBuf>,
}

/// The runs that a path stands for.
pub fn read(path: &Path) -> Result<Vec<Input>, Failure> {
    if !path.is_dir() {
        return of_file(path);
    }
    let entries = std::fs::read_dir(path).map_err(|error| unreadable(path, &error))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    let mut inputs = Vec::new();
    for file in files {
        inputs.extend(of_file(&file)?);
    }
    Ok(inputs)
}

/// Runs the program of a recording with another input, where and as it ran
/// then, and gives the recording of that: a folder below `inputs` of the first
/// one, made once for each input. Without a standard input of its own the run
/// has an empty one.
pub fn record(of: &Path, input: &Input) -> Result<PathBuf, Failure> {
    let manifest = Recording::open(of)?.manifest;
    let mut program = Program {
        path: OsString::from_vec(manifest.program).into(),
        arguments: manifest.arguments,
        environment: manifest.environment,
    };
    if let Some(words) = &input.arguments {
        program.arguments.truncate(1);
        let words = words.iter().map(|word| word.as_bytes().to_vec());
        program.arguments.extend(words);
    }
    let stdin = input.stdin.as_deref().unwrap_or(Path::new("/dev/null"));
    let stdin = std::path::absolute(stdin).map_err(|error| unreadable(stdin, &error))?;
    let text = std::fs::read(&stdin).map_err(|error| unreadable(&stdin, &error))?;
    let mut name = Xxh3::new();
    for word in program.arguments.iter().chain([&text]) {
        name.update(&(word.len() as u64).to_le_bytes());
        name.update(word);
    }
    let of = std::path::absolute(of).map_err(|error| unreadable(of, &error))?;
    let all = Place::of(&of).join("inputs");
    let place = all.join(format!("{:016x}", name.digest()));
    let folder = place.path();
    let cannot = |error| {
        Failure::usage(format!(
            "cannot keep other inputs in {}: {error}",
            all.path().display()
        ))
    };
    all.ensure_folder().map_err(cannot)?;
    if place.is_folder() && Recording::open(&folder).is_ok() {
        return Ok(folder);
    }
    // What an interrupted call left is made anew.
    place.remove().map_err(cannot)?;
    let schedule = ScheduleChoice {
        policy: manifest.schedule.parse().unwrap_or(PolicyName::Random),
        seed: manifest.seed,
        quantum: manifest.quantum,
    };
    let here = std::env::current_dir().ok();
    let there = Path::new(OsStr::from_bytes(&manifest.directory));
    std::env::set_current_dir(there).map_err(|error| {
        Failure::usage(format!(
            "cannot go to {}, where the program ran: {error}",
            there.display()
        ))
    })?;
    let ran = record_run(&folder, &program, schedule, true, Some(&stdin), None);
    if let Some(here) = here {
        // Whoever removed the folder meanwhile has other problems.
        let _ = std::env::set_current_dir(here);
    }
    ran.map(|_| folder)
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("cannot read {}: {error}", path.display()))
}

fn of_file(path: &Path) -> Result<Vec<Input>, Failure> {
    if path.extension().is_none_or(|ending| ending != "args") {
        return Ok(vec![Input {
            arguments: None,
            stdin: Some(path.to_path_buf()),
        }]);
    }
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut inputs = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let input = of_line(line, folder)
            .map_err(|why| Failure::usage(format!("{}:{number}: {why}", path.display())))?;
        inputs.push(input);
    }
    Ok(inputs)
}

fn of_line(line: &str, folder: &Path) -> Result<Input, &'static str> {
    let mut words = split(line)?;
    let arrow = words
        .iter()
        .position(|word| !word.quoted && word.text.starts_with('<'));
    let mut stdin = None;
    if let Some(index) = arrow {
        let mut name = words.split_off(index);
        let first = name.remove(0).text.split_off(1);
        let file = match (first.is_empty(), name.len()) {
            (true, 1) => name.remove(0).text,
            (false, 0) => first,
            _ => return Err("`<` is followed by one file, and that ends the line"),
        };
        stdin = Some(folder.join(file));
    }
    Ok(Input {
        arguments: Some(words.into_iter().map(|word| word.text.into()).collect()),
        stdin,
    })
}

struct Word {
    text: String,
    /// Some of it was quoted: `<` means itself.
    quoted: bool,
}

/// Words as a shell splits them.
fn split(line: &str) -> Result<Vec<Word>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<Word> = None;
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        if character.is_whitespace() {
            words.extend(word.take());
            continue;
        }
        let current = word.get_or_insert_with(|| Word {
            text: String::new(),
            quoted: false,
        });
        match character {
            '\'' | '"' => {
                current.quoted = true;
                loop {
                    match characters.next() {
                        None => return Err("a quotation is not closed"),
                        Some(end) if end == character => break,
                        Some('\\') if character == '"' => current
                            .text
                            .extend(characters.next().filter(|next| *next != '\n')),
                        Some(other) => current.text.push(other),
                    }
                }
            }
            '\\' => {
                current.quoted = true;
                current
                    .text
                    .push(characters.next().ok_or("nothing follows the last `\\`")?);
            }
            other => current.text.push(other),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Input {
        of_line(text, Path::new("/inputs")).expect("a good line")
    }

    fn arguments(text: &str) -> Vec<OsString> {
        line(text).arguments.expect("arguments")
    }

    #[test]
    fn words_are_split_as_by_a_shell() {
        assert_eq!(
            arguments(r#"-n 3 'two words' "a \"b\"" c\ d "" x'y'z"#),
            ["-n", "3", "two words", "a \"b\"", "c d", "", "xyz"]
        );
        assert!(of_line("'open", Path::new(".")).is_err());
        assert!(of_line("end\\", Path::new(".")).is_err());
    }

    #[test]
    fn a_line_may_name_its_standard_input() {
        for text in ["-v < data.txt", "-v <data.txt"] {
            assert_eq!(line(text).stdin, Some(PathBuf::from("/inputs/data.txt")));
            assert_eq!(arguments(text), ["-v"]);
        }
        assert_eq!(line("'<' x").stdin, None);
        assert!(of_line("a < b c", Path::new(".")).is_err());
        assert!(of_line("a <", Path::new(".")).is_err());
    }

    #[test]
    fn a_folder_holds_both_kinds() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text);
        write("a.txt", "input").expect("written");
        write("b.args", "# two runs\n-x\n\n-y < a.txt\n").expect("written");
        let inputs = read(folder.path()).ok().expect("readable");
        assert_eq!(inputs.len(), 3);
        assert_eq!(inputs[0].arguments, None);
        assert_eq!(inputs[2].stdin, Some(folder.path().join("a.txt")));
    }
}
