//! Token ids to text, one at a time, without ever showing half a character.
//!
//! Bytes that may yet become a character are held back; bytes that cannot become one are U+FFFD at once. What comes
//! out, joined, equals `Tokenizer::decode` of all the ids. It never looks at what the text means.

use super::tokenizer::Tokenizer;

/// The incremental detokeniser of one sequence.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    skip_special: bool,
    /// The beginning of one character: at most three bytes between calls.
    pending: Vec<u8>,
}

impl Detokenizer {
    /// `skip_special` hides the tokens that the checkpoint marks special.
    pub fn new(skip_special: bool) -> Detokenizer {
        Detokenizer { skip_special, pending: Vec::new() }
    }

    /// The text that `id` completes; empty while a character is unfinished.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        if self.skip_special && tokenizer.is_special(id) {
            return String::new();
        }
        self.push_bytes(tokenizer.token_bytes(id))
    }

    /// The end of the sequence: an unfinished character is U+FFFD.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }

    fn push_bytes(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::with_capacity(self.pending.len());
        let mut rest = &self.pending[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(std::str::from_utf8(valid).expect("checked just above"));
                    rest = after;
                    match error.error_len() {
                        Some(bytes) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            rest = &rest[bytes..];
                        }
                        None => break,
                    }
                }
            }
        }
        self.pending = rest.to_vec();
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
        let mut detokenizer = Detokenizer::new(true);
        let mut out: Vec<String> = pieces.into_iter().map(|piece| detokenizer.push_bytes(piece)).collect();
        out.push(detokenizer.finish());
        out
    }

    #[test]
    fn half_a_character_waits_and_a_broken_one_does_not() {
        assert_eq!(stream(["é".as_bytes()[..1].as_ref(), &"é".as_bytes()[1..]]), ["", "é", ""]);
        assert_eq!(stream([&b"\xe2\x82"[..], b"A"]), ["", "\u{fffd}A", ""]);
        assert_eq!(stream([&b"\xff"[..], b"\xc0"]), ["\u{fffd}", "\u{fffd}", ""]);
        assert_eq!(stream([&b"a\xf0\x9f\xa4"[..]]), ["a", "\u{fffd}"]);
    }

    proptest! {
        #[test]
        fn every_cut_gives_the_whole(
            bytes in prop::collection::vec(
                prop_oneof![any::<u8>(), Just(0xe2u8), Just(0x82), Just(0xac), Just(0xf0), Just(0x9f)],
                0..60,
            ),
            cuts in prop::collection::vec(0usize..61, 0..8),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]);
            prop_assert_eq!(stream(pieces).concat(), String::from_utf8_lossy(&bytes));
        }
    }
}
