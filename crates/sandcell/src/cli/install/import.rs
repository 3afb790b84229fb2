//! `sandcell install CLIENT --tools`: makes the client's other MCP servers callable by code in sandboxes. Each becomes a
//! table `[tools.NAME]` of sandcell's own settings. The client keeps its entries.
//!
//! A server whose entry has no exact counterpart is left out with the reason: a table with half of the meaning could
//! reach more than the client did. No rule is copied but denials, so each call needs approval until the operator allows
//! the tool.

use std::path::Path;

use sandcell_host_tools::{read_servers, valid_server_name};
use sandcell_sandbox::Failure;
use serde_json::{Map, Value};
use toml::Table;

use super::client::{Client, Home};
use super::edit;
use crate::cli::config;

/// The servers of a client, as tables of sandcell's settings.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Imported {
    /// The tables by name.
    pub(super) tables: Vec<(String, Table)>,
    /// The servers that were left out, each with the reason.
    pub(super) left_out: Vec<(String, String)>,
}

/// Reads the servers in a client's settings. Leaves out sandcell itself.
pub(super) fn read(client: Client, text: &str, own_name: &str) -> Result<Imported, edit::Unreadable> {
    let mut imported = Imported::default();
    for (original, server) in edit::servers(text, client.table(), client.format())? {
        let program = server.get("command").and_then(Value::as_str).unwrap_or_default();
        if original == own_name || super::configured::is_sandcell(program) {
            continue;
        }
        let name = valid_server_name(&original);
        let taken = imported.tables.iter().any(|(other, _)| *other == name);
        let table = if taken {
            Err(format!("another server is named {name} already"))
        } else {
            convert(client, &server).and_then(|table| usable(&name, table))
        };
        match table {
            Ok(table) => imported.tables.push((name, table)),
            Err(reason) => imported.left_out.push((original, reason)),
        }
    }
    Ok(imported)
}

impl Imported {
    /// Writes the tables into sandcell's settings and reports the result. With `print`, only prints them.
    pub(super) fn finish(mut self, client: Client, config: Option<&Path>, print: bool) -> Result<(), Failure> {
        let path = config::target(config.map(Path::to_owned))?;
        let text = crate::config::read_if_there(&path)?.unwrap_or_default();
        let added = crate::config::edit::add_tools(&path, &text, &self.tables)?;
        let differs = |name: &String| added.different.contains(name);
        self.left_out.extend(
            self.tables
                .iter()
                .filter(|(name, _)| differs(name))
                .map(|(name, _)| (name.clone(), format!("{} has another [tools.{name}]", path.display()))),
        );
        self.tables.retain(|(name, _)| !added.different.contains(name));
        if print {
            super::eprintln_path("would add these tools to", &path);
            crate::cli::printed(crate::cli::output::text(&added.new).map(|()| std::process::ExitCode::SUCCESS))?;
        } else if added.text != text {
            config::write(&path, &added.text)?;
        }
        self.report(client, &path);
        Ok(())
    }

    fn report(&self, client: Client, path: &Path) {
        let names: Vec<&str> = self.tables.iter().map(|(name, _)| name.as_str()).collect();
        for (name, reason) in &self.left_out {
            let name: String = name.chars().take(80).flat_map(char::escape_debug).collect();
            super::say(&format!("The server {name} was left out: {reason}."));
        }
        if names.is_empty() {
            super::say(&format!(
                "{} names no server whose tools code can call.",
                client.title()
            ));
            return;
        }
        super::say(&format!(
            "Code in sandboxes can call the tools of {} ([tools] in {}). Each call needs your approval; name tools that \
             need none in `allow`. `sandcell tools list` shows all.",
            names.join(", "),
            path.display()
        ));
        let has_secrets = |(_, table): &(String, Table)| table.contains_key("env") || table.contains_key("headers");
        if self.tables.iter().any(has_secrets) && is_readable_by_others(path) {
            super::say(&format!(
                "{} now holds the servers' credentials, and other users can read it: chmod 600 it.",
                path.display()
            ));
        }
    }
}

#[cfg(unix)]
fn is_readable_by_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata()
        .is_ok_and(|found| found.permissions().mode() & 0o077 != 0)
}

#[cfg(not(unix))]
const fn is_readable_by_others(_path: &Path) -> bool {
    false
}

/// Checks a table as the settings check it.
fn usable(name: &str, table: Table) -> Result<Table, String> {
    let mut all = Table::new();
    all.insert(name.to_owned(), toml::Value::Table(table.clone()));
    read_servers(&all).map(|_| table).map_err(|error| error.reason)
}

