//! Runs requests on an engine and gathers their answers; an idle engine must have everything back.

use std::collections::BTreeMap;

use deltic::engine::plan::Logprobs;
use deltic::engine::request::Counts;
use deltic::engine::{Event, FinishReason, Request, RequestId};
use deltic::runner::engine::Engine;

/// The sampled token's log-probability and the best alternatives with theirs, by their bits.
pub type LogprobBits = (u32, Vec<(u32, u32)>);

/// One choice's answer. Log-probabilities are kept as bits.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    pub ids: Vec<u32>,
    pub logprobs: Vec<Option<LogprobBits>>,
    pub reason: Option<FinishReason>,
    pub counts: Counts,
}

impl Answer {
    /// Panics unless both say the same and end for the same reason.
    pub fn assert_same(&self, expected: &Answer, what: &str) {
        assert_eq!(self.ids, expected.ids, "{what}: other tokens");
        assert_eq!(self.reason, expected.reason, "{what}: another end");
        assert_eq!(self.logprobs, expected.logprobs, "{what}: other log-probabilities");
    }

    fn push(&mut self, token: u32, logprobs: Option<Logprobs>) {
        assert_eq!(self.reason, None, "nothing follows the end");
        self.ids.push(token);
        self.logprobs.push(logprobs.map(|found| {
            let top = found.top.iter().map(|(id, value)| (*id, value.to_bits())).collect();
            (found.sampled.to_bits(), top)
        }));
    }
}

/// Answers by request and choice, as they grow.
#[derive(Default)]
pub struct Answers {
    by_choice: BTreeMap<(RequestId, u32), Answer>,
    /// Most tokens that one choice got from one step.
    pub most_at_once: usize,
}

impl Answers {
    /// Runs one step of the engine.
    pub fn step(&mut self, engine: &mut Engine) {
        let events = engine.step().expect("a step");
        let mut tokens: BTreeMap<(RequestId, u32), usize> = BTreeMap::new();
        for event in events {
            match event {
                Event::Token { request, choice, token, logprobs } => {
                    self.by_choice.entry((request, choice)).or_default().push(token, logprobs);
                    *tokens.entry((request, choice)).or_default() += 1;
                }
                Event::Finished { request, choice, reason, counts } => {
                    let answer = self.by_choice.entry((request, choice)).or_default();
                    assert_eq!(answer.reason.replace(reason), None, "{request} ends once");
                    assert_eq!(answer.ids.len() as u32, counts.completion_tokens);
                    answer.counts = counts;
                }
            }
        }
        self.most_at_once = self.most_at_once.max(tokens.into_values().max().unwrap_or(0));
        engine.core().check();
    }

    /// Steps until nothing is left to do, then looks whether the pools are whole.
    pub fn finish(&mut self, engine: &mut Engine) {
        let mut steps = 0;
        while !engine.is_idle() {
            self.step(engine);
            steps += 1;
            assert!(steps < 50_000, "the engine never becomes idle");
        }
        assert_whole(engine);
    }

    pub fn of(&self, request: RequestId, choice: u32) -> &Answer {
        &self.by_choice[&(request, choice)]
    }

    /// Absent until its first event.
    pub fn find(&self, request: RequestId, choice: u32) -> Option<&Answer> {
        self.by_choice.get(&(request, choice))
    }

    pub fn all(&self) -> impl Iterator<Item = &Answer> {
        self.by_choice.values()
    }
}

/// The answers to all requests at once, a list of choices for each.
pub fn run(engine: &mut Engine, requests: Vec<Request>) -> Vec<Vec<Answer>> {
    let mut answers = Answers::default();
    let submitted: Vec<(RequestId, u32)> = requests
        .into_iter()
        .map(|request| {
            let choices = request.choices;
            (engine.submit(request).expect("it is taken"), choices)
        })
        .collect();
    answers.finish(engine);
    let choices_of = |(id, choices): (RequestId, u32)| (0..choices).map(|c| answers.of(id, c).clone()).collect();
    submitted.into_iter().map(choices_of).collect()
}

/// The answer to a request for one choice.
pub fn run_one(engine: &mut Engine, request: Request) -> Answer {
    run(engine, vec![request]).remove(0).remove(0)
}

/// Panics unless an idle engine has all its pages and slots back.
pub fn assert_whole(engine: &Engine) {
    let (status, options) = (engine.core().status(), engine.core().options());
    assert_eq!((status.waiting, status.running, status.checkpoints), (0, 0, 0));
    assert_eq!((status.pages_free, status.slots_free), (options.pages, options.slots), "pages or slots leak");
}
