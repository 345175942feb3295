//! Times and addresses that a program prints: no doing of a race.
//!
//! Both orders of a pair read the clock after slightly different numbers of
//! instructions, so what they print of it differs although the race has nothing
//! to do with it. Paper 003 compares outputs symbolically, where a time is a
//! symbol of its own; here both orders are played once more under a clock that
//! shows the n-th question of a thread the same time in both (`Vm::count_times`).
//! If they print the same then, the times were all that differed; if not, what
//! differs then is the difference. A hexadecimal number that is an address of the
//! program in both orders says only where something lies, and would be another one
//! in every run.
//!
//! Guarantee: times are left out only where both orders, shown the same times, write
//! the same but for addresses.

use crate::compare::{OutputDifference, compare_by, of};
use crate::run::Run;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use vm::copy::{Captured, FirstDifference, first_difference};

/// What was left out of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LeftOut {
    Times,
    Addresses,
}

impl LeftOut {
    /// One sentence, without the full stop.
    pub fn describe(self) -> &'static str {
        match self {
            LeftOut::Times => {
                "times that it prints were left out: where both orders are shown the same times, they \
                 write the same"
            }
            LeftOut::Addresses => {
                "addresses that it prints were left out: they say only where something lies"
            }
        }
    }
}

/// The lowest address of mapped memory in the vm: programs, heap and stacks lie
/// above it. No length or count is as large.
const LOWEST_ADDRESS: u64 = 1 << 44;
const BEHIND_ADDRESSES: u64 = 1 << 47;

/// A word with its place.
type Word<'a> = (usize, &'a [u8]);

/// Words, numbers and signs of a text, with their places. How far they are apart
/// is no word.
fn words(bytes: &[u8]) -> Vec<Word<'_>> {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80;
    let mut words = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let length = match bytes[at..].iter().take_while(|byte| is_word(byte)).count() {
            0 => 1,
            length => length,
        };
        if !matches!(bytes[at], b' ' | b'\t') {
            words.push((at, &bytes[at..at + length]));
        }
        at += length;
    }
    words
}

fn same_words(one: &[Word<'_>], other: &[Word<'_>]) -> bool {
    let texts = one.iter().zip(other);
    texts.into_iter().all(|((_, one), (_, other))| one == other)
}

fn is_address(word: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(word) else {
        return false;
    };
    let digits = match text.strip_prefix("0x") {
        Some(digits) => digits,
        // As in a map of the memory.
        None if text.len() >= 12 => text,
        None => return false,
    };
    u64::from_str_radix(digits, 16)
        .is_ok_and(|value| (LOWEST_ADDRESS..BEHIND_ADDRESSES).contains(&value))
}

/// All that was written, if it was kept.
fn whole(output: &Captured) -> Option<Vec<u8>> {
    let bytes = output.bytes(0, output.length as usize);
    (bytes.len() as u64 == output.length).then_some(bytes)
}

/// Where two texts differ in more than addresses: the number of the word; none also
/// where one has more words.
fn differing_word(one: &[Word<'_>], other: &[Word<'_>]) -> Result<(), Option<usize>> {
    if one.len() != other.len() {
        return Err(None);
    }
    let differs = one
        .iter()
        .zip(other)
        .position(|((_, one), (_, other))| one != other && !(is_address(one) && is_address(other)));
    differs.map_or(Ok(()), |index| Err(Some(index)))
}

/// Where two streams differ in what is neither a time nor an address. `counted` are
/// the same two where both orders were shown the same times, if that was played.
fn part(
    one: &Captured,
    other: &Captured,
    counted: Option<[Captured; 2]>,
    left_out: &mut BTreeSet<LeftOut>,
) -> Option<FirstDifference> {
    let first = first_difference(one, other)?;
    let (Some(one), Some(other)) = (whole(one), whole(other)) else {
        return Some(first);
    };
    let (one, other) = (words(&one), words(&other));
    let Err(index) = differing_word(&one, &other) else {
        left_out.insert(LeftOut::Addresses);
        return None;
    };
    let at = |index: Option<usize>| match index {
        Some(index) => FirstDifference::At(one[index].0 as u64),
        None => first,
    };
    let counted = counted.and_then(|[one, other]| Some([whole(&one)?, whole(&other)?]));
    let Some([counted, counted_other]) = &counted else {
        return Some(at(index));
    };
    let (counted, counted_other) = (words(counted), words(counted_other));
    match differing_word(&counted, &counted_other) {
        Ok(()) => {
            left_out.insert(LeftOut::Times);
            if !same_words(&counted, &counted_other) {
                left_out.insert(LeftOut::Addresses);
            }
            None
        }
        // The same word is the one to show, where there is one.
        Err(Some(word)) if counted.len() == one.len() && one.len() == other.len() => {
            Some(at(Some(word)
                .filter(|word| one[*word].1 != other[*word].1)
                .or(index)))
        }
        Err(_) => Some(at(index)),
    }
}

