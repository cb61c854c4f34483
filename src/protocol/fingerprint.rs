//! Model configuration → 16 hex digits that two tiers compare before they share blocks.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::error::{Error, ErrorKind, Result};

/// Objects and arrays inside one another. Python itself stops near 1000; a configuration has three.
const MAX_NESTING: usize = 128;

/// SHA-256 of the configuration as canonical JSON (`json.dumps(sort_keys=True, separators=(",", ":"))` of Python),
/// first 16 hex digits; an empty configuration (empty text, `null`, `{}`) gives the empty string.
///
/// # Errors
/// `InvalidArgument` for what is not JSON, is no object, or has a number that is not finite.
pub fn of_json(config_json: &str) -> Result<String> {
    let canonical = canonical(config_json)?;
    if canonical.is_empty() {
        return Ok(canonical);
    }
    let digest = Sha256::digest(canonical.as_bytes());
    Ok(digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

/// The text that is hashed; empty for an empty configuration.
fn canonical(config_json: &str) -> Result<String> {
    if config_json.trim().is_empty() {
        return Ok(String::new());
    }
    // Checks the whole text first, so that errors name the place in it.
    let raw: &RawValue = serde_json::from_str(config_json).map_err(|why| not_json(&why))?;
    match raw.get() {
        "null" => return Ok(String::new()),
        object if object.starts_with('{') => {}
        other => return Err(refused(&format!("expected an object, got {}", shortened(other)))),
    }
    let mut out = String::with_capacity(config_json.len());
    write_value(raw, MAX_NESTING, &mut out)?;
    // An object without members, whatever blanks were inside.
    if out == "{}" {
        out.clear();
    }
    Ok(out)
}

/// Each value is taken as the text it was written as: numbers would lose digits otherwise.
fn write_value(raw: &RawValue, levels: usize, out: &mut String) -> Result<()> {
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'{' | b'[') if levels == 0 => Err(refused(&format!(
            "expected at most {MAX_NESTING} objects and arrays inside one another, got more"
        ))),
        Some(b'{') => write_object(text, levels - 1, out),
        Some(b'[') => write_array(text, levels - 1, out),
        Some(b'"') => {
            let string: String = serde_json::from_str(text).map_err(|why| not_json(&why))?;
            write_string(&string, out);
            Ok(())
        }
        Some(b'-' | b'0'..=b'9') => write_number(text, out),
        _ => {
            out.push_str(text); // true, false, null
            Ok(())
        }
    }
}

fn write_object(text: &str, levels: usize, out: &mut String) -> Result<()> {
    // Of equal names the last wins, as in Python. UTF-8 sorts by code points, as Python does.
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(text).map_err(|why| not_json(&why))?;
    out.push('{');
    for (index, (name, value)) in members.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_string(&name, out);
        out.push(':');
        write_value(value, levels, out)?;
    }
    out.push('}');
    Ok(())
}

fn write_array(text: &str, levels: usize, out: &mut String) -> Result<()> {
    let elements: Vec<&RawValue> = serde_json::from_str(text).map_err(|why| not_json(&why))?;
    out.push('[');
    for (index, element) in elements.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_value(element, levels, out)?;
    }
    out.push(']');
    Ok(())
}

/// As Python's `ensure_ascii`: everything but printable ASCII is escaped, in UTF-16 units.
fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(character),
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    push(out, format_args!("\\u{unit:04x}"));
                }
            }
        }
    }
    out.push('"');
}

/// Integers keep every digit, as Python's do; what has a point or an exponent is a double.
fn write_number(text: &str, out: &mut String) -> Result<()> {
    if text == "-0" {
        out.push('0');
        return Ok(());
    }
    if !text.contains(['.', 'e', 'E']) {
        out.push_str(text);
        return Ok(());
    }
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => {
            write_double(value, out);
            Ok(())
        }
        _ => {
            Err(refused(&format!("expected a number within the range of a double, got {}", shortened(text))))
        }
    }
}

