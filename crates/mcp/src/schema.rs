//! The inputs and outputs of a tool, declared once. The JSON Schema that clients see and the checks of calls use the
//! same fields. The schemas use only features that every client is known to understand: no `$ref`, no `null`
//! alternatives, no `format`.

use serde_json::{Map, Value, json};

/// The kind of value that an argument takes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    /// Text that is passed on unchanged, even if it is empty.
    Content,
    /// A name. An empty name counts as absent.
    Text,
    /// A text. The schema lists these values; other values reach the engine, since it also knows aliases.
    Choice(Vec<String>),
    /// A whole number within these bounds.
    Integer { min: i64, max: i64 },
    /// A number within these bounds.
    Number { min: f64, max: f64 },
    /// `true` or `false`.
    Flag,
    /// A list of texts.
    Texts(ListOf),
    /// An object of texts.
    TextMap(MapOf),
    /// A list of objects. The tool checks their content. Only programs pass it.
    Objects,
}

/// The content of a list of texts. It decides how to parse a list that arrives as a single text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListOf {
    Packages,
    Hosts,
    /// Paths of files. They may contain blanks and commas.
    Paths,
    /// The words of a command. Each is passed on unchanged.
    Words,
}

/// The content of an object of texts. It decides which other values count as texts there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MapOf {
    /// Environment variables.
    Variables,
    /// Files, by their paths.
    Files,
}

impl Kind {
    /// The type's name in error messages.
    pub(crate) fn noun(&self) -> &'static str {
        match self {
            Self::Content | Self::Text | Self::Choice(_) => "a string",
            Self::Integer { .. } => "a whole number",
            Self::Number { .. } => "a number",
            Self::Flag => "true or false",
            Self::Texts(_) => "a list of strings",
            Self::TextMap(_) => "an object whose values are strings",
            Self::Objects => "a list of objects",
        }
    }
}

/// One argument of a tool.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) required: bool,
    /// True for an argument that is parsed but not shown to models. This server's settings do not support it, and the
    /// tool reports the reason.
    pub(crate) hidden: bool,
    /// Guidance for the model beyond the name; may be empty.
    pub(crate) about: String,
    /// The default value, for the schema only.
    pub(crate) default: Option<Value>,
    /// The bounds that are shown, in whole numbers.
    pub(crate) bounds: Option<(u64, u64)>,
    /// A valid value, for error messages.
    pub(crate) example: Value,
}

impl Field {
    /// An argument that may be left out.
    pub(crate) fn new(name: &'static str, kind: Kind, example: Value) -> Self {
        Self {
            name,
            kind,
            required: false,
            hidden: false,
            about: String::new(),
            default: None,
            bounds: None,
            example,
        }
    }

    /// Makes the argument required.
    pub(crate) fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// Hides the argument from the schema.
    pub(crate) fn hidden_if(mut self, hidden: bool) -> Self {
        self.hidden = hidden;
        self
    }

    /// Sets the guidance for the model.
    pub(crate) fn about(mut self, about: impl Into<String>) -> Self {
        self.about = about.into();
        self
    }

    /// Sets the shown default.
    pub(crate) fn default(mut self, default: Value) -> Self {
        self.default = Some(default);
        self
    }

    /// Shows bounds in the schema. A value outside them is not refused.
    pub(crate) fn bounds(mut self, least: u64, most: u64) -> Self {
        self.bounds = Some((least, most));
        self
    }

    fn schema(&self) -> Value {
        let mut schema = match &self.kind {
            Kind::Content | Kind::Text => json!({"type": "string"}),
            Kind::Choice(names) if names.is_empty() => json!({"type": "string"}),
            Kind::Choice(names) => json!({"type": "string", "enum": names}),
            Kind::Integer { .. } => json!({"type": "integer"}),
            Kind::Number { .. } => json!({"type": "number"}),
            Kind::Flag => json!({"type": "boolean"}),
            Kind::Texts(_) => json!({"type": "array", "items": {"type": "string"}}),
            Kind::TextMap(_) => json!({"type": "object", "additionalProperties": {"type": "string"}}),
            Kind::Objects => json!({"type": "array", "items": {"type": "object"}}),
        };
        if let Some(object) = schema.as_object_mut() {
            if !self.about.is_empty() {
                object.insert("description".into(), json!(self.about));
            }
            if let Some((least, most)) = self.bounds {
                object.insert("minimum".into(), json!(least));
                object.insert("maximum".into(), json!(most));
            }
            if let Some(default) = &self.default {
                object.insert("default".into(), default.clone());
            }
        }
        schema
    }
}

/// The input schema of a tool with these arguments.
pub(crate) fn input(fields: &[Field]) -> Map<String, Value> {
    let properties: Map<String, Value> = fields
        .iter()
        .filter(|field| !field.hidden)
        .map(|field| (field.name.to_owned(), field.schema()))
        .collect();
    let required: Vec<&str> = fields
        .iter()
        .filter(|field| field.required)
        .map(|field| field.name)
        .collect();
    let mut schema = Map::new();
    schema.insert("type".into(), json!("object"));
    schema.insert("properties".into(), Value::Object(properties));
    if !required.is_empty() {
        schema.insert("required".into(), json!(required));
    }
    schema.insert("additionalProperties".into(), json!(false));
    schema
}

/// Builds the output schema of a tool from names and type names. A name that ends in `?` may be absent or null, and
/// gets no type, because clients differ in how they take alternatives with null.
pub(crate) fn output(fields: &[(&str, &str)]) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for (name, kind) in fields {
        match name.strip_suffix('?') {
            Some(optional) => {
                properties.insert(optional.to_owned(), json!({}));
            }
            None => {
                properties.insert((*name).to_owned(), json!({"type": kind}));
                required.push(*name);
            }
        }
    }
    json!({"type": "object", "properties": properties, "required": required})
}

/// An object schema with one list of objects in it.
pub(crate) fn output_list(fields: &[(&str, &str)], list: &str, items: &[(&str, &str)]) -> Value {
    let mut schema = output(fields);
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.insert(list.to_owned(), json!({"type": "array", "items": output(items)}));
    }
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.push(json!(list));
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_uses_only_keywords_that_every_client_understands() {
        let schema = input(&[
            Field::new("code", Kind::Text, json!("1"))
                .required()
                .about("the source"),
            Field::new("language", Kind::Choice(vec!["python".into()]), json!("python")).default(json!("python")),
            Field::new("outputs", Kind::Texts(ListOf::Paths), json!(["a"])),
        ]);
        insta::assert_json_snapshot!(schema, @r#"
        {
          "additionalProperties": false,
          "properties": {
            "code": {
              "description": "the source",
              "type": "string"
            },
            "language": {
              "default": "python",
              "enum": [
                "python"
              ],
              "type": "string"
            },
            "outputs": {
              "items": {
                "type": "string"
              },
              "type": "array"
            }
          },
          "required": [
            "code"
          ],
          "type": "object"
        }
        "#);
    }
}
