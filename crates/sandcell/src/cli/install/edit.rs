//! Adds one server to a client's settings, and removes it. JSON may hold comments and trailing commas; `edit_toml`
//! does the same for TOML.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use serde_json::{Map, Value};

use super::edit_toml;

/// The reason that a file could not be changed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("is not JSON: {0}")]
    Json(String),
    #[error("is not TOML: {0}")]
    Toml(String),
    #[error("does not hold an object")]
    NoObject,
    #[error("has a {0:?} that is not an object")]
    NoTable(String),
}

/// The language of a client's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Toml,
}

/// The server as a client names and starts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The object that holds the servers.
    pub(super) table: &'static str,
    pub(super) format: Format,
    pub(super) name: String,
    /// A member that the client needs next to the program, such as the transport.
    pub(super) says: Option<(&'static str, &'static str)>,
    pub(super) program: String,
    pub(super) arguments: Vec<String>,
}

impl Entry {
    fn value(&self) -> CstInputValue {
        let text = |text: &str| CstInputValue::String(text.to_owned());
        let mut members = Vec::new();
        if let Some((member, word)) = self.says {
            members.push((member.to_owned(), text(word)));
        }
        members.push(("command".to_owned(), text(&self.program)));
        let arguments = self.arguments.iter().map(|argument| text(argument)).collect();
        members.push(("args".to_owned(), CstInputValue::Array(arguments)));
        CstInputValue::Object(members)
    }

    /// Returns the text with this entry, and everything else unchanged.
    pub(super) fn put_into(&self, text: &str) -> Result<String, Unreadable> {
        if self.format == Format::Toml {
            return edit_toml::put_into(self, text);
        }
        let root = parse(text)?;
        let servers = match table(&root, self.table)? {
            Some(servers) => servers,
            None => root
                .object_value_or_create()
                .ok_or(Unreadable::NoObject)?
                .object_value_or_set(self.table),
        };
        match servers.get(&self.name) {
            Some(old) if old.to_serde_value() == Some(self.json()) => {}
            Some(old) => old.set_value(self.value()),
            None => drop(servers.append(&self.name, self.value())),
        }
        let mut text = root.to_string();
        if !text.ends_with('\n') {
            text.push('\n');
        }
        Ok(text)
    }

    fn json(&self) -> Value {
        let mut value = serde_json::json!({"command": self.program, "args": self.arguments});
        if let (Some((member, word)), Some(object)) = (self.says, value.as_object_mut()) {
            object.insert(member.to_owned(), Value::from(word));
        }
        value
    }

    /// Returns the text with this name's entry as in `former`, or without it; none if there is no entry.
    pub(super) fn take_out_of(&self, text: &str, former: Option<&str>) -> Result<Option<String>, Unreadable> {
        if self.format == Format::Toml {
            return edit_toml::take_out_of(self, text, former);
        }
        let root = parse(text)?;
        let Some(here) = table(&root, self.table)?.and_then(|servers| servers.get(&self.name)) else {
            return Ok(None);
        };
        let replaced = former
            .and_then(|former| parse(former).ok())
            .and_then(|former| table(&former, self.table).ok().flatten())
            .and_then(|servers| servers.get(&self.name)?.value()?.to_serde_value());
        match replaced {
            Some(value) => here.set_value(input(value)),
            None => here.remove(),
        }
        Ok(Some(root.to_string()))
    }

    /// Returns true when `now` differs from `former` only by an entry of this name, with any arguments: the texts are
    /// equal once the entry is removed from both.
    pub(super) fn differs_only_by_entry(&self, former: &str, now: &str) -> bool {
        if self.format == Format::Toml {
            return edit_toml::differs_only_by_entry(self, former, now);
        }
        let blank = |text: &str| {
            let root = parse(text).ok()?;
            let servers = match table(&root, self.table).ok()? {
                Some(servers) => servers,
                None => root.object_value_or_create()?.object_value_or_set(self.table),
            };
            match servers.get(&self.name) {
                Some(old) => old.set_value(CstInputValue::Null),
                None => drop(servers.append(&self.name, CstInputValue::Null)),
            }
            Some(root.to_string().trim_end().to_owned())
        };
        let (former, now) = (blank(former), blank(now));
        former.is_some() && former == now
    }
}

/// Returns the name and program of each server in these settings.
pub(super) fn programs(text: &str, table: &str, format: Format) -> Result<Vec<(String, String)>, Unreadable> {
    let all = servers(&mut settings(text, format)?, table)?.into_iter();
    Ok(all
        .filter_map(|(name, server)| Some((name, server.get("command")?.as_str()?.to_owned())))
        .collect())
}

/// Returns these settings as JSON.
pub(super) fn settings(text: &str, format: Format) -> Result<Map<String, Value>, Unreadable> {
    if format == Format::Toml {
        return edit_toml::settings(text);
    }
    match parse(text)?.to_serde_value() {
        Some(Value::Object(settings)) => Ok(settings),
        _ => Err(Unreadable::NoObject),
    }
}

/// The name and the entry of a server.
pub(super) type NamedServer = (String, Map<String, Value>);

/// Takes the servers out of these settings.
pub(super) fn servers(settings: &mut Map<String, Value>, table: &str) -> Result<Vec<NamedServer>, Unreadable> {
    let servers = match settings.remove(table) {
        None => return Ok(Vec::new()),
        Some(Value::Object(servers)) => servers,
        Some(_) => return Err(Unreadable::NoTable(table.to_owned())),
    };
    let entry = |(name, server)| match server {
        Value::Object(entry) => Some((name, entry)),
        _ => None,
    };
    Ok(servers.into_iter().filter_map(entry).collect())
}

