//! Recorded inputs, matched per stream.
//!
//! Arrivals (bytes read from streams, messages, connections, ended children)
//! keep their order within a stream and become available at the virtual time
//! at which the recorded run took them, or when every thread waits. Contents
//! of files are known by position. Answers to questions are matched by stream
//! and question; one asked more often than in the recorded run gets the last
//! answer again.

use super::Asking;
use crate::io::tag;
use crate::record::Effect;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{Hash, Hasher};

/// Who took one recorded input, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consumed {
    pub stream: u64,
    /// Virtual time.
    pub time: u64,
    pub position: Option<u64>,
}

/// A signal that came from outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutsideSignal {
    /// Virtual time.
    pub time: u64,
    /// For whom; 0 for the whole process.
    pub thread: u32,
    pub info: Vec<u8>,
}

/// For each input of a recording, in order, what took it. Made by one replay
/// (`snapshot::index_inputs`), used by many copies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputIndex {
    pub consumed: Vec<Consumed>,
    /// How often every thread waited and time had to pass.
    #[serde(default)]
    pub waits: u64,
    /// Signals from outside, in order.
    #[serde(default)]
    pub signals: Vec<OutsideSignal>,
}

/// Answers longer than this are not kept for a second asking.
const LONGEST_KEPT: usize = 64 << 10;

/// What an attempt to take an arrival gives.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// The recorded result with its bytes.
    Now(Effect),
    /// Not yet, or never.
    NotYet,
}

#[derive(Debug, Clone)]
struct Arrival {
    time: u64,
    effect: Effect,
}

#[derive(Debug, Clone, Default)]
struct Stream {
    arrivals: VecDeque<Arrival>,
    /// How many have been taken, and bytes of the next one.
    taken: u64,
    begun: u64,
    /// The end was read: it stays.
    ended: bool,
}

#[derive(Debug, Clone, Default)]
struct Answers {
    next: VecDeque<Effect>,
    /// How many have been taken.
    taken: u64,
    last: Option<Effect>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Inputs {
    /// Streams are known; otherwise everything is matched by kind alone.
    keyed: bool,
    streams: HashMap<u64, Stream>,
    answers: HashMap<(u64, u32), Answers>,
    contents: HashMap<u64, BTreeMap<u64, Vec<u8>>>,
    /// Arrivals up to this time are available whatever the clock says.
    released: u64,
    /// How many inputs the copy has taken.
    pub taken: u64,
}

impl Hash for Inputs {
    /// What has been taken: what is left follows from that. So it does not
    /// matter whether the rest of the recording was read already.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Inputs {
            keyed,
            streams,
            answers,
            contents: _,
            released,
            taken,
        } = self;
        (keyed, released, taken).hash(state);
        let streams: BTreeMap<u64, (u64, u64, bool)> = streams
            .iter()
            .map(|(key, stream)| (*key, (stream.taken, stream.begun, stream.ended)))
            .filter(|(_, stream)| *stream != (0, 0, false))
            .collect();
        let answers: BTreeMap<(u64, u32), u64> = answers
            .iter()
            .map(|(key, answers)| (*key, answers.taken))
            .filter(|(_, taken)| *taken > 0)
            .collect();
        (streams, answers).hash(state);
    }
}

fn is_arrival(tag: u32) -> bool {
    [
        libc::SYS_read,
        libc::SYS_recvmsg,
        libc::SYS_accept4,
        libc::SYS_wait4,
        libc::SYS_waitid,
        libc::SYS_splice,
    ]
    .contains(&i64::from(tag))
}

/// Whether descriptors are ready is worked out, not repeated.
fn is_readiness(tag: u32) -> bool {
    [libc::SYS_poll, libc::SYS_epoll_wait].contains(&i64::from(tag)) || tag == tag::ORDER
}

