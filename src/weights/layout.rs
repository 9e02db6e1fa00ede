//! Our layout: which tensors a model has and which rows of the checkpoint's tensors each is made of.
//!
//! [`arrange`] walks them once, in order, and asks its caller to make each; loading, random weights and listings are
//! three callers of the one walk, so that they cannot disagree.

use super::{AttentionWeights, DeltaWeights, LayerWeights, MixerWeights, MlpWeights, MtpWeights, Weight, Weights};
use crate::backend::{BufferId, Tensor};
use crate::base::{DType, LayerKind, ModelConfig, Result};

/// What of the layout depends on the checkpoint rather than on the config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dialect {
    /// Whether there is a draft head.
    pub mtp: bool,
    /// Whether the DeltaNet inputs are fused and interleaved by key head, as Qwen3-Next has them.
    pub fused_delta: bool,
}

/// One tensor of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorPlan {
    /// `layers.3.qkvz`
    pub label: String,
    pub rows: u32,
    pub cols: u32,
    pub role: Role,
    /// Together exactly `rows` rows, one below the other.
    pub pieces: Vec<Piece>,
    /// A source whose element type counts too, so that two tensors that one op reads are split alike.
    pub typed_with: Option<String>,
}

/// What a tensor is for: decides the shape in the file, whether it is split, and the scale of random values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// `[rows, cols]`, split by rows.
    Matrix,
    /// `[n]` in the file; the op multiplies by 1 + weight.
    Norm,
    /// `[n]` in the file; the op multiplies by the weight itself.
    PlainNorm,
    /// `[value_heads]` in the file.
    DecayLog,
    /// `[value_heads]` in the file.
    DecayBias,
    /// `[channels, 1, 4]` in the file, `[channels, 4]` here.
    Conv,
}

/// Runs of rows of one tensor of the checkpoint: `runs` times `run_rows` rows, starting `stride_rows` apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Normalised name.
    pub source: String,
    /// Rows of the whole source.
    pub source_rows: u32,
    pub first_row: u32,
    pub run_rows: u32,
    pub stride_rows: u32,
    pub runs: u32,
}

impl TensorPlan {
    pub fn elements(&self) -> u64 {
        u64::from(self.rows) * u64::from(self.cols)
    }

    /// The shape that the file must have for one of the pieces.
    pub fn source_shape(&self, piece: &Piece) -> Vec<usize> {
        match self.role {
            Role::Matrix => vec![piece.source_rows as usize, self.cols as usize],
            Role::Conv => vec![self.rows as usize, 1, self.cols as usize],
            Role::Norm | Role::PlainNorm | Role::DecayLog | Role::DecayBias => vec![self.cols as usize],
        }
    }
}

impl Piece {
    fn whole(source: String, rows: u32) -> Piece {
        Piece { source, source_rows: rows, first_row: 0, run_rows: rows, stride_rows: rows, runs: 1 }
    }

    pub fn rows(&self) -> u32 {
        self.run_rows * self.runs
    }
}

/// Walks every tensor in order (embedding, layers, norm, head, draft head) and builds the weights from what `make`
/// returns for each. A tensor whose role is not Matrix must come back in one part.
pub fn arrange(
    config: &ModelConfig,
    dialect: Dialect,
    make: &mut dyn FnMut(&TensorPlan) -> Result<Weight>,
) -> Result<Weights> {
    let mut walk = Walk { config, dialect, make };
    let hidden = config.hidden;
    let embed = walk.matrix("embed", hidden, &[("embed_tokens", config.vocab)])?;
    let mut layers = Vec::with_capacity(config.layers.len());
    for (index, &kind) in config.layers.iter().enumerate() {
        layers.push(walk.layer(&format!("layers.{index}"), &format!("layers.{index}"), kind)?);
    }
    let norm = walk.vector("norm", "norm.weight", hidden, Role::Norm)?;
    let head = match config.tied {
        true => embed.clone(),
        false => walk.matrix("head", hidden, &[("lm_head", config.vocab)])?,
    };
    let mtp = match dialect.mtp {
        true => Some(walk.mtp()?),
        false => None,
    };
    Ok(Weights { embed, layers, norm, head, mtp })
}

