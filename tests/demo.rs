//! The demo model end to end: 660 held-out conversations through the binary, against what its training run measured.
//! A wrong state, template or sampler loses accuracy here at once.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// How far a task may lie from the rate of the training run, in cases.
const CASES_APART_MAX: i64 = 2;

#[test]
fn held_out_cases_decode_as_the_reference_does() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo");
    let output = Command::new(env!("CARGO_BIN_EXE_deltic"))
        .args(["eval", "--json", "--file"])
        .arg(folder.join("eval.jsonl"))
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    println!("{report:#}");
    let number = |value: &Value| value.as_i64().unwrap_or_else(|| panic!("a count, not {value}"));
    assert_eq!(number(&report["cases"]), 660);

    let greedy = &report["greedy_exact"];
    let (cases, exact) = (number(&greedy["cases"]), number(&greedy["exact"]));
    assert_eq!(cases, 588);
    assert!(100 * exact >= 99 * cases, "{exact} of {cases} greedy-exact cases are exact");

    let trained: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("train.json")).expect("train.json")).expect("JSON");
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
}
