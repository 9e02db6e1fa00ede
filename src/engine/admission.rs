//! Who holds slots and pages: starting waiting sequences, growing running ones, preempting the youngest, and the
//! checkpoints that the choices of one request start from.
//!
//! Progress is guaranteed by order. Waiting sequences start oldest first; a running one that needs a page takes it from
//! checkpoints, then from the youngest that runs; so the oldest always gets what it needs, and a request that could not
//! have the whole pool to itself was refused when it came.

use std::ops::{Bound, RangeInclusive};

use super::Core;
use super::plan::{Fold, PageCopy, SequenceId, SlotCopy, StepPlan};
use super::request::RequestId;
use super::schedule::{Budget, Grant, share};
use super::sequence::Held;
use super::slots::{Checkpoint, Source};

impl Core {
    /// Gives each granted sequence the pages for its rows. Returns whether that took preemption; grants of preempted
    /// sequences are removed.
    pub(super) fn grow(&mut self, grants: &mut Vec<(SequenceId, Grant)>) -> bool {
        let ahead = self.options.ahead();
        let mut preempted = false;
        let mut index = 0;
        while index < grants.len() {
            let (id, grant) = grants[index];
            let sequence = self.sequences.get_mut(&id).expect("granted");
            let positions = sequence.computed + grant.committed + grant.drafts + ahead;
            let held = sequence.held.as_mut().expect("granted sequences run");
            if self.pages.grow(&mut held.pages, positions) {
                index += 1;
                continue;
            }
            if self.evict_checkpoint() {
                continue;
            }
            let victim = *self.running.last().expect("one runs");
            assert!(self.running.first() != Some(&victim), "{id:?} cannot grow though it runs alone");
            self.preempt(victim);
            preempted = true;
            grants.retain(|(id, _)| *id != victim);
        }
        preempted
    }

    /// Copies the state of each sequence that is one token short of its prompt's end, where siblings wait to start
    /// from there. Without room the siblings prefill for themselves.
    pub(super) fn make_checkpoints(&mut self, plan: &mut StepPlan) {
        let running: Vec<SequenceId> = self.running.iter().copied().collect();
        for id in running {
            let sequence = &self.sequences[&id];
            if self.checkpoint_position(id) != Some(sequence.computed) || self.slots.free() < 2 {
                continue;
            }
            let position = sequence.computed;
            let held = sequence.held.as_ref().expect("it runs");
            let (slot, source_pages) = (held.slot, held.pages.clone());
            let whole = (position / self.pages.page_tokens()) as usize;
            let mut pages = source_pages[..whole].to_vec();
            if !self.pages.grow(&mut pages, position) {
                continue;
            }
            for page in &pages[..whole] {
                self.pages.share(*page);
            }
            let partial_page = pages.get(whole).map(|copy| {
                plan.page_copies.push(PageCopy { source: source_pages[whole], destination: *copy });
                source_pages[whole]
            });
            self.flush(slot, plan);
            let copy = self.slots.take(Some(slot)).expect("counted above");
            plan.slot_copies.push(SlotCopy { source: Some(slot), destination: copy });
            let made_from = Some(Source { slot, partial_page });
            self.checkpoints.insert(id.request, Checkpoint { slot: copy, position, pages, made_from });
        }
    }

    /// Starts waiting sequences, oldest first, while there is room; they share what is left of the budget.
    pub(super) fn admit(&mut self, plan: &mut StepPlan, grants: &mut Vec<(SequenceId, Grant)>, budget: &mut Budget) {
        let mut after = Bound::Unbounded;
        while (self.running.len() as u32) < self.options.sequences_max {
            let Some(id) = self.waiting.range((after, Bound::Unbounded)).next().copied() else { break };
            after = Bound::Excluded(id);
            if self.waits_for_checkpoint(id) {
                continue;
            }
            while !self.start(id, plan) {
                // With nothing running only checkpoints can be in the way, and no copy of this plan reads them.
                if !self.running.is_empty() || !self.evict_checkpoint() {
                    return;
                }
            }
            let candidate = self.sequences[&id].candidate(self.checkpoint_position(id));
            let grant = share(&[candidate], budget)[0];
            if grant.committed > 0 {
                grants.push((id, grant));
            }
        }
    }

