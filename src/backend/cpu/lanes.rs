//! Rows of floats over sixteen lanes: conversions, sums, and the one implementation of each exponential.
//!
//! Rows in scratch are padded with zeros to whole vectors, so that an element goes through the same instructions
//! wherever it stands.

use super::simd::{LANES, Simd};
use crate::base::bf16;

/// An element of a weight: loaded sixteen at a time, widened.
pub trait Element: Copy + Sync {
    const ZERO: Self;
    fn load<S: Simd>(simd: S, from: &[Self; LANES]) -> S::Lanes;
}

impl Element for f32 {
    const ZERO: f32 = 0.0;
    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[f32; LANES]) -> S::Lanes {
        simd.load(from)
    }
}

impl Element for bf16 {
    const ZERO: bf16 = bf16::ZERO;
    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[bf16; LANES]) -> S::Lanes {
        simd.load_bf16(from)
    }
}

/// A partial vector, padded with zeros.
#[inline(always)]
pub fn load_part<S: Simd, E: Element>(simd: S, from: &[E]) -> S::Lanes {
    let mut padded = [E::ZERO; LANES];
    padded[..from.len()].copy_from_slice(from);
    E::load(simd, &padded)
}

/// bf16 to f32, exact. Equal lengths.
#[inline(always)]
pub fn widen<S: Simd>(simd: S, from: &[bf16], to: &mut [f32]) {
    let (whole, tail) = from.as_chunks::<LANES>();
    let (to_whole, to_tail) = to.as_chunks_mut::<LANES>();
    for (from, to) in whole.iter().zip(to_whole) {
        simd.store(simd.load_bf16(from), to);
    }
    for (from, to) in tail.iter().zip(to_tail) {
        *to = from.to_f32();
    }
}

/// f32 to bf16, to nearest even. Equal lengths.
#[inline(always)]
pub fn narrow<S: Simd>(simd: S, from: &[f32], to: &mut [bf16]) {
    let (whole, tail) = from.as_chunks::<LANES>();
    let (to_whole, to_tail) = to.as_chunks_mut::<LANES>();
    for (from, to) in whole.iter().zip(to_whole) {
        simd.store_bf16(simd.load(from), to);
    }
    for (from, to) in tail.iter().zip(to_tail) {
        *to = bf16::from_f32(*from);
    }
}

/// Sum of squares of a padded row.
#[inline(always)]
pub fn sum_of_squares<S: Simd>(simd: S, row: &[f32]) -> f32 {
    let mut sum = simd.splat(0.0);
    for chunk in vectors(row) {
        let x = simd.load(chunk);
        sum = simd.fma(x, x, sum);
    }
    simd.sum(sum)
}

/// `f` of every vector of a padded row, in place.
#[inline(always)]
pub fn map<S: Simd>(simd: S, row: &mut [f32], f: impl Fn(S::Lanes) -> S::Lanes) {
    for chunk in vectors_mut(row) {
        simd.store(f(simd.load(chunk)), chunk);
    }
}

/// `f` of every pair of vectors of two padded rows, into the first.
#[inline(always)]
pub fn map_with<S: Simd>(simd: S, row: &mut [f32], other: &[f32], f: impl Fn(S::Lanes, S::Lanes) -> S::Lanes) {
    for (chunk, other) in vectors_mut(row).iter_mut().zip(vectors(other)) {
        simd.store(f(simd.load(chunk), simd.load(other)), chunk);
    }
}

/// A padded row as whole vectors.
#[inline(always)]
pub fn vectors(row: &[f32]) -> &[[f32; LANES]] {
    let (whole, tail) = row.as_chunks::<LANES>();
    debug_assert!(tail.is_empty(), "a row of {} is not padded", row.len());
    whole
}

#[inline(always)]
pub fn vectors_mut(row: &mut [f32]) -> &mut [[f32; LANES]] {
    let (whole, tail) = row.as_chunks_mut::<LANES>();
    debug_assert!(tail.is_empty(), "a row is not padded");
    whole
}

/// `N` vectors, each by its index. Not `array::from_fn`, which is not always inlined.
#[inline(always)]
pub fn each<S: Simd, const N: usize>(simd: S, one: impl Fn(usize) -> S::Lanes) -> [S::Lanes; N] {
    let mut all = [simd.splat(0.0); N];
    for (index, lanes) in all.iter_mut().enumerate() {
        *lanes = one(index);
    }
    all
}

