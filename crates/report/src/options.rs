//! How a report is to be printed.

use std::io::IsTerminal;
use std::str::FromStr;

/// When to colour the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Color {
    /// On a terminal, unless `NO_COLOR` is set to anything or `TERM` is
    /// `dumb`.
    #[default]
    Auto,
    Always,
    Never,
}

impl FromStr for Color {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Color::Auto),
            "always" => Ok(Color::Always),
            "never" => Ok(Color::Never),
            _ => Err(format!("`{text}` is none of auto, always, never")),
        }
    }
}

/// Where printed reports go. `run` and its like use standard error, because
/// standard output belongs to the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stream {
    #[default]
    Stdout,
    Stderr,
}

/// Text for people or JSON for scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    #[default]
    Text,
    Json,
}

/// How [`crate::print`] prints.
#[derive(Debug, Clone)]
pub struct Options {
    pub form: Form,
    pub stream: Stream,
    pub color: Color,
    /// Lines of source shown around each racing line; 0 shows none.
    pub source_lines: usize,
    /// Columns to wrap sentences at; `None` asks the terminal, else 100.
    pub width: Option<usize>,
    /// Also list suppressed races, every piece of evidence and every frame.
    pub verbose: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            form: Form::Text,
            stream: Stream::Stdout,
            color: Color::Auto,
            source_lines: 1,
            width: None,
            verbose: false,
        }
    }
}

impl Options {
    fn stream_is_terminal(&self) -> bool {
        match self.stream {
            Stream::Stdout => std::io::stdout().is_terminal(),
            Stream::Stderr => std::io::stderr().is_terminal(),
        }
    }

    pub(crate) fn colored(&self) -> bool {
        match self.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => {
                let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
                    && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
                wanted && self.stream_is_terminal()
            }
        }
    }

    pub(crate) fn columns(&self) -> usize {
        const PLAIN: usize = 100;
        let asked = || {
            let descriptor = match self.stream {
                Stream::Stdout => libc::STDOUT_FILENO,
                Stream::Stderr => libc::STDERR_FILENO,
            };
            terminal_columns(descriptor)
        };
        self.width
            .or_else(asked)
            .unwrap_or(PLAIN)
            .clamp(60, PLAIN.max(120))
    }
}

pub(crate) fn terminal_columns(descriptor: libc::c_int) -> Option<usize> {
    // SAFETY: winsize is plain integers, for which all-zero is a value.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: TIOCGWINSZ writes one winsize through the pointer, which is
    // valid for the call; a descriptor that is no terminal makes it fail.
    let answer = unsafe { libc::ioctl(descriptor, libc::TIOCGWINSZ, &mut size) };
    (answer == 0 && size.ws_col > 0).then_some(usize::from(size.ws_col))
}
