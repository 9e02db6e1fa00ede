//! Ops that only move data: Embed, GatherRows, KvAppend, CopySlots, StoreRows, FoldWindow.
//!
//! All run on one thread: a step moves a few hundred rows of a few kilobytes.

use super::env::Env;
use super::memory::{Memory, Written};
use super::simd::{LANES, Simd};
use crate::backend::op::CopyList;
use crate::backend::op::{VERDICT_WORDS, VerdictWord};
use crate::backend::step::{Header, NONE, SAMPLED, Section, SequenceWord};
use crate::backend::{Op, RowIndex, RowSet, Tensor, TokenSource};

/// `out[r] = table[token[r] - first_token]` for the tokens that this part of the table holds.
pub fn embed<S: Simd>(simd: S, env: &Env<'_>, op: &Op, written: &mut Written) {
    let Op::Embed { rows, tokens, table, first_token, out } = *op else { unreachable!("dispatched by kind") };
    let step_row = |row: usize| match rows {
        RowSet::Resumes => env.resumed(row, SequenceWord::FirstRow),
        _ => row,
    };
    let token = |row: usize| match tokens {
        TokenSource::Step => env.step.section(Section::Token)[step_row(row)],
        TokenSource::Next { sampled } => match env.step.section(Section::NextToken)[row] {
            NONE => NONE,
            word if word & SAMPLED != 0 => env.words(sampled)[(word & !SAMPLED) as usize],
            word => word,
        },
        TokenSource::Draft { drafts, pass } => env.words(drafts)[row * drafts.cols as usize + pass as usize - 1],
    };
    let (live, cols) = (env.live(rows), table.cols as usize);
    let source = env.view(table);
    let [out] = written.blocks([out]);
    let mut out = out.f32();
    simd.enter(
        #[inline(always)]
        || {
            for row in 0..live {
                let inside = token(row).checked_sub(first_token).filter(|index| *index < table.rows);
                if let Some(index) = inside {
                    source.read(simd, index as usize, 0, cols, out.row_mut(row));
                }
            }
        },
    );
}

/// `out[r] = x[index[r]]`.
pub fn gather_rows(env: &Env<'_>, op: &Op, written: &mut Written) {
    let Op::GatherRows { index, x, out } = *op else { unreachable!("dispatched by kind") };
    let (live, source_row): (usize, Box<dyn Fn(usize) -> usize>) = match index {
        RowIndex::Logits => {
            let rows = env.step.section(Section::LogitRow);
            (env.step.live(Header::LogitRows), Box::new(move |row| rows[row] as usize))
        }
        RowIndex::Verdict { verdict } => {
            let words = env.words(verdict);
            let at = VerdictWord::Row as usize;
            (env.step.live(Header::DraftRows), Box::new(move |row| words[row * VERDICT_WORDS as usize + at] as usize))
        }
        RowIndex::Resumes { slot_rows } => {
            let source = move |row| {
                let slot = env.resumed(row, SequenceWord::Slot);
                slot * slot_rows as usize + env.resumed(row, SequenceWord::Pending)
            };
            (env.step.live(Header::Resumes), Box::new(source))
        }
    };
    let row_bytes = row_bytes(x);
    let source = env.bytes(x);
    let target = written.memory(out).elements_mut::<u8>(out.bytes());
    for (row, to) in target.chunks_exact_mut(row_bytes).take(live).enumerate() {
        to.copy_from_slice(&source[source_row(row) * row_bytes..][..row_bytes]);
    }
}

