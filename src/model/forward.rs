//! The target's forward pass and the head, for one bucket.

use super::layer::{Stream, record_layer, record_matmul, record_norm};
use super::mtp::record_mtp;
use super::{Bucket, Model, Workspace};
use crate::backend::Tensor;
use crate::backend::op::{Op, RowIndex, RowSet, TokenSource};
use crate::backend::program::{Program, Scope};

/// Records a whole step: forward, head, sampling, and with drafts acceptance, upkeep of the draft head and new drafts.
pub fn record_step(model: &Model, bucket: Bucket) -> Program {
    let work = model.workspace.bucket(bucket.rows);
    let mut program = Program::new(model.step);
    record_forward(&mut program, model, &work);
    record_choice(&mut program, model, &work);
    if model.drafts() {
        record_mtp(&mut program, model, &work, bucket.passes);
    }
    program
}

/// Records the programs that slots need before a step: fold what is pending, then copy or reset.
pub fn record_slot_operations(model: &Model) -> Program {
    let (shape, mut program) = (model.delta_shape(), Program::new(model.step));
    for (index, cache) in model.caches.layers.iter().enumerate() {
        program.scope(Scope::Layer(index as u32));
        if let super::Cache::DeltaNet { state, window, records } = *cache {
            program.push(Op::FoldRecords { state, records, shape });
            program.push(Op::FoldWindow {
                window,
                slot_rows: shape.window_rows(),
                keep: crate::backend::op::CONV_LOOKBACK,
            });
            program.push(Op::CopySlots { tensor: state, slot_rows: shape.state_rows() });
            program.push(Op::CopySlots { tensor: window, slot_rows: shape.window_rows() });
        }
    }
    program.scope(Scope::Model);
    program.push(Op::CopySlots { tensor: model.caches.counts, slot_rows: 1 });
    program
}

/// Token ids to the normed hidden rows of the last layer, in `work.hidden`.
fn record_forward(p: &mut Program, model: &Model, work: &Workspace) {
    let rows = RowSet::Target;
    record_embed(p, model, rows, TokenSource::Step, work.residual);
    p.tap("embed", work.residual, rows);
    let mut stream = Stream { rows, add: None };
    for (index, (weights, cache)) in model.weights.layers.iter().zip(&model.caches.layers).enumerate() {
        p.scope(Scope::Layer(index as u32));
        record_layer(p, model, work, &mut stream, weights, *cache, &format!("layers.{index}"));
    }
    p.scope(Scope::Model);
    record_norm(p, model, &mut stream, work.residual, model.weights.norm, work.hidden);
    p.tap(format!("layers.{}.out", model.weights.layers.len() - 1), work.residual, rows);
    p.tap("final", work.hidden, rows);
}

/// Logits of the rows that need them, and the token chosen at each.
fn record_choice(p: &mut Program, model: &Model, work: &Workspace) {
    let vocab_live = model.options.vocab_live;
    p.push(Op::GatherRows { index: RowIndex::Logits, x: work.hidden, out: work.logit_hidden });
    record_matmul(p, RowSet::Logits, work.logit_hidden, &model.weights.head, work.logits);
    p.tap("logits", work.logits, RowSet::Logits);
    let (counts, masks) = (model.caches.counts, model.caches.masks);
    p.push(Op::CountTokens { counts });
    p.push(Op::Penalize { logits: work.logits, counts, masks, scores: work.scores, vocab_live });
    p.push(Op::Sample { scores: work.scores, out: work.sampled, vocab_live });
    p.push(Op::TopLogprobs { logits: work.logits, sampled: work.sampled, out: work.logprobs, vocab_live });
}

/// Rows of the embedding, whose table may lie in several parts.
pub(super) fn record_embed(p: &mut Program, model: &Model, rows: RowSet, tokens: TokenSource, out: Tensor) {
    let mut first_token = 0;
    for table in &model.weights.embed.parts {
        p.push(Op::Embed { rows, tokens, table: *table, first_token, out });
        first_token += table.rows;
    }
}
