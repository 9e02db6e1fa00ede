//! One sequence: the tokens of one choice, how many are computed, what it holds while it runs, and how a step's outcome
//! becomes tokens. Knows nothing of other sequences.

use std::sync::Arc;

use super::depth::DepthMeter;
use super::plan::{Logprobs, Sampled, SequenceId, SequencePlan};
use super::request::{Constraint, Counts, Event, FinishReason, Ruling, Watch};
use super::schedule::Candidate;
use super::verify;
use crate::base::SamplingParams;

/// What all choices of a request share.
#[derive(Debug)]
pub struct Rules {
    pub prompt_tokens: u32,
    /// The context counted in.
    pub max_tokens: u32,
    pub min_tokens: u32,
    /// Sorted: stop and end tokens that count.
    pub stop_ids: Vec<u32>,
    pub logprobs: Option<u32>,
    pub biases: Vec<(u32, f32)>,
    /// `biases` and minus infinity for each of `stop_ids`: what applies before `min_tokens`.
    pub biases_before_min: Vec<(u32, f32)>,
    pub depth_max: u32,
}

impl Rules {
    /// Most tokens that prompt and answer have together.
    pub fn tokens_max(&self) -> u32 {
        self.prompt_tokens + self.max_tokens
    }
}

/// What a sequence holds while it runs.
#[derive(Debug)]
pub struct Held {
    pub slot: u32,
    /// In order of position.
    pub pages: Vec<u32>,
}

pub struct Sequence {
    pub id: SequenceId,
    pub rules: Arc<Rules>,
    pub sampling: SamplingParams,
    pub watch: Option<Box<dyn Watch>>,
    pub constraint: Option<Box<dyn Constraint>>,
    /// Prompt, then answer. The last one is never computed while the choice lives.
    pub tokens: Vec<u32>,
    /// Tokens in cache and state, pending records included.
    pub computed: u32,
    /// Tokens in the slot's counts.
    pub counted: u32,
    /// Absent while it waits.
    pub held: Option<Held>,
    /// What may follow the last token; empty unless exactly that one is uncomputed.
    pub drafts: Vec<u32>,
    /// Drafts wanted from the step that runs now.
    pub next_depth: u32,
    /// Entry `computed` of the draft head's cache was not written for the token now there.
    pub entry_stale: bool,
    pub meter: DepthMeter,
    /// The step in which it ran last, or was started.
    pub last_run: u64,
    /// When the first plan saw it.
    pub seen_at: Option<u64>,
    pub counts: Counts,
}

/// What a commit did to a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// Draft rows that stay computed.
    pub kept: u32,
    pub finish: Option<FinishReason>,
}

/// How far the sampled tokens of a step were taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Appended {
    /// All of them stand.
    All,
    /// One was replaced; those behind it are void.
    Cut,
    /// One ended the choice.
    Ended(FinishReason),
}

impl Appended {
    fn finish(self) -> Option<FinishReason> {
        match self {
            Appended::Ended(reason) => Some(reason),
            Appended::All | Appended::Cut => None,
        }
    }
}