/// The recorded attempt found nothing.
fn found_nothing(effect: &Effect) -> bool {
    let nothing = [super::super::kernel::WOULD_BLOCK, -i64::from(libc::EAGAIN)];
    let children = [libc::SYS_wait4, libc::SYS_waitid].contains(&i64::from(effect.tag));
    nothing.contains(&effect.result)
        || (children
            && effect.result == 0
            && effect.writes.iter().all(|(_, bytes)| bytes.is_empty()))
}

impl Inputs {
    pub fn new(keyed: bool) -> Self {
        Inputs {
            keyed,
            ..Inputs::default()
        }
    }

    /// An input of the recording that is still to come.
    pub fn expect(&mut self, effect: Effect, by: Option<Consumed>) {
        let (stream, time) = by.map_or((0, 0), |by| (by.stream, by.time));
        if is_readiness(effect.tag) {
            return;
        }
        if let Some(position) = by.and_then(|by| by.position) {
            self.learn_contents(stream, position, &effect);
        } else if is_arrival(effect.tag) {
            if !found_nothing(&effect) {
                let stream = self.streams.entry(stream).or_default();
                stream.arrivals.push_back(Arrival { time, effect });
            }
        } else {
            let answers = self.answers.entry((stream, effect.tag)).or_default();
            answers.next.push_back(effect);
        }
    }

    /// An input that the recorded run has taken already.
    pub fn passed(&mut self, effect: &Effect, by: Consumed) {
        let length: usize = effect.writes.iter().map(|(_, bytes)| bytes.len()).sum();
        if let Some(position) = by.position {
            self.learn_contents(by.stream, position, effect);
        } else if is_arrival(effect.tag) {
            let stream = self.streams.entry(by.stream).or_default();
            stream.ended |= effect.tag == libc::SYS_read as u32 && effect.result == 0;
        } else if !is_readiness(effect.tag) && length <= LONGEST_KEPT {
            let answers = self.answers.entry((by.stream, effect.tag)).or_default();
            answers.last = Some(effect.clone());
        }
    }

    fn learn_contents(&mut self, stream: u64, position: u64, effect: &Effect) {
        let bytes: Vec<u8> = effect
            .writes
            .iter()
            .flat_map(|(_, bytes)| bytes.iter().copied())
            .collect();
        if effect.result > 0 {
            self.contents
                .entry(stream)
                .or_default()
                .insert(position, bytes);
        }
    }

    /// Bytes of a file at `position` as the recorded run read them.
    pub fn contents(&self, stream: u64, position: u64, length: usize) -> Vec<u8> {
        let Some(known) = self.contents.get(&stream) else {
            return Vec::new();
        };
        let mut bytes = Vec::new();
        let mut at = position;
        while bytes.len() < length {
            let Some((start, part)) = known.range(..=at).next_back() else {
                break;
            };
            let skip = (at - start) as usize;
            if skip >= part.len() {
                break;
            }
            let rest = &part[skip..];
            let take = rest.len().min(length - bytes.len());
            bytes.extend_from_slice(&rest[..take]);
            at += take as u64;
        }
        bytes
    }

    /// The next answer to this question, or the last one again.
    pub fn answer(&mut self, asking: &Asking, tag: u32) -> Option<Effect> {
        if is_arrival(tag) {
            return match self.arrive(asking, tag, usize::MAX) {
                Arrived::Now(effect) => Some(effect),
                Arrived::NotYet => None,
            };
        }
        let key = (if self.keyed { asking.stream } else { 0 }, tag);
        let answers = self.answers.get_mut(&key)?;
        if let Some(effect) = answers.next.pop_front() {
            self.taken += 1;
            answers.taken += 1;
            if self.keyed {
                answers.last = Some(effect.clone());
            }
            return Some(effect);
        }
        answers.last.clone()
    }

    fn stream(&mut self, asking: &Asking) -> Option<&mut Stream> {
        let key = if self.keyed { asking.stream } else { 0 };
        self.streams.get_mut(&key)
    }

