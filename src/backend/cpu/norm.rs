//! Root-mean-square norms: RmsNorm, GatedNorm, MtpJoin, and QkNormRope with the rotation of positions.
//!
//! Threads take runs of rows, lanes the columns. A row is read and written once; bandwidth bound.

use super::env::{Env, Place};
use super::lanes;
use super::memory::{Memory, Written};
use super::simd::{LANES, Simd};
use crate::backend::Op;

/// `1 / sqrt(mean(x^2) + eps)` of a padded row with `count` real elements.
#[inline(always)]
fn inverse_rms<S: Simd>(simd: S, row: &[f32], count: usize, eps: f32) -> f32 {
    1.0 / (lanes::sum_of_squares(simd, row) / count as f32 + eps).sqrt()
}

/// `row * scale * (offset + weight)`, in place.
#[inline(always)]
fn apply_weight<S: Simd>(simd: S, row: &mut [f32], weight: &[f32], scale: f32, offset: f32) {
    let (scale, offset) = (simd.splat(scale), simd.splat(offset));
    lanes::map_with(
        simd,
        row,
        weight,
        #[inline(always)]
        |x, weight| simd.mul(simd.mul(x, scale), simd.add(offset, weight)),
    );
}

/// `x += add` where given, then `out = norm(x) * (1 + weight)`.
pub fn rms_norm<S: Simd>(simd: S, env: &Env<'_>, op: &Op, written: &mut Written, shared: &mut Memory) {
    let Op::RmsNorm { rows, add, x, weight, out, eps } = *op else { unreachable!("dispatched by kind") };
    let (live, cols) = (env.live(rows), x.cols as usize);
    let padded = cols.next_multiple_of(LANES);
    let [weight_row] = shared.parts([padded]);
    env.widen(simd, weight, weight_row);
    let weight = &*weight_row;
    let work = 4 * live * cols;
    let height = env.team.rows_per_task(live, work);

    if let Some(add) = add {
        let [x, out] = written.blocks([x, out]);
        let add = env.view(add);
        let x = x.split_rows(live).0.row_blocks(height);
        let out = out.split_rows(live).0.row_blocks(height);
        env.team.each(work, x.zip(out).enumerate(), |(index, (mut x, mut out)), scratch| {
            let [row, added] = scratch.floats.parts([padded, padded]);
            simd.enter(
                #[inline(always)]
                || {
                    for r in 0..x.rows() {
                        x.read(simd, r, 0, cols, row);
                        add.read(simd, index * height + r, 0, cols, added);
                        lanes::map_with(
                            simd,
                            row,
                            added,
                            #[inline(always)]
                            |x, add| simd.add(x, add),
                        );
                        x.write(simd, r, 0, &row[..cols]);
                        let scale = inverse_rms(simd, row, cols, eps);
                        apply_weight(simd, row, weight, scale, 1.0);
                        out.write(simd, r, 0, &row[..cols]);
                    }
                },
            );
        });
        return;
    }
    let [out] = written.blocks([out]);
    let x = env.view(x);
    let out = out.split_rows(live).0.row_blocks(height);
    env.team.each(work, out.enumerate(), |(index, mut out), scratch| {
        let [row] = scratch.floats.parts([padded]);
        simd.enter(
            #[inline(always)]
            || {
                for r in 0..out.rows() {
                    x.read(simd, index * height + r, 0, cols, row);
                    let scale = inverse_rms(simd, row, cols, eps);
                    apply_weight(simd, row, weight, scale, 1.0);
                    out.write(simd, r, 0, &row[..cols]);
                }
            },
        );
    });
}

/// Per value head: `out = norm(x) * weight * silu(z)`.
pub fn gated_norm<S: Simd>(simd: S, env: &Env<'_>, op: &Op, written: &mut Written, shared: &mut Memory) {
    let Op::GatedNorm { rows, x, gate, gate_col, weight, out, eps } = *op else { unreachable!("dispatched by kind") };
    let (live, cols, dim) = (env.live(rows), x.cols as usize, weight.cols as usize);
    let padded = dim.next_multiple_of(LANES);
    let [weight_row] = shared.parts([padded]);
    env.widen(simd, weight, weight_row);
    let weight = &*weight_row;
    let (x, gate, gate_col) = (env.view(x), env.view(gate), gate_col as usize);
    let work = 8 * live * cols;
    let height = env.team.rows_per_task(live, work);
    let [out] = written.blocks([out]);
    let out = out.split_rows(live).0.row_blocks(height);
    env.team.each(work, out.enumerate(), |(index, mut out), scratch| {
        let [head, z] = scratch.floats.parts([padded, padded]);
        simd.enter(
            #[inline(always)]
            || {
                for r in 0..out.rows() {
                    for col in (0..cols).step_by(dim) {
                        x.read(simd, index * height + r, col, dim, head);
                        gate.read(simd, index * height + r, gate_col + col, dim, z);
                        let scale = inverse_rms(simd, head, dim, eps);
                        apply_weight(simd, head, weight, scale, 0.0);
                        lanes::map_with(
                            simd,
                            head,
                            z,
                            #[inline(always)]
                            |x, z| simd.mul(x, lanes::silu(simd, z)),
                        );
                        out.write(simd, r, col, &head[..dim]);
                    }
                }
            },
        );
    });
}

