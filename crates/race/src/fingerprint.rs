//! The stable identity of a race.
//!
//! Marks, suppression files, baselines and the history of a store are kept by
//! fingerprint, so it must survive a rebuild, a checkout in another folder, an
//! edit elsewhere in the file and a run with another schedule. It is a hash of
//! the unordered pair of sites, each with the call that chose the object where
//! the site is in a helper, and of the object.
//!
//! A site is named by function, file name (no folder) and line relative to the
//! function's first line. Where there is no debug info the function name alone,
//! and without symbols module and offset, stand in. An object is a variable or
//! the place of an allocation, with the field; elements of an array are one.
//! Whether a site reads or writes does not count: an increment does both, and
//! which of them met the other thread changes from run to run.
//!
//! The first form (sixteen digits, without `2-` before them) knew sites and
//! kinds of access only, so that two variables on one line were one race. It is
//! still computed, to know again what was marked by it.

use crate::{Access, AccessKind, Object, Site};
use serde::{Deserialize, Serialize};
use std::fmt;
use xxhash_rust::xxh3::Xxh3;

/// `2-` and sixteen hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(pub String);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What every fingerprint of this form begins with.
const FORM: &str = "2-";

fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// `function`, `file`, `+line`, or what is known instead.
fn place_key(site: &Site) -> String {
    let module = site.module.as_deref().map(base).unwrap_or_default();
    match (&site.function, &site.file, site.line) {
        (Some(function), Some(file), Some(line)) => {
            let line = match site.function_line {
                Some(first) => format!("+{}", i64::from(line) - i64::from(first)),
                None => format!("{line}"),
            };
            format!("{function}\0{}\0{line}", base(file))
        }
        (Some(function), _, _) => format!("{module}\0{function}"),
        _ => format!("{module}\0{:#x}", site.offset.unwrap_or(0)),
    }
}

fn access_key(access: &Access) -> String {
    let free = if access.kind == AccessKind::Free {
        "free"
    } else {
        ""
    };
    let caller = access.caller.as_ref().map(place_key).unwrap_or_default();
    format!("{free}\0\0{}\0\0{caller}", place_key(&access.site))
}

fn object_key(object: &Object) -> String {
    let allocated = object.allocated.as_ref().map(place_key);
    let (whole, part) = (&object.whole, &object.part);
    format!("{whole}\0\0{part}\0\0{}", allocated.unwrap_or_default())
}

fn digits(keys: &[String]) -> String {
    let mut hash = Xxh3::new();
    for key in keys {
        hash.update(&(key.len() as u64).to_le_bytes());
        hash.update(key.as_bytes());
    }
    format!("{:016x}", hash.digest())
}

impl Fingerprint {
    /// The fingerprint of a race between these two accesses on this object; the
    /// order of the accesses does not matter.
    pub fn of(accesses: &[Access; 2], object: Option<&Object>) -> Self {
        let mut keys: Vec<String> = accesses.iter().map(access_key).collect();
        keys.sort();
        keys.push(object.map(object_key).unwrap_or_default());
        Fingerprint(format!("{FORM}{}", digits(&keys)))
    }

    /// The fingerprint that the first form gave to a race of these accesses.
    pub fn former(accesses: &[Access; 2]) -> Self {
        let key = |access: &Access| format!("{:?}\0{}", access.kind, place_key(&access.site));
        let mut keys: Vec<String> = accesses.iter().map(key).collect();
        keys.sort();
        Fingerprint(digits(&keys))
    }

    /// It is of the first form, which knew no objects.
    pub fn is_former(&self) -> bool {
        !self.0.starts_with(FORM)
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
            function_offset: None,
        }
    }

    fn access(kind: AccessKind, site: Site) -> Access {
        Access::new(kind, 4, site)
    }

    fn of(one: Access, other: Access) -> Fingerprint {
        Fingerprint::of(&[one, other], None)
    }

    use AccessKind::{Free, Read, Write};

    #[test]
    fn order_of_accesses_and_edits_elsewhere_do_not_matter() {
        let before = of(
            access(Read, site(12, 10, "/a")),
            access(Write, site(30, 28, "/a")),
        );
        let after = of(
            access(Write, site(35, 33, "/b")),
            access(Read, site(17, 15, "/b")),
        );
        assert_eq!(before, after);
        assert!(!before.is_former());
    }

    #[test]
    fn another_line_of_the_function_is_another_race() {
        let at = |line| access(Write, site(line, 10, ""));
        assert_ne!(of(at(12), at(12)), of(at(12), at(13)));
    }

    #[test]
    fn a_free_is_told_from_an_access_and_a_read_not_from_a_write() {
        let with = |kind| {
            of(
                access(kind, site(12, 10, "")),
                access(Write, site(13, 10, "")),
            )
        };
        assert_eq!(with(Read), with(Write));
        assert_ne!(with(Read), with(Free));
    }

    #[test]
    fn objects_and_callers_tell_races_apart() {
        let write = || access(Write, site(12, 10, ""));
        let on = |whole: &str, path: &str| {
            let object = Object::variable(whole, path, 0x10);
            Fingerprint::of(&[write(), write()], Some(&object))
        };
        assert_ne!(on("hits", "hits"), on("misses", "misses"));
        assert_ne!(on("table", "table[1].key"), on("table", "table[1].value"));
        assert_eq!(on("table", "table[1].key"), on("table", "table[9].key"));
        assert_ne!(on("hits", "hits"), of(write(), write()));
        let called = |line| {
            let mut access = write();
            access.caller = Some(site(line, 10, ""));
            access
        };
        assert_ne!(of(called(40), write()), of(called(41), write()));
        assert_eq!(of(called(40), write()), of(write(), called(40)));
    }

    #[test]
    fn blocks_are_told_apart_by_who_allocated_them() {
        let on = |allocated: Site| {
            let object = Object {
                whole: "heap block".into(),
                allocated: Some(allocated),
                ..Object::default()
            };
            let write = || access(Write, site(12, 10, ""));
            Fingerprint::of(&[write(), write()], Some(&object))
        };
        assert_eq!(on(site(20, 18, "/a")), on(site(30, 28, "/b")));
        assert_ne!(on(site(20, 18, "/a")), on(site(21, 18, "/a")));
    }

    #[test]
    fn the_first_form_is_what_it_was() {
        let accesses = [
            access(Read, site(12, 10, "/a")),
            access(Write, site(30, 28, "/a")),
        ];
        let former = Fingerprint::former(&accesses);
        assert_eq!(former.0, "6fcd5d8aee05b662");
        assert!(former.is_former());
    }

    #[test]
    fn stripped_code_is_named_by_module_and_offset() {
        let bare = |offset| {
            let site = Site {
                module: Some("libx.so".into()),
                offset: Some(offset),
                ..Site::default()
            };
            access(Write, site)
        };
        assert_ne!(of(bare(0x10), bare(0x20)), of(bare(0x10), bare(0x30)));
    }
}
