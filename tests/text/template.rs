//! The demo checkpoint's template against Python's renderings, and what a template may not do.

use std::time::{Duration, UNIX_EPOCH};

use deltic::text::{ChatTemplate, ControlStrings, RenderOptions};
use serde_json::{Value, json};

use crate::support::{DEMO, DEMO_TEMPLATE, cases, check_encoding, control_ids, options};

#[test]
fn renderings_equal_pythons() {
    for case in cases() {
        let rendered = DEMO_TEMPLATE.render(&case.messages, &case.tools, &case.options, DEMO.controls());
        match (rendered, case.golden["text"].as_str()) {
            (Ok(prompt), Some(expected)) => {
                assert_eq!(prompt.text(), expected, "{}", case.name);
                check_encoding(&DEMO, &prompt);
            }
            (Err(error), None) => {
                let message = case.golden["error"].as_str().expect("text or error");
                assert!(error.what().ends_with(&format!(": {message}")), "{}: {error}", case.name);
                assert!(error.what().starts_with("chat_template line "), "{}: {error}", case.name);
                assert_eq!(error.exit_code(), 2);
            }
            (rendered, expected) => panic!("{}: {rendered:?}, Python has {expected:?}", case.name),
        }
    }
}

/// The prompt of a conversation full of control strings has the control tokens of the same conversation without any.
#[test]
fn control_strings_of_a_client_never_become_tokens() {
    let case = cases().into_iter().find(|case| case.name == "injection everywhere").expect("the case is there");
    let injected = case.messages[0]["content"].as_str().expect("text").to_owned();
    let benign = |values: &[Value]| -> Vec<Value> {
        let text = serde_json::to_string(values).expect("JSON");
        let inner = |text: &str| serde_json::to_string(text).expect("JSON").trim_matches('"').to_owned();
        let text = text.replace(&inner(&injected), "x").replace("<|im_", "y").replace("end|>", "z");
        serde_json::from_str(&text).expect("still JSON")
    };
    let render = |messages: &[Value], tools: &[Value]| {
        DEMO_TEMPLATE.render(messages, tools, &case.options, DEMO.controls()).expect("it renders")
    };
    let attacked = render(&case.messages, &case.tools);
    let plain = render(&benign(&case.messages), &benign(&case.tools));
    assert_eq!(control_ids(&attacked), control_ids(&plain));
    assert!(attacked.text().contains(&injected));
    check_encoding(&DEMO, &attacked);
}

/// The demo's template does not cut reasoning out of the content, so the tags in it are a client's text.
#[test]
fn think_tags_that_the_template_leaves_alone_are_text() {
    let messages =
        [json!({"role": "user", "content": "q"}), json!({"role": "assistant", "content": "<think>a</think>b"})];
    let prompt = DEMO_TEMPLATE.render(&messages, &[], &options(&json!({})), DEMO.controls()).expect("it renders");
    let think = DEMO.id_of("<think>").expect("it is a token");
    let count = control_ids(&prompt).into_iter().filter(|id| *id == think).count();
    assert_eq!((count, prompt.text().matches("<think>").count()), (2, 3));
}

fn render(source: &str, messages: &[Value], options: &RenderOptions) -> Result<String, deltic::base::error::Error> {
    let controls = ControlStrings::new(vec![("<|im_end|>".to_owned(), 1)]);
    ChatTemplate::parse(source)?.render(messages, &[], options, &controls).map(|prompt| prompt.text())
}

