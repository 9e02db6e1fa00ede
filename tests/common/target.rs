//! The backends under test. A later backend plugs in as one more list of [`Target`]s in [`targets`].

use std::sync::Arc;

use deltic::backend::Backend;
use deltic::backend::cpu::{CpuBackend, CpuOptions, Isa};
use deltic::base::Result;
use libtest_mimic::{Failed, Trial};

use super::rig::{Rig, compare_traces};
use super::tolerance::Ledger;

/// Kinds that this harness can open.
const KINDS: [&str; 1] = ["cpu"];

type Open = Box<dyn Fn() -> Result<Box<dyn Backend>> + Send + Sync>;

/// One backend under test. Its replicas differ in what must not matter (threads) and must agree bit for bit.
pub struct Target {
    pub kind: &'static str,
    /// What stands in brackets after the names of its trials.
    pub label: String,
    /// Whether results are the same bits whatever the batch, the chunks and the drafts (DESIGN.md 5).
    pub exact: bool,
    pub ledger: Arc<Ledger>,
    replicas: Vec<(String, Open)>,
}

/// Every backend that this machine has.
pub fn targets(ledger: &Arc<Ledger>) -> Vec<Arc<Target>> {
    let cpu = Isa::available().into_iter().map(|isa| cpu_target(isa, ledger.clone()));
    cpu.map(Arc::new).collect()
}

/// The CPU backend with one instruction set, on 1 and on 2 threads.
fn cpu_target(isa: Isa, ledger: Arc<Ledger>) -> Target {
    let replica = move |threads: usize| -> (String, Open) {
        let open = move || -> Result<Box<dyn Backend>> {
            let backend = CpuBackend::new(CpuOptions { threads: Some(threads), isa: Some(isa) })?;
            Ok(Box::new(backend))
        };
        (format!("{threads} threads"), Box::new(open))
    };
    let label = format!("cpu: {}", format!("{isa:?}").to_lowercase());
    Target { kind: "cpu", label, exact: true, ledger, replicas: vec![replica(1), replica(2)] }
}

/// One failing trial for each required backend that this machine or this harness lacks.
pub fn missing(required: &str, targets: &[Arc<Target>]) -> Vec<Trial> {
    let wanted = required.split(',').map(str::trim).filter(|kind| !kind.is_empty());
    let absent = wanted.filter(|kind| !targets.iter().any(|target| target.kind == *kind));
    absent
        .map(|kind| {
            let known = KINDS.contains(&kind);
            let reason = if known { "no such device here" } else { "this build of the tests cannot open it" };
            Trial::test(format!("required/{kind}"), move || Err(Failed::from(reason)))
        })
        .collect()
}

/// The trials of one target, as the op files add them.
pub struct Suite {
    pub target: Arc<Target>,
    pub trials: Vec<Trial>,
}

impl Suite {
    pub fn new(target: Arc<Target>) -> Suite {
        Suite { target, trials: Vec::new() }
    }

    /// Adds `op/case [target]`: `body` runs on a fresh backend of every replica.
    pub fn add(&mut self, op: &'static str, case: impl AsRef<str>, body: impl Fn(&mut Rig) + Send + 'static) {
        let target = self.target.clone();
        let name = format!("{op}/{} [{}]", case.as_ref(), target.label);
        self.trials.push(Trial::test(name, move || run_on_replicas(&target, op, &body)));
    }
}

fn run_on_replicas(target: &Target, op: &'static str, body: &dyn Fn(&mut Rig)) -> Result<(), Failed> {
    let mut first: Option<Rig> = None;
    for (name, open) in &target.replicas {
        let backend = open().map_err(|error| Failed::from(format!("{name}: {error}")))?;
        let mut rig = Rig::new(backend, op, target.exact, first.is_none(), target.ledger.clone());
        body(&mut rig);
        match &first {
            None => first = Some(rig),
            Some(first) => compare_traces(&first.trace, &rig.trace, name)?,
        }
    }
    Ok(())
}
