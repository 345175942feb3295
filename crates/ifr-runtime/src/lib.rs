//! The run-time archive of interference-free regions, ready to be linked, and
//! the form of the log it writes.

/// The static archive that instrumented programs link.
pub static ARCHIVE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/deadheat_ifr.o"));
