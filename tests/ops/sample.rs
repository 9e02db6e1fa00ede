//! Sample: greedy choice, each filter alone and together, independence of the batch, and the distribution itself.

use deltic::backend::Op;
use deltic::base::DType;
use deltic::base::rng::{draw_key, gumbel};

use crate::common::cases::SPARE_ROWS;
use crate::common::matrix::{Matrix, Random};
use crate::common::rig::Rig;
use crate::common::step::{Sampling, Sequence, Step};
use crate::common::target::Suite;

const NONE: u32 = u32::MAX;

const WARM: Sampling = Sampling {
    seed: 1,
    choice: 0,
    temperature: 0.8,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
    repetition: 1.0,
    presence: 0.0,
    frequency: 0.0,
};

const FILTERS: [(&str, Sampling); 12] = [
    ("no_filter", WARM),
    ("temperature_2", Sampling { temperature: 2.0, ..WARM }),
    ("top_k_1", Sampling { top_k: 1, ..WARM }),
    ("top_k_5", Sampling { top_k: 5, ..WARM }),
    ("top_k_above_vocabulary", Sampling { top_k: 1_000_000, ..WARM }),
    ("top_p_0", Sampling { top_p: 0.0, ..WARM }),
    ("top_p_small", Sampling { top_p: 0.05, ..WARM }),
    ("top_p_90", Sampling { top_p: 0.9, ..WARM }),
    ("min_p_20", Sampling { min_p: 0.2, ..WARM }),
    ("min_p_1", Sampling { min_p: 1.0, ..WARM }),
    ("top_k_and_top_p", Sampling { top_k: 9, top_p: 0.7, ..WARM }),
    ("all_together", Sampling { top_k: 12, top_p: 0.8, min_p: 0.15, temperature: 1.3, ..WARM }),
];

pub fn add(suite: &mut Suite) {
    suite.add("sample", "greedy_ties_to_the_lowest_id", greedy_ties);
    suite.add("sample", "greedy_ignores_filters_and_seed", greedy_with_filters);
    suite.add("sample", "rows_without_a_token", rows_without_a_token);
    suite.add("sample", "tiny_temperature_is_greedy", tiny_temperature);
    suite.add("sample", "masked_tokens_never", masked_tokens);
    for (name, sampling) in FILTERS {
        for (vocabulary, live) in [(1, 1), (37, 37), (300, 257)] {
            suite.add("sample", format!("{name}_of_{live}"), move |rig| filtered(rig, sampling, vocabulary, live, 24));
        }
    }
    for (name, sampling) in [FILTERS[0], FILTERS[3], FILTERS[7], FILTERS[11]] {
        suite.add("sample", format!("{name}_real"), move |rig| filtered(rig, sampling, 248_320, 248_077, 2));
    }
    suite.add("sample", "filters_keep_exactly_what_they_should", exactly_kept);
    suite.add("sample", "same_seed_same_token_in_any_batch", any_batch);
    suite
        .add("sample", "distribution_is_softmax", |rig| distribution(rig, Sampling { temperature: 0.7, ..WARM }, 69.3));
    suite.add("sample", "distribution_of_top_k_8", |rig| {
        distribution(rig, Sampling { temperature: 1.5, top_k: 8, ..WARM }, 29.9);
    });
}

fn sample(rig: &mut Rig, step: &Step, scores: &Matrix, vocabulary: usize) -> Vec<u32> {
    let (rows, live) = (scores.rows, scores.cols);
    assert_eq!(rows, step.logit_rows());
    let scores = rig.put("scores", &scores.clone().widened(vocabulary).padded(rows + SPARE_ROWS));
    let out = rig.blank("out", DType::U32, 1, rows + SPARE_ROWS);
    let inputs = rig.step(step);
    rig.run(inputs, &[Op::Sample { scores, out, vocab_live: live as u32 }]);
    let found = rig.get(out).cols(0..rows);
    rig.note("sampled", &found);
    found.bits
}

