//! The shapes that every op demands of its operands, on every backend. One place, so that no backend accepts what
//! another would refuse.

use std::fmt;

use super::op::{
    Access, AttentionShape, CONV_LOOKBACK, DeltaShape, LOGPROB_WORDS, Op, RowIndex, RowSet, TokenSource, VERDICT_WORDS,
};
use super::tensor::Tensor;
use crate::base::DType;

/// Storage operands of one op, the step inputs included: WebGPU's default limit, kept everywhere so that no op
/// drifts out of portability.
pub const OPERANDS_MAX: usize = 8;

/// What is wrong with one operand of one op.
#[derive(Debug, Clone, PartialEq)]
pub struct OpError {
    pub op: &'static str,
    pub operand: &'static str,
    pub rule: Rule,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Rule {
    DType {
        found: DType,
        allowed: &'static [DType],
    },
    Rows {
        found: u32,
        expected: u32,
    },
    Cols {
        found: u32,
        expected: u32,
    },
    ColsAtLeast {
        found: u32,
        least: u32,
    },
    RowsMultipleOf {
        found: u32,
        unit: u32,
    },
    Value {
        found: f64,
        expected: &'static str,
    },
    /// The same buffer as another operand; WebGPU refuses that where one of them is written.
    Aliases {
        other: &'static str,
    },
    TooMany {
        found: usize,
        limit: usize,
    },
}

impl fmt::Display for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ", self.op, self.operand)?;
        match &self.rule {
            Rule::DType { found, allowed } => write!(f, "is {found}, expected one of {allowed:?}"),
            Rule::Rows { found, expected } => write!(f, "has {found} rows, expected {expected}"),
            Rule::Cols { found, expected } => write!(f, "has {found} columns, expected {expected}"),
            Rule::ColsAtLeast { found, least } => write!(f, "has {found} columns, expected at least {least}"),
            Rule::RowsMultipleOf { found, unit } => write!(f, "has {found} rows, expected a multiple of {unit}"),
            Rule::Value { found, expected } => write!(f, "is {found}, expected {expected}"),
            Rule::Aliases { other } => write!(f, "is the buffer of {other} too"),
            Rule::TooMany { found, limit } => write!(f, "number {found}, the limit is {limit}"),
        }
    }
}

impl std::error::Error for OpError {}

type Checked = Result<(), OpError>;

const ACT: &[DType] = &[DType::Bf16, DType::F32];
const F32: &[DType] = &[DType::F32];
const U32: &[DType] = &[DType::U32];

