//! The chunked (UT transform) form of the delta rule, MODEL.md 3.2, against the recurrence: no backend runs here. It
//! is what GPUs compute for DeltaChunk, so its error in f32 is known before a kernel is written.

use deltic::backend::DeltaShape;
use deltic::base::DType;
use libtest_mimic::Trial;

use super::delta_rule;
use crate::common::matrix::Grid;

/// f64, and f32 with every operation rounded.
trait Real: Copy {
    fn of(value: f64) -> Self;
    fn value(self) -> f64;
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn exp(self) -> Self;
}

impl Real for f64 {
    fn of(value: f64) -> f64 {
        value
    }
    fn value(self) -> f64 {
        self
    }
    fn add(self, other: f64) -> f64 {
        self + other
    }
    fn multiply(self, other: f64) -> f64 {
        self * other
    }
    fn exp(self) -> f64 {
        f64::exp(self)
    }
}

impl Real for f32 {
    fn of(value: f64) -> f32 {
        value as f32
    }
    fn value(self) -> f64 {
        f64::from(self)
    }
    fn add(self, other: f32) -> f32 {
        self + other
    }
    fn multiply(self, other: f32) -> f32 {
        self * other
    }
    fn exp(self) -> f32 {
        f32::exp(self)
    }
}

const CHUNK: usize = 64;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (name, rows) in [("rows1", 1), ("rows63", 63), ("rows64", 64), ("rows65", 65), ("rows150", 150)] {
        // In f64 the two are the same to the last digits; in f32 the limit is that of DeltaChunk.
        trials.push(trial::<f64>(format!("chunked_form/{name} [f64]"), rows, 1e-12));
        trials.push(trial::<f32>(format!("chunked_form/{name} [f32]"), rows, 3e-5));
    }
    trials
}

fn trial<R: Real>(name: String, rows: usize, limit: f64) -> Trial {
    Trial::test(name, move || {
        compare::<R>(rows, limit);
        Ok(())
    })
}

type Rows<R> = Vec<Vec<R>>;

/// One head's rows.
struct Head<R> {
    q: Rows<R>,
    k: Rows<R>,
    v: Rows<R>,
    g: Vec<R>,
    beta: Vec<R>,
}

fn dot<R: Real>(a: &[R], b: &[R]) -> R {
    a.iter().zip(b).fold(R::of(0.0), |sum, (a, b)| sum.add(a.multiply(*b)))
}

/// `[n, m] . [m, p]`
fn product<R: Real>(a: &Rows<R>, b: &Rows<R>) -> Rows<R> {
    let cols = b[0].len();
    let cell = |row: &Vec<R>, col: usize| row.iter().zip(b).fold(R::of(0.0), |sum, (a, b)| sum.add(a.multiply(b[col])));
    a.iter().map(|row| (0..cols).map(|col| cell(row, col)).collect()).collect()
}

fn negate<R: Real>(value: R) -> R {
    value.multiply(R::of(-1.0))
}

