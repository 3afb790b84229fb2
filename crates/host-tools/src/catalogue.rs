//! The tools that a server lists, each text and schema within bounds.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use jsonschema::{PatternOptions, Validator};
use rmcp::model::ToolAnnotations;
use sandcell_sandbox::{Code, Failure, FunctionSpec};
use serde_json::{Map, Value};

use crate::work;

/// The maximum number of tools of a server. Further ones are left out.
const MAX_TOOLS: usize = 2000;
/// The maximum length of a tool's name. A tool with a longer one is left out.
const MAX_NAME_BYTES: usize = 128;
/// The maximum length of a description. The rest is cut.
const MAX_DESCRIPTION_BYTES: usize = 8 << 10;
/// The maximum size of a schema. A tool with a larger input schema is left out; a larger output schema is dropped.
const MAX_SCHEMA_BYTES: usize = 64 << 10;
/// The maximum size of the list.
pub(crate) const MAX_CATALOGUE_BYTES: usize = 4 << 20;
/// The maximum size of one compiled pattern.
const MAX_COMPILED_PATTERN_BYTES: usize = 128 << 10;
/// The maximum number of reasons in one error about arguments.
const MAX_REASONS: usize = 3;
/// The maximum length of a reason.
const MAX_REASON_CHARS: usize = 300;
/// The mark of a server library for results that it has wrapped because they are no objects.
const WRAPPED_MARK: &str = "x-fastmcp-wrap-result";
/// The name under which such a result stands.
pub(crate) const WRAPPED_NAME: &str = "result";

/// A tool of a server.
#[derive(Debug)]
pub struct Tool {
    /// The name, as the server lists it.
    pub name: String,
    /// The title, for people.
    pub title: Option<String>,
    /// The description, for people and models.
    pub description: String,
    /// The JSON schema of its arguments.
    pub input_schema: Arc<Map<String, Value>>,
    /// The JSON schema of its structured result.
    pub output_schema: Option<Arc<Map<String, Value>>>,
    /// True if the server describes it as one that changes nothing.
    pub read_only: bool,
    /// The schema as a value, and compiled. None if it cannot be used.
    compiled: OnceLock<Option<Box<(Value, Validator)>>>,
}

impl Tool {
    /// Returns the tool as the server lists it. None if it cannot be offered.
    fn read(tool: rmcp::model::Tool) -> Option<Self> {
        let fits = |schema: &Map<String, Value>| json_bytes(schema) <= MAX_SCHEMA_BYTES;
        if tool.name.is_empty()
            || tool.name.len() > MAX_NAME_BYTES
            || !tool.name.chars().all(is_plain)
            || !fits(&tool.input_schema)
        {
            return None;
        }
        let annotations = tool.annotations.as_ref();
        let title = tool.title.or_else(|| annotations.and_then(|all| all.title.clone()));
        Some(Self {
            name: tool.name.into_owned(),
            title: title.map(|title| cut(&title, 200)),
            description: cut(tool.description.as_deref().unwrap_or_default(), MAX_DESCRIPTION_BYTES),
            input_schema: tool.input_schema,
            output_schema: tool.output_schema.filter(|schema| fits(schema)),
            read_only: annotations.and_then(|all| all.read_only_hint).unwrap_or(false),
            compiled: OnceLock::new(),
        })
    }

    /// True if structured results hold the value under the name `result`.
    pub(crate) fn wraps_results(&self) -> bool {
        let marked = |schema: &Arc<Map<String, Value>>| schema.get(WRAPPED_MARK) == Some(&Value::Bool(true));
        self.output_schema.as_ref().is_some_and(marked)
    }

