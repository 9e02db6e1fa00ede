//! The fake device: runs a plan on slots and pages that hold hashes, by the contracts of the real ops. It starts full
//! of rubbish, so that whatever is read without having been written shows.

use std::collections::{BTreeMap, BTreeSet};

use deltic::engine::plan::{Logprobs, Sampled};
use deltic::engine::{CoreOptions, SequenceId, SequencePlan, StepOutcome, StepPlan};

use super::fault::{Caught, Fault};
use super::hash::{Random, mix};
use super::network::{self, Draw, LOOKBACK, VOCABULARY};
use super::reference::Reference;

/// A choice's reference and what its request says beside the plan.
pub struct Truth {
    pub reference: Reference,
    pub broken_one_in: u64,
    /// Whether the engine keeps the draft head's cache for it.
    pub drafts: bool,
}

pub struct Device {
    page_tokens: u32,
    /// 0: the device has no draft head.
    depth_max: u32,
    quality: u32,
    fault: Option<Fault>,
    slots: Vec<Slot>,
    cells: Vec<u64>,
    draft_cells: Vec<u64>,
    /// For faults: who ran in the last step, how far drafts wrote, and a page that means another.
    ran: BTreeSet<SequenceId>,
    drafted_to: BTreeMap<SequenceId, u32>,
    alias: Option<(u32, u32)>,
}

#[derive(Clone)]
struct Slot {
    state: u64,
    /// The last committed inputs, then those of draft rows.
    window: Vec<u64>,
    /// Of the last committed row, then of draft rows.
    hidden: Vec<u64>,
    records: [Vec<u64>; 2],
    counts: u64,
}

/// What the rows of one sequence left: a hidden row per row, and the token sampled at each logit row.
struct Ran {
    hidden: Vec<u64>,
    sampled: Vec<Option<u32>>,
}

impl Device {
    pub fn new(options: &CoreOptions, quality: u32, fault: Option<Fault>) -> Device {
        let mut random = Random::new(9);
        let mut rubbish = |count: u32| (0..count).map(|_| random.next()).collect::<Vec<u64>>();
        let depth = options.depth.depth_max.max(1);
        let slot = |rubbish: &mut dyn FnMut(u32) -> Vec<u64>| Slot {
            state: rubbish(1)[0],
            window: rubbish(LOOKBACK as u32 + depth),
            hidden: rubbish(1 + depth),
            records: [rubbish(depth), rubbish(depth)],
            counts: rubbish(1)[0],
        };
        Device {
            page_tokens: options.page_tokens,
            depth_max: options.depth.depth_max,
            quality,
            fault,
            slots: (0..options.slots).map(|_| slot(&mut rubbish)).collect(),
            cells: rubbish(options.pages * options.page_tokens),
            draft_cells: rubbish(options.pages * options.page_tokens),
            ran: BTreeSet::new(),
            drafted_to: BTreeMap::new(),
            alias: None,
        }
    }

    /// Runs one plan. With `inspect`, everything a sequence rests on is compared with its reference before its rows.
    pub fn run(
        &mut self,
        plan: &StepPlan,
        truths: &BTreeMap<SequenceId, Truth>,
        inspect: bool,
    ) -> Result<StepOutcome, Caught> {
        let distorted = self.fault.map(|fault| self.distorted(plan, fault));
        let plan = distorted.as_ref().unwrap_or(plan);
        self.prepare(plan);
        self.resume(plan);
        if inspect {
            for rows in &plan.sequences {
                self.inspect(rows, &truths[&rows.id])?;
            }
        }
        let mut writers = BTreeMap::new();
        let mut outcome = StepOutcome::default();
        for rows in &plan.sequences {
            let truth = &truths[&rows.id];
            self.claim_pages(rows, &mut writers)?;
            let ran = self.run_rows(rows, plan, truth);
            let accepted = accepted(rows, &ran.sampled);
            if self.depth_max > 0 {
                self.upkeep(rows, &ran);
            }
            if rows.samples() {
                outcome.sampled.push(self.outcome(rows, plan, truth, &ran, accepted));
            }
        }
        self.ran = plan.sequences.iter().map(|rows| rows.id).collect();
        Ok(outcome)
    }

