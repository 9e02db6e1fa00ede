//! Each rule that `Op::check` enforces, with one operand or scalar wrong, and the exact error that must come of it.
//!
//! Every op is built by one function that takes each operand and scalar through an [`Edit`], which spoils one of them.
//! Rule::TooMany has no case: no op has more operands than the limit, and the last trial keeps it so.

use std::collections::BTreeSet;

use deltic::backend::check::{OPERANDS_MAX, Rule};
use deltic::backend::op::CopyList;
use deltic::backend::{AttentionShape, BufferId, DeltaShape, Op, OpError, RowIndex, RowSet, Tensor, TokenSource};
use deltic::base::DType;
use libtest_mimic::Trial;

const BF16: DType = DType::Bf16;
const F32: DType = DType::F32;
const U32: DType = DType::U32;
const ACT: &[DType] = &[BF16, F32];

#[derive(Debug, Clone, Copy)]
enum Change {
    Nothing,
    Type(DType),
    Rows(u32),
    Cols(u32),
    /// The buffer of another operand.
    Buffer(&'static str),
    Number(f64),
}

/// One thing wrong with one op.
struct Edit {
    name: &'static str,
    change: Change,
}

impl Edit {
    fn tensor(&self, name: &'static str, dtype: DType, rows: u32, cols: u32) -> Tensor {
        let mut tensor = Tensor { buffer: buffer(name), dtype, rows, cols };
        if self.name == name {
            match self.change {
                Change::Type(dtype) => tensor.dtype = dtype,
                Change::Rows(rows) => tensor.rows = rows,
                Change::Cols(cols) => tensor.cols = cols,
                Change::Buffer(other) => tensor.buffer = buffer(other),
                Change::Nothing | Change::Number(_) => panic!("{name} is a tensor"),
            }
        }
        tensor
    }

    fn float(&self, name: &'static str, value: f32) -> f32 {
        match self.change {
            Change::Number(number) if self.name == name => number as f32,
            _ => value,
        }
    }

    fn count(&self, name: &'static str, value: u32) -> u32 {
        match self.change {
            Change::Number(number) if self.name == name => number as u32,
            _ => value,
        }
    }

    fn drafts(&self) -> RowSet {
        RowSet::Drafts { pass: self.count("pass", 1), verdict: self.tensor("verdict", U32, 4, 4) }
    }

    fn attention_shape(&self) -> AttentionShape {
        AttentionShape {
            heads: self.count("heads", 6),
            kv_heads: self.count("kv_heads", 2),
            head_dim: 8,
            page_tokens: self.count("page_tokens", 4),
        }
    }

    fn delta_shape(&self) -> DeltaShape {
        DeltaShape {
            key_heads: self.count("key_heads", 2),
            value_heads: self.count("value_heads", 4),
            key_dim: 3,
            value_dim: 5,
            drafts_max: self.count("drafts_max", 2),
        }
    }
}

/// A buffer for each name: equal names, equal buffers.
fn buffer(name: &str) -> BufferId {
    BufferId(name.bytes().fold(7, |hash: u32, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte))))
}

type Build = fn(&Edit) -> Op;

fn embed(e: &Edit) -> Op {
    let tokens = TokenSource::Next { sampled: e.tensor("sampled", U32, 1, 4) };
    let (table, out) = (e.tensor("table", BF16, 9, 6), e.tensor("out", F32, 4, 6));
    Op::Embed { rows: RowSet::Upkeep, tokens, table, first_token: 0, out }
}

fn embed_drafts(e: &Edit) -> Op {
    let tokens = TokenSource::Draft { drafts: e.tensor("drafts", U32, 4, 2), pass: e.count("source pass", 2) };
    let (table, out) = (e.tensor("table", BF16, 9, 6), e.tensor("out", F32, 4, 6));
    Op::Embed { rows: e.drafts(), tokens, table, first_token: 0, out }
}

