//! Prompts around the edges of pages and of the delta rule's chunks, in steps of several sizes: the same ids.

use deltic::base::SamplingParams;
use deltic::engine::Request;

use super::demo::{CONTEXT, Setup, prompts_of, request};
use super::drive::{Answer, Answers, run, run_one};

const LENGTHS: [usize; 8] = [1, 2, 63, 64, 65, 127, 128, 129];

fn requests() -> Vec<Request> {
    let sampling = SamplingParams { temperature: 1.0, seed: 3, ..SamplingParams::default() };
    prompts_of(&LENGTHS).iter().map(|prompt| request(prompt, 6, sampling.clone())).collect()
}

#[test]
fn prompts_are_the_same_in_chunks_of_any_size() {
    let mut engine = Setup::alone().engine();
    let expected: Vec<Answer> = requests().into_iter().map(|request| run_one(&mut engine, request)).collect();
    for rows in [7, 64, 65] {
        let mut engine = Setup { rows, sequences: 2, ..Setup::roomy(3, 0.0) }.engine();
        for (length, (request, expected)) in LENGTHS.iter().zip(requests().into_iter().zip(&expected)) {
            run_one(&mut engine, request).assert_same(expected, &format!("{length} tokens, {rows} rows a step"));
        }
        for (length, (found, expected)) in LENGTHS.iter().zip(run(&mut engine, requests()).iter().zip(&expected)) {
            found[0].assert_same(expected, &format!("{length} tokens, {rows} rows a step, two at once"));
        }
    }
}

/// Steps of two rows beside a request that decodes all the time leave a prompt one row a step.
#[test]
fn prompts_are_the_same_row_by_row() {
    let mut engine = Setup::alone().engine();
    let expected: Vec<Answer> = requests().into_iter().map(|request| run_one(&mut engine, request)).collect();
    let mut engine = Setup { rows: 2, sequences: 2, ..Setup::roomy(1, 0.0) }.engine();
    let company = Request { depth_max: Some(0), ..Request::new(vec![1], CONTEXT) };
    let company = engine.submit(company).expect("it is taken");
    let mut answers = Answers::default();
    for (length, (request, expected)) in LENGTHS.iter().zip(requests().into_iter().zip(&expected)) {
        let id = engine.submit(request).expect("it is taken");
        let mut steps = 0;
        while answers.find(id, 0).is_none_or(|answer| answer.reason.is_none()) {
            answers.step(&mut engine);
            steps += 1;
        }
        assert!(steps >= *length, "{length} tokens in {steps} steps: the company keeps a row");
        answers.of(id, 0).assert_same(expected, &format!("{length} tokens, row by row"));
    }
    engine.cancel(company);
    answers.finish(&mut engine);
}
