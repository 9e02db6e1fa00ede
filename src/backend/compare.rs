//! Runs one program on two backends, op by op, and says where they part.
//!
//! Both must have allocated in the same order, so that the program's handles mean the same on each. By default every op
//! of B starts from A's operands: an error shows where it arises. With `free`, B runs on its own and errors add up.

use super::capture::{live_rows, read_f32, read_step, run_segment};
use super::op::{Access, LOGPROB_WORDS, Op, RowSet, TOP_LOGPROBS};
use super::program::Scope;
use super::step::{Header, Section, SequenceWord, StepView};
use super::{Backend, Operand, Program, Tensor};
use crate::base::dtype::words;
use crate::base::{DType, Result};

/// How far one written operand of one op differs.
#[derive(Debug, Clone)]
pub struct Difference {
    pub index: usize,
    pub scope: Scope,
    pub op: &'static str,
    pub operand: &'static str,
    pub dtype: DType,
    /// Root of the mean square of the difference over that of A's values. Of ids: 0 if they are equal but for
    /// near-ties, else infinite, since a wrong id is not a small error.
    pub relative_rms: f64,
    /// Of ids: how many differ, near-ties included.
    pub max_abs: f64,
    /// Index of the element that differs most, as (row, column).
    pub worst: (usize, usize),
}

/// Relative RMS and the largest difference. NaN on either side, unless on both at one place, counts as infinite.
pub fn distance(a: &[f32], b: &[f32]) -> (f64, f64, usize) {
    assert_eq!(a.len(), b.len(), "two sides of one tensor");
    let (mut squares, mut reference, mut max_abs, mut worst) = (0.0, 0.0, 0.0, 0);
    for (index, (x, y)) in a.iter().zip(b).enumerate() {
        let same = x == y || (x.is_nan() && y.is_nan());
        let mut difference = if same { 0.0 } else { (f64::from(*x) - f64::from(*y)).abs() };
        if difference.is_nan() {
            difference = f64::INFINITY;
        }
        if difference > max_abs {
            (max_abs, worst) = (difference, index);
        }
        squares += difference * difference;
        if x.is_finite() {
            reference += f64::from(*x) * f64::from(*x);
        }
    }
    let relative = if squares == 0.0 { 0.0 } else { (squares / reference.max(f64::MIN_POSITIVE)).sqrt() };
    (relative, max_abs, worst)
}

/// Compares every written operand of every op. Step inputs and other state must be equal on both before the call.
pub fn compare(
    a: &mut dyn Backend,
    b: &mut dyn Backend,
    program: &Program,
    free: bool,
    report: &mut dyn FnMut(Difference),
) -> Result<()> {
    let step = read_step(a, program.step())?;
    let view = StepView::new(&step, program.step().limits);
    for index in 0..program.len() {
        let (scope, op) = program.op(index);
        let operands = op.operands();
        if !free {
            for operand in operands.iter().filter(|operand| !is_weight(op, operand)) {
                copy(a, b, operand.tensor)?;
            }
        }
        run_segment(a, program, index, index + 1)?;
        run_segment(b, program, index, index + 1)?;
        if !has_work(op, &view) {
            continue;
        }
        for operand in operands.iter().filter(|operand| operand.access != Access::Read) {
            let (relative_rms, max_abs, worst) = if operand.tensor.dtype == DType::U32 {
                compare_ids(a, b, op, operand, &view)?
            } else {
                compare_numbers(a, b, op, operand, &view)?
            };
            let cols = operand.tensor.cols as usize;
            report(Difference {
                index,
                scope,
                op: op.name(),
                operand: operand.name,
                dtype: operand.tensor.dtype,
                relative_rms,
                max_abs,
                worst: (worst / cols, worst % cols),
            });
        }
    }
    Ok(())
}

/// Whether the op's work list holds anything in this step; what it would have written is then an earlier op's.
fn has_work(op: &Op, step: &StepView<'_>) -> bool {
    let list = match op {
        Op::ConvStep { .. } | Op::DeltaStep { .. } => Header::StepSequences,
        Op::ConvChunk { .. } | Op::DeltaChunk { .. } => Header::Chunks,
        Op::FoldRecords { .. } | Op::FoldWindow { .. } => Header::Folds,
        Op::CopySlots { .. } => Header::Copies,
        _ => return true,
    };
    step.live(list) > 0
}

