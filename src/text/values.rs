//! Types the values of tool arguments by the tool's JSON schema.
//!
//! The model writes every value as bare text; the schema says what it was meant to be. A value that does not fit its
//! type becomes a string rather than an error, and numbers keep the digits that were written.

use serde_json::{Map, Value};

use super::python::{float_repr, write_json_string};

/// The parameters of a request's tools, and those of the function at hand.
#[derive(Debug, Clone)]
pub(super) struct ToolSchemas {
    /// Function name, its `parameters` schema.
    functions: Vec<(String, Value)>,
    selected: Option<usize>,
}

impl ToolSchemas {
    /// Reads tools as `{"type": "function", "function": {…}}` or as the inner object alone.
    pub fn new(tools: &[Value]) -> ToolSchemas {
        let functions = tools.iter().filter_map(|tool| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name")?.as_str()?.to_owned();
            Some((name, function.get("parameters").cloned().unwrap_or(Value::Null)))
        });
        ToolSchemas { functions: functions.collect(), selected: None }
    }

    /// The function whose arguments come next.
    pub fn select(&mut self, name: &str) {
        self.selected = self.functions.iter().position(|(other, _)| other == name);
    }

    /// Whether a parameter is a string and nothing else, so that its text can go out as it comes.
    pub fn is_string(&self, key: &str) -> bool {
        self.types(key).is_some_and(|types| types == Types { string: true, ..Types::default() })
    }

    /// The JSON text of a parameter's value.
    pub fn json_of(&self, key: &str, text: &str) -> String {
        match self.types(key) {
            Some(types) => types.json_of(text),
            None => parsed(text, |_| true).unwrap_or_else(|| string(text)),
        }
    }

    /// None if the schema does not say.
    fn types(&self, key: &str) -> Option<Types> {
        let (_, root) = &self.functions[self.selected?];
        let schema = root.get("properties")?.get(key)?;
        let mut types = Types::default();
        types.add(schema, root, 0);
        (types != Types::default()).then_some(types)
    }
}

/// The types that a schema allows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Types {
    string: bool,
    number: bool,
    integer: bool,
    boolean: bool,
    null: bool,
    array: bool,
    object: bool,
}

impl Types {
    fn add(&mut self, schema: &Value, root: &Value, depth: usize) {
        // A schema may refer to itself.
        if depth > 8 {
            return;
        }
        match schema.get("type") {
            Some(Value::String(name)) => self.add_name(name),
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).for_each(|name| self.add_name(name)),
            _ => {
                let listed = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
                listed.chain(schema.get("const")).for_each(|value| self.add_type_of(value));
            }
        }
        for group in ["anyOf", "oneOf", "allOf"] {
            for member in schema.get(group).and_then(Value::as_array).into_iter().flatten() {
                self.add(member, root, depth + 1);
            }
        }
        if schema.get("nullable") == Some(&Value::Bool(true)) {
            self.null = true;
        }
        let target = schema.get("$ref").and_then(Value::as_str).and_then(|path| root.pointer(path.strip_prefix('#')?));
        if let Some(target) = target {
            self.add(target, root, depth + 1);
        }
    }

    fn add_name(&mut self, name: &str) {
        match name {
            "string" | "str" => self.string = true,
            "number" | "float" => self.number = true,
            "integer" | "int" => self.integer = true,
            "boolean" | "bool" => self.boolean = true,
            "null" => self.null = true,
            "array" | "list" => self.array = true,
            "object" | "dict" => self.object = true,
            _ => {}
        }
    }

    fn add_type_of(&mut self, value: &Value) {
        match value {
            Value::String(_) => self.string = true,
            Value::Number(number) if number.is_f64() => self.number = true,
            Value::Number(_) => self.integer = true,
            Value::Bool(_) => self.boolean = true,
            Value::Null => self.null = true,
            Value::Array(_) => self.array = true,
            Value::Object(_) => self.object = true,
        }
    }

    fn json_of(self, text: &str) -> String {
        if self == (Types { string: true, ..Types::default() }) {
            return string(text);
        }
        let bare = text.trim();
        if self.null && ["null", "None"].contains(&bare) {
            return "null".to_owned();
        }
        if self.boolean {
            match bare {
                "true" | "True" => return "true".to_owned(),
                "false" | "False" => return "false".to_owned(),
                _ => {}
            }
        }
        // Where a string is allowed too, only an exact number is one: "007" and "+5" are not.
        let number = if self.string { parsed(bare, Value::is_number) } else { number(bare) };
        match number {
            Some(number) if self.number || (self.integer && is_integer(&number)) => return number,
            _ => {}
        }
        if self.array || self.object {
            let fits = |value: &Value| (self.array && value.is_array()) || (self.object && value.is_object());
            if let Some(json) = parsed(bare, fits).or_else(|| from_python(bare, fits)) {
                return json;
            }
        }
        if self.string {
            return string(text);
        }
        // It fits no type of the schema; what is JSON stays JSON, so that nothing is lost.
        match bare {
            "None" => "null".to_owned(),
            "True" => "true".to_owned(),
            "False" => "false".to_owned(),
            _ => parsed(bare, |_| true).unwrap_or_else(|| string(text)),
        }
    }
}

fn string(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + 2);
    write_json_string(text, false, &mut json);
    json
}

/// The text itself, if it is one JSON value that `fits`. Not written anew, so that long numbers keep their digits.
fn parsed(text: &str, fits: impl Fn(&Value) -> bool) -> Option<String> {
    let text = text.trim();
    let value: Value = serde_json::from_str(text).ok()?;
    fits(&value).then(|| text.to_owned())
}

