//! One file per subcommand.

pub mod report;
