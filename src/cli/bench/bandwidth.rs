//! What the memory gives when nothing but reading is done: the limit of a decode step on the CPU.

use std::hint::black_box;
use std::time::Instant;

/// Far more than any cache of one socket.
const BUFFER_BYTES: usize = 512 << 20;
const RUNS: usize = 5;

/// The best of a few sums over a large buffer, in 1e9 bytes per second. Best and not median: other load can only slow
/// it, and a limit is what is asked for.
pub fn read_gb_per_s(threads: usize) -> f64 {
    // Written, not just zeroed: untouched pages may all be one.
    let buffer: Vec<u64> = (0..(BUFFER_BYTES / 8) as u64).collect();
    let part = buffer.len().div_ceil(threads.max(1));
    let seconds = (0..RUNS).map(|_| {
        let started = Instant::now();
        std::thread::scope(|scope| {
            for part in buffer.chunks(part) {
                scope.spawn(move || black_box(sum(part)));
            }
        });
        started.elapsed().as_secs_f64()
    });
    BUFFER_BYTES as f64 / seconds.fold(f64::INFINITY, f64::min) / 1e9
}

/// Several sums at once, so that the loads and not the chain of additions set the pace.
fn sum(part: &[u64]) -> u64 {
    let mut sums = [0_u64; 32];
    let chunks = part.chunks_exact(sums.len());
    let rest = chunks.remainder();
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*value);
        }
    }
    sums.iter().chain(rest).fold(0, |sum, value| sum.wrapping_add(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_read() {
        let values: Vec<u64> = (0..1000).collect();
        assert_eq!(sum(&values), 499_500);
    }
}
