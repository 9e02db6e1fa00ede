//! What a simulated run consists of: requests as plain data that can be copied, printed and made smaller, and the rules
//! (stop strings, constraints) behind the engine's two traits.

use deltic::base::SamplingParams;
use deltic::engine::request::{Constraint, Masks, Ruling, Watch};
use deltic::engine::{CoreOptions, Request};

use super::hash::{Random, mix};
use super::network::VOCABULARY;

/// A whole run.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub options: CoreOptions,
    /// Percentage of drafts that are what the target will sample.
    pub quality: u32,
    pub requests: Vec<RequestSpec>,
}

/// One request, when it comes and when it is given up.
#[derive(Debug, Clone)]
pub struct RequestSpec {
    pub arrives: u64,
    pub cancelled: Option<u64>,
    /// Whether that is while a step runs, rather than between steps.
    pub cancelled_inside: bool,
    pub prompt: Vec<u32>,
    pub choices: u32,
    pub sampling: SamplingParams,
    pub max_tokens: u32,
    pub min_tokens: u32,
    pub stop_ids: Vec<u32>,
    pub end_ids: Vec<u32>,
    pub ignore_end: bool,
    pub logprobs: Option<u32>,
    pub biases: Vec<(u32, f32)>,
    pub depth_max: Option<u32>,
    /// An answer ends where the hash of its last three tokens divides by this.
    pub watch: Option<u64>,
    pub constraint: Option<Grammar>,
    /// One hidden row in so many gives no number; 0 is none.
    pub broken_one_in: u64,
}

/// What the simulated constraint does, from a hash of the tokens before.
#[derive(Debug, Clone, Copy)]
pub struct Grammar {
    pub seed: u64,
    /// Whether it masks at all.
    pub masks: bool,
    /// One token in so many is replaced or followed by forced ones; 0 is never.
    pub replace_one_in: u64,
    /// Whether a draft that would be replaced ends the chain already when it is planned.
    pub looks_ahead: bool,
}

impl RequestSpec {
    /// One answer with everything off.
    pub fn plain(prompt: Vec<u32>, max_tokens: u32) -> RequestSpec {
        RequestSpec {
            arrives: 0,
            cancelled: None,
            cancelled_inside: false,
            prompt,
            choices: 1,
            sampling: SamplingParams { temperature: 1.0, ..SamplingParams::default() },
            max_tokens,
            min_tokens: 0,
            stop_ids: Vec::new(),
            end_ids: Vec::new(),
            ignore_end: false,
            logprobs: None,
            biases: Vec::new(),
            depth_max: None,
            watch: None,
            constraint: None,
            broken_one_in: 0,
        }
    }

    pub fn request(&self) -> Request {
        let choices = 0..self.choices;
        Request {
            prompt: self.prompt.clone(),
            choices: self.choices,
            sampling: self.sampling.clone(),
            max_tokens: self.max_tokens,
            min_tokens: self.min_tokens,
            stop_ids: self.stop_ids.clone(),
            end_ids: self.end_ids.clone(),
            ignore_end: self.ignore_end,
            logprobs: self.logprobs,
            biases: self.biases.clone(),
            depth_max: self.depth_max,
            watches: choices.clone().filter_map(|_| self.watch()).collect(),
            constraints: choices.filter_map(|choice| self.constraint(choice)).collect(),
        }
    }

    pub fn watch(&self) -> Option<Box<dyn Watch>> {
        Some(Box::new(LastThree { one_in: self.watch?, last: [0; 3] }))
    }

    pub fn constraint(&self, choice: u32) -> Option<Box<dyn Constraint>> {
        let grammar = self.constraint?;
        Some(Box::new(Walker { grammar, history: mix(grammar.seed, u64::from(choice)) }))
    }
}

struct LastThree {
    one_in: u64,
    last: [u32; 3],
}

impl Watch for LastThree {
    fn push(&mut self, token: u32) -> bool {
        self.last = [self.last[1], self.last[2], token];
        let hash = self.last.iter().fold(7, |hash, token| mix(hash, u64::from(*token)));
        hash.is_multiple_of(self.one_in)
    }
}

struct Walker {
    grammar: Grammar,
    history: u64,
}

impl Walker {
    fn mask(&self, history: u64) -> Option<Vec<u32>> {
        let choice = mix(history, 1);
        match choice % 5 {
            _ if !self.grammar.masks => None,
            0 | 1 => None,
            2 => Some(vec![1 << ((choice >> 32) % u64::from(VOCABULARY))]),
            _ => Some(vec![(choice >> 32) as u32 | 1 << ((choice >> 8) % u64::from(VOCABULARY))]),
        }
    }