fn copy(a: &mut dyn Backend, b: &mut dyn Backend, tensor: Tensor) -> Result<()> {
    let bytes = pollster::block_on(a.read(&[tensor]))?;
    b.write(tensor, 0, &bytes)
}

/// Weights are the same on both sides from the start, and big.
fn is_weight(op: &Op, operand: &Operand) -> bool {
    match op {
        Op::MatMul { .. } | Op::MatMulGateUp { .. } => operand.access == Access::Read && operand.name != "x",
        Op::Embed { .. } => operand.name == "table",
        _ => false,
    }
}

fn compare_numbers(
    a: &mut dyn Backend,
    b: &mut dyn Backend,
    op: &Op,
    operand: &Operand,
    step: &StepView<'_>,
) -> Result<(f64, f64, usize)> {
    let live = compared_rows(op, operand, step) * operand.tensor.cols as usize;
    let (left, right) = (read_f32(a, operand.tensor)?, read_f32(b, operand.tensor)?);
    Ok(distance(&left[..live], &right[..live]))
}

/// Rows of an operand that hold something: the live ones of row-shaped tensors, all of state.
fn compared_rows(op: &Op, operand: &Operand, step: &StepView<'_>) -> usize {
    let rows = operand.tensor.rows as usize;
    match (op, operand.name) {
        (Op::KvAppend { .. }, "keys" | "values") => rows,
        (_, "state" | "records" | "window" | "tensor" | "counts") => rows,
        (Op::ConvStep { .. } | Op::ConvChunk { .. } | Op::DeltaStep { .. } | Op::DeltaChunk { .. }, _) => {
            live_rows(step, RowSet::Target)
        }
        _ => live_rows(step, op.rows().expect("every other op runs over rows")).min(rows),
    }
}

/// One id on both sides, with the row of numbers it was chosen from.
struct Chosen {
    a: u32,
    b: u32,
    row: usize,
    /// Where it lies in the operand.
    at: usize,
}

/// Ids must be equal, but where both were chosen from numbers that differ by themselves, near-ties count as equal.
fn compare_ids(
    a: &mut dyn Backend,
    b: &mut dyn Backend,
    op: &Op,
    operand: &Operand,
    step: &StepView<'_>,
) -> Result<(f64, f64, usize)> {
    let left = words(&pollster::block_on(a.read(&[operand.tensor]))?);
    let right = words(&pollster::block_on(b.read(&[operand.tensor]))?);
    let cols = operand.tensor.cols as usize;
    let pair = |row: usize, at: usize| Chosen { a: left[at], b: right[at], row, at };
    let (ids, scores): (Vec<Chosen>, Option<Tensor>) = match *op {
        Op::Sample { scores, .. } => {
            ((0..step.live(Header::LogitRows)).map(|row| pair(row, row)).collect(), Some(scores))
        }
        Op::Argmax { x, out_col, rows, .. } => {
            let rows = 0..live_rows(step, rows);
            (rows.map(|row| pair(row, row * cols + out_col as usize)).collect(), Some(x))
        }
        Op::TopLogprobs { logits, .. } => return compare_logprobs(a, b, logits, step, &left, &right),
        _ => ((0..compared_rows(op, operand, step) * cols).map(|at| pair(at / cols, at)).collect(), None),
    };
    let found = judge(a, b, &ids, scores)?;
    if found.1 > 0.0 && found.0 == 0.0 {
        // Only near-ties: B goes on with A's choice, so that what follows is still the same computation.
        copy(a, b, operand.tensor)?;
    }
    Ok(found)
}

