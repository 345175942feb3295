//! One answer of everything that was looked at (paper 003, section 4.6).

use crate::compare::OutputDifference;
use crate::consequence::Finding;
use crate::names::own_frame;
use crate::point::Barrier;
use crate::run::Ending;
use crate::volatile::LeftOut;
use crate::witness::{Play, Witness};
use crate::{Looked, Outcome, Pair, Schedule};
use race::{Consequence, Difference, DifferenceKind, ErrorFinding, Order, Verdict, labels};
use std::collections::BTreeSet;

/// What a race can do, as far as was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conclusion {
    pub verdict: Verdict,
    pub consequence: Option<Consequence>,
    /// Pairs of executions behind the verdict.
    pub k: u32,
    /// Primaries, and schedules per primary.
    pub paths: u32,
    pub schedules: u32,
    pub explanation: String,
    pub differences: Vec<Difference>,
    pub orders: Vec<Order>,
    pub labels: Vec<String>,
    /// Rules of memory and invariants that one order breaks.
    pub errors: Vec<ErrorFinding>,
    /// Those that both orders break.
    pub common_errors: Vec<ErrorFinding>,
    /// Counts of what the pairs showed, in words.
    pub counts: String,
    /// How to see it again.
    pub witness: Option<Witness>,
}

/// The answer for one race; none if nothing was looked at.
pub fn conclude(looked: &[Looked]) -> Option<Conclusion> {
    let mut conclusion = answer(looked)?;
    let pairs = || looked.iter().flat_map(|looked| &looked.pairs);
    for error in pairs().flat_map(|pair| &pair.common_errors) {
        add(&mut conclusion.common_errors, error);
    }
    let left_out: BTreeSet<LeftOut> = pairs().flat_map(|pair| pair.left_out.clone()).collect();
    if matches!(
        conclusion.verdict,
        Verdict::KWitnessHarmless | Verdict::OutputDiffers
    ) {
        for what in left_out {
            let sentence = format!("; {}", what.describe());
            conclusion.explanation.push_str(&sentence);
        }
    }
    for mixed in looked.iter().flat_map(|looked| &looked.mixed) {
        if !conclusion.labels.contains(&mixed.label) {
            conclusion.labels.push(mixed.label.clone());
            conclusion
                .explanation
                .push_str(&format!("; {}", mixed.text));
        }
    }
    Some(conclusion)
}

/// The same error in several executions is told once.
fn add(errors: &mut Vec<ErrorFinding>, error: &Finding) {
    let reported = error.reported();
    let known = errors
        .iter()
        .any(|known| known.kind == reported.kind && known.text == reported.text);
    if !known {
        errors.push(reported);
    }
}

