//! The arguments of a call, checked against the tool's fields before any other use.
//!
//! Models write `"30"` for 30 and `"true"` for true, leave things out with `null`, and misspell names. Input with a
//! single possible meaning is accepted (`lenient`). Everything else gets one message that names each fault and shows a
//! valid value.

mod lenient;

use std::collections::BTreeMap;
use std::time::Duration;

use sandcell_sandbox::{ByteSize, Failure, SandboxPath};
use serde_json::{Map, Value};

pub(crate) use self::lenient::whole_arguments;
use crate::schema::{Field, Kind};

/// The maximum number of faults in one message. With more, the first fault would be overlooked.
const MAX_FAULTS: usize = 5;
/// The maximum characters of a caller's text that a message quotes.
const QUOTE_CHARS: usize = 60;

/// Checked arguments. Taking an argument that was not given returns `None`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Arguments(BTreeMap<&'static str, ArgumentValue>);

#[derive(Debug, Clone, PartialEq)]
enum ArgumentValue {
    Text(String),
    Integer(i64),
    Number(f64),
    Flag(bool),
    Texts(Vec<String>),
    TextMap(BTreeMap<String, String>),
    Objects(Vec<Map<String, Value>>),
}

impl Arguments {
    /// Checks the arguments of a call against the fields of the tool.
    pub(crate) fn check(tool: &str, fields: &[Field], given: Map<String, Value>) -> Result<Self, Failure> {
        let mut faults = Vec::new();
        let mut arguments = BTreeMap::new();
        for (name, value) in lenient::named(fields, given) {
            let Some(field) = fields.iter().find(|field| field.name == name) else {
                faults.push(unknown(tool, fields, &name));
                continue;
            };
            match lenient::value(field, value).map(|value| read(field, value)) {
                None => {}
                Some(Ok(value)) => {
                    arguments.insert(field.name, value);
                }
                Some(Err(fault)) => faults.push(fault),
            }
        }
        for field in fields.iter().filter(|field| field.required) {
            if !arguments.contains_key(field.name) && !faults.iter().any(|fault| fault.about == field.name) {
                faults.push(Fault {
                    about: field.name.to_owned(),
                    what: format!("`{}` is missing", field.name),
                    remedy: example(field),
                });
            }
        }
        if faults.is_empty() {
            return Ok(Self(arguments));
        }
        Err(together(faults))
    }

