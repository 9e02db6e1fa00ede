//! One sequence on a runner: prefill in chunks, then one token a step. No drafts and no scheduling.

use super::{Logprobs, Runner};
use crate::base::{Error, Result, SamplingParams};
use crate::model::{CountedTokens, SequenceRows, SlotOperations};

/// What one answer is limited by.
#[derive(Debug, Clone)]
pub struct Limits {
    pub max_tokens: u32,
    /// Most rows of a prefill step; at most the model's largest step.
    pub chunk_rows: u32,
    /// Tokens that end the answer, kept as its last token.
    pub stop_ids: Vec<u32>,
    pub logprobs: bool,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// One of the stop ids.
    Stop,
    /// `max_tokens`, or the context is full.
    Length,
    /// The caller did not want more.
    Cancelled,
}

/// Whether the caller wants more tokens.
pub type Continue = bool;

/// Generates after `prompt`, calling `on_token` with each new id as it stands.
///
/// Errors: an empty prompt, a prompt that leaves no room in the context, ids the model does not have.
pub fn generate(
    runner: &mut Runner,
    prompt: &[u32],
    sampling: &SamplingParams,
    limits: &Limits,
    on_token: &mut dyn FnMut(u32, Option<&Logprobs>) -> Continue,
) -> Result<Finish> {
    sampling.validate()?;
    let context = runner.model().options.context_max;
    check_prompt(prompt, context, runner.model().options.vocab_live)?;
    let mut sequence = Sequence {
        tokens: prompt.to_vec(),
        prompt_tokens: prompt.len() as u32,
        sampling: sampling.clone(),
        logprobs: limits.logprobs,
    };
    let chunk = limits.chunk_rows.clamp(1, runner.model().options.rows_max) as usize;
    let mut computed = 0;
    let room = context - prompt.len() as u32;
    let budget = limits.max_tokens.min(room);
    if budget == 0 {
        return Ok(Finish::Length);
    }
    let mut generated = 0;
    loop {
        let end = (computed + chunk).min(sequence.tokens.len());
        let choice = sequence.step(runner, computed, end)?;
        computed = end;
        let Some(choice) = choice else { continue };
        let token = choice.tokens[0];
        sequence.tokens.push(token);
        generated += 1;
        let wanted = on_token(token, choice.logprobs.first());
        if limits.stop_ids.contains(&token) {
            return Ok(Finish::Stop);
        }
        if !wanted {
            return Ok(Finish::Cancelled);
        }
        if generated == budget {
            return Ok(Finish::Length);
        }
    }
}

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

struct Sequence {
    tokens: Vec<u32>,
    prompt_tokens: u32,
    sampling: SamplingParams,
    logprobs: bool,
}

impl Sequence {
    /// Computes tokens `computed .. end`; a choice if they are all there are.
    fn step(&self, runner: &mut Runner, computed: usize, end: usize) -> Result<Option<super::Choice>> {
        let counts = self.sampling.counts_tokens();
        let counted = if counts { CountedTokens::OutputFrom(self.prompt_tokens) } else { CountedTokens::Nothing };
        let rows = SequenceRows {
            counted,
            sampling: self.sampling.clone(),
            logprobs: self.logprobs,
            ..rows(runner, &self.tokens, computed, end)
        };
        let operations = if computed == 0 { reset() } else { SlotOperations::default() };
        Ok(runner.run(&[rows], &operations, 0)?.choices.pop())
    }
}

fn check_prompt(prompt: &[u32], context: u32, vocab_live: u32) -> Result<()> {
    if prompt.is_empty() {
        return Err(Error::input("the prompt is empty", "give at least one token of prompt"));
    }
    if prompt.len() as u64 >= u64::from(context) {
        return Err(Error::input(
            format!("the prompt has {} tokens, the context holds {context} with the answer", prompt.len()),
            "shorten the prompt or raise --max-context",
        ));
    }
    if let Some(id) = prompt.iter().find(|id| **id >= vocab_live) {
        return Err(Error::input(
            format!("the prompt holds token id {id}, the vocabulary has {vocab_live}"),
            "tokenise the prompt with the checkpoint's own tokenizer",
        ));
    }
    Ok(())
}
