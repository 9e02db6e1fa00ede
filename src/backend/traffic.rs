//! What a step must move and multiply at least, from its ops and the filled step inputs: the yardstick of `bench`.
//!
//! Counted, once per op: the whole weight of every matrix product that has a live row; of the embedding the rows that
//! are looked up; of row-shaped operands the live rows, twice where they are read and written; of a KV cache the
//! entries up to each sequence's last position; of recurrent state one read and one write per sequence that runs.
//! Not counted: what an op reads again because it did not fit a cache, padding rows, and the step inputs.

use super::capture::live_rows;
use super::op::{Access, CopyList, DeltaShape, Op, RowIndex, RowSet};
use super::step::{Header, Section, SequenceWord, StepView};
use super::{Operand, Tensor};

/// The least that an op moves, and the multiplications and additions of its matrix products.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    pub bytes: u64,
    /// 0 for ops that are not matrix products.
    pub flops: u64,
}

/// The traffic of one op in a filled step.
pub fn traffic(op: &Op, step: &StepView<'_>) -> Traffic {
    let rows = op.rows().map_or(0, |rows| live_rows(step, rows)) as u64;
    let bytes = match *op {
        Op::MatMul { weight, x, out, .. } => return product(rows, x, &[weight], out),
        Op::MatMulGateUp { gate, up, x, out, .. } => return product(rows, x, &[gate, up], out),
        Op::Embed { table, out, .. } => rows * (row_bytes(table) + row_bytes(out)),
        Op::GatherRows { index, x, .. } => {
            let rows = match index {
                RowIndex::Logits => rows,
                RowIndex::Verdict { .. } => step.live(Header::DraftRows) as u64,
                RowIndex::Resumes { .. } => step.live(Header::Resumes) as u64,
            };
            2 * rows * row_bytes(x)
        }
        Op::Attention { rows: set, qkv, keys, values, out, first_entry, .. } => {
            let entries = cache_entries(step, set, first_entry);
            rows * (row_bytes(qkv) + row_bytes(out)) + entries * (row_bytes(keys) + row_bytes(values))
        }
        Op::KvAppend { keys, values, .. } => 2 * rows * (row_bytes(keys) + row_bytes(values)),
        Op::ConvStep { out, .. } => 2 * step_rows(step) * row_bytes(out),
        Op::ConvChunk { out, .. } => 2 * chunk_rows(step) * row_bytes(out),
        Op::DeltaStep { qkv, gates, state, records, out, shape } => {
            let sequences = step.live(Header::StepSequences) as u64;
            let rows_bytes = step_rows(step) * (row_bytes(qkv) + row_bytes(gates) + row_bytes(out));
            rows_bytes + sequences * state_bytes(state, shape) + record_rows(step) * row_bytes(records)
        }
        Op::DeltaChunk { qkv, gates, state, out, shape } => {
            let rows_bytes = chunk_rows(step) * (row_bytes(qkv) + row_bytes(gates) + row_bytes(out));
            rows_bytes + chunk_sequences(step) * state_bytes(state, shape)
        }
        Op::FoldRecords { state, shape, .. } => step.live(Header::Folds) as u64 * state_bytes(state, shape),
        Op::FoldWindow { window, keep, .. } => {
            2 * step.live(Header::Folds) as u64 * u64::from(keep) * row_bytes(window)
        }
        Op::CopySlots { tensor, slot_rows, list } => {
            let header = if list == CopyList::Slots { Header::Copies } else { Header::PageCopies };
            2 * step.live(header) as u64 * u64::from(slot_rows) * row_bytes(tensor)
        }
        Op::StoreRows { x, .. } => {
            let rows = |index: usize| 1 + u64::from(step.sequence(index, SequenceWord::Drafts));
            2 * sequences(step).map(rows).sum::<u64>() * row_bytes(x)
        }
        Op::CountTokens { .. } => 8 * rows,
        Op::TopLogprobs { logits, .. } if asks_for_logprobs(step) => rows * row_bytes(logits),
        Op::TopLogprobs { .. } => 0,
        // The counts and masks of the sequences that use them are small beside the scores.
        Op::Penalize { logits, scores, .. } => rows * (row_bytes(logits) + row_bytes(scores)),
        Op::Sample { scores, .. } => rows * row_bytes(scores),
        Op::Argmax { x, .. } => rows * row_bytes(x),
        Op::RmsNorm { .. }
        | Op::QkNormRope { .. }
        | Op::DeltaGates { .. }
        | Op::GatedNorm { .. }
        | Op::MtpJoin { .. }
        | Op::Accept { .. } => op.operands().iter().map(|operand| operand_bytes(operand, rows)).sum(),
    };
    Traffic { bytes, flops: 0 }
}

