//! Attention against softmax in f64. Every cell that no row may look at is NaN: pages in no list, positions after the
//! row's own, entries before the first, and all but the queries and gates of the rows.

use deltic::backend::{AttentionShape, Op};
use deltic::base::DType;

use crate::common::cases::{ENTRY_SETS, FLOATS, Rows, bucket, entries, near_live};
use crate::common::matrix::{Grid, Matrix, Random};
use crate::common::rig::Rig;
use crate::common::step::{Sequence, Step};
use crate::common::target::Suite;

#[derive(Clone, Copy)]
struct Case {
    rows: Rows,
    shape: AttentionShape,
    context: u32,
    act: DType,
    cache: DType,
    /// Size of the queries: sets how sharp the softmax is.
    size: f32,
}

const fn shape(heads: u32, kv_heads: u32, head_dim: u32, page_tokens: u32) -> AttentionShape {
    AttentionShape { heads, kv_heads, head_dim, page_tokens }
}

const ODD: Case =
    Case { rows: Rows::Target, shape: shape(3, 1, 20, 3), context: 21, act: DType::F32, cache: DType::F32, size: 4.0 };
const REAL: AttentionShape = shape(24, 4, 256, 16);

pub fn add(suite: &mut Suite) {
    let mut case = |name: String, case: Case| suite.add("attention", name, move |rig| run(rig, case));
    for act in FLOATS {
        for cache in FLOATS {
            case(format!("odd_{act}_over_{cache}"), Case { act, cache, ..ODD });
        }
        let typed = Case { act, cache: act, ..ODD };
        case(format!("smallest_{act}"), Case { shape: shape(1, 1, 1, 1), context: 3, ..typed });
        case(format!("ratio_1_{act}"), Case { shape: shape(4, 4, 128, 16), context: 70, ..typed });
        case(format!("ratio_2_{act}"), Case { shape: shape(4, 2, 33, 5), context: 40, ..typed });
        case(format!("ratio_3_{act}"), Case { shape: shape(6, 2, 64, 16), context: 65, ..typed });
        case(format!("past_tile_{act}"), Case { shape: shape(2, 1, 65, 64), context: 129, ..typed });
        case(format!("real_{act}"), Case { shape: REAL, context: 300, ..typed });
    }
    for rows in ENTRY_SETS {
        case(format!("rows_{}", rows.full_name()), Case { rows, ..ODD });
        let typed = Case { rows, shape: REAL, context: 100, act: DType::Bf16, cache: DType::Bf16, ..ODD };
        case(format!("rows_{}_real", rows.full_name()), typed);
    }
    let long = Case { shape: REAL, context: 3000, act: DType::Bf16, cache: DType::Bf16, size: 8.0, ..ODD };
    case("real_long".to_owned(), long);
    // Scores of several hundred, whose exponentials overflow unless the largest is taken off first.
    case("large_scores".to_owned(), Case { size: 400.0, act: DType::Bf16, cache: DType::Bf16, ..ODD });
    case("no_scores".to_owned(), Case { size: 0.0, ..ODD });
    for context in [14, 15, 16, 17, 31, 32, 33, 63, 64, 127, 128] {
        case(format!("context_{context}"), Case { shape: shape(2, 1, 16, 16), context, ..ODD });
    }
    suite.add("attention", "rows_after_a_prefill_of_130", prefill);
}

/// One row of one head over the given cells.
fn head_formula(query: &[f64], gate: &[f64], keys: &[Vec<f64>], values: &[Vec<f64>]) -> Vec<f64> {
    let root = (query.len() as f64).sqrt();
    let scores = keys.iter().map(|key| key.iter().zip(query).map(|(k, q)| k * q).sum::<f64>() / root);
    let scores: Vec<f64> = scores.collect();
    let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - highest).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut out = vec![0.0; query.len()];
    for (weight, value) in weights.iter().zip(values) {
        for (out, value) in out.iter_mut().zip(value) {
            *out += weight / total * value;
        }
    }
    out.iter().zip(gate).map(|(out, gate)| out / (1.0 + (-gate).exp())).collect()
}

