//! Plans: the ledger against what a backend is really asked for, against the published sizes, and the limits.

use std::path::Path;
use std::process::{Command, Output};

use deltic::backend::cpu::{CpuBackend, CpuOptions};
use deltic::backend::{Backend, BufferId, Caps, GraphId, Ledger, Program, Readback, Tensor};
use deltic::base::{DType, ModelConfig, Result};
use deltic::model::{Model, ModelOptions};
use deltic::weights::{self, Checkpoint};
use serde_json::Value;

#[test]
fn the_plan_of_the_demo_model_lists_what_the_cpu_backend_allocates() {
    let plan = json(&["plan", "--json", "--max-sequences", "3", "--max-context", "500", "--speculate", "2"]);
    let chosen = |key: &str| plan["chosen"][key].as_u64().expect("a count") as u32;
    let checkpoint = Checkpoint::open(&demo()).expect("the demo model");
    let config = checkpoint.config().expect("its config");
    let mut backend = Recorder::new();
    let weights = weights::load(&mut backend, &config, &checkpoint, &mut |_, _| {}).expect("weights").weights;
    let options = ModelOptions {
        activation: DType::Bf16,
        rows_max: chosen("chunk_rows"),
        sequences_max: chosen("max_sequences"),
        slots: chosen("slots"),
        context_max: chosen("max_context"),
        page_tokens: chosen("page_tokens"),
        pages: chosen("pages"),
        drafts_max: chosen("drafts"),
        vocab_live: config.vocab,
    };
    Model::new(&mut backend, config, options, weights).expect("a model");
    let buffers = plan["buffers"].as_array().expect("buffers");
    let planned: Vec<(String, u64)> = buffers
        .iter()
        .map(|buffer| (buffer["name"].as_str().expect("a name").to_owned(), bytes(&buffer["bytes"])))
        .collect();
    assert_eq!(planned, backend.buffers);
    assert_eq!(bytes(&plan["total_bytes"]), backend.buffers.iter().map(|(_, bytes)| bytes).sum::<u64>());
    assert_eq!((&plan["limit_bytes"], &plan["fits"]), (&Value::Null, &Value::Null));
    assert_eq!(bytes(&plan["pool_tokens"]), u64::from(chosen("pages") * chosen("page_tokens")));
}

/// MODEL.md 1.1 to 1.3.
#[test]
fn the_27b_shape_takes_what_its_publisher_says() {
    for (with_mtp, expected) in [(false, 53_791_996_928), (true, 53_791_996_928 + 849_398_784)] {
        let mut ledger = Ledger::new(u64::MAX, 256);
        let config = ModelConfig::named("qwen3.6-27b").expect("a shape");
        weights::reserve(&mut ledger, &config, with_mtp).expect("a ledger never fails");
        assert_eq!(ledger.total_bytes(), expected);
    }
    let plan = json(&["plan", "--json", "--shape", "qwen3.6-27b", "--max-sequences", "2", "--speculate", "3"]);
    let sum = |ending: &str, prefix: &str| -> u64 {
        let buffers = plan["buffers"].as_array().expect("buffers").iter();
        let name = |buffer: &Value| buffer["name"].as_str().expect("a name").to_owned();
        let chosen = buffers.filter(|buffer| name(buffer).ends_with(ending) && name(buffer).starts_with(prefix));
        chosen.map(|buffer| bytes(&buffer["bytes"])).sum()
    };
    let tokens = bytes(&plan["pool_tokens"]);
    assert_eq!(sum(".keys", "layers") + sum(".values", "layers"), tokens * (64 << 10));
    assert_eq!(sum(".keys", "mtp") + sum(".values", "mtp"), tokens * (4 << 10));
    assert_eq!(sum(".state", ""), 2 * (144 << 20));
    let text = deltic(&["plan", "--shape", "27b"]);
    for line in
        ["weights: DeltaNet layers", "weights: draft head", "recurrent state", "KV cache", "workspace", "pool: "]
    {
        assert!(stdout(&text).contains(line), "{}", stdout(&text));
    }
}

#[test]
fn a_limit_is_filled_by_the_pool_and_never_passed() {
    let shape = ["--shape", "qwen3.6-27b", "--max-sequences", "4"];
    let plan = json(&[&["plan", "--json", "--memory", "70G"][..], &shape].concat());
    let (total, limit) = (bytes(&plan["total_bytes"]), bytes(&plan["limit_bytes"]));
    assert_eq!((limit, &plan["fits"]), (70 << 30, &Value::Bool(true)));
    // Less than a page is left, or every slot can be full.
    let page = 64 * (68 << 10);
    let full = bytes(&plan["chosen"]["slots"]) * (32_768 + 64);
    assert!(total <= limit && (limit - total < page || bytes(&plan["pool_tokens"]) >= full), "{}", plan["chosen"]);
    let same = json(&[&["plan", "--json", "--gpus", "1", "--vram", "70G"][..], &shape].concat());
    assert_eq!(same, plan);
}

