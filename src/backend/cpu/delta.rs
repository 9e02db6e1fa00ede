//! The gated delta rule: DeltaGates, DeltaStep, DeltaChunk and FoldRecords.
//!
//! A task is one value head through all sequences of the op; within it 32 value columns at a time, whose part of S
//! (key_dim x 32 floats, 16 KiB at 128) is copied to scratch, stays in the first-level cache over all rows, and is
//! copied back. Lanes run over value columns, so that every state element is updated by itself and a column's sums over
//! key_dim are sequential: threads, tiles and chunks cannot change a result. DeltaChunk is the recurrence itself.
//! Bytes: S read and written once per sequence and step; bandwidth bound for one row, about 5 * key_dim * value_dim
//! multiply-adds per row and head beyond.

use super::env::{Env, Run};
use super::lanes;
use super::memory::{FloatBlock, Memory, View, Written};
use super::simd::{Block, LANES, Simd};
use super::team::Scratch;
use crate::backend::step::{Header, Section};
use crate::backend::{DeltaShape, Op, Tensor};

/// Vectors of one tile of value columns.
const TILE_VECTORS: usize = 2;
const TILE_COLS: usize = TILE_VECTORS * LANES;
const L2_NORM_EPS: f32 = 1e-6;
/// Above it softplus(x) is x.
const SOFTPLUS_LINEAR: f64 = 20.0;

/// `g = -exp(a_log) * softplus(a + dt_bias)`, `beta = sigmoid(b)`, in f64: few numbers, and g is an exponent later.
pub fn delta_gates<S: Simd>(simd: S, env: &Env<'_>, op: &Op, written: &mut Written, shared: &mut Memory) {
    let Op::DeltaGates { rows, ba, a_log, dt_bias, out } = *op else { unreachable!("dispatched by kind") };
    let (live, heads) = (env.live(rows), a_log.cols as usize);
    let padded = heads.next_multiple_of(LANES);
    let [rate, bias] = shared.parts([padded, padded]);
    simd.enter(
        #[inline(always)]
        || {
            env.widen(simd, a_log, rate);
            env.widen(simd, dt_bias, bias);
        },
    );
    let rates: Vec<f64> = rate[..heads].iter().map(|a_log| -f64::from(*a_log).exp()).collect();
    let bias = &*bias;
    let source = env.view(ba).f32();
    let [out] = written.blocks([out]);
    let work = 64 * live * heads;
    let height = env.team.rows_per_task(live, work);
    let tasks = out.f32().split_rows(live).0.row_blocks(height).enumerate();
    env.team.each(work, tasks, |(index, mut out), _| {
        for row in 0..out.rows() {
            let ba = &source[(index * height + row) * 2 * heads..][..2 * heads];
            let (g, beta) = out.row_mut(row).split_at_mut(heads);
            for head in 0..heads {
                let a = f64::from(ba[heads + head] + bias[head]);
                let softplus = if a > SOFTPLUS_LINEAR { a } else { a.exp().ln_1p() };
                g[head] = (rates[head] * softplus) as f32;
                beta[head] = (1.0 / (1.0 + (-f64::from(ba[head])).exp())) as f32;
            }
        }
    });
}

/// The sequences with one committed row: fold, step, store, draft rows.
pub fn delta_step<S: Simd>(simd: S, env: &Env<'_>, op: &Op, written: &mut Written, shared: &mut Memory) {
    let Op::DeltaStep { qkv, gates, state, records, out, shape } = *op else { unreachable!("dispatched by kind") };
    let delta = Delta { qkv, gates, state, records: Some(records), out, shape };
    delta.run(simd, env, &env.steps(shape), written, shared);
}

/// The chunk list: all rows committed, none pending.
pub fn delta_chunk<S: Simd>(simd: S, env: &Env<'_>, op: &Op, written: &mut Written, shared: &mut Memory) {
    let Op::DeltaChunk { qkv, gates, state, out, shape } = *op else { unreachable!("dispatched by kind") };
    let delta = Delta { qkv, gates, state, records: None, out, shape };
    delta.run(simd, env, &env.chunks(), written, shared);
}

