//! From flags to a runner: picks the backend, loads the weights, sizes the caches.

use super::args::{BackendKind, BackendSpec, ModelArgs};
use super::files::ModelFiles;
use super::progress::{Progress, Unit};
use super::sizing;
use crate::backend::Backend;
use crate::backend::cpu::CpuBackend;
use crate::base::Result;
use crate::base::config::ModelConfig;
use crate::model::Model;
use crate::runner::Runner;
use crate::weights::{self, Weights};

/// What is recorded beyond the flags.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenOptions {
    /// Drafts per step for which the draft head is recorded.
    pub drafts_max: u32,
    /// Sequences that run at once; 0 is taken as 1.
    pub sequences_max: u32,
    /// Ids of the tokenizer; the whole vocabulary where there is none.
    pub vocab_live: Option<u32>,
    /// Whether to say on stderr what was loaded.
    pub quiet: bool,
}

/// The one place where a backend is chosen.
pub fn open_backend(spec: &BackendSpec) -> Result<Box<dyn Backend>> {
    match spec.kind {
        BackendKind::Auto | BackendKind::Cpu => Ok(Box::new(CpuBackend::new(spec.cpu)?)),
    }
}

/// Loads a checkpoint onto a backend.
pub fn open(files: &ModelFiles, args: &ModelArgs, spec: &BackendSpec, options: OpenOptions) -> Result<Runner> {
    let config = files.checkpoint.config()?;
    let mut backend = open_backend(spec)?;
    let mut progress = Progress::new("loading weights", Unit::Bytes);
    let loaded =
        weights::load(backend.as_mut(), &config, &files.checkpoint, &mut |done, total| progress.set(done, total))
            .map_err(|error| error.within(&files.name))?;
    drop(progress);
    if !options.quiet {
        eprintln!("note: {} on {}", files.name, backend.caps().name);
        for notice in &loaded.notices {
            eprintln!("note: {notice}");
        }
    }
    assemble(backend, config, loaded.weights, args, options)
}

/// A model of the given configuration with random weights, for benchmarks.
pub fn open_random(config: ModelConfig, args: &ModelArgs, spec: &BackendSpec, options: OpenOptions) -> Result<Runner> {
    let mut backend = open_backend(spec)?;
    let mut progress = Progress::new("making weights", Unit::Bytes);
    let mut report = |done, total| progress.set(done, total);
    let weights = weights::random(backend.as_mut(), &config, RANDOM_SEED, options.drafts_max > 0, &mut report)?;
    drop(progress);
    assemble(backend, config, weights, args, options)
}

/// Any constant: random weights only have to be the same on every run and backend.
const RANDOM_SEED: u64 = 27;

fn assemble(
    mut backend: Box<dyn Backend>,
    config: ModelConfig,
    weights: Weights,
    args: &ModelArgs,
    options: OpenOptions,
) -> Result<Runner> {
    let model_options = sizing::model_options(&config, args, backend.caps(), options, weights.mtp.is_some())?;
    let model = Model::new(backend.as_mut(), config, model_options, weights)?;
    Ok(Runner::new(backend, model))
}
