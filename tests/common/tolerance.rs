//! How far a result may lie from the naive formula, per op and type, with the reason beside each number.
//!
//! Two measures, both against the size of the expected values: the RMS of the errors over the RMS of the values, which
//! sees a systematic loss of precision, and the worst cell, which sees one wrong cell among a million.

use std::collections::BTreeMap;
use std::sync::Mutex;

use deltic::base::DType;

use super::matrix::{Grid, Matrix};

struct Tolerance {
    /// RMS of the errors over the RMS of the expected values.
    relative_rms: f64,
    /// The worst error of one cell over the larger of its value and the RMS.
    cell: f64,
    /// Expected values with an RMS below this are judged by their absolute error, as if it were their RMS.
    tiny: f64,
}

const TINY: f64 = 1e-6;

/// One rounding to bf16 is off by at most half a unit of 2^-7, 3.91e-3 of the value, and by 0.29 units or about 1.7e-3
/// on average. A second rounding, or truncation, is at 1.4 times or double of that and fails.
const BF16: Tolerance = Tolerance { relative_rms: 2.0e-3, cell: 4.1e-3, tiny: TINY };

const fn f32_like(relative_rms: f64, cell: f64) -> Tolerance {
    Tolerance { relative_rms, cell, tiny: TINY }
}

fn tolerance(op: &str, dtype: DType) -> Tolerance {
    match (op, dtype) {
        // Angles are f32 by contract: at position 262,143 one unit in the last place of a frequency turns a pair by
        // 0.016 rad, and the frequency itself may be off by two.
        ("qk_norm_rope_far", DType::F32) => f32_like(1e-2, 5e-2),
        ("qk_norm_rope_far", DType::Bf16) => f32_like(1e-2, 5e-2),
        (_, DType::Bf16) => BF16,
        // Copies of table rows, widened.
        ("embed", DType::F32) => f32_like(0.0, 0.0),
        // One sum of squares and three multiplications; the sums of real widths are off by a few units.
        ("rms_norm" | "gated_norm" | "mtp_join", DType::F32) => f32_like(5e-7, 4e-6),
        // As the norms; the angles add position * 2^-24 * 2, at positions below 100 as good as nothing.
        ("qk_norm_rope", DType::F32) => f32_like(4e-6, 4e-5),
        // Sums of 5,120 products in f32 in any order of blocks: sqrt(5,120) * 2^-24 = 4e-6 of the RMS if one chain.
        ("matmul", DType::F32) => f32_like(2e-6, 2e-5),
        // Two such sums and an exponential of a device's own precision.
        ("matmul_gate_up", DType::F32) => f32_like(3e-6, 3e-5),
        // Scores are off by their own sum, the exponential passes it on, and the outputs are means, smaller than that.
        ("attention", DType::F32) => f32_like(3e-6, 3e-5),
        // Four products and one exponential.
        ("conv_step" | "conv_chunk", DType::F32) => f32_like(5e-7, 4e-6),
        // Three special functions of a device's own precision. A decay next to 0 counts by its absolute error: it is
        // added to 1, so 1e-7 is the last place, and not every device has a logarithm of 1 + x.
        ("delta_gates", DType::F32) => Tolerance { relative_rms: 1e-5, cell: 1e-5, tiny: 1e-2 },
        // Each row passes the errors of the last on, decayed.
        ("delta_step", DType::F32) => f32_like(2e-6, 2e-5),
        // The chunked form takes differences of prefix sums of log decays. With the decays of these cases the sums
        // reach -200, whose last place is 1.5e-5: `chunked_form` measures 1.2e-5 with every operation in f32.
        ("delta_chunk", DType::F32) => f32_like(3e-5, 3e-4),
        // One multiplication and one fma per record.
        ("fold_records", DType::F32) => f32_like(5e-7, 2e-6),
        // At most a division and four additions, against scores of magnitude 1 to 10.
        ("penalize", DType::F32) => f32_like(5e-7, 2e-6),
        // A logarithm of a sum of up to 248,320 exponentials, around 12.
        ("top_logprobs", DType::F32) => f32_like(2e-6, 1e-5),
        (_, DType::F32 | DType::U32) => panic!("no tolerance is written down for {op} {dtype}"),
    }
}

/// The largest share of each tolerance that was used, so that drift is seen before it fails.
#[derive(Default)]
pub struct Ledger(Mutex<BTreeMap<(&'static str, &'static str), f64>>);

impl Ledger {
    fn note(&self, op: &'static str, dtype: DType, share: f64) {
        let dtype = if dtype == DType::Bf16 { "bf16" } else { "f32" };
        let mut shares = self.0.lock().expect("no holder of the lock panics");
        let worst = shares.entry((op, dtype)).or_insert(0.0);
        *worst = worst.max(share);
    }

    /// One line: the share of each tolerance used. None if nothing was judged.
    pub fn summary(&self) -> Option<String> {
        let shares = self.0.lock().expect("no holder of the lock panics");
        let parts = shares.iter().map(|((op, dtype), share)| format!("{op} {dtype} {:.0} %", 100.0 * share));
        let parts: Vec<String> = parts.collect();
        (!parts.is_empty()).then(|| format!("tolerance used: {}", parts.join(", ")))
    }
}

/// Panics unless `found` is `expected` within the tolerance of `op`.
pub fn check(ledger: &Ledger, op: &'static str, what: &str, found: &Matrix, expected: &Grid) {
    assert_eq!((found.rows, found.cols), (expected.rows, expected.cols), "{what}: shape");
    let Tolerance { relative_rms, cell, tiny } = tolerance(op, found.dtype);
    let scale = rms(expected.cells.iter().copied()).max(tiny);
    assert!(scale.is_finite(), "{what}: the formula gives a value that is not finite");
    let mut worst = (0.0, 0);
    let mut squares = 0.0;
    for (at, (bits, wanted)) in found.bits.iter().zip(&expected.cells).enumerate() {
        let value = f64::from(f32::from_bits(*bits));
        let (row, col) = (at / found.cols, at % found.cols);
        assert!(value.is_finite(), "{what}[{row}, {col}] is {value}, expected {wanted:e}");
        let error = (value - wanted).abs();
        squares += error * error;
        let relative = error / wanted.abs().max(scale);
        if relative > worst.0 {
            worst = (relative, at);
        }
    }
    let cells = found.bits.len().max(1) as f64;
    let relative = (squares / cells).sqrt() / scale;
    // An average over few cells is no average.
    let relative_rms = (relative_rms * (1.0 + 3.0 / cells.sqrt())).min(cell);
    let share = share(worst.0, cell).max(share(relative, relative_rms));
    ledger.note(op, found.dtype, share);
    let (row, col) = (worst.1 / found.cols.max(1), worst.1 % found.cols.max(1));
    assert!(
        share <= 1.0,
        "{what} of {op} {}: relative RMS error {relative:.2e} (limit {relative_rms:.1e}), worst cell [{row}, {col}] is \
         {:e}, expected {:e}, off by {:.2e} (limit {cell:.1e})",
        found.dtype,
        f32::from_bits(found.bits[worst.1]),
        expected.cells[worst.1],
        worst.0,
    );
}

fn share(found: f64, limit: f64) -> f64 {
    if found == 0.0 { 0.0 } else { found / limit }
}

fn rms(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    (values.map(|value| value * value).sum::<f64>() / count).sqrt()
}
