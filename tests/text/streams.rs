//! Transcripts through detokeniser, reasoning splitter and tool parser: every cut gives the same events.

use deltic::text::{Detokenizer, ReasoningEvent, ReasoningSplitter, ToolEvent, ToolParser};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{DEMO, DEMO_TEMPLATE, options, read, text};

/// Joins neighbours that belong together.
fn joined(events: Vec<ToolEvent>) -> Vec<ToolEvent> {
    let mut out: Vec<ToolEvent> = Vec::new();
    for event in events {
        match (out.last_mut(), event) {
            (Some(ToolEvent::Content(before)), ToolEvent::Content(text)) => *before += &text,
            (Some(ToolEvent::Arguments { fragment: before, .. }), ToolEvent::Arguments { fragment, .. }) => {
                *before += &fragment;
            }
            (_, event) => out.push(event),
        }
    }
    out
}

fn parse<'a>(tools: &[Value], pieces: impl IntoIterator<Item = &'a str>) -> Vec<ToolEvent> {
    let mut parser = ToolParser::new(tools);
    let mut events = Vec::new();
    pieces.into_iter().for_each(|piece| parser.push(piece, &mut events));
    parser.finish(&mut events);
    check_order(&events);
    joined(events)
}

/// Calls are announced in order, one at a time, and each has valid JSON for arguments.
fn check_order(events: &[ToolEvent]) {
    let mut arguments: Option<(usize, String)> = None;
    let mut next = 0;
    for event in events {
        match event {
            ToolEvent::Content(text) => assert!(arguments.is_none() && !text.is_empty()),
            ToolEvent::CallStart { index, name } => {
                assert!(arguments.is_none() && *index == next && !name.is_empty());
                next += 1;
                arguments = Some((*index, String::new()));
            }
            ToolEvent::Arguments { index, fragment } => {
                let open = arguments.as_mut().expect("a call is open");
                assert_eq!(open.0, *index);
                open.1 += fragment;
            }
            ToolEvent::CallEnd { index, .. } => {
                let (open, json) = arguments.take().expect("a call is open");
                assert_eq!(open, *index);
                let value: Value = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{json}: {error}"));
                assert!(value.is_object());
            }
        }
    }
    assert!(arguments.is_none(), "the last call was not closed");
}

/// Content, and calls as (name, arguments, complete).
fn summary(events: &[ToolEvent]) -> (String, Vec<(String, Value, bool)>) {
    let mut content = String::new();
    let mut calls: Vec<(String, Value, bool)> = Vec::new();
    let mut json = String::new();
    for event in events {
        match event {
            ToolEvent::Content(text) => content += text,
            ToolEvent::CallStart { name, .. } => calls.push((name.clone(), Value::Null, false)),
            ToolEvent::Arguments { fragment, .. } => json += fragment,
            ToolEvent::CallEnd { complete, .. } => {
                let call = calls.last_mut().expect("a call is open");
                call.1 = serde_json::from_str(&std::mem::take(&mut json)).expect("valid JSON");
                call.2 = *complete;
            }
        }
    }
    (content, calls)
}

fn tools() -> Vec<Value> {
    vec![json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
        "s": {"type": "string"}, "i": {"type": "integer"}, "b": {"type": "boolean"}, "l": {"type": "array"},
        "o": {"type": "object"}, "n": {"type": ["number", "null"]}}}}})]
}

fn call(name: &str, parameters: &[(&str, &str)]) -> String {
    let parameters: String =
        parameters.iter().map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n")).collect();
    format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
}