/// For each entry of the fold list: `S = alpha S + k e^T` over its pending records.
pub fn fold_records<S: Simd>(simd: S, env: &Env<'_>, op: &Op, written: &mut Written) {
    let Op::FoldRecords { state, records, shape } = *op else { unreachable!("dispatched by kind") };
    let source = env.view(records).f32();
    let record_cols = shape.record_cols() as usize;
    let (key_cols, value_cols) = (shape.key_cols() as usize, shape.value_cols() as usize);
    let count = env.step.live(Header::Folds);
    let entries = &env.step.section(Section::Fold)[..3 * count];
    let [state] = written.blocks([by_slot(state, shape)]);
    let work = count * (shape.state_rows() * shape.value_dim) as usize;
    let heads = state.f32().column_blocks((shape.key_dim * shape.value_dim) as usize);
    env.team.each(work, heads.enumerate(), |(head, mut state), scratch| {
        let [floats, e] = scratch.floats.parts([shape.key_dim as usize * TILE_COLS, TILE_COLS]);
        simd.enter(
            #[inline(always)]
            || {
                for entry in entries.chunks_exact(3) {
                    let (slot, parity, pending) = (entry[0] as usize, entry[1] as usize, entry[2] as usize);
                    for tile in Tile::all(shape) {
                        tile.load(state.row(slot), floats);
                        for draft in 0..pending {
                            let record = &source[record_row(shape, slot, parity, draft) * record_cols..][..record_cols];
                            let (k, rest) = record.split_at(key_cols);
                            let (errors, alphas) = rest.split_at(value_cols);
                            let k = &k[key_head(shape, head) * shape.key_dim as usize..][..shape.key_dim as usize];
                            tile.columns_of(&errors[head * shape.value_dim as usize..], e);
                            fold(simd, floats, alphas[head], k, e);
                        }
                        tile.store(floats, state.row_mut(slot));
                    }
                }
            },
        );
    });
}

/// The state with one row per slot, whose columns can be divided among value heads.
fn by_slot(state: Tensor, shape: DeltaShape) -> Tensor {
    Tensor { rows: state.rows / shape.state_rows(), cols: shape.state_rows() * shape.value_dim, ..state }
}

fn record_row(shape: DeltaShape, slot: usize, half: usize, draft: usize) -> usize {
    assert!(half < 2 && draft < shape.drafts_max as usize, "record {draft} of half {half}");
    (slot * 2 + half) * shape.drafts_max as usize + draft
}

fn key_head(shape: DeltaShape, value_head: usize) -> usize {
    value_head / (shape.value_heads / shape.key_heads) as usize
}

struct Delta {
    qkv: Tensor,
    gates: Tensor,
    state: Tensor,
    records: Option<Tensor>,
    out: Tensor,
    shape: DeltaShape,
}

impl Delta {
    fn run<S: Simd>(&self, simd: S, env: &Env<'_>, runs: &[Run], written: &mut Written, shared: &mut Memory) {
        let shape = self.shape;
        let rows = |run: &Run| run.committed + run.drafts;
        let Some(first_row) = runs.iter().map(|run| run.first_row).min() else { return };
        let end_row = runs.iter().map(|run| run.first_row + rows(run)).max().expect("there is a run");
        let head_stride = (shape.key_dim as usize).next_multiple_of(LANES);
        let row_stride = 2 * shape.key_heads as usize * head_stride;
        let [unit] = shared.parts([(end_row - first_row) * row_stride]);
        let qkv = env.view(self.qkv);
        let inputs = Inputs { qkv, gates: env.view(self.gates).f32(), shape, unit: &[], first_row, head_stride };
        inputs.normalise(simd, env, unit, row_stride);
        let inputs = Inputs { unit: &*unit, ..inputs };

        let row_count: usize = runs.iter().map(rows).sum();
        let work = 5 * row_count * (shape.state_rows() * shape.value_dim) as usize;
        let (value_dim, head_floats) = (shape.value_dim as usize, (shape.key_dim * shape.value_dim) as usize);
        let state = by_slot(self.state, shape);
        let Some(records) = self.records else {
            let [state, out] = written.blocks([state, self.out]);
            let tasks = state.f32().column_blocks(head_floats).zip(out.column_blocks(value_dim));
            env.team.each(work, tasks.enumerate(), |(head, (state, out)), scratch| {
                let mut task = HeadTask { head, state, out, records: None };
                simd.enter(
                    #[inline(always)]
                    || task.run(simd, &inputs, runs, scratch),
                );
            });
            return;
        };
        let [state, records, out] = written.blocks([state, records, self.out]);
        let (mut keys, records) = records.f32().split_columns(shape.key_cols() as usize);
        inputs.record_keys(runs, &mut keys);
        let keys = &keys;
        let (errors, alphas) = records.split_columns(shape.value_cols() as usize);
        let records = errors.column_blocks(value_dim).zip(alphas.column_blocks(1));
        let tasks = state.f32().column_blocks(head_floats).zip(out.column_blocks(value_dim)).zip(records);
        env.team.each(work, tasks.enumerate(), |(head, ((state, out), (errors, alphas))), scratch| {
            let mut task = HeadTask { head, state, out, records: Some(HeadRecords { keys, errors, alphas }) };
            simd.enter(
                #[inline(always)]
                || task.run(simd, &inputs, runs, scratch),
            );
        });
    }
}

