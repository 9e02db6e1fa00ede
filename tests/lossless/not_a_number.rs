//! A weight that is no number ends answers with an error, never with token 0; and nothing of it stays behind.

use deltic::backend::Tensor;
use deltic::base::{DType, SamplingParams};
use deltic::engine::{FinishReason, Request, RequestId};
use deltic::runner::engine::Engine;

use super::demo::{Setup, probe, request, short_prompts};
use super::drive::{Answer, Answers, run, run_one};

/// Fills a tensor with NaN; its bytes before that.
fn poison(engine: &mut Engine, tensor: Tensor) -> Vec<u8> {
    let backend = engine.runner().backend();
    let bytes = pollster::block_on(backend.read(&[tensor])).expect("a read");
    let not_a_number = match tensor.dtype {
        DType::Bf16 => 0x7fc0_u16.to_ne_bytes().repeat(tensor.elements()),
        _ => f32::NAN.to_ne_bytes().repeat(tensor.elements()),
    };
    assert_eq!(not_a_number.len(), bytes.len());
    backend.write(tensor, 0, &not_a_number).expect("a write");
    bytes
}

fn restore(engine: &mut Engine, tensor: Tensor, bytes: &[u8]) {
    engine.runner().backend().write(tensor, 0, bytes).expect("a write");
}

fn requests() -> Vec<Request> {
    let warm = SamplingParams { temperature: 1.0, seed: 9, ..SamplingParams::default() };
    let sampling = |index: usize| if index.is_multiple_of(2) { SamplingParams::default() } else { warm.clone() };
    let prompts = short_prompts(6, 64);
    let of = |(index, prompt): (usize, &Vec<u32>)| Request { ignore_end: true, ..request(prompt, 24, sampling(index)) };
    prompts.iter().enumerate().map(of).collect()
}

#[test]
fn not_a_number_ends_answers_and_leaves_nothing() {
    for depth in [0, 3] {
        let mut engine = Setup { checkpoints: 0, ..Setup::roomy(depth, 0.0) }.engine();
        let plain: Vec<Answer> = run(&mut engine, requests()).into_iter().flatten().collect();
        let probe_plain = run_one(&mut engine, probe());
        let weights = &engine.runner().model().weights;
        // The last norm reaches the logits alone; the first layer's reaches states and caches too.
        for tensor in [weights.norm, weights.layers[0].norm] {
            let bytes = poison(&mut engine, tensor);
            for answer in run(&mut engine, requests()).into_iter().flatten() {
                assert_eq!((answer.ids.len(), answer.reason), (0, Some(FinishReason::NotANumber)));
            }
            restore(&mut engine, tensor, &bytes);
            run_one(&mut engine, probe()).assert_same(&probe_plain, "the probe with the weight restored");

            let mut answers = Answers::default();
            let ids: Vec<RequestId> = requests().into_iter().map(|one| engine.submit(one).expect("taken")).collect();
            for _ in 0..5 {
                answers.step(&mut engine);
            }
            let bytes = poison(&mut engine, tensor);
            answers.finish(&mut engine);
            for (id, plain) in ids.iter().zip(&plain) {
                let answer = answers.of(*id, 0);
                assert_eq!(answer.reason, Some(FinishReason::NotANumber));
                assert!(!answer.ids.is_empty() && plain.ids.starts_with(&answer.ids), "what stood before stands");
            }
            restore(&mut engine, tensor, &bytes);
            for (found, plain) in run(&mut engine, requests()).iter().flatten().zip(&plain) {
                found.assert_same(plain, "after the weight was restored");
            }
        }
    }
}

/// A draft head that is no number drafts nonsense, which costs speed and no token.
#[test]
fn a_broken_draft_head_changes_no_token() {
    let plain = run(&mut Setup::roomy(0, 0.0).engine(), requests());
    let mut engine = Setup::roomy(3, 0.0).engine();
    let tensor = engine.runner().model().weights.mtp.as_ref().expect("a draft head").norm;
    poison(&mut engine, tensor);
    for (found, plain) in run(&mut engine, requests()).iter().flatten().zip(plain.iter().flatten()) {
        found.assert_same(plain, "with a broken draft head");
    }
}