/// As Python's `repr`: with an exponent below 1e-4 and from 1e16 up, and never without a point or an exponent.
fn write_double(value: f64, out: &mut String) {
    let scientific = shortest(value);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        push(out, format_args!("{mantissa}e{sign}{:02}", exponent.unsigned_abs()));
        return;
    }
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    if mantissa.starts_with('-') {
        out.push('-');
    }
    let before_point = usize::try_from(exponent + 1).unwrap_or(0);
    match digits.split_at_checked(before_point) {
        Some(("", fraction)) => {
            let zeros = usize::try_from(-exponent - 1).unwrap_or(0);
            push(out, format_args!("0.{:0<zeros$}{fraction}", ""));
        }
        Some((whole, "")) => push(out, format_args!("{whole}.0")),
        Some((whole, fraction)) => push(out, format_args!("{whole}.{fraction}")),
        None => push(out, format_args!("{digits:0<before_point$}.0")),
    }
}

/// The fewest digits that name the value, as `d.ddde±x`; of two equally near, the even one. Rust alone would take
/// the upper one (2^-25 would end in 3 and not in 2), Python takes the even one.
fn shortest(value: f64) -> String {
    let shortest = format!("{value:e}");
    let mantissa = shortest.split('e').next().unwrap_or_default();
    let decimals = mantissa.bytes().filter(u8::is_ascii_digit).count().saturating_sub(1);
    let rounded = format!("{value:.decimals$e}");
    if rounded.parse() == Ok(value) { rounded } else { shortest }
}

fn push(out: &mut String, text: std::fmt::Arguments) {
    // A `String` takes every write.
    let _ = out.write_fmt(text);
}

fn not_json(why: &serde_json::Error) -> Error {
    refused(&format!("expected JSON, got something else: {why}"))
}

fn refused(why: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("model configuration: {why}"))
}

/// Enough of the text to find it again.
fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_those_of_python() {
        let table = include_str!("../../tests/data/fingerprints.tsv");
        let mut rows = 0;
        for line in table.lines() {
            let [text, expected, fingerprint] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
            let text: String = serde_json::from_str(text).unwrap();
            let expected: String = serde_json::from_str(expected).unwrap();
            assert_eq!(canonical(&text).unwrap(), expected, "{text}");
            assert_eq!(of_json(&text).unwrap(), fingerprint, "{text}");
            rows += 1;
        }
        assert!(rows > 60, "{rows}");
    }

    #[test]
    fn fingerprints_of_generated_models_are_those_of_vllm() {
        let table = include_str!("../../tests/data/vllm_fingerprints.tsv");
        let mut rows = 0;
        for line in table.lines() {
            let (text, fingerprint) = line.split_once('\t').unwrap();
            let text: String = serde_json::from_str(text).unwrap();
            assert_eq!(of_json(&text).unwrap(), fingerprint, "{text}");
            rows += 1;
        }
        assert_eq!(rows, 200);
    }

    fn refusal(text: &str) -> String {
        let error = of_json(text).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument);
        error.message
    }

    #[test]
    fn what_is_no_json_object_is_refused() {
        for text in
            ["[]", "1", "\"a\"", "true", "{", "{}{}", "{'a':1}", "{\"a\":01}", "{\"a\":\"\n\"}", "[1,]"]
        {
            refusal(text);
        }
        assert!(refusal("{\n\"a\": x}").contains("line 2 column 6"));
    }

    #[test]
    fn numbers_that_are_not_finite_are_refused() {
        for number in ["NaN", "Infinity", "-Infinity", "1e400", "-1e309"] {
            refusal(&format!("{{\"a\":{number}}}"));
        }
    }

    #[test]
    fn half_a_surrogate_pair_is_refused() {
        refusal(r#"{"a":"\ud83d"}"#);
        refusal(r#"{"\ude00":1}"#);
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |levels: usize| format!("{{\"a\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
        assert!(of_json(&nested(MAX_NESTING - 1)).is_ok());
        assert!(refusal(&nested(MAX_NESTING)).contains("inside one another"));
        refusal(&nested(200_000));
    }

    #[test]
    fn refusals_are_short_whatever_came() {
        assert!(refusal(&format!("[{}1]", "1,".repeat(100_000))).len() < 200);
        assert!(refusal(&format!("{{\"a\":1{}.0}}", "0".repeat(100_000))).len() < 200);
    }
}
