//! Streams a checkpoint to a backend, tensor by tensor in the layout's order, in pieces of bounded size. Where types
//! agree a piece is handed over straight from the mapped file; otherwise it is widened to f32 in one staging buffer.

use safetensors::Dtype;

use super::layout::{Piece, Role, TensorPlan, arrange, split_rows};
use super::safetensors::{Checkpoint, FileTensor};
use super::survey::{loaded_type, survey};
use super::{Weight, Weights};
use crate::backend::{Backend, Tensor};
use crate::base::{DType, Error, ModelConfig, Result, bf16};

/// The most that one write hands to the backend, and the bound of the staging buffer.
pub(super) const STAGING_BYTES: usize = 16 << 20;

/// What loading gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    pub weights: Weights,
    /// One line each, for a person: what was skipped, lost or changed on the way.
    pub notices: Vec<String>,
}

/// Loads a checkpoint. `progress` is called with the bytes written and their total, at least once per tensor.
///
/// Errors: Input where the checkpoint is not what the config says ([`survey`]), before anything is allocated; and
/// whatever the backend returns.
pub fn load(
    backend: &mut dyn Backend,
    config: &ModelConfig,
    checkpoint: &Checkpoint,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Loaded> {
    let survey = survey(config, checkpoint)?;
    let mut stream = Stream { backend, checkpoint, staging: Vec::new(), done: 0, total: survey.loaded_bytes, progress };
    (stream.progress)(0, stream.total);
    let weights = arrange(config, survey.dialect, &mut |plan| stream.tensor(plan))?;
    Ok(Loaded { weights, notices: survey.notices })
}

/// The zeroed parts of one tensor of ours. Errors: Failure if one row is beyond the backend's binding limit.
pub(super) fn allocate(backend: &mut dyn Backend, plan: &TensorPlan, dtype: DType) -> Result<Weight> {
    let row_bytes = u64::from(plan.cols) * dtype.bytes() as u64;
    let limit = match plan.role {
        Role::Matrix => backend.caps().binding_bytes,
        _ => u64::MAX,
    };
    let Some(split) = split_rows(plan.rows, row_bytes, limit) else {
        return Err(Error::failure(
            format!("one row of {} takes {row_bytes} bytes, this backend binds {limit}", plan.label),
            "use another backend",
        ));
    };
    let mut parts = Vec::with_capacity(split.len());
    for (index, &rows) in split.iter().enumerate() {
        let label = if split.len() == 1 { plan.label.clone() } else { format!("{}.{index}", plan.label) };
        parts.push(backend.alloc(&label, dtype, rows, plan.cols)?);
    }
    Ok(Weight { parts })
}

struct Stream<'a> {
    backend: &'a mut dyn Backend,
    checkpoint: &'a Checkpoint,
    staging: Vec<u8>,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64),
}

impl Stream<'_> {
    fn tensor(&mut self, plan: &TensorPlan) -> Result<Weight> {
        let dtype = loaded_type(plan, self.checkpoint);
        let weight = allocate(self.backend, plan, dtype)?;
        let mut cursor = Cursor { parts: &weight.parts, offset_bytes: 0 };
        for piece in &plan.pieces {
            self.piece(plan, piece, &mut cursor)?;
        }
        assert!(cursor.parts.is_empty(), "the pieces of {} fill it", plan.label);
        Ok(weight)
    }

    fn piece(&mut self, plan: &TensorPlan, piece: &Piece, cursor: &mut Cursor) -> Result<()> {
        let checkpoint = self.checkpoint;
        let Some(source) = checkpoint.tensor(&piece.source) else {
            panic!("{} was surveyed", piece.source);
        };
        let row_bytes = plan.cols as usize * source.dtype.bitsize() / 8;
        for run in 0..piece.runs {
            let start = (piece.first_row + run * piece.stride_rows) as usize * row_bytes;
            let rows = &source.bytes[start..start + piece.run_rows as usize * row_bytes];
            self.rows(&source, rows, cursor)?;
        }
        Ok(())
    }

    /// Writes consecutive rows, in pieces that respect the staging bound and the ends of parts.
    fn rows(&mut self, source: &FileTensor, mut bytes: &[u8], cursor: &mut Cursor) -> Result<()> {
        let source_bytes = source.dtype.bitsize() / 8;
        while !bytes.is_empty() {
            let part = cursor.parts[0];
            let element_bytes = part.dtype.bytes();
            let room = part.bytes() - cursor.offset_bytes;
            let elements = (bytes.len() / source_bytes).min(room.min(STAGING_BYTES) / element_bytes);
            let (piece, rest) = bytes.split_at(elements * source_bytes);
            let written = match (source.dtype, part.dtype) {
                (Dtype::BF16, DType::Bf16) | (Dtype::F32, DType::F32) => piece,
                (from, _) => {
                    widen(from, piece, &mut self.staging);
                    &self.staging
                }
            };
            self.backend.write(part, cursor.offset_bytes, written)?;
            self.done += written.len() as u64;
            (self.progress)(self.done, self.total);
            cursor.advance(written.len());
            bytes = rest;
        }
        Ok(())
    }
}

/// Where the next row goes: the parts not yet full.
struct Cursor<'a> {
    parts: &'a [Tensor],
    offset_bytes: usize,
}

impl Cursor<'_> {
    fn advance(&mut self, bytes: usize) {
        self.offset_bytes += bytes;
        if self.offset_bytes == self.parts[0].bytes() {
            self.parts = &self.parts[1..];
            self.offset_bytes = 0;
        }
    }
}

/// Little-endian bf16 or f16 to f32. Exact.
fn widen(from: Dtype, bytes: &[u8], out: &mut Vec<u8>) {
    let value: fn(u16) -> f32 = match from {
        Dtype::BF16 => |bits| bf16::from_bits(bits).to_f32(),
        Dtype::F16 => |bits| half::f16::from_bits(bits).to_f32(),
        other => panic!("{other} was surveyed"),
    };
    out.resize(2 * bytes.len(), 0);
    for (word, pair) in out.as_chunks_mut::<4>().0.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *word = value(u16::from_le_bytes(*pair)).to_le_bytes();
    }
}