/// A number in JSON's form, or in one that a person may write: `007`, `+5`, `.5`.
fn number(text: &str) -> Option<String> {
    if let Some(json) = parsed(text, Value::is_number) {
        return Some(json);
    }
    if !text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte)) {
        return None;
    }
    if let Ok(integer) = text.parse::<i128>() {
        return Some(integer.to_string());
    }
    text.parse::<f64>().ok().filter(|number| number.is_finite()).map(float_repr)
}

fn is_integer(json: &str) -> bool {
    !json.contains(['.', 'e', 'E']) || json.parse::<f64>().is_ok_and(|number| number.fract() == 0.0)
}

/// A list or dict as Python's `str` writes it. Older templates show the model such values, and it answers in kind.
fn from_python(text: &str, fits: impl Fn(&Value) -> bool) -> Option<String> {
    let mut reader = PythonReader { rest: text };
    let value = reader.value(0)?;
    (reader.rest.trim().is_empty() && fits(&value)).then(|| value.to_string())
}

struct PythonReader<'a> {
    rest: &'a str,
}

impl PythonReader<'_> {
    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > 64 {
            return None;
        }
        self.skip_space();
        match self.rest.chars().next()? {
            '[' => {
                self.skip(1);
                let mut items = Vec::new();
                while !self.take(']') {
                    items.push(self.value(depth + 1)?);
                    if !self.take(',') && !self.rest.starts_with(']') {
                        return None;
                    }
                }
                Some(Value::Array(items))
            }
            '{' => {
                self.skip(1);
                let mut map = Map::new();
                while !self.take('}') {
                    let Value::String(key) = self.value(depth + 1)? else { return None };
                    if !self.take(':') {
                        return None;
                    }
                    map.insert(key, self.value(depth + 1)?);
                    if !self.take(',') && !self.rest.starts_with('}') {
                        return None;
                    }
                }
                Some(Value::Object(map))
            }
            quote @ ('\'' | '"') => self.string(quote).map(Value::String),
            _ => {
                let end = self.rest.find([',', ']', '}', ':']).unwrap_or(self.rest.len());
                let word = self.rest[..end].trim();
                let value = match word {
                    "None" => Value::Null,
                    "True" => Value::Bool(true),
                    "False" => Value::Bool(false),
                    _ => serde_json::from_str(word).ok()?,
                };
                self.skip(end);
                Some(value)
            }
        }
    }

    fn string(&mut self, quote: char) -> Option<String> {
        self.skip(1);
        let mut out = String::new();
        let mut chars = self.rest.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => match chars.next()?.1 {
                    'n' => out.push('\n'),
                    't' => out.push('\t'),
                    'r' => out.push('\r'),
                    c @ ('\\' | '\'' | '"') => out.push(c),
                    // Rarer escapes are not guessed at: the whole value stays a string.
                    _ => return None,
                },
                c if c == quote => {
                    self.skip(at + 1);
                    return Some(out);
                }
                c => out.push(c),
            }
        }
        None
    }

    fn take(&mut self, c: char) -> bool {
        self.skip_space();
        let taken = self.rest.starts_with(c);
        if taken {
            self.skip(1);
        }
        taken
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = &self.rest[bytes..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_typed_by_the_schema() {
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object",
            "$defs": {"point": {"type": "object"}},
            "properties": {
                "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"},
                "a": {"type": "array"}, "o": {"$ref": "#/$defs/point"}, "sn": {"type": ["string", "null"]},
                "si": {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "e": {"enum": ["x", "y"]}, "any": {}
        }}}});
        let mut schemas = ToolSchemas::new(&[tool]);
        schemas.select("f");
        let cases = [
            ("s", "007", "\"007\""),
            ("s", "null", "\"null\""),
            ("s", "", "\"\""),
            ("s", "a\"b\\c\n😀", "\"a\\\"b\\\\c\\n😀\""),
            ("i", "007", "7"),
            ("i", "12345678901234567890123", "12345678901234567890123"),
            ("i", "5.0", "5.0"),
            ("i", "x", "\"x\""),
            ("n", " 1.50 ", "1.50"),
            ("n", ".5", "0.5"),
            ("n", "nan", "\"nan\""),
            ("n", "1e999", "\"1e999\""),
            ("b", "True", "true"),
            ("b", "false", "false"),
            ("b", "yes", "\"yes\""),
            ("a", "[1, {\"k\": \"v\"}]", "[1, {\"k\": \"v\"}]"),
            ("a", "['it', \"it's\", None, True, 1.5]", "[\"it\",\"it's\",null,true,1.5]"),
            ("o", "{'k': {'l': []}}", "{\"k\":{\"l\":[]}}"),
            ("o", "{broken", "\"{broken\""),
            ("sn", "None", "null"),
            ("sn", "5", "\"5\""),
            ("si", "5", "5"),
            ("si", "007", "\"007\""),
            ("e", "x", "\"x\""),
            ("any", "{\"a\": 1}", "{\"a\": 1}"),
            ("unknown", "true", "true"),
            ("unknown", "007", "\"007\""),
            ("unknown", "plain text", "\"plain text\""),
        ];
        for (key, text, expected) in cases {
            let json = schemas.json_of(key, text);
            assert_eq!(json, expected, "{key}: {text:?}");
            serde_json::from_str::<Value>(&json).unwrap_or_else(|error| panic!("{json}: {error}"));
        }
        assert!(schemas.is_string("s") && schemas.is_string("e"));
        assert!(!schemas.is_string("sn") && !schemas.is_string("unknown"));
    }
}
