//! The command line: every flag is defined once, with its environment twin `DELTIC_*`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Parser, Subcommand, ValueEnum};

use crate::backend::cpu::{CpuOptions, Isa};
use crate::base::{DType, Error};
use crate::engine::DepthOptions;
use crate::runner::engine::EngineOptions;

/// Inference engine for the Qwen3.5/3.6 hybrid family: right or not ready.
#[derive(Debug, Parser)]
#[command(name = "deltic", version, disable_help_subcommand = true)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// A conversation in the terminal, or over a pipe
    Chat(ChatArgs),
    /// One completion of a prompt
    Generate(GenerateArgs),
    /// Right and exact answers per task of a file of cases, decoded greedily
    Eval(EvalArgs),
    /// What a model takes of memory, without loading it
    Plan(PlanArgs),
    /// What a checkpoint holds, and its traps
    Inspect(InspectArgs),
    /// Two backends op by op, or one against a reference file of taps
    Compare(CompareArgs),
    /// Speed, with an output check in the same run
    Bench(BenchArgs),
}

/// What to run and where.
#[derive(Debug, Clone, clap::Args)]
pub struct ModelArgs {
    /// Folder of the checkpoint [default: the built-in demo model]
    #[arg(long, value_name = "DIR", env = "DELTIC_MODEL")]
    pub model: Option<PathBuf>,
    /// Most tokens of one request, prompt and answer together [default: the model's, at most 32768]
    #[arg(long, value_name = "TOKENS", env = "DELTIC_MAX_CONTEXT", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_context: Option<u32>,
    /// Most rows of a prefill step [default: the backend's]
    #[arg(long, value_name = "ROWS", env = "DELTIC_CHUNK_ROWS", value_parser = clap::value_parser!(u32).range(1..=2048))]
    pub chunk_rows: Option<u32>,
    /// Type of activations and KV cache; f32 is for comparing with float32 references
    #[arg(long, value_name = "TYPE", default_value = "bf16", env = "DELTIC_ACTIVATION")]
    pub activation: Activation,
}

/// Which backend.
#[derive(Debug, Clone, clap::Args)]
pub struct BackendArgs {
    /// auto or cpu
    #[arg(long, default_value = "auto", env = "DELTIC_BACKEND")]
    pub backend: BackendKind,
    /// Threads of the CPU backend [default: one per core]
    #[arg(long, value_name = "N", env = "DELTIC_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Instruction set of the CPU backend: baseline, avx2, avx512, neon [default: the best there is]
    #[arg(long, value_name = "ISA", env = "DELTIC_CPU_ISA")]
    pub cpu_isa: Option<IsaName>,
}

impl BackendArgs {
    pub fn spec(&self) -> BackendSpec {
        let options = CpuOptions { threads: self.threads.map(usize::from), isa: self.cpu_isa.map(|name| name.0) };
        BackendSpec { kind: self.backend, cpu: options }
    }
}

/// Drafts of the model's draft head, verified by the model. They change no token, only the speed.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct SpeculateArgs {
    /// Drafts per step: auto follows the measured acceptance, 0 is off
    #[arg(long, value_name = "auto|N", default_value = "auto", env = "DELTIC_SPECULATE")]
    pub speculate: Speculate,
    /// A test aid: replace each draft, with this probability, by another token
    #[arg(long, value_name = "P", default_value_t = 0.0, env = "DELTIC_DRAFT_NOISE")]
    pub draft_noise: f32,
}

/// Deepest chain of `--speculate auto`.
const AUTO_DEPTH_MAX: u32 = 3;
/// What a row and a draft pass add to a step on the CPU, in steps of one row. Measured on the demo model: steps of 16,
/// 32 and 64 rows take 3.5, 5.7 and 10.6 times a step of one, 0.15 a row, and a draft row also goes through upkeep, a
/// pass and the head twice. A CPU is soon short of arithmetic, where a GPU's rows are nearly free until there are many.
const CPU_ROW_COST: f32 = 0.2;
/// Of the draft layer's and the head's weights, a sixth of all, read once more.
const CPU_PASS_COST: f32 = 0.2;
/// Deepest chain of all.
pub const DEPTH_MAX: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speculate {
    Auto,
    Depth(u32),
}

