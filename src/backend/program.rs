//! A recorded forward pass: a flat list of checked ops, with the layer each belongs to and the tensors worth looking
//! at.
//!
//! Nothing is rewritten between recording and the device, so a parity failure is where the listing says it is.

use std::fmt::Write as _;

use super::op::{Access, Op, RowSet};
use super::step::StepInputs;
use super::tensor::{BufferId, Tensor};

/// What an op belongs to, for listings and for naming a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Before the first layer and after the last.
    Model,
    Layer(u32),
    /// The draft head, by pass; 0 is the upkeep over the step's rows.
    Mtp(u32),
}

/// A tensor under a name that the reference implementation uses too; valid right after op `after`.
#[derive(Debug, Clone, PartialEq)]
pub struct Tap {
    pub name: String,
    pub tensor: Tensor,
    pub rows: RowSet,
    /// Index of the op that leaves the value in place.
    pub after: usize,
}

#[derive(Debug, Clone)]
pub struct Program {
    step: StepInputs,
    ops: Vec<(Scope, Op)>,
    taps: Vec<Tap>,
    scope: Scope,
}

impl Program {
    pub fn new(step: StepInputs) -> Program {
        Program { step, ops: Vec::new(), taps: Vec::new(), scope: Scope::Model }
    }

    /// Appends an op. Panics if its shapes contradict its contract: the model that records it is wrong.
    pub fn push(&mut self, op: Op) {
        if let Err(error) = op.check() {
            panic!("op {} in {:?}: {error}", self.ops.len(), self.scope);
        }
        self.ops.push((self.scope, op));
    }

    /// Ops pushed from here on belong to `scope`.
    pub fn scope(&mut self, scope: Scope) {
        self.scope = scope;
    }

    /// Names what the last op left in `tensor`. Costs nothing unless somebody captures it.
    pub fn tap(&mut self, name: impl Into<String>, tensor: Tensor, rows: RowSet) {
        let after = self.ops.len().checked_sub(1).expect("a tap follows an op");
        self.taps.push(Tap { name: name.into(), tensor, rows, after });
    }

    pub fn step(&self) -> StepInputs {
        self.step
    }

    pub fn ops(&self) -> impl ExactSizeIterator<Item = &Op> {
        self.ops.iter().map(|(_, op)| op)
    }

    pub fn op(&self, index: usize) -> (Scope, &Op) {
        let (scope, op) = &self.ops[index];
        (*scope, op)
    }

    pub fn len(&self) -> usize {
        self.ops.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    pub fn taps(&self) -> &[Tap] {
        &self.taps
    }

    /// The ops `from .. to` with their taps as a program of their own, to stop at a tap or to run a single op.
    pub fn segment(&self, from: usize, to: usize) -> Program {
        let taps = self.taps.iter().filter(|tap| (from..to).contains(&tap.after));
        let taps = taps.map(|tap| Tap { after: tap.after - from, ..tap.clone() }).collect();
        Program { step: self.step, ops: self.ops[from..to].to_vec(), taps, scope: self.scope }
    }

    /// One line per op: index, scope, name, operands with shape and type, written ones after the arrow.
    pub fn listing<'a>(&self, label: impl Fn(BufferId) -> &'a str) -> String {
        let mut text = String::new();
        for (index, (scope, op)) in self.ops.iter().enumerate() {
            let scope = match scope {
                Scope::Model => "---".to_owned(),
                Scope::Layer(layer) => format!("L{layer:02}"),
                Scope::Mtp(pass) => format!("M{pass:02}"),
            };
            let (mut reads, mut writes) = (String::new(), String::new());
            for operand in op.operands() {
                let Tensor { buffer, dtype, rows, cols } = operand.tensor;
                let shown = format!(" {}={}[{rows},{cols}]{dtype}", operand.name, label(buffer));
                match operand.access {
                    Access::Read => reads.push_str(&shown),
                    Access::Write => writes.push_str(&shown),
                    Access::ReadWrite => write!(writes, "{shown}*").expect("a String takes all"),
                }
            }
            writeln!(text, "{index:03} {scope} {}{reads} ->{writes}", op.name()).expect("a String takes all");
        }
        text
    }
}
