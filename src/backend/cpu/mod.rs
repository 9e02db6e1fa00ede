//! The CPU backend: the oracle that other backends are compared with, and the default where there is no GPU.
//!
//! A launch walks the list of ops inside a pool of threads of its own. Results are bit-equal for any number of threads,
//! any division of a prompt into steps, and any company in a step, on one instruction set.

mod attention;
mod conv;
mod delta;
mod env;
mod interpret;
mod lanes;
mod matmul;
mod memory;
mod moves;
mod norm;
mod penalize;
mod sample;
mod simd;
#[cfg(test)]
mod speed;
mod team;

pub use simd::Isa;

use std::thread::available_parallelism;

use crate::backend::{Backend, BufferId, Caps, GraphId, Program, Readback, StepInputs, Tensor};
use crate::base::{DType, Error, Result};
use interpret::{CompiledOp, Machine};
use memory::{Buffer, Memory};
use simd::Level;
use team::Team;

/// How to run; None takes what the machine offers.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuOptions {
    pub threads: Option<usize>,
    pub isa: Option<Isa>,
}

/// Rows of a prefill step: enough to reuse a weight block from cache, few enough that activations stay there too.
pub const PREFILL_ROWS: u32 = 256;

pub struct CpuBackend {
    caps: Caps,
    level: Level,
    team: Team,
    buffers: Vec<Buffer>,
    graphs: Vec<(StepInputs, Vec<CompiledOp>)>,
    shared: Memory,
}

impl CpuBackend {
    /// An error if the instruction set is not available here, or the threads cannot be started.
    pub fn new(options: CpuOptions) -> Result<CpuBackend> {
        let isa = options.isa.unwrap_or_else(Isa::detect);
        let Some(level) = Level::of(isa) else {
            // For its message, which lists what there is.
            return Err(Isa::parse(isa.name()).expect_err("it is not available"));
        };
        let threads = options.threads.unwrap_or_else(|| available_parallelism().map_or(1, usize::from));
        if threads == 0 {
            return Err(Error::input("0 threads were asked for", "ask for 1 or more"));
        }
        let plural = if threads == 1 { "" } else { "s" };
        let caps = Caps {
            kind: "cpu",
            name: format!("cpu ({}, {threads} thread{plural})", isa.description()),
            binding_bytes: u64::MAX,
            prefill_rows: PREFILL_ROWS,
        };
        let team = Team::new(threads)?;
        Ok(CpuBackend { caps, level, team, buffers: Vec::new(), graphs: Vec::new(), shared: Memory::default() })
    }

    fn buffer(&self, tensor: Tensor) -> &Buffer {
        let buffer = &self.buffers[tensor.buffer.0 as usize];
        assert!(
            tensor.dtype == buffer.dtype && tensor.bytes() <= buffer.bytes,
            "{}: {tensor:?} does not fit its {} bytes of {}",
            buffer.label,
            buffer.bytes,
            buffer.dtype,
        );
        buffer
    }

    fn run(&mut self, graph: GraphId, times: Option<&mut Vec<f64>>) {
        let (step, ops) = &self.graphs[graph.0 as usize];
        let team = &self.team;
        let mut machine = Machine { step: *step, buffers: &mut self.buffers, team, shared: &mut self.shared };
        let level = self.level;
        team.install(move || match level {
            Level::Baseline(simd) => machine.run(simd, ops, times),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(simd) => machine.run(simd, ops, times),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(simd) => machine.run(simd, ops, times),
            #[cfg(target_arch = "aarch64")]
            Level::Neon(simd) => machine.run(simd, ops, times),
        });
    }
}

impl Backend for CpuBackend {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn alloc(&mut self, label: &str, dtype: DType, rows: u32, cols: u32) -> Result<Tensor> {
        let buffer = BufferId(u32::try_from(self.buffers.len()).expect("fewer than 2^32 buffers"));
        let tensor = Tensor { buffer, dtype, rows, cols };
        let bytes = tensor.bytes();
        let memory = Memory::zeroed(bytes).ok_or_else(|| {
            Error::failure(
                format!("{label}: no memory for {bytes} bytes ([{rows}, {cols}] {dtype})"),
                "free memory, or ask for a smaller context or fewer sequences",
            )
        })?;
        self.buffers.push(Buffer { label: label.to_owned(), dtype, bytes, memory });
        Ok(tensor)
    }

    fn label(&self, buffer: BufferId) -> &str {
        &self.buffers[buffer.0 as usize].label
    }

    fn write(&mut self, dst: Tensor, offset_bytes: usize, bytes: &[u8]) -> Result<()> {
        self.buffer(dst);
        let end = offset_bytes.checked_add(bytes.len()).filter(|end| *end <= dst.bytes());
        let end = end.unwrap_or_else(|| panic!("{} bytes at {offset_bytes} of {dst:?}", bytes.len()));
        let memory = &mut self.buffers[dst.buffer.0 as usize].memory;
        memory.elements_mut::<u8>(end)[offset_bytes..].copy_from_slice(bytes);
        Ok(())
    }

    fn copy(&mut self, src: Tensor, dst: Tensor) -> Result<()> {
        self.buffer(src);
        self.buffer(dst);
        assert!(src.bytes() == dst.bytes(), "copy of {src:?} to {dst:?}");
        if src.buffer != dst.buffer {
            let mut target = std::mem::take(&mut self.buffers[dst.buffer.0 as usize].memory);
            target.elements_mut::<u8>(dst.bytes()).copy_from_slice(self.buffer(src).memory.elements(src.bytes()));
            self.buffers[dst.buffer.0 as usize].memory = target;
        }
        Ok(())
    }

    fn compile(&mut self, program: &Program) -> Result<GraphId> {
        self.buffer(program.step().tensor);
        for op in program.ops() {
            for operand in op.operands() {
                self.buffer(operand.tensor);
            }
        }
        let graph = GraphId(u32::try_from(self.graphs.len()).expect("fewer than 2^32 graphs"));
        self.graphs.push((program.step(), program.ops().map(CompiledOp::new).collect()));
        Ok(graph)
    }

    fn launch(&mut self, graph: GraphId) -> Result<()> {
        self.run(graph, None);
        Ok(())
    }

    fn read(&mut self, sources: &[Tensor]) -> Readback {
        let mut bytes = Vec::with_capacity(sources.iter().map(|source| source.bytes()).sum());
        for source in sources {
            bytes.extend_from_slice(self.buffer(*source).memory.elements::<u8>(source.bytes()));
        }
        Box::pin(std::future::ready(Ok(bytes)))
    }

    fn profile(&mut self, graph: GraphId) -> Result<Vec<f64>> {
        let mut times = Vec::new();
        self.run(graph, Some(&mut times));
        Ok(times)
    }

    fn status(&self) -> Result<()> {
        Ok(())
    }
}