    /// Takes slot and pages for a waiting sequence: its known tokens and a step, not all that it may become.
    fn start(&mut self, id: SequenceId, plan: &mut StepPlan) -> bool {
        let ahead = self.options.ahead();
        let sequence = &self.sequences[&id];
        let positions = (sequence.length() + 1 + 2 * ahead).min(sequence.rules.tokens_max() - 1 + ahead);
        let checkpoint = self.checkpoints.get(&id.request);
        let computed = checkpoint.map_or(0, |checkpoint| checkpoint.position);
        let whole = (computed / self.pages.page_tokens()) as usize;
        let needed = self.pages.pages_for(positions) - whole as u32;
        // A page for each that runs already: else the next step would preempt what this one starts.
        let headroom = self.running.len() as u32;
        if self.slots.free() == 0 || self.pages.free() < needed + headroom {
            return false;
        }
        let mut pages = checkpoint.map_or(Vec::new(), |checkpoint| checkpoint.pages[..whole].to_vec());
        for page in &pages {
            self.pages.share(*page);
        }
        assert!(self.pages.grow(&mut pages, positions), "counted above");
        let slot = self.slots.take(checkpoint.map(|checkpoint| checkpoint.slot)).expect("counted above");
        let mut slot_source = None;
        if let Some(checkpoint) = checkpoint {
            let source = checkpoint.made_from;
            slot_source = Some(source.map_or(checkpoint.slot, |source| source.slot));
            if let Some(own_copy) = checkpoint.pages.get(whole) {
                let source = source.and_then(|source| source.partial_page).unwrap_or(*own_copy);
                plan.page_copies.push(PageCopy { source, destination: pages[whole] });
            }
        }
        plan.slot_copies.push(SlotCopy { source: slot_source, destination: slot });
        let sequence = self.sequences.get_mut(&id).expect("waiting");
        sequence.start(Held { slot, pages }, computed, self.step, self.now);
        self.waiting.remove(&id);
        self.running.insert(id);
        true
    }

    /// Where a sequence has to stop for a checkpoint: siblings wait, and there is none yet.
    pub(super) fn checkpoint_position(&self, id: SequenceId) -> Option<u32> {
        let position = self.sequences[&id].rules.prompt_tokens - 1;
        let wanted = position > 0 && self.siblings_wait(id.request) && !self.checkpoints.contains_key(&id.request);
        wanted.then_some(position)
    }

    /// Whether a sibling that runs is about to make a checkpoint for this one.
    fn waits_for_checkpoint(&self, id: SequenceId) -> bool {
        let Some(position) = self.checkpoint_position(id) else { return false };
        self.running.range(choices(id.request)).any(|sibling| self.sequences[sibling].computed < position)
    }

    fn siblings_wait(&self, request: RequestId) -> bool {
        self.waiting.range(choices(request)).next().is_some()
    }

    /// Folds what is pending in a slot, so that it can be copied or run a chunk.
    pub(super) fn flush(&mut self, slot: u32, plan: &mut StepPlan) {
        let state = self.slots.state(slot);
        if state.pending > 0 {
            plan.folds.push(Fold { slot, parity: state.parity, pending: state.pending });
            self.slots.fold(slot);
        }
    }

    fn preempt(&mut self, id: SequenceId) {
        let held = self.sequences.get_mut(&id).expect("running").preempt();
        self.release(held);
        self.running.remove(&id);
        self.waiting.insert(id);
    }

    pub(super) fn release(&mut self, held: Held) {
        self.slots.release(held.slot);
        for page in held.pages {
            self.pages.release(page);
        }
    }

    /// Drops the checkpoint of the youngest request that has one.
    fn evict_checkpoint(&mut self) -> bool {
        let Some((_, checkpoint)) = self.checkpoints.pop_last() else { return false };
        self.release(Held { slot: checkpoint.slot, pages: checkpoint.pages });
        true
    }

    /// Drops checkpoints that nobody waits for. Never while a plan is being made: its copies may read them.
    pub(super) fn drop_idle_checkpoints(&mut self) {
        let idle: Vec<RequestId> =
            self.checkpoints.keys().copied().filter(|request| !self.siblings_wait(*request)).collect();
        for request in idle {
            let checkpoint = self.checkpoints.remove(&request).expect("listed");
            self.release(Held { slot: checkpoint.slot, pages: checkpoint.pages });
        }
    }
}

/// All choices of a request, as a range of ids.
pub(super) fn choices(request: RequestId) -> RangeInclusive<SequenceId> {
    SequenceId { request, choice: 0 }..=SequenceId { request, choice: u32::MAX }
}
