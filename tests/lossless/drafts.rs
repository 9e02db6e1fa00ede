//! What a wrong draft head would not show in any token: drafts after a start from a checkpoint, and after a token that
//! was put in another's place, are those of a run that computed everything itself.

use deltic::base::SamplingParams;
use deltic::engine::request::{Masks, Ruling};
use deltic::engine::{Constraint, Request};

use super::demo::{Setup, request, short_prompts};
use super::drive::{Answer, run, run_one};

const DEPTH: u32 = 3;
const ANSWER_TOKENS: u32 = 16;

/// Drafts verified and drafts that stood.
fn drafts(answer: &Answer) -> (u32, u32) {
    (answer.counts.drafted, answer.counts.accepted)
}

#[test]
fn choices_from_a_checkpoint_draft_the_same() {
    let mut engine = Setup::roomy(DEPTH, 0.0).engine();
    let greedy = |prompt: &Vec<u32>| request(prompt, ANSWER_TOKENS, SamplingParams::default());
    for (index, prompt) in short_prompts(16, 64).iter().enumerate() {
        let alone = run_one(&mut engine, greedy(prompt));
        let choices = run(&mut engine, vec![Request { choices: 3, ..greedy(prompt) }]).remove(0);
        assert!(choices[1..].iter().all(|choice| choice.counts.cached_tokens as usize == prompt.len() - 1));
        for choice in &choices {
            choice.assert_same(&alone, &format!("prompt {index}"));
            assert_eq!(drafts(choice), drafts(&alone), "prompt {index}: other drafts from a checkpoint");
        }
    }
}

/// Puts a token in the place of the first one.
struct First {
    token: Option<u32>,
}

impl Constraint for First {
    fn masks(&mut self, drafts: &[u32]) -> Masks {
        Masks::open(drafts.len())
    }

    fn accept(&mut self, _token: u32) -> Ruling {
        self.token.take().map_or(Ruling::Keep, |token| Ruling::Replace(vec![token]))
    }
}

#[test]
fn drafts_after_a_replaced_token_are_those_of_a_prompt_with_it() {
    let mut engine = Setup::roomy(DEPTH, 0.0).engine();
    // The token may be an end token.
    let greedy = |prompt: &[u32], max_tokens| Request {
        ignore_end: true,
        ..request(prompt, max_tokens, SamplingParams::default())
    };
    for (index, prompt) in short_prompts(24, 64).iter().enumerate() {
        // A token that the answer could have begun with, so that what follows is guessed well.
        let token = prompt[prompt.len() * 2 / 3];
        let constraints: Vec<Box<dyn Constraint>> = vec![Box::new(First { token: Some(token) })];
        let replaced = Request { constraints, ..greedy(prompt, ANSWER_TOKENS + 1) };
        let replaced = run_one(&mut engine, replaced);
        let longer = [prompt.as_slice(), &[token]].concat();
        let whole = run_one(&mut engine, greedy(&longer, ANSWER_TOKENS));
        assert_eq!(replaced.ids[1..], whole.ids, "prompt {index}");
        assert_eq!(drafts(&replaced), drafts(&whole), "prompt {index}: other drafts after a replaced token");
    }
}