fn rms_norm(e: &Edit) -> Op {
    Op::RmsNorm {
        rows: RowSet::Target,
        add: Some(e.tensor("add", F32, 4, 6)),
        x: e.tensor("x", F32, 4, 6),
        weight: e.tensor("weight", BF16, 1, 6),
        out: e.tensor("out", BF16, 4, 6),
        eps: e.float("eps", 1e-6),
    }
}

fn matmul(e: &Edit) -> Op {
    let (x, weight) = (e.tensor("x", BF16, 4, 6), e.tensor("weight", BF16, 5, 6));
    Op::MatMul { rows: RowSet::Target, x, weight, out: e.tensor("out", F32, 4, 7), out_col: e.count("out_col", 2) }
}

fn matmul_gate_up(e: &Edit) -> Op {
    Op::MatMulGateUp {
        rows: RowSet::Target,
        x: e.tensor("x", BF16, 4, 6),
        gate: e.tensor("gate", BF16, 5, 6),
        up: e.tensor("up", BF16, 5, 6),
        out: e.tensor("out", BF16, 4, 7),
        out_col: e.count("out_col", 2),
    }
}

fn qk_norm_rope(e: &Edit) -> Op {
    Op::QkNormRope {
        rows: e.drafts(),
        qkv: e.tensor("qkv", BF16, 4, 128),
        q_weight: e.tensor("q_weight", BF16, 1, 8),
        k_weight: e.tensor("k_weight", BF16, 1, 8),
        shape: e.attention_shape(),
        rotary_dims: e.count("rotary_dims", 4),
        theta: e.float("theta", 1e4),
        eps: e.float("eps", 1e-6),
    }
}

fn kv_append(e: &Edit) -> Op {
    let (keys, values) = (e.tensor("keys", BF16, 12, 16), e.tensor("values", BF16, 12, 16));
    Op::KvAppend { rows: e.drafts(), qkv: e.tensor("qkv", BF16, 4, 128), keys, values, shape: e.attention_shape() }
}

fn attention(e: &Edit) -> Op {
    Op::Attention {
        rows: e.drafts(),
        qkv: e.tensor("qkv", BF16, 4, 128),
        keys: e.tensor("keys", BF16, 12, 16),
        values: e.tensor("values", BF16, 12, 16),
        out: e.tensor("out", BF16, 4, 48),
        shape: e.attention_shape(),
        first_entry: 1,
    }
}

fn conv_step(e: &Edit) -> Op {
    let (x, weight) = (e.tensor("x", BF16, 4, 40), e.tensor("weight", BF16, 32, 4));
    let (window, out) = (e.tensor("window", BF16, 15, 32), e.tensor("out", BF16, 4, 32));
    Op::ConvStep { x, weight, window, out, shape: e.delta_shape() }
}

fn conv_chunk(e: &Edit) -> Op {
    match conv_step(e) {
        Op::ConvStep { x, weight, window, out, shape } => Op::ConvChunk { x, weight, window, out, shape },
        other => other,
    }
}

fn delta_gates(e: &Edit) -> Op {
    Op::DeltaGates {
        rows: RowSet::Target,
        ba: e.tensor("ba", F32, 4, 8),
        a_log: e.tensor("a_log", F32, 1, 4),
        dt_bias: e.tensor("dt_bias", BF16, 1, 4),
        out: e.tensor("out", F32, 4, 8),
    }
}

fn delta_step(e: &Edit) -> Op {
    Op::DeltaStep {
        qkv: e.tensor("qkv", BF16, 4, 32),
        gates: e.tensor("gates", F32, 4, 8),
        state: e.tensor("state", F32, 24, 5),
        records: e.tensor("records", F32, 8, 30),
        out: e.tensor("out", BF16, 4, 20),
        shape: e.delta_shape(),
    }
}

