//! The right answer of one choice, by the plainest loop: one token after the other, everything in growing lists. Also
//! what a device must hold after each token, so that a fault is seen where it arises.

use deltic::engine::FinishReason;
use deltic::engine::request::Ruling;

use super::network::{self, Draw, LOOKBACK};
use super::spec::RequestSpec;

/// One choice, alone and without drafts.
#[derive(Debug, Clone)]
pub struct Reference {
    /// Prompt, then answer.
    pub tokens: Vec<u32>,
    pub prompt_tokens: usize,
    pub reason: FinishReason,
    /// Per position: the token that the target sampled for it; None for the prompt and for forced tokens.
    pub sampled: Vec<Option<u32>>,
    /// Per position: the log-probability reported for a sampled token.
    pub logprobs: Vec<Option<f32>>,
    /// Per number of computed tokens.
    pub states: Vec<u64>,
    /// Per position.
    pub inputs: Vec<u64>,
    pub hidden: Vec<u64>,
    pub cells: Vec<u64>,
    /// Per position from 1 on: the draft head's cell, and its reading of cells 1 to here.
    pub draft_cells: Vec<u64>,
    pub draft_reads: Vec<u64>,
    read: u64,
    counts: u64,
}

impl Reference {
    pub fn of(spec: &RequestSpec, choice: u32, context_max: u32) -> Reference {
        let mut reference = Reference {
            tokens: spec.prompt.clone(),
            prompt_tokens: spec.prompt.len(),
            reason: FinishReason::Length,
            sampled: vec![None; spec.prompt.len()],
            logprobs: vec![None; spec.prompt.len()],
            states: vec![0],
            inputs: Vec::new(),
            hidden: Vec::new(),
            cells: Vec::new(),
            draft_cells: vec![0],
            draft_reads: vec![0],
            read: 0,
            counts: 0,
        };
        reference.reason = reference.answer(spec, choice, context_max);
        reference.compute();
        reference
    }

    pub fn answer_tokens(&self) -> &[u32] {
        &self.tokens[self.prompt_tokens..]
    }

    /// Whether the token that was sampled for this position stands there.
    pub fn stands(&self, position: usize) -> bool {
        self.sampled[position] == Some(self.tokens[position])
    }

    /// Computes the tokens that are not computed yet.
    fn compute(&mut self) {
        for position in self.inputs.len()..self.tokens.len() {
            let token = self.tokens[position];
            if position > 0 {
                let cell = network::draft_cell(self.hidden[position - 1], token);
                self.draft_cells.push(cell);
                self.draft_reads.push(network::read(self.draft_reads[position - 1], cell));
            }
            let input = network::input(token);
            let mut window = [0; LOOKBACK];
            for (back, earlier) in window.iter_mut().rev().enumerate() {
                *earlier = position.checked_sub(back + 1).map_or(0, |position| self.inputs[position]);
            }
            let (record, convolved) = network::recur(self.states[position], window, input);
            let state = network::fold(self.states[position], record);
            let output = network::hidden(state, convolved);
            let cell = network::cell(position as u32, output);
            self.read = network::read(self.read, cell);
            self.states.push(state);
            self.inputs.push(input);
            self.cells.push(cell);
            self.hidden.push(network::hidden(output, self.read));
            self.counts = self.counts.wrapping_add(network::count(token, position >= self.prompt_tokens));
        }
    }

    fn answer(&mut self, spec: &RequestSpec, choice: u32, context_max: u32) -> FinishReason {
        let (mut watch, mut constraint) = (spec.watch(), spec.constraint(choice));
        let sampling = deltic::base::SamplingParams { choice, ..spec.sampling.clone() };
        let max_tokens = (spec.max_tokens as usize).min(context_max as usize - self.prompt_tokens);
        let mut ends = spec.stop_ids.clone();
        if !spec.ignore_end {
            ends.extend(&spec.end_ids);
        }
        loop {
            self.compute();
            let generated = self.answer_tokens().len();
            let mut biases = spec.biases.clone();
            if generated < spec.min_tokens as usize {
                biases.retain(|(token, _)| !ends.contains(token));
                biases.extend(ends.iter().map(|token| (*token, f32::NEG_INFINITY)));
            }
            let mask = constraint.as_mut().and_then(|constraint| constraint.masks(&[]).rows.remove(0));
            let position = self.tokens.len() as u32;
            let draw =
                Draw { sampling: &sampling, position, counts: self.counts, biases: &biases, mask: mask.as_ref() };
            let hidden = *self.hidden.last().expect("a prompt");
            let Some(token) = network::sample(hidden, &draw, spec.broken_one_in) else {
                return FinishReason::NotANumber;
            };
            let stand = match constraint.as_mut().map_or(Ruling::Keep, |constraint| constraint.accept(token)) {
                Ruling::Keep => vec![token],
                Ruling::Replace(tokens) => tokens,
            };
            for (place, standing) in stand.into_iter().enumerate() {
                let before = self.answer_tokens().len();
                self.tokens.push(standing);
                self.sampled.push((place == 0).then_some(token));
                let reported = place == 0 && standing == token;
                self.logprobs.push(reported.then(|| network::logprob(hidden)));
                let matched = watch.as_mut().is_some_and(|watch| watch.push(standing));
                if before >= spec.min_tokens as usize && ends.contains(&standing) {
                    return FinishReason::StopToken(standing);
                }
                if matched && before + 1 >= spec.min_tokens as usize {
                    return FinishReason::StopWatch;
                }
                if before + 1 == max_tokens {
                    return FinishReason::Length;
                }
            }
        }
    }
}
