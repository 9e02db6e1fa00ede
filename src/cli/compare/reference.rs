//! `deltic compare --reference FILE`: one backend against what a reference implementation computed. Needs no tokenizer.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::super::args::{CompareArgs, ModelArgs};
use super::super::files::ModelFiles;
use super::super::open::{OpenOptions, open};
use super::super::{print, print_json};
use super::{exit_code, with_context};
use crate::backend::tolerance::Tolerance;
use crate::base::{Error, Result};
use crate::runner::reference::{Reference, ReferenceReport, compare_reference};

pub fn run(args: &CompareArgs, files: &ModelFiles, path: &Path) -> Result<ExitCode> {
    let name = path.display();
    let bytes = std::fs::read(path)
        .map_err(|error| Error::input(format!("{name}: {error}"), "give --reference a readable safetensors file"))?;
    let reference = Reference::parse(&bytes).map_err(|error| error.within(&name))?;
    let rows = args.model.chunk_rows.unwrap_or(reference.ids.len() as u32);
    let model_args = ModelArgs {
        chunk_rows: Some(rows),
        ..with_context(&args.model, reference.context_tokens() + reference.drafts())
    };
    let options = OpenOptions { drafts_max: reference.drafts(), quiet: args.json, ..Default::default() };
    let mut runner = open(files, &model_args, &args.a, options)?;
    let report = compare_reference(&mut runner, &reference).map_err(|error| error.within(&name))?;

    let activation = args.model.activation.dtype();
    let tolerance = args.tolerance.unwrap_or(Tolerance::adding_up(activation).of(activation));
    let passed = report.passed(tolerance);
    if args.json {
        print_json(&to_json(args, path, &report, tolerance))?;
    } else {
        print(&table(&report, tolerance))?;
    }
    Ok(exit_code(passed))
}

fn table(report: &ReferenceReport, tolerance: f64) -> String {
    let mut text = String::new();
    let mut line = |line: String| writeln!(text, "{line}").expect("a String takes all");
    line(format!("{:<22} {:>12} {:>12}", "tap", "relative RMS", "largest"));
    for tap in &report.taps {
        let beyond = if tap.relative_rms > tolerance { "  beyond" } else { "" };
        line(format!("{:<22} {:>12.1e} {:>12.1e}{beyond}", tap.name, tap.relative_rms, tap.max_abs));
    }
    if let Some((expected, found)) = &report.drafts {
        let verdict = if expected == found { "equal" } else { "DIFFERENT" };
        line(format!("drafts {found:?}, the reference's {expected:?}: {verdict}"));
    }
    if !report.not_in_reference.is_empty() {
        line(format!("not in the reference, so not compared: {}", report.not_in_reference.join(" ")));
    }
    if !report.not_in_program.is_empty() {
        line(format!("in the reference, not computed here: {}", report.not_in_program.join(" ")));
    }
    let count = report.taps.len();
    line(match report.first_beyond(tolerance) {
        Some(tap) => format!(
            "FAILED first at {}: relative RMS {:.1e}, largest {:.1e}; the tolerance is {tolerance}",
            tap.name, tap.relative_rms, tap.max_abs
        ),
        None if report.passed(tolerance) => format!("passed: {count} tensors within {tolerance}"),
        None => "FAILED: see above".to_owned(),
    });
    text
}

fn to_json(args: &CompareArgs, path: &Path, report: &ReferenceReport, tolerance: f64) -> Value {
    let taps: Vec<Value> = report
        .taps
        .iter()
        .map(|tap| json!({"name": tap.name, "relative_rms": tap.relative_rms, "max_abs": tap.max_abs}))
        .collect();
    let first = report.first_beyond(tolerance);
    json!({
        "a": args.a.to_string(),
        "reference": path.display().to_string(),
        "tolerance": tolerance,
        "passed": report.passed(tolerance),
        "first_failure": first.map(|tap| json!({
            "tap": tap.name, "relative_rms": tap.relative_rms, "max_abs": tap.max_abs,
        })),
        "taps": taps,
        "drafts": report.drafts.as_ref().map(|(expected, found)| json!({"expected": expected, "found": found})),
        "not_in_program": report.not_in_program,
        "not_in_reference": report.not_in_reference,
    })
}
