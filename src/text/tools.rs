//! Reads tool calls out of what the model writes, as it is written.
//!
//! The form is `<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>`. A
//! call is announced once its head is certain; before that, text that only looks like a call is content. From then on
//! it ends as a call, with valid JSON for arguments, whatever comes. Every decision waits until the text that it
//! depends on is there, so that cutting the text elsewhere changes nothing. How a value is typed is in `values.rs`.

use serde_json::Value;

use super::python::{write_json_escaped, write_json_string};
use super::values::ToolSchemas;

/// What the parser found; neighbouring content, and neighbouring arguments of one call, belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolEvent {
    Content(String),
    CallStart {
        index: usize,
        name: String,
    },
    /// A piece of the JSON text of the arguments.
    Arguments {
        index: usize,
        fragment: String,
    },
    /// `complete` is false if the text ended inside the call; its arguments are valid JSON all the same.
    CallEnd {
        index: usize,
        complete: bool,
    },
}

/// The parser of one choice.
#[derive(Debug, Clone)]
pub struct ToolParser {
    schemas: ToolSchemas,
    state: State,
    /// Text not yet decided upon.
    pending: String,
    /// White space that belongs to the content only if more content follows.
    space_held: String,
    calls: usize,
    /// Argument names of the call at hand, to leave out a second one of the same name.
    keys: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Content,
    /// Between the tags of a call.
    Body,
    Value(Argument),
    /// After a call, where its closing tag may come.
    Tail,
}

/// The argument being read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Argument {
    key: String,
    /// Strings go out as they come; other types when they are whole.
    streamed: bool,
    /// A second argument of the same name.
    dropped: bool,
    /// The value so far, if not streamed.
    text: String,
    at_start: bool,
    line_feed_held: bool,
}

impl ToolParser {
    /// `tools` are the request's tools, as the API has them; they type the arguments.
    pub fn new(tools: &[Value]) -> ToolParser {
        ToolParser {
            schemas: ToolSchemas::new(tools),
            state: State::Content,
            pending: String::new(),
            space_held: String::new(),
            calls: 0,
            keys: Vec::new(),
        }
    }

    /// Calls announced so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// More of the answer's content.
    pub fn push(&mut self, text: &str, out: &mut Vec<ToolEvent>) {
        self.pending.push_str(text);
        let pending = std::mem::take(&mut self.pending);
        let mut rest = pending.as_str();
        while !rest.is_empty() {
            match self.step(rest, out) {
                Some(bytes) => rest = &rest[bytes..],
                None => break,
            }
        }
        self.pending = rest.to_owned();
    }

    /// The end of the content: text held back comes out, an open call is closed.
    pub fn finish(&mut self, out: &mut Vec<ToolEvent>) {
        let pending = std::mem::take(&mut self.pending);
        match std::mem::replace(&mut self.state, State::Content) {
            State::Content => {
                // The beginning of a call that never came to be one.
                self.content(&pending, out);
                if self.calls == 0 {
                    let space = std::mem::take(&mut self.space_held);
                    emit_content(&space, out);
                }
            }
            State::Tail => {}
            // White space and stray text are nothing that a caller could use.
            State::Body => self.end_call(false, out),
            State::Value(mut argument) => {
                // What begins like the closing tag was to be it.
                if !pending.starts_with("</") {
                    self.value_text(&mut argument, &pending, out);
                }
                self.end_value(argument, out);
                self.end_call(false, out);
            }
        }
    }

    /// Takes what can be decided from the front of `rest`: the bytes taken, or None if more text is needed.
    fn step(&mut self, rest: &str, out: &mut Vec<ToolEvent>) -> Option<usize> {
        match &self.state {
            State::Content => self.step_content(rest, out),
            State::Body => self.step_body(rest, out),
            State::Value(_) => self.step_value(rest, out),
            State::Tail => self.step_tail(rest),
        }
    }

    fn step_content(&mut self, rest: &str, out: &mut Vec<ToolEvent>) -> Option<usize> {
        let at = rest.find('<').unwrap_or(rest.len());
        if at > 0 {
            self.content(&rest[..at], out);
            return Some(at);
        }
        match read_head(rest) {
            Read::More => None,
            Read::No => {
                self.content("<", out);
                Some(1)
            }
            Read::Yes { name, bytes } => {
                self.space_held.clear();
                self.keys.clear();
                let index = self.calls;
                self.calls += 1;
                out.push(ToolEvent::CallStart { index, name: name.to_owned() });
                self.schemas.select(name);
                self.arguments("{", out);
                self.state = State::Body;
                Some(bytes)
            }
        }
    }

