//! Whether a checkpoint has what a model needs: nothing missing, nothing left over, every shape and type as expected.
//! Decides what depends on the tensors' presence (draft head, fused inputs) and says what a user should know.

use std::collections::BTreeSet;

use safetensors::Dtype;

use super::layout::{Dialect, TensorPlan, plans};
use super::safetensors::{Checkpoint, FileTensor};
use crate::base::{DType, Error, ModelConfig, Result};

/// Names listed in an error before the rest is only counted.
const LISTED_MAX: usize = 5;

/// Last parts of names that only quantised checkpoints have.
const QUANTISED: [&str; 14] = [
    "weight_scale_inv",
    "weight_scale",
    "weight_scale_2",
    "weight_global_scale",
    "weight_packed",
    "weight_shape",
    "weight_zero_point",
    "input_scale",
    "input_global_scale",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "absmax",
];

/// A checkpoint that can be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    pub dialect: Dialect,
    /// One line each, for a person.
    pub notices: Vec<String>,
    /// Bytes on the backend once loaded.
    pub loaded_bytes: u64,
}

/// Checks a checkpoint against a config, from headers alone. Errors (Input) name the tensor, what was found and what
/// was expected.
pub fn survey(config: &ModelConfig, checkpoint: &Checkpoint) -> Result<Survey> {
    refuse_quantised(checkpoint)?;
    let mut notices = Vec::new();
    let vision = checkpoint.vision();
    if vision.tensors > 0 {
        notices.push(format!(
            "the vision tower is skipped: {} tensors, {} bytes; input is text only",
            vision.tensors, vision.bytes
        ));
    }
    let fused_delta = checkpoint.tensors().any(|(name, _)| name.ends_with("linear_attn.in_proj_qkvz.weight"));
    let (mtp, ignored_mtp) = draft_head(config, checkpoint, &mut notices);
    let dialect = Dialect { mtp, fused_delta };
    let plans = plans(config, dialect);
    check_present(&plans, checkpoint)?;
    for plan in &plans {
        check_shapes(plan, checkpoint)?;
    }
    check_surplus(config, &plans, checkpoint, ignored_mtp, &mut notices)?;

    let widened = checkpoint.tensors().filter(|(_, tensor)| tensor.dtype == Dtype::F16).count();
    if widened > 0 {
        notices.push(format!("{widened} tensors are f16 and are widened to f32, which takes twice their memory"));
    }
    let loaded_bytes = plans.iter().map(|plan| plan.elements() * loaded_type(plan, checkpoint).bytes() as u64).sum();
    Ok(Survey { dialect, notices, loaded_bytes })
}

/// The type that a tensor of ours has once loaded: bf16 if all its sources are, else f32.
pub(super) fn loaded_type(plan: &TensorPlan, checkpoint: &Checkpoint) -> DType {
    let sources = plan.pieces.iter().map(|piece| &piece.source).chain(&plan.typed_with);
    let mut types = sources.filter_map(|source| checkpoint.tensor(source)).map(|tensor| tensor.dtype);
    if types.all(|dtype| dtype == Dtype::BF16) { DType::Bf16 } else { DType::F32 }
}

fn refuse_quantised(checkpoint: &Checkpoint) -> Result<()> {
    let quantised = |name: &&str| QUANTISED.contains(&name.rsplit('.').next().unwrap_or(name));
    let names: Vec<&str> = checkpoint.tensors().map(|(name, _)| name).filter(quantised).collect();
    match names.first() {
        None => Ok(()),
        Some(first) => Err(Error::input(
            format!("the weights are quantised: tensor {first} and {} more like it", names.len() - 1),
            "use the BF16 checkpoint of the same model",
        )),
    }
}

