//! The checkpoint's own chat template, rendered the way Hugging Face renders it.
//!
//! Runs the template and nothing else: no format of a turn is known here. What a client wrote is marked before
//! rendering (`prompt.rs`), so that no spelling of a control token in it becomes one. Two kinds of spelling stay
//! visible to the template, because the family's templates look for them:
//!
//! * `</think>`, and `<think>` before it, in an assistant's content that comes without a `reasoning_content` string:
//!   clients send back whole answers, and the template cuts the reasoning out. If the template does not cut (the
//!   rendered text is the same with the spellings hidden), they are text.
//! * `<tool_response>` and `</tool_response>` around all of a user's content: the template asks whether the turn is a
//!   question. They are visible and stay text.
//!
//! Templates that measure or slice a client's text see the marks as characters; none of the family's does.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value as JinjaValue};
use minijinja::{AutoEscape, Environment, ErrorKind, State};
use serde_json::{Map, Value};

use super::controls::ControlStrings;
use super::prompt::{Marks, Prompt, visit_strings};
use super::python;
use super::strftime::strftime;
use crate::base::error::{Error, Result};

/// A compiled chat template.
#[derive(Clone)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    source: Arc<str>,
}

/// What is rendered besides the messages and tools. None leaves the template's variable undefined.
#[derive(Debug, Clone, Default)]
pub struct RenderOptions {
    /// End with the header of the assistant's next turn.
    pub add_generation_prompt: bool,
    pub enable_thinking: Option<bool>,
    pub preserve_thinking: Option<bool>,
    /// Further variables, in the request's order; they yield to the two above.
    pub extra: Map<String, Value>,
    /// What `strftime_now` takes for now; None reads the clock.
    pub now: Option<SystemTime>,
}

impl ChatTemplate {
    /// Compiles the text of a `chat_template.jinja`.
    pub fn parse(source: &str) -> Result<ChatTemplate> {
        let mut environment = environment();
        environment
            .add_template_owned(NAME, without_generation_tags(source))
            .map_err(|error| template_error(&error, str::to_owned))?;
        Ok(ChatTemplate { environment: Arc::new(environment), source: source.into() })
    }

    /// Renders a conversation. `tools` empty means that there are none.
    pub fn render(
        &self,
        messages: &[Value],
        tools: &[Value],
        options: &RenderOptions,
        controls: &ControlStrings,
    ) -> Result<Prompt> {
        let messages = with_parsed_arguments(messages)?;
        let extra = Value::Object(options.extra.clone());
        let client: Vec<&Value> = messages.iter().chain(tools).chain([&extra]).collect();
        let marks = Marks::choose(&self.source, &client)?;

        let mut hidden: Vec<Value> = messages.iter().map(|message| marks.guard_value(controls, message)).collect();
        let mut seen = hidden.clone();
        let mut any_seen = false;
        for (index, message) in messages.iter().enumerate() {
            if let Some(content) = visible_wrapping(message, marks, controls) {
                hidden[index]["content"] = content.clone();
                seen[index]["content"] = content;
            } else if let Some(content) = visible_reasoning(message, marks, controls) {
                seen[index]["content"] = content;
                any_seen = true;
            }
        }
        let context = self.context(tools, options, marks, controls)?;
        let hidden = self.render_marked(&hidden, &context, marks);
        if !any_seen {
            return Ok(marks.read(controls, &hidden?));
        }
        let seen = self.render_marked(&seen, &context, marks)?;
        match hidden {
            Ok(hidden) if marks.remove(&hidden) == marks.remove(&seen) => Ok(marks.read(controls, &hidden)),
            _ => Ok(marks.read(controls, &seen)),
        }
    }

