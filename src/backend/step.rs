//! The step inputs: one u32 buffer that holds everything that varies from step to step.
//!
//! Scalars in an op are fixed when it is recorded; whatever changes per step is read from here, so that a captured
//! program can be replayed. This file fixes where each section lies and what its words mean. It fills nothing:
//! `model::step` does.

use super::Tensor;

/// Capacities that fix the layout. All counts are upper bounds of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepLimits {
    /// Rows of the largest bucket.
    pub rows: u32,
    /// Sequences with rows in one step.
    pub sequences: u32,
    /// Rows whose logits one step can compute.
    pub logit_rows: u32,
    /// Entries of all page lists together.
    pub pages: u32,
    /// (token, bias) pairs of all sequences together.
    pub biases: u32,
    /// Slot copies, resets and folds before one launch.
    pub slot_operations: u32,
}

/// A "no such thing" index in any section.
pub const NONE: u32 = u32::MAX;

/// Set in a NEXT_TOKEN word: the low bits are the logit row whose sampled token is meant.
pub const SAMPLED: u32 = 1 << 31;

/// Words at the start of the buffer: how much of each list is live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Header {
    Rows,
    Sequences,
    LogitRows,
    DraftRows,
    StepSequences,
    Chunks,
    Copies,
    Folds,
    PageCopies,
    Resumes,
    Accepted,
}

/// Words of one sequence. Floats are stored by their bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum SequenceWord {
    /// First of its `Committed + Drafts` consecutive rows.
    FirstRow,
    /// Rows whose tokens stand whatever is sampled: at least 1.
    Committed,
    /// Draft rows after them; more than 0 only where `Committed` is 1.
    Drafts,
    /// Recurrent slot.
    Slot,
    /// Half of the slot's records that the previous step wrote; this step writes the other.
    Parity,
    /// Accepted drafts of the previous step that are not yet in the state.
    Pending,
    /// First entry of its page list in the page section; entry i holds positions `i * page_tokens ..`.
    Pages,
    /// First of its `1 + Drafts` logit rows, or [`NONE`] if it does not sample in this step.
    FirstLogitRow,
    SeedLow,
    SeedHigh,
    Choice,
    /// f32; 0 is greedy.
    Temperature,
    /// 0 is off.
    TopK,
    /// f32; 1 is off.
    TopP,
    /// f32; 0 is off.
    MinP,
    /// f32; 1 is off. Over prompt and output.
    RepetitionPenalty,
    /// f32; 0 is off. Over output.
    PresencePenalty,
    /// f32; 0 is off. Over output.
    FrequencyPenalty,
    /// First of its pairs in the bias section.
    FirstBias,
    Biases,
    /// 1 where TopLogprobs looks at its logit rows.
    Logprobs,
}

/// Words per sequence, rounded up for growth.
pub const SEQUENCE_WORDS: u32 = 24;
const HEADER_WORDS: u32 = 16;

/// What a row's token is to the penalties (the COUNT section).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum CountAs {
    /// A draft, or a sequence without penalties.
    Nothing = 0,
    Prompt = 1,
    Output = 2,
}

/// Sections of the buffer after the header, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// Per row: token id.
    Token,
    /// Per row: position of the token in its sequence.
    Position,
    /// Per row: index of its sequence in this step.
    Sequence,
    /// Per row: the token at position + 1, or [`SAMPLED`] | logit row.
    NextToken,
    /// Per row: a [`CountAs`].
    Count,
    /// Per logit row: its row.
    LogitRow,
    /// Per logit row: its row of the mask tensor, or [`NONE`].
    MaskRow,
    /// Per draft row: the index of its sequence. One draft row for each sequence that samples.
    DraftSequence,
    /// Sequences with one committed row: DeltaStep and ConvStep.
    StepSequence,
    /// (sequence, first row, rows): DeltaChunk and ConvChunk. Chunks of one sequence follow each other in order.
    Chunk,
    /// Per sequence: [`SEQUENCE_WORDS`] words.
    Sequences,
    /// Page lists, packed.
    Page,
    /// (token, f32 bias) pairs.
    Bias,
    /// (source slot or [`NONE`] for zeros, destination slot).
    Copy,
    /// (slot, parity, pending).
    Fold,
    /// (source page, destination page).
    PageCopy,
    /// Per resume: the index of its sequence.
    Resume,
    /// (slot, token): drafts accepted in a sequence's last step. They were no committed rows, so only this list counts
    /// them for the penalties.
    Accepted,
}

