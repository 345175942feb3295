//! Taking values of environment variables out of a recording.
//!
//! The bytes of a value become `x`, as many as there were, so everything in the
//! guest's memory stays where it was. Then the recording is replayed once: if
//! the program did not use the value, every slice still ends as recorded, and
//! only hashes of memory pages are new; they are written anew. If it did use
//! it, or the value is also among what the program read, nothing is changed and
//! the error says so.

use super::{InputReader, Manifest, RecordError, Recording, write_json};
use crate::{Error, Vm};
use folder::Place;
use std::io;

/// What a value is replaced by.
const FILLER: u8 = b'x';

/// Shorter values occur by chance: they are not looked for elsewhere.
const SHORTEST: usize = 8;

/// The schedule with new checks, until all of them are written.
pub(crate) const NEW_SCHEDULE: &str = "schedule.new";

#[derive(Debug, thiserror::Error)]
pub enum RedactError {
    #[error("the recording has no environment variable `{0}`; `deadheat dump` lists those it has")]
    NoSuchVariable(String),
    #[error(
        "the value of `{name}` cannot be taken out: it is also in {place}; nothing was changed; record again without the variable"
    )]
    Elsewhere { name: String, place: String },
    #[error(
        "{names} cannot be taken out: the program used the value, so it cannot run the same way without ({error}); nothing was changed"
    )]
    Used { names: String, error: String },
    #[error(transparent)]
    Vm(#[from] Error),
}

impl RedactError {
    pub fn exit_code(&self) -> i32 {
        match self {
            RedactError::Vm(error) => error.exit_code(),
            _ => race::exit_code::USAGE,
        }
    }
}

impl From<RecordError> for RedactError {
    fn from(error: RecordError) -> Self {
        RedactError::Vm(error.into())
    }
}

/// Name and value of an entry of the environment.
fn parts(entry: &[u8]) -> (&[u8], &[u8]) {
    match entry.iter().position(|byte| *byte == b'=') {
        Some(at) => (&entry[..at], &entry[at + 1..]),
        None => (entry, &[]),
    }
}

/// Names of the recorded environment variables.
pub fn variables(manifest: &Manifest) -> Vec<String> {
    let name = |entry: &Vec<u8>| String::from_utf8_lossy(parts(entry).0).into_owned();
    manifest.environment.iter().map(name).collect()
}

/// Words in names of variables that hold what others should not have.
const SECRETS: [&str; 8] = [
    "TOKEN",
    "KEY",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "CREDENTIAL",
    "COOKIE",
    "PASSPHRASE",
];

/// Those that look as if they hold a secret, and still do.
pub fn secrets(manifest: &Manifest) -> Vec<String> {
    let is_secret = |name: &String| {
        let upper = name.to_uppercase();
        SECRETS.iter().any(|word| upper.contains(word)) && !manifest.redacted.contains(name)
    };
    variables(manifest).into_iter().filter(is_secret).collect()
}

/// Replaces the values of variables in the recording at `recording.directory`.
///
/// # Errors
/// If the program used one of them, or the recording has it elsewhere too;
/// then nothing has changed.
pub fn redact(recording: &Recording, names: &[String]) -> Result<Recording, RedactError> {
    let mut redacted = recording.clone();
    for name in names {
        let mut found = false;
        for entry in &mut redacted.manifest.environment {
            let start = name.len() + 1;
            if parts(entry).0 == name.as_bytes() && entry.len() >= start {
                found = true;
                look_elsewhere(recording, name, &entry[start..])?;
                entry[start..].fill(FILLER);
            }
        }
        if !found {
            return Err(RedactError::NoSuchVariable(name.clone()));
        }
        if !redacted.manifest.redacted.contains(name) {
            redacted.manifest.redacted.push(name.clone());
        }
    }
    let rewritten = rewrite_checks(&redacted, names);
    let settled = rewritten.and_then(|()| Ok(settle(&redacted)?));
    for number in redacted.processes() {
        // Only there if something went wrong, which is what matters.
        let _ = redacted.process(number).join(NEW_SCHEDULE).remove();
    }
    settled.map(|()| redacted)
}