/// Stores the keys and values of each row in the cell of its position.
pub fn kv_append<S: Simd>(simd: S, env: &Env<'_>, op: &Op, written: &mut Written, shared: &mut Memory) {
    let Op::KvAppend { rows, qkv, keys, values, shape } = *op else { unreachable!("dispatched by kind") };
    let cols = shape.kv_cols() as usize;
    let source = env.view(qkv);
    let [mut keys, mut values] = written.blocks([keys, values]);
    let [row_floats] = shared.parts([cols.next_multiple_of(LANES)]);
    simd.enter(
        #[inline(always)]
        || {
            for (row, place) in env.places(rows).enumerate() {
                let page = env.step.page(place.sequence, place.position, shape.page_tokens);
                let cell = (page * shape.page_tokens + place.position % shape.page_tokens) as usize;
                let first = shape.query_cols() as usize;
                source.read(simd, row, first, cols, row_floats);
                keys.write(simd, cell, 0, &row_floats[..cols]);
                source.read(simd, row, first + cols, cols, row_floats);
                values.write(simd, cell, 0, &row_floats[..cols]);
            }
        },
    );
}

/// For each entry of the copy list: a whole slot, or zeros.
pub fn copy_slots(env: &Env<'_>, op: &Op, written: &mut Written) {
    let Op::CopySlots { tensor, slot_rows, list } = *op else { unreachable!("dispatched by kind") };
    let slot_bytes = slot_rows as usize * row_bytes(tensor);
    let bytes = written.memory(tensor).elements_mut::<u8>(tensor.bytes());
    let (section, header) = match list {
        CopyList::Slots => (Section::Copy, Header::Copies),
        CopyList::Pages => (Section::PageCopy, Header::PageCopies),
    };
    let entries = env.step.section(section).chunks_exact(2).take(env.step.live(header));
    for entry in entries {
        let to = entry[1] as usize * slot_bytes;
        match entry[0] {
            NONE => bytes[to..to + slot_bytes].fill(0),
            source => {
                let from = source as usize * slot_bytes;
                bytes.copy_within(from..from + slot_bytes, to);
            }
        }
    }
}

/// Per sequence: its last committed row and its draft rows become the first rows of its slot's window.
pub fn store_rows(env: &Env<'_>, op: &Op, written: &mut Written) {
    let Op::StoreRows { x, window, slot_rows } = *op else { unreachable!("dispatched by kind") };
    let row_bytes = row_bytes(x);
    let source = env.bytes(x);
    let target = written.memory(window).elements_mut::<u8>(window.bytes());
    for sequence in 0..env.step.live(Header::Sequences) {
        let word = |word| env.step.sequence(sequence, word) as usize;
        let first = word(SequenceWord::FirstRow) + word(SequenceWord::Committed) - 1;
        let rows = 1 + word(SequenceWord::Drafts);
        assert!(rows <= slot_rows as usize, "{rows} rows for a window of {slot_rows}");
        let to = word(SequenceWord::Slot) * slot_rows as usize * row_bytes;
        let from = first * row_bytes;
        target[to..to + rows * row_bytes].copy_from_slice(&source[from..from + rows * row_bytes]);
    }
}

/// For each entry of the fold list: rows `pending .. pending + keep` of the slot become its first rows.
pub fn fold_window(env: &Env<'_>, op: &Op, written: &mut Written) {
    let Op::FoldWindow { window, slot_rows, keep } = *op else { unreachable!("dispatched by kind") };
    let row_bytes = row_bytes(window);
    let bytes = written.memory(window).elements_mut::<u8>(window.bytes());
    let entries = env.step.section(Section::Fold).chunks_exact(3).take(env.step.live(Header::Folds));
    for entry in entries {
        let (slot, pending) = (entry[0] as usize, entry[2] as usize);
        assert!(pending + keep as usize <= slot_rows as usize, "{pending} pending rows in a slot of {slot_rows}");
        let slot = &mut bytes[slot * slot_rows as usize * row_bytes..][..slot_rows as usize * row_bytes];
        slot.copy_within(pending * row_bytes..(pending + keep as usize) * row_bytes, 0);
    }
}

fn row_bytes(tensor: Tensor) -> usize {
    tensor.cols as usize * tensor.dtype.bytes()
}
