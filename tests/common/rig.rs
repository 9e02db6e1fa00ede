//! One backend on the bench: uploads matrices, runs ops, reads back, and judges what came back.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use deltic::backend::{Backend, Op, Program, StepInputs, Tensor};
use deltic::base::DType;
use libtest_mimic::Failed;

use super::matrix::{Grid, Matrix};
use super::step::Step;
use super::tolerance::{Ledger, check};

/// Cells that were compared, in order: what replicas must agree on.
pub type Trace = Vec<(String, Vec<u32>)>;

pub struct Rig {
    backend: Box<dyn Backend>,
    op: &'static str,
    /// Whether this backend promises equal bits where others promise near ones.
    pub exact: bool,
    /// Only the first replica is held against the formula; the others are held against the first.
    judging: bool,
    ledger: Arc<Ledger>,
    pub trace: Trace,
}

impl Rig {
    pub fn new(backend: Box<dyn Backend>, op: &'static str, exact: bool, judging: bool, ledger: Arc<Ledger>) -> Rig {
        Rig { backend, op, exact, judging, ledger, trace: Trace::new() }
    }

    /// A tensor with the given contents.
    pub fn put(&mut self, label: &str, matrix: &Matrix) -> Tensor {
        let (rows, cols) = (matrix.rows as u32, matrix.cols as u32);
        let tensor = self.backend.alloc(label, matrix.dtype, rows, cols).expect("the tensor is allocated");
        self.write(tensor, matrix);
        tensor
    }

    /// A tensor full of NaN, for outputs.
    pub fn blank(&mut self, label: &str, dtype: DType, rows: usize, cols: usize) -> Tensor {
        self.put(label, &Matrix::blank(dtype, rows, cols))
    }

    pub fn write(&mut self, tensor: Tensor, matrix: &Matrix) {
        assert_eq!((tensor.rows, tensor.cols), (matrix.rows as u32, matrix.cols as u32));
        self.backend.write(tensor, 0, &matrix.to_bytes()).expect("the tensor is written");
    }

    pub fn get(&mut self, tensor: Tensor) -> Matrix {
        let mut readback = self.backend.read(&[tensor]);
        let mut context = Context::from_waker(Waker::noop());
        let bytes = loop {
            match readback.as_mut().poll(&mut context) {
                Poll::Ready(bytes) => break bytes.expect("the tensor is read"),
                Poll::Pending => std::thread::yield_now(),
            }
        };
        Matrix::from_bytes(tensor.dtype, tensor.rows as usize, tensor.cols as usize, &bytes)
    }

    /// The buffer of a program's step inputs, filled.
    pub fn step(&mut self, step: &Step) -> StepInputs {
        let words = step.words();
        let tensor = self.put("step", &Matrix::words(1, words.len(), |_, at| words[at]));
        StepInputs { tensor, limits: step.limits() }
    }

    /// Records, compiles and launches the ops as one program.
    pub fn run(&mut self, step: StepInputs, ops: &[Op]) {
        let mut program = Program::new(step);
        for op in ops {
            program.push(*op);
        }
        let graph = self.backend.compile(&program).expect("the program compiles");
        self.backend.launch(graph).expect("the program is launched");
        self.backend.status().expect("the program has run");
    }

    /// `found` is what the formula gives, within the tolerance of this op and type. `expected` is only called where
    /// it is needed.
    pub fn near(&mut self, what: &str, found: &Matrix, expected: impl FnOnce() -> Grid) {
        self.near_as(self.op, what, found, expected);
    }

    /// As [`Rig::near`], under the tolerance of another line of the table.
    pub fn near_as(&mut self, key: &'static str, what: &str, found: &Matrix, expected: impl FnOnce() -> Grid) {
        self.trace.push((what.to_owned(), found.bits.clone()));
        if self.judging {
            check(&self.ledger, key, what, found, &expected());
        }
    }

    /// `found` is `expected`, bit for bit.
    pub fn same(&mut self, what: &str, found: &Matrix, expected: &Matrix) {
        self.trace.push((what.to_owned(), found.bits.clone()));
        assert_eq!((found.rows, found.cols), (expected.rows, expected.cols), "{what}: shape");
        if let Some(at) = first_difference(&found.bits, &expected.bits) {
            let (row, col) = (at / found.cols, at % found.cols);
            panic!("{what}[{row}, {col}] is {}, expected exactly {}", show(found, at), show(expected, at));
        }
    }

    /// Two ways to the same result: equal bits on an exact backend, near ones elsewhere.
    pub fn agree(&mut self, what: &str, found: &Matrix, other: &Matrix) {
        self.agree_as(self.op, what, found, other);
    }

    /// As [`Rig::agree`], under the tolerance of another line of the table.
    pub fn agree_as(&mut self, key: &'static str, what: &str, found: &Matrix, other: &Matrix) {
        if self.exact {
            self.same(what, found, other);
        } else {
            self.near_as(key, what, found, || other.grid());
        }
    }

    /// Notes values that a test judges by itself, so that replicas are still compared.
    pub fn note(&mut self, what: &str, found: &Matrix) {
        self.trace.push((what.to_owned(), found.bits.clone()));
    }
}

/// The replicas of one target agree bit for bit on everything that was compared.
pub fn compare_traces(first: &Trace, other: &Trace, replica: &str) -> Result<(), Failed> {
    assert_eq!(first.len(), other.len(), "{replica}: comparisons made");
    for ((what, a), (_, b)) in first.iter().zip(other) {
        assert_eq!(a.len(), b.len(), "{replica}: cells compared of {what}");
        if let Some(at) = first_difference(a, b) {
            let (a, b) = (a[at], b[at]);
            return Err(format!("{what}: cell {at} is {b:#x} with {replica}, {a:#x} with the first replica").into());
        }
    }
    Ok(())
}

fn first_difference(a: &[u32], b: &[u32]) -> Option<usize> {
    a.iter().zip(b).position(|(a, b)| a != b)
}

fn show(matrix: &Matrix, at: usize) -> String {
    let bits = matrix.bits[at];
    match matrix.dtype {
        DType::U32 => format!("{bits} ({bits:#x})"),
        DType::F32 | DType::Bf16 => format!("{:e} ({bits:#x})", f32::from_bits(bits)),
    }
}
