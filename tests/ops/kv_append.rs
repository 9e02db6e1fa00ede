//! KvAppend: each row's keys and values in the cell of its position, every other cell of the cache untouched.

use deltic::backend::{AttentionShape, Op};
use deltic::base::DType;

use crate::common::cases::{ENTRY_SETS, Rows, bucket, entries};
use crate::common::matrix::Matrix;
use crate::common::rig::Rig;
use crate::common::target::Suite;

#[derive(Clone, Copy)]
struct Case {
    rows: Rows,
    shape: AttentionShape,
    context: u32,
    act: DType,
    cache: DType,
}

const ODD: Case = Case {
    rows: Rows::Target,
    shape: AttentionShape { heads: 3, kv_heads: 1, head_dim: 5, page_tokens: 3 },
    context: 20,
    act: DType::F32,
    cache: DType::F32,
};
const REAL: AttentionShape = AttentionShape { heads: 24, kv_heads: 4, head_dim: 256, page_tokens: 16 };

pub fn add(suite: &mut Suite) {
    let mut case = |name: String, case: Case| suite.add("kv_append", name, move |rig| run(rig, case));
    for (act, cache) in [
        (DType::F32, DType::F32),
        (DType::Bf16, DType::Bf16),
        // Widening is exact; narrowing rounds to nearest even.
        (DType::Bf16, DType::F32),
        (DType::F32, DType::Bf16),
    ] {
        case(format!("odd_{act}_to_{cache}"), Case { act, cache, ..ODD });
    }
    let smallest = AttentionShape { heads: 1, kv_heads: 1, head_dim: 1, page_tokens: 1 };
    case("smallest".to_owned(), Case { shape: smallest, ..ODD });
    for rows in ENTRY_SETS {
        case(format!("rows_{}", rows.full_name()), Case { rows, ..ODD });
        let real = Case { rows, shape: REAL, context: 300, act: DType::Bf16, cache: DType::Bf16 };
        case(format!("rows_{}_real", rows.full_name()), real);
    }
    let long = Case { context: 2047, act: DType::Bf16, cache: DType::Bf16, shape: REAL, ..ODD };
    case("real_long".to_owned(), long);
}

fn run(rig: &mut Rig, case: Case) {
    let Case { rows, shape, context, act, cache } = case;
    let mut entries = entries(rows, context);
    let pages = entries.step.give_pages(shape.page_tokens, 4, 1);
    let cells = pages * shape.page_tokens as usize;
    let live = entries.rows.len();
    let kv_cols = shape.kv_cols() as usize;
    let qkv_values = Matrix::random(act, live, shape.qkv_cols() as usize, 2);
    let mut wanted_keys = Matrix::random(cache, cells, kv_cols, 3);
    let mut wanted_values = Matrix::random(cache, cells, kv_cols, 4);
    let set = rows.set(rig, &entries.verdict);
    let qkv = rig.put("qkv", &qkv_values.clone().padded(bucket(live)));
    let keys = rig.put("keys", &wanted_keys);
    let values = rig.put("values", &wanted_values);
    let step = rig.step(&entries.step);
    rig.run(step, &[Op::KvAppend { rows: set, qkv, keys, values, shape }]);
    let first_key = shape.query_cols() as usize;
    for (row, (sequence, entry)) in entries.rows.iter().enumerate() {
        let cell = entries.step.cell(*sequence, *entry, shape.page_tokens);
        for col in 0..kv_cols {
            wanted_keys.set(cell, col, qkv_values.at(row, first_key + col) as f32);
            wanted_values.set(cell, col, qkv_values.at(row, first_key + kv_cols + col) as f32);
        }
    }
    let (found_keys, found_values) = (rig.get(keys), rig.get(values));
    rig.same("keys", &found_keys, &wanted_keys);
    rig.same("values", &found_values, &wanted_values);
}
