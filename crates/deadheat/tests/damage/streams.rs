//! Schedules and inputs that say something else, in right form: decoded,
//! changed as what they are, encoded again with right checksums.

use crate::random::{Random, extreme};
use crate::{change, place};
use std::path::Path;
use vm::record::stream::{StreamReader, StreamWriter};
use vm::record::{
    Effect, Ending, InputReader, InputWriter, ProcessStatus, Step, StepReader, StepWriter,
};

/// What a stream holds.
pub fn contents(path: &Path) -> Vec<u8> {
    let mut stream = StreamReader::open(&place(path)).expect("a stream of ours");
    let mut bytes = Vec::new();
    while !stream.at_end().expect("a stream of ours") {
        bytes.push(stream.byte().expect("a stream of ours"));
    }
    bytes
}

pub fn write_contents(path: &Path, bytes: &[u8]) {
    std::fs::remove_file(path).expect("a file of ours");
    let mut writer = StreamWriter::create(&place(path)).expect("a folder of ours");
    writer.buffer().extend_from_slice(bytes);
    writer.finish().expect("a folder of ours");
}

fn steps(path: &Path) -> Vec<Step> {
    let mut reader = StepReader::open(&place(path)).expect("a schedule of ours");
    let mut steps = Vec::new();
    while let Some(step) = reader.next_step().expect("a schedule of ours") {
        steps.push(step);
    }
    steps
}

fn effects(path: &Path) -> Vec<Effect> {
    let mut reader = InputReader::open(&place(path)).expect("inputs of ours");
    let mut effects = Vec::new();
    while !reader.at_end().expect("inputs of ours") {
        effects.push(reader.next_effect().expect("inputs of ours"));
    }
    effects
}

/// Changes the schedule at `path`; `donor` is one of another recording. Says
/// how.
pub fn change_schedule(path: &Path, donor: &Path, random: &mut Random) -> String {
    if random.one_in(5) {
        return change_bytes(path, random);
    }
    let mut all = steps(path);
    let how = match random.below(3) {
        0 => rearrange(&mut all, || steps(donor), random),
        _ => {
            let at = random.below(all.len());
            let before = all[at].to_string();
            change_step(&mut all[at], random);
            format!("step {at}, `{before}`, is now `{}`", all[at])
        }
    };
    std::fs::remove_file(path).expect("a file of ours");
    let mut writer = StepWriter::create(&place(path)).expect("a folder of ours");
    for step in &all {
        writer.push(step).expect("a folder of ours");
    }
    writer.finish().expect("a folder of ours");
    how
}

fn change_step(step: &mut Step, random: &mut Random) {
    let signals: [i32; 12] = [0, 1, 9, 10, 11, 17, 19, 20, 64, 65, -1, i32::MAX];
    match step {
        Step::Slice {
            thread,
            instructions,
            ..
        } => match random.below(3) {
            0 => *thread = extreme(random, u64::from(*thread)) as u32,
            _ => *instructions = extreme(random, *instructions),
        },
        Step::Checkpoint(check) => match random.below(3) {
            0 if !check.threads.is_empty() => {
                let one = *random.of(&check.threads);
                check.threads.push(one);
            }
            1 => check.threads.clear(),
            _ if !check.changed.is_empty() => {
                // Any later one has a larger address, or none is later.
                let last = check.changed.len() - 1;
                check.changed[last].address = !4095;
            }
            _ => {}
        },
        Step::Advance(nanoseconds) => *nanoseconds = extreme(random, *nanoseconds),
        Step::Signal { thread, info } => match random.below(3) {
            0 => *thread = extreme(random, u64::from(*thread)) as u32,
            1 => {
                change(info, random);
            }
            _ => info.resize(random.below(300), 0xff),
        },
        Step::Memory => *step = Step::Advance(extreme(random, 1)),
        Step::End(Ending { status, state }) => match random.below(4) {
            0 => *state = extreme(random, *state),
            1 => *status = ProcessStatus::Exited(extreme(random, 0) as i32),
            _ => *status = ProcessStatus::Killed(*random.of(&signals)),
        },
    }
}

/// Changes the inputs at `path`; `donor` are those of another recording. Says
/// how.
pub fn change_inputs(path: &Path, donor: &Path, random: &mut Random) -> String {
    if random.one_in(5) {
        return change_bytes(path, random);
    }
    let mut all = effects(path);
    let how = match random.below(3) {
        0 => rearrange(&mut all, || effects(donor), random),
        _ if all.is_empty() => String::from("nothing changed"),
        _ => {
            let at = random.below(all.len());
            let before = all[at].to_string();
            let how = change_effect(&mut all[at], random);
            format!("input {at}, `{before}`, is now `{}`{how}", all[at])
        }
    };
    std::fs::remove_file(path).expect("a file of ours");
    let mut writer = InputWriter::create(&place(path)).expect("a folder of ours");
    for effect in &all {
        writer.push(effect).expect("a folder of ours");
    }
    writer.finish().expect("a folder of ours");
    how
}

