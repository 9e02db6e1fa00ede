//! GatherRows: exact copies, by the logit rows of the step and by verdicts.

use deltic::backend::{Op, RowIndex};
use deltic::base::DType;

use crate::common::cases::{FLOATS, Rows, bucket};
use crate::common::matrix::Matrix;
use crate::common::rig::Rig;
use crate::common::step::{Sequence, Step};
use crate::common::target::Suite;

const WIDTHS: [(&str, usize); 4] = [("smallest", 1), ("odd", 37), ("past_tile", 257), ("real", 5120)];

pub fn add(suite: &mut Suite) {
    for dtype in FLOATS {
        for (name, cols) in WIDTHS {
            suite.add("gather_rows", format!("logits_{name}_{dtype}"), move |rig| logits(rig, dtype, cols));
            suite.add("gather_rows", format!("verdict_{name}_{dtype}"), move |rig| verdict(rig, dtype, cols));
            suite.add("gather_rows", format!("resumes_{name}_{dtype}"), move |rig| resumes(rig, dtype, cols));
        }
    }
}

fn logits(rig: &mut Rig, dtype: DType, cols: usize) {
    let sequences = vec![
        Sequence::new(0, 4, 0),
        Sequence::sampling(1, 1, 3),
        Sequence::sampling(2, 6, 0),
        Sequence::sampling(3, 1, 0),
    ];
    let indices = [4, 5, 6, 7, 13, 14];
    let step = Step::new(sequences);
    let x_values = Matrix::random(dtype, step.rows(), cols, 1);
    let x = rig.put("x", &x_values.clone().padded(bucket(step.rows())));
    let out = rig.blank("out", dtype, bucket(indices.len()), cols);
    let inputs = rig.step(&step);
    rig.run(inputs, &[Op::GatherRows { index: RowIndex::Logits, x, out }]);
    let found = rig.get(out).rows(0..indices.len());
    rig.same("out", &found, &x_values.gather(indices));
}

/// Row `pending` of the slot of each sequence that resumes.
fn resumes(rig: &mut Rig, dtype: DType, cols: usize) {
    const SLOT_ROWS: u32 = 4;
    let mut first = Sequence::sampling(2, 1, 2);
    (first.resume, first.pending) = (true, 3);
    let mut second = Sequence::new(0, 6, 0);
    second.resume = true;
    let step = Step::new(vec![Sequence::sampling(1, 1, 0), first, second]);
    let indices = [2 * SLOT_ROWS as usize + 3, 0];
    let x_values = Matrix::random(dtype, 3 * SLOT_ROWS as usize, cols, 3);
    let x = rig.put("x", &x_values);
    let out = rig.blank("out", dtype, bucket(indices.len()), cols);
    let inputs = rig.step(&step);
    rig.run(inputs, &[Op::GatherRows { index: RowIndex::Resumes { slot_rows: SLOT_ROWS }, x, out }]);
    let found = rig.get(out).rows(0..indices.len());
    rig.same("out", &found, &x_values.gather(indices));
}

/// Any order, and one row twice.
fn verdict(rig: &mut Rig, dtype: DType, cols: usize) {
    let indices = [7, 0, 3, 3, 11];
    let mut words = Matrix::blank(DType::U32, bucket(indices.len()), 4);
    for (row, index) in indices.iter().enumerate() {
        words.bits[4 * row + 2] = *index as u32;
    }
    let step = Rows::Drafts { pass: 1 }.step(indices.len());
    let x_values = Matrix::random(dtype, step.rows(), cols, 2);
    let x = rig.put("x", &x_values);
    let verdict = rig.put("verdict", &words);
    let out = rig.blank("out", dtype, bucket(indices.len()), cols);
    let inputs = rig.step(&step);
    rig.run(inputs, &[Op::GatherRows { index: RowIndex::Verdict { verdict }, x, out }]);
    let found = rig.get(out).rows(0..indices.len());
    rig.same("out", &found, &x_values.gather(indices));
}
