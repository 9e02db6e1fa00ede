//! Step inputs for tests, filled straight from the layout in `backend::step`. Words that nothing fills are poison: a
//! kernel that reads past a live count finds no plausible index there.

use deltic::backend::step::{CHUNK_ROWS, CountAs, Header, NONE, SAMPLED, SEQUENCE_WORDS, Section, SequenceWord};
use deltic::backend::{StepLimits, StepView};

use super::matrix::{POISON, Random};

/// How a sequence samples. The default is greedy with everything off.
#[derive(Debug, Clone, Copy)]
pub struct Sampling {
    pub seed: u64,
    pub choice: u32,
    pub temperature: f32,
    pub top_k: u32,
    pub top_p: f32,
    pub min_p: f32,
    pub repetition: f32,
    pub presence: f32,
    pub frequency: f32,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            seed: 0,
            choice: 0,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition: 1.0,
            presence: 0.0,
            frequency: 0.0,
        }
    }
}

/// One sequence of a step.
#[derive(Debug, Clone)]
pub struct Sequence {
    /// One per row: the committed ones, then the drafts.
    pub tokens: Vec<u32>,
    pub drafts: u32,
    pub slot: u32,
    pub parity: u32,
    pub pending: u32,
    /// Of its first row.
    pub position: u32,
    pub pages: Vec<u32>,
    pub samples: bool,
    /// The token after the last row, where the sequence does not sample.
    pub next_token: u32,
    pub sampling: Sampling,
    pub biases: Vec<(u32, f32)>,
    /// Per row; rows beyond its end are Nothing.
    pub counts: Vec<CountAs>,
    /// Per logit row; rows beyond its end have no mask.
    pub mask_rows: Vec<u32>,
    /// Rows of its chunks, where they shall not be cut at multiples of 64 positions.
    pub cuts: Option<Vec<u32>>,
    /// Whether the draft head's entry at its first position is made anew.
    pub resume: bool,
    /// Drafts accepted in its last step, for the penalties.
    pub accepted: Vec<u32>,
    pub logprobs: bool,
}

impl Sequence {
    /// A sequence in `slot` whose rows hold the tokens 0, 1, 2, ... and which does not sample.
    pub fn new(slot: u32, committed: u32, drafts: u32) -> Sequence {
        assert!(committed == 1 || drafts == 0, "drafts follow exactly one committed row");
        Sequence {
            tokens: (0..committed + drafts).collect(),
            drafts,
            slot,
            parity: 0,
            pending: 0,
            position: 0,
            pages: Vec::new(),
            samples: false,
            next_token: POISON,
            sampling: Sampling::default(),
            biases: Vec::new(),
            counts: Vec::new(),
            mask_rows: Vec::new(),
            cuts: None,
            resume: false,
            accepted: Vec::new(),
            logprobs: true,
        }
    }

    /// One that samples after its last committed row and after each draft.
    pub fn sampling(slot: u32, committed: u32, drafts: u32) -> Sequence {
        Sequence { samples: true, ..Sequence::new(slot, committed, drafts) }
    }

    pub fn rows(&self) -> u32 {
        self.tokens.len() as u32
    }

    pub fn committed(&self) -> u32 {
        self.rows() - self.drafts
    }

    pub fn logit_rows(&self) -> u32 {
        if self.samples { 1 + self.drafts } else { 0 }
    }

    /// Rows of each chunk.
    fn chunks(&self) -> Vec<u32> {
        if let Some(cuts) = &self.cuts {
            assert_eq!(cuts.iter().sum::<u32>(), self.rows(), "the cuts cover the rows");
            return cuts.clone();
        }
        let (mut at, end) = (self.position, self.position + self.rows());
        let mut chunks = Vec::new();
        while at < end {
            let next = (at / CHUNK_ROWS + 1) * CHUNK_ROWS;
            chunks.push(next.min(end) - at);
            at = next;
        }
        chunks
    }
}