impl FromStr for Speculate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Speculate, Error> {
        match text.parse() {
            _ if text == "auto" => Ok(Speculate::Auto),
            Ok(depth) if depth <= DEPTH_MAX => Ok(Speculate::Depth(depth)),
            _ => Err(Error::input(
                format!("--speculate is {text:?}, the range is 0 to {DEPTH_MAX}, or auto"),
                "give a depth in the range",
            )),
        }
    }
}

impl Speculate {
    /// With the prices of the CPU, the only backend there is.
    pub fn depth(self) -> DepthOptions {
        match self {
            Speculate::Auto => DepthOptions {
                row_cost: CPU_ROW_COST,
                pass_cost: CPU_PASS_COST,
                ..DepthOptions::adaptive(AUTO_DEPTH_MAX)
            },
            Speculate::Depth(depth) => DepthOptions::fixed(depth),
        }
    }
}

impl SpeculateArgs {
    pub fn options(self) -> Result<EngineOptions, Error> {
        if !(0.0..=1.0).contains(&self.draft_noise) {
            return Err(Error::input(
                format!("--draft-noise is {}, the range is 0 to 1", self.draft_noise),
                "give a probability",
            ));
        }
        Ok(EngineOptions { depth: self.speculate.depth(), draft_noise: self.draft_noise, prefill_alone: false })
    }
}

#[derive(Debug, Clone, clap::Args)]
pub struct ThinkingArgs {
    /// Whether the model thinks before it answers [default: as the checkpoint's template says]
    #[arg(long, value_name = "on|off", env = "DELTIC_THINKING")]
    pub thinking: Option<Switch>,
    /// The same as --thinking off
    #[arg(long, conflicts_with = "thinking")]
    pub no_thinking: bool,
}

impl ThinkingArgs {
    pub fn enabled(&self) -> Option<bool> {
        if self.no_thinking { Some(false) } else { self.thinking.map(|switch| switch == Switch::On) }
    }
}

/// How tokens are chosen. What is not given comes from the checkpoint's generation_config.json.
#[derive(Debug, Clone, clap::Args)]
pub struct SamplingArgs {
    /// 0 is greedy
    #[arg(long, env = "DELTIC_TEMPERATURE", allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// Keep the K most likely tokens; 0 or -1 is off
    #[arg(long, value_name = "K", env = "DELTIC_TOP_K", allow_negative_numbers = true)]
    pub top_k: Option<i64>,
    /// Keep the most likely tokens that together reach probability P; 1 is off
    #[arg(long, value_name = "P", env = "DELTIC_TOP_P", allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Keep tokens at least P times as likely as the most likely one; 0 is off
    #[arg(long, value_name = "P", env = "DELTIC_MIN_P", allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// 1 is off; over prompt and answer
    #[arg(long, env = "DELTIC_REPETITION_PENALTY", allow_negative_numbers = true)]
    pub repetition_penalty: Option<f32>,
    /// 0 is off; over the answer
    #[arg(long, env = "DELTIC_PRESENCE_PENALTY", allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    /// 0 is off; over the answer
    #[arg(long, env = "DELTIC_FREQUENCY_PENALTY", allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    /// The same seed gives the same answer
    #[arg(long, default_value_t = 0, env = "DELTIC_SEED")]
    pub seed: u64,
}

#[derive(Debug, clap::Args)]
pub struct ChatArgs {
    /// System message
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Most tokens of one answer [default: what is left of the context]
    #[arg(long, value_name = "N", env = "DELTIC_MAX_TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: Option<u32>,
    #[command(flatten)]
    pub thinking: ThinkingArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub speculate: SpeculateArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub backend: BackendArgs,
}

