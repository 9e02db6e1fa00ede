//! A model against a file of a reference implementation: what every layer computed for one prompt, the states after it,
//! the logits of tokens that follow, and drafts. Runs on any backend; prints nothing.
//!
//! The file is safetensors. `ids` is the prompt and `rows` are the rows that its tensors keep. Every f32 tensor is
//! either named like a tap, or like a state (`layers.I.state`, `layers.I.conv_state`), or one of `mtp.logits` (one
//! row per draft), `decode.logits` (one row per token of `decode.ids`) and `chunked.logits` (the prompt's last row,
//! computed in chunks).

use std::collections::BTreeMap;

use safetensors::{Dtype, SafeTensors};

use super::{Runner, single};
use crate::backend::capture::{Captured, capture, read_f32};
use crate::backend::compare::distance;
use crate::backend::op::{CONV_LOOKBACK, Op, RowIndex};
use crate::backend::step::{Header, NONE, Section};
use crate::base::dtype::{widen, words};
use crate::base::{DType, Error, Result};
use crate::model::{Cache, SequenceRows, SlotOperations};

/// Rows of a chunk of `chunked.logits`: not a divisor of anything that chunks are cut by.
const CHUNK_ROWS: usize = 50;

/// The tensors of a reference file.
#[derive(Debug, Clone)]
pub struct Reference {
    pub ids: Vec<u32>,
    pub rows: Vec<u32>,
    pub numbers: BTreeMap<String, Rows>,
    /// Ids beside the prompt: `decode.ids`, `mtp.drafts`.
    pub other_ids: BTreeMap<String, Vec<u32>>,
}

/// A matrix of a reference file; leading dimensions are taken together.
#[derive(Debug, Clone)]
pub struct Rows {
    pub cols: usize,
    pub values: Vec<f32>,
}

/// How far the program is from one tensor of the reference.
#[derive(Debug, Clone)]
pub struct TapDifference {
    pub name: String,
    pub relative_rms: f64,
    pub max_abs: f64,
}

/// A whole comparison.
#[derive(Debug, Clone, Default)]
pub struct ReferenceReport {
    /// In the order in which the program computes them; states, decode and chunks at the end.
    pub taps: Vec<TapDifference>,
    /// Tensors of the reference that the program has not computed.
    pub not_in_program: Vec<String>,
    /// Taps of the program that the reference does not hold.
    pub not_in_reference: Vec<String>,
    /// (expected, found), where the reference holds drafts.
    pub drafts: Option<(Vec<u32>, Vec<u32>)>,
}

impl Reference {
    /// Reads the bytes of a file. Errors (Input) name the tensor.
    pub fn parse(bytes: &[u8]) -> Result<Reference> {
        let remedy = "give a file that tools/reference wrote";
        let tensors = SafeTensors::deserialize(bytes)
            .map_err(|error| Error::input(format!("not a safetensors file: {error}"), remedy))?;
        let (mut numbers, mut ids) = (BTreeMap::new(), BTreeMap::new());
        for (name, view) in tensors.tensors() {
            match view.dtype() {
                Dtype::F32 => {
                    let cols = view.shape().last().copied().unwrap_or(1);
                    numbers.insert(name, Rows { cols, values: widen(DType::F32, view.data()) });
                }
                Dtype::U32 => {
                    ids.insert(name, words(view.data()));
                }
                other => return Err(Error::input(format!("{name} is {other:?}, expected F32 or U32"), remedy)),
            }
        }
        let mut required = |name: &str| {
            let missing = || Error::input(format!("there is no tensor {name}"), remedy);
            ids.remove(name).filter(|ids| !ids.is_empty()).ok_or_else(missing)
        };
        let (prompt, rows) = (required("ids")?, required("rows")?);
        if let Some(row) = rows.iter().find(|row| **row as usize >= prompt.len()) {
            return Err(Error::input(format!("rows holds {row}, the prompt has {} rows", prompt.len()), remedy));
        }
        Ok(Reference { ids: prompt, rows, numbers, other_ids: ids })
    }

    /// Tokens of context that a comparison needs.
    pub fn context_tokens(&self) -> u32 {
        let decoded = self.other_ids.get("decode.ids").map_or(0, Vec::len);
        (self.ids.len() + decoded) as u32 + 8
    }

    /// Drafts per step that the runner must be opened with.
    pub fn drafts(&self) -> u32 {
        self.numbers.get("mtp.logits").map_or(0, |rows| (rows.values.len() / rows.cols) as u32)
    }
}

impl ReferenceReport {
    /// The first tensor that lies further off than `tolerance`.
    pub fn first_beyond(&self, tolerance: f64) -> Option<&TapDifference> {
        self.taps.iter().find(|tap| tap.relative_rms > tolerance)
    }