/// One chunk of at most 64 rows: changes `state` [key_dim, value_dim], returns the outputs.
fn chunk<R: Real>(head: &Head<R>, state: &mut Rows<R>) -> Rows<R> {
    let rows = head.q.len();
    let mut sums = Vec::with_capacity(rows);
    for g in &head.g {
        let before = sums.last().copied().unwrap_or(R::of(0.0));
        sums.push(before.add(*g));
    }
    let decay = |i: usize, j: usize| if i >= j { sums[i].add(negate(sums[j])).exp() } else { R::of(0.0) };
    // T diag(beta) V and T diag(beta e^G) K by forward substitution with the unit lower triangular I + A.
    let mut u: Rows<R> = Vec::with_capacity(rows);
    let mut w: Rows<R> = Vec::with_capacity(rows);
    for (i, sum) in sums.iter().enumerate() {
        let scaled = |cells: &[R], factor: R| cells.iter().map(|cell| cell.multiply(factor)).collect::<Vec<R>>();
        let mut u_row = scaled(&head.v[i], head.beta[i]);
        let mut w_row = scaled(&head.k[i], head.beta[i].multiply(sum.exp()));
        for j in 0..i {
            let a = negate(head.beta[i].multiply(dot(&head.k[i], &head.k[j])).multiply(decay(i, j)));
            u_row.iter_mut().zip(&u[j]).for_each(|(cell, solved)| *cell = cell.add(a.multiply(*solved)));
            w_row.iter_mut().zip(&w[j]).for_each(|(cell, solved)| *cell = cell.add(a.multiply(*solved)));
        }
        u.push(u_row);
        w.push(w_row);
    }
    let from_state = product(&w, state);
    let subtract = |(u, ws): (&Vec<R>, &Vec<R>)| u.iter().zip(ws).map(|(u, ws)| u.add(negate(*ws))).collect();
    let new_values: Rows<R> = u.iter().zip(&from_state).map(subtract).collect();
    let scores: Rows<R> =
        (0..rows).map(|i| (0..rows).map(|j| dot(&head.q[i], &head.k[j]).multiply(decay(i, j))).collect()).collect();
    let inside = product(&scores, &new_values);
    let across = product(&head.q, state);
    let output = |i: usize| {
        let cells = across[i].iter().zip(&inside[i]);
        cells.map(|(across, inside)| sums[i].exp().multiply(*across).add(*inside)).collect()
    };
    let out = (0..rows).map(output).collect();
    let last = sums[rows - 1];
    for (key, row) in state.iter_mut().enumerate() {
        row.iter_mut().for_each(|cell| *cell = cell.multiply(last.exp()));
        for (i, values) in new_values.iter().enumerate() {
            let factor = head.k[i][key].multiply(decay(rows - 1, i));
            row.iter_mut().zip(values).for_each(|(cell, v)| *cell = cell.add(factor.multiply(*v)));
        }
    }
    out
}

/// The rows `first ..` of one head, normalised in f64.
fn head_rows<R: Real>(shape: DeltaShape, qkv: &Grid, gates: &Grid, range: std::ops::Range<usize>) -> Head<R> {
    let (key_dim, value_dim) = (shape.key_dim as usize, shape.value_dim as usize);
    let normalised = |cells: &[f64], scale: f64| -> Vec<R> {
        let norm = (cells.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
        cells.iter().map(|x| R::of(x / norm * scale)).collect()
    };
    let scale = (key_dim as f64).powf(-0.5);
    Head {
        q: range.clone().map(|row| normalised(&qkv.row(row)[..key_dim], scale)).collect(),
        k: range.clone().map(|row| normalised(&qkv.row(row)[key_dim..2 * key_dim], 1.0)).collect(),
        v: range
            .clone()
            .map(|row| qkv.row(row)[2 * key_dim..][..value_dim].iter().map(|v| R::of(*v)).collect())
            .collect(),
        g: range.clone().map(|row| R::of(gates.row(row)[0])).collect(),
        beta: range.map(|row| R::of(gates.row(row)[1])).collect(),
    }
}

fn compare<R: Real>(rows: usize, limit: f64) {
    let shape = DeltaShape { key_heads: 1, value_heads: 1, key_dim: 128, value_dim: 32, drafts_max: 1 };
    let inputs = delta_rule::inputs(shape, DType::F32, rows, 1, 5);
    let (qkv, gates) = (inputs.qkv.grid(), inputs.gates.grid());
    let mut wanted_state = inputs.state.grid().cells;
    let mut wanted = Vec::new();
    for row in 0..rows {
        wanted.extend(delta_rule::row(shape, qkv.row(row), gates.row(row), &mut wanted_state).0);
    }
    let initial = inputs.state.grid();
    let mut state: Rows<R> =
        (0..initial.rows).map(|row| initial.row(row).iter().map(|cell| R::of(*cell)).collect()).collect();
    let mut found = Vec::new();
    for first in (0..rows).step_by(CHUNK) {
        let range = first..(first + CHUNK).min(rows);
        found.extend(chunk(&head_rows::<R>(shape, &qkv, &gates, range), &mut state).into_iter().flatten());
    }
    close("outputs", &found, &wanted, limit);
    close("state", &state.into_iter().flatten().collect::<Vec<R>>(), &wanted_state, limit);
}

fn close<R: Real>(what: &str, found: &[R], wanted: &[f64], limit: f64) {
    assert_eq!(found.len(), wanted.len());
    let errors: f64 = found.iter().zip(wanted).map(|(found, wanted)| (found.value() - wanted).powi(2)).sum();
    let size: f64 = wanted.iter().map(|wanted| wanted * wanted).sum();
    let relative = (errors / size).sqrt();
    assert!(relative < limit, "{what}: relative RMS error {relative:.2e}, limit {limit:.0e}");
}
