//! `sandcell install CLIENT --tools`: makes the client's other MCP servers callable by code in sandboxes. Each becomes a
//! table `[tools.NAME]` of sandcell's own settings. The client keeps its entries.
//!
//! The import leaves out a server whose entry cannot be translated exactly, and reports the reason. A table with a part of
//! the entry could allow more than the client allowed. Only denials are copied, so each call needs approval until the operator allows the
//! tool.

use std::path::{Path, PathBuf};

use sandcell_host_tools::{read_servers, valid_server_name};
use sandcell_sandbox::Failure;
use serde_json::{Map, Value};
use toml::Table;

use super::client::{Client, Home};
use super::edit;
use crate::cli::{config, output};
use crate::config::edit::AddedTools;

/// The maximum number of servers that one import takes: as many as the settings can have.
const MAX_SERVERS: usize = 32;

/// The keys that an entry may have. The import translates them, or they change neither the server nor its rights. The
/// import leaves out an entry with another key, because that key could be a restriction.
const KNOWN_KEYS: [&str; 37] = [
    "alwaysAllow",
    "args",
    "autoApprove",
    "bearer_token_env_var",
    "command",
    "cwd",
    "description",
    "dev",
    "disabled",
    "disabledTools",
    "disabled_tools",
    "enabled",
    "env",
    "env_http_headers",
    "env_vars",
    "excludeTools",
    "gallery",
    "headers",
    "httpUrl",
    "http_headers",
    "icon",
    "id",
    "name",
    "serverUrl",
    "source",
    "startup_timeout_ms",
    "startup_timeout_sec",
    "timeout",
    "title",
    "tool_timeout_sec",
    "transport",
    "transportType",
    "trust",
    "type",
    "url",
    "version",
    "displayName",
];

/// The keys of the object `command` in old entries of Zed.
const INNER_KEYS: [&str; 3] = ["args", "env", "path"];

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
    let mut settings = edit::settings(text, client.format())?;
    let servers = edit::servers(&mut settings, client.table())?;
    let is_off = switched_off(client, &settings);
    for (original, server) in servers {
        if original == own_name || starts_sandcell(&server) {
            continue;
        }
        let table = if is_off(&original) {
            Err("the client has switched it off".to_owned())
        } else if imported.tables.len() == MAX_SERVERS {
            Err(format!("sandcell takes at most {MAX_SERVERS} servers"))
        } else {
            convert(client, &server)
        };
        let name = free_name(&original, &imported.tables);
        match table.and_then(|table| usable(&name, table)) {
            Ok(table) => imported.tables.push((name, table)),
            Err(reason) => imported.left_out.push((original, reason)),
        }
    }
    Ok(imported)
}

/// Returns a function that tells if a list in the client's settings disables a server. Only Gemini has such lists.
fn switched_off(client: Client, settings: &Map<String, Value>) -> impl Fn(&str) -> bool {
    let lists = settings.get("mcp").filter(|_| client == Client::Gemini);
    move |name| {
        let list = |key: &str| lists.and_then(|lists| lists.get(key)?.as_array());
        let has = |names: &Vec<Value>| names.iter().any(|one| one == name);
        list("excluded").is_some_and(has) || list("allowed").is_some_and(|names| !has(names))
    }
}

/// Returns true for an entry that starts this program, also through another one such as `uvx`.
fn starts_sandcell(server: &Map<String, Value>) -> bool {
    let program = server.get("command").and_then(Value::as_str);
    let arguments = server.get("args").and_then(Value::as_array).into_iter().flatten();
    let mut words = program.into_iter().chain(arguments.filter_map(Value::as_str));
    words.any(|word| super::configured::is_sandcell(&word.replace('\\', "/")))
}

/// Returns a valid name that no table has yet.
fn free_name(original: &str, tables: &[(String, Table)]) -> String {
    let name = valid_server_name(original);
    let is_free = |name: &String| !tables.iter().any(|(other, _)| other == name);
    let numbered = (2..).map(|number| format!("{}_{number}", name.get(..36).unwrap_or(&name)));
    let mut names = std::iter::once(name.clone()).chain(numbered);
    // There are more numbers than tables.
    names.find(is_free).unwrap_or_default()
}

/// A checked import, before anything is written.
pub(super) struct Prepared {
    imported: Imported,
    path: PathBuf,
    before: String,
    added: AddedTools,
}

