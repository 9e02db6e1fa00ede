//! Tensor handles: names of memory, never owners of it.

use crate::base::DType;

/// A buffer of one backend, numbered in order of allocation. Backends that allocate in the same order give the same
/// numbers, which is what lets one [`Program`](super::Program) run on several of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// A row-major matrix `[rows, cols]` that starts at the beginning of its buffer.
///
/// The handle may describe fewer rows than the buffer holds: a program for 4 rows uses the workspace of 2,048.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tensor {
    pub buffer: BufferId,
    pub dtype: DType,
    pub rows: u32,
    pub cols: u32,
}

impl Tensor {
    /// The first `rows` rows of the same buffer.
    pub fn with_rows(self, rows: u32) -> Tensor {
        assert!(rows <= self.rows, "{rows} rows asked of a tensor with {}", self.rows);
        Tensor { rows, ..self }
    }

    pub fn elements(self) -> usize {
        self.rows as usize * self.cols as usize
    }

    pub fn bytes(self) -> usize {
        self.elements() * self.dtype.bytes()
    }
}
