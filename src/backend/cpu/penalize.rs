//! What happens to logits before sampling: CountTokens and Penalize.
//!
//! Threads take logit rows. A row is read and written once; bandwidth bound.

use super::env::Env;
use super::memory::Written;
use super::simd::Block;
use crate::backend::Op;
use crate::backend::step::{CountAs, Header, NONE, Section, SequenceWord};

/// Set in a count if the token occurs in the prompt; the other bits count it in the output.
const IN_PROMPT: u32 = 1 << 31;

/// Adds the step's rows to their slots' token counts.
pub fn count_tokens(env: &Env<'_>, op: &Op, written: &mut Written) {
    let Op::CountTokens { counts } = *op else { unreachable!("dispatched by kind") };
    let step = env.step;
    let vocabulary = counts.cols as usize;
    let words = written.words(counts);
    for row in 0..step.live(Header::Rows) {
        let sequence = step.section(Section::Sequence)[row] as usize;
        let slot = step.sequence(sequence, SequenceWord::Slot) as usize;
        let count = &mut words[slot * vocabulary + step.section(Section::Token)[row] as usize];
        match step.section(Section::Count)[row] {
            kind if kind == CountAs::Prompt as u32 => *count |= IN_PROMPT,
            kind if kind == CountAs::Output as u32 => *count += 1,
            _ => {}
        }
    }
    let accepted = step.section(Section::Accepted).chunks_exact(2).take(step.live(Header::Accepted));
    for entry in accepted {
        words[entry[0] as usize * vocabulary + entry[1] as usize] += 1;
    }
}

/// `scores = logits` with bias, penalties and mask.
pub fn penalize(env: &Env<'_>, op: &Op, written: &mut Written) {
    let Op::Penalize { logits, counts, masks, scores, vocab_live } = *op else { unreachable!("dispatched by kind") };
    let live = env.step.live(Header::LogitRows);
    let columns = vocab_live as usize;
    let source = env.view(logits).f32();
    let (counts_words, masks_words) = (env.words(counts), env.words(masks));
    let [scores] = written.blocks([scores]);
    let rows = scores.f32().split_rows(live).0.row_blocks(1);
    env.team.each(4 * live * columns, rows.enumerate(), |(row, mut scores): (usize, Block<'_, f32>), _| {
        let scores = &mut scores.row_mut(0)[..columns];
        scores.copy_from_slice(&source[row * logits.cols as usize..][..columns]);
        let sampling = env.sampling_row(row);
        let penalties = Penalties::of(env, sampling.sequence);
        add_biases(env, sampling.sequence, scores);
        if penalties.any() {
            let slot = env.step.sequence(sampling.sequence, SequenceWord::Slot) as usize;
            let counts = &counts_words[slot * counts.cols as usize..][..columns];
            let drafts = &env.step.section(Section::Token)[sampling.row + 1 - sampling.drafts_before..=sampling.row];
            penalties.apply(counts, drafts, scores);
        }
        let mask_row = env.step.section(Section::MaskRow)[row];
        if mask_row != NONE {
            let mask = &masks_words[mask_row as usize * masks.cols as usize..][..masks.cols as usize];
            for (token, score) in scores.iter_mut().enumerate() {
                if mask[token / 32] >> (token % 32) & 1 == 0 {
                    *score = f32::NEG_INFINITY;
                }
            }
        }
    });
}

fn add_biases(env: &Env<'_>, sequence: usize, scores: &mut [f32]) {
    let word = |word| env.step.sequence(sequence, word) as usize;
    let pairs = env.step.section(Section::Bias).chunks_exact(2);
    for pair in pairs.skip(word(SequenceWord::FirstBias)).take(word(SequenceWord::Biases)) {
        if let Some(score) = scores.get_mut(pair[0] as usize) {
            *score += f32::from_bits(pair[1]);
        }
    }
}

struct Penalties {
    repetition: f32,
    presence: f32,
    frequency: f32,
}

impl Penalties {
    fn of(env: &Env<'_>, sequence: usize) -> Penalties {
        let word = |word| env.step.sequence_f32(sequence, word);
        Penalties {
            repetition: word(SequenceWord::RepetitionPenalty),
            presence: word(SequenceWord::PresencePenalty),
            frequency: word(SequenceWord::FrequencyPenalty),
        }
    }

    fn any(&self) -> bool {
        self.repetition != 1.0 || self.presence != 0.0 || self.frequency != 0.0
    }

    /// Drafts count as output, each as often as it occurs among them.
    fn apply(&self, counts: &[u32], drafts: &[u32], scores: &mut [f32]) {
        for (token, (score, count)) in scores.iter_mut().zip(counts).enumerate() {
            let drafted = drafts.iter().filter(|draft| **draft as usize == token).count() as u32;
            let output = (count & !IN_PROMPT) + drafted;
            if output == 0 && count & IN_PROMPT == 0 {
                continue;
            }
            if self.repetition != 1.0 {
                *score = if *score > 0.0 { *score / self.repetition } else { *score * self.repetition };
            }
            if output > 0 {
                *score -= self.presence;
                *score -= self.frequency * output as f32;
            }
        }
    }
}