/// What all heads read.
struct Inputs<'a> {
    qkv: View<'a>,
    gates: &'a [f32],
    shape: DeltaShape,
    /// Unit-length q (scaled) of all key heads, then k, padded to `head_stride`, for rows from `first_row` on.
    unit: &'a [f32],
    first_row: usize,
    head_stride: usize,
}

impl Inputs<'_> {
    /// Fills `unit`, once per key head rather than once per value head.
    fn normalise<S: Simd>(&self, simd: S, env: &Env<'_>, unit: &mut [f32], row_stride: usize) {
        let (dim, heads) = (self.shape.key_dim as usize, self.shape.key_heads as usize);
        let rows = unit.len() / row_stride;
        let work = 4 * unit.len();
        let height = env.team.rows_per_task(rows, work);
        let query_scale = 1.0 / (dim as f32).sqrt();
        env.team.each(work, unit.chunks_mut(height * row_stride).enumerate(), |(index, unit), _| {
            simd.enter(
                #[inline(always)]
                || {
                    for (row, unit) in unit.chunks_exact_mut(row_stride).enumerate() {
                        let row = self.first_row + index * height + row;
                        for (head, to) in unit.chunks_exact_mut(self.head_stride).enumerate() {
                            self.qkv.read(simd, row, head * dim, dim, to);
                            let inverse = 1.0 / (lanes::sum_of_squares(simd, to) + L2_NORM_EPS).sqrt();
                            let scale = simd.splat(if head < heads { inverse * query_scale } else { inverse });
                            lanes::map(
                                simd,
                                to,
                                #[inline(always)]
                                |x| simd.mul(x, scale),
                            );
                        }
                    }
                },
            );
        });
    }

    /// Unit q and k of one row and key head.
    #[inline(always)]
    fn query_and_key(&self, row: usize, key_head: usize) -> (&[f32], &[f32]) {
        let heads = self.shape.key_heads as usize;
        let row = &self.unit[(row - self.first_row) * 2 * heads * self.head_stride..];
        let dim = self.shape.key_dim as usize;
        let at = |head: usize| &row[head * self.head_stride..][..dim];
        (at(key_head), at(heads + key_head))
    }

    /// Writes k of the draft rows, which all value heads share, to the other half of the records.
    fn record_keys(&self, runs: &[Run], keys: &mut Block<'_, f32>) {
        let dim = self.shape.key_dim as usize;
        for run in runs {
            for draft in 0..run.drafts {
                let record = keys.row_mut(record_row(self.shape, run.slot, 1 - run.parity, draft));
                for (head, to) in record.chunks_exact_mut(dim).enumerate() {
                    to.copy_from_slice(self.query_and_key(run.first_row + run.committed + draft, head).1);
                }
            }
        }
    }
}

/// One value head of all sequences: the columns of the state, the output and the records that are its own.
struct HeadTask<'a> {
    head: usize,
    state: Block<'a, f32>,
    out: FloatBlock<'a>,
    records: Option<HeadRecords<'a>>,
}

