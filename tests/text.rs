//! The text layer from outside: the demo checkpoint's files, the publisher's files, Python's renderings, and every
//! cut of every stream. Never runs a model.

#[path = "text/publisher.rs"]
mod publisher;
#[path = "text/streams.rs"]
mod streams;
#[path = "text/support.rs"]
mod support;
#[path = "text/template.rs"]
mod template;
#[path = "text/tokenizer.rs"]
mod tokenizer;
