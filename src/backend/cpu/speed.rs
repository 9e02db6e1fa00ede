//! A small program runner for tests of this backend, and speed measurements that only run when asked for:
//! `cargo test --release speed -- --ignored --nocapture --test-threads 1`.

use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::{CpuBackend, CpuOptions};
use crate::backend::step::{Header, SEQUENCE_WORDS, Section, SequenceWord};
use crate::backend::{AttentionShape, Backend, DeltaShape, Op, Program, RowSet, StepInputs, StepLimits, Tensor};
use crate::backend::{RowIndex, TokenSource};
use crate::base::{DType, bf16};

/// One program over one sequence.
pub struct Bench {
    pub backend: CpuBackend,
    limits: StepLimits,
    step: StepInputs,
    program: Program,
    state: u64,
}

impl Bench {
    pub fn new(options: CpuOptions, rows: u32) -> Bench {
        let mut backend = CpuBackend::new(options).unwrap();
        let limits = StepLimits { rows, sequences: 1, logit_rows: 1, pages: 1024, biases: 1, slot_operations: 1 };
        let tensor = backend.alloc("step", DType::U32, 1, limits.words()).unwrap();
        let step = StepInputs { tensor, limits };
        Bench { backend, limits, step, program: Program::new(step), state: 1 }
    }

    /// A tensor of small random floats.
    pub fn random(&mut self, label: &str, dtype: DType, rows: u32, cols: u32) -> Tensor {
        let tensor = self.backend.alloc(label, dtype, rows, cols).unwrap();
        let scale = 1.0 / (cols as f32).sqrt();
        let floats = (0..tensor.elements()).map(|_| {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((self.state >> 40) as f32 / 8_388_608.0 - 1.0) * scale
        });
        match dtype {
            DType::F32 => {
                let floats: Vec<f32> = floats.collect();
                self.backend.write(tensor, 0, bytemuck::cast_slice(&floats)).unwrap();
            }
            DType::Bf16 => {
                let floats: Vec<bf16> = floats.map(bf16::from_f32).collect();
                self.backend.write(tensor, 0, bytemuck::cast_slice(&floats)).unwrap();
            }
            DType::U32 => {}
        }
        tensor
    }

    pub fn push(&mut self, op: Op) {
        self.program.push(op);
    }

    pub fn read(&mut self, tensor: Tensor) -> Vec<u8> {
        let mut ready = self.backend.read(&[tensor]);
        match ready.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(bytes) => bytes.unwrap(),
            Poll::Pending => panic!("the CPU backend reads at once"),
        }
    }

    /// Step inputs of one sequence with `rows` committed rows from `position` on.
    fn fill(&mut self, rows: u32, position: u32) {
        let mut words = vec![0u32; self.limits.words() as usize];
        let limits = self.limits;
        let mut section = |section, values: &[u32]| {
            words[limits.offset(section) as usize..][..values.len()].copy_from_slice(values);
        };
        let each: Vec<u32> = (0..rows).collect();
        section(Section::Token, &each);
        section(Section::Position, &each.iter().map(|row| position + row).collect::<Vec<_>>());
        section(Section::LogitRow, &[rows - 1]);
        section(Section::Page, &(0..limits.pages).collect::<Vec<_>>());
        let chunks: Vec<u32> = (0..rows.div_ceil(64)).flat_map(|c| [0, c * 64, (rows - c * 64).min(64)]).collect();
        if rows > 1 {
            section(Section::Chunk, &chunks);
        }
        let mut sequence = [0; SEQUENCE_WORDS as usize];
        sequence[SequenceWord::Committed as usize] = rows;
        section(Section::Sequences, &sequence);
        words[Header::Rows as usize] = rows;
        words[Header::Sequences as usize] = 1;
        words[Header::LogitRows as usize] = 1;
        words[Header::StepSequences as usize] = u32::from(rows == 1);
        words[Header::Chunks as usize] = if rows > 1 { chunks.len() as u32 / 3 } else { 0 };
        self.backend.write(self.step.tensor, 0, bytemuck::cast_slice(&words)).unwrap();
    }

    pub fn run(&mut self, rows: u32) {
        self.fill(rows, 0);
        let graph = self.backend.compile(&self.program).unwrap();
        self.backend.launch(graph).unwrap();
    }

    /// Seconds on the processor of one launch by one thread: what a busy machine does not distort.
    fn processor_time(&mut self, rows: u32) -> f64 {
        self.fill(rows, 0);
        let graph = self.backend.compile(&self.program).unwrap();
        let now = || {
            let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
            text.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok()).map_or(0.0, |nanos| nanos * 1e-9)
        };
        self.backend.launch(graph).unwrap();
        let (start, wall, mut launches) = (now(), Instant::now(), 0.0);
        while wall.elapsed().as_secs_f64() < 0.5 {
            self.backend.launch(graph).unwrap();
            launches += 1.0;
        }
        (now() - start) / launches
    }

    /// Least seconds of one launch, and of each op in the best profile.
    fn time(&mut self, rows: u32, position: u32, repeats: usize) -> (f64, Vec<f64>) {
        self.fill(rows, position);
        let graph = self.backend.compile(&self.program).unwrap();
        let mut least = f64::INFINITY;
        let mut times = vec![f64::INFINITY; self.program.len()];
        for _ in 0..repeats {
            let start = Instant::now();
            self.backend.launch(graph).unwrap();
            least = least.min(start.elapsed().as_secs_f64());
            for (least, found) in times.iter_mut().zip(self.backend.profile(graph).unwrap()) {
                *least = least.min(found);
            }
        }
        (least, times)
    }
}

