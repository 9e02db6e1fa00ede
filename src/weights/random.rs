//! The same layout filled with seeded random values, for measuring a shape without its checkpoint. A value depends on
//! the seed, the tensor's label and the element alone, so a split into parts does not change a model.

use super::Weights;
use super::layout::{Dialect, Role, TensorPlan, arrange, plans};
use super::load::{STAGING_BYTES, allocate};
use crate::backend::Backend;
use crate::base::{DType, ModelConfig, Result, bf16};

/// A model of random bf16 weights, with a draft head if `with_mtp`. Matrices keep the size of their input (root mean
/// square near 1 / sqrt(cols)); norms stay near 1 and decays within what training gives.
///
/// `progress` is called with the bytes written and their total. Errors: whatever the backend returns.
pub fn random(
    backend: &mut dyn Backend,
    config: &ModelConfig,
    seed: u64,
    with_mtp: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Weights> {
    let dialect = Dialect { mtp: with_mtp, fused_delta: false };
    let total: u64 = plans(config, dialect).iter().map(|plan| plan.elements() * 2).sum();
    let (mut staging, mut done) = (Vec::new(), 0);
    arrange(config, dialect, &mut |plan| {
        let weight = allocate(backend, plan, DType::Bf16)?;
        let stream = Stream::new(seed, plan);
        let mut element = 0;
        for &part in &weight.parts {
            for offset_bytes in (0..part.bytes()).step_by(STAGING_BYTES) {
                let elements = (part.bytes() - offset_bytes).min(STAGING_BYTES) / 2;
                stream.fill(element, elements, &mut staging);
                backend.write(part, offset_bytes, &staging)?;
                element += elements as u64;
                done += staging.len() as u64;
                progress(done, total);
            }
        }
        Ok(weight)
    })
}

/// The values of one tensor.
struct Stream {
    key: u64,
    values: Values,
}

enum Values {
    /// Random sign and mantissa and one of four exponents, the lowest given: made from bits without arithmetic on
    /// floats, at the speed of memory.
    Bits { exponent: u16 },
    /// Uniform; for the small tensors, whose range matters.
    Uniform { low: f32, high: f32 },
}

impl Stream {
    fn new(seed: u64, plan: &TensorPlan) -> Stream {
        let key = plan.label.bytes().fold(mix(seed), |key, byte| mix(key ^ u64::from(byte)));
        let values = match plan.role {
            Role::Matrix => {
                // Four octaves from 2^e on have a root mean square of 7.04 * 2^e.
                let scale = 1.0 / ((plan.cols as f32).sqrt() * 7.04);
                Values::Bits { exponent: (127.0 + scale.log2().round()) as u16 }
            }
            Role::Norm => Values::Uniform { low: -0.1, high: 0.1 },
            Role::PlainNorm => Values::Uniform { low: 0.9, high: 1.1 },
            Role::DecayLog => Values::Uniform { low: 0.0, high: 2.77 },
            Role::DecayBias => Values::Uniform { low: -6.0, high: -2.0 },
            Role::Conv => Values::Uniform { low: -0.87, high: 0.87 },
        };
        Stream { key, values }
    }

    /// `elements` bf16 values from `first` on. Four values share a draw, by their place in the whole tensor.
    fn fill(&self, first: u64, elements: usize, out: &mut Vec<u8>) {
        let (first_draw, skipped) = (first / 4, (first % 4) as usize);
        let draws = (skipped + elements).div_ceil(4);
        out.resize(8 * draws, 0);
        let words = out.as_chunks_mut::<8>().0.iter_mut();
        let words = words.zip(first_draw..).map(|(word, draw)| (word, self.draw(draw)));
        match self.values {
            Values::Bits { exponent } => {
                let base = u64::from(exponent << 7) * 0x0001_0001_0001_0001;
                // The two low bits of the exponent are drawn; adding 0..=3 to it never carries into the sign.
                words.for_each(|(word, draw)| *word = ((draw & 0x81FF_81FF_81FF_81FF) + base).to_le_bytes());
            }
            Values::Uniform { low, high } => {
                let value = |bits: u64| bf16::from_f32(low + (high - low) * f32::from(bits as u16) / 65_536.0);
                let lane = |draw: u64, shift: u32| u64::from(value(draw >> shift).to_bits()) << shift;
                words.for_each(|(word, draw)| {
                    *word = [0, 16, 32, 48].map(|shift| lane(draw, shift)).iter().sum::<u64>().to_le_bytes();
                });
            }
        }
        out.drain(..2 * skipped);
        out.truncate(2 * elements);
    }

    fn draw(&self, draw: u64) -> u64 {
        mix(self.key.wrapping_add(draw.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
    }
}

/// A 64-bit finaliser (the one of SplitMix64): every input bit reaches every output bit.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(stream: &Stream, first: u64, elements: usize) -> Vec<f64> {
        let mut bytes = Vec::new();
        stream.fill(first, elements, &mut bytes);
        let pairs = bytes.as_chunks::<2>().0;
        pairs.iter().map(|pair| f64::from(bf16::from_bits(u16::from_le_bytes(*pair)).to_f32())).collect()
    }

    #[test]
    fn matrices_keep_the_size_of_their_input_and_any_split_gives_the_same_values() {
        let config = ModelConfig::named("0.8b").unwrap();
        let plans = plans(&config, Dialect { mtp: false, fused_delta: false });
        for plan in &plans[..12] {
            let stream = Stream::new(1, plan);
            let whole = values(&stream, 0, 40_000);
            assert_eq!(whole[4099..20_000], values(&stream, 4099, 15_901), "{}", plan.label);
            let mean = whole.iter().sum::<f64>() / 40_000.0;
            let size = (whole.iter().map(|x| x * x).sum::<f64>() / 40_000.0).sqrt();
            if plan.role == Role::Matrix {
                let ratio = size * f64::from(plan.cols).sqrt();
                assert!((0.7..1.5).contains(&ratio) && mean.abs() < 0.02 * size, "{}: {ratio} {mean}", plan.label);
            }
            assert_ne!(whole, values(&Stream::new(2, plan), 0, 40_000));
        }
    }
}