fn answer(looked: &[Looked]) -> Option<Conclusion> {
    if looked.is_empty() {
        return None;
    }
    let pairs: Vec<(&Looked, &Pair)> = looked
        .iter()
        .flat_map(|looked| looked.pairs.iter().map(move |pair| (looked, pair)))
        .collect();
    let equal = looked.iter().filter(|looked| looked.equal_states).count() as u32;
    let count = |wanted: fn(&Outcome) -> bool| {
        pairs
            .iter()
            .filter(|(_, pair)| wanted(&pair.outcome))
            .count() as u32
    };
    let same = count(|outcome| *outcome == Outcome::Same);
    let violations = count(|outcome| matches!(outcome, Outcome::Violation { .. }));
    let outputs = count(|outcome| matches!(outcome, Outcome::Output(_)));
    let open = count(|outcome| matches!(outcome, Outcome::Inconclusive(_)));
    let elsewhere = count(|outcome| matches!(outcome, Outcome::Elsewhere(_)));
    let mut conclusion = Conclusion {
        verdict: Verdict::Unclassified,
        consequence: None,
        k: pairs.len() as u32,
        paths: looked
            .iter()
            .filter(|looked| looked.poised.is_some())
            .count() as u32,
        schedules: looked
            .iter()
            .map(|looked| looked.pairs.len() as u32)
            .max()
            .unwrap_or(0),
        explanation: String::new(),
        differences: Vec::new(),
        orders: Vec::new(),
        labels: Vec::new(),
        errors: Vec::new(),
        common_errors: Vec::new(),
        counts: format!(
            "{} pairs of executions: {violations} violate a specification in one order only, \
             {outputs} differ in output, {same} do not differ, {open} did not end",
            pairs.len()
        ),
        witness: None,
    };
    if elsewhere > 0 {
        conclusion.counts.push_str(&format!(
            "; {elsewhere} differ because something else came out the other way round"
        ));
    }
    if equal > 0 {
        conclusion.counts.push_str(&format!(
            "; in {equal} of {} occurrences both orders leave the same state",
            looked.len()
        ));
    }
    if depends_on_schedule(looked) {
        conclusion
            .labels
            .push(labels::SCHEDULE_DEPENDENT_OUTPUT.to_string());
    }
    if let Some((looked, ending)) = looked.iter().find_map(|looked| match &looked.barrier {
        Some(Barrier::Violates(ending)) => Some((looked, ending)),
        _ => None,
    }) {
        conclusion.verdict = Verdict::SpecViolated;
        conclusion.consequence = ending.violation();
        conclusion.explanation = format!(
            "with the first access held back for a while, the program {}",
            ending.describe()
        );
        conclusion.witness = Some(Witness::held(looked, ending));
        return Some(conclusion);
    }
    let violation = pairs.iter().find_map(|(looked, pair)| match &pair.outcome {
        Outcome::Violation { swapped, ending } => Some((*looked, *pair, *swapped, ending)),
        _ => None,
    });
    if let Some((looked, pair, swapped, ending)) = violation {
        violated(&mut conclusion, looked, pair, swapped, ending);
        return Some(conclusion);
    }
    let differing = pairs.iter().find_map(|(looked, pair)| match &pair.outcome {
        Outcome::Output(difference) if counts(looked, difference) => {
            Some((*looked, *pair, difference.as_ref()))
        }
        _ => None,
    });
    if let Some((looked, pair, difference)) = differing {
        output_differs(&mut conclusion, looked, pair, difference);
        return Some(conclusion);
    }
    if same > 0 || outputs > 0 || elsewhere > 0 {
        conclusion.verdict = Verdict::KWitnessHarmless;
        conclusion.k = same + outputs + elsewhere;
        conclusion.explanation = if outputs > 0 {
            "the two orders print the same lines in an order that the schedule decides, not the \
             race"
                .to_string()
        } else {
            "whichever access comes first, nothing that can be seen from outside changes"
                .to_string()
        };
        let other = pairs.iter().find_map(|(_, pair)| match &pair.outcome {
            Outcome::Elsewhere(what) => Some(what),
            _ => None,
        });
        let label = labels::SCHEDULE_DEPENDENT_OUTPUT.to_string();
        if other.is_some() && !conclusion.labels.contains(&label) {
            conclusion.labels.push(label);
        }
        if let Some(what) = other {
            conclusion.explanation.push_str(&format!(
                "; in {elsewhere} of {} pairs {what}, but not when all other races go as before: \
                 that is the doing of another race or of the schedule",
                pairs.len()
            ));
        }
        let violating: Vec<&String> = pairs
            .iter()
            .filter_map(|(_, pair)| pair.both_violate.as_ref())
            .collect();
        if let Some(what) = violating.first() {
            conclusion.explanation.push_str(&format!(
                "; in {} of {} pairs the program {what} in both orders, so that is decided \
                 elsewhere",
                violating.len(),
                pairs.len()
            ));
        }
        return Some(conclusion);
    }
    let ordered = looked.iter().find_map(|looked| match &looked.barrier {
        Some(Barrier::Ordered(why)) => Some(why),
        _ => None,
    });
    if let Some(why) = ordered {
        conclusion.verdict = Verdict::SingleOrdering;
        conclusion.labels.push(labels::AD_HOC_SYNC.to_string());
        conclusion.explanation = format!("the second access cannot come first: {why}");
        // No pair was run: each occurrence was tried in the other order once.
        let tried = looked
            .iter()
            .filter(|looked| matches!(looked.barrier, Some(Barrier::Ordered(_))))
            .count() as u32;
        conclusion.k = tried;
        conclusion.paths = tried;
        conclusion.schedules = 1;
        conclusion.counts = format!(
            "in {tried} of {} occurrences the second access did not come while the first was held \
             back; no pair of executions was run",
            looked.len()
        );
        return Some(conclusion);
    }
    conclusion.explanation = looked
        .iter()
        .find_map(|looked| match (&looked.barrier, &looked.failed) {
            (Some(Barrier::Unknown(why)), _) | (_, Some(why)) => Some(why.clone()),
            _ => None,
        })
        .or_else(|| {
            pairs.iter().find_map(|(_, pair)| match &pair.outcome {
                Outcome::Inconclusive(why) => Some(format!("no pair ended: the program {why}")),
                _ => None,
            })
        })
        .unwrap_or_else(|| "nothing could be found out".to_string());
    Some(conclusion)
}

