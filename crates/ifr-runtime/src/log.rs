//! The log that the run-time hands to `deadheat ifr-report`: lines of text,
//! one fact each, then the process's mappings.
//!
//! Addresses are those of the process; nothing is named yet.

use std::ops::Range;
use std::path::PathBuf;

/// How the program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Code(i32),
    Signal(i32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    AtomicRead,
    AtomicWrite,
    Free,
    Unknown,
}

/// One access of a race.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Side {
    pub kind: Kind,
    /// 0 for a walk over many bytes.
    pub size: u32,
    pub kernel_thread: u32,
    /// The site, then where each caller goes on; all are return addresses.
    pub frames: Vec<u64>,
    pub created_at: Vec<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedRace {
    pub instances: u64,
    pub address: u64,
    /// The later access first.
    pub sides: Vec<Side>,
}

/// A file mapping of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    pub range: Range<u64>,
    pub offset: u64,
    pub path: PathBuf,
}

/// All that the run-time had to say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Log {
    pub arguments: Vec<String>,
    pub end: Option<End>,
    pub monitors: u64,
    /// Races beyond what the run-time keeps.
    pub lost: u64,
    pub unmonitored_threads: u64,
    /// Share of the time in which monitors ran, percent.
    pub sample: u64,
    pub cap: u64,
    /// Share of the time that monitors may take, percent; 0 for any.
    pub budget: u64,
    /// Libraries with synchronisation of their own that are known not to
    /// order the program's data.
    pub trusted: Vec<String>,
    /// Libraries with synchronisation of their own around which monitors were
    /// stopped.
    pub foreign: Vec<String>,
    pub races: Vec<LoggedRace>,
    pub mappings: Vec<Mapping>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    #[error(
        "this is not a log of the monitor run-time (it begins with `{0}`); it is written by programs that `deadheat cc` built"
    )]
    NotALog(String),
    #[error("line {line} of the monitor log is damaged: `{text}`")]
    Damaged { line: usize, text: String },
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

impl Log {
    /// Reads a log.
    ///
    /// # Errors
    /// When it is not one, or a line does not have its form.
    pub fn parse(bytes: &[u8]) -> Result<Log, LogError> {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.split('\n').enumerate();
        let first = lines.next().map_or("", |(_, line)| line);
        if first != "deadheat-ifr 1" {
            return Err(LogError::NotALog(first.chars().take(40).collect()));
        }
        let mut log = Log {
            sample: 100,
            ..Log::default()
        };
        let mut in_maps = false;
        for (index, line) in lines {
            if line.is_empty() {
                continue;
            }
            let damaged = || LogError::Damaged {
                line: index + 1,
                text: line.chars().take(80).collect(),
            };
            if in_maps {
                log.mappings.extend(mapping(line));
            } else if line == "maps" {
                in_maps = true;
            } else {
                log.fact(line).ok_or_else(damaged)?;
            }
        }
        Ok(log)
    }

    fn fact(&mut self, line: &str) -> Option<()> {
        let (word, rest) = line.split_once(' ')?;
        let number = || rest.parse::<u64>().ok();
        match word {
            "arguments" => {
                self.arguments = rest
                    .split_terminator('\0')
                    .map(ToString::to_string)
                    .collect();
            }
            "exit" => self.end = Some(End::Code(rest.parse().ok()?)),
            "signal" => self.end = Some(End::Signal(rest.parse().ok()?)),
            "monitors" => self.monitors = number()?,
            "lost" => self.lost = number()?,
            "unmonitored-threads" => self.unmonitored_threads = number()?,
            "sample" => self.sample = number()?,
            "cap" => self.cap = number()?,
            "budget" => self.budget = number()?,
            "trusted" => self.trusted.push(rest.to_string()),
            "foreign" => self.foreign.push(rest.to_string()),
            "race" => {
                let (instances, address) = rest.split_once(' ')?;
                self.races.push(LoggedRace {
                    instances: instances.parse().ok()?,
                    address: hex(address)?,
                    sides: Vec::new(),
                });
            }
            "side" => {
                let mut words = rest.split(' ');
                let kind = match words.next()? {
                    "read" => Kind::Read,
                    "write" => Kind::Write,
                    "atomic-read" => Kind::AtomicRead,
                    "atomic-write" => Kind::AtomicWrite,
                    "free" => Kind::Free,
                    "unknown" => Kind::Unknown,
                    _ => return None,
                };
                self.races.last_mut()?.sides.push(Side {
                    kind,
                    size: words.next()?.parse().ok()?,
                    kernel_thread: words.next()?.parse().ok()?,
                    frames: Vec::new(),
                    created_at: Vec::new(),
                });
            }
            "frame" | "created" => {
                let side = self.races.last_mut()?.sides.last_mut()?;
                let address = hex(rest)?;
                if word == "frame" {
                    side.frames.push(address);
                } else {
                    side.created_at.push(address);
                }
            }
            _ => return None,
        }
        Some(())
    }
}

/// A line of /proc/PID/maps, if it maps a file.
fn mapping(line: &str) -> Option<Mapping> {
    let mut words = line.splitn(6, ' ');
    let (lo, hi) = words.next()?.split_once('-')?;
    let range = hex(lo)?..hex(hi)?;
    let offset = words.nth(1).and_then(hex)?;
    let path = words.nth(2)?.trim_start();
    path.starts_with('/').then(|| Mapping {
        range,
        offset,
        path: PathBuf::from(path),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "deadheat-ifr 1\narguments ./t\0-x\0\nexit 0\nmonitors 7\ntrusted libc.so.6\nrace 3 0x1000\nside write 4 11 1\nframe 0x55\nframe 0x66\ncreated 0x77\nside unknown 0 12 2\nmaps\n1000-2000 r-xp 00001000 08:01 5   /tmp/a b\n3000-4000 rw-p 00000000 00:00 0 \n";

    #[test]
    fn all_facts_are_read() {
        let log = Log::parse(LOG.as_bytes()).unwrap();
        assert_eq!(log.arguments, ["./t", "-x"]);
        assert_eq!(log.end, Some(End::Code(0)));
        assert_eq!(log.races.len(), 1);
        assert_eq!(log.races[0].sides[0].frames, [0x55, 0x66]);
        assert_eq!(log.races[0].sides[1].kind, Kind::Unknown);
        assert_eq!(log.mappings.len(), 1, "anonymous memory is no module");
        assert_eq!(log.mappings[0].path, PathBuf::from("/tmp/a b"));
        assert_eq!(log.mappings[0].offset, 0x1000);
    }

    #[test]
    fn other_text_and_damage_are_named() {
        assert!(matches!(Log::parse(b"ELF"), Err(LogError::NotALog(_))));
        let damaged = Log::parse(b"deadheat-ifr 1\nside write 4 1\n").unwrap_err();
        assert!(damaged.to_string().contains("line 2"), "{damaged}");
    }

    #[test]
    fn a_cut_log_is_never_a_panic() {
        for end in 0..LOG.len() {
            let _ = Log::parse(&LOG.as_bytes()[..end]);
        }
    }
}