    fn ruling(&self, history: u64, token: u32) -> Ruling {
        let hash = mix(history, mix(u64::from(token), 2));
        if self.grammar.replace_one_in == 0 || !hash.is_multiple_of(self.grammar.replace_one_in) {
            return Ruling::Keep;
        }
        let other = |shift: u64| ((hash >> shift) % u64::from(VOCABULARY)) as u32;
        match hash >> 60 {
            0..4 => Ruling::Replace(vec![other(8)]),
            4..8 => Ruling::Replace(vec![token, other(8)]),
            8..12 => Ruling::Replace(vec![token, other(8), other(16), other(24)]),
            _ => Ruling::Replace(vec![other(8), other(16)]),
        }
    }
}

impl Constraint for Walker {
    fn masks(&mut self, drafts: &[u32]) -> Masks {
        let (mut history, mut rows) = (self.history, vec![self.mask(self.history)]);
        for draft in drafts {
            let mask = rows.last().expect("one row").as_ref();
            let refused = mask.is_some_and(|mask| mask[0] >> draft & 1 == 0);
            let replaced = self.grammar.looks_ahead && self.ruling(history, *draft) != Ruling::Keep;
            if refused || replaced {
                break;
            }
            history = mix(history, u64::from(*draft));
            rows.push(self.mask(history));
        }
        Masks { drafts_allowed: rows.len() as u32 - 1, rows }
    }

    fn accept(&mut self, token: u32) -> Ruling {
        let ruling = self.ruling(self.history, token);
        let stand = match &ruling {
            Ruling::Keep => vec![token],
            Ruling::Replace(tokens) => tokens.clone(),
        };
        for token in stand {
            self.history = mix(self.history, u64::from(token));
        }
        ruling
    }
}

impl Scenario {
    /// The run of a seed: everything random, small enough that every limit is met often.
    pub fn of_seed(seed: u64) -> Scenario {
        let mut random = Random::new(seed);
        let options = super::limits::random_options(&mut random);
        let quality = random.pick(&[0, 30, 70, 90, 100, 100]);
        let requests = (0..random.within(1, 8)).map(|_| RequestSpec::random(&mut random, &options)).collect();
        Scenario { options, quality, requests }
    }
}

/// The run of a seed in which nothing is short and every draft is right, so that only the end of an answer costs rows.
pub fn perfect_drafter(seed: u64) -> Scenario {
    let mut scenario = Scenario::of_seed(seed);
    scenario.quality = 100;
    let depth_max = (seed % 9) as u32;
    scenario.options = CoreOptions {
        pages: 2_000,
        slots: 48,
        sequences_max: 40,
        queue_max: 100,
        rows_max: 512,
        rows_beside_decode: 512,
        logit_rows_max: 512,
        depth: deltic::engine::DepthOptions::fixed(depth_max),
        prefill_alone: false,
        ..scenario.options
    };
    for request in &mut scenario.requests {
        (request.cancelled, request.constraint, request.depth_max) = (None, None, None);
        (request.min_tokens, request.broken_one_in) = (0, 0);
    }
    scenario
}

impl RequestSpec {
    fn random(random: &mut Random, options: &CoreOptions) -> RequestSpec {
        let prompt_tokens = random.pick(&[1, 2, 3, 5, 8, 13, 20]).min(options.context_max - 1);
        let arrives = u64::from(random.within(0, 40));
        let stop_tokens = random.pick(&[0, 0, 1, 2]);
        let end_tokens = random.pick(&[0, 1]);
        let max_tokens = random.pick(&[1, 2, 3, 6, 12, 24]);
        let penalty = random.pick(&[0.0, 0.0, 1.5]);
        RequestSpec {
            arrives,
            cancelled: random.percent(20).then(|| arrives + u64::from(random.within(0, 30))),
            cancelled_inside: random.percent(50),
            prompt: tokens(random, prompt_tokens),
            choices: random.pick(&[1, 1, 1, 2, 3, 5]),
            sampling: SamplingParams {
                temperature: 1.0,
                presence_penalty: penalty,
                seed: random.next(),
                ..SamplingParams::default()
            },
            max_tokens,
            min_tokens: random.pick(&[0, 0, 1, 4, 9]).min(max_tokens),
            stop_ids: tokens(random, stop_tokens),
            end_ids: tokens(random, end_tokens),
            ignore_end: random.percent(20),
            logprobs: random.pick(&[None, None, Some(0), Some(2)]),
            biases: if random.percent(20) { vec![(random.within(0, VOCABULARY - 1), 1.5)] } else { Vec::new() },
            depth_max: random.pick(&[None, None, None, Some(0), Some(2)]),
            watch: random.pick(&[None, None, Some(9)]),
            constraint: random.percent(50).then(|| Grammar {
                seed: random.next(),
                masks: random.percent(40),
                replace_one_in: random.pick(&[0, 3, 8]),
                looks_ahead: random.percent(50),
            }),
            broken_one_in: random.pick(&[0, 0, 0, 0, 50]),
        }
    }
}

fn tokens(random: &mut Random, count: u32) -> Vec<u32> {
    (0..count).map(|_| random.within(0, VOCABULARY - 1)).collect()
}
