//! The memory of a model beside its weights: caches that outlive a step, and workspace that does not.

use super::{LOGIT_ROWS_MAX, ModelOptions};
use crate::backend::op::{LOGPROB_WORDS, VERDICT_WORDS};
use crate::backend::{AttentionShape, Backend, DeltaShape, Tensor};
use crate::base::config::{LayerKind, ModelConfig};
use crate::base::{DType, Result};

/// What one layer keeps between steps.
#[derive(Debug, Clone, Copy)]
pub enum Cache {
    /// `[pages * page_tokens, kv_cols]` each.
    Attention { keys: Tensor, values: Tensor },
    /// Shapes at [`DeltaShape`].
    DeltaNet { state: Tensor, window: Tensor, records: Tensor },
}

/// What all sequences keep between steps.
pub struct Caches {
    pub layers: Vec<Cache>,
    /// The draft head's keys and values.
    pub mtp: Option<Cache>,
    /// `[slots * (1 + drafts_max), hidden]` act: h of the last committed row and of the draft rows, for making the
    /// draft head's entry anew after a resume. Kept with a draft head only.
    pub hidden: Option<Tensor>,
    /// Token counts for the penalties, `[slots, vocabulary]` u32.
    pub counts: Tensor,
    /// Allowed tokens, `[logit rows, ceil(vocabulary / 32)]` u32.
    pub masks: Tensor,
}

/// Tensors that hold nothing from one step to the next. All have the rows of the largest step.
#[derive(Debug, Clone, Copy)]
pub struct Workspace {
    /// `[rows, hidden]` f32: the residual stream.
    pub residual: Tensor,
    /// `[rows, hidden]` f32: what the next norm adds to the residual; the draft head's embeddings too.
    pub mixed: Tensor,
    /// `[rows, hidden]` act: a normed residual.
    pub hidden: Tensor,
    /// `[rows, conv_cols + value_cols]` act.
    pub qkvz: Tensor,
    /// `[rows, 2 * value_heads]` f32.
    pub ba: Tensor,
    /// `[rows, conv_cols]` act.
    pub conv: Tensor,
    /// `[rows, 2 * value_heads]` f32.
    pub gates: Tensor,
    /// `[rows, value_cols]` act.
    pub delta: Tensor,
    /// `[rows, value_cols]` act.
    pub gated: Tensor,
    /// `[rows, qkv_cols]` act.
    pub qkv: Tensor,
    /// `[rows, heads * head_dim]` act.
    pub attention: Tensor,
    /// `[rows, intermediate]` act.
    pub act: Tensor,
    /// `[rows, 2 * hidden]` act: the draft head's input.
    pub join: Tensor,
    /// `[logit rows, hidden]` act.
    pub logit_hidden: Tensor,
    /// `[logit rows, vocabulary]` f32.
    pub logits: Tensor,
    /// `[logit rows, vocabulary]` f32.
    pub scores: Tensor,
    /// `[1, logit rows]` u32.
    pub sampled: Tensor,
    /// `[logit rows, LOGPROB_WORDS]` u32.
    pub logprobs: Tensor,
    /// `[draft rows, VERDICT_WORDS]` u32.
    pub verdict: Tensor,
    /// `[draft rows, hidden]` act.
    pub draft_hidden: Tensor,
    /// `[draft rows, drafts_max]` u32.
    pub drafts: Tensor,
}

pub fn attention_shape(config: &ModelConfig, options: &ModelOptions) -> AttentionShape {
    AttentionShape {
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        page_tokens: options.page_tokens,
    }
}

pub fn delta_shape(config: &ModelConfig, options: &ModelOptions) -> DeltaShape {
    DeltaShape {
        key_heads: config.delta_key_heads,
        value_heads: config.delta_value_heads,
        key_dim: config.delta_key_dim,
        value_dim: config.delta_value_dim,
        drafts_max: options.drafts_max.max(1),
    }
}

impl Caches {
    pub(super) fn alloc(backend: &mut dyn Backend, config: &ModelConfig, options: &ModelOptions) -> Result<Caches> {
        let shape = delta_shape(config, options);
        let slots = options.slots;
        let mut layers = Vec::with_capacity(config.layers.len());
        for (index, kind) in config.layers.iter().enumerate() {
            layers.push(match kind {
                LayerKind::Attention => kv(backend, &format!("layers.{index}"), config, options)?,
                LayerKind::DeltaNet => {
                    let mut alloc = |name: &str, dtype, rows, cols| {
                        backend.alloc(&format!("layers.{index}.{name}"), dtype, slots * rows, cols)
                    };
                    Cache::DeltaNet {
                        state: alloc("state", DType::F32, shape.state_rows(), shape.value_dim)?,
                        window: alloc("window", options.activation, shape.window_rows(), shape.conv_cols())?,
                        records: alloc("records", DType::F32, shape.record_rows(), shape.record_cols())?,
                    }
                }
            });
        }
        let mtp = if options.drafts_max > 0 { Some(kv(backend, "mtp", config, options)?) } else { None };
        let hidden_rows = slots * hidden_slot_rows(options);
        let hidden = match options.drafts_max {
            0 => None,
            _ => Some(backend.alloc("slot_hidden", options.activation, hidden_rows, config.hidden)?),
        };
        let counts = backend.alloc("counts", DType::U32, slots, config.vocab)?;
        let masks = backend.alloc("masks", DType::U32, logit_rows(options), config.vocab.div_ceil(32))?;
        Ok(Caches { layers, mtp, hidden, counts, masks })
    }
}

