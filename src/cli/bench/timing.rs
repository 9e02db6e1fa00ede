//! Runs decode and prefill until the clock has something to say: a warm-up, then whole runs for a few seconds.

use std::time::Instant;

use super::tokens;
use crate::backend::StepView;
use crate::backend::capture::read_step;
use crate::backend::traffic::total;
use crate::base::Result;
use crate::model::{SequenceRows, SlotOperations};
use crate::runner::{Runner, single};

/// Measuring goes on for this long, and for one whole run at least.
const SECONDS: f64 = 3.0;

/// What was measured, and what came out, for the check.
#[derive(Debug, Clone)]
pub struct Timed {
    pub prompt: Vec<u32>,
    /// Chosen ids, the one after the prompt first.
    pub ids: Vec<u32>,
    /// Whether every run chose the same.
    pub repeats_agree: bool,
    /// Rows of a step.
    pub rows: u32,
    /// Tokens of one run.
    pub tokens: u32,
    /// Steps of one run.
    pub steps: u32,
    /// Least bytes that one run moves.
    pub bytes: u64,
    pub median_seconds: f64,
    pub best_seconds: f64,
}

/// `count` greedy tokens, one a step, after `context` tokens.
pub fn decode(runner: &mut Runner, context: u32, count: u32) -> Result<Timed> {
    let prompt = tokens(context, runner.model().options.vocab_live);
    let mut ids = Vec::new();
    let mut seconds = Vec::new();
    let mut repeats_agree = true;
    prefill_run(runner, &prompt)?;
    decode_run(runner, &prompt, 0, 2.min(count))?;
    let started = Instant::now();
    while seconds.is_empty() || started.elapsed().as_secs_f64() < SECONDS {
        let first = prefill_run(runner, &prompt)?;
        let (run_seconds, run_ids) = decode_run(runner, &prompt, first, count)?;
        seconds.push(run_seconds);
        repeats_agree &= ids.is_empty() || ids == run_ids;
        ids = run_ids;
    }
    // The step in the middle of a run stands for all: only attention's share grows, and evenly.
    let middle = context + count / 2;
    let bytes = u64::from(count) * step_bytes(runner, single_row(runner, middle))?;
    let [median_seconds, best_seconds] = median_and_best(seconds);
    let (rows, steps) = (1, count);
    Ok(Timed { prompt, ids, repeats_agree, rows, tokens: count, steps, bytes, median_seconds, best_seconds })
}

/// A prompt of `count` tokens from nothing, up to the first chosen token.
pub fn prefill(runner: &mut Runner, count: u32) -> Result<Timed> {
    let prompt = tokens(count, runner.model().options.vocab_live);
    let (mut ids, mut seconds, mut repeats_agree) = (Vec::new(), Vec::new(), true);
    prefill_run(runner, &prompt)?;
    let started = Instant::now();
    while seconds.is_empty() || started.elapsed().as_secs_f64() < SECONDS {
        let run_started = Instant::now();
        let run_ids = vec![prefill_run(runner, &prompt)?];
        seconds.push(run_started.elapsed().as_secs_f64());
        repeats_agree &= ids.is_empty() || ids == run_ids;
        ids = run_ids;
    }
    let rows = count.min(runner.model().options.rows_max);
    let mut bytes = 0;
    for (start, end) in chunks(count as usize, rows as usize) {
        let rows = single::rows(runner, &prompt, start, end);
        bytes += step_bytes(runner, rows)?;
    }
    let [median_seconds, best_seconds] = median_and_best(seconds);
    let steps = count.div_ceil(rows);
    Ok(Timed { prompt, ids, repeats_agree, rows, tokens: count, steps, bytes, median_seconds, best_seconds })
}

/// Computes a prompt from nothing in the largest steps there are; the token chosen after it.
pub fn prefill_run(runner: &mut Runner, prompt: &[u32]) -> Result<u32> {
    let rows_max = runner.model().options.rows_max as usize;
    prefill_in_steps(runner, prompt, rows_max)
}

/// The same in steps of at most `step_rows` rows.
pub fn prefill_in_steps(runner: &mut Runner, prompt: &[u32], step_rows: usize) -> Result<u32> {
    let mut chosen = None;
    for (start, end) in chunks(prompt.len(), step_rows) {
        let operations = if start == 0 { single::reset() } else { SlotOperations::default() };
        let rows = single::rows(runner, prompt, start, end);
        chosen = runner.run(&[rows], &operations, 0)?.sampled.pop();
    }
    Ok(chosen.expect("the last step of a prompt samples").tokens[0])
}

/// Decodes `count` tokens after `prompt` and `first`, which has been chosen but not computed. The seconds it took, and
/// the chosen ids, `first` included.
pub fn decode_run(runner: &mut Runner, prompt: &[u32], first: u32, count: u32) -> Result<(f64, Vec<u32>)> {
    let mut tokens = prompt.to_vec();
    tokens.push(first);
    let started = Instant::now();
    for _ in 0..count {
        let rows = single::rows(runner, &tokens, tokens.len() - 1, tokens.len());
        let outcome = runner.run(&[rows], &SlotOperations::default(), 0)?;
        tokens.push(outcome.sampled[0].tokens[0]);
    }
    Ok((started.elapsed().as_secs_f64(), tokens.split_off(prompt.len())))
}

/// One row at `position`; its token does not matter.
pub fn single_row(runner: &Runner, position: u32) -> SequenceRows {
    let tokens = vec![0; position as usize + 1];
    single::rows(runner, &tokens, position as usize, position as usize + 1)
}

/// The least bytes that a step of these rows moves.
pub fn step_bytes(runner: &mut Runner, rows: SequenceRows) -> Result<u64> {
    let rows = [rows];
    runner.fill(&rows, &SlotOperations::default())?;
    let program = runner.program(runner.bucket(&rows, 0));
    let step = read_step(runner.backend(), program.step())?;
    Ok(total(program.ops(), &StepView::new(&step, program.step().limits)).bytes)
}

fn chunks(count: usize, rows: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).step_by(rows.max(1)).map(move |start| (start, (start + rows).min(count)))
}

fn median_and_best(mut seconds: Vec<f64>) -> [f64; 2] {
    seconds.sort_by(f64::total_cmp);
    [seconds[seconds.len() / 2], seconds[0]]
}
