//! The published sizes of the family by name, for benches and plans without a checkpoint.

use super::config::{LayerKind, ModelConfig};
use super::error::{Error, Result};

/// What tells one size from another; the rest is the same in all.
struct Shape {
    name: &'static str,
    hidden: u32,
    layers: u32,
    intermediate: u32,
    heads: u32,
    kv_heads: u32,
    delta_value_heads: u32,
    tied: bool,
}

const fn shape(name: &'static str, hidden: u32, layers: u32, intermediate: u32, heads: [u32; 3], tied: bool) -> Shape {
    let [heads, kv_heads, delta_value_heads] = heads;
    Shape { name, hidden, layers, intermediate, heads, kv_heads, delta_value_heads, tied }
}

const SHAPES: [Shape; 7] = [
    shape("qwen3.5-0.8b", 1024, 24, 3584, [8, 2, 16], true),
    shape("qwen3.5-2b", 2048, 24, 6144, [8, 2, 16], true),
    shape("qwen3.5-4b", 2560, 32, 9216, [16, 4, 32], true),
    shape("qwen3.5-9b", 4096, 32, 12288, [16, 4, 32], false),
    shape("qwen3.5-27b", 5120, 64, 17408, [24, 4, 48], false),
    shape("qwen3.6-27b", 5120, 64, 17408, [24, 4, 48], false),
    shape("qwen3.8-27b", 5120, 64, 17408, [24, 4, 48], false),
];

impl ModelConfig {
    /// The shape of a published model: `qwen3.5-0.8b`, or the size alone: `0.8b`. Case does not matter.
    /// Errors (Input) list the names.
    pub fn named(name: &str) -> Result<ModelConfig> {
        let wanted = name.to_ascii_lowercase();
        let matches =
            |shape: &&Shape| shape.name == wanted || shape.name.split_once('-').is_some_and(|x| x.1 == wanted);
        let Some(shape) = SHAPES.iter().find(matches) else {
            return Err(Error::input(
                format!("no model shape is named {name:?}"),
                format!("use one of {}", SHAPES.map(|shape| shape.name).join(", ")),
            ));
        };
        let kind = |layer: u32| if layer % 4 == 3 { LayerKind::Attention } else { LayerKind::DeltaNet };
        Ok(ModelConfig {
            model_type: "qwen3_5".to_owned(),
            hidden: shape.hidden,
            intermediate: shape.intermediate,
            layers: (0..shape.layers).map(kind).collect(),
            vocab: 248_320,
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            head_dim: 256,
            rotary_dims: 64,
            rope_theta: 1e7,
            norm_eps: 1e-6,
            delta_key_heads: 16,
            delta_value_heads: shape.delta_value_heads,
            delta_key_dim: 128,
            delta_value_dim: 128,
            conv_width: 4,
            context_max: 262_144,
            tied: shape.tied,
            mtp_layers: 1,
            eos_ids: vec![248_044],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_whole_or_by_size() {
        assert_eq!(ModelConfig::named("Qwen3.6-27B").unwrap(), ModelConfig::named("27b").unwrap());
        assert_eq!(ModelConfig::named("0.8b").unwrap().hidden, 1024);
        let error = ModelConfig::named("35b-a3b").unwrap_err();
        assert!(error.what().contains("35b-a3b") && error.remedy().contains("qwen3.5-9b"), "{error:?}");
    }
}
