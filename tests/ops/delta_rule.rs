//! The gated delta rule in f64, one row at a time: the formula behind DeltaStep, DeltaChunk and FoldRecords.

use deltic::backend::DeltaShape;
use deltic::base::DType;

use crate::common::matrix::{Grid, Matrix, Random};
use crate::common::step::Step;

/// One row of one sequence. Changes `state` ([value_heads, key_dim, value_dim]) and returns the output and the record.
pub fn row(shape: DeltaShape, qkv: &[f64], gates: &[f64], state: &mut [f64]) -> (Vec<f64>, Vec<f64>) {
    let (key_dim, value_dim) = (shape.key_dim as usize, shape.value_dim as usize);
    let (key_cols, heads) = (shape.key_cols() as usize, shape.value_heads as usize);
    let ratio = heads / shape.key_heads as usize;
    let normalised = |cols: &[f64], scale: f64| -> Vec<f64> {
        let heads = cols.chunks(key_dim);
        let norm = |head: &[f64]| (head.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
        heads.flat_map(|head| head.iter().map(|x| x / norm(head) * scale).collect::<Vec<_>>()).collect()
    };
    let queries = normalised(&qkv[..key_cols], f64::from(shape.key_dim).powf(-0.5));
    let keys = normalised(&qkv[key_cols..2 * key_cols], 1.0);
    let mut out = Vec::new();
    let mut corrections = Vec::new();
    for (head, state) in state.chunks_mut(key_dim * value_dim).enumerate() {
        let key = &keys[head / ratio * key_dim..][..key_dim];
        let query = &queries[head / ratio * key_dim..][..key_dim];
        let value = &qkv[2 * key_cols + head * value_dim..][..value_dim];
        let (alpha, beta) = (gates[head].exp(), gates[heads + head]);
        state.iter_mut().for_each(|cell| *cell *= alpha);
        let read = weighted_rows(state, key, value_dim);
        let correction: Vec<f64> = value.iter().zip(&read).map(|(v, read)| beta * (v - read)).collect();
        add_outer(state, key, &correction);
        out.extend(weighted_rows(state, query, value_dim));
        corrections.extend(correction);
    }
    let alphas = gates[..heads].iter().map(|g| g.exp());
    let record = keys.iter().copied().chain(corrections).chain(alphas).collect();
    (out, record)
}

/// `S = alpha S + k e^T`, for all heads.
pub fn fold(shape: DeltaShape, record: &[f64], state: &mut [f64]) {
    let (key_dim, value_dim) = (shape.key_dim as usize, shape.value_dim as usize);
    let (keys, rest) = record.split_at(shape.key_cols() as usize);
    let (corrections, alphas) = rest.split_at(shape.value_cols() as usize);
    let ratio = (shape.value_heads / shape.key_heads) as usize;
    for (head, state) in state.chunks_mut(key_dim * value_dim).enumerate() {
        state.iter_mut().for_each(|cell| *cell *= alphas[head]);
        let key = &keys[head / ratio * key_dim..][..key_dim];
        add_outer(state, key, &corrections[head * value_dim..][..value_dim]);
    }
}

/// `S^T weights`
fn weighted_rows(state: &[f64], weights: &[f64], value_dim: usize) -> Vec<f64> {
    let mut sums = vec![0.0; value_dim];
    for (row, weight) in state.chunks(value_dim).zip(weights) {
        for (sum, cell) in sums.iter_mut().zip(row) {
            *sum += weight * cell;
        }
    }
    sums
}

fn add_outer(state: &mut [f64], key: &[f64], correction: &[f64]) {
    for (row, k) in state.chunks_mut(correction.len()).zip(key) {
        for (cell, e) in row.iter_mut().zip(correction) {
            *cell += k * e;
        }
    }
}

/// What the ops of the delta rule read and write.
#[derive(Clone)]
pub struct Inputs {
    pub qkv: Matrix,
    pub gates: Matrix,
    pub state: Matrix,
    pub records: Matrix,
}

/// Random inputs. Log decays reach from -1e-4 to -30, keys of some rows are so small that the norm's eps decides.
pub fn inputs(shape: DeltaShape, act: DType, rows: usize, slots: usize, seed: u64) -> Inputs {
    let mut random = Random::new(seed);
    let small: Vec<bool> = (0..rows).map(|_| random.below(5) == 0).collect();
    let keys = 0..2 * shape.key_cols() as usize;
    let qkv = Matrix::from_fn(act, rows, shape.conv_cols() as usize, |row, col| {
        let size = if small[row] && keys.contains(&col) { 1e-4 } else { 1.0 };
        size * random.symmetric()
    });
    let heads = shape.value_heads as usize;
    let gates = Matrix::from_fn(DType::F32, rows, 2 * heads, |_, col| {
        if col >= heads {
            return random.unit();
        }
        match random.below(10) {
            0 => -1e-4,
            1 => -30.0,
            _ => -random.unit(),
        }
    });
    let state_rows = slots * shape.state_rows() as usize;
    let state = Matrix::random(DType::F32, state_rows, shape.value_dim as usize, seed + 1);
    Inputs { qkv, gates, state, records: records(shape, slots, seed + 2) }
}

/// Valid records everywhere: keys of norm about 1, decays in 0..1.
pub fn records(shape: DeltaShape, slots: usize, seed: u64) -> Matrix {
    let mut random = Random::new(seed);
    let key_size = (3.0 / shape.key_dim as f32).sqrt();
    let first_alpha = (shape.key_cols() + shape.value_cols()) as usize;
    let rows = slots * shape.record_rows() as usize;
    Matrix::from_fn(DType::F32, rows, shape.record_cols() as usize, |_, col| {
        if col < shape.key_cols() as usize {
            random.symmetric() * key_size
        } else if col < first_alpha {
            random.symmetric()
        } else {
            random.unit()
        }
    })
}

/// What a step leaves behind. Rows of `out` and `records` that no sequence writes are zero.
pub struct Results {
    pub out: Grid,
    pub state: Grid,
    pub records: Grid,
    /// Rows of `records` that are written.
    pub written: Vec<usize>,
}

/// All sequences of a step, those that run as chunks or those that do not.
pub fn run(shape: DeltaShape, step: &Step, inputs: &Inputs, chunks: bool) -> Results {
    let (qkv, gates, old_records) = (inputs.qkv.grid(), inputs.gates.grid(), inputs.records.grid());
    let mut out = Grid::zeros(qkv.rows, shape.value_cols() as usize);
    let mut records = old_records.clone();
    let mut state = inputs.state.grid();
    let mut written = Vec::new();
    let state_len = (shape.state_rows() * shape.value_dim) as usize;
    for (index, sequence) in step.sequences.iter().enumerate() {
        if (sequence.committed() > 1) != chunks {
            continue;
        }
        let slot = sequence.slot as usize;
        let own = &mut state.cells[slot * state_len..(slot + 1) * state_len];
        let record_row = |half: u32, draft: u32| ((sequence.slot * 2 + half) * shape.drafts_max + draft) as usize;
        for draft in 0..sequence.pending {
            fold(shape, old_records.row(record_row(sequence.parity, draft)), own);
        }
        let first = step.first_row(index);
        let committed = sequence.committed() as usize;
        for at in first..first + committed {
            let (result, _) = row(shape, qkv.row(at), gates.row(at), own);
            out.row_mut(at).copy_from_slice(&result);
        }
        let mut ahead = own.to_vec();
        for draft in 0..sequence.drafts {
            let at = first + committed + draft as usize;
            let (result, record) = row(shape, qkv.row(at), gates.row(at), &mut ahead);
            out.row_mut(at).copy_from_slice(&result);
            let target = record_row(1 - sequence.parity, draft);
            records.row_mut(target).copy_from_slice(&record);
            written.push(target);
        }
    }
    Results { out, state, records, written }
}