/// Arguments outside are clamped, so that the power of two stays a normal number; NaN stays NaN.
const EXP_ARGUMENT_MIN: f32 = -87.3;
const EXP_ARGUMENT_MAX: f32 = 88.3;
/// Adding it leaves the nearest integer in the low bits.
const ROUNDING_BIAS: f32 = 12_582_912.0;
/// ln 2 in two parts; the first has few enough bits that a product with an exponent is exact.
const LN_2_HIGH: f32 = 355.0 / 512.0;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// e^x: x = n ln 2 + r with |r| <= ln 2 / 2, and the Taylor polynomial of degree 7 for e^r (truncation 5e-9).
#[inline(always)]
pub fn exp<S: Simd>(simd: S, x: S::Lanes) -> S::Lanes {
    let x = simd.min(simd.splat(EXP_ARGUMENT_MAX), simd.max(simd.splat(EXP_ARGUMENT_MIN), x));
    let biased = simd.fma(x, simd.splat(std::f32::consts::LOG2_E), simd.splat(ROUNDING_BIAS));
    let n = simd.sub(biased, simd.splat(ROUNDING_BIAS));
    let r = simd.fma(n, simd.splat(-LN_2_HIGH), x);
    let r = simd.fma(n, simd.splat(-LN_2_LOW), r);
    let mut sum = simd.splat(1.0 / 5040.0);
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = simd.fma(sum, r, simd.splat(coefficient));
    }
    simd.mul(sum, simd.power_of_two(biased))
}

/// e^x of one number, by the same instructions.
#[inline(always)]
pub fn exp_one<S: Simd>(simd: S, x: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    simd.store(exp(simd, simd.splat(x)), &mut lanes);
    lanes[0]
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid<S: Simd>(simd: S, x: S::Lanes) -> S::Lanes {
    simd.div(simd.splat(1.0), one_plus_exp_of_negative(simd, x))
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub fn silu<S: Simd>(simd: S, x: S::Lanes) -> S::Lanes {
    simd.div(x, one_plus_exp_of_negative(simd, x))
}

#[inline(always)]
fn one_plus_exp_of_negative<S: Simd>(simd: S, x: S::Lanes) -> S::Lanes {
    simd.add(simd.splat(1.0), exp(simd, simd.sub(simd.splat(0.0), x)))
}

#[cfg(test)]
mod tests {
    use super::super::simd::{Baseline, Isa, Level};
    use super::*;

    fn worst_relative_error<S: Simd>(simd: S) -> f64 {
        simd.enter(|| {
            (-87_000..=88_000).fold(0.0f64, |worst, milli| {
                let x = milli as f32 / 1000.0;
                let exact = f64::from(x).exp();
                worst.max((f64::from(exp_one(simd, x)) - exact).abs() / exact)
            })
        })
    }

    #[test]
    fn exp_is_within_two_units_of_the_last_place_and_keeps_nan() {
        let mut worst = vec![worst_relative_error(Baseline)];
        for isa in Isa::available() {
            match Level::of(isa).expect("it is available") {
                Level::Baseline(_) => {}
                #[cfg(target_arch = "x86_64")]
                Level::Avx2(simd) => worst.push(worst_relative_error(simd)),
                #[cfg(target_arch = "x86_64")]
                Level::Avx512(simd) => worst.push(worst_relative_error(simd)),
                #[cfg(target_arch = "aarch64")]
                Level::Neon(simd) => worst.push(worst_relative_error(simd)),
            }
        }
        assert!(worst.iter().all(|error| *error < 2.4e-7), "{worst:?}");
        assert!(exp_one(Baseline, f32::NAN).is_nan());
        assert_eq!(exp_one(Baseline, 0.0), 1.0);
        assert!(exp_one(Baseline, f32::NEG_INFINITY) < 2e-38);
        assert!(exp_one(Baseline, f32::INFINITY) > 1e38);
    }

    #[test]
    fn silu_and_sigmoid_have_their_limits() {
        let at = |x: f32| {
            let (mut s, mut g) = ([0.0; LANES], [0.0; LANES]);
            Baseline.store(silu(Baseline, Baseline.splat(x)), &mut s);
            Baseline.store(sigmoid(Baseline, Baseline.splat(x)), &mut g);
            (s[0], g[0])
        };
        assert_eq!(at(0.0), (0.0, 0.5));
        assert_eq!(at(100.0), (100.0, 1.0));
        assert!(at(-100.0).0.abs() < 1e-35 && at(-100.0).1 < 1e-37);
    }
}
