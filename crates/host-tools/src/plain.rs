//! The plain form of answers, for programs that cannot read JSON: the command `tools` of shells.
//!
//! A list has one line per entry, with a tab between its columns. Lines that begin with `# ` are remarks. Texts of
//! servers reach a terminal through this form, so names, descriptions and errors have no control or invisible
//! characters but the line breaks of this form. The values of calls keep their bytes: they are data, as the output of any
//! program is.

use sandcell_sandbox::Failure;
use serde_json::{Map, Value};

use crate::catalogue::cut;
use crate::question::is_invisible;

/// The maximum length of the type of one argument.
const MAX_TYPE_BYTES: usize = 400;
/// The maximum depth of nested types, and of references.
const MAX_TYPE_DEPTH: usize = 5;

/// Returns a line for each server: its name and its description.
pub(crate) fn servers(answer: &Value) -> String {
    items(answer, "servers")
        .map(|server| {
            format!(
                "{}\t{}\n",
                line(text(server, "name")),
                line(text(server, "description"))
            )
        })
        .collect()
}

/// Returns a line for each tool: its full name and the first line of its description. Remarks name the number of
/// further matches, and the servers that cannot be used.
pub(crate) fn tools(answer: &Value) -> String {
    let mut list = String::new();
    let mut count = 0;
    for tool in items(answer, "tools") {
        let first = text(tool, "description")
            .trim_start()
            .lines()
            .next()
            .unwrap_or_default();
        list.push_str(&format!("{}\t{}\n", full_name(tool), line(first)));
        count += 1;
    }
    let total = answer.get("total").and_then(Value::as_u64).unwrap_or(count);
    if total > count {
        list.push_str(&format!("# {} more; use more words to find fewer\n", total - count));
    }
    for failed in items(answer, "failed") {
        let (server, message) = (line(text(failed, "server")), line(text(failed, "message")));
        list.push_str(&format!("# {server} cannot be used: {message}\n"));
    }
    list
}

/// Returns the description of one tool, then a line for each argument: its name, its type, `required` or `optional`,
/// and its description.
pub(crate) fn tool(answer: &Value) -> String {
    let Some(tool) = items(answer, "tools").next() else {
        return String::new();
    };
    let mut page = format!("{}\n", full_name(tool));
    let description = lines(text(tool, "description").trim());
    if !description.is_empty() {
        page.push_str(&format!("{description}\n"));
    }
    if tool.get("asks") == Some(&Value::Bool(true)) {
        page.push_str("# a person is asked before each call\n");
    }
    let root = tool.get("input_schema").unwrap_or(&Value::Null);
    for (name, schema) in properties(root) {
        let mut kind = String::new();
        write_type(schema, root, 0, &mut kind);
        let need = if is_required(root, name) {
            "required"
        } else {
            "optional"
        };
        let about = line(text(schema, "description"));
        page.push_str(&format!(
            "{}\t{}\t{need}\t{about}\n",
            line(name),
            line(&cut(&kind, MAX_TYPE_BYTES))
        ));
    }
    page
}

/// Returns the value of a call: text as it is, JSON in one line, bytes as base64, the items of a list in lines. A shell's
/// variables cannot hold NUL, so text loses it.
pub(crate) fn value(found: &Value) -> String {
    match text(found, "kind") {
        "json" => found.get("value").map(Value::to_string).unwrap_or_default(),
        "list" => items(found, "items").map(value).collect::<Vec<_>>().join("\n"),
        "link" => text(found, "uri").to_owned(),
        _ => ["text", "data"].map(|key| text(found, key)).concat().replace('\0', ""),
    }
}

/// Returns an error: its message and its remedy.
pub(crate) fn error(failure: &Failure) -> String {
    let (message, remedy) = (lines(failure.message.trim_end()), lines(failure.remedy.trim()));
    match remedy.is_empty() {
        true => format!("{message}\n"),
        false => format!("{message}; {remedy}\n"),
    }
}

fn full_name(tool: &Value) -> String {
    format!("{}.{}", line(text(tool, "server")), line(text(tool, "name")))
}

