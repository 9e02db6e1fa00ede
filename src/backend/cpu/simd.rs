//! The one file with `unsafe`: sixteen f32 lanes on four instruction sets, and matrices cut into disjoint blocks.
//!
//! A kernel is written once over [`Simd`]. Its body runs inside [`Simd::enter`], which is compiled for the instruction
//! set, so everything generic on the way must be `#[inline(always)]`: a function that is not inlined there would be
//! compiled for the baseline and call each instruction as a function. That rules out `array::map` and
//! `array::from_fn` over lanes. Lane l of an accumulator always holds the sum over
//! indices that are l modulo 16, and [`Simd::sum`] is one fixed tree, so vector width never changes a result; only the
//! baseline, which rounds between multiply and add, differs from the others.

#![allow(unsafe_code)]

use std::marker::PhantomData;

use crate::base::{Error, Result, bf16};

/// Lanes of every accumulator, on every instruction set.
pub const LANES: usize = 16;

/// An instruction set that has an instantiation of the kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// What the compiler assumes of every machine of this architecture; multiply and add are rounded separately.
    Baseline,
    Avx2,
    Avx512,
    Neon,
}

impl Isa {
    const ALL: [Isa; 4] = [Isa::Avx512, Isa::Avx2, Isa::Neon, Isa::Baseline];

    /// The best one that this machine has.
    pub fn detect() -> Isa {
        *Isa::available().first().expect("the baseline is always there")
    }

    /// Those that this machine has, best first.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| Level::of(*isa).is_some()).collect()
    }

    /// By name: baseline, avx2, avx512 or neon. An error if unknown or not on this machine.
    pub fn parse(name: &str) -> Result<Isa> {
        let here: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
        here.iter().position(|known| *known == name).map(|index| Isa::available()[index]).ok_or_else(|| {
            Error::input(
                format!("instruction set {name:?} is not available; this machine has {}", here.join(", ")),
                "choose one of these, or leave the choice out",
            )
        })
    }

    /// For a person: the name and what comes with it.
    pub fn description(self) -> &'static str {
        match self {
            Isa::Avx2 => "avx2+fma",
            Isa::Avx512 => "avx512f",
            other => other.name(),
        }
    }

    /// The name that [`Isa::parse`] takes.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Baseline => "baseline",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Neon => "neon",
        }
    }
}

/// Proof that this machine has an instruction set: its members can be made only by [`Level::of`].
#[derive(Clone, Copy)]
pub enum Level {
    Baseline(Baseline),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
}

impl Level {
    /// None where this machine lacks it.
    pub fn of(isa: Isa) -> Option<Level> {
        match isa {
            Isa::Baseline => Some(Level::Baseline(Baseline)),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Level::Avx2(Avx2(())))
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => (is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma"))
            .then_some(Level::Avx512(Avx512(()))),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => Some(Level::Neon(Neon(()))),
            _ => None,
        }
    }
}