impl Sequence {
    pub fn length(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Known tokens that are not computed; at least 1.
    pub fn uncomputed(&self) -> u32 {
        self.length() - self.computed
    }

    pub fn generated(&self) -> u32 {
        self.length() - self.rules.prompt_tokens
    }

    /// Tokens that may still be generated; at least 1.
    pub fn remaining(&self) -> u32 {
        self.rules.max_tokens - self.generated()
    }

    /// Whether end tokens are to be kept from being sampled.
    pub fn below_min(&self) -> bool {
        self.generated() < self.rules.min_tokens && !self.rules.stop_ids.is_empty()
    }

    /// Drafts that its next step could verify. No more than could stand: a row beyond the last token is wasted, and
    /// biases are the same for all rows of a step, so a step does not cross the end of `min_tokens`.
    pub fn usable_drafts(&self) -> u32 {
        let mut most = self.remaining() - 1;
        if self.below_min() {
            most = most.min(self.rules.min_tokens - self.generated() - 1);
        }
        most.min(self.drafts.len() as u32)
    }

    /// As the scheduler sees it. `stop_at` is a position at which a chunk has to end.
    pub fn candidate(&self, stop_at: Option<u32>) -> Candidate {
        let end = stop_at.filter(|position| *position > self.computed).unwrap_or(self.length());
        Candidate {
            rows: end - self.computed,
            samples: end == self.length(),
            drafts: self.usable_drafts(),
            extra_rows: u32::from(self.entry_stale),
            last_run: self.last_run,
        }
    }

    /// Starts running with `computed` tokens done elsewhere: none, or those of a checkpoint.
    pub fn start(&mut self, held: Held, computed: u32, step: u64, now: u64) {
        assert!(self.held.is_none() && computed < self.length(), "{:?} starts twice or with nothing to do", self.id);
        let first_start = self.counts.preemptions == 0;
        self.held = Some(held);
        self.computed = computed;
        self.counted = computed;
        self.entry_stale = computed > 0 && self.rules.depth_max > 0;
        self.last_run = step;
        if first_start {
            self.counts.cached_tokens = computed.min(self.rules.prompt_tokens);
            self.counts.waited = now - self.seen_at.unwrap_or(now);
        }
    }

    /// Gives up what it holds and goes back to waiting with all its tokens.
    pub fn preempt(&mut self) -> Held {
        self.computed = 0;
        self.counted = 0;
        self.drafts.clear();
        self.entry_stale = false;
        self.counts.preemptions += 1;
        self.held.take().expect("only a running sequence is preempted")
    }

    /// Takes in what a step brought: its tokens, as far as they stand, become events.
    pub fn commit(&mut self, rows: &SequencePlan, outcome: Option<&Sampled>, events: &mut Vec<Event>) -> Committed {
        let committed = rows.committed();
        assert_eq!(rows.position, self.computed, "{:?}: the plan is of another step", self.id);
        self.computed += committed;
        self.counted = self.computed;
        self.entry_stale = false;
        let Some(outcome) = outcome else {
            return Committed { kept: 0, finish: None };
        };
        let drafts = &rows.tokens[committed as usize..];
        let accepted = verify::accepted(drafts, &outcome.tokens);
        self.drafts.clear();
        assert!(outcome.tokens.len() as u32 > outcome.accepted, "{:?}: a row that stands has no token", self.id);
        assert_eq!(outcome.accepted, accepted, "{:?}: device and host differ about the accepted drafts", self.id);
        self.meter.record(rows.drafts, accepted);
        self.counts.drafted += rows.drafts;
        self.counts.accepted += accepted;
        let standing = accepted as usize + usize::from(!outcome.not_a_number);
        let appended = self.append(&outcome.tokens[..standing], &outcome.logprobs, events);
        let lost = outcome.not_a_number && appended == Appended::All;
        if let Some(finish) = appended.finish().or(lost.then_some(FinishReason::NotANumber)) {
            return Committed { kept: 0, finish: Some(finish) };
        }
        let kept = verify::kept(drafts, accepted, &self.tokens[self.computed as usize..]);
        self.computed += kept;
        let next = self.tokens[self.computed as usize];
        let sampled_next = outcome.tokens[kept as usize] == next;
        self.entry_stale = !sampled_next && self.rules.depth_max > 0;
        if kept == accepted && sampled_next && self.uncomputed() == 1 {
            self.drafts.extend(outcome.drafts.iter().take(self.next_depth as usize));
        }
        Committed { kept, finish: None }
    }

    /// Appends sampled tokens, each as the constraint rules, until one ends the choice or is replaced.
    fn append(&mut self, sampled: &[u32], logprobs: &[Logprobs], events: &mut Vec<Event>) -> Appended {
        for (row, token) in sampled.iter().enumerate() {
            let ruling = self.constraint.as_mut().map_or(Ruling::Keep, |constraint| constraint.accept(*token));
            let stand = match ruling {
                Ruling::Keep => vec![*token],
                Ruling::Replace(tokens) => tokens,
            };
            assert!(!stand.is_empty(), "a constraint replaces a token by at least one");
            for (place, standing) in stand.iter().enumerate() {
                let was_sampled = place == 0 && standing == token;
                let logprobs = if was_sampled { self.logprobs(logprobs.get(row)) } else { None };
                let finish = self.push(*standing);
                let SequenceId { request, choice } = self.id;
                events.push(Event::Token { request, choice, token: *standing, logprobs });
                if let Some(reason) = finish {
                    return Appended::Ended(reason);
                }
            }
            if stand != [*token] {
                return Appended::Cut;
            }
        }
        Appended::All
    }

    /// Appends one token that stands; a reason if it ends the choice. An end token wins over the length.
    fn push(&mut self, token: u32) -> Option<FinishReason> {
        let stops = self.generated() >= self.rules.min_tokens && self.rules.stop_ids.binary_search(&token).is_ok();
        self.tokens.push(token);
        self.counts.completion_tokens += 1;
        let matched = self.watch.as_mut().is_some_and(|watch| watch.push(token));
        if stops {
            Some(FinishReason::StopToken(token))
        } else if matched && self.generated() >= self.rules.min_tokens {
            Some(FinishReason::StopWatch)
        } else if self.generated() == self.rules.max_tokens {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    fn logprobs(&self, row: Option<&Logprobs>) -> Option<Logprobs> {
        let wanted = self.rules.logprobs?;
        let mut logprobs = row.expect("logprobs were asked for").clone();
        logprobs.top.truncate(wanted as usize);
        Some(logprobs)
    }
}