    /// Whether everything in the reference was computed and lies within `tolerance`, the drafts being equal. Taps that
    /// the reference lacks fail nothing: it says what it can.
    pub fn passed(&self, tolerance: f64) -> bool {
        let drafts = self.drafts.as_ref().is_none_or(|(expected, found)| expected == found);
        drafts && !self.taps.is_empty() && self.not_in_program.is_empty() && self.first_beyond(tolerance).is_none()
    }
}

/// Runs the reference's prompt and what follows it, and compares everything that both sides have.
pub fn compare_reference(runner: &mut Runner, reference: &Reference) -> Result<ReferenceReport> {
    check(runner, reference)?;
    let mut found = prefill(runner, reference)?;
    let drafts = found_drafts(runner, reference)?;
    found.extend(states(runner)?);
    if let Some(ids) = reference.other_ids.get("decode.ids") {
        found.push(decode(runner, &reference.ids, ids)?);
    }
    if reference.numbers.contains_key("chunked.logits") {
        found.push(chunked(runner, &reference.ids)?);
    }
    let mut report = ReferenceReport { drafts, ..ReferenceReport::default() };
    for tensor in &found {
        let Some(expected) = reference.numbers.get(&tensor.name) else {
            report.not_in_reference.push(tensor.name.clone());
            continue;
        };
        if expected.cols != tensor.cols || expected.values.len() != tensor.values.len() {
            let rows = expected.values.len() / expected.cols;
            return Err(Error::input(
                format!(
                    "{} is [{rows}, {}] in the reference, [{}, {}] in the program",
                    tensor.name, expected.cols, tensor.rows, tensor.cols
                ),
                "make the reference from the checkpoint that is compared",
            ));
        }
        let (relative_rms, max_abs, _) = distance(&expected.values, &tensor.values);
        report.taps.push(TapDifference { name: tensor.name.clone(), relative_rms, max_abs });
    }
    let computed = |name: &&String| found.iter().any(|tensor| tensor.name == **name);
    report.not_in_program = reference.numbers.keys().filter(|name| !computed(name)).cloned().collect();
    Ok(report)
}

/// Every tap of the prompt, cut to the kept rows; `mtp.logits.N` stacked as `mtp.logits`.
fn prefill(runner: &mut Runner, reference: &Reference) -> Result<Vec<Captured>> {
    runner.run(&[], &single::reset(), 0)?;
    let rows = [single::rows(runner, &reference.ids, 0, reference.ids.len())];
    let passes = reference.drafts().min(runner.model.options.drafts_max);
    let program = runner.program(runner.bucket(&rows, passes));
    let logits = program.taps().iter().find(|tap| tap.name == "logits").expect("every step has a head").after;
    let is_gather = |op: &Op| matches!(op, Op::GatherRows { index: RowIndex::Logits, .. });
    let gather = program.ops().position(is_gather).expect("every step has a head");

    // A step computes the logits of its last row only. For the kept rows the head runs with their list in its place,
    // and then again as the step has it, because sampling and the draft head follow from that.
    runner.fill(&rows, &SlotOperations::default())?;
    list_logit_rows(runner, &reference.rows)?;
    let mut taps = capture(runner.backend.as_mut(), &program.segment(0, logits + 1))?;
    runner.fill(&rows, &SlotOperations::default())?;
    let rest = capture(runner.backend.as_mut(), &program.segment(gather, program.len()))?;
    taps.extend(rest.into_iter().filter(|tap| tap.name != "logits"));

    let mut kept: Vec<Captured> = Vec::with_capacity(taps.len());
    for tap in taps {
        if tap.name.starts_with("mtp.logits.") {
            match kept.iter_mut().find(|tap| tap.name == "mtp.logits") {
                Some(stack) => {
                    stack.rows += tap.rows;
                    stack.values.extend(tap.values);
                }
                None => kept.push(Captured { name: "mtp.logits".to_owned(), ..tap }),
            }
        } else if tap.rows == reference.ids.len() {
            kept.push(select(tap, &reference.rows));
        } else {
            kept.push(tap);
        }
    }
    Ok(kept)
}

fn select(tap: Captured, rows: &[u32]) -> Captured {
    let row = |row: &u32| &tap.values[*row as usize * tap.cols..][..tap.cols];
    let values = rows.iter().flat_map(row).copied().collect();
    Captured { rows: rows.len(), values, ..tap }
}

/// Replaces the list of logit rows in the step inputs that lie on the backend.
fn list_logit_rows(runner: &mut Runner, rows: &[u32]) -> Result<()> {
    let step = runner.model.step;
    let mut words = runner.words.clone();
    words[Header::LogitRows as usize] = rows.len() as u32;
    let mut put = |section, values: &mut dyn Iterator<Item = u32>| {
        for (at, value) in (step.limits.offset(section) as usize..).zip(values) {
            words[at] = value;
        }
    };
    put(Section::LogitRow, &mut rows.iter().copied());
    put(Section::MaskRow, &mut rows.iter().map(|_| NONE));
    runner.backend.write(step.tensor, 0, bytemuck::cast_slice(&words))
}

