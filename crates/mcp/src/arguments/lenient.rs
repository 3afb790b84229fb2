//! Arguments as models and clients really send them, converted to the form of the schema.
//!
//! The conversion accepts only input with a single meaning: a list written as JSON text, a number as a string, an empty
//! string for an absent value. Everything else stays unchanged, and is refused by name if it does not fit. Seen in
//! practice: clients that send lists and objects as JSON text, `["null"]` for an absent list, client identifiers among
//! the arguments, and all arguments within one more object.

use serde_json::{Map, Value};

use crate::schema::{Field, Kind, ListOf, MapOf};

/// The spellings that models use for an absent value.
const ABSENT_WORDS: [&str; 5] = ["", "null", "none", "undefined", "nil"];
/// Arguments for which none of these words is a value.
const IDENTIFIER_FIELDS: [&str; 5] = ["sandbox_id", "execution_id", "language", "backend", "image"];
/// Names under which clients and models put the whole arguments.
const WRAPPER_NAMES: [&str; 12] = [
    "arguments",
    "args",
    "body",
    "data",
    "input",
    "inputs",
    "kwargs",
    "parameters",
    "params",
    "payload",
    "request",
    "tool_input",
];
/// The identifier that a client adds to every call, and its companions.
const CLIENTS_ID: &str = "toolCallId";
const CLIENTS_OWN: [&str; 5] = [CLIENTS_ID, "sessionId", "action", "chatInput", "tool"];
/// Longer text is no list, and taking it apart would take long.
const LIST_BYTES: usize = 16 << 10;
/// The maximum depth of wrapped arguments.
const WRAPPED_MAX: usize = 3;

/// The whole arguments of a call that were sent as text or as an empty list (PHP has no empty object).
pub(crate) fn whole_arguments(arguments: &Value) -> Option<Map<String, Value>> {
    let mut value = arguments.clone();
    for _ in 0..WRAPPED_MAX {
        value = match value {
            Value::Object(map) => return Some(map),
            Value::Null => return Some(Map::new()),
            Value::Array(items) if items.is_empty() => return Some(Map::new()),
            Value::String(text) if text.trim().is_empty() => return Some(Map::new()),
            Value::String(text) => json_text(&text)?,
            Value::Array(_) | Value::Bool(_) | Value::Number(_) => return None,
        };
    }
    None
}

/// The arguments by the names of the fields: unwrapped, spelled as in the schema, without additions of clients.
pub(super) fn named(fields: &[Field], mut given: Map<String, Value>) -> Map<String, Value> {
    let is_field = |name: &str| fields.iter().any(|field| field.name == name);
    for _ in 0..WRAPPED_MAX {
        if given.keys().all(|name| is_field(name)) {
            break;
        }
        if given.contains_key(CLIENTS_ID) {
            given.retain(|name, _| is_field(name) || !CLIENTS_OWN.contains(&name.as_str()));
        }
        match unwrapped(fields, &given) {
            Some(inner) => given = inner,
            None => break,
        }
    }
    let (mut named, others): (Map<_, _>, Map<_, _>) = given.into_iter().partition(|(name, _)| is_field(name));
    for (name, value) in others {
        let written = snake_case(&name);
        match is_field(&written) && !named.contains_key(&written) {
            true => named.insert(written, value),
            // A null carries no value.
            false if value.is_null() => None,
            false => named.insert(name, value),
        };
    }
    let is_json = |path: &Value| {
        path.as_str()
            .is_some_and(|path| path.to_ascii_lowercase().ends_with(".json"))
    };
    if named.get("path").is_some_and(is_json)
        && let Some(content) = named.get_mut("content")
        && (content.is_object() || content.is_array())
    {
        *content = Value::String(format!("{content:#}"));
    }
    named
}

/// Returns the arguments inside a single wrapper. The wrapper's name is not a field.
fn unwrapped(fields: &[Field], given: &Map<String, Value>) -> Option<Map<String, Value>> {
    let mut entries = given.iter();
    let (name, value) = entries.next().filter(|_| given.len() == 1)?;
    if !WRAPPER_NAMES.contains(&snake_case(name).as_str()) || fields.iter().any(|field| field.name == name) {
        return None;
    }
    whole_arguments(value)
}

/// `timeoutS`, `Timeout-S` and ` timeout_s` are `timeout_s`.
fn snake_case(name: &str) -> String {
    let mut text = String::new();
    let mut after_small = false;
    for c in name.trim().chars() {
        match c {
            '-' | ' ' => text.push('_'),
            c if c.is_ascii_uppercase() => {
                if after_small {
                    text.push('_');
                }
                text.push(c.to_ascii_lowercase());
            }
            c => text.push(c),
        }
        after_small = c.is_ascii_lowercase() || c.is_ascii_digit();
    }
    text
}

