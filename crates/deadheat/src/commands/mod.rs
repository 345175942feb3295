//! One file per subcommand.

pub mod baseline;
pub mod compare;
pub mod explain;
pub mod gc;
pub mod list;
pub mod mark;
pub mod report;
pub mod show;
