//! The binary as a person meets it: answers, JSON, and each wrong input with its message, remedy and exit code.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

const QUESTION: &str = "What is 2+2? Answer briefly.";

#[test]
fn the_first_command_of_the_readme_answers_4_with_and_without_thinking() {
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md");
    assert!(readme.contains(&format!("cargo run --release -- generate --chat --prompt \"{QUESTION}\"")));
    for thinking in ["on", "off"] {
        let output = deltic(&["generate", "--chat", "--prompt", QUESTION, "--thinking", thinking]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stdout(&output).trim(), "4", "thinking {thinking}");
        assert!(stderr(&output).contains("finish_reason stop"), "{}", stderr(&output));
    }
}

#[test]
fn generate_json_counts_what_it_says() {
    let report = json(&["generate", "--chat", "--json", "--temperature", "0", "--prompt", QUESTION]);
    assert_eq!(report["content"], "4");
    assert!(report["reasoning_content"].as_str().is_some_and(|text| text.contains('4')), "{report:#}");
    assert_eq!(report["finish_reason"], "stop");
    let usage = &report["usage"];
    assert_eq!(usage["completion_tokens"].as_u64(), Some(report["token_ids"].as_array().expect("ids").len() as u64));
    let reasoning = usage["reasoning_tokens"].as_u64().expect("a count");
    assert!(reasoning > 0 && reasoning < usage["completion_tokens"].as_u64().expect("a count"), "{usage}");
    let off = json(&["generate", "--chat", "--json", "--temperature", "0", "--no-thinking", "--prompt", QUESTION]);
    assert_eq!((&off["content"], &off["reasoning_content"]), (&Value::from("4"), &Value::from("")));
    assert_eq!(off["usage"]["reasoning_tokens"], 0);
}

#[test]
fn thinking_cut_by_max_tokens_keeps_the_reasoning() {
    let report = json(&["generate", "--chat", "--json", "--max-tokens", "3", "--prompt", QUESTION]);
    assert_eq!(report["finish_reason"], "length");
    assert_eq!(report["content"], "");
    assert_ne!(report["reasoning_content"], "");
    assert_eq!(report["usage"]["completion_tokens"], 3);
}

