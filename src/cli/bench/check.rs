//! Whether what was measured was right: the check that goes with every benchmark.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::super::compare::{plainest, with_context};
use super::super::eval::{Case, parse_cases, run_case};
use super::super::files::ModelFiles;
use super::super::open::{OpenOptions, open_random};
use super::super::session::{Job, Session, render_chat};
use super::timing::{Timed, decode_run, prefill_in_steps, prefill_run};
use super::tokens;
use crate::backend::capture::read_f32;
use crate::backend::step::CHUNK_ROWS;
use crate::backend::tolerance::{Summary, Tolerance};
use crate::base::{Error, ModelConfig, Result, SamplingParams};
use crate::cli::args::BenchArgs;
use crate::runner::Runner;
use crate::runner::compare::{TOKENS_AHEAD, compare_steps};

/// Held-out cases that are decoded; spread over the file, so over the tasks.
const CASES: usize = 13;
/// Most tokens of one case's answer.
const ANSWER_TOKENS_MAX: u32 = 400;
/// A question that every model of the family answers, and how.
const QUESTION: (&str, &str) = ("What is 2+2? Answer briefly.", "4");
/// Steps of one row that a check may take: they cost as much as a whole benchmark.
const REPLAY_STEPS_MAX: usize = 160;
/// Ids compared after a prompt that was cut to fit that.
const REPLAY_IDS: u32 = 16;
/// Layers of the cut that is compared op by op: three with the delta rule, one with attention.
const CUT_LAYERS: usize = 4;
/// Prompt of that comparison: one whole chunk of the delta rule and a bit.
const CUT_TOKENS: u32 = CHUNK_ROWS + 6;

#[derive(Debug, Clone)]
pub struct OutputCheck {
    pub kind: &'static str,
    pub passed: bool,
    /// One line for a person.
    pub detail: String,
}

impl OutputCheck {
    pub fn line(&self) -> String {
        format!("output check, {}: {} ({})\n", self.kind, if self.passed { "passed" } else { "FAILED" }, self.detail)
    }

    pub fn to_json(&self) -> Value {
        json!({"kind": self.kind, "passed": self.passed, "detail": self.detail})
    }

    pub fn and(self, other: OutputCheck) -> OutputCheck {
        let detail = format!("{}; {}", self.detail, other.detail);
        OutputCheck { kind: self.kind, passed: self.passed && other.passed, detail }
    }
}

/// A checkpoint: its own held-out cases where the file is at hand, else a question.
pub fn checkpoint(files: &ModelFiles, args: &BenchArgs, session: &mut Session) -> Result<OutputCheck> {
    let template = files.template()?;
    if let Ok(text) = std::fs::read_to_string(cases_file(args)) {
        let cases = parse_cases(&text).map_err(|error| error.within("eval.jsonl"))?;
        let exact: Vec<Case> = cases.into_iter().filter(|case| case.greedy_exact).collect();
        if exact.len() >= CASES {
            return held_out_cases(session, &template, &exact);
        }
    }
    let message = json!({"role": "user", "content": QUESTION.0});
    let prompt = render_chat(&template, &session.tokenizer, &[message], &[], Some(false))?;
    let job = Job { prompt, tools: Vec::new(), sampling: SamplingParams::default(), max_tokens: ANSWER_TOKENS_MAX };
    let answer = session.answer(job, &|| false, &mut |_| Ok(()))?;
    Ok(OutputCheck {
        kind: "question",
        passed: answer.content.contains(QUESTION.1),
        detail: format!("{:?} was answered {:?}", QUESTION.0, answer.content),
    })
}

/// Where a checkpoint's held-out cases are, if it has some.
pub fn cases_file(args: &BenchArgs) -> PathBuf {
    // The built-in model's cases are not in the binary; a working copy has them.
    args.model.model.clone().unwrap_or_else(|| PathBuf::from("models/demo")).join("eval.jsonl")
}