    /// Every variable but the messages.
    fn context(
        &self,
        tools: &[Value],
        options: &RenderOptions,
        marks: Marks,
        controls: &ControlStrings,
    ) -> Result<Vec<(String, JinjaValue)>> {
        let guard = |value: &Value| JinjaValue::from(Serde(marks.guard_value(controls, value)));
        let mut context = Vec::new();
        for (key, value) in &options.extra {
            if ["messages", "tools", "add_generation_prompt"].contains(&key.as_str()) {
                return Err(Error::input(
                    format!("chat_template_kwargs.{key} would replace a part of the request"),
                    format!("leave {key} out of chat_template_kwargs"),
                ));
            }
            context.push((key.clone(), guard(value)));
        }
        let tools = if tools.is_empty() { Value::Null } else { Value::Array(tools.to_vec()) };
        context.push(("tools".to_owned(), guard(&tools)));
        context.push(("add_generation_prompt".to_owned(), options.add_generation_prompt.into()));
        for (name, value) in
            [("enable_thinking", options.enable_thinking), ("preserve_thinking", options.preserve_thinking)]
        {
            if let Some(value) = value {
                context.push((name.to_owned(), value.into()));
            }
        }
        let now = options.now.unwrap_or_else(SystemTime::now);
        let unix_seconds = match now.duration_since(UNIX_EPOCH) {
            Ok(after) => after.as_secs() as i64,
            Err(before) => -(before.duration().as_secs() as i64),
        };
        let strftime_now = move |format: &str| strftime(format, unix_seconds);
        context.push(("strftime_now".to_owned(), JinjaValue::from_function(strftime_now)));
        Ok(context)
    }

    fn render_marked(&self, messages: &[Value], context: &[(String, JinjaValue)], marks: Marks) -> Result<String> {
        let mut environment = Environment::clone(&self.environment);
        let fuel = fuel(messages, context);
        environment.set_fuel(Some(fuel));
        on_deep_stack(fuel * STACK_BYTES_PER_FUEL, || {
            let messages = ("messages".to_owned(), JinjaValue::from(Serde(messages)));
            let context = JinjaValue::from_pairs(context.iter().cloned().chain([messages]));
            let template = environment.get_template(NAME).expect("it was added when parsing");
            template.render(context).map_err(|error| template_error(&error, |text| marks.remove(text)))
        })?
    }
}

const NAME: &str = "chat_template";

/// What one rendering may use, in steps and 64-byte units of data, so that a template that never ends stops within a
/// second. The family's templates use about 125 a message, 65 a tool call and 0.1 for every byte.
fn fuel(messages: &[Value], context: &[(String, JinjaValue)]) -> u64 {
    let calls =
        messages.iter().filter_map(|message| message.get("tool_calls")?.as_array()).map(Vec::len).sum::<usize>();
    let tools = context.iter().find(|(name, _)| name == "tools").and_then(|(_, tools)| tools.len()).unwrap_or(0);
    let mut bytes = 0;
    for message in messages {
        visit_strings(message, &mut |text| bytes += text.len());
    }
    let fuel = FUEL_BASE + 500 * (messages.len() + calls + 20 * tools) as u64 + bytes as u64 / 4;
    fuel.min(FUEL_MAX)
}

const FUEL_BASE: u64 = 300_000;
/// Enough for a conversation of 30 MB; with the stack that goes with it, 1 GiB of address space.
const FUEL_MAX: u64 = 3_500_000;
/// A template can nest a list one level deeper for 2.2 units of fuel, and printing or freeing a level takes up to 640
/// bytes of stack. The engine bounds the nesting of the template's code, but not that of the values that it builds.
const STACK_BYTES_PER_FUEL: u64 = 300;

/// Runs `work` where its stack cannot end before its fuel does. Pages that are not touched cost nothing.
#[cfg(not(target_arch = "wasm32"))]
fn on_deep_stack<T: Send>(stack_bytes: u64, work: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(stack_bytes as usize).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| {
            Error::failure(
                format!("no thread for rendering the chat template: {error}"),
                "free some memory and try again",
            )
        })?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// A browser has one stack; what overflows it is stopped by the browser.
#[cfg(target_arch = "wasm32")]
fn on_deep_stack<T: Send>(_stack_bytes: u64, work: impl FnOnce() -> T + Send) -> Result<T> {
    Ok(work())
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the delimiters are the usual ones"));
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_formatter(|out, _, value| {
        out.write_str(&python::str_of(value)).map_err(|_| minijinja::Error::from(ErrorKind::WriteFailure))
    });
    environment.set_unknown_method_callback(python_method);
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: &JinjaValue| python::str_of(value));
    environment.add_filter("trim", |text: &JinjaValue, chars: Option<&str>| {
        strip(&python::str_of(text), chars, true, true).to_owned()
    });
    environment.add_function("raise_exception", |message: &JinjaValue| -> Result<JinjaValue, minijinja::Error> {
        let raised = Raised(python::str_of(message));
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(raised))
    });
    environment
}

