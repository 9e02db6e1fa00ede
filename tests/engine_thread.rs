//! The engine thread on the demo model: many callers at once, cancellation, listeners that go away, ends and panics.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use deltic::backend::cpu::{CpuBackend, CpuOptions};
use deltic::backend::{Backend, BufferId, Caps, GraphId, Program, Readback, Tensor};
use deltic::base::{DType, Error, Result, SamplingParams};
use deltic::engine::{DepthOptions, Event, FinishReason, Refused, Request};
use deltic::model::{Model, ModelOptions};
use deltic::runner::Runner;
use deltic::runner::engine::{Engine, EngineOptions};
use deltic::runner::thread::{EngineHandle, EngineThread, Shutdown, Update, Updates};
use deltic::weights::{self, Checkpoint};

const SLOTS: u32 = 4;
const PAGES: u32 = 24;
/// Longer than any step of the demo model takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn requests_of_several_threads_get_what_they_get_alone() {
    let thread = EngineThread::start(demo_engine).expect("an engine");
    let alone: Vec<Vec<u32>> = (0..12).map(|kind| answer(&thread.handle(), request(kind))).collect();
    let together: Vec<Vec<u32>> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..12)
            .map(|kind| {
                let handle = thread.handle();
                scope.spawn(move || answer(&handle, request(kind)))
            })
            .collect();
        asked.into_iter().map(|asked| asked.join().expect("an answer")).collect()
    });
    assert_eq!(together, alone);
    assert!(alone.iter().all(|tokens| !tokens.is_empty()));
    await_whole(&thread.handle());
    let status = thread.handle().status().expect("it runs");
    assert!(status.accepted_counts.iter().skip(1).sum::<u64>() > 0, "drafts were accepted: {status:?}");
    thread.handle().shutdown(Shutdown::Finish);
    thread.join().expect("a clean end");
}

#[test]
fn cancelling_frees_everything_and_spares_the_others() {
    let thread = EngineThread::start(demo_engine).expect("an engine");
    let handle = thread.handle();
    let expected = answer(&handle, request(3));
    let endless = handle.ask(endless()).expect("it runs");
    let other = handle.ask(request(3)).expect("it runs");
    first_token(&endless);
    handle.cancel(endless.ticket());
    assert_eq!(last_reason(&endless), FinishReason::Cancelled);
    assert_eq!(endless.next(), None, "nothing after the end");
    assert_eq!(tokens_of(&other), expected);
    await_whole(&handle);
    // Long gone, and never known.
    handle.cancel(endless.ticket());
    assert_eq!(answer(&handle, request(3)), expected);
}

#[test]
fn a_dropped_receiver_cancels_its_request() {
    let thread = EngineThread::start(demo_engine).expect("an engine");
    let handle = thread.handle();
    let updates = handle.ask(endless()).expect("it runs");
    first_token(&updates);
    drop(updates);
    await_whole(&handle);
    // A listener of another kind says that it has gone when it is next told something.
    let (outbox, updates) = channel();
    handle.submit(endless(), Box::new(outbox)).expect("it runs");
    updates.recv_timeout(PATIENCE).expect("a first token");
    drop(updates);
    await_whole(&handle);
}

#[test]
fn a_refusal_comes_on_the_requests_own_channel() {
    let thread = EngineThread::start(demo_engine).expect("an engine");
    let handle = thread.handle();
    let limit = handle.limits().context_max;
    let updates = handle.ask(Request::new(vec![1; limit as usize], 1)).expect("it runs");
    assert_eq!(updates.next(), Some(Update::Refused(Refused::PromptTooLong { tokens: limit, limit })));
    assert_eq!(updates.next(), None);
    assert!(!answer(&handle, request(1)).is_empty());
}

