//! Products of activations with weight matrices.
//!
//! Every sum of (row, weight row) is formed alike: lane l adds the products k = l, l + 16, ... in that order by fma, a
//! partial last vector is padded with zeros, then [`Simd::sum`]. Neither the number of rows, nor the tile a sum fell
//! in, nor the threads can change it; they only decide how many sums share a load.
//!
//! Threads split the weight rows into blocks. A few rows: the weights stream through once, n * k elements, widened in
//! registers, several weight rows in flight; bandwidth bound. More rows: a block is widened once to f32 scratch that
//! fits the second-level cache and meets all rows in register tiles; arithmetic bound from about a dozen rows on.

use std::ops::Range;

use super::env::Env;
use super::lanes::{self, Element, load_part};
use super::memory::{FloatBlock, Floats, Memory, View, Written};
use super::simd::{LANES, Simd};
use super::team::Scratch;
use crate::backend::{Op, RowSet, Tensor};

/// Weight bytes of one task where the weights are streamed: long enough to hide the queue, short enough to balance.
const STREAM_TASK_BYTES: usize = 128 << 10;
/// Floats of a widened weight block: half of a 512 KiB second-level cache.
const WIDE_BLOCK_FLOATS: usize = 64 << 10;
/// Up to here the weights are widened in registers, once per three rows, rather than to scratch.
const DIRECT_ROWS_MAX: usize = 6;
/// Elements of k that meet in the first-level cache: three rows of x and two weight rows take 20 KiB of 32.
const PANEL: usize = 1024;
const STRIP_ROWS_MAX: usize = 4;
/// Columns of a block where rows share it: enough tasks for the threads, sums small enough to stay in cache.
const BLOCK_COLS_MAX: usize = 64;

/// `out[r, out_col + j] = x[r] . weight[j]`.
pub fn matmul<S: Simd>(simd: S, env: &Env<'_>, op: &Op, written: &mut Written, shared: &mut Memory) {
    let Op::MatMul { rows, x, weight, out, out_col } = *op else { unreachable!("dispatched by kind") };
    let product = Product { rows, x, out_col, out };
    product.run(simd, env, env.view(weight), None, written, shared);
}

/// `out[r, out_col + j] = silu(x[r] . gate[j]) * (x[r] . up[j])`.
pub fn matmul_gate_up<S: Simd>(simd: S, env: &Env<'_>, op: &Op, written: &mut Written, shared: &mut Memory) {
    let Op::MatMulGateUp { rows, x, gate, up, out, out_col } = *op else { unreachable!("dispatched by kind") };
    let product = Product { rows, x, out_col, out };
    product.run(simd, env, env.view(gate), Some(env.view(up)), written, shared);
}

struct Product {
    rows: RowSet,
    x: Tensor,
    out_col: u32,
    out: Tensor,
}

impl Product {
    fn run<S: Simd>(
        &self,
        simd: S,
        env: &Env<'_>,
        weight: View<'_>,
        up: Option<View<'_>>,
        written: &mut Written,
        shared: &mut Memory,
    ) {
        let live = env.live(self.rows);
        let k = weight.cols;
        if live == 0 || k == 0 {
            return;
        }
        let n = weight.rows();
        let [out] = written.blocks([self.out]);
        let (_, out) = out.split_columns(self.out_col as usize);
        let (out, _) = out.split_columns(n);
        let (out, _) = out.split_rows(live);

        let stride = k.next_multiple_of(LANES);
        let [x] = shared.parts([live * stride]);
        let source = env.view(self.x);
        simd.enter(
            #[inline(always)]
            || x.chunks_exact_mut(stride).enumerate().for_each(|(row, to)| source.read(simd, row, 0, k, to)),
        );
        let rows = Rows { x, stride, live, k };

        let width = block_width(env, &rows, n, weight.element_bytes());
        let work = live * n * k * (1 + usize::from(up.is_some()));
        let tasks = out.column_blocks(width).enumerate();
        env.team.each(work, tasks, |(index, mut out), scratch| {
            let first = index * width;
            simd.enter(
                #[inline(always)]
                || block(simd, &rows, weight, up, first, &mut out, scratch),
            );
        });
    }
}

/// The activations, widened and padded: `[live, stride]`, of which `k` columns are real.
struct Rows<'a> {
    x: &'a [f32],
    stride: usize,
    live: usize,
    k: usize,
}

