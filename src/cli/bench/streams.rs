//! Decoding through the engine: several requests at once, with drafts or without. In the same run the same prompts are
//! decoded one at a time without drafts, for the ids and for the comparison.

use std::process::ExitCode;
use std::time::Instant;

use super::super::eval::parse_cases;
use super::super::session::{Session, render_chat};
use super::check::{OutputCheck, cases_file};
use super::report::{Bench, Row};
use super::{BenchArgs, DECODE_TOKENS, Subject, bandwidth, check_room, finish, threads};
use crate::base::rng::threefry;
use crate::base::{Error, Result};
use crate::cli::args::BenchKind;
use crate::cli::files::ModelFiles;
use crate::engine::{DepthOptions, Event, Refused, Request};
use crate::runner::engine::Engine;

/// Measuring goes on for this long, and for one round at least.
const SECONDS: f64 = 3.0;

pub fn run(args: &BenchArgs) -> Result<ExitCode> {
    if args.kind != BenchKind::Decode {
        return Err(Error::input(
            "--streams and --speculate go with bench decode",
            "leave them out, or measure decode",
        ));
    }
    let (threads, tokens) = (threads(args), args.tokens.unwrap_or(DECODE_TOKENS));
    let mut read_gb_per_s = bandwidth::read_gb_per_s(threads);
    let mut subject = Subject::open(args, 1, DepthOptions::fixed(0))?;
    check_room(subject.runner(), args)?;
    eprintln!("{} on {}", subject.name(args), subject.runner().backend().caps().name);
    let prompts = prompts(&mut subject, args)?;
    let alone = measure(subject.engine(), &prompts, 1, tokens)?;
    // Its memory goes before the other's comes.
    drop(subject);
    let mut subject = Subject::open(args, args.streams, args.speculate.depth())?;
    let together = measure(subject.engine(), &prompts, args.streams, tokens)?;
    read_gb_per_s = read_gb_per_s.max(bandwidth::read_gb_per_s(threads));
    let bench = Bench {
        shape: subject.name(args),
        backend: subject.runner().backend().caps().kind.to_owned(),
        read_gb_per_s,
        rows: vec![alone.row(), together.row()],
        steps: Vec::new(),
        check: None,
    };
    let same_ids = compare(&alone, &together);
    finish(bench, args, || Ok(same_ids.and(subject.check(args, None)?)))
}

/// One prompt for each stream: conversations where the checkpoint's held-out cases are at hand, since drafts stand as
/// often as the text is foreseeable; else ids of which only the number matters.
fn prompts(subject: &mut Subject, args: &BenchArgs) -> Result<Vec<Vec<u32>>> {
    let streams = args.streams as usize;
    if let Subject::Checkpoint { files, session } = &*subject
        && let Ok(text) = std::fs::read_to_string(cases_file(args))
    {
        return conversations(files, session, &text, streams);
    }
    let vocab_live = subject.runner().model().options.vocab_live;
    let prompt = |stream| (0..args.context).map(|index| threefry([stream, 28], [index, 0])[0] % vocab_live).collect();
    Ok((0..args.streams).map(prompt).collect())
}

fn conversations(files: &ModelFiles, session: &Session, text: &str, streams: usize) -> Result<Vec<Vec<u32>>> {
    let (template, cases) = (files.template()?, parse_cases(text).map_err(|error| error.within("eval.jsonl"))?);
    // A single stream sees several tasks too, one after the other.
    let count = streams.max(PROMPTS_MIN).min(cases.len());
    (0..count)
        .map(|index| {
            let case = &cases[index * cases.len() / count];
            let tools = case.tools.clone().unwrap_or_default();
            render_chat(&template, &session.tokenizer, &case.messages, &tools, Some(case.thinking))
        })
        .collect()
}

/// Conversations that are measured, whatever the number of streams.
const PROMPTS_MIN: usize = 11;

/// What was measured, and the ids.
struct Measured {
    streams: u32,
    depth: DepthOptions,
    ids: Vec<Vec<u32>>,
    repeats_agree: bool,
    /// Tokens a second of each round.
    rates: Vec<f64>,
    step_seconds: f64,
    mean_accepted: Option<f64>,
}