/// The numbers of the rows that ask for them by distance, the ids beside them as ids.
fn compare_logprobs(
    a: &mut dyn Backend,
    b: &mut dyn Backend,
    logits: Tensor,
    step: &StepView<'_>,
    left: &[u32],
    right: &[u32],
) -> Result<(f64, f64, usize)> {
    let (words, top) = (LOGPROB_WORDS as usize, TOP_LOGPROBS as usize);
    let (mut ids, mut numbers) = (Vec::new(), [Vec::new(), Vec::new()]);
    for row in 0..step.live(Header::LogitRows) {
        let sequence = step.section(Section::Sequence)[step.section(Section::LogitRow)[row] as usize];
        if step.sequence(sequence as usize, SequenceWord::Logprobs) == 0 {
            continue;
        }
        for at in row * words..(row + 1) * words {
            if (1..=top).contains(&(at - row * words)) {
                ids.push(Chosen { a: left[at], b: right[at], row, at });
            } else {
                numbers[0].push(f32::from_bits(left[at]));
                numbers[1].push(f32::from_bits(right[at]));
            }
        }
    }
    let by_ids = judge(a, b, &ids, Some(logits))?;
    let (relative_rms, max_abs, _) = distance(&numbers[0], &numbers[1]);
    Ok((by_ids.0.max(relative_rms), max_abs, by_ids.2))
}

fn judge(
    a: &mut dyn Backend,
    b: &mut dyn Backend,
    ids: &[Chosen],
    scores: Option<Tensor>,
) -> Result<(f64, f64, usize)> {
    let different: Vec<&Chosen> = ids.iter().filter(|id| id.a != id.b).collect();
    let Some(first) = different.first() else { return Ok((0.0, 0.0, 0)) };
    let count = different.len() as f64;
    let Some(scores) = scores else { return Ok((f64::INFINITY, count, first.at)) };
    let (left, right) = (read_f32(a, scores)?, read_f32(b, scores)?);
    let row_of = |id: &Chosen| id.row * scores.cols as usize..(id.row + 1) * scores.cols as usize;
    let wrong = different.iter().find(|id| !near_tie(&left[row_of(id)], &right[row_of(id)], id.a, id.b));
    Ok(match wrong {
        Some(id) => (f64::INFINITY, count, id.at),
        None => (0.0, count, first.at),
    })
}

/// How far apart the two candidates of a near-tie may be, in logits.
const NEAR_TIE_MAX: f32 = 0.25;

/// Whether the error of the scores explains the other choice: the gap between both candidates is at most four times
/// the largest error. Equal scores explain nothing: ties go to the lowest id.
fn near_tie(a: &[f32], b: &[f32], id_a: u32, id_b: u32) -> bool {
    let (Some(x), Some(y)) = (a.get(id_a as usize), a.get(id_b as usize)) else { return false };
    let errors = a.iter().zip(b).map(|(x, y)| (x - y).abs()).filter(|error| error.is_finite());
    let error_max = errors.fold(0.0, f32::max);
    error_max > 0.0 && (x - y).abs() <= (4.0 * error_max).min(NEAR_TIE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_is_relative_and_a_nan_is_infinite() {
        assert_eq!(distance(&[1.0, -2.0], &[1.0, -2.0]), (0.0, 0.0, 0));
        let (relative, max_abs, worst) = distance(&[3.0, 4.0], &[3.0, 4.5]);
        assert!((relative - 0.1).abs() < 1e-12 && max_abs == 0.5 && worst == 1);
        assert_eq!(distance(&[1.0, 2.0], &[1.0, f32::NAN]).0, f64::INFINITY);
        assert_eq!(distance(&[f32::NAN], &[f32::NAN]).0, 0.0);
        assert_eq!(distance(&[f32::NEG_INFINITY], &[f32::NEG_INFINITY]).0, 0.0);
    }

    #[test]
    fn a_near_tie_needs_an_error_that_explains_it() {
        let scores = [1.0, 1.01, 3.0, f32::NEG_INFINITY];
        let with_error = [1.0, 1.0, 3.0, f32::NEG_INFINITY];
        assert!(near_tie(&scores, &with_error, 1, 0));
        assert!(!near_tie(&scores, &scores, 1, 0), "the same scores must give the same choice");
        assert!(!near_tie(&scores, &with_error, 2, 0), "far apart");
        assert!(!near_tie(&scores, &with_error, 1, u32::MAX), "no such id");
    }
}