#[test]
#[ignore = "measures speed"]
fn speed_of_products() {
    for threads in [1, 2] {
        for (rows, n, k) in [
            (1, 248_320, 1024),
            (1, 3584, 1024),
            (1, 1024, 3584),
            (1, 768, 256),
            (4, 3584, 1024),
            (4, 1024, 3584),
            (16, 3584, 1024),
            (256, 3584, 1024),
            (256, 1024, 3584),
            (256, 1024, 2048),
            (256, 768, 256),
            (256, 256, 768),
        ] {
            let mut bench = Bench::new(CpuOptions { threads: Some(threads), isa: None }, rows);
            let x = bench.random("x", DType::Bf16, rows, k);
            let weight = bench.random("weight", DType::Bf16, n, k);
            let out = bench.random("out", DType::F32, rows, n);
            bench.push(Op::MatMul { rows: RowSet::Target, x, weight, out, out_col: 0 });
            let repeats = if n > 100_000 { 5 } else { 30 };
            let seconds = if threads == 1 { bench.processor_time(rows) } else { bench.time(rows, 0, repeats).0 };
            let (gigabytes, gigaflops) = (f64::from(n * k) * 2e-9, f64::from(rows) * f64::from(n * k) * 2e-9);
            println!(
                "{threads} threads, {rows:3} rows, [{n:6}, {k:4}]: {:8.1} us {:6.1} GB/s {:6.1} GFLOP/s",
                seconds * 1e6,
                gigabytes / seconds,
                gigaflops / seconds
            );
        }
    }
}

/// Extents of a whole model, as far as they decide its speed.
struct Shape {
    name: &'static str,
    hidden: u32,
    ffn: u32,
    layers: u32,
    vocabulary: u32,
    attention: AttentionShape,
    delta: DeltaShape,
}

const SHAPES: [Shape; 2] = [
    Shape {
        name: "demo",
        hidden: 256,
        ffn: 768,
        layers: 8,
        vocabulary: 3072,
        attention: AttentionShape { heads: 2, kv_heads: 1, head_dim: 256, page_tokens: 16 },
        delta: DeltaShape { key_heads: 2, value_heads: 4, key_dim: 128, value_dim: 128, drafts_max: 3 },
    },
    Shape {
        name: "0.8B",
        hidden: 1024,
        ffn: 3584,
        layers: 24,
        vocabulary: 248_320,
        attention: AttentionShape { heads: 8, kv_heads: 2, head_dim: 256, page_tokens: 16 },
        delta: DeltaShape { key_heads: 16, value_heads: 16, key_dim: 128, value_dim: 128, drafts_max: 3 },
    },
];