fn delta_chunk(e: &Edit) -> Op {
    match delta_step(e) {
        Op::DeltaStep { qkv, gates, state, out, shape, .. } => Op::DeltaChunk { qkv, gates, state, out, shape },
        other => other,
    }
}

fn gated_norm(e: &Edit) -> Op {
    Op::GatedNorm {
        rows: RowSet::Target,
        x: e.tensor("x", BF16, 4, 12),
        gate: e.tensor("gate", BF16, 4, 20),
        gate_col: e.count("gate_col", 8),
        weight: e.tensor("weight", BF16, 1, 4),
        out: e.tensor("out", BF16, 4, 12),
        eps: e.float("eps", 1e-6),
    }
}

fn fold_records(e: &Edit) -> Op {
    let (state, records) = (e.tensor("state", F32, 24, 5), e.tensor("records", F32, 8, 30));
    Op::FoldRecords { state, records, shape: e.delta_shape() }
}

fn fold_window(e: &Edit) -> Op {
    let window = e.tensor("window", BF16, 15, 32);
    Op::FoldWindow { window, slot_rows: e.count("slot_rows", 5), keep: e.count("keep", 3) }
}

fn copy_slots(e: &Edit) -> Op {
    let tensor = e.tensor("tensor", U32, 15, 2);
    Op::CopySlots { tensor, slot_rows: e.count("slot_rows", 5), list: CopyList::Slots }
}

fn store_rows(e: &Edit) -> Op {
    let (x, window) = (e.tensor("x", BF16, 7, 6), e.tensor("window", BF16, 15, 6));
    Op::StoreRows { x, window, slot_rows: e.count("slot_rows", 5) }
}

fn gather_resumes(e: &Edit) -> Op {
    let index = RowIndex::Resumes { slot_rows: 5 };
    Op::GatherRows { index, x: e.tensor("x", BF16, 15, 6), out: e.tensor("out", BF16, 4, 6) }
}

fn gather_rows(e: &Edit) -> Op {
    let index = RowIndex::Verdict { verdict: e.tensor("verdict", U32, 4, 4) };
    Op::GatherRows { index, x: e.tensor("x", BF16, 9, 6), out: e.tensor("out", BF16, 4, 6) }
}

fn mtp_join(e: &Edit) -> Op {
    Op::MtpJoin {
        rows: RowSet::Upkeep,
        embedding: e.tensor("embedding", F32, 4, 6),
        hidden: e.tensor("hidden", BF16, 4, 6),
        embedding_weight: e.tensor("embedding_weight", BF16, 1, 6),
        hidden_weight: e.tensor("hidden_weight", BF16, 1, 6),
        out: e.tensor("out", BF16, 4, 12),
        eps: e.float("eps", 1e-6),
    }
}

fn count_tokens(e: &Edit) -> Op {
    Op::CountTokens { counts: e.tensor("counts", U32, 3, 40) }
}

fn penalize(e: &Edit) -> Op {
    Op::Penalize {
        logits: e.tensor("logits", F32, 4, 40),
        counts: e.tensor("counts", U32, 3, 40),
        masks: e.tensor("masks", U32, 4, 2),
        scores: e.tensor("scores", F32, 4, 40),
        vocab_live: e.count("vocab_live", 37),
    }
}

fn sample(e: &Edit) -> Op {
    let (scores, out) = (e.tensor("scores", F32, 4, 40), e.tensor("out", U32, 1, 4));
    Op::Sample { scores, out, vocab_live: e.count("vocab_live", 37) }
}

fn top_logprobs(e: &Edit) -> Op {
    Op::TopLogprobs {
        logits: e.tensor("logits", F32, 4, 40),
        sampled: e.tensor("sampled", U32, 1, 4),
        out: e.tensor("out", U32, 4, 41),
        vocab_live: e.count("vocab_live", 37),
    }
}