/// One sequence per sampling, after one that does not sample.
fn step_of(samplings: impl IntoIterator<Item = (Sampling, u32)>) -> Step {
    let mut sequences = vec![Sequence::new(0, 3, 0)];
    sequences.extend(samplings.into_iter().map(|(sampling, position)| {
        let sequence = Sequence::sampling(1, 1, 0);
        Sequence { sampling, position, ..sequence }
    }));
    Step::new(sequences)
}

fn greedy_ties(rig: &mut Rig) {
    let rows: [(&[f32], u32); 5] = [
        (&[1.0, 3.0, 3.0, 2.0, 3.0], 1),
        (&[-5.0, -5.0, -5.0, -5.0, -5.0], 0),
        (&[0.0, -0.0, -1.0, -1.0, -1.0], 0),
        (&[-0.0, 0.0, -1.0, -1.0, -1.0], 0),
        (&[f32::NEG_INFINITY, -1e30, -1e38, f32::NEG_INFINITY, -1e30], 1),
    ];
    let scores = Matrix::from_fn(DType::F32, 5, 5, |row, col| rows[row].0[col]);
    let step = step_of(rows.map(|_| (Sampling::default(), 9)));
    let wanted = rows.map(|(_, token)| token);
    assert_eq!(sample(rig, &step, &scores, 8), wanted);
    // Ties across any blocking of a real vocabulary.
    for (first, second) in [(0, 248_076), (63, 64), (1023, 1024), (131_072, 247_000), (17, 18)] {
        let ties =
            Matrix::from_fn(DType::F32, 1, 248_077, |_, col| if col == first || col == second { 2.0 } else { 1.0 });
        let step = step_of([(Sampling::default(), 9)]);
        assert_eq!(sample(rig, &step, &ties, 248_320), [first as u32]);
    }
}

fn greedy_with_filters(rig: &mut Rig) {
    let scores = Matrix::random(DType::F32, FILTERS.len(), 90, 1);
    let step = step_of(FILTERS.map(|(_, sampling)| (Sampling { temperature: 0.0, ..sampling }, 3)));
    assert_eq!(sample(rig, &step, &scores, 96), best(&scores));
}

fn best(scores: &Matrix) -> Vec<u32> {
    let row_best = |row: usize| {
        let better =
            |best: usize, token: usize| if scores.at(row, token) > scores.at(row, best) { token } else { best };
        (0..scores.cols).reduce(better).expect("a vocabulary") as u32
    };
    (0..scores.rows).map(row_best).collect()
}

/// A NaN anywhere below vocab_live, or nothing finite, gives NONE, for greedy and for sampled rows.
fn rows_without_a_token(rig: &mut Rig) {
    for sampling in [Sampling::default(), WARM, FILTERS[11].1, FILTERS[7].1] {
        let mut scores = Matrix::random(DType::F32, 6, 50, 2);
        scores.set(0, 0, f32::NAN);
        scores.set(1, 49, f32::NAN);
        scores.set(3, 25, -f32::NAN);
        for token in 0..50 {
            scores.set(4, token, f32::NEG_INFINITY);
        }
        let step = step_of([(sampling, 5); 6]);
        let found = sample(rig, &step, &scores, 64);
        assert_eq!([found[0], found[1], found[3], found[4]], [NONE; 4], "{sampling:?}");
        assert!(found[2] < 50 && found[5] < 50, "{sampling:?}: {found:?}");
    }
}

fn tiny_temperature(rig: &mut Rig) {
    let scores = Matrix::random(DType::F32, 8, 100, 3);
    for temperature in [1e-9, 1e-30, f32::MIN_POSITIVE] {
        for filters in [WARM, FILTERS[11].1] {
            let step = step_of((0..8).map(|seed| (Sampling { temperature, seed, ..filters }, 1)));
            assert_eq!(sample(rig, &step, &scores, 128), best(&scores), "temperature {temperature:e}");
        }
    }
}

fn masked_tokens(rig: &mut Rig) {
    let scores = Matrix::from_fn(DType::F32, 64, 70, |row, token| {
        if (token + row) % 9 == 0 { 0.1 * token as f32 } else { f32::NEG_INFINITY }
    });
    for (name, sampling) in FILTERS {
        let step = step_of((0..64).map(|seed| (Sampling { seed, temperature: 5.0, ..sampling }, 7)));
        for (row, token) in sample(rig, &step, &scores, 96).into_iter().enumerate() {
            assert!(token < 70 && (token as usize + row).is_multiple_of(9), "{name}: row {row} gives {token}");
        }
    }
}

