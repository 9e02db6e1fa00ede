//! The ops: one fused kernel's worth of meaning each, as plain data. The doc comment of a variant is the contract of
//! its kernels on every backend; `check.rs` enforces the shapes.
//!
//! Conventions. A matrix is `[rows, cols]`. `act` is the activation type, bf16 or f32; the same in a whole program.
//! Sums are f32. A value is rounded once, when it is stored to a bf16 operand. Ops over rows compute the live rows of
//! their [`RowSet`]; what the rows beyond hold afterwards is undefined, and nobody reads it.

use super::tensor::Tensor;

/// Which rows an op runs over, hence how many are live and where their positions come from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RowSet {
    /// The step's rows: Header::Rows, Section::Position.
    Target,
    /// The same rows as entries of the draft head's cache: one position later.
    Upkeep,
    /// Rows gathered for the head: Header::LogitRows.
    Logits,
    /// One row for each sequence that samples: Header::DraftRows. With c the position in its `verdict` row, draft
    /// pass j (1, 2, ...) works at entry c + j - 1.
    Drafts { pass: u32, verdict: Tensor },
    /// One row for each sequence whose draft head entry at its first position must be made anew before the step:
    /// Header::Resumes, Section::Resume. Token and position are those of the sequence's first row.
    Resumes,
}

/// Where Embed finds token ids.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TokenSource {
    /// Section::Token.
    Step,
    /// Section::NextToken; words with the SAMPLED bit take theirs from `sampled[logit row]`.
    Next { sampled: Tensor },
    /// Column `pass - 1` of `drafts[draft row]`, the draft of an earlier pass.
    Draft { drafts: Tensor, pass: u32 },
}

/// Which row of `x` each gathered row is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RowIndex {
    /// Section::LogitRow.
    Logits,
    /// The `row` word of the verdict of each draft row.
    Verdict { verdict: Tensor },
    /// Row `pending` of the slot's window of each resumed sequence; `slot_rows` rows a slot.
    Resumes { slot_rows: u32 },
}

/// Which list of (source, destination) pairs a copy follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyList {
    /// Section::Copy: recurrent slots; a source of NONE means zeros.
    Slots,
    /// Section::PageCopy: pages of the KV cache.
    Pages,
}

/// Extents of gated attention. `qkv` rows hold, per query head, `head_dim` of query then `head_dim` of gate; after
/// all heads the keys of all KV heads, then the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    /// Tokens of one page of the KV cache.
    pub page_tokens: u32,
}

impl AttentionShape {
    pub fn query_cols(self) -> u32 {
        2 * self.heads * self.head_dim
    }

    pub fn kv_cols(self) -> u32 {
        self.kv_heads * self.head_dim
    }

    pub fn qkv_cols(self) -> u32 {
        self.query_cols() + 2 * self.kv_cols()
    }

    pub fn out_cols(self) -> u32 {
        self.heads * self.head_dim
    }
}

/// Extents of the gated delta rule. Value head n uses key head `n / (value_heads / key_heads)`.
///
/// Convolved rows hold q of all key heads, then k of all key heads, then v of all value heads. A state tensor is
/// `[slots * value_heads * key_dim, value_dim]` f32, in that order. A records tensor is
/// `[slots * 2 * drafts_max, record_cols]` f32: row `(slot * 2 + half) * drafts_max + draft` holds k of all key heads
/// (after the L2 norm), e of all value heads, alpha of all value heads. A conv window is
/// `[slots * (3 + drafts_max), conv_cols]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaShape {
    pub key_heads: u32,
    pub value_heads: u32,
    pub key_dim: u32,
    pub value_dim: u32,
    /// Draft rows that a slot has room for; at least 1, so that the tensors exist.
    pub drafts_max: u32,
}

/// Raw inputs that the causal convolution looks back on: its width (4) less one.
pub const CONV_LOOKBACK: u32 = 3;

impl DeltaShape {
    pub fn key_cols(self) -> u32 {
        self.key_heads * self.key_dim
    }

