//! StoreRows: each sequence's last committed row and its draft rows at the start of its slot's window, exact copies.

use deltic::backend::Op;
use deltic::base::DType;

use crate::common::cases::{FLOATS, bucket, slots};
use crate::common::matrix::Matrix;
use crate::common::rig::Rig;
use crate::common::step::{Sequence, Step};
use crate::common::target::Suite;

/// Rows of a slot: one committed row and three drafts.
const SLOT_ROWS: usize = 4;

pub fn add(suite: &mut Suite) {
    for dtype in FLOATS {
        for (name, cols) in [("smallest", 1), ("odd", 37), ("past_tile", 257), ("real", 5120)] {
            suite.add("store_rows", format!("{name}_{dtype}"), move |rig| run(rig, dtype, cols));
        }
    }
}

/// A chunk, a verification, a plain decode; the other slots and the rows behind keep what they hold.
fn run(rig: &mut Rig, dtype: DType, cols: usize) {
    let sequences = vec![Sequence::new(3, 70, 0), Sequence::sampling(0, 1, 3), Sequence::sampling(5, 1, 0)];
    let stored = [(3, vec![69]), (0, vec![70, 71, 72, 73]), (5, vec![74])];
    let step = Step::new(sequences);
    let x_values = Matrix::random(dtype, step.rows(), cols, 1);
    let before = Matrix::random(dtype, slots(&step) * SLOT_ROWS, cols, 2);
    let mut wanted = before.clone();
    for (slot, rows) in stored {
        for (at, row) in rows.into_iter().enumerate() {
            wanted.set_row(slot * SLOT_ROWS + at, &x_values, row);
        }
    }
    let x = rig.put("x", &x_values.padded(bucket(step.rows())));
    let window = rig.put("window", &before);
    let inputs = rig.step(&step);
    rig.run(inputs, &[Op::StoreRows { x, window, slot_rows: SLOT_ROWS as u32 }]);
    let found = rig.get(window);
    rig.same("window", &found, &wanted);
}