/// Name, text, content expected, calls expected.
type Transcript = (&'static str, String, &'static str, Vec<(&'static str, Value, bool)>);

fn transcripts() -> Vec<Transcript> {
    let typed =
        [("s", "007"), ("i", "7"), ("b", "True"), ("l", "[{\"a\": [1]}]"), ("o", "{\"k\": null}"), ("n", "None")];
    let markup = "<b>\"q\" \\ </parameter> x <parameter=x> </function>\n<tool_call>😀\t</b>";
    vec![
        ("plain", "just < text <tool\n".into(), "just < text <tool\n", vec![]),
        ("no parameters", call("g", &[]), "", vec![("g", json!({}), true)]),
        (
            "typed",
            format!("I look.\n\n{}", call("f", &typed)),
            "I look.",
            vec![("f", json!({"s": "007", "i": 7, "b": true, "l": [{"a": [1]}], "o": {"k": null}, "n": null}), true)],
        ),
        (
            "parallel",
            format!("{}\n{}\n", call("f", &[("i", "1")]), call("f", &[("i", "2")])),
            "",
            vec![("f", json!({"i": 1}), true), ("f", json!({"i": 2}), true)],
        ),
        (
            "text after",
            format!("a {} b\n{}c", call("f", &[]), call("g", &[])),
            "a bc",
            vec![("f", json!({}), true), ("g", json!({}), true)],
        ),
        (
            "line feeds",
            call("f", &[("s", "\n a\n\n"), ("x", ""), ("l", "[1,\n2]")]),
            "",
            vec![("f", json!({"s": "\n a\n\n", "x": "", "l": [1, 2]}), true)],
        ),
        ("markup", call("f", &[("s", markup)]), "", vec![("f", json!({"s": markup}), true)]),
        (
            "unknown",
            call("h", &[("s", "007"), ("t", "true"), ("u", "x: y")]),
            "",
            vec![("h", json!({"s": "007", "t": true, "u": "x: y"}), true)],
        ),
        (
            "no line feeds",
            "<tool_call><function=f><parameter=s>a</parameter><parameter=i>1</parameter></function></tool_call>".into(),
            "",
            vec![("f", json!({"s": "a", "i": 1}), true)],
        ),
        (
            "parameter not closed",
            "<tool_call>\n<function=f>\n<parameter=s>\na\n</function>\n</tool_call>".into(),
            "",
            vec![("f", json!({"s": "a"}), true)],
        ),
        ("same name twice", call("f", &[("s", "a"), ("s", "b")]), "", vec![("f", json!({"s": "a"}), true)]),
        (
            "two calls in one block",
            "<tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call>\n<function=>\n</function>".into(),
            "\n<tool_call>\n<function=>\n</function>",
            vec![("f", json!({}), true)],
        ),
        ("head cut", "x\n<tool_call>\n<function=f".into(), "x\n<tool_call>\n<function=f", vec![]),
        (
            "not a call",
            "<tool_call>\n{\"name\": 1}\n</tool_call>".into(),
            "<tool_call>\n{\"name\": 1}\n</tool_call>",
            vec![],
        ),
        (
            "string cut",
            "<tool_call>\n<function=f>\n<parameter=s>\nabc\n</para".into(),
            "",
            vec![("f", json!({"s": "abc"}), false)],
        ),
        ("number cut", "<tool_call>\n<function=f>\n<parameter=i>\n12".into(), "", vec![("f", json!({"i": 12}), false)]),
        (
            "end cut",
            "<tool_call>\n<function=f>\n<parameter=i>\n12\n</parameter>\n".into(),
            "",
            vec![("f", json!({"i": 12}), false)],
        ),
    ]
}

#[test]
fn transcripts_are_parsed_alike_however_they_are_cut() {
    for (name, text, content, calls) in transcripts() {
        let whole = parse(&tools(), [text.as_str()]);
        let expected: Vec<_> =
            calls.into_iter().map(|(call, json, complete)| (call.to_owned(), json, complete)).collect();
        assert_eq!(summary(&whole), (content.to_owned(), expected), "{name}");
        for (cut, _) in text.char_indices() {
            assert_eq!(parse(&tools(), [&text[..cut], &text[cut..]]), whole, "{name}, cut at {cut}");
        }
        let chars: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(parse(&tools(), chars.iter().map(String::as_str)), whole, "{name}, every character");
    }
}

/// A string argument goes out while it is written, so that a long file is not held back.
#[test]
fn string_arguments_are_streamed() {
    let mut parser = ToolParser::new(&tools());
    let mut events = Vec::new();
    parser.push("<tool_call>\n<function=f>\n<parameter=s>\nfirst line\nsecond", &mut events);
    let (_, before_end) = events.split_first().expect("the call was announced");
    let json: String = before_end
        .iter()
        .map(|event| if let ToolEvent::Arguments { fragment, .. } = event { fragment.as_str() } else { "" })
        .collect();
    assert_eq!(json, "{\"s\": \"first line\\nsecond");
    assert_eq!(parser.calls(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// Whatever is written, arguments are valid JSON and cuts change nothing.
    #[test]
    fn any_text_is_parsed_alike_however_it_is_cut(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "<tool_call>", "</tool_call>", "<function=f>", "<function=", "</function>", "<parameter=s>", "<parameter=i>",
            "<parameter=zz>", "<parameter", "</parameter>", "\n", "\n\n", " ", "a", "12", "é😀", "\"", "\\", "<", ">", "</",
            "[1]", "{", "None",
        ]), 0..24),
        cuts in prop::collection::vec(0usize..200, 0..6),
    ) {
        let text = pieces.concat();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| text.floor_char_boundary(cut.min(text.len()))).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let whole = parse(&tools(), [text.as_str()]);
        prop_assert_eq!(&parse(&tools(), cuts.windows(2).map(|pair| &text[pair[0]..pair[1]])), &whole);
        let chars: Vec<String> = text.chars().map(String::from).collect();
        prop_assert_eq!(&parse(&tools(), chars.iter().map(String::as_str)), &whole);
    }
}

