//! Penalize: each part alone and all together, drafts counted by the rows after them, masks bit by bit.

use deltic::backend::Op;
use deltic::base::DType;

use crate::common::cases::{SPARE_ROWS, slots};
use crate::common::matrix::{Grid, Matrix, Random};
use crate::common::rig::Rig;
use crate::common::step::{Sampling, Sequence, Step};
use crate::common::target::Suite;

const PROMPT: u32 = 1 << 31;

/// Sets what one sequence asks for.
type Ask = fn(&mut Sequence);

const PARTS: [(&str, Ask); 7] = [
    ("bias", |s| s.biases = vec![(3, 2.5), (0, -100.0), (36, 0.125)]),
    ("repetition", |s| s.sampling.repetition = 1.3),
    ("repetition_below_1", |s| s.sampling.repetition = 0.7),
    ("presence", |s| s.sampling.presence = 0.9),
    ("frequency", |s| s.sampling.frequency = 0.35),
    ("negative", |s| (s.sampling.presence, s.sampling.frequency) = (-0.5, -0.25)),
    ("mask", |s| s.mask_rows = vec![2, u32::MAX, 0, 3]),
];

pub fn add(suite: &mut Suite) {
    suite.add("penalize", "all_off_is_a_copy", |rig| run(rig, &[|_| {}, |_| {}], 37, 37));
    for (name, ask) in PARTS {
        suite.add("penalize", format!("{name}_alone"), move |rig| run(rig, &[ask], 37, 37));
        suite
            .add("penalize", format!("{name}_beside_one_without"), move |rig| run(rig, &[|_| {}, ask, |_| {}], 70, 65));
    }
    for (name, vocabulary, live) in [("32", 32, 32), ("33", 33, 33), ("257_of_300", 300, 257)] {
        suite.add("penalize", format!("all_together_{name}"), move |rig| {
            run(rig, &[everything, |_| {}, everything, PARTS[0].1], vocabulary, live);
        });
    }
    suite.add("penalize", "all_together_real", |rig| run(rig, &[everything, |_| {}], 248_320, 248_077));
}

fn everything(sequence: &mut Sequence) {
    sequence.sampling = Sampling { repetition: 1.2, presence: 0.4, frequency: 0.15, ..Sampling::default() };
    sequence.biases = vec![(5, -1.5), (30, 4.0)];
    sequence.mask_rows = vec![1, 0, 3, 2];
}

/// Sequence i has i % 4 drafts; the drafts repeat each other and tokens counted before.
fn step_of(asks: &[Ask]) -> Step {
    let sequence = |(index, ask): (usize, &Ask)| {
        let mut sequence = Sequence::sampling(2 * index as u32, 1, (index as u32 + 3) % 4);
        let drafts = [9, 4, 4, 7];
        sequence.tokens.iter_mut().zip(drafts).for_each(|(token, draft)| *token = draft);
        ask(&mut sequence);
        sequence
    };
    // One that does not sample comes first, so that a logit row is neither its row nor its sequence.
    let prefill = Sequence::new(1, 3, 0);
    Step::new(std::iter::once(prefill).chain(asks.iter().enumerate().map(sequence)).collect())
}

/// The scores of logit row `ahead` of a sequence: that many drafts count as output.
fn formula(logits: &[f64], sequence: &Sequence, ahead: usize, counts: &[u32], masks: &Matrix) -> Vec<Option<f64>> {
    let Sampling { repetition, presence, frequency, .. } = sequence.sampling;
    let drafts = &sequence.tokens[1..=ahead];
    let score = |token: usize| {
        let biases = sequence.biases.iter().filter(|(biased, _)| *biased as usize == token);
        let mut score = logits[token] + biases.map(|(_, bias)| f64::from(*bias)).sum::<f64>();
        let outputs =
            (counts[token] & !PROMPT) + drafts.iter().filter(|draft| **draft as usize == token).count() as u32;
        if outputs > 0 || counts[token] & PROMPT != 0 {
            let factor = f64::from(repetition);
            score = if score > 0.0 { score / factor } else { score * factor };
        }
        if outputs > 0 {
            score -= f64::from(presence) + f64::from(frequency) * f64::from(outputs);
        }
        let mask = sequence.mask_rows.get(ahead).copied().unwrap_or(u32::MAX);
        let allowed = mask == u32::MAX || masks.word(mask as usize, token / 32) >> (token % 32) & 1 == 1;
        allowed.then_some(score)
    };
    (0..logits.len()).map(score).collect()
}

fn run(rig: &mut Rig, asks: &[Ask], vocabulary: usize, live: usize) {
    let step = step_of(asks);
    let rows = step.logit_rows();
    let mut random = Random::new(3);
    let live_logits = Matrix::from_fn(DType::F32, rows, live, |_, _| 6.0 * random.symmetric());
    let count_values = Matrix::words(slots(&step), vocabulary, |_, _| match random.below(6) {
        0 => PROMPT,
        1 => PROMPT | 2,
        2 => 1,
        3 => 7,
        _ => 0,
    });
    let mask_values = Matrix::words(4, vocabulary.div_ceil(32), |_, _| random.bits() as u32);
    let logits = rig.put("logits", &live_logits.clone().widened(vocabulary).padded(rows + SPARE_ROWS));
    let counts = rig.put("counts", &count_values);
    let masks = rig.put("masks", &mask_values);
    let scores = rig.blank("scores", DType::F32, rows + SPARE_ROWS, vocabulary);
    let inputs = rig.step(&step);
    rig.run(inputs, &[Op::Penalize { logits, counts, masks, scores, vocab_live: live as u32 }]);
    let found = rig.get(scores).rows(0..rows).cols(0..live);
    let found_counts = rig.get(counts);
    rig.same("counts", &found_counts, &count_values);
    for (index, sequence) in step.sequences.iter().enumerate() {
        let slot = sequence.slot as usize;
        let slot_counts = count_values.rows(slot..slot + 1).bits;
        for ahead in 0..sequence.logit_rows() as usize {
            let row = step.first_logit_row(index) + ahead;
            let logits = live_logits.rows(row..row + 1);
            let wanted = formula(logits.grid().row(0), sequence, ahead, &slot_counts, &mask_values);
            expect_row(rig, &format!("scores of row {row}"), &found.rows(row..row + 1), &wanted);
            if sequence.sampling.repetition == 1.0 && sequence.biases.is_empty() && sequence.mask_rows.is_empty() {
                let off = sequence.sampling.presence == 0.0 && sequence.sampling.frequency == 0.0;
                assert!(!off || found.rows(row..row + 1) == logits, "row {row} has nothing to penalize, yet changed");
            }
        }
    }
}

/// Masked tokens are exactly -inf; the others are near.
fn expect_row(rig: &mut Rig, what: &str, found: &Matrix, wanted: &[Option<f64>]) {
    let mut kept = Matrix { cols: 0, bits: Vec::new(), ..*found };
    for (token, wanted) in wanted.iter().enumerate() {
        if wanted.is_some() {
            kept.bits.push(found.word(0, token));
            kept.cols += 1;
        } else {
            assert_eq!(found.at(0, token), f64::NEG_INFINITY, "{what}: token {token} is masked");
        }
    }
    let cells: Vec<f64> = wanted.iter().copied().flatten().collect();
    rig.near(what, &kept, || Grid { rows: 1, cols: cells.len(), cells });
}
