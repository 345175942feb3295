//! Time travel over an execution, and the gdb server on top of it.
//!
//! Paper 000 gives the developer a replay of each suspected race; here it is
//! one that gdb can drive, in both directions and in both orders. An execution
//! is deterministic (see `vm`), so a position in it is just a number of
//! instructions (`ticks`). Worlds are processes with a vm at a position
//! (`world`); some of them wait along the way as snapshots (`travel`). To go
//! back means to let a copy of an earlier one run again; to look for a break-
//! or watchpoint means to let a copy run instrumented and tell where it was
//! met.
//!
//! Deviation: nothing is undone and no log of values is kept, as iDNA's
//! debugger does; reverse execution is forward execution from a snapshot.
//! Guarantee: the state shown at a position is the state of the recorded (or
//! chosen) execution there, whichever way it was reached.

mod error;
pub mod gdb;
pub mod ticks;
mod travel;
mod wire;
mod world;

pub use error::Error;
pub use travel::{Sought, Timeline};
pub use world::{Alternative, Hit, HitKind, ThreadState, Wanted, Watch, WatchKind};
