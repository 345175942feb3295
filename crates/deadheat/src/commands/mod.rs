//! One file per subcommand.

pub mod record;
pub mod replay;
pub mod report;
pub mod sample;
