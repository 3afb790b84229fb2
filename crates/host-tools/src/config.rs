//! The operator's settings: `[tools.NAME]` tables, one for each server.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Url;
use reqwest::header::{HeaderName, HeaderValue};
use sandcell_sandbox::Secret;

use crate::rules::{Pattern, Rules};

/// The maximum number of servers.
const MAX_SERVERS: usize = 32;
/// The maximum length of a server's name.
const MAX_NAME_CHARS: usize = 40;
/// The time limit of a call that the settings do not change, and the maximum.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_TIMEOUT_S: i64 = 3600;
/// The keys of a table.
const TABLE_KEYS: [&str; 13] = [
    "command",
    "args",
    "env",
    "cwd",
    "url",
    "headers",
    "description",
    "allow",
    "ask",
    "deny",
    "read_only",
    "callers",
    "timeout_s",
];
/// Names that the module inside uses itself.
const RESERVED_NAMES: [&str; 11] = [
    "call",
    "catch",
    "constructor",
    "describe",
    "finally",
    "functions",
    "list",
    "refresh",
    "search",
    "servers",
    "then",
];

/// A server of tools.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerConfig {
    /// Its name in code: `tools.NAME`.
    pub name: String,
    /// The way to it.
    pub transport: Transport,
    /// A line about it, for the code that looks for tools.
    pub description: String,
    /// The tools that code may call.
    pub rules: Rules,
    /// The callers whose code may use it. Empty: all.
    pub callers: Vec<String>,
    /// The time limit of one call.
    pub timeout: Duration,
}

/// The way to a server.
#[derive(Debug, Clone, PartialEq)]
pub enum Transport {
    /// A program that speaks MCP on its standard input and output.
    Command {
        /// The program: a path, or a name in `PATH`.
        program: String,
        /// Its arguments.
        args: Vec<String>,
        /// Its variables besides the common ones.
        env: BTreeMap<String, Secret>,
        /// Its working folder. None: the server's own.
        cwd: Option<String>,
    },
    /// An address that speaks MCP over HTTP ("Streamable HTTP").
    Http {
        /// The address.
        url: Url,
        /// Headers of every request.
        headers: Vec<(HeaderName, Secret)>,
    },
}

/// A table that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{table}: {reason}")]
pub struct ServersError {
    /// The table, such as `tools.github`.
    pub table: String,
    /// The reason, for people.
    pub reason: String,
}

/// Checks the `[tools]` table without keeping it. Returns the reason to refuse it, as the end of a sentence about the
/// setting.
///
/// # Errors
/// A server that cannot be used.
pub fn check_servers(table: &toml::Table) -> Result<(), String> {
    read_servers(table).map(drop).map_err(|error| error.to_string())
}

/// Reads the `[tools]` table, in the order of the names.
///
/// # Errors
/// A server that cannot be used.
pub fn read_servers(table: &toml::Table) -> Result<Vec<ServerConfig>, ServersError> {
    let error = |name: &str, reason: String| ServersError {
        table: format!("tools.{name}"),
        reason,
    };
    if table.len() > MAX_SERVERS {
        return Err(error(
            "*",
            format!(
                "{} servers are more than the {MAX_SERVERS} that are possible",
                table.len()
            ),
        ));
    }
    let mut servers = Vec::new();
    for (name, value) in table {
        let shown: String = name.chars().take(MAX_NAME_CHARS).flat_map(char::escape_debug).collect();
        let settings = value
            .as_table()
            .ok_or_else(|| error(&shown, "must be a table with `command` or `url`".to_owned()))?;
        name_of(name).map_err(|reason| error(&shown, reason))?;
        servers.push(read_server(name, settings).map_err(|reason| error(&shown, reason))?);
    }
    Ok(servers)
}

/// Returns a valid name for a server that has this name elsewhere.
#[must_use]
pub fn valid_server_name(name: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '_'
        }
    };
    let mut valid: String = name
        .trim_matches(|c: char| !c.is_ascii_alphanumeric())
        .chars()
        .map(plain)
        .collect();
    if !valid.starts_with(|c: char| c.is_ascii_lowercase()) {
        valid = format!("server_{valid}");
    }
    // Every character is ASCII.
    valid.truncate(MAX_NAME_CHARS);
    if RESERVED_NAMES.contains(&valid.as_str()) {
        valid.push_str("_server");
    }
    valid
}

