//! What a model is, read from its `config.json`: extents, layer kinds and constants as plain numbers, validated once
//! so that nobody downstream asks again whether a head size divides. Holds no file access: bytes in, numbers out.

use serde::Serialize;

/// What mixes tokens in one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    /// Gated delta rule: constant state per sequence.
    DeltaNet,
    /// Gated full attention: a key and a value per token.
    Attention,
}

/// A dense model of the Qwen3.5/3.6 family (or a dense Qwen3-Next), every field checked against what the ops can do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelConfig {
    /// As the file says it: `qwen3_5`, `qwen3_5_text` or `qwen3_next`.
    pub model_type: String,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Width of the MLP.
    pub intermediate: u32,
    /// The kind of each layer, first to last.
    pub layers: Vec<LayerKind>,
    /// Rows of the embedding and of the head; the tokenizer may use fewer.
    pub vocab: u32,

    /// Query heads of an attention layer; a multiple of `kv_heads`.
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    /// The leading dimensions of a head that are rotated; even.
    pub rotary_dims: u32,
    pub rope_theta: f32,
    pub norm_eps: f32,

    /// Query and key heads of a DeltaNet layer.
    pub delta_key_heads: u32,
    /// Value heads of a DeltaNet layer; a multiple of `delta_key_heads`.
    pub delta_value_heads: u32,
    pub delta_key_dim: u32,
    pub delta_value_dim: u32,
    /// Taps of the causal convolution; always 4.
    pub conv_width: u32,

    /// Positions that the model was trained for.
    pub context_max: u32,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Layers of the draft head: 0 or 1. 1 is a permission: the loader decides by which tensors are there.
    pub mtp_layers: u32,
    /// End tokens that `config.json` names. Never the whole set: unite it with the generation config's.
    pub eos_ids: Vec<u32>,
}

impl ModelConfig {
    /// Columns of q (and of k) of a DeltaNet layer.
    pub fn delta_key_cols(&self) -> u32 {
        self.delta_key_heads * self.delta_key_dim
    }

    /// Columns of v (and of z) of a DeltaNet layer.
    pub fn delta_value_cols(&self) -> u32 {
        self.delta_value_heads * self.delta_value_dim
    }

    /// Channels of the causal convolution: q, k and v.
    pub fn conv_cols(&self) -> u32 {
        2 * self.delta_key_cols() + self.delta_value_cols()
    }

    /// How many layers are of this kind; the draft head's layer is not counted.
    pub fn layers_of(&self, kind: LayerKind) -> u32 {
        self.layers.iter().filter(|&&layer| layer == kind).count() as u32
    }
}