/// Returns a server's entry as a table of sandcell's settings, or the reason why it has no counterpart.
fn convert(client: Client, server: &Map<String, Value>) -> Result<Table, String> {
    let is = |key: &str, value: bool| server.get(key) == Some(&Value::Bool(value));
    if is("disabled", true) || is("enabled", false) {
        return Err("the client has switched it off".to_owned());
    }
    const WITHOUT_COUNTERPART: [&str; 6] = [
        "envFile",
        "includeTools",
        "enabled_tools",
        "oauth",
        "authProviderType",
        "sandboxed",
    ];
    if let Some(key) = WITHOUT_COUNTERPART.iter().find(|key| server.contains_key(**key)) {
        return Err(format!("its setting {key} has no counterpart; write the table by hand"));
    }
    let mut table = match way_of(client, server)? {
        Way::Program(entry) => program(client, entry)?,
        Way::Address(url) => address(client, server, url)?,
    };
    for key in ["disabled_tools", "disabledTools", "excludeTools"] {
        if let Some(names) = server.get(key) {
            table.insert("deny".to_owned(), texts(key, names)?);
        }
    }
    Ok(table)
}

/// The way to a server.
enum Way<'a> {
    /// An entry with `command`.
    Program(&'a Map<String, Value>),
    Address(&'a str),
}

fn way_of<'a>(client: Client, server: &'a Map<String, Value>) -> Result<Way<'a>, String> {
    let text = |key: &str| server.get(key).and_then(Value::as_str);
    let transport = text("type").or_else(|| text("transport")).unwrap_or_default();
    match server.get("command") {
        Some(Value::String(_)) => return Ok(Way::Program(server)),
        // Zed until 2025.
        Some(Value::Object(inner)) => return Ok(Way::Program(inner)),
        Some(_) | None => {}
    }
    let older = "it speaks HTTP with server-sent events of 2024, which sandcell does not";
    if let Some(url) = text("httpUrl").or_else(|| text("serverUrl")) {
        return Ok(Way::Address(url));
    }
    match text("url") {
        Some(_) if transport == "sse" => Err(older.to_owned()),
        Some(_) if client == Client::Gemini && transport.is_empty() => Err(older.to_owned()),
        Some(url) => Ok(Way::Address(url)),
        None => Err("it has neither a program nor an address".to_owned()),
    }
}

fn program(client: Client, entry: &Map<String, Value>) -> Result<Table, String> {
    let mut table = Table::new();
    let name = entry.get("command").or_else(|| entry.get("path"));
    let name = name.and_then(Value::as_str).ok_or("its program is no text")?;
    table.insert("command".to_owned(), resolved("command", name)?.into());
    if let Some(args) = entry.get("args") {
        table.insert("args".to_owned(), texts("args", args)?);
    }
    if let Some(folder) = entry.get("cwd").filter(|folder| !folder.is_null()) {
        let folder = folder.as_str().ok_or("cwd is no text")?;
        table.insert("cwd".to_owned(), resolved("cwd", folder)?.into());
    }
    let mut env = secrets(client, "env", entry.get("env"))?;
    // Codex: variables that its own environment passes on.
    for name in entry.get("env_vars").and_then(Value::as_array).into_iter().flatten() {
        let name = name.as_str().ok_or("env_vars is no list of texts")?;
        env.insert(name.to_owned(), format!("${{{name}}}").into());
    }
    if !env.is_empty() {
        table.insert("env".to_owned(), env.into());
    }
    Ok(table)
}

fn address(client: Client, server: &Map<String, Value>, url: &str) -> Result<Table, String> {
    let mut table = Table::new();
    table.insert("url".to_owned(), resolved("url", url)?.into());
    let mut headers = secrets(client, "headers", server.get("headers"))?;
    // Codex.
    headers.extend(secrets(client, "http_headers", server.get("http_headers"))?);
    for (header, name) in secrets(client, "env_http_headers", server.get("env_http_headers"))? {
        headers.insert(header, format!("${{{}}}", name.as_str().unwrap_or_default()).into());
    }
    if let Some(name) = server.get("bearer_token_env_var").and_then(Value::as_str) {
        headers.insert("Authorization".to_owned(), format!("Bearer ${{{name}}}").into());
    }
    if !headers.is_empty() {
        table.insert("headers".to_owned(), headers.into());
    }
    Ok(table)
}