/// Returns a value in the form that the field asks for; none if absent. An ambiguous value stays as it is.
pub(super) fn value(field: &Field, value: Value) -> Option<Value> {
    if value.is_null() {
        return None;
    }
    match &field.kind {
        Kind::Content => content(value),
        Kind::Text => text(field, value, &[]),
        Kind::Choice(names) => text(field, value, names),
        Kind::Integer { .. } | Kind::Number { .. } => number(field, value),
        Kind::Flag => flag(value),
        Kind::Texts(of) => texts(*of, value),
        Kind::TextMap(of) => text_map(*of, value),
        Kind::Objects => Some(value),
    }
}

fn is_absent(text: &str) -> bool {
    let text = text.trim();
    ABSENT_WORDS.iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// The only item of a list.
fn alone(value: Value) -> Value {
    match value {
        Value::Array(mut items) if items.len() == 1 => items.pop().unwrap_or_default(),
        value => value,
    }
}

/// Text of which every character counts. Lists of lines are joined, as notebooks store them.
fn content(value: Value) -> Option<Value> {
    Some(match value {
        Value::Number(number) => Value::String(number.to_string()),
        Value::Array(items) if !items.is_empty() && items.iter().all(Value::is_string) => {
            let lines: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            let (last, others) = lines.split_last()?;
            let have_ends = !others.is_empty() && others.iter().all(|line| line.ends_with('\n'));
            Value::String(match have_ends {
                true => others.concat() + last,
                false => lines.join("\n"),
            })
        }
        value => value,
    })
}

/// A name.
fn text(field: &Field, value: Value, names: &[String]) -> Option<Value> {
    let text = match alone(value) {
        Value::Null => return None,
        Value::String(text) => text,
        Value::Number(number) => number.to_string(),
        other => return Some(other),
    };
    let is_name = !names.is_empty() || IDENTIFIER_FIELDS.contains(&field.name);
    let is_word = !field.required && is_name;
    let is_default = field.name == "sandbox_id" && !field.required && text.trim().eq_ignore_ascii_case("default");
    // A blank value of a required field other than a name stays, so that the tool can refuse it with a message that
    // fits.
    let is_blank = text.trim().is_empty() && (is_name || !field.required);
    if is_blank || is_default || (is_word && is_absent(&text)) {
        return None;
    }
    let same = names.iter().find(|name| name.eq_ignore_ascii_case(text.trim()));
    Some(Value::String(same.cloned().unwrap_or(text)))
}

/// A number, also as text with the unit that the field's name ends in or a larger one of its kind.
fn number(field: &Field, value: Value) -> Option<Value> {
    let text = match alone(value) {
        Value::String(text) => text,
        other => return Some(other),
    };
    if is_absent(&text) {
        return None;
    }
    let plain = text.trim().replace('_', "").to_ascii_lowercase();
    let end = plain
        .find(|c: char| c.is_ascii_alphabetic() && c != 'e')
        .unwrap_or(plain.len());
    let (digits, unit) = plain.split_at(end);
    let unit = unit.trim();
    if unit.is_empty() && !text.contains('_') {
        return Some(Value::String(text));
    }
    let factor = match (field.name.rsplit('_').next().unwrap_or_default(), unit) {
        (_, "") | ("s", "s" | "sec" | "secs" | "second" | "seconds") | ("mb", "m" | "mb" | "mib") => 1.0,
        ("s", "ms" | "msec" | "milliseconds") => 0.001,
        ("s", "m" | "min" | "mins" | "minute" | "minutes") => 60.0,
        ("s", "h" | "hr" | "hour" | "hours") => 3600.0,
        ("mb", "g" | "gb" | "gib") => 1024.0,
        _ => return Some(Value::String(text)),
    };
    let number = digits.trim().parse::<f64>().ok().map(|number| number * factor);
    let number = number.and_then(serde_json::Number::from_f64).map(Value::Number);
    Some(number.unwrap_or(Value::String(text)))
}

fn flag(value: Value) -> Option<Value> {
    let word = match &value {
        Value::String(text) => text.trim().to_ascii_lowercase(),
        Value::Number(number) => number.to_string(),
        _ => return Some(value),
    };
    match word.as_str() {
        "true" | "yes" | "1" | "on" => Some(Value::Bool(true)),
        "false" | "no" | "0" | "off" => Some(Value::Bool(false)),
        word if is_absent(word) => None,
        _ => Some(value),
    }
}

fn texts(of: ListOf, value: Value) -> Option<Value> {
    let items = match value {
        Value::Null | Value::Bool(false) => return None,
        Value::Array(items) => items,
        Value::String(text) => match json_text(&text) {
            Some(Value::Array(items)) => items,
            Some(Value::String(one)) => vec![Value::String(one)],
            Some(Value::Null) => return None,
            Some(_) => return Some(Value::String(text)),
            None => match bracketed(&text).or_else(|| separate(of, &text)) {
                Some(items) => items.into_iter().map(Value::String).collect(),
                None => return Some(Value::String(text)),
            },
        },
        value => return Some(value),
    };
    if of == ListOf::Words {
        let word = |item: Value| match item {
            Value::Number(number) => Value::String(number.to_string()),
            item => item,
        };
        return Some(Value::Array(items.into_iter().map(word).collect()));
    }
    let said = |item: &Value| match item {
        Value::Null => false,
        Value::String(text) => !text.trim().is_empty(),
        _ => true,
    };
    let items: Vec<Value> = items.into_iter().filter(said).collect();
    match items.as_slice() {
        [] => None,
        [Value::String(word)] if ["null", "None"].contains(&word.as_str()) => None,
        _ => Some(Value::Array(items)),
    }
}

/// A list as Python writes it (`['numpy', 'pandas']`), or without quotes (`[numpy, pandas]`).
fn bracketed(text: &str) -> Option<Vec<String>> {
    let text = text.trim();
    let inside = text.strip_prefix('[')?.strip_suffix(']')?;
    if text.len() > LIST_BYTES || inside.contains('\\') {
        return None;
    }
    if !inside.contains(['\'', '"', '[']) {
        let names = inside.split(',').map(|name| name.trim().to_owned());
        return Some(names.filter(|name| !name.is_empty()).collect());
    }
    let (mut items, mut rest) = (Vec::new(), inside.trim());
    while !rest.is_empty() {
        let quote = rest.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        let (item, after) = rest.get(1..)?.split_once(quote)?;
        items.push(item.to_owned());
        rest = match after.trim_start().strip_prefix(',') {
            Some(more) => more.trim_start(),
            None if after.trim().is_empty() => "",
            None => return None,
        };
    }
    Some(items)
}

/// The names in a text without brackets. None if it could be one name or several.
fn separate(of: ListOf, text: &str) -> Option<Vec<String>> {
    let text = text.trim();
    if text.len() > LIST_BYTES || text.starts_with(['[', '{', '(']) {
        return None;
    }
    let lines = || {
        text.lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect()
    };
    match of {
        ListOf::Packages if text.contains([';', '\'', '"']) || text.contains(" @ ") => Some(lines()),
        ListOf::Packages => Some(packages(text)),
        ListOf::Hosts => Some(
            text.split(|c: char| c == ',' || c.is_whitespace())
                .filter(|host| !host.is_empty())
                .map(str::to_owned)
                .collect(),
        ),
        // Only a shell can split words.
        ListOf::Words => None,
        // Names of files have commas and blanks in them, but no ends of lines.
        ListOf::Paths if text.contains(',') => None,
        ListOf::Paths => Some(lines()),
    }
}

/// Packages between commas and blanks. Versions may have both: `numpy >= 1.2, < 2`.
fn packages(text: &str) -> Vec<String> {
    let is_version = |piece: &str| piece.starts_with(['<', '>', '=', '!', '~', '^', '[']);
    let goes_on = |name: &str| name.ends_with(['<', '>', '=', '!', '~', '[', ',']);
    let mut found: Vec<String> = Vec::new();
    for part in text.split_inclusive(',') {
        let (part, comma) = match part.strip_suffix(',') {
            Some(part) => (part, ","),
            None => (part, ""),
        };
        for piece in part.split_whitespace() {
            match found.last_mut() {
                // The comma belongs to a version only where one follows, or within brackets.
                Some(last) if is_version(piece) || goes_on(last.trim_end_matches(',')) || is_open(last) => {
                    last.push_str(piece)
                }
                Some(last) => {
                    *last = last.trim_end_matches(',').to_owned();
                    found.push(piece.to_owned());
                }
                None => found.push(piece.to_owned()),
            }
        }
        if let Some(last) = found.last_mut() {
            last.push_str(comma);
        }
    }
    if let Some(last) = found.last_mut() {
        *last = last.trim_end_matches(',').to_owned();
    }
    found.retain(|name| !name.is_empty());
    found
}

/// Returns true if extras in brackets are incomplete: `pandas[excel,plot]`.
fn is_open(name: &str) -> bool {
    name.contains('[') && !name.contains(']')
}

fn text_map(of: MapOf, value: Value) -> Option<Value> {
    let value = match value {
        Value::String(text) if is_absent(&text) => return None,
        Value::String(text) => match (json_text(&text), of) {
            (Some(parsed @ (Value::Object(_) | Value::Array(_))), _) => parsed,
            (None, MapOf::Variables) => match assignments(text.lines()) {
                Some(map) => Value::Object(map),
                None => Value::String(text),
            },
            _ => Value::String(text),
        },
        value => value,
    };
    let entries = match value {
        Value::Null => return None,
        Value::Object(entries) => entries,
        Value::Array(items) => match listed(of, &items) {
            Some(entries) => entries,
            None => return Some(Value::Array(items)),
        },
        value => return Some(value),
    };
    Some(Value::Object(match of {
        MapOf::Variables => entries.into_iter().filter_map(variable).collect(),
        MapOf::Files => entries.into_iter().map(file).collect(),
    }))
}

/// Returns a variable. Its value is text in any case. A variable that is null is not set.
fn variable((name, value): (String, Value)) -> Option<(String, Value)> {
    let value = match value {
        Value::Null => return None,
        Value::Number(number) => Value::String(number.to_string()),
        Value::Bool(flag) => Value::String(flag.to_string()),
        value => value,
    };
    Some((name, value))
}

/// A file. JSON content may arrive as a value instead of text.
fn file((path, value): (String, Value)) -> (String, Value) {
    let is_json = path.to_ascii_lowercase().ends_with(".json");
    let value = match value {
        Value::Object(mut entry) if entry.len() == 1 && entry.contains_key("content") => match is_json {
            // It can be the file, or stand for its content.
            true => return (path, Value::Object(entry)),
            false => entry.remove("content").unwrap_or_default(),
        },
        value => value,
    };
    let value = match content(value.clone()) {
        Some(text @ Value::String(_)) if !(is_json && value.is_array()) => text,
        _ if is_json && (value.is_object() || value.is_array()) => Value::String(format!("{value:#}")),
        _ => value,
    };
    (path, value)
}

/// Variables of `NAME=value` lines. None where a line can be several.
fn assignments<'a>(lines: impl Iterator<Item = &'a str>) -> Option<Map<String, Value>> {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let mut found = Map::new();
    for line in lines.map(str::trim).filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once('=')?;
        let is_another = |word: &str| word.split_once('=').is_some_and(|(name, _)| is_name(name));
        if !is_name(name) || value.split([' ', ',', ';']).skip(1).any(is_another) {
            return None;
        }
        found.insert(name.to_owned(), Value::String(value.to_owned()));
    }
    (!found.is_empty()).then_some(found)
}

