//! Memory-mapped files: the one place of this layer that needs `unsafe`.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

/// The bytes of a file, read on demand by the operating system.
#[derive(Debug)]
pub(super) struct MappedFile(memmap2::Mmap);

/// Maps a regular file. Anything else is an error: opening a pipe would wait for ever.
pub(super) fn map_file(path: &Path) -> io::Result<MappedFile> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let file = File::open(path)?;
    // SAFETY: the mapping is read-only and private to this value. Whoever shortens or rewrites a checkpoint while it
    // is loaded gets a bus error or wrong weights; no Rust value other than plain bytes is ever built on it.
    Ok(MappedFile(unsafe { memmap2::Mmap::map(&file)? }))
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