/// Appends the type of a schema: `string`, `"open" | "closed"`, `integer[]`, `{author: string, draft?: boolean}`. A
/// hostile schema can nest and repeat types without end, so nothing is appended to a text of the maximum length.
fn write_type(schema: &Value, root: &Value, depth: usize, to: &mut String) {
    if depth > MAX_TYPE_DEPTH || to.len() > MAX_TYPE_BYTES {
        to.push('…');
        return;
    }
    let inner = |schema: &Value, to: &mut String| write_type(schema, root, depth + 1, to);
    let list = |key: &str| schema.get(key).and_then(Value::as_array);
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        match reference.strip_prefix('#').and_then(|path| root.pointer(path)) {
            Some(other) => inner(other, to),
            None => to.push_str("any"),
        }
    } else if let Some(values) = list("enum") {
        write_joined(values, to, |value, to| to.push_str(&value.to_string()));
    } else if let Some(value) = schema.get("const") {
        to.push_str(&value.to_string());
    } else if let Some(choices) = list("anyOf").or_else(|| list("oneOf")) {
        write_joined(choices, to, inner);
    } else if let Some(kinds) = list("type") {
        write_joined(kinds, to, |kind, to| to.push_str(kind.as_str().unwrap_or("any")));
    } else {
        match text(schema, "type") {
            "array" => {
                inner(schema.get("items").unwrap_or(&Value::Null), to);
                to.push_str("[]");
            }
            "object" if properties(schema).next().is_some() => write_object(schema, to, inner),
            "" => to.push_str("any"),
            kind => to.push_str(kind),
        }
    }
}

fn write_object(schema: &Value, to: &mut String, inner: impl Fn(&Value, &mut String)) {
    to.push('{');
    for (number, (name, property)) in properties(schema).enumerate() {
        if number > 0 {
            to.push_str(", ");
        }
        if to.len() > MAX_TYPE_BYTES {
            to.push('…');
            break;
        }
        to.push_str(name);
        to.push_str(if is_required(schema, name) { ": " } else { "?: " });
        inner(property, to);
    }
    to.push('}');
}

fn write_joined(values: &[Value], to: &mut String, write: impl Fn(&Value, &mut String)) {
    for (number, value) in values.iter().enumerate() {
        if number > 0 {
            to.push_str(" | ");
        }
        if to.len() > MAX_TYPE_BYTES {
            to.push('…');
            return;
        }
        write(value, to);
    }
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(Map::iter)
}

fn is_required(schema: &Value, name: &str) -> bool {
    let required = schema.get("required").and_then(Value::as_array);
    required.is_some_and(|names| names.iter().any(|one| one == name))
}

