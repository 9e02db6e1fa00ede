//! CopySlots: slots copied or zeroed, in every type, with NaN in what is overwritten.

use deltic::backend::Op;
use deltic::backend::op::CopyList;
use deltic::base::DType;

use crate::common::matrix::{Matrix, POISON};
use crate::common::rig::Rig;
use crate::common::step::Step;
use crate::common::target::Suite;

const NONE: u32 = u32::MAX;

pub fn add(suite: &mut Suite) {
    for dtype in [DType::F32, DType::Bf16, DType::U32] {
        for (name, slot_rows, cols) in [("smallest", 1, 1), ("odd", 3, 7), ("past_tile", 5, 257), ("real", 768, 128)] {
            suite.add("copy_slots", format!("{name}_{dtype}"), move |rig| {
                run(rig, dtype, slot_rows, cols, CopyList::Slots);
            });
            suite.add("copy_slots", format!("{name}_{dtype}_pages"), move |rig| {
                run(rig, dtype, slot_rows, cols, CopyList::Pages);
            });
        }
    }
}

/// One source for two copies, one slot copied to and one zeroed that held NaN, the rest untouched.
/// The other list of the step names other pairs, which nothing follows.
fn run(rig: &mut Rig, dtype: DType, slot_rows: usize, cols: usize, list: CopyList) {
    let copies = vec![(2, 0), (NONE, 4), (2, 6), (5, 1)];
    let rows = 8 * slot_rows;
    let mut before = match dtype {
        DType::U32 => Matrix::words(rows, cols, |row, col| (row * cols + col) as u32 ^ 0x8000_0000),
        DType::F32 | DType::Bf16 => Matrix::random(dtype, rows, cols, 1),
    };
    let bad = if dtype == DType::U32 { POISON } else { f32::NAN.to_bits() };
    for slot in [0, 4] {
        before.bits[slot * slot_rows * cols..(slot + 1) * slot_rows * cols].fill(bad);
    }
    let mut wanted = before.clone();
    for (source, slot) in &copies {
        for row in 0..slot_rows {
            let to = *slot as usize * slot_rows + row;
            if *source == NONE {
                wanted.bits[to * cols..(to + 1) * cols].fill(0);
            } else {
                wanted.set_row(to, &before, *source as usize * slot_rows + row);
            }
        }
    }
    let tensor = rig.put("tensor", &before);
    let other = vec![(7, 3), (1, 7)];
    let step = match list {
        CopyList::Slots => Step { copies, page_copies: other, ..Step::of_rows(1) },
        CopyList::Pages => Step { copies: other, page_copies: copies, ..Step::of_rows(1) },
    };
    let inputs = rig.step(&step);
    rig.run(inputs, &[Op::CopySlots { tensor, slot_rows: slot_rows as u32, list }]);
    let found = rig.get(tensor);
    rig.same("tensor", &found, &wanted);
}
