//! The lines that commands print beside their reports.

use crate::commands::Failure;
use std::fmt;

/// Prints a line of the result, or leaves the function with what went wrong.
macro_rules! tell {
    ($($words:tt)*) => {
        $crate::output::line(format_args!($($words)*))?
    };
}

/// Says a sentence on standard error.
macro_rules! say {
    ($($words:tt)*) => {
        ::report::say(&format!($($words)*))
    };
}

pub fn line(words: fmt::Arguments<'_>) -> Result<(), Failure> {
    let text = format!("{words}\n");
    ::report::print_text(&text, ::report::Stream::Stdout)
        .map_err(|error| ::report::Error::from(error).into())
}
