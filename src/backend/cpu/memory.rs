//! Buffers of the CPU backend and typed views of them: what an op reads as f32 and writes in its own element type.

use bytemuck::{Pod, Zeroable};

use super::lanes;
use super::simd::{Block, LANES, Simd};
use crate::backend::{BufferId, Tensor};
use crate::base::{DType, bf16};

/// One cache line. Buffers are made of these, so that a vector load never straddles two.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
struct Line([u32; 16]);

/// Zeroed memory aligned to cache lines.
#[derive(Default)]
pub struct Memory(Box<[Line]>);

impl Memory {
    /// None if the machine has not that much.
    pub fn zeroed(bytes: usize) -> Option<Memory> {
        bytemuck::allocation::try_zeroed_slice_box(bytes.div_ceil(size_of::<Line>())).ok().map(Memory)
    }

    pub fn elements<T: Pod>(&self, count: usize) -> &[T] {
        &bytemuck::cast_slice(&self.0)[..count]
    }

    pub fn elements_mut<T: Pod>(&mut self, count: usize) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.0)[..count]
    }

    /// Scratch floats, in parts that start at cache lines; grows on first use. What they hold is unspecified.
    pub fn parts<const N: usize>(&mut self, lengths: [usize; N]) -> [&mut [f32]; N] {
        let words: usize = lengths.iter().map(|length| length.next_multiple_of(LANES)).sum();
        if self.0.len() * LANES < words {
            *self = Memory::zeroed(words * 4).unwrap_or_else(|| panic!("no memory for {words} words of scratch"));
        }
        let mut rest = self.elements_mut::<f32>(words);
        lengths.map(|length| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(length.next_multiple_of(LANES));
            rest = after;
            &mut part[..length]
        })
    }
}

/// A buffer of the table.
pub struct Buffer {
    pub label: String,
    pub dtype: DType,
    /// Bytes asked for; the memory is rounded up to lines.
    pub bytes: usize,
    pub memory: Memory,
}

/// A read-only float matrix.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub data: Floats<'a>,
    pub cols: usize,
}

#[derive(Clone, Copy)]
pub enum Floats<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
}

impl<'a> View<'a> {
    pub fn new(memory: &'a Memory, tensor: Tensor) -> View<'a> {
        let data = match tensor.dtype {
            DType::F32 => Floats::F32(memory.elements(tensor.elements())),
            DType::Bf16 => Floats::Bf16(memory.elements(tensor.elements())),
            DType::U32 => panic!("a u32 tensor read as floats"),
        };
        View { data, cols: tensor.cols as usize }
    }

    /// `count` elements of a row from `col` on, widened into `to`; the rest of `to` is zeroed.
    #[inline(always)]
    pub fn read<S: Simd>(&self, simd: S, row: usize, col: usize, count: usize, to: &mut [f32]) {
        let start = row * self.cols + col;
        let (live, padding) = to.split_at_mut(count);
        match self.data {
            Floats::F32(data) => live.copy_from_slice(&data[start..start + count]),
            Floats::Bf16(data) => lanes::widen(simd, &data[start..start + count], live),
        }
        padding.fill(0.0);
    }

    pub fn rows(self) -> usize {
        match self.data {
            Floats::F32(data) => data.len() / self.cols,
            Floats::Bf16(data) => data.len() / self.cols,
        }
    }

    pub fn element_bytes(self) -> usize {
        match self.data {
            Floats::F32(_) => size_of::<f32>(),
            Floats::Bf16(_) => size_of::<bf16>(),
        }
    }

    /// All of f32 data.
    pub fn f32(self) -> &'a [f32] {
        match self.data {
            Floats::F32(data) => data,
            Floats::Bf16(_) => panic!("a bf16 tensor read as f32"),
        }
    }
}