/// Weight rows per task. A choice about time only.
fn block_width(env: &Env<'_>, rows: &Rows<'_>, n: usize, element_bytes: usize) -> usize {
    let shared = n.div_ceil(2 * env.team.threads()).next_multiple_of(LANES);
    if rows.live <= DIRECT_ROWS_MAX {
        let streamed = (STREAM_TASK_BYTES / (rows.k * element_bytes)).max(LANES).next_multiple_of(LANES);
        streamed.min(shared)
    } else {
        let wide = (WIDE_BLOCK_FLOATS / rows.stride).clamp(4, BLOCK_COLS_MAX);
        wide.min(shared)
    }
}

/// One block of output columns: sums to scratch, then the epilogue, then one rounding.
#[inline(always)]
fn block<S: Simd>(
    simd: S,
    rows: &Rows<'_>,
    weight: View<'_>,
    up: Option<View<'_>>,
    first: usize,
    out: &mut FloatBlock<'_>,
    scratch: &mut Scratch,
) {
    let cols = out.cols();
    let sum_stride = cols.next_multiple_of(LANES);
    let sums_len = rows.live * sum_stride;
    let wide_len = if rows.live <= DIRECT_ROWS_MAX { 0 } else { cols * rows.stride };
    let up_len = if up.is_some() { sums_len } else { 0 };
    let partial_len = if wide_len > 0 { partial_floats(cols, rows.stride) } else { 0 };
    let [wide, partial, sums, up_sums] = scratch.floats.parts([wide_len, partial_len, sums_len, up_len]);
    products(simd, rows, weight, first..first + cols, [&mut *wide, &mut *partial], sums);
    if let Some(up) = up {
        products(simd, rows, up, first..first + cols, [wide, partial], up_sums);
    }
    for row in 0..rows.live {
        let sums = &mut sums[row * sum_stride..][..sum_stride];
        if up.is_some() {
            let up_sums = &up_sums[row * sum_stride..][..sum_stride];
            lanes::map_with(
                simd,
                sums,
                up_sums,
                #[inline(always)]
                |gate, up| simd.mul(lanes::silu(simd, gate), up),
            );
        }
        out.write(simd, row, 0, &sums[..cols]);
    }
}

/// Sums of all rows with the weight rows `cols`, to `[live, cols padded]`.
#[inline(always)]
fn products<S: Simd>(
    simd: S,
    rows: &Rows<'_>,
    weight: View<'_>,
    cols: Range<usize>,
    [wide, partial]: [&mut [f32]; 2],
    sums: &mut [f32],
) {
    let (first, cols) = (cols.start, cols.len());
    let x = (rows.x, rows.live, rows.stride);
    let sum_stride = cols.next_multiple_of(LANES);
    if rows.live <= DIRECT_ROWS_MAX {
        let range = first * rows.k..(first + cols) * rows.k;
        match weight.data {
            Floats::F32(data) => tiles(simd, x, (&data[range], cols, rows.k), (sums, sum_stride), &mut []),
            Floats::Bf16(data) => tiles(simd, x, (&data[range], cols, rows.k), (sums, sum_stride), &mut []),
        }
        return;
    }
    for (col, to) in wide.chunks_exact_mut(rows.stride).enumerate() {
        weight.read(simd, first + col, 0, rows.k, to);
    }
    tiles(simd, x, (&*wide, cols, rows.stride), (sums, sum_stride), partial);
}

/// The first `vectors` whole vectors of N rows that begin `stride` elements apart.
#[inline(always)]
fn parts<E, const N: usize>(rows: &[E], stride: usize, vectors: usize) -> [&[[E; LANES]]; N] {
    let mut parts: [&[[E; LANES]]; N] = [&[]; N];
    for (row, part) in parts.iter_mut().enumerate() {
        *part = rows[row * stride..][..vectors * LANES].as_chunks::<LANES>().0;
    }
    parts
}

