//! MatMulGateUp: two products and the gate between them, with one rounding at the end.

use deltic::backend::Op;
use deltic::base::DType;

use super::matmul::product;
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
}

const ODD: Case =
    Case { rows: Rows::Target, live: 3, k: 37, n: 19, x: DType::F32, weight: DType::F32, out: DType::F32, out_col: 4 };

pub fn add(suite: &mut Suite) {
    let mut case = |name: String, case: Case| suite.add("matmul_gate_up", name, move |rig| run(rig, case));
    for act in FLOATS {
        for weight in FLOATS {
            case(format!("odd_{act}_by_{weight}"), Case { x: act, out: act, weight, ..ODD });
            let past_tile = Case { live: 65, k: 129, n: 65, out_col: 0, ..ODD };
            case(format!("past_tile_{act}_by_{weight}"), Case { x: act, out: act, weight, ..past_tile });
        }
    }
    for rows in ROW_SETS {
        case(format!("rows_{}", rows.name()), Case { rows, ..ODD });
    }
    case("smallest".to_owned(), Case { live: 1, k: 1, n: 1, out_col: 0, ..ODD });
    let bf16 = Case { x: DType::Bf16, weight: DType::Bf16, out: DType::Bf16, out_col: 0, ..ODD };
    case("real_5120_by_3072".to_owned(), Case { live: 2, k: 5120, n: 3072, ..bf16 });
    suite.add("matmul_gate_up", "extreme_gates", extreme_gates);
    suite.add("matmul_gate_up", "rows_equal_single_rows", rows_equal_single_rows);
}

pub fn silu(a: f64) -> f64 {
    a / (1.0 + (-a).exp())
}

fn formula(x: &Matrix, gate: &Matrix, up: &Matrix) -> Grid {
    let (gates, ups) = (product(x, gate), product(x, up));
    let cells = gates.cells.iter().zip(&ups.cells).map(|(gate, up)| silu(*gate) * up).collect();
    Grid { rows: x.rows, cols: gate.rows, cells }
}

fn run(rig: &mut Rig, case: Case) {
    let Case { live, k, n, out_col, .. } = case;
    let padded = bucket(live);
    let x_values = Matrix::random(case.x, live, k, 1);
    let gate_values = Matrix::random(case.weight, n, k, 2);
    let up_values = Matrix::random(case.weight, n, k, 3);
    let before = Matrix::blank(case.out, padded, out_col + n + 1);
    let rows = case.rows.set_without_positions(rig, padded);
    let step = rig.step(&case.rows.step(live));
    let x = rig.put("x", &x_values.clone().padded(padded));
    let gate = rig.put("gate", &gate_values);
    let up = rig.put("up", &up_values);
    let out = rig.put("out", &before);
    rig.run(step, &[Op::MatMulGateUp { rows, x, gate, up, out, out_col: out_col as u32 }]);
    let found = rig.get(out).rows(0..live);
    let before = before.rows(0..live);
    let written = found.cols(out_col..out_col + n);
    rig.near("out", &written, || formula(&x_values, &gate_values, &up_values));
    rig.same("columns to the left", &found.cols(0..out_col), &before.cols(0..out_col));
    rig.same(
        "column to the right",
        &found.cols(out_col + n..out_col + n + 1),
        &before.cols(out_col + n..out_col + n + 1),
    );
}

/// Gates of +-200, where exp overflows on one side.
fn extreme_gates(rig: &mut Rig) {
    let gates = [-200.0, -88.0, -1.0, 0.0, 1.0, 88.0, 200.0];
    let x_values = Matrix::from_fn(DType::F32, 1, 1, |_, _| 1.0);
    let gate_values = Matrix::from_fn(DType::F32, gates.len(), 1, |row, _| gates[row]);
    let up_values = Matrix::from_fn(DType::F32, gates.len(), 1, |_, _| 0.5);
    let step = rig.step(&Step::of_rows(1));
    let (x, gate, up) = (rig.put("x", &x_values), rig.put("gate", &gate_values), rig.put("up", &up_values));
    let out = rig.blank("out", DType::F32, 1, gates.len());
    rig.run(step, &[Op::MatMulGateUp { rows: deltic::backend::RowSet::Target, x, gate, up, out, out_col: 0 }]);
    let found = rig.get(out);
    rig.near("out", &found, || formula(&x_values, &gate_values, &up_values));
}

fn rows_equal_single_rows(rig: &mut Rig) {
    let (k, n) = (70, 33);
    let values = Matrix::random(DType::Bf16, 13, k, 4);
    let gate = rig.put("gate", &Matrix::random(DType::Bf16, n, k, 5));
    let up = rig.put("up", &Matrix::random(DType::Bf16, n, k, 6));
    let multiply = |rig: &mut Rig, x: &Matrix| {
        let step = rig.step(&Step::of_rows(x.rows));
        let out = rig.blank("out", DType::Bf16, x.rows, n);
        let x = rig.put("x", x);
        rig.run(step, &[Op::MatMulGateUp { rows: deltic::backend::RowSet::Target, x, gate, up, out, out_col: 0 }]);
        rig.get(out)
    };
    let together = multiply(rig, &values);
    for row in 0..values.rows {
        let single = multiply(rig, &values.rows(row..row + 1));
        rig.agree(&format!("row {row}"), &together.rows(row..row + 1), &single);
    }
}
