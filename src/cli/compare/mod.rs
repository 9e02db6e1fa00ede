//! `deltic compare`: the same steps on two backends, op by op, or one backend against a reference file of taps.
//!
//! Exits with 1 if anything lies beyond its tolerance. The steps and the arithmetic are the runner's and the backend
//! seam's; this file opens both sides and prints.

mod reference;

use std::fmt::Write as _;
use std::process::ExitCode;

use serde_json::{Map, Value, json};

use super::args::{BackendKind, BackendSpec, CompareArgs, ModelArgs};
use super::files::ModelFiles;
use super::open::{OpenOptions, open};
use super::{print, print_json};
use crate::backend::compare::Difference;
use crate::backend::cpu::{CpuOptions, Isa};
use crate::backend::program::Scope;
use crate::backend::tolerance::{Summary, Tolerance};
use crate::base::Result;
use crate::runner::compare::{DRAFTS, TOKENS_AHEAD, compare_steps};

pub fn run(args: &CompareArgs) -> Result<ExitCode> {
    let files = ModelFiles::open(args.model.model.as_deref())?;
    if let Some(path) = &args.reference {
        return reference::run(args, &files, path);
    }
    let spec_b = args.b.clone().unwrap_or_else(plainest);
    let tokenizer = files.tokenizer()?;
    let prompt = tokenizer.encode_text(&args.prompt);
    let model_args = with_context(&args.model, prompt.len() as u32 + 2 * TOKENS_AHEAD);
    let vocab_live = Some(tokenizer.vocab_live() as u32);
    let options = OpenOptions { drafts_max: DRAFTS, vocab_live, quiet: args.json, ..Default::default() };
    let mut a = open(&files, &model_args, &args.a, options)?;
    let mut b = open(&files, &model_args, &spec_b, OpenOptions { quiet: true, ..options })?;

    let mut summary = Summary::new(tolerance(args));
    compare_steps(&mut a, &mut b, &prompt, args.free, &mut |step, difference| summary.add(step, difference))?;
    let sides = Sides { a: args.a.to_string(), b: spec_b.to_string(), free: args.free };
    if args.json {
        print_json(&to_json(&sides, &summary, args))?;
    } else {
        print(&table(&sides, &summary))?;
    }
    Ok(exit_code(summary.passed()))
}

/// What any other backend is compared with: scalar code without threads.
pub fn plainest() -> BackendSpec {
    BackendSpec { kind: BackendKind::Cpu, cpu: CpuOptions { threads: Some(1), isa: Some(Isa::Baseline) } }
}

/// A cache that holds just what the steps need, unless a flag asks for more: it is copied between the sides.
pub fn with_context(args: &ModelArgs, tokens: u32) -> ModelArgs {
    ModelArgs { max_context: Some(args.max_context.unwrap_or(tokens)), ..args.clone() }
}

/// The two sides by name.
struct Sides {
    a: String,
    b: String,
    free: bool,
}

fn tolerance(args: &CompareArgs) -> Tolerance {
    match args.tolerance {
        Some(tolerance) => Tolerance::uniform(tolerance),
        None if args.free => Tolerance::adding_up(args.model.activation.dtype()),
        None => Tolerance::SAME_OPERANDS,
    }
}

fn exit_code(passed: bool) -> ExitCode {
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One line per kind of op, then the first failure.
fn table(sides: &Sides, summary: &Summary) -> String {
    let mut text = String::new();
    let mut line = |line: String| writeln!(text, "{line}").expect("a String takes all");
    let how = if sides.free { "each on its own, errors adding up" } else { "each op of B from A's operands" };
    line(format!("A {}, B {}: {how}", sides.a, sides.b));
    line(format!("{:<15} {:>8} {:>12} {:>12}  worst at", "op", "operands", "relative RMS", "largest"));
    for op in &summary.ops {
        let (step, worst) = &op.worst;
        let at = if op.worst_relative_rms > 0.0 { place(step, worst) } else { "equal".to_owned() };
        let (relative, largest) = (op.worst_relative_rms, op.worst_max_abs);
        line(format!("{:<15} {:>8} {relative:>12.1e} {largest:>12.1e}  {at}", op.op, op.count));
    }
    let Tolerance { bf16, f32 } = summary.tolerance;
    line(match &summary.first_failure {
        None => format!("passed: within {bf16} where bf16 is stored, {f32} where f32 is, ids equal but for near-ties"),
        Some((step, first)) => format!(
            "FAILED first at {} ({}, {}): relative RMS {:.1e}, largest {:.1e} at row {} column {}; the tolerance is {}",
            place(step, first),
            first.op,
            first.operand,
            first.relative_rms,
            first.max_abs,
            first.worst.0,
            first.worst.1,
            summary.tolerance.of(first.dtype)
        ),
    });
    text
}

fn place(step: &str, difference: &Difference) -> String {
    format!("{step}, op {}, {}, {}", difference.index, scope(difference.scope), difference.operand)
}

fn scope(scope: Scope) -> String {
    match scope {
        Scope::Model => "model".to_owned(),
        Scope::Layer(layer) => format!("layer {layer}"),
        Scope::Mtp(0) => "draft head upkeep".to_owned(),
        Scope::Mtp(pass) => format!("draft {pass}"),
    }
}

/// Infinite errors, which NaN and wrong ids have, are null in JSON.
fn to_json(sides: &Sides, summary: &Summary, args: &CompareArgs) -> Value {
    let ops: Map<String, Value> = summary
        .ops
        .iter()
        .map(|op| {
            let worst = json!({
                "count": op.count,
                "worst_relative_rms": op.worst_relative_rms,
                "worst_max_abs": op.worst_max_abs,
            });
            (op.op.to_owned(), worst)
        })
        .collect();
    let first_failure = summary.first_failure.as_ref().map(|(step, first)| {
        json!({
            "step": step,
            "index": first.index,
            "scope": scope(first.scope),
            "op": first.op,
            "operand": first.operand,
            "relative_rms": first.relative_rms,
            "max_abs": first.max_abs,
            "tolerance": summary.tolerance.of(first.dtype),
        })
    });
    json!({
        "a": sides.a,
        "b": sides.b,
        "free": sides.free,
        "tolerance": summary.tolerance.of(args.model.activation.dtype()),
        "passed": summary.passed(),
        "first_failure": first_failure,
        "ops": ops,
    })
}