/// Token ids to reasoning, content and calls, as a server would chain the stages.
fn run(prompt: &[u32], ids: &[u32], tools: &[Value]) -> (String, Vec<ToolEvent>, usize) {
    let mut detokenizer = Detokenizer::new(true);
    let mut splitter = ReasoningSplitter::for_prompt(&DEMO, prompt);
    let mut parser = ToolParser::new(tools);
    let (mut parts, mut events, mut reasoning) = (Vec::new(), Vec::new(), String::new());
    for &id in ids {
        let text = detokenizer.push(&DEMO, id);
        splitter.push_token(id, &text, &mut parts);
    }
    splitter.push_text(&detokenizer.finish(), &mut parts);
    splitter.finish(&mut parts);
    for part in parts {
        match part {
            ReasoningEvent::Reasoning(text) => reasoning += &text,
            ReasoningEvent::Content(text) => parser.push(&text, &mut events),
        }
    }
    parser.finish(&mut events);
    check_order(&events);
    (reasoning, joined(events), splitter.reasoning_tokens())
}

/// Every reference answer of the demo's evaluation, split the same by ids as its text says.
#[test]
fn the_demos_answers_are_read_right() {
    let mut calls_seen = 0;
    for line in text(read("models/demo/eval.jsonl")).lines() {
        let case: Value = serde_json::from_str(line).expect("JSON");
        let thinking = case["thinking"].as_bool().expect("a boolean");
        let tools = case["tools"].as_array().cloned().unwrap_or_default();
        let messages = case["messages"].as_array().expect("a list");
        let options = options(&json!({"enable_thinking": thinking}));
        let prompt = DEMO_TEMPLATE.render(messages, &tools, &options, DEMO.controls()).expect("it renders");
        let prompt = DEMO.encode_prompt(&prompt);
        let reference = case["reference"].as_str().expect("text");
        let ids = DEMO.encode_template(reference);
        let (reasoning, events, reasoning_tokens) = run(&prompt, &ids, &tools);
        let (content, calls) = summary(&events);

        let body = reference.strip_suffix("<|im_end|>").unwrap_or(reference);
        let (expected_reasoning, answer) =
            if thinking { body.split_once("</think>").expect("it was thinking") } else { ("", body) };
        assert_eq!(reasoning, expected_reasoning.trim_end_matches('\n'), "{reference}");
        let close = DEMO.id_of("</think>").expect("it is a token");
        let expected_tokens = if thinking { ids.iter().position(|id| *id == close).expect("closed") } else { 0 };
        assert_eq!(reasoning_tokens, expected_tokens, "{reference}");
        let answer = answer.trim_start_matches('\n');
        assert_eq!(content, answer.split("<tool_call>").next().unwrap_or("").trim_end(), "{reference}");
        assert_eq!(calls.len(), answer.matches("<tool_call>").count(), "{reference}");
        assert!(calls.iter().all(|(.., complete)| *complete));
        calls_seen += calls.len();

        // Cut off anywhere, nothing is lost and the reasoning stays what it is.
        for end in 0..ids.len() {
            let (cut, events, _) = run(&prompt, &ids[..end], &tools);
            let whole = format!("{reasoning}\n");
            assert!(whole.starts_with(&cut), "{reference}");
            let cut_content = summary(&events).0;
            assert!(content.starts_with(cut_content.trim_end()) || cut_content.contains("<tool_call>"), "{reference}");
        }
    }
    assert!(calls_seen >= 20, "only {calls_seen} calls in the evaluation");
}

/// The first state follows from the prompt's ids; a user who writes the tag changes nothing.
#[test]
fn the_first_state_is_read_from_the_prompt() {
    let inside = |content: &str, extra: Value| {
        let messages = [json!({"role": "user", "content": content})];
        let prompt = DEMO_TEMPLATE.render(&messages, &[], &options(&extra), DEMO.controls()).expect("it renders");
        ReasoningSplitter::for_prompt(&DEMO, &DEMO.encode_prompt(&prompt)).is_inside()
    };
    assert!(inside("</think>", json!({})));
    assert!(!inside("<think>", json!({"enable_thinking": false})));
    assert!(!inside("<think>", json!({"add_generation_prompt": false})));
    assert!(!ReasoningSplitter::for_prompt(&DEMO, &[]).is_inside());
    assert!(
        ReasoningSplitter::for_prompt(&DEMO, &DEMO.encode_template("<|im_start|>assistant\n<think>\nso")).is_inside()
    );
}
