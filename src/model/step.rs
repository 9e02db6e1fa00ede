//! Fills the step inputs: the words behind every op that reads what varies per step.

use crate::backend::step::{
    CHUNK_ROWS, CountAs, Header, NONE, SAMPLED, SEQUENCE_WORDS, Section, SequenceWord, StepLimits,
};
use crate::base::SamplingParams;

/// The rows of one sequence in one step: committed tokens that are not computed yet, then drafts.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceRows {
    /// Tokens of all rows, drafts last.
    pub tokens: Vec<u32>,
    /// How many of them are drafts; more than 0 only with one committed row.
    pub drafts: u32,
    /// Position of the first row.
    pub position: u32,
    /// The token after the last committed row where it is known. A sequence without one samples it in this step.
    pub next_token: Option<u32>,
    pub slot: u32,
    /// Half of the slot's records that its previous step wrote.
    pub parity: u32,
    /// Accepted drafts of its previous step that are not in the state yet.
    pub pending: u32,
    /// Whether the draft head's entry at `position` is made anew before the step, from the h that the slot kept.
    pub resume: bool,
    /// Pages in order of position, up to the last entry that this step writes.
    pub pages: Vec<u32>,
    pub counted: CountedTokens,
    /// Drafts accepted in its last step, which were no committed rows; counted as output where the choice has
    /// penalties.
    pub accepted: Vec<u32>,
    pub sampling: SamplingParams,
    /// Whether TopLogprobs looks at its logit rows.
    pub logprobs: bool,
    /// (token, bias) pairs.
    pub biases: Vec<(u32, f32)>,
    /// Row of the mask tensor for each of its logit rows, where one applies.
    pub mask_rows: Vec<Option<u32>>,
}

/// What the committed rows are to the penalties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountedTokens {
    /// The choice has no penalties.
    Nothing,
    /// Tokens before this position are the prompt's, those from it on are output.
    OutputFrom(u32),
}

/// What happens to slots before a launch, in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotOperations {
    /// (slot, parity, pending): bring the state up to date.
    pub folds: Vec<(u32, u32, u32)>,
    /// (source, destination); no source means zeros.
    pub copies: Vec<(Option<u32>, u32)>,
    /// (source, destination) pages of the KV cache.
    pub page_copies: Vec<(u32, u32)>,
}

impl SlotOperations {
    pub fn is_empty(&self) -> bool {
        self.folds.is_empty() && self.copies.is_empty() && self.page_copies.is_empty()
    }
}

impl SequenceRows {
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

/// Writes one step into `words`, which keeps its capacity from step to step.
///
/// Sequences sample in the order given: the first logit row belongs to the first sequence that samples. Panics if the
/// step exceeds `limits` or contradicts itself: the planner is wrong.
pub fn fill(words: &mut Vec<u32>, limits: StepLimits, sequences: &[SequenceRows], operations: &SlotOperations) {
    words.clear();
    words.resize(limits.words() as usize, 0);
    let mut fill = Fill { words, limits, next: [0; Header::Accepted as usize + 1], pages: 0, biases: 0 };
    for rows in sequences {
        fill.sequence(rows);
    }
    for (slot, parity, pending) in &operations.folds {
        fill.append(Header::Folds, Section::Fold, &[*slot, *parity, *pending]);
    }
    for (source, destination) in &operations.copies {
        fill.append(Header::Copies, Section::Copy, &[source.unwrap_or(NONE), *destination]);
    }
    for (source, destination) in &operations.page_copies {
        fill.append(Header::PageCopies, Section::PageCopy, &[*source, *destination]);
    }
    fill.words[..fill.next.len()].copy_from_slice(&fill.next);
}

struct Fill<'a> {
    words: &'a mut [u32],
    limits: StepLimits,
    /// Live entries per [`Header`] word.
    next: [u32; Header::Accepted as usize + 1],
    pages: u32,
    biases: u32,
}

