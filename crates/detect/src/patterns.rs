//! Patterns of harmless races, and what a label of them rests on (paper 000,
//! table 2; paper 002, section 3.3).
//!
//! What the two instructions do with the location is read from the code around
//! them (`symbols::usage`), what they did from the values of the instance shown. A
//! label never hides a race.

use crate::findings::Part;
use crate::history::Side;
use race::{Access, AccessKind, Evidence, Race, labels};
use symbols::Usage;

/// What each side made of the value, where it writes.
fn changes(accesses: &[Access; 2]) -> Vec<Change> {
    let number = |text: &Option<String>| {
        let text = text.as_deref()?;
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    };
    accesses
        .iter()
        .map(|access| {
            (access.kind == AccessKind::Write)
                .then(|| Some((number(&access.value_before)?, number(&access.value_after)?)))
                .flatten()
        })
        .collect()
}

/// Patterns of papers 000 (table 2) and 002 (section 3.3) that the instance
/// shown fits, each with what that rests on. A label never hides a race.
fn patterns(part: &Part<'_>, accesses: &[Access; 2]) -> Vec<(&'static str, &'static str)> {
    let (pair, sides) = (part.pair, part.sides);
    let mut found = Vec::new();
    let changes = changes(accesses);
    if changes
        .iter()
        .flatten()
        .any(|(before, after)| before == after)
    {
        found.push((
            labels::REDUNDANT_WRITE,
            "a write stored the value that was there already, in the instance shown",
        ));
    }
    if looks_at_other_bits(part, &changes) {
        found.push((
            labels::DISJOINT_BITS,
            "the read tests other bits than the write changes; nobody else's bits are lost as long as this is the only writer",
        ));
    }
    if let [Some(one), Some(other)] = changes[..] {
        let grows = |(before, after): (u64, u64)| after > before && after - before <= 4096;
        if part.usages == [Usage::Increment; 2]
            && grows(one)
            && grows(other)
            && sides[0].size == sides[1].size
        {
            found.push((
                labels::STATISTICS_COUNTER,
                "both sides add to what they have read, and only made the value a little larger, in the instance shown; a reference count would also shrink",
            ));
        }
        let counts = matches!(
            part.usages,
            [Usage::Increment, Usage::Decrement] | [Usage::Decrement, Usage::Increment]
        );
        let step = |(before, after): (u64, u64)| after.wrapping_sub(before) as i64;
        if counts && step(one).abs() == 1 && step(one) == -step(other) {
            found.push((
                labels::REFERENCE_COUNT,
                "one write added one and the other took one away, in the instance shown: what a reference count does, and a lost update then frees too early or never",
            ));
        }
    }
    let unlocked_check = |read: &Side, write: &Side| {
        read.kind == AccessKind::Read
            && !read.atomic
            && read.decides
            && read.held.is_empty()
            && write.kind == AccessKind::Write
            && !write.held.is_empty()
    };
    let [first, second] = sides;
    if unlocked_check(first, second) || unlocked_check(second, first) {
        found.push((
            labels::DOUBLE_CHECK,
            "the read decides a branch without a lock, the write holds one: the first look of a double check, which needs an acquire load and a release store",
        ));
    }
    if pair.ad_hoc == pair.count() {
        found.push((
            labels::AD_HOC_SYNC,
            "ordered only by rule 5: in every instance seen, a spin on a plain variable came between the accesses, which the language does not count as order",
        ));
    } else if sides
        .iter()
        .any(|side| side.spins && side.kind == AccessKind::Read && !side.atomic)
    {
        found.push((
            labels::AD_HOC_SYNC,
            "the read is in a loop that ends when the value changes: it orders the threads in fact, not by the rules of the language",
        ));
    }
    found
}

/// Before and after, of a side that writes.
type Change = Option<(u64, u64)>;

/// A reader that looks at other bits than the writer changes (paper 002, section
/// 3.3). Two writers are never safe: each writes the other's bits back as they
/// were.
fn looks_at_other_bits(part: &Part<'_>, changes: &[Change]) -> bool {
    let (reader, writer) = match part.usages {
        [Usage::TestsBits(_), Usage::UpdatesBits(_)] => (0, 1),
        [Usage::UpdatesBits(_), Usage::TestsBits(_)] => (1, 0),
        _ => return false,
    };
    let (Usage::TestsBits(tested), Usage::UpdatesBits(updated)) =
        (part.usages[reader], part.usages[writer])
    else {
        return false;
    };
    let first = part.sides[0].address.min(part.sides[1].address);
    let in_word = |side: usize, bits: u64| {
        let bytes = u32::try_from(part.sides[side].address - first).ok()?;
        // What lies beyond the word is in doubt.
        let shift = bytes
            .checked_mul(8)
            .filter(|shift| bits.leading_zeros() >= *shift)?;
        bits.checked_shl(shift)
    };
    let changed = changes[writer].map_or(u64::MAX, |(before, after)| before ^ after);
    part.sides[reader].kind == AccessKind::Read
        && in_word(reader, tested)
            .zip(in_word(writer, updated | changed))
            .is_some_and(|(tested, updated)| tested & updated == 0)
}

/// Two writers of different bits of one word: paper 002, figure 1.
fn share_a_word(part: &Part<'_>, changes: &[Change]) -> bool {
    let [Some(one), Some(other)] = changes else {
        return false;
    };
    let same_bytes = part.sides[0].address == part.sides[1].address;
    let (first, second) = (one.0 ^ one.1, other.0 ^ other.1);
    let updates = |usage: &Usage| matches!(usage, Usage::UpdatesBits(_));
    same_bytes
        && first != 0
        && second != 0
        && first & second == 0
        && part.usages.iter().any(updates)
}

pub(crate) fn label(race: &mut Race, part: &Part<'_>) {
    if share_a_word(part, &changes(&race.accesses)) {
        race.evidence.push(Evidence {
            id: race.evidence.len() as u32 + 1,
            text: "both write different bits of one word, in the instance shown: each writes \
                   the other's bits back as it has read them, and so loses what the other wrote"
                .into(),
            instance: part.instances.first().copied(),
            replay: None,
        });
    }
    for (label, reason) in patterns(part, &race.accesses) {
        race.labels.push(label.to_string());
        race.evidence.push(Evidence {
            id: race.evidence.len() as u32 + 1,
            text: format!("{label}: {reason}"),
            instance: part.instances.first().copied(),
            replay: None,
        });
    }
}
