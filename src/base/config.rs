//! What a model is, read from its `config.json`: extents, layer kinds and constants as plain numbers, validated once
//! so that nobody downstream asks again whether a head size divides. Holds no file access: bytes in, numbers out.

use serde::Serialize;
use serde_json::Value;

use super::error::{Error, Result};
use super::fields::{Fields, parse_object};
use super::generation::GenerationConfig;

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

/// Bounds on what a file may ask for: far above any model of the family, and small enough that every product of two
/// extents fits in u32.
const WIDTH_MAX: u32 = 1 << 18;
const VOCAB_MAX: u32 = 1 << 22;
const LAYERS_MAX: u32 = 1 << 10;
const HEADS_MAX: u32 = 1 << 10;
const HEAD_DIM_MAX: u32 = 1 << 10;
const CONTEXT_MAX: u32 = 1 << 26;
const CONV_WIDTH: u32 = 4;

impl ModelConfig {
    /// Reads `config.json`. Errors (Input) name the key, the value found and what was expected; models of other
    /// kinds, quantised ones and scaled rotary embeddings are refused by name.
    pub fn from_json(bytes: &[u8]) -> Result<ModelConfig> {
        read(bytes).map_err(|error| error.within("config.json"))
    }

    /// Every token that ends an answer, ascending: those of this config and of the generation config. Neither file
    /// alone can be trusted to have them all. Errors (Input) name an id beyond the vocabulary.
    pub fn end_ids(&self, generation: Option<&GenerationConfig>) -> Result<Vec<u32>> {
        let mut ids = self.eos_ids.clone();
        ids.extend(generation.iter().flat_map(|generation| &generation.eos_ids));
        ids.sort_unstable();
        ids.dedup();
        if let Some(id) = ids.iter().find(|&&id| id >= self.vocab) {
            return Err(Error::input(
                format!("eos_token_id {id} is not in the vocabulary of {}", self.vocab),
                "take config.json and generation_config.json from the same model",
            ));
        }
        Ok(ids)
    }

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

fn read(bytes: &[u8]) -> Result<ModelConfig> {
    let map = parse_object(bytes)?;
    let top = Fields::new(&map);
    let nested = top.object("text_config")?;
    let text = nested.unwrap_or(top);
    let model_type = accepted_type(top, text)?;
    refuse_quantised(top)?;
    refuse_quantised(text)?;
    check_fixed_choices(text)?;

    let head_dim = text.extent("head_dim", HEAD_DIM_MAX)?;
    let (rope_theta, rotary_dims) = rope(text, head_dim)?;
    let mut eos_ids = text.tokens("eos_token_id")?;
    eos_ids.extend(top.tokens("eos_token_id")?);
    eos_ids.sort_unstable();
    eos_ids.dedup();
    // The outer flag is the one that decides in the code these files are written for.
    let tied = match top.flag("tie_word_embeddings")? {
        Some(tied) => tied,
        None => text.flag("tie_word_embeddings")?.unwrap_or(false),
    };
    let config = ModelConfig {
        model_type: model_type.to_owned(),
        hidden: text.extent("hidden_size", WIDTH_MAX)?,
        intermediate: text.extent("intermediate_size", WIDTH_MAX)?,
        layers: layer_kinds(text)?,
        vocab: text.extent("vocab_size", VOCAB_MAX)?,
        heads: text.extent("num_attention_heads", HEADS_MAX)?,
        kv_heads: text.extent("num_key_value_heads", HEADS_MAX)?,
        head_dim,
        rotary_dims,
        rope_theta,
        norm_eps: text.number("rms_norm_eps")?.unwrap_or(1e-6),
        delta_key_heads: text.extent("linear_num_key_heads", HEADS_MAX)?,
        delta_value_heads: text.extent("linear_num_value_heads", HEADS_MAX)?,
        delta_key_dim: text.extent("linear_key_head_dim", HEAD_DIM_MAX)?,
        delta_value_dim: text.extent("linear_value_head_dim", HEAD_DIM_MAX)?,
        conv_width: text.integer("linear_conv_kernel_dim")?.unwrap_or(CONV_WIDTH),
        context_max: text.extent("max_position_embeddings", CONTEXT_MAX)?,
        tied,
        mtp_layers: text.integer("mtp_num_hidden_layers")?.unwrap_or(1),
        eos_ids,
    };
    check_extents(&config)?;
    config.end_ids(None)?;
    Ok(config)
}

/// The model type, if it is one that the forward pass computes.
fn accepted_type<'a>(top: Fields<'a>, text: Fields<'a>) -> Result<&'a str> {
    let inner = text.text("model_type")?;
    let Some(outer) = top.text("model_type")?.or(inner) else { return Err(top.absent("model_type")) };
    for name in [outer, inner.unwrap_or(outer)] {
        match name {
            "qwen3_5" | "qwen3_5_text" | "qwen3_next" => {}
            "qwen3_5_moe" | "qwen3_5_moe_text" => return Err(mixture_of_experts(name)),
            "qwen4_exp" => {
                return Err(Error::input(
                    "model_type qwen4_exp is a newer architecture (hyper-connections, sparse attention)",
                    "use a dense Qwen3.5, Qwen3.6 or Qwen3.8 checkpoint",
                ));
            }
            other => {
                return Err(Error::input(
                    format!("model_type {other:?} is not one of qwen3_5, qwen3_5_text and dense qwen3_next"),
                    "use a dense Qwen3.5, Qwen3.6 or Qwen3.8 checkpoint",
                ));
            }
        }
    }
    if text.integer("num_experts")?.unwrap_or(0) > 0 {
        return Err(mixture_of_experts(outer));
    }
    Ok(outer)
}

fn mixture_of_experts(model_type: &str) -> Error {
    Error::input(
        format!("model_type {model_type} is a mixture of experts, which is not supported"),
        "use a dense checkpoint of the family, such as Qwen3.6-27B or Qwen3.5-9B",
    )
}

fn refuse_quantised(fields: Fields) -> Result<()> {
    for key in ["quantization_config", "compression_config"] {
        if let Some(quantisation) = fields.object(key)? {
            let method = quantisation.text("quant_method")?.unwrap_or("an unnamed method");
            return Err(Error::input(
                format!("{} says the weights are quantised with {method}", fields.name(key)),
                "use the BF16 checkpoint of the same model",
            ));
        }
    }
    Ok(())
}

/// Choices of the architecture that the ops have built in.
fn check_fixed_choices(text: Fields) -> Result<()> {
    for (key, expected) in [("attn_output_gate", true), ("attention_bias", false)] {
        if text.flag(key)?.unwrap_or(expected) != expected {
            return Err(text.wrong(key, &Value::Bool(!expected), &expected.to_string()));
        }
    }
    if text.flag("mtp_use_dedicated_embeddings")? == Some(true) {
        return Err(text.wrong("mtp_use_dedicated_embeddings", &Value::Bool(true), "false"));
    }
    for (key, allowed) in [("hidden_act", ["silu", "swish"]), ("output_gate_type", ["swish", "silu"])] {
        if let Some(found) = text.text(key)?
            && !allowed.contains(&found)
        {
            return Err(text.wrong(key, &Value::from(found), "silu"));
        }
    }
    Ok(())
}

/// theta and the rotated dimensions of a head.
fn rope(text: Fields, head_dim: u32) -> Result<(f32, u32)> {
    let nested = text.object("rope_parameters")?;
    for fields in [nested, text.object("rope_scaling")?].into_iter().flatten() {
        for key in ["rope_type", "type"] {
            if let Some(kind) = fields.text(key)?
                && kind != "default"
            {
                return Err(Error::input(
                    format!("{} is {kind}; only default is supported", fields.name(key)),
                    "use the model's own config.json, and a context within max_position_embeddings",
                ));
            }
        }
    }
    let number = |key: &str| -> Result<Option<f32>> {
        match nested.map(|fields| fields.number(key)).transpose()?.flatten() {
            Some(number) => Ok(Some(number)),
            None => text.number(key),
        }
    };
    let theta = number("rope_theta")?.ok_or_else(|| text.absent("rope_theta"))?;
    if theta <= 1.0 {
        return Err(text.wrong("rope_theta", &Value::from(theta), "a number above 1"));
    }
    let factor = number("partial_rotary_factor")?.unwrap_or(0.25);
    let dims = factor * head_dim as f32;
    if !(dims >= 2.0 && dims <= head_dim as f32 && dims % 2.0 == 0.0) {
        return Err(Error::input(
            format!("partial_rotary_factor {factor} rotates {dims} of {head_dim} dimensions, expected an even number"),
            "compare the file with the one the model was published with",
        ));
    }
    Ok((theta, dims as u32))
}

/// `layer_types` where there is one, else every `full_attention_interval`-th layer attends.
fn layer_kinds(text: Fields) -> Result<Vec<LayerKind>> {
    let count = text.extent("num_hidden_layers", LAYERS_MAX)?;
    let Some(list) = text.list("layer_types")? else {
        let interval = match text.value("full_attention_interval") {
            Some(_) => text.extent("full_attention_interval", LAYERS_MAX)?,
            None => 4,
        };
        let kind = |layer: u32| match (layer + 1).is_multiple_of(interval) {
            true => LayerKind::Attention,
            false => LayerKind::DeltaNet,
        };
        return Ok((0..count).map(kind).collect());
    };
    if list.len() != count as usize {
        return Err(Error::input(
            format!("{} has {} entries and num_hidden_layers is {count}", text.name("layer_types"), list.len()),
            "make the two agree with the checkpoint",
        ));
    }
    let kind = |value: &Value| match value.as_str() {
        Some("linear_attention") => Ok(LayerKind::DeltaNet),
        Some("full_attention") => Ok(LayerKind::Attention),
        _ => Err(text.wrong("layer_types", value, "linear_attention or full_attention")),
    };
    list.iter().map(kind).collect()
}

/// What the ops demand of extents that are each fine alone.
fn check_extents(config: &ModelConfig) -> Result<()> {
    let fail = |what: String| Err(Error::input(what, "compare the file with the one the model was published with"));
    for (name, many, unit_name, unit) in [
        ("num_attention_heads", config.heads, "num_key_value_heads", config.kv_heads),
        ("linear_num_value_heads", config.delta_value_heads, "linear_num_key_heads", config.delta_key_heads),
    ] {
        if !many.is_multiple_of(unit) {
            return fail(format!("{name} is {many}, expected a multiple of {unit_name}, which is {unit}"));
        }
    }
    // Backends without a bf16 type hold two values to the word.
    for (name, extent) in [
        ("hidden_size", config.hidden),
        ("intermediate_size", config.intermediate),
        ("head_dim", config.head_dim),
        ("linear_key_head_dim", config.delta_key_dim),
        ("linear_value_head_dim", config.delta_value_dim),
    ] {
        if !extent.is_multiple_of(2) {
            return fail(format!("{name} is {extent}, expected an even number"));
        }
    }
    if config.conv_width != CONV_WIDTH {
        return fail(format!("linear_conv_kernel_dim is {}, expected {CONV_WIDTH}", config.conv_width));
    }
    if !(config.norm_eps > 0.0 && config.norm_eps < 1.0) {
        return fail(format!("rms_norm_eps is {}, expected a number between 0 and 1", config.norm_eps));
    }
    if config.mtp_layers > 1 {
        return fail(format!("mtp_num_hidden_layers is {}, expected 0 or 1", config.mtp_layers));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn small() -> Value {
        json!({
            "model_type": "qwen3_5_text", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 8,
            "vocab_size": 100, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
            "linear_value_head_dim": 16, "max_position_embeddings": 1024, "rope_theta": 1e6, "eos_token_id": 3
        })
    }

    fn with(changes: &[(&str, Value)]) -> Value {
        let mut config = small();
        for (key, value) in changes {
            config[*key] = value.clone();
        }
        config
    }

    fn read_value(config: &Value) -> Result<ModelConfig> {
        ModelConfig::from_json(&serde_json::to_vec(config).unwrap())
    }

    #[test]
    fn flat_file_with_defaults() {
        let config = read_value(&small()).unwrap();
        let attends: Vec<bool> = config.layers.iter().map(|&kind| kind == LayerKind::Attention).collect();
        assert_eq!(attends, [false, false, false, true, false, false, false, true]);
        assert_eq!((config.rotary_dims, config.rope_theta, config.norm_eps), (8, 1e6, 1e-6));
        assert_eq!((config.conv_width, config.mtp_layers, config.tied), (4, 1, false));
        assert_eq!((config.conv_cols(), config.delta_value_cols()), (128, 64));
        assert_eq!(config.eos_ids, [3]);
    }

    #[test]
    fn the_nested_file_wins_where_the_rules_say_so() {
        let text = with(&[
            ("layer_types", json!(["full_attention", "linear_attention"])),
            ("num_hidden_layers", json!(2)),
            ("full_attention_interval", json!(1)),
            ("rope_parameters", json!({"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5})),
            ("output_gate_type", json!("swish")),
            ("tie_word_embeddings", json!(false)),
        ]);
        let file = json!({
            "model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": true, "eos_token_id": [5, 3],
            "vision_config": {"hidden_size": 7}
        });
        let config = read_value(&file).unwrap();
        assert_eq!(config.layers, [LayerKind::Attention, LayerKind::DeltaNet]);
        assert_eq!((config.rope_theta, config.rotary_dims), (1e7, 16));
        assert!(config.tied);
        assert_eq!((config.model_type.as_str(), config.eos_ids.as_slice()), ("qwen3_5", [3, 5].as_slice()));
        let generation = GenerationConfig { eos_ids: vec![9, 3], ..GenerationConfig::default() };
        assert_eq!(config.end_ids(Some(&generation)).unwrap(), [3, 5, 9]);
        let generation = GenerationConfig { eos_ids: vec![100], ..GenerationConfig::default() };
        assert!(config.end_ids(Some(&generation)).unwrap_err().what().contains("eos_token_id 100"));
    }

    #[test]
    fn dense_next_and_an_interval_of_its_own() {
        let config = read_value(&with(&[
            ("model_type", json!("qwen3_next")),
            ("num_experts", json!(0)),
            ("full_attention_interval", json!(2)),
        ]));
        assert_eq!(config.unwrap().layers_of(LayerKind::Attention), 4);
    }

    #[test]
    fn what_cannot_run_is_refused_by_name() {
        let nested = |text: Value| json!({"model_type": "qwen3_5", "text_config": text});
        for (config, parts) in [
            (with(&[("model_type", json!("qwen3_5_moe"))]), ["qwen3_5_moe", "experts"]),
            (nested(with(&[("model_type", json!("qwen3_5_moe_text"))])), ["qwen3_5_moe_text", "experts"]),
            (with(&[("model_type", json!("qwen3_next")), ("num_experts", json!(512))]), ["qwen3_next", "experts"]),
            (with(&[("model_type", json!("qwen4_exp"))]), ["qwen4_exp", "newer"]),
            (with(&[("model_type", json!("llama"))]), ["\"llama\"", "qwen3_5"]),
            (with(&[("model_type", json!(null))]), ["model_type", "missing"]),
            (with(&[("quantization_config", json!({"quant_method": "fp8"}))]), ["quantization_config", "fp8"]),
            (nested(with(&[("quantization_config", json!({}))])), ["text_config.quantization_config", "unnamed"]),
            (with(&[("rope_scaling", json!({"type": "yarn"}))]), ["rope_scaling.type", "yarn"]),
            (with(&[("rope_parameters", json!({"rope_type": "linear"}))]), ["rope_parameters.rope_type", "linear"]),
            (with(&[("rope_theta", json!(null))]), ["rope_theta", "missing"]),
            (with(&[("rope_theta", json!(0.5))]), ["rope_theta", "0.5"]),
            (with(&[("partial_rotary_factor", json!(0.1))]), ["partial_rotary_factor", "of 32"]),
            (with(&[("partial_rotary_factor", json!(2))]), ["partial_rotary_factor", "64 of 32"]),
            (with(&[("num_key_value_heads", json!(3))]), ["num_attention_heads is 4", "num_key_value_heads"]),
            (with(&[("linear_num_value_heads", json!(5))]), ["linear_num_value_heads is 5", "linear_num_key_heads"]),
            (with(&[("hidden_size", json!(63))]), ["hidden_size is 63", "even"]),
            (with(&[("hidden_size", json!(0))]), ["hidden_size is 0", "from 1"]),
            (with(&[("hidden_size", json!(-4))]), ["hidden_size is -4", "from 1"]),
            (with(&[("hidden_size", json!(1e30))]), ["hidden_size is 1e+30", "from 1"]),
            (with(&[("hidden_size", json!("64"))]), ["hidden_size is \"64\"", "from 1"]),
            (with(&[("hidden_size", json!(null))]), ["hidden_size", "missing"]),
            (with(&[("num_hidden_layers", json!(4_000_000_000u32))]), ["num_hidden_layers is 4000000000", "1024"]),
            (with(&[("layer_types", json!(["full_attention"]))]), ["layer_types has 1", "is 8"]),
            (with(&[("layer_types", json!([1, 1, 1, 1, 1, 1, 1, 1]))]), ["layer_types is 1", "full_attention"]),
            (with(&[("full_attention_interval", json!(0))]), ["full_attention_interval is 0", "from 1"]),
            (with(&[("linear_conv_kernel_dim", json!(3))]), ["linear_conv_kernel_dim is 3", "4"]),
            (with(&[("attn_output_gate", json!(false))]), ["attn_output_gate is false", "true"]),
            (with(&[("attention_bias", json!(true))]), ["attention_bias is true", "false"]),
            (with(&[("hidden_act", json!("gelu"))]), ["hidden_act is \"gelu\"", "silu"]),
            (with(&[("output_gate_type", json!("sigmoid"))]), ["output_gate_type is \"sigmoid\"", "silu"]),
            (with(&[("mtp_num_hidden_layers", json!(2))]), ["mtp_num_hidden_layers is 2", "0 or 1"]),
            (with(&[("mtp_use_dedicated_embeddings", json!(true))]), ["mtp_use_dedicated_embeddings", "false"]),
            (with(&[("rms_norm_eps", json!(0))]), ["rms_norm_eps is 0", "between"]),
            (with(&[("eos_token_id", json!(100))]), ["eos_token_id 100", "vocabulary of 100"]),
            (json!({"text_config": 3}), ["text_config is 3", "an object"]),
        ] {
            let error = read_value(&config).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.what().starts_with("config.json: "), "{error}");
            assert!(parts.iter().all(|part| error.what().contains(part)), "{error} lacks one of {parts:?}");
        }
        assert!(ModelConfig::from_json(b"\xff").unwrap_err().what().contains("not JSON"));
    }
}
