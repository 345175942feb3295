//! Sampling of a native process with breakpoints: DataCollider (paper 002)
//! for user programs.
//!
//! A small percentage of memory accesses is sampled. When a one-shot code
//! breakpoint at an access fires, its thread is held for a moment, a data
//! breakpoint watches the location, and whoever else touches it in a
//! conflicting way is caught in the act; a value that changes meanwhile gives
//! away what breakpoints cannot see. No synchronisation has to be understood,
//! and accesses that are not sampled cost nothing.
//!
//! Guarantee: a reported race is two conflicting accesses, one made while
//! another thread stood right before the other, or before it with nothing
//! between that branches or synchronises; at least one of them is not recognised
//! as synchronisation. Races are missed where no sample meets them.
//!
//! Walk: `session` (front end) asks `sampler` which locations of the
//! `sampling_set` to plant, `controller` how many; `holder` (a process of its
//! own) plants, watches and holds; what it catches comes back as a
//! `wire::Catch`, gets its names in `witness`, and becomes a `race::Race` with
//! labels in `findings`.
//!
//! Differences from the paper: user programs instead of the Windows kernel;
//! stripped code; a first sweep for live code; overhead as the controlled
//! quantity; waits that depend on how often the code runs; several samples in
//! flight; two accesses watched at one stop where the second is known.

mod bias;
mod controller;
mod findings;
mod holder;
mod instruction;
mod lifeline;
mod link;
mod memory_map;
mod planted;
mod sampler;
mod sampling_set;
mod scope;
mod session;
mod wire;
mod witness;

pub use bias::{Bias, BiasError};
pub use controller::Goal;
pub use holder::Target;
pub use sampler::Counts;
pub use scope::{Pattern, Scope};
pub use session::{Finished, Options, SampleError, Status, Totals, run};