fn argmax(e: &Edit) -> Op {
    Op::Argmax {
        rows: e.drafts(),
        x: e.tensor("x", F32, 4, 40),
        out: e.tensor("out", U32, 4, 3),
        out_col: e.count("out_col", 2),
        vocab_live: e.count("vocab_live", 37),
    }
}

fn accept(e: &Edit) -> Op {
    Op::Accept { sampled: e.tensor("sampled", U32, 1, 6), verdict: e.tensor("verdict", U32, 4, 4) }
}

const BUILDS: [Build; 27] = [
    embed,
    embed_drafts,
    rms_norm,
    matmul,
    matmul_gate_up,
    qk_norm_rope,
    kv_append,
    attention,
    conv_step,
    conv_chunk,
    delta_gates,
    delta_step,
    delta_chunk,
    gated_norm,
    fold_records,
    fold_window,
    copy_slots,
    store_rows,
    gather_resumes,
    gather_rows,
    mtp_join,
    count_tokens,
    penalize,
    sample,
    top_logprobs,
    argmax,
    accept,
];

/// An op, what is wrong, and the operand and rule that must be named.
type Failure = (Build, &'static str, Change, &'static str, Rule);

fn dtype(build: Build, name: &'static str, found: DType, allowed: &'static [DType]) -> Failure {
    (build, name, Change::Type(found), name, Rule::DType { found, allowed })
}

fn rows(build: Build, name: &'static str, found: u32, expected: u32) -> Failure {
    (build, name, Change::Rows(found), name, Rule::Rows { found, expected })
}

fn cols(build: Build, name: &'static str, found: u32, expected: u32) -> Failure {
    (build, name, Change::Cols(found), name, Rule::Cols { found, expected })
}

fn cols_at_least(build: Build, name: &'static str, found: u32, least: u32) -> Failure {
    (build, name, Change::Cols(found), name, Rule::ColsAtLeast { found, least })
}

fn multiple(build: Build, name: &'static str, found: u32, unit: u32) -> Failure {
    (build, name, Change::Rows(found), name, Rule::RowsMultipleOf { found, unit })
}

fn number(build: Build, name: &'static str, found: f64, expected: &'static str) -> Failure {
    // Floats travel as f32.
    let found = if found.fract() == 0.0 { found } else { f64::from(found as f32) };
    (build, name, Change::Number(found), name, Rule::Value { found, expected })
}

fn alias(build: Build, name: &'static str, with: &'static str, named: &'static str, other: &'static str) -> Failure {
    (build, name, Change::Buffer(with), named, Rule::Aliases { other })
}

/// A change whose error names another operand.
fn elsewhere(build: Build, name: &'static str, change: Change, operand: &'static str, rule: Rule) -> Failure {
    (build, name, change, operand, rule)
}

const FLOAT: &[DType] = &[F32];
const WORD: &[DType] = &[U32];
const ONLY_BF16: &[DType] = &[BF16];

