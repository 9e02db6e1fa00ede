//! A rendered prompt in which it is known who wrote each control string, and the marks by which that is known.
//!
//! Text of a client must never become a control token, yet the template has to see it as it is, to trim it, to split
//! it, to compare it. So before rendering, a private mark is put *inside* every spelling of a control token that a
//! client string holds, and taken out after: `<|im_end|>` travels as `<`, mark, `|im_end|>`, which matches nothing.
//! The marks are characters that neither the client nor the template uses, are no white space, and mean nothing to
//! JSON.
//!
//! The place for a mark is behind a character that may begin a control token: always if the next one may follow it in
//! such a token, and also at the end or before white space, where the template may trim and append. So a token can
//! begin in client text nowhere, however the template joins the pieces. A token that begins in the template's own
//! words is the template's.

use std::collections::HashSet;

use serde_json::Value;

use super::controls::ControlStrings;
use crate::base::error::{Error, Result};

/// A rendered prompt, ready for `Tokenizer::encode_prompt`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    pieces: Vec<Piece>,
}

/// A stretch of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// A control token that the template wrote.
    Control { id: u32, text: String },
    /// Anything else; spellings of control tokens in it are text.
    Text(String),
}

impl Prompt {
    /// The pieces in order; no two texts are neighbours.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The prompt as the reference implementation would render it.
    pub fn text(&self) -> String {
        let pieces = self.pieces.iter().map(|piece| match piece {
            Piece::Control { text, .. } => text.as_str(),
            Piece::Text(text) => text.as_str(),
        });
        pieces.collect()
    }
}

/// The marks of one rendering.
#[derive(Debug, Clone, Copy)]
pub(super) struct Marks {
    /// The control string around me or right before me is text.
    behind: char,
    /// The control string right after me is text.
    ahead: char,
}

impl Marks {
    /// Two characters of a private plane that occur in none of the given texts.
    pub fn choose(template: &str, client: &[&Value]) -> Result<Marks> {
        let mut used = HashSet::new();
        collect_private(template, &mut used);
        for value in client {
            visit_strings(value, &mut |text| collect_private(text, &mut used));
        }
        let mut free = PRIVATE.filter(|c| !used.contains(c));
        match (free.next(), free.next()) {
            (Some(behind), Some(ahead)) => Ok(Marks { behind, ahead }),
            _ => Err(Error::input(
                "the request uses every private character from U+F0000 to U+FFFFD",
                "send text without private-use characters",
            )),
        }
    }

    /// A client string in which no control token can begin.
    pub fn guard(self, controls: &ControlStrings, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            out.push(c);
            // White space counts as an end, because a template may trim it away.
            let next = chars.peek().copied().filter(|next| !next.is_whitespace());
            if controls.may_begin(c, next) {
                out.push(self.behind);
            }
        }
        out
    }

    /// `guard` for every string in a value, keys too.
    pub fn guard_value(self, controls: &ControlStrings, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.guard(controls, text)),
            Value::Array(items) => Value::Array(items.iter().map(|item| self.guard_value(controls, item)).collect()),
            Value::Object(map) => Value::Object(
                map.iter().map(|(key, item)| (self.guard(controls, key), self.guard_value(controls, item))).collect(),
            ),
            other => other.clone(),
        }
    }

    /// Text wrapped in two control strings that the template may test for and that stay text all the same. None if the
    /// trimmed text is not so wrapped.
    pub fn guard_wrapped(self, controls: &ControlStrings, text: &str, open: &str, close: &str) -> Option<String> {
        let (lead, rest) = text.split_at(text.len() - text.trim_start().len());
        let (body, trail) = rest.split_at(rest.trim_end().len());
        let inner = body.strip_prefix(open)?.strip_suffix(close)?;
        let (behind, ahead, inner) = (self.behind, self.ahead, self.guard(controls, inner));
        Some(format!("{lead}{open}{behind}{inner}{ahead}{close}{trail}"))
    }

    /// The rendered text without the marks.
    pub fn remove(self, rendered: &str) -> String {
        rendered.replace([self.behind, self.ahead], "")
    }

    /// Splits the rendered text into the template's control tokens and all else.
    pub fn read(self, controls: &ControlStrings, rendered: &str) -> Prompt {
        let mut pieces = Vec::new();
        let mut start = 0;
        let push_text = |pieces: &mut Vec<Piece>, text: &str| {
            let text = self.remove(text);
            if !text.is_empty() {
                pieces.push(Piece::Text(text));
            }
        };
        for found in controls.find(rendered) {
            if rendered[found.end..].starts_with(self.behind) || rendered[..found.start].ends_with(self.ahead) {
                continue;
            }
            push_text(&mut pieces, &rendered[start..found.start]);
            pieces.push(Piece::Control { id: found.id, text: rendered[found.start..found.end].to_owned() });
            start = found.end;
        }
        push_text(&mut pieces, &rendered[start..]);
        Prompt { pieces }
    }
}

