//! Properties of the recurrent ops taken together: however a sequence is cut into steps, chunks, drafts and folds, it
//! goes through the same states. On the CPU bit for bit.

use deltic::backend::{DeltaShape, Op, Tensor};
use deltic::base::DType;

use super::delta_rule;
use crate::common::cases::{DELTA_SHAPES, FLOATS, delta_shape};
use crate::common::matrix::{Matrix, Random};
use crate::common::rig::Rig;
use crate::common::step::{Sequence, Step};
use crate::common::target::Suite;

const SLOTS: usize = 5;

pub fn add(suite: &mut Suite) {
    for act in FLOATS {
        for shape in [DELTA_SHAPES[1].1, DELTA_SHAPES[2].1, delta_shape(1, 3, 128, 40)] {
            let name = format!("{}x{}_{act}", shape.key_dim, shape.value_dim);
            suite.add("delta_chunk", format!("equals_steps_{name}"), move |rig| chunks_equal_steps(rig, shape, act));
            suite.add("delta_step", format!("pending_equals_plain_{name}"), move |rig| pending(rig, shape, act));
            suite.add("fold_records", format!("fold_equals_plain_{name}"), move |rig| folding(rig, shape, act));
            suite.add("delta_step", format!("random_decoding_{name}"), move |rig| random_decoding(rig, shape, act));
        }
    }
}

/// The rows of one sequence as they are decoded if every token is right: convolution inputs and gates.
struct Text {
    x: Matrix,
    gates: Matrix,
}

impl Text {
    fn new(shape: DeltaShape, act: DType, rows: usize, seed: u64) -> Text {
        let inputs = delta_rule::inputs(shape, act, rows, 1, seed);
        Text { x: inputs.qkv, gates: inputs.gates }
    }
}

/// What a sequence went through: convolved rows and outputs, then its state and window.
struct Trail {
    convolved: Matrix,
    out: Matrix,
    state: Matrix,
    window: Matrix,
}

/// The tensors of one run.
struct Machine {
    shape: DeltaShape,
    act: DType,
    weight: Tensor,
    window: Tensor,
    state: Tensor,
    records: Tensor,
}

impl Machine {
    /// Empty states; NaN in all that a new sequence must not read.
    fn new(rig: &mut Rig, shape: DeltaShape, act: DType) -> Machine {
        let cols = shape.conv_cols() as usize;
        let window_rows = shape.window_rows() as usize;
        let mut window = Matrix::blank(act, SLOTS * window_rows, cols);
        for row in (0..window.rows).filter(|row| row % window_rows < 3) {
            (0..cols).for_each(|col| window.set(row, col, 0.0));
        }
        let state_rows = SLOTS * shape.state_rows() as usize;
        let state = Matrix::from_fn(DType::F32, state_rows, shape.value_dim as usize, |_, _| 0.0);
        Machine {
            shape,
            act,
            weight: rig.put("weight", &Matrix::random(act, cols, 4, 90)),
            window: rig.put("window", &window),
            state: rig.put("state", &state),
            records: rig.blank(
                "records",
                DType::F32,
                SLOTS * shape.record_rows() as usize,
                shape.record_cols() as usize,
            ),
        }
    }

    /// Runs all four ops over a step whose rows are given. Returns convolved rows and outputs.
    fn run(&self, rig: &mut Rig, step: &Step, rows: &Text) -> [Matrix; 2] {
        let Machine { shape, act, weight, window, state, records } = *self;
        let inputs = rig.step(step);
        let x = rig.put("x", &rows.x);
        let gates = rig.put("gates", &rows.gates);
        let qkv = rig.blank("convolved", act, rows.x.rows, shape.conv_cols() as usize);
        let out = rig.blank("out", act, rows.x.rows, shape.value_cols() as usize);
        let ops = [
            Op::ConvStep { x, weight, window, out: qkv, shape },
            Op::ConvChunk { x, weight, window, out: qkv, shape },
            Op::DeltaStep { qkv, gates, state, records, out, shape },
            Op::DeltaChunk { qkv, gates, state, out, shape },
        ];
        rig.run(inputs, &ops);
        [rig.get(qkv), rig.get(out)]
    }

