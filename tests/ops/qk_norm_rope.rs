//! QkNormRope: norm and rotation of queries and keys at the positions of every row set; gates and values untouched.

use deltic::backend::{AttentionShape, Op, RowSet};
use deltic::base::DType;

use super::rms_norm::norm;
use crate::common::cases::{ENTRY_SETS, FLOATS, Rows, bucket, entries};
use crate::common::matrix::{Grid, Matrix};
use crate::common::rig::Rig;
use crate::common::step::{Sequence, Step};
use crate::common::target::Suite;

#[derive(Clone, Copy)]
struct Case {
    shape: AttentionShape,
    rotary_dims: u32,
    theta: f32,
    act: DType,
    weight: DType,
}

const fn shape(heads: u32, kv_heads: u32, head_dim: u32) -> AttentionShape {
    AttentionShape { heads, kv_heads, head_dim, page_tokens: 16 }
}

const ODD: Case = Case { shape: shape(3, 1, 20), rotary_dims: 6, theta: 1e4, act: DType::F32, weight: DType::F32 };
const REAL: Case =
    Case { shape: shape(24, 4, 256), rotary_dims: 64, theta: 1e7, act: DType::Bf16, weight: DType::Bf16 };
const EPS: f32 = 1e-6;

pub fn add(suite: &mut Suite) {
    let mut case = |name: String, rows: Rows, case: Case| {
        suite.add("qk_norm_rope", name, move |rig| {
            let entries = entries(rows, 30);
            let rows = rows.set(rig, &entries.verdict);
            let positions: Vec<u32> = entries.rows.iter().map(|(_, entry)| *entry).collect();
            run(rig, &entries.step, rows, &positions, case, "qk_norm_rope");
        });
    };
    for act in FLOATS {
        for weight in FLOATS {
            case(format!("odd_{act}_{weight}"), Rows::Target, Case { act, weight, ..ODD });
        }
        case(format!("smallest_{act}"), Rows::Target, Case { shape: shape(1, 1, 2), rotary_dims: 2, act, ..ODD });
        case(format!("all_rotary_{act}"), Rows::Target, Case { shape: shape(4, 2, 34), rotary_dims: 34, act, ..ODD });
        case(format!("real_{act}"), Rows::Target, Case { act, ..REAL });
    }
    for rows in ENTRY_SETS {
        case(format!("rows_{}", rows.full_name()), rows, ODD);
        case(format!("rows_{}_real", rows.full_name()), rows, REAL);
    }
    for act in FLOATS {
        suite.add("qk_norm_rope", format!("far_positions_{act}"), move |rig| {
            let positions = [4095, 32_768, 131_071, 262_143];
            let sequence = |position| Sequence { position, ..Sequence::new(0, 1, 0) };
            let step = Step::new(positions.map(sequence).to_vec());
            run(rig, &step, RowSet::Target, &positions, Case { act, ..REAL }, "qk_norm_rope_far");
        });
    }
    suite.add("qk_norm_rope", "rows_do_not_see_each_other", batch_mates);
}

/// Norm, then rotation, with the angle rounded to f32 as the contract says.
fn formula(head: &[f64], weight: &[f64], case: Case, position: u32) -> Vec<f64> {
    let mut head = norm(head, weight, EPS);
    let half = case.rotary_dims as usize / 2;
    for d in 0..half {
        let exponent = -2.0 * d as f64 / f64::from(case.rotary_dims);
        let frequency = f64::from(case.theta).powf(exponent) as f32;
        let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
        let (a, b) = (head[d], head[d + half]);
        head[d] = a * cos - b * sin;
        head[d + half] = b * cos + a * sin;
    }
    head
}

fn run(rig: &mut Rig, step: &Step, rows: RowSet, positions: &[u32], case: Case, key: &'static str) {
    let Case { shape, rotary_dims, theta, .. } = case;
    let (live, dim) = (positions.len(), shape.head_dim as usize);
    let cols = shape.qkv_cols() as usize;
    let before = Matrix::random(case.act, live, cols, 1);
    let q_values = Matrix::random(case.weight, 1, dim, 2);
    let k_values = Matrix::random(case.weight, 1, dim, 3);
    let qkv = rig.put("qkv", &before.clone().padded(bucket(live)));
    let q_weight = rig.put("q_weight", &q_values);
    let k_weight = rig.put("k_weight", &k_values);
    let step = rig.step(step);
    rig.run(step, &[Op::QkNormRope { rows, qkv, q_weight, k_weight, shape, rotary_dims, theta, eps: EPS }]);
    let found = rig.get(qkv).rows(0..live);
    let first_key = shape.query_cols() as usize;
    let queries = (0..shape.heads as usize).map(|head| (2 * head * dim, &q_values));
    let keys = (0..shape.kv_heads as usize).map(|head| (first_key + head * dim, &k_values));
    for (first, weight) in queries.chain(keys) {
        let input = before.cols(first..first + dim).grid();
        let weight = weight.grid();
        rig.near_as(key, &format!("columns from {first}"), &found.cols(first..first + dim), || {
            let heads = positions.iter().enumerate();
            let cells = heads.flat_map(|(row, at)| formula(input.row(row), weight.row(0), case, *at)).collect();
            Grid { rows: live, cols: dim, cells }
        });
    }
    for head in 0..shape.heads as usize {
        let gate = (2 * head + 1) * dim..(2 * head + 2) * dim;
        rig.same(&format!("gate of head {head}"), &found.cols(gate.clone()), &before.cols(gate));
    }
    let values = first_key + shape.kv_cols() as usize..cols;
    rig.same("values", &found.cols(values.clone()), &before.cols(values));
}

fn batch_mates(rig: &mut Rig) {
    let Case { shape, rotary_dims, theta, act, weight } = REAL;
    let values = Matrix::random(act, 5, shape.qkv_cols() as usize, 4);
    let q_weight = rig.put("q_weight", &Matrix::random(weight, 1, 256, 5));
    let k_weight = rig.put("k_weight", &Matrix::random(weight, 1, 256, 6));
    let rotate = |rig: &mut Rig, values: &Matrix, positions: &[u32]| {
        let sequences = positions.iter().map(|at| Sequence { position: *at, ..Sequence::new(0, 1, 0) });
        let step = rig.step(&Step::new(sequences.collect()));
        let qkv = rig.put("qkv", values);
        let rows = RowSet::Target;
        rig.run(step, &[Op::QkNormRope { rows, qkv, q_weight, k_weight, shape, rotary_dims, theta, eps: EPS }]);
        rig.get(qkv)
    };
    let positions = [3, 900, 0, 77, 12_345];
    let together = rotate(rig, &values, &positions);
    for row in 0..5 {
        let alone = rotate(rig, &values.rows(row..row + 1), &positions[row..row + 1]);
        rig.agree(&format!("row {row}"), &together.rows(row..row + 1), &alone);
    }
}
