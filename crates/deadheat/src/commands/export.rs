//! `deadheat export`: writes one piece of evidence as a folder that shows it
//! again anywhere.

use super::Failure;
use crate::reporting::StoreOption;
use folder::Place;
use report::plain;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use vm::record::{Files, Recording};

/// Write a self-contained reproduction of what a race does
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  deadheat export 1 crash                  evidence 1 of the latest recording
  deadheat export 2 hang --recording rec   evidence 2 of the recording in rec
  crash/reproduce                          exit code 66: still there; 0: gone")]
pub struct Arguments {
    /// The evidence, as the report numbers it (`--evidence N`)
    #[arg(value_name = "N")]
    evidence: u32,
    /// The folder to make
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// The recording [default: the latest one with evidence in the store]
    #[arg(long, value_name = "DIR")]
    recording: Option<PathBuf>,
    #[command(flatten)]
    redaction: super::pack::Redaction,
    #[command(flatten)]
    store: StoreOption,
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let from = match &arguments.recording {
        Some(recording) => recording.clone(),
        None => latest(&arguments.store.store)?,
    };
    let recording = Recording::open(&from)?;
    let witness = explore::read_evidence(&recording, arguments.evidence)
        .map_err(|error| Failure::usage(error.to_string()))?;
    let to = &arguments.directory;
    let fail = |what: &Path, error: std::io::Error| Failure {
        code: race::exit_code::FAILURE,
        message: format!("cannot write {}: {error}", what.display()),
    };
    folder::make(to).map_err(|error| fail(to, error))?;
    let copy = to.join("recording");
    let place = folder::make(&copy).map_err(|error| fail(&copy, error))?;
    Place::of(&from).copy_into(&place).map_err(Failure::own)?;
    let copied = Recording::open(&copy)?;
    for process in copied.processes() {
        Files::open(&copied.directory, process)?.pack()?;
    }
    let copied = arguments.redaction.apply(copied).inspect_err(|_| {
        // What was asked to be left out is not left lying there.
        let _ = Place::of(to).join("recording").remove();
    })?;
    let own = std::env::current_exe().map_err(|error| fail(to, error))?;
    let tool = to.join("deadheat");
    std::fs::copy(&own, &tool).map_err(|error| fail(&tool, error))?;
    let script = to.join("reproduce");
    std::fs::write(&script, reproduce(arguments.evidence, &witness))
        .map_err(|error| fail(&script, error))?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))
        .map_err(|error| fail(&script, error))?;
    tell!(
        "{} runs evidence {} again; exit code 66 says that it is still there, 0 that it is gone",
        script.display(),
        arguments.evidence
    );
    super::pack::tell_environment(&copied, &copy)?;
    Ok(0)
}

fn reproduce(number: u32, witness: &explore::Witness) -> String {
    let mut text = format!("#!/bin/sh\n# {}\n#\n", plain(&witness.seen));
    for (step, words) in (1..).zip(witness.words()) {
        text.push_str(&format!("# {step}. {}\n", plain(&words)));
    }
    text.push_str("#\n# Exit code 66: still there. 0: gone. Anything else: it could not be run.\n");
    text.push_str("here=$(dirname \"$0\")\n");
    text.push_str(&format!(
        "exec \"$here/deadheat\" replay \"$here/recording\" --evidence {number}\n"
    ));
    text
}

/// The recording with the highest number that has evidence.
fn latest(store: &Path) -> Result<PathBuf, Failure> {
    let entries = std::fs::read_dir(store).map_err(|error| {
        Failure::usage(format!(
            "cannot read the store {}: {error}; give --recording",
            store.display()
        ))
    })?;
    entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let number: u64 = path.file_name()?.to_str()?.parse().ok()?;
            Place::of(&path)
                .join("evidence.json")
                .is_file()
                .then_some((number, path))
        })
        .max()
        .map(|(_, path)| path)
        .ok_or_else(|| {
            Failure::usage(format!(
                "no recording in {} has evidence; `deadheat run` or `deadheat classify` makes it",
                store.display()
            ))
        })
}
