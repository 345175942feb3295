//! A `Moment` names one point of one guest thread for ever.
//!
//! The vm counts guest instructions exactly, so "thread 2 after 18,234
//! instructions" is the same dynamic instruction in every replay of a
//! recording, whatever instrumentation is on (paper 000, section 3.1 names
//! instructions by region and index; here the count alone suffices because a
//! recording fixes the whole schedule).

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Thread `thread` has retired `count` instructions; `part` tells apart the
/// iterations of a `rep` instruction or the pieces of a wide access.
///
/// An access with this moment is made by the instruction that is executed
/// next, that is the `count + 1`-th of the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment {
    pub thread: u32,
    pub count: u64,
    pub part: u32,
}

impl Moment {
    pub fn new(thread: u32, count: u64) -> Self {
        Moment {
            thread,
            count,
            part: 0,
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.thread, self.count)?;
        if self.part != 0 {
            write!(f, "+{}", self.part)?;
        }
        Ok(())
    }
}

/// The text given is not a moment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a moment; write THREAD:COUNT, for instance 2:18234 (thread 2 after 18234 instructions)"
)]
pub struct ParseMomentError(String);

impl FromStr for Moment {
    type Err = ParseMomentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || ParseMomentError(text.to_string());
        let (thread, rest) = text.split_once(':').ok_or_else(bad)?;
        let (count, part) = rest.split_once('+').unwrap_or((rest, "0"));
        Ok(Moment {
            thread: thread.parse().map_err(|_| bad())?,
            count: count.parse().map_err(|_| bad())?,
            part: part.parse().map_err(|_| bad())?,
        })
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips() {
        for moment in [
            Moment::new(0, 0),
            Moment::new(2, 18234),
            Moment {
                thread: 7,
                count: u64::MAX,
                part: 3,
            },
        ] {
            assert_eq!(moment.to_string().parse(), Ok(moment));
        }
    }

    #[test]
    fn nonsense_is_refused_with_the_text_in_the_message() {
        for text in ["", "3", "a:1", "1:", "1:2+", "-1:2", "1:2:3"] {
            let error = text.parse::<Moment>().unwrap_err();
            assert!(error.to_string().contains(&format!("`{text}`")));
        }
    }
}