    /// Folds (slot, parity, pending) into states and windows.
    fn fold(&self, rig: &mut Rig, folds: Vec<(u32, u32, u32)>) {
        let Machine { shape, window, state, records, .. } = *self;
        let inputs = rig.step(&Step { folds, ..Step::default() });
        let slot_rows = shape.window_rows();
        rig.run(inputs, &[Op::FoldRecords { state, records, shape }, Op::FoldWindow { window, slot_rows, keep: 3 }]);
    }

    /// The state and the first three window rows of a slot.
    fn slot(&self, rig: &mut Rig, slot: usize) -> [Matrix; 2] {
        let (state_rows, window_rows) = (self.shape.state_rows() as usize, self.shape.window_rows() as usize);
        let (state, window) = (rig.get(self.state), rig.get(self.window));
        let window = window.rows(slot * window_rows..slot * window_rows + 3);
        [state.rows(slot * state_rows..(slot + 1) * state_rows), window]
    }

    /// Runs rows of a text as the given kind of sequence and returns what `run` does.
    fn advance(&self, rig: &mut Rig, text: &Text, rows: std::ops::Range<usize>, sequence: Sequence) -> [Matrix; 2] {
        let rows = Text { x: text.x.rows(rows.clone()), gates: text.gates.rows(rows) };
        self.run(rig, &Step::new(vec![sequence]), &rows)
    }
}

/// Decodes `rows` rows alone, one per step, without a draft.
fn plain(rig: &mut Rig, shape: DeltaShape, act: DType, text: &Text, rows: usize) -> Trail {
    let machine = Machine::new(rig, shape, act);
    let mut convolved = Matrix::blank(act, 0, shape.conv_cols() as usize);
    let mut out = Matrix::blank(act, 0, shape.value_cols() as usize);
    for row in 0..rows {
        let [convolved_row, out_row] = machine.advance(rig, text, row..row + 1, Sequence::new(0, 1, 0));
        push(&mut convolved, convolved_row);
        push(&mut out, out_row);
    }
    let [state, window] = machine.slot(rig, 0);
    Trail { convolved, out, state, window }
}

fn push(rows: &mut Matrix, more: Matrix) {
    rows.bits.extend(more.bits);
    rows.rows += more.rows;
}

fn agree(rig: &mut Rig, what: &str, machine: &Machine, slot: usize, wanted: &Trail) {
    let [state, window] = machine.slot(rig, slot);
    rig.agree_as("delta_chunk", &format!("{what}: state"), &state, &wanted.state);
    rig.same(&format!("{what}: window"), &window, &wanted.window);
}

fn agree_rows(rig: &mut Rig, what: &str, found: [&Matrix; 2], wanted: &Trail, rows: std::ops::Range<usize>) {
    rig.agree_as("conv_chunk", &format!("{what}: convolved"), found[0], &wanted.convolved.rows(rows.clone()));
    rig.agree_as("delta_chunk", &format!("{what}: out"), found[1], &wanted.out.rows(rows));
}

/// One chunk list in one step, then the same rows in several steps; cuts at 64 and at odd places.
fn chunks_equal_steps(rig: &mut Rig, shape: DeltaShape, act: DType) {
    let rows = 75;
    let text = Text::new(shape, act, rows, 1);
    let wanted = plain(rig, shape, act, &text, rows);
    for (name, cuts) in [
        ("as usual", None),
        ("1 2 64 5 3", Some(vec![1, 2, 64, 5, 3])),
        ("33 1 41", Some(vec![33, 1, 41])),
        ("rows of 1", Some(vec![1; 75])),
    ] {
        let machine = Machine::new(rig, shape, act);
        let sequence = Sequence { cuts, ..Sequence::new(3, rows as u32, 0) };
        let [convolved, out] = machine.advance(rig, &text, 0..rows, sequence);
        agree_rows(rig, name, [&convolved, &out], &wanted, 0..rows);
        agree(rig, name, &machine, 3, &wanted);
    }
    let machine = Machine::new(rig, shape, act);
    let mut at = 0;
    for take in [2, 1, 30, 1, 1, 37, 3] {
        let sequence = Sequence { position: at as u32, ..Sequence::new(2, take as u32, 0) };
        let [convolved, out] = machine.advance(rig, &text, at..at + take, sequence);
        agree_rows(rig, &format!("rows from {at}"), [&convolved, &out], &wanted, at..at + take);
        at += take;
    }
    agree(rig, "several steps", &machine, 2, &wanted);
}

