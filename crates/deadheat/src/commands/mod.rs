//! One file per subcommand.

pub mod report;
pub mod sample;
