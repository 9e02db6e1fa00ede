//! A loaded model with its text side: from a conversation to an answer, piece by piece.

use std::time::Instant;

use serde_json::{Map, Value, json};

use super::args::{BackendSpec, ModelArgs};
use super::files::ModelFiles;
use super::open::{OpenOptions, open};
use crate::base::{GenerationConfig, Result, SamplingParams};
use crate::runner::Runner;
use crate::runner::single::{self, Finish, Limits};
use crate::text::{
    ChatTemplate, Detokenizer, ReasoningEvent, ReasoningSplitter, RenderOptions, Tokenizer, ToolEvent, ToolParser,
};

pub struct Session {
    pub runner: Runner,
    pub tokenizer: Tokenizer,
    pub generation: Option<GenerationConfig>,
    /// Tokens that end an answer: those of generation_config.json and config.json together.
    pub stop_ids: Vec<u32>,
}

/// A piece of an answer as it comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    Reasoning(String),
    Content(String),
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Answer {
    pub content: String,
    pub reasoning: String,
    pub tool_calls: Vec<ToolCall>,
    /// All generated ids, the stop token included.
    pub ids: Vec<u32>,
    pub finish: Finish,
    pub prompt_tokens: usize,
    pub reasoning_tokens: usize,
    pub prefill_seconds: f64,
    pub decode_seconds: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    pub name: String,
    /// JSON text of an object.
    pub arguments: String,
}

impl Session {
    pub fn open(files: &ModelFiles, args: &ModelArgs, spec: &BackendSpec, quiet: bool) -> Result<Session> {
        let tokenizer = files.tokenizer()?;
        let generation = files.checkpoint.generation_config()?;
        let stop_ids = files.checkpoint.config()?.end_ids(generation.as_ref())?;
        let vocab_live = Some(tokenizer.vocab_live() as u32);
        let runner = open(files, args, spec, OpenOptions { vocab_live, quiet, ..Default::default() })?;
        Ok(Session { runner, tokenizer, generation, stop_ids })
    }