    /// Checks arguments against the schema.
    ///
    /// # Errors
    /// Arguments that do not fit, with the first reasons; or a schema that cannot be used.
    pub(crate) fn check(&self, arguments: &Map<String, Value>) -> Result<(), Failure> {
        let compiled = self.compiled.get_or_init(|| {
            let schema = Value::Object(Map::clone(&self.input_schema));
            work::of_schema(&schema).ok()?;
            // The engine without back-tracking: schema and arguments both come from outside.
            let patterns = PatternOptions::regex().size_limit(MAX_COMPILED_PATTERN_BYTES);
            let validator = jsonschema::options()
                .with_pattern_options(patterns)
                .build(&schema)
                .ok()?;
            Some(Box::new((schema, validator)))
        });
        let Some((schema, validator)) = compiled.as_deref() else {
            return Err(Failure::new(
                Code::ToolUnavailable,
                format!(
                    "the schema of {} cannot be used, so its arguments cannot be checked",
                    self.name
                ),
                "use another tool; the operator can find the reason with `sandcell tools check`",
            ));
        };
        let arguments = Value::Object(arguments.clone());
        work::of_check(schema, &arguments).map_err(|error| {
            Failure::invalid(
                format!(
                    "the arguments of {} cannot be checked against its schema: {error}",
                    self.name
                ),
                "pass less at once, or flatter values",
            )
        })?;
        let reasons: Vec<String> = validator
            .iter_errors(&arguments)
            .take(MAX_REASONS)
            .map(|error| {
                let place = error.instance_path().to_string();
                let place = if place.is_empty() {
                    String::new()
                } else {
                    format!("{place}: ")
                };
                format!("{place}{}", shorten(&error.masked_with("the value").to_string()))
            })
            .collect();
        if reasons.is_empty() {
            return Ok(());
        }
        Err(Failure::invalid(
            format!(
                "the arguments of {} do not match its schema: {}",
                self.name,
                reasons.join("; ")
            ),
            format!(
                "call {} with the arguments of its signature: help() shows it",
                self.name
            ),
        ))
    }

    /// True if the schema can be used.
    pub(crate) fn has_usable_schema(&self) -> bool {
        !matches!(self.check(&Map::new()), Err(failure) if failure.code == Code::ToolUnavailable)
    }
}

/// Returns true for characters of names. A name with others could be read as text of this server.
const fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/')
}

/// The tools of a server, by name.
#[derive(Debug, Default)]
pub(crate) struct Catalogue {
    pub(crate) tools: BTreeMap<String, Arc<Tool>>,
    /// The number of tools that are left out.
    pub(crate) left_out: usize,
}

impl Catalogue {
    pub(crate) fn read(listed: Vec<rmcp::model::Tool>) -> Self {
        let mut all = Self::default();
        let mut bytes = 0;
        for tool in listed {
            let Some(tool) = Tool::read(tool) else {
                all.left_out += 1;
                continue;
            };
            let output = tool.output_schema.as_ref().map_or(0, json_bytes);
            bytes += tool.description.len() + json_bytes(&tool.input_schema) + output;
            let is_new = !all.tools.contains_key(&tool.name);
            if is_new && all.tools.len() < MAX_TOOLS && bytes <= MAX_CATALOGUE_BYTES {
                all.tools.insert(tool.name.clone(), Arc::new(tool));
            } else {
                all.left_out += 1;
            }
        }
        all
    }

    /// Returns the functions of a program as tools. Leaves out a function whose schema is no object.
    pub(crate) fn of_functions(functions: &[FunctionSpec]) -> Self {
        let tool = |function: &FunctionSpec| {
            let schema: Map<String, Value> = serde_json::from_str(&function.input_schema).ok()?;
            let annotations = ToolAnnotations::new().read_only(function.read_only);
            let tool = rmcp::model::Tool::new(function.name.clone(), function.description.clone(), schema);
            Some(tool.with_annotations(annotations))
        };
        let tools: Vec<_> = functions.iter().filter_map(tool).collect();
        let unreadable = functions.len() - tools.len();
        let mut catalogue = Self::read(tools);
        catalogue.left_out += unreadable;
        catalogue
    }

    /// Returns a tool.
    ///
    /// # Errors
    /// There is none with this name; the message names near ones.
    pub(crate) fn find(&self, server: &str, name: &str) -> Result<&Arc<Tool>, Failure> {
        self.tools.get(name).ok_or_else(|| {
            let near = nearest(name, self.tools.keys().map(String::as_str));
            Failure::new(
                Code::NotFound,
                format!(
                    "the server {server} has no tool {:?}{near}",
                    name.chars().take(80).collect::<String>()
                ),
                "look for tools with tools.list() or tools.search(\"words\")",
            )
        })
    }
}

