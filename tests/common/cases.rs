//! Lists that several ops run through: types, and steps in which the live rows of a row set differ from all other
//! counts, so that an op that takes the wrong count shows.

use deltic::backend::{DeltaShape, RowSet, Tensor};
use deltic::base::DType;

use super::matrix::{Matrix, POISON};
use super::rig::Rig;
use super::step::{Sequence, Step};

pub const FLOATS: [DType; 2] = [DType::F32, DType::Bf16];

/// Rows that a tensor holds beyond the live ones.
pub const SPARE_ROWS: usize = 2;

/// Which rows a case runs over, without the tensors that go with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    Target,
    Upkeep,
    Logits,
    Drafts { pass: u32 },
    Resumes,
}

pub const ROW_SETS: [Rows; 5] = [Rows::Target, Rows::Upkeep, Rows::Logits, Rows::Drafts { pass: 2 }, Rows::Resumes];

impl Rows {
    pub fn name(self) -> &'static str {
        match self {
            Rows::Target => "target",
            Rows::Upkeep => "upkeep",
            Rows::Logits => "logits",
            Rows::Drafts { .. } => "drafts",
            Rows::Resumes => "resumes",
        }
    }

    /// A step with exactly `live` rows of this kind.
    pub fn step(self, live: usize) -> Step {
        let sequences = match self {
            Rows::Target | Rows::Upkeep => vec![Sequence::new(0, live as u32, 0)],
            Rows::Logits => {
                // Five rows more than logit rows; fewer draft rows where drafts fit.
                let drafts = if live >= 3 { 2 } else { 0 };
                let mut sequences = vec![Sequence::new(0, 5, 0), Sequence::sampling(1, 1, drafts)];
                sequences.extend((1 + drafts as usize..live).map(|at| Sequence::sampling(at as u32 + 1, 1, 0)));
                sequences
            }
            Rows::Drafts { .. } => {
                let mut sequences = vec![Sequence::new(0, 4, 0)];
                sequences.extend((0..live).map(|at| Sequence::sampling(at as u32 + 1, 1, 1)));
                sequences
            }
            Rows::Resumes => {
                let mut sequences = vec![Sequence::new(0, 4, 0)];
                sequences.extend((0..live).map(|at| {
                    let mut sequence = Sequence::sampling(at as u32 + 1, 1, 1);
                    (sequence.resume, sequence.tokens) = (true, vec![at as u32, POISON]);
                    sequence
                }));
                sequences
            }
        };
        Step::new(sequences)
    }

    /// The row set itself; `verdict` is made where it takes one.
    pub fn set(self, rig: &mut Rig, verdict: &Matrix) -> RowSet {
        match self {
            Rows::Target => RowSet::Target,
            Rows::Upkeep => RowSet::Upkeep,
            Rows::Logits => RowSet::Logits,
            Rows::Drafts { pass } => RowSet::Drafts { pass, verdict: rig.put("verdict", verdict) },
            Rows::Resumes => RowSet::Resumes,
        }
    }

    /// The row set for ops that do not look at positions: the verdict is poison.
    pub fn set_without_positions(self, rig: &mut Rig, bucket: usize) -> RowSet {
        self.set(rig, &Matrix::blank(DType::U32, bucket, 4))
    }
}

/// The rows of a tensor as the program for this bucket sees it.
pub fn bucket(live: usize) -> usize {
    live + SPARE_ROWS
}

/// Compares the live rows with a formula.
pub fn near_live(rig: &mut Rig, what: &str, out: Tensor, live: usize, expected: impl FnOnce() -> super::matrix::Grid) {
    let found = rig.get(out).rows(0..live);
    rig.near(what, &found, expected);
}

/// A step for the ops of attention, and which entry of the cache each of its rows is.
pub struct Entries {
    pub step: Step,
    pub verdict: Matrix,
    /// (sequence, entry) of every live row.
    pub rows: Vec<(usize, u32)>,
}

