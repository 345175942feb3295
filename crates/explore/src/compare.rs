//! What can be told apart from outside: the outputs of two executions.
//!
//! Paper 003, section 4.3.1, compares outputs symbolically; `OutputComparison`
//! is where that goes. `Bytes` compares what was really written, stream by
//! stream.

use crate::run::{Ending, Run};
use race::{Frame, Moment};
use serde::{Deserialize, Serialize};
use vm::copy::{Captured, FirstDifference, first_difference};

/// Bytes shown before and after the first difference.
const AROUND: u64 = 24;

/// The first thing that is different.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputDifference {
    /// `fd 1`, a path, `exit code`.
    pub name: String,
    pub file: bool,
    pub offset: u64,
    /// The bytes at the difference are not known yet: those of the block that
    /// begins at `offset` were not kept.
    pub in_block: bool,
    pub recorded: String,
    pub swapped: String,
    /// Who wrote the differing byte.
    pub moments: [Option<Moment>; 2],
    pub stacks: [Vec<Frame>; 2],
    /// The same lines in another order.
    pub permuted: bool,
    /// Input was read after the outputs had parted: a real user might have
    /// given another.
    pub speculative: bool,
}

/// Says whether two executions can be told apart from outside.
pub trait OutputComparison {
    fn compare(&self, recorded: &Run, swapped: &Run) -> Option<OutputDifference>;
}

/// Byte by byte.
pub struct Bytes;

impl OutputComparison for Bytes {
    fn compare(&self, recorded: &Run, swapped: &Run) -> Option<OutputDifference> {
        compare_by(recorded, swapped, |_, one, other| {
            first_difference(one, other)
        })
    }
}

/// The first stream in which `part` finds a difference, or the ends.
pub(crate) fn compare_by(
    recorded: &Run,
    swapped: &Run,
    mut part: impl FnMut(&str, &Captured, &Captured) -> Option<FirstDifference>,
) -> Option<OutputDifference> {
    let open = recorded.ending.is_open() || swapped.ending.is_open();
    let mut names: Vec<&str> = recorded
        .outputs
        .iter()
        .chain(&swapped.outputs)
        .map(|output| output.name.as_str())
        .collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let one = of(recorded, name);
        let other = of(swapped, name);
        let Some(first) = part(name, &one, &other) else {
            continue;
        };
        let (offset, in_block) = match first {
            FirstDifference::At(offset) => (offset, false),
            FirstDifference::Block(offset) => (offset, true),
        };
        // One that did not end may still write the rest.
        if open && (offset >= one.length.min(other.length) || one.file) {
            continue;
        }
        let notes = [one.write_at(offset), other.write_at(offset)];
        let later = |run: &Run, note: Option<vm::copy::WriteNote>| {
            note.is_some_and(|note| run.inputs > note.inputs)
        };
        return Some(OutputDifference {
            name: name.to_string(),
            file: one.file,
            offset,
            in_block,
            recorded: shown(&one, offset),
            swapped: shown(&other, offset),
            moments: notes.map(|note| note.map(|note| note.moment)),
            stacks: [Vec::new(), Vec::new()],
            permuted: is_permuted(&one, &other),
            speculative: later(recorded, notes[0]) || later(swapped, notes[1]),
        });
    }
    if open {
        return None;
    }
    let exit = |run: &Run| match &run.ending {
        Ending::Exited(code) => code.to_string(),
        other => other.describe(),
    };
    (!recorded.ending.same_as(&swapped.ending)).then(|| OutputDifference {
        name: "exit code".to_string(),
        file: false,
        offset: 0,
        in_block: false,
        recorded: exit(recorded),
        swapped: exit(swapped),
        moments: [None; 2],
        stacks: [Vec::new(), Vec::new()],
        permuted: false,
        speculative: false,
    })
}

