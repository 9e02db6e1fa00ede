//! DeltaStep: outputs, states and records against the rule in f64; other slots, halves and rows untouched.

use deltic::backend::{DeltaShape, Op};
use deltic::base::DType;

use super::conv_step::beside_chunks;
use super::delta_rule::{Inputs, Results, inputs, run};
use crate::common::cases::{DELTA_REAL, DELTA_SHAPES, FLOATS, STEPPING, bucket, delta_shape, slots, stepping};
use crate::common::matrix::Matrix;
use crate::common::rig::Rig;
use crate::common::step::Step;
use crate::common::target::Suite;

pub fn add(suite: &mut Suite) {
    for act in FLOATS {
        for (name, list) in STEPPING {
            suite.add("delta_step", format!("{name}_{act}"), move |rig| {
                compare(rig, &stepping(list), DELTA_SHAPES[1].1, act);
            });
        }
        for (name, shape) in DELTA_SHAPES {
            suite.add("delta_step", format!("{name}_{act}"), move |rig| {
                compare(rig, &stepping(STEPPING[5].1), shape, act);
            });
        }
        suite.add("delta_step", format!("beside_chunks_{act}"), move |rig| {
            compare(rig, &beside_chunks(STEPPING[5].1), DELTA_SHAPES[2].1, act);
        });
    }
    suite.add("delta_step", "real_ratio_3_bf16", |rig| {
        compare(rig, &stepping(&[(3, 2, 1, 1), (0, 0, 0, 0)]), DELTA_REAL, DType::Bf16);
    });
    for (name, shape) in [("ratio_1", delta_shape(16, 16, 128, 128)), ("ratio_2", delta_shape(16, 32, 128, 128))] {
        suite.add("delta_step", format!("real_{name}_f32"), move |rig| {
            compare(rig, &stepping(&[(2, 1, 0, 0)]), shape, DType::F32);
        });
    }
    suite.add("delta_step", "drafts_max_1", |rig| {
        let shape = DeltaShape { drafts_max: 1, ..DELTA_SHAPES[2].1 };
        compare(rig, &stepping(&[(1, 1, 1, 1), (0, 1, 0, 0), (1, 0, 0, 3)]), shape, DType::F32);
    });
}

/// Makes NaN of everything that the step must not read: records that are not pending.
fn blank_idle_records(step: &Step, shape: DeltaShape, records: &mut Matrix) {
    let blank = Matrix::blank(DType::F32, 1, records.cols);
    let half_row = |slot: u32, half: u32, draft: u32| ((slot * 2 + half) * shape.drafts_max + draft) as usize;
    for sequence in &step.sequences {
        for draft in 0..shape.drafts_max {
            records.set_row(half_row(sequence.slot, 1 - sequence.parity, draft), &blank, 0);
            if draft >= sequence.pending {
                records.set_row(half_row(sequence.slot, sequence.parity, draft), &blank, 0);
            }
        }
    }
}

fn compare(rig: &mut Rig, step: &Step, shape: DeltaShape, act: DType) {
    let rows = step.rows();
    let mut values = inputs(shape, act, rows, slots(step), 1);
    blank_idle_records(step, shape, &mut values.records);
    let qkv = rig.put("qkv", &values.qkv.clone().padded(bucket(rows)));
    let gates = rig.put("gates", &values.gates.clone().padded(bucket(rows)));
    let state = rig.put("state", &values.state);
    let records = rig.put("records", &values.records);
    let out = rig.blank("out", act, bucket(rows), shape.value_cols() as usize);
    let step_inputs = rig.step(step);
    rig.run(step_inputs, &[Op::DeltaStep { qkv, gates, state, records, out, shape }]);
    let found = [rig.get(out), rig.get(state), rig.get(records)];
    let wanted = run(shape, step, &values, false);
    expect_rows(rig, step, &found[0], &wanted, false);
    expect_state(rig, step, shape, &found[1], &values, &wanted, false);
    expect_records(rig, shape, &found[2], &values.records, &wanted);
}

/// Rows of sequences of the given kind hold the results, all others what they held before: NaN.
pub fn expect_rows(rig: &mut Rig, step: &Step, found: &Matrix, wanted: &Results, chunks: bool) {
    for (index, sequence) in step.sequences.iter().enumerate() {
        let first = step.first_row(index);
        let rows = first..first + sequence.rows() as usize;
        let what = format!("out of sequence {index}");
        if (sequence.committed() > 1) == chunks {
            rig.near(&what, &found.rows(rows.clone()), || wanted.out.rows(rows));
        } else {
            rig.same(&what, &found.rows(rows.clone()), &Matrix::blank(found.dtype, rows.len(), found.cols));
        }
    }
}

/// Slots of sequences of the given kind hold the results, all others are unchanged bit for bit.
pub fn expect_state(
    rig: &mut Rig,
    step: &Step,
    shape: DeltaShape,
    found: &Matrix,
    before: &Inputs,
    wanted: &Results,
    chunks: bool,
) {
    let state_rows = shape.state_rows() as usize;
    let running =
        |slot: &usize| step.sequences.iter().any(|s| s.slot as usize == *slot && (s.committed() > 1) == chunks);
    for slot in 0..found.rows / state_rows {
        let rows = slot * state_rows..(slot + 1) * state_rows;
        let what = format!("state of slot {slot}");
        if running(&slot) {
            rig.near(&what, &found.rows(rows.clone()), || wanted.state.rows(rows));
        } else {
            rig.same(&what, &found.rows(rows.clone()), &before.state.rows(rows));
        }
    }
}

fn expect_records(rig: &mut Rig, shape: DeltaShape, found: &Matrix, before: &Matrix, wanted: &Results) {
    let (keys, values) = (shape.key_cols() as usize, shape.value_cols() as usize);
    for row in 0..found.rows {
        let cells = found.rows(row..row + 1);
        if !wanted.written.contains(&row) {
            rig.same(&format!("record {row}"), &cells, &before.rows(row..row + 1));
            continue;
        }
        for (part, cols) in [("k", 0..keys), ("e", keys..keys + values), ("alpha", keys + values..found.cols)] {
            rig.near(&format!("{part} of record {row}"), &cells.cols(cols.clone()), || {
                let cells = wanted.records.row(row)[cols.clone()].to_vec();
                crate::common::matrix::Grid { rows: 1, cols: cols.len(), cells }
            });
        }
    }
}