    pub fn value_cols(self) -> u32 {
        self.value_heads * self.value_dim
    }

    pub fn conv_cols(self) -> u32 {
        2 * self.key_cols() + self.value_cols()
    }

    pub fn state_rows(self) -> u32 {
        self.value_heads * self.key_dim
    }

    pub fn record_cols(self) -> u32 {
        self.key_cols() + self.value_cols() + self.value_heads
    }

    pub fn record_rows(self) -> u32 {
        2 * self.drafts_max
    }

    pub fn window_rows(self) -> u32 {
        CONV_LOOKBACK + self.drafts_max
    }
}

/// Words of one row of a verdict tensor `[draft rows, 4]` u32, written by Accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum VerdictWord {
    /// Drafts that equal the token the target sampled at their row: 0..=d.
    Accepted,
    /// The token sampled after the last accepted one; it is not computed yet.
    NextToken,
    /// The row of the last token that stands.
    Row,
    /// Computed tokens after this step, which is the position of `NextToken`.
    Position,
}

pub const VERDICT_WORDS: u32 = 4;

/// Alternatives that TopLogprobs reports per logit row.
pub const TOP_LOGPROBS: u32 = 20;
/// Words of a logprobs row: the sampled token's logprob, then TOP_LOGPROBS ids, then their logprobs. Floats by bits.
pub const LOGPROB_WORDS: u32 = 1 + 2 * TOP_LOGPROBS;

