//! `deadheat dump`: tells a recording in words.

use super::Failure;
use folder::Place;
use report::plain;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use vm::record::{Files, InputReader, RecordError, Recording, StepReader, variables};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  deadheat dump .deadheat/7 | less         program, files, inputs and schedule
  deadheat dump rec --bytes                with the bytes that were read")]
pub struct Arguments {
    /// The recording
    #[arg(value_name = "DIR")]
    recording: PathBuf,
    /// Show the bytes of every input, not only its length
    #[arg(long)]
    bytes: bool,
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let recording = Recording::open(&arguments.recording)?;
    if report::is_closed(report::Stream::Stdout) {
        return Err(Failure::own(
            "cannot write the dump: standard output is closed",
        ));
    }
    let mut out = BufWriter::new(io::stdout().lock());
    let told = dump(&recording, arguments.bytes, &mut out);
    match told.and_then(|()| Ok(out.flush()?)) {
        Ok(()) => Ok(0),
        Err(Trouble::Recording(error)) => Err(error.into()),
        // Whoever reads the dump has seen enough.
        Err(Trouble::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(0),
        Err(Trouble::Output(error)) => Err(Failure {
            code: race::exit_code::FAILURE,
            message: format!("cannot write the dump: {error}"),
        }),
    }
}

enum Trouble {
    Recording(RecordError),
    Output(io::Error),
}

impl From<RecordError> for Trouble {
    fn from(error: RecordError) -> Self {
        Trouble::Recording(error)
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Trouble::Output(error)
    }
}

fn text(bytes: &[u8]) -> String {
    plain(&String::from_utf8_lossy(bytes)).into_owned()
}

fn dump(recording: &Recording, bytes: bool, out: &mut impl Write) -> Result<(), Trouble> {
    let manifest = &recording.manifest;
    writeln!(out, "program    {}", text(&manifest.program))?;
    let arguments: Vec<String> = manifest.arguments.iter().map(|word| text(word)).collect();
    writeln!(out, "arguments  {}", arguments.join(" "))?;
    writeln!(out, "directory  {}", text(&manifest.directory))?;
    writeln!(
        out,
        "schedule   {}, seed {}, quantum {}",
        plain(&manifest.schedule),
        manifest.seed,
        manifest.quantum
    )?;
    if !manifest.left_out.is_empty() {
        writeln!(
            out,
            "left out   calls of functions at {} (deadheat whatif)",
            manifest
                .left_out
                .iter()
                .map(|call| format!("{:#x}", call.function))
                .collect::<Vec<_>>()
                .join(", ")
        )?;
    }
    let names: Vec<String> = variables(manifest)
        .into_iter()
        .map(|name| match manifest.redacted.contains(&name) {
            true => format!("{} (without its value)", plain(&name)),
            false => plain(&name).into_owned(),
        })
        .collect();
    writeln!(out, "variables  {}", names.join(", "))?;
    writeln!(out, "made by    {}", plain(&manifest.made_by))?;
    for number in recording.processes() {
        writeln!(out, "\nprocess {number}")?;
        writeln!(out, "  mapped files")?;
        let files = Files::open(&recording.directory, number)?;
        for (index, file) in files.list().iter().enumerate() {
            writeln!(out, "    {index:3}  {}", plain(&file.to_string()))?;
        }
        dump_process(&recording.process(number), bytes, out)?;
    }
    Ok(())
}

fn dump_process(folder: &Place, bytes: bool, out: &mut impl Write) -> Result<(), Trouble> {
    writeln!(out, "  schedule")?;
    let mut steps = StepReader::open(&folder.join("schedule"))?;
    while let Some(step) = steps.next_step()? {
        writeln!(out, "    {step}")?;
    }
    writeln!(out, "  inputs")?;
    let mut inputs = InputReader::open(&folder.join("inputs"))?;
    while !inputs.at_end()? {
        let effect = inputs.next_effect()?;
        write!(out, "    {effect}")?;
        for (address, data) in &effect.writes {
            write!(out, ", {} bytes at {address:#x}", data.len())?;
            if bytes {
                write!(out, " \"{}\"", data.escape_ascii())?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}
