//! Where the time of a step goes: every op of it timed alone, gathered by kind and extent.

use std::time::Instant;

use super::timing::{prefill_run, single_row};
use super::tokens;
use crate::backend::capture::read_step;
use crate::backend::traffic::{Traffic, traffic};
use crate::backend::{Op, StepView};
use crate::base::Result;
use crate::cli::args::BenchArgs;
use crate::model::{SequenceRows, SlotOperations};
use crate::runner::{Runner, single};

/// A step is profiled for this long, and a few times at least.
const SECONDS: f64 = 3.0;
const RUNS_MIN: usize = 3;

/// The ops of one step.
#[derive(Debug, Clone)]
pub struct StepProfile {
    pub name: String,
    pub ops: Vec<OpProfile>,
}

/// All ops of one kind and extent in a step.
#[derive(Debug, Clone)]
pub struct OpProfile {
    pub op: &'static str,
    pub extent: String,
    pub count: usize,
    pub seconds: f64,
    pub traffic: Traffic,
}

/// The decode step after `--context` tokens and, with `--tokens`, a prefill step of that many rows.
pub fn profile(runner: &mut Runner, args: &BenchArgs) -> Result<Vec<StepProfile>> {
    let vocab_live = runner.model().options.vocab_live;
    let context = tokens(args.context, vocab_live);
    prefill_run(runner, &context)?;
    let row = single_row(runner, args.context);
    let mut steps = vec![profile_step(runner, format!("decode at position {}", args.context), row)?];
    if let Some(count) = args.tokens {
        let count = count.min(runner.model().options.rows_max);
        let prompt = tokens(count, vocab_live);
        runner.run(&[], &single::reset(), 0)?;
        let rows = single::rows(runner, &prompt, 0, prompt.len());
        steps.push(profile_step(runner, format!("prefill of {count} rows"), rows)?);
    }
    Ok(steps)
}

fn profile_step(runner: &mut Runner, name: String, rows: SequenceRows) -> Result<StepProfile> {
    let rows = [rows];
    runner.fill(&rows, &SlotOperations::default())?;
    let bucket = runner.bucket(&rows, 0);
    let program = runner.program(bucket);
    let graph = runner.graph(bucket)?;
    runner.backend().launch(graph)?;
    let mut runs: Vec<Vec<f64>> = Vec::new();
    let started = Instant::now();
    while runs.len() < RUNS_MIN || started.elapsed().as_secs_f64() < SECONDS {
        runs.push(runner.backend().profile(graph)?);
    }
    let step = read_step(runner.backend(), program.step())?;
    let view = StepView::new(&step, program.step().limits);
    let mut ops: Vec<OpProfile> = Vec::new();
    for (index, op) in program.ops().enumerate() {
        let seconds = median(runs.iter().map(|run| run[index]).collect());
        let moved = traffic(op, &view);
        let extent = extent(op);
        match ops.iter_mut().find(|known| known.op == op.name() && known.extent == extent) {
            Some(known) => {
                known.count += 1;
                known.seconds += seconds;
                known.traffic.bytes += moved.bytes;
                known.traffic.flops += moved.flops;
            }
            None => ops.push(OpProfile { op: op.name(), extent, count: 1, seconds, traffic: moved }),
        }
    }
    ops.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    Ok(StepProfile { name, ops })
}

/// Of a matrix product `[n, k]` of its weight, else the columns of what is written.
fn extent(op: &Op) -> String {
    match *op {
        Op::MatMul { weight, .. } => format!("{}x{} {}", weight.rows, weight.cols, weight.dtype),
        Op::MatMulGateUp { gate, .. } => format!("2x{}x{} {}", gate.rows, gate.cols, gate.dtype),
        Op::Sample { scores, .. } => scores.cols.to_string(),
        Op::TopLogprobs { logits, .. } => logits.cols.to_string(),
        _ => {
            let operands = op.operands();
            operands.last().map_or(String::new(), |operand| operand.tensor.cols.to_string())
        }
    }
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}