/// The tokens that the filters keep, in the order temperature, top-k, top-p, min-p. `slack` widens top-p and min-p.
fn kept(scores: &[f64], sampling: Sampling, slack: f64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).filter(|token| scores[*token] > f64::NEG_INFINITY).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    if sampling.top_k > 0 {
        order.truncate(sampling.top_k as usize);
    }
    let weight = |token: usize| ((scores[token] - scores[order[0]]) / f64::from(sampling.temperature)).exp();
    let total: f64 = order.iter().map(|token| weight(*token)).sum();
    let mut before = 0.0;
    let mut kept = Vec::new();
    for (rank, token) in order.iter().enumerate() {
        // The most likely token always stays.
        let in_top_p = rank == 0 || sampling.top_p >= 1.0 || before < f64::from(sampling.top_p) + slack;
        let in_min_p = rank == 0 || weight(*token) >= f64::from(sampling.min_p) * (1.0 - slack);
        if in_top_p && in_min_p {
            kept.push(*token);
        }
        before += weight(*token) / total;
    }
    kept
}

/// What sampling maximises.
fn key(scores: &[f64], sampling: Sampling, position: u32, token: usize) -> f64 {
    let noise = gumbel(draw_key(sampling.seed, sampling.choice, position + 1), token as u32);
    scores[token] / f64::from(sampling.temperature) + f64::from(noise)
}

/// `found` is the best of the kept tokens, but for what f32 may decide otherwise at an edge.
fn judge(scores: &[f64], sampling: Sampling, position: u32, found: u32) {
    let surely = kept(scores, sampling, -1e-5);
    let possibly = kept(scores, sampling, 1e-5);
    assert!(possibly.contains(&(found as usize)), "{sampling:?}: token {found} is filtered out");
    let best = surely.iter().map(|token| key(scores, sampling, position, *token)).fold(f64::NEG_INFINITY, f64::max);
    let reached = key(scores, sampling, position, found as usize);
    assert!(reached >= best - 1e-4, "{sampling:?} at {position}: token {found} reaches {reached}, the best {best}");
}

fn filtered(rig: &mut Rig, sampling: Sampling, vocabulary: usize, live: usize, rows: usize) {
    let mut random = Random::new(4);
    let scores = Matrix::from_fn(DType::F32, rows, live, |_, _| 5.0 * random.symmetric());
    let samplings = (0..rows).map(|row| {
        let seed = row as u64 * 0x1_0000_0001 + 77;
        (Sampling { seed, choice: row as u32 % 3, ..sampling }, 100 * row as u32)
    });
    let samplings: Vec<(Sampling, u32)> = samplings.collect();
    let found = sample(rig, &step_of(samplings.iter().copied()), &scores, vocabulary);
    let grid = scores.grid();
    for (row, (sampling, position)) in samplings.into_iter().enumerate() {
        judge(grid.row(row), sampling, position, found[row]);
    }
}

/// Over many draws from a flat row, the tokens drawn are the tokens kept: none beyond an edge, none short of it.
fn exactly_kept(rig: &mut Rig) {
    let (live, draws) = (24, 500);
    let mut random = Random::new(8);
    let flat = Matrix::from_fn(DType::F32, 1, live, |_, _| 0.6 * random.symmetric()).gather(vec![0; draws]);
    let scores = flat.rows(0..1).grid().cells;
    for case in 0..48 {
        let mut sampling = WARM;
        let (alone, level) = (case % 4, 0.04 + 0.95 * random.unit());
        sampling.top_k = if alone == 0 || alone == 3 { 1 + random.below(live) as u32 } else { 0 };
        sampling.top_p = if alone == 1 || alone == 3 { level } else { 1.0 };
        sampling.min_p = if alone == 2 || alone == 3 { 0.2 + 0.8 * random.unit() } else { 0.0 };
        let step = step_of((0..draws as u64).map(|seed| (Sampling { seed, ..sampling }, case)));
        let mut drawn: Vec<usize> = sample(rig, &step, &flat, 32).into_iter().map(|token| token as usize).collect();
        drawn.sort_unstable();
        drawn.dedup();
        let [mut surely, mut possibly] = [-1e-5, 1e-5].map(|slack| kept(&scores, sampling, slack));
        surely.sort_unstable();
        possibly.sort_unstable();
        assert!(drawn == surely || drawn == possibly, "{sampling:?}: drawn {drawn:?}, kept {surely:?}");
    }
}