/// Every tensor of the layout, in order.
pub fn plans(config: &ModelConfig, dialect: Dialect) -> Vec<TensorPlan> {
    let mut plans = Vec::new();
    let listed = arrange(config, dialect, &mut |plan| {
        plans.push(plan.clone());
        // Nobody sees these handles: the weights are dropped below.
        let part = Tensor { buffer: BufferId(u32::MAX), dtype: DType::Bf16, rows: plan.rows, cols: plan.cols };
        Ok(Weight { parts: vec![part] })
    });
    assert!(listed.is_ok(), "making a placeholder cannot fail");
    plans
}

/// Parameters of a model, each counted once.
pub fn parameters(config: &ModelConfig, with_mtp: bool) -> u64 {
    let dialect = Dialect { mtp: with_mtp, fused_delta: false };
    plans(config, dialect).iter().map(TensorPlan::elements).sum()
}

/// Rows of each part of a matrix whose parts must not exceed `binding_bytes`: near-equal, in multiples of a tile where
/// that fits. None if not even one row fits.
pub fn split_rows(rows: u32, row_bytes: u64, binding_bytes: u64) -> Option<Vec<u32>> {
    const TILE_ROWS: u32 = 64;
    let fitting = u32::try_from(binding_bytes / row_bytes.max(1)).unwrap_or(u32::MAX).min(rows);
    if fitting == 0 {
        return None;
    }
    let even = rows.div_ceil(rows.div_ceil(fitting));
    let tiled = even.next_multiple_of(TILE_ROWS);
    let part_rows = if tiled <= fitting { tiled } else { fitting };
    let starts = (0..rows).step_by(part_rows as usize);
    Some(starts.map(|start| part_rows.min(rows - start)).collect())
}

struct Walk<'a> {
    config: &'a ModelConfig,
    dialect: Dialect,
    make: &'a mut dyn FnMut(&TensorPlan) -> Result<Weight>,
}

