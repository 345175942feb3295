//! Shared by two build scripts: names the sources of the pass and of the run-time
//! together, so that each can tell whether the other was built from the same.

use std::fs;
use std::path::{Path, PathBuf};

/// Both halves, from the folder of either crate.
const HALVES: [&str; 3] = [
    "../ifr-pass/src",
    "../ifr-pass/shim",
    "../ifr-runtime/runtime",
];

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}

/// FNV-1a over all of them in order, in hexadecimal.
pub fn fingerprint() -> String {
    let mut files = Vec::new();
    for half in HALVES {
        println!("cargo::rerun-if-changed={half}");
        collect(Path::new(half), &mut files);
    }
    files.sort();
    let hash = files
        .iter()
        .filter_map(|path| fs::read(path).ok())
        .flatten()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("{hash:016x}")
}
