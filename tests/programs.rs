//! The recorded step of the demo model as a listing, so that a change of fusion, order or shape is a readable diff.
//! Also what must hold of every listing: bindings, and taps that name what the reference knows.

use deltic::backend::check::OPERANDS_MAX;
use deltic::backend::cpu::{CpuBackend, CpuOptions};
use deltic::backend::{Backend, Program};
use deltic::base::{DType, ModelConfig};
use deltic::model::forward::{record_slot_operations, record_step};
use deltic::model::{Bucket, Model, ModelOptions};
use deltic::weights;

/// The first four layers of the demo model: three delta nets and an attention layer, with the draft head.
fn model(backend: &mut CpuBackend) -> Model {
    let json = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/models/demo/config.json")).expect("config.json");
    let mut config = ModelConfig::from_json(&json).expect("a valid config");
    config.layers.truncate(4);
    let weights = weights::random(backend, &config, 1, true, &mut |_, _| {}).expect("memory for a small model");
    let options = ModelOptions {
        activation: DType::Bf16,
        rows_max: 128,
        sequences_max: 2,
        slots: 3,
        context_max: 256,
        page_tokens: 64,
        pages: 8,
        drafts_max: 3,
        vocab_live: 2772,
    };
    Model::new(backend, config, options, weights).expect("memory for a small model")
}

fn listing(backend: &CpuBackend, program: &Program) -> String {
    program.listing(|buffer| backend.label(buffer))
}

#[test]
fn a_verification_step_with_two_draft_passes() {
    let mut backend = CpuBackend::new(CpuOptions { threads: Some(1), ..Default::default() }).expect("a CPU");
    let model = model(&mut backend);
    let program = record_step(&model, Bucket { rows: 4, passes: 2 });
    insta::assert_snapshot!("verification_step", listing(&backend, &program));
    insta::assert_snapshot!("slot_operations", listing(&backend, &record_slot_operations(&model)));
}

#[test]
fn every_bucket_keeps_to_the_portable_limits() {
    let mut backend = CpuBackend::new(CpuOptions { threads: Some(1), ..Default::default() }).expect("a CPU");
    let model = model(&mut backend);
    for rows in [1, 2, 64, 128] {
        for passes in 0..=3 {
            let program = record_step(&model, Bucket { rows, passes });
            for op in program.ops() {
                assert!(op.operands().len() < OPERANDS_MAX, "{} with the step inputs", op.name());
            }
            let names: Vec<&str> = program.taps().iter().map(|tap| tap.name.as_str()).collect();
            let unique: std::collections::BTreeSet<&&str> = names.iter().collect();
            assert_eq!(unique.len(), names.len(), "a tap's name is unique: {names:?}");
            assert!(names.contains(&"layers.3.attention") && names.contains(&"mtp.final"), "{names:?}");
            assert_eq!(names.contains(&"mtp.logits.3"), passes == 3);
        }
    }
}