/// The first difference that is neither a time nor an address, and what was left
/// out to find it. Without `counted` no times are known.
pub fn compare(
    recorded: &Run,
    swapped: &Run,
    counted: Option<[&Run; 2]>,
) -> (Option<OutputDifference>, BTreeSet<LeftOut>) {
    let mut left_out = BTreeSet::new();
    let difference = compare_by(recorded, swapped, |name, one, other| {
        let counted = counted.map(|counted| counted.map(|run| of(run, name)));
        part(one, other, counted, &mut left_out)
    });
    (difference, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Ending;

    fn run(text: &str) -> Run {
        let bytes = text.as_bytes().to_vec();
        Run {
            ending: Ending::Exited(0),
            instructions: 1,
            outputs: vec![Captured {
                name: "fd 1".into(),
                file: false,
                length: bytes.len() as u64,
                blocks: vec![(0, xxhash_rust::xxh3::xxh3_64(&bytes))],
                kept: vec![(0, bytes)],
                writes: Vec::new(),
            }],
            inputs: 0,
            findings: Vec::new(),
        }
    }

    /// The texts of both orders, and those where both are shown the same times.
    fn offset(texts: [&str; 4]) -> Result<u64, Vec<LeftOut>> {
        let [one, other, counted, counted_other] = texts.map(run);
        match compare(&one, &other, Some([&counted, &counted_other])) {
            (Some(difference), _) => Ok(difference.offset),
            (None, left_out) => Err(left_out.into_iter().collect()),
        }
    }

    #[test]
    fn only_the_time_differs() {
        let texts = ["12.5 s: 7\n", "12.6 s: 7\n", "13.0 s: 7\n", "13.0 s: 7\n"];
        assert_eq!(offset(texts), Err(vec![LeftOut::Times]));
        // How often something is written may depend on the time.
        let texts = ["t=9\n", "t=10\nt=20\n", "t=1\n", "t=1\n"];
        assert_eq!(offset(texts), Err(vec![LeftOut::Times]));
    }

    #[test]
    fn a_value_beside_the_time_is_a_difference() {
        let texts = ["t=12 n=7\n", "t=13 n=8\n", "t=55 n=7\n", "t=55 n=8\n"];
        assert_eq!(offset(texts), Ok(7));
        // A value that the race and the time decide together.
        let texts = ["n=1\n", "n=2\n", "n=5\n", "n=6\n"];
        assert_eq!(offset(texts), Ok(2));
    }

    #[test]
    fn what_no_clock_moves_is_a_difference() {
        let texts = ["n=7\n", "n=8\n", "n=7\n", "n=8\n"];
        assert_eq!(offset(texts), Ok(2));
        let texts = ["a\n", "a\nb\n", "c\n", "c\nd\n"];
        assert_eq!(offset(texts), Ok(2));
    }

    #[test]
    fn addresses_are_told_from_numbers() {
        let (one, other) = (run("at 0x5ffffe001000\n"), run("at 0x5ffffe002000\n"));
        let (difference, left_out) = compare(&one, &other, None);
        assert_eq!(difference, None);
        assert!(left_out.contains(&LeftOut::Addresses));
        let (one, other) = (run("at 0x1000\n"), run("at 0x2000\n"));
        assert!(compare(&one, &other, None).0.is_some());
        let (one, other) = (run("at 0x5ffffe001000\n"), run("at 0x0\n"));
        assert!(compare(&one, &other, None).0.is_some());
    }
}