#[test]
fn what_does_not_fit_fails_with_both_numbers_and_a_remedy_that_works() {
    let args = ["plan", "--json", "--shape", "27b", "--memory", "53G", "--max-sequences"];
    let output = deltic(&[&args[..], &["4"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let plan: Value = serde_json::from_slice(&output.stdout).expect("the table comes all the same");
    assert_eq!(plan["fits"], false);
    let said = stderr(&output);
    assert!(said.contains(&format!("{}", 53_u64 << 30)) && said.contains(&plan["total_bytes"].to_string()), "{said}");
    let context = said.split("lower --max-context to ").nth(1).and_then(|rest| rest.split(',').next());
    let context = context.unwrap_or_else(|| panic!("no remedy in {said}"));
    let fixed = json(&[&args[..], &["4", "--max-context", context]].concat());
    assert_eq!(fixed["fits"], true);
    let longer = (context.parse::<u32>().expect("a number") + 64).to_string();
    assert_eq!(deltic(&[&args[..], &["4", "--max-context", &longer]].concat()).status.code(), Some(1));

    for (memory, remedy) in [("10G", "the weights alone take 54641395712 bytes"), ("54G", "--max-sequences to ")] {
        let said = stderr(&deltic(&["plan", "--shape", "27b", "--memory", memory, "--max-sequences", "64"]));
        assert!(said.contains(remedy), "{memory}: {said}");
    }
}

#[test]
fn a_config_alone_plans_like_the_checkpoint_beside_it() {
    let config = demo().join("config.json").display().to_string();
    let model = demo().display().to_string();
    let of_config = json(&["plan", "--json", "--config", &config]);
    assert_eq!(of_config, json(&["plan", "--json", "--model", &model]));
    assert_eq!(of_config, json(&["plan", "--json"]));
}

#[test]
fn wrong_input_is_refused() {
    let cases: &[(&[&str], &str)] = &[
        (&["--gpus", "2", "--vram", "80G"], "--gpus is 2"),
        (&["--memory", "lots"], "\"lots\" is no size"),
        (&["--config", "no-such-file"], "no-such-file"),
        (&["--shape", "9000b"], "9000b"),
        (&["--max-context", "40000"], "32768"),
        (&["--shape", "27b", "--config", "x"], "--config"),
    ];
    for (args, part) in cases {
        let output = deltic(&[&["plan"][..], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "{args:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "");
    }
}

/// The CPU backend, with a list of what was asked of it.
struct Recorder {
    backend: CpuBackend,
    buffers: Vec<(String, u64)>,
}

impl Recorder {
    fn new() -> Recorder {
        let backend = CpuBackend::new(CpuOptions { threads: Some(1), isa: None }).expect("the CPU backend");
        Recorder { backend, buffers: Vec::new() }
    }
}

impl Backend for Recorder {
    fn caps(&self) -> &Caps {
        self.backend.caps()
    }

    fn alloc(&mut self, label: &str, dtype: DType, rows: u32, cols: u32) -> Result<Tensor> {
        let tensor = self.backend.alloc(label, dtype, rows, cols)?;
        self.buffers.push((label.to_owned(), tensor.bytes() as u64));
        Ok(tensor)
    }

    fn label(&self, buffer: BufferId) -> &str {
        self.backend.label(buffer)
    }

    fn write(&mut self, dst: Tensor, offset_bytes: usize, bytes: &[u8]) -> Result<()> {
        self.backend.write(dst, offset_bytes, bytes)
    }

    fn copy(&mut self, src: Tensor, dst: Tensor) -> Result<()> {
        self.backend.copy(src, dst)
    }

    fn compile(&mut self, program: &Program) -> Result<GraphId> {
        self.backend.compile(program)
    }

    fn launch(&mut self, graph: GraphId) -> Result<()> {
        self.backend.launch(graph)
    }

    fn read(&mut self, sources: &[Tensor]) -> Readback {
        self.backend.read(sources)
    }

    fn profile(&mut self, graph: GraphId) -> Result<Vec<f64>> {
        self.backend.profile(graph)
    }

    fn status(&self) -> Result<()> {
        self.backend.status()
    }
}

fn demo() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo")
}

fn bytes(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a count, not {value}"))
}

fn json(args: &[&str]) -> Value {
    let output = deltic(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn deltic(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deltic"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DELTIC_")) {
        command.env_remove(name);
    }
    command.args(args).output().expect("the binary runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
