//! Properties of KvAppend and Attention together: in one go, in chunks, row by row, or with drafts that are then
//! dropped, on whatever pages and beside whatever else, a sequence gets the same outputs. On the CPU bit for bit.

use deltic::backend::{AttentionShape, Op, RowSet};
use deltic::base::DType;

use crate::common::cases::FLOATS;
use crate::common::matrix::{Matrix, Random};
use crate::common::rig::Rig;
use crate::common::step::{Sequence, Step};
use crate::common::target::Suite;

const SHAPES: [AttentionShape; 3] = [
    AttentionShape { heads: 3, kv_heads: 1, head_dim: 20, page_tokens: 3 },
    AttentionShape { heads: 4, kv_heads: 2, head_dim: 64, page_tokens: 16 },
    AttentionShape { heads: 6, kv_heads: 1, head_dim: 256, page_tokens: 16 },
];

pub fn add(suite: &mut Suite) {
    for act in FLOATS {
        for shape in SHAPES {
            let name = format!("{}x{}_{act}", shape.heads, shape.head_dim);
            suite.add("attention", format!("pieces_equal_the_whole_{name}"), move |rig| pieces(rig, shape, act));
            suite.add("attention", format!("page_ids_change_nothing_{name}"), move |rig| page_ids(rig, shape, act));
            suite.add("attention", format!("batch_mates_change_nothing_{name}"), move |rig| mates(rig, shape, act));
        }
    }
}

fn text(shape: AttentionShape, act: DType, rows: usize, seed: u64) -> Matrix {
    let mut random = Random::new(seed);
    Matrix::from_fn(act, rows, shape.qkv_cols() as usize, |_, _| 3.0 * random.symmetric())
}

/// (committed rows, drafts, accepted)
type Piece = (usize, usize, usize);

/// Appends and attends in the given pieces and returns the outputs of the rows that stand.
fn attend(rig: &mut Rig, shape: AttentionShape, text: &Matrix, pieces: &[Piece], page_seed: u64) -> Matrix {
    let act = text.dtype;
    let mut whole = Step::of_rows(text.rows + 4);
    let pages = whole.give_pages(shape.page_tokens, 0, page_seed);
    let cells = pages * shape.page_tokens as usize;
    let keys = rig.blank("keys", act, cells, shape.kv_cols() as usize);
    let values = rig.blank("values", act, cells, shape.kv_cols() as usize);
    let mut result = Matrix::blank(act, 0, shape.out_cols() as usize);
    for (committed, drafts, accepted) in pieces.iter().copied() {
        let stand = committed + accepted;
        let mut rows = text.rows(result.rows..result.rows + stand);
        // Refused drafts write keys and values that are overwritten before they are read.
        rows.bits.extend(self::text(shape, act, drafts - accepted, 77).bits);
        rows.rows += drafts - accepted;
        let mut sequence = Sequence::new(0, committed as u32, drafts as u32);
        sequence.position = result.rows as u32;
        sequence.pages.clone_from(&whole.sequences[0].pages);
        let step = rig.step(&Step::new(vec![sequence]));
        let qkv = rig.put("qkv", &rows);
        let out = rig.blank("out", act, rows.rows, shape.out_cols() as usize);
        let set = RowSet::Target;
        rig.run(
            step,
            &[
                Op::KvAppend { rows: set, qkv, keys, values, shape },
                Op::Attention { rows: set, qkv, keys, values, out, shape, first_entry: 0 },
            ],
        );
        result.bits.extend(rig.get(out).rows(0..stand).bits);
        result.rows += stand;
    }
    result
}

fn pieces(rig: &mut Rig, shape: AttentionShape, act: DType) {
    let text = text(shape, act, 70, 1);
    let whole = attend(rig, shape, &text, &[(70, 0, 0)], 1);
    let ways: [(&str, Vec<Piece>); 4] = [
        ("row by row", vec![(1, 0, 0); 70]),
        ("chunks", vec![(3, 0, 0), (1, 0, 0), (33, 0, 0), (16, 0, 0), (17, 0, 0)]),
        ("drafts all refused", [vec![(60, 0, 0)], vec![(1, 3, 0); 10]].concat()),
        (
            "drafts",
            vec![(50, 0, 0), (1, 3, 2), (1, 1, 0), (1, 2, 2), (1, 3, 3), (1, 3, 1), (1, 0, 0), (1, 3, 0), (1, 3, 3)],
        ),
    ];
    for (way, pieces) in ways {
        let found = attend(rig, shape, &text, &pieces, 2);
        rig.agree(way, &found, &whole.rows(0..found.rows));
    }
}

fn page_ids(rig: &mut Rig, shape: AttentionShape, act: DType) {
    let text = text(shape, act, 50, 3);
    let pieces = [(40, 0, 0), (1, 3, 3), (1, 3, 0), (5, 0, 0)];
    let first = attend(rig, shape, &text, &pieces, 4);
    for page_seed in [5, 6, 7] {
        let found = attend(rig, shape, &text, &pieces, page_seed);
        // The same values from other addresses: equal bits on every backend.
        rig.same(&format!("pages {page_seed}"), &found, &first);
    }
}

/// Four sequences in one step against each alone.
fn mates(rig: &mut Rig, shape: AttentionShape, act: DType) {
    let lengths = [40, 1, 23, 67];
    let texts: Vec<Matrix> = (0..4).map(|at| text(shape, act, lengths[at], 10 + at as u64)).collect();
    let mut step = Step::new(lengths.iter().map(|rows| Sequence::new(0, *rows as u32, 0)).collect());
    let pages = step.give_pages(shape.page_tokens, 0, 8);
    let cells = pages * shape.page_tokens as usize;
    let mut together = texts[0].clone();
    for text in &texts[1..] {
        together.bits.extend(&text.bits);
        together.rows += text.rows;
    }
    let inputs = rig.step(&step);
    let qkv = rig.put("qkv", &together);
    let keys = rig.blank("keys", act, cells, shape.kv_cols() as usize);
    let values = rig.blank("values", act, cells, shape.kv_cols() as usize);
    let out = rig.blank("out", act, together.rows, shape.out_cols() as usize);
    let rows = RowSet::Target;
    let append = Op::KvAppend { rows, qkv, keys, values, shape };
    rig.run(inputs, &[append, Op::Attention { rows, qkv, keys, values, out, shape, first_entry: 0 }]);
    let found = rig.get(out);
    for (index, text) in texts.iter().enumerate() {
        let alone = attend(rig, shape, text, &[(text.rows, 0, 0)], 9);
        let first = step.first_row(index);
        rig.agree(&format!("sequence {index}"), &found.rows(first..first + text.rows), &alone);
    }
}