/// The token depends on scores, seed, choice and position; not on the row, the batch, or being a draft's row.
fn any_batch(rig: &mut Rig) {
    let (count, live) = (20, 64);
    let scores = Matrix::random(DType::F32, count, live, 5);
    let sampling = |at: usize| Sampling { seed: 9, choice: at as u32 / 10, ..FILTERS[at % FILTERS.len()].1 };
    let position = |at: usize| 40 + at as u32;
    let mut order: Vec<usize> = (0..count).collect();
    let step = step_of(order.iter().map(|at| (sampling(*at), position(*at))));
    let together = sample(rig, &step, &scores, live);
    Random::new(6).shuffle(&mut order);
    let shuffled_step = step_of(order.iter().map(|at| (sampling(*at), position(*at))));
    let shuffled = sample(rig, &shuffled_step, &scores.gather(order.iter().copied()), live);
    for (row, at) in order.iter().enumerate() {
        assert_eq!(shuffled[row], together[*at], "the row that was {at} is {row}");
        let alone = sample(rig, &step_of([(sampling(*at), position(*at))]), &scores.rows(*at..at + 1), live);
        assert_eq!(alone, [together[*at]], "row {at} alone");
    }
    let drafting = |drafts: u32| {
        let sequence = Sequence { sampling: WARM, position: 40, ..Sequence::sampling(1, 1, drafts) };
        Step::new(vec![Sequence::new(0, 2, 0), sequence])
    };
    let four = sample(rig, &drafting(3), &scores.rows(0..4), live);
    for (row, token) in four.iter().enumerate() {
        let alone = step_of([(WARM, 40 + row as u32)]);
        assert_eq!(sample(rig, &alone, &scores.rows(row..row + 1), live), [*token], "row of draft {row}");
    }
}

/// 40,000 draws over seeds, choices and positions against softmax. `limit` is the chi-square value that a right
/// sampler exceeds once in 10,000 times, for one degree of freedom less than there are kept tokens.
fn distribution(rig: &mut Rig, sampling: Sampling, limit: f64) {
    let (vocabulary, draws_per_step, steps) = (32, 2_000, 20u32);
    let scores = Matrix::random(DType::F32, 1, vocabulary, 7).gather(vec![0; draws_per_step]);
    let mut counts = vec![0.0; vocabulary];
    for step in 0..steps {
        let draws = (0..draws_per_step as u32).map(|draw| {
            let seed = u64::from(draw / 100) << 32 | u64::from(step);
            (Sampling { seed, choice: draw % 4, ..sampling }, draw % 100 / 4)
        });
        for token in sample(rig, &step_of(draws), &scores, vocabulary) {
            counts[token as usize] += 1.0;
        }
    }
    let grid = scores.grid();
    let kept = kept(grid.row(0), sampling, 0.0);
    let weight = |token: usize| (grid.row(0)[token] / f64::from(sampling.temperature)).exp();
    let total: f64 = kept.iter().map(|token| weight(*token)).sum();
    let draws = f64::from(steps) * draws_per_step as f64;
    let square = |token: &usize| {
        let expected = draws * weight(*token) / total;
        (counts[*token] - expected).powi(2) / expected
    };
    let chi_square: f64 = kept.iter().map(square).sum();
    let in_kept: f64 = kept.iter().map(|token| counts[*token]).sum();
    assert_eq!(in_kept, draws, "tokens outside the kept ones were drawn");
    assert!(chi_square < limit, "chi-square {chi_square:.1}, limit {limit}");
}
