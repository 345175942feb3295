//! Delta debugging: the fewest items under which something still happens.
//!
//! Zeller and Hildebrandt's ddmin over the switches of a schedule. Candidates
//! of one round are independent and are handed over together, so that they can
//! be tried at once, but each is made only when it is asked for: a schedule may
//! have a million switches; what was seen to happen replaces the list, and may be less
//! than the candidate (switches that a shorter list no longer comes to).
//! Guarantee, if it is not cut short: no single item can be taken out.

/// Tries candidates; the list that one of them came down to, if it still does
/// what it should.
pub type Try<'a, T> = dyn FnMut(&mut dyn Iterator<Item = Vec<T>>) -> Option<Vec<T>> + 'a;

/// The smallest list found.
pub fn minimise<T: Clone>(mut items: Vec<T>, attempt: &mut Try<T>) -> Vec<T> {
    if items.is_empty() {
        return items;
    }
    // What happens in the end is often decided in the end; and early switches
    // may hang together so that none of them can be taken out alone.
    let ends = |items: &[T]| -> Vec<Vec<T>> {
        let length = |step: usize| (1usize << (step / 2)) + (1 << (step / 2) >> 1) * (step % 2);
        (1..)
            .map(length)
            .take_while(|length| *length < items.len())
            .map(|length| items[items.len() - length..].to_vec())
            .collect()
    };
    if let Some(none) = attempt(&mut std::iter::once(Vec::new())) {
        return none;
    }
    while let Some(fewer) = attempt(&mut ends(&items).into_iter()) {
        if fewer.len() >= items.len() {
            break;
        }
        items = fewer;
    }
    let mut parts = 2;
    while !items.is_empty() {
        parts = parts.min(items.len());
        let size = items.len().div_ceil(parts);
        // Late parts first: what comes after the failure was made is often
        // most of it.
        let mut without = (0..items.len().div_ceil(size)).rev().map(|part| {
            let (begin, end) = (part * size, ((part + 1) * size).min(items.len()));
            [&items[..begin], &items[end..]].concat()
        });
        match attempt(&mut without) {
            Some(fewer) if fewer.len() < items.len() => {
                items = fewer;
                parts = (parts - 1).max(2);
            }
            _ if size == 1 => break,
            _ => parts *= 2,
        }
    }
    items
}

/// Lists with one item less of which another is exchanged for one of its
/// `alternatives`: where `minimise` stops, two items may stand for one that
/// was not in the list.
pub fn exchanged<T: Clone>(items: &[T], alternatives: impl Fn(&T) -> Vec<T>) -> Vec<Vec<T>> {
    let mut lists = Vec::new();
    for without in (0..items.len()).rev() {
        let rest: Vec<T> = items
            .iter()
            .enumerate()
            .filter(|(index, _)| *index != without)
            .map(|(_, item)| item.clone())
            .collect();
        for (index, item) in rest.iter().enumerate() {
            for other in alternatives(item) {
                let mut list = rest.clone();
                list[index] = other;
                lists.push(list);
            }
        }
    }
    lists
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needed(needs: &[u32], from: u32) -> (Vec<u32>, usize) {
        let mut tries = 0;
        let found = minimise((0..from).collect(), &mut |mut candidates| {
            Iterator::find(&mut candidates, |candidate| {
                tries += 1;
                needs.iter().all(|need| candidate.contains(need))
            })
        });
        (found, tries)
    }

    #[test]
    fn only_what_is_needed_is_left() {
        for needs in [&[][..], &[5], &[0, 999], &[17, 18, 500, 733]] {
            let (found, tries) = needed(needs, 1_000);
            assert_eq!(found, needs);
            assert!(tries < 450, "{tries} tries");
        }
    }

    #[test]
    fn one_is_taken_out_and_another_exchanged() {
        let lists = exchanged(&[1, 2, 3], |item| vec![item * 10]);
        assert_eq!(
            lists,
            [[10, 2], [1, 20], [10, 3], [1, 30], [20, 3], [2, 30]]
        );
        assert!(exchanged(&[1], |item| vec![*item]).is_empty());
    }

    /// The first half only works as a whole, and is not needed.
    #[test]
    fn what_hangs_together_goes_together() {
        let found = minimise((0..40).collect::<Vec<u32>>(), &mut |mut candidates| {
            Iterator::find(&mut candidates, |candidate| {
                let early = candidate.iter().filter(|item| **item < 20).count();
                (early == 0 || early == 20) && candidate.contains(&38) && candidate.contains(&39)
            })
        });
        assert_eq!(found, [38, 39]);
    }

    #[test]
    fn one_item_that_is_needed_stays() {
        assert_eq!(needed(&[0], 1).0, [0]);
    }

    #[test]
    fn nothing_that_happens_leaves_all() {
        assert_eq!(minimise(vec![1, 2, 3], &mut |_| None), [1, 2, 3]);
    }
}
