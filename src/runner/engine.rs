//! The engine: the core that plans and the runner that runs. The loop that a thread or a command drives is
//! [`Engine::step`], once per step.

use super::Runner;
use crate::backend::op::TOP_LOGPROBS;
use crate::base::rng::threefry;
use crate::base::{Error, Result};
use crate::engine::plan::{SequencePlan, StepPlan};
use crate::engine::{Core, CoreOptions, DepthOptions, Event, Refused, Request, RequestId, StepOutcome};
use crate::model::{BIASES_PER_SEQUENCE_MAX, CountedTokens, LOGIT_ROWS_MAX, SequenceRows, SlotOperations};

/// What a caller decides about scheduling and speculation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineOptions {
    pub depth: DepthOptions,
    /// A test aid: each draft is replaced, with this probability, with another token. Costs speed, never a token.
    pub draft_noise: f32,
    pub prefill_alone: bool,
}

pub struct Engine {
    core: Core,
    runner: Runner,
    draft_noise: f32,
    steps: u64,
    accepted_counts: Vec<u64>,
}

impl Engine {
    /// The core gets its limits from the model that the runner holds. Depth is capped at what the model records.
    pub fn new(runner: Runner, options: EngineOptions) -> Engine {
        let model = runner.model();
        let depth_max = options.depth.depth_max.min(model.options.drafts_max);
        let core = Core::new(CoreOptions {
            vocabulary: model.options.vocab_live,
            context_max: model.options.context_max,
            pages: model.options.pages,
            page_tokens: model.options.page_tokens,
            slots: model.options.slots,
            sequences_max: model.options.sequences_max,
            rows_max: model.options.rows_max,
            rows_beside_decode: model.options.rows_max.div_ceil(2),
            chunk_rows: model.options.rows_max,
            logit_rows_max: LOGIT_ROWS_MAX.min(model.options.rows_max),
            biases_max: BIASES_PER_SEQUENCE_MAX,
            logprobs_max: TOP_LOGPROBS,
            depth: DepthOptions { depth_max, ..options.depth },
            prefill_alone: options.prefill_alone,
            ..CoreOptions::default()
        });
        Engine {
            core,
            runner,
            draft_noise: options.draft_noise,
            steps: 0,
            accepted_counts: vec![0; depth_max as usize + 1],
        }
    }

    pub fn submit(&mut self, request: Request) -> Result<RequestId, Refused> {
        self.core.submit(request)
    }

    pub fn cancel(&mut self, id: RequestId) {
        self.core.cancel(id);
    }

    pub fn is_idle(&self) -> bool {
        self.core.is_idle()
    }

    pub fn core(&self) -> &Core {
        &self.core
    }

    /// How many verifications accepted 0, 1, ... drafts so far.
    pub fn accepted_counts(&self) -> &[u64] {
        &self.accepted_counts
    }

    pub fn runner(&mut self) -> &mut Runner {
        &mut self.runner
    }

    /// Plans a step, runs it and commits what it brought. After an error every request has ended.
    pub fn step(&mut self) -> Result<Vec<Event>> {
        self.steps += 1;
        let plan = self.core.plan(self.steps);
        match self.run(&plan) {
            Ok(outcome) => Ok(self.core.commit(&plan, outcome)),
            Err(error) => {
                self.core.fail();
                Err(error)
            }
        }
    }

    fn run(&mut self, plan: &StepPlan) -> Result<StepOutcome> {
        let operations = SlotOperations {
            folds: plan.folds.iter().map(|fold| (fold.slot, fold.parity, fold.pending)).collect(),
            copies: plan.slot_copies.iter().map(|copy| (copy.source, copy.destination)).collect(),
            page_copies: plan.page_copies.iter().map(|copy| (copy.source, copy.destination)).collect(),
        };
        let resumed = |index: usize| plan.resumes.iter().any(|resume| resume.sequence as usize == index);
        let sequences: Vec<SequenceRows> =
            plan.sequences.iter().enumerate().map(|(index, rows)| rows_of(rows, resumed(index))).collect();
        self.runner.write_masks(&plan.masks)?;
        let mut outcome = self.runner.run(&sequences, &operations, plan.draft_passes)?;
        let sampling = sequences.iter().filter(|rows| rows.samples());
        for (_, sampled) in sampling.zip(&outcome.sampled).filter(|(rows, _)| rows.drafts > 0) {
            self.accepted_counts[sampled.accepted as usize] += 1;
        }
        if self.draft_noise > 0.0 {
            self.replace_drafts(&sequences, &mut outcome)?;
        }
        Ok(outcome)
    }

    /// Replaces drafts by the counter generator, keyed by the sequence's seed and the draft's position.
    fn replace_drafts(&self, sequences: &[SequenceRows], outcome: &mut StepOutcome) -> Result<()> {
        let vocab_live = self.runner.model().options.vocab_live;
        if vocab_live < 2 {
            return Err(Error::input("a vocabulary of 1 has no other token", "leave --draft-noise out"));
        }
        let sampling = sequences.iter().filter(|rows| rows.samples());
        for (rows, sampled) in sampling.zip(&mut outcome.sampled) {
            let first = rows.position + rows.committed() + sampled.accepted + 1;
            for (position, draft) in (first..).zip(&mut sampled.drafts) {
                let key = [rows.sampling.seed as u32 ^ NOISE_KEY, rows.sampling.choice];
                let [decides, picks] = threefry(key, [position, NOISE_KEY]);
                // Compared as f64, which holds every u32: probability 1 replaces all.
                if f64::from(decides) < f64::from(self.draft_noise) * (f64::from(u32::MAX) + 1.0) {
                    *draft = (*draft + 1 + picks % (vocab_live - 1)) % vocab_live;
                }
            }
        }
        Ok(())
    }
}

/// Sets the noise apart from the draws of the sampler; any constant.
const NOISE_KEY: u32 = 0x6e6f_6973;

/// What the device is told of one planned sequence.
fn rows_of(plan: &SequencePlan, resume: bool) -> SequenceRows {
    let counted = match &plan.counted {
        Some(counted) => CountedTokens::OutputFrom(counted.output_from),
        None => CountedTokens::Nothing,
    };
    SequenceRows {
        tokens: plan.tokens.clone(),
        drafts: plan.drafts,
        position: plan.position,
        next_token: plan.next_token,
        slot: plan.slot,
        parity: plan.parity,
        pending: plan.pending,
        resume,
        pages: plan.pages.clone(),
        counted,
        accepted: plan.counted.as_ref().map_or_else(Vec::new, |counted| counted.accepted.clone()),
        sampling: plan.sampling.clone(),
        logprobs: plan.logprobs,
        biases: plan.biases.clone(),
        mask_rows: plan.mask_rows.clone(),
    }
}