/// What `raise_exception` was called with.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// Python's methods of strings, maps and lists.
fn python_method(
    state: &mut State,
    value: &JinjaValue,
    method: &str,
    arguments: &[JinjaValue],
) -> Result<JinjaValue, minijinja::Error> {
    if let (Some(text), true) = (value.as_str(), arguments.len() <= 1) {
        let chars = arguments.first().and_then(|chars| chars.as_str());
        match method {
            "strip" => return Ok(strip(text, chars, true, true).into()),
            "lstrip" => return Ok(strip(text, chars, true, false).into()),
            "rstrip" => return Ok(strip(text, chars, false, true).into()),
            "removeprefix" => return Ok(chars.and_then(|chars| text.strip_prefix(chars)).unwrap_or(text).into()),
            "removesuffix" => return Ok(chars.and_then(|chars| text.strip_suffix(chars)).unwrap_or(text).into()),
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)
}

fn strip<'a>(text: &'a str, chars: Option<&str>, start: bool, end: bool) -> &'a str {
    let stripped = |c: char| chars.map_or_else(|| python::is_space(c), |chars| chars.contains(c));
    let text = if start { text.trim_start_matches(stripped) } else { text };
    if end { text.trim_end_matches(stripped) } else { text }
}

/// Hugging Face's `tojson`: `json.dumps` without HTML's escapes.
fn tojson(
    state: &State,
    value: &JinjaValue,
    indent: Option<&JinjaValue>,
    options: Kwargs,
) -> Result<JinjaValue, minijinja::Error> {
    let indent: Option<JinjaValue> = match indent {
        Some(indent) => Some(indent.clone()),
        None => options.get("indent")?,
    };
    let indent_spaces = match indent.filter(|indent| !indent.is_none() && !indent.is_undefined()) {
        Some(indent) => Some(usize::try_from(indent)?.min(INDENT_SPACES_MAX)),
        None => None,
    };
    let separators: Option<Vec<String>> = options.get("separators")?;
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(minijinja::Error::new(ErrorKind::InvalidOperation, "tojson: separators are a pair")),
        None => (if indent_spaces.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    options.assert_all_used()?;
    let style = python::JsonStyle { indent_spaces, item_separator, key_separator, sort_keys, ensure_ascii };
    let text = python::json_dumps(value, &style)?;
    state.consume_fuel(text.len() as u64 / 64)?;
    Ok(JinjaValue::from_safe_string(text))
}

const INDENT_SPACES_MAX: usize = 64;

/// `{% generation %}` marks the assistant's words for training; rendering passes over it.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let Some(close) = rest[open..].find("%}").map(|at| open + at) else { break };
        let tag = &rest[open + 2..close];
        let word = tag.trim_matches(['-', '+']).trim();
        out.push_str(&rest[..open + 2]);
        match word {
            "generation" => out.push_str(&tag.replace(word, "if true")),
            "endgeneration" => out.push_str(&tag.replace(word, "endif")),
            _ => out.push_str(tag),
        }
        out.push_str("%}");
        rest = &rest[close + 2..];
    }
    out.push_str(rest);
    out
}

/// One line that names the template's line and what went wrong there. `clean` takes out what the reader never wrote.
fn template_error(error: &minijinja::Error, clean: impl Fn(&str) -> String) -> Error {
    let mut deepest = error;
    let mut raised = None;
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(inner) = inner.downcast_ref::<minijinja::Error>() {
            deepest = inner;
        }
        raised = raised.or_else(|| inner.downcast_ref::<Raised>());
        source = inner.source();
    }
    let place = match deepest.line().or_else(|| error.line()) {
        Some(line) => format!("{NAME} line {line}"),
        None => NAME.to_owned(),
    };
    let one_line = |text: &str| clean(text).split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some(Raised(message)) = raised {
        return Error::input(format!("{place}: {}", one_line(message)), "change the messages as the template asks");
    }
    if deepest.kind() == ErrorKind::OutOfFuel {
        return Error::input(
            format!("{place}: rendering used up its steps"),
            "shorten the conversation, or use the checkpoint's own template",
        );
    }
    let detail = deepest.detail().map_or_else(|| deepest.kind().to_string(), one_line);
    Error::input(format!("{place}: {detail}"), "check the template, and the messages against what it expects")
}

