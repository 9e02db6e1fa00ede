//! Values written the way Python writes them, since templates were made for Python's Jinja.
//!
//! Formatting only: nothing here knows of templates or of models.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// How `json.dumps` is asked to write.
#[derive(Debug, Clone)]
pub(super) struct JsonStyle {
    /// Spaces by which each level is indented; None writes one line.
    pub indent_spaces: Option<usize>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
    pub ensure_ascii: bool,
}

/// `json.dumps(value, ensure_ascii=False)` and its options.
pub(super) fn json_dumps(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut out = String::new();
    write_json(value, style, 0, &mut out)?;
    Ok(out)
}

/// `str(value)`.
pub(super) fn str_of(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None if value.is_undefined() => String::new(),
        None => match float_of(value) {
            Some(number) => float_repr(number),
            None => value.to_string(),
        },
    }
}

/// `str.isspace` of one character; a little more than Unicode's White_Space.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// `float.__repr__`: the shortest digits, an exponent below 1e-4 and from 1e16 on.
pub(super) fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let magnitude = number.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').expect("the e format has an e");
        let exponent: i32 = exponent.parse().expect("the e format ends in a number");
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    format!("{number:?}")
}

/// Deeper values are refused, as Python's own recursion limit would, long before the stack ends.
const DEPTH_MAX: usize = 200;

fn write_json(value: &Value, style: &JsonStyle, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: nested deeper than {DEPTH_MAX} levels")));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => match float_of(value) {
            Some(number) if number.is_nan() => out.push_str("NaN"),
            Some(number) if number.is_infinite() => out.push_str(if number > 0.0 { "Infinity" } else { "-Infinity" }),
            Some(number) => out.push_str(&float_repr(number)),
            None => out.push_str(&value.to_string()),
        },
        ValueKind::String => write_json_string(value.as_str().unwrap_or_default(), style.ensure_ascii, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_group(out, style, depth, ('[', ']'), items.len(), |out, index| {
                write_json(&items[index], style, depth + 1, out)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort();
            }
            write_group(out, style, depth, ('{', '}'), keys.len(), |out, index| {
                let key = &keys[index];
                match key.as_str() {
                    Some(text) => write_json_string(text, style.ensure_ascii, out),
                    None => {
                        let mut text = String::new();
                        write_json(key, style, depth + 1, &mut text)?;
                        write_json_string(&text, style.ensure_ascii, out);
                    }
                }
                out.push_str(&style.key_separator);
                write_json(&value.get_item(key)?, style, depth + 1, out)
            })?;
        }
        kind => {
            return Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: {kind} is not JSON serializable")));
        }
    }
    Ok(())
}

fn write_group(
    out: &mut String,
    style: &JsonStyle,
    depth: usize,
    (open, close): (char, char),
    count: usize,
    mut write_item: impl FnMut(&mut String, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |out: &mut String, depth: usize| {
        if let Some(spaces) = style.indent_spaces {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', spaces * depth));
        }
    };
    out.push(open);
    for index in 0..count {
        if index > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(out, depth + 1);
        write_item(out, index)?;
    }
    if count > 0 {
        new_line(out, depth);
    }
    out.push(close);
    Ok(())
}

pub(super) fn write_json_string(text: &str, ensure_ascii: bool, out: &mut String) {
    out.push('"');
    write_json_escaped(text, ensure_ascii, out);
    out.push('"');
}

/// The inside of a JSON string; pieces of a text written one by one join to the whole.
pub(super) fn write_json_escaped(text: &str, ensure_ascii: bool, out: &mut String) {
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            // The private plane is left alone: the marks of `prompt.rs` are to be found again.
            c if ensure_ascii && !c.is_ascii() && !('\u{F0000}'..='\u{FFFFD}').contains(&c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
}

fn float_of(value: &Value) -> Option<f64> {
    (value.kind() == ValueKind::Number && !value.is_integer()).then(|| f64::try_from(value.clone()).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_does() {
        let expected = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-2.5e-7, "-2.5e-07"),
            (123456789.125, "123456789.125"),
        ];
        for (number, text) in expected {
            assert_eq!(float_repr(number), text);
        }
    }

    #[test]
    fn a_float_without_a_fraction_stays_a_float() {
        assert_eq!(str_of(&Value::from(2.0)), "2.0");
        assert_eq!(str_of(&Value::from(2)), "2");
        assert_eq!(str_of(&Value::from(true)), "True");
        assert_eq!(str_of(&Value::from(())), "None");
    }
}
