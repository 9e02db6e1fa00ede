//! Which padded sizes are recorded. A program is keyed by its row bucket and its draft passes.

/// Rows of the recorded programs: small ones finely, since decode and verification live there.
pub const ROW_BUCKETS: [u32; 14] = [1, 2, 4, 8, 16, 24, 32, 48, 64, 128, 256, 512, 1024, 2048];

/// The key of a recorded program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bucket {
    pub rows: u32,
    /// Drafts that the step makes for the next one.
    pub passes: u32,
}

impl Bucket {
    /// The smallest bucket that holds `rows`, capped at the largest step of the model.
    pub fn holding(rows: u32, passes: u32, rows_max: u32) -> Bucket {
        assert!(rows >= 1 && rows <= rows_max, "{rows} rows in a step of at most {rows_max}");
        let fit = ROW_BUCKETS.into_iter().find(|bucket| *bucket >= rows).unwrap_or(rows_max);
        Bucket { rows: fit.min(rows_max), passes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_that_fits_wins() {
        for (rows, expected) in [(1, 1), (3, 4), (9, 16), (17, 24), (64, 64), (65, 128), (300, 300), (257, 300)] {
            assert_eq!(Bucket::holding(rows, 0, 300).rows, expected, "{rows} rows");
        }
    }
}
