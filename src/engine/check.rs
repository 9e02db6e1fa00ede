//! The invariants, asserted. `Core::check` looks at everything and is for simulations and debugging; `check_plan` looks
//! at what leaves the core and always runs.

use super::Core;
use super::plan::StepPlan;

impl Core {
    /// Panics where anything contradicts anything else. Call it between a commit and the next plan.
    pub fn check(&self) {
        assert!(self.planned.is_none(), "check comes after commit");
        self.check_pages();
        self.check_slots();
        for (id, sequence) in &self.sequences {
            assert_eq!(*id, sequence.id);
            assert!(self.waiting.contains(id) != self.running.contains(id), "{id:?} waits or runs");
            assert_eq!(self.running.contains(id), sequence.held.is_some(), "{id:?} holds something and runs");
            assert!(sequence.computed < sequence.length(), "{id:?} has a token to compute");
            assert!(sequence.length() < sequence.rules.tokens_max(), "{id:?} has a token to generate");
            assert!(sequence.counted <= sequence.computed, "{id:?} counts only what is computed");
            assert!(sequence.drafts.is_empty() || sequence.uncomputed() == 1, "{id:?}: drafts follow the last token");
            assert!(sequence.drafts.len() as u32 <= self.options.depth.depth_max);
            let waits = sequence.held.is_none();
            assert!(!waits || (sequence.computed == 0 && sequence.drafts.is_empty()), "{id:?} waits with a state");
        }
        assert_eq!(self.sequences.len(), self.waiting.len() + self.running.len());
        assert!(self.running.len() as u32 <= self.options.sequences_max);
        for request in self.checkpoints.keys() {
            let live = self.sequences.keys().any(|id| id.request == *request);
            assert!(live, "{request} has ended and left a checkpoint");
        }
        self.check_waits();
    }

    /// Held and free pages are all pages, and nobody writes a page that another holds.
    fn check_pages(&self) {
        let running = self.sequences.values().filter_map(|sequence| sequence.held.as_ref());
        let checkpoints = self.checkpoints.values().map(|checkpoint| &checkpoint.pages);
        self.pages.check(running.map(|held| &held.pages).chain(checkpoints));
        for (id, sequence) in &self.sequences {
            let Some(held) = &sequence.held else { continue };
            let first_written = (sequence.computed / self.pages.page_tokens()) as usize;
            for page in held.pages.iter().skip(first_written) {
                assert_eq!(self.pages.holders(*page), 1, "{id:?} would write page {page}, which others hold");
            }
        }
        if self.sequences.is_empty() {
            assert_eq!(self.pages.free(), self.pages.total(), "idle: every page is free");
        }
    }

    /// State and pending records stand for exactly the computed tokens.
    fn check_slots(&self) {
        let running = self.sequences.values().filter_map(|sequence| sequence.held.as_ref());
        let checkpoints = self.checkpoints.values().map(|checkpoint| checkpoint.slot);
        self.slots.check(running.map(|held| held.slot).chain(checkpoints));
        for (id, sequence) in &self.sequences {
            let Some(held) = &sequence.held else { continue };
            let state = self.slots.state(held.slot);
            assert_eq!(state.computed(), sequence.computed, "{id:?}: slot {state:?}");
            assert!(state.pending <= self.options.depth.depth_max && state.parity <= 1);
        }
        for (request, checkpoint) in &self.checkpoints {
            let state = self.slots.state(checkpoint.slot);
            assert_eq!((state.exact, state.pending), (checkpoint.position, 0), "checkpoint of {request}");
            assert_eq!(checkpoint.pages.len() as u32, self.pages.pages_for(checkpoint.position));
        }
        if self.sequences.is_empty() {
            assert_eq!(self.slots.free(), self.slots.total(), "idle: every slot is free");
        }
    }

    /// Whoever runs gets a row within a bounded number of steps. `prefill_alone` gives that up.
    fn check_waits(&self) {
        let bound = u64::from(self.options.sequences_max + 4).pow(2);
        for id in self.running.iter().filter(|_| !self.options.prefill_alone) {
            let sat_out = self.step - self.sequences[id].last_run;
            assert!(sat_out <= bound, "{id:?} has sat out {sat_out} steps, the bound is {bound}");
        }
    }

    /// A plan keeps every limit of the device, and its lists can be run in parallel.
    pub(super) fn check_plan(&self, plan: &StepPlan) {
        let options = &self.options;
        assert!(plan.rows() <= options.rows_max, "{} rows", plan.rows());
        assert!(plan.logit_rows() <= options.logit_rows_max, "{} logit rows", plan.logit_rows());
        assert!(plan.sequences.len() as u32 <= options.sequences_max);
        assert!(plan.draft_passes <= options.depth.depth_max);
        for rows in &plan.sequences {
            let committed = rows.committed();
            assert!(committed >= 1 && (rows.drafts == 0 || (committed == 1 && rows.samples())), "{:?}", rows.id);
            assert!(rows.pending == 0 || committed == 1, "{:?}: records pending before a chunk", rows.id);
            let written = rows.position + rows.tokens.len() as u32 + if rows.samples() { options.ahead() } else { 1 };
            let held = rows.pages.len() as u32 * options.page_tokens;
            assert!(written <= held, "{:?} writes {written} positions into pages for {held}", rows.id);
        }
        let alone = plan.sequences.len() <= 1 || plan.sequences.iter().all(|rows| rows.committed() == 1);
        assert!(alone || !options.prefill_alone, "a prefill has company");
        let destinations: Vec<u32> = plan.slot_copies.iter().map(|copy| copy.destination).collect();
        for (index, copy) in plan.slot_copies.iter().enumerate() {
            let read = copy.source.is_some_and(|source| destinations.contains(&source));
            let twice = destinations[..index].contains(&copy.destination);
            assert!(!read && !twice, "slot copies depend on each other: {:?}", plan.slot_copies);
        }
        let destinations: Vec<u32> = plan.page_copies.iter().map(|copy| copy.destination).collect();
        for (index, copy) in plan.page_copies.iter().enumerate() {
            let clash = destinations.contains(&copy.source) || destinations[..index].contains(&copy.destination);
            assert!(!clash, "page copies depend on each other: {:?}", plan.page_copies);
        }
    }
}
