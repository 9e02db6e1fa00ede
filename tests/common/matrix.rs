//! Matrices on the host: [`Matrix`] is what a backend stores, bit for bit; [`Grid`] is what a naive formula computes.

use std::ops::Range;

use deltic::base::{DType, bf16};

/// Fills words that nobody may read or leave behind: no index, no count and no token of any test.
pub const POISON: u32 = 0xA5A5_A5A5;

/// A tensor's contents. Both float types are held as the bits of an f32, bf16 with a zero lower half.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix {
    pub dtype: DType,
    pub rows: usize,
    pub cols: usize,
    pub bits: Vec<u32>,
}

impl Matrix {
    /// Floats, rounded to `dtype`.
    pub fn from_fn(dtype: DType, rows: usize, cols: usize, mut cell: impl FnMut(usize, usize) -> f32) -> Matrix {
        let mut bits = Vec::with_capacity(rows * cols);
        for row in 0..rows {
            for col in 0..cols {
                bits.push(round_to(dtype, cell(row, col)));
            }
        }
        Matrix { dtype, rows, cols, bits }
    }

    pub fn words(rows: usize, cols: usize, mut cell: impl FnMut(usize, usize) -> u32) -> Matrix {
        let bits = (0..rows * cols).map(|at| cell(at / cols, at % cols)).collect();
        Matrix { dtype: DType::U32, rows, cols, bits }
    }

    /// Uniform in -1..1.
    pub fn random(dtype: DType, rows: usize, cols: usize, seed: u64) -> Matrix {
        let mut random = Random::new(seed);
        Matrix::from_fn(dtype, rows, cols, |_, _| random.symmetric())
    }

    /// NaN in every cell, or poison words: what an output holds before the op, and padding holds all the time.
    pub fn blank(dtype: DType, rows: usize, cols: usize) -> Matrix {
        let bits = match dtype {
            DType::U32 => POISON,
            DType::F32 | DType::Bf16 => f32::NAN.to_bits(),
        };
        Matrix { dtype, rows, cols, bits: vec![bits; rows * cols] }
    }

    /// This matrix with blank rows beneath, up to `rows`.
    pub fn padded(mut self, rows: usize) -> Matrix {
        assert!(rows >= self.rows);
        let below = Matrix::blank(self.dtype, rows - self.rows, self.cols);
        self.bits.extend(below.bits);
        self.rows = rows;
        self
    }

    /// This matrix with blank columns to the right, up to `cols`.
    pub fn widened(self, cols: usize) -> Matrix {
        let mut wide = Matrix::blank(self.dtype, self.rows, cols);
        for row in 0..self.rows {
            let from = &self.bits[row * self.cols..(row + 1) * self.cols];
            wide.bits[row * cols..row * cols + self.cols].copy_from_slice(from);
        }
        wide
    }

    pub fn at(&self, row: usize, col: usize) -> f64 {
        f64::from(f32::from_bits(self.word(row, col)))
    }

    pub fn word(&self, row: usize, col: usize) -> u32 {
        assert!(col < self.cols);
        self.bits[row * self.cols + col]
    }

    pub fn set(&mut self, row: usize, col: usize, value: f32) {
        self.bits[row * self.cols + col] = round_to(self.dtype, value);
    }

    /// Makes a row equal to a row of another matrix of the same width and type.
    pub fn set_row(&mut self, row: usize, from: &Matrix, from_row: usize) {
        assert_eq!((self.cols, self.dtype), (from.cols, from.dtype));
        let source = &from.bits[from_row * self.cols..(from_row + 1) * self.cols];
        self.bits[row * self.cols..(row + 1) * self.cols].copy_from_slice(source);
    }

    pub fn rows(&self, range: Range<usize>) -> Matrix {
        let bits = self.bits[range.start * self.cols..range.end * self.cols].to_vec();
        Matrix { dtype: self.dtype, rows: range.len(), cols: self.cols, bits }
    }

    pub fn cols(&self, range: Range<usize>) -> Matrix {
        let bits = self.bits.chunks_exact(self.cols.max(1)).flat_map(|row| row[range.clone()].to_vec()).collect();
        Matrix { dtype: self.dtype, rows: self.rows, cols: range.len(), bits }
    }

    /// The given rows one after the other.
    pub fn gather(&self, rows: impl IntoIterator<Item = usize>) -> Matrix {
        let mut gathered = Matrix { rows: 0, bits: Vec::new(), ..*self };
        for row in rows {
            gathered.bits.extend(&self.bits[row * self.cols..(row + 1) * self.cols]);
            gathered.rows += 1;
        }
        gathered
    }

    pub fn grid(&self) -> Grid {
        let cells = self.bits.iter().map(|bits| f64::from(f32::from_bits(*bits))).collect();
        Grid { rows: self.rows, cols: self.cols, cells }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        match self.dtype {
            DType::Bf16 => self.bits.iter().flat_map(|bits| ((bits >> 16) as u16).to_ne_bytes()).collect(),
            DType::F32 | DType::U32 => self.bits.iter().flat_map(|bits| bits.to_ne_bytes()).collect(),
        }
    }

    pub fn from_bytes(dtype: DType, rows: usize, cols: usize, bytes: &[u8]) -> Matrix {
        assert_eq!(bytes.len(), rows * cols * dtype.bytes(), "bytes of a [{rows}, {cols}] {dtype} tensor");
        let bits = match dtype {
            DType::Bf16 => {
                bytes.chunks_exact(2).map(|b| u32::from(u16::from_ne_bytes(b.try_into().unwrap())) << 16).collect()
            }
            DType::F32 | DType::U32 => {
                bytes.chunks_exact(4).map(|b| u32::from_ne_bytes(b.try_into().unwrap())).collect()
            }
        };
        Matrix { dtype, rows, cols, bits }
    }
}

fn round_to(dtype: DType, value: f32) -> u32 {
    match dtype {
        DType::F32 => value.to_bits(),
        DType::Bf16 => u32::from(bf16::from_f32(value).to_bits()) << 16,
        DType::U32 => panic!("a float for a matrix of words"),
    }
}

/// Values of a naive formula in f64, never rounded to the type of the operand they are compared with.
#[derive(Debug, Clone)]
pub struct Grid {
    pub rows: usize,
    pub cols: usize,
    pub cells: Vec<f64>,
}

impl Grid {
    pub fn zeros(rows: usize, cols: usize) -> Grid {
        Grid { rows, cols, cells: vec![0.0; rows * cols] }
    }

    pub fn from_fn(rows: usize, cols: usize, mut cell: impl FnMut(usize, usize) -> f64) -> Grid {
        Grid { rows, cols, cells: (0..rows * cols).map(|at| cell(at / cols, at % cols)).collect() }
    }

    pub fn row(&self, row: usize) -> &[f64] {
        &self.cells[row * self.cols..(row + 1) * self.cols]
    }

    pub fn row_mut(&mut self, row: usize) -> &mut [f64] {
        &mut self.cells[row * self.cols..(row + 1) * self.cols]
    }

    pub fn rows(&self, range: Range<usize>) -> Grid {
        let cells = self.cells[range.start * self.cols..range.end * self.cols].to_vec();
        Grid { rows: range.len(), cols: self.cols, cells }
    }
}

/// SplitMix64: test data that is the same everywhere and shares no code with the engine's generator.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5851_F42D_4C95_7F2D)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in 0..1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 24) as f32
    }

    /// Uniform in -1..1.
    pub fn symmetric(&mut self) -> f32 {
        2.0 * self.unit() - 1.0
    }

    /// Uniform in 0..n.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}