impl Walk<'_> {
    /// `source` is the prefix of the checkpoint's names, `label` that of ours.
    fn layer(&mut self, source: &str, label: &str, kind: LayerKind) -> Result<LayerWeights> {
        let hidden = self.config.hidden;
        let norm = self.vector(&join(label, "norm"), &join(source, "input_layernorm.weight"), hidden, Role::Norm)?;
        let mixer = match kind {
            LayerKind::DeltaNet => MixerWeights::DeltaNet(self.delta(&join(source, "linear_attn"), label)?),
            LayerKind::Attention => MixerWeights::Attention(self.attention(&join(source, "self_attn"), label)?),
        };
        let source_norm = join(source, "post_attention_layernorm.weight");
        let norm_mlp = self.vector(&join(label, "norm_mlp"), &source_norm, hidden, Role::Norm)?;
        let mlp = self.mlp(&join(source, "mlp"), label)?;
        Ok(LayerWeights { norm, mixer, norm_mlp, mlp })
    }

    fn delta(&mut self, source: &str, label: &str) -> Result<DeltaWeights> {
        let config = self.config;
        let (hidden, value_heads) = (config.hidden, config.delta_value_heads);
        let name = |part: &str| join(source, part);
        let (qkvz, ba) = match self.dialect.fused_delta {
            true => self.fused_inputs(source),
            false => (
                vec![
                    Piece::whole(name("in_proj_qkv.weight"), config.conv_cols()),
                    Piece::whole(name("in_proj_z.weight"), config.delta_value_cols()),
                ],
                vec![
                    Piece::whole(name("in_proj_b.weight"), value_heads),
                    Piece::whole(name("in_proj_a.weight"), value_heads),
                ],
            ),
        };
        Ok(DeltaWeights {
            qkvz: self.stacked(join(label, "qkvz"), hidden, qkvz)?,
            ba: self.stacked(join(label, "ba"), hidden, ba)?,
            conv: self.conv(join(label, "conv"), name("conv1d.weight"))?,
            a_log: self.vector(&join(label, "a_log"), &name("A_log"), value_heads, Role::DecayLog)?,
            dt_bias: self.vector(&join(label, "dt_bias"), &name("dt_bias"), value_heads, Role::DecayBias)?,
            norm: self.vector(
                &join(label, "delta_norm"),
                &name("norm.weight"),
                config.delta_value_dim,
                Role::PlainNorm,
            )?,
            out: self.matrix(&join(label, "out"), config.delta_value_cols(), &[(&name("out_proj"), hidden)])?,
        })
    }

    /// Qwen3-Next: per key head, rows of q, k, v and z in one tensor, and of b and a in another.
    fn fused_inputs(&self, source: &str) -> (Vec<Piece>, Vec<Piece>) {
        let config = self.config;
        let groups = config.delta_key_heads;
        let group_heads = config.delta_value_heads / groups;
        let take = |name: &str, group: &[u32], part: usize| {
            let stride_rows = group.iter().sum();
            Piece {
                source: join(source, name),
                source_rows: stride_rows * groups,
                first_row: group[..part].iter().sum(),
                run_rows: group[part],
                stride_rows,
                runs: groups,
            }
        };
        let value_rows = group_heads * config.delta_value_dim;
        let qkvz = [config.delta_key_dim, config.delta_key_dim, value_rows, value_rows];
        let ba = [group_heads, group_heads];
        (
            (0..4).map(|part| take("in_proj_qkvz.weight", &qkvz, part)).collect(),
            (0..2).map(|part| take("in_proj_ba.weight", &ba, part)).collect(),
        )
    }

    fn attention(&mut self, source: &str, label: &str) -> Result<AttentionWeights> {
        let config = self.config;
        let name = |part: &str| join(source, part);
        let (query_cols, kv_cols) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let qkv = [(&*name("q_proj"), 2 * query_cols), (&*name("k_proj"), kv_cols), (&*name("v_proj"), kv_cols)];
        Ok(AttentionWeights {
            qkv: self.matrix(&join(label, "qkv"), config.hidden, &qkv)?,
            q_norm: self.vector(&join(label, "q_norm"), &name("q_norm.weight"), config.head_dim, Role::Norm)?,
            k_norm: self.vector(&join(label, "k_norm"), &name("k_norm.weight"), config.head_dim, Role::Norm)?,
            out: self.matrix(&join(label, "out"), query_cols, &[(&name("o_proj"), config.hidden)])?,
        })
    }

    fn mlp(&mut self, source: &str, label: &str) -> Result<MlpWeights> {
        let (hidden, intermediate) = (self.config.hidden, self.config.intermediate);
        let names = ["gate_proj.weight", "up_proj.weight"].map(|name| join(source, name));
        let half = |label: String, own: &str, other: &str| TensorPlan {
            label,
            rows: intermediate,
            cols: hidden,
            role: Role::Matrix,
            pieces: vec![Piece::whole(own.to_owned(), intermediate)],
            typed_with: Some(other.to_owned()),
        };
        Ok(MlpWeights {
            gate: (self.make)(&half(join(label, "gate"), &names[0], &names[1]))?,
            up: (self.make)(&half(join(label, "up"), &names[1], &names[0]))?,
            down: self.matrix(&join(label, "down"), intermediate, &[(&join(source, "down_proj"), hidden)])?,
        })
    }

    fn mtp(&mut self) -> Result<MtpWeights> {
        let hidden = self.config.hidden;
        Ok(MtpWeights {
            norm_embedding: self.vector(
                "mtp.norm_embedding",
                "mtp.pre_fc_norm_embedding.weight",
                hidden,
                Role::Norm,
            )?,
            norm_hidden: self.vector("mtp.norm_hidden", "mtp.pre_fc_norm_hidden.weight", hidden, Role::Norm)?,
            fc: self.matrix("mtp.fc", 2 * hidden, &[("mtp.fc", hidden)])?,
            layer: self.layer("mtp.layers.0", "mtp.layer", LayerKind::Attention)?,
            norm: self.vector("mtp.norm", "mtp.norm.weight", hidden, Role::Norm)?,
        })
    }

    /// Whole matrices of the checkpoint, one above the other: their names less `.weight`, and their rows.
    fn matrix(&mut self, label: &str, cols: u32, sources: &[(&str, u32)]) -> Result<Weight> {
        let pieces = sources.iter().map(|&(name, rows)| Piece::whole(join(name, "weight"), rows)).collect();
        self.stacked(label.to_owned(), cols, pieces)
    }

    fn stacked(&mut self, label: String, cols: u32, pieces: Vec<Piece>) -> Result<Weight> {
        let rows = pieces.iter().map(Piece::rows).sum();
        (self.make)(&TensorPlan { label, rows, cols, role: Role::Matrix, pieces, typed_with: None })
    }

    fn vector(&mut self, label: &str, source: &str, cols: u32, role: Role) -> Result<Tensor> {
        let pieces = vec![Piece::whole(source.to_owned(), 1)];
        let plan = TensorPlan { label: label.to_owned(), rows: 1, cols, role, pieces, typed_with: None };
        Ok((self.make)(&plan)?.parts[0])
    }

    fn conv(&mut self, label: String, source: String) -> Result<Tensor> {
        let (rows, cols) = (self.config.conv_cols(), self.config.conv_width);
        let pieces = vec![Piece::whole(source, rows)];
        Ok((self.make)(&TensorPlan { label, rows, cols, role: Role::Conv, pieces, typed_with: None })?.parts[0])
    }
}

