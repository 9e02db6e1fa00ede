//! Files and small helpers that the text tests share.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use deltic::text::{ChatTemplate, Piece, Prompt, RenderOptions, Tokenizer};
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// A file of the repository.
pub fn read(path: &str) -> Vec<u8> {
    let path = root().join(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A file that a script rebuilds. Its absence fails the test: a skipped comparison proves nothing.
pub fn read_publisher(name: &str) -> Vec<u8> {
    let path = root().join("build/qwen-assets").join(name);
    std::fs::read(&path).unwrap_or_else(|error| {
        panic!(
            "{}: {error}\nrebuild the publisher's files with: python3 tools/qwen-assets/rebuild.py build/qwen-assets",
            path.display()
        )
    })
}

pub fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("the file is UTF-8")
}

pub static DEMO: LazyLock<Tokenizer> = LazyLock::new(|| {
    Tokenizer::from_bytes(&read("models/demo/tokenizer.json")).unwrap_or_else(|error| panic!("{error}"))
});

pub static DEMO_TEMPLATE: LazyLock<ChatTemplate> = LazyLock::new(|| {
    ChatTemplate::parse(&text(read("models/demo/chat_template.jinja"))).unwrap_or_else(|error| panic!("{error}"))
});

/// A conversation of the golden files.
#[derive(Clone)]
pub struct Case {
    pub name: String,
    pub messages: Vec<Value>,
    pub tools: Vec<Value>,
    pub options: RenderOptions,
    pub golden: Value,
}

/// The cases as `golden.py` wrote them.
pub fn cases() -> Vec<Case> {
    let cases: Vec<Value> =
        serde_json::from_slice(&read("tests/golden/text/demo_template.json")).expect("the golden file is JSON");
    let list = |value: &Value| value.as_array().cloned().expect("a list");
    cases
        .into_iter()
        .map(|case| Case {
            name: case["name"].as_str().expect("a name").to_owned(),
            messages: list(&case["messages"]),
            tools: list(&case["tools"]),
            options: options(&case["options"]),
            golden: case,
        })
        .collect()
}

pub fn options(value: &Value) -> RenderOptions {
    RenderOptions {
        add_generation_prompt: value["add_generation_prompt"].as_bool().unwrap_or(true),
        enable_thinking: value["enable_thinking"].as_bool(),
        preserve_thinking: value["preserve_thinking"].as_bool(),
        ..RenderOptions::default()
    }
}

/// The control tokens that the template wrote.
pub fn control_ids(prompt: &Prompt) -> Vec<u32> {
    let pieces = prompt.pieces().iter();
    pieces.filter_map(|piece| if let Piece::Control { id, .. } = piece { Some(*id) } else { None }).collect()
}

/// The ids of `prompt` are its text pieces encoded as text and its control pieces as their ids; the text is the whole.
pub fn check_encoding(tokenizer: &Tokenizer, prompt: &Prompt) {
    let ids = tokenizer.encode_prompt(prompt);
    let added: Vec<u32> = ids.iter().copied().filter(|id| tokenizer.is_added(*id)).collect();
    assert_eq!(added, control_ids(prompt));
}

/// Long texts of the kinds that make a split or a merge slow.
pub fn check_long_text(tokenizer: &Tokenizer) {
    let started = std::time::Instant::now();
    let long = [
        "a".repeat(1 << 18),
        " ".repeat(1 << 18),
        " \n".repeat(1 << 17) + "x",
        "<".repeat(1 << 18),
        "e\u{301}\u{300}".repeat(1 << 16),
        "<|im_end".repeat(1 << 15),
        "<|im_end|>".repeat(1 << 14),
    ];
    for text in &long {
        assert!(!tokenizer.encode_text(text).is_empty());
        assert!(!tokenizer.encode_template(text).is_empty());
    }
    // A quadratic step would take an hour.
    assert!(started.elapsed().as_secs() < 240, "took {:?}", started.elapsed());
}
