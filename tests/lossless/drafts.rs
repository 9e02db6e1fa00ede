//! What a wrong draft head would not show in any token: whatever a sequence went through, the draft head's cache holds
//! the entries that a plain prefill of its tokens writes.

use std::collections::BTreeSet;

use deltic::base::SamplingParams;
use deltic::engine::{Constraint, Request};
use deltic::model::Cache;
use deltic::runner::engine::Engine;

use super::demo::{Setup, prompts_of, request};
use super::drive::{Answer, run, run_one};
use super::rules::Forced;

/// Small, so that entries lie on both sides of page edges.
const PAGE_TOKENS: u32 = 16;
const LENGTHS: [usize; 7] = [2, 15, 16, 17, 31, 33, 65];

/// So many that the last ones are sampled: a forced token at the end is never computed.
const FORCED_TOKENS: u32 = 21;

fn engine(noise: f32) -> Engine {
    Setup { page_tokens: PAGE_TOKENS, pages: 64, ..Setup::roomy(3, noise) }.engine()
}

/// Every row of the draft head's cache that was ever written, key and value. A new engine's cache is zeros.
fn entries(engine: &mut Engine) -> BTreeSet<Vec<u8>> {
    let Some(Cache::Attention { keys, values }) = engine.runner().model().caches.mtp else { unreachable!("drafts") };
    let row_bytes = keys.bytes() / keys.rows as usize;
    let bytes = pollster::block_on(engine.runner().backend().read(&[keys, values])).expect("a read");
    let (keys, values) = bytes.split_at(keys.bytes());
    let rows = keys.chunks(row_bytes).zip(values.chunks(row_bytes)).map(|(key, value)| [key, value].concat());
    rows.filter(|row| row.iter().any(|byte| *byte != 0)).collect()
}

/// The entries that a prefill of these tokens writes, and the one for the token sampled after them.
fn prefilled(tokens: &[u32]) -> BTreeSet<Vec<u8>> {
    let mut engine = engine(0.0);
    run_one(&mut engine, greedy(tokens, 1));
    let entries = entries(&mut engine);
    assert_eq!(entries.len(), tokens.len(), "one for each token, none twice");
    entries
}

fn greedy(prompt: &[u32], max_tokens: u32) -> Request {
    Request { ignore_end: true, ..request(prompt, max_tokens, SamplingParams::default()) }
}

/// Panics unless all entries of the answer's tokens are there. Entries of drafts that fell are there too.
fn assert_entries(engine: &mut Engine, prompt: &[u32], answer: &Answer, what: &str) {
    let (_, computed) = answer.ids.split_last().expect("an answer");
    let expected = prefilled(&[prompt, computed].concat());
    let missing = expected.difference(&entries(engine)).count();
    assert_eq!(missing, 0, "{what}: entries of the draft head differ from those of a prefill");
}

#[test]
fn choices_from_a_checkpoint_have_the_same_entries() {
    for prompt in prompts_of(&LENGTHS) {
        let mut engine = engine(0.0);
        let choices = run(&mut engine, vec![Request { choices: 3, ..greedy(&prompt, 1) }]).remove(0);
        assert!(choices[1..].iter().all(|choice| choice.counts.cached_tokens as usize == prompt.len() - 1));
        assert!(entries(&mut engine) == prefilled(&prompt), "a prompt of {}: other entries", prompt.len());
    }
}

#[test]
fn entries_survive_drafts_that_fall() {
    for (noise, prompt) in [0.0, 0.3, 0.6].into_iter().cycle().zip(prompts_of(&LENGTHS)) {
        let mut engine = engine(noise);
        let answer = run_one(&mut engine, greedy(&prompt, 24));
        assert_entries(&mut engine, &prompt, &answer, &format!("a prompt of {}, noise {noise}", prompt.len()));
    }
}

/// After a token that took another's place its entry is made anew from the h that the slot kept.
#[test]
fn entries_survive_forced_tokens() {
    let mut accepted = 0;
    for (noise, prompt) in [0.0, 0.2].into_iter().cycle().zip(prompts_of(&LENGTHS)) {
        let mut engine = engine(noise);
        let constraints: Vec<Box<dyn Constraint>> = vec![Box::new(Forced::new(vec![3, 4, 5]))];
        let answer = run_one(&mut engine, Request { constraints, ..greedy(&prompt, FORCED_TOKENS) });
        assert_entries(&mut engine, &prompt, &answer, &format!("a prompt of {}, forced tokens", prompt.len()));
        accepted += answer.counts.accepted;
    }
    assert!(accepted > 0, "drafts stand before a forced token");
}
