//! What is sampled follows the softmax of the logits, for the token after a prompt and for one after drafts.

use std::collections::BTreeMap;

use deltic::base::SamplingParams;
use deltic::engine::Request;
use deltic::runner::reference::logits_in_chunks;

use super::demo::{Prompts, Setup, request, tokenizer};
use super::drive::run;

/// Choices of one request share its prompt and draw for themselves.
const CHOICES: u32 = 16;
const REQUESTS: u32 = 64;
/// Tokens of an answer: the first words of a story are nearly certain, the words for the hero are not.
const PLACES: usize = 8;
/// High, so that more than a few tokens are likely.
const TEMPERATURE: f32 = 2.0;
/// Standard deviations beyond which 1e-4 of a normal distribution lies.
const Z_OF_1E_4: f64 = 3.719;
/// Tokens are counted together, likely ones first, until they are expected so often.
const EXPECTED_MIN: f64 = 8.0;

#[test]
fn sampled_tokens_follow_the_softmax() {
    let prompt = Prompts::open().question("Write a short story about a fox.");
    let mut engine = Setup::roomy(1, 0.0).engine();
    let mut answers: Vec<Vec<u32>> = Vec::new();
    for seed in 0..u64::from(REQUESTS) {
        let sampling = SamplingParams { temperature: TEMPERATURE, seed, ..SamplingParams::default() };
        let request = Request { choices: CHOICES, ..request(&prompt, PLACES as u32, sampling) };
        answers.extend(run(&mut engine, vec![request]).into_iter().flatten().map(|answer| answer.ids));
    }
    let counts = engine.accepted_counts();
    let drafted: u64 = counts[1..].iter().sum();
    assert!(drafted > 100 && counts[0] > 100, "drafts both stand and fall: {counts:?}");

    // Along the answer that is most common so far, the token that follows is a draw of its own.
    let mut common = Vec::new();
    let mut tested = 0;
    for place in 0..PLACES {
        let mut found: BTreeMap<u32, u32> = BTreeMap::new();
        for ids in answers.iter().filter(|ids| ids.len() > place && ids.starts_with(&common)) {
            *found.entry(ids[place]).or_default() += 1;
        }
        tested += u32::from(follows_softmax(&[prompt.as_slice(), &common].concat(), &found, place));
        let (token, _) = found.iter().max_by_key(|(_, count)| **count).expect("some");
        common.push(*token);
    }
    assert!(tested >= 2, "a distribution with one likely token tests nothing");
}

/// Panics where the counts are further from the softmax than chance has it in one of 10,000 cases. Whether there was
/// more than one token to count.
fn follows_softmax(context: &[u32], found: &BTreeMap<u32, u32>, place: usize) -> bool {
    let mut runner = Setup::alone().runner();
    let logits = logits_in_chunks(&mut runner, context, 64).expect("logits");
    let live = &logits[logits.len() - runner.model().config.vocab as usize..][..tokenizer().vocab_live()];
    let max = live.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = live.iter().map(|logit| (f64::from(logit - max) / f64::from(TEMPERATURE)).exp()).collect();
    let (sum, draws) = (weights.iter().sum::<f64>(), f64::from(found.values().sum::<u32>()));
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
    let (mut statistic, mut bins, mut bin) = (0.0, 0, (0.0, 0.0));
    for (place, token) in order.iter().enumerate() {
        let seen = found.get(&(*token as u32)).copied().unwrap_or(0);
        bin = (bin.0 + draws * weights[*token] / sum, bin.1 + f64::from(seen));
        let rest: f64 = order[place + 1..].iter().map(|token| draws * weights[*token] / sum).sum();
        // What is left over joins the last bin.
        if bin.0 >= EXPECTED_MIN && (rest >= EXPECTED_MIN || rest == 0.0) {
            statistic += f64::powi(bin.1 - bin.0, 2) / bin.0;
            bins += 1;
            bin = (0.0, 0.0);
        }
    }
    assert!(bin.0 < 1e-9 && bin.1 == 0.0, "every draw is in a bin");
    if bins < 2 {
        return false;
    }
    // Wilson and Hilferty: the cube root of chi-square is nearly normal.
    let freedom = f64::from(bins - 1);
    let ninth = 2.0 / (9.0 * freedom);
    let limit = freedom * (1.0 - ninth + Z_OF_1E_4 * ninth.sqrt()).powi(3);
    println!("token {place}: {draws} draws, {bins} bins, chi-square {statistic:.1}, limit {limit:.1}");
    assert!(statistic < limit, "token {place}: chi-square {statistic:.1} of {bins} bins, the limit is {limit:.1}");
    true
}