/// One recorded operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Op {
    /// `out[r] = table[token[r] - first_token]` for tokens that this part of the table holds; other rows untouched.
    /// table: [part of the vocabulary, hidden] bf16 or f32. out: [rows, hidden] f32.
    Embed { rows: RowSet, tokens: TokenSource, table: Tensor, first_token: u32, out: Tensor },

    /// `x += add` where given, then `out = x / sqrt(mean(x^2) + eps) * (1 + weight)`.
    /// x, add: [rows, hidden] f32; x is written only where `add` is given. weight: [1, hidden]. out: [rows, hidden]
    /// act.
    RmsNorm { rows: RowSet, add: Option<Tensor>, x: Tensor, weight: Tensor, out: Tensor, eps: f32 },

    /// `out[r, out_col + j] = sum_k x[r, k] * weight[j, k]`.
    /// x: [rows, k] act. weight: [n, k] bf16 or f32, one row part of a matrix. out: [rows, at least out_col + n].
    MatMul { rows: RowSet, x: Tensor, weight: Tensor, out: Tensor, out_col: u32 },

    /// `out[r, out_col + j] = silu(x[r] . gate[j]) * (x[r] . up[j])`, `silu(a) = a / (1 + exp(-a))`.
    /// x: [rows, k] act. gate, up: [n, k]. out: [rows, at least out_col + n] act.
    MatMulGateUp { rows: RowSet, x: Tensor, gate: Tensor, up: Tensor, out: Tensor, out_col: u32 },

    /// In place on the queries and keys of `qkv`, per head: `y = x / sqrt(mean(x^2) + eps) * (1 + weight)`, then
    /// rotation of the first `rotary_dims`: pairs (d, d + rotary_dims / 2) by the angle
    /// `position * theta^(-2 d / rotary_dims)`. Angles f32. Gates and values untouched.
    /// qkv: [rows, qkv_cols] act. q_weight, k_weight: [1, head_dim].
    QkNormRope {
        rows: RowSet,
        qkv: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        shape: AttentionShape,
        rotary_dims: u32,
        theta: f32,
        eps: f32,
    },

    /// Stores the keys and values of each row in the cell of its position.
    /// qkv: [rows, qkv_cols] act. keys, values: [pages * page_tokens, kv_cols] act.
    KvAppend { rows: RowSet, qkv: Tensor, keys: Tensor, values: Tensor, shape: AttentionShape },

    /// `out[r, h] = softmax_j(q[r, h] . k[j, h'] / sqrt(head_dim)) v[j, h'] * sigmoid(gate[r, h])` over the entries
    /// `first_entry ..= position[r]` of the row's sequence, with h' = h / (heads / kv_heads). Softmax f32.
    /// out: [rows, heads * head_dim] act.
    Attention {
        rows: RowSet,
        qkv: Tensor,
        keys: Tensor,
        values: Tensor,
        out: Tensor,
        shape: AttentionShape,
        first_entry: u32,
    },

    /// Causal depthwise convolution of width 4 and SiLU, for the sequences with one committed row:
    /// `out[t, c] = silu(sum_j weight[c, j] * u[t - 3 + j, c])`. The three inputs before the first row are the
    /// window's rows `pending .. pending + 3`. Afterwards the window holds the last three committed inputs, then the
    /// inputs of the draft rows. All raw, before convolution.
    /// u: the first conv_cols columns of x, [rows, at least conv_cols] act. weight: [conv_cols, 4]. window: act.
    /// out: [rows, conv_cols] act.
    ConvStep { x: Tensor, weight: Tensor, window: Tensor, out: Tensor, shape: DeltaShape },

    /// The same for the sequences of the chunk list: all rows committed, none pending.
    ConvChunk { x: Tensor, weight: Tensor, window: Tensor, out: Tensor, shape: DeltaShape },

    /// Per value head: `g = -exp(a_log) * softplus(a + dt_bias)` (log decay, <= 0) and `beta = sigmoid(b)`;
    /// softplus(x) = x above 20. ba: [rows, 2 * value_heads] f32, b then a. a_log, dt_bias: [1, value_heads].
    /// out: [rows, 2 * value_heads] f32, g then beta.
    DeltaGates { rows: RowSet, ba: Tensor, a_log: Tensor, dt_bias: Tensor, out: Tensor },

    /// The gated delta rule for the sequences with one committed row. With q, k L2-normalised per key head
    /// (`x / sqrt(sum(x^2) + 1e-6)`), q scaled by key_dim^-0.5, and alpha = exp(g), a row does
    /// `S = alpha S; e = beta (v - S^T k); S = S + k e^T; o = S^T q`.
    /// Order per sequence: load S; fold the first `pending` records of half `parity` (`S = alpha S + k e^T`); run the
    /// committed row; store S; run the draft rows in registers, writing their records to the other half.
    /// All f32 with explicit fma, the fold by the same function as the step, so that a folded state equals the plainly
    /// decoded one bit for bit. qkv: [rows, conv_cols] act. gates: as DeltaGates. out: [rows, value_cols] act.
    DeltaStep { qkv: Tensor, gates: Tensor, state: Tensor, records: Tensor, out: Tensor, shape: DeltaShape },

    /// The same rule over the chunk list; all rows committed, none pending. Backends may use the chunked (UT
    /// transform) form: MODEL.md 3.2.
    DeltaChunk { qkv: Tensor, gates: Tensor, state: Tensor, out: Tensor, shape: DeltaShape },

    /// Per value head: `out = x / sqrt(mean(x^2) + eps) * weight * silu(z)`; weight is plain, not 1 + weight.
    /// x: [rows, heads * dim] act. z: columns `gate_col ..` of gate, [rows, at least gate_col + heads * dim] act.
    /// weight: [1, dim]. out: like x.
    GatedNorm { rows: RowSet, x: Tensor, gate: Tensor, gate_col: u32, weight: Tensor, out: Tensor, eps: f32 },

    /// For each entry of the fold list: `S = alpha S + k e^T` over the first `pending` records of half `parity`.
    FoldRecords { state: Tensor, records: Tensor, shape: DeltaShape },

    /// For each entry of the fold list: rows `0 .. keep` of the slot become rows `pending .. pending + keep`.
    /// window: [slots * slot_rows, n].
    FoldWindow { window: Tensor, slot_rows: u32, keep: u32 },

    /// For each entry of the copy list: the `slot_rows` rows of the destination become those of the source, or zeros.
    /// tensor: [slots * slot_rows, n], or pages and page_tokens in place of slots and slot_rows.
    CopySlots { tensor: Tensor, slot_rows: u32, list: CopyList },

    /// Per sequence: row 0 of its slot's window becomes its last committed row of `x`, rows 1.. its draft rows.
    /// x: [rows, n] act. window: [slots * slot_rows, n], same type.
    StoreRows { x: Tensor, window: Tensor, slot_rows: u32 },

    /// `out[r] = x[index[r]]`. x, out: [rows, n], same type.
    GatherRows { index: RowIndex, x: Tensor, out: Tensor },

    /// The draft head's input: `out[r] = norm(embedding[r]) * (1 + w_e) ++ norm(hidden[r]) * (1 + w_h)`.
    /// embedding: [rows, hidden] f32. hidden: [rows, hidden] act. weights: [1, hidden]. out: [rows, 2 * hidden] act.
    MtpJoin {
        rows: RowSet,
        embedding: Tensor,
        hidden: Tensor,
        embedding_weight: Tensor,
        hidden_weight: Tensor,
        out: Tensor,
        eps: f32,
    },

    /// Adds the step's rows to their slots' token counts, by Section::Count: output tokens to the low 31 bits, prompt
    /// tokens as the top bit; and the output tokens of Section::Accepted. counts: [slots, vocabulary] u32.
    CountTokens { counts: Tensor },

    /// `scores = logits` with, in this order, bias; repetition, presence and frequency penalties; mask. Row i of a
    /// sequence counts, beyond `counts`, its drafts 1..=i. Masked-out tokens get -inf. A set bit of masks allows.
    /// Sequences whose words are all off are copied. logits, scores: [logit rows, vocabulary] f32.
    /// masks: [mask rows, ceil(vocabulary / 32)] u32.
    Penalize { logits: Tensor, counts: Tensor, masks: Tensor, scores: Tensor, vocab_live: u32 },

    /// The token of each logit row: the argmax at temperature 0 (ties to the lowest id), else the argmax over the
    /// tokens kept by top-k, top-p and min-p of `score / temperature + gumbel(seed, choice, position + 1, token)`.
    /// A row with a NaN or no finite score gives NONE. scores: [logit rows, vocabulary] f32. out: [1, logit rows] u32.
    Sample { scores: Tensor, out: Tensor, vocab_live: u32 },

    /// For sequences that ask for it, log-probabilities of the raw distribution: the sampled token's and the highest
    /// TOP_LOGPROBS with their ids, best first, ties to the lowest id. sampled: [1, logit rows]. out: [logit rows,
    /// LOGPROB_WORDS] u32.
    TopLogprobs { logits: Tensor, sampled: Tensor, out: Tensor, vocab_live: u32 },

    /// `out[r, out_col] = argmax(x[r, 0 .. vocab_live])`, ties to the lowest id. x: f32. out: u32.
    Argmax { rows: RowSet, x: Tensor, out: Tensor, out_col: u32, vocab_live: u32 },

    /// For each draft row's sequence: how many of its drafts equal the token sampled at the row before them, and what
    /// follows. sampled: [1, logit rows] u32. verdict: [draft rows, VERDICT_WORDS] u32.
    Accept { sampled: Tensor, verdict: Tensor },
}