/// `out = norm(embedding) * (1 + w_e) ++ norm(hidden) * (1 + w_h)`.
pub fn mtp_join<S: Simd>(simd: S, env: &Env<'_>, op: &Op, written: &mut Written, shared: &mut Memory) {
    let Op::MtpJoin { rows, embedding, hidden, embedding_weight, hidden_weight, out, eps } = *op else {
        unreachable!("dispatched by kind")
    };
    let (live, cols) = (env.live(rows), hidden.cols as usize);
    let padded = cols.next_multiple_of(LANES);
    let [first, second] = shared.parts([padded, padded]);
    env.widen(simd, embedding_weight, first);
    env.widen(simd, hidden_weight, second);
    let halves = [(env.view(embedding), &*first), (env.view(hidden), &*second)];
    let work = 8 * live * cols;
    let height = env.team.rows_per_task(live, work);
    let [out] = written.blocks([out]);
    let out = out.split_rows(live).0.row_blocks(height);
    env.team.each(work, out.enumerate(), |(index, mut out), scratch| {
        let [row] = scratch.floats.parts([padded]);
        simd.enter(
            #[inline(always)]
            || {
                for r in 0..out.rows() {
                    for (half, (source, weight)) in halves.iter().enumerate() {
                        source.read(simd, index * height + r, 0, cols, row);
                        let scale = inverse_rms(simd, row, cols, eps);
                        apply_weight(simd, row, weight, scale, 1.0);
                        out.write(simd, r, half * cols, &row[..cols]);
                    }
                }
            },
        );
    });
}

/// In place, per query and key head: norm, weight, rotation of the first `rotary_dims`.
///
/// Sine and cosine are computed once per row, in f64 from the f32 angle, and shared by its heads.
pub fn qk_norm_rope<S: Simd>(simd: S, env: &Env<'_>, op: &Op, written: &mut Written, shared: &mut Memory) {
    let Op::QkNormRope { rows, qkv, q_weight, k_weight, shape, rotary_dims, theta, eps } = *op else {
        unreachable!("dispatched by kind")
    };
    let places: Vec<Place> = env.places(rows).collect();
    let (live, dim) = (places.len(), shape.head_dim as usize);
    let padded = dim.next_multiple_of(LANES);
    let [q_row, k_row] = shared.parts([padded, padded]);
    env.widen(simd, q_weight, q_row);
    env.widen(simd, k_weight, k_row);
    let (q_row, k_row) = (&*q_row, &*k_row);
    let pairs = rotary_dims as usize / 2;
    let frequencies: Vec<f32> =
        (0..pairs).map(|d| f64::from(theta).powf(-2.0 * d as f64 / f64::from(rotary_dims)) as f32).collect();

    let queries = (0..shape.heads).map(|head| (2 * head * shape.head_dim, false));
    let keys = (0..shape.kv_heads).map(|head| (shape.query_cols() + head * shape.head_dim, true));
    let heads: Vec<(usize, &[f32])> =
        queries.chain(keys).map(|(col, key)| (col as usize, if key { k_row } else { q_row })).collect();

    let work = live * (8 * heads.len() * dim + 64 * pairs);
    let height = env.team.rows_per_task(live, work);
    let [qkv] = written.blocks([qkv]);
    let qkv = qkv.split_rows(live).0.row_blocks(height);
    env.team.each(work, qkv.enumerate(), |(index, mut qkv), scratch| {
        let [row, cos, sin] = scratch.floats.parts([padded, pairs, pairs]);
        simd.enter(
            #[inline(always)]
            || {
                for r in 0..qkv.rows() {
                    let position = places[index * height + r].position as f32;
                    for (pair, frequency) in frequencies.iter().enumerate() {
                        let (s, c) = f64::from(position * frequency).sin_cos();
                        (sin[pair], cos[pair]) = (s as f32, c as f32);
                    }
                    for (col, weight) in &heads {
                        qkv.read(simd, r, *col, dim, row);
                        let scale = inverse_rms(simd, row, dim, eps);
                        apply_weight(simd, row, weight, scale, 1.0);
                        rotate(row, cos, sin);
                        qkv.write(simd, r, *col, &row[..dim]);
                    }
                }
            },
        );
    });
}

/// Rotates pairs (d, d + pairs).
#[inline(always)]
fn rotate(row: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (low, high) = row.split_at_mut(cos.len());
    for (((low, high), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
    }
}