    /// A text.
    pub(crate) fn text(&mut self, name: &str) -> Option<String> {
        match self.0.remove(name) {
            Some(ArgumentValue::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// A text that the fields declare as required.
    pub(crate) fn required_text(&mut self, name: &str) -> Result<String, Failure> {
        self.text(name)
            .ok_or_else(|| Failure::invalid(format!("`{name}` is missing"), format!("give `{name}`")))
    }

    /// A whole number.
    pub(crate) fn integer(&mut self, name: &str) -> Option<i64> {
        match self.0.remove(name) {
            Some(ArgumentValue::Integer(number)) => Some(number),
            _ => None,
        }
    }

    /// A whole number that is not negative.
    pub(crate) fn count(&mut self, name: &str) -> Option<u64> {
        self.integer(name).and_then(|number| u64::try_from(number).ok())
    }

    /// A number.
    pub(crate) fn number(&mut self, name: &str) -> Option<f64> {
        match self.0.remove(name) {
            Some(ArgumentValue::Number(number)) => Some(number),
            _ => None,
        }
    }

    /// Seconds. Values that exceed a duration saturate; the engine's limits then reject them.
    pub(crate) fn seconds(&mut self, name: &str) -> Option<Duration> {
        self.number(name)
            .map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }

    /// Mebibytes.
    pub(crate) fn mebibytes(&mut self, name: &str) -> Option<ByteSize> {
        self.count(name).map(ByteSize::mib)
    }

    /// A flag; false when left out.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        matches!(self.0.remove(name), Some(ArgumentValue::Flag(true)))
    }

    /// A list of texts; empty when left out.
    pub(crate) fn texts(&mut self, name: &str) -> Vec<String> {
        match self.0.remove(name) {
            Some(ArgumentValue::Texts(texts)) => texts,
            _ => Vec::new(),
        }
    }

    /// An object of texts; empty when left out.
    pub(crate) fn text_map(&mut self, name: &str) -> BTreeMap<String, String> {
        match self.0.remove(name) {
            Some(ArgumentValue::TextMap(map)) => map,
            _ => BTreeMap::new(),
        }
    }

    /// A list of objects; empty when left out.
    pub(crate) fn objects(&mut self, name: &str) -> Vec<Map<String, Value>> {
        match self.0.remove(name) {
            Some(ArgumentValue::Objects(objects)) => objects,
            _ => Vec::new(),
        }
    }

    /// Returns true if the argument was given.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}

/// A path inside the sandbox, with a message that names the argument.
pub(crate) fn sandbox_path(name: &str, text: &str) -> Result<SandboxPath, Failure> {
    SandboxPath::parse(text).map_err(|error| {
        Failure::invalid(
            format!("`{name}`: {error} (given: {})", echo(text)),
            "give a path inside the sandbox without `..`, such as `data.csv` (in /home/user) or `/tmp/data.csv`",
        )
    })
}

struct Fault {
    about: String,
    what: String,
    remedy: String,
}

fn together(mut faults: Vec<Fault>) -> Failure {
    let more = faults.len().saturating_sub(MAX_FAULTS);
    faults.truncate(MAX_FAULTS);
    let mut message = faults
        .iter()
        .map(|fault| fault.what.as_str())
        .collect::<Vec<_>>()
        .join("; ");
    if more > 0 {
        message.push_str(&format!("; and {more} more faults"));
    }
    let remedies: Vec<&str> = faults.iter().map(|fault| fault.remedy.as_str()).collect();
    Failure::invalid(message, remedies.join("; "))
}

fn example(field: &Field) -> String {
    format!("a valid example is \"{}\": {}", field.name, field.example)
}

/// Longer names are not compared with existing ones.
const NAME_BYTES: usize = 64;

fn unknown(tool: &str, fields: &[Field], name: &str) -> Fault {
    let names: Vec<&str> = fields
        .iter()
        .filter(|field| !field.hidden)
        .map(|field| field.name)
        .collect();
    let nearest = names
        .iter()
        // The comparison of a very long name takes long, and finds no match.
        .filter(|_| name.len() <= NAME_BYTES)
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|left, right| left.0.total_cmp(&right.0));
    let meant = nearest.map_or_else(String::new, |(_, candidate)| format!("did you mean `{candidate}`? "));
    Fault {
        about: name.to_owned(),
        what: format!("there is no argument {}", echo(name)),
        remedy: format!("{meant}{tool} takes {}", names.join(", ")),
    }
}

fn read(field: &Field, value: Value) -> Result<ArgumentValue, Fault> {
    let wrong = |what: String| Fault {
        about: field.name.to_owned(),
        what: format!("`{}` {what}", field.name),
        remedy: example(field),
    };
    let mismatch = |value: &Value| wrong(format!("must be {}, not {}", field.kind.noun(), describe(value)));
    match (&field.kind, value) {
        (Kind::Content | Kind::Text | Kind::Choice(_), Value::String(text)) => Ok(ArgumentValue::Text(text)),
        (Kind::Flag, Value::Bool(flag)) => Ok(ArgumentValue::Flag(flag)),
        (Kind::Integer { min, max }, value) => {
            let number = integer(&value).ok_or_else(|| mismatch(&value))?;
            if number < *min || number > *max {
                return Err(wrong(out_of_bounds(&number.to_string(), &min.to_string(), bound(*max))));
            }
            Ok(ArgumentValue::Integer(number))
        }
        (Kind::Number { min, max }, value) => {
            let number = number(&value).ok_or_else(|| mismatch(&value))?;
            if !(*min..=*max).contains(&number) {
                let max = max.is_finite().then(|| max.to_string());
                return Err(wrong(out_of_bounds(&number.to_string(), &min.to_string(), max)));
            }
            Ok(ArgumentValue::Number(number))
        }
        (Kind::Texts(_), Value::Array(items)) => items
            .into_iter()
            .map(|item| match item {
                Value::String(text) => Ok(text),
                other => Err(wrong(format!("must hold strings only, not {}", describe(&other)))),
            })
            .collect::<Result<_, _>>()
            .map(ArgumentValue::Texts),
        (Kind::Objects, Value::Array(items)) => items
            .into_iter()
            .map(|item| match item {
                Value::Object(object) => Ok(object),
                other => Err(wrong(format!("must hold objects only, not {}", describe(&other)))),
            })
            .collect::<Result<_, _>>()
            .map(ArgumentValue::Objects),
        (Kind::TextMap(_), Value::Object(entries)) => entries
            .into_iter()
            .map(|(key, item)| match item {
                Value::String(text) => Ok((key, text)),
                other => Err(wrong(format!(
                    "must hold strings only; {} is {}",
                    echo(&key),
                    describe(&other)
                ))),
            })
            .collect::<Result<_, _>>()
            .map(ArgumentValue::TextMap),
        (_, value) => Err(mismatch(&value)),
    }
}

fn out_of_bounds(number: &str, min: &str, max: Option<String>) -> String {
    match max {
        Some(max) => format!("must be from {min} to {max}, not {number}"),
        None => format!("must be at least {min}, not {number}"),
    }
}

/// Returns a bound that messages name. Other bounds only keep the number within its type.
fn bound(max: i64) -> Option<String> {
    (max < i64::from(u32::MAX)).then(|| max.to_string())
}

/// Reads a whole number, also if it is written as `30.0` or `"30"`. Values that exceed the type saturate, so that the
/// check of the bounds reports them.
fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) if number.is_u64() => Some(number.as_i64().unwrap_or(i64::MAX)),
        Value::Number(number) if number.is_i64() => number.as_i64(),
        Value::Number(number) => number.as_f64().and_then(whole),
        Value::String(text) => match text.trim().parse() {
            Ok(number) => Some(number),
            Err(_) => text.trim().parse().ok().and_then(whole),
        },
        _ => None,
    }
}

