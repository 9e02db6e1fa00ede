//! Typed access to one JSON object of a checkpoint's settings: every wrong type, sign or size becomes an error that
//! names the key and the value found. `null` counts as absent, as it does for those who write these files.

use serde_json::{Map, Value};

use super::error::{Error, Result};

/// More end tokens than any model has; the bound of what a hostile file can make us keep.
const TOKENS_MAX: usize = 1024;

/// One object and the dotted path to it, empty at the top.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    path: &'a str,
    map: &'a Map<String, Value>,
}

/// The top-level object of a JSON file.
pub(super) fn parse_object(bytes: &[u8]) -> Result<Map<String, Value>> {
    const REMEDY: &str = "download the file again: it must be one JSON object";
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(Error::input(format!("holds {}, expected an object", shown(&other)), REMEDY)),
        Err(error) => Err(Error::input(format!("is not JSON: {error}"), REMEDY)),
    }
}

impl<'a> Fields<'a> {
    pub fn new(map: &'a Map<String, Value>) -> Fields<'a> {
        Fields { path: "", map }
    }

    pub fn value(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// A nested object; `path` is its key, and the prefix of names in errors.
    pub fn object(&self, path: &'a str) -> Result<Option<Fields<'a>>> {
        match self.value(path) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Fields { path, map })),
            Some(other) => Err(self.wrong(path, other, "an object")),
        }
    }

    pub fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, other, "a string")),
        }
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.wrong(key, other, "true or false")),
        }
    }

    pub fn list(&self, key: &str) -> Result<Option<&'a [Value]>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => Err(self.wrong(key, other, "a list")),
        }
    }

    pub fn integer(&self, key: &str) -> Result<Option<u32>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match integer_of(value) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(key, value, "a whole number from 0 to 4294967295")),
        }
    }

    /// An extent: present, at least 1 and at most `limit`.
    pub fn extent(&self, key: &str, limit: u32) -> Result<u32> {
        let Some(value) = self.value(key) else { return Err(self.absent(key)) };
        match integer_of(value) {
            Some(number) if (1..=limit).contains(&number) => Ok(number),
            _ => Err(self.wrong(key, value, &format!("a whole number from 1 to {limit}"))),
        }
    }

    pub fn number(&self, key: &str) -> Result<Option<f32>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match value.as_f64().map(|number| number as f32) {
            Some(number) if number.is_finite() => Ok(Some(number)),
            _ => Err(self.wrong(key, value, "a finite number")),
        }
    }

    /// Token ids, written as one number or as a list.
    pub fn tokens(&self, key: &str) -> Result<Vec<u32>> {
        const EXPECTED: &str = "a token id or a list of at most 1024";
        let Some(value) = self.value(key) else { return Ok(Vec::new()) };
        let list = match value {
            Value::Array(list) if list.len() <= TOKENS_MAX => list.as_slice(),
            Value::Array(_) => return Err(self.wrong(key, value, EXPECTED)),
            single => std::slice::from_ref(single),
        };
        list.iter().map(|item| integer_of(item).ok_or_else(|| self.wrong(key, item, EXPECTED))).collect()
    }

    pub fn absent(&self, key: &str) -> Error {
        Error::input(
            format!("{} is missing", self.name(key)),
            "download the model's own file again; no value is guessed",
        )
    }

    pub fn wrong(&self, key: &str, found: &Value, expected: &str) -> Error {
        Error::input(
            format!("{} is {}, expected {expected}", self.name(key), shown(found)),
            "compare the file with the one the model was published with",
        )
    }

    /// `text_config.hidden_size`
    pub fn name(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
}

/// Whole numbers written as floats (`262144.0`) count: some writers of these files do that.
fn integer_of(value: &Value) -> Option<u32> {
    if let Some(number) = value.as_u64() {
        return u32::try_from(number).ok();
    }
    let number = value.as_f64()?;
    let whole = number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number);
    whole.then_some(number as u32)
}

/// A value short enough for one line.
fn shown(value: &Value) -> String {
    match value {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::String(text) if text.chars().count() > 40 => {
            format!("{:?}...", text.chars().take(40).collect::<String>())
        }
        other => other.to_string(),
    }
}