impl Op {
    /// Whether the operands fit the op's contract.
    pub fn check(&self) -> Checked {
        let check = Check { op: self.name() };
        check.operands(self)?;
        if let Some(RowSet::Drafts { pass, verdict }) = self.rows() {
            check.tensor("verdict", verdict, U32, None, VERDICT_WORDS)?;
            check.value("pass", f64::from(pass), pass >= 1, "1 or more")?;
        }
        match *self {
            Op::Embed { tokens, table, out, .. } => {
                match tokens {
                    TokenSource::Step => {}
                    TokenSource::Next { sampled } => check.dtype("sampled", sampled, U32)?,
                    TokenSource::Draft { drafts, pass } => {
                        check.dtype("drafts", drafts, U32)?;
                        check.value("pass", f64::from(pass), pass >= 1, "1 or more")?;
                        check.cols_at_least("drafts", drafts, pass)?;
                    }
                }
                check.dtype("table", table, ACT)?;
                check.tensor("out", out, F32, None, table.cols)
            }
            Op::RmsNorm { add, x, weight, out, eps, .. } => {
                check.eps(eps)?;
                check.dtype("x", x, F32)?;
                if let Some(add) = add {
                    check.tensor("add", add, F32, Some(x.rows), x.cols)?;
                }
                check.tensor("weight", weight, ACT, Some(1), x.cols)?;
                check.tensor("out", out, ACT, Some(x.rows), x.cols)
            }
            Op::MatMul { x, weight, out, out_col, .. } => check.matmul(x, &[("weight", weight)], out, out_col),
            Op::MatMulGateUp { x, gate, up, out, out_col, .. } => {
                check.tensor("up", up, ACT, Some(gate.rows), gate.cols)?;
                check.matmul(x, &[("gate", gate), ("up", up)], out, out_col)
            }
            Op::QkNormRope { qkv, q_weight, k_weight, shape, rotary_dims, theta, eps, .. } => {
                check.eps(eps)?;
                check.attention_shape(shape)?;
                check.tensor("qkv", qkv, ACT, None, shape.qkv_cols())?;
                check.tensor("q_weight", q_weight, ACT, Some(1), shape.head_dim)?;
                check.tensor("k_weight", k_weight, ACT, Some(1), shape.head_dim)?;
                let fits = rotary_dims > 0 && rotary_dims.is_multiple_of(2) && rotary_dims <= shape.head_dim;
                check.value("rotary_dims", f64::from(rotary_dims), fits, "even, positive, at most head_dim")?;
                check.value("theta", f64::from(theta), theta > 1.0 && theta.is_finite(), "finite and above 1")
            }
            Op::KvAppend { qkv, keys, values, shape, .. } => {
                check.attention_shape(shape)?;
                check.tensor("qkv", qkv, ACT, None, shape.qkv_cols())?;
                check.cache(keys, values, shape)
            }
            Op::Attention { qkv, keys, values, out, shape, .. } => {
                check.attention_shape(shape)?;
                check.tensor("qkv", qkv, ACT, None, shape.qkv_cols())?;
                check.cache(keys, values, shape)?;
                check.tensor("out", out, ACT, Some(qkv.rows), shape.out_cols())
            }
            Op::ConvStep { x, weight, window, out, shape } | Op::ConvChunk { x, weight, window, out, shape } => {
                check.delta_shape(shape)?;
                check.dtype("x", x, ACT)?;
                check.cols_at_least("x", x, shape.conv_cols())?;
                check.tensor("weight", weight, ACT, Some(shape.conv_cols()), CONV_LOOKBACK + 1)?;
                check.tensor("window", window, ACT, None, shape.conv_cols())?;
                check.rows_multiple_of("window", window, shape.window_rows())?;
                check.tensor("out", out, ACT, Some(x.rows), shape.conv_cols())
            }
            Op::DeltaGates { ba, a_log, dt_bias, out, .. } => {
                check.dtype("ba", ba, F32)?;
                check.tensor("a_log", a_log, ACT, Some(1), ba.cols / 2)?;
                check.tensor("dt_bias", dt_bias, ACT, Some(1), ba.cols / 2)?;
                check.tensor("out", out, F32, Some(ba.rows), 2 * a_log.cols)?;
                check.tensor("ba", ba, F32, Some(out.rows), out.cols)
            }
            Op::DeltaStep { qkv, gates, state, records, out, shape } => {
                check.delta(qkv, gates, state, out, shape)?;
                check.records(records, shape)
            }
            Op::DeltaChunk { qkv, gates, state, out, shape } => check.delta(qkv, gates, state, out, shape),
            Op::GatedNorm { x, gate, gate_col, weight, out, eps, .. } => {
                check.eps(eps)?;
                check.dtype("x", x, ACT)?;
                check.dtype("gate", gate, ACT)?;
                check.rows("gate", gate, x.rows)?;
                check.cols_at_least("gate", gate, gate_col + x.cols)?;
                check.tensor("weight", weight, ACT, Some(1), weight.cols)?;
                let whole = weight.cols > 0 && x.cols.is_multiple_of(weight.cols);
                check.value("weight", f64::from(weight.cols), whole, "columns that divide those of x")?;
                check.tensor("out", out, ACT, Some(x.rows), x.cols)
            }
            Op::FoldRecords { state, records, shape } => {
                check.delta_shape(shape)?;
                check.state(state, shape)?;
                check.records(records, shape)
            }
            Op::FoldWindow { window, slot_rows, keep } => {
                check.dtype("window", window, ACT)?;
                check.rows_multiple_of("window", window, slot_rows)?;
                check.value("keep", f64::from(keep), keep >= 1 && keep <= slot_rows, "1 to slot_rows")
            }
            Op::CopySlots { tensor, slot_rows, .. } => check.rows_multiple_of("tensor", tensor, slot_rows),
            Op::StoreRows { x, window, slot_rows } => {
                check.dtype("x", x, ACT)?;
                check.same_dtype("window", window, x)?;
                check.cols("window", window, x.cols)?;
                check.rows_multiple_of("window", window, slot_rows)
            }
            Op::GatherRows { index, x, out } => {
                match index {
                    RowIndex::Logits => {}
                    RowIndex::Verdict { verdict } => check.rows("verdict", verdict, out.rows)?,
                    RowIndex::Resumes { slot_rows } => check.rows_multiple_of("x", x, slot_rows)?,
                }
                check.dtype("x", x, ACT)?;
                check.same_dtype("out", out, x)?;
                check.cols("out", out, x.cols)
            }
            Op::MtpJoin { embedding, hidden, embedding_weight, hidden_weight, out, eps, .. } => {
                check.eps(eps)?;
                check.dtype("embedding", embedding, F32)?;
                check.tensor("hidden", hidden, ACT, Some(embedding.rows), embedding.cols)?;
                check.tensor("embedding_weight", embedding_weight, ACT, Some(1), embedding.cols)?;
                check.tensor("hidden_weight", hidden_weight, ACT, Some(1), embedding.cols)?;
                check.tensor("out", out, ACT, Some(embedding.rows), 2 * embedding.cols)
            }
            Op::CountTokens { counts } => check.dtype("counts", counts, U32),
            Op::Penalize { logits, counts, masks, scores, vocab_live } => {
                check.vocab(logits, "logits", vocab_live)?;
                check.tensor("counts", counts, U32, None, logits.cols)?;
                check.tensor("masks", masks, U32, None, logits.cols.div_ceil(32))?;
                check.tensor("scores", scores, F32, Some(logits.rows), logits.cols)
            }
            Op::Sample { scores, out, vocab_live } => {
                check.vocab(scores, "scores", vocab_live)?;
                check.tensor("out", out, U32, Some(1), scores.rows)
            }
            Op::TopLogprobs { logits, sampled, out, vocab_live } => {
                check.vocab(logits, "logits", vocab_live)?;
                check.tensor("sampled", sampled, U32, Some(1), logits.rows)?;
                check.tensor("out", out, U32, Some(logits.rows), LOGPROB_WORDS)
            }
            Op::Argmax { x, out, out_col, vocab_live, .. } => {
                check.vocab(x, "x", vocab_live)?;
                check.dtype("out", out, U32)?;
                check.rows("out", out, x.rows)?;
                check.cols_at_least("out", out, out_col + 1)
            }
            Op::Accept { sampled, verdict } => {
                check.dtype("sampled", sampled, U32)?;
                check.rows("sampled", sampled, 1)?;
                check.tensor("verdict", verdict, U32, None, VERDICT_WORDS)
            }
        }
    }
}

