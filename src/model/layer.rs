//! One decoder layer as ops: norm, mixer (gated attention or gated delta net), norm, MLP. The draft head's layer is the
//! same function over other rows and another cache.

use super::{Cache, Model, Workspace};
use crate::backend::Tensor;
use crate::backend::op::{Op, RowSet};
use crate::backend::program::Program;
use crate::weights::{AttentionWeights, DeltaWeights, LayerWeights, MixerWeights, MlpWeights, Weight};

/// Where the residual stream stands while layers are recorded.
pub(super) struct Stream {
    pub rows: RowSet,
    /// What the next norm adds to the residual before it norms: the output of the last block, once there is one.
    pub add: Option<Tensor>,
}

/// Records one layer; leaves its MLP's output to be added by the next norm. `name` prefixes the taps.
pub(super) fn record_layer(
    p: &mut Program,
    model: &Model,
    work: &Workspace,
    stream: &mut Stream,
    weights: &LayerWeights,
    cache: Cache,
    name: &str,
) {
    let rows = stream.rows;
    let tap = |p: &mut Program, what: &str, tensor: Tensor| p.tap(format!("{name}.{what}"), tensor, rows);
    let previous = previous_layer(name).filter(|_| stream.add.is_some());
    record_norm(p, model, stream, work.residual, weights.norm, work.hidden);
    if let Some(previous) = previous {
        p.tap(format!("{previous}.out"), work.residual, rows);
    }
    tap(p, "norm", work.hidden);
    match (&weights.mixer, cache) {
        (MixerWeights::Attention(mixer), Cache::Attention { keys, values }) => {
            let first_entry = u32::from(rows != RowSet::Target);
            record_attention(p, model, work, rows, mixer, [keys, values], first_entry, name);
        }
        (MixerWeights::DeltaNet(mixer), Cache::DeltaNet { state, window, records }) => {
            assert_eq!(rows, RowSet::Target, "the draft head has no delta rule");
            record_delta_net(p, model, work, mixer, [state, window, records], name);
        }
        _ => unreachable!("caches are allocated from the same list of layer kinds as the weights"),
    }
    tap(p, "mixed", work.mixed);
    stream.add = Some(work.mixed);
    record_norm(p, model, stream, work.residual, weights.norm_mlp, work.hidden);
    tap(p, "norm_mlp", work.hidden);
    record_mlp(p, work, rows, &weights.mlp);
    tap(p, "act", work.act);
    tap(p, "mlp", work.mixed);
    stream.add = Some(work.mixed);
}

/// MODEL.md 3.1.
#[allow(clippy::too_many_arguments)]
fn record_attention(
    p: &mut Program,
    model: &Model,
    work: &Workspace,
    rows: RowSet,
    weights: &AttentionWeights,
    [keys, values]: [Tensor; 2],
    first_entry: u32,
    name: &str,
) {
    let (shape, config, qkv) = (model.attention_shape(), &model.config, work.qkv);
    record_matmul(p, rows, work.hidden, &weights.qkv, qkv);
    p.push(Op::QkNormRope {
        rows,
        qkv,
        q_weight: weights.q_norm,
        k_weight: weights.k_norm,
        shape,
        rotary_dims: config.rotary_dims,
        theta: config.rope_theta,
        eps: config.norm_eps,
    });
    p.tap(format!("{name}.qkv"), qkv, rows);
    p.push(Op::KvAppend { rows, qkv, keys, values, shape });
    p.push(Op::Attention { rows, qkv, keys, values, out: work.attention, shape, first_entry });
    p.tap(format!("{name}.attention"), work.attention, rows);
    record_matmul(p, rows, work.attention, &weights.out, work.mixed);
}

/// MODEL.md 3.2. A step may hold sequences with one committed row and with many: both forms are recorded, and each
/// runs over its own list.
fn record_delta_net(
    p: &mut Program,
    model: &Model,
    work: &Workspace,
    weights: &DeltaWeights,
    [state, window, records]: [Tensor; 3],
    name: &str,
) {
    let (shape, rows) = (model.delta_shape(), RowSet::Target);
    let tap = |p: &mut Program, what: &str, tensor: Tensor| p.tap(format!("{name}.{what}"), tensor, rows);
    record_matmul(p, rows, work.hidden, &weights.qkvz, work.qkvz);
    tap(p, "qkvz", work.qkvz);
    record_matmul(p, rows, work.hidden, &weights.ba, work.ba);
    tap(p, "ba", work.ba);
    p.push(Op::ConvStep { x: work.qkvz, weight: weights.conv, window, out: work.conv, shape });
    p.push(Op::ConvChunk { x: work.qkvz, weight: weights.conv, window, out: work.conv, shape });
    tap(p, "conv", work.conv);
    p.push(Op::DeltaGates { rows, ba: work.ba, a_log: weights.a_log, dt_bias: weights.dt_bias, out: work.gates });
    tap(p, "gates", work.gates);
    p.push(Op::DeltaStep { qkv: work.conv, gates: work.gates, state, records, out: work.delta, shape });
    p.push(Op::DeltaChunk { qkv: work.conv, gates: work.gates, state, out: work.delta, shape });
    tap(p, "delta", work.delta);
    p.push(Op::GatedNorm {
        rows,
        x: work.delta,
        gate: work.qkvz,
        gate_col: shape.conv_cols(),
        weight: weights.norm,
        out: work.gated,
        eps: model.config.norm_eps,
    });
    tap(p, "gated", work.gated);
    record_matmul(p, rows, work.gated, &weights.out, work.mixed);
}

fn record_mlp(p: &mut Program, work: &Workspace, rows: RowSet, weights: &MlpWeights) {
    let mut out_col = 0;
    for (gate, up) in weights.gate.parts.iter().zip(&weights.up.parts) {
        p.push(Op::MatMulGateUp { rows, x: work.hidden, gate: *gate, up: *up, out: work.act, out_col });
        out_col += gate.rows;
    }
    record_matmul(p, rows, work.act, &weights.down, work.mixed);
}

/// `out = x . weight^T`, part by part.
pub(super) fn record_matmul(p: &mut Program, rows: RowSet, x: Tensor, weight: &Weight, out: Tensor) {
    let mut out_col = 0;
    for part in &weight.parts {
        p.push(Op::MatMul { rows, x, weight: *part, out, out_col });
        out_col += part.rows;
    }
}

/// Adds what is due to the residual and norms it into `out`.
pub(super) fn record_norm(
    p: &mut Program,
    model: &Model,
    stream: &mut Stream,
    residual: Tensor,
    weight: Tensor,
    out: Tensor,
) {
    let eps = model.config.norm_eps;
    p.push(Op::RmsNorm { rows: stream.rows, add: stream.add.take(), x: residual, weight, out, eps });
}

/// `layers.3` for `layers.4`: its residual becomes visible in this layer's first norm.
fn previous_layer(name: &str) -> Option<String> {
    let index: u32 = name.strip_prefix("layers.")?.parse().ok()?;
    Some(format!("layers.{}", index.checked_sub(1)?))
}
