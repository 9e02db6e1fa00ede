//! The counter-based generator behind sampling: a value depends on (seed, choice, position, token id) and on nothing
//! that runs beside it, so the same seed gives the same answer whatever the batch, the drafts or the backend.
//!
//! Threefry-2x32 with 20 rounds (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011): only 32-bit add,
//! xor and rotate, which CUDA, WGSL and Rust compute alike.

const ROTATIONS: [u32; 8] = [13, 15, 26, 6, 17, 29, 16, 24];
const KEY_PARITY: u32 = 0x1BD1_1BDA;

/// Threefry-2x32-20: 64 random bits for a (key, counter) pair.
pub fn threefry(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    let keys = [key[0], key[1], KEY_PARITY ^ key[0] ^ key[1]];
    let mut x = [counter[0].wrapping_add(keys[0]), counter[1].wrapping_add(keys[1])];
    for round in 0..20 {
        x[0] = x[0].wrapping_add(x[1]);
        x[1] = x[1].rotate_left(ROTATIONS[round % 8]) ^ x[0];
        if round % 4 == 3 {
            let step = round / 4 + 1;
            x[0] = x[0].wrapping_add(keys[step % 3]);
            x[1] = x[1].wrapping_add(keys[(step + 1) % 3]).wrapping_add(step as u32);
        }
    }
    x
}

/// The key of one drawn token: every candidate of that draw uses it with its own token id as the counter.
/// `position` is the position of the token that is drawn, not of the row that predicts it.
pub fn draw_key(seed: u64, choice: u32, position: u32) -> [u32; 2] {
    threefry([seed as u32, (seed >> 32) as u32], [position, choice])
}

/// Standard Gumbel noise of one candidate token: `-ln(-ln(1 - x))` with x uniform in (0, 1).
///
/// x is built so that small x keep full relative precision: they give the large values that decide the argmax.
pub fn gumbel(draw_key: [u32; 2], token: u32) -> f32 {
    let bits = threefry(draw_key, [token, 0])[0];
    let x = ((bits as f32 + 0.5) * (1.0 / 4_294_967_296.0)).min(1.0 - f32::EPSILON / 2.0);
    let exponential = if x < 1.0 / 4096.0 { x + 0.5 * x * x } else { -(1.0 - x).ln() };
    -exponential.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known-answer vectors published with the Random123 library (threefry2x32, 20 rounds).
    #[test]
    fn threefry_known_answers() {
        assert_eq!(threefry([0, 0], [0, 0]), [0x6b20_0159, 0x99ba_4efe]);
        assert_eq!(threefry([u32::MAX; 2], [u32::MAX; 2]), [0x1cb9_96fc, 0xbb00_2be7]);
        assert_eq!(threefry([0x1319_8a2e, 0x0370_7344], [0x243f_6a88, 0x85a3_08d3]), [0xc492_3a9c, 0x483d_f7a0]);
    }

    #[test]
    fn gumbel_noise_is_finite_and_has_the_right_mean_and_variance() {
        let draws = 200_000;
        let key = draw_key(7, 0, 3);
        let values: Vec<f64> = (0..draws).map(|token| f64::from(gumbel(key, token))).collect();
        assert!(values.iter().all(|v| v.is_finite()));
        let mean = values.iter().sum::<f64>() / f64::from(draws);
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / f64::from(draws);
        assert!((mean - 0.577_215_66).abs() < 0.01, "mean {mean}");
        assert!((variance - 1.644_934).abs() < 0.03, "variance {variance}");
    }

    #[test]
    fn every_part_of_the_counter_matters() {
        let base = gumbel(draw_key(1, 0, 0), 0);
        for other in [draw_key(2, 0, 0), draw_key(1 << 32 | 1, 0, 0), draw_key(1, 1, 0), draw_key(1, 0, 1)] {
            assert_ne!(base, gumbel(other, 0));
        }
        assert_ne!(base, gumbel(draw_key(1, 0, 0), 1));
    }
}
