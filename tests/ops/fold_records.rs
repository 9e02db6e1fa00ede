//! FoldRecords: the first `pending` records of one half, into the state of the listed slots only.

use deltic::backend::{DeltaShape, Op};
use deltic::base::DType;

use super::delta_rule::{fold, records};
use crate::common::cases::{DELTA_REAL, DELTA_SHAPES, slots};
use crate::common::matrix::Matrix;
use crate::common::rig::Rig;
use crate::common::step::Step;
use crate::common::target::Suite;

/// (slot, parity, pending)
type Folds = &'static [(u32, u32, u32)];

const LISTS: [(&str, Folds); 5] = [
    ("none", &[(1, 0, 0)]),
    ("one_even", &[(0, 0, 1)]),
    ("one_odd", &[(2, 1, 2)]),
    ("all", &[(1, 1, 3)]),
    ("slots5", &[(4, 0, 2), (0, 1, 3), (6, 1, 1), (3, 0, 0), (2, 1, 2)]),
];

pub fn add(suite: &mut Suite) {
    for (name, list) in LISTS {
        suite.add("fold_records", name, move |rig| run(rig, list, DELTA_SHAPES[1].1));
    }
    for (name, shape) in DELTA_SHAPES {
        suite.add("fold_records", format!("{name}_slots5"), move |rig| run(rig, LISTS[4].1, shape));
    }
    suite.add("fold_records", "real", |rig| run(rig, &[(1, 1, 3), (0, 0, 1)], DELTA_REAL));
}

fn run(rig: &mut Rig, list: Folds, shape: DeltaShape) {
    let step = Step { folds: list.to_vec(), ..Step::of_rows(1) };
    let slots = slots(&step);
    let state_rows = shape.state_rows() as usize;
    let before = Matrix::random(DType::F32, slots * state_rows, shape.value_dim as usize, 1);
    let mut record_values = records(shape, slots, 2);
    let row = |slot: u32, half: u32, draft: u32| ((slot * 2 + half) * shape.drafts_max + draft) as usize;
    let blank = Matrix::blank(DType::F32, 1, record_values.cols);
    for (slot, parity, pending) in list {
        for draft in 0..shape.drafts_max {
            record_values.set_row(row(*slot, 1 - parity, draft), &blank, 0);
            if draft >= *pending {
                record_values.set_row(row(*slot, *parity, draft), &blank, 0);
            }
        }
    }
    let state = rig.put("state", &before);
    let records = rig.put("records", &record_values);
    let inputs = rig.step(&step);
    rig.run(inputs, &[Op::FoldRecords { state, records, shape }]);
    let (found, found_records) = (rig.get(state), rig.get(records));
    rig.same("records", &found_records, &record_values);
    for slot in 0..slots {
        let rows = slot * state_rows..(slot + 1) * state_rows;
        let (what, cells) = (format!("state of slot {slot}"), found.rows(rows.clone()));
        match list.iter().find(|(listed, ..)| *listed as usize == slot) {
            Some((slot, parity, pending)) if *pending > 0 => rig.near(&what, &cells, || {
                let mut wanted = before.grid().rows(rows);
                let grid = record_values.grid();
                for draft in 0..*pending {
                    fold(shape, grid.row(row(*slot, *parity, draft)), &mut wanted.cells);
                }
                wanted
            }),
            _ => rig.same(&what, &cells, &before.rows(rows)),
        }
    }
}
