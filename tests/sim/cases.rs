//! Cases with a name: refusals, choices that share a prefill, a failing device, who is preempted. The device here says
//! whatever is convenient; whether tokens are right is the simulation's business.

use std::collections::BTreeMap;

use deltic::base::ErrorKind;
use deltic::engine::plan::Sampled;
use deltic::engine::request::{Counts, Event};
use deltic::engine::{Core, CoreOptions, DepthOptions, FinishReason, Refused, Request, StepOutcome, StepPlan};

fn options() -> CoreOptions {
    CoreOptions {
        vocabulary: 100,
        context_max: 40,
        pages: 12,
        page_tokens: 4,
        slots: 6,
        sequences_max: 4,
        queue_max: 8,
        choices_max: 5,
        rows_max: 16,
        rows_beside_decode: 16,
        chunk_rows: 16,
        depth: DepthOptions::fixed(3),
        ..CoreOptions::default()
    }
}

fn with(change: impl FnOnce(&mut Request)) -> Request {
    let mut request = Request::new(vec![1, 2, 3], 10);
    change(&mut request);
    request
}

/// Every sequence samples token 1 and no draft is right.
fn outcome(plan: &StepPlan) -> StepOutcome {
    let sampling = plan.sequences.iter().filter(|rows| rows.samples());
    let sampled = sampling.map(|rows| Sampled {
        tokens: vec![1; rows.logit_rows() as usize],
        drafts: vec![2; plan.draft_passes as usize],
        ..Sampled::default()
    });
    StepOutcome { sampled: sampled.collect() }
}

/// Runs until nothing is left, showing each plan; what each choice took.
fn finish_all(core: &mut Core, mut see: impl FnMut(&StepPlan)) -> BTreeMap<(u64, u32), (FinishReason, Counts)> {
    let mut finished = BTreeMap::new();
    for now in 10..2_000 {
        let plan = core.plan(now);
        see(&plan);
        for event in core.commit(&plan, outcome(&plan)) {
            if let Event::Finished { request, choice, reason, counts } = event {
                let before = finished.insert((request.0, choice), (reason, counts));
                assert!(before.is_none(), "{request} choice {choice} ends once");
            }
        }
        core.check();
        if core.is_idle() {
            return finished;
        }
    }
    panic!("never idle: {:?}", core.status());
}

#[test]
fn refusals_name_both_numbers() {
    let mut core = Core::new(options());
    let refused = |core: &mut Core, request| core.submit(request).expect_err("refused");
    assert_eq!(refused(&mut core, with(|request| request.prompt.clear())), Refused::EmptyPrompt);
    let long = refused(&mut core, with(|request| request.prompt = vec![1; 40]));
    assert_eq!(long, Refused::PromptTooLong { tokens: 40, limit: 40 });
    assert_eq!(long.into_error().what(), "the prompt has 40 tokens, the context holds 40 with the answer");
    let mut small = Core::new(CoreOptions { pages: 6, ..options() });
    let never = refused(&mut small, with(|request| request.max_tokens = 30));
    assert_eq!(never, Refused::NeverFits { needed_pages: 9, pool_pages: 6 });
    small.submit(with(|request| request.max_tokens = 19)).expect("3 + 19 tokens and 3 drafts take 6 pages");
    let bad: [(&str, Request); 10] = [
        ("n is 0", with(|request| request.choices = 0)),
        ("n is 6", with(|request| request.choices = 6)),
        ("max_tokens is 0", with(|request| request.max_tokens = 0)),
        ("min_tokens is 11", with(|request| request.min_tokens = 11)),
        ("top_logprobs is 21", with(|request| request.logprobs = Some(21))),
        ("top_p is 2", with(|request| request.sampling.top_p = 2.0)),
        ("token id is 100", with(|request| request.prompt = vec![100])),
        ("token id is 101", with(|request| request.stop_ids = vec![101])),
        ("the bias of token 7 is NaN", with(|request| request.biases = vec![(7, f32::NAN)])),
        (
            "logit_bias, stop_token_ids and end tokens together is 400",
            with(|request| request.biases = vec![(1, 0.0); 400]),
        ),
    ];
    for (expected, request) in bad {
        let error = refused(&mut core, request).into_error();
        assert!(error.what().starts_with(expected), "{error}");
        assert_eq!(error.kind(), ErrorKind::Input);
    }
    core.submit(with(|request| request.choices = 5)).expect("the queue has room");
    let full = refused(&mut core, with(|request| request.choices = 4));
    assert_eq!(full, Refused::QueueFull { waiting: 5, limit: 8 });
    core.submit(with(|request| request.choices = 3)).expect("exactly full");
}

