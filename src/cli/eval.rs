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

use super::args::EvalArgs;
use super::files::ModelFiles;
use super::progress::{Progress, Unit};
use super::session::{Answer, Session, read_text, render_chat};
use super::{print, print_json};
use crate::base::{Error, Result, SamplingParams};
use crate::runner::single::Finish;
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
    let mut session = Session::open(&files, &args.model, &args.backend.spec(), args.json)?;
    let mut tasks: BTreeMap<String, Counts> = BTreeMap::new();
    let mut progress = Progress::new("cases", Unit::Cases);
    for (index, case) in cases.iter().enumerate() {
        progress.set(index as u64, cases.len() as u64);
        let verdict = run_case(&mut session, &template, case, args.max_tokens)
            .map_err(|error| error.within(format!("case {} of {}", index + 1, args.file.display())))?;
        let counts = tasks.entry(case.task.clone()).or_default();
        counts.cases += 1;
        counts.right += u32::from(verdict.right);
        counts.exact += u32::from(verdict.exact);
        counts.greedy_exact_cases += u32::from(case.greedy_exact);
        counts.greedy_exact += u32::from(case.greedy_exact && verdict.exact);
        if args.show && !verdict.exact {
            eprintln!("{}: expected {:?}\n    found {:?}", case.task, case.reference, verdict.text);
        }
    }
    drop(progress);
    if args.json {
        print_json(&to_json(&tasks))?
    } else {
        print(&table(&tasks))?
    }
    Ok(ExitCode::SUCCESS)
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
    let tools = case.tools.clone().unwrap_or_default();
    let prompt = render_chat(template, &session.tokenizer, &case.messages, &tools, Some(case.thinking))?;
    let answer = session.answer(&prompt, &tools, &SamplingParams::default(), max_tokens, &mut |_| Ok(()))?;
    let text = session.tokenizer.decode(&answer.ids, false);
    let reference_ids = session.tokenizer.encode_template(&case.reference);
    let (_, reference_calls) = read_text(&session.tokenizer, &prompt, &reference_ids, &tools)?;
    let right = if !reference_calls.is_empty() {
        let calls = &answer.tool_calls;
        calls.len() == reference_calls.len() && calls.iter().zip(&reference_calls).all(|(a, b)| a.same_as(b))
    } else if case.task == "story" {
        answer.finish == Finish::Stop && !answer.content.trim().is_empty()
    } else {
        holds_answer(&answer, &case.answer)
    };
    Ok(Verdict { right, exact: text == case.reference, text, ids: answer.ids })
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

fn total(tasks: &BTreeMap<String, Counts>) -> Counts {
    tasks.values().fold(Counts::default(), |sum, counts| Counts {
        cases: sum.cases + counts.cases,
        right: sum.right + counts.right,
        exact: sum.exact + counts.exact,
        greedy_exact_cases: sum.greedy_exact_cases + counts.greedy_exact_cases,
        greedy_exact: sum.greedy_exact + counts.greedy_exact,
    })
}

fn to_json(tasks: &BTreeMap<String, Counts>) -> Value {
    let counts = |counts: &Counts| json!({"cases": counts.cases, "right": counts.right, "exact": counts.exact});
    let by_task: serde_json::Map<String, Value> = tasks.iter().map(|(name, c)| (name.clone(), counts(c))).collect();
    let sum = total(tasks);
    json!({
        "tasks": by_task,
        "cases": sum.cases,
        "right": sum.right,
        "exact": sum.exact,
        "greedy_exact": {"cases": sum.greedy_exact_cases, "exact": sum.greedy_exact},
    })
}

fn table(tasks: &BTreeMap<String, Counts>) -> String {
    let mut text = String::from("task          cases  right  exact\n");
    let sum = total(tasks);
    for (name, counts) in tasks.iter().map(|(name, counts)| (name.as_str(), counts)).chain([("all", &sum)]) {
        let Counts { cases, right, exact, .. } = counts;
        writeln!(text, "{name:<12} {cases:>6} {right:>6} {exact:>6}").expect("a String takes all");
    }
    let (exact, of) = (sum.greedy_exact, sum.greedy_exact_cases);
    writeln!(text, "{exact} of {of} cases that the reference decodes exactly").expect("a String takes all");
    text
}