/// All rows. `rows` holds (sequence, entry) of each.
pub fn formula(
    shape: AttentionShape,
    step: &Step,
    rows: &[(usize, u32)],
    first_entry: u32,
    qkv: &Matrix,
    keys: &Matrix,
    values: &Matrix,
) -> Grid {
    let dim = shape.head_dim as usize;
    let mut out = Grid::zeros(rows.len(), shape.out_cols() as usize);
    let qkv = qkv.grid();
    for (row, (sequence, entry)) in rows.iter().enumerate() {
        let cells: Vec<usize> = (first_entry..=*entry).map(|at| step.cell(*sequence, at, shape.page_tokens)).collect();
        for head in 0..shape.heads as usize {
            let first = head / (shape.heads / shape.kv_heads) as usize * dim;
            let part = |cache: &Matrix| -> Vec<Vec<f64>> {
                cells.iter().map(|cell| (first..first + dim).map(|col| cache.at(*cell, col)).collect()).collect()
            };
            let query = &qkv.row(row)[2 * head * dim..][..dim];
            let gate = &qkv.row(row)[(2 * head + 1) * dim..][..dim];
            let result = head_formula(query, gate, &part(keys), &part(values));
            out.row_mut(row)[head * dim..][..dim].copy_from_slice(&result);
        }
    }
    out
}

/// Queries and gates; NaN where the keys and values of the rows lie, which the op takes from the cache.
pub fn queries(act: DType, rows: usize, shape: AttentionShape, size: f32, seed: u64) -> Matrix {
    let mut random = Random::new(seed);
    let (dim, query_cols) = (shape.head_dim as usize, shape.query_cols() as usize);
    Matrix::from_fn(act, rows, shape.qkv_cols() as usize, |_, col| {
        let is_gate = (col / dim) % 2 == 1;
        let value = random.symmetric() * if is_gate { 3.0 } else { size };
        if col < query_cols { value } else { f32::NAN }
    })
}

/// A cache whose cells are NaN but for the entries `first ..= last` of each sequence.
fn filled_cache(
    dtype: DType,
    shape: AttentionShape,
    step: &Step,
    pages: usize,
    ranges: &[(u32, u32)],
    seed: u64,
) -> Matrix {
    let mut cache = Matrix::blank(dtype, pages * shape.page_tokens as usize, shape.kv_cols() as usize);
    let mut random = Random::new(seed);
    for (sequence, (first, last)) in ranges.iter().enumerate() {
        for entry in *first..=*last {
            let cell = step.cell(sequence, entry, shape.page_tokens);
            for col in 0..cache.cols {
                cache.set(cell, col, random.symmetric());
            }
        }
    }
    cache
}

fn run(rig: &mut Rig, case: Case) {
    let mut entries = entries(case.rows, case.context);
    let pages = entries.step.give_pages(case.shape.page_tokens, 4, 1);
    let set = case.rows.set(rig, &entries.verdict);
    compare(rig, case, set, &entries.step, &entries.rows, pages);
}

fn compare(
    rig: &mut Rig,
    case: Case,
    rows: deltic::backend::RowSet,
    step: &Step,
    places: &[(usize, u32)],
    pages: usize,
) {
    let Case { shape, act, cache, size, .. } = case;
    // The draft head's cache has no entry 0.
    let first_entry = u32::from(case.rows != Rows::Target);
    let last = |sequence: usize| places.iter().filter(|(s, _)| *s == sequence).map(|(_, entry)| *entry).max();
    // A sequence without a row here has no entry at all: the range is empty.
    let ranges: Vec<(u32, u32)> =
        (0..step.sequences.len()).map(|sequence| (first_entry, last(sequence).unwrap_or(0))).collect();
    let live = places.len();
    let qkv_values = queries(act, live, shape, size, 2);
    let key_values = filled_cache(cache, shape, step, pages, &ranges, 3);
    let value_values = filled_cache(cache, shape, step, pages, &ranges, 4);
    let qkv = rig.put("qkv", &qkv_values.clone().padded(bucket(live)));
    let keys = rig.put("keys", &key_values);
    let values = rig.put("values", &value_values);
    let out = rig.blank("out", act, bucket(live), shape.out_cols() as usize);
    let inputs = rig.step(step);
    rig.run(inputs, &[Op::Attention { rows, qkv, keys, values, out, shape, first_entry }]);
    near_live(rig, "out", out, live, || {
        formula(shape, step, places, first_entry, &qkv_values, &key_values, &value_values)
    });
    let (found_keys, found_values) = (rig.get(keys), rig.get(values));
    rig.same("keys", &found_keys, &key_values);
    rig.same("values", &found_values, &value_values);
}

/// A long chunk in one go, from position 0.
fn prefill(rig: &mut Rig) {
    let case = Case { shape: shape(6, 2, 32, 16), act: DType::Bf16, cache: DType::Bf16, ..ODD };
    let mut step = Step::new(vec![Sequence::new(0, 130, 0)]);
    let pages = step.give_pages(16, 0, 5);
    let places = step.places();
    compare(rig, case, deltic::backend::RowSet::Target, &step, &places, pages);
}
