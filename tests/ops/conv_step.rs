//! ConvStep: outputs, the window afterwards, and slots, rows and columns that are none of its business.

use deltic::backend::{DeltaShape, Op};
use deltic::base::DType;

use super::matmul_gate_up::silu;
use crate::common::cases::{DELTA_REAL, DELTA_SHAPES, FLOATS, STEPPING, bucket, slots, stepping};
use crate::common::matrix::{Grid, Matrix};
use crate::common::rig::Rig;
use crate::common::step::{Sequence, Step};
use crate::common::target::Suite;

pub fn add(suite: &mut Suite) {
    for act in FLOATS {
        for (name, list) in STEPPING {
            suite.add("conv_step", format!("{name}_{act}"), move |rig| {
                run(rig, &stepping(list), DELTA_SHAPES[1].1, act, DType::F32);
            });
        }
        for (name, shape) in DELTA_SHAPES {
            suite.add("conv_step", format!("{name}_{act}_bf16_weight"), move |rig| {
                run(rig, &stepping(STEPPING[5].1), shape, act, DType::Bf16);
            });
        }
        suite.add("conv_step", format!("real_{act}"), move |rig| {
            run(rig, &stepping(STEPPING[6].1), DELTA_REAL, act, act);
        });
        suite.add("conv_step", format!("beside_chunks_{act}"), move |rig| {
            let step = beside_chunks(STEPPING[5].1);
            run(rig, &step, DELTA_SHAPES[2].1, act, DType::F32);
        });
    }
}

/// The same sequences with two others between them that run as chunks.
pub fn beside_chunks(list: crate::common::cases::Stepping) -> Step {
    let mut step = stepping(list);
    step.sequences.insert(1, Sequence::new(1, 4, 0));
    step.sequences.push(Sequence::new(5, 2, 0));
    step
}

/// The convolution of the last of `inputs` with its three predecessors.
pub fn formula(inputs: [&[f64]; 4], weight: &Grid) -> Vec<f64> {
    let channel = |channel: usize| {
        let taps = inputs.iter().zip(weight.row(channel));
        silu(taps.map(|(input, weight)| input[channel] * weight).sum())
    };
    (0..weight.rows).map(channel).collect()
}

/// A window whose used slots hold three inputs from row `pending` on and NaN elsewhere; the other slots hold values.
pub fn window_for(step: &Step, shape: DeltaShape, act: DType, chunks: bool) -> Matrix {
    let window_rows = shape.window_rows() as usize;
    let mut window = Matrix::random(act, slots(step) * window_rows, shape.conv_cols() as usize, 11);
    let blank = Matrix::blank(act, 1, window.cols);
    for sequence in &step.sequences {
        if (sequence.committed() > 1) != chunks {
            continue;
        }
        let valid = sequence.pending as usize..sequence.pending as usize + 3;
        for row in (0..window_rows).filter(|row| !valid.contains(row)) {
            window.set_row(sequence.slot as usize * window_rows + row, &blank, 0);
        }
    }
    window
}

/// The rows that a sequence's convolution sees: three from the window, then its own.
pub fn history(step: &Step, index: usize, shape: DeltaShape, window: &Matrix, x: &Matrix) -> Matrix {
    let sequence = &step.sequences[index];
    let first = (sequence.slot * shape.window_rows() + sequence.pending) as usize;
    let mut history = window.rows(first..first + 3);
    let row = step.first_row(index);
    let own = x.rows(row..row + sequence.rows() as usize).cols(0..window.cols);
    history.bits.extend(own.bits);
    history.rows += own.rows;
    history
}

/// Expected outputs and window: for each sequence of the given kind its rows of `out`, and its slot's window.
pub fn expect(
    rig: &mut Rig,
    step: &Step,
    shape: DeltaShape,
    [x, weight, window]: [&Matrix; 3],
    [found_out, found_window]: [&Matrix; 2],
    chunks: bool,
) {
    let window_rows = shape.window_rows() as usize;
    let mut untouched: Vec<usize> = (0..window.rows).collect();
    for (index, sequence) in step.sequences.iter().enumerate() {
        let row = step.first_row(index);
        let rows = row..row + sequence.rows() as usize;
        if (sequence.committed() > 1) != chunks {
            let before = Matrix::blank(found_out.dtype, rows.len(), found_out.cols);
            rig.same(&format!("out rows of sequence {index}"), &found_out.rows(rows), &before);
            continue;
        }
        let history = history(step, index, shape, window, x);
        rig.near(&format!("out of sequence {index}"), &found_out.rows(rows.clone()), || {
            let (inputs, weight) = (history.grid(), weight.grid());
            let row = |t: usize| formula([0, 1, 2, 3].map(|j| inputs.row(t + j)), &weight);
            Grid {
                rows: rows.len(),
                cols: weight.rows,
                cells: rows.clone().enumerate().flat_map(|(t, _)| row(t)).collect(),
            }
        });
        let first = sequence.slot as usize * window_rows;
        let committed = sequence.committed() as usize;
        let kept = 3 + sequence.drafts as usize;
        let wanted = history.rows(committed..committed + kept);
        rig.same(&format!("window of sequence {index}"), &found_window.rows(first..first + kept), &wanted);
        untouched.retain(|row| !(first..first + window_rows).contains(row));
    }
    rig.same("other slots", &found_window.gather(untouched.clone()), &window.gather(untouched));
}

fn run(rig: &mut Rig, step: &Step, shape: DeltaShape, act: DType, weight_dtype: DType) {
    let (rows, cols) = (step.rows(), shape.conv_cols() as usize);
    let x_values = Matrix::random(act, rows, cols, 1);
    let weight_values = Matrix::random(weight_dtype, cols, 4, 2);
    let window_values = window_for(step, shape, act, false);
    // Beyond the convolved columns x holds those of the output gate.
    let x = rig.put("x", &x_values.clone().widened(cols + 3).padded(bucket(rows)));
    let weight = rig.put("weight", &weight_values);
    let window = rig.put("window", &window_values);
    let out = rig.blank("out", act, bucket(rows), cols);
    let inputs = rig.step(step);
    rig.run(inputs, &[Op::ConvStep { x, weight, window, out, shape }]);
    let found = [rig.get(out), rig.get(window)];
    expect(rig, step, shape, [&x_values, &weight_values, &window_values], [&found[0], &found[1]], false);
}
