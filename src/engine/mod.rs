//! The engine core: what decides who runs, what is kept and which tokens stand. Pure: no I/O, no tensors, no clock, no
//! threads. The caller's loop is `plan`, run it on a device, `commit`, send the events.
//!
//! A step is the same thing for prefill, decoding and verification: per sequence some committed tokens that are not
//! computed yet, followed by drafts where there is one such token. ARCHITECTURE.md has the invariants; `check` asserts
//! them.

mod admission;
mod check;
pub mod depth;
pub mod options;
pub mod pages;
pub mod plan;
pub mod request;
pub mod schedule;
pub mod sequence;
pub mod slots;
mod submit;
pub mod verify;

use std::collections::{BTreeMap, BTreeSet};

pub use depth::DepthOptions;
pub use options::CoreOptions;
pub use plan::{SequenceId, SequencePlan, StepOutcome, StepPlan};
pub use request::{Constraint, Event, FinishReason, Refused, Request, RequestId, Watch};

use pages::PagePool;
use plan::{Counted, Mask, Resume, Sampled};
use schedule::{Budget, Grant, share};
use sequence::Sequence;
use slots::{Checkpoint, Slots};

/// Time as the caller counts it; it only has to grow.
pub type Tick = u64;

/// All requests and all that they hold.
pub struct Core {
    options: CoreOptions,
    /// Every choice that has not finished, waiting or running.
    sequences: BTreeMap<SequenceId, Sequence>,
    waiting: BTreeSet<SequenceId>,
    running: BTreeSet<SequenceId>,
    checkpoints: BTreeMap<RequestId, Checkpoint>,
    pages: PagePool,
    slots: Slots,
    /// Requests to end before the next plan.
    cancelled: BTreeSet<RequestId>,
    /// Events that the next commit hands out.
    events: Vec<Event>,
    next_request: u64,
    step: u64,
    /// The step that was planned and not committed yet.
    planned: Option<u64>,
    now: Tick,
}

/// What the core holds, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    pub waiting: u32,
    pub running: u32,
    pub checkpoints: u32,
    pub pages_free: u32,
    pub slots_free: u32,
}

impl Core {
    pub fn new(options: CoreOptions) -> Core {
        options.check();
        Core {
            sequences: BTreeMap::new(),
            waiting: BTreeSet::new(),
            running: BTreeSet::new(),
            checkpoints: BTreeMap::new(),
            pages: PagePool::new(options.pages, options.page_tokens),
            slots: Slots::new(options.slots),
            cancelled: BTreeSet::new(),
            events: Vec::new(),
            next_request: 0,
            step: 0,
            planned: None,
            now: 0,
            options,
        }
    }

    /// Ends all choices of a request, wherever they are. Unknown and finished requests are ignored. The events come
    /// with the next commit.
    pub fn cancel(&mut self, id: RequestId) {
        if self.sequences.range(admission::choices(id)).next().is_some() {
            self.cancelled.insert(id);
        }
    }

    /// What to run next. An empty plan means that nothing can run; it is committed like any other.
    pub fn plan(&mut self, now: Tick) -> StepPlan {
        assert!(self.planned.is_none(), "step {} is planned and not committed", self.step);
        assert!(now >= self.now, "time runs backwards");
        (self.now, self.step) = (now, self.step + 1);
        self.drop_cancelled();
        self.drop_idle_checkpoints();
        let mut plan = StepPlan { step: self.step, ..StepPlan::default() };
        let mut budget = self.budget();
        let mut grants = self.grant_running(&mut budget);
        let preempted = self.grow(&mut grants);
        self.make_checkpoints(&mut plan);
        if !preempted {
            self.see_waiting();
            self.admit(&mut plan, &mut grants, &mut budget);
        }
        grants.sort_by_key(|(id, _)| *id);
        let sampling = grants.iter().filter(|(id, grant)| self.will_sample(*id, *grant)).count() as u32;
        for (id, grant) in grants {
            self.plan_rows(&mut plan, id, grant, sampling);
        }
        for checkpoint in self.checkpoints.values_mut() {
            checkpoint.made_from = None;
        }
        self.check_plan(&plan);
        self.planned = Some(self.step);
        plan
    }

    /// Takes in what the step brought, and says what the callers have to know.
    pub fn commit(&mut self, plan: &StepPlan, outcome: StepOutcome) -> Vec<Event> {
        assert_eq!(self.planned.take(), Some(plan.step), "this is not the plan that was made last");
        let sampling = plan.sequences.iter().filter(|rows| rows.samples()).count();
        assert_eq!(outcome.sampled.len(), sampling, "an outcome for each sequence that sampled");
        let mut sampled = outcome.sampled.iter();
        for rows in &plan.sequences {
            let outcome = if rows.samples() { sampled.next() } else { None };
            if !self.cancelled.contains(&rows.id.request) {
                self.commit_rows(rows, outcome);
            }
        }
        self.drop_cancelled();
        self.drop_idle_checkpoints();
        std::mem::take(&mut self.events)
    }

    /// Ends everything because the device failed: the plan that was made last is not committed any more.
    pub fn fail(&mut self) -> Vec<Event> {
        self.planned = None;
        self.cancelled.clear();
        let all: Vec<SequenceId> = self.sequences.keys().copied().collect();
        for id in all {
            self.finish(id, FinishReason::Failed);
        }
        self.drop_idle_checkpoints();
        std::mem::take(&mut self.events)
    }

