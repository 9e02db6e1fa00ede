//! Gated attention over the paged cache.
//!
//! A task is one KV head for up to eight consecutive rows of one sequence, with all query heads of that KV head. It
//! walks the entries in blocks of 32 that begin at multiples of 32, gathers the keys and values of a block from their
//! pages to f32 scratch once, and keeps a running softmax (maximum, sum, weighted values) per query. Block edges
//! depend on positions only and each query takes exactly its own entries of a block, so a row's result does not
//! depend on the rows beside it. Lanes run along head_dim in the dot products and in the sums of values. Bytes: keys
//! and values up to the position, once per eight rows; bandwidth bound for one row, arithmetic bound in prefill.

use super::env::{Env, Place};
use super::lanes;
use super::matmul::tiles;
use super::memory::{FloatBlock, View, Written};
use super::simd::{LANES, Simd};
use super::team::Scratch;
use crate::backend::{AttentionShape, Op};

/// Entries that share one rescaling of the running softmax.
const BLOCK_ENTRIES: usize = 32;
/// Rows that share a gathered block.
const GROUP_ROWS: usize = 8;

/// `out[r, h] = softmax(q[r, h] . k / sqrt(head_dim)) v * sigmoid(gate[r, h])` over `first_entry ..= position[r]`.
pub fn attention<S: Simd>(simd: S, env: &Env<'_>, op: &Op, written: &mut Written) {
    let Op::Attention { rows, qkv, keys, values, out, shape, first_entry } = *op else {
        unreachable!("dispatched by kind")
    };
    let places: Vec<Place> = env.places(rows).collect();
    let group_cols = (shape.heads / shape.kv_heads * shape.head_dim) as usize;
    let cache = Cache { env, keys: env.view(keys), values: env.view(values), shape, first_entry };
    let qkv = env.view(qkv);
    let entries: usize = places.iter().map(|place| place.position as usize + 1).sum();
    let work = 2 * entries * shape.out_cols() as usize;

    let [out] = written.blocks([out]);
    let mut below = out.split_rows(places.len()).0;
    let mut tasks = Vec::new();
    let mut first = 0;
    for group in places.chunk_by(|a, b| a.sequence == b.sequence).flat_map(|run| run.chunks(GROUP_ROWS)) {
        let (rows, rest) = below.split_rows(group.len());
        below = rest;
        tasks.extend(rows.column_blocks(group_cols).enumerate().map(|(kv_head, out)| (first, group, kv_head, out)));
        first += group.len();
    }
    let cache = &cache;
    // The longest first: a late long task would leave the other workers idle.
    env.team.each(work, tasks.into_iter().rev(), |(first, places, kv_head, out), scratch| {
        let mut group = Group { qkv, cache, first, places, kv_head, out };
        simd.enter(
            #[inline(always)]
            || group.run(simd, scratch),
        );
    });
}

/// Where keys and values come from.
struct Cache<'a> {
    env: &'a Env<'a>,
    keys: View<'a>,
    values: View<'a>,
    shape: AttentionShape,
    first_entry: u32,
}

impl Cache<'_> {
    /// One head's keys and values of consecutive entries, to rows of `stride` floats.
    #[inline(always)]
    fn gather<S: Simd>(
        &self,
        simd: S,
        sequence: usize,
        entries: std::ops::Range<usize>,
        kv_head: usize,
        [keys, values]: [&mut [f32]; 2],
        stride: usize,
    ) {
        let dim = self.shape.head_dim as usize;
        let rows = keys.chunks_exact_mut(stride).zip(values.chunks_exact_mut(stride));
        for (entry, (key, value)) in entries.zip(rows) {
            let page = self.env.step.page(sequence, entry as u32, self.shape.page_tokens);
            let cell = (page * self.shape.page_tokens) as usize + entry % self.shape.page_tokens as usize;
            self.keys.read(simd, cell, kv_head * dim, dim, key);
            self.values.read(simd, cell, kv_head * dim, dim, value);
        }
    }
}

/// Rows of one sequence, one KV head.
struct Group<'a> {
    qkv: View<'a>,
    cache: &'a Cache<'a>,
    first: usize,
    places: &'a [Place],
    kv_head: usize,
    out: FloatBlock<'a>,
}

/// Running softmax of one query.
#[derive(Clone, Copy)]
struct Running {
    max: f32,
    sum: f32,
}

