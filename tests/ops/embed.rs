//! Embed: exact copies of table rows, from every token source, with tables in parts.

use deltic::backend::{Op, RowSet, TokenSource};
use deltic::base::DType;

use crate::common::cases::{FLOATS, ROW_SETS, Rows, bucket};
use crate::common::matrix::{Matrix, Random};
use crate::common::rig::Rig;
use crate::common::step::{Sequence, Step};
use crate::common::target::Suite;

const NONE: u32 = u32::MAX;

pub fn add(suite: &mut Suite) {
    for dtype in FLOATS {
        for (name, rows, hidden, vocabulary) in
            [("smallest", 1, 1, 1), ("odd", 3, 37, 11), ("past_tile", 65, 257, 300), ("real_width", 9, 5120, 500)]
        {
            suite.add("embed", format!("{name}_{dtype}"), move |rig| whole_table(rig, dtype, rows, hidden, vocabulary));
        }
    }
    for rows in ROW_SETS {
        suite.add("embed", format!("rows_{}", rows.name()), move |rig| row_set(rig, rows));
    }
    suite.add("embed", "parts_of_the_table", parts);
    suite.add("embed", "next_tokens_known_and_sampled", next_tokens);
    suite.add("embed", "drafts_of_earlier_passes", drafts);
    suite.add("embed", "resumed_sequences", resumed);
}

/// The rows of `table` for these tokens, the rows of `before` for tokens that it does not hold.
fn expected(tokens: &[u32], table: &Matrix, first_token: u32, before: &Matrix) -> Matrix {
    let mut out = before.clone();
    for (row, token) in tokens.iter().enumerate() {
        let held = i64::from(*token) - i64::from(first_token);
        if (0..table.rows as i64).contains(&held) {
            let widened = Matrix { dtype: DType::F32, ..table.clone() };
            out.set_row(row, &widened, held as usize);
        }
    }
    out
}

fn random_tokens(rows: usize, vocabulary: usize) -> Vec<u32> {
    let mut random = Random::new(5);
    (0..rows).map(|_| random.below(vocabulary) as u32).collect()
}

fn whole_table(rig: &mut Rig, dtype: DType, rows: usize, hidden: usize, vocabulary: usize) {
    let tokens = random_tokens(rows, vocabulary);
    let mut sequence = Sequence::new(0, rows as u32, 0);
    sequence.tokens = tokens.clone();
    let values = Matrix::random(dtype, vocabulary, hidden, 1);
    let table = rig.put("table", &values);
    let before = Matrix::blank(DType::F32, bucket(rows), hidden);
    let out = rig.put("out", &before);
    let step = rig.step(&Step::new(vec![sequence]));
    rig.run(step, &[Op::Embed { rows: RowSet::Target, tokens: TokenSource::Step, table, first_token: 0, out }]);
    let found = rig.get(out).rows(0..rows);
    rig.same("out", &found, &expected(&tokens, &values, 0, &before.rows(0..rows)));
}

/// The count of live rows comes from the row set, whatever the token source: here the drafts tensor.
fn row_set(rig: &mut Rig, rows: Rows) {
    let (live, hidden) = (4, 24);
    let tokens = random_tokens(live, 9);
    let mut drafts = Matrix::blank(DType::U32, bucket(live), 3);
    for (row, token) in tokens.iter().enumerate() {
        drafts.bits[3 * row] = *token;
    }
    let values = Matrix::random(DType::F32, 9, hidden, 2);
    let table = rig.put("table", &values);
    let drafts = rig.put("drafts", &drafts);
    let before = Matrix::blank(DType::F32, bucket(live), hidden);
    let out = rig.put("out", &before);
    let set = rows.set_without_positions(rig, bucket(live));
    let step = rig.step(&rows.step(live));
    let source = TokenSource::Draft { drafts, pass: 1 };
    rig.run(step, &[Op::Embed { rows: set, tokens: source, table, first_token: 0, out }]);
    let found = rig.get(out).rows(0..live);
    rig.same("out", &found, &expected(&tokens, &values, 0, &before.rows(0..live)));
}