fn parse(text: &str) -> Result<CstRootNode, Unreadable> {
    // Some editors put a byte order mark first.
    let text = text.trim_start_matches('\u{feff}');
    let text = if text.trim().is_empty() { "{}\n" } else { text };
    let options = ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        ..ParseOptions::default()
    };
    CstRootNode::parse(text, &options).map_err(|error| Unreadable::Json(error.to_string()))
}

/// Returns the object that holds the servers, if there is one.
fn table(root: &CstRootNode, name: &str) -> Result<Option<CstObject>, Unreadable> {
    let object = root.object_value().ok_or(Unreadable::NoObject)?;
    match object.get(name) {
        None => Ok(None),
        Some(member) => member
            .object_value()
            .map(Some)
            .ok_or_else(|| Unreadable::NoTable(name.to_owned())),
    }
}

fn input(value: Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(value) => CstInputValue::Bool(value),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text),
        Value::Array(items) => CstInputValue::Array(items.into_iter().map(input).collect()),
        Value::Object(members) => {
            CstInputValue::Object(members.into_iter().map(|(name, value)| (name, input(value))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry() -> Entry {
        Entry {
            table: "mcpServers",
            format: Format::Json,
            name: "sandcell".to_owned(),
            says: None,
            program: "/usr/bin/sandcell".to_owned(),
            arguments: vec!["serve".to_owned()],
        }
    }

    #[test]
    fn an_absent_or_empty_file_becomes_one_entry() {
        for text in ["", "  \n", "{}", "\u{feff}{}"] {
            let text = entry().put_into(text).unwrap();
            let json: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(
                json,
                serde_json::json!({"mcpServers": {"sandcell": {"command": "/usr/bin/sandcell", "args": ["serve"]}}})
            );
            assert!(
                text.ends_with("}\n") && text.contains("\n  \"mcpServers\": {\n"),
                "{text}"
            );
        }
    }

    const USED_SETTINGS: &str = "{\n\t// my servers\n\t\"mcpServers\": {\n\t\t\"other\": { \"command\": \"x\" }, // keep\n\t},\n\t\"theme\": \"dark\", /* and this */\n}\n";

    #[test]
    fn comments_other_servers_and_spacing_stay() {
        let text = entry().put_into(USED_SETTINGS).unwrap();
        for kept in [
            "\t// my servers\n",
            "\t\t\"other\": { \"command\": \"x\" }, // keep\n",
            "\t\"theme\": \"dark\", /* and this */\n}\n",
            "\t\t\"sandcell\": {\n\t\t\t\"command\"",
        ] {
            assert!(text.contains(kept), "{kept:?} in\n{text}");
        }
        assert_eq!(entry().put_into(&text).unwrap(), text, "a second time changes nothing");
    }

    #[test]
    fn an_entry_of_the_same_name_is_replaced_and_restored() {
        let former = "{\"mcpServers\": {\"sandcell\": {\"command\": \"old\", \"env\": {\"A\": \"1\"}}, \"z\": {}}}";
        let now = entry().put_into(former).unwrap();
        assert!(!now.contains("old") && now.contains("/usr/bin/sandcell"), "{now}");
        assert!(entry().differs_only_by_entry(former, &now));
        let changed = now.replace("\"z\"", "\"y\"");
        assert!(!entry().differs_only_by_entry(former, &changed));
        let back = entry().take_out_of(&changed, Some(former)).unwrap().unwrap();
        let json: Value = serde_json::from_str(&back).unwrap();
        assert_eq!(json["mcpServers"]["sandcell"]["env"]["A"], "1");
        assert!(json["mcpServers"]["y"].is_object());
    }

    #[test]
    fn a_file_that_is_not_client_configuration_is_refused() {
        for (text, error) in [
            ("[1, 2]", Unreadable::NoObject),
            ("\"text\"", Unreadable::NoObject),
            ("{\"mcpServers\": []}", Unreadable::NoTable("mcpServers".to_owned())),
        ] {
            assert_eq!(entry().put_into(text).unwrap_err(), error, "{text}");
        }
        for text in [
            "{",
            "{\"a\": }",
            "{a: 1}",
            "{'a': 1}",
            "hello",
            "{} {}",
            "{\"a\": 1 \"b\": 2}",
        ] {
            assert!(
                matches!(entry().put_into(text), Err(Unreadable::Json(_))),
                "{text}: {:?}",
                entry().put_into(text)
            );
        }
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            ".{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map("[a-z\\\\\"é]{0,5}", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn other_content_of_the_file_keeps_its_meaning(
            other in prop::collection::hash_map("[a-z]{1,5}", json(), 0..4),
            servers in prop::option::of(prop::collection::hash_map("[a-z]{1,5}", json(), 0..4)),
            pretty: bool,
        ) {
            let mut object: serde_json::Map<String, Value> = other.into_iter().collect();
            if let Some(servers) = servers {
                object.insert("mcpServers".to_owned(), Value::Object(servers.into_iter().collect()));
            }
            let value = Value::Object(object);
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
            let now = entry().put_into(&text).unwrap();
            let mut wanted = value.clone();
            wanted["mcpServers"]["sandcell"] = entry().json();
            prop_assert_eq!(serde_json::from_str::<Value>(&now).unwrap(), wanted);
            prop_assert!(entry().differs_only_by_entry(&text, &now));
            let without = entry().take_out_of(&now, Some(&text)).unwrap().unwrap();
            let mut without: Value = serde_json::from_str(&without).unwrap();
            let mut value = value;
            for one in [&mut without, &mut value] {
                let object = one.as_object_mut().unwrap();
                if object.get("mcpServers").is_some_and(|servers| servers.as_object().is_some_and(serde_json::Map::is_empty)) {
                    object.remove("mcpServers");
                }
            }
            prop_assert_eq!(without, value);
        }
    }
}