    fn step_body(&mut self, rest: &str, out: &mut Vec<ToolEvent>) -> Option<usize> {
        let space = rest.len() - rest.trim_start().len();
        if space > 0 {
            return Some(space);
        }
        if let Some(after) = rest.strip_prefix(PARAMETER) {
            // A name of this length is none; the bound keeps a broken tag from holding everything back.
            return match after.find(['>', '\n']) {
                Some(end) if after.as_bytes()[end] == b'>' && end <= NAME_BYTES_MAX => {
                    self.begin_value(after[..end].trim(), out);
                    Some(PARAMETER.len() + end + 1)
                }
                None if after.len() <= NAME_BYTES_MAX => None,
                _ => Some(PARAMETER.len()),
            };
        }
        for tag in [FUNCTION_END, CALL_END] {
            if rest.starts_with(tag) {
                self.end_call(true, out);
                self.state = if tag == FUNCTION_END { State::Tail } else { State::Content };
                return Some(tag.len());
            }
        }
        if [PARAMETER, FUNCTION_END, CALL_END].iter().any(|tag| tag.starts_with(rest)) {
            return None;
        }
        // Stray text between parameters is no argument and, inside a call, no content.
        rest.chars().next().map(char::len_utf8)
    }

    fn step_tail(&mut self, rest: &str) -> Option<usize> {
        let space = rest.len() - rest.trim_start().len();
        let after = &rest[space..];
        if after.starts_with(CALL_END) {
            self.state = State::Content;
            return Some(space + CALL_END.len());
        }
        if CALL_END.starts_with(after) {
            return None;
        }
        self.state = State::Content;
        Some(0)
    }

    fn begin_value(&mut self, key: &str, out: &mut Vec<ToolEvent>) {
        let dropped = self.keys.iter().any(|other| other == key);
        let streamed = !dropped && self.schemas.is_string(key);
        let argument = Argument {
            key: key.to_owned(),
            streamed,
            dropped,
            text: String::new(),
            at_start: true,
            line_feed_held: false,
        };
        if !dropped {
            self.keys.push(key.to_owned());
        }
        if streamed {
            let head = self.key_json(key) + "\"";
            self.arguments(&head, out);
        }
        self.state = State::Value(argument);
    }

    fn step_value(&mut self, rest: &str, out: &mut Vec<ToolEvent>) -> Option<usize> {
        let at = rest.find('<').unwrap_or(rest.len());
        let State::Value(mut argument) = std::mem::replace(&mut self.state, State::Body) else {
            unreachable!("only a value is stepped as one")
        };
        if at > 0 {
            self.value_text(&mut argument, &rest[..at], out);
            self.state = State::Value(argument);
            return Some(at);
        }
        match read_value_end(rest) {
            ValueEnd::More => {
                self.state = State::Value(argument);
                None
            }
            ValueEnd::No => {
                self.value_text(&mut argument, "<", out);
                self.state = State::Value(argument);
                Some(1)
            }
            ValueEnd::Yes { bytes } => {
                self.end_value(argument, out);
                Some(bytes)
            }
        }
    }

    /// Text of a value, without its first line feed; its last is held back, for it may be the one before the tag.
    fn value_text(&mut self, argument: &mut Argument, text: &str, out: &mut Vec<ToolEvent>) {
        let mut text = text;
        if argument.at_start && !text.is_empty() {
            argument.at_start = false;
            text = text.strip_prefix('\n').unwrap_or(text);
        }
        if text.is_empty() {
            return;
        }
        let mut ready = String::with_capacity(text.len() + 1);
        if std::mem::take(&mut argument.line_feed_held) {
            ready.push('\n');
        }
        let body = text.strip_suffix('\n');
        argument.line_feed_held = body.is_some();
        ready.push_str(body.unwrap_or(text));
        if argument.streamed {
            let mut fragment = String::with_capacity(ready.len());
            write_json_escaped(&ready, false, &mut fragment);
            self.arguments(&fragment, out);
        } else if !argument.dropped {
            argument.text.push_str(&ready);
        }
    }

    fn end_value(&mut self, argument: Argument, out: &mut Vec<ToolEvent>) {
        if argument.streamed {
            self.arguments("\"", out);
        } else if !argument.dropped {
            let value = self.schemas.json_of(&argument.key, &argument.text);
            let fragment = self.key_json(&argument.key) + &value;
            self.arguments(&fragment, out);
        }
        self.state = State::Body;
    }

    /// The separator and the key of the argument whose key was pushed last.
    fn key_json(&self, key: &str) -> String {
        let mut json = if self.keys.len() > 1 { ", " } else { "" }.to_owned();
        write_json_string(key, false, &mut json);
        json + ": "
    }