fn kv(backend: &mut dyn Backend, name: &str, config: &ModelConfig, options: &ModelOptions) -> Result<Cache> {
    let rows = options.pages * options.page_tokens;
    let cols = attention_shape(config, options).kv_cols();
    Ok(Cache::Attention {
        keys: backend.alloc(&format!("{name}.keys"), options.activation, rows, cols)?,
        values: backend.alloc(&format!("{name}.values"), options.activation, rows, cols)?,
    })
}

/// Rows of a slot in [`Caches::hidden`].
pub fn hidden_slot_rows(options: &ModelOptions) -> u32 {
    1 + options.drafts_max
}

fn logit_rows(options: &ModelOptions) -> u32 {
    LOGIT_ROWS_MAX.min(options.rows_max)
}

impl Workspace {
    pub(super) fn alloc(backend: &mut dyn Backend, config: &ModelConfig, options: &ModelOptions) -> Result<Workspace> {
        let (attention, delta) = (attention_shape(config, options), delta_shape(config, options));
        let (act, rows, hidden) = (options.activation, options.rows_max, config.hidden);
        let (logit_rows, draft_rows) = (logit_rows(options), options.sequences_max.min(logit_rows(options)));
        let gates = 2 * delta.value_heads;
        let mut alloc = |name: &str, dtype, rows, cols| backend.alloc(name, dtype, rows, cols);
        Ok(Workspace {
            residual: alloc("residual", DType::F32, rows, hidden)?,
            mixed: alloc("mixed", DType::F32, rows, hidden)?,
            hidden: alloc("hidden", act, rows, hidden)?,
            qkvz: alloc("qkvz", act, rows, delta.conv_cols() + delta.value_cols())?,
            ba: alloc("ba", DType::F32, rows, gates)?,
            conv: alloc("conv", act, rows, delta.conv_cols())?,
            gates: alloc("gates", DType::F32, rows, gates)?,
            delta: alloc("delta", act, rows, delta.value_cols())?,
            gated: alloc("gated", act, rows, delta.value_cols())?,
            qkv: alloc("qkv", act, rows, attention.qkv_cols())?,
            attention: alloc("attention", act, rows, attention.out_cols())?,
            act: alloc("act", act, rows, config.intermediate)?,
            join: alloc("join", act, rows, 2 * hidden)?,
            logit_hidden: alloc("logit_hidden", act, logit_rows, hidden)?,
            logits: alloc("logits", DType::F32, logit_rows, config.vocab)?,
            scores: alloc("scores", DType::F32, logit_rows, config.vocab)?,
            sampled: alloc("sampled", DType::U32, 1, logit_rows)?,
            logprobs: alloc("logprobs", DType::U32, logit_rows, LOGPROB_WORDS)?,
            verdict: alloc("verdict", DType::U32, draft_rows, VERDICT_WORDS)?,
            draft_hidden: alloc("draft_hidden", act, draft_rows, hidden)?,
            drafts: alloc("drafts", DType::U32, draft_rows, options.drafts_max.max(1))?,
        })
    }

    /// The same buffers seen as a bucket of `rows` rows.
    pub fn bucket(&self, rows: u32) -> Workspace {
        let logit_rows = rows.min(self.logits.rows);
        let draft_rows = rows.min(self.verdict.rows);
        let cut = |tensor: Tensor| tensor.with_rows(rows);
        let cut_logits = |tensor: Tensor| tensor.with_rows(logit_rows);
        Workspace {
            residual: cut(self.residual),
            mixed: cut(self.mixed),
            hidden: cut(self.hidden),
            qkvz: cut(self.qkvz),
            ba: cut(self.ba),
            conv: cut(self.conv),
            gates: cut(self.gates),
            delta: cut(self.delta),
            gated: cut(self.gated),
            qkv: cut(self.qkv),
            attention: cut(self.attention),
            act: cut(self.act),
            join: cut(self.join),
            logit_hidden: cut_logits(self.logit_hidden),
            logits: cut_logits(self.logits),
            scores: cut_logits(self.scores),
            sampled: Tensor { cols: logit_rows, ..self.sampled },
            logprobs: cut_logits(self.logprobs),
            verdict: self.verdict.with_rows(draft_rows),
            draft_hidden: self.draft_hidden.with_rows(draft_rows),
            drafts: self.drafts.with_rows(draft_rows),
        }
    }

    /// The row-shaped buffers as `rows` draft rows; the head's tensors follow.
    pub fn draft_rows(&self) -> Workspace {
        let rows = self.verdict.rows;
        Workspace { verdict: self.verdict, draft_hidden: self.draft_hidden, drafts: self.drafts, ..self.bucket(rows) }
    }
}