/// Fails if the value is anywhere but in the environment.
fn look_elsewhere(recording: &Recording, name: &str, value: &[u8]) -> Result<(), RedactError> {
    if value.len() < SHORTEST || value.iter().all(|byte| *byte == FILLER) {
        return Ok(());
    }
    let elsewhere = |place: String| RedactError::Elsewhere {
        name: name.to_string(),
        place,
    };
    let holds = |bytes: &[u8]| bytes.windows(value.len()).any(|window| window == value);
    let manifest = &recording.manifest;
    if manifest.arguments.iter().any(|argument| holds(argument)) {
        return Err(elsewhere("the program's arguments".into()));
    }
    let other = |entry: &&Vec<u8>| parts(entry).0 != name.as_bytes() && holds(entry);
    if let Some(entry) = manifest.environment.iter().find(other) {
        let place = String::from_utf8_lossy(parts(entry).0).into_owned();
        return Err(elsewhere(format!("the variable {place}")));
    }
    for number in recording.processes() {
        let folder = recording.process(number);
        let mut inputs = match InputReader::open(&folder.join("inputs")) {
            Err(RecordError::Read { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
                continue;
            }
            other => other?,
        };
        while !inputs.at_end()? {
            let effect = match inputs.next_effect() {
                Err(RecordError::Ended(_)) => break,
                other => other?,
            };
            if effect.writes.iter().any(|(_, bytes)| holds(bytes)) {
                let what = crate::io::describe(effect.tag);
                return Err(elsewhere(format!("what process {number} got from {what}")));
            }
        }
    }
    search_files(&recording.place("files"), &holds, &elsewhere)?;
    search_files(&Place::of(&recording.directory), &holds, &elsewhere)
}

/// Copies of mapped files, and what analyses have written beside the manifest.
fn search_files(
    folder: &Place,
    holds: &dyn Fn(&[u8]) -> bool,
    elsewhere: &dyn Fn(String) -> RedactError,
) -> Result<(), RedactError> {
    for name in folder.names().unwrap_or_default() {
        let place = folder.join(&name);
        if !place.is_file() || name == "manifest.json" {
            continue;
        }
        let fail = |error| RecordError::read(&place.path(), error);
        let file = place.open(folder::STREAM).map_err(fail)?;
        // A value may lie across the border of two blocks.
        let mut last = Vec::new();
        let mut found = false;
        folder::each_block(&file, |_, block| {
            let mut both = std::mem::take(&mut last);
            both.extend_from_slice(block);
            found |= holds(&both);
            last = block[block.len().saturating_sub(OVERLAP)..].to_vec();
            Ok(())
        })
        .map_err(fail)?;
        if found {
            return Err(elsewhere(place.path().display().to_string()));
        }
    }
    Ok(())
}

/// No value is longer: the kernel takes 128 KiB for one entry.
const OVERLAP: usize = 128 << 10;

fn rewrite_checks(redacted: &Recording, names: &[String]) -> Result<(), RedactError> {
    let replayed = crate::snapshot::isolated(|| {
        let mut vm = Vm::rewrite_checks(redacted)?;
        vm.mute();
        vm.run(None)?;
        Ok(())
    })
    .and_then(crate::snapshot::Running::join)
    .map_err(|error| RedactError::Vm(Error::Machine(error.to_string())))?;
    match replayed {
        Ok(()) => Ok(()),
        // What the user gave is wrong: not the variable's doing.
        Err(failed) if failed.exit_code != race::exit_code::FAILURE => {
            Err(RedactError::Vm(failed.into()))
        }
        Err(failed) => Err(RedactError::Used {
            names: names.join(", "),
            error: failed.message,
        }),
    }
}

/// Everything has been replayed: the new checks and environment take the place
/// of the old ones.
fn settle(redacted: &Recording) -> Result<(), RecordError> {
    for number in redacted.processes() {
        let folder = redacted.process(number);
        let new = folder.join(NEW_SCHEDULE);
        if !new.is_file() {
            continue;
        }
        let file = new
            .open(folder::STREAM)
            .map_err(|error| RecordError::read(&new.path(), error))?;
        let schedule = folder.join("schedule");
        schedule
            .replace(|copy| folder::copy_contents(&file, copy))
            .map_err(|error| RecordError::write(&schedule.path(), error))?;
    }
    write_json(&redacted.place("manifest.json"), &redacted.manifest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_a_name_and_a_value() {
        assert_eq!(parts(b"A=b=c"), (b"A".as_slice(), b"b=c".as_slice()));
        assert_eq!(parts(b"A="), (b"A".as_slice(), b"".as_slice()));
        assert_eq!(parts(b"odd"), (b"odd".as_slice(), b"".as_slice()));
    }
}