/// Checks the name of a server, which code uses as an attribute.
fn name_of(name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let first = name.chars().next().is_some_and(|c| c.is_ascii_lowercase());
    if !first || !name.chars().all(plain) || name.len() > MAX_NAME_CHARS {
        return Err(format!(
            "the name must have 1 to {MAX_NAME_CHARS} lower-case letters, digits and _, and begin with a letter"
        ));
    }
    if RESERVED_NAMES.contains(&name) {
        return Err(format!(
            "the name is taken: `tools.{name}` is a function; choose another one"
        ));
    }
    Ok(())
}

fn read_server(name: &str, table: &toml::Table) -> Result<ServerConfig, String> {
    if let Some(key) = table.keys().find(|key| !TABLE_KEYS.contains(&key.as_str())) {
        return Err(format!("has no key {key:?}; it takes {}", TABLE_KEYS.join(", ")));
    }
    let patterns = |key: &str| -> Result<Vec<Pattern>, String> {
        texts(table, key)?
            .iter()
            .map(|text| Pattern::read(text).map_err(|reason| format!("{key}: {reason}")))
            .collect()
    };
    let allow_read_only = match text(table, "read_only")?.as_deref() {
        None | Some("ask") => false,
        Some("allow") => true,
        Some(other) => return Err(format!("read_only must be \"allow\" or \"ask\", not {other:?}")),
    };
    let timeout = match table.get("timeout_s") {
        None => DEFAULT_TIMEOUT,
        Some(toml::Value::Integer(seconds)) if (1..=MAX_TIMEOUT_S).contains(seconds) => {
            Duration::from_secs(seconds.unsigned_abs())
        }
        Some(other) => {
            return Err(format!(
                "timeout_s must be a whole number from 1 to {MAX_TIMEOUT_S}, not {other}"
            ));
        }
    };
    let description: String = text(table, "description")?.unwrap_or_default();
    if description.len() > 500 || description.chars().any(char::is_control) {
        return Err("description must be one line of at most 500 bytes".to_owned());
    }
    Ok(ServerConfig {
        name: name.to_owned(),
        transport: transport(table)?,
        description,
        rules: Rules {
            deny: patterns("deny")?,
            ask: patterns("ask")?,
            allow: patterns("allow")?,
            allow_read_only,
        },
        callers: texts(table, "callers")?,
        timeout,
    })
}

fn transport(table: &toml::Table) -> Result<Transport, String> {
    let misplaced = |keys: &[&str], with: &str| match keys.iter().find(|key| table.contains_key(**key)) {
        Some(key) => Err(format!("{key} does not go with {with}")),
        None => Ok(()),
    };
    match (text(table, "command")?, text(table, "url")?) {
        (Some(program), None) => {
            misplaced(&["headers"], "command")?;
            if program.trim().is_empty() || program.contains('\0') {
                return Err("command must be a program".to_owned());
            }
            let env = secrets(table, "env")?;
            if let Some((key, _)) = env
                .iter()
                .find(|(key, value)| key.is_empty() || key.contains(['=', '\0']) || value.expose().contains('\0'))
            {
                return Err(format!("env: {key:?} cannot be a variable"));
            }
            Ok(Transport::Command {
                program,
                args: texts(table, "args")?,
                env: env.into_iter().collect(),
                cwd: text(table, "cwd")?,
            })
        }
        (None, Some(address)) => {
            misplaced(&["args", "env", "cwd"], "url")?;
            let url = Url::parse(&address).map_err(|reason| format!("url cannot be read: {reason}"))?;
            if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
                return Err("url must begin with http:// or https:// and a host".to_owned());
            }
            if !url.username().is_empty() || url.password().is_some() {
                return Err("url must hold no credentials; put them into headers".to_owned());
            }
            let mut headers = Vec::new();
            for (key, value) in secrets(table, "headers")? {
                let name =
                    HeaderName::try_from(key.as_str()).map_err(|_| format!("headers: {key:?} is not a header"))?;
                if HeaderValue::from_str(value.expose()).is_err() {
                    return Err(format!("headers: the value of {key:?} cannot be sent"));
                }
                headers.push((name, value));
            }
            Ok(Transport::Http { url, headers })
        }
        (Some(_), Some(_)) => Err("takes `command` or `url`, not both".to_owned()),
        (None, None) => Err("needs `command` or `url`".to_owned()),
    }
}

