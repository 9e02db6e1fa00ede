//! `deltic plan`: what a model takes of memory, buffer by buffer, without a device and without its weights. The numbers
//! come from the code that allocates, run on a ledger.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::args::PlanArgs;
use super::files::ModelFiles;
use super::open::OpenOptions;
use super::{print, print_json, sizing};
use crate::backend::cpu::PREFILL_ROWS;
use crate::backend::ledger::Entry;
use crate::backend::{Backend, Ledger};
use crate::base::config::{LayerKind, ModelConfig};
use crate::base::{Error, Result};
use crate::model::{Model, ModelOptions};
use crate::weights::{self, Weights};

/// Contexts shorter than this are not worth proposing.
const PROPOSED_CONTEXT_MIN: u32 = 1024;

pub fn run(args: &PlanArgs) -> Result<ExitCode> {
    let limit_bytes = limit_bytes(args)?;
    let subject = Subject::open(args)?;
    let plan = Plan::make(&subject, args, Wanted::of(args), limit_bytes)?;
    match args.json {
        true => print_json(&plan.to_json())?,
        false => print(&plan.table(&subject))?,
    }
    match limit_bytes {
        Some(limit) if plan.total_bytes() > limit => Err(Error::failure(
            format!("the model needs {} bytes, the limit is {limit}", plan.total_bytes()),
            remedy(&subject, args, limit)?,
        )),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// The bytes that may be used. None where no flag says.
fn limit_bytes(args: &PlanArgs) -> Result<Option<u64>> {
    if let Some(gpus) = args.gpus.filter(|gpus| *gpus > 1) {
        return Err(Error::input(
            format!("--gpus is {gpus}, a model runs on one device for now"),
            "plan with --gpus 1, or with --memory",
        ));
    }
    Ok(args.memory.or(args.vram).map(|size| size.0))
}

/// What is planned for.
struct Subject {
    name: String,
    config: ModelConfig,
    /// The checkpoint whose headers are read; without one the weights are taken to be bf16.
    files: Option<ModelFiles>,
}

impl Subject {
    fn open(args: &PlanArgs) -> Result<Subject> {
        if let Some(shape) = &args.shape {
            return Ok(Subject { name: shape.clone(), config: ModelConfig::named(shape)?, files: None });
        }
        if let Some(path) = &args.config {
            let name = path.display().to_string();
            let bytes = std::fs::read(path).map_err(|error| {
                Error::input(format!("{name}: {error}"), "give --config the config.json of a checkpoint")
            })?;
            let config = ModelConfig::from_json(&bytes).map_err(|error| error.within(&name))?;
            return Ok(Subject { name, config, files: None });
        }
        let files = ModelFiles::open(args.model.model.as_deref())?;
        Ok(Subject { name: files.name.clone(), config: files.checkpoint.config()?, files: Some(files) })
    }

    fn reserve(&self, backend: &mut Ledger) -> Result<Weights> {
        match &self.files {
            None => weights::reserve(backend, &self.config, self.config.mtp_layers > 0),
            Some(files) => {
                let loaded = weights::reserve_checkpoint(backend, &self.config, &files.checkpoint);
                Ok(loaded.map_err(|error| error.within(&self.name))?.weights)
            }
        }
    }
}

/// The two sizes that a plan may propose to lower.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    /// None leaves it to the model.
    context_max: Option<u32>,
    sequences_max: u32,
}

impl Wanted {
    fn of(args: &PlanArgs) -> Wanted {
        Wanted { context_max: args.model.max_context, sequences_max: args.max_sequences }
    }
}

/// A model laid out in memory.
struct Plan {
    sizes: ModelOptions,
    entries: Vec<Entry>,
    /// How many of the entries, from the first on, are weights.
    weights: usize,
    limit_bytes: Option<u64>,
}

impl Plan {
    /// With a limit the pool takes what is left, but never less than the longest request needs.
    fn make(subject: &Subject, args: &PlanArgs, wanted: Wanted, limit_bytes: Option<u64>) -> Result<Plan> {
        let draft_head = {
            let mut ledger = ledger();
            subject.reserve(&mut ledger)?.mtp.is_some()
        };
        let depth = args.speculate.depth();
        let options =
            OpenOptions { drafts_max: depth.depth_max, sequences_max: wanted.sequences_max, ..OpenOptions::default() };
        let model_args = super::args::ModelArgs { max_context: wanted.context_max, ..args.model.clone() };
        let mut sizes = sizing::model_options(&subject.config, &model_args, ledger().caps(), options, draft_head)?;
        if let Some(limit) = limit_bytes {
            let with_pages = |pages| Plan::of(subject, ModelOptions { pages, ..sizes.clone() }, None);
            let (empty, one) = (with_pages(0)?.total_bytes(), with_pages(1)?.total_bytes());
            let left = limit.saturating_sub(empty) / (one - empty);
            let (min, max) = (sizing::pages_min(&sizes), sizing::pages_max(&sizes));
            sizes.pages = u32::try_from(left).unwrap_or(u32::MAX).clamp(min, max);
        }
        Plan::of(subject, sizes, limit_bytes)
    }

    /// Runs the allocations.
    fn of(subject: &Subject, sizes: ModelOptions, limit_bytes: Option<u64>) -> Result<Plan> {
        let mut ledger = ledger();
        let weights = subject.reserve(&mut ledger)?;
        let weight_entries = ledger.entries().len();
        Model::new(&mut ledger, subject.config.clone(), sizes.clone(), weights)?;
        Ok(Plan { sizes, entries: ledger.entries().to_vec(), weights: weight_entries, limit_bytes })
    }

    fn total_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.bytes).sum()
    }

    fn pool_tokens(&self) -> u64 {
        u64::from(self.sizes.pages) * u64::from(self.sizes.page_tokens)
    }

    fn pool_requests(&self) -> f64 {
        f64::from(self.sizes.pages) / f64::from(self.sizes.pages_per_sequence(self.sizes.context_max))
    }

    /// Bytes of the buffers that `group` names, and how many they are.
    fn sum(&self, group: &str, config: &ModelConfig) -> (usize, u64) {
        let (weights, others) = self.entries.split_at(self.weights);
        let of_weights = weights.iter().filter(|entry| weight_group(&entry.label, config) == group);
        let of_others = others.iter().filter(|entry| memory_group(&entry.label) == group);
        of_weights.chain(of_others).fold((0, 0), |(count, bytes), entry| (count + 1, bytes + entry.bytes))
    }

    fn to_json(&self) -> Value {
        let buffers: Vec<Value> =
            self.entries.iter().map(|entry| json!({"name": entry.label, "device": 0, "bytes": entry.bytes})).collect();
        let total_bytes = self.total_bytes();
        let sizes = &self.sizes;
        json!({
            "buffers": buffers,
            "total_bytes": total_bytes,
            "limit_bytes": self.limit_bytes,
            "fits": self.limit_bytes.map(|limit| total_bytes <= limit),
            "pool_tokens": self.pool_tokens(),
            "pool_requests": self.pool_requests(),
            "chosen": {
                "activation": sizes.activation.to_string(),
                "max_context": sizes.context_max,
                "max_sequences": sizes.sequences_max,
                "slots": sizes.slots,
                "chunk_rows": sizes.rows_max,
                "drafts": sizes.drafts_max,
                "page_tokens": sizes.page_tokens,
                "pages": sizes.pages,
            },
        })
    }

    fn table(&self, subject: &Subject) -> String {
        let sizes = &self.sizes;
        let mut text = format!(
            "{}: context {}, {} sequences, steps of {} rows, up to {} drafts, {} activations\n",
            subject.name, sizes.context_max, sizes.sequences_max, sizes.rows_max, sizes.drafts_max, sizes.activation
        );
        let mut line = |name: &str, buffers: &str, bytes: u64| {
            let gib = bytes as f64 / f64::from(1 << 30);
            writeln!(text, "{name:<28} {buffers:>8} {bytes:>16} {gib:>10.3}").expect("a String takes all");
        };
        for group in GROUPS {
            let (count, bytes) = self.sum(group, &subject.config);
            if count > 0 {
                line(group, &count.to_string(), bytes);
            }
        }
        line("total", &self.entries.len().to_string(), self.total_bytes());
        if let Some(limit) = self.limit_bytes {
            line("limit", "", limit);
        }
        let header = format!("{:<28} {:>8} {:>16} {:>10}\n", "", "buffers", "bytes", "GiB");
        let first_line = text.find('\n').map_or(0, |end| end + 1);
        text.insert_str(first_line, &header);
        let (pages, tokens) = (sizes.pages, self.pool_tokens());
        let pool = format!("pool: {tokens} tokens in {pages} pages, {:.2} full-length requests", self.pool_requests());
        text + &pool + "\n"
    }
}

