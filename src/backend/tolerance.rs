//! How far two right answers may lie apart, and the differences of a comparison gathered against that.

use super::compare::Difference;
use crate::base::DType;

/// The largest relative RMS difference that passes, by the type of the operand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    pub bf16: f64,
    pub f32: f64,
}

impl Tolerance {
    /// For ops that start from the same operands on both sides.
    ///
    /// Two right backends then differ by the order of their f32 sums: about 1e-6 of the root mean square for the
    /// longest rows of the family, 17,408. Where the result is stored as bf16, that error decides only whether a value
    /// near the middle between two neighbours is rounded up or down, and a flip is one unit in the last place: at most
    /// 2^-7 = 0.0078 of the value. So even with every element flipped a right op passes, and an op that leaves out or
    /// rounds a term of that size does not.
    pub const SAME_OPERANDS: Tolerance = Tolerance { bf16: 0.01, f32: 1e-5 };

    /// For a whole program whose errors add up, by its activation type.
    ///
    /// bf16 rounds about ten times a layer, with 0.0017 of the root mean square each; norms keep the sum from growing
    /// faster than the root of the number of layers. Against a float32 reference 0.016 was seen after four layers with
    /// bf16 and 2e-6 with f32, whose errors are those of its sums. A wrong op shows as 0.1 and more.
    pub fn adding_up(activation: DType) -> Tolerance {
        match activation {
            DType::F32 => Tolerance::uniform(2e-5),
            _ => Tolerance::uniform(0.05),
        }
    }

    /// The same for every operand.
    pub fn uniform(tolerance: f64) -> Tolerance {
        Tolerance { bf16: tolerance, f32: tolerance }
    }

    /// Of an operand. Ids are exact, which [`Difference`] says as 0 or infinite.
    pub fn of(self, dtype: DType) -> f64 {
        if dtype == DType::Bf16 { self.bf16 } else { self.f32 }
    }
}

/// The worst of one kind of op.
#[derive(Debug, Clone)]
pub struct OpSummary {
    pub op: &'static str,
    /// Written operands that were compared.
    pub count: usize,
    pub worst_relative_rms: f64,
    pub worst_max_abs: f64,
    /// The difference with the worst relative RMS, and the step it was found in.
    pub worst: (String, Difference),
}

/// The differences of a comparison by kind of op, in order of first appearance.
#[derive(Debug, Clone)]
pub struct Summary {
    pub tolerance: Tolerance,
    pub ops: Vec<OpSummary>,
    /// The first operand beyond tolerance, and its step.
    pub first_failure: Option<(String, Difference)>,
}

impl Summary {
    pub fn new(tolerance: Tolerance) -> Summary {
        Summary { tolerance, ops: Vec::new(), first_failure: None }
    }

    pub fn passed(&self) -> bool {
        self.first_failure.is_none() && !self.ops.is_empty()
    }

    pub fn add(&mut self, step: &str, difference: Difference) {
        if self.first_failure.is_none() && difference.relative_rms > self.tolerance.of(difference.dtype) {
            self.first_failure = Some((step.to_owned(), difference.clone()));
        }
        match self.ops.iter_mut().find(|summary| summary.op == difference.op) {
            Some(summary) => {
                summary.count += 1;
                summary.worst_max_abs = summary.worst_max_abs.max(difference.max_abs);
                if difference.relative_rms > summary.worst_relative_rms {
                    summary.worst_relative_rms = difference.relative_rms;
                    summary.worst = (step.to_owned(), difference);
                }
            }
            None => self.ops.push(OpSummary {
                op: difference.op,
                count: 1,
                worst_relative_rms: difference.relative_rms,
                worst_max_abs: difference.max_abs,
                worst: (step.to_owned(), difference),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::program::Scope;

    fn difference(index: usize, dtype: DType, relative_rms: f64) -> Difference {
        let scope = Scope::Model;
        Difference { index, scope, op: "matmul", operand: "out", dtype, relative_rms, max_abs: 0.0, worst: (0, 0) }
    }

    #[test]
    fn the_first_beyond_the_tolerance_of_its_type_is_kept() {
        let mut summary = Summary::new(Tolerance::SAME_OPERANDS);
        assert!(!summary.passed(), "nothing compared is nothing passed");
        summary.add("prefill", difference(0, DType::Bf16, 0.005));
        assert!(summary.passed());
        summary.add("prefill", difference(1, DType::F32, 0.005));
        summary.add("decode", difference(2, DType::U32, f64::INFINITY));
        let (step, first) = summary.first_failure.as_ref().expect("one failed");
        assert_eq!((step.as_str(), first.index), ("prefill", 1));
        assert_eq!((summary.ops[0].count, summary.ops[0].worst.1.index), (3, 2));
    }
}