/// Keys are read by all heads and hold both halves; errors and alphas are the head's own.
struct HeadRecords<'a> {
    keys: &'a Block<'a, f32>,
    errors: Block<'a, f32>,
    alphas: Block<'a, f32>,
}

impl HeadTask<'_> {
    #[inline(always)]
    fn run<S: Simd>(&mut self, simd: S, inputs: &Inputs<'_>, runs: &[Run], scratch: &mut Scratch) {
        let shape = inputs.shape;
        let [floats, v, e, o] =
            scratch.floats.parts([shape.key_dim as usize * TILE_COLS, TILE_COLS, TILE_COLS, TILE_COLS]);
        for run in runs {
            for tile in Tile::all(shape) {
                tile.load(self.state.row(run.slot), floats);
                self.fold_pending(simd, shape, run, tile, floats, e);
                let rows = run.committed + run.drafts;
                for row in 0..rows {
                    if row == run.committed {
                        tile.store(floats, self.state.row_mut(run.slot));
                    }
                    let alpha = self.row(simd, inputs, run.first_row + row, tile, floats, [&mut *v, &mut *e, &mut *o]);
                    if let Some(draft) = row.checked_sub(run.committed) {
                        self.record(shape, run, draft, tile, alpha, e);
                    }
                }
                if run.drafts == 0 {
                    tile.store(floats, self.state.row_mut(run.slot));
                }
            }
        }
    }

    /// Brings the state up to the drafts that the previous step accepted.
    #[inline(always)]
    fn fold_pending<S: Simd>(
        &self,
        simd: S,
        shape: DeltaShape,
        run: &Run,
        tile: Tile,
        floats: &mut [f32],
        e: &mut [f32],
    ) {
        let Some(records) = &self.records else { return };
        for draft in 0..run.pending {
            let record = record_row(shape, run.slot, run.parity, draft);
            let first = key_head(shape, self.head) * shape.key_dim as usize;
            tile.columns_of(records.errors.row(record), e);
            fold(
                simd,
                floats,
                records.alphas.row(record)[0],
                &records.keys.row(record)[first..][..shape.key_dim as usize],
                e,
            );
        }
    }

    /// One row of the recurrence on a tile; leaves e in its scratch, stores o, returns alpha.
    #[inline(always)]
    fn row<S: Simd>(
        &mut self,
        simd: S,
        inputs: &Inputs<'_>,
        row: usize,
        tile: Tile,
        floats: &mut [f32],
        [v, e, o]: [&mut [f32]; 3],
    ) -> f32 {
        let shape = inputs.shape;
        let heads = shape.value_heads as usize;
        let gates = &inputs.gates[row * 2 * heads..][..2 * heads];
        let alpha = lanes::exp_one(simd, gates[self.head]);
        let beta = gates[heads + self.head];
        let first = (2 * shape.key_cols() + self.head as u32 * shape.value_dim) as usize + tile.first;
        inputs.qkv.read(simd, row, first, tile.cols, v);
        let (q, k) = inputs.query_and_key(row, key_head(shape, self.head));
        step(simd, floats, (alpha, beta), (q, k), v, e, o);
        self.out.write(simd, row, tile.first, &o[..tile.cols]);
        alpha
    }

    #[inline(always)]
    fn record(&mut self, shape: DeltaShape, run: &Run, draft: usize, tile: Tile, alpha: f32, e: &[f32]) {
        let records = self.records.as_mut().expect("drafts come with records");
        let record = record_row(shape, run.slot, 1 - run.parity, draft);
        records.errors.row_mut(record)[tile.first..][..tile.cols].copy_from_slice(&e[..tile.cols]);
        records.alphas.row_mut(record)[0] = alpha;
    }
}

/// Consecutive value columns of one head's state.
#[derive(Clone, Copy)]
struct Tile {
    first: usize,
    cols: usize,
    value_dim: usize,
}

impl Tile {
    fn all(shape: DeltaShape) -> impl Iterator<Item = Tile> {
        let value_dim = shape.value_dim as usize;
        let tile = move |first| Tile { first, cols: TILE_COLS.min(value_dim - first), value_dim };
        (0..value_dim).step_by(TILE_COLS).map(tile)
    }

