//! Every op of every backend against a naive formula in f64, and the properties that the engine stands on.
//!
//! The formulas are written from the contracts in `backend/op.rs`, never from a kernel. A trial is named
//! `op/case [backend: device]`; DELTIC_REQUIRE_BACKENDS=cpu,... makes the absence of a backend a failure.

mod common;

mod ops {
    pub mod accept;
    pub mod argmax;
    pub mod attending;
    pub mod attention;
    pub mod chunked_form;
    pub mod conv_chunk;
    pub mod conv_step;
    pub mod copy_slots;
    pub mod count_tokens;
    pub mod decoding;
    pub mod delta_chunk;
    pub mod delta_gates;
    pub mod delta_rule;
    pub mod delta_step;
    pub mod embed;
    pub mod errors;
    pub mod fold_records;
    pub mod fold_window;
    pub mod gated_norm;
    pub mod gather_rows;
    pub mod kv_append;
    pub mod matmul;
    pub mod matmul_gate_up;
    pub mod mtp_join;
    pub mod penalize;
    pub mod qk_norm_rope;
    pub mod rms_norm;
    pub mod sample;
    pub mod store_rows;
    pub mod top_logprobs;
}

use std::process::ExitCode;
use std::sync::Arc;

use common::target::{Suite, missing, targets};
use common::tolerance::Ledger;
use libtest_mimic::{Arguments, Trial};

/// The op files, in the order of `enum Op`; then the properties.
const FILES: [fn(&mut Suite); 27] = [
    ops::embed::add,
    ops::rms_norm::add,
    ops::matmul::add,
    ops::matmul_gate_up::add,
    ops::qk_norm_rope::add,
    ops::kv_append::add,
    ops::attention::add,
    ops::conv_step::add,
    ops::conv_chunk::add,
    ops::delta_gates::add,
    ops::delta_step::add,
    ops::delta_chunk::add,
    ops::gated_norm::add,
    ops::fold_records::add,
    ops::fold_window::add,
    ops::copy_slots::add,
    ops::store_rows::add,
    ops::gather_rows::add,
    ops::mtp_join::add,
    ops::count_tokens::add,
    ops::penalize::add,
    ops::sample::add,
    ops::top_logprobs::add,
    ops::argmax::add,
    ops::accept::add,
    ops::decoding::add,
    ops::attending::add,
];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let ledger = Arc::new(Ledger::default());
    let targets = targets(&ledger);
    let required = std::env::var("DELTIC_REQUIRE_BACKENDS").unwrap_or_default();
    let mut trials = missing(&required, &targets);
    trials.push(Trial::test("step_builder/self_test", || {
        common::step::self_test();
        Ok(())
    }));
    trials.extend(ops::errors::trials());
    trials.extend(ops::chunked_form::trials());
    for target in targets {
        let mut suite = Suite::new(target);
        for add in FILES {
            add(&mut suite);
        }
        trials.append(&mut suite.trials);
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Some(summary) = ledger.summary() {
        println!("{summary}");
    }
    conclusion.exit_code()
}
