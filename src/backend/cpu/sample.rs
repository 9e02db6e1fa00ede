//! From scores to tokens: Sample, Argmax, TopLogprobs and Accept.
//!
//! Threads take rows. Everything that decides a token is compared or summed in f64 in a fixed order, and every tie goes
//! to the lowest id. Only the first `vocab_live` columns are read.

use std::cmp::Ordering;

use super::env::Env;
use super::memory::Written;
use super::simd::Block;
use crate::backend::Op;
use crate::backend::op::{LOGPROB_WORDS, TOP_LOGPROBS, VERDICT_WORDS, VerdictWord};
use crate::backend::step::{Header, NONE, Section, SequenceWord};
use crate::base::rng;

/// No Gumbel draw exceeds it: `-ln(x)` of the smallest x of [`rng::gumbel`], 2^-33, is 22.9.
const GUMBEL_MAX: f64 = 23.0;
/// Candidates sorted first where top-p has to look for its edge in the whole vocabulary.
const TOP_P_FIRST: usize = 256;

/// A token that may be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    score: f32,
    token: u32,
}

impl Candidate {
    /// Highest score first, then lowest id. Scores are no NaN here.
    fn order(&self, other: &Candidate) -> Ordering {
        other.score.partial_cmp(&self.score).unwrap_or(Ordering::Equal).then(self.token.cmp(&other.token))
    }
}

/// The token of each logit row.
pub fn sample(env: &Env<'_>, op: &Op, written: &mut Written) {
    let Op::Sample { scores, out, vocab_live } = *op else { unreachable!("dispatched by kind") };
    let live = env.step.live(Header::LogitRows);
    let source = env.view(scores).f32();
    let tokens = Block::new(&mut written.words(out)[..live], 1).row_blocks(1);
    env.team.each(8 * live * vocab_live as usize, tokens.enumerate(), |(row, mut token), scratch| {
        let scores = &source[row * scores.cols as usize..][..vocab_live as usize];
        token.row_mut(0)[0] = draw(&Draw::of(env, row), scores, &mut scratch.candidates);
    });
}

/// The sampling parameters of one logit row.
#[derive(Debug, Clone)]
struct Draw {
    key: [u32; 2],
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
}

impl Draw {
    fn of(env: &Env<'_>, logit_row: usize) -> Draw {
        let sampling = env.sampling_row(logit_row);
        let word = |word| env.step.sequence(sampling.sequence, word);
        let float = |word| env.step.sequence_f32(sampling.sequence, word);
        let seed = u64::from(word(SequenceWord::SeedHigh)) << 32 | u64::from(word(SequenceWord::SeedLow));
        let position = env.step.section(Section::Position)[sampling.row] + 1;
        Draw {
            key: rng::draw_key(seed, word(SequenceWord::Choice), position),
            temperature: float(SequenceWord::Temperature),
            top_k: word(SequenceWord::TopK) as usize,
            top_p: float(SequenceWord::TopP),
            min_p: float(SequenceWord::MinP),
        }
    }

    /// Probability relative to that of the highest score; exact 1 for equals, whatever the temperature.
    fn weight(&self, score: f32, max: f32) -> f64 {
        if score == max { 1.0 } else { ((f64::from(score) - f64::from(max)) / f64::from(self.temperature)).exp() }
    }

    fn noisy(&self, candidate: Candidate) -> f64 {
        self.scaled(candidate.score) + f64::from(rng::gumbel(self.key, candidate.token))
    }

    fn scaled(&self, score: f32) -> f64 {
        f64::from(score) / f64::from(self.temperature)
    }
}

