//! What raced, as far as it tells races apart.
//!
//! A source line may touch several variables, and one helper function every
//! object there is: the two lines alone are no race's name. So a race is also
//! named by its object: a variable or the place that allocated the memory, and
//! the field in it. Elements of one array and blocks from one allocation are
//! one object here (nobody wants a report for each of them); which of them were
//! seen is kept beside, for choosing what to try. Addresses and sizes are left
//! out: they change from run to run.

use crate::Site;
use crate::site::hex_list;
use serde::{Deserialize, Serialize};

/// Names of single objects that are kept.
pub const NAMED: usize = 8;

/// What `whole` says of memory of the heap.
pub const HEAP_BLOCK: &str = "heap block";

/// The object of a race.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Object {
    /// The whole: a variable (`stats`, `total in main`), `heap block`, `file
    /// descriptor`.
    pub whole: String,
    /// The part of it, without the numbers of elements: `.total`, `[].next`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub part: String,
    /// Where heap memory was allocated: the first function that is not an
    /// allocator or something general in front of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated: Option<Site>,
    /// On how many objects the race was seen: elements of an array, blocks.
    pub seen: u64,
    /// The first of them by name: `cfg[0]`, `cfg[1]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Addresses at which the first of them begin, the whole of each.
    #[serde(default, with = "hex_list", skip_serializing_if = "Vec::is_empty")]
    pub starts: Vec<u64>,
}

/// A path without the numbers of elements: `[].next` for `[3].next`.
pub fn without_indices(path: &str) -> String {
    let mut kept = String::new();
    let mut rest = path;
    while let Some(open) = rest.find('[') {
        let (before, behind) = rest.split_at(open);
        kept.push_str(before);
        let digits = behind[1..].bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 && behind[1 + digits..].starts_with(']') {
            kept.push_str("[]");
            rest = &behind[digits + 2..];
        } else {
            kept.push('[');
            rest = &behind[1..];
        }
    }
    kept + rest
}

impl Object {
    /// The object that `path`, `table[3].next`, is a part of; `whole` is how
    /// the path begins.
    pub fn variable(whole: &str, path: &str, start: u64) -> Object {
        let part = path.strip_prefix(whole).unwrap_or_default();
        Object {
            whole: whole.to_string(),
            part: without_indices(part),
            allocated: None,
            seen: 1,
            names: vec![path.to_string()],
            starts: vec![start],
        }
    }

    /// Two with the same words are the same thing: not so for blocks of which
    /// nobody knows who asked for them.
    pub fn is_known(&self) -> bool {
        !self.whole.is_empty() && (self.whole != HEAP_BLOCK || self.allocated.is_some())
    }

    /// The same thing: one race if the sites are the same as well.
    pub fn is_same(&self, other: &Object) -> bool {
        self.part == other.part && self.is_same_whole(other)
    }

    /// Fields of one variable, or of blocks from one allocation.
    pub fn is_same_whole(&self, other: &Object) -> bool {
        self.whole == other.whole && self.allocated == other.allocated
    }

    /// Takes in what was seen of the same thing.
    pub fn join(&mut self, other: &Object) {
        for name in &other.names {
            if !self.names.contains(name) && self.names.len() < NAMED {
                self.names.push(name.clone());
            }
        }
        // The same ones may have been seen in both.
        self.seen = self.seen.max(other.seen).max(self.names.len() as u64);
        for start in &other.starts {
            if !self.starts.contains(start) && self.starts.len() < NAMED {
                self.starts.push(*start);
            }
        }
    }

    /// `cfg[0], cfg[1] and 4 more`.
    pub fn words(&self) -> String {
        const SHOWN: usize = 3;
        let shown: Vec<&str> = self.names.iter().take(SHOWN).map(String::as_str).collect();
        let rest = self.seen.saturating_sub(shown.len() as u64);
        match (rest, shown.split_last()) {
            (_, None) => format!("{}{}", self.whole, self.part),
            (0, Some((last, []))) => (*last).to_string(),
            (0, Some((last, before))) => format!("{} and {last}", before.join(", ")),
            (rest, Some(_)) => format!("{} and {rest} more", shown.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_fold_and_other_brackets_stay() {
        assert_eq!(without_indices("[3].next[12][0]"), "[].next[][]");
        assert_eq!(without_indices(".operator[]x[1]"), ".operator[]x[]");
        assert_eq!(without_indices(".a[b][7"), ".a[b][7");
    }

    #[test]
    fn elements_of_an_array_are_one_object_and_are_counted() {
        let element = |number: u64| Object::variable("cfg", &format!("cfg[{number}].on"), 0x1000);
        let mut all = element(0);
        for number in [1, 0, 2, 5] {
            let next = element(number);
            assert!(all.is_same(&next));
            all.join(&next);
        }
        assert_eq!(all.seen, 4);
        assert_eq!(all.words(), "cfg[0].on, cfg[1].on, cfg[2].on and 1 more");
        assert!(!all.is_same(&Object::variable("cfg", "cfg[0].off", 0x1000)));
        assert!(all.is_same_whole(&Object::variable("cfg", "cfg[0].off", 0x1000)));
        assert!(!all.is_same_whole(&Object::variable("crit", "crit", 0x1000)));
        assert_eq!(element(3).words(), "cfg[3].on");
    }
}
