//! Element types, and bf16 conversion by rounding to nearest even.

use std::fmt;

pub use half::bf16;

/// What one element of a tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    F32,
    Bf16,
    U32,
}

impl DType {
    pub const fn bytes(self) -> usize {
        match self {
            DType::F32 | DType::U32 => 4,
            DType::Bf16 => 2,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::Bf16 => "bf16",
            DType::U32 => "u32",
        })
    }
}

/// Widens elements to f32. Panics on U32: ids are not numbers to compute with.
pub fn widen(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        DType::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        DType::Bf16 => bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        DType::U32 => panic!("u32 elements are ids, not numbers"),
    }
}

/// Little-endian u32 words, as the step inputs and ids are kept.
pub fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Narrows f32 values to `dtype`, rounding to nearest even. Panics on U32.
pub fn narrow(dtype: DType, values: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::Bf16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        DType::U32 => panic!("u32 elements are ids, not numbers"),
    }
}
