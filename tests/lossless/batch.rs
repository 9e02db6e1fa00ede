//! Many requests at once in a pool too small for them: each answer is the one that its request gets alone.

use std::collections::BTreeSet;

use deltic::base::SamplingParams;
use deltic::base::rng::threefry;
use deltic::engine::{DepthOptions, FinishReason, Request, RequestId};
use deltic::runner::engine::Engine;

use super::demo::{Prompts, Setup, cases, probe, prompts_of, request};
use super::drive::{Answer, Answers, run, run_one};

/// Around one token, pages of 16, chunks of 65 rows and of 64 positions.
const LENGTHS: [usize; 16] = [1, 2, 15, 16, 17, 33, 48, 62, 63, 64, 65, 66, 79, 127, 128, 129];
const ANSWER_TOKENS: u32 = 40;

/// Room for six sequences by their slots, by their pages for fewer.
fn tiny(depth: DepthOptions, noise: f32) -> Setup {
    Setup {
        depth,
        sequences: 6,
        checkpoints: 1,
        rows: 65,
        page_tokens: 16,
        pages: 13,
        threads: 2,
        ..Setup::roomy(depth.depth_max, noise)
    }
}

fn requests() -> Vec<Request> {
    prompts_of(&LENGTHS).iter().enumerate().map(|(index, prompt)| of_kind(prompt, index)).collect()
}

/// Greedy and sampled, with penalties and without, of one choice and more.
fn of_kind(prompt: &[u32], index: usize) -> Request {
    let warm = SamplingParams { temperature: 1.0, seed: 77 + index as u64, ..SamplingParams::default() };
    let sampling = match index % 5 {
        0 => SamplingParams::default(),
        1 => warm,
        2 => SamplingParams { repetition_penalty: 1.2, ..SamplingParams::default() },
        3 => SamplingParams { top_k: 30, presence_penalty: 0.7, frequency_penalty: 0.4, ..warm },
        _ => SamplingParams { top_p: 0.9, repetition_penalty: 1.1, ..warm },
    };
    let (choices, logprobs) = ([1, 1, 1, 2, 1, 1, 3][index % 7], [None, Some(3)][index % 2]);
    // Those that ignore the end fill their pages.
    let ignore_end = !index.is_multiple_of(3);
    Request { choices, logprobs, ignore_end, ..request(prompt, ANSWER_TOKENS, sampling) }
}

/// In which order requests come, how far apart, and which are cancelled.
struct Arrival {
    depth: DepthOptions,
    noise: f32,
    /// Multiplied by the index, modulo 16; odd, so that it is a permutation.
    stride: usize,
    steps_between: usize,
    cancels: usize,
}

#[test]
fn sixteen_at_once_equal_each_alone() {
    let mut engine = Setup::alone().engine();
    let alone: Vec<Vec<Answer>> =
        requests().into_iter().map(|request| run(&mut engine, vec![request]).remove(0)).collect();
    let distinct: BTreeSet<&Vec<u32>> = alone[6].iter().map(|choice| &choice.ids).collect();
    assert!(distinct.len() > 1, "choices draw for themselves");
    let probe_alone = run_one(&mut engine, probe());
    let arrivals = [
        Arrival { depth: DepthOptions::fixed(0), noise: 0.0, stride: 1, steps_between: 0, cancels: 0 },
        Arrival { depth: DepthOptions::fixed(3), noise: 0.0, stride: 15, steps_between: 0, cancels: 0 },
        Arrival { depth: DepthOptions::fixed(2), noise: 0.3, stride: 7, steps_between: 3, cancels: 4 },
        Arrival { depth: DepthOptions::adaptive(5), noise: 0.3, stride: 11, steps_between: 1, cancels: 4 },
    ];
    let mut cut_short = 0;
    for (index, arrival) in arrivals.iter().enumerate() {
        let mut engine = tiny(arrival.depth, arrival.noise).engine();
        let (answers, ids) = arrive(&mut engine, arrival, index as u32);
        let preemptions: u32 = answers.all().map(|answer| answer.counts.preemptions).sum();
        println!("arrival {index}: {preemptions} preemptions");
        assert!(preemptions > 0, "arrival {index}: the pool is meant to be too small");
        for (request, (id, alone)) in ids.iter().zip(&alone).enumerate() {
            for (choice, expected) in (0..).zip(alone) {
                let (found, what) = (answers.of(*id, choice), format!("arrival {index}, request {request}, {choice}"));
                if found.reason == Some(FinishReason::Cancelled) {
                    cut_short += 1;
                    assert!(expected.ids.starts_with(&found.ids), "{what}: a cancelled answer is a beginning");
                } else {
                    found.assert_same(expected, &what);
                }
            }
        }
        run_one(&mut engine, probe()).assert_same(&probe_alone, "the probe afterwards");
    }
    assert!(cut_short > 0, "some are cancelled before they end");
}