/// Sixteen f32 lanes. A value of an implementing type proves that the machine has the instructions.
pub trait Simd: Copy + Send + Sync + 'static {
    type Lanes: Copy;

    /// Accumulators of sixteen lanes that fit in registers beside the operands of a multiply: picks the matmul tile.
    const ACCUMULATORS: usize;

    /// Runs `work` compiled for this instruction set; mark the closure `#[inline(always)]`.
    fn enter<R>(self, work: impl FnOnce() -> R) -> R;

    fn splat(self, value: f32) -> Self::Lanes;
    fn load(self, from: &[f32; LANES]) -> Self::Lanes;
    /// Widened, which is exact.
    fn load_bf16(self, from: &[bf16; LANES]) -> Self::Lanes;
    fn store(self, lanes: Self::Lanes, to: &mut [f32; LANES]);
    /// Rounded to nearest even; a NaN stays one.
    fn store_bf16(self, lanes: Self::Lanes, to: &mut [bf16; LANES]);

    fn add(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    fn sub(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    fn mul(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    fn div(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// `a > b ? a : b`: b where either is a NaN, so `max(limit, x)` keeps the NaN of x.
    fn max(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// `a < b ? a : b`: b where either is a NaN.
    fn min(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// `a * b + c`, rounded once except on the baseline.
    fn fma(self, a: Self::Lanes, b: Self::Lanes, c: Self::Lanes) -> Self::Lanes;
    /// 2^n for lanes that hold `1.5 * 2^23 + n`, n in -126 ..= 127: the sum leaves n in the low bits.
    fn power_of_two(self, biased: Self::Lanes) -> Self::Lanes;

    /// Sum of the lanes: halves (i, i + 8), then (i, i + 4), then `(0 + 1) + (2 + 3)`.
    fn sum(self, lanes: Self::Lanes) -> f32;
    /// [`Simd::sum`] of four, bit for bit, sharing the last steps.
    fn sums(self, lanes: [Self::Lanes; 4]) -> [f32; 4];
    /// Asks for the cache line at `from[index]`; out of range is allowed and does nothing harmful.
    fn prefetch<T>(self, from: &[T], index: usize);
}

/// Arrays and plain arithmetic: every machine.
#[derive(Clone, Copy)]
pub struct Baseline;

impl Simd for Baseline {
    type Lanes = [f32; LANES];
    const ACCUMULATORS: usize = 2;

    #[inline(always)]
    fn enter<R>(self, work: impl FnOnce() -> R) -> R {
        work()
    }
    #[inline(always)]
    fn splat(self, value: f32) -> [f32; LANES] {
        [value; LANES]
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> [f32; LANES] {
        *from
    }
    #[inline(always)]
    fn load_bf16(self, from: &[bf16; LANES]) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        for (lane, value) in lanes.iter_mut().zip(from) {
            *lane = f32::from_bits(u32::from(value.to_bits()) << 16);
        }
        lanes
    }
    #[inline(always)]
    fn store(self, lanes: [f32; LANES], to: &mut [f32; LANES]) {
        *to = lanes;
    }
    #[inline(always)]
    fn store_bf16(self, lanes: [f32; LANES], to: &mut [bf16; LANES]) {
        for (to, lane) in to.iter_mut().zip(lanes) {
            *to = round_to_bf16(lane);
        }
    }
    #[inline(always)]
    fn add(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        pairwise(
            a,
            b,
            #[inline(always)]
            |a, b| a + b,
        )
    }
    #[inline(always)]
    fn sub(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        pairwise(
            a,
            b,
            #[inline(always)]
            |a, b| a - b,
        )
    }
    #[inline(always)]
    fn mul(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        pairwise(
            a,
            b,
            #[inline(always)]
            |a, b| a * b,
        )
    }
    #[inline(always)]
    fn div(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        pairwise(
            a,
            b,
            #[inline(always)]
            |a, b| a / b,
        )
    }
    #[inline(always)]
    fn max(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        pairwise(
            a,
            b,
            #[inline(always)]
            |a, b| if a > b { a } else { b },
        )
    }
    #[inline(always)]
    fn min(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        pairwise(
            a,
            b,
            #[inline(always)]
            |a, b| if a < b { a } else { b },
        )
    }
    #[inline(always)]
    fn fma(self, a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> [f32; LANES] {
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn power_of_two(self, biased: [f32; LANES]) -> [f32; LANES] {
        let mut powers = biased;
        for power in &mut powers {
            *power = f32::from_bits((power.to_bits() << 23).wrapping_add(0x3f80_0000));
        }
        powers
    }
    #[inline(always)]
    fn sum(self, lanes: [f32; LANES]) -> f32 {
        let mut four = [0.0; 4];
        for (i, sum) in four.iter_mut().enumerate() {
            *sum = (lanes[i] + lanes[i + 8]) + (lanes[i + 4] + lanes[i + 12]);
        }
        (four[0] + four[1]) + (four[2] + four[3])
    }
    #[inline(always)]
    fn sums(self, lanes: [[f32; LANES]; 4]) -> [f32; 4] {
        [self.sum(lanes[0]), self.sum(lanes[1]), self.sum(lanes[2]), self.sum(lanes[3])]
    }
    #[inline(always)]
    fn prefetch<T>(self, _from: &[T], _index: usize) {}
}

#[inline(always)]
fn pairwise(mut a: [f32; LANES], b: [f32; LANES], one: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    for (a, b) in a.iter_mut().zip(b) {
        *a = one(*a, b);
    }
    a
}

/// Round to nearest even by adding just under half a unit of the last place that is kept.
#[inline(always)]
fn round_to_bf16(value: f32) -> bf16 {
    let bits = value.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    bf16::from_bits(if value.is_nan() { (bits >> 16) as u16 | 0x40 } else { rounded })
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{LANES, Simd};
    use crate::base::bf16;

    /// Two 256-bit halves.
    #[derive(Clone, Copy)]
    pub struct Avx2(pub(super) ());

    /// One 512-bit register.
    #[derive(Clone, Copy)]
    pub struct Avx512(pub(super) ());

    type Pair = (__m256, __m256);

    impl Avx2 {
        #[inline(always)]
        fn narrow_half(self, half: __m256) -> __m256i {
            // SAFETY: an Avx2 exists only where avx2 and fma were detected.
            unsafe {
                let bits = _mm256_castps_si256(half);
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
                let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
                let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(half, half));
                _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan))
            }
        }

        /// Lanes i + (i + 8) + (i + 4) + (i + 12), in the order of [`Simd::sum`].
        #[inline(always)]
        fn quarter(self, lanes: Pair) -> __m128 {
            // SAFETY: an Avx2 exists only where avx2 and fma were detected.
            unsafe {
                let eight = _mm256_add_ps(lanes.0, lanes.1);
                _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight))
            }
        }
    }

    impl Simd for Avx2 {
        type Lanes = Pair;
        const ACCUMULATORS: usize = 6;

        #[inline(always)]
        fn enter<R>(self, work: impl FnOnce() -> R) -> R {
            #[target_feature(enable = "avx2,fma")]
            fn inner<R>(work: impl FnOnce() -> R) -> R {
                work()
            }
            // SAFETY: an Avx2 exists only where avx2 and fma were detected.
            unsafe { inner(work) }
        }
        #[inline(always)]
        fn splat(self, value: f32) -> Pair {
            // SAFETY: avx2 was detected.
            let half = unsafe { _mm256_set1_ps(value) };
            (half, half)
        }
        #[inline(always)]
        fn load(self, from: &[f32; LANES]) -> Pair {
            // SAFETY: avx2 was detected; both loads lie within the sixteen elements and need no alignment.
            unsafe { (_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))) }
        }
        #[inline(always)]
        fn load_bf16(self, from: &[bf16; LANES]) -> Pair {
            let start = from.as_ptr().cast::<__m128i>();
            // SAFETY: avx2 was detected; two unaligned 16-byte loads cover exactly the sixteen elements.
            unsafe {
                let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(start));
                let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(start.add(1)));
                let widened = (_mm256_slli_epi32::<16>(low), _mm256_slli_epi32::<16>(high));
                (_mm256_castsi256_ps(widened.0), _mm256_castsi256_ps(widened.1))
            }
        }
        #[inline(always)]
        fn store(self, lanes: Pair, to: &mut [f32; LANES]) {
            // SAFETY: avx2 was detected; both stores lie within the sixteen elements and need no alignment.
            unsafe {
                _mm256_storeu_ps(to.as_mut_ptr(), lanes.0);
                _mm256_storeu_ps(to.as_mut_ptr().add(8), lanes.1);
            }
        }
        #[inline(always)]
        fn store_bf16(self, lanes: Pair, to: &mut [bf16; LANES]) {
            let (low, high) = (self.narrow_half(lanes.0), self.narrow_half(lanes.1));
            // SAFETY: avx2 was detected; the unaligned 32-byte store covers exactly the sixteen elements.
            unsafe {
                // packus works within 128-bit halves: 0 2 1 3 puts the four groups of four back in order.
                let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(low, high));
                _mm256_storeu_si256(to.as_mut_ptr().cast(), packed);
            }
        }
        #[inline(always)]
        fn add(self, a: Pair, b: Pair) -> Pair {
            // SAFETY: avx2 was detected.
            unsafe { (_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)) }
        }
        #[inline(always)]
        fn sub(self, a: Pair, b: Pair) -> Pair {
            // SAFETY: avx2 was detected.
            unsafe { (_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1)) }
        }
        #[inline(always)]
        fn mul(self, a: Pair, b: Pair) -> Pair {
            // SAFETY: avx2 was detected.
            unsafe { (_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)) }
        }
        #[inline(always)]
        fn div(self, a: Pair, b: Pair) -> Pair {
            // SAFETY: avx2 was detected.
            unsafe { (_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)) }
        }
        #[inline(always)]
        fn max(self, a: Pair, b: Pair) -> Pair {
            // SAFETY: avx2 was detected.
            unsafe { (_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1)) }
        }
        #[inline(always)]
        fn min(self, a: Pair, b: Pair) -> Pair {
            // SAFETY: avx2 was detected.
            unsafe { (_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1)) }
        }
        #[inline(always)]
        fn fma(self, a: Pair, b: Pair, c: Pair) -> Pair {
            // SAFETY: fma was detected.
            unsafe { (_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1)) }
        }
        #[inline(always)]
        fn power_of_two(self, biased: Pair) -> Pair {
            // SAFETY: avx2 was detected.
            unsafe {
                let one = _mm256_set1_epi32(0x3f80_0000);
                let low = _mm256_slli_epi32::<23>(_mm256_castps_si256(biased.0));
                let high = _mm256_slli_epi32::<23>(_mm256_castps_si256(biased.1));
                (_mm256_castsi256_ps(_mm256_add_epi32(low, one)), _mm256_castsi256_ps(_mm256_add_epi32(high, one)))
            }
        }
        #[inline(always)]
        fn sum(self, lanes: Pair) -> f32 {
            let four = self.quarter(lanes);
            // SAFETY: avx2 was detected.
            unsafe {
                let pairs = _mm_hadd_ps(four, four);
                _mm_cvtss_f32(_mm_hadd_ps(pairs, pairs))
            }
        }
        #[inline(always)]
        fn sums(self, lanes: [Pair; 4]) -> [f32; 4] {
            let (a, b) = (self.quarter(lanes[0]), self.quarter(lanes[1]));
            let (c, d) = (self.quarter(lanes[2]), self.quarter(lanes[3]));
            let mut sums = [0.0; 4];
            // SAFETY: avx2 was detected; the unaligned 16-byte store covers exactly the four elements.
            unsafe { _mm_storeu_ps(sums.as_mut_ptr(), _mm_hadd_ps(_mm_hadd_ps(a, b), _mm_hadd_ps(c, d))) };
            sums
        }
        #[inline(always)]
        fn prefetch<T>(self, from: &[T], index: usize) {
            // SAFETY: a prefetch touches no memory; the address may lie anywhere.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.as_ptr().wrapping_add(index).cast()) };
        }
    }

    impl Avx512 {
        #[inline(always)]
        fn quarter(self, lanes: __m512) -> __m128 {
            // SAFETY: an Avx512 exists only where avx512f, avx2 and fma were detected.
            unsafe {
                let high = _mm512_castpd_ps(_mm512_shuffle_f64x2::<0b11_10_11_10>(
                    _mm512_castps_pd(lanes),
                    _mm512_castps_pd(lanes),
                ));
                let eight = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_castps512_ps256(high));
                _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight))
            }
        }
    }

    impl Simd for Avx512 {
        type Lanes = __m512;
        const ACCUMULATORS: usize = 16;

        #[inline(always)]
        fn enter<R>(self, work: impl FnOnce() -> R) -> R {
            #[target_feature(enable = "avx512f,avx2,fma")]
            fn inner<R>(work: impl FnOnce() -> R) -> R {
                work()
            }
            // SAFETY: an Avx512 exists only where avx512f, avx2 and fma were detected.
            unsafe { inner(work) }
        }
        #[inline(always)]
        fn splat(self, value: f32) -> __m512 {
            // SAFETY: avx512f was detected.
            unsafe { _mm512_set1_ps(value) }
        }
        #[inline(always)]
        fn load(self, from: &[f32; LANES]) -> __m512 {
            // SAFETY: avx512f was detected; the unaligned load covers exactly the sixteen elements.
            unsafe { _mm512_loadu_ps(from.as_ptr()) }
        }
        #[inline(always)]
        fn load_bf16(self, from: &[bf16; LANES]) -> __m512 {
            // SAFETY: avx512f was detected; the unaligned 32-byte load covers exactly the sixteen elements.
            unsafe {
                let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
            }
        }
        #[inline(always)]
        fn store(self, lanes: __m512, to: &mut [f32; LANES]) {
            // SAFETY: avx512f was detected; the unaligned store covers exactly the sixteen elements.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), lanes) };
        }
        #[inline(always)]
        fn store_bf16(self, lanes: __m512, to: &mut [bf16; LANES]) {
            // SAFETY: avx512f was detected; the unaligned 32-byte store covers exactly the sixteen elements.
            unsafe {
                let bits = _mm512_castps_si512(lanes);
                let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
                let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(lanes, lanes);
                let quiet = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x40_0000));
                let narrow = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(quiet));
                _mm256_storeu_si256(to.as_mut_ptr().cast(), narrow);
            }
        }
        #[inline(always)]
        fn add(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: avx512f was detected.
            unsafe { _mm512_add_ps(a, b) }
        }
        #[inline(always)]
        fn sub(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: avx512f was detected.
            unsafe { _mm512_sub_ps(a, b) }
        }
        #[inline(always)]
        fn mul(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: avx512f was detected.
            unsafe { _mm512_mul_ps(a, b) }
        }
        #[inline(always)]
        fn div(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: avx512f was detected.
            unsafe { _mm512_div_ps(a, b) }
        }
        #[inline(always)]
        fn max(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: avx512f was detected.
            unsafe { _mm512_max_ps(a, b) }
        }
        #[inline(always)]
        fn min(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: avx512f was detected.
            unsafe { _mm512_min_ps(a, b) }
        }
        #[inline(always)]
        fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
            // SAFETY: avx512f was detected.
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        fn power_of_two(self, biased: __m512) -> __m512 {
            // SAFETY: avx512f was detected.
            unsafe {
                let shifted = _mm512_slli_epi32::<23>(_mm512_castps_si512(biased));
                _mm512_castsi512_ps(_mm512_add_epi32(shifted, _mm512_set1_epi32(0x3f80_0000)))
            }
        }
        #[inline(always)]
        fn sum(self, lanes: __m512) -> f32 {
            let four = self.quarter(lanes);
            // SAFETY: avx512f, and with it avx, was detected.
            unsafe {
                let pairs = _mm_hadd_ps(four, four);
                _mm_cvtss_f32(_mm_hadd_ps(pairs, pairs))
            }
        }
        #[inline(always)]
        fn sums(self, lanes: [__m512; 4]) -> [f32; 4] {
            let (a, b) = (self.quarter(lanes[0]), self.quarter(lanes[1]));
            let (c, d) = (self.quarter(lanes[2]), self.quarter(lanes[3]));
            let mut sums = [0.0; 4];
            // SAFETY: avx was detected; the unaligned 16-byte store covers exactly the four elements.
            unsafe { _mm_storeu_ps(sums.as_mut_ptr(), _mm_hadd_ps(_mm_hadd_ps(a, b), _mm_hadd_ps(c, d))) };
            sums
        }
        #[inline(always)]
        fn prefetch<T>(self, from: &[T], index: usize) {
            // SAFETY: a prefetch touches no memory; the address may lie anywhere.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.as_ptr().wrapping_add(index).cast()) };
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub use arm::Neon;

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::*;

    use super::{LANES, Simd};
    use crate::base::bf16;

    /// Four 128-bit quarters.
    #[derive(Clone, Copy)]
    pub struct Neon(pub(super) ());

    type Four = [float32x4_t; 4];

    /// One quarter's worth of a two-operand instruction, on all four.
    #[inline(always)]
    fn each(a: Four, b: Four, one: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> Four {
        [one(a[0], b[0]), one(a[1], b[1]), one(a[2], b[2]), one(a[3], b[3])]
    }

    impl Neon {
        #[inline(always)]
        fn quarter(self, lanes: Four) -> float32x4_t {
            // SAFETY: every aarch64 target has neon.
            unsafe { vaddq_f32(vaddq_f32(lanes[0], lanes[2]), vaddq_f32(lanes[1], lanes[3])) }
        }
    }

    impl Simd for Neon {
        type Lanes = Four;
        const ACCUMULATORS: usize = 6;

        #[inline(always)]
        fn enter<R>(self, work: impl FnOnce() -> R) -> R {
            work()
        }
        #[inline(always)]
        fn splat(self, value: f32) -> Four {
            // SAFETY: every aarch64 target has neon.
            [unsafe { vdupq_n_f32(value) }; 4]
        }
        #[inline(always)]
        fn load(self, from: &[f32; LANES]) -> Four {
            let start = from.as_ptr();
            // SAFETY: neon is there; four loads of four cover exactly the sixteen elements.
            unsafe { [vld1q_f32(start), vld1q_f32(start.add(4)), vld1q_f32(start.add(8)), vld1q_f32(start.add(12))] }
        }
        #[inline(always)]
        fn load_bf16(self, from: &[bf16; LANES]) -> Four {
            let start = from.as_ptr().cast::<u16>();
            // SAFETY: neon is there; four loads of four 16-bit words cover exactly the sixteen elements.
            unsafe {
                [
                    vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(start))),
                    vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(start.add(4)))),
                    vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(start.add(8)))),
                    vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(start.add(12)))),
                ]
            }
        }
        #[inline(always)]
        fn store(self, lanes: Four, to: &mut [f32; LANES]) {
            for (part, chunk) in lanes.into_iter().zip(to.chunks_exact_mut(4)) {
                // SAFETY: neon is there; the chunk has four elements.
                unsafe { vst1q_f32(chunk.as_mut_ptr(), part) };
            }
        }
        #[inline(always)]
        fn store_bf16(self, lanes: Four, to: &mut [bf16; LANES]) {
            for (part, chunk) in lanes.into_iter().zip(to.chunks_exact_mut(4)) {
                // SAFETY: neon is there; the chunk has four 16-bit elements.
                unsafe {
                    let bits = vreinterpretq_u32_f32(part);
                    let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
                    let rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
                    let quiet = vorrq_u32(bits, vdupq_n_u32(0x40_0000));
                    let kept = vbslq_u32(vceqq_f32(part, part), rounded, quiet);
                    vst1_u16(chunk.as_mut_ptr().cast(), vshrn_n_u32::<16>(kept));
                }
            }
        }
        #[inline(always)]
        fn add(self, a: Four, b: Four) -> Four {
            // SAFETY: every aarch64 target has neon.
            each(
                a,
                b,
                #[inline(always)]
                |a, b| unsafe { vaddq_f32(a, b) },
            )
        }
        #[inline(always)]
        fn sub(self, a: Four, b: Four) -> Four {
            // SAFETY: every aarch64 target has neon.
            each(
                a,
                b,
                #[inline(always)]
                |a, b| unsafe { vsubq_f32(a, b) },
            )
        }
        #[inline(always)]
        fn mul(self, a: Four, b: Four) -> Four {
            // SAFETY: every aarch64 target has neon.
            each(
                a,
                b,
                #[inline(always)]
                |a, b| unsafe { vmulq_f32(a, b) },
            )
        }
        #[inline(always)]
        fn div(self, a: Four, b: Four) -> Four {
            // SAFETY: every aarch64 target has neon.
            each(
                a,
                b,
                #[inline(always)]
                |a, b| unsafe { vdivq_f32(a, b) },
            )
        }
        #[inline(always)]
        fn max(self, a: Four, b: Four) -> Four {
            // Not vmaxq: that returns the NaN of either operand, where the contract takes b.
            // SAFETY: every aarch64 target has neon.
            each(
                a,
                b,
                #[inline(always)]
                |a, b| unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) },
            )
        }
        #[inline(always)]
        fn min(self, a: Four, b: Four) -> Four {
            // SAFETY: every aarch64 target has neon.
            each(
                a,
                b,
                #[inline(always)]
                |a, b| unsafe { vbslq_f32(vcltq_f32(a, b), a, b) },
            )
        }
        #[inline(always)]
        fn fma(self, a: Four, b: Four, c: Four) -> Four {
            // SAFETY: every aarch64 target has neon.
            unsafe {
                [
                    vfmaq_f32(c[0], a[0], b[0]),
                    vfmaq_f32(c[1], a[1], b[1]),
                    vfmaq_f32(c[2], a[2], b[2]),
                    vfmaq_f32(c[3], a[3], b[3]),
                ]
            }
        }
        #[inline(always)]
        fn power_of_two(self, biased: Four) -> Four {
            let mut powers = biased;
            for power in &mut powers {
                // SAFETY: every aarch64 target has neon.
                *power = unsafe {
                    let shifted = vshlq_n_u32::<23>(vreinterpretq_u32_f32(*power));
                    vreinterpretq_f32_u32(vaddq_u32(shifted, vdupq_n_u32(0x3f80_0000)))
                };
            }
            powers
        }
        #[inline(always)]
        fn sum(self, lanes: Four) -> f32 {
            let four = self.quarter(lanes);
            // SAFETY: every aarch64 target has neon.
            unsafe {
                let pairs = vpaddq_f32(four, four);
                vgetq_lane_f32::<0>(vpaddq_f32(pairs, pairs))
            }
        }
        #[inline(always)]
        fn sums(self, lanes: [Four; 4]) -> [f32; 4] {
            let (a, b) = (self.quarter(lanes[0]), self.quarter(lanes[1]));
            let (c, d) = (self.quarter(lanes[2]), self.quarter(lanes[3]));
            let mut sums = [0.0; 4];
            // SAFETY: neon is there; the store covers exactly the four elements.
            unsafe { vst1q_f32(sums.as_mut_ptr(), vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d))) };
            sums
        }
        #[inline(always)]
        fn prefetch<T>(self, _from: &[T], _index: usize) {}
    }
}