#[derive(Debug, clap::Args)]
pub struct PlanArgs {
    /// Plan for the model of this config.json, weights in bf16
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "shape"])]
    pub config: Option<PathBuf>,
    /// Plan for a published shape: qwen3.5-0.8b, qwen3.6-27b, ...
    #[arg(long, value_name = "NAME", conflicts_with = "model")]
    pub shape: Option<String>,
    /// Sequences that run at once
    #[arg(long, value_name = "N", default_value_t = 16, env = "DELTIC_MAX_SEQUENCES", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub max_sequences: u32,
    /// Drafts per step: auto plans for the deepest, 0 for none
    #[arg(long, value_name = "auto|N", default_value = "auto", env = "DELTIC_SPECULATE")]
    pub speculate: Speculate,
    /// Memory that may be used: 24G (1024^3), 24GB (1000^3) or bytes; the KV cache takes what is left
    #[arg(long, value_name = "SIZE", env = "DELTIC_MEMORY", conflicts_with_all = ["gpus", "vram"])]
    pub memory: Option<Size>,
    /// GPUs to plan for
    #[arg(long, value_name = "N", requires = "vram", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub gpus: Option<u32>,
    /// Memory of each GPU, written as for --memory
    #[arg(long, value_name = "SIZE", requires = "gpus")]
    pub vram: Option<Size>,
    /// One JSON object on stdout instead of a table
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = Error;

    /// `24G` and `24GiB` count in powers of 1024, `24GB` in powers of 1000.
    fn from_str(text: &str) -> Result<Size, Error> {
        let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim().to_ascii_uppercase();
        let power = unit.chars().next().map_or(Some(0), |first| "BKMGT".find(first));
        let base: f64 = match unit.get(1..).unwrap_or_default() {
            "" | "IB" => 1024.0,
            "B" => 1000.0,
            _ => f64::NAN,
        };
        let bytes = number.parse::<f64>().ok().zip(power).map(|(number, power)| number * base.powi(power as i32));
        match bytes {
            Some(bytes) if (1.0..9e15).contains(&bytes) => Ok(Size(bytes as u64)),
            _ => Err(Error::input(format!("{text:?} is no size"), "write it as 24G, 24GB, 512M or a number of bytes")),
        }
    }
}

#[derive(Debug, clap::Args)]
pub struct GenerateArgs {
    /// The prompt; `-` reads it from stdin
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: String,
    /// Apply the checkpoint's chat template: the prompt is a user's message
    #[arg(long)]
    pub chat: bool,
    /// System message, with --chat
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub system: Option<String>,
    /// Most tokens of the answer [default: what is left of the context]
    #[arg(long, value_name = "N", env = "DELTIC_MAX_TOKENS")]
    pub max_tokens: Option<u32>,
    /// One JSON object on stdout instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub thinking: ThinkingArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub speculate: SpeculateArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub backend: BackendArgs,
}

#[derive(Debug, clap::Args)]
pub struct EvalArgs {
    /// Cases, one JSON object a line: task, messages, tools, thinking, answer, reference
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,
    /// Run every Nth case only
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub every: u32,
    /// Run the cases of this task only
    #[arg(long, value_name = "NAME")]
    pub task: Option<String>,
    /// Most tokens of one answer
    #[arg(long, value_name = "N", default_value_t = 400)]
    pub max_tokens: u32,
    /// Cases that run at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub streams: u32,
    /// Compare with a run without drafts: the same ids for every case
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(DEPTH_MAX)))]
    pub speculate: Option<u32>,
    /// With --speculate: replace each draft, with this probability, by another token
    #[arg(long, value_name = "P", default_value_t = 0.0, requires = "speculate")]
    pub draft_noise: f32,
    /// Print each case that is not exact, with what was expected
    #[arg(long)]
    pub show: bool,
    /// One JSON object on stdout instead of a table
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub backend: BackendArgs,
}

