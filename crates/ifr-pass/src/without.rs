//! Parts of the pass that can be left out, to measure what each is worth: what
//! goes beyond paper 004. `DEADHEAT_IFR_WITHOUT` names them when a program is
//! compiled, with commas between. Leaving one out makes programs slower or
//! races fewer, never a report false.
//!
//! * `summaries`  calls into functions that are known not to synchronise end
//!   regions like any other call
//! * `library`    so do calls of the C library, and what they read and write is
//!   not monitored
//! * `ranges`     array walks are monitored element by element
//! * `escape`     so is memory that no other thread can have
//! * `adaptive`   short-scope monitors on what is read again and again are all
//!   started

/// What is left out.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Without {
    pub summaries: bool,
    pub library: bool,
    pub ranges: bool,
    pub escape: bool,
    pub adaptive: bool,
}

impl Without {
    /// From the environment. A name that is none of these ends the
    /// compilation: a measurement of something else would follow.
    pub fn read() -> Self {
        match Self::parse(&std::env::var("DEADHEAT_IFR_WITHOUT").unwrap_or_default()) {
            Ok(without) => without,
            Err(name) => {
                eprintln!(
                    "deadheat: DEADHEAT_IFR_WITHOUT does not know `{name}`; it takes summaries, library, ranges, escape, adaptive, with commas between"
                );
                std::process::exit(2)
            }
        }
    }

    fn parse(text: &str) -> Result<Self, &str> {
        let mut without = Without::default();
        for name in text.split(',').filter(|name| !name.is_empty()) {
            match name {
                "summaries" => without.summaries = true,
                "library" => without.library = true,
                "ranges" => without.ranges = true,
                "escape" => without.escape = true,
                "adaptive" => without.adaptive = true,
                _ => return Err(name),
            }
        }
        Ok(without)
    }
}
