//! What is in a checkpoint, for a person: counts and bytes by part, types, and the traps that let a model run a little
//! wrong without an error. Pure data; reads headers and the small JSON files, never weights.

use std::collections::BTreeMap;

use serde::Serialize;

use super::safetensors::{Checkpoint, FileTensor};
use super::survey::survey;
use crate::base::{GenerationConfig, LayerKind, ModelConfig, Result};

/// A checkpoint described.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspection {
    /// None where config.json is absent or refused; `problems` says why.
    pub config: Option<ModelConfig>,
    pub generation: Option<GenerationConfig>,
    /// Weight files and their bytes.
    pub shards: Vec<Shard>,
    /// Embedding, layers by kind, norm, head, mtp, vision and what belongs nowhere; empty parts are left out.
    pub parts: Vec<Part>,
    /// Tensors of each element type, vision left out.
    pub dtypes: BTreeMap<String, u32>,
    /// Parameters of the language model, the draft head included.
    pub parameters: u64,
    /// Bytes that loading takes on the backend; None where it cannot be loaded.
    pub loaded_bytes: Option<u64>,
    /// What is unusual, though it runs.
    pub notices: Vec<String>,
    /// Why it does not run; empty if it does.
    pub problems: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shard {
    pub name: String,
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Part {
    pub name: &'static str,
    pub tensors: u32,
    pub parameters: u64,
    pub bytes: u64,
}

/// Describes an opened checkpoint, one that cannot be loaded included.
///
/// Errors: only where its small files cannot be read at all; what is wrong with their content is in `problems`.
pub fn inspect(checkpoint: &Checkpoint) -> Result<Inspection> {
    let (mut notices, mut problems) = (Vec::new(), Vec::new());
    let config = kept(checkpoint.config(), &mut problems);
    let generation = kept(checkpoint.generation_config(), &mut problems).flatten();
    let mut loaded_bytes = None;
    if let Some(config) = &config {
        if let Some(survey) = kept(survey(config, checkpoint), &mut problems) {
            loaded_bytes = Some(survey.loaded_bytes);
            notices.extend(survey.notices);
        }
        end_token_notices(config, generation.as_ref(), &mut notices, &mut problems);
        if config.tied {
            notices.push("the head is the embedding (tie_word_embeddings)".to_owned());
        }
    }
    file_notices(checkpoint, &mut notices)?;
    small_f32_notice(checkpoint, &mut notices);
    let mut dtypes = BTreeMap::new();
    for (_, tensor) in checkpoint.tensors() {
        *dtypes.entry(tensor.dtype.to_string()).or_default() += 1;
    }
    Ok(Inspection {
        parts: parts(config.as_ref(), checkpoint),
        shards: checkpoint.shards().map(|(name, bytes)| Shard { name: name.to_owned(), bytes }).collect(),
        parameters: checkpoint.tensors().map(|(_, tensor)| elements(&tensor)).sum(),
        config,
        generation,
        dtypes,
        loaded_bytes,
        notices,
        problems,
    })
}

fn kept<T>(result: Result<T>, problems: &mut Vec<String>) -> Option<T> {
    result.map_err(|error| problems.push(error.to_string())).ok()
}

/// Running past the end of a turn is the commonest fault of this family's exports.
fn end_token_notices(
    config: &ModelConfig,
    generation: Option<&GenerationConfig>,
    notices: &mut Vec<String>,
    problems: &mut Vec<String>,
) {
    let Some(ids) = kept(config.end_ids(generation), problems) else { return };
    match generation {
        None => notices.push(format!(
            "generation_config.json is missing: sampling defaults are unknown and only the end tokens of config.json, \
             {ids:?}, are"
        )),
        Some(generation) if generation.eos_ids.is_empty() => {
            notices.push(format!("generation_config.json has no eos_token_id; config.json gives {:?}", config.eos_ids));
        }
        Some(generation) => {
            let mut published = generation.eos_ids.clone();
            published.sort_unstable();
            published.dedup();
            if published != config.eos_ids {
                notices.push(format!(
                    "end tokens differ: config.json has {:?}, generation_config.json {published:?}; all of {ids:?} end \
                     an answer",
                    config.eos_ids
                ));
            }
        }
    }
    if ids.is_empty() {
        problems.push("neither config.json nor generation_config.json names an end token".to_owned());
    }
}

fn file_notices(checkpoint: &Checkpoint, notices: &mut Vec<String>) -> Result<()> {
    if checkpoint.file("tokenizer.json")?.is_none() {
        notices.push("tokenizer.json is missing: the model cannot read text".to_owned());
    }
    if checkpoint.file("chat_template.jinja")?.is_none() {
        let settings = checkpoint.file("tokenizer_config.json")?.unwrap_or_default();
        let settings: serde_json::Value = serde_json::from_slice(&settings).unwrap_or_default();
        if settings.get("chat_template").is_none() {
            notices.push("there is no chat template, neither a file nor in tokenizer_config.json".to_owned());
        }
    }
    Ok(())
}

fn small_f32_notice(checkpoint: &Checkpoint, notices: &mut Vec<String>) {
    let small = |name: &str| {
        name.ends_with(".A_log") || name.ends_with(".dt_bias") || name.ends_with(".linear_attn.norm.weight")
    };
    let is_f32 = |tensor: &FileTensor| tensor.dtype == ::safetensors::Dtype::F32;
    let count = checkpoint.tensors().filter(|(name, tensor)| small(name) && is_f32(tensor)).count();
    if count > 0 {
        notices.push(format!("{count} small DeltaNet tensors are f32, as some exporters keep them"));
    }
}

fn parts(config: Option<&ModelConfig>, checkpoint: &Checkpoint) -> Vec<Part> {
    let names = ["embedding", "delta layers", "attention layers", "norm", "head", "mtp", "vision", "other"];
    let mut parts = names.map(|name| Part { name, tensors: 0, parameters: 0, bytes: 0 });
    for (name, tensor) in checkpoint.tensors() {
        let wanted = part_of(name, config, checkpoint);
        let Some(part) = parts.iter_mut().find(|part| part.name == wanted) else { continue };
        part.tensors += 1;
        part.parameters += elements(&tensor);
        part.bytes += tensor.bytes.len() as u64;
    }
    let vision = checkpoint.vision();
    if let Some(part) = parts.iter_mut().find(|part| part.name == "vision") {
        (part.tensors, part.parameters, part.bytes) = (vision.tensors, vision.parameters, vision.bytes);
    }
    parts.into_iter().filter(|part| part.tensors > 0).collect()
}

fn part_of(name: &str, config: Option<&ModelConfig>, checkpoint: &Checkpoint) -> &'static str {
    match name {
        "embed_tokens.weight" => return "embedding",
        "lm_head.weight" => return "head",
        "norm.weight" => return "norm",
        _ if name.starts_with("mtp.") => return "mtp",
        _ => {}
    }
    let index = name.strip_prefix("layers.").and_then(|rest| rest.split('.').next());
    let Some(index) = index.and_then(|digits| digits.parse::<usize>().ok()) else { return "other" };
    let kind = match config {
        Some(config) => config.layers.get(index).copied(),
        // Without a config the tensors themselves tell.
        None => match checkpoint.tensor(&format!("layers.{index}.linear_attn.A_log")) {
            Some(_) => Some(LayerKind::DeltaNet),
            None => Some(LayerKind::Attention),
        },
    };
    match kind {
        Some(LayerKind::DeltaNet) => "delta layers",
        Some(LayerKind::Attention) => "attention layers",
        None => "other",
    }
}

fn elements(tensor: &FileTensor) -> u64 {
    tensor.shape.iter().map(|&extent| extent as u64).product()
}