fn items<'a>(of: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    of.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn text<'a>(of: &'a Value, key: &str) -> &'a str {
    of.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Returns a text of a server as one line.
fn line(text: &str) -> String {
    lines(text).trim().replace('\n', " ")
}

/// Returns a text of a server without control and invisible characters. Line breaks stay, tabs become blanks.
fn lines(text: &str) -> String {
    let blank = |c| if c == '\t' { ' ' } else { c };
    text.chars()
        .map(blank)
        .filter(|c| *c == '\n' || !(c.is_control() || is_invisible(*c)))
        .collect()
}

#[cfg(test)]
mod tests {
    use sandcell_sandbox::Code;
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_have_a_line_per_entry_and_remarks() {
        let all = json!({"servers": [{"name": "github", "description": "Issues"}, {"name": "x", "description": ""}]});
        assert_eq!(servers(&all), "github\tIssues\nx\t\n");
        let found = json!({
            "tools": [{"server": "github", "name": "a-b", "description": "\nFirst.\nSecond."}],
            "total": 3,
            "failed": [{"server": "broken", "message": "exit status 1"}],
        });
        assert_eq!(
            tools(&found),
            "github.a-b\tFirst.\n# 2 more; use more words to find fewer\n# broken cannot be used: exit status 1\n"
        );
        assert_eq!(tools(&json!({"tools": [], "total": 0, "failed": []})), "");
    }

    #[test]
    fn a_tool_is_described_with_its_arguments() {
        let answer = json!({"tools": [{
            "server": "github", "name": "search", "description": "Searches.\nThe query has GitHub's syntax.", "asks": true,
            "input_schema": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "the\nwords"},
                    "state": {"enum": ["open", "closed"]},
                    "labels": {"type": "array", "items": {"type": "string"}},
                    "since": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "count": {"type": ["integer", "null"]},
                    "filter": {"$ref": "#/$defs/F"},
                    "any": {},
                },
                "required": ["query"],
                "$defs": {"F": {
                    "type": "object",
                    "properties": {"author": {"type": "string"}, "draft": {"type": "boolean"}},
                    "required": ["author"],
                }},
            },
        }], "total": 1, "failed": []});
        let page = tool(&answer);
        let mut described: Vec<&str> = page.lines().collect();
        assert_eq!(
            described.drain(..4).collect::<Vec<_>>(),
            [
                "github.search",
                "Searches.",
                "The query has GitHub's syntax.",
                "# a person is asked before each call"
            ]
        );
        described.sort_unstable();
        assert_eq!(
            described,
            [
                "any\tany\toptional\t",
                "count\tinteger | null\toptional\t",
                "filter\t{author: string, draft?: boolean}\toptional\t",
                "labels\tstring[]\toptional\t",
                "query\tstring\trequired\tthe words",
                "since\tstring | null\toptional\t",
                "state\t\"open\" | \"closed\"\toptional\t",
            ]
        );
    }

    #[test]
    fn a_hostile_schema_makes_a_short_type() {
        let many: Map<String, Value> = (0..1000)
            .map(|n| (format!("p{n}"), json!({"$ref": "#/$defs/X"})))
            .collect();
        let deep = json!({
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/X"}, "b": {"enum": vec!["x".repeat(50); 1000]}, "c": {"$ref": "#"}},
            "$defs": {"X": {"type": "object", "properties": many}},
        });
        let page = tool(&json!({"tools": [{"server": "s", "name": "t", "description": "", "input_schema": deep}]}));
        assert_eq!(page.lines().count(), 4, "{page}");
        assert!(page.len() < 4 * MAX_TYPE_BYTES, "{page}");
        let endless = json!({"$ref": "#"});
        let mut kind = String::new();
        write_type(&endless, &endless, 0, &mut kind);
        assert_eq!(kind, "…");
    }

    #[test]
    fn values_keep_their_bytes() {
        for (found, expected) in [
            (json!({"kind": "text", "text": "a\u{1b}[1m\t\0b\n"}), "a\u{1b}[1m\tb\n"),
            (json!({"kind": "json", "value": {"a": [1, "é"]}}), r#"{"a":[1,"é"]}"#),
            (json!({"kind": "image", "mime": "image/png", "data": "AAAA"}), "AAAA"),
            (
                json!({"kind": "resource", "uri": "file:///a", "mime": null, "text": "content"}),
                "content",
            ),
            (
                json!({"kind": "resource", "uri": "file:///a", "mime": null, "data": "AAAA"}),
                "AAAA",
            ),
            (json!({"kind": "link", "uri": "https://x", "name": "X"}), "https://x"),
            (json!({"kind": "nothing"}), ""),
            (
                json!({"kind": "list", "items": [{"kind": "text", "text": "a"}, {"kind": "json", "value": null}]}),
                "a\nnull",
            ),
        ] {
            assert_eq!(value(&found), expected, "{found}");
        }
    }

    #[test]
    fn texts_of_servers_cannot_control_a_terminal() {
        let hostile = "a\u{1b}[2J\u{202e}\r\u{9b}31m\u{7}\tb\nc";
        let found = json!({"tools": [{"server": "s", "name": hostile, "description": hostile,
            "input_schema": {"properties": {(hostile): {"type": hostile, "description": hostile}}}}],
            "failed": [{"server": hostile, "message": hostile}]});
        let said = servers(&json!({"servers": [{"name": hostile, "description": hostile}]}))
            + &tools(&found)
            + &tool(&found)
            + &error(&Failure::new(Code::ToolFailed, hostile, hostile));
        let bad = |c: char| (c.is_control() && !matches!(c, '\n' | '\t')) || is_invisible(c);
        assert!(!said.chars().any(bad), "{said:?}");
        assert_eq!(
            error(&Failure::new(Code::ToolFailed, "it\nfailed\n", "")),
            "it\nfailed\n"
        );
        assert_eq!(
            error(&Failure::new(Code::ToolFailed, "it failed", "retry")),
            "it failed; retry\n"
        );
    }
}