fn row_failures() -> Vec<Failure> {
    vec![
        dtype(embed, "sampled", F32, WORD),
        dtype(embed, "table", U32, ACT),
        dtype(embed, "out", BF16, FLOAT),
        cols(embed, "out", 7, 6),
        dtype(embed_drafts, "drafts", BF16, WORD),
        cols_at_least(embed_drafts, "drafts", 1, 2),
        elsewhere(
            embed_drafts,
            "source pass",
            Change::Number(0.0),
            "pass",
            Rule::Value { found: 0.0, expected: "1 or more" },
        ),
        number(embed_drafts, "pass", 0.0, "1 or more"),
        dtype(embed_drafts, "verdict", F32, WORD),
        cols(embed_drafts, "verdict", 3, 4),
        dtype(rms_norm, "x", BF16, FLOAT),
        dtype(rms_norm, "add", BF16, FLOAT),
        rows(rms_norm, "add", 3, 4),
        cols(rms_norm, "add", 7, 6),
        dtype(rms_norm, "weight", U32, ACT),
        rows(rms_norm, "weight", 2, 1),
        cols(rms_norm, "weight", 5, 6),
        dtype(rms_norm, "out", U32, ACT),
        rows(rms_norm, "out", 5, 4),
        cols(rms_norm, "out", 8, 6),
        number(rms_norm, "eps", 0.0, "between 0 and 1"),
        number(rms_norm, "eps", 1.0, "between 0 and 1"),
        number(rms_norm, "eps", -1e-6, "between 0 and 1"),
        dtype(matmul, "x", U32, ACT),
        dtype(matmul, "weight", U32, ACT),
        cols(matmul, "weight", 7, 6),
        dtype(matmul, "out", U32, ACT),
        rows(matmul, "out", 3, 4),
        cols_at_least(matmul, "out", 6, 7),
        elsewhere(matmul, "out_col", Change::Number(3.0), "out", Rule::ColsAtLeast { found: 7, least: 8 }),
        elsewhere(matmul, "weight", Change::Rows(6), "out", Rule::ColsAtLeast { found: 7, least: 8 }),
        dtype(matmul_gate_up, "x", U32, ACT),
        dtype(matmul_gate_up, "up", U32, ACT),
        rows(matmul_gate_up, "up", 4, 5),
        cols(matmul_gate_up, "up", 5, 6),
        dtype(matmul_gate_up, "gate", U32, ACT),
        elsewhere(matmul_gate_up, "x", Change::Cols(7), "gate", Rule::Cols { found: 6, expected: 7 }),
        cols_at_least(matmul_gate_up, "out", 6, 7),
        rows(matmul_gate_up, "out", 5, 4),
        dtype(matmul_gate_up, "out", U32, ACT),
        dtype(mtp_join, "embedding", BF16, FLOAT),
        dtype(mtp_join, "hidden", U32, ACT),
        rows(mtp_join, "hidden", 3, 4),
        cols(mtp_join, "hidden", 5, 6),
        rows(mtp_join, "embedding_weight", 2, 1),
        cols(mtp_join, "embedding_weight", 5, 6),
        dtype(mtp_join, "hidden_weight", U32, ACT),
        cols(mtp_join, "hidden_weight", 5, 6),
        dtype(mtp_join, "out", U32, ACT),
        rows(mtp_join, "out", 3, 4),
        cols(mtp_join, "out", 6, 12),
        number(mtp_join, "eps", 2.0, "between 0 and 1"),
    ]
}

fn attention_failures() -> Vec<Failure> {
    let mut list = vec![
        dtype(qk_norm_rope, "q_weight", U32, ACT),
        rows(qk_norm_rope, "q_weight", 2, 1),
        cols(qk_norm_rope, "q_weight", 4, 8),
        dtype(qk_norm_rope, "k_weight", U32, ACT),
        cols(qk_norm_rope, "k_weight", 16, 8),
        number(qk_norm_rope, "rotary_dims", 0.0, "even, positive, at most head_dim"),
        number(qk_norm_rope, "rotary_dims", 3.0, "even, positive, at most head_dim"),
        number(qk_norm_rope, "rotary_dims", 10.0, "even, positive, at most head_dim"),
        number(qk_norm_rope, "theta", 1.0, "finite and above 1"),
        number(qk_norm_rope, "theta", f64::INFINITY, "finite and above 1"),
        number(qk_norm_rope, "eps", 0.0, "between 0 and 1"),
        dtype(attention, "out", U32, ACT),
        rows(attention, "out", 3, 4),
        cols(attention, "out", 47, 48),
    ];
    for build in [qk_norm_rope as Build, kv_append, attention] {
        list.extend([
            dtype(build, "qkv", U32, ACT),
            cols(build, "qkv", 127, 128),
            number(build, "heads", 5.0, "a multiple of kv_heads"),
            elsewhere(
                build,
                "kv_heads",
                Change::Number(0.0),
                "heads",
                Rule::Value { found: 6.0, expected: "a multiple of kv_heads" },
            ),
            number(build, "page_tokens", 0.0, "1 or more"),
            dtype(build, "verdict", F32, WORD),
            cols(build, "verdict", 5, 4),
            number(build, "pass", 0.0, "1 or more"),
        ]);
    }
    for build in [kv_append as Build, attention] {
        list.extend([
            dtype(build, "keys", U32, ACT),
            cols(build, "keys", 15, 16),
            multiple(build, "keys", 13, 4),
            multiple(build, "keys", 0, 4),
            dtype(build, "values", F32, ONLY_BF16),
            rows(build, "values", 8, 12),
            cols(build, "values", 17, 16),
            elsewhere(build, "keys", Change::Type(F32), "values", Rule::DType { found: BF16, allowed: FLOAT }),
        ]);
    }
    list
}

