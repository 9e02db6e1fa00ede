//! The demo checkpoint, compiled into the binary, so that an installed deltic answers at once.

/// Files of the demo checkpoint by name; empty without the feature `demo`.
#[cfg(feature = "demo")]
pub const FILES: &[(&str, &[u8])] = &[
    ("chat_template.jinja", include_bytes!("../../models/demo/chat_template.jinja")),
    ("config.json", include_bytes!("../../models/demo/config.json")),
    ("generation_config.json", include_bytes!("../../models/demo/generation_config.json")),
    ("model-00001-of-00002.safetensors", include_bytes!("../../models/demo/model-00001-of-00002.safetensors")),
    ("model-00002-of-00002.safetensors", include_bytes!("../../models/demo/model-00002-of-00002.safetensors")),
    ("model.safetensors.index.json", include_bytes!("../../models/demo/model.safetensors.index.json")),
    ("tokenizer.json", include_bytes!("../../models/demo/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../models/demo/tokenizer_config.json")),
];

#[cfg(not(feature = "demo"))]
pub const FILES: &[(&str, &[u8])] = &[];
