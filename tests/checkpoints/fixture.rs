//! A small checkpoint made by code: two layers, one of each kind, a head of its own and a draft head. Every element
//! differs from its neighbours, so that a row out of place shows.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};

pub const HIDDEN: usize = 8;
pub const INTERMEDIATE: usize = 12;
pub const VOCAB: usize = 10;
pub const KEY_HEADS: usize = 2;
pub const VALUE_HEADS: usize = 4;
pub const KEY_DIM: usize = 2;
pub const VALUE_DIM: usize = 6;
pub const VALUE_COLS: usize = VALUE_HEADS * VALUE_DIM;
pub const CONV_COLS: usize = 2 * KEY_HEADS * KEY_DIM + VALUE_COLS;
const QUERY_COLS: usize = 8;
const KV_COLS: usize = 4;

pub const INDEX: &str = "model.safetensors.index.json";
pub const FIRST: &str = "model-00001-of-00002.safetensors";
pub const SECOND: &str = "model-00002-of-00002.safetensors";

#[derive(Clone)]
pub struct FixtureTensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// The checkpoint before it is written, under normalised names.
#[derive(Clone)]
pub struct Fixture {
    pub config: Value,
    pub generation: Option<Value>,
    pub tensors: BTreeMap<String, FixtureTensor>,
}

impl Fixture {
    pub fn new() -> Fixture {
        let config = json!({
            "model_type": "qwen3_5_text", "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
            "num_hidden_layers": 2, "full_attention_interval": 2, "vocab_size": VOCAB, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 4, "partial_rotary_factor": 0.5, "rope_theta": 10000.0,
            "linear_num_key_heads": KEY_HEADS, "linear_num_value_heads": VALUE_HEADS,
            "linear_key_head_dim": KEY_DIM, "linear_value_head_dim": VALUE_DIM, "max_position_embeddings": 64,
            "eos_token_id": 3
        });
        let generation = Some(json!({"eos_token_id": [3], "temperature": 1.0}));
        let mut fixture = Fixture { config, generation, tensors: BTreeMap::new() };
        fixture.add("embed_tokens.weight", &[VOCAB, HIDDEN]);
        fixture.add("lm_head.weight", &[VOCAB, HIDDEN]);
        fixture.add("norm.weight", &[HIDDEN]);
        fixture.add_block("layers.0");
        fixture.add_block("layers.1");
        for (name, shape) in [
            ("in_proj_qkv.weight", &[CONV_COLS, HIDDEN][..]),
            ("in_proj_z.weight", &[VALUE_COLS, HIDDEN]),
            ("in_proj_b.weight", &[VALUE_HEADS, HIDDEN]),
            ("in_proj_a.weight", &[VALUE_HEADS, HIDDEN]),
            ("conv1d.weight", &[CONV_COLS, 1, 4]),
            ("A_log", &[VALUE_HEADS]),
            ("dt_bias", &[VALUE_HEADS]),
            ("norm.weight", &[VALUE_DIM]),
            ("out_proj.weight", &[HIDDEN, VALUE_COLS]),
        ] {
            fixture.add(&format!("layers.0.linear_attn.{name}"), shape);
        }
        fixture.add_attention("layers.1");
        fixture.add("mtp.fc.weight", &[HIDDEN, 2 * HIDDEN]);
        for name in ["pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"] {
            fixture.add(&format!("mtp.{name}.weight"), &[HIDDEN]);
        }
        fixture.add_block("mtp.layers.0");
        fixture.add_attention("mtp.layers.0");
        fixture
    }

    fn add_block(&mut self, layer: &str) {
        self.add(&format!("{layer}.input_layernorm.weight"), &[HIDDEN]);
        self.add(&format!("{layer}.post_attention_layernorm.weight"), &[HIDDEN]);
        self.add(&format!("{layer}.mlp.gate_proj.weight"), &[INTERMEDIATE, HIDDEN]);
        self.add(&format!("{layer}.mlp.up_proj.weight"), &[INTERMEDIATE, HIDDEN]);
        self.add(&format!("{layer}.mlp.down_proj.weight"), &[HIDDEN, INTERMEDIATE]);
    }

    fn add_attention(&mut self, layer: &str) {
        self.add(&format!("{layer}.self_attn.q_proj.weight"), &[2 * QUERY_COLS, HIDDEN]);
        self.add(&format!("{layer}.self_attn.k_proj.weight"), &[KV_COLS, HIDDEN]);
        self.add(&format!("{layer}.self_attn.v_proj.weight"), &[KV_COLS, HIDDEN]);
        self.add(&format!("{layer}.self_attn.o_proj.weight"), &[HIDDEN, QUERY_COLS]);
        self.add(&format!("{layer}.self_attn.q_norm.weight"), &[4]);
        self.add(&format!("{layer}.self_attn.k_norm.weight"), &[4]);
    }

    /// A bf16 tensor whose values count up from where its name says.
    pub fn add(&mut self, name: &str, shape: &[usize]) {
        let first = self.tensors.len() * 1009;
        let elements: usize = shape.iter().product();
        // 30,000 lies below the exponents of infinity and NaN.
        let bytes = (0..elements).flat_map(|element| (((first + element) % 30_000) as u16).to_le_bytes()).collect();
        self.tensors.insert(name.to_owned(), FixtureTensor { dtype: Dtype::BF16, shape: shape.to_vec(), bytes });
    }

    pub fn tensor(&mut self, name: &str) -> &mut FixtureTensor {
        self.tensors.get_mut(name).unwrap()
    }

