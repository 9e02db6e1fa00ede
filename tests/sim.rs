//! Simulation of the engine core: seeded runs against a fake device whose state is a hash of exactly what it was given,
//! so that any mistake turns into wrong tokens. A failing seed is printed and shrunk; `DELTIC_SIM_SEED=n` runs that
//! seed alone, `DELTIC_SIM_SEEDS=n` the first n.

#[path = "sim/cases.rs"]
mod cases;
#[path = "sim/device.rs"]
mod device;
#[path = "sim/fault.rs"]
mod fault;
#[path = "sim/hash.rs"]
mod hash;
#[path = "sim/host_time.rs"]
mod host_time;
#[path = "sim/limits.rs"]
mod limits;
#[path = "sim/network.rs"]
mod network;
#[path = "sim/reference.rs"]
mod reference;
#[path = "sim/shrink.rs"]
mod shrink;
#[path = "sim/small.rs"]
mod small;
#[path = "sim/spec.rs"]
mod spec;
#[path = "sim/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::time::Instant;

use fault::Fault;
use spec::Scenario;
use world::Stats;

const SEEDS: u64 = 6000;

#[test]
fn seeded_runs_equal_the_reference() {
    let started = Instant::now();
    let only = number("DELTIC_SIM_SEED");
    let seeds = only.map_or(0..number("DELTIC_SIM_SEEDS").unwrap_or(SEEDS), |seed| seed..seed + 1);
    let count = seeds.end - seeds.start;
    let mut all = Stats::default();
    for seed in seeds {
        let scenario = Scenario::of_seed(seed);
        match world::run(&scenario, None, true) {
            Ok(stats) => all.add(&stats),
            Err(caught) => {
                let fails = |scenario: &Scenario| world::run(scenario, None, true).err();
                let (small, what) = shrink::shrink(scenario, &fails);
                panic!("seed {seed}: {caught:?}\nDELTIC_SIM_SEED={seed} runs it again; shrunk: {small:#?}\n{what:?}");
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("{count} seeds, {:.0} a second: {all:?}", count as f64 / seconds);
    if only.is_none() && count >= 1000 {
        let Stats { preemptions, checkpoint_starts, resumes, folds, cancelled, refused, broken, sat_out, .. } = all;
        let met = [preemptions, checkpoint_starts, resumes, folds, cancelled, refused, broken, sat_out];
        assert!(met.iter().all(|met| *met > count / 60), "the runs do not meet everything: {all:?}");
        assert!(all.accepted * 10 > all.drafted && all.accepted < all.drafted);
    }
}

/// Every planted mistake is found, and what finds it: from the outside alone, then with the inspection of states.
#[test]
fn planted_faults_are_caught() {
    const FAULT_SEEDS: u64 = 400;
    let mut report = String::new();
    let mut missed = Vec::new();
    for fault in Fault::ALL {
        for inspect in [false, true] {
            let mut by: BTreeMap<&str, u32> = BTreeMap::new();
            for seed in 0..FAULT_SEEDS {
                if let Err(caught) = world::run(&Scenario::of_seed(seed), Some(fault), inspect) {
                    *by.entry(caught.by).or_default() += 1;
                }
            }
            let total: u32 = by.values().sum();
            if total == 0 {
                missed.push((fault, inspect));
            }
            let how = if inspect { "inspected" } else { "from outside" };
            report += &format!("{fault:?} {how}: {total} of {FAULT_SEEDS} seeds {by:?}\n");
        }
    }
    println!("{report}");
    assert!(missed.is_empty(), "faults that nothing caught: {missed:?}\n{report}");
}

#[test]
fn a_failing_scenario_shrinks_to_one_request() {
    for (fault, seed) in [(Fault::FoldsOneMore, 3), (Fault::SlotNotReset, 4), (Fault::AcceptsOneMore, 7)] {
        let fails = |scenario: &Scenario| world::run(scenario, Some(fault), true).err();
        let scenario = (seed..).map(Scenario::of_seed).find(|scenario| fails(scenario).is_some()).expect("one fails");
        let (small, caught) = shrink::shrink(scenario, &fails);
        assert_eq!(small.requests.len(), 1, "{caught:?}: {small:?}");
        let request = &small.requests[0];
        assert!(request.choices == 1 && request.constraint.is_none() && request.max_tokens <= 8, "{small:?}");
    }
}

/// Speculation that costs rows is wrong too, and tokens do not show it: with every draft right and nothing short, a
/// choice samples once after its prompt and then in steps of depth + 1 tokens.
#[test]
fn a_perfect_drafter_takes_the_fewest_steps() {
    for seed in 0..600 {
        let stats = world::run(&spec::perfect_drafter(seed), None, true).expect("no fault");
        assert_eq!(stats.samplings, stats.samplings_least, "seed {seed}: {stats:?}");
        assert_eq!(stats.preemptions, 0, "seed {seed}");
    }
}

#[test]
fn all_small_chains_of_verification() {
    assert_eq!(small::run_all_chains(), 40 * 40 * 40);
}

/// The target is 100 microseconds; the bound leaves room for a busy machine.
#[test]
fn plan_and_commit_are_quick() {
    for sequences in [1, 16] {
        let median = host_time::median_of_a_step(sequences);
        println!("plan and commit of {sequences} sequences: {:.1} microseconds", median.as_secs_f64() * 1e6);
        assert!(median.as_micros() < 500, "{median:?}");
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}
