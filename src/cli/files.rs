//! Where a model's files come from: a folder, or the demo checkpoint inside the binary.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use super::demo;
use crate::base::config::{GenerationConfig, ModelConfig};
use crate::base::{Error, Result};
use crate::text::{ChatTemplate, Tokenizer};
use crate::weights::Checkpoint;

/// Files beside the weights are small; a larger one is not what its name says.
const SMALL_FILE_BYTES_MAX: u64 = 64 << 20;

pub enum ModelFiles {
    Folder(PathBuf),
    Embedded,
}

impl ModelFiles {
    /// The folder given, or the built-in demo model.
    pub fn find(folder: Option<&Path>) -> Result<ModelFiles> {
        match folder {
            Some(path) if path.is_dir() => Ok(ModelFiles::Folder(path.to_owned())),
            Some(path) => Err(Error::input(
                format!("{} is not a folder", path.display()),
                "give --model the folder that holds config.json and the safetensors files",
            )),
            None if demo::FILES.is_empty() => Err(Error::input(
                "no model given, and this build has no demo model",
                "give --model DIR, or build with the feature demo",
            )),
            None => Ok(ModelFiles::Embedded),
        }
    }

    /// What a person calls it.
    pub fn name(&self) -> String {
        match self {
            ModelFiles::Folder(path) => path.display().to_string(),
            ModelFiles::Embedded => "built-in demo".to_owned(),
        }
    }

    pub fn checkpoint(&self) -> Result<Checkpoint> {
        match self {
            ModelFiles::Folder(path) => Checkpoint::open(path),
            ModelFiles::Embedded => Checkpoint::embedded(demo::FILES),
        }
    }

    pub fn config(&self) -> Result<ModelConfig> {
        let bytes = self.required("config.json", "a checkpoint folder holds the publisher's config.json")?;
        ModelConfig::from_json(&bytes).map_err(|error| error.within(self.path("config.json")))
    }

    /// None where the checkpoint ships none.
    pub fn generation_config(&self) -> Result<Option<GenerationConfig>> {
        let name = "generation_config.json";
        let Some(bytes) = self.read(name)? else { return Ok(None) };
        GenerationConfig::from_json(&bytes).map(Some).map_err(|error| error.within(self.path(name)))
    }

    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let bytes = self.required("tokenizer.json", "copy the publisher's tokenizer.json into the checkpoint folder")?;
        Tokenizer::from_bytes(&bytes).map_err(|error| error.within(self.path("tokenizer.json")))
    }

    /// From chat_template.jinja, else from tokenizer_config.json, where older checkpoints keep it.
    pub fn template(&self) -> Result<ChatTemplate> {
        let name = "chat_template.jinja";
        let source = match self.read(name)? {
            Some(bytes) => utf8(bytes.into_owned()).map_err(|error| error.within(self.path(name)))?,
            None => self.template_of_tokenizer_config()?,
        };
        ChatTemplate::parse(&source).map_err(|error| error.within(self.path(name)))
    }

    fn template_of_tokenizer_config(&self) -> Result<String> {
        let name = "tokenizer_config.json";
        let bytes = self.read(name)?.unwrap_or_default();
        let config: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
        config.get("chat_template").and_then(|source| source.as_str()).map(str::to_owned).ok_or_else(|| {
            Error::input(
                format!("{}: there is no chat_template.jinja, and {name} holds no template", self.name()),
                "copy the publisher's chat_template.jinja into the folder, or generate without --chat",
            )
        })
    }

    fn required(&self, name: &str, remedy: &str) -> Result<Cow<'static, [u8]>> {
        let missing = || Error::input(format!("{}: there is no {name}", self.name()), remedy);
        self.read(name)?.ok_or_else(missing)
    }

    /// A small file, or None if there is none of that name.
    fn read(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>> {
        let folder = match self {
            ModelFiles::Embedded => {
                let file = demo::FILES.iter().find(|(file, _)| *file == name);
                return Ok(file.map(|(_, bytes)| Cow::Borrowed(*bytes)));
            }
            ModelFiles::Folder(folder) => folder,
        };
        let path = folder.join(name);
        let unreadable = |error: std::io::Error| {
            Error::input(format!("{}: {error}", path.display()), "check the file and its permissions")
        };
        let length = match std::fs::metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(error)),
            Ok(metadata) => metadata.len(),
        };
        if length > SMALL_FILE_BYTES_MAX {
            return Err(Error::input(
                format!("{} has {length} bytes, the limit is {SMALL_FILE_BYTES_MAX}", path.display()),
                "replace it with the publisher's file",
            ));
        }
        Ok(Some(Cow::Owned(std::fs::read(&path).map_err(unreadable)?)))
    }

    fn path(&self, name: &str) -> String {
        match self {
            ModelFiles::Folder(folder) => folder.join(name).display().to_string(),
            ModelFiles::Embedded => format!("{}: {name}", self.name()),
        }
    }
}

/// Bytes that must be text. The error names the first bad byte.
pub fn utf8(bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::input(format!("byte {at} is not valid UTF-8"), "convert the text to UTF-8")
    })
}
