//! L3: the only place where a step meets a device. Fills the step inputs, launches the right program, reads back.

pub mod compare;
pub mod engine;
pub mod reference;
pub mod single;
pub mod thread;

use std::collections::BTreeMap;

use crate::backend::op::{LOGPROB_WORDS, TOP_LOGPROBS, VERDICT_WORDS, VerdictWord};
use crate::backend::step::NONE;
use crate::backend::{Backend, GraphId, Program, Tensor};
use crate::base::Result;
use crate::base::dtype::words;
use crate::engine::StepOutcome;
use crate::engine::plan::{Logprobs, Sampled};
use crate::model::forward::{record_slot_operations, record_step};
use crate::model::mtp::record_resumes;
use crate::model::{Bucket, Model, SequenceRows, SlotOperations, step};

/// A model on a backend, with the programs that have been compiled so far.
pub struct Runner {
    backend: Box<dyn Backend>,
    model: Model,
    programs: BTreeMap<Recorded, GraphId>,
    words: Vec<u32>,
}

/// What a model can record; each is compiled when it is first run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Recorded {
    Step(Bucket),
    SlotOperations,
    Resumes,
}

impl Runner {
    pub fn new(backend: Box<dyn Backend>, model: Model) -> Runner {
        Runner { backend, model, programs: BTreeMap::new(), words: Vec::new() }
    }

    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Allowed tokens of the step to come: row i of the mask tensor, a bit a token, lowest first.
    pub fn write_masks(&mut self, masks: &[Vec<u32>]) -> Result<()> {
        let tensor = self.model.caches.masks;
        for (row, mask) in masks.iter().enumerate() {
            let words = &mask[..mask.len().min(tensor.cols as usize)];
            self.backend.write(tensor, row * tensor.cols as usize * 4, bytemuck::cast_slice(words))?;
        }
        Ok(())
    }

    pub fn backend(&mut self) -> &mut dyn Backend {
        self.backend.as_mut()
    }

    /// Runs one step: slot operations, then resumes, then all rows of `sequences`, then `passes` drafts for each that
    /// sampled.
    pub fn run(&mut self, sequences: &[SequenceRows], operations: &SlotOperations, passes: u32) -> Result<StepOutcome> {
        self.fill(sequences, operations)?;
        if !operations.is_empty() {
            let graph = self.compiled(Recorded::SlotOperations)?;
            self.backend.launch(graph)?;
        }
        if sequences.is_empty() {
            return Ok(StepOutcome::default());
        }
        if sequences.iter().any(|rows| rows.resume) {
            let graph = self.compiled(Recorded::Resumes)?;
            self.backend.launch(graph)?;
        }
        let graph = self.graph(self.bucket(sequences, passes))?;
        self.backend.launch(graph)?;
        self.outcome(sequences, passes)
    }

    /// Writes the step inputs without launching anything, for captures and comparisons.
    pub fn fill(&mut self, sequences: &[SequenceRows], operations: &SlotOperations) -> Result<()> {
        step::fill(&mut self.words, self.model.step.limits, sequences, operations);
        self.backend.write(self.model.step.tensor, 0, bytemuck::cast_slice(&self.words))
    }

    pub fn bucket(&self, sequences: &[SequenceRows], passes: u32) -> Bucket {
        let rows = sequences.iter().map(|rows| rows.tokens.len() as u32).sum();
        Bucket::holding(rows, passes, self.model.options.rows_max)
    }

    /// The program that a bucket's steps run.
    pub fn program(&self, bucket: Bucket) -> Program {
        record_step(&self.model, bucket)
    }

    /// The compiled program of a bucket.
    pub fn graph(&mut self, bucket: Bucket) -> Result<GraphId> {
        self.compiled(Recorded::Step(bucket))
    }

    fn compiled(&mut self, recorded: Recorded) -> Result<GraphId> {
        if let Some(graph) = self.programs.get(&recorded) {
            return Ok(*graph);
        }
        let program = match recorded {
            Recorded::Step(bucket) => record_step(&self.model, bucket),
            Recorded::SlotOperations => record_slot_operations(&self.model),
            Recorded::Resumes => record_resumes(&self.model),
        };
        let graph = self.backend.compile(&program)?;
        self.programs.insert(recorded, graph);
        Ok(graph)
    }

    /// Reads back what the sequences that sample need, in one round trip.
    fn outcome(&mut self, sequences: &[SequenceRows], passes: u32) -> Result<StepOutcome> {
        let sampling: Vec<&SequenceRows> = sequences.iter().filter(|rows| rows.samples()).collect();
        if sampling.is_empty() {
            return Ok(StepOutcome::default());
        }
        let work = self.model.workspace;
        let drafts = self.model.drafts();
        let logprobs = sampling.iter().any(|rows| rows.logprobs);
        let mut sources = vec![work.sampled];
        sources.extend(if drafts { vec![work.verdict, work.drafts] } else { Vec::new() });
        sources.extend(logprobs.then_some(work.logprobs));
        let words = words(&pollster::block_on(self.backend.read(&sources))?);
        let mut rest = words.as_slice();
        let mut take = |tensor: Tensor, wanted: bool| {
            let (taken, left) = rest.split_at(if wanted { tensor.elements() } else { 0 });
            rest = left;
            taken
        };
        let read = Read {
            sampled: take(work.sampled, true),
            verdicts: take(work.verdict, drafts),
            drafts: take(work.drafts, drafts),
            drafts_max: work.drafts.cols as usize,
            logprobs: take(work.logprobs, logprobs),
        };
        let mut first_logit_row = 0;
        let mut outcome = StepOutcome::default();
        for (index, rows) in sampling.into_iter().enumerate() {
            outcome.sampled.push(read.sequence(index, rows, first_logit_row, passes as usize));
            first_logit_row += 1 + rows.drafts as usize;
        }
        Ok(outcome)
    }
}

/// The words of one read-back.
struct Read<'a> {
    sampled: &'a [u32],
    verdicts: &'a [u32],
    drafts: &'a [u32],
    drafts_max: usize,
    logprobs: &'a [u32],
}

impl Read<'_> {
    fn sequence(&self, index: usize, rows: &SequenceRows, first_logit_row: usize, passes: usize) -> Sampled {
        let verdict = index * VERDICT_WORDS as usize + VerdictWord::Accepted as usize;
        let accepted = self.verdicts.get(verdict).copied().unwrap_or(0);
        let tokens = &self.sampled[first_logit_row..][..1 + rows.drafts as usize];
        let asked = if rows.logprobs { first_logit_row..first_logit_row + 1 + accepted as usize } else { 0..0 };
        let drafts = self.drafts.get(index * self.drafts_max..).unwrap_or_default();
        Sampled {
            tokens: tokens.to_vec(),
            accepted,
            drafts: drafts[..passes.min(drafts.len())].to_vec(),
            logprobs: asked.map(|row| parse_logprobs(self.logprobs, row)).collect(),
            not_a_number: tokens[accepted as usize] == NONE,
        }
    }
}

fn parse_logprobs(all: &[u32], row: usize) -> Logprobs {
    let row = &all[row * LOGPROB_WORDS as usize..][..LOGPROB_WORDS as usize];
    let (ids, values) = row[1..].split_at(TOP_LOGPROBS as usize);
    let top = ids.iter().zip(values).filter(|(id, _)| **id != NONE);
    Logprobs { sampled: f32::from_bits(row[0]), top: top.map(|(id, v)| (*id, f32::from_bits(*v))).collect() }
}