/// Stands in for the CPU backend, which binds anything whole.
fn ledger() -> Ledger {
    Ledger::new(u64::MAX, PREFILL_ROWS)
}

/// Lines of the table, in order; every buffer belongs to one.
const GROUPS: [&str; 14] = [
    "weights: embedding",
    "weights: DeltaNet layers",
    "weights: attention layers",
    "weights: final norm",
    "weights: head",
    "weights: draft head",
    "recurrent state",
    "records",
    "convolution windows",
    "hidden rows of slots",
    "token counts and masks",
    "KV cache",
    "workspace",
    "step inputs",
];

fn weight_group(label: &str, config: &ModelConfig) -> &'static str {
    let (part, rest) = label.split_once('.').unwrap_or((label, ""));
    match part {
        "embed" => "weights: embedding",
        "norm" => "weights: final norm",
        "head" => "weights: head",
        "mtp" => "weights: draft head",
        _ => {
            let layer = rest.split('.').next().and_then(|index| index.parse::<usize>().ok());
            match layer.and_then(|index| config.layers.get(index)) {
                Some(LayerKind::Attention) => "weights: attention layers",
                Some(LayerKind::DeltaNet) => "weights: DeltaNet layers",
                None => panic!("{label} belongs to no part of the weights"),
            }
        }
    }
}

