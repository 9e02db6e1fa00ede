//! A backend that only keeps what is written to it, so that loading is tested without a real one.

use deltic::backend::{Backend, BufferId, Caps, GraphId, Program, Readback, Tensor};
use deltic::base::{DType, Result};
use deltic::weights::Weight;

pub struct Recorder {
    caps: Caps,
    /// Label and content, in order of allocation.
    pub buffers: Vec<(String, Vec<u8>)>,
    pub write_bytes_max: usize,
}

impl Recorder {
    pub fn new(binding_bytes: u64) -> Recorder {
        let caps = Caps { kind: "fake", name: "records writes".to_owned(), binding_bytes, prefill_rows: 64 };
        Recorder { caps, buffers: Vec::new(), write_bytes_max: 0 }
    }

    pub fn unbounded() -> Recorder {
        Recorder::new(u64::MAX)
    }

    pub fn bytes(&self, tensor: Tensor) -> &[u8] {
        &self.buffers[tensor.buffer.0 as usize].1
    }

    pub fn weight_bytes(&self, weight: &Weight) -> Vec<u8> {
        weight.parts.iter().flat_map(|&part| self.bytes(part)).copied().collect()
    }

    pub fn labelled(&self, label: &str) -> &[u8] {
        let found = self.buffers.iter().find(|(name, _)| name == label);
        &found.unwrap_or_else(|| panic!("no buffer is labelled {label}")).1
    }

    pub fn labels(&self) -> Vec<&str> {
        self.buffers.iter().map(|(label, _)| label.as_str()).collect()
    }
}

impl Backend for Recorder {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn alloc(&mut self, label: &str, dtype: DType, rows: u32, cols: u32) -> Result<Tensor> {
        let tensor = Tensor { buffer: BufferId(self.buffers.len() as u32), dtype, rows, cols };
        self.buffers.push((label.to_owned(), vec![0; tensor.bytes()]));
        Ok(tensor)
    }

    fn label(&self, buffer: BufferId) -> &str {
        &self.buffers[buffer.0 as usize].0
    }

    fn write(&mut self, dst: Tensor, offset_bytes: usize, bytes: &[u8]) -> Result<()> {
        self.write_bytes_max = self.write_bytes_max.max(bytes.len());
        self.buffers[dst.buffer.0 as usize].1[offset_bytes..offset_bytes + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn copy(&mut self, _: Tensor, _: Tensor) -> Result<()> {
        unreachable!("loading copies nothing")
    }

    fn compile(&mut self, _: &Program) -> Result<GraphId> {
        unreachable!("loading compiles nothing")
    }

    fn launch(&mut self, _: GraphId) -> Result<()> {
        unreachable!("loading launches nothing")
    }

    fn read(&mut self, _: &[Tensor]) -> Readback {
        unreachable!("loading reads nothing back")
    }

    fn profile(&mut self, _: GraphId) -> Result<Vec<f64>> {
        unreachable!("loading profiles nothing")
    }

    fn status(&self) -> Result<()> {
        Ok(())
    }
}