/// Returns the names near to this one, as the end of a sentence.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let name: String = name.chars().take(MAX_NAME_BYTES).collect();
    let mut scored: Vec<(f64, &str)> = known
        .map(|one| (strsim::jaro_winkler(&name.to_lowercase(), &one.to_lowercase()), one))
        .filter(|(score, _)| *score > 0.75)
        .collect();
    scored.sort_by(|one, two| two.0.total_cmp(&one.0));
    let near: Vec<&str> = scored.into_iter().take(3).map(|(_, one)| one).collect();
    if near.is_empty() {
        String::new()
    } else {
        format!("; near: {}", near.join(", "))
    }
}

fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(MAX_REASON_CHARS).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// Returns at most this many bytes of a text.
pub(crate) fn cut(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let mut short = text
        .get(..text.floor_char_boundary(bytes))
        .unwrap_or_default()
        .to_owned();
    short.push('…');
    short
}

/// Returns the size of a value as JSON.
pub(crate) fn json_bytes(value: &impl serde::Serialize) -> usize {
    struct Counter(usize);
    impl std::io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.saturating_add(bytes.len());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    match serde_json::to_writer(&mut counter, value) {
        Ok(()) => counter.0,
        // A value that cannot be written is larger than any bound.
        Err(_) => usize::MAX,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(value: Value) -> rmcp::model::Tool {
        serde_json::from_value(value).unwrap()
    }

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn arguments_must_match_the_schema() {
        let listed = vec![tool(json!({"name": "add", "inputSchema": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "string", "pattern": "^x+$"}},
            "required": ["a"],
            "additionalProperties": false,
        }}))];
        let all = Catalogue::read(listed);
        let add = all.find("s", "add").unwrap();
        add.check(&object(json!({"a": 1, "b": "xx"}))).unwrap();
        for (wrong, word) in [
            (json!({}), "\"a\""),
            (json!({"a": "1"}), "/a"),
            (json!({"a": 1, "b": "y"}), "/b"),
            (json!({"a": 1, "__proto__": 1}), "__proto__"),
        ] {
            let failure = add.check(&object(wrong)).unwrap_err();
            assert_eq!(failure.code, Code::InvalidArgument);
            assert!(failure.message.contains(word), "{failure}");
        }
    }

    #[test]
    fn a_schema_that_cannot_be_used_refuses_every_call() {
        for schema in [
            json!({"type": "object", "properties": {"a": {"$ref": "http://x.example/s"}}}),
            json!({"type": "object", "properties": {"a": {"pattern": "("}}}),
        ] {
            let all = Catalogue::read(vec![tool(json!({"name": "x", "inputSchema": schema}))]);
            let failure = all.find("s", "x").unwrap().check(&Map::new()).unwrap_err();
            assert_eq!(failure.code, Code::ToolUnavailable, "{failure}");
        }
    }

    #[test]
    fn hostile_lists_are_bounded() {
        let empty = json!({"type": "object"});
        let mut listed: Vec<_> = (0..3000)
            .map(|n| tool(json!({"name": format!("t{n}"), "inputSchema": empty, "description": "x".repeat(20_000)})))
            .collect();
        listed.push(tool(json!({"name": "a\u{202e}b", "inputSchema": empty})));
        listed.push(tool(json!({"name": "n".repeat(1000), "inputSchema": empty})));
        let all = Catalogue::read(listed);
        assert!(all.tools.len() <= MAX_TOOLS && all.left_out >= 1002, "{}", all.left_out);
        assert!(
            all.tools
                .values()
                .all(|tool| tool.description.len() <= MAX_DESCRIPTION_BYTES + 3)
        );
    }

    #[test]
    fn an_unknown_tool_is_answered_with_near_names() {
        let listed = vec![tool(
            json!({"name": "search_issues", "inputSchema": {"type": "object"}}),
        )];
        let failure = Catalogue::read(listed).find("github", "serch_issues").unwrap_err();
        assert!(failure.message.contains("near: search_issues"), "{failure}");
    }
}
