//! Acceptance: which drafts stand. Pure, and the host's own answer beside the device's.

/// How many drafts equal the token that the target sampled at the row before them: the longest matching prefix.
///
/// `sampled[i]` follows the last committed token and `drafts[..i]`. So everything up to `sampled[accepted]` stands, and
/// that is exactly what decoding one token at a time would have sampled.
pub fn accepted(drafts: &[u32], sampled: &[u32]) -> u32 {
    drafts.iter().zip(sampled).take_while(|(draft, token)| draft == token).count() as u32
}

/// How many of `accepted` drafts are computed for good, given the tokens that `stand` after the last committed row.
///
/// Fewer than were accepted where the host cut inside the step or put another token in place. At least one standing
/// token stays uncomputed, since the next step has to sample from something.
pub fn kept(drafts: &[u32], accepted: u32, stand: &[u32]) -> u32 {
    let matching = self::accepted(&drafts[..accepted as usize], stand);
    matching.min(stand.len() as u32 - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every draft chain and every sampled row over three tokens, up to depth 4, against the definition.
    #[test]
    fn all_small_cases() {
        let mut cases = 0;
        for depth in 0..=4usize {
            for code in 0..3usize.pow(2 * depth as u32 + 1) {
                let digits: Vec<u32> = (0..2 * depth + 1).map(|at| (code / 3usize.pow(at as u32) % 3) as u32).collect();
                let (drafts, sampled) = digits.split_at(depth);
                let expected = (0..=depth).filter(|count| drafts[..*count] == sampled[..*count]).max();
                let found = accepted(drafts, sampled);
                assert_eq!(Some(found as usize), expected, "{drafts:?} {sampled:?}");
                assert_eq!(kept(drafts, found, &sampled[..=found as usize]), found, "without a cut all are kept");
                for cut in 1..=found as usize + 1 {
                    assert_eq!(kept(drafts, found, &sampled[..cut]), cut as u32 - 1, "a cut keeps what is before it");
                    let mut replaced = sampled[..cut].to_vec();
                    replaced[cut - 1] = 9;
                    assert_eq!(kept(drafts, found, &replaced), cut as u32 - 1);
                    replaced[cut - 1] = sampled[cut - 1];
                    replaced.push(9);
                    assert_eq!(kept(drafts, found, &replaced), (cut as u32).min(found), "forced tokens follow");
                }
                cases += 1;
            }
        }
        assert_eq!(cases, 3 + 27 + 243 + 2187 + 19683);
    }
}
