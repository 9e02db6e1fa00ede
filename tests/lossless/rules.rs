//! Constraints and watches on the device: forced tokens, masks that differ from row to row, and an end inside a step.

use deltic::base::SamplingParams;
use deltic::engine::plan::Mask;
use deltic::engine::request::{Masks, Ruling};
use deltic::engine::{Constraint, FinishReason, Request, Watch};

use super::demo::{Prompts, Setup, end_ids, request, short_prompts, tokenizer};
use super::drive::{Answer, Answers, run};

const ANSWER_TOKENS: u32 = 20;
/// Depth and noise of the runs that are held against one without drafts.
const DRAFTED: [(u32, f32); 4] = [(1, 0.0), (3, 0.0), (3, 0.3), (5, 0.3)];

/// Puts other tokens in the place of every fifth: one, then two, then three of them.
pub struct Forced {
    seen: usize,
    tokens: Vec<u32>,
}

impl Forced {
    /// Three tokens at least.
    pub fn new(tokens: Vec<u32>) -> Forced {
        assert!(tokens.len() >= 3);
        Forced { seen: 0, tokens }
    }
}

impl Constraint for Forced {
    fn masks(&mut self, drafts: &[u32]) -> Masks {
        Masks::open(drafts.len())
    }

    fn accept(&mut self, token: u32) -> Ruling {
        self.seen += 1;
        if !self.seen.is_multiple_of(5) {
            return Ruling::Keep;
        }
        let count = 1 + self.seen / 5 % 3;
        // Sometimes what was sampled stands and the others follow it.
        let first = if self.seen.is_multiple_of(10) { token } else { self.tokens[0] };
        Ruling::Replace([&[first], &self.tokens[1..count]].concat())
    }
}

/// Allows one set of tokens at even places of the answer and another at odd ones.
struct Alternating {
    sets: [Mask; 2],
    place: usize,
}

impl Alternating {
    fn allows(&self, place: usize, token: u32) -> bool {
        self.sets[place % 2][token as usize / 32] >> (token % 32) & 1 == 1
    }
}

impl Constraint for Alternating {
    fn masks(&mut self, drafts: &[u32]) -> Masks {
        let allowed = (self.place..).zip(drafts).take_while(|(place, draft)| self.allows(*place, **draft)).count();
        let rows = (self.place..=self.place + allowed).map(|place| Some(self.sets[place % 2].clone())).collect();
        Masks { drafts_allowed: allowed as u32, rows }
    }

    fn accept(&mut self, token: u32) -> Ruling {
        assert!(self.allows(self.place, token), "token {token} at place {} was not allowed", self.place);
        self.place += 1;
        Ruling::Keep
    }
}

/// Tokens for which `allowed` holds, as bits.
fn mask(allowed: impl Fn(u32) -> bool) -> Mask {
    let live = tokenizer().vocab_live() as u32;
    let mut words = vec![0; live.div_ceil(32) as usize];
    for token in (0..live).filter(|token| allowed(*token)) {
        words[token as usize / 32] |= 1 << (token % 32);
    }
    words
}

/// Runs the requests without drafts and with, and compares; drafts that stood, of all runs together.
fn compare(requests: impl Fn() -> Vec<Request>) -> (Vec<Answer>, u32) {
    let plain: Vec<Answer> = run(&mut Setup::roomy(0, 0.0).engine(), requests()).into_iter().flatten().collect();
    let mut accepted = 0;
    for (depth, noise) in DRAFTED {
        let found = run(&mut Setup::roomy(depth, noise).engine(), requests());
        for (index, (found, expected)) in found.iter().flatten().zip(&plain).enumerate() {
            found.assert_same(expected, &format!("request {index} at depth {depth} and noise {noise}"));
            accepted += found.counts.accepted;
        }
    }
    (plain, accepted)
}

fn samplings(prompts: &[Vec<u32>]) -> impl Iterator<Item = (&Vec<u32>, SamplingParams)> {
    prompts.iter().enumerate().map(|(index, prompt)| {
        let temperature = if index.is_multiple_of(2) { 0.0 } else { 1.0 };
        let repetition_penalty = if index % 3 == 1 { 1.2 } else { 1.0 };
        let sampling = SamplingParams { temperature, repetition_penalty, seed: index as u64, ..Default::default() };
        (prompt, sampling)
    })
}

#[test]
fn forced_tokens_are_the_same_with_drafts() {
    let prompts = short_prompts(16, 64);
    let tokens = tokenizer().encode_text(" and then there was");
    let forced = || Box::new(Forced::new(tokens.clone())) as Box<dyn Constraint>;
    let (plain, accepted) = compare(|| {
        samplings(&prompts)
            .map(|(prompt, sampling)| Request {
                constraints: vec![forced()],
                ignore_end: true,
                logprobs: Some(2),
                ..request(prompt, ANSWER_TOKENS, sampling)
            })
            .collect()
    });
    assert!(plain.iter().all(|answer| answer.ids.contains(&tokens[1])), "tokens were forced");
    assert!(plain.iter().all(|answer| answer.logprobs.iter().any(Option::is_none)), "forced ones have no logprobs");
    assert!(accepted > 0, "drafts stand between forced tokens");
}

#[test]
fn masks_belong_to_their_rows() {
    let prompts = short_prompts(16, 64);
    let tokenizer = tokenizer();
    let text = |token: u32| String::from_utf8_lossy(tokenizer.token_bytes(token)).into_owned();
    let digit = |token: u32| {
        let text = text(token);
        !tokenizer.is_special(token) && !text.is_empty() && text.chars().all(|letter| letter.is_ascii_digit())
    };
    let odd = mask(|token| end_ids().contains(&token) || (!digit(token) && !tokenizer.is_special(token)));
    let sets = [mask(digit), odd];
    let alternating = || Box::new(Alternating { sets: sets.clone(), place: 0 }) as Box<dyn Constraint>;
    let (plain, accepted) = compare(|| {
        samplings(&prompts)
            .map(|(prompt, sampling)| Request {
                constraints: vec![alternating()],
                ..request(prompt, ANSWER_TOKENS, sampling)
            })
            .collect()
    });
    for answer in &plain {
        assert!(answer.ids.iter().step_by(2).all(|token| digit(*token)), "{:?}", answer.ids);
    }
    assert!(accepted > 0, "drafts stand under masks");
}

/// Ends an answer at its `tokens`-th token.
struct EndsAfter {
    tokens: u32,
}

impl Watch for EndsAfter {
    fn push(&mut self, _token: u32) -> bool {
        self.tokens -= 1;
        self.tokens == 0
    }
}

#[test]
fn a_watch_ends_an_answer_inside_a_step() {
    let prompt = Prompts::open().question("Count from 2 to 9.");
    let requests = || {
        let ends_after = |tokens| Request {
            watches: vec![Box::new(EndsAfter { tokens })],
            ..request(&prompt, ANSWER_TOKENS, SamplingParams::default())
        };
        (1..=12).map(ends_after).collect::<Vec<Request>>()
    };
    let (plain, _) = compare(requests);
    for (tokens, answer) in (1..).zip(&plain) {
        assert_eq!((answer.ids.len(), answer.reason), (tokens, Some(FinishReason::StopWatch)));
        assert!(plain[11].ids.starts_with(&answer.ids));
    }
    let (mut engine, mut answers) = (Setup::roomy(5, 0.0).engine(), Answers::default());
    for request in requests() {
        engine.submit(request).expect("it is taken");
    }
    answers.finish(&mut engine);
    assert!(answers.most_at_once > 3, "no step brought several tokens, so none was cut inside");
}