impl Fill<'_> {
    fn sequence(&mut self, rows: &SequenceRows) {
        let (committed, drafts) = (rows.committed(), rows.drafts);
        assert!(committed >= 1, "a sequence computes at least one committed token");
        assert!(drafts == 0 || (committed == 1 && rows.samples()), "drafts follow one committed row that samples");
        assert!(rows.pending == 0 || committed == 1, "pending records are flushed before a chunk");
        let (index, first_row) = (self.live(Header::Sequences), self.live(Header::Rows));
        let first_logit_row = if rows.samples() { self.live(Header::LogitRows) } else { NONE };
        self.rows(rows, index, first_row, first_logit_row);
        let first_page = self.pages(&rows.pages);
        let first_bias = self.biases(&rows.biases);
        let sampling = &rows.sampling;
        let fields = [
            (SequenceWord::FirstRow, first_row),
            (SequenceWord::Committed, committed),
            (SequenceWord::Drafts, drafts),
            (SequenceWord::Slot, rows.slot),
            (SequenceWord::Parity, rows.parity),
            (SequenceWord::Pending, rows.pending),
            (SequenceWord::Pages, first_page),
            (SequenceWord::FirstLogitRow, first_logit_row),
            (SequenceWord::SeedLow, sampling.seed as u32),
            (SequenceWord::SeedHigh, (sampling.seed >> 32) as u32),
            (SequenceWord::Choice, sampling.choice),
            (SequenceWord::Temperature, sampling.temperature.to_bits()),
            (SequenceWord::TopK, sampling.top_k),
            (SequenceWord::TopP, sampling.top_p.to_bits()),
            (SequenceWord::MinP, sampling.min_p.to_bits()),
            (SequenceWord::RepetitionPenalty, sampling.repetition_penalty.to_bits()),
            (SequenceWord::PresencePenalty, sampling.presence_penalty.to_bits()),
            (SequenceWord::FrequencyPenalty, sampling.frequency_penalty.to_bits()),
            (SequenceWord::FirstBias, first_bias),
            (SequenceWord::Biases, rows.biases.len() as u32),
            (SequenceWord::Logprobs, u32::from(rows.logprobs)),
        ];
        let mut words = [0; SEQUENCE_WORDS as usize];
        for (word, value) in fields {
            words[word as usize] = value;
        }
        self.append(Header::Sequences, Section::Sequences, &words);
        self.lists(rows, index, first_row);
    }

    /// The per-row and per-logit-row words.
    fn rows(&mut self, rows: &SequenceRows, index: u32, first_row: u32, first_logit_row: u32) {
        let committed = rows.committed();
        for (offset, token) in (0..).zip(&rows.tokens) {
            let (row, position) = (first_row + offset, rows.position + offset);
            let samples_here = rows.samples() && offset + 1 >= committed;
            let next = if samples_here {
                SAMPLED | (first_logit_row + offset + 1 - committed)
            } else {
                let known = rows.tokens.get(offset as usize + 1).copied().filter(|_| offset + 1 < committed);
                known.or(rows.next_token).expect("a row that does not sample knows what follows")
            };
            let count = match rows.counted {
                CountedTokens::OutputFrom(output) if offset < committed => {
                    if position < output {
                        CountAs::Prompt
                    } else {
                        CountAs::Output
                    }
                }
                _ => CountAs::Nothing,
            };
            self.set(Section::Token, row, *token);
            self.set(Section::Position, row, position);
            self.set(Section::Sequence, row, index);
            self.set(Section::NextToken, row, next);
            self.set(Section::Count, row, count as u32);
            if samples_here {
                let logit = self.live(Header::LogitRows);
                let mask = rows.mask_rows.get((offset + 1 - committed) as usize).copied().flatten();
                self.set(Section::MaskRow, logit, mask.unwrap_or(NONE));
                self.append(Header::LogitRows, Section::LogitRow, &[row]);
            }
        }
        self.next[Header::Rows as usize] += rows.tokens.len() as u32;
    }

    /// The work lists: the sequence samples; it takes one step or some chunks.
    fn lists(&mut self, rows: &SequenceRows, index: u32, first_row: u32) {
        if rows.samples() {
            self.append(Header::DraftRows, Section::DraftSequence, &[index]);
        }
        if rows.counted != CountedTokens::Nothing {
            for token in &rows.accepted {
                self.append(Header::Accepted, Section::Accepted, &[rows.slot, *token]);
            }
        }
        if rows.resume {
            self.append(Header::Resumes, Section::Resume, &[index]);
        }
        let committed = rows.committed();
        if committed == 1 {
            self.append(Header::StepSequences, Section::StepSequence, &[index]);
            return;
        }
        let mut done = 0;
        while done < committed {
            let position = rows.position + done;
            let count = (CHUNK_ROWS - position % CHUNK_ROWS).min(committed - done);
            self.append(Header::Chunks, Section::Chunk, &[index, first_row + done, count]);
            done += count;
        }
    }

    fn pages(&mut self, pages: &[u32]) -> u32 {
        let first = self.pages;
        for page in pages {
            self.set(Section::Page, self.pages, *page);
            self.pages += 1;
        }
        first
    }

    fn biases(&mut self, biases: &[(u32, f32)]) -> u32 {
        let first = self.biases;
        for (token, bias) in biases {
            self.set(Section::Bias, 2 * self.biases, *token);
            self.set(Section::Bias, 2 * self.biases + 1, bias.to_bits());
            self.biases += 1;
        }
        first
    }

    fn live(&self, header: Header) -> u32 {
        self.next[header as usize]
    }

    fn append(&mut self, header: Header, section: Section, entry: &[u32]) {
        let first = self.next[header as usize] * entry.len() as u32;
        for (offset, value) in (0..).zip(entry) {
            self.set(section, first + offset, *value);
        }
        self.next[header as usize] += 1;
    }

    fn set(&mut self, section: Section, index: u32, value: u32) {
        let capacity = self.limits.section_words(section);
        assert!(index < capacity, "{section:?} holds {capacity} words");
        self.words[(self.limits.offset(section) + index) as usize] = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::StepView;

    const LIMITS: StepLimits =
        StepLimits { rows: 256, sequences: 4, logit_rows: 8, pages: 16, biases: 4, slot_operations: 2 };

    fn rows(tokens: &[u32], drafts: u32, position: u32, next_token: Option<u32>) -> SequenceRows {
        SequenceRows {
            tokens: tokens.to_vec(),
            drafts,
            position,
            next_token,
            slot: 1,
            parity: 1,
            pending: 0,
            resume: drafts > 0,
            pages: vec![5, 3],
            counted: CountedTokens::OutputFrom(101),
            accepted: if drafts > 0 { vec![8] } else { Vec::new() },
            sampling: SamplingParams { seed: 1 << 33 | 7, ..Default::default() },
            logprobs: false,
            biases: vec![(9, 0.5)],
            mask_rows: vec![None, Some(2)],
        }
    }

    #[test]
    fn a_verification_beside_a_chunk() {
        let prefill: Vec<u32> = (0..70).collect();
        let sequences = [rows(&prefill, 0, 60, Some(99)), rows(&[11, 12, 13], 2, 100, None)];
        let operations = SlotOperations { folds: vec![(1, 0, 2)], copies: vec![(None, 3)], page_copies: vec![(4, 6)] };
        let mut words = Vec::new();
        fill(&mut words, LIMITS, &sequences, &operations);
        let view = StepView::new(&words, LIMITS);
        let live = [73, 2, 3, 1, 1, 3, 1, 1, 1, 1, 1];
        for (index, count) in live.into_iter().enumerate() {
            assert_eq!(words[index], count, "header word {index}");
        }
        assert_eq!(
            view.section(Section::Chunk)[..9],
            [0, 0, 4, 0, 4, 64, 0, 68, 2],
            "cut at multiples of 64 positions"
        );
        assert_eq!(view.section(Section::LogitRow)[..3], [70, 71, 72]);
        assert_eq!(view.section(Section::MaskRow)[..3], [NONE, 2, NONE]);
        assert_eq!(view.section(Section::NextToken)[68..73], [69, 99, SAMPLED, SAMPLED | 1, SAMPLED | 2]);
        assert_eq!(view.section(Section::Position)[69..73], [129, 100, 101, 102]);
        let counts = [CountAs::Output as u32, CountAs::Prompt as u32, CountAs::Nothing as u32];
        assert_eq!(view.section(Section::Count)[69..72], counts);
        assert_eq!(view.section(Section::StepSequence)[0], 1);
        assert_eq!(view.section(Section::DraftSequence)[0], 1);
        assert_eq!(view.sequence(1, SequenceWord::FirstLogitRow), 0);
        assert_eq!(view.sequence(0, SequenceWord::FirstLogitRow), NONE);
        assert_eq!(view.sequence(1, SequenceWord::Pages), 2);
        assert_eq!(view.sequence(1, SequenceWord::FirstBias), 1);
        assert_eq!(view.sequence(1, SequenceWord::SeedHigh), 2);
        assert_eq!(view.section(Section::Fold)[..3], [1, 0, 2]);
        assert_eq!(view.section(Section::Copy)[..2], [NONE, 3]);
        assert_eq!(view.section(Section::PageCopy)[..2], [4, 6]);
        assert_eq!(view.section(Section::Resume)[0], 1);
        assert_eq!(view.section(Section::Accepted)[..2], [1, 8]);
    }

    #[test]
    #[should_panic(expected = "drafts follow one committed row")]
    fn drafts_after_a_chunk_are_refused() {
        fill(&mut Vec::new(), LIMITS, &[rows(&[1, 2, 3], 1, 0, None)], &SlotOperations::default());
    }
}
