//! L0: what everything else stands on. Imports nothing of ours and does no I/O.

pub mod config;
pub mod dtype;
pub mod error;
mod fields;
pub mod generation;
pub mod rng;
pub mod sampling;
pub mod shapes;

pub use config::{LayerKind, ModelConfig};
pub use dtype::{DType, bf16};
pub use error::{Error, ErrorKind, Result};
pub use generation::GenerationConfig;
pub use sampling::SamplingParams;
