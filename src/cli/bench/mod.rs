//! `deltic bench`: how fast steps run, how near that is to what the memory gives, and in the same run whether the
//! output is right. A speed without a check does not count, so a failed check fails the command.

mod bandwidth;
mod check;
mod ops;
mod report;
mod streams;
mod timing;

use std::process::ExitCode;

use super::args::{BenchArgs, BenchKind, ModelArgs, Speculate};
use super::files::ModelFiles;
use super::open::{OpenOptions, open_random};
use super::session::{Session, SessionOptions};
use super::{print, print_json};
use crate::backend::step::CHUNK_ROWS;
use crate::base::rng::threefry;
use crate::base::{Error, ModelConfig, Result};
use crate::engine::DepthOptions;
use crate::runner::Runner;
use crate::runner::engine::{Engine, EngineOptions};
use report::{Bench, Row};
use timing::Timed;

/// Tokens that `decode` measures unless told otherwise.
const DECODE_TOKENS: u32 = 64;
/// Tokens that `prefill` measures unless told otherwise.
const PREFILL_TOKENS: u32 = 512;

pub fn run(args: &BenchArgs) -> Result<ExitCode> {
    if args.streams > 1 || args.speculate != Speculate::Depth(0) {
        return streams::run(args);
    }
    let threads = threads(args);
    let mut subject = Subject::open(args, 1, DepthOptions::fixed(0))?;
    let runner = subject.runner();
    check_room(runner, args)?;
    eprintln!("{} on {}", subject.name(args), subject.runner().backend().caps().name);

    let read_gb_per_s = bandwidth::read_gb_per_s(threads);
    let mut bench = Bench {
        shape: subject.name(args),
        backend: subject.runner().backend().caps().kind.to_owned(),
        read_gb_per_s,
        rows: Vec::new(),
        steps: Vec::new(),
        check: None,
    };
    let runner = subject.runner();
    let timed = match args.kind {
        BenchKind::Ops => {
            bench.steps = ops::profile(runner, args)?;
            None
        }
        BenchKind::Decode => Some(timing::decode(runner, args.context, args.tokens.unwrap_or(DECODE_TOKENS))?),
        BenchKind::Prefill => Some(timing::prefill(runner, args.tokens.unwrap_or(PREFILL_TOKENS))?),
    };
    // Again: on a machine that does other things too, the limit must not be from a worse moment than the measurement.
    bench.read_gb_per_s = read_gb_per_s.max(bandwidth::read_gb_per_s(threads));
    if let Some(timed) = &timed {
        bench.rows.push(Row::new(args.kind, &bench, timed));
    }
    finish(bench, args, || subject.check(args, timed.as_ref()))
}

/// Shows what was measured, then checks it, which may take longer than the measurement.
fn finish(mut bench: Bench, args: &BenchArgs, check: impl FnOnce() -> Result<check::OutputCheck>) -> Result<ExitCode> {
    if !args.json {
        print(&bench.table())?;
    }
    let check = check()?;
    if args.json {
        bench.check = Some(check.clone());
        print_json(&bench.to_json())?;
    } else {
        print(&check.line())?;
    }
    Ok(if check.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn threads(args: &BenchArgs) -> usize {
    let asked = args.backend.spec().cpu.threads;
    asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// What is measured.
enum Subject {
    /// A shape with random weights.
    Random {
        config: ModelConfig,
        engine: Box<Engine>,
    },
    Checkpoint {
        files: ModelFiles,
        session: Box<Session>,
    },
}

impl Subject {
    /// Opens it for so many requests at once.
    fn open(args: &BenchArgs, streams: u32, depth: DepthOptions) -> Result<Subject> {
        let spec = args.backend.spec();
        let engine = EngineOptions { depth, draft_noise: 0.0, prefill_alone: false };
        let Some(shape) = &args.shape else {
            let files = ModelFiles::open(args.model.model.as_deref())?;
            let options = SessionOptions { engine, streams, quiet: true };
            let session = Session::open(&files, &args.model, &spec, options)?;
            return Ok(Subject::Checkpoint { files, session: Box::new(session) });
        };
        let mut config = ModelConfig::named(shape)?;
        if let Some(layers) = args.layers {
            cut(&mut config, layers)?;
        }
        // The pool is one of two requests of that length.
        let context = room(args).saturating_mul(streams.div_ceil(2));
        let model_args =
            ModelArgs { max_context: Some(args.model.max_context.unwrap_or(context)), ..args.model.clone() };
        let options = OpenOptions { drafts_max: depth.depth_max, sequences_max: streams, ..OpenOptions::default() };
        let runner = open_random(config.clone(), &model_args, &spec, options)?;
        Ok(Subject::Random { config, engine: Box::new(Engine::new(runner, engine)) })
    }

    fn engine(&mut self) -> &mut Engine {
        match self {
            Subject::Random { engine, .. } => engine,
            Subject::Checkpoint { session, .. } => &mut session.engine,
        }
    }

    fn runner(&mut self) -> &mut Runner {
        self.engine().runner()
    }

    fn name(&self, args: &BenchArgs) -> String {
        match self {
            Subject::Checkpoint { files, .. } => files.name.clone(),
            Subject::Random { config, .. } => {
                let shape = args.shape.clone().unwrap_or_default();
                match args.layers {
                    Some(_) => format!("{shape}, {} layers", config.layers.len()),
                    None => shape,
                }
            }
        }
    }

    /// Gives the memory of the measured model back before random weights are checked against a second copy.
    fn check(self, args: &BenchArgs, timed: Option<&Timed>) -> Result<check::OutputCheck> {
        match self {
            Subject::Checkpoint { files, mut session } => check::checkpoint(&files, args, &mut session),
            Subject::Random { config, mut engine } => {
                let own = check::random(engine.runner(), timed)?;
                drop(engine);
                if own.passed { Ok(own.and(check::cut_against_baseline(config, args)?)) } else { Ok(own) }
            }
        }
    }
}

/// Keeps the first `layers` layers.
fn cut(config: &mut ModelConfig, layers: u32) -> Result<()> {
    if layers as usize > config.layers.len() {
        return Err(Error::input(
            format!("--layers is {layers}, the shape has {}", config.layers.len()),
            "lower --layers",
        ));
    }
    config.layers.truncate(layers as usize);
    Ok(())
}

/// Tokens of context that the measurement needs.
fn room(args: &BenchArgs) -> u32 {
    let tokens = args.tokens.unwrap_or(DECODE_TOKENS.max(PREFILL_TOKENS));
    // A chunk more, so that warm-up and check have theirs.
    args.context.saturating_add(tokens).saturating_add(2 * CHUNK_ROWS)
}

fn check_room(runner: &Runner, args: &BenchArgs) -> Result<()> {
    let context = runner.model().options.context_max;
    let needed = match args.kind {
        BenchKind::Decode => args.context.saturating_add(args.tokens.unwrap_or(DECODE_TOKENS)),
        BenchKind::Prefill => args.tokens.unwrap_or(PREFILL_TOKENS),
        BenchKind::Ops => args.context.max(args.tokens.unwrap_or(0)),
    };
    if needed < context {
        return Ok(());
    }
    Err(Error::input(
        format!("the measurement needs {needed} tokens, the context holds {context}"),
        "lower --context or --tokens, or raise --max-context",
    ))
}

/// Ids to run where only their number matters; the same on every run and backend.
fn tokens(count: u32, vocab_live: u32) -> Vec<u32> {
    (0..count).map(|index| threefry([0, 27], [index, 0])[0] % vocab_live).collect()
}