/// A text whose rows after `right` are drafts that will be refused.
fn misled(shape: DeltaShape, act: DType, text: &Text, right: usize) -> Text {
    let wrong = Text::new(shape, act, text.x.rows, 999);
    let join = |right_rows: &Matrix, wrong: &Matrix| {
        let mut joined = right_rows.rows(0..right);
        push(&mut joined, wrong.rows(right..wrong.rows));
        joined
    };
    Text { x: join(&text.x, &wrong.x), gates: join(&text.gates, &wrong.gates) }
}

/// A first step with one committed row and all drafts, of which `accepted` turn out right; then another sequence runs
/// while this one sits out. Its slot is 1, its records are in the half that is not `parity`.
fn speculate(rig: &mut Rig, shape: DeltaShape, act: DType, text: &Text, accepted: u32, parity: u32) -> Machine {
    let machine = Machine::new(rig, shape, act);
    let drafts = shape.drafts_max;
    let believed = misled(shape, act, text, 1 + accepted as usize);
    let sequence = Sequence { parity, ..Sequence::new(1, 1, drafts) };
    machine.advance(rig, &believed, 0..1 + drafts as usize, sequence);
    let before = machine.slot(rig, 1);
    let bystander = Sequence { parity, ..Sequence::new(2, 1, drafts) };
    machine.advance(rig, &believed, 0..1 + drafts as usize, bystander);
    let after = machine.slot(rig, 1);
    rig.same("state of the slot that sits out", &after[0], &before[0]);
    rig.same("window of the slot that sits out", &after[1], &before[1]);
    machine
}

/// The next step folds what was accepted: its outputs and state are those of plain decoding.
fn pending(rig: &mut Rig, shape: DeltaShape, act: DType) {
    let text = Text::new(shape, act, 6, 2);
    for parity in [0, 1] {
        for accepted in 0..=shape.drafts_max {
            let done = accepted as usize + 2;
            let wanted = plain(rig, shape, act, &text, done);
            let machine = speculate(rig, shape, act, &text, accepted, parity);
            let next = Sequence { parity: 1 - parity, pending: accepted, ..Sequence::new(1, 1, 0) };
            let [convolved, out] = machine.advance(rig, &text, done - 1..done, next);
            let what = format!("{accepted} accepted from parity {parity}");
            agree_rows(rig, &what, [&convolved, &out], &wanted, done - 1..done);
            agree(rig, &what, &machine, 1, &wanted);
        }
    }
}

/// The fold ops do the same between steps, and a chunk can follow them.
fn folding(rig: &mut Rig, shape: DeltaShape, act: DType) {
    let text = Text::new(shape, act, 9, 3);
    for parity in [0, 1] {
        for accepted in 0..=shape.drafts_max {
            let done = accepted as usize + 1;
            let wanted = plain(rig, shape, act, &text, done);
            let machine = speculate(rig, shape, act, &text, accepted, parity);
            machine.fold(rig, vec![(1, 1 - parity, accepted)]);
            let what = format!("{accepted} accepted from parity {parity}");
            agree(rig, &what, &machine, 1, &wanted);
            let after = plain(rig, shape, act, &text, done + 3);
            let [convolved, out] = machine.advance(rig, &text, done..done + 3, Sequence::new(1, 3, 0));
            agree_rows(rig, &format!("chunk after {what}"), [&convolved, &out], &after, done..done + 3);
            agree(rig, &format!("chunk after {what}"), &machine, 1, &after);
        }
    }
}