/// A rectangle of a float matrix that one task may write.
pub enum FloatBlock<'a> {
    F32(Block<'a, f32>),
    Bf16(Block<'a, bf16>),
}

impl<'a> FloatBlock<'a> {
    pub fn new(memory: &'a mut Memory, tensor: Tensor) -> FloatBlock<'a> {
        let (elements, cols) = (tensor.elements(), tensor.cols as usize);
        match tensor.dtype {
            DType::F32 => FloatBlock::F32(Block::new(memory.elements_mut(elements), cols)),
            DType::Bf16 => FloatBlock::Bf16(Block::new(memory.elements_mut(elements), cols)),
            DType::U32 => panic!("a u32 tensor written as floats"),
        }
    }

    /// The block of an f32 tensor.
    pub fn f32(self) -> Block<'a, f32> {
        match self {
            FloatBlock::F32(block) => block,
            FloatBlock::Bf16(_) => panic!("a bf16 tensor written as f32"),
        }
    }

    pub fn rows(&self) -> usize {
        match self {
            FloatBlock::F32(block) => block.rows(),
            FloatBlock::Bf16(block) => block.rows(),
        }
    }

    pub fn cols(&self) -> usize {
        match self {
            FloatBlock::F32(block) => block.cols(),
            FloatBlock::Bf16(block) => block.cols(),
        }
    }

    /// As [`View::read`].
    #[inline(always)]
    pub fn read<S: Simd>(&self, simd: S, row: usize, col: usize, count: usize, to: &mut [f32]) {
        let (live, padding) = to.split_at_mut(count);
        match self {
            FloatBlock::F32(block) => live.copy_from_slice(&block.row(row)[col..col + count]),
            FloatBlock::Bf16(block) => lanes::widen(simd, &block.row(row)[col..col + count], live),
        }
        padding.fill(0.0);
    }

    /// Stores `from` to a row from `col` on, rounded once if the matrix is bf16.
    #[inline(always)]
    pub fn write<S: Simd>(&mut self, simd: S, row: usize, col: usize, from: &[f32]) {
        match self {
            FloatBlock::F32(block) => block.row_mut(row)[col..col + from.len()].copy_from_slice(from),
            FloatBlock::Bf16(block) => lanes::narrow(simd, from, &mut block.row_mut(row)[col..col + from.len()]),
        }
    }

    pub fn split_columns(self, at: usize) -> (FloatBlock<'a>, FloatBlock<'a>) {
        match self {
            FloatBlock::F32(block) => {
                let (left, right) = block.split_columns(at);
                (FloatBlock::F32(left), FloatBlock::F32(right))
            }
            FloatBlock::Bf16(block) => {
                let (left, right) = block.split_columns(at);
                (FloatBlock::Bf16(left), FloatBlock::Bf16(right))
            }
        }
    }

    pub fn split_rows(self, at: usize) -> (FloatBlock<'a>, FloatBlock<'a>) {
        match self {
            FloatBlock::F32(block) => {
                let (upper, lower) = block.split_rows(at);
                (FloatBlock::F32(upper), FloatBlock::F32(lower))
            }
            FloatBlock::Bf16(block) => {
                let (upper, lower) = block.split_rows(at);
                (FloatBlock::Bf16(upper), FloatBlock::Bf16(lower))
            }
        }
    }

    /// Column blocks of `width`, the last one narrower where it does not divide.
    pub fn column_blocks(self, width: usize) -> impl Iterator<Item = FloatBlock<'a>> + Send {
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let block = rest.take().filter(|block| block.cols() > 0)?;
            let at = width.min(block.cols());
            let (left, right) = block.split_columns(at);
            rest = Some(right);
            Some(left)
        })
    }

    /// Row blocks of `height`, the last one lower where it does not divide.
    pub fn row_blocks(self, height: usize) -> impl Iterator<Item = FloatBlock<'a>> + Send {
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let block = rest.take().filter(|block| block.rows() > 0)?;
            let at = height.min(block.rows());
            let (upper, lower) = block.split_rows(at);
            rest = Some(lower);
            Some(upper)
        })
    }
}

/// The memory of the buffers that the running op writes, out of the table so that the others can be borrowed beside it.
#[derive(Default)]
pub struct Written(pub Vec<(BufferId, Memory)>);

impl Written {
    /// Blocks over whole float tensors, all different.
    pub fn blocks<const N: usize>(&mut self, tensors: [Tensor; N]) -> [FloatBlock<'_>; N] {
        let mut found: [Option<FloatBlock<'_>>; N] = std::array::from_fn(|_| None);
        for (buffer, memory) in &mut self.0 {
            if let Some(at) = tensors.iter().position(|tensor| tensor.buffer == *buffer) {
                found[at] = Some(FloatBlock::new(memory, tensors[at]));
            }
        }
        found.map(|block| block.expect("the op declares it as written"))
    }

    /// The words of a u32 tensor.
    pub fn words(&mut self, tensor: Tensor) -> &mut [u32] {
        self.memory(tensor).elements_mut(tensor.elements())
    }

    pub fn memory(&mut self, tensor: Tensor) -> &mut Memory {
        let found = self.0.iter_mut().find(|(buffer, _)| *buffer == tensor.buffer);
        &mut found.expect("the op declares it as written").1
    }
}
