//! `deltic eval`: decodes a file of cases greedily and says how many answers are right and how many exact.
//!
//! Right: the content holds `answer`; where the reference holds a tool call, the parsed call equals the parsed
//! reference; a story has stopped by itself and is not empty. Exact: the decoded text, special tokens shown, equals
//! `reference`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use serde::Deserialize;
use serde_json::{Value, json};

use super::args::{EvalArgs, Speculate, SpeculateArgs};
use super::files::ModelFiles;
use super::progress::{Progress, Unit};
use super::session::{Answer, Finish, Job, Session, SessionOptions, read_text, render_chat};
use super::{print, print_json};
use crate::base::{Error, Result, SamplingParams};
use crate::runner::engine::EngineOptions;
use crate::text::ChatTemplate;

/// One line of a file of cases.
#[derive(Debug, Deserialize)]
pub struct Case {
    pub task: String,
    pub thinking: bool,
    pub messages: Vec<Value>,
    pub tools: Option<Vec<Value>>,
    pub answer: Value,
    pub reference: String,
    /// Whether the reference implementation decodes exactly the reference.
    #[serde(default)]
    pub greedy_exact: bool,
}

/// Counts of one task.
#[derive(Debug, Clone, Default)]
struct Counts {
    cases: u32,
    right: u32,
    exact: u32,
    greedy_exact_cases: u32,
    greedy_exact: u32,
}