fn join(prefix: &str, name: &str) -> String {
    format!("{prefix}.{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MODEL.md 1.2, the published sizes.
    #[test]
    fn parameter_counts_of_the_family() {
        for (name, text, mtp) in [
            ("qwen3.5-0.8b", 752_393_024, 20_452_864),
            ("qwen3.5-2b", 1_881_825_088, 60_828_160),
            ("qwen3.5-4b", 4_205_751_296, 120_599_552),
            ("qwen3.5-9b", 8_953_803_264, 243_290_624),
            ("qwen3.6-27b", 26_895_998_464, 424_699_392),
        ] {
            let config = ModelConfig::named(name).unwrap();
            assert_eq!(parameters(&config, false), text, "{name}");
            assert_eq!(parameters(&config, true), text + mtp, "{name}");
        }
    }

    #[test]
    fn both_dialects_have_the_same_tensors_in_the_same_order() {
        let config = ModelConfig::named("27b").unwrap();
        let shape = |fused_delta| -> Vec<(String, u32, u32)> {
            let plans = plans(&config, Dialect { mtp: true, fused_delta });
            for plan in &plans {
                assert_eq!(plan.pieces.iter().map(Piece::rows).sum::<u32>(), plan.rows, "{}", plan.label);
            }
            plans.into_iter().map(|plan| (plan.label, plan.rows, plan.cols)).collect()
        };
        assert_eq!(shape(false), shape(true));
        let labels: std::collections::BTreeSet<String> = shape(false).into_iter().map(|tensor| tensor.0).collect();
        assert_eq!(labels.len(), shape(false).len(), "labels are unique");
    }

    #[test]
    fn parts_are_tiled_even_and_within_the_limit() {
        assert_eq!(split_rows(100, 10, u64::MAX), Some(vec![100]));
        assert_eq!(split_rows(248_320, 2048, 128 << 20), Some(vec![62_080; 4]));
        assert_eq!(split_rows(300, 10, 1500), Some(vec![150, 150]));
        assert_eq!(split_rows(300, 10, 2000), Some(vec![192, 108]));
        assert_eq!(split_rows(7, 10, 30), Some(vec![3, 3, 1]));
        assert_eq!(split_rows(7, 10, 9), None);
        for (rows, binding) in [(1, 8), (1000, 333), (248_320, 100_000)] {
            let parts = split_rows(rows, 8, binding).unwrap();
            assert_eq!(parts.iter().sum::<u32>(), rows);
            assert!(parts.iter().all(|&part| part > 0 && u64::from(part) * 8 <= binding));
        }
    }
}
