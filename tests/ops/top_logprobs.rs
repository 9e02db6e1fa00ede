//! TopLogprobs: order, ties, the sampled token wherever it ranks, and a vocabulary smaller than the list.

use deltic::backend::Op;
use deltic::backend::op::{LOGPROB_WORDS, TOP_LOGPROBS};
use deltic::base::DType;

use crate::common::cases::{Rows, SPARE_ROWS};
use crate::common::matrix::{Grid, Matrix, Random};
use crate::common::rig::Rig;
use crate::common::target::Suite;

const TOP: usize = TOP_LOGPROBS as usize;

pub fn add(suite: &mut Suite) {
    for (name, rows, vocabulary, live) in [
        ("smallest", 1, 20, 20),
        ("odd", 3, 37, 37),
        ("past_tile", 4, 300, 257),
        ("fewer_than_the_list", 2, 9, 7),
        ("real", 3, 248_320, 248_077),
    ] {
        suite.add("top_logprobs", name, move |rig| {
            let mut random = Random::new(1);
            let logits = Matrix::from_fn(DType::F32, rows, live, |_, _| 8.0 * random.symmetric());
            run(rig, logits, vocabulary, None);
        });
        suite.add("top_logprobs", format!("{name}_ties"), move |rig| {
            let mut random = Random::new(2);
            let logits = Matrix::from_fn(DType::F32, rows, live, |_, _| random.below(4) as f32);
            run(rig, logits, vocabulary, None);
        });
    }
    suite.add("top_logprobs", "large_logits", |rig| {
        run(rig, Matrix::from_fn(DType::F32, 2, 40, |_, col| 1000.0 + col as f32), 40, None);
    });
    suite.add("top_logprobs", "only_for_those_who_ask", |rig| {
        let mut step = Rows::Logits.step(4);
        step.sequences.last_mut().expect("four rows").logprobs = false;
        let inputs = rig.step(&step);
        let sampled = rig.put("sampled", &Matrix::words(1, 4, |_, _| 0));
        let logits = rig.put("logits", &Matrix::random(DType::F32, 4, 40, 5));
        let before = Matrix::blank(DType::U32, 4, LOGPROB_WORDS as usize);
        let out = rig.put("out", &before);
        rig.run(inputs, &[Op::TopLogprobs { logits, sampled, out, vocab_live: 40 }]);
        let found = rig.get(out);
        rig.same("the row that did not ask", &found.rows(3..4), &before.rows(3..4));
        assert_ne!(found.rows(2..3).bits, before.rows(2..3).bits, "a row that asked");
    });
    suite.add("top_logprobs", "beside_a_row_without_a_token", |rig| {
        let mut logits = Matrix::random(DType::F32, 3, 50, 3);
        logits.set(1, 4, f32::NAN);
        run(rig, logits, 50, Some(1));
    });
}

/// `failed` is a row whose sample is NONE: what it gets is nobody's business, the others are.
fn run(rig: &mut Rig, logits: Matrix, vocabulary: usize, failed: Option<usize>) {
    let (rows, live) = (logits.rows, logits.cols);
    // The sampled token is the last, the first, or one in between.
    let token = |row: usize| [live - 1, 0, live / 2][row % 3] as u32;
    let sampled_token = |row: usize| if failed == Some(row) { u32::MAX } else { token(row) };
    let sampled_values = Matrix::words(1, rows, |_, row| sampled_token(row)).widened(rows + SPARE_ROWS);
    let step = Rows::Logits.step(rows);
    let inputs = rig.step(&step);
    let sampled = rig.put("sampled", &sampled_values);
    let all_logits = rig.put("logits", &logits.clone().widened(vocabulary).padded(rows + SPARE_ROWS));
    let out = rig.blank("out", DType::U32, rows + SPARE_ROWS, LOGPROB_WORDS as usize);
    rig.run(inputs, &[Op::TopLogprobs { logits: all_logits, sampled, out, vocab_live: live as u32 }]);
    let found = rig.get(out);
    for row in (0..rows).filter(|row| failed != Some(*row)) {
        expect_row(rig, row, logits.rows(row..row + 1).grid().row(0), token(row), &found.rows(row..row + 1));
    }
}

fn expect_row(rig: &mut Rig, row: usize, logits: &[f64], sampled: u32, found: &Matrix) {
    let highest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log_sum = highest + logits.iter().map(|logit| (logit - highest).exp()).sum::<f64>().ln();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    order.truncate(TOP);
    let wanted_ids = Matrix::words(1, order.len(), |_, rank| order[rank] as u32);
    rig.same(&format!("ids of row {row}"), &found.cols(1..1 + order.len()), &wanted_ids);
    let floats = |range: std::ops::Range<usize>| Matrix { dtype: DType::F32, ..found.cols(range) };
    rig.near(&format!("logprob of the token of row {row}"), &floats(0..1), || {
        Grid::from_fn(1, 1, |_, _| logits[sampled as usize] - log_sum)
    });
    rig.near(&format!("logprobs of row {row}"), &floats(1 + TOP..1 + TOP + order.len()), || {
        Grid::from_fn(1, order.len(), |_, rank| logits[order[rank]] - log_sum)
    });
}
