//! Small cases in full: every chain of three verification steps by depth, accepted and kept count, with and without a
//! flush between, so every change of depth such as 3, 0, 3 and every cut is among them.

use std::collections::BTreeMap;

use deltic::base::SamplingParams;
use deltic::engine::plan::{Fold, SlotCopy};
use deltic::engine::slots::Slots;
use deltic::engine::{CoreOptions, DepthOptions, RequestId, SequenceId, SequencePlan, StepPlan};

use super::device::{Device, Truth};
use super::network::VOCABULARY;
use super::reference::Reference;
use super::spec::RequestSpec;

const DEPTH: u32 = 3;
const ID: SequenceId = SequenceId { request: RequestId(0), choice: 0 };

/// One verification step.
#[derive(Debug, Clone, Copy)]
struct Step {
    drafts: u32,
    accepted: u32,
    /// What the host leaves standing of them.
    kept: u32,
    flush: bool,
}

/// Runs all chains; how many there were.
pub fn run_all_chains() -> u32 {
    let mut steps = Vec::new();
    for drafts in 0..=DEPTH {
        for accepted in 0..=drafts {
            for kept in 0..=accepted {
                steps.extend([false, true].map(|flush| Step { drafts, accepted, kept, flush }));
            }
        }
    }
    let spec = RequestSpec::plain(vec![5, 7, 11], 20);
    let reference = Reference::of(&spec, 0, 64);
    assert_eq!(reference.tokens.len(), 23, "nothing ends the answer early");
    let truths = BTreeMap::from([(ID, Truth { reference, broken_one_in: 0, drafts: true })]);
    let mut chains = 0;
    for first in &steps {
        for second in &steps {
            for third in &steps {
                run_chain(&[*first, *second, *third], &truths);
                chains += 1;
            }
        }
    }
    chains
}

fn run_chain(steps: &[Step], truths: &BTreeMap<SequenceId, Truth>) {
    let tokens = &truths[&ID].reference.tokens;
    let options =
        CoreOptions { pages: 8, page_tokens: 4, slots: 1, depth: DepthOptions::fixed(DEPTH), ..Default::default() };
    let mut device = Device::new(&options, 100, None);
    let mut slots = Slots::new(1);
    let slot = slots.take(None).expect("free");
    let reset = StepPlan { slot_copies: vec![SlotCopy { source: None, destination: slot }], ..StepPlan::default() };
    let prefill = StepPlan { sequences: vec![rows(tokens[..3].to_vec(), 0, 0, &slots)], draft_passes: DEPTH, ..reset };
    device.run(&prefill, truths, true).expect("prefill");
    slots.ran(slot, 3, 0);
    let mut computed = 3usize;
    for step in steps {
        let mut plan = StepPlan { draft_passes: DEPTH, ..StepPlan::default() };
        let state = slots.state(slot);
        if step.flush && state.pending > 0 {
            plan.folds.push(Fold { slot, parity: state.parity, pending: state.pending });
            slots.fold(slot);
        }
        let mut row_tokens = tokens[computed..=computed + step.drafts as usize].to_vec();
        for wrong in &mut row_tokens[1 + step.accepted as usize..] {
            *wrong = (*wrong + 1) % VOCABULARY;
        }
        plan.sequences.push(rows(row_tokens, step.drafts, computed as u32, &slots));
        let outcome = device.run(&plan, truths, true).unwrap_or_else(|caught| panic!("{steps:?}: {caught:?}"));
        let sampled = &outcome.sampled[0];
        assert_eq!(sampled.accepted, step.accepted, "{steps:?}");
        let stands = computed + 1..computed + 2 + step.accepted as usize;
        assert_eq!(sampled.tokens[..=step.accepted as usize], tokens[stands], "{steps:?}");
        assert_eq!(sampled.drafts[0], tokens[computed + 2 + step.accepted as usize], "the draft head is right");
        slots.ran(slot, 1, step.kept);
        computed += 1 + step.kept as usize;
    }
}

fn rows(tokens: Vec<u32>, drafts: u32, position: u32, slots: &Slots) -> SequencePlan {
    let state = slots.state(0);
    SequencePlan {
        id: ID,
        tokens,
        drafts,
        position,
        next_token: None,
        slot: 0,
        parity: state.parity,
        pending: state.pending,
        pages: vec![3, 0, 7, 1, 2, 6],
        counted: None,
        sampling: SamplingParams { temperature: 1.0, ..SamplingParams::default() },
        logprobs: false,
        biases: Vec::new(),
        mask_rows: Vec::new(),
    }
}
