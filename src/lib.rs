//! deltic: an inference engine for the Qwen3.5/3.6 hybrid family (Gated DeltaNet, gated attention, MTP drafts).
//!
//! The layers, from the bottom: `base`, `backend`, `weights` and `model`, `engine`, `text`, `runner`, `cli`. A module
//! imports only what lies below it; `tests/tidy.rs` checks the edges. ARCHITECTURE.md is the tour.

#![deny(unsafe_code)]

pub mod backend;
pub mod base;
pub mod cli;
pub mod engine;
pub mod model;
pub mod runner;
pub mod text;
pub mod weights;