/// Decodes `tokens` tokens after each prompt, `streams` prompts at a time, round after round.
fn measure(engine: &mut Engine, prompts: &[Vec<u32>], streams: u32, tokens: u32) -> Result<Measured> {
    let depth = engine.core().options().depth;
    // Also compiles every program.
    let ids = round(engine, prompts, streams, tokens)?.ids;
    let before = engine.accepted_counts().to_vec();
    let (mut rates, mut repeats_agree, mut steps, mut seconds) = (Vec::new(), true, 0, 0.0);
    let started = Instant::now();
    while rates.is_empty() || started.elapsed().as_secs_f64() < SECONDS {
        let round = round(engine, prompts, streams, tokens)?;
        rates.push(f64::from(round.clocked_tokens) / round.seconds);
        repeats_agree &= round.ids == ids;
        steps += round.clocked_steps;
        seconds += round.seconds;
    }
    rates.sort_by(f64::total_cmp);
    let counts: Vec<u64> = engine.accepted_counts().iter().zip(&before).map(|(now, then)| now - then).collect();
    let verifications: u64 = counts.iter().sum();
    let accepted: u64 = (0..).zip(&counts).map(|(drafts, count)| drafts * count).sum();
    let mean_accepted = (depth.depth_max > 0).then(|| accepted as f64 / verifications.max(1) as f64);
    let step_seconds = seconds / f64::from(steps.max(1));
    Ok(Measured { streams, depth, ids, repeats_agree, rates, step_seconds, mean_accepted })
}

/// All prompts once.
struct Round {
    ids: Vec<Vec<u32>>,
    /// Tokens, steps and seconds while all streams decoded: from when each had its first token to when the first ended.
    clocked_tokens: u32,
    clocked_steps: u32,
    seconds: f64,
}

fn round(engine: &mut Engine, prompts: &[Vec<u32>], streams: u32, tokens: u32) -> Result<Round> {
    let mut round = Round { ids: Vec::new(), clocked_tokens: 0, clocked_steps: 0, seconds: 0.0 };
    for group in prompts.chunks(streams as usize) {
        let mut requests = Vec::with_capacity(group.len());
        for prompt in group {
            // One more, since the first comes with the prompt.
            let request = Request { ignore_end: true, ..Request::new(prompt.clone(), tokens + 1) };
            requests.push(engine.submit(request).map_err(Refused::into_error)?);
        }
        let mut ids = vec![Vec::new(); group.len()];
        let mut ended = 0;
        while ended < group.len() {
            let clocked = ended == 0 && ids.iter().all(|ids| !ids.is_empty());
            let started = Instant::now();
            let events = engine.step()?;
            if clocked {
                round.seconds += started.elapsed().as_secs_f64();
                round.clocked_steps += 1;
            }
            for event in events {
                match event {
                    Event::Token { request, token, .. } => {
                        let stream = requests.iter().position(|id| *id == request).expect("one of the group");
                        ids[stream].push(token);
                        round.clocked_tokens += u32::from(clocked);
                    }
                    Event::Finished { .. } => ended += 1,
                }
            }
        }
        round.ids.extend(ids);
    }
    if round.clocked_steps == 0 {
        return Err(Error::input(
            format!("with {tokens} tokens each, {streams} streams never decode all at once"),
            "raise --tokens",
        ));
    }
    Ok(round)
}

impl Measured {
    fn row(&self) -> Row {
        Row {
            kind: "decode",
            streams: self.streams,
            depth: self.depth.depth_max,
            adaptive: self.depth.adaptive,
            mean_accepted: self.mean_accepted,
            rows: self.streams * (1 + self.depth.depth_max),
            tokens_per_s: self.rates[self.rates.len() / 2],
            best_tokens_per_s: self.rates[self.rates.len() - 1],
            step_ms: 1e3 * self.step_seconds,
            gb_per_s: None,
            share_of_copy: None,
        }
    }
}

/// The ids together and with drafts against those of one stream without.
fn compare(alone: &Measured, together: &Measured) -> OutputCheck {
    let equal = alone.ids.iter().zip(&together.ids).filter(|(a, b)| a == b).count();
    let agree = alone.repeats_agree && together.repeats_agree;
    let count = alone.ids.len();
    let repeats = if agree { "" } else { ", and repeated runs chose different ids" };
    OutputCheck {
        kind: "ids of one stream without drafts",
        passed: agree && equal == count,
        detail: format!("{equal} of {count} streams have them{repeats}"),
    }
}
