//! The run-time of interference-free regions as others need it: the compiled
//! object that instrumented programs link, and the log it writes at exit.
//!
//! The run-time itself (`runtime/`) is a crate of its own without the standard
//! library, compiled by the build script; nothing of it runs in this process.

pub mod log;

#[cfg(test)]
#[path = "../runtime/decode.rs"]
mod decode;
#[cfg(test)]
mod decoding;

/// The object file that instrumented executables link.
pub static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/deadheat_ifr.o"));

/// Names the sources that this run-time and its pass are built from; a pass that
/// finds another in `BUILD_VARIABLE` refuses to work.
pub static FINGERPRINT: &str = env!("DEADHEAT_IFR_FINGERPRINT");
pub const BUILD_VARIABLE: &str = "DEADHEAT_IFR_BUILD";

/// Names that shared libraries of a program must find in its executable, as a
/// linker's dynamic list.
pub static DYNAMIC_LIST: &str = include_str!(concat!(env!("OUT_DIR"), "/deadheat_ifr.list"));
