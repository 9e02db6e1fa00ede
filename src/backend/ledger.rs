//! A backend that only writes down what is asked of it: the memory of a model by the very code that would allocate it.
//! It holds no bytes and runs nothing.

use super::{Backend, BufferId, Caps, GraphId, Program, Readback, Tensor};
use crate::base::{DType, Result};

/// One buffer that would have been allocated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub label: String,
    pub bytes: u64,
}

/// The buffers asked for so far. Whatever wants bytes or runs something is a mistake of the caller and panics.
pub struct Ledger {
    caps: Caps,
    entries: Vec<Entry>,
}

impl Ledger {
    /// Stands in for a backend of these limits.
    pub fn new(binding_bytes: u64, prefill_rows: u32) -> Ledger {
        let caps = Caps { kind: "ledger", name: "a plan".to_owned(), binding_bytes, prefill_rows };
        Ledger { caps, entries: Vec::new() }
    }

    /// In order of allocation.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn total_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.bytes).sum()
    }
}

impl Backend for Ledger {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn alloc(&mut self, label: &str, dtype: DType, rows: u32, cols: u32) -> Result<Tensor> {
        let buffer = BufferId(u32::try_from(self.entries.len()).expect("fewer than 2^32 buffers"));
        let bytes = u64::from(rows) * u64::from(cols) * dtype.bytes() as u64;
        self.entries.push(Entry { label: label.to_owned(), bytes });
        Ok(Tensor { buffer, dtype, rows, cols })
    }

    fn label(&self, buffer: BufferId) -> &str {
        &self.entries[buffer.0 as usize].label
    }

    fn write(&mut self, _: Tensor, _: usize, _: &[u8]) -> Result<()> {
        panic!("a ledger holds no bytes")
    }

    fn copy(&mut self, _: Tensor, _: Tensor) -> Result<()> {
        panic!("a ledger holds no bytes")
    }

    fn compile(&mut self, _: &Program) -> Result<GraphId> {
        panic!("a ledger runs nothing")
    }

    fn launch(&mut self, _: GraphId) -> Result<()> {
        panic!("a ledger runs nothing")
    }

    fn read(&mut self, _: &[Tensor]) -> Readback {
        panic!("a ledger holds no bytes")
    }

    fn profile(&mut self, _: GraphId) -> Result<Vec<f64>> {
        panic!("a ledger runs nothing")
    }

    fn status(&self) -> Result<()> {
        Ok(())
    }
}