#[derive(Debug, clap::Args)]
pub struct InspectArgs {
    /// Folder of the checkpoint [default: the built-in demo model]
    #[arg(value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// One JSON object on stdout instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct CompareArgs {
    /// First side: a backend, with options such as cpu:threads=1,isa=baseline
    #[arg(long, value_name = "BACKEND", default_value = "cpu")]
    pub a: BackendSpec,
    /// Second side [default: cpu:threads=1,isa=baseline]
    #[arg(long, value_name = "BACKEND", conflicts_with = "reference")]
    pub b: Option<BackendSpec>,
    /// Compare with the taps of this safetensors file instead of a second backend
    #[arg(long, value_name = "FILE")]
    pub reference: Option<PathBuf>,
    /// Let errors add up instead of starting each op from A's operands
    #[arg(long)]
    pub free: bool,
    /// Largest relative RMS error that passes [default: 0.01 where bf16 is stored, 0.00001 where f32 is; where errors
    /// add up, with --free or --reference, 0.05 with bf16 activations, 0.00002 with f32]
    #[arg(long, value_name = "ERROR")]
    pub tolerance: Option<f64>,
    /// Text whose tokens are run through the model
    #[arg(long, value_name = "TEXT", default_value = "Compute 17 - 4 and write a short story about a fox.")]
    pub prompt: String,
    /// One JSON object on stdout instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    pub kind: BenchKind,
    /// Run random weights of this shape instead of a checkpoint: qwen3.5-0.8b, qwen3.6-27b, ...
    #[arg(long, value_name = "NAME", conflicts_with = "model")]
    pub shape: Option<String>,
    /// Cut the shape to its first N layers
    #[arg(long, value_name = "N", requires = "shape", value_parser = clap::value_parser!(u32).range(1..))]
    pub layers: Option<u32>,
    /// Tokens to decode or prefill
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens: Option<u32>,
    /// Tokens of context before a decode
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub context: u32,
    /// With decode: requests that run at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub streams: u32,
    /// With decode: drafts per step, or auto
    #[arg(long, value_name = "auto|N", default_value = "0")]
    pub speculate: Speculate,
    /// One JSON object on stdout instead of a table
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub backend: BackendArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchKind {
    /// One token a step
    Decode,
    /// A prompt in chunks
    Prefill,
    /// Time and bandwidth of each op of a step
    Ops,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Activation {
    Bf16,
    F32,
}

impl Activation {
    pub fn dtype(self) -> DType {
        match self {
            Activation::Bf16 => DType::Bf16,
            Activation::F32 => DType::F32,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BackendKind {
    /// The best backend of this machine, which is said on stderr
    Auto,
    Cpu,
}

/// An instruction set that this machine has.
#[derive(Debug, Clone, Copy)]
pub struct IsaName(pub Isa);

impl FromStr for IsaName {
    type Err = Error;

    fn from_str(text: &str) -> Result<IsaName, Error> {
        Isa::parse(text).map(IsaName)
    }
}

/// A backend and its options, as one word: `cpu:threads=1,isa=baseline`.
#[derive(Debug, Clone)]
pub struct BackendSpec {
    pub kind: BackendKind,
    pub cpu: CpuOptions,
}

impl FromStr for BackendSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<BackendSpec, Error> {
        let (kind, options) = text.split_once(':').unwrap_or((text, ""));
        let kind = BackendKind::from_str(kind, false).map_err(|_| {
            Error::input(format!("unknown backend {kind:?}"), "use auto or cpu, with options as in cpu:threads=1")
        })?;
        let mut spec = BackendSpec { kind, cpu: CpuOptions::default() };
        for option in options.split(',').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("threads", count)) => spec.cpu.threads = Some(parse_threads(count)?),
                Some(("isa", name)) => spec.cpu.isa = Some(Isa::parse(name)?),
                _ => {
                    return Err(Error::input(
                        format!("unknown backend option {option:?}"),
                        "the CPU backend takes threads=N and isa=NAME",
                    ));
                }
            }
        }
        Ok(spec)
    }
}

fn parse_threads(text: &str) -> Result<usize, Error> {
    match text.parse() {
        Ok(count) if (1..=1024).contains(&count) => Ok(count),
        _ => Err(Error::input(format!("threads is {text:?}, the range is 1 to 1024"), "give a whole number")),
    }
}

impl fmt::Display for BackendSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.kind == BackendKind::Auto { "auto" } else { "cpu" };
        let threads = self.cpu.threads.map(|count| format!("threads={count}"));
        let isa = self.cpu.isa.map(|isa| format!("isa={}", isa.name()));
        let options: Vec<String> = threads.into_iter().chain(isa).collect();
        if options.is_empty() { f.write_str(kind) } else { write!(f, "{kind}:{}", options.join(",")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_count_in_1024_unless_they_say_b() {
        for (text, bytes) in [("80G", 80 << 30), ("80GiB", 80 << 30), ("80gb", 80_000_000_000), ("1.5M", 3 << 19)] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        assert_eq!("4096".parse(), Ok(Size(4096)));
        for text in ["", "G", "-1G", "4X", "4GX", "1e3", "0", "nan", "4 é"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