    /// Copies the tile out of one head's `[key_dim, value_dim]`, padded with zero columns. Rows of a tile lie at a
    /// power of two in the state, where they would evict each other from the cache.
    #[inline(always)]
    fn load(self, state: &[f32], floats: &mut [f32]) {
        for (from, to) in state.chunks_exact(self.value_dim).zip(floats.chunks_exact_mut(TILE_COLS)) {
            self.columns_of(from, to);
        }
    }

    #[inline(always)]
    fn store(self, floats: &[f32], state: &mut [f32]) {
        for (from, to) in floats.chunks_exact(TILE_COLS).zip(state.chunks_exact_mut(self.value_dim)) {
            to[self.first..][..self.cols].copy_from_slice(&from[..self.cols]);
        }
    }

    /// The tile's part of one row of value columns, padded with zeros.
    #[inline(always)]
    fn columns_of(self, row: &[f32], to: &mut [f32]) {
        to[..self.cols].copy_from_slice(&row[self.first..][..self.cols]);
        to[self.cols..].fill(0.0);
    }
}

/// The one update of a state element, `alpha S + k e`: step, draft rows and folds must agree bit for bit.
#[inline(always)]
fn update<S: Simd>(simd: S, decayed: S::Lanes, k: S::Lanes, e: S::Lanes) -> S::Lanes {
    simd.fma(k, e, decayed)
}

/// `S = alpha S + k e^T` on a tile.
#[inline(always)]
fn fold<S: Simd>(simd: S, floats: &mut [f32], alpha: f32, k: &[f32], e: &[f32]) {
    let alpha = simd.splat(alpha);
    let e = load_tile(simd, e);
    for (row, k) in tile_rows(floats).zip(k) {
        let k = simd.splat(*k);
        for (lanes, e) in row.iter_mut().zip(e) {
            let decayed = simd.mul(alpha, simd.load(lanes));
            simd.store(update(simd, decayed, k, e), lanes);
        }
    }
}

/// `S = alpha S; e = beta (v - S^T k); S = S + k e^T; o = S^T q` on a tile, in two passes over it.
#[inline(always)]
fn step<S: Simd>(
    simd: S,
    floats: &mut [f32],
    (alpha, beta): (f32, f32),
    (q, k): (&[f32], &[f32]),
    v: &[f32],
    e: &mut [f32],
    o: &mut [f32],
) {
    let (alpha, beta) = (simd.splat(alpha), simd.splat(beta));
    let mut read = [simd.splat(0.0); TILE_VECTORS];
    for (row, k) in tile_rows(floats).zip(k) {
        let k = simd.splat(*k);
        for (lanes, read) in row.iter_mut().zip(&mut read) {
            let decayed = simd.mul(alpha, simd.load(lanes));
            simd.store(decayed, lanes);
            *read = simd.fma(k, decayed, *read);
        }
    }
    for (index, to) in lanes::vectors_mut(e).iter_mut().enumerate() {
        let v = simd.load(&lanes::vectors(v)[index]);
        simd.store(simd.mul(beta, simd.sub(v, read[index])), to);
    }
    let e = load_tile(simd, e);
    let mut out = [simd.splat(0.0); TILE_VECTORS];
    for ((row, k), q) in tile_rows(floats).zip(k).zip(q) {
        let (k, q) = (simd.splat(*k), simd.splat(*q));
        for index in 0..TILE_VECTORS {
            let updated = update(simd, simd.load(&row[index]), k, e[index]);
            simd.store(updated, &mut row[index]);
            out[index] = simd.fma(q, updated, out[index]);
        }
    }
    for (out, to) in out.into_iter().zip(lanes::vectors_mut(o)) {
        simd.store(out, to);
    }
}

#[inline(always)]
fn tile_rows(floats: &mut [f32]) -> impl Iterator<Item = &mut [[f32; LANES]; TILE_VECTORS]> {
    lanes::vectors_mut(floats).as_chunks_mut::<TILE_VECTORS>().0.iter_mut()
}

#[inline(always)]
fn load_tile<S: Simd>(simd: S, floats: &[f32]) -> [S::Lanes; TILE_VECTORS] {
    let vectors = lanes::vectors(floats);
    lanes::each(
        simd,
        #[inline(always)]
        |index| simd.load(&vectors[index]),
    )
}
