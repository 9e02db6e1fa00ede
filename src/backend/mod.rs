//! L1: the seam between a model and the machine it runs on. Knows no model, no request and no token's meaning.
//!
//! A forward pass is recorded as a flat list of [`Op`]s in a [`Program`] and handed to a [`Backend`], which replays it.
//! Scalars of an op are fixed when it is recorded; what varies per step is read from the [`StepInputs`] buffer.

pub mod capture;
pub mod check;
pub mod compare;
pub mod cpu;
pub mod ledger;
pub mod op;
pub mod program;
pub mod step;
pub mod tensor;
pub mod tolerance;
pub mod traffic;

use std::future::Future;
use std::pin::Pin;

use crate::base::{DType, Result};

pub use check::OpError;
pub use ledger::Ledger;
pub use op::{Access, AttentionShape, DeltaShape, Op, Operand, RowIndex, RowSet, TokenSource};
pub use program::{Program, Tap};
pub use step::{StepInputs, StepLimits, StepView};
pub use tensor::{BufferId, Tensor};

/// What a backend is and what limits it has.
#[derive(Debug, Clone)]
pub struct Caps {
    /// Short name: cpu, wgpu, cuda.
    pub kind: &'static str,
    /// One line for a person: device, instruction set or driver, threads.
    pub name: String,
    /// The largest tensor that one op can read or write, in bytes; bigger weights are split by rows into parts.
    pub binding_bytes: u64,
    /// The largest prefill step that is worth its workspace, in rows.
    pub prefill_rows: u32,
}

/// A compiled program of one backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GraphId(pub u32);

/// Bytes on their way back from the device. Never `Send`: the thread that owns the backend awaits it.
pub type Readback = Pin<Box<dyn Future<Output = Result<Vec<u8>>>>>;

/// Where programs run. Every method is ordered after those called before it.
pub trait Backend {
    fn caps(&self) -> &Caps;

    /// A zeroed buffer `[rows, cols]`. `label` names it in listings, memory tables and errors.
    fn alloc(&mut self, label: &str, dtype: DType, rows: u32, cols: u32) -> Result<Tensor>;

    /// The label given to [`Backend::alloc`].
    fn label(&self, buffer: BufferId) -> &str;

    /// Copies bytes from the host to `dst`, starting `offset_bytes` into it.
    fn write(&mut self, dst: Tensor, offset_bytes: usize, bytes: &[u8]) -> Result<()>;

    /// Copies a whole tensor to another of equal size.
    fn copy(&mut self, src: Tensor, dst: Tensor) -> Result<()>;

    /// Makes a program ready to launch, or says which op this backend cannot run.
    fn compile(&mut self, program: &Program) -> Result<GraphId>;

    /// Starts a program; may return before it has run.
    fn launch(&mut self, graph: GraphId) -> Result<()>;

    /// Reads whole tensors back, one after the other in one array of bytes: one round trip, however many they are.
    fn read(&mut self, sources: &[Tensor]) -> Readback;

    /// Runs a program once and returns the seconds that each op took, in program order.
    fn profile(&mut self, graph: GraphId) -> Result<Vec<f64>>;

    /// An error if the device is lost or an earlier launch failed.
    fn status(&self) -> Result<()>;
}
