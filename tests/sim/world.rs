//! Runs a scenario: the engine, the fake device and the reference side by side, with everything that can be checked
//! from outside checked after every step.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use deltic::engine::request::Event;
use deltic::engine::{Core, FinishReason, Refused, RequestId, SequenceId, StepOutcome, StepPlan};

use super::device::{Device, Truth};
use super::fault::{Caught, Fault};
use super::reference::Reference;
use super::spec::Scenario;

/// What a run did.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stats {
    pub steps: u64,
    pub tokens: u64,
    pub drafted: u64,
    pub accepted: u64,
    pub preemptions: u64,
    pub checkpoint_starts: u64,
    pub resumes: u64,
    pub folds: u64,
    pub cancelled: u64,
    pub refused: u64,
    pub broken: u64,
    /// Sequences that ran before and had no row in a step.
    pub sat_out: u64,
    /// Steps in which a choice sampled, and the fewest that a perfect drafter of that depth needs.
    pub samplings: u64,
    pub samplings_least: u64,
}

impl Stats {
    pub fn add(&mut self, other: &Stats) {
        self.steps += other.steps;
        self.tokens += other.tokens;
        self.drafted += other.drafted;
        self.accepted += other.accepted;
        self.preemptions += other.preemptions;
        self.checkpoint_starts += other.checkpoint_starts;
        self.resumes += other.resumes;
        self.folds += other.folds;
        self.cancelled += other.cancelled;
        self.refused += other.refused;
        self.broken += other.broken;
        self.sat_out += other.sat_out;
        self.samplings += other.samplings;
        self.samplings_least += other.samplings_least;
    }
}

/// A choice as its caller sees it.
#[derive(Default)]
struct Seen {
    tokens: usize,
    finished: bool,
}

struct World<'a> {
    scenario: &'a Scenario,
    core: Core,
    device: Device,
    inspect: bool,
    truths: BTreeMap<SequenceId, Truth>,
    seen: BTreeMap<SequenceId, Seen>,
    /// Per request of the scenario: its id once it was taken.
    ids: Vec<Option<RequestId>>,
    cancelled: Vec<RequestId>,
    stats: Stats,
}

/// Runs to the end; an assertion of the core counts as caught too.
pub fn run(scenario: &Scenario, fault: Option<Fault>, inspect: bool) -> Result<Stats, Caught> {
    let run = || {
        let mut world = World {
            scenario,
            core: Core::new(scenario.options),
            device: Device::new(&scenario.options, scenario.quality, fault),
            inspect,
            truths: BTreeMap::new(),
            seen: BTreeMap::new(),
            ids: vec![None; scenario.requests.len()],
            cancelled: Vec::new(),
            stats: Stats::default(),
        };
        world.run()
    };
    quietly(|| catch_unwind(AssertUnwindSafe(run))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Caught::by("assertion of the core", text.unwrap_or_default())
    })
}

thread_local! {
    /// Whether a panic of this thread is expected and says nothing.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Keeps expected panics of this thread off the screen; those of other tests are printed as ever.
fn quietly<T>(run: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                print(info);
            }
        }));
    });
    QUIET.set(true);
    let result = run();
    QUIET.set(false);
    result
}