pub fn run(args: &EvalArgs) -> Result<ExitCode> {
    let cases = read_cases(args)?;
    let files = ModelFiles::open(args.model.model.as_deref())?;
    let template = files.template()?;
    let options = |engine| SessionOptions { engine, streams: args.streams, quiet: args.json };
    let mut session = Session::open(&files, &args.model, &args.backend.spec(), options(fixed_depth(0, 0.0)?))?;
    let jobs = jobs(&session, &template, &cases, args)?;
    let plain = decode(&mut session, &jobs, "cases")?;
    let mut tasks: BTreeMap<String, Counts> = BTreeMap::new();
    for ((case, job), answer) in cases.iter().zip(&jobs).zip(&plain) {
        let verdict = judge(&session, case, job, answer)?;
        tasks.entry(case.task.clone()).or_default().add(case, &verdict);
        if args.show && !verdict.exact {
            eprintln!("{}: expected {:?}\n    found {:?}", case.task, case.reference, verdict.text);
        }
    }
    let speculation = match args.speculate {
        None => None,
        Some(depth) => {
            let engine = fixed_depth(depth, args.draft_noise)?;
            let mut session = Session::open(&files, &args.model, &args.backend.spec(), options(engine))?;
            let drafted = decode(&mut session, &jobs, "cases with drafts")?;
            Some(Speculation::new(depth, &plain, &drafted, session.engine.accepted_counts()))
        }
    };
    match args.json {
        true => print_json(&to_json(&tasks, speculation.as_ref()))?,
        false => print(&table(&tasks, speculation.as_ref()))?,
    }
    let lossless = speculation.is_none_or(|found| found.violations == 0);
    Ok(if lossless { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn fixed_depth(depth: u32, draft_noise: f32) -> Result<EngineOptions> {
    SpeculateArgs { speculate: Speculate::Depth(depth), draft_noise }.options()
}

/// What is asked in each case, in their order.
fn jobs(session: &Session, template: &ChatTemplate, cases: &[Case], args: &EvalArgs) -> Result<Vec<Job>> {
    let named = |(index, case)| {
        job(session, template, case, args.max_tokens)
            .map_err(|error| error.within(format!("case {} of {}", index + 1, args.file.display())))
    };
    cases.iter().enumerate().map(named).collect()
}

/// Greedy answers to all jobs, in their order.
fn decode(session: &mut Session, jobs: &[Job], what: &'static str) -> Result<Vec<Answer>> {
    let mut progress = Progress::new(what, Unit::Cases);
    session.answers(jobs.to_vec(), &mut |done| progress.set(done as u64, jobs.len() as u64))
}

/// What became of one case.
pub struct Verdict {
    pub right: bool,
    pub exact: bool,
    /// The decoded text with special tokens.
    pub text: String,
    pub ids: Vec<u32>,
}

/// Decodes one case greedily.
pub fn run_case(session: &mut Session, template: &ChatTemplate, case: &Case, max_tokens: u32) -> Result<Verdict> {
    let job = job(session, template, case, max_tokens)?;
    let answer = session.answer(job.clone(), &|| false, &mut |_| Ok(()))?;
    judge(session, case, &job, &answer)
}

fn job(session: &Session, template: &ChatTemplate, case: &Case, max_tokens: u32) -> Result<Job> {
    let tools = case.tools.clone().unwrap_or_default();
    let prompt = render_chat(template, &session.tokenizer, &case.messages, &tools, Some(case.thinking))?;
    Ok(Job { prompt, tools, sampling: SamplingParams::default(), max_tokens })
}

fn judge(session: &Session, case: &Case, job: &Job, answer: &Answer) -> Result<Verdict> {
    let text = session.tokenizer.decode(&answer.ids, false);
    let reference_ids = session.tokenizer.encode_template(&case.reference);
    let (_, reference_calls) = read_text(&session.tokenizer, &job.prompt, &reference_ids, &job.tools)?;
    let right = if !reference_calls.is_empty() {
        let calls = &answer.tool_calls;
        calls.len() == reference_calls.len() && calls.iter().zip(&reference_calls).all(|(a, b)| a.same_as(b))
    } else if case.task == "story" {
        answer.finish == Finish::Stop && !answer.content.trim().is_empty()
    } else {
        holds_answer(answer, &case.answer)
    };
    Ok(Verdict { right, exact: text == case.reference, text, ids: answer.ids.clone() })
}

/// A run with drafts against the same cases without.
struct Speculation {
    depth: u32,
    /// Cases with the same ids.
    identical: usize,
    /// First differences that no near-tie explains. On this backend nothing may differ, so each difference is one.
    violations: usize,
    compared_tokens: usize,
    accepted_counts: Vec<u64>,
}

impl Speculation {
    fn new(depth: u32, plain: &[Answer], drafted: &[Answer], accepted_counts: &[u64]) -> Speculation {
        let identical = plain.iter().zip(drafted).filter(|(a, b)| a.ids == b.ids).count();
        Speculation {
            depth,
            identical,
            violations: plain.len() - identical,
            compared_tokens: plain.iter().map(|answer| answer.ids.len()).sum(),
            accepted_counts: accepted_counts.to_vec(),
        }
    }

    /// Drafts that stood per verification.
    fn mean_accepted(&self) -> f64 {
        let verifications: u64 = self.accepted_counts.iter().sum();
        let accepted: u64 = (0..).zip(&self.accepted_counts).map(|(drafts, count)| drafts * count).sum();
        accepted as f64 / verifications.max(1) as f64
    }

    fn to_json(&self) -> Value {
        json!({
            "depth": self.depth,
            "identical": self.identical,
            "near_ties": 0,
            "violations": self.violations,
            "compared_tokens": self.compared_tokens,
            "accepted_counts": self.accepted_counts,
            "mean_accepted": self.mean_accepted(),
        })
    }
}

fn holds_answer(answer: &Answer, expected: &Value) -> bool {
    match expected {
        Value::String(text) => answer.content.contains(text.as_str()),
        other => answer.content.contains(&other.to_string()),
    }
}

pub fn parse_cases(text: &str) -> Result<Vec<Case>> {
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let parse = |(number, line): (u32, &str)| {
        serde_json::from_str(line).map_err(|error| {
            Error::input(
                format!("line {number}: {error}"),
                "each line is a JSON object with task, thinking, messages, tools, answer and reference",
            )
        })
    };
    lines.map(parse).collect()
}

fn read_cases(args: &EvalArgs) -> Result<Vec<Case>> {
    let name = args.file.display();
    let text = std::fs::read_to_string(&args.file).map_err(|error| {
        Error::input(format!("{name}: {error}"), "give --file a readable file of cases, one JSON object a line")
    })?;
    let cases = parse_cases(&text).map_err(|error| error.within(&name))?;
    let chosen: Vec<Case> = cases
        .into_iter()
        .filter(|case| args.task.as_ref().is_none_or(|task| *task == case.task))
        .step_by(args.every as usize)
        .collect();
    if chosen.is_empty() {
        return Err(Error::input(
            format!("{name}: no case is left to run"),
            "check --task, and that the file has lines",
        ));
    }
    Ok(chosen)
}

impl Counts {
    fn add(&mut self, case: &Case, verdict: &Verdict) {
        self.cases += 1;
        self.right += u32::from(verdict.right);
        self.exact += u32::from(verdict.exact);
        self.greedy_exact_cases += u32::from(case.greedy_exact);
        self.greedy_exact += u32::from(case.greedy_exact && verdict.exact);
    }
}

fn total(tasks: &BTreeMap<String, Counts>) -> Counts {
    tasks.values().fold(Counts::default(), |sum, counts| Counts {
        cases: sum.cases + counts.cases,
        right: sum.right + counts.right,
        exact: sum.exact + counts.exact,
        greedy_exact_cases: sum.greedy_exact_cases + counts.greedy_exact_cases,
        greedy_exact: sum.greedy_exact + counts.greedy_exact,
    })
}

fn to_json(tasks: &BTreeMap<String, Counts>, speculation: Option<&Speculation>) -> Value {
    let counts = |counts: &Counts| json!({"cases": counts.cases, "right": counts.right, "exact": counts.exact});
    let by_task: serde_json::Map<String, Value> = tasks.iter().map(|(name, c)| (name.clone(), counts(c))).collect();
    let sum = total(tasks);
    let mut report = json!({
        "tasks": by_task,
        "cases": sum.cases,
        "right": sum.right,
        "exact": sum.exact,
        "greedy_exact": {"cases": sum.greedy_exact_cases, "exact": sum.greedy_exact},
    });
    if let Some(speculation) = speculation {
        report["speculation"] = speculation.to_json();
    }
    report
}

fn table(tasks: &BTreeMap<String, Counts>, speculation: Option<&Speculation>) -> String {
    let mut text = String::from("task          cases  right  exact\n");
    let sum = total(tasks);
    for (name, counts) in tasks.iter().map(|(name, counts)| (name.as_str(), counts)).chain([("all", &sum)]) {
        let Counts { cases, right, exact, .. } = counts;
        writeln!(text, "{name:<12} {cases:>6} {right:>6} {exact:>6}").expect("a String takes all");
    }
    let (exact, of) = (sum.greedy_exact, sum.greedy_exact_cases);
    writeln!(text, "{exact} of {of} cases that the reference decodes exactly").expect("a String takes all");
    if let Some(found) = speculation {
        let line = format!(
            "depth {}: {} of {} cases identical, {} tokens compared, drafts accepted {:?}, {:.2} a verification",
            found.depth,
            found.identical,
            sum.cases,
            found.compared_tokens,
            found.accepted_counts,
            found.mean_accepted(),
        );
        writeln!(text, "{line}").expect("a String takes all");
    }
    text
}
