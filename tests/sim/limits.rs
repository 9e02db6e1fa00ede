//! Random limits of the core, drawn so that every one of them is met often.

use deltic::engine::{CoreOptions, DepthOptions};

use super::hash::Random;
use super::network::VOCABULARY;

/// Pools from barely one sequence to plenty, budgets from two rows to plenty.
pub fn random_options(random: &mut Random) -> CoreOptions {
    let depth_max = random.pick(&[0, 1, 2, 3, 3, 5, 8]);
    let adaptive = random.percent(30);
    let page_tokens = random.within(1, 8);
    let context_max = random.within(12, 48);
    let least = (context_max - 1 + depth_max.max(1)).div_ceil(page_tokens);
    let pages = random.pick(&[least, least + 1, least * 3 / 2, least * 2, least * 4, least * 10]);
    let sequences_max = random.within(1, 8);
    CoreOptions {
        vocabulary: VOCABULARY,
        context_max,
        pages,
        page_tokens,
        slots: sequences_max + random.pick(&[0, 0, 1, 2]),
        sequences_max,
        queue_max: random.pick(&[6, 100, 100]),
        choices_max: 8,
        rows_max: random.pick(&[2, 3, 5, 8, 16, 64, 256]),
        rows_beside_decode: random.pick(&[1, 4, 256]),
        chunk_rows: random.pick(&[1, 2, 3, 7, 64]),
        logit_rows_max: random.pick(&[1, 2, 4, 9, 64]),
        biases_max: 8,
        logprobs_max: 5,
        depth: DepthOptions {
            adaptive,
            row_cost: random.pick(&[0.0, 0.02, 0.5]),
            pass_cost: random.pick(&[0.0, 0.08, 0.5]),
            ..DepthOptions::fixed(depth_max)
        },
        prefill_alone: random.percent(15),
    }
}