/// [`NONE`] for a row with a NaN or no finite score.
fn draw(draw: &Draw, scores: &[f32], candidates: &mut Vec<Candidate>) -> u32 {
    let faulty =
        scores.iter().fold((false, false), |(nan, finite), score| (nan | score.is_nan(), finite | score.is_finite()));
    if faulty != (false, true) {
        return NONE;
    }
    let greedy = argmax_row(scores);
    let max = scores[greedy as usize];
    if draw.temperature <= 0.0 {
        return greedy;
    }
    let all = scores.iter().zip(0..).map(|(score, token)| Candidate { score: *score, token });
    let all = all.filter(|candidate| candidate.score > f32::NEG_INFINITY);
    let by_k = draw.top_k > 0 && draw.top_k < scores.len();
    let by_p = draw.top_p < 1.0;
    if !by_k && !by_p {
        return highest(
            draw,
            all.filter(|one| draw.min_p <= 0.0 || draw.weight(one.score, max) >= f64::from(draw.min_p)),
        );
    }
    candidates.clear();
    candidates.extend(all);
    if by_k {
        keep_highest(candidates, draw.top_k);
    }
    if by_p {
        keep_top_p(draw, candidates, max);
    }
    if draw.min_p > 0.0 {
        candidates.retain(|one| draw.weight(one.score, max) >= f64::from(draw.min_p));
    }
    highest(draw, candidates.iter().copied())
}

/// The candidate with the highest noisy score, ties to the lowest id. A candidate that no noise could lift to the best
/// so far is not drawn for: most of a vocabulary.
fn highest(draw: &Draw, candidates: impl Iterator<Item = Candidate>) -> u32 {
    let mut best = (f64::NEG_INFINITY, NONE);
    for candidate in candidates {
        if draw.scaled(candidate.score) + GUMBEL_MAX < best.0 {
            continue;
        }
        let noisy = draw.noisy(candidate);
        if noisy > best.0 || noisy == best.0 && candidate.token < best.1 {
            best = (noisy, candidate.token);
        }
    }
    best.1
}

/// Keeps the `count` first by [`Candidate::order`], in that order.
fn keep_highest(candidates: &mut Vec<Candidate>, count: usize) {
    if count < candidates.len() {
        candidates.select_nth_unstable_by(count, Candidate::order);
        candidates.truncate(count);
    }
    candidates.sort_unstable_by(Candidate::order);
}

/// Keeps the smallest set of most probable candidates whose probability reaches top_p; the one that crosses stays.
fn keep_top_p(draw: &Draw, candidates: &mut Vec<Candidate>, max: f32) {
    let total: f64 = candidates.iter().map(|one| draw.weight(one.score, max)).sum();
    let target = f64::from(draw.top_p) * total;
    let (mut sorted, mut sum) = (0, 0.0);
    while sorted < candidates.len() {
        let rest = &mut candidates[sorted..];
        let count = sorted.max(TOP_P_FIRST).min(rest.len());
        if count < rest.len() {
            rest.select_nth_unstable_by(count, Candidate::order);
        }
        rest[..count].sort_unstable_by(Candidate::order);
        for (index, one) in rest[..count].iter().enumerate() {
            sum += draw.weight(one.score, max);
            if sum >= target {
                candidates.truncate(sorted + index + 1);
                return;
            }
        }
        sorted += count;
    }
}

/// `out[r, out_col] = argmax(x[r])`.
pub fn argmax(env: &Env<'_>, op: &Op, written: &mut Written) {
    let Op::Argmax { rows, x, out, out_col, vocab_live } = *op else { unreachable!("dispatched by kind") };
    let live = env.live(rows);
    let source = env.view(x).f32();
    let out_cols = out.cols as usize;
    let out = Block::new(written.words(out), out_cols).split_rows(live).0;
    env.team.each(live * vocab_live as usize, out.row_blocks(1).enumerate(), |(row, mut out), _| {
        out.row_mut(0)[out_col as usize] = argmax_row(&source[row * x.cols as usize..][..vocab_live as usize]);
    });
}

/// Index of the highest value, the lowest of equals; NaNs are passed over, and 0 if there is nothing else.
fn argmax_row(row: &[f32]) -> u32 {
    const SIDE_BY_SIDE: usize = 16;
    let (whole, tail) = row.as_chunks::<SIDE_BY_SIDE>();
    let higher = |a: f32, b: f32| if a > b { a } else { b };
    let maxima = whole
        .iter()
        .fold([f32::NEG_INFINITY; SIDE_BY_SIDE], |maxima, chunk| std::array::from_fn(|i| higher(chunk[i], maxima[i])));
    let max = maxima.iter().chain(tail).fold(f32::NEG_INFINITY, |max, value| higher(*value, max));
    row.iter().position(|value| *value == max).unwrap_or(0) as u32
}

