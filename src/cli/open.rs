//! From flags to a runner: picks the backend, loads the weights, sizes the caches.

use super::args::{BackendKind, BackendSpec, ModelArgs};
use super::files::ModelFiles;
use super::progress::{Progress, Unit};
use crate::backend::Backend;
use crate::backend::cpu::CpuBackend;
use crate::base::config::ModelConfig;
use crate::base::{Error, Result};
use crate::model::{Model, ModelOptions};
use crate::runner::Runner;
use crate::weights::{self, Weights};

/// Tokens of one KV page.
const PAGE_TOKENS: u32 = 64;
/// Full-length requests that the KV pool holds; more that run at once share it.
const POOL_REQUESTS: u32 = 2;
/// The context that is planned for unless a flag says otherwise, for models that could hold more.
const DEFAULT_CONTEXT_MAX: u32 = 32_768;

/// What is recorded beyond the flags.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenOptions {
    /// Drafts per step for which the draft head is recorded.
    pub drafts_max: u32,
    /// Sequences that run at once; 0 is taken as 1.
    pub sequences_max: u32,
    /// Slots for checkpoints beside those of the sequences.
    pub checkpoints: u32,
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
    let context = context(&config, args)?;
    let vocab_live = options.vocab_live.unwrap_or(config.vocab);
    if vocab_live > config.vocab {
        return Err(Error::input(
            format!("the tokenizer has {vocab_live} ids, the model's vocabulary holds {}", config.vocab),
            "use the tokenizer.json that belongs to this checkpoint",
        ));
    }
    let rows_max = args.chunk_rows.unwrap_or(backend.caps().prefill_rows).min(context.max(1));
    let mut model_options = ModelOptions {
        activation: args.activation.dtype(),
        rows_max,
        sequences_max: options.sequences_max.max(1),
        slots: options.sequences_max.max(1) + options.checkpoints,
        context_max: context,
        page_tokens: PAGE_TOKENS,
        pages: 0,
        drafts_max: if weights.mtp.is_some() { options.drafts_max } else { 0 },
        vocab_live,
    };
    model_options.pages = model_options.pages_per_sequence(context) * (model_options.sequences_max.min(POOL_REQUESTS));
    model_options.pages += model_options.slots;
    let model = Model::new(backend.as_mut(), config, model_options, weights)?;
    Ok(Runner::new(backend, model))
}

fn context(config: &ModelConfig, args: &ModelArgs) -> Result<u32> {
    match args.max_context {
        Some(asked) if asked > config.context_max => Err(Error::input(
            format!("--max-context is {asked}, the model was made for {}", config.context_max),
            "lower --max-context",
        )),
        Some(asked) => Ok(asked),
        None => Ok(config.context_max.min(DEFAULT_CONTEXT_MAX)),
    }
}
