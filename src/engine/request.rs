//! What a caller hands in and what comes back: requests, events, and the reasons of a refusal or an end. Also the two
//! traits by which the text side looks into an answer while it grows. Plain data; nothing here decides anything.

use std::fmt;

use super::plan::{Logprobs, Mask};
use crate::base::{Error, SamplingParams};

/// One prompt and how its answers are made.
pub struct Request {
    /// Token ids; at least one.
    pub prompt: Vec<u32>,
    /// Answers wanted, each with its own random numbers; at least 1.
    pub choices: u32,
    /// Its `choice` is set per answer.
    pub sampling: SamplingParams,
    /// Most tokens of an answer; at least 1. The context may end it earlier.
    pub max_tokens: u32,
    /// Tokens before which no id of `stop_ids` and `end_ids` can be sampled and no watch ends an answer. A constraint
    /// that allows nothing else by then leaves nothing to sample: the choice ends with `NotANumber`.
    pub min_tokens: u32,
    /// Tokens that end an answer, as its last token.
    pub stop_ids: Vec<u32>,
    /// The model's own end tokens; like `stop_ids` unless `ignore_end`.
    pub end_ids: Vec<u32>,
    pub ignore_end: bool,
    /// Log-probabilities wanted per token: the sampled token's and this many of the best.
    pub logprobs: Option<u32>,
    /// (token, bias) pairs added to the logits; finite.
    pub biases: Vec<(u32, f32)>,
    /// Deepest speculation for this request; the core's own limit where absent.
    pub depth_max: Option<u32>,
    /// One for each choice, or none at all.
    pub watches: Vec<Box<dyn Watch>>,
    /// One for each choice, or none at all.
    pub constraints: Vec<Box<dyn Constraint>>,
}

impl Request {
    /// One greedy answer of at most `max_tokens` with everything else off.
    pub fn new(prompt: Vec<u32>, max_tokens: u32) -> Request {
        Request {
            prompt,
            choices: 1,
            sampling: SamplingParams::default(),
            max_tokens,
            min_tokens: 0,
            stop_ids: Vec::new(),
            end_ids: Vec::new(),
            ignore_end: false,
            logprobs: None,
            biases: Vec::new(),
            depth_max: None,
            watches: Vec::new(),
            constraints: Vec::new(),
        }
    }
}

/// Sees each token of one choice as it stands, in order, once. Stop strings live behind it.
pub trait Watch: Send {
    /// Whether the answer ends with this token. Not asked again after `true`, except before `min_tokens`.
    fn push(&mut self, token: u32) -> bool;
}

/// Rules over the tokens of one choice: grammars, forced tokens, budgets of thinking.
pub trait Constraint: Send {
    /// What may come after the tokens accepted so far, and after each of `drafts` that it allows. Leaves the constraint
    /// as it found it: whatever it walks over the drafts it rolls back, since none of them stands yet.
    fn masks(&mut self, drafts: &[u32]) -> Masks;

    /// Moves over a sampled token and says what stands. Called once per sampled token, in order. Depends on nothing
    /// but the tokens: else speculation would change the answer.
    fn accept(&mut self, token: u32) -> Ruling;
}

/// The masks of one step's logit rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Masks {
    /// How many of the drafts the constraint allows; the chain is cut there.
    pub drafts_allowed: u32,
    /// `drafts_allowed + 1` entries: for the next token, then after each allowed draft. None allows everything.
    pub rows: Vec<Option<Mask>>,
}

impl Masks {
    /// Everything is allowed.
    pub fn open(drafts: usize) -> Masks {
        Masks { drafts_allowed: drafts as u32, rows: vec![None; drafts + 1] }
    }
}

/// What a constraint makes of a sampled token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ruling {
    /// The sampled token stands.
    Keep,
    /// These tokens stand in its place, at least one. They may begin with the sampled one, the rest is then forced.
    Replace(Vec<u32>),
}

/// Names a request from its submission to its last event. Older requests have lower numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}", self.0)
    }
}

/// Something the caller has to know. Per choice: tokens in order, then exactly one `Finished`, then nothing.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Token {
        request: RequestId,
        choice: u32,
        token: u32,
        /// Absent where not asked for, and for a token that was forced rather than sampled.
        logprobs: Option<Logprobs>,
    },
    Finished {
        request: RequestId,
        choice: u32,
        reason: FinishReason,
        counts: Counts,
    },
}

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop or end token, which is the last token of the answer.
    StopToken(u32),
    /// The watch said so.
    StopWatch,
    /// `max_tokens`, or the context is full.
    Length,
    Cancelled,
    /// The logits of a row held no finite number, or its masks allowed nothing.
    NotANumber,
    /// The device failed; the core was told by [`super::Core::fail`].
    Failed,
}

/// What a choice took, for usage reports and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub prompt_tokens: u32,
    /// Prompt tokens taken from a checkpoint rather than computed for this choice.
    pub cached_tokens: u32,
    pub completion_tokens: u32,
    /// Drafts verified, and how many of them the target would have sampled too.
    pub drafted: u32,
    pub accepted: u32,
    /// How often it was dropped and computed again.
    pub preemptions: u32,
    /// Ticks between the first plan that saw it and the one that started it.
    pub waited: u64,
}

/// Why a request was not taken. Nothing of it is kept.
#[derive(Debug, Clone, PartialEq)]
pub enum Refused {
    EmptyPrompt,
    /// The prompt leaves no room for an answer.
    PromptTooLong {
        tokens: u32,
        limit: u32,
    },
    /// Prompt and answer together need more pages than there are.
    NeverFits {
        needed_pages: u32,
        pool_pages: u32,
    },
    /// Choices that wait already, and how many may.
    QueueFull {
        waiting: u32,
        limit: u32,
    },
    BadValue(Error),
}

impl Refused {
    /// The same as an error for people.
    pub fn into_error(self) -> Error {
        match self {
            Refused::EmptyPrompt => Error::input("the prompt is empty", "give at least one token of prompt"),
            Refused::PromptTooLong { tokens, limit } => Error::input(
                format!("the prompt has {tokens} tokens, the context holds {limit} with the answer"),
                "shorten the prompt or raise --max-context",
            ),
            Refused::NeverFits { needed_pages, pool_pages } => Error::input(
                format!("prompt and answer need {needed_pages} pages of cache, the pool has {pool_pages}"),
                "ask for fewer tokens or give the cache more --memory",
            ),
            Refused::QueueFull { waiting, limit } => {
                Error::failure(format!("{waiting} answers wait already, the limit is {limit}"), "try again later")
            }
            Refused::BadValue(error) => error,
        }
    }
}