/// Records a forward pass with random weights.
fn record(bench: &mut Bench, shape: &Shape, rows: u32) {
    let act = DType::Bf16;
    let set = RowSet::Target;
    let hidden = shape.hidden;
    let (a, d) = (shape.attention, shape.delta);
    let table = bench.random("embed", act, shape.vocabulary, hidden);
    let x = bench.random("x", DType::F32, rows, hidden);
    let add = bench.random("add", DType::F32, rows, hidden);
    let norm = bench.random("norm", act, rows, hidden);
    let middle = bench.random("middle", act, rows, shape.ffn);
    let qkv = bench.random("qkv", act, rows, a.qkv_cols());
    let attended = bench.random("attended", act, rows, a.out_cols());
    let input = bench.random("input", act, rows, d.conv_cols() + d.value_cols());
    let ba = bench.random("ba", DType::F32, rows, 2 * d.value_heads);
    let gates = bench.random("gates", DType::F32, rows, 2 * d.value_heads);
    let convolved = bench.random("convolved", act, rows, d.conv_cols());
    let delta_out = bench.random("delta_out", act, rows, d.value_cols());
    let normed = bench.random("normed", act, rows, d.value_cols());
    let last = bench.random("last", act, 1, hidden);
    let logits = bench.random("logits", DType::F32, 1, shape.vocabulary);
    let sampled = bench.random("sampled", DType::U32, 1, 1);
    let norm_weight = bench.random("norm_weight", act, 1, hidden);
    let head_weight = bench.random("head_weight", act, 1, a.head_dim);
    let eps = 1e-6;

    bench.push(Op::Embed { rows: set, tokens: TokenSource::Step, table, first_token: 0, out: x });
    let rms = |bench: &mut Bench, add| {
        bench.push(Op::RmsNorm { rows: set, add, x, weight: norm_weight, out: norm, eps });
    };
    let product = |bench: &mut Bench, x: Tensor, n: u32, out: Tensor, out_col: u32| {
        let weight = bench.random("weight", act, n, x.cols);
        bench.push(Op::MatMul { rows: set, x, weight, out, out_col });
    };
    for layer in 0..shape.layers {
        rms(bench, (layer > 0).then_some(add));
        if layer % 4 == 3 {
            product(bench, norm, a.qkv_cols(), qkv, 0);
            let rope = (head_weight, 64, 1e6);
            let (weight, rotary_dims, theta) = rope;
            bench.push(Op::QkNormRope {
                rows: set,
                qkv,
                q_weight: weight,
                k_weight: weight,
                shape: a,
                rotary_dims,
                theta,
                eps,
            });
            let keys = bench.random("keys", act, 1024 * a.page_tokens, a.kv_cols());
            let values = bench.random("values", act, 1024 * a.page_tokens, a.kv_cols());
            bench.push(Op::KvAppend { rows: set, qkv, keys, values, shape: a });
            bench.push(Op::Attention { rows: set, qkv, keys, values, out: attended, shape: a, first_entry: 0 });
            product(bench, attended, hidden, add, 0);
        } else {
            product(bench, norm, input.cols, input, 0);
            product(bench, norm, ba.cols, ba, 0);
            let weight = bench.random("conv", act, d.conv_cols(), 4);
            let window = bench.random("window", act, d.window_rows(), d.conv_cols());
            let state = bench.random("state", DType::F32, d.state_rows(), d.value_dim);
            let head = bench.random("head", act, 1, d.value_heads);
            bench.push(Op::DeltaGates { rows: set, ba, a_log: head, dt_bias: head, out: gates });
            if rows == 1 {
                let records = bench.random("records", DType::F32, d.record_rows(), d.record_cols());
                bench.push(Op::ConvStep { x: input, weight, window, out: convolved, shape: d });
                bench.push(Op::DeltaStep { qkv: convolved, gates, state, records, out: delta_out, shape: d });
            } else {
                bench.push(Op::ConvChunk { x: input, weight, window, out: convolved, shape: d });
                bench.push(Op::DeltaChunk { qkv: convolved, gates, state, out: delta_out, shape: d });
            }
            let weight = bench.random("gated", act, 1, d.value_dim);
            let gate_col = d.conv_cols();
            bench.push(Op::GatedNorm { rows: set, x: delta_out, gate: input, gate_col, weight, out: normed, eps });
            product(bench, normed, hidden, add, 0);
        }
        rms(bench, Some(add));
        let (gate, up) = (bench.random("gate", act, shape.ffn, hidden), bench.random("up", act, shape.ffn, hidden));
        bench.push(Op::MatMulGateUp { rows: set, x: norm, gate, up, out: middle, out_col: 0 });
        product(bench, middle, hidden, add, 0);
    }
    rms(bench, Some(add));
    bench.push(Op::GatherRows { index: RowIndex::Logits, x: norm, out: last });
    bench.push(Op::MatMul { rows: RowSet::Logits, x: last, weight: table, out: logits, out_col: 0 });
    bench.push(Op::Sample { scores: logits, out: sampled, vocab_live: shape.vocabulary });
}

#[test]
#[ignore = "measures speed"]
fn speed_of_models() {
    for shape in &SHAPES {
        for threads in [1, 2] {
            for (rows, position) in [(1, 128), (256, 0)] {
                let mut bench = Bench::new(CpuOptions { threads: Some(threads), isa: None }, rows);
                record(&mut bench, shape, rows);
                let (seconds, times) = bench.time(rows, position, if shape.layers > 8 { 4 } else { 20 });
                println!(
                    "{} shape, {threads} threads, {rows} rows: {:.2} ms, {:.1} tokens/s",
                    shape.name,
                    seconds * 1e3,
                    f64::from(rows) / seconds
                );
                let mut by_name: Vec<(&str, f64, usize)> = Vec::new();
                for (op, seconds) in bench.program.ops().zip(times) {
                    match by_name.iter_mut().find(|(name, ..)| *name == op.name()) {
                        Some((_, sum, count)) => (*sum += seconds, *count += 1).0,
                        None => by_name.push((op.name(), seconds, 1)),
                    }
                }
                by_name.sort_by(|a, b| b.1.total_cmp(&a.1));
                for (name, seconds, count) in by_name {
                    println!("    {name:16} {count:3} x {:9.1} us", seconds / count as f64 * 1e6);
                }
            }
        }
    }
}
