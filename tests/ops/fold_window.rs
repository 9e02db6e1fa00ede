//! FoldWindow: rows of a slot move to its front, overlapping or not; nothing else moves.

use deltic::backend::Op;
use deltic::base::DType;

use crate::common::cases::{FLOATS, slots};
use crate::common::matrix::Matrix;
use crate::common::rig::Rig;
use crate::common::step::Step;
use crate::common::target::Suite;

pub fn add(suite: &mut Suite) {
    for dtype in FLOATS {
        // A conv window keeps 3 of 3 + drafts rows; the hidden rows for the draft head keep 1 of 1 + drafts.
        for (name, slot_rows, keep, cols) in [
            ("smallest", 1, 1, 1),
            ("conv_odd", 6, 3, 7),
            ("conv_past_tile", 6, 3, 257),
            ("hidden", 4, 1, 33),
            ("conv_real", 6, 3, 10_240),
        ] {
            suite.add("fold_window", format!("{name}_{dtype}"), move |rig| run(rig, dtype, slot_rows, keep, cols));
        }
    }
}

fn run(rig: &mut Rig, dtype: DType, slot_rows: u32, keep: u32, cols: usize) {
    let most = slot_rows - keep;
    let folds = vec![(3, 1, most.min(1)), (0, 0, most), (5, 1, 0), (2, 0, most.min(2))];
    let step = Step { folds: folds.clone(), ..Step::of_rows(1) };
    let before = Matrix::random(dtype, slots(&step) * slot_rows as usize, cols, 1);
    let mut wanted = before.clone();
    for (slot, _, pending) in folds {
        for row in 0..keep {
            let first = slot * slot_rows;
            wanted.set_row((first + row) as usize, &before, (first + pending + row) as usize);
        }
    }
    let window = rig.put("window", &before);
    let inputs = rig.step(&step);
    rig.run(inputs, &[Op::FoldWindow { window, slot_rows, keep }]);
    let found = rig.get(window);
    rig.same("window", &found, &wanted);
}