impl Imported {
    /// Makes sandcell's new settings and checks them. Writes nothing.
    pub(super) fn prepare(mut self, config: Option<&Path>) -> Result<Prepared, Failure> {
        let path = config::target(config.map(Path::to_owned))?;
        let before = crate::config::read_if_there(&path)?.unwrap_or_default();
        let added = crate::config::edit::add_tools(&path, &before, &self.tables)?;
        let differs = |name: &String| added.different.contains(name);
        for (name, _) in self.tables.extract_if(.., |(name, _)| differs(name)) {
            let reason = format!("[tools.{name}] is already in {} and differs; it stays", path.display());
            self.left_out.push((name, reason));
        }
        Ok(Prepared {
            imported: self,
            path,
            before,
            added,
        })
    }
}

impl Prepared {
    /// Prints the new tables, and changes nothing.
    pub(super) fn print(&self) -> Result<(), Failure> {
        self.report_left_out();
        super::eprintln_path("would add these tables to", &self.path);
        crate::cli::printed(output::text(&self.added.new).map(|()| std::process::ExitCode::SUCCESS))?;
        Ok(())
    }

    /// Writes the tables into sandcell's settings and reports the result.
    pub(super) fn write(&self) -> Result<(), Failure> {
        if self.added.text != self.before {
            config::write(&self.path, &self.added.text)?;
        }
        self.report_left_out();
        let path = self.path.display();
        let names: Vec<&str> = self.imported.tables.iter().map(|(name, _)| name.as_str()).collect();
        if names.is_empty() {
            super::say("No server of tools was added.");
            return Ok(());
        }
        super::say(&format!(
            "Code in sandboxes can call the tools of {} ([tools] in {path}). Each call needs your approval; name tools that \
             need none in `allow`. `sandcell tools list` shows all.",
            names.join(", "),
        ));
        if is_readable_by_others(&self.path) {
            super::say(&format!(
                "{path} can hold credentials of these servers, and other users can read it. To change that: chmod 600 {path}"
            ));
        }
        Ok(())
    }