fn text(table: &toml::Table, key: &str) -> Result<Option<String>, String> {
    match table.get(key) {
        None => Ok(None),
        Some(toml::Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("{key} must be a text")),
    }
}

fn texts(table: &toml::Table, key: &str) -> Result<Vec<String>, String> {
    let refuse = || format!("{key} must be a list of texts");
    match table.get(key) {
        None => Ok(Vec::new()),
        Some(toml::Value::Array(items)) => {
            let texts = items.iter().map(|item| item.as_str().map(str::to_owned));
            texts.collect::<Option<_>>().ok_or_else(refuse)
        }
        Some(_) => Err(refuse()),
    }
}

/// Reads a table of texts. `${NAME}` in a text is the variable of that name in the environment of sandcell.
fn secrets(table: &toml::Table, key: &str) -> Result<Vec<(String, Secret)>, String> {
    let Some(value) = table.get(key) else {
        return Ok(Vec::new());
    };
    let table = value
        .as_table()
        .ok_or_else(|| format!("{key} must be a table of texts"))?;
    let mut all = Vec::new();
    for (name, value) in table {
        let text = value.as_str().ok_or_else(|| format!("{key}.{name} must be a text"))?;
        all.push((
            name.clone(),
            Secret::new(&expand(text).map_err(|reason| format!("{key}.{name}: {reason}"))?),
        ));
    }
    Ok(all)
}

fn expand(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, after) = rest.split_at(at);
        let after = after.get(2..).unwrap_or_default();
        let (name, left) = after.split_once('}').ok_or("`${` has no `}`")?;
        let value = std::env::var(name).map_err(|_| format!("the variable {name:?} is not set"))?;
        out.push_str(before);
        out.push_str(&value);
        rest = left;
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<ServerConfig>, ServersError> {
        read_servers(&toml::from_str(text).unwrap())
    }

    #[test]
    fn a_server_is_a_program_or_an_address() {
        let servers = read(
            "[git_hub]\ncommand = \"npx\"\nargs = [\"-y\", \"x\"]\nenv = { TOKEN = \"t\" }\nallow = [\"get_*\"]\nread_only = \"allow\"\n\
             [web]\nurl = \"https://mcp.example/x\"\nheaders = { Authorization = \"Bearer t\" }\ntimeout_s = 5\ncallers = [\"a\"]\n",
        )
        .unwrap();
        assert!(
            matches!(&servers[0].transport, Transport::Command { program, args, .. } if program == "npx" && args.len() == 2)
        );
        assert!(servers[0].rules.allow_read_only);
        assert!(matches!(&servers[1].transport, Transport::Http { headers, .. } if headers.len() == 1));
        assert_eq!(
            (servers[1].timeout, servers[1].callers.as_slice()),
            (Duration::from_secs(5), &["a".to_owned()][..])
        );
        assert!(!format!("{servers:?}").contains("Bearer"), "secrets are not shown");
    }

    #[test]
    fn a_table_that_cannot_be_used_is_refused_with_the_reason() {
        for (text, part) in [
            ("x = 1", "must be a table"),
            ("[x]\n", "needs `command` or `url`"),
            ("[x]\ncommand = \"a\"\nurl = \"http://h\"", "not both"),
            ("[x]\ncommand = \"a\"\nheaders = {}", "does not go with"),
            ("[x]\nurl = \"http://u:p@h\"", "credentials"),
            ("[x]\nurl = \"ftp://h\"", "http://"),
            ("[x]\ncommand = \"a\"\ncomand = 1", "comand"),
            ("[X]\ncommand = \"a\"", "lower-case"),
            ("[search]\ncommand = \"a\"", "taken"),
            ("[x]\ncommand = \"a\"\ntimeout_s = 0", "1 to 3600"),
            ("[x]\ncommand = \"a\"\nread_only = \"yes\"", "\"allow\" or \"ask\""),
            ("[x]\ncommand = \"a\"\nallow = [\"\"]", "allow"),
            (
                "[x]\ncommand = \"a\"\nenv = { A = \"${SANDCELL_NO_SUCH_VARIABLE}\" }",
                "is not set",
            ),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
