//! GatedNorm: norm per head with a plain weight, then the gate, rounded once.

use deltic::backend::Op;
use deltic::base::DType;

use super::matmul_gate_up::silu;
use crate::common::cases::{FLOATS, ROW_SETS, Rows, bucket, near_live};
use crate::common::matrix::{Grid, Matrix};
use crate::common::rig::Rig;
use crate::common::target::Suite;

#[derive(Clone, Copy)]
struct Case {
    rows: Rows,
    live: usize,
    heads: usize,
    dim: usize,
    gate_col: usize,
    act: DType,
    weight: DType,
}

const ODD: Case =
    Case { rows: Rows::Target, live: 3, heads: 3, dim: 5, gate_col: 7, act: DType::F32, weight: DType::F32 };
const EPS: f32 = 1e-6;

pub fn add(suite: &mut Suite) {
    let mut case = |name: String, case: Case| suite.add("gated_norm", name, move |rig| run(rig, case));
    for act in FLOATS {
        for weight in FLOATS {
            case(format!("odd_{act}_{weight}"), Case { act, weight, ..ODD });
        }
        case(format!("smallest_{act}"), Case { live: 1, heads: 1, dim: 1, gate_col: 0, act, ..ODD });
        case(format!("past_tile_{act}"), Case { live: 65, heads: 2, dim: 129, gate_col: 64, act, ..ODD });
        let real = Case { live: 9, heads: 48, dim: 128, gate_col: 10_240, act, weight: DType::Bf16, ..ODD };
        case(format!("real_{act}"), real);
    }
    for rows in ROW_SETS {
        case(format!("rows_{}", rows.name()), Case { rows, ..ODD });
    }
}

fn run(rig: &mut Rig, case: Case) {
    let Case { live, heads, dim, gate_col, act, .. } = case;
    let (cols, padded) = (heads * dim, bucket(live));
    let x_values = Matrix::random(act, live, cols, 1);
    let z_values = Matrix::from_fn(act, live, cols, |row, col| ((row * 7 + col * 3) % 41) as f32 / 4.0 - 5.0);
    let weight_values = Matrix::random(case.weight, 1, dim, 2);
    // The gate lies behind other columns, and something follows it.
    let mut gate_values = Matrix::blank(act, live, gate_col + cols + 2);
    for row in 0..live {
        for col in 0..cols {
            gate_values.set(row, gate_col + col, z_values.at(row, col) as f32);
        }
    }
    let rows = case.rows.set_without_positions(rig, padded);
    let step = rig.step(&case.rows.step(live));
    let x = rig.put("x", &x_values.clone().padded(padded));
    let gate = rig.put("gate", &gate_values.padded(padded));
    let weight = rig.put("weight", &weight_values);
    let out = rig.blank("out", act, padded, cols);
    rig.run(step, &[Op::GatedNorm { rows, x, gate, gate_col: gate_col as u32, weight, out, eps: EPS }]);
    near_live(rig, "out", out, live, || {
        let (x, z) = (x_values.grid(), z_values.grid());
        Grid::from_fn(live, cols, |row, col| {
            let head = &x.row(row)[col / dim * dim..][..dim];
            let mean = head.iter().map(|x| x * x).sum::<f64>() / dim as f64;
            let normed = x.row(row)[col] / (mean + f64::from(EPS)).sqrt();
            normed * weight_values.at(0, col % dim) * silu(z.row(row)[col])
        })
    });
}
