//! The demo model end to end: 660 held-out conversations through the binary, against what its training run measured,
//! and with drafts against without. A wrong state, template or sampler loses accuracy here at once.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// How far a task may lie from the rate of the training run, in cases.
const CASES_APART_MAX: i64 = 2;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo")
}

/// The report of `deltic eval` with these flags.
fn eval(flags: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_deltic"))
        .args(["eval", "--json", "--file"])
        .arg(folder().join("eval.jsonl"))
        .args(flags)
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{flags:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or_else(|| panic!("a count, not {value}"))
}

/// One run of all cases shows both: the accuracy without drafts, and the same ids at depth 3.
#[test]
fn held_out_cases_decode_as_the_reference_does() {
    let report = eval(&["--speculate", "3"]);
    println!("{report:#}");
    assert_eq!(number(&report["cases"]), 660);

    let greedy = &report["greedy_exact"];
    let (cases, exact) = (number(&greedy["cases"]), number(&greedy["exact"]));
    assert_eq!(cases, 588);
    assert!(100 * exact >= 99 * cases, "{exact} of {cases} greedy-exact cases are exact");

    let trained: Value =
        serde_json::from_str(&std::fs::read_to_string(folder().join("train.json")).expect("train.json")).expect("JSON");
    let trained = trained["eval"].as_object().expect("rates per task");
    assert_eq!(trained.len(), report["tasks"].as_object().expect("tasks").len());
    for (task, rates) in trained {
        let counts = &report["tasks"][task];
        let cases = number(&counts["cases"]);
        let expected = (rates["exact"].as_f64().expect("a rate") * cases as f64).round() as i64;
        let exact = number(&counts["exact"]);
        assert!((exact - expected).abs() <= CASES_APART_MAX, "{task}: {exact} exact, the training run had {expected}");
        assert!(number(&counts["right"]) >= exact.min(cases), "{task}: an exact answer is a right one");
    }
    let counts = lossless(&report, 3);
    assert!(counts.iter().all(|count| *count > 0), "every number of accepted drafts occurs: {counts:?}");
    let mean = report["speculation"]["mean_accepted"].as_f64().expect("a mean");
    assert!(mean > 1.5, "the draft head is right more often than that: {mean}");
}

#[test]
fn depths_and_noise_change_no_id() {
    for depth in [1, 2, 5] {
        let mut sum = vec![0; depth + 1];
        for noise in ["0", "0.3"] {
            let report = eval(&["--every", "7", "--speculate", &depth.to_string(), "--draft-noise", noise]);
            for (sum, count) in sum.iter_mut().zip(lossless(&report, depth)) {
                *sum += count;
            }
        }
        println!("depth {depth}: drafts accepted {sum:?}");
        assert!(sum.iter().all(|count| *count > 0), "depth {depth}: a number of accepted drafts is missing: {sum:?}");
    }
    let counts = lossless(&eval(&["--every", "7", "--speculate", "3", "--draft-noise", "1"]), 3);
    println!("noise 1: drafts accepted {counts:?}");
    assert!(100 * counts[0] >= 95 * counts.iter().sum::<i64>(), "noise 1 lets drafts pass: {counts:?}");
}

/// Asserts that every case has the ids of the run without drafts; verifications by drafts accepted.
fn lossless(report: &Value, depth: usize) -> Vec<i64> {
    let found = &report["speculation"];
    assert_eq!(number(&found["depth"]), depth as i64);
    assert_eq!(number(&found["identical"]), number(&report["cases"]), "{found}");
    assert_eq!((number(&found["violations"]), number(&found["near_ties"])), (0, 0), "{found}");
    let counts: Vec<i64> = found["accepted_counts"].as_array().expect("counts").iter().map(number).collect();
    assert_eq!(counts.len(), depth + 1);
    counts
}