fn found_drafts(runner: &mut Runner, reference: &Reference) -> Result<Option<(Vec<u32>, Vec<u32>)>> {
    let Some(expected) = reference.other_ids.get("mtp.drafts") else { return Ok(None) };
    if !runner.model.drafts() {
        return Ok(None);
    }
    let found = words(&pollster::block_on(runner.backend.read(&[runner.model.workspace.drafts.with_rows(1)]))?);
    let count = expected.len().min(found.len());
    Ok(Some((expected.clone(), found[..count].to_vec())))
}

/// The recurrent states and the last raw inputs of the convolutions, of slot 0.
pub fn states(runner: &mut Runner) -> Result<Vec<Captured>> {
    let caches = runner.model.caches.layers.clone();
    let shape = runner.model.delta_shape();
    let mut found = Vec::new();
    for (index, cache) in caches.into_iter().enumerate() {
        let Cache::DeltaNet { state, window, .. } = cache else { continue };
        let slots = [("state", state.with_rows(shape.state_rows())), ("conv_state", window.with_rows(CONV_LOOKBACK))];
        for (what, tensor) in slots {
            let values = read_f32(runner.backend.as_mut(), tensor)?;
            let (rows, cols) = (tensor.rows as usize, tensor.cols as usize);
            found.push(Captured { name: format!("layers.{index}.{what}"), rows, cols, values });
        }
    }
    Ok(found)
}

/// The logits after each of `ids`, which follow the prompt that has just run.
fn decode(runner: &mut Runner, prompt: &[u32], ids: &[u32]) -> Result<Captured> {
    let mut tokens = prompt.to_vec();
    let mut values = Vec::new();
    for id in ids {
        tokens.push(*id);
        let rows = single::rows(runner, &tokens, tokens.len() - 1, tokens.len());
        values.extend(logits_after(runner, rows)?);
    }
    let (rows, cols) = (ids.len(), values.len() / ids.len().max(1));
    Ok(Captured { name: "decode.logits".to_owned(), rows, cols, values })
}

fn chunked(runner: &mut Runner, prompt: &[u32]) -> Result<Captured> {
    let values = logits_in_chunks(runner, prompt, CHUNK_ROWS)?;
    Ok(Captured { name: "chunked.logits".to_owned(), rows: 1, cols: values.len(), values })
}

/// Computes `tokens` from nothing in steps of `chunk` rows; the logits after the last.
pub fn logits_in_chunks(runner: &mut Runner, tokens: &[u32], chunk: usize) -> Result<Vec<f32>> {
    runner.run(&[], &single::reset(), 0)?;
    let mut logits = Vec::new();
    for start in (0..tokens.len()).step_by(chunk) {
        let end = (start + chunk).min(tokens.len());
        let rows = single::rows(runner, tokens, start, end);
        if end < tokens.len() {
            runner.run(&[rows], &SlotOperations::default(), 0)?;
        } else {
            logits = logits_after(runner, rows)?;
        }
    }
    Ok(logits)
}

/// Runs one step that samples; the logits of its first logit row.
pub fn logits_after(runner: &mut Runner, rows: SequenceRows) -> Result<Vec<f32>> {
    runner.run(&[rows], &SlotOperations::default(), 0)?;
    let logits = runner.model.workspace.logits.with_rows(1);
    read_f32(runner.backend.as_mut(), logits)
}

fn check(runner: &Runner, reference: &Reference) -> Result<()> {
    let (model, tokens) = (&runner.model, reference.ids.len() as u32);
    let limits = [
        ("rows of a step", "--chunk-rows", tokens, model.options.rows_max),
        ("tokens of context", "--max-context", reference.context_tokens(), runner.model().options.context_max),
        ("logit rows", "the file", reference.rows.len() as u32, model.step.limits.logit_rows),
    ];
    for (what, remedy, needed, limit) in limits {
        if needed > limit {
            return Err(Error::input(
                format!("the reference needs {needed} {what}, there are {limit}"),
                format!("change {remedy}"),
            ));
        }
    }
    let ids = reference.ids.iter().chain(reference.other_ids.get("decode.ids").into_iter().flatten());
    match ids.copied().find(|id| *id >= model.config.vocab) {
        None => Ok(()),
        Some(id) => Err(Error::input(
            format!("the reference holds token id {id}, the vocabulary has {}", model.config.vocab),
            "make the reference from the checkpoint that is compared",
        )),
    }
}
