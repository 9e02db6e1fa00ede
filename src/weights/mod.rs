//! L2: a checkpoint's tensors, checked, arranged for the ops and streamed to a backend. The only writer of weights.
//!
//! A [`Weight`] is one matrix of our own layout: several of the checkpoint's matrices one above the other where one
//! product serves them all, and cut into row parts where a backend cannot bind the whole. Types are those of the
//! file, bf16 or f32; f16 is widened to f32, which loses nothing.

mod header;
pub mod inspect;
pub mod layout;
pub mod load;
mod map;
pub mod random;
pub mod reserve;
pub mod safetensors;
pub mod survey;

use crate::backend::Tensor;

pub use inspect::{Inspection, inspect};
pub use load::{Loaded, load};
pub use random::random;
pub use reserve::{reserve, reserve_checkpoint};
pub use safetensors::Checkpoint;
pub use survey::{Survey, survey};

/// One matrix `[rows, cols]`, in row parts. The handles name memory; copying them copies nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Weight {
    /// In row order, all with the same columns and type; at least one.
    pub parts: Vec<Tensor>,
}

impl Weight {
    /// Rows of all parts together.
    pub fn rows(&self) -> u32 {
        self.parts.iter().map(|part| part.rows).sum()
    }

    pub fn cols(&self) -> u32 {
        self.parts[0].cols
    }
}

/// Every weight of a model. Norm vectors are `[1, n]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    /// `[vocab, hidden]`
    pub embed: Weight,
    pub layers: Vec<LayerWeights>,
    /// `[1, hidden]`
    pub norm: Tensor,
    /// `[vocab, hidden]`; the embedding's own handles where the model ties them.
    pub head: Weight,
    /// None where the checkpoint has no draft head.
    pub mtp: Option<MtpWeights>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct LayerWeights {
    /// `[1, hidden]`, before the mixer.
    pub norm: Tensor,
    pub mixer: MixerWeights,
    /// `[1, hidden]`, before the MLP.
    pub norm_mlp: Tensor,
    pub mlp: MlpWeights,
}

#[derive(Debug, Clone, PartialEq)]
pub enum MixerWeights {
    DeltaNet(DeltaWeights),
    Attention(AttentionWeights),
}

#[derive(Debug, Clone, PartialEq)]
pub struct DeltaWeights {
    /// `[conv_cols + value_cols, hidden]`: q, k and v of all heads, then z.
    pub qkvz: Weight,
    /// `[2 * value_heads, hidden]`: b, then a.
    pub ba: Weight,
    /// `[conv_cols, 4]`; tap 3 is the current token.
    pub conv: Tensor,
    /// `[1, value_heads]`
    pub a_log: Tensor,
    /// `[1, value_heads]`
    pub dt_bias: Tensor,
    /// `[1, value_dim]`, plain: not 1 + weight.
    pub norm: Tensor,
    /// `[hidden, value_cols]`
    pub out: Weight,
}

#[derive(Debug, Clone, PartialEq)]
pub struct AttentionWeights {
    /// `[2 * heads * head_dim + 2 * kv_heads * head_dim, hidden]`: per head its query then its gate, then k, then v.
    pub qkv: Weight,
    /// `[1, head_dim]`
    pub q_norm: Tensor,
    /// `[1, head_dim]`
    pub k_norm: Tensor,
    /// `[hidden, heads * head_dim]`
    pub out: Weight,
}

#[derive(Debug, Clone, PartialEq)]
pub struct MlpWeights {
    /// `[intermediate, hidden]`
    pub gate: Weight,
    /// `[intermediate, hidden]`, in parts of the same rows as those of `gate`.
    pub up: Weight,
    /// `[hidden, intermediate]`
    pub down: Weight,
}

/// The draft head. It shares the embedding and the head.
#[derive(Debug, Clone, PartialEq)]
pub struct MtpWeights {
    /// `[1, hidden]`
    pub norm_embedding: Tensor,
    /// `[1, hidden]`
    pub norm_hidden: Tensor,
    /// `[hidden, 2 * hidden]`: the columns of the embedding, then those of the hidden state.
    pub fc: Weight,
    /// An attention layer.
    pub layer: LayerWeights,
    /// `[1, hidden]`
    pub norm: Tensor,
}
