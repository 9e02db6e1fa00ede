//! L3: the only place where a step meets a device. Fills the step inputs, launches the right program, reads back.

pub mod compare;
pub mod reference;
pub mod single;

use std::collections::BTreeMap;

use crate::backend::op::{LOGPROB_WORDS, TOP_LOGPROBS, VERDICT_WORDS, VerdictWord};
use crate::backend::step::NONE;
use crate::backend::{Backend, GraphId, Program, Tensor};
use crate::base::dtype::words;
use crate::base::{Error, Result};
use crate::model::forward::{record_slot_operations, record_step};
use crate::model::{Bucket, Model, SequenceRows, SlotOperations, step};

/// A model on a backend, with the programs that have been compiled so far.
pub struct Runner {
    backend: Box<dyn Backend>,
    model: Model,
    programs: BTreeMap<Bucket, GraphId>,
    slot_program: Option<GraphId>,
    words: Vec<u32>,
}

/// What one step brought, per sequence that sampled, in the order of the step.
#[derive(Debug, Clone, Default)]
pub struct StepOutcome {
    pub choices: Vec<Choice>,
}

/// What one sequence's rows sampled.
#[derive(Debug, Clone)]
pub struct Choice {
    /// Drafts that stand.
    pub accepted: u32,
    /// The tokens that stand: the accepted drafts, then the one sampled after them.
    pub tokens: Vec<u32>,
    /// Drafts for the next step.
    pub drafts: Vec<u32>,
    /// One entry for each of `tokens`, where asked for.
    pub logprobs: Vec<Logprobs>,
}

/// Log-probabilities at one token.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    pub sampled: f32,
    /// Best first.
    pub top: Vec<(u32, f32)>,
}

impl Runner {
    pub fn new(backend: Box<dyn Backend>, model: Model) -> Runner {
        Runner { backend, model, programs: BTreeMap::new(), slot_program: None, words: Vec::new() }
    }

    pub fn model(&self) -> &Model {
        &self.model
    }

    pub fn backend(&mut self) -> &mut dyn Backend {
        self.backend.as_mut()
    }

    /// Runs one step: slot operations, then all rows of `sequences`, then `passes` drafts for each that sampled.
    pub fn run(&mut self, sequences: &[SequenceRows], operations: &SlotOperations, passes: u32) -> Result<StepOutcome> {
        self.fill(sequences, operations)?;
        if !operations.is_empty() {
            let graph = self.slot_graph()?;
            self.backend.launch(graph)?;
        }
        if sequences.is_empty() {
            return Ok(StepOutcome::default());
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
        if let Some(graph) = self.programs.get(&bucket) {
            return Ok(*graph);
        }
        let graph = self.backend.compile(&record_step(&self.model, bucket))?;
        self.programs.insert(bucket, graph);
        Ok(graph)
    }

    fn slot_graph(&mut self) -> Result<GraphId> {
        if let Some(graph) = self.slot_program {
            return Ok(graph);
        }
        let graph = self.backend.compile(&record_slot_operations(&self.model))?;
        self.slot_program = Some(graph);
        Ok(graph)
    }

    fn outcome(&mut self, sequences: &[SequenceRows], passes: u32) -> Result<StepOutcome> {
        let sampling: Vec<&SequenceRows> = sequences.iter().filter(|rows| rows.samples()).collect();
        if sampling.is_empty() {
            return Ok(StepOutcome::default());
        }
        let work = self.model.workspace;
        let sampled = self.read_words(work.sampled)?;
        let logprobs =
            if sampling.iter().any(|rows| rows.logprobs) { self.read_words(work.logprobs)? } else { Vec::new() };
        let (verdicts, drafts) = if self.model.drafts() {
            (self.read_words(work.verdict)?, self.read_words(work.drafts)?)
        } else {
            (Vec::new(), Vec::new())
        };
        let mut outcome = StepOutcome::default();
        let mut first_logit_row = 0;
        for (index, rows) in sampling.into_iter().enumerate() {
            let accepted = match verdicts.get(index * VERDICT_WORDS as usize + VerdictWord::Accepted as usize) {
                Some(accepted) => *accepted,
                None => 0,
            };
            let logit_rows = first_logit_row..first_logit_row + 1 + accepted as usize;
            let tokens = sampled[logit_rows.clone()].to_vec();
            if let Some(offset) = tokens.iter().position(|token| *token == NONE) {
                let position = rows.position + rows.committed() + offset as u32;
                return Err(not_a_number(position));
            }
            let asked = if rows.logprobs { logit_rows } else { 0..0 };
            let next_drafts = drafts.chunks_exact(work.drafts.cols as usize).nth(index);
            outcome.choices.push(Choice {
                accepted,
                tokens,
                drafts: next_drafts.map_or(Vec::new(), |drafts| drafts[..passes as usize].to_vec()),
                logprobs: asked.map(|row| parse_logprobs(&logprobs, row)).collect(),
            });
            first_logit_row += 1 + rows.drafts as usize;
        }
        Ok(outcome)
    }

    fn read_words(&mut self, tensor: Tensor) -> Result<Vec<u32>> {
        Ok(words(&pollster::block_on(self.backend.read(tensor))?))
    }
}

fn parse_logprobs(all: &[u32], row: usize) -> Logprobs {
    let row = &all[row * LOGPROB_WORDS as usize..][..LOGPROB_WORDS as usize];
    let (ids, values) = row[1..].split_at(TOP_LOGPROBS as usize);
    let top = ids.iter().zip(values).filter(|(id, _)| **id != NONE);
    Logprobs { sampled: f32::from_bits(row[0]), top: top.map(|(id, v)| (*id, f32::from_bits(*v))).collect() }
}

fn not_a_number(position: u32) -> Error {
    Error::failure(
        format!("the logits for position {position} hold no finite number"),
        "run deltic compare to find the first op that differs; check the checkpoint with deltic inspect",
    )
}