fn change_effect(effect: &mut Effect, random: &mut Random) -> String {
    let writes = effect.writes.len();
    match random.below(6) {
        0 => {
            effect.tag = match random.one_in(2) {
                true => random.below(500) as u32,
                false => extreme(random, u64::from(effect.tag)) as u32,
            }
        }
        1 => effect.result = extreme(random, effect.result as u64) as i64,
        2 => {
            effect.writes.pop();
            return format!(", the last of {writes} writes gone");
        }
        _ if writes == 0 => effect.result = -(random.below(140) as i64),
        3 => {
            let write = random.below(writes);
            let address = extreme(random, effect.writes[write].0);
            effect.writes[write].0 = address;
            return format!(", write {write} at {address:#x}");
        }
        4 => {
            let write = random.below(writes);
            let long = 1 << random.below(23);
            effect.writes[write].1.resize(long, random.next() as u8);
            return format!(", write {write} has {long} bytes");
        }
        _ => {
            let write = random.below(writes);
            let how = change(&mut effect.writes[write].1, random);
            return format!(", write {write}: {how}");
        }
    }
    String::new()
}

/// Leaves entries out, repeats and swaps them, goes on with those of another
/// recording. Says how.
fn rearrange<T: Clone>(
    all: &mut Vec<T>,
    donor: impl FnOnce() -> Vec<T>,
    random: &mut Random,
) -> String {
    let (at, other) = (random.below(all.len()), random.below(all.len()));
    match random.below(6) {
        _ if all.is_empty() => {
            *all = donor();
            "the entries of another recording".to_string()
        }
        0 => {
            all.remove(at);
            format!("entry {at} is gone")
        }
        1 => {
            all.swap(at, other);
            format!("entries {at} and {other} swapped")
        }
        2 => {
            let times = 1 + random.below(3) * random.below(2000);
            let copies = vec![all[at].clone(); times];
            all.splice(at..at, copies);
            format!("entry {at} {times} times more")
        }
        3 => {
            all.truncate(at);
            format!("ended after {at} entries")
        }
        4 => {
            let donor = donor();
            let from = random.below(donor.len());
            all.truncate(at);
            all.extend_from_slice(&donor[from..]);
            format!("after {at} entries those of another recording from {from} on")
        }
        _ => {
            let donor = donor();
            let from = random.below(donor.len());
            let end = (from + 1 + random.below(5)).min(donor.len());
            all.splice(at..at, donor[from..end].to_vec());
            format!("before entry {at} those of another recording, {from}..{end}")
        }
    }
}

/// Below the entries: bytes, and the chunks that they are packed in.
fn change_bytes(path: &Path, random: &mut Random) -> String {
    if random.one_in(4) {
        return change_chunks(path, random);
    }
    let mut bytes = contents(path);
    let how = match random.below(3) {
        // A length or a count of seven bits a byte, as large as can be.
        0 => {
            let at = random.below(bytes.len());
            let mut number = Vec::new();
            let most = u64::MAX >> random.below(40);
            let value = extreme(random, most);
            vm::record::stream::put_number(&mut number, value);
            bytes.splice(at..(at + 1).min(bytes.len()), number);
            format!("byte {at} is now the number {value:#x}")
        }
        _ => change(&mut bytes, random),
    };
    write_contents(path, &bytes);
    format!("inside: {how}")
}

/// A chunk with a right header around bytes that unpack to very many.
fn change_chunks(path: &Path, random: &mut Random) -> String {
    let mut file = std::fs::read(path).expect("a file of ours");
    let plain = 1usize << (20 + random.below(11));
    let stored = match random.below(3) {
        0 => vec![random.next() as u8; random.below(64)],
        _ => zeros(plain),
    };
    file.truncate(8);
    file.extend_from_slice(&header(*b"chnk", &stored, plain as u32));
    file.extend_from_slice(&stored);
    std::fs::write(path, file).expect("a file of ours");
    format!("a chunk of {} bytes for {plain}", stored.len())
}

/// A block of LZ4 that unpacks to this many zeros: one literal and a match at
/// distance one, then five literals.
fn zeros(plain: usize) -> Vec<u8> {
    let mut block = vec![0x1f, 0, 1, 0];
    let mut rest = plain - 1 - 5 - 4 - 15;
    while rest >= 255 {
        block.push(255);
        rest -= 255;
    }
    block.push(rest as u8);
    block.extend_from_slice(&[0x50, 0, 0, 0, 0, 0]);
    block
}

/// As `StreamWriter` writes it.
fn header(mark: [u8; 4], stored: &[u8], plain: u32) -> Vec<u8> {
    use xxhash_rust::xxh3::xxh3_64;
    let mut header = mark.to_vec();
    header.extend_from_slice(&(stored.len() as u32).to_le_bytes());
    header.extend_from_slice(&plain.to_le_bytes());
    let check = xxh3_64(&header) as u32;
    header.extend_from_slice(&check.to_le_bytes());
    header.extend_from_slice(&xxh3_64(stored).to_le_bytes());
    header
}
