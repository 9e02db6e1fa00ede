//! The demo model as an engine of any size, and prompts made from its held-out cases.

use std::path::{Path, PathBuf};

use deltic::backend::cpu::{CpuBackend, CpuOptions};
use deltic::base::{DType, SamplingParams};
use deltic::engine::{DepthOptions, Request};
use deltic::model::{Model, ModelOptions};
use deltic::runner::Runner;
use deltic::runner::engine::{Engine, EngineOptions};
use deltic::text::{ChatTemplate, RenderOptions, Tokenizer};
use deltic::weights::{self, Checkpoint};
use serde_json::{Value, json};

/// The size of an engine and how it speculates.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub depth: DepthOptions,
    pub noise: f32,
    pub sequences: u32,
    /// Slots beside those of the sequences.
    pub checkpoints: u32,
    pub rows: u32,
    pub page_tokens: u32,
    pub pages: u32,
    pub threads: usize,
}

/// Most tokens of a sequence in these tests.
pub const CONTEXT: u32 = 768;

impl Setup {
    /// Room for 16 sequences of any length.
    pub fn roomy(depth: u32, noise: f32) -> Setup {
        Setup {
            depth: DepthOptions::fixed(depth),
            noise,
            sequences: 16,
            checkpoints: 2,
            rows: 256,
            page_tokens: 64,
            pages: 16 * CONTEXT / 64,
            threads: 1,
        }
    }

    /// One sequence at a time, without drafts: what all others are held against.
    pub fn alone() -> Setup {
        Setup { sequences: 1, pages: 2 * CONTEXT / 64, ..Setup::roomy(0, 0.0) }
    }

    pub fn runner(&self) -> Runner {
        let checkpoint = Checkpoint::open(&folder()).expect("the demo checkpoint");
        let config = checkpoint.config().expect("its config");
        let cpu = CpuOptions { threads: Some(self.threads), isa: None };
        let mut backend = Box::new(CpuBackend::new(cpu).expect("the CPU backend"));
        let loaded = weights::load(backend.as_mut(), &config, &checkpoint, &mut |_, _| ()).expect("its weights");
        let options = ModelOptions {
            activation: DType::Bf16,
            rows_max: self.rows,
            sequences_max: self.sequences,
            slots: self.sequences + self.checkpoints,
            context_max: CONTEXT,
            page_tokens: self.page_tokens,
            pages: self.pages,
            drafts_max: self.depth.depth_max,
            vocab_live: tokenizer().vocab_live() as u32,
        };
        let model = Model::new(backend.as_mut(), config, options, loaded.weights).expect("a model");
        Runner::new(backend, model)
    }

    pub fn engine(&self) -> Engine {
        let options = EngineOptions { depth: self.depth, draft_noise: self.noise, prefill_alone: false };
        Engine::new(self.runner(), options)
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo")
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub fn tokenizer() -> Tokenizer {
    Tokenizer::from_bytes(&file("tokenizer.json")).expect("the tokenizer")
}

/// The tokens that end an answer.
pub fn end_ids() -> Vec<u32> {
    let checkpoint = Checkpoint::open(&folder()).expect("the demo checkpoint");
    let generation = checkpoint.generation_config().expect("its defaults");
    checkpoint.config().expect("its config").end_ids(generation.as_ref()).expect("end tokens")
}

/// Renders conversations to ids.
pub struct Prompts {
    tokenizer: Tokenizer,
    template: ChatTemplate,
}

impl Prompts {
    pub fn open() -> Prompts {
        let source = String::from_utf8(file("chat_template.jinja")).expect("UTF-8");
        Prompts { tokenizer: tokenizer(), template: ChatTemplate::parse(&source).expect("the template") }
    }

    fn render(&self, messages: &[Value], tools: &[Value], thinking: bool) -> Vec<u32> {
        let options =
            RenderOptions { add_generation_prompt: true, enable_thinking: Some(thinking), ..RenderOptions::default() };
        let prompt = self.template.render(messages, tools, &options, self.tokenizer.controls()).expect("rendered");
        self.tokenizer.encode_prompt(&prompt)
    }

    /// One question, answered without thinking.
    pub fn question(&self, content: &str) -> Vec<u32> {
        self.render(&[json!({"role": "user", "content": content})], &[], false)
    }

    /// The prompts of all held-out cases, in the order of the file.
    pub fn cases(&self) -> Vec<Vec<u32>> {
        cases().iter().map(|case| self.case(case)).collect()
    }

    fn case(&self, case: &Value) -> Vec<u32> {
        let list = |key: &str| case[key].as_array().cloned().unwrap_or_default();
        self.render(&list("messages"), &list("tools"), case["thinking"] == true)
    }
}

/// The held-out cases.
pub fn cases() -> Vec<Value> {
    let text = String::from_utf8(file("eval.jsonl")).expect("UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("a case")).collect()
}

/// `count` prompts of at most `tokens_max` tokens, spread over the cases and so over the tasks.
pub fn short_prompts(count: usize, tokens_max: usize) -> Vec<Vec<u32>> {
    let mut short = Prompts::open().cases();
    short.retain(|prompt| prompt.len() <= tokens_max);
    assert!(short.len() >= count, "{} prompts have at most {tokens_max} tokens", short.len());
    (0..count).map(|index| short[index * short.len() / count].clone()).collect()
}

/// Prompts of exactly these lengths, cut from the conversations one after the other.
pub fn prompts_of(lengths: &[usize]) -> Vec<Vec<u32>> {
    let stream = Prompts::open().cases().concat();
    (0..).zip(lengths).map(|(index, length)| stream[300 * index..][..*length].to_vec()).collect()
}

/// A request with the model's end tokens.
pub fn request(prompt: &[u32], max_tokens: u32, sampling: SamplingParams) -> Request {
    Request { sampling, end_ids: end_ids(), ..Request::new(prompt.to_vec(), max_tokens) }
}

/// The question asked before and after everything else.
pub fn probe() -> Request {
    request(&Prompts::open().question("Count from 3 to 9."), 24, SamplingParams::default())
}
