//! The stable identity of a race.
//!
//! Marks, suppression files, baselines and the history of a store are kept by
//! fingerprint, so it must survive a rebuild, an edit elsewhere in the file
//! and a run with another schedule. It is a hash of the unordered pair of
//! sites, each named by function, file name (no folder) and line relative to
//! the function's first line. Where there is no debug info the function name
//! alone, and without symbols module and offset, stand in.

use crate::{AccessKind, Race, Site};
use serde::{Deserialize, Serialize};
use std::fmt;
use xxhash_rust::xxh3::Xxh3;

/// Sixteen hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(pub String);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn site_key(kind: AccessKind, site: &Site) -> String {
    let base = |path: &str| path.rsplit('/').next().unwrap_or(path).to_string();
    let module = site.module.as_deref().map(base).unwrap_or_default();
    let place = match (&site.function, &site.file, site.line) {
        (Some(function), Some(file), Some(line)) => {
            let line = match site.function_line {
                Some(first) => format!("+{}", i64::from(line) - i64::from(first)),
                None => format!("{line}"),
            };
            format!("{function}\0{}\0{line}", base(file))
        }
        (Some(function), _, _) => format!("{module}\0{function}"),
        _ => format!("{module}\0{:#x}", site.offset.unwrap_or(0)),
    };
    format!("{kind:?}\0{place}")
}

impl Fingerprint {
    /// The fingerprint of a race between these two accesses; the order of the
    /// arguments does not matter.
    pub fn of(first: (AccessKind, &Site), second: (AccessKind, &Site)) -> Self {
        let mut keys = [site_key(first.0, first.1), site_key(second.0, second.1)];
        keys.sort();
        let mut hash = Xxh3::new();
        for key in &keys {
            hash.update(&(key.len() as u64).to_le_bytes());
            hash.update(key.as_bytes());
        }
        Fingerprint(format!("{:016x}", hash.digest()))
    }

    /// The fingerprint of `race` as its accesses stand.
    pub fn of_race(race: &Race) -> Self {
        let [first, second] = &race.accesses;
        Self::of((first.kind, &first.site), (second.kind, &second.site))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(line: u32, function_line: u32, folder: &str) -> Site {
        Site {
            module: Some("prog".into()),
            offset: Some(u64::from(line) * 16),
            function: Some("add".into()),
            file: Some(format!("{folder}/table.c")),
            line: Some(line),
            function_line: Some(function_line),
        }
    }

    #[test]
    fn order_of_accesses_and_edits_elsewhere_do_not_matter() {
        let (read, write) = (AccessKind::Read, AccessKind::Write);
        let before = Fingerprint::of((read, &site(12, 10, "/a")), (write, &site(30, 28, "/a")));
        let after = Fingerprint::of((write, &site(35, 33, "/b")), (read, &site(17, 15, "/b")));
        assert_eq!(before, after);
    }

    #[test]
    fn another_line_of_the_function_is_another_race() {
        let write = AccessKind::Write;
        let one = Fingerprint::of((write, &site(12, 10, "")), (write, &site(12, 10, "")));
        let two = Fingerprint::of((write, &site(12, 10, "")), (write, &site(13, 10, "")));
        assert_ne!(one, two);
    }

    #[test]
    fn stripped_code_is_named_by_module_and_offset() {
        let bare = |offset| Site {
            module: Some("libx.so".into()),
            offset: Some(offset),
            ..Site::default()
        };
        let write = AccessKind::Write;
        let one = Fingerprint::of((write, &bare(0x10)), (write, &bare(0x20)));
        let two = Fingerprint::of((write, &bare(0x10)), (write, &bare(0x30)));
        assert_ne!(one, two);
    }
}
