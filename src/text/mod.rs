//! Text around the model: token ids, chat templates, and the reading of what the model writes.
//!
//! Every stage is a pure state machine: `push` and `finish`, no clock of its own, no files, no threads; feeding the same text
//! cut differently gives the same events. Nothing here knows of requests, of HTTP or of the engine.

mod controls;
mod detokenize;
mod prompt;
mod python;
mod reasoning;
mod strftime;
mod template;
mod tokenizer;
mod tools;
mod values;

pub use controls::{ControlStrings, Found};
pub use detokenize::Detokenizer;
pub use prompt::{Piece, Prompt};
pub use reasoning::{ReasoningEvent, ReasoningSplitter};
pub use template::{ChatTemplate, RenderOptions};
pub use tokenizer::Tokenizer;
pub use tools::{ToolEvent, ToolParser};
