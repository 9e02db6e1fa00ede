//! How long the host takes to plan and commit a step.

use std::time::{Duration, Instant};

use deltic::base::SamplingParams;
use deltic::engine::plan::Sampled;
use deltic::engine::{Core, CoreOptions, DepthOptions, Request, StepOutcome, StepPlan};

use super::hash::Random;

/// The median over the steps of `sequences` long answers with three drafts each, after prompts of 4,096 tokens.
pub fn median_of_a_step(sequences: u32) -> Duration {
    let options = CoreOptions {
        context_max: 16_384,
        pages: 8_192,
        page_tokens: 32,
        slots: sequences + 1,
        sequences_max: sequences,
        depth: DepthOptions::fixed(3),
        ..CoreOptions::default()
    };
    let mut core = Core::new(options);
    for seed in 0..sequences {
        let sampling =
            SamplingParams { temperature: 1.0, presence_penalty: 1.5, seed: seed.into(), ..Default::default() };
        let mut request = Request::new(vec![1; 4_096], 2_000);
        (request.sampling, request.end_ids) = (sampling, vec![99_999]);
        core.submit(request).expect("fits");
    }
    let mut random = Random::new(3);
    let mut times = Vec::new();
    for now in 0.. {
        let started = Instant::now();
        let plan = core.plan(now);
        let planned = started.elapsed();
        let outcome = outcome(&plan, &mut random);
        let started = Instant::now();
        core.commit(&plan, outcome);
        let whole = planned + started.elapsed();
        if plan.sequences.len() as u32 == sequences && plan.sequences.iter().all(|rows| rows.samples()) {
            times.push(whole);
        }
        if times.len() == 500 {
            break;
        }
    }
    times.sort();
    times[times.len() / 2]
}

/// Accepts some of the drafts and follows with another token.
fn outcome(plan: &StepPlan, random: &mut Random) -> StepOutcome {
    let sampling = plan.sequences.iter().filter(|rows| rows.samples());
    let sampled = sampling.map(|rows| {
        let drafts = &rows.tokens[rows.committed() as usize..];
        let accepted = random.within(0, rows.drafts);
        let mut tokens = drafts[..accepted as usize].to_vec();
        tokens.resize(drafts.len() + 1, 2);
        Sampled { tokens, accepted, drafts: vec![3; plan.draft_passes as usize], ..Sampled::default() }
    });
    StepOutcome { sampled: sampled.collect() }
}