fn held_out_cases(session: &mut Session, template: &crate::text::ChatTemplate, cases: &[Case]) -> Result<OutputCheck> {
    let (mut equal, mut count, mut first_wrong) = (0, 0, None);
    for case in cases.iter().step_by(cases.len() / CASES) {
        let verdict = run_case(session, template, case, ANSWER_TOKENS_MAX)?;
        count += 1;
        if verdict.ids == session.tokenizer.encode_template(&case.reference) {
            equal += 1;
        } else {
            first_wrong.get_or_insert(format!(", first {:?} for {:?}", verdict.text, case.reference));
        }
    }
    let detail = format!("{equal} of {count} answers equal the reference's ids{}", first_wrong.unwrap_or_default());
    Ok(OutputCheck { kind: "held-out cases", passed: equal == count, detail })
}

/// Random weights: finite logits, and the timed ids again from a fresh run of one row at a time.
pub fn random(runner: &mut Runner, timed: Option<&Timed>) -> Result<OutputCheck> {
    let kind = "random weights";
    let failed = |detail: String| Ok(OutputCheck { kind, passed: false, detail });
    let logits = runner.model().workspace.logits.with_rows(1);
    let logits = read_f32(runner.backend(), logits)?;
    let vocab_live = runner.model().options.vocab_live as usize;
    if let Some(id) = logits[..vocab_live].iter().position(|logit| !logit.is_finite()) {
        return failed(format!("the logit of token {id} is {}", logits[id]));
    }
    if timed.is_some_and(|timed| !timed.repeats_agree) {
        return failed("repeated runs chose different ids".to_owned());
    }
    let (prompt, expected) = match timed {
        Some(timed) if timed.prompt.len() + timed.ids.len() <= REPLAY_STEPS_MAX => {
            (timed.prompt.clone(), timed.ids.clone())
        }
        _ => {
            let prompt = timed.map_or_else(|| tokens(CUT_TOKENS, vocab_live as u32), |timed| timed.prompt.clone());
            let prompt = prompt[..prompt.len().min(CUT_TOKENS as usize)].to_vec();
            let first = prefill_run(runner, &prompt)?;
            let ids = decode_run(runner, &prompt, first, REPLAY_IDS)?.1;
            (prompt, ids)
        }
    };
    let first = prefill_in_steps(runner, &prompt, 1)?;
    let found = decode_run(runner, &prompt, first, expected.len() as u32 - 1)?.1;
    match found.iter().zip(&expected).position(|(found, expected)| found != expected) {
        Some(at) => failed(format!(
            "one row at a time chose {} where the timed run chose {}, {at} tokens after a prompt of {}",
            found[at],
            expected[at],
            prompt.len()
        )),
        None => Ok(OutputCheck {
            kind,
            passed: true,
            detail: format!(
                "logits finite; one row at a time chooses the same {} ids after a prompt of {}",
                expected.len(),
                prompt.len()
            ),
        }),
    }
}

/// The shape's first layers against scalar code, op by op.
pub fn cut_against_baseline(mut config: ModelConfig, args: &BenchArgs) -> Result<OutputCheck> {
    config.layers.truncate(CUT_LAYERS);
    let model_args = with_context(&args.model, CUT_TOKENS + 2 * TOKENS_AHEAD);
    let prompt = tokens(CUT_TOKENS, config.vocab);
    let layers = config.layers.len();
    let mut a = open_random(config.clone(), &model_args, &args.backend.spec(), OpenOptions::default())?;
    let mut b = open_random(config, &model_args, &plainest(), OpenOptions::default())?;
    let mut summary = Summary::new(Tolerance::SAME_OPERANDS);
    compare_steps(&mut a, &mut b, &prompt, false, &mut |step, difference| summary.add(step, difference))
        .map_err(|error: Error| error.within("the comparison of a cut with scalar code"))?;
    let detail = match &summary.first_failure {
        None => format!("{layers} layers agree with scalar code op by op"),
        Some((step, first)) => format!(
            "{layers} layers differ from scalar code at {step}, op {}, {} ({}): relative RMS {:.1e}",
            first.index, first.op, first.operand, first.relative_rms
        ),
    };
    Ok(OutputCheck { kind: "random weights", passed: summary.passed(), detail })
}