#[derive(Debug, Clone, Default)]
pub struct Step {
    pub sequences: Vec<Sequence>,
    /// (source slot or NONE, destination slot)
    pub copies: Vec<(u32, u32)>,
    /// (slot, parity, pending)
    pub folds: Vec<(u32, u32, u32)>,
    /// (source page, destination page)
    pub page_copies: Vec<(u32, u32)>,
}

impl Step {
    pub fn new(sequences: Vec<Sequence>) -> Step {
        Step { sequences, ..Step::default() }
    }

    /// One sequence of `rows` committed rows.
    pub fn of_rows(rows: usize) -> Step {
        Step::new(vec![Sequence::new(0, rows as u32, 0)])
    }

    pub fn rows(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.rows() as usize).sum()
    }

    pub fn logit_rows(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.logit_rows() as usize).sum()
    }

    pub fn draft_rows(&self) -> usize {
        self.sequences.iter().filter(|sequence| sequence.samples).count()
    }

    /// Sequences that resume.
    pub fn resumed(&self) -> Vec<usize> {
        (0..self.sequences.len()).filter(|index| self.sequences[*index].resume).collect()
    }

    /// (slot, token) of every accepted draft.
    pub fn accepted(&self) -> Vec<(u32, u32)> {
        self.sequences.iter().flat_map(|s| s.accepted.iter().map(|token| (s.slot, *token))).collect()
    }

    /// First row of a sequence.
    pub fn first_row(&self, index: usize) -> usize {
        self.sequences[..index].iter().map(|sequence| sequence.rows() as usize).sum()
    }

    /// First logit row of a sequence.
    pub fn first_logit_row(&self, index: usize) -> usize {
        self.sequences[..index].iter().map(|sequence| sequence.logit_rows() as usize).sum()
    }

    /// (sequence, position) of every row.
    pub fn places(&self) -> Vec<(usize, u32)> {
        let rows = self.sequences.iter().enumerate();
        rows.flat_map(|(index, s)| (0..s.rows()).map(move |row| (index, s.position + row))).collect()
    }

    /// Gives every sequence pages for its rows and `ahead` positions more, in an order without pattern. Returns the
    /// pages of the cache: two of them are in no list.
    pub fn give_pages(&mut self, page_tokens: u32, ahead: u32, seed: u64) -> usize {
        let need = |s: &Sequence| (s.position + s.rows() + ahead).div_ceil(page_tokens) as usize;
        let total = self.sequences.iter().map(need).sum::<usize>() + 2;
        let mut ids: Vec<u32> = (0..total as u32).collect();
        Random::new(seed).shuffle(&mut ids);
        for sequence in &mut self.sequences {
            sequence.pages = ids.split_off(ids.len() - need(sequence));
        }
        total
    }

    /// Row of the cache that holds a position of a sequence.
    pub fn cell(&self, sequence: usize, position: u32, page_tokens: u32) -> usize {
        let page = self.sequences[sequence].pages[(position / page_tokens) as usize];
        (page * page_tokens + position % page_tokens) as usize
    }

    /// (sequence, first row, rows) of every chunk.
    pub fn chunks(&self) -> Vec<(usize, usize, usize)> {
        let mut list = Vec::new();
        for (index, sequence) in self.sequences.iter().enumerate() {
            if sequence.committed() == 1 && sequence.cuts.is_none() {
                continue;
            }
            let mut row = self.first_row(index);
            for rows in sequence.chunks() {
                list.push((index, row, rows as usize));
                row += rows as usize;
            }
        }
        list
    }

    /// Capacities a little above what the step uses.
    pub fn limits(&self) -> StepLimits {
        let pages: usize = self.sequences.iter().map(|sequence| sequence.pages.len()).sum();
        let biases: usize = self.sequences.iter().map(|sequence| sequence.biases.len()).sum();
        StepLimits {
            rows: self.rows() as u32 + 3,
            sequences: (self.sequences.len() + 1).max(self.chunks().len()) as u32,
            logit_rows: self.logit_rows() as u32 + 2,
            pages: pages as u32 + 3,
            biases: biases as u32 + 1,
            slot_operations: self.copies.len().max(self.folds.len()).max(self.page_copies.len()) as u32 + 1,
        }
    }

    /// The whole buffer.
    pub fn words(&self) -> Vec<u32> {
        let limits = self.limits();
        let mut fill = Fill { words: vec![POISON; limits.words() as usize], limits };
        self.fill_header(&mut fill);
        self.fill_rows(&mut fill);
        self.fill_sequences(&mut fill);
        let step_sequences = self.sequences.iter().enumerate();
        let stepping = step_sequences.filter(|(_, s)| s.committed() == 1 && s.cuts.is_none());
        fill.list(Section::StepSequence, stepping.map(|(index, _)| index as u32));
        let chunks = self.chunks();
        let chunk_words = chunks.iter().flat_map(|(sequence, row, rows)| [*sequence, *row, *rows]);
        fill.list(Section::Chunk, chunk_words.map(|word| word as u32));
        fill.list(Section::Copy, self.copies.iter().flat_map(|(source, slot)| [*source, *slot]));
        fill.list(Section::Fold, self.folds.iter().flat_map(|(slot, parity, pending)| [*slot, *parity, *pending]));
        fill.list(Section::PageCopy, self.page_copies.iter().flat_map(|(source, page)| [*source, *page]));
        fill.list(Section::Resume, self.resumed().into_iter().map(|index| index as u32));
        fill.list(Section::Accepted, self.accepted().into_iter().flat_map(|(slot, token)| [slot, token]));
        fill.words
    }

    fn fill_header(&self, fill: &mut Fill) {
        let chunks = self.chunks();
        let steps = self.sequences.iter().filter(|s| s.committed() == 1 && s.cuts.is_none()).count();
        for (header, count) in [
            (Header::Rows, self.rows()),
            (Header::Sequences, self.sequences.len()),
            (Header::LogitRows, self.logit_rows()),
            (Header::DraftRows, self.draft_rows()),
            (Header::StepSequences, steps),
            (Header::Chunks, chunks.len()),
            (Header::Copies, self.copies.len()),
            (Header::Folds, self.folds.len()),
            (Header::PageCopies, self.page_copies.len()),
            (Header::Resumes, self.resumed().len()),
            (Header::Accepted, self.accepted().len()),
        ] {
            fill.words[header as usize] = count as u32;
        }
    }

    fn fill_rows(&self, fill: &mut Fill) {
        let (mut row, mut logit_row, mut draft_row) = (0, 0, 0);
        for (index, sequence) in self.sequences.iter().enumerate() {
            let first = row;
            for (at, token) in sequence.tokens.iter().enumerate() {
                let sampled_at = (at as u32 + 1).checked_sub(sequence.committed());
                let next = match sampled_at {
                    Some(ahead) if sequence.samples => SAMPLED | (logit_row + ahead),
                    _ => *sequence.tokens.get(at + 1).unwrap_or(&sequence.next_token),
                };
                fill.set(Section::Token, row, *token);
                fill.set(Section::Position, row, sequence.position + at as u32);
                fill.set(Section::Sequence, row, index as u32);
                fill.set(Section::NextToken, row, next);
                fill.set(Section::Count, row, *sequence.counts.get(at).unwrap_or(&CountAs::Nothing) as u32);
                row += 1;
            }
            for ahead in 0..sequence.logit_rows() {
                fill.set(Section::LogitRow, logit_row, first + sequence.committed() - 1 + ahead);
                fill.set(Section::MaskRow, logit_row, *sequence.mask_rows.get(ahead as usize).unwrap_or(&NONE));
                logit_row += 1;
            }
            if sequence.samples {
                fill.set(Section::DraftSequence, draft_row, index as u32);
                draft_row += 1;
            }
        }
    }

    fn fill_sequences(&self, fill: &mut Fill) {
        let (mut pages, mut biases) = (0, 0);
        for (index, sequence) in self.sequences.iter().enumerate() {
            let sampling = sequence.sampling;
            let first_logit_row = if sequence.samples { self.first_logit_row(index) as u32 } else { NONE };
            for (word, value) in [
                (SequenceWord::FirstRow, self.first_row(index) as u32),
                (SequenceWord::Committed, sequence.committed()),
                (SequenceWord::Drafts, sequence.drafts),
                (SequenceWord::Slot, sequence.slot),
                (SequenceWord::Parity, sequence.parity),
                (SequenceWord::Pending, sequence.pending),
                (SequenceWord::Pages, pages),
                (SequenceWord::FirstLogitRow, first_logit_row),
                (SequenceWord::SeedLow, sampling.seed as u32),
                (SequenceWord::SeedHigh, (sampling.seed >> 32) as u32),
                (SequenceWord::Choice, sampling.choice),
                (SequenceWord::Temperature, sampling.temperature.to_bits()),
                (SequenceWord::TopK, sampling.top_k),
                (SequenceWord::TopP, sampling.top_p.to_bits()),
                (SequenceWord::MinP, sampling.min_p.to_bits()),
                (SequenceWord::RepetitionPenalty, sampling.repetition.to_bits()),
                (SequenceWord::PresencePenalty, sampling.presence.to_bits()),
                (SequenceWord::FrequencyPenalty, sampling.frequency.to_bits()),
                (SequenceWord::FirstBias, biases),
                (SequenceWord::Biases, sequence.biases.len() as u32),
                (SequenceWord::Logprobs, u32::from(sequence.logprobs)),
            ] {
                fill.set(Section::Sequences, index as u32 * SEQUENCE_WORDS + word as u32, value);
            }
            for page in &sequence.pages {
                fill.set(Section::Page, pages, *page);
                pages += 1;
            }
            for (token, bias) in &sequence.biases {
                fill.set(Section::Bias, 2 * biases, *token);
                fill.set(Section::Bias, 2 * biases + 1, bias.to_bits());
                biases += 1;
            }
        }
    }
}

