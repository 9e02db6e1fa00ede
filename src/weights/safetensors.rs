//! A checkpoint: a folder of safetensors shards with an index, a folder with one file, or the same compiled in.
//! Opening it checks that every tensor's bytes are there and gives each tensor one name; what a model needs of them
//! is the survey's question. Reads no weights.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use safetensors::Dtype;

use super::header::read_header;
use super::map::{MappedFile, map_file};
use crate::base::{Error, GenerationConfig, ModelConfig, Result};

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
/// Bound of the text files that are read whole: indexes, configs, tokenizers.
const TEXT_BYTES_MAX: u64 = 128 << 20;

/// The tensors of a checkpoint under normalised names, and its other files.
pub struct Checkpoint {
    source: Source,
    shards: Vec<Shard>,
    /// By normalised name; the vision tower is not among them.
    tensors: BTreeMap<String, Entry>,
    vision: Skipped,
}

/// Tensors that a text model has no use for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Skipped {
    pub tensors: u32,
    pub parameters: u64,
    pub bytes: u64,
}

/// One tensor as the file has it.
#[derive(Debug, Clone, Copy)]
pub struct FileTensor<'a> {
    /// The name in the file, before normalisation.
    pub file_name: &'a str,
    /// The file it lies in.
    pub shard: &'a str,
    pub dtype: Dtype,
    pub shape: &'a [usize],
    /// Row-major, little-endian, of any alignment.
    pub bytes: &'a [u8],
}