struct Check {
    op: &'static str,
}

impl Check {
    fn fail(&self, operand: &'static str, rule: Rule) -> Checked {
        Err(OpError { op: self.op, operand, rule })
    }

    fn require(&self, holds: bool, operand: &'static str, rule: Rule) -> Checked {
        if holds { Ok(()) } else { self.fail(operand, rule) }
    }

    /// Few enough operands for every backend, and no buffer twice where one access writes.
    fn operands(&self, op: &Op) -> Checked {
        let list = op.operands();
        let found = list.len() + 1;
        self.require(found <= OPERANDS_MAX, "operands", Rule::TooMany { found, limit: OPERANDS_MAX })?;
        for (index, a) in list.iter().enumerate() {
            for b in &list[..index] {
                let written = a.access != Access::Read || b.access != Access::Read;
                let same = a.tensor.buffer == b.tensor.buffer;
                self.require(!(same && written), a.name, Rule::Aliases { other: b.name })?;
            }
        }
        Ok(())
    }

    fn dtype(&self, operand: &'static str, tensor: Tensor, allowed: &'static [DType]) -> Checked {
        let found = tensor.dtype;
        self.require(allowed.contains(&found), operand, Rule::DType { found, allowed })
    }

    fn same_dtype(&self, operand: &'static str, tensor: Tensor, other: Tensor) -> Checked {
        let allowed = match other.dtype {
            DType::F32 => F32,
            DType::U32 => U32,
            DType::Bf16 => &[DType::Bf16],
        };
        self.dtype(operand, tensor, allowed)
    }

    fn rows(&self, operand: &'static str, tensor: Tensor, expected: u32) -> Checked {
        self.require(tensor.rows == expected, operand, Rule::Rows { found: tensor.rows, expected })
    }

