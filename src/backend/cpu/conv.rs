//! The causal depthwise convolution of width 4 with SiLU: ConvStep and ConvChunk.
//!
//! Threads and lanes run over channels; a task takes a tile of them through all sequences, so that nothing is shared.
//! Inputs are read once and outputs written once; bandwidth bound.

use super::env::{Env, Run};
use super::lanes;
use super::memory::{FloatBlock, Memory, View, Written};
use super::simd::{LANES, Simd};
use crate::backend::op::CONV_LOOKBACK;
use crate::backend::{DeltaShape, Op, Tensor};

/// Channels of one task.
const TILE_COLS: usize = 256;
const LOOKBACK: usize = CONV_LOOKBACK as usize;
const WIDTH: usize = LOOKBACK + 1;

/// The sequences with one committed row and their draft rows.
pub fn conv_step<S: Simd>(simd: S, env: &Env<'_>, op: &Op, written: &mut Written, shared: &mut Memory) {
    let Op::ConvStep { x, weight, window, out, shape } = *op else { unreachable!("dispatched by kind") };
    let conv = Conv { x, weight, window, out, shape };
    conv.run(simd, env, &env.steps(shape), written, shared);
}

/// The chunk list: all rows committed, none pending.
pub fn conv_chunk<S: Simd>(simd: S, env: &Env<'_>, op: &Op, written: &mut Written, shared: &mut Memory) {
    let Op::ConvChunk { x, weight, window, out, shape } = *op else { unreachable!("dispatched by kind") };
    let conv = Conv { x, weight, window, out, shape };
    conv.run(simd, env, &env.chunks(), written, shared);
}

struct Conv {
    x: Tensor,
    weight: Tensor,
    window: Tensor,
    out: Tensor,
    shape: DeltaShape,
}

impl Conv {
    fn run<S: Simd>(&self, simd: S, env: &Env<'_>, runs: &[Run], written: &mut Written, shared: &mut Memory) {
        if runs.is_empty() {
            return;
        }
        let cols = self.shape.conv_cols() as usize;
        let rows: usize = runs.iter().map(|run| run.committed + run.drafts).sum();
        let padded = cols.next_multiple_of(TILE_COLS);
        let [taps, raw] = shared.parts([WIDTH * padded, WIDTH * cols]);
        env.widen(simd, self.weight, raw);
        for (tap, taps) in taps.chunks_exact_mut(padded).enumerate() {
            for (to, weights) in taps.iter_mut().zip(raw.chunks_exact(WIDTH)) {
                *to = weights[tap];
            }
            taps[cols..].fill(0.0);
        }
        let taps = &*taps;
        let x = env.view(self.x);
        let window_rows = self.shape.window_rows() as usize;
        let [window, out] = written.blocks([self.window, self.out]);
        let work = 16 * rows * cols;
        let width = if env.team.shares(work) { TILE_COLS } else { padded };
        let tiles = window.column_blocks(width).zip(out.column_blocks(width));
        env.team.each(work, tiles.enumerate(), |(index, (mut window, mut out)), scratch| {
            let first = index * width;
            let tile = out.cols();
            let stride = tile.next_multiple_of(LANES);
            let [inputs, sums] = scratch.floats.parts([WIDTH * stride, stride]);
            let taps: [&[f32]; WIDTH] = std::array::from_fn(|tap| &taps[tap * padded + first..][..stride]);
            simd.enter(
                #[inline(always)]
                || {
                    for run in runs {
                        let mut tile = Tile { x, first, window: &mut window, window_row: run.slot * window_rows };
                        tile.convolve(simd, run, &taps, inputs, sums, &mut out);
                        tile.keep_inputs(simd, run, sums);
                    }
                },
            );
        });
    }
}

/// A tile of channels of one run. Its inputs are numbered: 0, 1, 2 are the window's rows from `pending` on, 3 + t is
/// row t of x.
struct Tile<'a, 'b> {
    x: View<'a>,
    first: usize,
    window: &'a mut FloatBlock<'b>,
    window_row: usize,
}

impl Tile<'_, '_> {
    #[inline(always)]
    fn input<S: Simd>(&self, simd: S, run: &Run, index: usize, to: &mut [f32]) {
        let cols = self.window.cols();
        match index.checked_sub(LOOKBACK) {
            None => self.window.read(simd, self.window_row + run.pending + index, 0, cols, to),
            Some(row) => self.x.read(simd, run.first_row + row, self.first, cols, to),
        }
    }

    /// The one inner function of both ops: `out[t] = silu(sum_j taps[j] * input(t + j))`. `ring` keeps the last four
    /// inputs.
    #[inline(always)]
    fn convolve<S: Simd>(
        &self,
        simd: S,
        run: &Run,
        taps: &[&[f32]; WIDTH],
        ring: &mut [f32],
        sums: &mut [f32],
        out: &mut FloatBlock<'_>,
    ) {
        let stride = sums.len();
        for index in 0..LOOKBACK {
            self.input(simd, run, index, &mut ring[index * stride..][..stride]);
        }
        for row in 0..run.committed + run.drafts {
            self.input(simd, run, row + LOOKBACK, &mut ring[(row + LOOKBACK) % WIDTH * stride..][..stride]);
            let mut inputs: [&[[f32; LANES]]; WIDTH] = [&[]; WIDTH];
            for (tap, input) in inputs.iter_mut().enumerate() {
                *input = lanes::vectors(&ring[(row + tap) % WIDTH * stride..][..stride]);
            }
            for (index, to) in lanes::vectors_mut(sums).iter_mut().enumerate() {
                let mut sum = simd.splat(0.0);
                for tap in 0..WIDTH {
                    let weight = simd.load(&lanes::vectors(taps[tap])[index]);
                    sum = simd.fma(weight, simd.load(&inputs[tap][index]), sum);
                }
                simd.store(lanes::silu(simd, sum), to);
            }
            out.write(simd, run.first_row + row, 0, &sums[..self.window.cols()]);
        }
    }

    /// Leaves the last three committed inputs in the window, then those of the draft rows. Window row w takes input
    /// `committed + w`, which lies in a later row of the window or in x, so ascending order overwrites nothing needed.
    #[inline(always)]
    fn keep_inputs<S: Simd>(&mut self, simd: S, run: &Run, row: &mut [f32]) {
        let cols = self.window.cols();
        for kept in 0..LOOKBACK + run.drafts {
            self.input(simd, run, run.committed + kept, row);
            self.window.write(simd, self.window_row + kept, 0, &row[..cols]);
        }
    }
}
