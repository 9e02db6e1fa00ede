//! Who runs in a step and with how many rows. Pure: candidates and a budget in, grants out; knows no token and no page.
//!
//! Decoding goes first, one row each, those that waited longest before the others. Then drafts, level by level, so that
//! a short budget lowers depth before it makes anyone sit out. Then prefill chunks, oldest first. Whoever has sat out
//! for too long goes before all of them: that bounds every wait, whatever the mix.

/// A sequence that could run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Committed tokens that may be computed in this step; at least 1. More than one is a prefill.
    pub rows: u32,
    /// Whether computing all of them makes it sample.
    pub samples: bool,
    /// Drafts it could verify behind its row.
    pub drafts: u32,
    /// Rows it takes beside its own, granted with the first: a resume.
    pub extra_rows: u32,
    /// The last step in which it ran.
    pub last_run: u64,
}

/// What one step may hold, and what is left of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    pub step: u64,
    pub rows: u32,
    /// Prefill rows beside decoding, so that a long prompt does not stall everyone.
    pub rows_beside_decode: u32,
    /// Whether a decoding sequence has been granted a row.
    pub decodes: bool,
    pub chunk_rows: u32,
    pub logit_rows: u32,
    /// A prefill shares its step with nobody.
    pub prefill_alone: bool,
    /// Whether anything has been granted already.
    pub used: bool,
}

/// Rows of one candidate; no committed row means that it sits out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Grant {
    pub committed: u32,
    pub drafts: u32,
}

/// Shares out what is left of the budget. Candidates come oldest first; grants are in their order.
pub fn share(candidates: &[Candidate], budget: &mut Budget) -> Vec<Grant> {
    let mut grants = vec![Grant::default(); candidates.len()];
    let first_prefill = candidates.iter().position(|candidate| candidate.rows > 1);
    if let Some(index) = first_prefill.filter(|_| budget.prefill_alone && !budget.used) {
        grants[index].committed = prefill_rows(&candidates[index], budget, u32::MAX);
        take(&candidates[index], grants[index], budget);
        budget.rows = 0;
        return grants;
    }
    let is_prefill = |index: &usize| candidates[*index].rows > 1;
    let (prefill, mut decode): (Vec<usize>, Vec<usize>) = (0..candidates.len()).partition(is_prefill);
    let prefill = if budget.prefill_alone { Vec::new() } else { prefill };
    decode.sort_by_key(|index| candidates[*index].last_run);
    let patience = candidates.len() as u64 + 2;
    let overdue = |index: &usize| candidates[*index].last_run + patience < budget.step;
    let (mut late, prefill): (Vec<usize>, Vec<usize>) = prefill.into_iter().partition(overdue);
    late.sort_by_key(|index| candidates[*index].last_run);

    for index in late {
        let beside = if decode.is_empty() { u32::MAX } else { budget.rows_beside_decode };
        let left = budget.rows.saturating_sub(candidates[index].extra_rows + decode.len() as u32);
        grants[index].committed = prefill_rows(&candidates[index], budget, left.min(beside).max(1));
        budget.rows_beside_decode -= grants[index].committed.min(budget.rows_beside_decode);
        take(&candidates[index], grants[index], budget);
    }
    for index in &decode {
        let candidate = &candidates[*index];
        if budget.rows > candidate.extra_rows && (budget.logit_rows > 0 || !candidate.samples) {
            grants[*index].committed = 1;
            take(candidate, grants[*index], budget);
        }
    }
    let sampling_soon = prefill.iter().filter(|index| candidates[**index].samples).count() as u32;
    let drafts = budget.rows.min(budget.logit_rows.saturating_sub(sampling_soon));
    let drafted = share_drafts(candidates, &decode, &mut grants, drafts);
    budget.rows -= drafted;
    budget.logit_rows -= drafted;

    budget.decodes |= decode.iter().any(|index| grants[*index].committed > 0);
    for index in prefill {
        let beside = if budget.decodes { budget.rows_beside_decode } else { u32::MAX };
        grants[index].committed = prefill_rows(&candidates[index], budget, beside);
        budget.rows_beside_decode -= grants[index].committed.min(budget.rows_beside_decode);
        take(&candidates[index], grants[index], budget);
    }
    grants
}