fn texts(key: &str, value: &Value) -> Result<toml::Value, String> {
    let refuse = || format!("{key} is no list of texts");
    let items = value.as_array().ok_or_else(refuse)?.iter();
    let items = items.map(|item| resolved(key, item.as_str().ok_or_else(refuse)?).map(toml::Value::String));
    items.collect::<Result<Vec<_>, _>>().map(toml::Value::Array)
}

/// Returns a text in which the home folder is written out. Other references stand for values of the client.
fn resolved(key: &str, text: &str) -> Result<String, String> {
    let home = Home::of_this_process().folder;
    let home = home.as_deref().and_then(Path::to_str);
    let text = match home {
        Some(home) => text.replace("${userHome}", home),
        None => text.to_owned(),
    };
    match text.contains("${") {
        true => Err(format!(
            "{key} has a reference that only the client knows ({})",
            reference_in(&text)
        )),
        false => Ok(text),
    }
}

/// Returns a table of texts. References to variables are written as sandcell writes them: `${NAME}`.
fn secrets(client: Client, key: &str, value: Option<&Value>) -> Result<Table, String> {
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return Ok(Table::new());
    };
    let members = value.as_object().ok_or_else(|| format!("{key} is no table"))?;
    let mut table = Table::new();
    for (name, value) in members {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            Value::Bool(flag) => flag.to_string(),
            Value::Null | Value::Array(_) | Value::Object(_) => return Err(format!("{key}.{name} is no text")),
        };
        let text = text.replace("${env:", "${");
        // Gemini reads `$NAME`, too.
        let text = if client == Client::Gemini {
            with_braces(&text)
        } else {
            text
        };
        let mut rest = text.as_str();
        while let Some((_, after)) = rest.split_once("${") {
            let reference = after.split_once('}').map(|(name, _)| name).unwrap_or_default();
            if !is_variable(reference) {
                return Err(format!(
                    "{key}.{name} has a reference that only the client knows ({})",
                    reference_in(rest)
                ));
            }
            rest = after;
        }
        table.insert(name.clone(), text.into());
    }
    Ok(table)
}

/// Returns the first reference in a text, for people.
fn reference_in(text: &str) -> String {
    let from = text.find("${").and_then(|at| text.get(at..)).unwrap_or_default();
    let whole = from.split_inclusive('}').next().unwrap_or(from);
    whole.chars().take(60).flat_map(char::escape_debug).collect()
}

fn is_variable(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && name.chars().all(plain) && !name.starts_with(|c: char| c.is_ascii_digit())
}