fn delta_failures() -> Vec<Failure> {
    let mut list = Vec::new();
    for build in [conv_step as Build, conv_chunk] {
        list.extend([
            dtype(build, "x", U32, ACT),
            cols_at_least(build, "x", 31, 32),
            dtype(build, "weight", U32, ACT),
            rows(build, "weight", 31, 32),
            cols(build, "weight", 3, 4),
            dtype(build, "window", U32, ACT),
            cols(build, "window", 33, 32),
            multiple(build, "window", 14, 5),
            dtype(build, "out", U32, ACT),
            rows(build, "out", 5, 4),
            cols(build, "out", 40, 32),
        ]);
    }
    for build in [delta_step as Build, delta_chunk] {
        list.extend([
            dtype(build, "qkv", U32, ACT),
            cols(build, "qkv", 31, 32),
            dtype(build, "gates", BF16, FLOAT),
            rows(build, "gates", 3, 4),
            cols(build, "gates", 4, 8),
            dtype(build, "out", U32, ACT),
            rows(build, "out", 3, 4),
            cols(build, "out", 12, 20),
        ]);
    }
    for build in [delta_step as Build, delta_chunk, fold_records] {
        list.extend([dtype(build, "state", BF16, FLOAT), cols(build, "state", 3, 5), multiple(build, "state", 23, 12)]);
    }
    for build in [delta_step as Build, fold_records] {
        list.extend([
            dtype(build, "records", BF16, FLOAT),
            cols(build, "records", 29, 30),
            multiple(build, "records", 6, 4),
        ]);
    }
    for build in [conv_step as Build, conv_chunk, delta_step, delta_chunk, fold_records] {
        list.extend([
            number(build, "value_heads", 5.0, "a multiple of key_heads"),
            elsewhere(
                build,
                "key_heads",
                Change::Number(0.0),
                "value_heads",
                Rule::Value { found: 4.0, expected: "a multiple of key_heads" },
            ),
            number(build, "drafts_max", 0.0, "1 or more"),
        ]);
    }
    list
}

fn gate_failures() -> Vec<Failure> {
    vec![
        dtype(delta_gates, "ba", BF16, FLOAT),
        cols(delta_gates, "ba", 9, 8),
        dtype(delta_gates, "a_log", U32, ACT),
        rows(delta_gates, "a_log", 2, 1),
        cols(delta_gates, "a_log", 3, 4),
        dtype(delta_gates, "dt_bias", U32, ACT),
        cols(delta_gates, "dt_bias", 5, 4),
        dtype(delta_gates, "out", BF16, FLOAT),
        rows(delta_gates, "out", 3, 4),
        cols(delta_gates, "out", 4, 8),
        dtype(gated_norm, "x", U32, ACT),
        dtype(gated_norm, "gate", U32, ACT),
        rows(gated_norm, "gate", 3, 4),
        cols_at_least(gated_norm, "gate", 19, 20),
        elsewhere(gated_norm, "gate_col", Change::Number(9.0), "gate", Rule::ColsAtLeast { found: 20, least: 21 }),
        dtype(gated_norm, "weight", U32, ACT),
        rows(gated_norm, "weight", 2, 1),
        elsewhere(
            gated_norm,
            "weight",
            Change::Cols(5),
            "weight",
            Rule::Value { found: 5.0, expected: "columns that divide those of x" },
        ),
        elsewhere(
            gated_norm,
            "weight",
            Change::Cols(0),
            "weight",
            Rule::Value { found: 0.0, expected: "columns that divide those of x" },
        ),
        dtype(gated_norm, "out", U32, ACT),
        rows(gated_norm, "out", 3, 4),
        cols(gated_norm, "out", 8, 12),
        number(gated_norm, "eps", 0.0, "between 0 and 1"),
    ]
}

