//! Splits what the model writes into reasoning and answer.
//!
//! Whether it begins inside the reasoning is read from the prompt's own token ids, never from a flag. Tags are
//! recognised by id, so a tag that is spelled with ordinary tokens is text; `push_text` is for sources that have no
//! ids. The tags themselves come out nowhere, except inside a tool call, whose arguments are passed on untouched.

use super::tokenizer::Tokenizer;

/// A stretch of output; neighbours of one kind belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReasoningEvent {
    Reasoning(String),
    Content(String),
}

/// The splitter of one choice.
#[derive(Debug, Clone)]
pub struct ReasoningSplitter {
    tags: Tags,
    state: State,
    /// Line feeds that are dropped if nothing else follows before the state changes.
    line_feeds_held: usize,
    /// Line feeds are dropped until something else comes.
    at_start: bool,
    /// Text that may be the beginning of a tag; only `push_text` leaves any.
    pending: String,
    reasoning_tokens: usize,
}

impl ReasoningSplitter {
    /// The splitter for the answer to a prompt of these ids.
    pub fn for_prompt(tokenizer: &Tokenizer, prompt: &[u32]) -> ReasoningSplitter {
        let tags = Tags {
            open: tokenizer.id_of(OPEN),
            close: tokenizer.id_of(CLOSE),
            call: tokenizer.id_of(CALL),
            call_end: tokenizer.id_of(CALL_END),
        };
        // A turn's end lies between an earlier turn's tags and the output.
        let decisive = prompt
            .iter()
            .rev()
            .find(|id| Some(**id) == tags.open || Some(**id) == tags.close || tokenizer.is_special(**id));
        let starts_inside = decisive.is_some() && decisive.copied() == tags.open;
        ReasoningSplitter { tags, ..ReasoningSplitter::new(starts_inside) }
    }

    /// A splitter that knows tags by their spelling alone.
    pub fn new(starts_inside: bool) -> ReasoningSplitter {
        ReasoningSplitter {
            tags: Tags::default(),
            state: if starts_inside { State::Reasoning } else { State::Content },
            line_feeds_held: 0,
            at_start: starts_inside,
            pending: String::new(),
            reasoning_tokens: 0,
        }
    }

    /// Whether the next text is reasoning.
    pub fn is_inside(&self) -> bool {
        self.state == State::Reasoning
    }

    /// Tokens of the reasoning so far, its tags not counted.
    pub fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// One token and the text it completed, which may begin with text that earlier tokens left unfinished.
    pub fn push_token(&mut self, id: u32, text: &str, out: &mut Vec<ReasoningEvent>) {
        match self.tags.of(id) {
            Some(tag) => {
                // A decoder that hides special tokens may have left the tag out.
                self.write(text.strip_suffix(tag.spelling()).unwrap_or(text), out);
                self.meet(tag, out);
            }
            None => {
                self.reasoning_tokens += usize::from(self.state == State::Reasoning);
                self.write(text, out);
            }
        }
    }

    /// Text without ids: tags are recognised by spelling, however the text is cut.
    pub fn push_text(&mut self, text: &str, out: &mut Vec<ReasoningEvent>) {
        self.pending.push_str(text);
        let pending = std::mem::take(&mut self.pending);
        let mut rest = pending.as_str();
        loop {
            let Some(at) = rest.find('<') else {
                self.write(rest, out);
                return;
            };
            self.write(&rest[..at], out);
            rest = &rest[at..];
            if let Some(tag) = Tag::ALL.into_iter().find(|tag| rest.starts_with(tag.spelling())) {
                self.meet(tag, out);
                rest = &rest[tag.spelling().len()..];
            } else if Tag::ALL.into_iter().any(|tag| tag.spelling().starts_with(rest)) {
                self.pending = rest.to_owned();
                return;
            } else {
                self.write("<", out);
                rest = &rest[1..];
            }
        }
    }

    /// The end of the output: everything held back comes out. Reasoning that was cut off stays reasoning.
    pub fn finish(&mut self, out: &mut Vec<ReasoningEvent>) {
        let pending = std::mem::take(&mut self.pending);
        self.write(&pending, out);
        self.release(out);
    }

    fn meet(&mut self, tag: Tag, out: &mut Vec<ReasoningEvent>) {
        match (self.state, tag) {
            (State::Call, Tag::CallEnd) => {
                self.write(CALL_END, out);
                self.state = State::Content;
            }
            (State::Call, tag) => self.write(tag.spelling(), out),
            (State::Reasoning, Tag::Close) => self.turn(State::Content),
            (State::Reasoning, Tag::Call) => {
                // The model forgot to close its reasoning; the call counts.
                self.turn(State::Call);
                self.write(CALL, out);
            }
            (State::Content, Tag::Call) => {
                self.state = State::Call;
                self.write(CALL, out);
            }
            (State::Content, Tag::Open) => {
                self.release(out);
                self.turn(State::Reasoning);
            }
            (State::Reasoning | State::Content, Tag::CallEnd) => self.write(CALL_END, out),
            // A tag too many.
            (State::Reasoning, Tag::Open) | (State::Content, Tag::Close) => {}
        }
    }

