//! Speculation, batching, chunking and preemption change no token: the demo model through the engine on the CPU, where
//! every comparison is one of equal bits. `tests/sim.rs` shows the same of the core alone, with thousands of seeds;
//! here the kernels, the recorded programs and the runner take part.

#[path = "lossless/batch.rs"]
mod batch;
#[path = "lossless/chunks.rs"]
mod chunks;
#[path = "lossless/demo.rs"]
mod demo;
#[path = "lossless/distribution.rs"]
mod distribution;
#[path = "lossless/drafts.rs"]
mod drafts;
#[path = "lossless/drive.rs"]
mod drive;
#[path = "lossless/not_a_number.rs"]
mod not_a_number;
#[path = "lossless/rules.rs"]
mod rules;
#[path = "lossless/sampled.rs"]
mod sampled;