/// A rectangle of a row-major matrix that nothing else can reach. Splitting one gives disjoint rectangles, which is how
/// threads write to the columns of the same rows.
pub struct Block<'a, T> {
    start: *mut T,
    rows: usize,
    cols: usize,
    stride: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: a block is an exclusive borrow of its elements, like the `&mut [T]` it came from.
unsafe impl<T: Send> Send for Block<'_, T> {}

// SAFETY: a shared block gives out shared slices only.
unsafe impl<T: Sync> Sync for Block<'_, T> {}

impl<'a, T> Block<'a, T> {
    /// The whole of `data` as `[len / cols, cols]`.
    pub fn new(data: &'a mut [T], cols: usize) -> Block<'a, T> {
        assert!(cols > 0 && data.len().is_multiple_of(cols), "{} elements in rows of {cols}", data.len());
        let rows = data.len() / cols;
        Block { start: data.as_mut_ptr(), rows, cols, stride: cols, owner: PhantomData }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    #[inline(always)]
    pub fn row(&self, row: usize) -> &[T] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: `new` and the splits keep `rows x cols` elements at this stride inside one exclusive borrow, whose
        // lifetime outlives self; the shared borrow of self keeps `row_mut` away.
        unsafe { std::slice::from_raw_parts(self.start.add(row * self.stride), self.cols) }
    }

    #[inline(always)]
    pub fn row_mut(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: as in `row`; no other block holds these elements, and self is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.stride), self.cols) }
    }

    /// The columns before `at` and those from it on.
    pub fn split_columns(self, at: usize) -> (Block<'a, T>, Block<'a, T>) {
        assert!(at <= self.cols, "column {at} of {}", self.cols);
        let right = Block { start: self.start.wrapping_add(at), cols: self.cols - at, ..self.parts() };
        (Block { cols: at, ..self }, right)
    }

    /// The rows before `at` and those from it on.
    pub fn split_rows(self, at: usize) -> (Block<'a, T>, Block<'a, T>) {
        assert!(at <= self.rows, "row {at} of {}", self.rows);
        let below = Block { start: self.start.wrapping_add(at * self.stride), rows: self.rows - at, ..self.parts() };
        (Block { rows: at, ..self }, below)
    }

    /// Column blocks of `width`, the last one narrower where it does not divide.
    pub fn column_blocks(self, width: usize) -> impl Iterator<Item = Block<'a, T>> + Send
    where
        T: Send,
    {
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let block = rest.take().filter(|block| block.cols > 0)?;
            let at = width.min(block.cols);
            let (left, right) = block.split_columns(at);
            rest = Some(right);
            Some(left)
        })
    }

    /// Row blocks of `height`, the last one lower where it does not divide.
    pub fn row_blocks(self, height: usize) -> impl Iterator<Item = Block<'a, T>> + Send
    where
        T: Send,
    {
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let block = rest.take().filter(|block| block.rows > 0)?;
            let at = height.min(block.rows);
            let (upper, lower) = block.split_rows(at);
            rest = Some(lower);
            Some(upper)
        })
    }

    /// The same fields, for a split that hands each element to one side only.
    fn parts(&self) -> Block<'a, T> {
        Block { owner: PhantomData, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every operation of one instruction set, lane by lane against scalar arithmetic.
    fn check_lanes<S: Simd>(simd: S) {
        let a: [f32; LANES] = std::array::from_fn(|i| (i as f32 - 7.3) * 1.37);
        let b: [f32; LANES] = std::array::from_fn(|i| 0.6 + (i as f32) * 0.21);
        let c: [f32; LANES] = std::array::from_fn(|i| 3.0 - (i as f32) * 0.77);
        simd.enter(|| {
            let (va, vb, vc) = (simd.load(&a), simd.load(&b), simd.load(&c));
            let out = |lanes: S::Lanes| {
                let mut to = [0.0; LANES];
                simd.store(lanes, &mut to);
                to
            };
            for i in 0..LANES {
                assert_eq!(out(simd.splat(b[i])), [b[i]; LANES]);
                assert_eq!(out(simd.add(va, vb))[i], a[i] + b[i]);
                assert_eq!(out(simd.sub(va, vb))[i], a[i] - b[i]);
                assert_eq!(out(simd.mul(va, vb))[i], a[i] * b[i]);
                assert_eq!(out(simd.div(va, vb))[i], a[i] / b[i]);
                assert_eq!(out(simd.max(va, vc))[i], a[i].max(c[i]));
                assert_eq!(out(simd.min(va, vc))[i], a[i].min(c[i]));
                let exact = f64::from(a[i]) * f64::from(b[i]) + f64::from(c[i]);
                assert!((f64::from(out(simd.fma(va, vb, vc))[i]) - exact).abs() < 1e-5);
            }
            let nan = simd.splat(f32::NAN);
            assert!(out(simd.max(va, nan))[0].is_nan() && out(simd.min(va, nan))[0].is_nan());
            assert_eq!(out(simd.max(nan, va)), a);
            assert_eq!(out(simd.min(nan, va)), a);
            let biased = simd.add(simd.splat(12_582_912.0), simd.splat(-126.0));
            assert_eq!(out(simd.power_of_two(biased)), [2f32.powi(-126); LANES]);
            assert_eq!(simd.sum(va), Baseline.sum(a));
            assert_eq!(simd.sums([va, vb, vc, va]), [a, b, c, a].map(|lanes| Baseline.sum(lanes)));
        });
    }

    /// Rounding and widening against the `half` crate over all kinds of values.
    fn check_bf16<S: Simd>(simd: S) {
        let mut bits = 0x1234_5678u32;
        for round in 0..20_000 {
            let values: [f32; LANES] = std::array::from_fn(|i| {
                bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                match (round + i) % 50 {
                    0 => f32::INFINITY,
                    1 => f32::MAX,
                    2 => f32::from_bits(bits & 0xffff_0000 | 0x8000),
                    3 => f32::from_bits(0x7f80_0001),
                    4 => -0.0,
                    _ => f32::from_bits(bits),
                }
            });
            simd.enter(|| {
                let mut narrow = [bf16::ZERO; LANES];
                simd.store_bf16(simd.load(&values), &mut narrow);
                let mut wide = [0.0; LANES];
                simd.store(simd.load_bf16(&narrow), &mut wide);
                for i in 0..LANES {
                    let expected = bf16::from_f32(values[i]);
                    assert!(narrow[i] == expected || narrow[i].is_nan() && expected.is_nan(), "{:?}", values[i]);
                    assert!(wide[i] == expected.to_f32() || wide[i].is_nan());
                }
            });
        }
    }

    #[test]
    fn lanes_of_every_available_instruction_set_agree_with_scalars() {
        for isa in Isa::available() {
            match Level::of(isa).expect("it is available") {
                Level::Baseline(simd) => (check_lanes(simd), check_bf16(simd)),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2(simd) => (check_lanes(simd), check_bf16(simd)),
                #[cfg(target_arch = "x86_64")]
                Level::Avx512(simd) => (check_lanes(simd), check_bf16(simd)),
                #[cfg(target_arch = "aarch64")]
                Level::Neon(simd) => (check_lanes(simd), check_bf16(simd)),
            };
        }
    }

    #[test]
    fn an_unknown_instruction_set_is_refused_with_those_there_are() {
        let error = Isa::parse("mmx").unwrap_err();
        assert!(error.what().contains("\"mmx\"") && error.what().contains("baseline"), "{error}");
        assert_eq!(Isa::parse(Isa::detect().name()), Ok(Isa::detect()));
    }

    #[test]
    fn blocks_cover_a_matrix_once() {
        let mut data = vec![0u32; 5 * 7];
        let (upper, lower) = Block::new(&mut data, 7).split_rows(2);
        for (number, mut block) in upper.column_blocks(3).chain(lower.row_blocks(2)).enumerate() {
            for row in 0..block.rows() {
                block.row_mut(row).iter_mut().for_each(|cell| *cell += number as u32 + 1);
            }
        }
        assert_eq!(data[..14], [1, 1, 1, 2, 2, 2, 3, 1, 1, 1, 2, 2, 2, 3]);
        assert_eq!(data[14..], [[4u32; 14].as_slice(), &[5; 7]].concat());
    }
}
