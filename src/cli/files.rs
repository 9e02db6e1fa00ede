//! The files of a model: a checkpoint folder, or the demo checkpoint inside the binary.

use std::path::Path;

use super::demo;
use crate::base::{Error, Result};
use crate::text::{ChatTemplate, Tokenizer};
use crate::weights::Checkpoint;

pub struct ModelFiles {
    /// What a person calls it.
    pub name: String,
    pub checkpoint: Checkpoint,
}

impl ModelFiles {
    /// Opens the folder given, or the built-in demo model. Reads headers, no weights.
    pub fn open(folder: Option<&Path>) -> Result<ModelFiles> {
        match folder {
            Some(path) => Ok(ModelFiles { name: path.display().to_string(), checkpoint: Checkpoint::open(path)? }),
            None if demo::FILES.is_empty() => Err(Error::input(
                "no model given, and this build has no demo model",
                "give --model DIR, or build with the feature demo",
            )),
            None => Ok(ModelFiles { name: "built-in demo".to_owned(), checkpoint: Checkpoint::embedded(demo::FILES)? }),
        }
    }

    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let bytes = self.checkpoint.file("tokenizer.json")?.ok_or_else(|| {
            Error::input(
                format!("{}: there is no tokenizer.json", self.name),
                "copy the publisher's tokenizer.json into the checkpoint folder",
            )
        })?;
        Tokenizer::from_bytes(&bytes).map_err(|error| error.within(&self.name))
    }

    /// From chat_template.jinja, else from tokenizer_config.json, where older checkpoints keep it.
    pub fn template(&self) -> Result<ChatTemplate> {
        let name = "chat_template.jinja";
        let source = match self.checkpoint.file(name)? {
            Some(bytes) => utf8(bytes.into_owned()).map_err(|error| error.within(name).within(&self.name))?,
            None => self.template_of_tokenizer_config()?,
        };
        ChatTemplate::parse(&source).map_err(|error| error.within(&self.name))
    }

    fn template_of_tokenizer_config(&self) -> Result<String> {
        let name = "tokenizer_config.json";
        let bytes = self.checkpoint.file(name)?.unwrap_or_default();
        let config: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
        config.get("chat_template").and_then(|source| source.as_str()).map(str::to_owned).ok_or_else(|| {
            Error::input(
                format!("{}: there is no chat_template.jinja, and {name} holds no template", self.name),
                "copy the publisher's chat_template.jinja into the folder, or generate without --chat",
            )
        })
    }
}

/// Bytes that must be text. The error names the first bad byte.
pub fn utf8(bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::input(format!("byte {at} is not valid UTF-8"), "convert the text to UTF-8")
    })
}
