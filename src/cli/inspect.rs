//! `deltic inspect`: what a checkpoint holds, and its traps. Reads headers, no weights.

use std::fmt::Write as _;
use std::process::ExitCode;

use super::args::InspectArgs;
use super::files::ModelFiles;
use super::{print, print_json};
use crate::base::{Error, Result};
use crate::weights::{Inspection, inspect};

/// Exit code 0 if the checkpoint can be loaded, 2 if not.
pub fn run(args: &InspectArgs) -> Result<ExitCode> {
    let files = ModelFiles::open(args.model.as_deref())?;
    let inspection = inspect(&files.checkpoint)?;
    if args.json {
        let value = serde_json::to_value(&inspection).map_err(|error| {
            Error::failure(format!("the inspection has no JSON form: {error}"), "run inspect without --json")
        })?;
        print_json(&value)?;
    } else {
        print(&describe(&files.name, &inspection))?;
    }
    Ok(if inspection.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

fn describe(name: &str, inspection: &Inspection) -> String {
    let mut text = format!("{name}\n");
    let mut line = |line: String| writeln!(text, "{line}").expect("a String takes all");
    if let Some(config) = &inspection.config {
        let layers = config.layers.len();
        line(format!("{}, {layers} layers, hidden {}, vocabulary {}", config.model_type, config.hidden, config.vocab));
    }
    for shard in &inspection.shards {
        line(format!("  {:<44} {:>16} bytes", shard.name, shard.bytes));
    }
    line("part                tensors      parameters           bytes".to_owned());
    for part in &inspection.parts {
        line(format!("{:<18} {:>8} {:>15} {:>15}", part.name, part.tensors, part.parameters, part.bytes));
    }
    let dtypes: Vec<String> = inspection.dtypes.iter().map(|(dtype, count)| format!("{count} {dtype}")).collect();
    line(format!("{} parameters; tensors by type: {}", inspection.parameters, dtypes.join(", ")));
    if let Some(bytes) = inspection.loaded_bytes {
        line(format!("{bytes} bytes once loaded"));
    }
    for notice in &inspection.notices {
        line(format!("note: {notice}"));
    }
    for problem in &inspection.problems {
        line(format!("problem: {problem}"));
    }
    text
}