/// Writes `$NAME` as `${NAME}`.
fn with_braces(text: &str) -> String {
    let mut parts = text.split('$');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .unwrap_or(part.len());
        let (name, rest) = part.split_at(end);
        if is_variable(name) {
            out.push_str(&format!("${{{name}}}{rest}"));
        } else {
            out.push_str(&format!("${part}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(client: Client, servers: Value) -> Imported {
        let text = serde_json::json!({client.table(): servers}).to_string();
        read(client, &text, "sandcell").unwrap()
    }

    fn only_table(imported: &Imported) -> String {
        assert_eq!(imported.left_out, []);
        toml::to_string(&imported.tables[0].1).unwrap()
    }

    #[test]
    fn a_program_keeps_its_arguments_and_variables() {
        let imported = of(
            Client::Cursor,
            serde_json::json!({
                "GitHub MCP": {"command": "npx", "args": ["-y", "server"], "env": {"TOKEN": "t", "HOME2": "${env:HOME}"}},
                "sandcell": {"command": "x"},
                "other": {"command": "/opt/sandcell", "args": ["serve"]},
            }),
        );
        assert_eq!(imported.tables[0].0, "github_mcp");
        assert_eq!(imported.tables.len(), 1);
        assert_eq!(
            only_table(&imported),
            "args = [\"-y\", \"server\"]\ncommand = \"npx\"\n\n[env]\nHOME2 = \"${HOME}\"\nTOKEN = \"t\"\n"
        );
    }

    #[test]
    fn each_client_has_its_own_words_for_addresses() {
        for (client, server, expected) in [
            (
                Client::Windsurf,
                serde_json::json!({"serverUrl": "https://a.example/mcp", "headers": {"X": "1"}}),
                "url = \"https://a.example/mcp\"\n\n[headers]\nX = \"1\"\n",
            ),
            (
                Client::Gemini,
                serde_json::json!({"httpUrl": "https://a.example/mcp", "headers": {"X": "Bearer $HOME"}, "excludeTools": ["rm"]}),
                "deny = [\"rm\"]\nurl = \"https://a.example/mcp\"\n\n[headers]\nX = \"Bearer ${HOME}\"\n",
            ),
            (
                Client::Vscode,
                serde_json::json!({"type": "http", "url": "https://a.example/mcp"}),
                "url = \"https://a.example/mcp\"\n",
            ),
            (
                Client::Zed,
                serde_json::json!({"command": {"path": "srv", "args": ["a"], "env": null}}),
                "args = [\"a\"]\ncommand = \"srv\"\n",
            ),
        ] {
            assert_eq!(only_table(&of(client, serde_json::json!({"x": server}))), expected);
        }
        let codex = "[mcp_servers.x]\nurl = \"https://a.example/mcp\"\nbearer_token_env_var = \"HOME\"\n\
                     [mcp_servers.y]\ncommand = \"y\"\nenv_vars = [\"PATH\"]\ndisabled_tools = [\"a\"]\n";
        let imported = read(Client::Codex, codex, "sandcell").unwrap();
        assert_eq!(
            only_table(&imported),
            "url = \"https://a.example/mcp\"\n\n[headers]\nAuthorization = \"Bearer ${HOME}\"\n"
        );
        assert_eq!(
            toml::to_string(&imported.tables[1].1).unwrap(),
            "command = \"y\"\ndeny = [\"a\"]\n\n[env]\nPATH = \"${PATH}\"\n"
        );
    }

    #[test]
    fn a_server_without_an_exact_counterpart_is_left_out_with_the_reason() {
        for (client, server, reason) in [
            (
                Client::Cline,
                serde_json::json!({"command": "x", "disabled": true}),
                "switched it off",
            ),
            (
                Client::Codex,
                serde_json::json!({"command": "x", "enabled": false}),
                "switched it off",
            ),
            (
                Client::Vscode,
                serde_json::json!({"command": "x", "env": {"KEY": "${input:key}"}}),
                "env.KEY has a reference that only the client knows (${input:key})",
            ),
            (
                Client::Cursor,
                serde_json::json!({"command": "x", "args": ["${workspaceFolder}/a"]}),
                "${workspaceFolder}",
            ),
            (
                Client::ClaudeCode,
                serde_json::json!({"type": "sse", "url": "https://a.example/sse"}),
                "server-sent events",
            ),
            (
                Client::ClaudeCode,
                serde_json::json!({"command": "x", "env": {"A": "${NO_SUCH_VARIABLE_HERE}"}}),
                "is not set",
            ),
            (
                Client::ClaudeCode,
                serde_json::json!({"command": "x", "env": {"A": "${HOME:-y}"}}),
                "${HOME:-y}",
            ),
            (
                Client::Gemini,
                serde_json::json!({"url": "https://a.example/sse"}),
                "server-sent events",
            ),
            (
                Client::Gemini,
                serde_json::json!({"command": "x", "includeTools": ["a"]}),
                "includeTools",
            ),
            (
                Client::Vscode,
                serde_json::json!({"command": "x", "envFile": ".env"}),
                "envFile",
            ),
            (Client::Cursor, serde_json::json!({"command": ["x"]}), "neither"),
            (
                Client::Cursor,
                serde_json::json!({"command": "x", "args": "y"}),
                "args is no list",
            ),
            (Client::Cursor, serde_json::json!({"url": "file:///etc/passwd"}), "http"),
        ] {
            let text = if client == Client::Codex {
                "[mcp_servers.one]\ncommand = \"x\"\nenabled = false\n".to_owned()
            } else {
                serde_json::json!({client.table(): {"one": server}}).to_string()
            };
            let imported = read(client, &text, "sandcell").unwrap();
            assert_eq!(imported.tables, [], "{server}");
            assert!(imported.left_out[0].1.contains(reason), "{:?}", imported.left_out);
        }
    }

    #[test]
    fn names_are_made_valid_and_two_of_one_name_do_not_mix() {
        let imported = of(
            Client::Cursor,
            serde_json::json!({"Search": {"command": "a"}, "My.Server": {"command": "b"}, "my-server": {"command": "c"}, "9": {"command": "d"}}),
        );
        let names: Vec<&str> = imported.tables.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["server_9", "my_server", "search_server"]);
        assert_eq!(imported.left_out[0].0, "my-server");
    }
}
