//! MatMul: every combination of types, row parts at column offsets, and rows that do not see each other.

use deltic::backend::{Op, RowSet, StepInputs, Tensor};
use deltic::base::DType;

use crate::common::cases::{FLOATS, ROW_SETS, Rows, bucket};
use crate::common::matrix::{Grid, Matrix};
use crate::common::rig::Rig;
use crate::common::step::Step;
use crate::common::target::Suite;

#[derive(Clone, Copy)]
struct Case {
    rows: Rows,
    live: usize,
    k: usize,
    n: usize,
    x: DType,
    weight: DType,
    out: DType,
    out_col: usize,
    /// Columns of `out` beyond the last that the op writes.
    right: usize,
}

const ODD: Case = Case {
    rows: Rows::Target,
    live: 3,
    k: 37,
    n: 19,
    x: DType::F32,
    weight: DType::F32,
    out: DType::F32,
    out_col: 5,
    right: 3,
};

pub fn add(suite: &mut Suite) {
    let mut case = |name: String, case: Case| suite.add("matmul", name, move |rig| run(rig, case));
    for x in FLOATS {
        for weight in FLOATS {
            for out in FLOATS {
                case(format!("odd_{x}_by_{weight}_to_{out}"), Case { x, weight, out, ..ODD });
                let past_tile = Case { live: 65, k: 129, n: 65, out_col: 0, right: 0, ..ODD };
                case(format!("past_tile_{x}_by_{weight}_to_{out}"), Case { x, weight, out, ..past_tile });
            }
        }
    }
    for rows in ROW_SETS {
        case(format!("rows_{}", rows.name()), Case { rows, ..ODD });
    }
    let bf16 = Case { x: DType::Bf16, weight: DType::Bf16, out: DType::Bf16, out_col: 0, right: 0, ..ODD };
    case("smallest".to_owned(), Case { live: 1, k: 1, n: 1, out_col: 0, right: 0, ..ODD });
    case("smallest_bf16".to_owned(), Case { live: 1, k: 1, n: 1, ..bf16 });
    case("real_5120_by_6144".to_owned(), Case { live: 2, k: 5120, n: 6144, ..bf16 });
    case("real_17408_by_1537".to_owned(), Case { live: 4, k: 17408, n: 1537, out: DType::F32, ..bf16 });
    case("real_rows_64".to_owned(), Case { live: 64, k: 1024, n: 96, ..bf16 });
    case("real_rows_130".to_owned(), Case { live: 130, k: 256, n: 64, ..bf16 });
    for k in [15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 255] {
        case(format!("tail_k{k}"), Case { live: 2, k, ..ODD });
        case(format!("tail_k{k}_bf16"), Case { live: 2, k, ..bf16 });
        // One row may take another path, and its weights another than those of many rows.
        case(format!("tail_k{k}_one_row"), Case { live: 1, k, ..ODD });
        case(format!("tail_k{k}_one_row_bf16"), Case { live: 1, k, ..bf16 });
    }
    for n in [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33] {
        case(format!("tail_n{n}"), Case { live: 5, n, ..ODD });
        case(format!("tail_n{n}_one_row"), Case { live: 1, n, ..bf16 });
    }
    suite.add("matmul", "rows_1_to_65_equal_single_rows", rows_equal_single_rows);
    suite.add("matmul", "row_parts_equal_the_whole", row_parts);
}

fn run(rig: &mut Rig, case: Case) {
    let Case { live, k, n, out_col, .. } = case;
    let padded = bucket(live);
    let x_values = Matrix::random(case.x, live, k, 1);
    let weight_values = Matrix::random(case.weight, n, k, 2);
    let before = Matrix::blank(case.out, padded, out_col + n + case.right);
    let rows = case.rows.set_without_positions(rig, padded);
    let step = rig.step(&case.rows.step(live));
    let x = rig.put("x", &x_values.clone().padded(padded));
    let weight = rig.put("weight", &weight_values);
    let out = rig.put("out", &before);
    rig.run(step, &[Op::MatMul { rows, x, weight, out, out_col: out_col as u32 }]);
    let found = rig.get(out).rows(0..live);
    let before = before.rows(0..live);
    rig.near("out", &found.cols(out_col..out_col + n), || product(&x_values, &weight_values));
    rig.same("columns to the left", &found.cols(0..out_col), &before.cols(0..out_col));
    let right = out_col + n..found.cols;
    rig.same("columns to the right", &found.cols(right.clone()), &before.cols(right));
}

/// `x . weight` for every pair of rows.
pub fn product(x: &Matrix, weight: &Matrix) -> Grid {
    let (x, weight) = (x.grid(), weight.grid());
    Grid::from_fn(x.rows, weight.rows, |row, col| dot(x.row(row), weight.row(col)))
}

/// Four chains, so that the formula of a real width does not take seconds; in f64 the order is nothing.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 4];
    for (a, b) in a.chunks(4).zip(b.chunks(4)) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums.iter().sum()
}

fn multiply(rig: &mut Rig, step: StepInputs, x: &Matrix, weight: Tensor) -> Matrix {
    let x = rig.put("x", x);
    let out = rig.blank("out", x.dtype, x.rows as usize, weight.rows as usize);
    rig.run(step, &[Op::MatMul { rows: RowSet::Target, x, weight, out, out_col: 0 }]);
    rig.get(out)
}

/// A row's sums do not depend on how many rows share the weight load, nor on which row it is.
fn rows_equal_single_rows(rig: &mut Rig) {
    for (dtype, k, n) in [(DType::F32, 77, 35), (DType::Bf16, 160, 50)] {
        let x = Matrix::random(dtype, 65, k, 3);
        let weight = rig.put("weight", &Matrix::random(DType::Bf16, n, k, 4));
        let one = rig.step(&Step::of_rows(1));
        let singles: Vec<Matrix> = (0..65).map(|row| multiply(rig, one, &x.rows(row..row + 1), weight)).collect();
        for rows in 1..=65 {
            let step = rig.step(&Step::of_rows(rows));
            let together = multiply(rig, step, &x.rows(0..rows), weight);
            for (row, single) in singles[..rows].iter().enumerate() {
                rig.agree(&format!("row {row} of {rows}"), &together.rows(row..row + 1), single);
            }
        }
    }
}

/// Row parts of a weight at their column offsets give the bits of the undivided one.
fn row_parts(rig: &mut Rig) {
    let (rows, k, n) = (7, 50, 61);
    let x_values = Matrix::random(DType::Bf16, rows, k, 5);
    let weight_values = Matrix::random(DType::F32, n, k, 6);
    let step = rig.step(&Step::of_rows(rows));
    let weight = rig.put("weight", &weight_values);
    let whole = multiply(rig, step, &x_values, weight);
    let x = rig.put("x", &x_values);
    let out = rig.blank("out", DType::Bf16, rows, n);
    let ops: Vec<Op> = [(40, 61), (0, 1), (1, 18), (18, 40)]
        .into_iter()
        .map(|(first, end)| {
            let weight = rig.put("part", &weight_values.rows(first..end));
            Op::MatMul { rows: RowSet::Target, x, weight, out, out_col: first as u32 }
        })
        .collect();
    rig.run(step, &ops);
    let parts = rig.get(out);
    rig.agree("out", &parts, &whole);
}