struct Fill {
    words: Vec<u32>,
    limits: StepLimits,
}

impl Fill {
    fn set(&mut self, section: Section, at: u32, word: u32) {
        assert!(at < self.limits.section_words(section), "{section:?} has no word {at}");
        self.words[(self.limits.offset(section) + at) as usize] = word;
    }

    fn list(&mut self, section: Section, words: impl Iterator<Item = u32>) {
        for (at, word) in words.enumerate() {
            self.set(section, at as u32, word);
        }
    }
}

/// What the builder writes is what the engine's own view reads.
pub fn self_test() {
    let mut first = Sequence::new(4, 70, 0);
    (first.position, first.pages) = (60, vec![9, 7, 8]);
    let mut second = Sequence::sampling(2, 1, 2);
    (second.pages, second.biases, second.sampling.top_p) = (vec![3], vec![(11, 0.5)], 0.25);
    let step = Step::new(vec![first, second]);
    let words = step.words();
    let view = StepView::new(&words, step.limits());
    assert_eq!([view.live(Header::Rows), view.live(Header::LogitRows), view.live(Header::Chunks)], [73, 3, 3]);
    assert_eq!(view.section(Section::Chunk)[..9], [0, 0, 4, 0, 4, 64, 0, 68, 2]);
    assert_eq!(view.section(Section::StepSequence)[0], 1);
    assert_eq!(view.section(Section::LogitRow)[..3], [70, 71, 72]);
    assert_eq!(view.section(Section::NextToken)[69..73], [POISON, SAMPLED, SAMPLED | 1, SAMPLED | 2]);
    assert_eq!(view.page(0, 129, 64), 8);
    assert_eq!(view.page(1, 0, 64), 3);
    assert_eq!(view.sequence_f32(1, SequenceWord::TopP), 0.25);
    assert_eq!(view.sequence(0, SequenceWord::FirstLogitRow), NONE);
    assert_eq!(view.section(Section::Bias)[..2], [11, 0.5f32.to_bits()]);
}