#[test]
fn shutdown_finishes_what_is_open_or_cancels_it() {
    for (how, reason) in [(Shutdown::Finish, FinishReason::Length), (Shutdown::Cancel, FinishReason::Cancelled)] {
        let thread = EngineThread::start(demo_engine).expect("an engine");
        let handle = thread.handle();
        let open: Vec<Updates> = (0..6).map(|_| handle.ask(long(40)).expect("it runs")).collect();
        first_token(&open[0]);
        handle.shutdown(how);
        let late = handle.ask(request(0));
        for updates in &open {
            assert_eq!(last_reason(updates), reason, "{how:?}");
        }
        // Either the thread had ended, or it said why it takes nothing more.
        if let Ok(late) = late {
            assert!(matches!(late.next(), Some(Update::Refused(Refused::BadValue(_))) | None), "{how:?}");
        }
        thread.join().expect("a clean end");
        assert!(handle.status().is_err() && handle.ask(request(0)).is_err());
    }
}

#[test]
fn dropping_the_thread_cancels_what_is_open() {
    let thread = EngineThread::start(demo_engine).expect("an engine");
    let updates = thread.handle().ask(endless()).expect("it runs");
    first_token(&updates);
    drop(thread);
    assert_eq!(last_reason(&updates), FinishReason::Cancelled);
}

#[test]
fn an_engine_that_cannot_be_built_is_an_error_and_a_panic_is_one_too() {
    let failed = EngineThread::start(|| Err(Error::failure("no device", "plug one in")));
    assert_eq!(failed.err().map(|error| error.to_string()), Some("no device".to_owned()));
    let panicked = EngineThread::start(|| panic!("no luck"));
    assert!(panicked.err().is_some_and(|error| error.what().contains("no luck")));
}

#[test]
fn a_panic_in_the_thread_closes_the_channels_and_is_reported_by_join() {
    struct Bomb;
    impl deltic::engine::Watch for Bomb {
        fn push(&mut self, _: u32) -> bool {
            panic!("a watch went off")
        }
    }
    let thread = EngineThread::start(demo_engine).expect("an engine");
    let handle = thread.handle();
    let open = handle.ask(endless()).expect("it runs");
    first_token(&open);
    let bomb = handle.ask(Request { watches: vec![Box::new(Bomb)], ..endless() }).expect("it runs");
    assert_eq!(bomb.next(), None);
    while open.next().is_some() {}
    let error = thread.join().expect_err("it panicked");
    assert!(error.what().contains("a watch went off"), "{error:?}");
    assert!(handle.ask(request(0)).is_err() && handle.status().is_err());
}

#[test]
fn a_failed_step_ends_every_open_request_and_the_thread_goes_on() {
    let broken = Arc::new(AtomicBool::new(false));
    let switch = broken.clone();
    let thread = EngineThread::start(move || engine(switch)).expect("an engine");
    let handle = thread.handle();
    let expected = answer(&handle, request(2));
    let open = [handle.ask(endless()).expect("it runs"), handle.ask(endless()).expect("it runs")];
    open.iter().for_each(first_token);
    broken.store(true, Ordering::SeqCst);
    for updates in &open {
        let last = std::iter::from_fn(|| updates.next()).last().expect("an update");
        assert!(matches!(&last, Update::Failed(error) if error.what() == "the device is gone"), "{last:?}");
    }
    let late = handle.ask(request(2)).expect("it still takes requests");
    assert!(matches!(late.next(), Some(Update::Failed(_))));
    await_whole(&handle);
    broken.store(false, Ordering::SeqCst);
    assert_eq!(answer(&handle, request(2)), expected);
}

fn demo_engine() -> Result<Engine> {
    engine(Arc::default())
}

/// Room for few sequences, so that requests wait for one another.
fn engine(broken: Arc<AtomicBool>) -> Result<Engine> {
    let checkpoint = Checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo"))?;
    let config = checkpoint.config()?;
    let cpu = CpuBackend::new(CpuOptions { threads: Some(1), isa: None })?;
    let mut backend = Box::new(Breakable { cpu, broken });
    let weights = weights::load(backend.as_mut(), &config, &checkpoint, &mut |_, _| {})?.weights;
    let options = ModelOptions {
        activation: DType::Bf16,
        rows_max: 64,
        sequences_max: SLOTS,
        slots: SLOTS,
        context_max: 1024,
        page_tokens: 64,
        pages: PAGES,
        drafts_max: 2,
        vocab_live: VOCAB_LIVE,
    };
    let model = Model::new(backend.as_mut(), config, options, weights)?;
    let depth = DepthOptions::fixed(2);
    Ok(Engine::new(Runner::new(backend, model), EngineOptions { depth, draft_noise: 0.0, prefill_alone: false }))
}

