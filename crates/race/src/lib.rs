//! The vocabulary of deadheat: what a site, an access, a moment, a race, an
//! instance, a verdict and a piece of evidence are.
//!
//! Every detector (the vm, the sampler, the compiled-in monitors, an imported
//! log) produces these values and every later stage (pruning, reordering,
//! exploration, reporting) reads them. They are plain data: serde in and out,
//! no I/O, no knowledge of any other crate. The JSON form is the published
//! report (`schema` 1); fields may be added, never renamed without a new
//! schema number, and what is unknown is absent rather than made up.

mod access;
mod cause;
mod fingerprint;
mod moment;
mod object;
mod orders;
mod plain;
mod report;
mod site;
mod standing;
mod verdict;

pub use access::{Access, AccessKind};
pub use cause::{Cause, CauseKind, causes};
pub use fingerprint::Fingerprint;
pub use moment::{Moment, ParseMomentError};
pub use object::{HEAP_BLOCK, NAMED, Object, without_indices};
pub use orders::{Difference, DifferenceKind, Event, EventKind, Order, Played};
pub use plain::{plain, plain_bytes, plain_json, plain_lines, plain_pattern};
pub use report::{
    CutShort, ErrorFinding, Evidence, Exit, Instance, LockCall, LockFinding, Place, Race, Report,
    RunFailure, SCHEMA,
};
pub use site::{Frame, Site};
pub use standing::{Mark, Standing, Suppressed};
pub use verdict::{Consequence, States, Verdict, labels};

/// What the command line exits with, besides the program's own code.
pub mod exit_code {
    /// Races were found (and the program itself did not have to fail for it).
    pub const RACES: i32 = 66;
    /// The command line or an input file given by the user is wrong.
    pub const USAGE: i32 = 2;
    /// deadheat itself could not do what was asked.
    pub const FAILURE: i32 = 70;
}
