//! The sampling defaults and end tokens that a model was published with: its `generation_config.json`.

use serde::Serialize;

use super::error::{Error, Result};
use super::fields::{Fields, parse_object};

/// Defaults for a request that says nothing; None where the file says nothing either.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct GenerationConfig {
    /// false asks for greedy decoding, whatever the temperature says.
    pub do_sample: Option<bool>,
    /// 0 or more; 0 is greedy.
    pub temperature: Option<f32>,
    /// Above 0, at most 1.
    pub top_p: Option<f32>,
    /// 0 is off; a file's -1 is read as 0.
    pub top_k: Option<u32>,
    /// 0 to 1.
    pub min_p: Option<f32>,
    /// Above 0; 1 is off.
    pub repetition_penalty: Option<f32>,
    /// 0 is off.
    pub presence_penalty: Option<f32>,
    pub eos_ids: Vec<u32>,
}

impl GenerationConfig {
    /// Reads `generation_config.json`. Keys unknown to us are left alone. Errors (Input) name the key.
    pub fn from_json(bytes: &[u8]) -> Result<GenerationConfig> {
        read(bytes).map_err(|error| error.within("generation_config.json"))
    }
}

fn read(bytes: &[u8]) -> Result<GenerationConfig> {
    let map = parse_object(bytes)?;
    let fields = Fields::new(&map);
    let ranged = |key: &str, holds: fn(f32) -> bool, expected: &str| -> Result<Option<f32>> {
        match fields.number(key)? {
            Some(found) if !holds(found) => Err(Error::input(
                format!("{key} is {found}, expected {expected}"),
                "correct the value, or delete the key to use the default",
            )),
            number => Ok(number),
        }
    };
    let top_k_off = fields.value("top_k").and_then(serde_json::Value::as_i64) == Some(-1);
    Ok(GenerationConfig {
        do_sample: fields.flag("do_sample")?,
        temperature: ranged("temperature", |x| x >= 0.0, "0 or more")?,
        top_p: ranged("top_p", |x| x > 0.0 && x <= 1.0, "above 0 and at most 1")?,
        top_k: if top_k_off { Some(0) } else { fields.integer("top_k")? },
        min_p: ranged("min_p", |x| (0.0..=1.0).contains(&x), "0 to 1")?,
        repetition_penalty: ranged("repetition_penalty", |x| x > 0.0, "above 0")?,
        presence_penalty: fields.number("presence_penalty")?,
        eos_ids: fields.tokens("eos_token_id")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_file_and_both_forms_of_end_tokens() {
        let file = br#"{"bos_token_id": 248044, "do_sample": true, "eos_token_id": [248046, 248044],
            "temperature": 1.0, "top_k": 20, "top_p": 0.95, "min_p": null}"#;
        let config = GenerationConfig::from_json(file).unwrap();
        assert_eq!(config.do_sample, Some(true));
        assert_eq!((config.temperature, config.top_p, config.top_k), (Some(1.0), Some(0.95), Some(20)));
        assert_eq!((config.min_p, config.repetition_penalty, config.presence_penalty), (None, None, None));
        assert_eq!(config.eos_ids, [248_046, 248_044]);
        assert_eq!(GenerationConfig::from_json(br#"{"eos_token_id": 7, "top_k": -1}"#).unwrap().eos_ids, [7]);
        assert_eq!(GenerationConfig::from_json(b"{}").unwrap(), GenerationConfig::default());
    }

    #[test]
    fn values_out_of_range_are_named() {
        for (file, part) in [
            (r#"{"temperature": -1}"#, "temperature is -1"),
            (r#"{"temperature": "hot"}"#, "temperature is \"hot\""),
            (r#"{"top_p": 0}"#, "top_p is 0"),
            (r#"{"top_k": -2}"#, "top_k is -2"),
            (r#"{"min_p": 1.5}"#, "min_p is 1.5"),
            (r#"{"repetition_penalty": 1e300}"#, "repetition_penalty is 1e+300"),
            (r#"{"eos_token_id": [1, "x"]}"#, "eos_token_id is \"x\""),
            ("[1]", "holds a list of 1"),
            ("{", "is not JSON"),
        ] {
            let error = GenerationConfig::from_json(file.as_bytes()).unwrap_err();
            assert!(error.what().starts_with("generation_config.json: "), "{error}");
            assert!(error.what().contains(part), "{error} lacks {part}");
        }
    }
}