/// What a run wrote to a stream; nothing is a stream as well.
pub(crate) fn of(run: &Run, name: &str) -> Captured {
    let found = run.outputs.iter().find(|output| output.name == name);
    found.cloned().unwrap_or_else(|| Captured {
        name: name.to_string(),
        file: false,
        length: 0,
        blocks: Vec::new(),
        kept: vec![(0, Vec::new())],
        writes: Vec::new(),
    })
}

/// The line around the difference, or some bytes of it.
fn shown(output: &Captured, offset: u64) -> String {
    let mut start = offset.saturating_sub(AROUND);
    let before = output.bytes(start, (offset - start) as usize);
    if let Some(newline) = before.iter().rposition(|byte| *byte == b'\n') {
        start += newline as u64 + 1;
    }
    let mut bytes = output.bytes(start, (offset - start + AROUND) as usize);
    let from = (offset - start) as usize;
    if let Some(rest) = bytes.get(from..)
        && let Some(newline) = rest.iter().position(|byte| *byte == b'\n')
    {
        bytes.truncate(from + newline + 1);
    }
    if bytes.is_empty() {
        return if offset >= output.length {
            "nothing".to_string()
        } else {
            format!("bytes from {offset} on")
        };
    }
    format!("\"{}\"", bytes.escape_ascii())
}

fn is_permuted(one: &Captured, other: &Captured) -> bool {
    if one.file || one.length != other.length {
        return false;
    }
    let lines = |output: &Captured| -> Option<Vec<Vec<u8>>> {
        let bytes = output.bytes(0, output.length as usize);
        (bytes.len() as u64 == output.length).then(|| {
            let mut lines: Vec<Vec<u8>> = bytes
                .split(|byte| *byte == b'\n')
                .map(<[u8]>::to_vec)
                .collect();
            lines.sort_unstable();
            lines
        })
    };
    match (lines(one), lines(other)) {
        (Some(one), Some(other)) => one == other,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(ending: Ending, text: &str) -> Run {
        let bytes = text.as_bytes().to_vec();
        let hash = xxhash_rust::xxh3::xxh3_64(&bytes);
        Run {
            ending,
            instructions: 1,
            outputs: vec![Captured {
                name: "fd 1".into(),
                file: false,
                length: bytes.len() as u64,
                blocks: vec![(0, hash)],
                kept: vec![(0, bytes)],
                writes: Vec::new(),
            }],
            inputs: 0,
            findings: Vec::new(),
        }
    }

    #[test]
    fn the_line_that_differs_is_shown() {
        let one = run(Ending::Exited(0), "start\ntotal 17\nend\n");
        let other = run(Ending::Exited(0), "start\ntotal 18\nend\n");
        let found = Bytes.compare(&one, &other).expect("they differ");
        assert_eq!(found.recorded, "\"total 17\\n\"");
        assert_eq!(found.swapped, "\"total 18\\n\"");
        assert!(!found.permuted);
        assert!(Bytes.compare(&one, &one).is_none());
    }

    #[test]
    fn lines_in_another_order_are_told() {
        let one = run(Ending::Exited(0), "a\nb\n");
        let other = run(Ending::Exited(0), "b\na\n");
        assert!(Bytes.compare(&one, &other).expect("they differ").permuted);
    }

    #[test]
    fn a_run_that_did_not_end_differs_only_in_what_it_wrote() {
        let one = run(Ending::Exited(0), "total 17\n");
        let cut = run(Ending::InputExhausted, "total");
        assert!(Bytes.compare(&one, &cut).is_none());
        let wrong = run(Ending::InputExhausted, "tota1");
        assert!(Bytes.compare(&one, &wrong).is_some());
    }

    #[test]
    fn an_exit_code_is_an_output() {
        let one = run(Ending::Exited(0), "x");
        let other = run(Ending::Exited(1), "x");
        let found = Bytes.compare(&one, &other).expect("they differ");
        assert_eq!(
            (found.name.as_str(), found.swapped.as_str()),
            ("exit code", "1")
        );
    }
}