/// The same order under different schedules shows different things.
fn depends_on_schedule(looked: &[Looked]) -> bool {
    looked.iter().any(|looked| {
        let digests: BTreeSet<u64> = looked
            .pairs
            .iter()
            .filter(|pair| !matches!(pair.outcome, Outcome::Inconclusive(_)))
            .map(|pair| pair.digests[0])
            .collect();
        digests.len() > 1
    })
}

/// A difference counts, unless it is one of the order of lines in a program
/// whose lines come in any order anyway.
fn counts(looked: &Looked, difference: &OutputDifference) -> bool {
    !difference.permuted || !depends_on_schedule(std::slice::from_ref(looked))
}

fn order_words(swapped: bool) -> &'static str {
    if swapped {
        "with the accesses swapped"
    } else {
        "with the accesses in recorded order"
    }
}

/// How the race was reached and what followed.
fn schedule_words(looked: &Looked, pair: &Pair) -> String {
    match (looked.occurrence.before, pair.schedule) {
        (None, after) => after.to_string(),
        (Some(before), Schedule::Recorded) => before.to_string(),
        (Some(before), after) => format!("{before} up to the race, then {after}"),
    }
}

fn violated(
    conclusion: &mut Conclusion,
    looked: &Looked,
    pair: &Pair,
    swapped: bool,
    ending: &Ending,
) {
    conclusion.verdict = Verdict::SpecViolated;
    conclusion.consequence = ending.violation();
    conclusion.explanation = format!(
        "{}, the program {} ({}; in the other order it does not)",
        order_words(swapped),
        ending.describe(),
        schedule_words(looked, pair)
    );
    let mut ends = ["ends normally".to_string(), "ends normally".to_string()];
    ends[usize::from(swapped)] = ending.describe();
    let [recorded, swapped_end] = ends;
    let errors = &pair.errors[usize::from(swapped)];
    for error in errors {
        add(&mut conclusion.errors, error);
    }
    // What it broke before it ended is why, more often than not.
    if !matches!(ending, Ending::Erred(_))
        && let Some(error) = errors.first()
    {
        let before = format!("; before that it {}", error.describe());
        conclusion.explanation.push_str(&before);
    }
    let (kind, what) = match ending {
        Ending::Erred(finding) => (
            DifferenceKind::Memory,
            finding.kind.name().replace('-', " "),
        ),
        _ => (DifferenceKind::Exit, "end of the program".to_string()),
    };
    conclusion.differences.push(Difference {
        kind,
        what,
        at: own_frame(ending.stack()).cloned(),
        recorded,
        swapped: swapped_end,
    });
    conclusion.orders = pair.orders.clone();
    conclusion.witness = Some(Witness::of(
        looked,
        pair,
        Play::Order { swapped },
        ending.describe(),
    ));
}

fn output_differs(
    conclusion: &mut Conclusion,
    looked: &Looked,
    pair: &Pair,
    difference: &OutputDifference,
) {
    conclusion.verdict = Verdict::OutputDiffers;
    conclusion.consequence = Some(Consequence::Output);
    let at = own_frame(&difference.stacks[1])
        .or_else(|| own_frame(&difference.stacks[0]))
        .cloned();
    let place = at.as_ref().map_or_else(String::new, |frame| {
        format!("{}, ", crate::names::place(frame))
    });
    let what = if difference.name == "exit code" {
        format!(
            "the program ends with {} instead of {}",
            difference.swapped, difference.recorded
        )
    } else {
        format!(
            "the program writes {} instead of {} ({place}{})",
            difference.swapped, difference.recorded, difference.name
        )
    };
    conclusion.explanation = format!(
        "with the accesses swapped, {what}; {}",
        schedule_words(looked, pair)
    );
    if difference.speculative {
        conclusion
            .explanation
            .push_str("; speculative: input was read after the outputs had parted");
    }
    let kind = match (difference.name.as_str(), difference.file) {
        ("exit code", _) => DifferenceKind::Exit,
        (_, true) => DifferenceKind::File,
        _ => DifferenceKind::Output,
    };
    let what = match kind {
        DifferenceKind::Exit => difference.name.clone(),
        _ => format!("{} at byte {}", difference.name, difference.offset),
    };
    conclusion.differences.push(Difference {
        kind,
        what: what.clone(),
        at,
        recorded: difference.recorded.clone(),
        swapped: difference.swapped.clone(),
    });
    conclusion.orders = pair.orders.clone();
    conclusion.witness = Some(Witness::of(
        looked,
        pair,
        Play::Both,
        format!(
            "{what}: {} instead of {}",
            difference.swapped, difference.recorded
        ),
    ));
}