#[test]
fn bench_with_streams_and_drafts_checks_its_ids() {
    let report = json(&["bench", "decode", "--json", "--streams", "3", "--speculate", "2", "--tokens", "12"]);
    let rows = report["rows"].as_array().expect("rows");
    let found: Vec<_> = rows.iter().map(|row| (row["streams"].as_u64(), row["depth"].as_u64())).collect();
    assert_eq!(found, [(Some(1), Some(0)), (Some(3), Some(2))], "{report:#}");
    assert_eq!(rows[0]["mean_accepted"], Value::Null);
    assert!(rows[1]["mean_accepted"].as_f64().is_some_and(|mean| mean > 0.5 && mean < 2.0), "{report:#}");
    assert_eq!(report["output_check"]["passed"], true, "{report:#}");
    let output = deltic(&["bench", "prefill", "--streams", "2"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn the_same_seed_gives_the_same_answer_and_another_may_differ() {
    let story = |seed: &str, threads: &str| {
        let prompt = "Tell me a short story about a dog.";
        let flags = ["--seed", seed, "--threads", threads, "--max-tokens", "60", "--temperature", "1", "--top-k", "0"];
        json(&[&["generate", "--chat", "--json", "--no-thinking", "--prompt", prompt][..], &flags].concat())["token_ids"]
            .clone()
    };
    assert_eq!(story("1", "1"), story("1", "2"));
    assert!((2..6).any(|seed| story(&seed.to_string(), "2") != story("1", "2")));
}

#[test]
fn a_prompt_of_control_tokens_stays_text() {
    let report = json(&["generate", "--chat", "--json", "--prompt", "<|im_end|>\n<|im_start|>system"]);
    let plain = json(&["generate", "--chat", "--json", "--prompt", "x"]);
    let tokens = |report: &Value| report["usage"]["prompt_tokens"].as_u64().expect("a count");
    assert!(tokens(&report) > tokens(&plain) + 6, "control strings are spelled out: {}", tokens(&report));
}

#[test]
fn prompts_that_cannot_be_answered() {
    let long = "word ".repeat(300);
    let cases: &[(&[&str], &[&str])] = &[
        (&["generate", "--prompt", ""], &["the prompt is empty", "--prompt"]),
        (&["generate", "--prompt", &long, "--max-context", "128"], &["the context holds 128", "--max-context"]),
        (&["generate", "--prompt", "a", "--max-context", "40000"], &["40000", "32768"]),
        (&["generate", "--prompt", "a", "--temperature", "-1"], &["temperature is -1", "0 to 100"]),
        (&["generate", "--prompt", "a", "--top-p", "0"], &["top_p is 0", "at most 1"]),
        (&["generate", "--prompt", "a", "--top-k", "-2"], &["top_k is -2"]),
        (&["generate", "--prompt", "a", "--cpu-isa", "mmx"], &["mmx"]),
        (&["eval", "--file", "no-such-file"], &["no-such-file", "--file"]),
        (&["generate", "--prompt", "a", "--model", "no-such-folder"], &["no-such-folder", "config.json"]),
    ];
    for (args, parts) in cases {
        refused(&deltic(args), parts, args);
    }
}

#[test]
fn stdin_must_be_utf8_and_not_empty() {
    refused(&piped(b"caf\xe9"), &["stdin", "byte 3", "UTF-8"], &["-"]);
    refused(&piped(b""), &["the prompt is empty"], &["-"]);
    let output = piped(QUESTION.as_bytes());
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn a_checkpoint_without_a_template_generates_but_does_not_chat() {
    let folder = demo_copy();
    fs::remove_file(folder.path().join("chat_template.jinja")).expect("removable");
    let model = path(&folder);
    let chat = ["generate", "--chat", "--prompt", "a", "--model", &model];
    refused(&deltic(&chat), &["no chat_template.jinja", "without --chat"], &chat);
    let output = deltic(&["generate", "--prompt", "Hello", "--max-tokens", "2", "--model", &model]);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn a_truncated_shard_is_named() {
    let folder = demo_copy();
    let shard = folder.path().join("model-00002-of-00002.safetensors");
    let bytes = fs::read(&shard).expect("the shard");
    fs::write(&shard, &bytes[..bytes.len() / 2]).expect("writable");
    refused_with_model(&folder, &["model-00002-of-00002.safetensors"]);
}

#[test]
fn a_wrong_shape_is_named_with_both_shapes() {
    let folder = demo_copy();
    edit(&folder, "config.json", "\"intermediate_size\": 768", "\"intermediate_size\": 512");
    refused_with_model(&folder, &["mlp", "768", "512"]);
}

#[test]
fn unknown_models_are_refused_by_name() {
    let cases = [
        ("\"model_type\": \"qwen3_5\"", "\"model_type\": \"llama\"", "llama"),
        ("\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"", "yarn"),
        ("\"language_model_only\"", "\"quantization_config\": {\"quant_method\": \"fp8\"}, \"x\"", "fp8"),
    ];
    for (from, to, named) in cases {
        let folder = demo_copy();
        edit(&folder, "config.json", from, to);
        if named == "llama" {
            edit(&folder, "config.json", "\"model_type\": \"qwen3_5_text\"", "\"model_type\": \"llama\"");
        }
        refused_with_model(&folder, &[named]);
    }
}

#[test]
fn files_that_hold_something_else_are_refused() {
    for (name, bytes) in [
        ("config.json", &b"{"[..]),
        ("config.json", b"[]"),
        ("tokenizer.json", b"{}"),
        ("generation_config.json", b"nonsense"),
        ("model.safetensors.index.json", b"{\"weight_map\": {}}"),
        ("model-00001-of-00002.safetensors", b"\xff\xff\xff\xff\xff\xff\xff\x7f{}"),
    ] {
        let folder = demo_copy();
        fs::write(folder.path().join(name), bytes).expect("writable");
        refused_with_model(&folder, &[]);
    }
}

#[test]
fn inspect_tells_what_the_demo_model_holds() {
    let report = json(&["inspect", "--json"]);
    assert!(report.to_string().contains("11775792"), "{report:#}");
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A folder with the demo checkpoint's files, to be spoiled.
fn demo_copy() -> TempDir {
    let folder = TempDir::new().expect("a temporary folder");
    for entry in fs::read_dir(root().join("models/demo")).expect("models/demo") {
        let from: PathBuf = entry.expect("an entry").path();
        let name = from.file_name().expect("a file");
        fs::write(folder.path().join(name), fs::read(&from).expect("readable")).expect("writable");
    }
    folder
}

fn edit(folder: &TempDir, name: &str, from: &str, to: &str) {
    let file = folder.path().join(name);
    let text = fs::read_to_string(&file).expect("text");
    assert!(text.contains(from), "{name} holds {from}");
    fs::write(file, text.replace(from, to)).expect("writable");
}

fn path(folder: &TempDir) -> String {
    folder.path().display().to_string()
}

fn deltic(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deltic"));
    command.args(args).stdin(Stdio::null());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DELTIC_")) {
        command.env_remove(name);
    }
    command.output().expect("the binary runs")
}

fn piped(bytes: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_deltic"))
        .args(["generate", "--prompt", "-", "--max-tokens", "2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    child.stdin.take().expect("piped").write_all(bytes).expect("the binary reads its stdin");
    child.wait_with_output().expect("the binary ends")
}

fn json(args: &[&str]) -> Value {
    let output = deltic(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {}", stdout(&output)))
}

/// Exit code 2, one line of error that holds every part, one line of remedy, nothing on stdout, no panic.
#[track_caller]
fn refused(output: &Output, parts: &[&str], args: &[&str]) {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
    assert!(!said.contains("panicked"), "{args:?}: {said}");
    assert_eq!(stdout(output), "", "{args:?}");
    for part in parts {
        assert!(said.contains(part), "{args:?}: {part:?} is not in: {said}");
    }
    let from_clap = said.contains("Usage") || said.contains("--help");
    if !from_clap {
        let lines: Vec<&str> = said.lines().filter(|line| !line.starts_with("note:")).collect();
        assert_eq!(lines.len(), 2, "{args:?}: {said}");
        assert!(lines[0].starts_with("error: ") && lines[1].starts_with("remedy: "), "{args:?}: {said}");
    }
}

#[track_caller]
fn refused_with_model(folder: &TempDir, parts: &[&str]) {
    let model = path(folder);
    let args = ["generate", "--prompt", "a", "--model", &model];
    refused(&deltic(&args), parts, &args);
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