/// Entries of a list: `["PORT=8080"]`, `[{"name": "PORT", "value": 8080}]`, `[{"path": "a.csv", "content": "…"}]`.
fn listed(of: MapOf, items: &[Value]) -> Option<Map<String, Value>> {
    let (names, values): (&[&str], &[&str]) = match of {
        MapOf::Variables => (&["name", "key"], &["value"]),
        MapOf::Files => (&["path", "name", "filename"], &["content", "text"]),
    };
    let mut found = Map::new();
    for item in items {
        match item {
            Value::String(line) if of == MapOf::Variables => found.extend(assignments(std::iter::once(line.as_str()))?),
            Value::Object(entry) if entry.len() == 2 => {
                let pick = |keys: &[&str]| keys.iter().find_map(|key| entry.get(*key));
                let (name, value) = (pick(names)?.as_str()?, pick(values)?);
                found.insert(name.to_owned(), value.clone());
            }
            _ => return None,
        }
    }
    Some(found)
}

/// Parses a JSON text. Models leave line ends and tabs in strings as they are.
fn json_text(text: &str) -> Option<Value> {
    let text = text.trim();
    if !text.starts_with(['{', '[', '"']) {
        return None;
    }
    serde_json::from_str(text)
        .ok()
        .or_else(|| serde_json::from_str(&with_escapes(text)).ok())
}

fn with_escapes(text: &str) -> String {
    let (mut escaped, mut in_string, mut after_backslash) = (String::new(), false, false);
    for c in text.chars() {
        match c {
            '\n' if in_string => escaped.push_str("\\n"),
            '\r' if in_string => escaped.push_str("\\r"),
            '\t' if in_string => escaped.push_str("\\t"),
            c => escaped.push(c),
        }
        in_string ^= c == '"' && !after_backslash;
        after_backslash = c == '\\' && !after_backslash;
    }
    escaped
}

#[cfg(test)]
mod tests;