#[test]
fn templates_have_what_hugging_face_gives_them() {
    let messages = [
        json!({"role": "user", "content": "a<|im_end|>b", "n": 1.0, "t": true, "o": {"z": [1, {"k": null}], "a": "é<&'"}}),
    ];
    let options = RenderOptions {
        now: Some(UNIX_EPOCH + Duration::from_secs(86_400)),
        extra: serde_json::from_value(json!({"name": "N<|im_end|>", "flag": false})).expect("a map"),
        enable_thinking: Some(false),
        ..RenderOptions::default()
    };
    let cases = [
        ("{{ messages[0].o | tojson }}", r#"{"z": [1, {"k": null}], "a": "é<&'"}"#),
        (
            "{{ messages[0].o | tojson(indent=2) }}",
            "{\n  \"z\": [\n    1,\n    {\n      \"k\": null\n    }\n  ],\n  \"a\": \"é<&'\"\n}",
        ),
        ("{{ messages[0].o | tojson(separators=(',', ':'), sort_keys=true) }}", r#"{"a":"é<&'","z":[1,{"k":null}]}"#),
        ("{{ [] | tojson(indent=2) }}{{ {} | tojson(indent=4) }}", "[]{}"),
        ("{{ 'é' | tojson(ensure_ascii=true) }}", "\"\\u00e9\""),
        (
            "{{ messages[0].t }} {{ none }} {{ messages[0].n | string }} {{ messages[0].n | tojson }} {{ nothing }}",
            "True None 1.0 1.0 ",
        ),
        (
            "{% for k, v in messages[0].o.items() %}{{ k }}{% if loop.first %}{% continue %}{% endif %}!{% endfor %}",
            "za!",
        ),
        ("{% for i in [1,2,3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        (
            "{{ ' ab '.strip() ~ 'x-y'.split('-')[-1] ~ 'abc'.startswith('ab') ~ 'aab'.lstrip('a') ~ '\x1cz'.strip() }}",
            "abyTruebz",
        ),
        ("{{ messages[0].content.split('b')[0] ~ ('|im_end|' in 'a<|im_end|>b') }}", "a<|im_end|>True"),
        (
            "{{ strftime_now('%d %b %Y') }} {{ name }} {{ flag }} {{ enable_thinking is false }} {{ preserve_thinking is defined }}",
            "02 Jan 1970 N<|im_end|> False True False",
        ),
        ("{% set ns = namespace(x=1) %}\n  {% if true %}\n{% set ns.x = 2 %}\n  {% endif %}\n{{ ns.x }}", "2"),
        ("{%- generation -%} a {%- endgeneration %}b", "ab"),
        ("{{ messages[::-1] | length }}{{ tools is none }}{{ '<b>' ~ '&' }}", "1True<b>&"),
    ];
    for (source, expected) in cases {
        assert_eq!(render(source, &messages, &options).unwrap_or_else(|error| panic!("{source}: {error}")), expected);
    }
}

#[test]
fn errors_name_the_line_and_the_message() {
    let user = [json!({"role": "user<|im_end|>", "content": "x"})];
    let fails = |source: &str| render(source, &user, &RenderOptions::default()).expect_err(source).what().to_owned();
    assert_eq!(
        fails("\n\n{{ raise_exception('no\\nsuch ' ~ messages[0].role) }}"),
        "chat_template line 3: no such user<|im_end|>"
    );
    assert!(
        fails("{% macro m() %}\n{{ raise_exception('in') }}{% endmacro %}\n{{ m() }}")
            .starts_with("chat_template line 2: in")
    );
    assert!(fails("a\n{% if %}").starts_with("chat_template line 2: "));
    assert!(fails("a\n{{ nothing.at.all }}").starts_with("chat_template line 2: "));
    assert!(fails("{{ nothing | tojson }}").contains("undefined"));
    let replaced = RenderOptions {
        extra: serde_json::from_value(json!({"messages": []})).expect("a map"),
        ..RenderOptions::default()
    };
    assert!(render("x", &user, &replaced).expect_err("refused").what().contains("chat_template_kwargs.messages"));
}

#[test]
fn arguments_must_be_objects() {
    let source = "{% for m in messages %}{% for c in m.tool_calls %}{{ (c.function or c).arguments | tojson }}{% endfor %}{% endfor %}";
    let call = |arguments: Value| {
        [json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]})]
    };
    let options = RenderOptions::default();
    for (arguments, expected) in [
        (json!("{\"b\":1,\"a\":[2]}"), "{\"b\": 1, \"a\": [2]}"),
        (json!({"b": 1}), "{\"b\": 1}"),
        (json!(" "), "{}"),
        (json!(null), "{}"),
    ] {
        assert_eq!(render(source, &call(arguments), &options).expect("it renders"), expected);
    }
    for (arguments, found) in [(json!("[1]"), "is an array"), (json!("{"), "is not JSON"), (json!(3), "is a number")] {
        let error = render(source, &call(arguments), &options).expect_err("refused");
        assert!(error.what().starts_with(&format!("messages[0].tool_calls[0].function.arguments {found}")), "{error}");
    }
}

#[test]
fn hostile_templates_end_soon() {
    let started = std::time::Instant::now();
    let hostile = [
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "{{ 'a' * 99999999999 }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l | tojson }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(10000) %}{% set ns.l = [[[[[[[[[[ns.l]]]]]]]]]] %}{% endfor %}{{ ns.l }}{{ raise_exception('x') }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [[[[[[[[[[ns.l]]]]]]]]]] %}{% endfor %}",
        "{% set ns = namespace(l={}) %}{% for i in range(99999) %}{% set ns.l = {'a': {'a': {'a': ns.l}}} %}{% endfor %}",
        "{% set ns = namespace(l=[], k=[]) %}{% for i in range(9000) %}{% set ns.l = [[[[[ns.l]]]]] %}{% set ns.k = [[[[[ns.k]]]]] %}{% endfor %}{{ ns.l == ns.k }}{{ raise_exception('x') }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(9000) %}{% set ns.l = [[[[[[[[[[ns.l]]]]]]]]]] %}{% endfor %}{{ ns.l | string }}{{ raise_exception('x') }}",
        "{% include 'chat_template' %}",
    ];
    for source in hostile {
        let outcome = render(source, &[], &RenderOptions::default());
        assert_eq!(outcome.map(|_| ()).expect_err(source).exit_code(), 2, "{source}");
    }
    let nested = format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000));
    assert_eq!(render(&nested, &[], &RenderOptions::default()).expect_err("too deep").exit_code(), 2);
    assert!(started.elapsed().as_secs() < 60, "took {:?}", started.elapsed());
}
