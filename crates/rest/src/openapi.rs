//! Generates the OpenAPI 3.1 document from the list of routes and the types of their bodies.

use sandcell_mcp::EndpointInput;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::model;
use crate::request::{QueryField, QueryKind};
use crate::respond::{BYTES_TYPE, EVENTS_TYPE, JSON_TYPE};
use crate::routes::{Body, ROUTE_TABLE, Route, RouteAnswer};

const API_DESCRIPTION: &str = "Runs code in sandboxes. Every request except the one for this document needs a token \
                     (`Authorization: Bearer TOKEN`) unless the server was started without any. With \
                     `Accept: text/event-stream` runs and commands answer with events. A run is cancelled when its \
                     client disconnects.";

/// Generates the document.
pub(crate) fn document() -> Value {
    let mut generator = SchemaSettings::draft2020_12()
        .with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        })
        .into_generator();
    let mut paths = Map::new();
    for route in &ROUTE_TABLE {
        let operation = operation(route, &mut generator);
        let methods = paths.entry(route.path).or_insert_with(|| json!({}));
        if let Some(methods) = methods.as_object_mut() {
            methods.insert(route.method.as_str().to_ascii_lowercase(), operation);
        }
    }
    let schemas = generator.take_definitions(true);
    json!({
        "openapi": "3.1.0",
        "info": {"title": "sandcell", "version": env!("CARGO_PKG_VERSION"), "description": API_DESCRIPTION},
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    })
}

fn operation(route: &Route, generator: &mut SchemaGenerator) -> Value {
    let mut answers = Map::new();
    for answer in route.answers {
        answers.insert(answer.status.to_string(), describe_answer(answer, generator));
    }
    let mut operation = json!({"operationId": route.id, "summary": route.summary});
    let mut add = |name: &str, value: Value| {
        if let Some(object) = operation.as_object_mut() {
            object.insert(name.to_owned(), value);
        }
    };
    if route.input == EndpointInput::Nothing {
        add("security", json!([]));
    } else {
        let problem = reference::<model::Problem>(generator);
        let content = json!({JSON_TYPE: {"schema": problem}});
        let about = "The call failed: what happened, and what to do.";
        answers.insert("default".to_owned(), json!({"description": about, "content": content}));
    }
    let parameters: Vec<Value> = ids(route.path)
        .map(path_parameter)
        .chain(route.query.iter().map(parameter))
        .collect();
    if !parameters.is_empty() {
        add("parameters", json!(parameters));
    }
    if let Some(body_schema) = route.body_schema {
        let schema = body_schema(generator);
        add(
            "requestBody",
            json!({"required": true, "content": {JSON_TYPE: {"schema": schema}}}),
        );
    } else if route.input == EndpointInput::Stream {
        add("requestBody", json!({"required": true, "content": {BYTES_TYPE: {}}}));
    }
    add("responses", Value::Object(answers));
    operation
}

fn reference<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}

fn describe_answer(answer: &RouteAnswer, generator: &mut SchemaGenerator) -> Value {
    let content = match &answer.body {
        Body::Json(schema) => json!({JSON_TYPE: {"schema": schema(generator)}}),
        Body::JsonOrEvents(schema) => {
            let events = events(generator);
            json!({JSON_TYPE: {"schema": schema(generator)}, EVENTS_TYPE: {"schema": events}})
        }
        Body::Bytes => json!({BYTES_TYPE: {}}),
        Body::Any => json!({JSON_TYPE: {"schema": {"type": "object"}}}),
    };
    json!({"description": answer.about, "content": content})
}

/// Describes the events of an execution. OpenAPI 3.1 cannot describe an event stream, so the text names the data of
/// each event.
fn events(generator: &mut SchemaGenerator) -> Value {
    let name = |value: &Value| value["$ref"].as_str().unwrap_or_default().to_owned();
    let [started, printed, result, problem] = [
        reference::<model::Started>(generator),
        reference::<model::Printed>(generator),
        reference::<model::Execution>(generator),
        reference::<model::Problem>(generator),
    ];
    json!({
        "type": "string",
        "description": format!(
            "Server-sent events, each with JSON as its data: `start` ({}), any number of `stdout` and `stderr` ({}), at the \
             end `result` ({}), or `error` ({}) if the call could not be carried out.",
            name(&started), name(&printed), name(&result), name(&problem)
        ),
    })
}

/// Returns the names in braces of a path.
fn ids(path: &'static str) -> impl Iterator<Item = &'static str> {
    let names = path.split('/');
    names.filter_map(|name| name.strip_prefix('{')?.strip_suffix('}'))
}

fn path_parameter(name: &'static str) -> Value {
    let kind = if name == "number" { "integer" } else { "string" };
    json!({"name": name, "in": "path", "required": true, "schema": {"type": kind}})
}

fn parameter(field: &QueryField) -> Value {
    let schema = match field.kind {
        QueryKind::RequiredText | QueryKind::Text => json!({"type": "string"}),
        QueryKind::Whole => json!({"type": "integer", "minimum": 0}),
        QueryKind::Signed => json!({"type": "integer"}),
        QueryKind::Number => json!({"type": "number", "minimum": 0}),
        QueryKind::Flag => json!({"type": "boolean"}),
    };
    json!({
        "name": field.name, "in": "query", "required": field.kind == QueryKind::RequiredText,
        "description": field.about, "schema": schema,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_resolves_and_names_are_unique() {
        let document = document();
        let text = document.to_string();
        let mut references = text.split("\"#/components/schemas/").skip(1);
        assert!(references.all(|rest| {
            let name = rest.split('"').next().unwrap();
            document["components"]["schemas"][name].is_object()
        }));
        let mut ids: Vec<&str> = ROUTE_TABLE.iter().map(|route| route.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), ROUTE_TABLE.len());
    }
}