fn whole(number: f64) -> Option<i64> {
    if number.fract() != 0.0 {
        return None;
    }
    if number.abs() < 1e15 {
        return format!("{number:.0}").parse().ok();
    }
    Some(if number > 0.0 { i64::MAX } else { i64::MIN })
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
    .filter(|number: &f64| number.is_finite())
}

fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("the string {}", echo(text)),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}

/// Returns a caller's text in quotes, cut and with control characters escaped.
pub(crate) fn echo(text: &str) -> String {
    let shown: String = text.chars().take(QUOTE_CHARS).flat_map(char::escape_debug).collect();
    let cut = if text.chars().nth(QUOTE_CHARS).is_some() {
        "..."
    } else {
        ""
    };
    format!("\"{shown}{cut}\"")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::{ListOf, MapOf};

    fn fields() -> Vec<Field> {
        vec![
            Field::new("code", Kind::Content, json!("print(1)")).required(),
            Field::new(
                "timeout_s",
                Kind::Number {
                    min: 0.001,
                    max: f64::INFINITY,
                },
                json!(30),
            ),
            Field::new("sandbox_id", Kind::Text, json!("sb…")),
            Field::new("count", Kind::Integer { min: 1, max: 100 }, json!(2)),
            Field::new("memory_mb", Kind::Integer { min: 1, max: i64::MAX }, json!(512)),
            Field::new("recursive", Kind::Flag, json!(true)),
            Field::new("outputs", Kind::Texts(ListOf::Paths), json!(["plot.png"])),
            Field::new("env", Kind::TextMap(MapOf::Variables), json!({"A": "b"})),
        ]
    }

    fn check(value: Value) -> Result<Arguments, Failure> {
        let Value::Object(map) = value else { panic!("an object") };
        Arguments::check("execute_code", &fields(), map)
    }

    fn fault(value: Value) -> String {
        let failure = check(value).unwrap_err();
        format!("{} => {}", failure.message, failure.remedy)
    }

    #[test]
    fn numbers_and_flags_may_come_as_strings_and_null_is_absent() {
        let mut arguments = check(json!({
            "code": "1", "timeout_s": "2.5", "count": "3", "memory_mb": 64.0, "recursive": "true",
            "sandbox_id": null, "outputs": ["a"], "env": {"A": "b"}
        }))
        .unwrap();
        assert_eq!(arguments.seconds("timeout_s"), Some(Duration::from_millis(2500)));
        assert_eq!(arguments.count("count"), Some(3));
        assert_eq!(arguments.mebibytes("memory_mb"), Some(ByteSize::mib(64)));
        assert!(arguments.flag("recursive"));
        assert!(!arguments.has("sandbox_id"));
        assert_eq!(arguments.text("sandbox_id"), None);
        assert_eq!(arguments.texts("outputs"), ["a"]);
        assert_eq!(arguments.text_map("env").get("A").map(String::as_str), Some("b"));
    }

    #[test]
    fn a_huge_time_saturates_so_that_the_engine_can_name_its_limit() {
        let mut arguments = check(json!({"code": "", "timeout_s": 1e300})).unwrap();
        assert_eq!(arguments.seconds("timeout_s"), Some(Duration::MAX));
    }

    #[test]
    fn faults_name_the_argument_the_reason_and_a_valid_value() {
        insta::assert_snapshot!(
            [
                fault(json!({})),
                fault(json!({"code": true})),
                fault(json!({"code": null})),
                fault(json!({"code": "1", "sandbox": "x"})),
                fault(json!({"code": "1", "xyz": "x"})),
                fault(json!({"code": "1", "timeout_s": 0})),
                fault(json!({"code": "1", "timeout_s": -3})),
                fault(json!({"code": "1", "timeout_s": "soon"})),
                fault(json!({"code": "1", "timeout_s": "nan"})),
                fault(json!({"code": "1", "count": 0})),
                fault(json!({"code": "1", "count": 1.5})),
                fault(json!({"code": "1", "count": 1e30})),
                fault(json!({"code": "1", "memory_mb": -1})),
                fault(json!({"code": "1", "recursive": "maybe"})),
                fault(json!({"code": "1", "outputs": "plot.png, b.png"})),
                fault(json!({"code": "1", "outputs": [1]})),
                fault(json!({"code": "1", "env": {"A": [1]}})),
                fault(json!({"code": [], "count": {}, "timeout": 3})),
            ]
            .join("\n")
        );
    }

    #[test]
    fn quoted_caller_text_is_short_and_without_control_characters() {
        assert_eq!(echo("a\u{1b}[2J\n"), "\"a\\u{1b}[2J\\n\"");
        assert!(echo(&"x".repeat(10_000)).len() < 80);
    }
}
