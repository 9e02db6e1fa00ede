//! A loaded model with its text side: from a conversation to an answer, piece by piece.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Map, Value, json};

use super::args::{BackendSpec, ModelArgs};
use super::files::ModelFiles;
use super::open::{OpenOptions, open};
use crate::base::{Error, GenerationConfig, Result, SamplingParams};
use crate::engine::request::Counts;
use crate::engine::{Event, FinishReason, Refused, Request, RequestId};
use crate::runner::engine::{Engine, EngineOptions};
use crate::text::{
    ChatTemplate, Detokenizer, ReasoningEvent, ReasoningSplitter, RenderOptions, Tokenizer, ToolEvent, ToolParser,
};

pub struct Session {
    pub engine: Engine,
    pub tokenizer: Tokenizer,
    pub generation: Option<GenerationConfig>,
    /// Tokens that end an answer: those of generation_config.json and config.json together.
    pub end_ids: Vec<u32>,
}

/// How a session runs.
#[derive(Debug, Clone, Copy)]
pub struct SessionOptions {
    pub engine: EngineOptions,
    /// Answers that run at once.
    pub streams: u32,
    /// Whether to keep quiet about what was loaded.
    pub quiet: bool,
}

/// One question to a session.
#[derive(Debug, Clone)]
pub struct Job {
    pub prompt: Vec<u32>,
    /// Type the arguments of tool calls.
    pub tools: Vec<Value>,
    pub sampling: SamplingParams,
    pub max_tokens: u32,
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
    /// Drafts verified, and those of them that stood.
    pub drafted: u32,
    pub accepted: u32,
    /// Verifications that they came in; counted by [`Session::answer`] only.
    pub verifications: u64,
    pub prefill_seconds: f64,
    pub decode_seconds: f64,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    Stop,
    Length,
    Cancelled,
}

impl Answer {
    /// Tokens after the first over the time between them; 0 where there is no second token.
    pub fn decode_tokens_per_s(&self) -> f64 {
        let steps = self.ids.len().saturating_sub(1);
        if steps == 0 { 0.0 } else { steps as f64 / self.decode_seconds }
    }

    /// Drafts that stood per verification; 0 without drafts.
    pub fn mean_accepted(&self) -> f64 {
        f64::from(self.accepted) / self.verifications.max(1) as f64
    }

    /// As the OpenAI API names it.
    pub fn finish_reason(&self) -> &'static str {
        match self.finish {
            Finish::Stop if !self.tool_calls.is_empty() => "tool_calls",
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::Cancelled => "cancelled",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    pub name: String,
    /// JSON text of an object.
    pub arguments: String,
}

impl Session {
    pub fn open(files: &ModelFiles, args: &ModelArgs, spec: &BackendSpec, options: SessionOptions) -> Result<Session> {
        let tokenizer = files.tokenizer()?;
        let generation = files.checkpoint.generation_config()?;
        let end_ids = files.checkpoint.config()?.end_ids(generation.as_ref())?;
        let open_options = OpenOptions {
            vocab_live: Some(tokenizer.vocab_live() as u32),
            drafts_max: options.engine.depth.depth_max,
            sequences_max: options.streams,
            quiet: options.quiet,
        };
        let runner = open(files, args, spec, open_options)?;
        Ok(Session { engine: Engine::new(runner, options.engine), tokenizer, generation, end_ids })
    }

    /// One answer; `on_piece` sees text as it stands. Between steps `stop` is asked whether to end it as cancelled.
    pub fn answer(
        &mut self,
        job: Job,
        stop: &dyn Fn() -> bool,
        on_piece: &mut dyn FnMut(Piece) -> Result<()>,
    ) -> Result<Answer> {
        let before = self.verifications();
        let mut answers = self.run(vec![job], stop, &mut |_, piece| on_piece(piece))?;
        let answer = answers.pop().expect("an answer for the job");
        Ok(Answer { verifications: self.verifications() - before, ..answer })
    }

    /// Verifications of drafts so far.
    fn verifications(&self) -> u64 {
        self.engine.accepted_counts().iter().sum()
    }

    /// All answers, as many at once as the session was opened for, in the order of the jobs.
    pub fn answers(&mut self, jobs: Vec<Job>, on_done: &mut dyn FnMut(usize)) -> Result<Vec<Answer>> {
        let mut answers = Vec::with_capacity(jobs.len());
        // The queue is bounded; a batch never exceeds it.
        let mut jobs = jobs.into_iter().peekable();
        while jobs.peek().is_some() {
            let batch: Vec<Job> = jobs.by_ref().take(BATCH_JOBS).collect();
            answers.extend(self.run(batch, &|| false, &mut |_, _| Ok(()))?);
            on_done(answers.len());
        }
        Ok(answers)
    }

