//! Runs a program with a stop at each tap and keeps what it finds there.

use super::op::RowSet;
use super::step::{Header, StepInputs, StepView};
use super::{Backend, Program, Tap, Tensor};
use crate::base::dtype::{widen, words};
use crate::base::{DType, Result};

/// What a tap held: the live rows, widened to f32.
#[derive(Debug, Clone)]
pub struct Captured {
    pub name: String,
    pub rows: usize,
    pub cols: usize,
    pub values: Vec<f32>,
}

/// Runs `program` once on step inputs already written, and returns its taps in order.
pub fn capture(backend: &mut dyn Backend, program: &Program) -> Result<Vec<Captured>> {
    let step = read_step(backend, program.step())?;
    let mut captured = Vec::with_capacity(program.taps().len());
    let mut done = 0;
    for tap in program.taps() {
        run_segment(backend, program, done, tap.after + 1)?;
        done = done.max(tap.after + 1);
        captured.push(take(backend, tap, live_rows(&StepView::new(&step, program.step().limits), tap.rows))?);
    }
    run_segment(backend, program, done, program.len())?;
    Ok(captured)
}

fn take(backend: &mut dyn Backend, tap: &Tap, live: usize) -> Result<Captured> {
    let cols = tap.tensor.cols as usize;
    let mut values = read_f32(backend, tap.tensor)?;
    values.truncate(live * cols);
    Ok(Captured { name: tap.name.clone(), rows: live, cols, values })
}

/// Runs ops `from .. to` of a program; nothing where the range is empty.
pub fn run_segment(backend: &mut dyn Backend, program: &Program, from: usize, to: usize) -> Result<()> {
    if from >= to {
        return Ok(());
    }
    let graph = backend.compile(&program.segment(from, to))?;
    backend.launch(graph)
}

/// Live rows of a row set in a filled step.
pub fn live_rows(step: &StepView<'_>, rows: RowSet) -> usize {
    step.live(match rows {
        RowSet::Target | RowSet::Upkeep => Header::Rows,
        RowSet::Logits => Header::LogitRows,
        RowSet::Drafts { .. } => Header::DraftRows,
        RowSet::Resumes => Header::Resumes,
    })
}

pub fn read_step(backend: &mut dyn Backend, step: StepInputs) -> Result<Vec<u32>> {
    Ok(words(&pollster::block_on(backend.read(&[step.tensor]))?))
}

/// A tensor as f32; ids are converted by value.
pub fn read_f32(backend: &mut dyn Backend, tensor: Tensor) -> Result<Vec<f32>> {
    let bytes = pollster::block_on(backend.read(&[tensor]))?;
    Ok(match tensor.dtype {
        DType::U32 => words(&bytes).into_iter().map(|word| word as f32).collect(),
        dtype => widen(dtype, &bytes),
    })
}