/// A chunk, a decode with two drafts, a sequence that has just begun and one that does not sample, at positions around
/// `context`. In draft passes the rows are those of the verdicts, which here accept all, one or none of the drafts.
pub fn entries(rows: Rows, context: u32) -> Entries {
    let mut chunk = Sequence::sampling(0, 5, 0);
    chunk.position = context / 2;
    let mut decode = Sequence::sampling(1, 1, 2);
    decode.position = context;
    let begun = Sequence::sampling(2, 1, 0);
    let mut prefill = Sequence::new(3, 2, 0);
    prefill.position = context / 3;
    if rows == Rows::Resumes {
        (decode.resume, prefill.resume) = (true, true);
    }
    let step = Step::new(vec![prefill, chunk, decode, begun]);
    let next_positions = [context / 2 + 5, context + 2, 1];
    let mut verdict = Matrix::blank(DType::U32, bucket(next_positions.len()), 4);
    for (row, position) in next_positions.iter().enumerate() {
        verdict.bits[4 * row + 3] = *position;
    }
    let places = step.places().into_iter();
    let rows = match rows {
        Rows::Target => places.collect(),
        Rows::Upkeep => places.map(|(sequence, position)| (sequence, position + 1)).collect(),
        Rows::Drafts { pass } => (0..3).map(|row| (row + 1, next_positions[row] + pass - 1)).collect(),
        Rows::Resumes => vec![(0, context / 3), (2, context)],
        Rows::Logits => panic!("rows for the head have no entries"),
    };
    Entries { step, verdict, rows }
}

/// The row sets that have entries in a cache.
pub const ENTRY_SETS: [Rows; 5] =
    [Rows::Target, Rows::Upkeep, Rows::Drafts { pass: 1 }, Rows::Drafts { pass: 3 }, Rows::Resumes];

impl Rows {
    /// A name that tells draft passes apart.
    pub fn full_name(self) -> String {
        match self {
            Rows::Drafts { pass } => format!("drafts_pass{pass}"),
            other => other.name().to_owned(),
        }
    }
}

/// (drafts, pending, parity, slot) of sequences that take one committed row each.
pub type Stepping = &'static [(u32, u32, u32, u32)];

/// Steps for DeltaStep and ConvStep; drafts and pending go up to 3.
pub const STEPPING: [(&str, Stepping); 7] = [
    ("rows1", &[(0, 0, 0, 0)]),
    ("rows2_drafts1", &[(1, 0, 1, 1)]),
    ("rows3_drafts2", &[(2, 0, 0, 2)]),
    ("pending1", &[(0, 1, 0, 1)]),
    ("pending3_drafts3", &[(3, 3, 1, 0)]),
    ("sequences5", &[(0, 0, 1, 4), (3, 1, 0, 0), (1, 3, 1, 6), (2, 2, 0, 3), (0, 3, 0, 2)]),
    (
        "sequences9",
        &[
            (0, 0, 0, 8),
            (0, 1, 0, 1),
            (1, 0, 1, 2),
            (2, 0, 0, 9),
            (0, 2, 1, 4),
            (3, 1, 1, 5),
            (0, 0, 1, 0),
            (1, 1, 0, 7),
            (0, 3, 0, 3),
        ],
    ),
];

pub fn stepping(list: Stepping) -> Step {
    let sequence = |&(drafts, pending, parity, slot): &(u32, u32, u32, u32)| {
        let new = Sequence::sampling(slot, 1, drafts);
        Sequence { parity, pending, ..new }
    };
    Step::new(list.iter().map(sequence).collect())
}

/// Slots of the tensors: one more than the highest in use, so that there is one that nobody may touch.
pub fn slots(step: &Step) -> usize {
    let in_sequences = step.sequences.iter().map(|sequence| sequence.slot);
    let in_folds = step.folds.iter().map(|(slot, ..)| *slot);
    in_sequences.chain(in_folds).max().expect("a step with slots") as usize + 2
}

pub const fn delta_shape(key_heads: u32, value_heads: u32, key_dim: u32, value_dim: u32) -> DeltaShape {
    DeltaShape { key_heads, value_heads, key_dim, value_dim, drafts_max: 3 }
}

/// Shapes of the delta rule that are quick for the naive formula; the real ones are named where they are used.
pub const DELTA_SHAPES: [(&str, DeltaShape); 5] = [
    ("smallest", delta_shape(1, 1, 1, 1)),
    ("odd", delta_shape(2, 2, 5, 7)),
    ("ratio_2", delta_shape(2, 4, 16, 16)),
    ("ratio_3", delta_shape(3, 9, 17, 33)),
    ("past_tile", delta_shape(1, 3, 65, 129)),
];

/// 27B; the smaller models have as many value heads as key heads, or twice as many.
pub const DELTA_REAL: DeltaShape = delta_shape(16, 48, 128, 128);