    /// The plan with the mistakes in it that concern plans.
    fn distorted(&mut self, plan: &StepPlan, fault: Fault) -> StepPlan {
        let mut plan = plan.clone();
        match fault {
            Fault::FlushForgotten => plan.folds.clear(),
            Fault::ResumeMissing => plan.resumes.clear(),
            _ => {}
        }
        for rows in &mut plan.sequences {
            let sat_out = rows.position > 0 && !self.ran.contains(&rows.id);
            match fault {
                Fault::FoldsOneLess => rows.pending = rows.pending.saturating_sub(1),
                Fault::FoldsOneMore if rows.committed() == 1 => rows.pending = (rows.pending + 1).min(self.depth_max),
                Fault::ParityTurnsIdle if sat_out => rows.parity = 1 - rows.parity,
                Fault::SitsOutLosesPending if sat_out => rows.pending = 0,
                _ => {}
            }
        }
        if fault == Fault::PageFreedEarly
            && self.alias.is_none()
            && let [first, .., last] = &plan.sequences[..]
        {
            let fresh = *last.pages.last().expect("pages");
            self.alias = (!first.pages.contains(&fresh)).then(|| (fresh, first.pages[0]));
        }
        plan
    }

    /// Folds, slot copies, page copies: each list as if in parallel.
    fn prepare(&mut self, plan: &StepPlan) {
        for fold in &plan.folds {
            let slot = &mut self.slots[fold.slot as usize];
            let pending = fold.pending as usize;
            for record in &slot.records[fold.parity as usize][..pending] {
                slot.state = network::fold(slot.state, *record);
            }
            slot.window.copy_within(pending..pending + LOOKBACK, 0);
            slot.hidden[0] = slot.hidden[pending];
        }
        let before = if plan.slot_copies.is_empty() { Vec::new() } else { self.slots.clone() };
        for copy in &plan.slot_copies {
            let slot = &mut self.slots[copy.destination as usize];
            match copy.source.map(|source| &before[source as usize]) {
                Some(source) => {
                    slot.state = source.state;
                    if self.fault != Some(Fault::WindowNotCopied) {
                        slot.window[..LOOKBACK].copy_from_slice(&source.window[..LOOKBACK]);
                    }
                    slot.hidden[0] = source.hidden[0];
                    slot.counts = source.counts;
                }
                None if self.fault == Some(Fault::SlotNotReset) => {}
                None => {
                    (slot.state, slot.counts) = (0, 0);
                    slot.window[..LOOKBACK].fill(0);
                }
            }
        }
        if self.fault == Some(Fault::PageNotCopied) || plan.page_copies.is_empty() {
            return;
        }
        let size = self.page_tokens as usize;
        for cells in [&mut self.cells, &mut self.draft_cells] {
            let before = cells.clone();
            for copy in &plan.page_copies {
                let (from, to) = (copy.source as usize * size, copy.destination as usize * size);
                cells[to..to + size].copy_from_slice(&before[from..from + size]);
            }
        }
    }

    fn resume(&mut self, plan: &StepPlan) {
        for resume in &plan.resumes {
            let rows = &plan.sequences[resume.sequence as usize];
            let wrong = self.fault == Some(Fault::ResumeFromWrongRow);
            let row = if wrong { 0 } else { resume.pending as usize };
            let hidden = self.slots[resume.slot as usize].hidden[row];
            let at = self.at(rows, resume.position);
            self.draft_cells[at] = network::draft_cell(hidden, resume.token);
        }
    }

    /// Whether slot and pages hold exactly what the computed tokens make of them.
    fn inspect(&self, rows: &SequencePlan, truth: &Truth) -> Result<(), Caught> {
        let (slot, reference) = (&self.slots[rows.slot as usize], &truth.reference);
        let (pending, computed) = (rows.pending as usize, rows.position as usize);
        let records = &slot.records[rows.parity as usize][..pending];
        let state = records.iter().fold(slot.state, |state, record| network::fold(state, *record));
        let at = format!("{:?} at position {computed}", rows.id);
        if state != reference.states[computed] {
            return Caught::by("state = fold of the computed tokens", at);
        }
        for back in 1..=LOOKBACK {
            let expected = computed.checked_sub(back).map_or(0, |position| reference.inputs[position]);
            if slot.window[pending + LOOKBACK - back] != expected {
                return Caught::by("window = last computed inputs", at);
            }
        }
        if let Some(counted) = &rows.counted {
            let outputs = counted.accepted.iter().map(|token| network::count(*token, true));
            let counts = outputs.fold(slot.counts, u64::wrapping_add);
            let expected = reference.tokens[..computed].iter().enumerate();
            let expected = expected.map(|(at, token)| network::count(*token, at >= reference.prompt_tokens));
            if counts != expected.fold(0, u64::wrapping_add) {
                return Caught::by("counts = computed tokens", at);
            }
        }
        for position in 0..computed as u32 {
            if self.cells[self.at(rows, position)] != reference.cells[position as usize] {
                return Caught::by("cache cells = computed tokens", at);
            }
        }
        if self.depth_max > 0 && truth.drafts && computed > 0 {
            if slot.hidden[pending] != reference.hidden[computed - 1] {
                return Caught::by("hidden row = last computed token", at);
            }
            for position in 1..=computed as u32 {
                if self.draft_cells[self.at(rows, position)] != reference.draft_cells[position as usize] {
                    return Caught::by("draft entries 1..=c are of the true tokens", format!("{at}, entry {position}"));
                }
            }
        }
        Ok(())
    }

