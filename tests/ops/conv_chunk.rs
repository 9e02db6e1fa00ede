//! ConvChunk: chunks of one and of several sequences, shorter and longer than the window.

use deltic::backend::{DeltaShape, Op};
use deltic::base::DType;

use super::conv_step::{expect, window_for};
use crate::common::cases::{DELTA_REAL, DELTA_SHAPES, FLOATS, bucket};
use crate::common::matrix::Matrix;
use crate::common::rig::Rig;
use crate::common::step::{Sequence, Step};
use crate::common::target::Suite;

/// (slot, position, rows); rows of 1 run as a step.
type Chunks = &'static [(u32, u32, u32)];

const STEPS: [(&str, Chunks); 6] = [
    ("rows2", &[(0, 0, 2)]),
    ("rows3", &[(1, 10, 3)]),
    ("rows64", &[(0, 64, 64)]),
    ("rows65_cut_to_1_and_64", &[(0, 63, 65)]),
    ("rows67_cut_to_64_and_3", &[(0, 0, 67)]),
    ("sequences4_beside_steps", &[(3, 5, 4), (1, 0, 1), (0, 62, 70), (5, 9, 1), (2, 127, 3)]),
];

pub fn add(suite: &mut Suite) {
    for act in FLOATS {
        for (name, list) in STEPS {
            suite.add("conv_chunk", format!("{name}_{act}"), move |rig| {
                run(rig, &chunked(list), DELTA_SHAPES[1].1, act, DType::F32);
            });
        }
        for (name, shape) in DELTA_SHAPES {
            suite.add("conv_chunk", format!("{name}_{act}_bf16_weight"), move |rig| {
                run(rig, &chunked(STEPS[5].1), shape, act, DType::Bf16);
            });
        }
        suite.add("conv_chunk", format!("real_{act}"), move |rig| {
            run(rig, &chunked(STEPS[5].1), DELTA_REAL, act, act);
        });
    }
}

pub fn chunked(list: Chunks) -> Step {
    let sequence = |&(slot, position, rows): &(u32, u32, u32)| Sequence { position, ..Sequence::new(slot, rows, 0) };
    Step::new(list.iter().map(sequence).collect())
}

/// The steps, for the delta rule too.
pub fn steps() -> impl Iterator<Item = (&'static str, Step)> {
    STEPS.into_iter().map(|(name, list)| (name, chunked(list)))
}

fn run(rig: &mut Rig, step: &Step, shape: DeltaShape, act: DType, weight_dtype: DType) {
    let (rows, cols) = (step.rows(), shape.conv_cols() as usize);
    let x_values = Matrix::random(act, rows, cols, 1);
    let weight_values = Matrix::random(weight_dtype, cols, 4, 2);
    let window_values = window_for(step, shape, act, true);
    let x = rig.put("x", &x_values.clone().widened(cols + 3).padded(bucket(rows)));
    let weight = rig.put("weight", &weight_values);
    let window = rig.put("window", &window_values);
    let out = rig.blank("out", act, bucket(rows), cols);
    let inputs = rig.step(step);
    rig.run(inputs, &[Op::ConvChunk { x, weight, window, out, shape }]);
    let found = [rig.get(out), rig.get(window)];
    expect(rig, step, shape, [&x_values, &weight_values, &window_values], [&found[0], &found[1]], true);
}