impl World<'_> {
    fn run(&mut self) -> Result<Stats, Caught> {
        let last_arrival = self.scenario.requests.iter().map(|request| request.arrives).max().unwrap_or(0);
        for now in 0.. {
            self.arrive(now);
            self.cancel(now, false);
            let plan = self.core.plan(now);
            self.count(&plan);
            let outcome = self.device.run(&plan, &self.truths, self.inspect)?;
            self.check_acceptance(&plan, &outcome)?;
            self.cancel(now, true);
            let events = self.core.commit(&plan, outcome);
            self.core.check();
            for event in events {
                self.event(event)?;
            }
            self.stats.steps += 1;
            if now > last_arrival && self.core.is_idle() {
                break;
            }
            if now > 20_000 {
                return Caught::by("every request ends", format!("{:?} after {now} steps", self.core.status()));
            }
        }
        self.core.check();
        let unfinished = self.seen.iter().find(|(_, seen)| !seen.finished);
        match unfinished {
            Some((id, _)) => Caught::by("every choice has a last event", format!("{id:?}")),
            None => Ok(self.stats),
        }
    }

    fn arrive(&mut self, now: u64) {
        let options = self.scenario.options;
        for (index, spec) in self.scenario.requests.iter().enumerate() {
            if spec.arrives != now {
                continue;
            }
            match self.core.submit(spec.request()) {
                Ok(request) => {
                    self.ids[index] = Some(request);
                    for choice in 0..spec.choices {
                        let reference = Reference::of(spec, choice, options.context_max);
                        let drafts = spec.depth_max != Some(0);
                        let truth = Truth { reference, broken_one_in: spec.broken_one_in, drafts };
                        let id = SequenceId { request, choice };
                        self.truths.insert(id, truth);
                        self.seen.insert(id, Seen::default());
                    }
                }
                Err(Refused::QueueFull { .. } | Refused::BadValue(_)) => self.stats.refused += 1,
                Err(refused) => panic!("a request that fits was refused: {refused:?}"),
            }
        }
    }

    fn cancel(&mut self, now: u64, inside: bool) {
        for (index, spec) in self.scenario.requests.iter().enumerate() {
            if let Some(id) = self.ids[index].filter(|_| spec.cancelled == Some(now) && spec.cancelled_inside == inside)
            {
                self.core.cancel(id);
                self.cancelled.push(id);
            }
        }
    }

    fn count(&mut self, plan: &StepPlan) {
        self.stats.resumes += plan.resumes.len() as u64;
        self.stats.folds += plan.folds.len() as u64;
        let starts = plan.slot_copies.iter().filter(|copy| copy.source.is_some());
        self.stats.checkpoint_starts += starts.count() as u64;
        self.stats.sat_out += u64::from(self.core.status().running) - plan.sequences.len() as u64;
    }

    /// A perfect drafter whose cache is right keeps every row, up to where the answer is not what was sampled.
    fn check_acceptance(&mut self, plan: &StepPlan, outcome: &StepOutcome) -> Result<(), Caught> {
        let sampling = plan.sequences.iter().filter(|rows| rows.samples());
        for (rows, sampled) in sampling.zip(&outcome.sampled) {
            self.stats.samplings += 1;
            self.stats.drafted += u64::from(rows.drafts);
            self.stats.accepted += u64::from(sampled.accepted);
            if self.scenario.quality < 100 {
                continue;
            }
            let reference = &self.truths[&rows.id].reference;
            let first = (rows.position + 1) as usize;
            let is_sampled = |position: &usize| reference.sampled.get(*position).copied().flatten().is_some();
            let due = (first..first + rows.drafts as usize)
                .take_while(|position| is_sampled(position) && (*position == first || reference.stands(*position - 1)))
                .count();
            if (sampled.accepted as usize) < due {
                let what = format!("{:?} at {}: {} of {due} drafts", rows.id, rows.position, sampled.accepted);
                return Caught::by("a perfect drafter keeps every row", what);
            }
        }
        Ok(())
    }

    fn event(&mut self, event: Event) -> Result<(), Caught> {
        match event {
            Event::Token { request, choice, token, logprobs } => {
                let id = SequenceId { request, choice };
                let wanted = self.spec(request).logprobs;
                let (seen, reference) = (self.seen.get_mut(&id).expect("submitted"), &self.truths[&id].reference);
                let position = reference.prompt_tokens + seen.tokens;
                if seen.finished || self.cancelled.contains(&request) {
                    return Caught::by("no event after the last", format!("{id:?} token {token}"));
                }
                if reference.tokens.get(position) != Some(&token) {
                    let what =
                        format!("{id:?} position {position}: {token}, expected {:?}", reference.tokens.get(position));
                    return Caught::by("tokens = the reference's", what);
                }
                let expected = wanted.and(reference.logprobs[position]);
                let found = logprobs.as_ref().map(|logprobs| logprobs.sampled);
                let listed = logprobs.map_or(0, |logprobs| logprobs.top.len());
                if found != expected || listed != expected.and(wanted).unwrap_or(0) as usize {
                    return Caught::by("logprobs = the reference's", format!("{id:?} position {position}"));
                }
                seen.tokens += 1;
                self.stats.tokens += 1;
            }
            Event::Finished { request, choice, reason, counts } => {
                let id = SequenceId { request, choice };
                let (seen, reference) = (self.seen.get_mut(&id).expect("submitted"), &self.truths[&id].reference);
                let whole = reason == reference.reason && seen.tokens == reference.answer_tokens().len();
                let cut = reason == FinishReason::Cancelled && self.cancelled.contains(&request);
                let counted = counts.completion_tokens as usize == seen.tokens
                    && counts.prompt_tokens as usize == reference.prompt_tokens
                    && counts.accepted <= counts.drafted;
                if seen.finished || !(whole || cut) || !counted {
                    let what = format!("{id:?} {reason:?} after {}, expected {:?}", seen.tokens, reference.reason);
                    return Caught::by("finish = the reference's, once", what);
                }
                seen.finished = true;
                let rows = u64::from(self.scenario.options.depth.depth_max) + 1;
                self.stats.samplings_least += 1 + (seen.tokens as u64).saturating_sub(1).div_ceil(rows);
                self.stats.preemptions += u64::from(counts.preemptions);
                self.stats.cancelled += u64::from(cut);
                self.stats.broken += u64::from(reason == FinishReason::NotANumber);
            }
        }
        Ok(())
    }

    fn spec(&self, request: RequestId) -> &super::spec::RequestSpec {
        let index = self.ids.iter().position(|id| *id == Some(request)).expect("submitted");
        &self.scenario.requests[index]
    }
}