/// `out[i, j] = x[i] . y[j]`. x: (floats, rows, stride), rows padded. y: (elements, rows, length of a row), rows not
/// padded. out has rows of `out_stride`. `partial` is scratch for long rows, [`partial_floats`] of it, or empty.
///
/// Register tiles of 3 x 2 sums where six accumulators of sixteen lanes fit, 4 x 4 where sixteen do, 1 x 4 for one row;
/// smaller at the edges, with the same sums.
#[inline(always)]
pub fn tiles<S: Simd, E: Element>(
    simd: S,
    (x, rows, stride): (&[f32], usize, usize),
    y: (&[E], usize, usize),
    (out, out_stride): (&mut [f32], usize),
    partial: &mut [f32],
) {
    let tile_rows = if S::ACCUMULATORS >= 16 { 4 } else { 3.min(S::ACCUMULATORS) };
    let mut row = 0;
    while row < rows {
        let left = rows - row;
        // 2 + 2 rows share loads better than 3 + 1.
        let height = if left == tile_rows + 1 && left > 2 { left / 2 } else { tile_rows.min(left) };
        let x = (&x[row * stride..][..height * stride], stride);
        let out = (&mut out[row * out_stride..], out_stride);
        match height {
            4 => strip::<S, E, 4>(simd, x, y, out, partial),
            3 => strip::<S, E, 3>(simd, x, y, out, partial),
            2 => strip::<S, E, 2>(simd, x, y, out, partial),
            _ => strip::<S, E, 1>(simd, x, y, out, partial),
        }
        row += height;
    }
}

/// Scratch that [`tiles`] takes to go through long rows in panels.
fn partial_floats(cols: usize, length: usize) -> usize {
    if length > PANEL { STRIP_ROWS_MAX * cols * LANES } else { 0 }
}

/// R rows of x against all of y, a panel of k at a time: all columns meet the panel of x while it is in the first-level
/// cache. Between panels the lanes wait in `partial`, so that every sum goes on where it stopped.
#[inline(always)]
fn strip<S: Simd, E: Element, const R: usize>(
    simd: S,
    (x, stride): (&[f32], usize),
    (y, cols, length): (&[E], usize, usize),
    (out, out_stride): (&mut [f32], usize),
    partial: &mut [f32],
) {
    let panel = if partial.is_empty() { length } else { PANEL };
    for start in (0..length).step_by(panel) {
        let range = start..length.min(start + panel);
        let mut col = 0;
        while col < cols {
            let left = cols - col;
            let wide = (R == 1 || S::ACCUMULATORS >= 16) && left >= 4;
            let width = if wide { 4 } else { left.min(2) };
            let y = (&y[col * length..][..width * length], length);
            let to = (&mut out[col..], out_stride);
            let lanes = partial.get_mut(col * R * LANES..(col + width) * R * LANES).unwrap_or_default();
            match width {
                4 => tile::<S, E, R, 4>(simd, (x, stride), y, range.clone(), to, lanes),
                2 => tile::<S, E, R, 2>(simd, (x, stride), y, range.clone(), to, lanes),
                _ => tile::<S, E, R, 1>(simd, (x, stride), y, range.clone(), to, lanes),
            }
            col += width;
        }
    }
}

/// The part `range` of k of R x C sums: from `partial` unless it is the first, to `partial` unless it is the last.
#[inline(always)]
fn tile<S: Simd, E: Element, const R: usize, const C: usize>(
    simd: S,
    (x, stride): (&[f32], usize),
    (y, length): (&[E], usize),
    range: Range<usize>,
    (out, out_stride): (&mut [f32], usize),
    partial: &mut [f32],
) {
    let partial = lanes::vectors_mut(partial);
    let mut sums = [[simd.splat(0.0); C]; R];
    if range.start > 0 {
        for row in 0..R {
            for col in 0..C {
                sums[row][col] = simd.load(&partial[row * C + col]);
            }
        }
    }
    let whole = range.len() / LANES;
    let xs: [&[[f32; LANES]]; R] = parts(&x[range.start..], stride, whole);
    let ys: [&[[E; LANES]]; C] = parts(&y[range.start..], length, whole);
    for index in 0..whole {
        if R == 1 {
            // One row only streams: ask for the next tile, as far ahead as this one is long.
            for y in ys {
                simd.prefetch(y, index + C * whole);
            }
        }
        let columns: [S::Lanes; C] = lanes::each(
            simd,
            #[inline(always)]
            |col| E::load(simd, &ys[col][index]),
        );
        for row in 0..R {
            let x = simd.load(&xs[row][index]);
            for col in 0..C {
                sums[row][col] = simd.fma(x, columns[col], sums[row][col]);
            }
        }
    }
    if range.end < length {
        for row in 0..R {
            for col in 0..C {
                simd.store(sums[row][col], &mut partial[row * C + col]);
            }
        }
        return;
    }
    let tail = range.start + whole * LANES;
    if tail < length {
        for row in 0..R {
            let x = load_part(simd, &x[row * stride + tail..][..LANES]);
            for col in 0..C {
                let y = load_part(simd, &y[col * length + tail..(col + 1) * length]);
                sums[row][col] = simd.fma(x, y, sums[row][col]);
            }
        }
    }
    reduce(simd, &sums, out, out_stride);
}

