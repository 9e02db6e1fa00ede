//! CountTokens: output tokens counted, prompt tokens flagged, drafts and idle sequences ignored.

use deltic::backend::Op;
use deltic::backend::step::CountAs;

use crate::common::cases::slots;
use crate::common::matrix::Matrix;
use crate::common::rig::Rig;
use crate::common::step::{Sequence, Step};
use crate::common::target::Suite;

const PROMPT: u32 = 1 << 31;

pub fn add(suite: &mut Suite) {
    for (name, vocabulary) in [("odd", 37), ("real", 248_320)] {
        suite.add("count_tokens", format!("{name}_mixed"), move |rig| run(rig, &mixed(), vocabulary));
        suite.add("count_tokens", format!("{name}_one_token_200_times"), move |rig| {
            let mut sequence = Sequence::new(1, 200, 0);
            sequence.tokens.fill(36);
            sequence.counts = vec![CountAs::Output; 200];
            run(rig, &Step::new(vec![sequence]), vocabulary);
        });
    }
    suite.add("count_tokens", "smallest", |rig| {
        let sequence = Sequence { counts: vec![CountAs::Output], ..Sequence::new(0, 1, 0) };
        run(rig, &Step::new(vec![sequence]), 1);
    });
}

/// A prompt with repetitions, a prompt whose tail is recomputed output, a decode with drafts, one without penalties.
fn mixed() -> Step {
    use CountAs::{Nothing, Output, Prompt};
    let mut prompt = Sequence::new(2, 5, 0);
    (prompt.tokens, prompt.counts) = (vec![3, 7, 3, 36, 0], vec![Prompt; 5]);
    let mut recomputed = Sequence::new(0, 6, 0);
    recomputed.tokens = vec![1, 2, 1, 1, 2, 5];
    recomputed.counts = vec![Prompt, Prompt, Output, Output, Output, Nothing];
    let mut decode = Sequence::sampling(4, 1, 3);
    (decode.tokens, decode.counts) = (vec![9, 9, 9, 8], vec![Output, Nothing, Nothing, Nothing]);
    decode.accepted = vec![4, 9, 4];
    let idle = Sequence::sampling(1, 1, 0);
    Step::new(vec![prompt, recomputed, decode, idle])
}

fn run(rig: &mut Rig, step: &Step, vocabulary: usize) {
    // Counts from before, some with the prompt's flag.
    let before = Matrix::words(slots(step), vocabulary, |slot, token| match token % 5 {
        0 => 0,
        1 => PROMPT,
        2 => PROMPT | 3,
        _ => (slot + token) as u32,
    });
    let mut wanted = before.clone();
    for sequence in &step.sequences {
        for (token, count) in sequence.tokens.iter().zip(&sequence.counts) {
            let word = &mut wanted.bits[sequence.slot as usize * vocabulary + *token as usize];
            match count {
                CountAs::Nothing => {}
                CountAs::Prompt => *word |= PROMPT,
                CountAs::Output => *word += 1,
            }
        }
    }
    for (slot, token) in step.accepted() {
        wanted.bits[slot as usize * vocabulary + token as usize] += 1;
    }
    let counts = rig.put("counts", &before);
    let inputs = rig.step(step);
    rig.run(inputs, &[Op::CountTokens { counts }]);
    let found = rig.get(counts);
    rig.same("counts", &found, &wanted);
}
