//! The same as for JSON, for clients that keep their settings in TOML.

use toml_edit::{Array, DocumentMut, Item, Table, TableLike, Value};

use super::edit::{Entry, Unreadable};

/// Returns the text with this entry, and everything else unchanged.
pub(super) fn put_into(entry: &Entry, text: &str) -> Result<String, Unreadable> {
    let mut document = parse(text)?;
    let root = document.as_table_mut();
    let servers = root.entry(entry.table).or_insert_with(|| {
        let mut table = Table::new();
        // Only `[mcp_servers.NAME]` is written.
        table.set_implicit(true);
        Item::Table(table)
    });
    let servers = as_table(servers, entry.table)?;
    if servers.get(&entry.name).is_some_and(|old| is_same(entry, old)) {
        return Ok(document.to_string());
    }
    match servers.get_mut(&entry.name).and_then(Item::as_table_like_mut) {
        Some(old) => {
            // The table keeps its place and the comments before it.
            old.clear();
            fill(entry, old);
        }
        None => {
            let mut table = Table::new();
            fill(entry, &mut table);
            drop(servers.insert(&entry.name, Item::Table(table)));
        }
    }
    let mut text = document.to_string();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// Returns the text with this name's entry as in `former`, or without it; none if there is no entry.
pub(super) fn take_out_of(entry: &Entry, text: &str, former: Option<&str>) -> Result<Option<String>, Unreadable> {
    let mut document = parse(text)?;
    let replaced = former.and_then(|former| {
        let former = parse(former).ok()?;
        former.get(entry.table)?.as_table_like()?.get(&entry.name).cloned()
    });
    let Some(servers) = document.get_mut(entry.table) else {
        return Ok(None);
    };
    let servers = as_table(servers, entry.table)?;
    if !servers.contains_key(&entry.name) {
        return Ok(None);
    }
    match replaced {
        Some(item) => drop(servers.insert(&entry.name, item)),
        None => drop(servers.remove(&entry.name)),
    }
    Ok(Some(document.to_string()))
}

/// Returns true if both texts are equal without this name.
pub(super) fn differs_only_by_entry(entry: &Entry, former: &str, now: &str) -> bool {
    let without = |text: &str| {
        let mut document = parse(text).ok()?;
        if let Some(servers) = document.get_mut(entry.table).and_then(Item::as_table_like_mut) {
            drop(servers.remove(&entry.name));
        }
        Some(document.to_string().trim_end().to_owned())
    };
    let (former, now) = (without(former), without(now));
    former.is_some() && former == now
}

/// Returns these settings as JSON.
pub(super) fn settings(text: &str) -> Result<serde_json::Map<String, serde_json::Value>, Unreadable> {
    toml::from_str(text.trim_start_matches('\u{feff}')).map_err(|error| Unreadable::Toml(error.message().to_owned()))
}

fn parse(text: &str) -> Result<DocumentMut, Unreadable> {
    let text = text.trim_start_matches('\u{feff}');
    text.parse()
        .map_err(|error: toml_edit::TomlError| Unreadable::Toml(error.message().to_owned()))
}

fn as_table<'a>(item: &'a mut Item, name: &str) -> Result<&'a mut dyn TableLike, Unreadable> {
    item.as_table_like_mut()
        .ok_or_else(|| Unreadable::NoTable(name.to_owned()))
}

fn fill(entry: &Entry, table: &mut dyn TableLike) {
    let arguments: Array = entry.arguments.iter().map(String::as_str).collect();
    table.insert("command", Item::Value(entry.program.as_str().into()));
    table.insert("args", Item::Value(Value::Array(arguments)));
}

