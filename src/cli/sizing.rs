//! From flags to the sizes of a model: what `open` allocates and what `plan` counts, decided in one place.

use super::args::ModelArgs;
use super::open::OpenOptions;
use crate::backend::Caps;
use crate::base::config::ModelConfig;
use crate::base::{Error, Result};
use crate::model::ModelOptions;

/// Tokens of one KV page.
const PAGE_TOKENS: u32 = 64;
/// Full-length requests that the KV pool holds; more that run at once share it.
const POOL_REQUESTS: u32 = 2;
/// The context that is planned for unless a flag says otherwise, for models that could hold more.
const DEFAULT_CONTEXT_MAX: u32 = 32_768;

/// The sizes that the flags ask for, with a pool for a fixed number of full-length requests.
pub fn model_options(
    config: &ModelConfig,
    args: &ModelArgs,
    caps: &Caps,
    options: OpenOptions,
    draft_head: bool,
) -> Result<ModelOptions> {
    let context = context(config, args)?;
    let vocab_live = options.vocab_live.unwrap_or(config.vocab);
    if vocab_live > config.vocab {
        return Err(Error::input(
            format!("the tokenizer has {vocab_live} ids, the model's vocabulary holds {}", config.vocab),
            "use the tokenizer.json that belongs to this checkpoint",
        ));
    }
    let sequences_max = options.sequences_max.max(1);
    let mut sizes = ModelOptions {
        activation: args.activation.dtype(),
        rows_max: args.chunk_rows.unwrap_or(caps.prefill_rows).min(context.max(1)),
        sequences_max,
        slots: sequences_max,
        context_max: context,
        page_tokens: PAGE_TOKENS,
        pages: 0,
        drafts_max: if draft_head { options.drafts_max } else { 0 },
        vocab_live,
    };
    sizes.pages = sizes.pages_per_sequence(context) * sequences_max.min(POOL_REQUESTS) + sizes.slots;
    Ok(sizes)
}

/// Pages without which the longest request would not fit: its own, and one for each other slot.
pub fn pages_min(sizes: &ModelOptions) -> u32 {
    sizes.pages_per_sequence(sizes.context_max) + sizes.slots - 1
}

/// Pages beyond which none could ever be used: every slot full.
pub fn pages_max(sizes: &ModelOptions) -> u32 {
    sizes.pages_per_sequence(sizes.context_max).saturating_mul(sizes.slots)
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
