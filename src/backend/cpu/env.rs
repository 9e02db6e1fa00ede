//! What a kernel sees of its launch: the step inputs, the buffers it reads, the workers, scratch for the whole op.

use super::memory::{Buffer, Memory, View};
use super::simd::Simd;
use super::team::Team;
use crate::backend::capture::live_rows;
use crate::backend::op::{VERDICT_WORDS, VerdictWord};
use crate::backend::step::{Header, Section, SequenceWord, StepView};
use crate::backend::{DeltaShape, RowSet, Tensor};

pub struct Env<'a> {
    pub step: StepView<'a>,
    pub buffers: &'a [Buffer],
    pub team: &'a Team,
}

impl<'a> Env<'a> {
    /// A float tensor that the op only reads.
    pub fn view(&self, tensor: Tensor) -> View<'a> {
        View::new(self.memory(tensor), tensor)
    }

    /// The words of a u32 tensor that the op only reads.
    pub fn words(&self, tensor: Tensor) -> &'a [u32] {
        self.memory(tensor).elements(tensor.elements())
    }

    /// The bytes of any tensor that the op only reads.
    pub fn bytes(&self, tensor: Tensor) -> &'a [u8] {
        self.memory(tensor).elements(tensor.bytes())
    }

    /// A one-row or small float tensor, widened into `to`; the rest of `to` is zeroed.
    pub fn widen<S: Simd>(&self, simd: S, tensor: Tensor, to: &mut [f32]) {
        let elements = tensor.elements();
        let view = self.view(Tensor { rows: 1, cols: elements as u32, ..tensor });
        simd.enter(
            #[inline(always)]
            || view.read(simd, 0, 0, elements, to),
        );
    }

    fn memory(&self, tensor: Tensor) -> &'a Memory {
        &self.buffers[tensor.buffer.0 as usize].memory
    }

    /// Live rows of a row set.
    pub fn live(&self, rows: RowSet) -> usize {
        live_rows(&self.step, rows)
    }

    /// Position and sequence of each live row.
    pub fn places(&self, rows: RowSet) -> impl Iterator<Item = Place> + use<'a> {
        let step = self.step;
        let verdict: &'a [u32] = match rows {
            RowSet::Drafts { verdict, .. } => self.words(verdict),
            _ => &[],
        };
        (0..self.live(rows)).map(move |row| match rows {
            RowSet::Target => Place::of_row(step, row, 0),
            RowSet::Upkeep => Place::of_row(step, row, 1),
            RowSet::Resumes => {
                let sequence = step.section(Section::Resume)[row] as usize;
                Place::of_row(step, step.sequence(sequence, SequenceWord::FirstRow) as usize, 0)
            }
            RowSet::Logits => Place::of_row(step, step.section(Section::LogitRow)[row] as usize, 0),
            RowSet::Drafts { pass, .. } => {
                let computed = verdict[row * VERDICT_WORDS as usize + VerdictWord::Position as usize];
                let sequence = step.section(Section::DraftSequence)[row] as usize;
                Place { sequence, position: computed + pass - 1 }
            }
        })
    }

    /// The sequences with one committed row and their draft rows.
    pub fn steps(&self, shape: DeltaShape) -> Vec<Run> {
        let list = &self.step.section(Section::StepSequence)[..self.step.live(Header::StepSequences)];
        let run = |sequence: &u32| {
            let word = |word| self.step.sequence(*sequence as usize, word) as usize;
            let (pending, drafts) = (word(SequenceWord::Pending), word(SequenceWord::Drafts));
            assert!(pending.max(drafts) <= shape.drafts_max as usize, "{pending} pending, {drafts} drafts");
            Run {
                first_row: word(SequenceWord::FirstRow),
                committed: 1,
                drafts,
                slot: word(SequenceWord::Slot),
                parity: word(SequenceWord::Parity),
                pending,
            }
        };
        list.iter().map(run).collect()
    }

    /// The chunk list: all rows committed, none pending.
    pub fn chunks(&self) -> Vec<Run> {
        let chunks = self.step.section(Section::Chunk).chunks_exact(3).take(self.step.live(Header::Chunks));
        let run = |chunk: &[u32]| Run {
            first_row: chunk[1] as usize,
            committed: chunk[2] as usize,
            drafts: 0,
            slot: self.step.sequence(chunk[0] as usize, SequenceWord::Slot) as usize,
            parity: 0,
            pending: 0,
        };
        chunks.map(run).collect()
    }

    /// A word of the sequence that a resume row belongs to.
    pub fn resumed(&self, row: usize, word: SequenceWord) -> usize {
        self.step.sequence(self.step.section(Section::Resume)[row] as usize, word) as usize
    }

    /// The sequence of a logit row and its index among that sequence's rows that sample: 0 for the last committed
    /// row, i for its i-th draft.
    pub fn sampling_row(&self, logit_row: usize) -> SamplingRow {
        let row = self.step.section(Section::LogitRow)[logit_row] as usize;
        let sequence = self.step.section(Section::Sequence)[row] as usize;
        let word = |word| self.step.sequence(sequence, word) as usize;
        let last_committed = word(SequenceWord::FirstRow) + word(SequenceWord::Committed) - 1;
        SamplingRow { row, sequence, drafts_before: row.saturating_sub(last_committed) }
    }
}

/// Consecutive rows of one sequence, with what surrounds them.
pub struct Run {
    pub first_row: usize,
    pub committed: usize,
    pub drafts: usize,
    pub slot: usize,
    pub parity: usize,
    pub pending: usize,
}

/// Where a row stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub sequence: usize,
    pub position: u32,
}

impl Place {
    fn of_row(step: StepView<'_>, row: usize, later: u32) -> Place {
        let sequence = step.section(Section::Sequence)[row] as usize;
        Place { sequence, position: step.section(Section::Position)[row] + later }
    }
}

/// A row whose logits are computed.
#[derive(Debug, Clone, Copy)]
pub struct SamplingRow {
    pub row: usize,
    pub sequence: usize,
    pub drafts_before: usize,
}
