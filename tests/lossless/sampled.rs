//! Sampled answers with drafts and without: 200 prompts, every kind of sampling, several depths and draft noises.

use deltic::base::SamplingParams;
use deltic::engine::{DepthOptions, Request};

use super::demo::{Setup, probe, request, short_prompts};
use super::drive::{Answer, run, run_one};

const PROMPTS: usize = 200;
/// Keeps the test quick; the prompts are most of its time.
const PROMPT_TOKENS_MAX: usize = 64;
const ANSWER_TOKENS: u32 = 24;

/// A run with drafts: which depth and noise, and that prompt `first` and every `every`-th from there take part.
struct Run {
    depth: DepthOptions,
    noise: f32,
    first: usize,
    every: usize,
}

/// Each prompt meets drafts twice, right and disturbed, at depths that differ from prompt to prompt.
fn runs() -> Vec<Run> {
    let mut runs = Vec::new();
    for (first, depth) in [(0, 1), (1, 3), (2, 5)] {
        runs.push(Run { depth: DepthOptions::fixed(depth), noise: 0.0, first, every: 3 });
        runs.push(Run { depth: DepthOptions::fixed(depth), noise: 0.3, first: (first + 1) % 3, every: 3 });
        runs.push(Run { depth: DepthOptions::fixed(depth), noise: 1.0, first, every: 12 });
    }
    runs.push(Run { depth: DepthOptions::adaptive(5), noise: 0.3, first: 5, every: 8 });
    runs
}

#[test]
fn sampled_answers_are_the_same_with_drafts() {
    let prompts = short_prompts(PROMPTS, PROMPT_TOKENS_MAX);
    let requests = |first: usize, every: usize| -> Vec<Request> {
        (0..prompts.len()).skip(first).step_by(every).map(|index| of_kind(&prompts[index], index)).collect()
    };
    let mut plain_engine = Setup::roomy(0, 0.0).engine();
    let probe_before = run_one(&mut plain_engine, probe());
    let plain: Vec<Answer> = run(&mut plain_engine, requests(0, 1)).into_iter().flatten().collect();
    run_one(&mut plain_engine, probe()).assert_same(&probe_before, "the probe after 200 others");
    let distinct: std::collections::BTreeSet<_> = plain.iter().map(|answer| &answer.ids).collect();
    assert!(distinct.len() > PROMPTS / 2, "the answers differ among themselves, else the test shows nothing");

    // Verifications by drafts accepted: per depth, those of noise 0 and 0.3 together, and those of noise 1.
    let (mut counts, mut all_wrong) = (vec![vec![0; 6]; 6], [0, 0]);
    for Run { depth, noise, first, every } in runs() {
        let mut engine = Setup { depth, ..Setup::roomy(depth.depth_max, noise) }.engine();
        let drafted = run(&mut engine, requests(first, every));
        for (place, answer) in drafted.iter().enumerate() {
            let index = first + place * every;
            let what = format!("prompt {index} at depth {} and noise {noise}", depth.depth_max);
            answer[0].assert_same(&plain[index], &what);
        }
        for (accepted, count) in engine.accepted_counts().iter().enumerate() {
            if noise == 1.0 {
                all_wrong[usize::from(accepted > 0)] += count;
            } else if !depth.adaptive {
                counts[depth.depth_max as usize][accepted] += count;
            }
        }
        run_one(&mut engine, probe()).assert_same(&probe_before, "the probe after the prompts with drafts");
    }
    println!("accepted by depth {counts:?}; at noise 1 none and some: {all_wrong:?}");
    for depth in [1, 3, 5] {
        let counts = &counts[depth][..=depth];
        assert!(counts.iter().all(|count| *count > 0), "depth {depth}: a count never occurs: {counts:?}");
    }
    let [none, some] = all_wrong;
    assert!(none > 0 && 100 * none >= 95 * (none + some), "noise 1 lets drafts pass: {none} without, {some} with");
}

/// The same prompt with the kind of sampling that its index stands for.
fn of_kind(prompt: &[u32], index: usize) -> Request {
    let own = SamplingParams { temperature: 1.0, seed: 1000 + index as u64, ..SamplingParams::default() };
    let (mut biases, mut min_tokens) = (Vec::new(), 0);
    let sampling = match index % 10 {
        0 => SamplingParams { temperature: 0.0, repetition_penalty: 1.2, ..own },
        1 => SamplingParams { top_k: 20, ..own },
        2 => SamplingParams { top_p: 0.9, ..own },
        3 => SamplingParams { min_p: 0.05, top_k: 50, ..own },
        4 => SamplingParams { repetition_penalty: 2.0, ..own },
        5 => SamplingParams { temperature: 1.5, presence_penalty: 2.0, frequency_penalty: 2.0, ..own },
        6 => {
            biases = vec![(prompt[prompt.len() / 2], 3.0), (prompt[0], -50.0)];
            own
        }
        7 => {
            min_tokens = 15;
            SamplingParams { frequency_penalty: 2.0, top_p: 0.95, ..own }
        }
        // Makes what was said once likely ever after: one count that is off leads elsewhere.
        8 => SamplingParams { temperature: 1.5, frequency_penalty: -1.0, min_p: 0.02, ..own },
        _ => own,
    };
    let logprobs = [None, Some(0), Some(5)][index % 3];
    // Long answers for the penalties to work on.
    let ignore_end = sampling.counts_tokens() && min_tokens == 0;
    Request { biases, min_tokens, logprobs, ignore_end, ..request(prompt, ANSWER_TOKENS, sampling) }
}
