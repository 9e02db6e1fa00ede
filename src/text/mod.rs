//! Text around the model: token ids, chat templates, and the reading of what the model writes.
//!
//! The readers of output are pure state machines, `push` and `finish`: the same text cut differently gives the same
//! events. Nothing here opens a file, and nothing knows of requests, of HTTP or of the engine.
//!
//! A prompt: `ChatTemplate::render`, then `Tokenizer::encode_prompt`. An answer, token by token: `Detokenizer`,
//! `ReasoningSplitter`, and for its content `ToolParser`.

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