fn is_same(entry: &Entry, old: &Item) -> bool {
    let Some(old) = old.as_table_like() else { return false };
    let arguments = old.get("args").and_then(Item::as_array).map(|items| {
        let texts = items.iter().map(|item| item.as_str().unwrap_or_default());
        texts.map(str::to_owned).collect::<Vec<_>>()
    });
    let program = old.get("command").and_then(Item::as_str);
    old.len() == 2 && program == Some(entry.program.as_str()) && arguments.as_ref() == Some(&entry.arguments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::install::edit::Format;

    fn entry() -> Entry {
        Entry {
            table: "mcp_servers",
            format: Format::Toml,
            name: "sandcell".to_owned(),
            says: None,
            program: "/usr/bin/sandcell".to_owned(),
            arguments: vec!["serve".to_owned()],
        }
    }

    const OWN_ENTRY: &str = "[mcp_servers.sandcell]\ncommand = \"/usr/bin/sandcell\"\nargs = [\"serve\"]\n";
    const USED_SETTINGS: &str =
        "# mine\nmodel = \"x\" # good\n\n[mcp_servers.other]\ncommand = \"y\"\n\n[tui]\n# dark\ntheme = \"d\"\n";

    #[test]
    fn an_empty_file_becomes_one_entry_and_empty_again() {
        for text in ["", "\n", "\u{feff}"] {
            let now = entry().put_into(text).unwrap();
            assert_eq!(now.trim(), OWN_ENTRY.trim());
            assert!(entry().differs_only_by_entry("", &now));
            assert_eq!(entry().take_out_of(&now, None).unwrap().unwrap().trim(), "");
        }
    }

    #[test]
    fn comments_and_other_servers_stay() {
        let now = entry().put_into(USED_SETTINGS).unwrap();
        for kept in [
            "# mine\nmodel = \"x\" # good\n",
            "[mcp_servers.other]\ncommand = \"y\"\n",
            "# dark\ntheme",
        ] {
            assert!(now.contains(kept), "{kept:?} in\n{now}");
        }
        assert!(now.contains(OWN_ENTRY), "{now}");
        let parsed: toml::Table = now.parse().unwrap();
        assert_eq!(parsed["mcp_servers"]["sandcell"]["args"][0].as_str(), Some("serve"));
        assert_eq!(entry().put_into(&now).unwrap(), now, "a second time changes nothing");
        assert!(entry().differs_only_by_entry(USED_SETTINGS, &now));
        assert_eq!(
            entry().take_out_of(&now, Some(USED_SETTINGS)).unwrap().unwrap(),
            USED_SETTINGS
        );
        assert!(!entry().differs_only_by_entry(USED_SETTINGS, &now.replace("\"d\"", "\"e\"")));
    }

    #[test]
    fn an_entry_of_the_same_name_is_replaced_and_restored() {
        let former = "[mcp_servers.sandcell]\ncommand = \"old\"\nenv = { A = \"1\" }\n\n[z]\na = 1\n";
        let now = entry().put_into(former).unwrap();
        assert!(!now.contains("old") && now.contains("/usr/bin/sandcell"), "{now}");
        assert!(entry().differs_only_by_entry(former, &now));
        let back = entry()
            .take_out_of(&now.replace("a = 1", "a = 2"), Some(former))
            .unwrap()
            .unwrap();
        let parsed: toml::Table = back.parse().unwrap();
        assert_eq!(parsed["mcp_servers"]["sandcell"]["env"]["A"].as_str(), Some("1"));
        assert_eq!(parsed["z"]["a"].as_integer(), Some(2));
    }

    #[test]
    fn servers_in_an_inline_table_are_found_and_invalid_toml_is_refused() {
        let inline = "mcp_servers = { sandcell = { command = \"old\" } }\n";
        let now = entry().put_into(inline).unwrap();
        let parsed: toml::Table = now.parse().unwrap();
        assert_eq!(
            parsed["mcp_servers"]["sandcell"]["command"].as_str(),
            Some("/usr/bin/sandcell")
        );
        assert!(matches!(entry().put_into("a = "), Err(Unreadable::Toml(_))));
        let error = entry().put_into("mcp_servers = 1").unwrap_err();
        assert_eq!(error, Unreadable::NoTable("mcp_servers".to_owned()));
        assert_eq!(
            crate::cli::install::edit::programs(&now, "mcp_servers", Format::Toml).unwrap(),
            [("sandcell".to_owned(), "/usr/bin/sandcell".to_owned())]
        );
    }
}
