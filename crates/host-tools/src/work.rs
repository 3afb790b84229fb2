//! Bounds the work of checking arguments against a schema. Both come from outside: a small schema whose parts refer to
//! each other twice makes a check take for ever, and so do arguments that are nested in a schema that contains itself.
//!
//! The decision taken here: walk the same way as a check would, through all alternatives, and give up after a number of
//! steps. A walk costs less than the check, and it has no other state.

use serde_json::{Map, Value};

/// The maximum number of steps of a check.
const MAX_CHECK_STEPS: u32 = 500_000;
/// The maximum number of parts of a schema, with references replaced by what they refer to.
const MAX_SCHEMA_PARTS: u32 = 100_000;
/// The maximum nesting of the walk, which is that of the check: each level takes some of the stack.
const MAX_LEVELS: u32 = 250;
/// The maximum number of patterns of a schema, and their maximum length.
const MAX_PATTERNS: u32 = 32;
const MAX_PATTERN_BYTES: usize = 1000;

/// Keywords whose schemas apply to the same value.
const IN_PLACE: [&str; 5] = ["if", "then", "else", "not", "propertyNames"];
const IN_PLACE_LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Keywords whose schemas apply to the values of an object.
const OF_PROPERTIES: [&str; 2] = ["additionalProperties", "unevaluatedProperties"];
/// Keywords whose schemas apply to the items of a list.
const OF_ITEMS: [&str; 4] = ["items", "additionalItems", "contains", "unevaluatedItems"];
/// Keywords whose references cannot be followed here.
const UNSUPPORTED_KEYWORDS: [&str; 4] = ["$dynamicRef", "$recursiveRef", "$dynamicAnchor", "$recursiveAnchor"];

/// The reason why a schema or arguments are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TooMuchWork {
    #[error("it refers to other documents, or by names")]
    Reference,
    #[error("it has too many or too long patterns")]
    Patterns,
    #[error("it has too many parts")]
    Parts,
    #[error("they are too large or nested too deep for it")]
    Arguments,
}

/// A walk through a schema.
struct Walk<'a> {
    root: &'a Value,
    steps: u32,
    max_steps: u32,
    too_much: TooMuchWork,
}

impl<'a> Walk<'a> {
    fn step(&mut self, level: u32) -> Result<(), TooMuchWork> {
        self.steps += 1;
        if self.steps > self.max_steps || level > MAX_LEVELS {
            return Err(self.too_much);
        }
        Ok(())
    }

