//! The header of one safetensors file. The safetensors crate is the judge; where it says no, the file is read once
//! more to say which tensor is to blame.

use safetensors::SafeTensors;
use safetensors::tensor::TensorInfo;

use crate::base::{Error, Result};

/// The largest published header of the family is below 1 MiB; this bounds what a hostile file can make us parse.
const HEADER_BYTES_MAX: u64 = 32 << 20;
const LENGTH_BYTES: usize = 8;
const REMEDY: &str = "download the file again and compare its size with the published one";

/// A tensor of a file: name, type, shape and its bytes, counted from the start of the file.
pub(super) struct HeaderEntry {
    pub name: String,
    pub dtype: safetensors::Dtype,
    pub shape: Vec<usize>,
    pub bytes: std::ops::Range<usize>,
}

/// Every tensor of a file, in no order. Each range lies within `file` and has the length that type and shape ask for.
/// Errors (Input) name the tensor where one is to blame; the caller names the file.
pub(super) fn read_header(file: &[u8]) -> Result<Vec<HeaderEntry>> {
    let data_start = data_start(file)?;
    let (_, metadata) = SafeTensors::read_metadata(file).map_err(|error| diagnose(file, data_start, &error))?;
    let entry = |(name, info): (String, &TensorInfo)| {
        let (begin, end) = info.data_offsets;
        let fits = begin <= end && end <= file.len() - data_start;
        if !fits {
            return Err(beyond_the_end(&name, end, file.len() - data_start));
        }
        let bytes = data_start + begin..data_start + end;
        Ok(HeaderEntry { name, dtype: info.dtype, shape: info.shape.clone(), bytes })
    };
    metadata.tensors().into_iter().map(entry).collect()
}

/// Where the tensors' bytes begin.
fn data_start(file: &[u8]) -> Result<usize> {
    if file.starts_with(b"version https://git-lfs") {
        return Err(Error::input("is a Git LFS pointer, not the weights", "run `git lfs pull` in the checkpoint"));
    }
    let Some(length) = file.first_chunk::<LENGTH_BYTES>() else {
        return Err(Error::input(format!("is truncated: {} bytes", file.len()), REMEDY));
    };
    let length = u64::from_le_bytes(*length);
    if length > HEADER_BYTES_MAX {
        return Err(Error::input(
            format!("has a header of {length} bytes, the limit is {HEADER_BYTES_MAX}"),
            "check that it is a safetensors file",
        ));
    }
    let start = LENGTH_BYTES + length as usize;
    if start > file.len() {
        return Err(Error::input(
            format!("is truncated: its header takes {start} bytes, the file has {}", file.len()),
            REMEDY,
        ));
    }
    Ok(start)
}

/// Says which tensor made the header invalid; falls back on the crate's own words.
fn diagnose(file: &[u8], data_start: usize, error: &safetensors::SafeTensorError) -> Error {
    let data_bytes = file.len() - data_start;
    let general = || Error::input(format!("has an invalid header: {error}"), REMEDY);
    let header = &file[LENGTH_BYTES..data_start];
    let Ok(map) = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(header) else {
        return general();
    };
    let mut infos = Vec::new();
    for (name, value) in map.iter().filter(|(name, _)| *name != "__metadata__") {
        match serde_json::from_value::<TensorInfo>(value.clone()) {
            Ok(info) => infos.push((name, info)),
            Err(error) => return Error::input(format!("describes tensor {name} wrongly: {error}"), REMEDY),
        }
    }
    infos.sort_by_key(|(_, info)| info.data_offsets);
    let (mut previous_name, mut previous_end) = (None::<&String>, 0);
    for &(name, ref info) in &infos {
        let (begin, end) = info.data_offsets;
        if end > data_bytes {
            return beyond_the_end(name, end, data_bytes);
        }
        let bits = info.shape.iter().try_fold(info.dtype.bitsize(), |bits, &extent| bits.checked_mul(extent));
        if bits.is_none_or(|bits| begin > end || bits != (end - begin).saturating_mul(8)) {
            let given = end.saturating_sub(begin);
            let expected = bits.map_or("too many bytes to count".to_owned(), |bits| format!("{} bytes", bits / 8));
            return Error::input(
                format!("gives tensor {name} {given} bytes; {} {:?} takes {expected}", info.dtype, info.shape),
                REMEDY,
            );
        }
        if begin < previous_end {
            let other = previous_name.map_or("another", |name| name);
            return Error::input(format!("has tensor {name} overlap tensor {other}"), REMEDY);
        }
        if begin > previous_end {
            return Error::input(format!("has {} unused bytes before tensor {name}", begin - previous_end), REMEDY);
        }
        (previous_name, previous_end) = (Some(name), end);
    }
    if previous_end < data_bytes {
        let surplus = data_bytes - previous_end;
        return Error::input(format!("has {surplus} bytes after its last tensor"), REMEDY);
    }
    general()
}

fn beyond_the_end(name: &str, end: usize, data_bytes: usize) -> Error {
    Error::input(
        format!("is truncated: tensor {name} ends at data byte {end}, the file has {data_bytes} data bytes"),
        REMEDY,
    )
}
