//! The added tokens of a checkpoint as strings, and how they are found in text.
//!
//! Knows nothing of who wrote the text: `prompt.rs` decides which occurrences count.

/// Every added token with its id.
#[derive(Debug, Clone)]
pub struct ControlStrings {
    /// Longest first, so that the first match at a place is the longest.
    tokens: Vec<(String, u32)>,
    /// Bytes with which some token begins.
    begins: [bool; 256],
}

/// One occurrence of an added token, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    pub start: usize,
    pub end: usize,
    pub id: u32,
}

impl ControlStrings {
    /// The tokens of a tokenizer; an empty string is none.
    pub fn new(mut tokens: Vec<(String, u32)>) -> ControlStrings {
        tokens.retain(|(text, _)| !text.is_empty());
        tokens.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.cmp(b)));
        let mut begins = [false; 256];
        for (text, _) in &tokens {
            begins[text.as_bytes()[0] as usize] = true;
        }
        ControlStrings { tokens, begins }
    }

    /// Every occurrence, left to right, the longest at each place, none overlapping. Linear in the length of `text`.
    pub fn find<'a>(&'a self, text: &'a str) -> impl Iterator<Item = Found> + 'a {
        let mut at = 0;
        std::iter::from_fn(move || {
            while at < text.len() {
                if let Some((token, id)) = self.at(text, at) {
                    let found = Found { start: at, end: at + token.len(), id };
                    at = found.end;
                    return Some(found);
                }
                at += 1;
            }
            None
        })
    }

    /// The longest token that begins at byte `at`.
    fn at(&self, text: &str, at: usize) -> Option<(&str, u32)> {
        let rest = &text.as_bytes()[at..];
        if !self.begins[rest[0] as usize] {
            return None;
        }
        let found = self.tokens.iter().find(|(token, _)| rest.starts_with(token.as_bytes()));
        found.map(|(token, id)| (token.as_str(), *id))
    }

    /// Whether a token begins with `first` and has `second` next. `second` None asks for `first` alone.
    pub fn may_begin(&self, first: char, second: Option<char>) -> bool {
        self.tokens.iter().any(|(token, _)| {
            let mut chars = token.chars();
            chars.next() == Some(first) && (second.is_none() || chars.next().is_none_or(|c| Some(c) == second))
        })
    }

    /// The id of the token spelled `token`.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.tokens.iter().find(|(text, _)| text == token).map(|(_, id)| *id)
    }

    /// The spelling of the token `id`.
    pub fn text_of(&self, id: u32) -> Option<&str> {
        self.tokens.iter().find(|(_, other)| *other == id).map(|(text, _)| text.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controls() -> ControlStrings {
        ControlStrings::new(vec![("<a>".into(), 1), ("<a>>".into(), 2), ("é!".into(), 3), (String::new(), 4)])
    }

    #[test]
    fn the_longest_token_wins_and_matches_do_not_overlap() {
        let found: Vec<_> = controls().find("<<a>>x<a>é!é").map(|f| (f.start, f.end, f.id)).collect();
        assert_eq!(found, [(1, 5, 2), (6, 9, 1), (9, 12, 3)]);
    }

    #[test]
    fn beginnings_are_told_by_two_characters() {
        let controls = controls();
        assert!(controls.may_begin('<', Some('a')) && controls.may_begin('<', None));
        assert!(!controls.may_begin('<', Some('b')) && !controls.may_begin('a', None));
        assert_eq!(controls.id_of("<a>"), Some(1));
        assert_eq!(controls.text_of(3), Some("é!"));
    }
}
