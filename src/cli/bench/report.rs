//! What a benchmark found, as a table and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::check::OutputCheck;
use super::ops::StepProfile;
use super::timing::Timed;
use crate::cli::args::BenchKind;

/// Everything one call of `deltic bench` found.
pub struct Bench {
    pub shape: String,
    pub backend: String,
    /// What reading alone reaches on this machine with the same threads.
    pub read_gb_per_s: f64,
    pub rows: Vec<Row>,
    pub steps: Vec<StepProfile>,
    pub check: Option<OutputCheck>,
}

/// One measurement. Medians over whole runs, the best beside them: on a machine that does other things too, the best is
/// what this one can do.
pub struct Row {
    pub kind: &'static str,
    /// Requests at once.
    pub streams: u32,
    /// Deepest chain of drafts.
    pub depth: u32,
    /// Whether the depth follows the acceptance.
    pub adaptive: bool,
    /// Drafts that stood per verification, where there were drafts.
    pub mean_accepted: Option<f64>,
    /// Rows of a step, at most.
    pub rows: u32,
    pub tokens_per_s: f64,
    pub best_tokens_per_s: f64,
    pub step_ms: f64,
    /// Not counted where steps differ from one another.
    pub gb_per_s: Option<f64>,
    /// Of the read bandwidth.
    pub share_of_copy: Option<f64>,
}

impl Row {
    pub fn new(kind: BenchKind, bench: &Bench, timed: &Timed) -> Row {
        let gb_per_s = timed.bytes as f64 / timed.median_seconds / 1e9;
        Row {
            kind: if kind == BenchKind::Prefill { "prefill" } else { "decode" },
            streams: 1,
            depth: 0,
            adaptive: false,
            mean_accepted: None,
            rows: timed.rows,
            tokens_per_s: f64::from(timed.tokens) / timed.median_seconds,
            best_tokens_per_s: f64::from(timed.tokens) / timed.best_seconds,
            step_ms: 1e3 * timed.median_seconds / f64::from(timed.steps),
            gb_per_s: Some(gb_per_s),
            share_of_copy: Some(gb_per_s / bench.read_gb_per_s),
        }
    }
}

impl Row {
    fn details(&self) -> String {
        let bandwidth = self
            .gb_per_s
            .zip(self.share_of_copy)
            .map(|(gb_per_s, share)| format!(", {gb_per_s:.2} GB/s, {:.0} % of reading alone", 100.0 * share));
        let streams = (self.streams > 1).then(|| format!(", {} streams", self.streams));
        let up_to = if self.adaptive { "up to " } else { "" };
        let drafts =
            self.mean_accepted.map(|mean| format!(", {up_to}{} drafts a step, {mean:.2} of them accepted", self.depth));
        [bandwidth, streams, drafts].into_iter().flatten().collect()
    }
}

impl Bench {
    pub fn table(&self) -> String {
        let mut text = format!("reading alone: {:.1} GB/s\n", self.read_gb_per_s);
        let mut line = |line: String| writeln!(text, "{line}").expect("a String takes all");
        for row in &self.rows {
            let speed = format!("{:.1} tokens/s (best {:.1})", row.tokens_per_s, row.best_tokens_per_s);
            let step =
                format!("{:.2} ms a step of {} row{}", row.step_ms, row.rows, if row.rows == 1 { "" } else { "s" });
            line(format!("{} of {}: {speed}, {step}{}", row.kind, self.shape, row.details()));
        }
        for step in &self.steps {
            let total = step.seconds();
            line(format!("{} of {}: {:.3} ms", step.name, self.shape, 1e3 * total));
            let heads = ["count", "ms", "share", "GB/s", "GFLOP/s"];
            let heads = heads.map(|head| format!("{head:>9}")).join("");
            line(format!("{:<16}{:<20}{heads}", "op", "extent"));
            for op in &step.ops {
                let rate = |amount: u64| if amount == 0 { String::new() } else { rate(amount, op.seconds) };
                line(format!(
                    "{:<16}{:<20}{:>9}{:>9.3}{:>8.1}%{:>9}{:>9}",
                    op.op,
                    op.extent,
                    op.count,
                    1e3 * op.seconds,
                    100.0 * op.seconds / total,
                    rate(op.traffic.bytes),
                    rate(op.traffic.flops)
                ));
            }
        }
        text
    }

    pub fn to_json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(|row| self.row_json(row)).collect();
        let ops: Vec<Value> = self.steps.iter().flat_map(step_json).collect();
        json!({
            "read_gb_per_s": self.read_gb_per_s,
            "rows": rows,
            "ops": ops,
            "output_check": self.check.as_ref().map(OutputCheck::to_json),
        })
    }

    fn row_json(&self, row: &Row) -> Value {
        json!({
            "kind": row.kind,
            "shape": self.shape,
            "backend": self.backend,
            "streams": row.streams,
            "rows": row.rows,
            "depth": row.depth,
            "adaptive": row.adaptive,
            "mean_accepted": row.mean_accepted,
            "tokens_per_s": row.tokens_per_s,
            "best_tokens_per_s": row.best_tokens_per_s,
            "step_ms": row.step_ms,
            "gb_per_s": row.gb_per_s,
            "share_of_copy": row.share_of_copy,
        })
    }
}

impl StepProfile {
    pub fn seconds(&self) -> f64 {
        self.ops.iter().map(|op| op.seconds).sum()
    }
}

fn step_json(step: &StepProfile) -> Vec<Value> {
    let total = step.seconds();
    let op_json = |op: &super::ops::OpProfile| {
        let product = op.traffic.flops > 0;
        json!({
            "step": step.name,
            "op": op.op,
            "extent": op.extent,
            "count": op.count,
            "ms": 1e3 * op.seconds,
            "share": op.seconds / total,
            "gb_per_s": op.traffic.bytes as f64 / op.seconds / 1e9,
            "gflop_per_s": product.then(|| op.traffic.flops as f64 / op.seconds / 1e9),
        })
    };
    step.ops.iter().map(op_json).collect()
}

fn rate(amount: u64, seconds: f64) -> String {
    format!("{:.2}", amount as f64 / seconds / 1e9)
}