fn slot_and_head_failures() -> Vec<Failure> {
    let mut list = vec![
        dtype(fold_window, "window", U32, ACT),
        multiple(fold_window, "window", 16, 5),
        number(fold_window, "keep", 0.0, "1 to slot_rows"),
        number(fold_window, "keep", 6.0, "1 to slot_rows"),
        elsewhere(fold_window, "slot_rows", Change::Number(0.0), "window", Rule::RowsMultipleOf { found: 15, unit: 0 }),
        multiple(copy_slots, "tensor", 14, 5),
        multiple(copy_slots, "tensor", 0, 5),
        dtype(store_rows, "x", U32, ACT),
        dtype(store_rows, "window", F32, ONLY_BF16),
        multiple(store_rows, "window", 16, 5),
        multiple(gather_resumes, "x", 16, 5),
        dtype(gather_rows, "x", U32, ACT),
        dtype(gather_rows, "out", F32, ONLY_BF16),
        cols(gather_rows, "out", 5, 6),
        rows(gather_rows, "verdict", 3, 4),
        dtype(gather_rows, "verdict", F32, WORD),
        cols(gather_rows, "verdict", 2, 4),
        dtype(count_tokens, "counts", F32, WORD),
        dtype(penalize, "logits", BF16, FLOAT),
        dtype(penalize, "counts", F32, WORD),
        cols(penalize, "counts", 41, 40),
        dtype(penalize, "masks", F32, WORD),
        cols(penalize, "masks", 1, 2),
        dtype(penalize, "scores", BF16, FLOAT),
        rows(penalize, "scores", 3, 4),
        cols(penalize, "scores", 37, 40),
        dtype(sample, "scores", BF16, FLOAT),
        dtype(sample, "out", F32, WORD),
        rows(sample, "out", 4, 1),
        cols(sample, "out", 3, 4),
        dtype(top_logprobs, "logits", BF16, FLOAT),
        dtype(top_logprobs, "sampled", F32, WORD),
        rows(top_logprobs, "sampled", 2, 1),
        cols(top_logprobs, "sampled", 5, 4),
        dtype(top_logprobs, "out", F32, WORD),
        rows(top_logprobs, "out", 3, 4),
        cols(top_logprobs, "out", 40, 41),
        dtype(argmax, "x", BF16, FLOAT),
        dtype(argmax, "out", F32, WORD),
        rows(argmax, "out", 3, 4),
        cols_at_least(argmax, "out", 2, 3),
        elsewhere(argmax, "out_col", Change::Number(3.0), "out", Rule::ColsAtLeast { found: 3, least: 4 }),
        number(argmax, "pass", 0.0, "1 or more"),
        dtype(accept, "sampled", F32, WORD),
        rows(accept, "sampled", 2, 1),
        dtype(accept, "verdict", F32, WORD),
        cols(accept, "verdict", 5, 4),
    ];
    for build in [penalize as Build, sample, top_logprobs, argmax] {
        for found in [0.0, 41.0] {
            list.push(number(build, "vocab_live", found, "1 to the columns of the logits"));
        }
    }
    list
}