    fn end_call(&mut self, complete: bool, out: &mut Vec<ToolEvent>) {
        self.arguments("}", out);
        out.push(ToolEvent::CallEnd { index: self.calls - 1, complete });
    }

    fn arguments(&self, fragment: &str, out: &mut Vec<ToolEvent>) {
        if !fragment.is_empty() {
            out.push(ToolEvent::Arguments { index: self.calls - 1, fragment: fragment.to_owned() });
        }
    }

    /// Content, its trailing white space held back: before a call it belongs to the form, and after one it means
    /// nothing.
    fn content(&mut self, text: &str, out: &mut Vec<ToolEvent>) {
        let body = text.trim_end();
        if !body.is_empty() {
            let space = std::mem::take(&mut self.space_held);
            emit_content(&(space + body), out);
        }
        self.space_held.push_str(&text[body.len()..]);
    }
}

fn emit_content(text: &str, out: &mut Vec<ToolEvent>) {
    if !text.is_empty() {
        out.push(ToolEvent::Content(text.to_owned()));
    }
}

const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

/// Longer names are taken for text.
const NAME_BYTES_MAX: usize = 256;
/// More white space than this between two tags is taken for text, so that little is ever held back.
const SPACE_BYTES_MAX: usize = 64;

enum Read<'a> {
    Yes {
        name: &'a str,
        bytes: usize,
    },
    No,
    /// Undecided until more text comes.
    More,
}

/// `<tool_call>`, `<function=NAME>` and the beginning of a tag that may follow: then it is a call.
fn read_head(rest: &str) -> Read<'_> {
    let mut at = 0;
    match read_tag(rest, &[CALL]) {
        ValueEnd::Yes { bytes } => at += bytes,
        ValueEnd::No => return Read::No,
        ValueEnd::More => return Read::More,
    }
    match read_spaced_tag(&rest[at..], &[FUNCTION]) {
        ValueEnd::Yes { bytes } => at += bytes,
        ValueEnd::No => return Read::No,
        ValueEnd::More => return Read::More,
    }
    let after = &rest[at..];
    let end = match after.find(['>', '\n', '<']) {
        Some(end) if after.as_bytes()[end] == b'>' && end <= NAME_BYTES_MAX => end,
        None if after.len() <= NAME_BYTES_MAX => return Read::More,
        _ => return Read::No,
    };
    let name = after[..end].trim();
    if name.is_empty() {
        return Read::No;
    }
    at += end + 1;
    match read_spaced_tag(&rest[at..], &[PARAMETER, FUNCTION_END, CALL_END]) {
        ValueEnd::Yes { .. } => Read::Yes { name, bytes: at },
        ValueEnd::No => Read::No,
        ValueEnd::More => Read::More,
    }
}

enum ValueEnd {
    Yes { bytes: usize },
    No,
    More,
}

/// Whether a value ends here: `</parameter>` followed by what may follow it, so that the tag inside a value, as in a
/// text about this form, ends nothing. A model may also forget the tag; then the call's end is the value's.
fn read_value_end(rest: &str) -> ValueEnd {
    let (tag, next): (&str, &[&str]) = if rest.starts_with(FUNCTION_END) {
        (FUNCTION_END, &[CALL_END])
    } else {
        (PARAMETER_END, &[PARAMETER, FUNCTION_END, CALL_END])
    };
    match read_tag(rest, &[PARAMETER_END, FUNCTION_END]) {
        ValueEnd::Yes { bytes } => match read_spaced_tag(&rest[bytes..], next) {
            // The call's own end is left for the body to read.
            ValueEnd::Yes { .. } => ValueEnd::Yes { bytes: if tag == FUNCTION_END { 0 } else { bytes } },
            other => other,
        },
        other => other,
    }
}

fn read_tag(rest: &str, tags: &[&str]) -> ValueEnd {
    match tags.iter().find(|tag| rest.starts_with(**tag)) {
        Some(tag) => ValueEnd::Yes { bytes: tag.len() },
        None if tags.iter().any(|tag| tag.starts_with(rest)) => ValueEnd::More,
        None => ValueEnd::No,
    }
}

fn read_spaced_tag(rest: &str, tags: &[&str]) -> ValueEnd {
    let space = rest.len() - rest.trim_start().len();
    if space > SPACE_BYTES_MAX {
        return ValueEnd::No;
    }
    match read_tag(&rest[space..], tags) {
        ValueEnd::Yes { bytes } => ValueEnd::Yes { bytes: space + bytes },
        other => other,
    }
}
