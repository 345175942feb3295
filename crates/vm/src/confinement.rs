//! Which processes are confined, and to what: the one place that says so.
//!
//! A process that runs the guest of a recording confines itself before the first
//! instruction (`Vm::confine`, from `run_part`, through which all of them go).
//! Its copies inherit that.
//!
//! | process | confined | may read |
//! | --- | --- | --- |
//! | records, or runs without a recording | no: it is the user's own program | |
//! | `replay`, each process of the tree | yes | the recording, installed files |
//! | passes of detection, also after `run` | yes | anything: debug info, source text |
//! | both orders, classification, evidence, their copies | yes | anything: files of the run as they were |
//! | worlds of gdb and of time travel | yes | anything, for the same reason |
//! | `hunt` and `whatif`, looking at a recording they made | yes | anything |
//!
//! "The recording" is its folder, and such files outside of it as it names with the
//! hash that they have: who made it knew them already. "Installed files" are those
//! of packages (`INSTALLED`), which hold no secrets.
//!
//! What such a process found out goes through a pipe to the one that started it,
//! which runs no guest code and is not confined.

use crate::machine::Vm;
use crate::record::Files;
use crate::{Error, record};
use confine::Reads;
use std::path::PathBuf;

/// Folders of packages, and what the kernel says about this process.
const INSTALLED: [&str; 9] = [
    "/usr",
    "/lib",
    "/lib64",
    "/bin",
    "/sbin",
    "/opt",
    "/nix",
    "/proc",
    "/dev/null",
];

/// A copy in the recording is what a replay maps: the original is wanted for its
/// symbols only, and not if comparing it takes long.
const LARGEST_ORIGINAL: u64 = 256 << 20;

impl Vm {
    /// This process, which replays, may go on reading files: debug info, or what
    /// the recorded run read. To be said before it runs.
    pub fn may_read_files(&mut self) {
        self.reads_files = true;
    }

    /// From here on the guest of a recording may be run by this process.
    pub(crate) fn confine(&mut self) -> Result<(), Error> {
        if self.io.is_live() || confine::is_confined() {
            return Ok(());
        }
        let reads = match self.reads_files {
            true => Reads::Anything,
            false => Reads::These(self.readable()),
        };
        confine::confine(&reads).map_err(|error| Error::Machine(error.to_string()))
    }

    fn readable(&self) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = INSTALLED.iter().map(PathBuf::from).collect();
        if let Some(tree) = &self.tree {
            paths.push(tree.directory.clone());
            for number in record::processes_in(&tree.directory) {
                // What is damaged says so when it is replayed.
                let files = Files::open(&tree.directory, number);
                paths.extend(
                    files
                        .iter()
                        .flat_map(|files| files.unchanged(LARGEST_ORIGINAL)),
                );
            }
        }
        paths
    }
}
