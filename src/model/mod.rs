//! L2: the network. Records its forward pass as ops on the tensors it owns handles to; runs nothing itself and names no
//! concrete backend. MODEL.md is its prose twin.

pub mod bucket;
pub mod forward;
pub mod layer;
pub mod mtp;
pub mod step;
pub mod workspace;

use crate::backend::{AttentionShape, Backend, DeltaShape, StepInputs, StepLimits};
use crate::base::config::ModelConfig;
use crate::base::{DType, Result};
use crate::weights::Weights;

pub use bucket::Bucket;
pub use step::{CountedTokens, SequenceRows, SlotOperations};
pub use workspace::{Cache, Caches, Workspace};

/// Most logit rows of one step; a step that wants more is split by its planner.
pub const LOGIT_ROWS_MAX: u32 = 64;

/// Most logit biases of one sequence: 300 as OpenAI's API allows, and room for stop and end tokens.
pub const BIASES_PER_SEQUENCE_MAX: u32 = 320;

/// What is decided about a model when it is opened, beyond its configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelOptions {
    /// Type of activations and of the KV cache: bf16 in use, f32 to compare with float32 references.
    pub activation: DType,
    /// Rows of the largest step.
    pub rows_max: u32,
    /// Sequences with rows in one step.
    pub sequences_max: u32,
    /// Recurrent slots: one for each sequence, and what checkpoints take beside them.
    pub slots: u32,
    /// Most tokens of one sequence, prompt and answer together.
    pub context_max: u32,
    /// Tokens of one page of the KV cache.
    pub page_tokens: u32,
    /// Pages of the pool.
    pub pages: u32,
    /// Drafts per sequence and step; 0 records no draft head.
    pub drafts_max: u32,
    /// Ids from here on are padding of the vocabulary: never read.
    pub vocab_live: u32,
}

impl ModelOptions {
    /// Pages that one sequence of `context` tokens needs, with the entries that drafts write ahead.
    pub fn pages_per_sequence(&self, context: u32) -> u32 {
        (context + self.drafts_max.max(1)).div_ceil(self.page_tokens)
    }
}

/// Configuration, weight handles, caches, workspace and step inputs of one opened model.
pub struct Model {
    pub config: ModelConfig,
    pub options: ModelOptions,
    pub weights: Weights,
    pub caches: Caches,
    pub workspace: Workspace,
    pub step: StepInputs,
}

impl Model {
    /// Allocates caches, workspace and step inputs for weights that are already on the backend.
    pub fn new(
        backend: &mut dyn Backend,
        config: ModelConfig,
        options: ModelOptions,
        weights: Weights,
    ) -> Result<Model> {
        assert!(options.vocab_live > 0 && options.vocab_live <= config.vocab, "live ids within the vocabulary");
        assert!(options.drafts_max == 0 || weights.mtp.is_some(), "drafts need a draft head");
        let limits = StepLimits {
            rows: options.rows_max,
            sequences: options.sequences_max,
            logit_rows: LOGIT_ROWS_MAX.min(options.rows_max),
            pages: options.sequences_max * options.pages_per_sequence(options.context_max),
            biases: options.sequences_max * BIASES_PER_SEQUENCE_MAX,
            slot_operations: 2 * options.slots,
        };
        let step = StepInputs { tensor: backend.alloc("step", DType::U32, 1, limits.words())?, limits };
        let caches = Caches::alloc(backend, &config, &options)?;
        let workspace = Workspace::alloc(backend, &config, &options)?;
        Ok(Model { config, options, weights, caches, workspace, step })
    }

    pub fn attention_shape(&self) -> AttentionShape {
        workspace::attention_shape(&self.config, &self.options)
    }

    pub fn delta_shape(&self) -> DeltaShape {
        workspace::delta_shape(&self.config, &self.options)
    }

    /// Whether steps keep the draft head's cache up to date.
    pub fn drafts(&self) -> bool {
        self.options.drafts_max > 0
    }
}