    fn run(
        &mut self,
        jobs: Vec<Job>,
        stop: &dyn Fn() -> bool,
        on_piece: &mut dyn FnMut(usize, Piece) -> Result<()>,
    ) -> Result<Vec<Answer>> {
        let mut batch = Batch::new(&self.tokenizer, jobs.len());
        let result = batch.run(&mut self.engine, &self.end_ids, &jobs, stop, on_piece);
        if result.is_err() {
            batch.abandon(&mut self.engine);
        }
        result.map(|()| batch.answers.into_iter().map(|answer| answer.expect("each request ends")).collect())
    }
}

/// Jobs on their way through the engine.
struct Batch<'a> {
    tokenizer: &'a Tokenizer,
    started: Instant,
    open: BTreeMap<RequestId, Open<'a>>,
    /// In the order of the jobs; None until the job has ended.
    answers: Vec<Option<Answer>>,
}

struct Open<'a> {
    index: usize,
    reader: Reader<'a>,
    first_token: Option<Instant>,
}

impl<'a> Batch<'a> {
    fn new(tokenizer: &'a Tokenizer, jobs: usize) -> Batch<'a> {
        let answers = (0..jobs).map(|_| None).collect();
        Batch { tokenizer, started: Instant::now(), open: BTreeMap::new(), answers }
    }

    fn run(
        &mut self,
        engine: &mut Engine,
        end_ids: &[u32],
        jobs: &[Job],
        stop: &dyn Fn() -> bool,
        on_piece: &mut dyn FnMut(usize, Piece) -> Result<()>,
    ) -> Result<()> {
        for (index, job) in jobs.iter().enumerate() {
            let request = Request {
                sampling: job.sampling.clone(),
                end_ids: end_ids.to_vec(),
                ..Request::new(job.prompt.clone(), job.max_tokens.max(1))
            };
            let id = engine.submit(request).map_err(Refused::into_error)?;
            let reader = Reader::new(self.tokenizer, &job.prompt, &job.tools);
            self.open.insert(id, Open { index, reader, first_token: None });
        }
        while !self.open.is_empty() {
            if stop() {
                self.open.keys().for_each(|id| engine.cancel(*id));
            }
            for event in engine.step()? {
                self.read(event, on_piece)?;
            }
        }
        Ok(())
    }

    fn read(&mut self, event: Event, on_piece: &mut dyn FnMut(usize, Piece) -> Result<()>) -> Result<()> {
        match event {
            Event::Token { request, token, .. } => {
                let open = self.open.get_mut(&request).expect("events of open requests only");
                open.first_token.get_or_insert_with(Instant::now);
                open.reader.push(token, &mut |piece| on_piece(open.index, piece))
            }
            Event::Finished { request, reason, counts, .. } => {
                let Open { index, mut reader, first_token } = self.open.remove(&request).expect("ends once");
                let finish = finish_of(reason, counts)?;
                reader.finish(&mut |piece| on_piece(index, piece))?;
                self.answers[index] = Some(reader.answer(finish, counts, self.started, first_token));
                Ok(())
            }
        }
    }

    /// After an error nothing may be left in the engine: the next batch would meet events that are not its own.
    fn abandon(&self, engine: &mut Engine) {
        self.open.keys().for_each(|id| engine.cancel(*id));
        // A failed step ends every request, and the error that led here says more than a second one.
        while !engine.is_idle() && engine.step().is_ok() {}
    }
}

/// Jobs handed to the engine together, within the length of its queue.
const BATCH_JOBS: usize = 128;

fn finish_of(reason: FinishReason, counts: Counts) -> Result<Finish> {
    match reason {
        FinishReason::StopToken(_) | FinishReason::StopWatch => Ok(Finish::Stop),
        FinishReason::Length => Ok(Finish::Length),
        FinishReason::Cancelled => Ok(Finish::Cancelled),
        FinishReason::NotANumber | FinishReason::Failed => Err(Error::failure(
            format!(
                "the logits after {} tokens hold no finite number",
                counts.prompt_tokens + counts.completion_tokens
            ),
            "run deltic compare to find the first op that differs; check the checkpoint with deltic inspect",
        )),
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

    fn answer(self, finish: Finish, counts: Counts, started: Instant, first_token: Option<Instant>) -> Answer {
        let ended = Instant::now();
        let first_token = first_token.unwrap_or(ended);
        Answer {
            prefill_seconds: (first_token - started).as_secs_f64(),
            decode_seconds: (ended - first_token).as_secs_f64(),
            reasoning_tokens: self.splitter.reasoning_tokens(),
            content: self.content,
            reasoning: self.reasoning,
            tool_calls: self.tool_calls,
            ids: self.ids,
            prompt_tokens: counts.prompt_tokens as usize,
            drafted: counts.drafted,
            accepted: counts.accepted,
            verifications: 0,
            finish,
        }
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