const SECTIONS: [Section; 18] = [
    Section::Token,
    Section::Position,
    Section::Sequence,
    Section::NextToken,
    Section::Count,
    Section::LogitRow,
    Section::MaskRow,
    Section::DraftSequence,
    Section::StepSequence,
    Section::Chunk,
    Section::Sequences,
    Section::Page,
    Section::Bias,
    Section::Copy,
    Section::Fold,
    Section::PageCopy,
    Section::Resume,
    Section::Accepted,
];

impl StepLimits {
    /// Words of one section.
    pub fn section_words(&self, section: Section) -> u32 {
        match section {
            Section::Token | Section::Position | Section::Sequence | Section::NextToken | Section::Count => self.rows,
            Section::LogitRow | Section::MaskRow => self.logit_rows,
            Section::DraftSequence | Section::StepSequence => self.sequences,
            // Cutting at multiples of 64 positions adds at most one short chunk per sequence.
            Section::Chunk => 3 * (self.rows / CHUNK_ROWS + 2 * self.sequences),
            Section::Sequences => SEQUENCE_WORDS * self.sequences,
            Section::Page => self.pages,
            Section::Bias => 2 * self.biases,
            Section::Copy | Section::PageCopy => 2 * self.slot_operations,
            Section::Resume => self.sequences,
            Section::Accepted => 2 * self.logit_rows,
            Section::Fold => 3 * self.slot_operations,
        }
    }

    /// First word of a section.
    pub fn offset(&self, section: Section) -> u32 {
        let before = SECTIONS.iter().take_while(|s| **s != section);
        HEADER_WORDS + before.map(|s| self.section_words(*s)).sum::<u32>()
    }

    /// Words of the whole buffer.
    pub fn words(&self) -> u32 {
        self.offset(Section::Accepted) + self.section_words(Section::Accepted)
    }
}

/// Rows of one delta-rule chunk; chunks are cut at multiples of it in the sequence's own positions.
pub const CHUNK_ROWS: u32 = 64;

/// The step-input buffer of a program: a `[1, words]` u32 tensor and its layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepInputs {
    pub tensor: Tensor,
    pub limits: StepLimits,
}

/// A read-only view of filled step inputs, for backends that run on the host and for tests.
#[derive(Clone, Copy)]
pub struct StepView<'a> {
    words: &'a [u32],
    limits: StepLimits,
}

impl<'a> StepView<'a> {
    pub fn new(words: &'a [u32], limits: StepLimits) -> StepView<'a> {
        assert!(words.len() >= limits.words() as usize, "the step inputs are shorter than their layout");
        StepView { words, limits }
    }

    pub fn live(&self, header: Header) -> usize {
        self.words[header as usize] as usize
    }

    pub fn section(&self, section: Section) -> &'a [u32] {
        let start = self.limits.offset(section) as usize;
        &self.words[start..start + self.limits.section_words(section) as usize]
    }

    pub fn sequence(&self, index: usize, word: SequenceWord) -> u32 {
        self.section(Section::Sequences)[index * SEQUENCE_WORDS as usize + word as usize]
    }

    pub fn sequence_f32(&self, index: usize, word: SequenceWord) -> f32 {
        f32::from_bits(self.sequence(index, word))
    }

    /// The page that holds `position` of a sequence.
    pub fn page(&self, sequence: usize, position: u32, page_tokens: u32) -> u32 {
        let first = self.sequence(sequence, SequenceWord::Pages);
        self.section(Section::Page)[(first + position / page_tokens) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_follow_each_other_without_gap_or_overlap() {
        let limits = StepLimits { rows: 7, sequences: 3, logit_rows: 5, pages: 11, biases: 2, slot_operations: 4 };
        let mut at = HEADER_WORDS;
        for section in SECTIONS {
            assert_eq!(limits.offset(section), at, "{section:?}");
            at += limits.section_words(section);
        }
        assert_eq!(limits.words(), at);
        assert!((SequenceWord::Logprobs as u32) < SEQUENCE_WORDS);
        assert!((Header::Accepted as u32) < HEADER_WORDS);
    }
}