    /// Generates after `prompt`. `tools` type the arguments of tool calls; `on_piece` sees text as it stands.
    pub fn answer(
        &mut self,
        prompt: &[u32],
        tools: &[Value],
        sampling: &SamplingParams,
        max_tokens: u32,
        on_piece: &mut dyn FnMut(Piece) -> Result<()>,
    ) -> Result<Answer> {
        let chunk_rows = self.runner.model().options.rows_max;
        let limits = Limits { max_tokens, chunk_rows, stop_ids: self.stop_ids.clone(), logprobs: false };
        let mut reader = Reader::new(&self.tokenizer, prompt, tools);
        let mut failed = None;
        let started = Instant::now();
        let mut first_token = None;
        let finish = single::generate(&mut self.runner, prompt, sampling, &limits, &mut |id, _| {
            first_token.get_or_insert_with(Instant::now);
            match reader.push(id, on_piece) {
                Ok(()) => true,
                Err(error) => {
                    failed = Some(error);
                    false
                }
            }
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        let ended = Instant::now();
        let first_token = first_token.unwrap_or(ended);
        reader.finish(on_piece)?;
        Ok(Answer {
            prefill_seconds: (first_token - started).as_secs_f64(),
            decode_seconds: (ended - first_token).as_secs_f64(),
            reasoning_tokens: reader.splitter.reasoning_tokens(),
            content: reader.content,
            reasoning: reader.reasoning,
            tool_calls: reader.tool_calls,
            ids: reader.ids,
            prompt_tokens: prompt.len(),
            finish,
        })
    }
}

/// The ids of a rendered conversation that ends with the header of the assistant's next turn.
pub fn render_chat(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[Value],
    tools: &[Value],
    enable_thinking: Option<bool>,
) -> Result<Vec<u32>> {
    let options = RenderOptions { add_generation_prompt: true, enable_thinking, ..Default::default() };
    let prompt = template.render(messages, tools, &options, tokenizer.controls())?;
    Ok(tokenizer.encode_prompt(&prompt))
}

/// Turns ids into reasoning, content and tool calls.
struct Reader<'a> {
    tokenizer: &'a Tokenizer,
    detokenizer: Detokenizer,
    splitter: ReasoningSplitter,
    tools: ToolParser,
    ids: Vec<u32>,
    content: String,
    reasoning: String,
    tool_calls: Vec<ToolCall>,
}

impl<'a> Reader<'a> {
    fn new(tokenizer: &'a Tokenizer, prompt: &[u32], tools: &[Value]) -> Reader<'a> {
        Reader {
            tokenizer,
            detokenizer: Detokenizer::new(true),
            splitter: ReasoningSplitter::for_prompt(tokenizer, prompt),
            tools: ToolParser::new(tools),
            ids: Vec::new(),
            content: String::new(),
            reasoning: String::new(),
            tool_calls: Vec::new(),
        }
    }

    fn push(&mut self, id: u32, on_piece: &mut dyn FnMut(Piece) -> Result<()>) -> Result<()> {
        self.ids.push(id);
        let text = self.detokenizer.push(self.tokenizer, id);
        let mut events = Vec::new();
        self.splitter.push_token(id, &text, &mut events);
        self.read(events, on_piece)
    }

    fn finish(&mut self, on_piece: &mut dyn FnMut(Piece) -> Result<()>) -> Result<()> {
        let mut events = Vec::new();
        let rest = self.detokenizer.finish();
        self.splitter.push_text(&rest, &mut events);
        self.splitter.finish(&mut events);
        self.read(events, on_piece)?;
        let mut events = Vec::new();
        self.tools.finish(&mut events);
        self.read_tools(events, on_piece)
    }

    fn read(&mut self, events: Vec<ReasoningEvent>, on_piece: &mut dyn FnMut(Piece) -> Result<()>) -> Result<()> {
        for event in events {
            match event {
                ReasoningEvent::Reasoning(text) => {
                    self.reasoning.push_str(&text);
                    on_piece(Piece::Reasoning(text))?;
                }
                ReasoningEvent::Content(text) => {
                    let mut events = Vec::new();
                    self.tools.push(&text, &mut events);
                    self.read_tools(events, on_piece)?;
                }
            }
        }
        Ok(())
    }

    fn read_tools(&mut self, events: Vec<ToolEvent>, on_piece: &mut dyn FnMut(Piece) -> Result<()>) -> Result<()> {
        for event in events {
            match event {
                ToolEvent::Content(text) => {
                    self.content.push_str(&text);
                    on_piece(Piece::Content(text))?;
                }
                ToolEvent::CallStart { name, .. } => {
                    self.tool_calls.push(ToolCall { name, arguments: String::new() });
                }
                ToolEvent::Arguments { index, fragment } => self.tool_calls[index].arguments.push_str(&fragment),
                ToolEvent::CallEnd { .. } => {}
            }
        }
        Ok(())
    }
}

/// Reads a finished text the way an answer is read: what `reference` holds after `prompt`.
pub fn read_text(
    tokenizer: &Tokenizer,
    prompt: &[u32],
    ids: &[u32],
    tools: &[Value],
) -> Result<(String, Vec<ToolCall>)> {
    let mut reader = Reader::new(tokenizer, prompt, tools);
    let mut ignore = |_| Ok(());
    for id in ids {
        reader.push(*id, &mut ignore)?;
    }
    reader.finish(&mut ignore)?;
    Ok((reader.content, reader.tool_calls))
}

impl ToolCall {
    /// As the OpenAI API has it.
    pub fn to_json(&self) -> Value {
        json!({"type": "function", "function": {"name": self.name, "arguments": self.arguments}})
    }

    /// Whether the other call means the same: key order and spacing of the arguments do not count.
    pub fn same_as(&self, other: &ToolCall) -> bool {
        let parse = |call: &ToolCall| serde_json::from_str::<Map<String, Value>>(&call.arguments).ok();
        let (mine, theirs) = (parse(self), parse(other));
        self.name == other.name && mine.is_some() && mine == theirs
    }
}

/// Sampling from the checkpoint's generation_config.json; greedy where it asks for no sampling or is missing.
pub fn checkpoint_sampling(generation: Option<&GenerationConfig>) -> SamplingParams {
    let Some(config) = generation.filter(|config| config.do_sample.unwrap_or(false)) else {
        return SamplingParams::default();
    };
    let defaults = SamplingParams::default();
    SamplingParams {
        temperature: config.temperature.unwrap_or(1.0),
        top_k: config.top_k.unwrap_or(defaults.top_k),
        top_p: config.top_p.unwrap_or(defaults.top_p),
        min_p: config.min_p.unwrap_or(defaults.min_p),
        repetition_penalty: config.repetition_penalty.unwrap_or(defaults.repetition_penalty),
        presence_penalty: config.presence_penalty.unwrap_or(defaults.presence_penalty),
        ..defaults
    }
}