/// The messages with every tool call's arguments as an object, which is what templates walk over; the API sends them
/// as a string.
fn with_parsed_arguments(messages: &[Value]) -> Result<Vec<Value>> {
    let mut messages = messages.to_vec();
    for (index, message) in messages.iter_mut().enumerate() {
        let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) else { continue };
        for (call_index, call) in calls.iter_mut().enumerate() {
            let bare = call.get("function").is_none();
            let function = if bare { call } else { &mut call["function"] };
            let Some(arguments) = function.get_mut("arguments") else { continue };
            parse_arguments(arguments).map_err(|found| {
                let place = if bare { "arguments" } else { "function.arguments" };
                Error::input(
                    format!("messages[{index}].tool_calls[{call_index}].{place} {found}, expected a JSON object"),
                    "send the arguments as the JSON text of an object, such as {\"city\": \"Paris\"}",
                )
            })?;
        }
    }
    Ok(messages)
}

fn parse_arguments(arguments: &mut Value) -> Result<(), String> {
    let found = match *arguments {
        Value::Object(_) => return Ok(()),
        // No arguments: clients write it in these ways too.
        Value::Null => Value::Object(Map::new()),
        Value::String(ref text) if text.trim().is_empty() => Value::Object(Map::new()),
        Value::String(ref text) => serde_json::from_str(text).map_err(|error| format!("is not JSON ({error})"))?,
        ref other => other.clone(),
    };
    let kind = match &found {
        Value::Object(_) => {
            *arguments = found;
            return Ok(());
        }
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
    };
    Err(format!("is {kind}"))
}

/// The content of a user's message that is wrapped as a tool's answer, with the wrapping visible.
fn visible_wrapping(message: &Value, marks: Marks, controls: &ControlStrings) -> Option<Value> {
    if message.get("role")? != "user" {
        return None;
    }
    map_content(message.get("content")?, 1, &mut |text| {
        marks.guard_wrapped(controls, text, "<tool_response>", "</tool_response>")
    })
    .map(|content| guard_rest(content, message, marks, controls))
}

/// The content of an assistant's message that holds its reasoning in tags, with the tags visible.
fn visible_reasoning(message: &Value, marks: Marks, controls: &ControlStrings) -> Option<Value> {
    let (open, close) = ("<think>", "</think>");
    if message.get("role")? != "assistant" || message.get("reasoning_content").is_some_and(Value::is_string) {
        return None;
    }
    let content = message.get("content")?;
    let holds = |text: &Value| text.as_str().is_some_and(|text| text.contains(close));
    let any = holds(content)
        || content.as_array().is_some_and(|parts| parts.iter().any(|part| part.get("text").is_some_and(holds)));
    if !any {
        return None;
    }
    let guard_between =
        |text: &str, tag: &str| text.split(tag).map(|part| marks.guard(controls, part)).collect::<Vec<_>>().join(tag);
    let mut closed = false;
    let content = map_content(content, usize::MAX, &mut |text| {
        let first = if closed { Some(0) } else { text.find(close) };
        let (reasoning, answer) = text.split_at(first.unwrap_or(text.len()));
        closed |= first.is_some();
        Some(guard_between(reasoning, open) + &guard_between(answer, close))
    })?;
    Some(guard_rest(content, message, marks, controls))
}

/// Applies `map` to a content's text, or to its text parts if they are at most `parts_max`; None if `map` gave none.
fn map_content(content: &Value, parts_max: usize, map: &mut dyn FnMut(&str) -> Option<String>) -> Option<Value> {
    match content {
        Value::String(text) => map(text).map(Value::String),
        Value::Array(parts) if parts.len() <= parts_max => {
            let mut parts = parts.clone();
            for part in &mut parts {
                if let Some(text) = part.get("text").and_then(Value::as_str) {
                    let mapped = map(text)?;
                    part["text"] = Value::String(mapped);
                }
            }
            Some(Value::Array(parts))
        }
        _ => None,
    }
}

/// In a list of parts, everything but the text is guarded as usual.
fn guard_rest(content: Value, message: &Value, marks: Marks, controls: &ControlStrings) -> Value {
    let Value::Array(parts) = content else { return content };
    let originals = message["content"].as_array().into_iter().flatten();
    let guarded = parts.into_iter().zip(originals).map(|(part, original)| {
        let mut guarded = marks.guard_value(controls, original);
        if original.get("text").is_some_and(Value::is_string) {
            guarded["text"] = part["text"].clone();
        }
        guarded
    });
    Value::Array(guarded.collect())
}