impl Group<'_> {
    #[inline(always)]
    fn run<S: Simd>(&mut self, simd: S, scratch: &mut Scratch) {
        let shape = self.cache.shape;
        let dim = shape.head_dim as usize;
        let stride = dim.next_multiple_of(LANES);
        let per_row = (shape.heads / shape.kv_heads) as usize;
        let queries = self.places.len() * per_row;
        let [q, sums, keys, values, scores, running] = scratch.floats.parts([
            queries * stride,
            queries * stride,
            BLOCK_ENTRIES * stride,
            BLOCK_ENTRIES * stride,
            queries * BLOCK_ENTRIES,
            2 * queries,
        ]);
        self.load_queries(simd, q, stride);
        sums.fill(0.0);
        let (running, _) = running.as_chunks_mut::<2>();
        running.fill([f32::MIN, 0.0]);

        let sequence = self.places[0].sequence;
        let end = self.places.iter().map(|place| place.position as usize + 1).max().expect("a group has rows");
        let mut at = self.cache.first_entry as usize;
        while at < end {
            let block_end = (at / BLOCK_ENTRIES + 1) * BLOCK_ENTRIES;
            let count = block_end.min(end) - at;
            self.cache.gather(simd, sequence, at..at + count, self.kv_head, [&mut *keys, &mut *values], stride);
            tiles(simd, (&*q, queries, stride), (&*keys, count, stride), (&mut *scores, BLOCK_ENTRIES), &mut []);
            for query in 0..queries {
                let position = self.places[query / per_row].position as usize;
                let own = (position + 1).saturating_sub(at).min(count);
                let scores = &mut scores[query * BLOCK_ENTRIES..][..BLOCK_ENTRIES];
                let sums = &mut sums[query * stride..][..stride];
                if own > 0 {
                    let mut state = Running { max: running[query][0], sum: running[query][1] };
                    absorb(simd, &mut state, scores, own, (values, stride), sums);
                    running[query] = [state.max, state.sum];
                }
            }
            at += count;
        }
        self.finish(simd, running, sums, q, stride);
    }

    /// Queries of all rows, scaled by head_dim^-0.5.
    #[inline(always)]
    fn load_queries<S: Simd>(&self, simd: S, q: &mut [f32], stride: usize) {
        let dim = self.cache.shape.head_dim as usize;
        let per_row = q.len() / stride / self.places.len();
        let scale = simd.splat(1.0 / (dim as f32).sqrt());
        for (query, to) in q.chunks_exact_mut(stride).enumerate() {
            let head = self.kv_head * per_row + query % per_row;
            self.qkv.read(simd, self.first + query / per_row, 2 * head * dim, dim, to);
            lanes::map(
                simd,
                to,
                #[inline(always)]
                |x| simd.mul(x, scale),
            );
        }
    }

    /// Divides by the sums, applies the gates, stores. `gate` is scratch of at least `stride` floats.
    #[inline(always)]
    fn finish<S: Simd>(&mut self, simd: S, running: &[[f32; 2]], sums: &mut [f32], gate: &mut [f32], stride: usize) {
        let dim = self.cache.shape.head_dim as usize;
        let per_row = running.len() / self.places.len();
        let gate = &mut gate[..stride];
        for (query, row) in sums.chunks_exact_mut(stride).enumerate() {
            let head = self.kv_head * per_row + query % per_row;
            self.qkv.read(simd, self.first + query / per_row, (2 * head + 1) * dim, dim, gate);
            // Without a single entry the sums are zero, and so is the output.
            let sum = if running[query][1] == 0.0 { 1.0 } else { running[query][1] };
            let inverse = simd.splat(1.0 / sum);
            lanes::map_with(
                simd,
                row,
                gate,
                #[inline(always)]
                |x, gate| simd.mul(simd.mul(x, inverse), lanes::sigmoid(simd, gate)),
            );
            self.out.write(simd, query / per_row, query % per_row * dim, &row[..dim]);
        }
    }
}

/// Takes the first `own` entries of a block into the running softmax of one query. `scores` becomes their weights.
#[inline(always)]
fn absorb<S: Simd>(
    simd: S,
    running: &mut Running,
    scores: &mut [f32],
    own: usize,
    (values, stride): (&[f32], usize),
    sums: &mut [f32],
) {
    // A NaN does not win the maximum but makes its own weight, hence the sum, NaN.
    let max = scores[..own].iter().fold(running.max, |max, score| if *score > max { *score } else { max });
    let top = simd.splat(max);
    lanes::map(
        simd,
        scores,
        #[inline(always)]
        |score| lanes::exp(simd, simd.sub(score, top)),
    );
    scores[own..].fill(0.0);
    let weights: f32 = lanes::vectors(scores).iter().map(|part| simd.sum(simd.load(part))).sum();
    let kept = lanes::exp_one(simd, running.max - max);
    running.sum = running.sum * kept + weights;
    running.max = max;

    const WIDE: usize = 4;
    let kept = simd.splat(kept);
    let mut parts = lanes::vectors_mut(sums).chunks_exact_mut(WIDE);
    let mut first = 0;
    for part in parts.by_ref() {
        weigh::<S, WIDE>(simd, part, kept, &scores[..own], &values[first..], stride);
        first += WIDE * LANES;
    }
    for part in parts.into_remainder().chunks_exact_mut(1) {
        weigh::<S, 1>(simd, part, kept, &scores[..own], &values[first..], stride);
        first += LANES;
    }
}

/// `sums = sums * kept + sum_j weights[j] * values[j]` over N vectors of columns, entries in order.
#[inline(always)]
fn weigh<S: Simd, const N: usize>(
    simd: S,
    sums: &mut [[f32; LANES]],
    kept: S::Lanes,
    weights: &[f32],
    values: &[f32],
    stride: usize,
) {
    let mut accumulators: [S::Lanes; N] = lanes::each(
        simd,
        #[inline(always)]
        |index| simd.mul(simd.load(&sums[index]), kept),
    );
    for (entry, weight) in weights.iter().enumerate() {
        let weight = simd.splat(*weight);
        let row = &values[entry * stride..][..N * LANES];
        for (accumulator, value) in accumulators.iter_mut().zip(lanes::vectors(row)) {
            *accumulator = simd.fma(weight, simd.load(value), *accumulator);
        }
    }
    for (accumulator, to) in accumulators.into_iter().zip(sums) {
        simd.store(accumulator, to);
    }
}
