//! How a run failed, and when two runs failed in the same way.

use explore::Ending;
use race::Frame;
use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind", content = "value")]
pub enum Kind {
    /// It ended with this code, which is not 0.
    Exit(i32),
    /// It died of this signal.
    Signal(i32),
    /// Threads wait for one another in a circle.
    Deadlock,
    /// It will never end.
    Hang,
    /// It wrote what it must not write.
    Output,
}

/// Tells failures apart: kind and place. Two runs with the same signature have
/// failed in the same way; an address, a thread number or a value is not part
/// of it, because another schedule changes those.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Signature {
    #[serde(flatten)]
    pub kind: Kind,
    /// Where in the program's own code: of a crash, of the `exit`, of the
    /// waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

/// A failure in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub signature: Signature,
    /// Without a subject: `crashes with SIGSEGV …`.
    pub text: String,
}

impl Signature {
    /// What an execution that ended like this failed of, if it did.
    pub fn of(ending: &Ending, exit_stack: &[Frame]) -> Option<Signature> {
        let at = |stack: &[Frame]| {
            explore::own_frame(stack)
                .filter(|frame| frame.line.is_some() && !is_system(frame))
                .map(explore::place)
        };
        let (kind, place) = match ending {
            Ending::Exited(0) => return None,
            Ending::Exited(code) => (Kind::Exit(*code), at(exit_stack)),
            Ending::Killed { signal, stack, .. } => (Kind::Signal(*signal), at(stack)),
            Ending::Deadlock { circle, .. } => (Kind::Deadlock, Some(places(circle))),
            // A loop is met at any of its lines.
            Ending::Hang { stack, .. } => (Kind::Hang, at(stack).map(without_line)),
            _ => return None,
        };
        Some(Signature { kind, place })
    }

    /// The output matched the pattern, like this.
    pub fn output(_found: &str) -> Signature {
        Signature {
            kind: Kind::Output,
            place: None,
        }
    }

    /// A run that had to be killed because its time was up.
    pub fn endless() -> Signature {
        Signature {
            kind: Kind::Hang,
            place: None,
        }
    }

    /// The same failure. A hang that was met by its time being up can be any.
    pub fn same_as(&self, other: &Signature) -> bool {
        let any_hang = |signature: &Signature| *signature == Signature::endless();
        self == other
            || (self.kind == Kind::Hang
                && other.kind == Kind::Hang
                && (any_hang(self) || any_hang(other)))
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Exit(code) => write!(f, "exit code {code}")?,
            Kind::Signal(signal) => write!(f, "{}", explore::signal_name(signal))?,
            Kind::Deadlock => write!(f, "deadlock")?,
            Kind::Hang => write!(f, "hang")?,
            Kind::Output => write!(f, "output")?,
        }
        match &self.place {
            Some(place) => write!(f, " at {place}"),
            None => Ok(()),
        }
    }
}

/// The frame is in the C library or the dynamic linker: every `return` from
/// `main` ends there.
fn is_system(frame: &Frame) -> bool {
    frame.module.as_deref().is_some_and(|module| {
        let name = module.rsplit('/').next().unwrap_or(module);
        name.starts_with("libc.") || name.starts_with("libc-") || name.starts_with("ld-linux")
    })
}

/// `worker main.c` of `worker main.c:31`.
fn without_line(place: String) -> String {
    match place.rsplit_once(':') {
        Some((place, _)) => place.to_string(),
        None => place,
    }
}

/// The places at the ends of the sentences about a circle, whoever stands at
/// them.
fn places(circle: &[String]) -> String {
    let mut places: Vec<&str> = circle
        .iter()
        .filter_map(|sentence| sentence.rsplit_once('('))
        .map(|(_, place)| place.trim_end_matches(')'))
        .collect();
    places.sort_unstable();
    places.dedup();
    places.join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circle(sentences: [&str; 2]) -> Ending {
        Ending::Deadlock {
            circle: sentences.map(str::to_string).to_vec(),
            stack: Vec::new(),
        }
    }

    #[test]
    fn a_deadlock_is_the_same_whoever_is_where() {
        let one = circle([
            "thread 2 waits for `a`, which thread 3 holds (one x.c:3)",
            "thread 3 waits for `b`, which thread 2 holds (other x.c:9)",
        ]);
        let two = circle([
            "thread 2 waits for `b`, which thread 3 holds (other x.c:9)",
            "thread 3 waits for `a`, which thread 2 holds (one x.c:3)",
        ]);
        assert_eq!(Signature::of(&one, &[]), Signature::of(&two, &[]));
        let place = Signature::of(&one, &[]).and_then(|signature| signature.place);
        assert_eq!(place.as_deref(), Some("one x.c:3 and other x.c:9"));
    }

    #[test]
    fn a_loop_is_the_same_at_each_of_its_lines() {
        let hang = |line| Ending::Hang {
            what: Vec::new(),
            stack: vec![Frame {
                function: Some("wait".to_string()),
                file: Some("x.c".to_string()),
                line: Some(line),
                ..Frame::default()
            }],
        };
        assert_eq!(Signature::of(&hang(3), &[]), Signature::of(&hang(4), &[]));
    }

    #[test]
    fn exit_codes_are_told_apart() {
        assert_eq!(Signature::of(&Ending::Exited(0), &[]), None);
        assert_ne!(
            Signature::of(&Ending::Exited(1), &[]),
            Signature::of(&Ending::Exited(2), &[])
        );
        assert_eq!(Signature::of(&Ending::Unfinished, &[]), None);
    }
}