/// The token of the first row of each sequence that resumes, drafts and other sequences passed over.
fn resumed(rig: &mut Rig) {
    let mut verified = Sequence::sampling(1, 1, 2);
    (verified.tokens, verified.resume) = (vec![7, 3, 4], true);
    let mut chunk = Sequence::new(2, 3, 0);
    (chunk.tokens, chunk.resume) = (vec![2, 5, 6], true);
    let step = Step::new(vec![Sequence::new(0, 5, 0), verified, Sequence::sampling(3, 1, 0), chunk]);
    let values = Matrix::random(DType::F32, 9, 24, 2);
    let table = rig.put("table", &values);
    let out = rig.blank("out", DType::F32, bucket(2), 24);
    let inputs = rig.step(&step);
    rig.run(inputs, &[Op::Embed { rows: RowSet::Resumes, tokens: TokenSource::Step, table, first_token: 0, out }]);
    let found = rig.get(out).rows(0..2);
    rig.same("out", &found, &values.gather([7, 2]));
}

/// Three parts one after the other give what the whole table gives; each leaves the rows of the others alone, and
/// tokens outside the vocabulary (a failed sample) are in no part.
fn parts(rig: &mut Rig) {
    let (vocabulary, hidden) = (100, 40);
    let mut tokens = vec![0, 32, 33, 34, 66, 67, 99, NONE, 100, 33, NONE - 1, 1 << 31];
    tokens.extend(random_tokens(20, vocabulary));
    let rows = tokens.len();
    let mut sequence = Sequence::new(0, rows as u32, 0);
    sequence.tokens = tokens.clone();
    let values = Matrix::random(DType::Bf16, vocabulary, hidden, 3);
    let mut before = Matrix::random(DType::F32, rows, hidden, 4);
    let out = rig.put("out", &before);
    let step = rig.step(&Step::new(vec![sequence]));
    for (first, end) in [(33, 67), (0, 33), (67, 100)] {
        let part = values.rows(first..end);
        let table = rig.put("table", &part);
        let first_token = first as u32;
        rig.run(step, &[Op::Embed { rows: RowSet::Target, tokens: TokenSource::Step, table, first_token, out }]);
        before = expected(&tokens, &part, first_token, &before);
        let found = rig.get(out);
        rig.same(&format!("out after the part from {first}"), &found, &before);
    }
    let whole = expected(&tokens, &values, 0, &before);
    rig.same("out after all parts", &before, &whole);
}

fn next_tokens(rig: &mut Rig) {
    let mut prefill = Sequence::new(0, 3, 0);
    (prefill.tokens, prefill.next_token) = (vec![7, 8, 9], 10);
    let mut decode = Sequence::sampling(1, 1, 2);
    decode.tokens = vec![20, 21, 22];
    let last_chunk = Sequence::sampling(2, 2, 0);
    let step = Step::new(vec![prefill, decode, last_chunk]);
    let sampled = [25, 26, NONE, 28];
    // Rows: prefill 7 8 9, decode 20 and its drafts, then the two rows 0 1 of the last chunk.
    let tokens = [8, 9, 10, 25, 26, NONE, 1, 28];
    let values = Matrix::random(DType::F32, 30, 16, 6);
    let table = rig.put("table", &values);
    let sampled = rig.put("sampled", &Matrix::words(1, 4, |_, at| sampled[at]).widened(6));
    let before = Matrix::random(DType::F32, bucket(8), 16, 7);
    let out = rig.put("out", &before);
    let inputs = rig.step(&step);
    let source = TokenSource::Next { sampled };
    rig.run(inputs, &[Op::Embed { rows: RowSet::Upkeep, tokens: source, table, first_token: 0, out }]);
    let found = rig.get(out).rows(0..8);
    rig.same("out", &found, &expected(&tokens, &values, 0, &before.rows(0..8)));
}

fn drafts(rig: &mut Rig) {
    let (live, hidden) = (5, 18);
    let values = Matrix::random(DType::F32, 40, hidden, 8);
    let table = rig.put("table", &values);
    let words = Matrix::words(bucket(live), 3, |row, col| (row * 3 + col) as u32);
    let drafts = rig.put("drafts", &words);
    let step = rig.step(&Rows::Drafts { pass: 1 }.step(live));
    let verdict = rig.blank("verdict", DType::U32, bucket(live), 4);
    for pass in 1..=3 {
        let before = Matrix::blank(DType::F32, bucket(live), hidden);
        let out = rig.put("out", &before);
        let rows = RowSet::Drafts { pass: pass + 1, verdict };
        let source = TokenSource::Draft { drafts, pass };
        rig.run(step, &[Op::Embed { rows, tokens: source, table, first_token: 0, out }]);
        let tokens: Vec<u32> = (0..live).map(|row| words.word(row, pass as usize - 1)).collect();
        let found = rig.get(out).rows(0..live);
        rig.same(&format!("out of pass {pass}"), &found, &expected(&tokens, &values, 0, &before.rows(0..live)));
    }
}
