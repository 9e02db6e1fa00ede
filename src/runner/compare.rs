//! The steps that a comparison of two backends runs: between them they reach every op, in every form it has.

use super::{Runner, single};
use crate::backend::compare::{Difference, compare};
use crate::base::{Error, Result, SamplingParams};
use crate::engine::plan::Sampled;
use crate::model::forward::record_slot_operations;
use crate::model::{CountedTokens, SequenceRows, SlotOperations};

/// Positions beyond the prompt that the steps reach at most.
pub const TOKENS_AHEAD: u32 = 32;

/// Drafts that a comparison makes and verifies, where there is a draft head.
pub const DRAFTS: u32 = 3;

/// Runs the same steps on two runners of one model, comparing every op. `report` gets the name of the step with each
/// difference.
///
/// A prefill (DeltaChunk, ConvChunk); two decodes (DeltaStep, ConvStep), the second drafting where there is a draft
/// head; two verifications, the second of which folds what the first accepted; a flush (FoldRecords, FoldWindow) with a
/// chunk after it. A's tokens drive both.
pub fn compare_steps(
    a: &mut Runner,
    b: &mut Runner,
    prompt: &[u32],
    free: bool,
    report: &mut dyn FnMut(&str, Difference),
) -> Result<()> {
    check(a, b, prompt)?;
    let drafts = a.model.options.drafts_max.min(DRAFTS);
    let rows_max = a.model.options.rows_max as usize;
    let mut pair = Pair {
        a,
        b,
        free,
        report,
        prompt_tokens: prompt.len() as u32,
        tokens: prompt.to_vec(),
        computed: 0,
        parity: 0,
        pending: 0,
    };
    let mut choice = None;
    while choice.is_none() {
        let end = (pair.computed + rows_max).min(prompt.len());
        let operations = if pair.computed == 0 { single::reset() } else { SlotOperations::default() };
        choice = pair.step("prefill", end - pair.computed, &[], 0, &operations)?;
    }
    pair.take(choice);
    let choice = pair.step("decode", 1, &[], 0, &SlotOperations::default())?;
    pair.take(choice);
    let choice = pair.step("decode", 1, &[], drafts, &SlotOperations::default())?;
    let mut drafted = pair.take(choice);
    if drafts > 0 {
        for name in ["verify", "verify after acceptance"] {
            let choice = pair.step(name, 1, &drafted, drafts, &SlotOperations::default())?;
            drafted = pair.take(choice);
        }
    }
    // The prompt's first tokens again, as if a user had spoken: a chunk that follows a decode.
    pair.tokens.extend_from_slice(&prompt[..prompt.len().min(3)]);
    let flush = SlotOperations { folds: vec![(0, pair.parity, pair.pending)], ..Default::default() };
    pair.pending = 0;
    let rows = pair.tokens.len() - pair.computed;
    pair.step("chunk after decode", rows, &[], 0, &flush)?;
    Ok(())
}

/// Both sides of a comparison, and where their one sequence stands.
struct Pair<'a> {
    a: &'a mut Runner,
    b: &'a mut Runner,
    free: bool,
    report: &'a mut dyn FnMut(&str, Difference),
    prompt_tokens: u32,
    tokens: Vec<u32>,
    computed: usize,
    parity: u32,
    pending: u32,
}

impl Pair<'_> {
    /// Runs `committed` tokens and `drafts` on both, op by op. A choice if the last token was among them.
    fn step(
        &mut self,
        name: &str,
        committed: usize,
        drafts: &[u32],
        passes: u32,
        operations: &SlotOperations,
    ) -> Result<Option<Sampled>> {
        let end = self.computed + committed;
        let mut rows = single::rows(self.a, &self.tokens, self.computed, end);
        rows.tokens.extend_from_slice(drafts);
        let pages = self.a.model.options.pages_per_sequence(rows.position + rows.tokens.len() as u32);
        let rows = SequenceRows {
            drafts: drafts.len() as u32,
            parity: self.parity,
            pending: self.pending,
            pages: (0..pages).collect(),
            counted: CountedTokens::OutputFrom(self.prompt_tokens),
            sampling: sampling(),
            logprobs: true,
            biases: vec![(self.tokens[0], 0.5)],
            ..rows
        };
        let rows = [rows];
        self.a.fill(&rows, operations)?;
        self.b.fill(&rows, operations)?;
        if !operations.is_empty() {
            let program = record_slot_operations(&self.a.model);
            let report = &mut |difference| (self.report)(&format!("{name}: slots"), difference);
            compare(self.a.backend.as_mut(), self.b.backend.as_mut(), &program, self.free, report)?;
        }
        let program = self.a.program(self.a.bucket(&rows, passes));
        let report = &mut |difference| (self.report)(name, difference);
        compare(self.a.backend.as_mut(), self.b.backend.as_mut(), &program, self.free, report)?;
        self.computed = end;
        self.parity ^= 1;
        self.pending = 0;
        Ok(self.a.outcome(&rows, passes)?.sampled.pop())
    }

    /// Appends what a step chose; returns its drafts.
    fn take(&mut self, choice: Option<Sampled>) -> Vec<u32> {
        let choice = choice.expect("a step that ends at the last token samples");
        self.computed += choice.accepted as usize;
        self.pending = choice.accepted;
        self.tokens.extend_from_slice(choice.standing());
        choice.drafts
    }
}

/// Greedy, so that both sides choose by the scores alone; with penalties, so that these are computed.
fn sampling() -> SamplingParams {
    SamplingParams { repetition_penalty: 1.1, presence_penalty: 0.25, frequency_penalty: 0.25, ..Default::default() }
}

fn check(a: &Runner, b: &Runner, prompt: &[u32]) -> Result<()> {
    let parts = |runner: &Runner| runner.model.weights.clone();
    if parts(a) != parts(b) || a.model.step != b.model.step {
        return Err(Error::failure(
            "the two backends lay the model out differently, so that no program runs on both",
            "compare each with --a NAME --b cpu, or with --reference FILE",
        ));
    }
    let context = a.model().options.context_max;
    if prompt.is_empty() || prompt.len() as u64 + u64::from(TOKENS_AHEAD) > u64::from(context) {
        return Err(Error::input(
            format!(
                "the prompt has {} tokens, 1 to {} fit the context",
                prompt.len(),
                context.saturating_sub(TOKENS_AHEAD)
            ),
            "choose another --prompt, or raise --max-context",
        ));
    }
    Ok(())
}
