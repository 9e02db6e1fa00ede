//! Rows of a single sequence in slot 0, for callers that drive steps themselves: comparisons, captures, benchmarks.

use super::Runner;
use crate::base::SamplingParams;
use crate::model::{CountedTokens, SequenceRows, SlotOperations};

/// The rows of slot 0 from `computed` to `end` of `tokens`, for callers that drive a step themselves.
pub fn rows(runner: &Runner, tokens: &[u32], computed: usize, end: usize) -> SequenceRows {
    let pages = runner.model().options.pages_per_sequence(end as u32).min(runner.model().options.pages);
    SequenceRows {
        tokens: tokens[computed..end].to_vec(),
        drafts: 0,
        position: computed as u32,
        next_token: tokens.get(end).copied(),
        slot: 0,
        parity: 0,
        pending: 0,
        resume: false,
        pages: (0..pages).collect(),
        counted: CountedTokens::Nothing,
        accepted: Vec::new(),
        sampling: SamplingParams::default(),
        logprobs: false,
        biases: Vec::new(),
        mask_rows: Vec::new(),
    }
}

/// Zeroes slot 0, so that a new sequence starts from nothing.
pub fn reset() -> SlotOperations {
    SlotOperations { copies: vec![(None, 0)], ..Default::default() }
}
