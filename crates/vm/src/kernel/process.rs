//! The guest process: ids and identity.

use super::{Call, Halt, Outcome};
use crate::machine::Vm;

#[derive(Default)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    /// Absolute path of the program.
    pub executable: std::path::PathBuf,
    /// The sixteen random bytes every program is started with.
    pub start_random: [u8; 16],
    threads: u32,
}

impl Process {
    /// The number of the next thread; the first one is 1.
    pub fn next_thread(&mut self) -> u32 {
        self.threads += 1;
        self.threads
    }

    /// Thread ids follow the process id, as they usually do natively.
    pub fn tid_of(&self, thread: u32) -> i32 {
        self.pid + thread as i32 - 1
    }
}

impl Vm {
    pub(super) fn clone_process(&mut self, _call: &Call) -> Outcome {
        Err(Halt::Errno(libc::ENOSYS))
    }
}