    /// Every page that these rows write has no other writer in this step.
    fn claim_pages(&self, rows: &SequencePlan, writers: &mut BTreeMap<u32, SequenceId>) -> Result<(), Caught> {
        for page in rows.pages.iter().skip((rows.position / self.page_tokens) as usize) {
            let page = self.page(*page);
            let other = writers.insert(page, rows.id);
            if other.is_some_and(|other| other != rows.id) {
                return Caught::by("one writer per page", format!("page {page}: {other:?} and {:?}", rows.id));
            }
        }
        Ok(())
    }

    fn run_rows(&mut self, rows: &SequencePlan, plan: &StepPlan, truth: &Truth) -> Ran {
        let committed = rows.committed() as usize;
        let mut slot = self.slots[rows.slot as usize].clone();
        let pending = rows.pending as usize;
        for record in &slot.records[rows.parity as usize][..pending] {
            slot.state = network::fold(slot.state, *record);
        }
        let first = if self.fault == Some(Fault::WindowNotShifted) { 0 } else { pending };
        let mut inputs = slot.window[first..first + LOOKBACK].to_vec();
        let mut state = slot.state;
        let mut hidden = Vec::new();
        for (index, token) in rows.tokens.iter().enumerate() {
            let position = rows.position + index as u32;
            let window = std::array::from_fn(|back| inputs[index + back]);
            let input = network::input(*token);
            let (record, convolved) = network::recur(state, window, input);
            state = network::fold(state, record);
            inputs.push(input);
            if index < committed {
                slot.state = state;
            } else {
                slot.records[1 - rows.parity as usize][index - committed] = record;
            }
            let output = network::hidden(state, convolved);
            let at = self.at(rows, position);
            self.cells[at] = network::cell(position, output);
            let read =
                (0..=position).fold(0, |read, position| network::read(read, self.cells[self.at(rows, position)]));
            hidden.push(network::hidden(output, read));
        }
        for (place, input) in inputs[committed..].iter().enumerate() {
            slot.window[place] = *input;
        }
        slot.hidden[..hidden.len() - committed + 1].copy_from_slice(&hidden[committed - 1..]);
        self.count(rows, &mut slot);
        let sampled = if rows.samples() { self.sample(rows, plan, truth, &hidden, slot.counts) } else { Vec::new() };
        self.slots[rows.slot as usize] = slot;
        Ran { hidden, sampled }
    }

    fn count(&self, rows: &SequencePlan, slot: &mut Slot) {
        let Some(counted) = &rows.counted else { return };
        if self.fault != Some(Fault::AcceptedNotCounted) {
            for token in &counted.accepted {
                slot.counts = slot.counts.wrapping_add(network::count(*token, true));
            }
        }
        for (position, token) in (rows.position..).zip(&rows.tokens[..rows.committed() as usize]) {
            slot.counts = slot.counts.wrapping_add(network::count(*token, position >= counted.output_from));
        }
    }

    fn sample(
        &self,
        rows: &SequencePlan,
        plan: &StepPlan,
        truth: &Truth,
        hidden: &[u64],
        counts: u64,
    ) -> Vec<Option<u32>> {
        let first = rows.committed() as usize - 1;
        let mut counts = counts;
        let mut sampled = Vec::new();
        for row in first..hidden.len() {
            let logit_row = row - first;
            if logit_row > 0 {
                counts = counts.wrapping_add(network::count(rows.tokens[row], true));
            }
            let mask_row = if self.fault == Some(Fault::MaskOfFirstRow) { 0 } else { logit_row };
            let mask = rows.mask_rows.get(mask_row).copied().flatten();
            let position = rows.position + row as u32 + 1;
            let mask = mask.map(|index| &plan.masks[index as usize]);
            let draw = Draw { sampling: &rows.sampling, position, counts, biases: &rows.biases, mask };
            let wrong = self.fault == Some(Fault::WrongRowSampled) && row > 0;
            let hidden = if wrong { hidden[row - 1] } else { hidden[row] };
            sampled.push(network::sample(hidden, &draw, truth.broken_one_in));
        }
        sampled
    }

