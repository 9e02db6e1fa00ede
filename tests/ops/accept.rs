//! Accept: every accepted count for every depth, sequences that do not sample in between.

use deltic::backend::Op;
use deltic::base::DType;

use crate::common::cases::SPARE_ROWS;
use crate::common::matrix::Matrix;
use crate::common::rig::Rig;
use crate::common::step::{Sequence, Step};
use crate::common::target::Suite;

const NONE: u32 = u32::MAX;

pub fn add(suite: &mut Suite) {
    suite.add("accept", "one_sequence_without_drafts", |rig| run(rig, &[(1, 0, 0)]));
    suite.add("accept", "last_chunk_of_a_prompt", |rig| run(rig, &[(70, 0, 0)]));
    for depth in [1, 2, 3, 7] {
        for accepted in 0..=depth {
            suite.add("accept", format!("drafts{depth}_accepted{accepted}"), move |rig| {
                run(rig, &[(1, depth, accepted)])
            });
        }
    }
    suite.add("accept", "all_counts_together", |rig| {
        let every = (0..=5).flat_map(|depth| (0..=depth).map(move |accepted| (1, depth, accepted)));
        let chunks = [(3, 0, 0), (66, 0, 0)];
        run(rig, &every.chain(chunks).collect::<Vec<_>>());
    });
    suite.add("accept", "failed_samples_match_no_draft", failed_samples);
}

/// (committed rows, drafts, accepted) of each sequence that samples.
fn run(rig: &mut Rig, list: &[(u32, u32, u32)]) {
    let mut sequences = Vec::new();
    let mut sampled = Vec::new();
    let mut wanted = Vec::new();
    let mut row = 0;
    for (index, (committed, drafts, accepted)) in list.iter().copied().enumerate() {
        if index % 2 == 0 {
            // One that does not sample.
            sequences.push(Sequence::new(50, 2, 0));
            row += 2;
        }
        let position = 10 * index as u32;
        let mut sequence = Sequence { position, ..Sequence::sampling(index as u32, committed, drafts) };
        for (at, token) in sequence.tokens.iter_mut().enumerate() {
            *token = 100 * index as u32 + at as u32;
        }
        // The target samples each accepted draft, another token instead of the first refused one, and then, which must
        // not count, the later drafts again.
        for draft in 1..=drafts {
            let token = sequence.tokens[(committed - 1 + draft) as usize];
            sampled.push(if draft == accepted + 1 { 7_000_000 + token } else { token });
        }
        let after_all = 9_000_000 + index as u32;
        sampled.push(after_all);
        let next =
            if accepted < drafts { sampled[sampled.len() - 1 - (drafts - accepted) as usize] } else { after_all };
        let stands = committed - 1 + accepted;
        wanted.extend([accepted, next, row + stands, position + stands + 1]);
        row += sequence.rows();
        sequences.push(sequence);
    }
    expect(rig, &Step::new(sequences), &sampled, wanted);
}

fn expect(rig: &mut Rig, step: &Step, sampled: &[u32], wanted: Vec<u32>) {
    let rows = step.draft_rows();
    let sampled = Matrix::words(1, sampled.len(), |_, at| sampled[at]).widened(sampled.len() + SPARE_ROWS);
    let sampled = rig.put("sampled", &sampled);
    let verdict = rig.blank("verdict", DType::U32, rows + SPARE_ROWS, 4);
    let inputs = rig.step(step);
    rig.run(inputs, &[Op::Accept { sampled, verdict }]);
    let found = rig.get(verdict).rows(0..rows);
    rig.same("verdict", &found, &Matrix { dtype: DType::U32, rows, cols: 4, bits: wanted });
}

/// NONE is no token: what follows it is refused, and it is reported as the next token.
fn failed_samples(rig: &mut Rig) {
    let mut sequence = Sequence::sampling(0, 1, 2);
    sequence.tokens = vec![5, 6, 7];
    let step = Step::new(vec![sequence]);
    expect(rig, &step, &[6, NONE, 8], vec![1, NONE, 1, 2]);
}