    pub fn remove(&mut self, name: &str) -> FixtureTensor {
        self.tensors.remove(name).unwrap()
    }

    pub fn remove_mtp(&mut self) {
        self.tensors.retain(|name, _| !name.starts_with("mtp."));
    }

    pub fn widen(&mut self, name: &str) {
        let tensor = self.tensor(name);
        tensor.bytes = widened(&tensor.bytes);
        tensor.dtype = Dtype::F32;
    }

    fn write_settings(&self, folder: &Path) {
        std::fs::write(folder.join("config.json"), self.config.to_string()).unwrap();
        if let Some(generation) = &self.generation {
            std::fs::write(folder.join("generation_config.json"), generation.to_string()).unwrap();
        }
    }

    /// One model.safetensors, names as `rename` gives them.
    pub fn write_single(&self, folder: &Path, rename: fn(&str) -> String) {
        self.write_settings(folder);
        let tensors = self.tensors.iter().map(|(name, tensor)| (rename(name), tensor));
        std::fs::write(folder.join("model.safetensors"), serialized(tensors)).unwrap();
    }

    /// Two shards and an index.
    pub fn write_sharded(&self, folder: &Path) {
        self.write_settings(folder);
        let mut weight_map = BTreeMap::new();
        for (half, shard) in [FIRST, SECOND].into_iter().enumerate() {
            let own = self.tensors.iter().enumerate().filter(|(index, _)| index % 2 == half);
            let tensors: Vec<_> = own.map(|(_, (name, tensor))| (published(name), tensor)).collect();
            weight_map.extend(tensors.iter().map(|(name, _)| (name.clone(), shard)));
            std::fs::write(folder.join(shard), serialized(tensors)).unwrap();
        }
        let index = json!({"metadata": {"total_size": 1}, "weight_map": weight_map});
        std::fs::write(folder.join(INDEX), index.to_string()).unwrap();
    }

    /// Our tensors as stacks of the fixture's, written out by hand: label and bytes.
    pub fn expected(&self) -> BTreeMap<String, Vec<u8>> {
        let mut all = BTreeMap::new();
        let mut add = |label: String, names: &[String]| {
            let bytes = names.iter().flat_map(|name| self.tensors[name].bytes.clone()).collect();
            all.insert(label, bytes);
        };
        for (label, name) in [
            ("embed", "embed_tokens.weight"),
            ("head", "lm_head.weight"),
            ("norm", "norm.weight"),
            ("layers.0.conv", "layers.0.linear_attn.conv1d.weight"),
            ("layers.0.a_log", "layers.0.linear_attn.A_log"),
            ("layers.0.dt_bias", "layers.0.linear_attn.dt_bias"),
            ("layers.0.delta_norm", "layers.0.linear_attn.norm.weight"),
            ("layers.0.out", "layers.0.linear_attn.out_proj.weight"),
            ("mtp.norm_embedding", "mtp.pre_fc_norm_embedding.weight"),
            ("mtp.norm_hidden", "mtp.pre_fc_norm_hidden.weight"),
            ("mtp.fc", "mtp.fc.weight"),
            ("mtp.norm", "mtp.norm.weight"),
        ] {
            add(label.to_owned(), &[name.to_owned()]);
        }
        let inputs = |parts: [&str; 2]| parts.map(|part| format!("layers.0.linear_attn.in_proj_{part}.weight"));
        add("layers.0.qkvz".to_owned(), &inputs(["qkv", "z"]));
        add("layers.0.ba".to_owned(), &inputs(["b", "a"]));
        for (ours, theirs) in [("layers.1", "layers.1"), ("mtp.layer", "mtp.layers.0")] {
            let name = |part: &str| format!("{theirs}.self_attn.{part}.weight");
            add(format!("{ours}.qkv"), &["q_proj", "k_proj", "v_proj"].map(name));
            add(format!("{ours}.q_norm"), &[name("q_norm")]);
            add(format!("{ours}.k_norm"), &[name("k_norm")]);
            add(format!("{ours}.out"), &[name("o_proj")]);
        }
        for (ours, theirs) in [("layers.0", "layers.0"), ("layers.1", "layers.1"), ("mtp.layer", "mtp.layers.0")] {
            add(format!("{ours}.norm"), &[format!("{theirs}.input_layernorm.weight")]);
            add(format!("{ours}.norm_mlp"), &[format!("{theirs}.post_attention_layernorm.weight")]);
            for part in ["gate", "up", "down"] {
                add(format!("{ours}.{part}"), &[format!("{theirs}.mlp.{part}_proj.weight")]);
            }
        }
        all
    }
}

pub fn serialized<'a>(tensors: impl IntoIterator<Item = (String, &'a FixtureTensor)>) -> Vec<u8> {
    let view = |tensor: &'a FixtureTensor| TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes).unwrap();
    safetensors::serialize(tensors.into_iter().map(|(name, tensor)| (name, view(tensor))), None).unwrap()
}

/// The names of published multimodal checkpoints.
pub fn published(name: &str) -> String {
    let root = ["mtp.", "lm_head.", "model."].iter().any(|prefix| name.starts_with(prefix));
    if root { name.to_owned() } else { format!("model.language_model.{name}") }
}

/// The names of text-only exports, draft head included.
pub fn text_only(name: &str) -> String {
    if name.starts_with("lm_head.") { name.to_owned() } else { format!("model.{name}") }
}

pub fn widened(bf16: &[u8]) -> Vec<u8> {
    bf16.chunks(2).flat_map(|pair| [0, 0, pair[0], pair[1]]).collect()
}
