//! The fake network, as pure functions over hashes: one recurrent layer with its convolution window, one attention
//! layer, a draft head, a sampler. The reference and the device both use it, each with its own bookkeeping.

use deltic::base::SamplingParams;

use super::hash::mix;

pub const VOCABULARY: u32 = 24;
/// Inputs that the convolution looks back on.
pub const LOOKBACK: usize = 3;

/// The recurrent layer on one row: its record, the state after it, and its output.
pub fn recur(state: u64, window: [u64; LOOKBACK], input: u64) -> (u64, u64) {
    let convolved = window.iter().fold(input, |all, earlier| mix(all, *earlier));
    let record = mix(state, convolved);
    (record, convolved)
}

/// Folds a record into a state: the same function in a step, after acceptance and in a flush.
pub fn fold(state: u64, record: u64) -> u64 {
    mix(state, record ^ 0xF01D)
}

/// What the convolution sees of a token.
pub fn input(token: u32) -> u64 {
    mix(u64::from(token), 0xC0)
}

/// The cell that a row writes.
pub fn cell(position: u32, output: u64) -> u64 {
    mix(output, u64::from(position) | 0xCE11 << 32)
}

/// Attention over cells, one after the other.
pub fn read(read: u64, cell: u64) -> u64 {
    mix(read, cell)
}

pub fn hidden(output: u64, read: u64) -> u64 {
    mix(output, mix(read, 0x41))
}

/// The draft head's cell at a position: the hidden row before it and the token there.
pub fn draft_cell(hidden: u64, token: u32) -> u64 {
    mix(hidden, u64::from(token) | 0xD4AF << 32)
}

pub fn draft_hidden(cell: u64, read: u64) -> u64 {
    mix(cell, mix(read, 0xD4))
}

/// What a token adds to the counts of a choice with penalties; counts are sums, since order is nothing to them.
pub fn count(token: u32, output: bool) -> u64 {
    mix(u64::from(token), if output { 0x07 } else { 0x08 })
}

/// Everything beside the hidden row that a sample depends on.
pub struct Draw<'a> {
    pub sampling: &'a SamplingParams,
    /// Of the token drawn.
    pub position: u32,
    pub counts: u64,
    pub biases: &'a [(u32, f32)],
    pub mask: Option<&'a Vec<u32>>,
}

/// The token of one row, None where nothing is allowed or the row is one of the rare broken ones.
pub fn sample(hidden: u64, draw: &Draw, broken_one_in: u64) -> Option<u32> {
    if broken_one_in > 0 && hidden.is_multiple_of(broken_one_in) {
        return None;
    }
    let sampling = draw.sampling;
    let mut seed = mix(hidden, mix(sampling.seed, u64::from(sampling.choice) << 32 | u64::from(draw.position)));
    if sampling.counts_tokens() {
        seed = mix(seed, draw.counts);
    }
    let forbidden = |token: u32| draw.biases.iter().any(|(id, bias)| *id == token && *bias == f32::NEG_INFINITY);
    for (token, bias) in draw.biases.iter().filter(|(_, bias)| bias.is_finite()) {
        seed = mix(seed, u64::from(*token) << 32 | u64::from(bias.to_bits()));
    }
    let masked = |token: u32| draw.mask.is_some_and(|mask| mask[token as usize / 32] >> (token % 32) & 1 == 0);
    let first = (seed % u64::from(VOCABULARY)) as u32;
    (0..VOCABULARY).map(|step| (first + step) % VOCABULARY).find(|token| !forbidden(*token) && !masked(*token))
}

/// A stand-in for log-probabilities: the row it came from can be told from it.
pub fn logprob(hidden: u64) -> f32 {
    -((hidden % 4096) as f32) / 256.0
}