#[test]
fn choices_share_one_prefill() {
    let mut core = Core::new(CoreOptions { pages: 40, ..options() });
    core.submit(with(|request| (request.prompt, request.choices) = ((0..19).collect(), 4))).expect("fits");
    let mut computed = [0; 19];
    let finished = finish_all(&mut core, |plan| {
        for rows in &plan.sequences {
            for position in (rows.position..rows.position + rows.committed()).filter(|position| *position < 19) {
                computed[position as usize] += 1;
            }
        }
    });
    assert_eq!(computed[..18], [1; 18], "the prompt but for its last token is computed once");
    assert_eq!(computed[18], 4, "each choice computes one token itself");
    let cached: Vec<u32> = finished.values().map(|(_, counts)| counts.cached_tokens).collect();
    assert_eq!(cached, [0, 18, 18, 18]);
    assert!(finished.values().all(|(reason, counts)| {
        *reason == FinishReason::Length && counts.completion_tokens == 10 && counts.prompt_tokens == 19
    }));
}

#[test]
fn the_youngest_are_preempted_and_the_oldest_never() {
    let mut core = Core::new(options());
    for _ in 0..4 {
        core.submit(with(|request| request.max_tokens = 36)).expect("fits alone");
    }
    let mut first_done = Vec::new();
    let finished =
        finish_all(&mut core, |plan| first_done.extend(plan.sequences.first().map(|rows| rows.id.request.0)));
    let preemptions: Vec<u32> = finished.values().map(|(_, counts)| counts.preemptions).collect();
    assert_eq!(preemptions[0], 0);
    assert!(preemptions.iter().sum::<u32>() > 0, "the pool is too small for all: {preemptions:?}");
    assert!(first_done.is_sorted(), "the oldest runs in every step, so requests end in the order they came");
    assert!(finished.values().all(|(_, counts)| counts.completion_tokens == 36));
}

#[test]
fn a_failed_device_ends_everything_once_and_leaves_nothing() {
    let mut core = Core::new(options());
    for _ in 0..6 {
        core.submit(Request::new(vec![1, 2, 3], 10)).expect("fits");
    }
    let plan = core.plan(0);
    core.commit(&plan, outcome(&plan));
    core.plan(1);
    let events = core.fail();
    assert_eq!(events.len(), 6);
    let failed = |event: &Event| matches!(event, Event::Finished { reason: FinishReason::Failed, .. });
    assert!(events.iter().all(failed) && core.is_idle());
    core.check();
    core.submit(Request::new(vec![1, 2, 3], 10)).expect("fits");
    assert_eq!(finish_all(&mut core, |_| {}).len(), 1);
}

#[test]
fn requests_end_wherever_they_are_when_cancelled() {
    let mut core = Core::new(CoreOptions { chunk_rows: 2, sequences_max: 2, ..options() });
    let prompts = [3, 12, 3];
    let ids = prompts.map(|tokens| core.submit(Request::new(vec![1; tokens], 10)).expect("fits"));
    for now in 0..3 {
        let plan = core.plan(now);
        core.commit(&plan, outcome(&plan));
    }
    assert_eq!((core.status().running, core.status().waiting), (2, 1), "decoding, in prefill, queued");
    for id in ids {
        core.cancel(id);
        core.cancel(id);
    }
    let plan = core.plan(3);
    assert!(plan.is_empty());
    let events = core.commit(&plan, StepOutcome::default());
    let cancelled = |event: &Event| matches!(event, Event::Finished { reason: FinishReason::Cancelled, .. });
    assert!(events.len() == 3 && events.iter().all(cancelled) && core.is_idle());
    core.check();
    core.cancel(ids[0]);
    assert!(core.is_idle(), "cancelling what has ended is nothing");
}

#[test]
fn more_sequences_than_logit_rows_take_turns_without_drafts() {
    let many = CoreOptions { pages: 200, slots: 20, sequences_max: 20, queue_max: 20, logit_rows_max: 8, ..options() };
    let mut core = Core::new(many);
    for _ in 0..20 {
        core.submit(Request::new(vec![1], 30)).expect("fits");
    }
    let mut last = BTreeMap::new();
    finish_all(&mut core, |plan| {
        for rows in &plan.sequences {
            if let Some(before) = last.insert(rows.id, plan.step) {
                assert!(plan.step - before <= 3, "{:?} waited {} steps", rows.id, plan.step - before);
            }
        }
        if plan.step > 5 && plan.step < 60 {
            assert_eq!((plan.sequences.len(), plan.logit_rows()), (8, 8), "step {}", plan.step);
        }
    });
}

#[test]
fn the_core_can_move_to_its_thread() {
    fn moves<T: Send>() {}
    moves::<Core>();
    moves::<Request>();
    moves::<Event>();
}
