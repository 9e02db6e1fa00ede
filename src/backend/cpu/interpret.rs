//! Walks a program: one kernel per op, chosen by its kind.

use std::time::Instant;

use super::env::Env;
use super::memory::{Buffer, Memory, Written};
use super::simd::Simd;
use super::team::Team;
use super::{attention, conv, delta, matmul, moves, norm, penalize, sample};
use crate::backend::step::StepView;
use crate::backend::{Access, BufferId, Op, StepInputs};

/// An op and the buffers that it writes, found once.
pub struct CompiledOp {
    op: Op,
    written: Vec<BufferId>,
}

impl CompiledOp {
    pub fn new(op: &Op) -> CompiledOp {
        let written = op.operands().into_iter().filter(|operand| operand.access != Access::Read);
        CompiledOp { op: *op, written: written.map(|operand| operand.tensor.buffer).collect() }
    }
}

/// Everything that a launch touches.
pub struct Machine<'a> {
    pub step: StepInputs,
    pub buffers: &'a mut [Buffer],
    pub team: &'a Team,
    /// Scratch for a whole op, shared by its tasks.
    pub shared: &'a mut Memory,
}

impl Machine<'_> {
    /// Runs all ops in order; with `times`, appends the seconds of each.
    pub fn run<S: Simd>(&mut self, simd: S, ops: &[CompiledOp], mut times: Option<&mut Vec<f64>>) {
        let mut written = Written::default();
        for CompiledOp { op, written: ids } in ops {
            let start = times.is_some().then(Instant::now);
            // Out of the table, so that the kernel can write them while it borrows the others. The checks of the op
            // rule out that one buffer is both.
            written.0.extend(ids.iter().map(|id| (*id, std::mem::take(&mut self.buffers[id.0 as usize].memory))));
            let words = self.step.tensor.elements();
            let inputs = self.buffers[self.step.tensor.buffer.0 as usize].memory.elements(words);
            let step = StepView::new(inputs, self.step.limits);
            let env = Env { step, buffers: self.buffers, team: self.team };
            run_op(simd, &env, op, &mut written, self.shared);
            for (id, memory) in written.0.drain(..) {
                self.buffers[id.0 as usize].memory = memory;
            }
            if let (Some(times), Some(start)) = (times.as_deref_mut(), start) {
                times.push(start.elapsed().as_secs_f64());
            }
        }
    }
}

fn run_op<S: Simd>(simd: S, env: &Env<'_>, op: &Op, written: &mut Written, shared: &mut Memory) {
    match op {
        Op::Embed { .. } => moves::embed(simd, env, op, written),
        Op::RmsNorm { .. } => norm::rms_norm(simd, env, op, written, shared),
        Op::MatMul { .. } => matmul::matmul(simd, env, op, written, shared),
        Op::MatMulGateUp { .. } => matmul::matmul_gate_up(simd, env, op, written, shared),
        Op::QkNormRope { .. } => norm::qk_norm_rope(simd, env, op, written, shared),
        Op::KvAppend { .. } => moves::kv_append(simd, env, op, written, shared),
        Op::Attention { .. } => attention::attention(simd, env, op, written),
        Op::ConvStep { .. } => conv::conv_step(simd, env, op, written, shared),
        Op::ConvChunk { .. } => conv::conv_chunk(simd, env, op, written, shared),
        Op::DeltaGates { .. } => delta::delta_gates(simd, env, op, written, shared),
        Op::DeltaStep { .. } => delta::delta_step(simd, env, op, written, shared),
        Op::DeltaChunk { .. } => delta::delta_chunk(simd, env, op, written, shared),
        Op::GatedNorm { .. } => norm::gated_norm(simd, env, op, written, shared),
        Op::FoldRecords { .. } => delta::fold_records(simd, env, op, written),
        Op::FoldWindow { .. } => moves::fold_window(env, op, written),
        Op::CopySlots { .. } => moves::copy_slots(env, op, written),
        Op::StoreRows { .. } => moves::store_rows(env, op, written),
        Op::GatherRows { .. } => moves::gather_rows(env, op, written),
        Op::MtpJoin { .. } => norm::mtp_join(simd, env, op, written, shared),
        Op::CountTokens { .. } => penalize::count_tokens(env, op, written),
        Op::Penalize { .. } => penalize::penalize(env, op, written),
        Op::Sample { .. } => sample::sample(env, op, written),
        Op::TopLogprobs { .. } => sample::top_logprobs(env, op, written),
        Op::Argmax { .. } => sample::argmax(env, op, written),
        Op::Accept { .. } => sample::accept(env, op, written),
    }
}
