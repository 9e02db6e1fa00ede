//! Runs one program on two backends, op by op, and says where they part.
//!
//! Both must have allocated in the same order, so that the program's handles mean the same on each. By default every op
//! of B starts from A's operands: an error shows where it arises. With `free`, B runs on its own and errors add up.

use super::capture::{live_rows, read_f32, read_step, run_segment};
use super::op::{Access, Op, RowSet};
use super::program::Scope;
use super::step::StepView;
use super::{Backend, Operand, Program};
use crate::base::Result;

/// How far one written operand of one op differs.
#[derive(Debug, Clone)]
pub struct Difference {
    pub index: usize,
    pub scope: Scope,
    pub op: &'static str,
    pub operand: &'static str,
    /// Root of the mean square of the difference over that of A's values.
    pub relative_rms: f64,
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
            for operand in operands.iter().filter(|operand| operand.access != Access::Read || !is_weight(op, operand)) {
                let bytes = pollster::block_on(a.read(operand.tensor))?;
                b.write(operand.tensor, 0, &bytes)?;
            }
        }
        run_segment(a, program, index, index + 1)?;
        run_segment(b, program, index, index + 1)?;
        for operand in operands.iter().filter(|operand| operand.access != Access::Read) {
            let (left, right) = (read_f32(a, operand.tensor)?, read_f32(b, operand.tensor)?);
            let rows = compared_rows(op, operand, &view);
            let cols = operand.tensor.cols as usize;
            let (left, right) = (&left[..rows * cols], &right[..rows * cols]);
            let (relative_rms, max_abs, worst) = distance(left, right);
            let worst = (worst / cols, worst % cols);
            report(Difference { index, scope, op: op.name(), operand: operand.name, relative_rms, max_abs, worst });
        }
    }
    Ok(())
}

/// Weights are the same on both sides from the start, and big.
fn is_weight(op: &Op, operand: &Operand) -> bool {
    match op {
        Op::MatMul { .. } | Op::MatMulGateUp { .. } => operand.name != "x",
        Op::Embed { .. } => operand.name == "table",
        _ => false,
    }
}

/// Rows of an operand that hold something: the live ones of row-shaped tensors, all of state.
fn compared_rows(op: &Op, operand: &Operand, step: &StepView<'_>) -> usize {
    let rows = operand.tensor.rows as usize;
    match (op, operand.name) {
        (Op::KvAppend { .. }, "keys" | "values") => rows,
        (_, "state" | "records" | "window" | "tensor" | "counts") => rows,
        (Op::Sample { .. }, _) => rows,
        (Op::ConvStep { .. } | Op::ConvChunk { .. } | Op::DeltaStep { .. } | Op::DeltaChunk { .. }, _) => {
            live_rows(step, RowSet::Target)
        }
        _ => live_rows(step, op.rows().expect("every other op runs over rows")).min(rows),
    }
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
}
