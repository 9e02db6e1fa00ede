//! DeltaGates: log decay and write strength, with inputs on both sides of softplus' threshold and far out.

use deltic::backend::Op;
use deltic::base::DType;

use crate::common::cases::{FLOATS, ROW_SETS, Rows, bucket};
use crate::common::matrix::{Grid, Matrix, Random};
use crate::common::rig::Rig;
use crate::common::target::Suite;

pub fn add(suite: &mut Suite) {
    for weight in FLOATS {
        for (name, live, heads) in [("smallest", 1, 1), ("odd", 3, 7), ("past_tile", 65, 33), ("real", 64, 48)] {
            suite
                .add("delta_gates", format!("{name}_{weight}"), move |rig| run(rig, Rows::Target, live, heads, weight));
        }
    }
    for rows in ROW_SETS {
        suite.add("delta_gates", format!("rows_{}", rows.name()), move |rig| run(rig, rows, 4, 6, DType::F32));
    }
}

/// g and beta of one head. `softplus(x)` is x above 20.
pub fn formula(b: f64, a: f64, a_log: f64, dt_bias: f64) -> (f64, f64) {
    let x = a + dt_bias;
    let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
    (-a_log.exp() * softplus, 1.0 / (1.0 + (-b).exp()))
}

fn run(rig: &mut Rig, rows: Rows, live: usize, heads: usize, weight: DType) {
    let mut random = Random::new(1);
    let ba_values = Matrix::from_fn(DType::F32, live, 2 * heads, |_, _| match random.below(12) {
        0 => 25.0,
        1 => 100.0,
        2 => -100.0,
        3 => -15.0,
        _ => 6.0 * random.symmetric(),
    });
    let a_log_values = Matrix::random(weight, 1, heads, 2);
    let dt_bias_values = Matrix::random(weight, 1, heads, 3);
    let set = rows.set_without_positions(rig, bucket(live));
    let step = rig.step(&rows.step(live));
    let ba = rig.put("ba", &ba_values.clone().padded(bucket(live)));
    let a_log = rig.put("a_log", &a_log_values);
    let dt_bias = rig.put("dt_bias", &dt_bias_values);
    let out = rig.blank("out", DType::F32, bucket(live), 2 * heads);
    rig.run(step, &[Op::DeltaGates { rows: set, ba, a_log, dt_bias, out }]);
    let found = rig.get(out).rows(0..live);
    let gates = |row: usize, head: usize| {
        let (b, a) = (ba_values.at(row, head), ba_values.at(row, heads + head));
        formula(b, a, a_log_values.at(0, head), dt_bias_values.at(0, head))
    };
    // Each value is judged by its own size: a decay of 1e-6 matters as much as one of 5.
    for row in 0..live {
        for head in 0..heads {
            let cell = |col: usize| found.rows(row..row + 1).cols(col..col + 1);
            rig.near(&format!("g of row {row}, head {head}"), &cell(head), || {
                Grid::from_fn(1, 1, |_, _| gates(row, head).0)
            });
            rig.near(&format!("beta of row {row}, head {head}"), &cell(heads + head), || {
                Grid::from_fn(1, 1, |_, _| gates(row, head).1)
            });
        }
    }
}