/// Submits the requests as they arrive and cancels some; the answers, and the ids in the order of [`requests`].
fn arrive(engine: &mut Engine, arrival: &Arrival, seed: u32) -> (Answers, Vec<RequestId>) {
    let mut answers = Answers::default();
    let mut ids = vec![None; LENGTHS.len()];
    let mut cancels: Vec<(u32, usize)> = (0..arrival.cancels as u32)
        .map(|index| {
            let [request, step] = threefry([seed, 0], [index, 0]);
            (step % 60, request as usize % LENGTHS.len())
        })
        .collect();
    let mut requests: Vec<Option<Request>> = requests().into_iter().map(Some).collect();
    let mut next = 0;
    for step in 0.. {
        while next < LENGTHS.len() && next * arrival.steps_between <= step as usize {
            let index = (next * arrival.stride) % LENGTHS.len();
            let request = requests[index].take().expect("a permutation");
            ids[index] = Some(engine.submit(request).expect("it is taken"));
            next += 1;
        }
        cancels.retain(|(at, request)| {
            let due = *at <= step && ids[*request].is_some();
            if let Some(id) = ids[*request].filter(|_| due) {
                engine.cancel(id);
            }
            !due
        });
        if next == LENGTHS.len() && cancels.is_empty() {
            break;
        }
        answers.step(engine);
    }
    answers.finish(engine);
    (answers, ids.into_iter().map(|id| id.expect("all came")).collect())
}

#[test]
fn identical_prompts_get_one_answer_and_codewords_stay_apart() {
    let mut engine = Setup { sequences: 12, pages: 40, ..tiny(DepthOptions::fixed(3), 0.0) }.engine();
    let prompts = Prompts::open();
    let sampling = SamplingParams { temperature: 1.0, seed: 5, ..SamplingParams::default() };
    let story = prompts.question("Write a short story about a fox.");
    let same = run(&mut engine, (0..12).map(|_| request(&story, 32, sampling.clone())).collect());
    let distinct: BTreeSet<&Vec<u32>> = same.iter().map(|answer| &answer[0].ids).collect();
    assert_eq!(distinct.len(), 1, "12 identical prompts have one answer");

    let needles = cases().into_iter().filter(|case| case["task"] == "needle");
    let words: BTreeSet<String> = needles.map(|case| case["answer"].as_str().expect("a word").to_owned()).collect();
    let words: Vec<String> = words.into_iter().filter(|word| word.chars().all(char::is_alphabetic)).take(16).collect();
    let ask = |word: &String| prompts.question(&format!("The secret word is {word}. What is the secret word?"));
    let all = words.iter().map(|word| request(&ask(word), 16, SamplingParams::default())).collect();
    let tokenizer = super::demo::tokenizer();
    for (word, answer) in words.iter().zip(run(&mut engine, all)) {
        let text = tokenizer.decode(&answer[0].ids, true);
        let said: Vec<&str> = text.split(|letter: char| !letter.is_alphabetic()).collect();
        assert!(said.contains(&word.as_str()), "{word:?} was asked for and {text:?} came");
        let others = words.iter().filter(|other| *other != word && said.contains(&other.as_str()));
        assert_eq!(others.count(), 0, "{text:?} holds a word of another prompt than {word:?}");
    }
}

/// As many biases as a request may have, in every sequence of a step at once: the step has room for all of them.
#[test]
fn every_sequence_may_use_all_its_biases() {
    let biased = |index: u32| {
        let biases = (0..300).map(|token| (100 + token, (token % 7 + index) as f32 * 0.25 - 1.0)).collect();
        let prompt = &prompts_of(&[20 + index as usize])[0];
        Request { biases, ..request(prompt, 12, SamplingParams::default()) }
    };
    let mut engine = Setup { sequences: 6, ..Setup::roomy(2, 0.0) }.engine();
    let together = run(&mut engine, (0..6).map(biased).collect());
    let mut engine = Setup::alone().engine();
    for (index, answers) in (0..).zip(&together) {
        answers[0].assert_same(&run_one(&mut engine, biased(index)), &format!("request {index}"));
    }
}
