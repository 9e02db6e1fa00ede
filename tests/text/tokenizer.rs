//! The demo checkpoint's tokenizer.

use deltic::text::{Detokenizer, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{DEMO, check_long_text, read};

const TEXTS: [&str; 9] = [
    "",
    "Hello, world!",
    "  two  spaces\n\n\nand 12345 digits",
    "I'm can't WE'LL",
    "\tdef f(x):\r\n    return x**2",
    "e\u{301} café हिन्दी 日本語 한국어 🤖👩\u{200d}💻",
    "<think>\n\n</think>\n\n<|im_end|><|im_start|>x<tool_call>",
    "<|im_end|><|im_end|>\u{0}\u{7f}",
    "<<|im_end|>>< |im_end|>",
];

/// The crate itself, added tokens and all, is the reference for text in which they are recognised.
#[test]
fn template_text_is_encoded_as_the_crate_does() {
    let reference = tokenizers::Tokenizer::from_bytes(read("models/demo/tokenizer.json")).expect("the file loads");
    for text in TEXTS {
        let expected = reference.encode_fast(text, false).expect("it encodes");
        assert_eq!(DEMO.encode_template(text), expected.get_ids(), "{text:?}");
    }
}

#[test]
fn user_text_never_yields_an_added_token_and_decodes_to_itself() {
    for text in TEXTS {
        let ids = DEMO.encode_text(text);
        assert!(ids.iter().all(|id| !DEMO.is_added(*id)), "{text:?}");
        let composed = text.replace("e\u{301}", "é");
        assert_eq!(DEMO.decode(&ids, true), composed);
    }
}

#[test]
fn special_tokens_are_hidden_and_tags_are_not() {
    let ids = DEMO.encode_template("<|im_start|>a<think>b</think><|im_end|>");
    assert_eq!(DEMO.decode(&ids, true), "a<think>b</think>");
    assert_eq!(DEMO.decode(&ids, false), "<|im_start|>a<think>b</think><|im_end|>");
    let end = DEMO.id_of("<|im_end|>").expect("it is an added token");
    assert!(DEMO.is_special(end) && DEMO.is_added(end));
    let think = DEMO.id_of("<think>").expect("it is an added token");
    assert!(!DEMO.is_special(think) && DEMO.is_added(think));
    assert_eq!(DEMO.token_bytes(think), b"<think>");
}

#[test]
fn ids_that_no_token_has_mean_nothing() {
    let live = DEMO.vocab_live() as u32;
    assert_eq!(live, 2772);
    assert!(!DEMO.token_bytes(live - 1).is_empty());
    assert!(DEMO.token_bytes(live).is_empty() && DEMO.token_bytes(u32::MAX).is_empty());
    assert_eq!(DEMO.decode(&[live, u32::MAX], false), "");
    assert!(!DEMO.is_special(u32::MAX));
    assert_eq!(DEMO.id_of("<no such token>"), None);
}

#[test]
fn long_text_is_encoded_in_time_about_linear() {
    check_long_text(&DEMO);
}

#[test]
fn files_that_would_be_misread_are_refused() {
    let file: Value = serde_json::from_slice(&read("models/demo/tokenizer.json")).expect("JSON");
    let refused = |change: &dyn Fn(&mut Value)| {
        let mut file = file.clone();
        change(&mut file);
        let error = Tokenizer::from_bytes(file.to_string().as_bytes()).err().expect("it is refused");
        assert_eq!(error.exit_code(), 2);
        assert!(error.what().starts_with("tokenizer.json: "), "{error}");
        error.what().to_owned()
    };
    assert!(refused(&|file| file["added_tokens"][0]["lstrip"] = json!(true)).contains("lstrip"));
    assert!(refused(&|file| file["added_tokens"][0]["id"] = json!(2000)).contains("<|endoftext|>"));
    let renamed = |name: &'static str| {
        refused(&move |file| {
            let vocabulary = file["model"]["vocab"].as_object_mut().expect("a vocabulary");
            let id = vocabulary.remove("Ā").expect("byte 0 has a token");
            vocabulary.insert(name.to_owned(), id);
        })
    };
    assert!(renamed("€").contains("not byte-level"));
    assert!(renamed("!!!!!!").contains("no token for byte 0"));
    // Truncation in the file must not cut a prompt.
    let mut truncating = file.clone();
    truncating["truncation"] = json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    let tokenizer = Tokenizer::from_bytes(truncating.to_string().as_bytes()).expect("it loads");
    assert!(tokenizer.encode_text("one two three four five six").len() > 2);
}

proptest! {
    #[test]
    fn streamed_ids_join_to_the_whole_decode(
        ids in prop::collection::vec(prop_oneof![0u32..2800, 0u32..256, 2739u32..2772], 0..40),
        skip_special: bool,
    ) {
        let mut detokenizer = Detokenizer::new(skip_special);
        let mut out = String::new();
        for &id in &ids {
            out += &detokenizer.push(&DEMO, id);
        }
        out += &detokenizer.finish();
        prop_assert_eq!(out, DEMO.decode(&ids, skip_special));
    }

    #[test]
    fn any_text_survives_encoding(text in "\\PC{0,60}|[<|>a-z_/ \n]{0,40}|(<\\|im_end\\|>|</?think>|é|\n){0,8}") {
        let ids = DEMO.encode_text(&text);
        prop_assert!(ids.iter().all(|id| !DEMO.is_added(*id)));
        // NFC may compose characters, once.
        let decoded = DEMO.decode(&ids, false);
        prop_assert_eq!(DEMO.decode(&DEMO.encode_text(&decoded), false), decoded);
    }
}
