//! `deltic generate`: one completion of a prompt. The answer goes to stdout, everything else to stderr.

use std::io::Read;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::args::{GenerateArgs, SamplingArgs};
use super::files::{ModelFiles, utf8};
use super::interrupt::Interrupt;
use super::print_json;
use super::printer::Printer;
use super::session::{Answer, Finish, Job, Piece, Session, SessionOptions, checkpoint_sampling, render_chat};
use crate::base::{Error, Result, SamplingParams};

/// The exit code of a command that Ctrl-C ended, as shells have it.
const INTERRUPTED: u8 = 130;
/// A prompt on stdin that is longer than this is no prompt.
const STDIN_BYTES_MAX: u64 = 64 << 20;

pub fn run(args: &GenerateArgs) -> Result<ExitCode> {
    let text = read_prompt(&args.prompt)?;
    let files = ModelFiles::open(args.model.model.as_deref())?;
    // Read before the weights, so that a missing template is said at once.
    let template = if args.chat { Some(files.template()?) } else { None };
    let options = SessionOptions { engine: args.speculate.options()?, streams: 1, quiet: args.json };
    let mut session = Session::open(&files, &args.model, &args.backend.spec(), options)?;
    let sampling = sampling(&args.sampling, checkpoint_sampling(session.generation.as_ref()))?;
    let prompt = match &template {
        Some(template) => {
            let system = args.system.as_ref().map(|text| json!({"role": "system", "content": text}));
            let messages: Vec<Value> = system.into_iter().chain([json!({"role": "user", "content": text})]).collect();
            render_chat(template, &session.tokenizer, &messages, &[], args.thinking.enabled())?
        }
        None => session.tokenizer.encode_text(&text),
    };
    let max_tokens = args.max_tokens.unwrap_or(u32::MAX);
    let job = Job { prompt, tools: Vec::new(), sampling, max_tokens };
    // A second Ctrl-C does not wait for the end of a step.
    let interrupt = Interrupt::install(|_| std::process::exit(i32::from(INTERRUPTED)))?;
    let mut printer = Printer::default();
    let mut on_piece = |piece: Piece| if args.json { Ok(()) } else { printer.piece(&piece) };
    let answer = interrupt.watch(|stop| session.answer(job, stop, &mut on_piece))?;
    if args.json {
        print_json(&to_json(&answer))?;
    } else {
        printer.end(&answer)?;
        eprintln!(
            "{} prompt tokens, {} generated, {:.1} tokens/s, finish_reason {}",
            answer.prompt_tokens,
            answer.ids.len(),
            answer.decode_tokens_per_s(),
            answer.finish_reason(),
        );
    }
    Ok(if answer.finish == Finish::Cancelled { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// The prompt itself, or stdin for `-`.
fn read_prompt(prompt: &str) -> Result<String> {
    let text = match prompt {
        "-" => {
            let mut bytes = Vec::new();
            let stdin = std::io::stdin().lock();
            stdin.take(STDIN_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| {
                Error::failure(format!("cannot read stdin: {error}"), "check what is piped into the command")
            })?;
            if bytes.len() as u64 > STDIN_BYTES_MAX {
                return Err(Error::input(
                    format!("stdin holds more than {STDIN_BYTES_MAX} bytes"),
                    "give a prompt that fits the model's context",
                ));
            }
            utf8(bytes).map_err(|error| error.within("stdin"))?
        }
        text => text.to_owned(),
    };
    if text.is_empty() {
        return Err(Error::input("the prompt is empty", "give --prompt some text, or pipe some in with --prompt -"));
    }
    Ok(text)
}

/// Flags over the checkpoint's defaults, checked.
pub fn sampling(args: &SamplingArgs, defaults: SamplingParams) -> Result<SamplingParams> {
    let top_k = match args.top_k {
        None => defaults.top_k,
        Some(-1) => 0,
        Some(value) => u32::try_from(value).map_err(|_| {
            Error::input(
                format!("top_k is {value}, the range is -1 to {}", u32::MAX),
                "give top_k a value in its range",
            )
        })?,
    };
    let params = SamplingParams {
        temperature: args.temperature.unwrap_or(defaults.temperature),
        top_k,
        top_p: args.top_p.unwrap_or(defaults.top_p),
        min_p: args.min_p.unwrap_or(defaults.min_p),
        repetition_penalty: args.repetition_penalty.unwrap_or(defaults.repetition_penalty),
        presence_penalty: args.presence_penalty.unwrap_or(defaults.presence_penalty),
        frequency_penalty: args.frequency_penalty.unwrap_or(defaults.frequency_penalty),
        seed: args.seed,
        choice: 0,
    };
    params.validate()?;
    Ok(params)
}

fn to_json(answer: &Answer) -> Value {
    let calls: Vec<Value> = answer.tool_calls.iter().map(super::session::ToolCall::to_json).collect();
    json!({
        "content": answer.content,
        "reasoning_content": answer.reasoning,
        "tool_calls": calls,
        "token_ids": answer.ids,
        "finish_reason": answer.finish_reason(),
        "usage": {
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.ids.len(),
            "reasoning_tokens": answer.reasoning_tokens,
            "cached_tokens": 0,
        },
        "timings": {
            "prefill_s": answer.prefill_seconds,
            "decode_s": answer.decode_seconds,
            "decode_tokens_per_s": answer.decode_tokens_per_s(),
        },
        "speculation": {
            "drafted": answer.drafted,
            "accepted": answer.accepted,
            "mean_accepted": answer.mean_accepted(),
        },
    })
}