/// A sequence on its way through random steps.
struct Walk {
    text: Text,
    slot: u32,
    done: usize,
    parity: u32,
    pending: u32,
    convolved: Matrix,
    out: Matrix,
}

/// Random depths, acceptance, absences, folds and chunks for several sequences at once, against each decoded alone.
fn random_decoding(rig: &mut Rig, shape: DeltaShape, act: DType) {
    let mut random = Random::new(4);
    let machine = Machine::new(rig, shape, act);
    let mut walks: Vec<Walk> = [4, 0, 2, 1].into_iter().map(|slot| walk(shape, act, slot)).collect();
    for _ in 0..14 {
        random_step(rig, &machine, &mut walks, &mut random);
    }
    machine.fold(rig, walks.iter().map(|walk| (walk.slot, walk.parity, walk.pending)).collect());
    for walk in &walks {
        let what = format!("sequence in slot {}", walk.slot);
        let wanted = plain(rig, shape, act, &walk.text, walk.done);
        agree_rows(rig, &what, [&walk.convolved, &walk.out], &wanted, 0..walk.done);
        agree(rig, &what, &machine, walk.slot as usize, &wanted);
    }
}

fn walk(shape: DeltaShape, act: DType, slot: u32) -> Walk {
    Walk {
        text: Text::new(shape, act, 100, 50 + u64::from(slot)),
        slot,
        done: 0,
        parity: 0,
        pending: 0,
        convolved: Matrix::blank(act, 0, shape.conv_cols() as usize),
        out: Matrix::blank(act, 0, shape.value_cols() as usize),
    }
}

fn random_step(rig: &mut Rig, machine: &Machine, walks: &mut [Walk], random: &mut Random) {
    let Machine { shape, act, .. } = *machine;
    let mut sequences = Vec::new();
    let mut rows = Text {
        x: Matrix::blank(act, 0, shape.conv_cols() as usize),
        gates: Matrix::blank(DType::F32, 0, 2 * shape.value_heads as usize),
    };
    let mut folds = Vec::new();
    // (walk, rows that stand, all rows)
    let mut moves = Vec::new();
    for (index, walk) in walks.iter_mut().enumerate() {
        if random.below(4) == 0 {
            continue;
        }
        let (committed, drafts, accepted) = if random.below(4) == 0 {
            folds.push((walk.slot, walk.parity, walk.pending));
            walk.pending = 0;
            (2 + random.below(3), 0, 0)
        } else {
            let drafts = random.below(shape.drafts_max as usize + 1);
            (1, drafts, random.below(drafts + 1))
        };
        let believed = misled(shape, act, &walk.text, walk.done + committed + accepted);
        let range = walk.done..walk.done + committed + drafts;
        push(&mut rows.x, believed.x.rows(range.clone()));
        push(&mut rows.gates, believed.gates.rows(range));
        let new = Sequence::new(walk.slot, committed as u32, drafts as u32);
        sequences.push(Sequence { parity: walk.parity, pending: walk.pending, position: walk.done as u32, ..new });
        moves.push((index, committed + accepted, committed + drafts));
        walk.pending = accepted as u32;
        // A chunk writes no records; the half that the next step reads is then empty either way.
        walk.parity = if committed == 1 { 1 - walk.parity } else { walk.parity };
    }
    if sequences.is_empty() {
        return;
    }
    if !folds.is_empty() {
        machine.fold(rig, folds);
    }
    let [convolved, out] = machine.run(rig, &Step::new(sequences), &rows);
    let mut first = 0;
    for (index, stand, all) in moves {
        let walk = &mut walks[index];
        push(&mut walk.convolved, convolved.rows(first..first + stand));
        push(&mut walk.out, out.rows(first..first + stand));
        walk.done += stand;
        first += all;
    }
}