/// The sum over a list of ops.
pub fn total<'a>(ops: impl Iterator<Item = &'a Op>, step: &StepView<'_>) -> Traffic {
    ops.map(|op| traffic(op, step))
        .fold(Traffic::default(), |sum, one| Traffic { bytes: sum.bytes + one.bytes, flops: sum.flops + one.flops })
}

fn product(rows: u64, x: Tensor, weights: &[Tensor], out: Tensor) -> Traffic {
    if rows == 0 {
        return Traffic::default();
    }
    let weight_bytes: u64 = weights.iter().map(|weight| weight.bytes() as u64).sum();
    let elements: u64 = weights.iter().map(|weight| weight.elements() as u64).sum();
    let out_bytes = u64::from(weights[0].rows) * out.dtype.bytes() as u64;
    Traffic { bytes: weight_bytes + rows * (row_bytes(x) + out_bytes), flops: 2 * rows * elements }
}

/// Vectors, such as the weights of a norm, are read once; the rest by live rows.
fn operand_bytes(operand: &Operand, rows: u64) -> u64 {
    let times = if operand.access == Access::ReadWrite { 2 } else { 1 };
    rows.min(u64::from(operand.tensor.rows)) * row_bytes(operand.tensor) * times
}

fn row_bytes(tensor: Tensor) -> u64 {
    u64::from(tensor.cols) * tensor.dtype.bytes() as u64
}

/// One read and one write of a slot's state.
fn state_bytes(state: Tensor, shape: DeltaShape) -> u64 {
    2 * u64::from(shape.state_rows()) * row_bytes(state)
}

fn sequences<'a>(step: &'a StepView<'_>) -> impl Iterator<Item = usize> + 'a {
    0..step.live(Header::Sequences)
}

fn rows_of(step: &StepView<'_>, sequence: usize) -> u64 {
    let words = [SequenceWord::Committed, SequenceWord::Drafts];
    words.into_iter().map(|word| u64::from(step.sequence(sequence, word))).sum()
}

/// Rows of the sequences with one committed row, drafts included.
fn step_rows(step: &StepView<'_>) -> u64 {
    let list = &step.section(Section::StepSequence)[..step.live(Header::StepSequences)];
    list.iter().map(|sequence| rows_of(step, *sequence as usize)).sum()
}

fn chunk_rows(step: &StepView<'_>) -> u64 {
    chunks(step).map(|chunk| u64::from(chunk[2])).sum()
}

/// Sequences of the chunk list; the chunks of one follow each other.
fn chunk_sequences(step: &StepView<'_>) -> u64 {
    let mut sequences: Vec<u32> = chunks(step).map(|chunk| chunk[0]).collect();
    sequences.dedup();
    sequences.len() as u64
}

fn chunks<'a>(step: &StepView<'a>) -> impl Iterator<Item = &'a [u32]> {
    step.section(Section::Chunk).chunks_exact(3).take(step.live(Header::Chunks))
}

/// Records read (pending ones) and written (of draft rows).
fn record_rows(step: &StepView<'_>) -> u64 {
    let words = [SequenceWord::Pending, SequenceWord::Drafts];
    sequences(step).flat_map(|index| words.map(|word| u64::from(step.sequence(index, word)))).sum()
}

/// Cache entries that the rows of a row set look at, those of one sequence counted once.
fn cache_entries(step: &StepView<'_>, rows: RowSet, first_entry: u32) -> u64 {
    let later = match rows {
        RowSet::Target | RowSet::Logits | RowSet::Resumes => 0,
        RowSet::Upkeep => 1,
        RowSet::Drafts { pass, .. } => pass,
    };
    let entries = |index: usize| {
        let last = u64::from(step.sequence(index, SequenceWord::FirstRow)) + rows_of(step, index) - 1;
        let position = step.section(Section::Position)[last as usize];
        u64::from(position + later + 1 - first_entry)
    };
    sequences(step).map(entries).sum()
}