    /// Every row at position p writes entry p + 1, from its hidden row and the token that follows it.
    fn upkeep(&mut self, rows: &SequencePlan, ran: &Ran) {
        let committed = rows.committed() as usize;
        for (index, hidden) in ran.hidden.iter().enumerate() {
            let next = if rows.samples() && index + 1 >= committed {
                ran.sampled[index + 1 - committed].unwrap_or(u32::MAX)
            } else {
                rows.tokens.get(index + 1).copied().or(rows.next_token).expect("known")
            };
            let entry = rows.position + index as u32 + 1;
            let drafted = self.drafted_to.get(&rows.id).is_some_and(|to| entry <= *to);
            if !(drafted && self.fault == Some(Fault::EntryNotOverwritten)) {
                let at = self.at(rows, entry);
                self.draft_cells[at] = network::draft_cell(*hidden, next);
            }
        }
    }

    fn outcome(&mut self, rows: &SequencePlan, plan: &StepPlan, truth: &Truth, ran: &Ran, accepted: u32) -> Sampled {
        let first = rows.committed() as usize - 1;
        let next = ran.sampled[accepted as usize];
        let drafts = self.draft(rows, truth, accepted, next, plan.draft_passes);
        let logprobs = ran.hidden[first..]
            .iter()
            .map(|hidden| Logprobs { sampled: network::logprob(*hidden), top: (0..5).map(|id| (id, 0.0)).collect() });
        let one_more = self.fault == Some(Fault::AcceptsOneMore) && accepted < rows.drafts;
        Sampled {
            tokens: ran.sampled.iter().map(|token| token.unwrap_or(u32::MAX)).collect(),
            accepted: accepted + u32::from(one_more),
            drafts,
            logprobs: if rows.logprobs { logprobs.collect() } else { Vec::new() },
            not_a_number: next.is_none(),
        }
    }

    /// The draft passes: right as often as the quality says, as long as the head's cache is what it should be.
    fn draft(&mut self, rows: &SequencePlan, truth: &Truth, accepted: u32, next: Option<u32>, passes: u32) -> Vec<u32> {
        let entry = rows.position + rows.committed() + accepted;
        let wrong = self.fault == Some(Fault::DraftFromWrongRow) && accepted > 0;
        let read_to = if wrong { entry - 1 } else { entry };
        let cells = |device: &Device, position| device.draft_cells[device.at(rows, position)];
        let mut read = 0;
        let mut hidden = 0;
        if passes > 0 {
            read = (1..=read_to).fold(0, |read, position| network::read(read, cells(self, position)));
            hidden = network::draft_hidden(cells(self, read_to), read);
        }
        let reference = &truth.reference;
        let known = reference.tokens.get(entry as usize).copied() == next && next.is_some();
        let (mut true_read, mut true_hidden) = (0, !hidden);
        if known {
            true_read = reference.draft_reads[entry as usize];
            true_hidden = network::draft_hidden(reference.draft_cells[entry as usize], true_read);
        }
        let mut drafts: Vec<u32> = Vec::new();
        for pass in 0..passes {
            if let Some(last) = drafts.last() {
                let cell = network::draft_cell(hidden, *last);
                let at = self.at(rows, entry + pass);
                self.draft_cells[at] = cell;
                read = network::read(read, cell);
                hidden = network::draft_hidden(cell, read);
                let cell = network::draft_cell(true_hidden, *last);
                true_read = network::read(true_read, cell);
                true_hidden = network::draft_hidden(cell, true_read);
            }
            let position = entry + 1 + pass;
            let right = reference.sampled.get(position as usize).copied().flatten();
            let luck = mix(reference.states[1], u64::from(position)) % 100 < u64::from(self.quality);
            drafts.push(match right {
                Some(right) if luck && hidden == true_hidden => right,
                Some(right) => (right + 1) % VOCABULARY,
                None => (hidden % u64::from(VOCABULARY)) as u32,
            });
        }
        self.drafted_to.insert(rows.id, (entry + passes).saturating_sub(1));
        drafts
    }

    fn page(&self, page: u32) -> u32 {
        self.alias.filter(|(from, _)| *from == page).map_or(page, |(_, to)| to)
    }

    fn at(&self, rows: &SequencePlan, position: u32) -> usize {
        let page = rows.pages.get((position / self.page_tokens) as usize);
        let page = *page.unwrap_or_else(|| panic!("{:?} holds no page for position {position}", rows.id));
        (self.page(page) * self.page_tokens + position % self.page_tokens) as usize
    }
}

fn accepted(rows: &SequencePlan, sampled: &[Option<u32>]) -> u32 {
    let drafts = &rows.tokens[rows.committed() as usize..];
    drafts.iter().zip(sampled).take_while(|(draft, token)| Some(**draft) == **token).count() as u32
}