    /// Returns the schema that a reference names.
    fn target(&self, reference: &Value) -> Result<&'a Value, TooMuchWork> {
        let pointer = reference.as_str().and_then(|text| text.strip_prefix('#'));
        let pointer =
            pointer.filter(|pointer| !pointer.contains('%') && (pointer.is_empty() || pointer.starts_with('/')));
        let target = pointer.and_then(|pointer| self.root.pointer(pointer));
        target.ok_or(TooMuchWork::Reference)
    }

    /// Returns the schemas that apply to the same value as this one.
    fn in_place(&self, schema: &'a Map<String, Value>) -> Result<Vec<&'a Value>, TooMuchWork> {
        let mut all: Vec<&Value> = IN_PLACE.iter().filter_map(|key| schema.get(*key)).collect();
        for key in IN_PLACE_LISTS {
            all.extend(schema.get(key).and_then(Value::as_array).into_iter().flatten());
        }
        all.extend(
            schema
                .get("dependentSchemas")
                .and_then(Value::as_object)
                .into_iter()
                .flat_map(Map::values),
        );
        if let Some(reference) = schema.get("$ref") {
            all.push(self.target(reference)?);
        }
        Ok(all)
    }

    /// Walks through all parts of a schema. A reference to a part that contains the reference is not followed.
    fn parts(&mut self, schema: &'a Value, above: &mut Vec<&'a Value>) -> Result<(), TooMuchWork> {
        let level = u32::try_from(above.len()).unwrap_or(u32::MAX);
        self.step(level)?;
        let Some(object) = schema
            .as_object()
            .filter(|_| !above.iter().any(|one| std::ptr::eq(*one, schema)))
        else {
            return Ok(());
        };
        if UNSUPPORTED_KEYWORDS.iter().any(|key| object.contains_key(*key)) || (level > 0 && object.contains_key("$id"))
        {
            return Err(TooMuchWork::Reference);
        }
        above.push(schema);
        let mut below = self.in_place(object)?;
        below.extend(OF_PROPERTIES.iter().chain(&OF_ITEMS).filter_map(|key| object.get(*key)));
        for key in ["properties", "patternProperties"] {
            below.extend(
                object
                    .get(key)
                    .and_then(Value::as_object)
                    .into_iter()
                    .flat_map(Map::values),
            );
        }
        for key in ["items", "prefixItems"] {
            below.extend(object.get(key).and_then(Value::as_array).into_iter().flatten());
        }
        for part in below {
            self.parts(part, above)?;
        }
        above.pop();
        Ok(())
    }

    /// Walks the way of a check.
    fn check(&mut self, schema: &'a Value, value: &Value, level: u32) -> Result<(), TooMuchWork> {
        self.step(level)?;
        let Some(object) = schema.as_object() else {
            return Ok(());
        };
        // What is not evaluated yet is known after a second evaluation.
        let twice = object.contains_key("unevaluatedProperties") || object.contains_key("unevaluatedItems");
        let in_place = self.in_place(object)?;
        for _round in 0..=u32::from(twice) {
            for part in &in_place {
                self.check(part, value, level + 1)?;
            }
        }
        match value {
            Value::Object(values) => self.check_properties(object, values, level + 1),
            Value::Array(items) => {
                let first = ["items", "prefixItems"]
                    .iter()
                    .filter_map(|key| object.get(*key)?.as_array());
                for list in first {
                    for (part, item) in list.iter().zip(items) {
                        self.check(part, item, level + 1)?;
                    }
                }
                for part in OF_ITEMS.iter().filter_map(|key| object.get(*key)) {
                    for item in items {
                        self.check(part, item, level + 1)?;
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn check_properties(
        &mut self,
        schema: &'a Map<String, Value>,
        values: &Map<String, Value>,
        level: u32,
    ) -> Result<(), TooMuchWork> {
        let named = schema.get("properties").and_then(Value::as_object);
        for (name, part) in named.into_iter().flatten() {
            if let Some(value) = values.get(name) {
                self.check(part, value, level)?;
            }
        }
        let patterns = schema.get("patternProperties").and_then(Value::as_object);
        let of_all = OF_PROPERTIES.iter().filter_map(|key| schema.get(*key));
        for part in patterns.into_iter().flat_map(Map::values).chain(of_all) {
            for value in values.values() {
                self.check(part, value, level)?;
            }
        }
        Ok(())
    }
}

/// Checks that a schema can be compiled with bounded work.
pub(crate) fn of_schema(schema: &Value) -> Result<(), TooMuchWork> {
    let (count, longest) = patterns(schema);
    if count > MAX_PATTERNS || longest > MAX_PATTERN_BYTES {
        return Err(TooMuchWork::Patterns);
    }
    let mut walk = Walk {
        root: schema,
        steps: 0,
        max_steps: MAX_SCHEMA_PARTS,
        too_much: TooMuchWork::Parts,
    };
    walk.parts(schema, &mut Vec::new())
}

/// Checks that these arguments can be checked with bounded work.
pub(crate) fn of_check(schema: &Value, arguments: &Value) -> Result<(), TooMuchWork> {
    let mut walk = Walk {
        root: schema,
        steps: 0,
        max_steps: MAX_CHECK_STEPS,
        too_much: TooMuchWork::Arguments,
    };
    walk.check(schema, arguments, 0)
}

/// Returns the number of patterns anywhere in a schema, and the length of the longest.
fn patterns(value: &Value) -> (u32, usize) {
    let add = |one: (u32, usize), other: (u32, usize)| (one.0.saturating_add(other.0), one.1.max(other.1));
    match value {
        Value::Object(object) => object.iter().fold((0, 0), |all, (key, inner)| {
            let own = match (key.as_str(), inner) {
                ("pattern", Value::String(pattern)) => (1, pattern.len()),
                ("patternProperties", Value::Object(patterns)) => (
                    u32::try_from(patterns.len()).unwrap_or(u32::MAX),
                    patterns.keys().map(String::len).max().unwrap_or_default(),
                ),
                _ => (0, 0),
            };
            add(add(all, own), patterns(inner))
        }),
        Value::Array(items) => items.iter().map(patterns).fold((0, 0), add),
        _ => (0, 0),
    }
}

/// Returns true if a JSON text may have more values than this. Counts the separators outside of texts.
pub(crate) fn has_more_values(json: &[u8], max: usize) -> bool {
    let (mut count, mut in_text, mut escaped) = (0_usize, false, false);
    for byte in json {
        match (in_text, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (true, b'"') => in_text = false,
            (true, _) => {}
            (false, b'"') => in_text = true,
            (false, b',' | b'[' | b'{') => count += 1,
            (false, _) => {}
        }
    }
    count > max
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a list that is nested this deep.
    fn nested(depth: usize, inner: &dyn Fn(Value) -> Value) -> Value {
        (0..depth).fold(json!({}), |value, _| inner(value))
    }

    #[test]
    fn ordinary_schemas_and_large_arguments_pass() {
        let schema = json!({
            "type": "object",
            "properties": {
                "rows": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "number"}}}},
                "tree": {"$ref": "#/$defs/node"},
                "name": {"type": "string", "pattern": "^[a-z]+$"},
            },
            "$defs": {"node": {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}},
        });
        of_schema(&schema).unwrap();
        let rows: Vec<Value> = (0..50_000).map(|n| json!({"a": n})).collect();
        of_check(&schema, &json!({"rows": rows})).unwrap();
        let tree = nested(30, &|inner| json!({"children": [inner]}));
        of_check(&schema, &json!({"tree": tree})).unwrap();
    }

    #[test]
    fn a_union_that_contains_itself_bounds_the_depth_of_arguments() {
        let children = json!({"properties": {"children": {"items": {"$ref": "#/$defs/node"}}}});
        let schema = json!({
            "properties": {"tree": {"$ref": "#/$defs/node"}},
            "$defs": {"node": {"anyOf": [children, children, {"type": "string"}]}},
        });
        of_schema(&schema).unwrap();
        let tree = |depth| json!({"tree": nested(depth, &|inner| json!({"children": [inner]}))});
        of_check(&schema, &tree(5)).unwrap();
        assert_eq!(of_check(&schema, &tree(40)), Err(TooMuchWork::Arguments));
    }

    #[test]
    fn parts_that_refer_to_others_twice_and_long_chains_are_refused() {
        let chain = |parts: usize, end: Value, link: &dyn Fn(usize) -> Value| {
            let mut all = Map::new();
            for part in 0..parts {
                all.insert(format!("a{part}"), link(part + 1));
            }
            all.insert(format!("a{parts}"), end);
            json!({"$ref": "#/$defs/a0", "$defs": all})
        };
        let reference = |part: usize| json!({"$ref": format!("#/$defs/a{part}")});
        let doubled = chain(
            40,
            json!({}),
            &|part| json!({"allOf": [reference(part), reference(part)]}),
        );
        assert_eq!(of_schema(&doubled), Err(TooMuchWork::Parts));
        assert_eq!(of_check(&doubled, &json!({})), Err(TooMuchWork::Arguments));
        let long = chain(1000, json!({}), &reference);
        assert_eq!(of_schema(&long), Err(TooMuchWork::Parts));
        // A chain that is walked again at each level of the arguments.
        let deep = chain(50, json!({"additionalProperties": {"$ref": "#/$defs/a0"}}), &reference);
        of_schema(&deep).unwrap();
        let arguments = nested(100, &|inner| json!({"a": inner}));
        assert_eq!(of_check(&deep, &arguments), Err(TooMuchWork::Arguments));
        let own = json!({"$ref": "#"});
        assert_eq!(of_check(&own, &json!({})), Err(TooMuchWork::Arguments));
    }

    #[test]
    fn references_and_patterns_without_a_bound_are_refused() {
        for schema in [
            json!({"$ref": "http://x.example/s"}),
            json!({"properties": {"a": {"$ref": "#name"}}}),
            json!({"properties": {"a": {"$dynamicRef": "#x"}}}),
            json!({"properties": {"a": {"$id": "http://x.example/"}}}),
            json!({"$ref": "#/missing"}),
        ] {
            assert_eq!(of_schema(&schema), Err(TooMuchWork::Reference), "{schema}");
        }
        let many: Map<String, Value> = (0..100).map(|n| (format!("p{n}"), json!({"pattern": "x"}))).collect();
        assert_eq!(of_schema(&json!({"properties": many})), Err(TooMuchWork::Patterns));
    }

    #[test]
    fn values_are_counted_outside_of_texts() {
        assert!(!has_more_values(br#"{"a": "[[[[,,,,\"[[[["}"#, 1));
        assert!(has_more_values(b"[[],[],[]]", 3));
    }
}