/// Whether to load the draft head, and whether its tensors are there but unwanted.
fn draft_head(config: &ModelConfig, checkpoint: &Checkpoint, notices: &mut Vec<String>) -> (bool, bool) {
    let present = checkpoint.tensors().filter(|(name, _)| name.starts_with("mtp.")).count();
    match (config.mtp_layers, present) {
        (0, 0) => (false, false),
        (0, _) => {
            notices.push(format!(
                "config.json says mtp_num_hidden_layers 0: {present} mtp tensors are ignored, answers come without drafts"
            ));
            (false, true)
        }
        (_, 0) => {
            notices.push(
                "the checkpoint has no mtp tensors, which fine-tunes often lose: answers come without drafts"
                    .to_owned(),
            );
            (false, false)
        }
        _ => (true, false),
    }
}

fn check_present(plans: &[TensorPlan], checkpoint: &Checkpoint) -> Result<()> {
    let sources: BTreeSet<&str> = sources(plans).collect();
    let missing: Vec<&str> = sources.iter().copied().filter(|source| checkpoint.tensor(source).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if missing.iter().all(|name| name.starts_with("mtp.")) {
        let total = sources.iter().filter(|name| name.starts_with("mtp.")).count();
        return Err(Error::input(
            format!("the draft head lacks {} of its {total} tensors: {}", missing.len(), listed(&missing)),
            "download the checkpoint again, or remove every mtp tensor to go without drafts",
        ));
    }
    let remedy = match missing.contains(&"lm_head.weight") {
        true => "download the checkpoint again; a model whose head is its embedding says tie_word_embeddings true",
        false => "check that config.json belongs to these weights, and that no shard is missing",
    };
    Err(Error::input(format!("{} tensors are missing: {}", missing.len(), listed(&missing)), remedy))
}

fn check_shapes(plan: &TensorPlan, checkpoint: &Checkpoint) -> Result<()> {
    for piece in &plan.pieces {
        let Some(found) = checkpoint.tensor(&piece.source) else { continue };
        let expected = plan.source_shape(piece);
        let place = || place(&found);
        if !shape_fits(found.shape, &expected) {
            return Err(Error::input(
                format!("{} has shape {:?}, expected {expected:?}", place(), found.shape),
                "check that config.json belongs to these weights",
            ));
        }
        if !matches!(found.dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32) {
            return Err(Error::input(
                format!("{} is {}, expected BF16, F16 or F32", place(), found.dtype),
                "use the BF16 checkpoint of the same model",
            ));
        }
    }
    Ok(())
}

/// Equal, but for the middle extent of 1 that some exporters leave out of the convolution.
fn shape_fits(found: &[usize], expected: &[usize]) -> bool {
    found == expected || matches!(expected, &[rows, 1, cols] if found == [rows, cols])
}

fn check_surplus(
    config: &ModelConfig,
    plans: &[TensorPlan],
    checkpoint: &Checkpoint,
    ignored_mtp: bool,
    notices: &mut Vec<String>,
) -> Result<()> {
    let wanted: BTreeSet<&str> = sources(plans).collect();
    let mut surplus = Vec::new();
    for (name, tensor) in checkpoint.tensors().filter(|(name, _)| !wanted.contains(name)) {
        if config.tied && name == "lm_head.weight" {
            notices.push("lm_head.weight is ignored: config.json says the head is the embedding".to_owned());
        } else if !(ignored_mtp && name.starts_with("mtp.")) {
            surplus.push(tensor.file_name);
        }
    }
    if surplus.is_empty() {
        return Ok(());
    }
    Err(Error::input(
        format!("{} tensors have no place in this model: {}", surplus.len(), listed(&surplus)),
        "check that config.json belongs to these weights; adapters and other exporters' layouts are not read",
    ))
}

fn sources(plans: &[TensorPlan]) -> impl Iterator<Item = &str> {
    plans.iter().flat_map(|plan| &plan.pieces).map(|piece| piece.source.as_str())
}

/// `tensor model.norm.weight in model.safetensors`
fn place(tensor: &FileTensor) -> String {
    format!("tensor {} in {}", tensor.file_name, tensor.shard)
}

fn listed(names: &[&str]) -> String {
    let mut text = names[..names.len().min(LISTED_MAX)].join(", ");
    if names.len() > LISTED_MAX {
        text.push_str(&format!(" and {} more", names.len() - LISTED_MAX));
    }
    text
}