/// For the sequences that ask: log-probabilities of the raw distribution, the sampled token's, then the highest with
/// their ids.
pub fn top_logprobs(env: &Env<'_>, op: &Op, written: &mut Written) {
    let Op::TopLogprobs { logits, sampled, out, vocab_live } = *op else { unreachable!("dispatched by kind") };
    let live = env.step.live(Header::LogitRows);
    let source = env.view(logits).f32();
    let sampled = env.words(sampled);
    let out = Block::new(written.words(out), LOGPROB_WORDS as usize).split_rows(live).0;
    let asks = |row: usize| env.step.sequence(env.sampling_row(row).sequence, SequenceWord::Logprobs) != 0;
    let rows = out.row_blocks(1).enumerate().filter(|(row, _)| asks(*row));
    let asking = (0..live).filter(|row| asks(*row)).count();
    env.team.each(16 * asking * vocab_live as usize, rows, |(row, mut out), _| {
        let logits = &source[row * logits.cols as usize..][..vocab_live as usize];
        report(logits, sampled[row], out.row_mut(0));
    });
}

fn report(logits: &[f32], sampled: u32, out: &mut [u32]) {
    let max = f64::from(logits[argmax_row(logits) as usize]);
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - max).exp()).sum();
    let log_sum = max + sum.ln();
    let logprob = |logit: f32| ((f64::from(logit) - log_sum) as f32).to_bits();
    let (own, rest) = out.split_at_mut(1);
    own[0] = logits.get(sampled as usize).map_or(f32::NEG_INFINITY.to_bits(), |logit| logprob(*logit));

    let (ids, logprobs) = rest.split_at_mut(TOP_LOGPROBS as usize);
    ids.fill(NONE);
    logprobs.fill(f32::NEG_INFINITY.to_bits());
    let mut best: Vec<Candidate> = Vec::with_capacity(ids.len() + 1);
    for (score, token) in logits.iter().copied().zip(0..) {
        if score.is_nan() || best.len() == ids.len() && score <= best[best.len() - 1].score {
            continue;
        }
        let at = best.partition_point(|one| one.score >= score);
        best.insert(at, Candidate { score, token });
        best.truncate(ids.len());
    }
    for ((one, id), value) in best.iter().zip(ids).zip(logprobs) {
        (*id, *value) = (one.token, logprob(one.score));
    }
}

/// How many drafts of each sequence stand, and what follows them.
pub fn accept(env: &Env<'_>, op: &Op, written: &mut Written) {
    let Op::Accept { sampled, verdict } = *op else { unreachable!("dispatched by kind") };
    let step = env.step;
    let sampled = env.words(sampled);
    let verdicts = written.words(verdict).chunks_exact_mut(VERDICT_WORDS as usize);
    let sequences = &step.section(Section::DraftSequence)[..step.live(Header::DraftRows)];
    for (verdict, sequence) in verdicts.zip(sequences) {
        let word = |word| step.sequence(*sequence as usize, word) as usize;
        let first_logit_row = word(SequenceWord::FirstLogitRow);
        let last_committed = word(SequenceWord::FirstRow) + word(SequenceWord::Committed) - 1;
        let drafts = &step.section(Section::Token)[last_committed + 1..][..word(SequenceWord::Drafts)];
        let tokens = &sampled[first_logit_row..];
        let accepted = drafts.iter().zip(tokens).take_while(|(draft, token)| draft == token).count();
        let row = last_committed + accepted;
        verdict[VerdictWord::Accepted as usize] = accepted as u32;
        verdict[VerdictWord::NextToken as usize] = tokens[accepted];
        verdict[VerdictWord::Row as usize] = row as u32;
        verdict[VerdictWord::Position as usize] = step.section(Section::Position)[row] + 1;
    }
}
