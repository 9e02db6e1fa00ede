//! What crosses to the runner and back: a [`StepPlan`] says everything a device must do in one step, a [`StepOutcome`]
//! what it found. No handles, no lifetimes: a fake can run a plan as well as a GPU.
//!
//! Order within a step: folds, slot copies, page copies, resumes, rows, draft passes. No entry of one of these lists
//! depends on another entry of the same list, so a device may run a list in parallel.

use super::request::RequestId;
use crate::base::SamplingParams;

/// One step. Empty where there is nothing to do; it still has to be committed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepPlan {
    /// Counts up from 1; `commit` wants the plan made last.
    pub step: u64,
    /// Slots whose pending records are brought into the state; afterwards nothing is pending there.
    pub folds: Vec<Fold>,
    /// State, convolution window, hidden row and token counts of whole slots.
    pub slot_copies: Vec<SlotCopy>,
    /// Main and draft-head cache of whole pages.
    pub page_copies: Vec<PageCopy>,
    /// Entries of the draft head's cache to be written before its upkeep. Each takes a row of the bucket.
    pub resumes: Vec<Resume>,
    /// Oldest first. Those that sample own the logit rows in this order.
    pub sequences: Vec<SequencePlan>,
    /// Masks that `SequencePlan::mask_rows` points to.
    pub masks: Vec<Mask>,
    /// Drafts that the device makes for every sequence that samples.
    pub draft_passes: u32,
}

/// Allowed tokens, a bit each, lowest first; bits beyond the vocabulary are ignored.
pub type Mask = Vec<u32>;

/// Brings a slot's state up to date: `pending` records of half `parity`, window and hidden row alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fold {
    pub slot: u32,
    pub parity: u32,
    pub pending: u32,
}

/// No source means zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotCopy {
    pub source: Option<u32>,
    pub destination: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageCopy {
    pub source: u32,
    pub destination: u32,
}

/// Writes entry `position` of the draft head's cache from the slot's hidden row number `pending` and `token`.
///
/// Needed where that entry was written for another token or not at all: after a start from a checkpoint, and where the
/// host replaced the token that was sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resume {
    /// Index in `StepPlan::sequences`, which has the pages.
    pub sequence: u32,
    pub slot: u32,
    /// As the sequence's: after the folds of this step.
    pub pending: u32,
    pub token: u32,
    pub position: u32,
}

/// Names a sequence; the order is that of age, oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId {
    pub request: RequestId,
    pub choice: u32,
}

/// The rows of one sequence: committed tokens that are not computed yet, then drafts.
#[derive(Debug, Clone, PartialEq)]
pub struct SequencePlan {
    pub id: SequenceId,
    /// Tokens of all rows, drafts last.
    pub tokens: Vec<u32>,
    /// How many of them are drafts; more than 0 only after one committed row.
    pub drafts: u32,
    /// Position of the first row, which is how many tokens are computed.
    pub position: u32,
    /// The token after the last committed row where it is known. A sequence without one samples.
    pub next_token: Option<u32>,
    pub slot: u32,
    /// Half of the slot's records that its last step wrote; this step writes the other.
    pub parity: u32,
    /// Accepted drafts of its last step that are not in the state yet; 0 with more than one committed row.
    pub pending: u32,
    /// Pages in order of position, up to the last entry that this step may write.
    pub pages: Vec<u32>,
    /// Where the choice has penalties: what to count before these rows are sampled.
    pub counted: Option<Counted>,
    pub sampling: SamplingParams,
    pub logprobs: bool,
    pub biases: Vec<(u32, f32)>,
    /// For each logit row its index in `StepPlan::masks`, where one applies.
    pub mask_rows: Vec<Option<u32>>,
}

/// The tokens that a slot's counts lack, beside the committed rows themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// Tokens before this position are the prompt's, those from it on are output.
    pub output_from: u32,
    /// Drafts accepted in its last step: they were no committed rows, so nobody has counted them. All output.
    pub accepted: Vec<u32>,
}

impl SequencePlan {
    pub fn committed(&self) -> u32 {
        self.tokens.len() as u32 - self.drafts
    }

    pub fn samples(&self) -> bool {
        self.next_token.is_none()
    }

    /// Logit rows it needs: after its last committed row and after each draft.
    pub fn logit_rows(&self) -> u32 {
        if self.samples() { 1 + self.drafts } else { 0 }
    }
}

impl StepPlan {
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty() && self.folds.is_empty() && self.slot_copies.is_empty() && self.page_copies.is_empty()
    }

    /// Rows of the bucket: those of the sequences and one for each resume.
    pub fn rows(&self) -> u32 {
        self.sequences.iter().map(|rows| rows.tokens.len() as u32).sum::<u32>() + self.resumes.len() as u32
    }

    pub fn logit_rows(&self) -> u32 {
        self.sequences.iter().map(SequencePlan::logit_rows).sum()
    }
}

/// What a step brought: one entry for each sequence that sampled, in the order of the plan.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepOutcome {
    pub sampled: Vec<Sampled>,
}

/// What the logit rows of one sequence gave.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sampled {
    /// The token of each of its logit rows, in order; those past row `accepted` may be left out.
    pub tokens: Vec<u32>,
    /// Drafts that equal the token sampled at the row before them.
    pub accepted: u32,
    /// `draft_passes` drafts that follow the last token that stands.
    pub drafts: Vec<u32>,
    /// For at least the first `accepted + 1` rows, where asked for.
    pub logprobs: Vec<Logprobs>,
    /// Row `accepted` had no finite score, so its token means nothing. Those before it are accepted drafts and stand.
    pub not_a_number: bool,
}

impl Sampled {
    /// The tokens that stand: the accepted drafts, then the one sampled after them.
    pub fn standing(&self) -> &[u32] {
        &self.tokens[..=self.accepted as usize]
    }
}

/// Log-probabilities at one token, of the raw distribution.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    pub sampled: f32,
    /// Best first.
    pub top: Vec<(u32, f32)>,
}
