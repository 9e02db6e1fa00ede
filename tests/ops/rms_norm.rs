//! RmsNorm: with and without the residual addition, every pair of types, every row set.

use deltic::backend::Op;
use deltic::base::DType;

use crate::common::cases::{FLOATS, ROW_SETS, Rows, bucket, near_live};
use crate::common::matrix::{Grid, Matrix};
use crate::common::rig::Rig;
use crate::common::target::Suite;

#[derive(Clone, Copy)]
struct Case {
    rows: Rows,
    live: usize,
    cols: usize,
    weight: DType,
    out: DType,
    adds: bool,
    /// Size of the values: at 1e-3 eps decides, at 1e4 it is nothing.
    size: f32,
}

const ODD: Case =
    Case { rows: Rows::Target, live: 3, cols: 37, weight: DType::F32, out: DType::F32, adds: true, size: 1.0 };

pub fn add(suite: &mut Suite) {
    let mut case = |name: String, case: Case| suite.add("rms_norm", name, move |rig| run(rig, case));
    for weight in FLOATS {
        for out in FLOATS {
            for adds in [false, true] {
                let name = if adds { "adds" } else { "plain" };
                case(format!("odd_{name}_{weight}_to_{out}"), Case { weight, out, adds, ..ODD });
            }
        }
    }
    for rows in ROW_SETS {
        case(format!("rows_{}", rows.name()), Case { rows, ..ODD });
    }
    for (name, live, cols) in [("smallest", 1, 1), ("past_tile", 65, 257), ("real_5120", 17, 5120)] {
        case(name.to_owned(), Case { live, cols, ..ODD });
        case(format!("{name}_bf16"), Case { live, cols, weight: DType::Bf16, out: DType::Bf16, ..ODD });
    }
    case("tiny_values".to_owned(), Case { size: 1e-3, ..ODD });
    case("large_values".to_owned(), Case { size: 1e4, ..ODD });
}

const EPS: f32 = 1e-6;

/// `x / sqrt(mean(x^2) + eps) * (1 + weight)` of one row.
pub fn norm(x: &[f64], weight: &[f64], eps: f32) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(eps)).sqrt();
    x.iter().zip(weight).map(|(x, w)| x * scale * (1.0 + w)).collect()
}

fn run(rig: &mut Rig, case: Case) {
    let Case { live, cols, size, .. } = case;
    let padded = bucket(live);
    let x_values = scaled(Matrix::random(DType::F32, live, cols, 1), size);
    let add_values = scaled(Matrix::random(DType::F32, live, cols, 2), size);
    let weight_values = Matrix::random(case.weight, 1, cols, 3);
    let rows = case.rows.set_without_positions(rig, padded);
    let step = rig.step(&case.rows.step(live));
    let x = rig.put("x", &x_values.clone().padded(padded));
    let add = rig.put("add", &add_values.clone().padded(padded));
    let weight = rig.put("weight", &weight_values);
    let out = rig.blank("out", case.out, padded, cols);
    rig.run(step, &[Op::RmsNorm { rows, add: case.adds.then_some(add), x, weight, out, eps: EPS }]);
    // One addition in f32: the same bits everywhere.
    let sum = Matrix::from_fn(DType::F32, live, cols, |row, col| {
        let add = if case.adds { add_values.at(row, col) as f32 } else { 0.0 };
        x_values.at(row, col) as f32 + add
    });
    let found = rig.get(x).rows(0..live);
    rig.same("x", &found, &sum);
    near_live(rig, "out", out, live, || {
        let (x, weight) = (sum.grid(), weight_values.grid());
        let cells = (0..live).flat_map(|row| norm(x.row(row), weight.row(0), EPS)).collect();
        Grid { rows: live, cols, cells }
    });
}

fn scaled(values: Matrix, size: f32) -> Matrix {
    Matrix::from_fn(values.dtype, values.rows, values.cols, |row, col| values.at(row, col) as f32 * size)
}