    fn turn(&mut self, state: State) {
        self.state = state;
        self.line_feeds_held = 0;
        self.at_start = true;
    }

    fn write(&mut self, text: &str, out: &mut Vec<ReasoningEvent>) {
        let text = if self.at_start { text.trim_start_matches('\n') } else { text };
        if text.is_empty() {
            return;
        }
        self.at_start = false;
        if self.state != State::Reasoning {
            out.push(ReasoningEvent::Content(text.to_owned()));
            return;
        }
        let body = text.trim_end_matches('\n');
        if !body.is_empty() {
            self.release(out);
            out.push(ReasoningEvent::Reasoning(body.to_owned()));
        }
        self.line_feeds_held += text.len() - body.len();
    }

    /// Line feeds that turned out not to stand before a tag.
    fn release(&mut self, out: &mut Vec<ReasoningEvent>) {
        if self.line_feeds_held > 0 {
            out.push(ReasoningEvent::Reasoning("\n".repeat(self.line_feeds_held)));
            self.line_feeds_held = 0;
        }
    }
}

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";
const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Reasoning,
    Content,
    /// Inside a tool call, where a think tag is an argument's text.
    Call,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tag {
    Open,
    Close,
    Call,
    CallEnd,
}

impl Tag {
    const ALL: [Tag; 4] = [Tag::Open, Tag::Close, Tag::Call, Tag::CallEnd];

    fn spelling(self) -> &'static str {
        match self {
            Tag::Open => OPEN,
            Tag::Close => CLOSE,
            Tag::Call => CALL,
            Tag::CallEnd => CALL_END,
        }
    }
}

/// The tags' ids in this checkpoint.
#[derive(Debug, Clone, Copy, Default)]
struct Tags {
    open: Option<u32>,
    close: Option<u32>,
    call: Option<u32>,
    call_end: Option<u32>,
}

impl Tags {
    fn of(self, id: u32) -> Option<Tag> {
        let ids = [self.open, self.close, self.call, self.call_end];
        Tag::ALL.into_iter().zip(ids).find(|(_, other)| *other == Some(id)).map(|(tag, _)| tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(inside: bool, pieces: &[&str]) -> (String, String) {
        let mut splitter = ReasoningSplitter::new(inside);
        let mut out = Vec::new();
        pieces.iter().for_each(|piece| splitter.push_text(piece, &mut out));
        splitter.finish(&mut out);
        let mut joined = (String::new(), String::new());
        for event in out {
            match event {
                ReasoningEvent::Reasoning(text) => joined.0 += &text,
                ReasoningEvent::Content(text) => joined.1 += &text,
            }
        }
        joined
    }

    #[test]
    fn cases() {
        let cases = [
            (true, "r1\n\nr2\n</think>\n\nhello\n", "r1\n\nr2", "hello\n"),
            (true, "cut\noff", "cut\noff", ""),
            (true, "\n</think>\n\n", "", ""),
            (false, "plain < text", "", "plain < text"),
            (false, "<think>\nr\n</think>\n\nc", "r", "c"),
            (false, "a</think>b", "", "ab"),
            (true, "<think>\nr</think>c", "r", "c"),
            (
                true,
                "r\n<tool_call>\nx</think>\n</tool_call>\nz</think>",
                "r",
                "<tool_call>\nx</think>\n</tool_call>\nz",
            ),
            (true, "a <b> </thin", "a <b> </thin", ""),
        ];
        for (inside, text, reasoning, content) in cases {
            let expected = (reasoning.to_owned(), content.to_owned());
            assert_eq!(split(inside, &[text]), expected, "{text:?}");
            for (cut, _) in text.char_indices() {
                assert_eq!(split(inside, &[&text[..cut], &text[cut..]]), expected, "{text:?} cut at {cut}");
            }
            let chars: Vec<String> = text.chars().map(String::from).collect();
            assert_eq!(split(inside, &chars.iter().map(String::as_str).collect::<Vec<_>>()), expected, "{text:?}");
        }
    }

    #[test]
    fn by_id_a_spelled_tag_is_text_and_the_count_is_exact() {
        let tags = Tags { open: Some(1), close: Some(2), call: Some(3), call_end: Some(4) };
        let mut splitter = ReasoningSplitter { tags, ..ReasoningSplitter::new(true) };
        let mut out = Vec::new();
        for (id, text) in
            [(9, "a"), (9, "</think>"), (9, ""), (2, "\u{fffd}</think>"), (9, "\n\n"), (9, "b"), (2, "</think>")]
        {
            splitter.push_token(id, text, &mut out);
        }
        splitter.finish(&mut out);
        assert_eq!(splitter.reasoning_tokens(), 3);
        let expected = [
            ReasoningEvent::Reasoning("a".into()),
            ReasoningEvent::Reasoning("</think>".into()),
            ReasoningEvent::Reasoning("\u{fffd}".into()),
            ReasoningEvent::Content("b".into()),
        ];
        assert_eq!(out, expected);
    }
}
