//! Memory for weights without the weights: the same tensors in the same order and types as loading gives, left zeroed.
//! For plans, which count them.

use super::layout::{Dialect, arrange};
use super::load::allocate;
use super::safetensors::Checkpoint;
use super::survey::{loaded_type, survey};
use super::{Loaded, Weights};
use crate::backend::Backend;
use crate::base::{DType, ModelConfig, Result};

/// What [`super::random`] would fill: every tensor in bf16, as the family is published.
pub fn reserve(backend: &mut dyn Backend, config: &ModelConfig, with_mtp: bool) -> Result<Weights> {
    let dialect = Dialect { mtp: with_mtp, fused_delta: false };
    arrange(config, dialect, &mut |plan| allocate(backend, plan, DType::Bf16))
}

/// What [`super::load`] would fill, from the checkpoint's headers alone. Errors as there.
pub fn reserve_checkpoint(backend: &mut dyn Backend, config: &ModelConfig, checkpoint: &Checkpoint) -> Result<Loaded> {
    let survey = survey(config, checkpoint)?;
    let weights = arrange(config, survey.dialect, &mut |plan| allocate(backend, plan, loaded_type(plan, checkpoint)))?;
    Ok(Loaded { weights, notices: survey.notices })
}
