//! L0: what everything else stands on. Imports nothing of ours and does no I/O.

pub mod config;
pub mod dtype;
pub mod error;
pub mod rng;
pub mod sampling;

pub use config::{LayerKind, ModelConfig};
pub use dtype::{DType, bf16};
pub use error::{Error, ErrorKind, Result};
pub use sampling::SamplingParams;