fn asks_for_logprobs(step: &StepView<'_>) -> bool {
    sequences(step).any(|index| step.sequence(index, SequenceWord::Logprobs) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::step::StepLimits;
    use crate::backend::{AttentionShape, BufferId};
    use crate::base::DType;

    const LIMITS: StepLimits =
        StepLimits { rows: 8, sequences: 2, logit_rows: 4, pages: 4, biases: 1, slot_operations: 1 };

    fn tensor(buffer: u32, dtype: DType, rows: u32, cols: u32) -> Tensor {
        Tensor { buffer: BufferId(buffer), dtype, rows, cols }
    }

    /// One sequence with a committed row at position 9 and two drafts after it.
    fn step() -> Vec<u32> {
        let mut words = vec![0; LIMITS.words() as usize];
        for (header, value) in [(Header::Rows, 3), (Header::Sequences, 1), (Header::StepSequences, 1)] {
            words[header as usize] = value;
        }
        for row in 0..3 {
            words[(LIMITS.offset(Section::Position) + row) as usize] = 9 + row;
        }
        let first = LIMITS.offset(Section::Sequences);
        words[(first + SequenceWord::Committed as u32) as usize] = 1;
        words[(first + SequenceWord::Drafts as u32) as usize] = 2;
        words[(first + SequenceWord::Pending as u32) as usize] = 1;
        words
    }

    #[test]
    fn weights_count_whole_and_rows_by_life() {
        let (x, out) = (tensor(0, DType::Bf16, 4, 16), tensor(2, DType::F32, 4, 32));
        let weight = tensor(1, DType::Bf16, 32, 16);
        let matmul = |rows| Op::MatMul { rows, x, weight, out, out_col: 0 };
        let words = step();
        let view = StepView::new(&words, LIMITS);
        let bytes = 32 * 16 * 2 + 3 * (16 * 2 + 32 * 4);
        assert_eq!(traffic(&matmul(RowSet::Target), &view), Traffic { bytes, flops: 2 * 3 * 32 * 16 });
        assert_eq!(traffic(&matmul(RowSet::Logits), &view), Traffic::default(), "nothing samples");
    }

    #[test]
    fn caches_count_to_the_last_position_and_state_both_ways() {
        let words = step();
        let view = StepView::new(&words, LIMITS);
        let shape = AttentionShape { heads: 1, kv_heads: 1, head_dim: 8, page_tokens: 4 };
        let [keys, values] = [4, 5].map(|buffer| tensor(buffer, DType::Bf16, 16, shape.kv_cols()));
        let qkv = tensor(3, DType::Bf16, 4, shape.qkv_cols());
        let out = tensor(6, DType::Bf16, 4, shape.out_cols());
        let attention = Op::Attention { rows: RowSet::Target, qkv, keys, values, out, shape, first_entry: 0 };
        assert_eq!(traffic(&attention, &view).bytes, 3 * 2 * (32 + 8) + 12 * 2 * 2 * 8);

        let shape = DeltaShape { key_heads: 1, value_heads: 2, key_dim: 4, value_dim: 8, drafts_max: 3 };
        let step = Op::DeltaStep {
            qkv: tensor(0, DType::Bf16, 4, shape.conv_cols()),
            gates: tensor(1, DType::F32, 4, 4),
            state: tensor(2, DType::F32, shape.state_rows(), shape.value_dim),
            records: tensor(3, DType::F32, shape.record_rows(), shape.record_cols()),
            out: tensor(4, DType::Bf16, 4, shape.value_cols()),
            shape,
        };
        let rows = 3 * (2 * shape.conv_cols() + 4 * 4 + 2 * shape.value_cols());
        let state = 2 * 4 * shape.state_rows() * shape.value_dim;
        let records = 3 * 4 * shape.record_cols();
        assert_eq!(traffic(&step, &view).bytes, u64::from(rows + state + records));
    }
}
