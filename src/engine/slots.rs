//! Recurrent slots: which are free, and for each held one how far its state has come. A slot's state is exact at
//! `exact` tokens; `pending` records of half `parity` bring it to `exact + pending`, which is what its holder calls
//! computed. Checkpoints are slots that nobody runs.

/// How far the state in a slot has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotState {
    /// Tokens folded into the state itself.
    pub exact: u32,
    /// Half of the records that the last run wrote.
    pub parity: u32,
    /// Records of that half that count and are not in the state yet.
    pub pending: u32,
}

impl SlotState {
    /// Tokens that state and pending records stand for.
    pub fn computed(self) -> u32 {
        self.exact + self.pending
    }
}

/// All slots.
#[derive(Debug, Clone)]
pub struct Slots {
    states: Vec<Option<SlotState>>,
    /// The one released last is handed out first, so that a missing reset shows at once.
    free: Vec<u32>,
}

impl Slots {
    pub fn new(slots: u32) -> Slots {
        Slots { states: vec![None; slots as usize], free: (0..slots).rev().collect() }
    }

    /// A free slot, as it will be once the plan's copy has brought in zeros (`None`) or another slot's state.
    ///
    /// The source has to be flushed: a copy takes the state and one window, not the records.
    pub fn take(&mut self, source: Option<u32>) -> Option<u32> {
        let state = match source {
            None => SlotState::default(),
            Some(source) => {
                let state = self.state(source);
                assert_eq!(state.pending, 0, "slot {source} is copied with records pending");
                SlotState { exact: state.exact, ..Default::default() }
            }
        };
        let slot = self.free.pop()?;
        self.states[slot as usize] = Some(state);
        Some(slot)
    }

    pub fn release(&mut self, slot: u32) {
        assert!(self.states[slot as usize].take().is_some(), "slot {slot} is released and was free");
        self.free.push(slot);
    }

    pub fn state(&self, slot: u32) -> SlotState {
        self.states[slot as usize].unwrap_or_else(|| panic!("slot {slot} is free"))
    }

    /// The plan folds what is pending in the slot.
    pub fn fold(&mut self, slot: u32) {
        let state = self.held(slot);
        state.exact += state.pending;
        state.pending = 0;
    }

    /// The slot ran `committed` rows, which folded what was pending before; `kept` of the draft rows behind them stand.
    /// Parity turns here and nowhere else: a sequence that sits out keeps its half.
    pub fn ran(&mut self, slot: u32, committed: u32, kept: u32) {
        let state = self.held(slot);
        assert!(state.pending == 0 || committed == 1, "a chunk ran over pending records in slot {slot}");
        *state = SlotState { exact: state.exact + state.pending + committed, parity: 1 - state.parity, pending: kept };
    }

    pub fn total(&self) -> u32 {
        self.states.len() as u32
    }

    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Held and free slots are all slots; `held` names each held one exactly once.
    pub fn check(&self, held: impl Iterator<Item = u32>) {
        let mut seen = vec![false; self.states.len()];
        for slot in held.chain(self.free.iter().copied()) {
            assert!(!seen[slot as usize], "slot {slot} has two holders, or is free and held");
            seen[slot as usize] = true;
        }
        assert!(seen.iter().all(|seen| *seen), "a slot is neither free nor held: slots leak");
        for slot in &self.free {
            assert!(self.states[*slot as usize].is_none(), "slot {slot} is free and has a state");
        }
    }

    fn held(&mut self, slot: u32) -> &mut SlotState {
        self.states[slot as usize].as_mut().unwrap_or_else(|| panic!("slot {slot} is free"))
    }
}

/// A state that several choices of one request start from, with the cache pages up to there. Private to its request.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// Nothing pending, never run.
    pub slot: u32,
    /// Tokens computed: one less than the prompt has, so that every choice computes at least one itself.
    pub position: u32,
    /// Pages up to `position`: whole ones shared with the sequence that made it, a partial last one its own copy.
    pub pages: Vec<u32>,
    /// Where this plan's copies have to read instead, because the checkpoint's own copies are made in the same plan.
    pub made_from: Option<Source>,
}

/// The slot and the partial page that a checkpoint was copied from.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    pub slot: u32,
    pub partial_page: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All chains of three runs with depths 0..=3 and every accepted and kept count, sitting out or flushing between.
    #[test]
    fn all_small_chains() {
        let mut chains = 0;
        let runs: Vec<(u32, u32)> = (0..=3).flat_map(|depth| (0..=depth).map(move |kept| (depth, kept))).collect();
        for first in &runs {
            for second in &runs {
                for third in &runs {
                    for flush in 0..4u32 {
                        chain(&[*first, *second, *third], flush);
                        chains += 1;
                    }
                }
            }
        }
        assert_eq!(chains, 4 * 1000);
    }

    fn chain(runs: &[(u32, u32)], flush: u32) {
        let mut slots = Slots::new(2);
        let slot = slots.take(None).expect("free");
        let (mut computed, mut parity) = (0, 0);
        for (at, (_, kept)) in runs.iter().enumerate() {
            slots.ran(slot, 1, *kept);
            computed += 1 + kept;
            parity = 1 - parity;
            if flush >> at & 1 == 1 {
                slots.fold(slot);
                assert_eq!(slots.state(slot).pending, 0);
            }
            let state = slots.state(slot);
            assert_eq!((state.computed(), state.parity), (computed, parity));
        }
        slots.fold(slot);
        slots.ran(slot, 5, 0);
        let copy = slots.take(Some(slot)).expect("free");
        assert_eq!(slots.state(copy), SlotState { exact: computed + 5, parity: 0, pending: 0 });
        assert_eq!(slots.take(None), None);
        slots.check([slot, copy].into_iter());
    }

    #[test]
    #[should_panic(expected = "a chunk ran over pending records")]
    fn a_chunk_without_a_flush_is_caught() {
        let mut slots = Slots::new(1);
        let slot = slots.take(None).expect("free");
        slots.ran(slot, 1, 2);
        slots.ran(slot, 4, 0);
    }

    #[test]
    #[should_panic(expected = "copied with records pending")]
    fn a_copy_without_a_flush_is_caught() {
        let mut slots = Slots::new(2);
        let slot = slots.take(None).expect("free");
        slots.ran(slot, 1, 1);
        slots.take(Some(slot));
    }
}
