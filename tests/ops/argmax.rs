//! Argmax: ties to the lowest id, one column of the drafts at a time.

use deltic::backend::Op;
use deltic::base::DType;

use crate::common::cases::{ROW_SETS, Rows, bucket};
use crate::common::matrix::{Matrix, Random};
use crate::common::rig::Rig;
use crate::common::target::Suite;

pub fn add(suite: &mut Suite) {
    for rows in ROW_SETS {
        suite.add("argmax", format!("rows_{}", rows.name()), move |rig| run(rig, rows, 4, 40, 37, 1000));
    }
    let rows = Rows::Drafts { pass: 1 };
    for (name, live, vocabulary, vocab_live) in
        [("smallest", 1, 1, 1), ("odd", 3, 37, 37), ("past_tile", 65, 300, 257), ("real", 5, 248_320, 248_077)]
    {
        suite.add("argmax", name, move |rig| run(rig, rows, live, vocabulary, vocab_live, 1_000_000));
        suite.add("argmax", format!("{name}_ties"), move |rig| run(rig, rows, live, vocabulary, vocab_live, 3));
    }
    for at in [0, 1, 7, 8, 15, 16, 17, 63, 64, 255, 256] {
        suite.add("argmax", format!("highest_at_{at}"), move |rig| {
            let x = Matrix::from_fn(DType::F32, 2, 257, |row, col| if col == at + row { -1.0 } else { -2.0 });
            compare(rig, rows, &x, 320);
        });
    }
}

/// Values are multiples of 1 out of `distinct`, all negative.
fn run(rig: &mut Rig, rows: Rows, live: usize, vocabulary: usize, vocab_live: usize, distinct: usize) {
    let mut random = Random::new(live as u64);
    let x = Matrix::from_fn(DType::F32, live, vocab_live, |_, _| -1.0 - random.below(distinct) as f32);
    compare(rig, rows, &x, vocabulary);
}

fn compare(rig: &mut Rig, rows: Rows, values: &Matrix, vocabulary: usize) {
    let live = values.rows;
    let set = rows.set_without_positions(rig, bucket(live));
    let step = rig.step(&rows.step(live));
    let before = Matrix::words(bucket(live), 4, |row, col| (1000 + 10 * row + col) as u32);
    let x = rig.put("x", &values.clone().widened(vocabulary).padded(bucket(live)));
    let out = rig.put("out", &before);
    rig.run(step, &[Op::Argmax { rows: set, x, out, out_col: 2, vocab_live: values.cols as u32 }]);
    let mut wanted = before.rows(0..live);
    for row in 0..live {
        let better = |best: usize, col: usize| if values.at(row, col) > values.at(row, best) { col } else { best };
        wanted.bits[4 * row + 2] = (0..values.cols).reduce(better).expect("a vocabulary") as u32;
    }
    let found = rig.get(out).rows(0..live);
    rig.same("out", &found, &wanted);
}