/// An output in the buffer of each input; the error names the later operand first.
fn alias_failures() -> Vec<Failure> {
    vec![
        alias(embed, "out", "table", "out", "table"),
        alias(embed, "out", "sampled", "out", "sampled"),
        alias(rms_norm, "out", "x", "out", "x"),
        alias(rms_norm, "x", "add", "x", "add"),
        alias(rms_norm, "weight", "x", "weight", "x"),
        alias(matmul, "out", "x", "out", "x"),
        alias(matmul_gate_up, "out", "up", "out", "up"),
        alias(qk_norm_rope, "k_weight", "qkv", "k_weight", "qkv"),
        alias(qk_norm_rope, "qkv", "verdict", "qkv", "verdict"),
        alias(kv_append, "values", "keys", "values", "keys"),
        alias(kv_append, "keys", "qkv", "keys", "qkv"),
        alias(attention, "out", "keys", "out", "keys"),
        alias(conv_step, "window", "x", "window", "x"),
        alias(conv_chunk, "out", "window", "out", "window"),
        alias(delta_gates, "out", "ba", "out", "ba"),
        alias(delta_step, "records", "state", "records", "state"),
        alias(delta_chunk, "out", "gates", "out", "gates"),
        alias(gated_norm, "out", "gate", "out", "gate"),
        alias(fold_records, "records", "state", "records", "state"),
        alias(gather_rows, "out", "x", "out", "x"),
        alias(mtp_join, "out", "hidden_weight", "out", "hidden_weight"),
        alias(penalize, "scores", "logits", "scores", "logits"),
        alias(sample, "out", "scores", "out", "scores"),
        alias(top_logprobs, "out", "sampled", "out", "sampled"),
        alias(argmax, "out", "x", "out", "x"),
        alias(accept, "verdict", "sampled", "verdict", "sampled"),
    ]
}

pub fn trials() -> Vec<Trial> {
    let lists = [
        row_failures(),
        attention_failures(),
        delta_failures(),
        gate_failures(),
        slot_and_head_failures(),
        alias_failures(),
    ];
    let mut trials = vec![
        Trial::test("errors/ops_without_a_fault_pass", || {
            sound_ops();
            Ok(())
        }),
        Trial::test("errors/inputs_may_share_a_buffer", || {
            let shared = Edit { name: "k_weight", change: Change::Buffer("q_weight") };
            assert_eq!(qk_norm_rope(&shared).check(), Ok(()));
            let shared = Edit { name: "up", change: Change::Buffer("gate") };
            assert_eq!(matmul_gate_up(&shared).check(), Ok(()));
            Ok(())
        }),
    ];
    let mut names = BTreeSet::new();
    for (build, name, change, operand, rule) in lists.into_iter().flatten() {
        let op = sound(build).name();
        let title = format!("errors/{op}: {name} {change:?}");
        assert!(names.insert(title.clone()), "{title} is listed twice");
        trials.push(Trial::test(title, move || {
            let found = build(&Edit { name, change }).check();
            assert_eq!(found, Err(OpError { op, operand, rule: rule.clone() }));
            let text = found.expect_err("checked above").to_string();
            assert!(text.starts_with(&format!("{op}: {operand} ")), "{text}");
            Ok(())
        }));
    }
    trials
}

fn sound(build: Build) -> Op {
    build(&Edit { name: "", change: Change::Nothing })
}

/// The ops that the failures start from are right, cover every op, and stay below the operand limit.
fn sound_ops() {
    let mut names = BTreeSet::new();
    for build in BUILDS {
        let op = sound(build);
        assert_eq!(op.check(), Ok(()), "{}", op.name());
        assert!(op.operands().len() < OPERANDS_MAX, "{} may fail with TooMany and needs a case", op.name());
        names.insert(op.name());
    }
    assert_eq!(names.len(), 25, "an op has no case: {names:?}");
}
