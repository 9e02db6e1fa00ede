//! The publisher's real tokenizer and templates, against the vectors of MODEL.md and Python's renderings.

use std::sync::LazyLock;

use deltic::text::{ChatTemplate, RenderOptions, Tokenizer};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::{cases, check_encoding, check_long_text, control_ids, options, read, read_publisher, text};

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    Tokenizer::from_bytes(&read_publisher("tokenizer.json")).unwrap_or_else(|error| panic!("{error}"))
});

fn template(version: &str) -> ChatTemplate {
    let source = text(read_publisher(&format!("chat_template.qwen{version}.jinja")));
    ChatTemplate::parse(&source).unwrap_or_else(|error| panic!("{error}"))
}

fn sha256(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn texts_have_the_published_ids() {
    let vectors: [(&str, &[u32]); 16] = [
        (
            "Hello! 毕老师！1 + 1 = 2 ĠÑĤÐ²ÑĬÑĢ",
            &[
                9419, 0, 220, 97169, 97621, 6115, 16, 478, 220, 16, 283, 220, 17, 9551, 254, 68933, 128, 97, 91914,
                28495, 68933, 128, 105, 68933, 128, 95,
            ],
        ),
        ("Hello, world!", &[9419, 11, 1814, 0]),
        ("  two  spaces\n\n\nand 12345 digits", &[220, 1330, 220, 12258, 1358, 429, 220, 16, 17, 18, 19, 20, 17955]),
        ("I'm can't WE'LL", &[40, 2688, 628, 914, 19076, 6, 3950]),
        ("e\u{301} café naïve", &[933, 50203, 91603, 571]),
        ("हिन्दी ภาษาไทย", &[215989, 150127, 177453, 212495, 149826]),
        ("\tdef f(x):\r\n    return x**2", &[7217, 281, 2007, 1590, 317, 262, 460, 830, 332, 17]),
        ("人力资源", &[99655]),
        ("Привет, мир! популяр", &[51844, 26125, 7921, 11, 160202, 0, 152515]),
        ("日本語のテキスト", &[247359, 15303, 210342]),
        ("한국어 텍스트", &[174675, 30061, 225287]),
        ("x_1=3.14e-5; // ok", &[87, 62, 16, 28, 18, 13, 16, 19, 68, 12, 20, 26, 434, 5226]),
        ("\u{1F916}\u{1F469}\u{200D}\u{1F4BB}", &[9008, 97, 244, 9008, 239, 102, 373, 235, 88995, 119]),
        ("<think>\n\n</think>\n\n", &[248068, 271, 248069, 271]),
        // Tokens without a merge are unreachable; encoders that look whole words up first find them.
        ("俱乐部", &[98112, 96404, 95938]),
        (" Diketahui", &[414, 1524, 155706]),
    ];
    for (text, ids) in vectors {
        assert_eq!(TOKENIZER.encode_template(text), ids, "{text:?}");
        if !text.contains("<think>") {
            assert_eq!(TOKENIZER.encode_text(text), ids, "{text:?}");
        }
        assert_eq!(TOKENIZER.decode(ids, true), text.replace("e\u{301}", "é"));
    }
}

#[test]
fn the_vocabulary_is_the_published_one() {
    assert_eq!(TOKENIZER.vocab_live(), 248_077);
    let ids = [
        ("<|endoftext|>", 248_044, true),
        ("<|im_end|>", 248_046, true),
        ("<tool_call>", 248_058, false),
        ("</tool_call>", 248_059, false),
        ("<tool_response>", 248_066, false),
        ("<think>", 248_068, false),
        ("</think>", 248_069, false),
        ("<|audio_pad|>", 248_076, true),
    ];
    for (token, id, special) in ids {
        assert_eq!((TOKENIZER.id_of(token), TOKENIZER.is_special(id)), (Some(id), special), "{token}");
    }
    let vocabulary: serde_json::Map<String, Value> =
        serde_json::from_slice(&read_publisher("vocab.json")).expect("JSON");
    assert_eq!(vocabulary.len(), 248_044);
    for (spelling, id) in vocabulary {
        assert_eq!(TOKENIZER.id_of(&spelling), id.as_u64().map(|id| id as u32));
    }
}

#[test]
fn long_text_is_encoded_in_time_about_linear() {
    check_long_text(&TOKENIZER);
}

fn messages(value: Value) -> Vec<Value> {
    value.as_array().expect("a list").clone()
}

/// The renderings whose hashes MODEL.md lists.
#[test]
fn conversations_have_the_published_renderings() {
    let brief = messages(json!([{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi"}]));
    let weather = messages(json!([
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "reasoning_content": "use tool", "content": "", "tool_calls": [
            {"type": "function", "function": {"name": "get", "arguments": "{\"city\": \"Paris\", \"n\": 2}"}}]},
        {"role": "tool", "content": "18C"},
    ]));
    let m3 = messages(json!([
        {"role": "user", "content": "A"},
        {"role": "assistant", "reasoning_content": "r1", "content": "B"},
        {"role": "user", "content": "C"},
        {"role": "assistant", "reasoning_content": "r2", "content": "", "tool_calls": [
            {"function": {"name": "f", "arguments": "{\"s\":\"x\",\"b\":true,\"n\":null,\"l\":[1,\"é\"],\"i\":3}"}},
            {"function": {"name": "g", "arguments": "{}"}}]},
        {"role": "tool", "content": "t1"},
        {"role": "tool", "content": "t2"},
    ]));
    let question = messages(json!([{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]));
    let tools = messages(json!([{"type": "function", "function": {"name": "get", "description": "d",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]));
    let off = options(&json!({"enable_thinking": false}));
    let preserve = options(&json!({"preserve_thinking": true}));
    let usual = || options(&json!({}));
    type Vector<'a> = (&'a str, &'a [Value], &'a [Value], RenderOptions, usize, usize, &'a str);
    let vectors: [Vector; 7] = [
        ("3.6", &brief, &[], usual(), 99, 19, "7af1302f02f3df31b3efd94a7f08d2ac8fd4adaf2568e034b6cdcff0076a296a"),
        ("3.6", &brief, &[], off, 110, 21, "657fe6d7831e7eb014896102e7e254ae0371599af55a34816dff6763765b370a"),
        ("3.6", &weather, &[], usual(), 306, 71, "c6841a39b28236d990e92cdb5f88ac3a286c4a29ce25c3f42abc0600721a4600"),
        ("3.6", &m3, &[], usual(), 532, 138, "87d011c80809cba3fd95d756e8c6f4241346326137c83658fc81e14d7d63640e"),
        ("3.6", &m3, &[], preserve, 553, 145, "080aed2f499ecc5346f9efdee07b14e1caf6af665e809124fbbe208463c567db"),
        ("3.5", &m3, &[], usual(), 532, 138, "cb5a90a40019929d79162dccd66d1e9e14770c5fafd06ec863b365ea404cb581"),
        (
            "3.6",
            &question,
            &tools,
            usual(),
            1127,
            258,
            "94e972d6aabc343c2e8435287859b3dddb241bea70e1f89f88582be121e8389d",
        ),
    ];
    for (version, messages, tools, options, chars, tokens, hash) in vectors {
        let prompt = template(version).render(messages, tools, &options, TOKENIZER.controls()).expect("it renders");
        let text = prompt.text();
        assert_eq!((text.chars().count(), sha256(&text).as_str()), (chars, hash), "{text}");
        let ids = TOKENIZER.encode_prompt(&prompt);
        assert_eq!(ids.len(), tokens, "{text}");
        assert_eq!(ids, TOKENIZER.encode_template(&text));
    }
    let prompt = template("3.6").render(&brief, &[], &usual(), TOKENIZER.controls()).expect("it renders");
    let expected = [
        248045, 8678, 198, 3320, 9522, 13, 248046, 198, 248045, 846, 198, 12675, 248046, 198, 248045, 74455, 198,
        248068, 198,
    ];
    assert_eq!(TOKENIZER.encode_prompt(&prompt), expected);
}

#[test]
fn renderings_equal_pythons() {
    for version in ["3.5", "3.6"] {
        let golden: Vec<Value> =
            serde_json::from_slice(&read(&format!("tests/golden/text/publisher_{version}.json"))).expect("JSON");
        let template = template(version);
        for (case, golden) in cases().into_iter().zip(golden) {
            assert_eq!(golden["name"], case.name.as_str());
            let rendered = template.render(&case.messages, &case.tools, &case.options, TOKENIZER.controls());
            match (rendered, golden["sha256"].as_str()) {
                (Ok(prompt), Some(hash)) => {
                    assert_eq!(sha256(&prompt.text()), hash, "{version}, {}:\n{}", case.name, prompt.text());
                    check_encoding(&TOKENIZER, &prompt);
                }
                (Err(error), None) => {
                    let message = golden["error"].as_str().expect("hash or error");
                    assert!(error.what().ends_with(&format!(": {message}")), "{version}, {}: {error}", case.name);
                }
                (rendered, expected) => panic!("{version}, {}: {rendered:?}, Python has {expected:?}", case.name),
            }
        }
    }
}

/// Reasoning that a client sends inside the content is cut out by the template, as its tags are visible to it; none
/// of the client's tags becomes a token. A wrapped user turn is seen as no question, and its wrapping stays text.
#[test]
fn tags_that_the_template_looks_for_are_seen_and_are_no_tokens() {
    let count = |token: &str, ids: &[u32]| {
        let id = TOKENIZER.id_of(token).expect("it is a token");
        ids.iter().filter(|other| **other == id).count()
    };
    let turns = messages(json!([
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "<think>\nwhy\n</think>\n\nanswer <think> and </tool_call>"},
    ]));
    let prompt = template("3.6").render(&turns, &[], &options(&json!({})), TOKENIZER.controls()).expect("it renders");
    assert!(
        prompt
            .text()
            .contains("<|im_start|>assistant\n<think>\nwhy\n</think>\n\nanswer <think> and </tool_call><|im_end|>")
    );
    let ids = control_ids(&prompt);
    assert_eq!((count("<think>", &ids), count("</think>", &ids), count("</tool_call>", &ids)), (2, 1, 0));

    let wrapped = messages(json!([
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "reasoning_content": "r"},
        {"role": "user", "content": "<tool_response>\nx</tool_response>"},
    ]));
    let prompt = template("3.6").render(&wrapped, &[], &options(&json!({})), TOKENIZER.controls()).expect("it renders");
    assert!(prompt.text().contains("<think>\nr\n</think>"), "the wrapped turn is no question");
    assert_eq!(count("<tool_response>", &control_ids(&prompt)), 0);
}