    fn rows_multiple_of(&self, operand: &'static str, tensor: Tensor, unit: u32) -> Checked {
        let found = tensor.rows;
        let whole = unit > 0 && found > 0 && found.is_multiple_of(unit);
        self.require(whole, operand, Rule::RowsMultipleOf { found, unit })
    }

    fn cols(&self, operand: &'static str, tensor: Tensor, expected: u32) -> Checked {
        self.require(tensor.cols == expected, operand, Rule::Cols { found: tensor.cols, expected })
    }

    fn cols_at_least(&self, operand: &'static str, tensor: Tensor, least: u32) -> Checked {
        self.require(tensor.cols >= least, operand, Rule::ColsAtLeast { found: tensor.cols, least })
    }

    fn tensor(
        &self,
        operand: &'static str,
        tensor: Tensor,
        allowed: &'static [DType],
        rows: Option<u32>,
        cols: u32,
    ) -> Checked {
        self.dtype(operand, tensor, allowed)?;
        if let Some(rows) = rows {
            self.rows(operand, tensor, rows)?;
        }
        self.cols(operand, tensor, cols)
    }

    fn value(&self, operand: &'static str, found: f64, holds: bool, expected: &'static str) -> Checked {
        self.require(holds, operand, Rule::Value { found, expected })
    }

    fn eps(&self, eps: f32) -> Checked {
        self.value("eps", f64::from(eps), eps > 0.0 && eps < 1.0, "between 0 and 1")
    }

    fn matmul(&self, x: Tensor, weights: &[(&'static str, Tensor)], out: Tensor, out_col: u32) -> Checked {
        self.dtype("x", x, ACT)?;
        for (name, weight) in weights {
            self.tensor(name, *weight, ACT, None, x.cols)?;
            self.cols_at_least("out", out, out_col + weight.rows)?;
        }
        self.dtype("out", out, ACT)?;
        self.rows("out", out, x.rows)
    }

    fn attention_shape(&self, shape: AttentionShape) -> Checked {
        let whole = shape.kv_heads > 0 && shape.heads.is_multiple_of(shape.kv_heads);
        self.value("heads", f64::from(shape.heads), whole, "a multiple of kv_heads")?;
        self.value("page_tokens", f64::from(shape.page_tokens), shape.page_tokens > 0, "1 or more")
    }

    fn cache(&self, keys: Tensor, values: Tensor, shape: AttentionShape) -> Checked {
        self.tensor("keys", keys, ACT, None, shape.kv_cols())?;
        self.rows_multiple_of("keys", keys, shape.page_tokens)?;
        self.same_dtype("values", values, keys)?;
        self.rows("values", values, keys.rows)?;
        self.cols("values", values, shape.kv_cols())
    }

    fn delta_shape(&self, shape: DeltaShape) -> Checked {
        let whole = shape.key_heads > 0 && shape.value_heads.is_multiple_of(shape.key_heads);
        self.value("value_heads", f64::from(shape.value_heads), whole, "a multiple of key_heads")?;
        self.value("drafts_max", f64::from(shape.drafts_max), shape.drafts_max > 0, "1 or more")
    }

    fn delta(&self, qkv: Tensor, gates: Tensor, state: Tensor, out: Tensor, shape: DeltaShape) -> Checked {
        self.delta_shape(shape)?;
        self.tensor("qkv", qkv, ACT, None, shape.conv_cols())?;
        self.tensor("gates", gates, F32, Some(qkv.rows), 2 * shape.value_heads)?;
        self.state(state, shape)?;
        self.tensor("out", out, ACT, Some(qkv.rows), shape.value_cols())
    }

    fn state(&self, state: Tensor, shape: DeltaShape) -> Checked {
        self.tensor("state", state, F32, None, shape.value_dim)?;
        self.rows_multiple_of("state", state, shape.state_rows())
    }

    fn records(&self, records: Tensor, shape: DeltaShape) -> Checked {
        self.tensor("records", records, F32, None, shape.record_cols())?;
        self.rows_multiple_of("records", records, shape.record_rows())
    }

    fn vocab(&self, logits: Tensor, operand: &'static str, vocab_live: u32) -> Checked {
        self.dtype(operand, logits, F32)?;
        let fits = vocab_live > 0 && vocab_live <= logits.cols;
        self.value("vocab_live", f64::from(vocab_live), fits, "1 to the columns of the logits")
    }
}