/// How an op uses an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    ReadWrite,
}

/// A named tensor of an op.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Operand {
    pub name: &'static str,
    pub tensor: Tensor,
    pub access: Access,
}

impl Op {
    /// The op's name in listings, kernel files, shaders and tests.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::RmsNorm { .. } => "rms_norm",
            Op::MatMul { .. } => "matmul",
            Op::MatMulGateUp { .. } => "matmul_gate_up",
            Op::QkNormRope { .. } => "qk_norm_rope",
            Op::KvAppend { .. } => "kv_append",
            Op::Attention { .. } => "attention",
            Op::ConvStep { .. } => "conv_step",
            Op::ConvChunk { .. } => "conv_chunk",
            Op::DeltaGates { .. } => "delta_gates",
            Op::DeltaStep { .. } => "delta_step",
            Op::DeltaChunk { .. } => "delta_chunk",
            Op::GatedNorm { .. } => "gated_norm",
            Op::FoldRecords { .. } => "fold_records",
            Op::FoldWindow { .. } => "fold_window",
            Op::CopySlots { .. } => "copy_slots",
            Op::StoreRows { .. } => "store_rows",
            Op::GatherRows { .. } => "gather_rows",
            Op::MtpJoin { .. } => "mtp_join",
            Op::CountTokens { .. } => "count_tokens",
            Op::Penalize { .. } => "penalize",
            Op::Sample { .. } => "sample",
            Op::TopLogprobs { .. } => "top_logprobs",
            Op::Argmax { .. } => "argmax",
            Op::Accept { .. } => "accept",
        }
    }

    /// The rows it runs over, for ops that run over rows.
    pub fn rows(&self) -> Option<RowSet> {
        match *self {
            Op::Embed { rows, .. }
            | Op::RmsNorm { rows, .. }
            | Op::MatMul { rows, .. }
            | Op::MatMulGateUp { rows, .. }
            | Op::QkNormRope { rows, .. }
            | Op::KvAppend { rows, .. }
            | Op::Attention { rows, .. }
            | Op::DeltaGates { rows, .. }
            | Op::GatedNorm { rows, .. }
            | Op::MtpJoin { rows, .. }
            | Op::Argmax { rows, .. } => Some(rows),
            Op::GatherRows { index: RowIndex::Logits, .. } | Op::Penalize { .. } | Op::Sample { .. } => {
                Some(RowSet::Logits)
            }
            Op::GatherRows { index: RowIndex::Resumes { .. }, .. } => Some(RowSet::Resumes),
            Op::GatherRows { index: RowIndex::Verdict { verdict }, .. } | Op::Accept { verdict, .. } => {
                Some(RowSet::Drafts { pass: 1, verdict })
            }
            Op::TopLogprobs { .. } => Some(RowSet::Logits),
            Op::CountTokens { .. } => Some(RowSet::Target),
            Op::ConvStep { .. }
            | Op::ConvChunk { .. }
            | Op::DeltaStep { .. }
            | Op::DeltaChunk { .. }
            | Op::FoldRecords { .. }
            | Op::FoldWindow { .. }
            | Op::StoreRows { .. }
            | Op::CopySlots { .. } => None,
        }
    }

    /// Every tensor it touches except the step inputs, which belong to the program. The one source of bind groups,
    /// alias checks, listings, byte counts and comparisons.
    pub fn operands(&self) -> Vec<Operand> {
        let mut list = Operands(Vec::with_capacity(8));
        match *self {
            Op::Embed { tokens, table, out, .. } => {
                match tokens {
                    TokenSource::Step => {}
                    TokenSource::Next { sampled } => list.read("sampled", sampled),
                    TokenSource::Draft { drafts, .. } => list.read("drafts", drafts),
                }
                list.read("table", table);
                list.write("out", out);
            }
            Op::RmsNorm { add, x, weight, out, .. } => {
                if let Some(add) = add {
                    list.read("add", add);
                    list.read_write("x", x);
                } else {
                    list.read("x", x);
                }
                list.read("weight", weight);
                list.write("out", out);
            }
            Op::MatMul { x, weight, out, .. } => {
                list.read("x", x);
                list.read("weight", weight);
                list.write("out", out);
            }
            Op::MatMulGateUp { x, gate, up, out, .. } => {
                list.read("x", x);
                list.read("gate", gate);
                list.read("up", up);
                list.write("out", out);
            }
            Op::QkNormRope { rows, qkv, q_weight, k_weight, .. } => {
                list.rows(rows);
                list.read_write("qkv", qkv);
                list.read("q_weight", q_weight);
                list.read("k_weight", k_weight);
            }
            Op::KvAppend { rows, qkv, keys, values, .. } => {
                list.rows(rows);
                list.read("qkv", qkv);
                list.write("keys", keys);
                list.write("values", values);
            }
            Op::Attention { rows, qkv, keys, values, out, .. } => {
                list.rows(rows);
                list.read("qkv", qkv);
                list.read("keys", keys);
                list.read("values", values);
                list.write("out", out);
            }
            Op::ConvStep { x, weight, window, out, .. } | Op::ConvChunk { x, weight, window, out, .. } => {
                list.read("x", x);
                list.read("weight", weight);
                list.read_write("window", window);
                list.write("out", out);
            }
            Op::DeltaGates { ba, a_log, dt_bias, out, .. } => {
                list.read("ba", ba);
                list.read("a_log", a_log);
                list.read("dt_bias", dt_bias);
                list.write("out", out);
            }
            Op::DeltaStep { qkv, gates, state, records, out, .. } => {
                list.read("qkv", qkv);
                list.read("gates", gates);
                list.read_write("state", state);
                list.read_write("records", records);
                list.write("out", out);
            }
            Op::DeltaChunk { qkv, gates, state, out, .. } => {
                list.read("qkv", qkv);
                list.read("gates", gates);
                list.read_write("state", state);
                list.write("out", out);
            }
            Op::GatedNorm { x, gate, weight, out, .. } => {
                list.read("x", x);
                list.read("gate", gate);
                list.read("weight", weight);
                list.write("out", out);
            }
            Op::FoldRecords { state, records, .. } => {
                list.read_write("state", state);
                list.read("records", records);
            }
            Op::FoldWindow { window, .. } => list.read_write("window", window),
            Op::CopySlots { tensor, .. } => list.read_write("tensor", tensor),
            Op::StoreRows { x, window, .. } => {
                list.read("x", x);
                list.write("window", window);
            }
            Op::GatherRows { index, x, out } => {
                if let RowIndex::Verdict { verdict } = index {
                    list.read("verdict", verdict);
                }
                list.read("x", x);
                list.write("out", out);
            }
            Op::MtpJoin { embedding, hidden, embedding_weight, hidden_weight, out, .. } => {
                list.read("embedding", embedding);
                list.read("hidden", hidden);
                list.read("embedding_weight", embedding_weight);
                list.read("hidden_weight", hidden_weight);
                list.write("out", out);
            }
            Op::CountTokens { counts } => list.read_write("counts", counts),
            Op::Penalize { logits, counts, masks, scores, .. } => {
                list.read("logits", logits);
                list.read("counts", counts);
                list.read("masks", masks);
                list.write("scores", scores);
            }
            Op::Sample { scores, out, .. } => {
                list.read("scores", scores);
                list.write("out", out);
            }
            Op::TopLogprobs { logits, sampled, out, .. } => {
                list.read("logits", logits);
                list.read("sampled", sampled);
                list.write("out", out);
            }
            Op::Argmax { x, out, .. } => {
                list.read("x", x);
                list.write("out", out);
            }
            Op::Accept { sampled, verdict } => {
                list.read("sampled", sampled);
                list.write("verdict", verdict);
            }
        }
        list.0
    }
}

struct Operands(Vec<Operand>);

impl Operands {
    fn read(&mut self, name: &'static str, tensor: Tensor) {
        self.0.push(Operand { name, tensor, access: Access::Read });
    }

    fn write(&mut self, name: &'static str, tensor: Tensor) {
        self.0.push(Operand { name, tensor, access: Access::Write });
    }

    fn read_write(&mut self, name: &'static str, tensor: Tensor) {
        self.0.push(Operand { name, tensor, access: Access::ReadWrite });
    }

    /// Ops that need positions read the verdict for them in draft passes.
    fn rows(&mut self, rows: RowSet) {
        if let RowSet::Drafts { verdict, .. } = rows {
            self.read("verdict", verdict);
        }
    }
}
