//! The draft head (MODEL.md 4): one attention layer that predicts the token after next.
//!
//! The pair (h_{t-1}, x_t) lives at index and position t of its own cache, entry 0 masked. Every row at position p
//! writes entry p + 1 from h_p and the token at p + 1: the known one, else the one the target sampled at that row.
//! Entries past the last token that stands are overwritten before anything reads them.

use super::forward::record_embed;
use super::layer::{Stream, record_layer, record_matmul, record_norm};
use super::{Model, Workspace};
use crate::backend::Tensor;
use crate::backend::op::{Op, RowIndex, RowSet, TokenSource};
use crate::backend::program::{Program, Scope};
use crate::weights::MtpWeights;

/// Records acceptance, the upkeep of the draft head over the step's rows, and `passes` drafts for the next step.
pub(super) fn record_mtp(p: &mut Program, model: &Model, work: &Workspace, passes: u32) {
    let weights = model.weights.mtp.as_ref().expect("drafts need a draft head");
    let verdict = work.verdict;
    p.push(Op::Accept { sampled: work.sampled, verdict });
    p.scope(Scope::Mtp(0));
    record_pass(p, model, work, weights, RowSet::Upkeep, TokenSource::Next { sampled: work.sampled }, work.hidden);
    if passes == 0 {
        return;
    }
    let drafts = work.draft_rows();
    p.push(Op::GatherRows { index: RowIndex::Verdict { verdict }, x: work.hidden, out: drafts.draft_hidden });
    record_draft(p, model, &drafts, 1);
    for pass in 2..=passes {
        p.scope(Scope::Mtp(pass));
        let tokens = TokenSource::Draft { drafts: drafts.drafts, pass: pass - 1 };
        record_pass(p, model, &drafts, weights, RowSet::Drafts { pass, verdict }, tokens, drafts.draft_hidden);
        record_draft(p, model, &drafts, pass);
    }
    p.scope(Scope::Model);
}

/// One run of the draft head's layer: `hidden` is the previous hidden row on entry and the normed result on return.
fn record_pass(
    p: &mut Program,
    model: &Model,
    work: &Workspace,
    weights: &MtpWeights,
    rows: RowSet,
    tokens: TokenSource,
    hidden: Tensor,
) {
    let name = match rows {
        RowSet::Drafts { pass, .. } => format!("mtp.draft{pass}"),
        _ => "mtp".to_owned(),
    };
    record_embed(p, model, rows, tokens, work.mixed);
    p.push(Op::MtpJoin {
        rows,
        embedding: work.mixed,
        hidden,
        embedding_weight: weights.norm_embedding,
        hidden_weight: weights.norm_hidden,
        out: work.join,
        eps: model.config.norm_eps,
    });
    p.tap(format!("{name}.join"), work.join, rows);
    record_matmul(p, rows, work.join, &weights.fc, work.residual);
    p.tap(format!("{name}.fc"), work.residual, rows);
    let mut stream = Stream { rows, add: None };
    let cache = model.caches.mtp.expect("allocated with the draft head");
    record_layer(p, model, work, &mut stream, &weights.layer, cache, &name);
    record_norm(p, model, &mut stream, work.residual, weights.norm, hidden);
    p.tap(format!("{name}.out"), work.residual, rows);
    p.tap(format!("{name}.final"), hidden, rows);
}

/// The head over the draft rows, and its argmax as draft number `pass`.
fn record_draft(p: &mut Program, model: &Model, work: &Workspace, pass: u32) {
    let rows = RowSet::Drafts { pass, verdict: work.verdict };
    record_matmul(p, rows, work.draft_hidden, &model.weights.head, work.logits);
    p.tap(format!("mtp.logits.{pass}"), work.logits, rows);
    let vocab_live = model.options.vocab_live;
    p.push(Op::Argmax { rows, x: work.logits, out: work.drafts, out_col: pass - 1, vocab_live });
}