/// Lanes to sums; two rows, or four columns of one, share the last steps.
#[inline(always)]
fn reduce<S: Simd, const R: usize, const C: usize>(
    simd: S,
    sums: &[[S::Lanes; C]; R],
    out: &mut [f32],
    out_stride: usize,
) {
    if R == 1 && C == 4 {
        out[..4].copy_from_slice(&simd.sums([sums[0][0], sums[0][1 % C], sums[0][2 % C], sums[0][3 % C]]));
        return;
    }
    for row in (0..R).step_by(2) {
        let other = (row + 1).min(R - 1);
        for col in (0..C).step_by(2) {
            let next = (col + 1).min(C - 1);
            let four = [sums[row][col], sums[row][next], sums[other][col], sums[other][next]];
            let [a, b, c, d] = simd.sums(four);
            (out[row * out_stride + col], out[row * out_stride + next]) = (a, b);
            (out[other * out_stride + col], out[other * out_stride + next]) = (c, d);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::speed::Bench;
    use super::super::{CpuOptions, Isa};
    use crate::backend::{Op, RowSet};
    use crate::base::DType;

    /// All rows of one step of `rows` rows, as bytes of a bf16 or f32 output.
    fn outputs(isa: Isa, threads: usize, rows: usize, (n, k): (u32, u32), weight_type: DType, gated: bool) -> Vec<u8> {
        let mut bench = Bench::new(CpuOptions { threads: Some(threads), isa: Some(isa) }, 70);
        let x = bench.random("x", DType::Bf16, 70, k);
        let weight = bench.random("weight", weight_type, n, k);
        let up = bench.random("up", weight_type, n, k);
        let out = bench.random("out", DType::F32, 70, n + 3);
        let rows_set = RowSet::Target;
        bench.push(if gated {
            Op::MatMulGateUp { rows: rows_set, x, gate: weight, up, out, out_col: 2 }
        } else {
            Op::MatMul { rows: rows_set, x, weight, out, out_col: 2 }
        });
        bench.run(rows as u32);
        let all = bench.read(out);
        let row_bytes = (n as usize + 3) * 4;
        all[..rows * row_bytes].chunks(row_bytes).flat_map(|row| row[8..row_bytes - 4].to_vec()).collect()
    }

    #[test]
    fn a_sum_is_the_same_bits_for_any_rows_and_threads() {
        for isa in Isa::available() {
            for (n, k, weight_type, gated) in [
                (131, 200, DType::Bf16, false),
                (37, 512, DType::F32, false),
                (16, 16, DType::Bf16, false),
                (5, 7, DType::F32, false),
                (21, 2300, DType::Bf16, false),
                (131, 72, DType::Bf16, true),
            ] {
                let all = outputs(isa, 1, 70, (n, k), weight_type, gated);
                for rows in 1..=70 {
                    for threads in [1, 2] {
                        let some = outputs(isa, threads, rows, (n, k), weight_type, gated);
                        assert!(some == all[..some.len()], "{isa:?}: {rows} rows, {threads} threads, [{n}, {k}]");
                    }
                }
            }
        }
    }

    #[test]
    fn sums_are_near_those_in_f64() {
        for isa in Isa::available() {
            let (n, k) = (37u32, 515u32);
            let mut bench = Bench::new(CpuOptions { threads: Some(2), isa: Some(isa) }, 5);
            let x = bench.random("x", DType::F32, 5, k);
            let weight = bench.random("weight", DType::F32, n, k);
            let out = bench.random("out", DType::F32, 5, n);
            bench.push(Op::MatMul { rows: RowSet::Target, x, weight, out, out_col: 0 });
            bench.run(5);
            let floats = |bytes: Vec<u8>| bytemuck::pod_collect_to_vec::<u8, f32>(&bytes);
            let (x, weight, out) = (floats(bench.read(x)), floats(bench.read(weight)), floats(bench.read(out)));
            for (index, found) in out.iter().enumerate() {
                let (row, col) = (index / n as usize * k as usize, index % n as usize * k as usize);
                let products = (0..k as usize).map(|i| f64::from(x[row + i]) * f64::from(weight[col + i]));
                let exact: f64 = products.sum();
                assert!((f64::from(*found) - exact).abs() < 1e-4, "{isa:?} {index}: {found} {exact}");
            }
        }
    }
}