fn memory_group(label: &str) -> &'static str {
    match label.rsplit('.').next().unwrap_or(label) {
        "state" => "recurrent state",
        "records" => "records",
        "window" => "convolution windows",
        "keys" | "values" => "KV cache",
        "slot_hidden" => "hidden rows of slots",
        "counts" | "masks" => "token counts and masks",
        "step" => "step inputs",
        _ => "workspace",
    }
}

/// What to lower so that it fits, found by trying.
fn remedy(subject: &Subject, args: &PlanArgs, limit: u64) -> Result<String> {
    let asked = Wanted::of(args);
    let fits = |wanted: Wanted| Ok(Plan::make(subject, args, wanted, Some(limit))?.total_bytes() <= limit);
    let made = Plan::make(subject, args, asked, None)?;
    let (context, page) = (made.sizes.context_max, made.sizes.page_tokens);
    let longest = |sequences_max: u32| {
        let pages = largest(context / page, |pages| fits(Wanted { context_max: Some(pages * page), sequences_max }))?;
        Ok::<_, Error>(Some(pages * page).filter(|context| *context >= PROPOSED_CONTEXT_MIN))
    };
    if let Some(context) = longest(asked.sequences_max)? {
        return Ok(format!("lower --max-context to {context}, or give it more memory"));
    }
    let sequences = largest(asked.sequences_max, |sequences_max| fits(Wanted { sequences_max, ..asked }))?;
    if sequences > 0 {
        return Ok(format!("lower --max-sequences to {sequences}, or give it more memory"));
    }
    if let Some(context) = longest(1)? {
        return Ok(format!("lower --max-sequences to 1 and --max-context to {context}, or give it more memory"));
    }
    let weights: u64 = made.entries[..made.weights].iter().map(|entry| entry.bytes).sum();
    Ok(format!("the weights alone take {weights} bytes: give it more memory, or use a smaller model"))
}

/// The largest number from 1 to `most` that passes, given that smaller ones pass more easily; 0 if none does.
fn largest(most: u32, passes: impl Fn(u32) -> Result<bool>) -> Result<u32> {
    let (mut good, mut bad) = (0, most + 1);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if passes(middle)? {
            good = middle;
        } else {
            bad = middle;
        }
    }
    Ok(good)
}