enum Source {
    Folder(PathBuf),
    Embedded(Vec<(String, &'static [u8])>),
}

struct Shard {
    name: String,
    bytes: ShardBytes,
}

enum ShardBytes {
    Mapped(MappedFile),
    Embedded(&'static [u8]),
}

struct Entry {
    file_name: String,
    shard: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: std::ops::Range<usize>,
}

impl Checkpoint {
    /// Opens a folder with `model.safetensors.index.json` and its shards, or with one `model.safetensors`.
    ///
    /// Errors: Input for anything wrong with the files, naming file and tensor; Failure where the machine cannot
    /// read them.
    pub fn open(folder: &Path) -> Result<Checkpoint> {
        if !folder.is_dir() {
            return Err(Error::input(
                format!("{} is not a folder", folder.display()),
                "give the folder that holds config.json and the safetensors files",
            ));
        }
        Checkpoint::from_source(Source::Folder(folder.to_owned()))
            .map_err(|error| error.within(format_args!("checkpoint {}", folder.display())))
    }

    /// A checkpoint compiled into the program: file names and contents. Errors as [`Checkpoint::open`].
    pub fn embedded(files: &[(&str, &'static [u8])]) -> Result<Checkpoint> {
        let files = files.iter().map(|&(name, bytes)| (name.to_owned(), bytes)).collect();
        Checkpoint::from_source(Source::Embedded(files)).map_err(|error| error.within("the built-in checkpoint"))
    }

    /// The model's extents, from `config.json`.
    pub fn config(&self) -> Result<ModelConfig> {
        match self.file("config.json")? {
            Some(bytes) => ModelConfig::from_json(&bytes),
            None => {
                Err(Error::input("config.json is missing", "copy it from where the weights came from; it is small"))
            }
        }
    }

    /// The published sampling defaults, from `generation_config.json`, where there is one.
    pub fn generation_config(&self) -> Result<Option<GenerationConfig>> {
        self.file("generation_config.json")?.map(|bytes| GenerationConfig::from_json(&bytes)).transpose()
    }

    /// Another file of the checkpoint, whole; None if there is none. `name` is one of ours, never a file's word.
    /// Errors: Input above 128 MiB; Failure if it cannot be read.
    pub fn file(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>> {
        self.source.read_text(name)
    }

    /// The tensor of this normalised name, such as `layers.3.mlp.up_proj.weight` or `mtp.fc.weight`.
    pub fn tensor(&self, name: &str) -> Option<FileTensor<'_>> {
        self.tensors.get(name).map(|entry| self.view(entry))
    }

    /// Every tensor but those of the vision tower, by normalised name, ascending.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, FileTensor<'_>)> {
        self.tensors.iter().map(|(name, entry)| (name.as_str(), self.view(entry)))
    }

    /// What the vision tower holds; it is never read.
    pub fn vision(&self) -> Skipped {
        self.vision
    }

    /// File names and sizes of the weights, in index order.
    pub fn shards(&self) -> impl Iterator<Item = (&str, u64)> {
        self.shards.iter().map(|shard| (shard.name.as_str(), shard.bytes().len() as u64))
    }

    fn view<'a>(&'a self, entry: &'a Entry) -> FileTensor<'a> {
        let shard = &self.shards[entry.shard];
        FileTensor {
            file_name: &entry.file_name,
            shard: &shard.name,
            dtype: entry.dtype,
            shape: &entry.shape,
            bytes: &shard.bytes()[entry.bytes.clone()],
        }
    }

    fn from_source(source: Source) -> Result<Checkpoint> {
        let index = source.read_text(INDEX)?.map(|bytes| read_index(&bytes)).transpose()?;
        let names: BTreeSet<&str> = match &index {
            Some(index) => index.values().map(String::as_str).collect(),
            None => BTreeSet::from([SINGLE]),
        };
        if !names.contains(SINGLE) && source.has(SINGLE) {
            return Err(Error::input(
                format!("{SINGLE} lies beside {INDEX}, which does not mention it"),
                "remove whichever of the two is left over from another download",
            ));
        }
        let mut checkpoint =
            Checkpoint { source, shards: Vec::new(), tensors: BTreeMap::new(), vision: Skipped::default() };
        for name in names {
            checkpoint.add_shard(name, index.is_some())?;
        }
        if let Some(index) = &index {
            checkpoint.check_index(index)?;
        }
        Ok(checkpoint)
    }

    fn add_shard(&mut self, name: &str, indexed: bool) -> Result<()> {
        let Some(bytes) = self.source.open_shard(name)? else {
            return Err(match indexed {
                true => Error::input(
                    format!("{name} is missing, though {INDEX} names it"),
                    "download the missing shard into the same folder",
                ),
                false => Error::input(
                    format!("neither {INDEX} nor {SINGLE} is there"),
                    "give a folder with safetensors weights; GGUF and .bin files are not read",
                ),
            });
        };
        let shard = Shard { name: name.to_owned(), bytes };
        let entries = read_header(shard.bytes()).map_err(|error| error.within(name))?;
        self.shards.push(shard);
        for entry in entries {
            self.add_tensor(entry)?;
        }
        Ok(())
    }

    fn add_tensor(&mut self, found: super::header::HeaderEntry) -> Result<()> {
        let Some(name) = normalised(&found.name) else {
            self.vision.tensors += 1;
            self.vision.parameters += found.shape.iter().map(|&extent| extent as u64).product::<u64>();
            self.vision.bytes += found.bytes.len() as u64;
            return Ok(());
        };
        let shard = self.shards.len() - 1;
        let super::header::HeaderEntry { name: file_name, dtype, shape, bytes } = found;
        if let Some(other) = self.tensors.get(&name) {
            return Err(Error::input(
                format!(
                    "tensor {name} is there twice: as {} in {} and as {file_name} in {}",
                    other.file_name, self.shards[other.shard].name, self.shards[shard].name
                ),
                "remove one of the two copies, or download the checkpoint again",
            ));
        }
        self.tensors.insert(name, Entry { file_name, shard, dtype, shape, bytes });
        Ok(())
    }

    /// Every tensor that the index promises lies in the shard that it names.
    fn check_index(&self, index: &BTreeMap<String, String>) -> Result<()> {
        for (file_name, shard) in index {
            // The vision tower is never read, so what the index says of it does not matter.
            let Some(name) = normalised(file_name) else { continue };
            let found = self
                .tensors
                .get(&name)
                .filter(|entry| entry.file_name == *file_name && self.shards[entry.shard].name == *shard);
            if found.is_none() {
                return Err(Error::input(
                    format!("tensor {file_name} is not in {shard}, where {INDEX} places it"),
                    format!("download {shard} and {INDEX} again, both of the same revision"),
                ));
            }
        }
        Ok(())
    }
}

/// The name without the prefix that its exporter chose; None for the vision tower.
fn normalised(name: &str) -> Option<String> {
    if name.starts_with("model.visual.") || name.starts_with("visual.") {
        return None;
    }
    let rest = name.strip_prefix("model.language_model.").or_else(|| name.strip_prefix("model."));
    Some(rest.unwrap_or(name).to_owned())
}

/// The index's map from tensor to shard.
fn read_index(bytes: &[u8]) -> Result<BTreeMap<String, String>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let remedy = format!("download {INDEX} again");
    let index: Index = serde_json::from_slice(bytes)
        .map_err(|error| Error::input(format!("{INDEX} is not an index: {error}"), remedy.as_str()))?;
    for (tensor, shard) in &index.weight_map {
        // A name with a path in it could lead out of the folder.
        let plain = shard.ends_with(".safetensors") && !shard.contains(['/', '\\', ':', '\0']);
        if !plain {
            return Err(Error::input(
                format!("{INDEX} places tensor {tensor} in {shard:?}, which is not a plain .safetensors name"),
                remedy.as_str(),
            ));
        }
    }
    if index.weight_map.is_empty() {
        return Err(Error::input(format!("{INDEX} lists no tensor"), remedy));
    }
    Ok(index.weight_map)
}

impl Shard {
    fn bytes(&self) -> &[u8] {
        match &self.bytes {
            ShardBytes::Mapped(file) => file,
            ShardBytes::Embedded(bytes) => bytes,
        }
    }
}

impl Source {
    fn has(&self, name: &str) -> bool {
        match self {
            Source::Folder(folder) => folder.join(name).exists(),
            Source::Embedded(files) => files.iter().any(|(file, _)| file == name),
        }
    }

    fn open_shard(&self, name: &str) -> Result<Option<ShardBytes>> {
        match self {
            Source::Folder(folder) => {
                absent_as_none(map_file(&folder.join(name)), name).map(|file| file.map(ShardBytes::Mapped))
            }
            Source::Embedded(_) => Ok(self.embedded_file(name).map(ShardBytes::Embedded)),
        }
    }

    fn read_text(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>> {
        let Source::Folder(folder) = self else { return Ok(self.embedded_file(name).map(Cow::Borrowed)) };
        let path = folder.join(name);
        let Some(metadata) = absent_as_none(std::fs::metadata(&path), name)? else { return Ok(None) };
        if !metadata.is_file() || metadata.len() > TEXT_BYTES_MAX {
            return Err(Error::input(
                format!("{name} is not a file of at most {TEXT_BYTES_MAX} bytes"),
                "replace it with the published file",
            ));
        }
        Ok(absent_as_none(std::fs::read(&path), name)?.map(Cow::Owned))
    }

    fn embedded_file(&self, name: &str) -> Option<&'static [u8]> {
        match self {
            Source::Folder(_) => None,
            Source::Embedded(files) => files.iter().find(|(file, _)| file == name).map(|&(_, bytes)| bytes),
        }
    }
}

fn absent_as_none<T>(result: io::Result<T>, name: &str) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            Err(Error::input(format!("{name} cannot be read: {error}"), "replace it with the published file"))
        }
        Err(error) => Err(Error::failure(
            format!("{name} cannot be read: {error}"),
            "check that the file is readable and its disk works",
        )),
    }
}
