//! Hashing and random numbers of the simulation: fast, seeded, the same everywhere.

/// Combines two values; every bit of both matters, and so does their order.
pub fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.rotate_left(23).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ b.wrapping_add(0xD1B5_4A32_D192_ED03);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A seeded stream.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(mix(seed, 0x5EED))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0, 1)
    }

    /// A number of the inclusive range.
    pub fn within(&mut self, low: u32, high: u32) -> u32 {
        low + (self.next() % u64::from(high - low + 1)) as u32
    }

    pub fn percent(&mut self, percent: u32) -> bool {
        self.next() % 100 < u64::from(percent)
    }

    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.next() as usize % values.len()]
    }
}