    /// Takes the next arrival of this kind, at most `length` bytes of it where
    /// it is a stream of bytes.
    pub fn arrive(&mut self, asking: &Asking, tag: u32, length: usize) -> Arrived {
        let until = self.released.max(asking.now);
        let keyed = self.keyed;
        let Some(stream) = self.stream(asking) else {
            return Arrived::NotYet;
        };
        let is_read = tag == libc::SYS_read as u32;
        if stream.ended && is_read {
            return Arrived::Now(Effect {
                tag,
                ..Effect::default()
            });
        }
        let position = stream
            .arrivals
            .iter()
            .position(|arrival| arrival.effect.tag == tag)
            // Within a known stream nothing overtakes.
            .filter(|position| !keyed || *position == 0);
        let Some(position) = position.filter(|at| stream.arrivals[*at].time <= until) else {
            return Arrived::NotYet;
        };
        if is_read && stream.arrivals[position].effect.result > 0 {
            let arrival = &mut stream.arrivals[position];
            let bytes: Vec<u8> = arrival
                .effect
                .writes
                .iter()
                .flat_map(|(_, bytes)| bytes.iter().copied())
                .collect();
            let (part, rest) = bytes.split_at(bytes.len().min(length));
            let part = part.to_vec();
            if rest.is_empty() {
                stream.arrivals.remove(position);
                stream.taken += 1;
                stream.begun = 0;
            } else {
                stream.begun += part.len() as u64;
                arrival.effect.result = rest.len() as i64;
                arrival.effect.writes = vec![(0, rest.to_vec())];
            }
            self.taken += 1;
            return Arrived::Now(Effect {
                tag,
                result: part.len() as i64,
                writes: vec![(0, part)],
            });
        }
        let Some(arrival) = stream.arrivals.remove(position) else {
            return Arrived::NotYet;
        };
        stream.taken += 1;
        stream.ended |= is_read && arrival.effect.result == 0;
        self.taken += 1;
        Arrived::Now(arrival.effect)
    }

    /// Something can be taken from this stream, and a number that changes
    /// whenever something new is there.
    pub fn ready(&self, stream: u64, now: u64) -> (bool, u64) {
        let Some(stream) = self.streams.get(&if self.keyed { stream } else { 0 }) else {
            return (false, 0);
        };
        let until = self.released.max(now);
        let there = stream
            .arrivals
            .iter()
            .take_while(|arrival| arrival.time <= until)
            .count() as u64;
        (stream.ended || there > 0, stream.taken + there)
    }

    /// When the next arrival comes that is not there yet.
    pub fn next_arrival(&self, now: u64) -> Option<u64> {
        let until = self.released.max(now);
        self.streams
            .values()
            .filter_map(|stream| {
                stream
                    .arrivals
                    .iter()
                    .map(|arrival| arrival.time)
                    .find(|time| *time > until)
            })
            .min()
    }