    /// Whether there is nothing to plan and nothing to say.
    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty() && self.events.is_empty()
    }

    pub fn status(&self) -> Status {
        Status {
            waiting: self.waiting.len() as u32,
            running: self.running.len() as u32,
            checkpoints: self.checkpoints.len() as u32,
            pages_free: self.pages.free(),
            slots_free: self.slots.free(),
        }
    }

    pub fn options(&self) -> &CoreOptions {
        &self.options
    }

    fn budget(&self) -> Budget {
        let options = &self.options;
        Budget {
            step: self.step,
            rows: options.rows_max,
            rows_beside_decode: options.rows_beside_decode,
            decodes: false,
            chunk_rows: options.chunk_rows,
            logit_rows: options.logit_rows_max,
            prefill_alone: options.prefill_alone,
            used: false,
        }
    }

    fn grant_running(&self, budget: &mut Budget) -> Vec<(SequenceId, Grant)> {
        let running: Vec<SequenceId> = self.running.iter().copied().collect();
        let candidates: Vec<_> =
            running.iter().map(|id| self.sequences[id].candidate(self.checkpoint_position(*id))).collect();
        let grants = share(&candidates, budget);
        running.into_iter().zip(grants).filter(|(_, grant)| grant.committed > 0).collect()
    }

    fn see_waiting(&mut self) {
        for id in self.waiting.iter().rev() {
            let sequence = self.sequences.get_mut(id).expect("waiting");
            if sequence.seen_at.is_some() {
                break;
            }
            sequence.seen_at = Some(self.now);
        }
    }

    fn will_sample(&self, id: SequenceId, grant: Grant) -> bool {
        grant.committed == self.sequences[&id].uncomputed()
    }

    /// Writes down the rows of one sequence, with whatever has to happen before them.
    fn plan_rows(&mut self, plan: &mut StepPlan, id: SequenceId, grant: Grant, sampling: u32) {
        let slot = self.sequences[&id].held.as_ref().expect("granted").slot;
        if grant.committed > 1 {
            self.flush(slot, plan);
        }
        let samples = self.will_sample(id, grant);
        let state = self.slots.state(slot);
        let ahead = self.options.ahead();
        let sequence = self.sequences.get_mut(&id).expect("granted");
        let (position, end) = (sequence.computed, sequence.computed + grant.committed);
        let mut drafts = sequence.drafts[..grant.drafts as usize].to_vec();
        let mut mask_rows = Vec::new();
        if samples {
            if let Some(constraint) = &mut sequence.constraint {
                let masks = constraint.masks(&drafts);
                drafts.truncate(masks.drafts_allowed as usize);
                assert_eq!(masks.rows.len(), drafts.len() + 1, "{id:?}: a mask for each logit row");
                mask_rows = masks.rows.into_iter().map(|mask| index_mask(&mut plan.masks, mask)).collect();
            }
            let depth = sequence.meter.depth(&self.options.depth, sampling).min(sequence.rules.depth_max);
            sequence.next_depth = depth.min(sequence.remaining().saturating_sub(2));
            plan.draft_passes = plan.draft_passes.max(sequence.next_depth);
        }
        if sequence.entry_stale {
            let index = plan.sequences.len() as u32;
            let token = sequence.tokens[position as usize];
            plan.resumes.push(Resume { sequence: index, slot, pending: state.pending, token, position });
        }
        let counted = sequence.sampling.counts_tokens().then(|| Counted {
            output_from: sequence.rules.prompt_tokens,
            accepted: sequence.tokens[sequence.counted as usize..position as usize].to_vec(),
        });
        let rules = &sequence.rules;
        let biases = if sequence.below_min() { &rules.biases_before_min } else { &rules.biases };
        let mut tokens = sequence.tokens[position as usize..end as usize].to_vec();
        tokens.extend(&drafts);
        let positions = position + tokens.len() as u32 + ahead;
        let held = sequence.held.as_ref().expect("granted");
        plan.sequences.push(SequencePlan {
            id,
            drafts: drafts.len() as u32,
            tokens,
            position,
            next_token: sequence.tokens.get(end as usize).copied(),
            slot,
            parity: state.parity,
            pending: state.pending,
            pages: held.pages[..self.pages.pages_for(positions) as usize].to_vec(),
            counted,
            sampling: sequence.sampling.clone(),
            logprobs: samples && rules.logprobs.is_some(),
            biases: if samples { biases.clone() } else { Vec::new() },
            mask_rows,
        });
        sequence.last_run = self.step;
    }

    fn commit_rows(&mut self, rows: &SequencePlan, outcome: Option<&Sampled>) {
        let sequence = self.sequences.get_mut(&rows.id).expect("planned and not cancelled");
        let committed = sequence.commit(rows, outcome, &mut self.events);
        self.slots.ran(rows.slot, rows.committed(), committed.kept);
        if let Some(reason) = committed.finish {
            self.finish(rows.id, reason);
        }
    }

    fn drop_cancelled(&mut self) {
        for request in std::mem::take(&mut self.cancelled) {
            let choices: Vec<SequenceId> =
                self.sequences.range(admission::choices(request)).map(|(id, _)| *id).collect();
            for id in choices {
                self.finish(id, FinishReason::Cancelled);
            }
        }
    }

    /// The one way out: frees what the choice holds and says so once.
    fn finish(&mut self, id: SequenceId, reason: FinishReason) {
        let mut sequence = self.sequences.remove(&id).expect("a choice finishes once");
        self.waiting.remove(&id);
        self.running.remove(&id);
        if let Some(held) = sequence.held.take() {
            self.release(held);
        }
        let SequenceId { request, choice } = id;
        self.events.push(Event::Finished { request, choice, reason, counts: sequence.counts });
    }
}

/// The index of a mask in the plan's list, with equal neighbours stored once.
fn index_mask(masks: &mut Vec<Mask>, mask: Option<Mask>) -> Option<u32> {
    let mask = mask?;
    if masks.last() != Some(&mask) {
        masks.push(mask);
    }
    Some(masks.len() as u32 - 1)
}