    fn report_left_out(&self) {
        for (name, reason) in &self.imported.left_out {
            let name: String = name.chars().take(80).collect();
            let line = format!("The server {name} was left out: {reason}.").replace(['\n', '\t'], " ");
            super::say(&output::safe(&line));
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

/// Translates a server's entry to a table of sandcell's settings. Returns the reason if that is impossible.
fn convert(client: Client, server: &Map<String, Value>) -> Result<Table, String> {
    let is_not = |key: &str, value: bool| server.get(key).is_some_and(|found| found != &Value::Bool(value));
    if is_not("disabled", false) || is_not("enabled", true) {
        return Err("the client has switched it off".to_owned());
    }
    // Zed before 2025 kept the program's keys in the object `command`.
    let inner = server.get("command").and_then(Value::as_object);
    let inner = inner.into_iter().flat_map(Map::keys);
    let unknown = server.keys().find(|key| !KNOWN_KEYS.contains(&key.as_str()));
    if let Some(key) = unknown.or_else(|| inner.into_iter().find(|key| !INNER_KEYS.contains(&key.as_str()))) {
        let key: String = key.chars().take(40).collect();
        return Err(format!(
            "its setting {key:?} has no counterpart here; write the table by hand"
        ));
    }
    let mut table = match way_of(client, server)? {
        Way::Program(entry) => program(client, entry)?,
        Way::Address(url) => address(client, server, url)?,
    };
    let mut denied = Vec::new();
    for key in ["disabled_tools", "disabledTools", "excludeTools"] {
        if let Some(names) = server.get(key) {
            denied.extend(texts(client, key, names)?);
        }
    }
    if !denied.is_empty() {
        table.insert("deny".to_owned(), denied.into());
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
    let transport = ["type", "transport", "transportType"].into_iter().find_map(text);
    let addresses: Vec<&str> = ["httpUrl", "serverUrl", "url"]
        .into_iter()
        .filter(|key| server.contains_key(*key))
        .collect();
    let older = || "it speaks HTTP with server-sent events of 2024, which sandcell does not".to_owned();
    match (server.get("command"), addresses.as_slice()) {
        (Some(_), [_, ..]) => Err("it has a program and an address".to_owned()),
        (Some(_), []) if transport.is_some_and(|transport| transport != "stdio") => {
            Err("it has a program and another transport than stdio".to_owned())
        }
        (Some(Value::String(_)), []) => Ok(Way::Program(server)),
        (Some(Value::Object(inner)), []) if !server.contains_key("args") && !server.contains_key("env") => {
            Ok(Way::Program(inner))
        }
        (None, [key]) => match transport.unwrap_or_default() {
            "sse" => Err(older()),
            // In these clients, an entry without a type uses the older transport.
            "" if *key == "url" && matches!(client, Client::Gemini | Client::Cline | Client::ClineCli) => Err(older()),
            "" | "http" | "streamable-http" | "streamableHttp" | "streamable_http" => {
                text(key).map(Way::Address).ok_or_else(|| format!("{key} is no text"))
            }
            _ => Err("its transport is not known".to_owned()),
        },
        (None, [_, _, ..]) => Err("it has several addresses".to_owned()),
        _ => Err("it has neither a program nor an address".to_owned()),
    }
}

fn program(client: Client, entry: &Map<String, Value>) -> Result<Table, String> {
    let mut table = Table::new();
    let name = entry.get("command").or_else(|| entry.get("path"));
    let name = name.and_then(Value::as_str).ok_or("its program is no text")?;
    let name = resolved(client, "command", name)?;
    // The client and sandcell start programs in different folders.
    if Path::new(&name).is_relative() && name.contains(['/', '\\']) && !name.contains(":\\") {
        return Err("its program is a relative path".to_owned());
    }
    table.insert("command".to_owned(), name.into());
    if let Some(args) = entry.get("args").filter(|args| !args.is_null()) {
        table.insert("args".to_owned(), texts(client, "args", args)?.into());
    }
    if let Some(folder) = entry.get("cwd").filter(|folder| !folder.is_null()) {
        let folder = resolved(client, "cwd", folder.as_str().ok_or("cwd is no text")?)?;
        if Path::new(&folder).is_relative() && !folder.contains(":\\") {
            return Err("its folder is a relative path".to_owned());
        }
        table.insert("cwd".to_owned(), folder.into());
    }
    let mut env = secrets(client, "env", entry.get("env"))?;
    // The variables that Codex passes from its own environment.
    for name in entry.get("env_vars").and_then(Value::as_array).into_iter().flatten() {
        let name = name.as_str().ok_or("env_vars is no list of texts")?;
        // A value in `env` takes precedence, as in Codex.
        env.entry(name.to_owned())
            .or_insert_with(|| format!("${{{name}}}").into());
    }
    if !env.is_empty() {
        table.insert("env".to_owned(), env.into());
    }
    Ok(table)
}

fn address(client: Client, server: &Map<String, Value>, url: &str) -> Result<Table, String> {
    let mut table = Table::new();
    table.insert("url".to_owned(), resolved(client, "url", url)?.into());
    let mut headers = secrets(client, "headers", server.get("headers"))?;
    // The keys of Codex.
    headers.extend(secrets(client, "http_headers", server.get("http_headers"))?);
    for (header, name) in secrets(client, "env_http_headers", server.get("env_http_headers"))? {
        headers.insert(header, format!("${{{}}}", name.as_str().unwrap_or_default()).into());
    }
    if let Some(name) = server.get("bearer_token_env_var").and_then(Value::as_str) {
        if headers
            .keys()
            .any(|header| header.eq_ignore_ascii_case("authorization"))
        {
            return Err("it has a token and a header Authorization".to_owned());
        }
        headers.insert("Authorization".to_owned(), format!("Bearer ${{{name}}}").into());
    }
    if !headers.is_empty() {
        table.insert("headers".to_owned(), headers.into());
    }
    Ok(table)
}

fn texts(client: Client, key: &str, value: &Value) -> Result<Vec<toml::Value>, String> {
    let refuse = || format!("{key} is no list of texts");
    let items = value.as_array().ok_or_else(refuse)?.iter();
    let text = |item: &Value| resolved(client, key, item.as_str().ok_or_else(refuse)?).map(toml::Value::String);
    items.map(text).collect()
}

/// Replaces the reference to the home folder in a text outside of `env` and headers. sandcell expands no references there.
fn resolved(client: Client, key: &str, text: &str) -> Result<String, String> {
    let home = Home::of_this_process().folder;
    let home = home.as_deref().and_then(Path::to_str);
    let text = match (client, home) {
        (Client::Cursor | Client::Vscode, Some(home)) => text.replace("${userHome}", home),
        _ => text.to_owned(),
    };
    // Gemini reads `$NAME` everywhere.
    if text.contains("${") || client == Client::Gemini && text.contains('$') {
        return Err(format!(
            "{key} has the reference {}, which sandcell does not expand there",
            reference_in(&text)
        ));
    }
    Ok(text)
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
        let text = with_references(client, &text).ok_or_else(|| {
            format!(
                "{key}.{name} has the reference {}, which only the client can expand",
                reference_in(&text)
            )
        })?;
        table.insert(name.clone(), text.into());
    }
    Ok(table)
}

/// Translates the client's references to variables to sandcell's form `${NAME}`. Returns None if sandcell and the client
/// would expand the text to different values.
fn with_references(client: Client, text: &str) -> Option<String> {
    let text = match client {
        Client::Gemini => with_braces(text),
        _ => text.to_owned(),
    };
    let prefix = match client {
        Client::ClaudeCode | Client::Gemini => "",
        Client::Cursor | Client::Vscode | Client::Windsurf => "env:",
        // These clients do not expand references: `${` is plain text there.
        Client::ClaudeDesktop | Client::Codex | Client::Zed | Client::Jetbrains | Client::Cline | Client::ClineCli => {
            return (!text.contains("${")).then_some(text);
        }
    };
    let mut parts = text.split("${");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (reference, rest) = part.split_once('}')?;
        let name = reference.strip_prefix(prefix).filter(|name| is_variable(name))?;
        out.push_str(&format!("${{{name}}}{rest}"));
    }
    Some(out)
}

/// Returns the first reference in a text, for error messages. Anything that does not have the form of a reference may be
/// a secret, so it is not shown.
fn reference_in(text: &str) -> String {
    let from = text.find('$').and_then(|at| text.get(at..)).unwrap_or_default();
    let whole = from.split_inclusive('}').next().unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || "${}:_-/".contains(c);
    match whole.len() <= 40 && whole.starts_with("${") && whole.ends_with('}') && whole.chars().all(plain) {
        true => whole.to_owned(),
        false => "with `$`".to_owned(),
    }
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
                "env.KEY has the reference ${input:key}",
            ),
            (
                Client::Cursor,
                serde_json::json!({"command": "x", "args": ["${workspaceFolder}/a"]}),
                "${workspaceFolder}",
            ),
            (
                Client::Zed,
                serde_json::json!({"command": "x", "args": ["${userHome}"]}),
                "${userHome}",
            ),
            (Client::Cursor, serde_json::json!({"command": "x", "path": "y"}), "path"),
            (
                Client::Cursor,
                serde_json::json!({"command": "x", "cwd": "y"}),
                "relative path",
            ),
            (
                Client::Zed,
                serde_json::json!({"command": {"path": "x", "jail": 1}}),
                "jail",
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
    fn lists_of_the_client_and_wrapped_sandcells_count() {
        let text = r#"{"mcp": {"excluded": ["a"]}, "mcpServers": {"a": {"command": "x"}, "b": {"command": "uvx", "args": ["sandcell", "serve"]}, "c": {"command": "z"}}}"#;
        let imported = read(Client::Gemini, text, "sandcell").unwrap();
        assert_eq!((imported.tables.len(), imported.left_out.len()), (1, 1));
        let only = text.replace(r#""excluded": ["a"]"#, r#""allowed": ["a"]"#);
        let imported = read(Client::Gemini, &only, "sandcell").unwrap();
        assert_eq!(
            (imported.tables[0].0.as_str(), imported.left_out[0].0.as_str()),
            ("a", "c")
        );
        let many: Map<String, Value> = (0..40)
            .map(|n| (format!("s{n}"), serde_json::json!({"command": "x"})))
            .collect();
        let imported = of(Client::Cursor, many.into());
        assert_eq!((imported.tables.len(), imported.left_out.len()), (32, 8));
    }

    #[test]
    fn a_value_of_the_entry_wins_over_one_of_the_environment() {
        let codex = "[mcp_servers.y]\ncommand = \"y\"\nenv_vars = [\"PATH\"]\n[mcp_servers.y.env]\nPATH = \"own\"\n";
        let imported = read(Client::Codex, codex, "sandcell").unwrap();
        assert_eq!(imported.tables[0].1["env"]["PATH"].as_str(), Some("own"));
    }

    #[test]
    fn names_are_made_valid_and_different() {
        let imported = of(
            Client::Cursor,
            serde_json::json!({"Search": {"command": "a"}, "My.Server": {"command": "b"}, "my-server": {"command": "c"}, "9": {"command": "d"}}),
        );
        let names: Vec<&str> = imported.tables.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["server_9", "my_server", "search_server", "my_server_2"]);
        assert_eq!(imported.left_out, []);
    }
}