    /// Every thread waits: what came at `time` is there now.
    pub fn release(&mut self, time: u64) {
        self.released = self.released.max(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Effect {
        Effect {
            tag: libc::SYS_read as u32,
            result: bytes.len() as i64,
            writes: vec![(0x1000, bytes.to_vec())],
        }
    }

    fn by(stream: u64, time: u64) -> Option<Consumed> {
        Some(Consumed {
            stream,
            time,
            position: None,
        })
    }

    fn asking(stream: u64, now: u64) -> Asking {
        Asking {
            stream,
            now,
            ..Asking::default()
        }
    }

    fn bytes(arrived: Arrived) -> Option<Vec<u8>> {
        match arrived {
            Arrived::Now(effect) => Some(effect.writes.concat_bytes()),
            Arrived::NotYet => None,
        }
    }

    trait Concat {
        fn concat_bytes(&self) -> Vec<u8>;
    }

    impl Concat for Vec<(u64, Vec<u8>)> {
        fn concat_bytes(&self) -> Vec<u8> {
            self.iter().flat_map(|(_, part)| part.clone()).collect()
        }
    }

    const READ: u32 = libc::SYS_read as u32;

    #[test]
    fn streams_do_not_disturb_one_another() {
        let mut inputs = Inputs::new(true);
        inputs.expect(read(b"one"), by(1, 10));
        inputs.expect(read(b"two"), by(2, 20));
        inputs.expect(read(b"three"), by(1, 30));
        let late = asking(2, 100);
        assert_eq!(bytes(inputs.arrive(&late, READ, 99)), Some(b"two".to_vec()));
        assert_eq!(bytes(inputs.arrive(&late, READ, 99)), None);
        let late = asking(1, 100);
        assert_eq!(bytes(inputs.arrive(&late, READ, 2)), Some(b"on".to_vec()));
        assert_eq!(bytes(inputs.arrive(&late, READ, 99)), Some(b"e".to_vec()));
        assert_eq!(
            bytes(inputs.arrive(&late, READ, 99)),
            Some(b"three".to_vec())
        );
    }

    #[test]
    fn an_arrival_comes_at_its_time_or_when_released() {
        let mut inputs = Inputs::new(true);
        inputs.expect(read(b"a"), by(1, 50));
        inputs.expect(read(b"b"), by(1, 60));
        assert_eq!(inputs.arrive(&asking(1, 49), READ, 9), Arrived::NotYet);
        assert_eq!(inputs.next_arrival(49), Some(50));
        inputs.release(50);
        assert!(inputs.ready(1, 0).0);
        assert_eq!(
            bytes(inputs.arrive(&asking(1, 49), READ, 9)),
            Some(b"a".to_vec())
        );
        assert_eq!(inputs.arrive(&asking(1, 49), READ, 9), Arrived::NotYet);
        assert_eq!(
            bytes(inputs.arrive(&asking(1, 60), READ, 9)),
            Some(b"b".to_vec())
        );
        assert_eq!(inputs.next_arrival(60), None);
    }

    #[test]
    fn attempts_that_found_nothing_are_no_arrivals_and_the_end_stays() {
        let mut inputs = Inputs::new(true);
        let mut waited = read(b"");
        waited.result = crate::kernel::WOULD_BLOCK;
        inputs.expect(waited, by(1, 5));
        inputs.expect(read(b""), by(1, 10));
        for _ in 0..3 {
            assert_eq!(
                bytes(inputs.arrive(&asking(1, 20), READ, 9)),
                Some(Vec::new())
            );
        }
    }

    #[test]
    fn contents_are_found_by_position() {
        let mut inputs = Inputs::new(true);
        for (position, part) in [(0, b"abcd"), (4, b"efgh"), (12, b"mnop")] {
            let by = Consumed {
                stream: 7,
                time: 0,
                position: Some(position),
            };
            inputs.expect(read(part), Some(by));
        }
        assert_eq!(inputs.contents(7, 2, 4), b"cdef");
        assert_eq!(inputs.contents(7, 6, 99), b"gh", "a hole ends it");
        assert_eq!(inputs.contents(7, 13, 2), b"no");
        assert!(inputs.contents(8, 0, 4).is_empty());
    }

    #[test]
    fn a_question_asked_again_gets_the_last_answer() {
        let mut inputs = Inputs::new(true);
        let stat = |result| Effect {
            tag: libc::SYS_newfstatat as u32,
            result,
            writes: Vec::new(),
        };
        let past = by(3, 0).unwrap();
        inputs.passed(&stat(-2), past);
        let question = asking(3, 0);
        let tag = libc::SYS_newfstatat as u32;
        assert_eq!(
            inputs.answer(&question, tag).map(|effect| effect.result),
            Some(-2)
        );
        inputs.expect(stat(0), by(3, 9));
        for _ in 0..2 {
            assert_eq!(
                inputs.answer(&question, tag).map(|effect| effect.result),
                Some(0)
            );
        }
        assert_eq!(inputs.answer(&asking(4, 0), tag), None);
    }
}
