//! The bounds of the core, asserted against each other once.

use super::depth::DepthOptions;

/// Sizes and limits. All of them are promises to the device: no plan exceeds one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CoreOptions {
    /// Token ids are below this.
    pub vocabulary: u32,
    /// Most tokens of a sequence, prompt and answer together.
    pub context_max: u32,
    pub pages: u32,
    pub page_tokens: u32,
    /// Recurrent slots. More than `sequences_max` leaves room for checkpoints.
    pub slots: u32,
    /// Sequences that run at once.
    pub sequences_max: u32,
    /// Choices that may wait.
    pub queue_max: u32,
    /// Choices of one request.
    pub choices_max: u32,
    /// Rows of the largest step; at least 2, since a resume takes a row beside the sequence's own.
    pub rows_max: u32,
    /// Prefill rows in a step that also decodes.
    pub rows_beside_decode: u32,
    /// Rows of one sequence in one step.
    pub chunk_rows: u32,
    /// Sum of (1 + drafts) over the sequences that sample in one step.
    pub logit_rows_max: u32,
    /// Biases of one request, its stop and end tokens counted in.
    pub biases_max: u32,
    /// Alternatives that the device reports per token.
    pub logprobs_max: u32,
    pub depth: DepthOptions,
    /// A test aid: a prompt is prefilled alone, so that its state does not depend on company where a device's does.
    pub prefill_alone: bool,
}

impl Default for CoreOptions {
    fn default() -> CoreOptions {
        CoreOptions {
            vocabulary: u32::MAX,
            context_max: 4096,
            pages: 1024,
            page_tokens: 64,
            slots: 18,
            sequences_max: 16,
            queue_max: 256,
            choices_max: 16,
            rows_max: 512,
            rows_beside_decode: 256,
            chunk_rows: 512,
            logit_rows_max: 64,
            biases_max: 320,
            logprobs_max: 20,
            depth: DepthOptions::adaptive(3),
            prefill_alone: false,
        }
    }
}

impl CoreOptions {
    /// Positions that a step may write past its rows: the upkeep's entry and the entries of the drafts.
    pub fn ahead(&self) -> u32 {
        self.depth.depth_max.max(1)
    }

    /// Panics if a limit contradicts another.
    pub fn check(&self) {
        assert!(self.context_max >= 2, "a context holds a prompt and an answer");
        assert!(self.slots >= self.sequences_max && self.sequences_max >= 1, "each running sequence has a slot");
        assert!(self.rows_max >= 2 && self.chunk_rows >= 1 && self.logit_rows_max >= 1);
        assert!(self.rows_beside_decode >= 1, "a prompt gets on beside decoding");
    }
}