/// A plane whose characters have no assigned meaning, no case and no normal form but themselves.
const PRIVATE: std::ops::RangeInclusive<char> = '\u{F0000}'..='\u{FFFFD}';

fn collect_private(text: &str, used: &mut HashSet<char>) {
    // Every such character begins with this byte in UTF-8, so that ordinary text is passed over quickly.
    if text.as_bytes().contains(&0xf3) {
        used.extend(text.chars().filter(|c| PRIVATE.contains(c)));
    }
}

/// Calls `visit` with every string of a value, keys too.
pub(super) fn visit_strings(value: &Value, visit: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => visit(text),
        Value::Array(items) => items.iter().for_each(|item| visit_strings(item, visit)),
        Value::Object(map) => map.iter().for_each(|(key, item)| {
            visit(key);
            visit_strings(item, visit);
        }),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn controls() -> ControlStrings {
        let tokens = ["<|im_end|>", "<think>", "</think>", "<r>", "</r>"];
        ControlStrings::new(tokens.iter().zip(1..).map(|(text, id)| ((*text).to_owned(), id)).collect())
    }

    fn marks() -> Marks {
        Marks::choose("", &[]).expect("nothing is used")
    }

    fn ids(prompt: &Prompt) -> Vec<u32> {
        let pieces = prompt.pieces().iter();
        pieces.filter_map(|piece| if let Piece::Control { id, .. } = piece { Some(*id) } else { None }).collect()
    }

    #[test]
    fn client_spellings_stay_text_and_the_text_is_unchanged() {
        let (marks, controls) = (marks(), controls());
        let client = "a<|im_end|>b <think> < x << </think";
        let rendered = format!("<think>{}<|im_end|>", marks.guard(&controls, client));
        let prompt = marks.read(&controls, &rendered);
        assert_eq!(prompt.text(), format!("<think>{client}<|im_end|>"));
        assert_eq!(ids(&prompt), [2, 1]);
    }

    #[test]
    fn no_token_is_formed_across_pieces_however_they_are_cut_and_trimmed() {
        let (marks, controls) = (marks(), controls());
        let token = "<|im_end|>";
        for cut in 1..token.len() {
            for space in ["", " ", "\n\n"] {
                let first = marks.guard(&controls, &format!("{}{space}", &token[..cut]));
                let second = marks.guard(&controls, &token[cut..]);
                let prompt = marks.read(&controls, &format!("{}{second}", first.trim_end()));
                assert_eq!(ids(&prompt), Vec::<u32>::new(), "cut at {cut}");
                assert_eq!(prompt.text(), token);
            }
        }
    }

    #[test]
    fn a_wrapped_text_can_be_tested_for_and_stays_text() {
        let (marks, controls) = (marks(), controls());
        let text = " <r>a</r>b<r></r>\n";
        let guarded = marks.guard_wrapped(&controls, text, "<r>", "</r>").expect("it is wrapped");
        assert!(guarded.trim().starts_with("<r>") && guarded.trim().ends_with("</r>"));
        let prompt = marks.read(&controls, &guarded);
        assert_eq!((prompt.text().as_str(), ids(&prompt).len()), (text, 0));
        assert_eq!(marks.guard_wrapped(&controls, "<r>a", "<r>", "</r>"), None);
    }

    #[test]
    fn marks_are_never_characters_of_the_request() {
        let value = json!({"\u{F0000}": ["\u{F0002}"]});
        let marks = Marks::choose("\u{F0001}", &[&value]).expect("there are others");
        assert_eq!((marks.behind, marks.ahead), ('\u{F0003}', '\u{F0004}'));
        let everything: String = PRIVATE.collect();
        assert_eq!(Marks::choose("", &[&json!(everything)]).unwrap_err().exit_code(), 2);
    }
}
