//! Finds the data races of a recorded execution.
//!
//! After papers 000 (section 3: happens-before on replay) and 003 (sections
//! 4.5 and 5), with FastTrack's epochs. Three passes over one recording, each
//! a replay in a process of its own: `find` keeps epochs for all memory and
//! says which bytes are racy; `history` looks at just those and enumerates
//! pairs and instances; `scene` stops at the accesses of each race for stacks
//! and values. `findings` makes the report of it.
//!
//! Guarantee: two accesses are reported only if no rule of synchronisation
//! orders them (`engine`). What was not looked at is said in the report.

pub mod clock;
pub mod import;
pub mod shadow;
pub mod steer;

mod added_lock;
mod code;
mod engine;
mod fences;
mod find;
mod findings;
mod fork;
mod gochannel;
mod golang;
mod heap;
mod history;
mod known;
mod lock_graph;
mod lock_orders;
mod locks;
mod merge;
mod passes;
mod patterns;
mod scene;
mod source;
mod sync;
mod tasks;

pub use added_lock::{AddedLock, Inside, Passing};
pub use engine::{HappensBefore, KernelEdges};
pub use fork::{ForkError, in_child, in_recorder, silence_output};
pub use merge::{add_errors, merge};
pub use passes::{Error, FirstLook, Options, Start, detect, detect_in, detect_tree, exit_code};
