//! DeltaChunk: the recurrence over chunk lists, whichever form the backend computes.

use deltic::backend::{DeltaShape, Op};
use deltic::base::DType;

use super::conv_chunk::{chunked, steps};
use super::delta_rule::{inputs, run};
use super::delta_step::{expect_rows, expect_state};
use crate::common::cases::{DELTA_REAL, DELTA_SHAPES, FLOATS, bucket, delta_shape, slots};
use crate::common::rig::Rig;
use crate::common::step::Step;
use crate::common::target::Suite;

pub fn add(suite: &mut Suite) {
    for act in FLOATS {
        for (name, step) in steps() {
            suite.add("delta_chunk", format!("{name}_{act}"), move |rig| {
                compare(rig, &step, DELTA_SHAPES[1].1, act);
            });
        }
        for (name, shape) in DELTA_SHAPES {
            suite.add("delta_chunk", format!("{name}_{act}"), move |rig| {
                compare(rig, &chunked(&[(1, 60, 9), (0, 2, 1), (2, 0, 66)]), shape, act);
            });
        }
    }
    suite.add("delta_chunk", "real_ratio_3_bf16", |rig| {
        compare(rig, &chunked(&[(0, 128, 65)]), DELTA_REAL, DType::Bf16);
    });
    for (name, shape) in [("ratio_1", delta_shape(16, 16, 128, 128)), ("ratio_2", delta_shape(16, 32, 128, 128))] {
        suite.add("delta_chunk", format!("real_{name}_f32"), move |rig| {
            compare(rig, &chunked(&[(0, 50, 20)]), shape, DType::F32);
        });
    }
}

fn compare(rig: &mut Rig, step: &Step, shape: DeltaShape, act: DType) {
    let rows = step.rows();
    let values = inputs(shape, act, rows, slots(step), 2);
    let qkv = rig.put("qkv", &values.qkv.clone().padded(bucket(rows)));
    let gates = rig.put("gates", &values.gates.clone().padded(bucket(rows)));
    let state = rig.put("state", &values.state);
    let out = rig.blank("out", act, bucket(rows), shape.value_cols() as usize);
    let step_inputs = rig.step(step);
    rig.run(step_inputs, &[Op::DeltaChunk { qkv, gates, state, out, shape }]);
    let found = [rig.get(out), rig.get(state)];
    let wanted = run(shape, step, &values, true);
    expect_rows(rig, step, &found[0], &wanted, true);
    expect_state(rig, step, shape, &found[1], &values, &wanted, true);
}