const VOCAB_LIVE: u32 = 2772;

/// Prompts from a few tokens to more than a step, greedy and sampled.
fn request(kind: u32) -> Request {
    let prompt = (0..3 + 17 * kind).map(|index| (index * 37 + kind * 101 + 11) % 2000).collect();
    let temperature = if kind.is_multiple_of(2) { 0.0 } else { 0.8 };
    let sampling = SamplingParams { temperature, seed: u64::from(kind), ..SamplingParams::default() };
    Request { sampling, ..Request::new(prompt, 12) }
}

fn long(max_tokens: u32) -> Request {
    Request { ignore_end: true, ..Request::new(vec![5, 6, 7, 8], max_tokens) }
}

/// Ends by itself only after minutes.
fn endless() -> Request {
    long(1000)
}

fn answer(handle: &EngineHandle, request: Request) -> Vec<u32> {
    tokens_of(&handle.ask(request).expect("it runs"))
}

fn tokens_of(updates: &Updates) -> Vec<u32> {
    let mut tokens = Vec::new();
    loop {
        match updates.next_within(PATIENCE).expect("an update") {
            Update::Event(Event::Token { token, .. }) => tokens.push(token),
            Update::Event(Event::Finished { .. }) => return tokens,
            other => panic!("{other:?}"),
        }
    }
}

fn first_token(updates: &Updates) {
    let update = updates.next_within(PATIENCE).expect("an update");
    assert!(matches!(update, Update::Event(Event::Token { .. })), "{update:?}");
}

fn last_reason(updates: &Updates) -> FinishReason {
    loop {
        match updates.next_within(PATIENCE).expect("an update") {
            Update::Event(Event::Finished { reason, .. }) => return reason,
            Update::Event(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Waits until every slot and page is free.
fn await_whole(handle: &EngineHandle) {
    let started = Instant::now();
    loop {
        let core = handle.status().expect("it runs").core;
        if (core.slots_free, core.pages_free, core.running, core.waiting) == (SLOTS, PAGES, 0, 0) {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "never whole: {core:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The CPU backend, until it is switched off.
struct Breakable {
    cpu: CpuBackend,
    broken: Arc<AtomicBool>,
}

impl Backend for Breakable {
    fn launch(&mut self, graph: GraphId) -> Result<()> {
        self.status()?;
        self.cpu.launch(graph)
    }

    fn status(&self) -> Result<()> {
        match self.broken.load(Ordering::SeqCst) {
            true => Err(Error::failure("the device is gone", "plug it in")),
            false => Ok(()),
        }
    }

    fn caps(&self) -> &Caps {
        self.cpu.caps()
    }

    fn alloc(&mut self, label: &str, dtype: DType, rows: u32, cols: u32) -> Result<Tensor> {
        self.cpu.alloc(label, dtype, rows, cols)
    }

    fn label(&self, buffer: BufferId) -> &str {
        self.cpu.label(buffer)
    }

    fn write(&mut self, dst: Tensor, offset_bytes: usize, bytes: &[u8]) -> Result<()> {
        self.cpu.write(dst, offset_bytes, bytes)
    }

    fn copy(&mut self, src: Tensor, dst: Tensor) -> Result<()> {
        self.cpu.copy(src, dst)
    }

    fn compile(&mut self, program: &Program) -> Result<GraphId> {
        self.cpu.compile(program)
    }

    fn read(&mut self, sources: &[Tensor]) -> Readback {
        self.cpu.read(sources)
    }

    fn profile(&mut self, graph: GraphId) -> Result<Vec<f64>> {
        self.cpu.profile(graph)
    }
}