/// The chunk that fits. One that would sample without a logit row left stops before its last row.
fn prefill_rows(candidate: &Candidate, budget: &Budget, most: u32) -> u32 {
    let room = budget.rows.saturating_sub(candidate.extra_rows).min(budget.chunk_rows).min(most);
    if room >= candidate.rows && candidate.samples && budget.logit_rows == 0 {
        return candidate.rows - 1;
    }
    room.min(candidate.rows)
}

fn take(candidate: &Candidate, grant: Grant, budget: &mut Budget) {
    if grant.committed == 0 {
        return;
    }
    budget.used = true;
    budget.rows -= grant.committed + candidate.extra_rows;
    if candidate.samples && grant.committed == candidate.rows {
        budget.logit_rows -= 1;
    }
}

/// Gives every decoding sequence its first draft before any gets its second, and so on. Returns how many were given.
fn share_drafts(candidates: &[Candidate], decode: &[usize], grants: &mut [Grant], drafts: u32) -> u32 {
    let deepest = decode.iter().map(|index| candidates[*index].drafts).max().unwrap_or(0);
    let mut left = drafts;
    for level in 1..=deepest {
        for index in decode {
            if left > 0 && grants[*index].committed > 0 && candidates[*index].drafts >= level {
                grants[*index].drafts += 1;
                left -= 1;
            }
        }
    }
    drafts - left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(rows: u32, logit_rows: u32) -> Budget {
        Budget {
            step: 100,
            rows,
            rows_beside_decode: rows,
            decodes: false,
            chunk_rows: 64,
            logit_rows,
            prefill_alone: false,
            used: false,
        }
    }

    fn decode(drafts: u32, last_run: u64) -> Candidate {
        Candidate { rows: 1, samples: true, drafts, extra_rows: 0, last_run }
    }

    fn prefill(rows: u32) -> Candidate {
        Candidate { rows, samples: true, drafts: 0, extra_rows: 0, last_run: 99 }
    }

    fn shared(candidates: &[Candidate], mut budget: Budget) -> Vec<(u32, u32)> {
        share(candidates, &mut budget).into_iter().map(|grant| (grant.committed, grant.drafts)).collect()
    }

    #[test]
    fn decoding_comes_first_and_depth_is_lowered_evenly() {
        let all = [prefill(200), decode(3, 99), decode(1, 99), decode(3, 99)];
        assert_eq!(shared(&all, budget(128, 64)), [(64, 0), (1, 3), (1, 1), (1, 3)]);
        assert_eq!(shared(&all, budget(16, 8)), [(9, 0), (1, 2), (1, 1), (1, 1)], "a logit row is left for the prompt");
        assert_eq!(shared(&all, budget(5, 64)), [(0, 0), (1, 1), (1, 1), (1, 0)]);
    }

    #[test]
    fn sequences_sit_out_in_turn() {
        let mut last_run = [0u64; 5];
        for step in 1..=10 {
            let candidates: Vec<Candidate> = last_run.iter().map(|last| decode(3, *last)).collect();
            let grants = share(&candidates, &mut Budget { step, ..budget(64, 2) });
            assert_eq!(grants.iter().filter(|grant| grant.committed == 1).count(), 2);
            for (last, grant) in last_run.iter_mut().zip(&grants) {
                if grant.committed == 1 {
                    *last = step;
                }
                assert!(step - *last <= 2, "two of five each step: nobody waits three steps");
            }
        }
    }

    #[test]
    fn a_prompt_that_waited_too_long_goes_first() {
        let waiting = Candidate { last_run: 90, ..prefill(50) };
        let all = [decode(8, 99), decode(8, 99), waiting];
        assert_eq!(shared(&all, budget(4, 64)), [(1, 0), (1, 0), (2, 0)]);
        assert_eq!(shared(&all, budget(1, 64)), [(0, 0), (0, 0), (1, 0)]);
        let mixed = Budget { rows_beside_decode: 20, ..budget(128, 64) };
        let two = [decode(0, 99), Candidate { last_run: 91, ..waiting }, waiting];
        assert_eq!(shared(&two, mixed), [(1, 0), (1, 0), (20, 0)], "late or not, decoding is not stalled");
    }

    #[test]
    fn a_long_prompt_leaves_room_and_a_chunk_waits_for_its_logit_row() {
        let mut mixed = budget(128, 64);
        mixed.rows_beside_decode = 10;
        assert_eq!(shared(&[prefill(200), decode(0, 99)], mixed), [(10, 0), (1, 0)]);
        assert_eq!(shared(&[prefill(200)], mixed), [(64, 0)]);
        assert_eq!(shared(&[prefill(5), decode(0, 99)], budget(64, 1)), [(4, 0), (1, 0)]);
    }

    #[test]
    fn a_prefill_alone_shares_with_nobody() {
        let alone = Budget { prefill_alone: true, ..budget(128, 64) };
        assert_eq!(shared(&[decode(2, 99), prefill(9), prefill(9)], alone), [(0, 0), (9, 0), (0, 0)]);
        assert_eq!(shared(&[decode(2, 99), decode(2, 99)], alone), [(1, 2), (1, 2)]);
        assert_eq!(shared(&[decode(0, 99), prefill(9)], Budget { used: true, ..alone }), [(1, 0), (0, 0)]);
    }

    #[test]
    fn a_resume_takes_a_row_with_it() {
        let resumed = Candidate { extra_rows: 1, ..decode(3, 99) };
        assert_eq!(shared(&[resumed], budget(3, 64)), [(1, 1)]);
        assert_eq!(shared(&[decode(0, 98), resumed], budget(2, 64)), [(1, 0), (0, 0)]);
    }

    /// Every mix of up to three candidates under every small budget: no budget is exceeded, nobody idles needlessly.
    #[test]
    fn all_small_mixes_stay_in_the_budget() {
        let kinds: Vec<Candidate> = [1, 1, 2, 3]
            .into_iter()
            .zip([0, 2, 0, 0])
            .flat_map(|(rows, drafts)| {
                [(0, 99), (1, 99), (0, 10)].map(|(extra_rows, last_run)| Candidate {
                    rows,
                    samples: rows != 2,
                    drafts,
                    extra_rows,
                    last_run,
                })
            })
            .collect();
        for code in 0..kinds.len().pow(3) {
            let pick = |at: u32| kinds[code / kinds.len().pow(at) % kinds.len()];
            let candidates = [pick(0), pick(1), pick(2)];
            for rows in 2..8 {
                for logit_rows in 1..5 {
                    let mut left = budget(rows, logit_rows);
                    let grants = share(&candidates, &mut left);
                    let mut used = (0, 0);
                    for (candidate, grant) in candidates.iter().zip(&grants) {
                        assert!(grant.committed <= candidate.rows && grant.drafts <= candidate.drafts);
                        assert!(grant.drafts == 0 || grant.committed == 1);
                        if grant.committed > 0 {
                            used.0 += grant.committed + candidate.extra_rows + grant.drafts;
                            let samples = candidate.samples && grant.committed == candidate.rows;
                            used.1 += u32::from(samples) * (1 + grant.drafts);
                        }
                    }
                    assert_eq!((used.0 + left.rows, used.1 + left.logit_rows), (rows, logit_rows), "{candidates:?}");
                    let starved = |(candidate, grant): (&Candidate, &Grant)| {
                        candidate.rows == 1 && candidate.extra_rows == 0 && grant.committed == 0
                    };
                    if candidates.iter().zip(&grants).any(starved) {
                        assert!(grants.iter().all(|grant| grant.drafts == 0), "depth goes before anyone sits out");
                    }
                    assert!(used.0 > 0, "someone runs: {candidates:?} {rows} {logit_rows}");
                }
            }
        }
    }
}
