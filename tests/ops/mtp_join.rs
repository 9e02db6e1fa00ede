//! MtpJoin: two norms side by side, the embedding first.

use deltic::backend::Op;
use deltic::base::DType;

use super::rms_norm::norm;
use crate::common::cases::{FLOATS, ROW_SETS, Rows, bucket, near_live};
use crate::common::matrix::{Grid, Matrix};
use crate::common::rig::Rig;
use crate::common::target::Suite;

#[derive(Clone, Copy)]
struct Case {
    rows: Rows,
    live: usize,
    cols: usize,
    act: DType,
    weight: DType,
}

const ODD: Case = Case { rows: Rows::Target, live: 3, cols: 37, act: DType::F32, weight: DType::F32 };
const EPS: f32 = 1e-6;

pub fn add(suite: &mut Suite) {
    let mut case = |name: String, case: Case| suite.add("mtp_join", name, move |rig| run(rig, case));
    for act in FLOATS {
        for weight in FLOATS {
            case(format!("odd_{act}_{weight}"), Case { act, weight, ..ODD });
        }
        case(format!("smallest_{act}"), Case { live: 1, cols: 1, act, ..ODD });
        case(format!("past_tile_{act}"), Case { live: 65, cols: 257, act, ..ODD });
        case(format!("real_{act}"), Case { live: 9, cols: 5120, act, weight: DType::Bf16, ..ODD });
    }
    for rows in ROW_SETS {
        case(format!("rows_{}", rows.name()), Case { rows, ..ODD });
    }
}

fn run(rig: &mut Rig, case: Case) {
    let Case { live, cols, act, .. } = case;
    let padded = bucket(live);
    let embedding_values = Matrix::random(DType::F32, live, cols, 1);
    // Of another size, so that a norm over both halves together shows.
    let hidden_values = Matrix::from_fn(act, live, cols, |row, col| 20.0 * embedding_values.at(row, col).cos() as f32);
    let weights = [3, 4].map(|seed| Matrix::random(case.weight, 1, cols, seed));
    let rows = case.rows.set_without_positions(rig, padded);
    let step = rig.step(&case.rows.step(live));
    let embedding = rig.put("embedding", &embedding_values.clone().padded(padded));
    let hidden = rig.put("hidden", &hidden_values.clone().padded(padded));
    let embedding_weight = rig.put("embedding_weight", &weights[0]);
    let hidden_weight = rig.put("hidden_weight", &weights[1]);
    let out = rig.blank("out", act, padded, 2 * cols);
    rig.run(step, &[Op::MtpJoin { rows, embedding, hidden, embedding_weight, hidden_weight, out, eps: EPS }]);
    near_live(rig, "out", out, live, || {
        let [embedding, hidden] = [embedding_values.grid(), hidden_values.grid()];
        let [embedding_weight, hidden_weight] = [weights[0].grid(), weights[1].grid()];
        let joined = |row: usize| {
            let first = norm(embedding.row(row), embedding_weight.row(0), EPS);
            first.into_iter().chain(norm(hidden.row(row), hidden_weight.row(0), EPS))
        };
        Grid { rows: live, cols: 2 * cols, cells: (0..live).flat_map(joined).collect() }
    });
}
