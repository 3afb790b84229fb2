//! Registry credentials from the files that `docker login` and `podman login` write for the server's user.
//!
//! `config.json` (podman: `auth.json`) names credential helpers (`credHelpers` for one registry, `credsStore` for all)
//! or contains the logins (`auths`). Each pull reads them again, so a login takes effect at once. They are neither kept
//! nor logged, and no error shows them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

/// Docker's name for its own registry in stored logins.
pub const HUB_KEY: &str = "https://index.docker.io/v1/";
/// The maximum size in bytes of `config.json` and of a helper's answer.
const MAX_FILE_BYTES: u64 = 1 << 20;
const MAX_ANSWER_BYTES: u64 = 64 << 10;
/// The deadline of a helper, which may have to ask a key ring.
const HELPER_TIMEOUT: Duration = Duration::from_secs(20);
/// The user name that marks the secret as an identity token.
const TOKEN_USER: &str = "<token>";

/// The credentials for a registry. All but the name are secret.
#[derive(Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "Docker's names")]
pub struct RegistryLogin {
    pub username: Option<String>,
    /// None if there is an identity token, which replaces it.
    pub password: Option<String>,
    pub identity_token: Option<String>,
    pub registry_token: Option<String>,
}

impl std::fmt::Debug for RegistryLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RegistryLogin")
    }
}

/// Returns the login that a file has for a registry (`host` or `host:port`), if there is one. Neither the file nor a
/// login needs to exist. If the file names a helper for the registry, only the helper is asked.
///
/// # Errors
/// Describes the fault of the file or of the credential helper.
pub async fn registry_login(file: &Path, registry: &str) -> Result<Option<RegistryLogin>, String> {
    let Some(config) = read(file)? else {
        return Ok(None);
    };
    let registry = if is_hub(without_scheme(registry)) {
        HUB_KEY
    } else {
        registry
    };
    // As in Docker, a helper decides alone: a stored login beside it may be of another account.
    match config.program(registry) {
        Some(program) => ask_helper(program, registry).await,
        None => config.login(registry),
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    auths: BTreeMap<String, StoredLogin>,
    cred_helpers: BTreeMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StoredLogin {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

impl std::fmt::Debug for StoredLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StoredLogin")
    }
}

/// Reads `config.json`; none if there is no file.
fn read(file: &Path) -> Result<Option<Config>, String> {
    use std::io::Read as _;
    let place = file.display();
    let open = match std::fs::File::open(file) {
        Ok(open) => open,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{place} cannot be read: {error}")),
    };
    let mut text = Vec::new();
    let read = open.take(MAX_FILE_BYTES).read_to_end(&mut text);
    read.map_err(|error| format!("{place} cannot be read: {error}"))?;
    // The message gives the line of the mistake, never the content.
    let wrong = |error: serde_json::Error| format!("{place} is not as Docker writes it (line {})", error.line());
    serde_json::from_slice(&text).map(Some).map_err(wrong)
}

/// Returns a registry's key without scheme and path.
fn without_scheme(key: &str) -> &str {
    let rest = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://"));
    rest.unwrap_or(key).split('/').next().unwrap_or_default()
}

impl Config {
    /// Returns the credential helper for a registry.
    fn program(&self, registry: &str) -> Option<&str> {
        let own = entry(&self.cred_helpers, registry).map(String::as_str);
        own.or(self.creds_store.as_deref())
            .filter(|program| !program.is_empty())
    }

    fn login(&self, registry: &str) -> Result<Option<RegistryLogin>, String> {
        let Some(login) = entry(&self.auths, registry) else {
            return Ok(None);
        };
        let (mut username, mut password) = (login.username.clone(), login.password.clone());
        if let Some(auth) = login.auth.as_deref().filter(|auth| !auth.is_empty()) {
            let pair = STANDARD
                .decode(auth.trim())
                .ok()
                .and_then(|bytes| String::from_utf8(bytes).ok());
            let Some((user, secret)) = pair.as_deref().and_then(|pair| pair.split_once(':')) else {
                return Err(format!("the login for {registry} in config.json cannot be read"));
            };
            username = Some(user.to_owned());
            password = Some(secret.trim_end_matches('\0').to_owned());
        }
        let token = login.identitytoken.clone().filter(|token| !token.is_empty());
        let registry_token = login.registrytoken.clone().filter(|token| !token.is_empty());
        if username.is_none() && token.is_none() && registry_token.is_none() {
            // An empty entry stands here when a helper stores the login.
            return Ok(None);
        }
        Ok(Some(RegistryLogin {
            username,
            password: password.filter(|_| token.is_none()),
            identity_token: token,
            registry_token,
        }))
    }
}

/// Returns a registry's entry: the one of exactly this name, else the first in another spelling.
fn entry<'a, T>(entries: &'a BTreeMap<String, T>, registry: &str) -> Option<&'a T> {
    let host = without_scheme(registry);
    let is_same = |key: &str| without_scheme(key) == host || (is_hub(without_scheme(key)) && is_hub(host));
    let other = || entries.iter().find(|(key, _)| is_same(key)).map(|(_, found)| found);
    entries.get(registry).or_else(other)
}

/// Returns true for the names of Docker's own registry.
#[must_use]
pub fn is_hub(name: &str) -> bool {
    matches!(name, "index.docker.io" | "docker.io" | "registry-1.docker.io")
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    username: String,
    secret: String,
}

/// Asks one of the user's credential helpers for a login.
async fn ask_helper(name: &str, registry: &str) -> Result<Option<RegistryLogin>, String> {
    let program = format!("docker-credential-{name}");
    // Only a name is valid. The file is the user's, but a slash in the name can only be a mistake.
    if !name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    {
        return Err("config.json names a credential helper with characters that no program's name has".to_owned());
    }
    run_helper(Path::new(&program), registry).await
}

async fn run_helper(program: &Path, registry: &str) -> Result<Option<RegistryLogin>, String> {
    let failed = |what: String| {
        let program = program.display();
        format!("the login for {registry} could not be read from {program}: {what}")
    };
    let mut child = tokio::process::Command::new(program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let talk = async {
        if let Some(mut stdin) = stdin {
            // A helper may ignore its stdin; only its answer counts.
            let _ = stdin.write_all(registry.as_bytes()).await;
        }
        let mut said = Vec::new();
        if let Some(stdout) = stdout {
            stdout.take(MAX_ANSWER_BYTES).read_to_end(&mut said).await?;
        }
        Ok::<_, std::io::Error>((child.wait().await?, said))
    };
    let (status, said) = timeout(HELPER_TIMEOUT, talk)
        .await
        .map_err(|_| failed(format!("it took more than {} s", HELPER_TIMEOUT.as_secs())))?
        .map_err(|error| failed(error.to_string()))?;
    if !status.success() {
        // All helpers report an unknown login with this text.
        let text = String::from_utf8_lossy(&said);
        if text.contains("credentials not found") {
            return Ok(None);
        }
        return Err(failed(format!("it ended with {status}")));
    }
    let known: HelperAnswer =
        serde_json::from_slice(&said).map_err(|_| failed("its answer cannot be read".to_owned()))?;
    let token = known.username == TOKEN_USER;
    Ok(Some(RegistryLogin {
        username: Some(known.username).filter(|_| !token),
        password: Some(known.secret.clone()).filter(|_| !token),
        identity_token: Some(known.secret).filter(|_| token),
        registry_token: None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        serde_json::from_str(text).unwrap()
    }

    fn pair(found: Option<RegistryLogin>) -> Option<(String, String)> {
        found.map(|found| (found.username.unwrap_or_default(), found.password.unwrap_or_default()))
    }

    #[tokio::test]
    async fn a_file_serves_docker_and_podman_by_every_name_of_the_hub() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("auth.json");
        assert_eq!(registry_login(&file, "docker.io").await, Ok(None));
        let text = r#"{"auths":{"https://index.docker.io/v1/":{"auth":" bWU6c2VjcmV0\n"},
            "127.0.0.1:5000":{"username":"u","password":"p"},"quay.example/team":{"auth":"bWU6c2VjcmV0"},"empty.io":{}}}"#;
        std::fs::write(&file, text).unwrap();
        let own = |user: &str, secret: &str| Some((user.to_owned(), secret.to_owned()));
        for (registry, wanted) in [
            ("docker.io", own("me", "secret")),
            ("registry-1.docker.io", own("me", "secret")),
            (HUB_KEY, own("me", "secret")),
            ("127.0.0.1:5000", own("u", "p")),
            ("127.0.0.1:5001", None),
            ("quay.example", own("me", "secret")),
            ("empty.io", None),
        ] {
            assert_eq!(
                pair(registry_login(&file, registry).await.unwrap()),
                wanted,
                "{registry}"
            );
        }
        // Where a helper fails, a stored login is not used in its place.
        let text = r#"{"auths":{"lab":{"username":"u","password":"p"}, "docker.io":{}},"credsStore":"no-such-helper"}"#;
        std::fs::write(&file, text).unwrap();
        for (registry, name) in [("lab", "lab"), ("docker.io", HUB_KEY)] {
            let missing = registry_login(&file, registry).await.unwrap_err();
            assert!(
                missing.contains(name) && missing.contains("no-such-helper"),
                "{missing}"
            );
        }
    }

    #[test]
    fn logins_are_found_however_their_registry_is_written() {
        let auth = STANDARD.encode("me:se:cret");
        let config = config(&format!(
            r#"{{"auths": {{"https://reg.example/v2/": {{"auth": "{auth}"}}, "docker.io": {{"username": "u", "password": "p"}},
                 "empty.example": {{}}, "token.example": {{"auth": "{auth}", "identitytoken": "t"}}}}, "HttpHeaders": {{}}}}"#
        ));
        let own = |user: &str, secret: &str| Some((user.to_owned(), secret.to_owned()));
        assert_eq!(pair(config.login("reg.example").unwrap()), own("me", "se:cret"));
        assert_eq!(pair(config.login(HUB_KEY).unwrap()), own("u", "p"));
        assert_eq!(pair(config.login("empty.example").unwrap()), None);
        assert_eq!(pair(config.login("other.example").unwrap()), None);
        let token = config.login("token.example").unwrap().unwrap();
        assert_eq!((token.identity_token.as_deref(), token.password), (Some("t"), None));
    }

    #[test]
    fn a_login_that_cannot_be_read_is_told_without_being_shown() {
        let config = config(r#"{"auths": {"reg.example": {"auth": "c2VjcmV0"}}}"#);
        let told = config.login("reg.example").unwrap_err();
        assert!(
            told.contains("reg.example") && !told.contains("secret") && !told.contains("c2Vj"),
            "{told}"
        );
        assert!(!format!("{config:?}").contains("c2Vj"));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        assert!(read(&file).unwrap().is_none());
        std::fs::write(&file, "{\n \"auths\": \"hunter2\"}").unwrap();
        let told = read(&file).unwrap_err();
        assert!(told.contains("line 2") && !told.contains("hunter2"), "{told}");
    }

    #[test]
    fn a_program_for_one_registry_comes_before_the_one_for_all() {
        let config = config(r#"{"credHelpers": {"https://gcr.example": "gcr"}, "credsStore": "ring"}"#);
        assert_eq!(config.program("gcr.example"), Some("gcr"));
        assert_eq!(config.program(HUB_KEY), Some("ring"));
        let both = r#"{"credHelpers": {"docker.io": "a", "https://index.docker.io/v1/": "b"}}"#;
        assert_eq!(super::tests::config(both).program(HUB_KEY), Some("b"), "the exact name");
        assert_eq!(super::tests::config(r#"{"credsStore": ""}"#).program(HUB_KEY), None);
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn programs_are_asked_as_docker_asks_them() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let program = |text: &str| {
            let file = folder.path().join("helper");
            // A new file each time, since a running program cannot be overwritten.
            let _ = std::fs::remove_file(&file);
            std::fs::write(&file, format!("#!/bin/sh\nread registry\n{text}\n")).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
            file
        };
        let answer =
            r#"[ "$1" = get ] && echo "{\"ServerURL\": \"\", \"Username\": \"$registry\", \"Secret\": \"s\"}""#;
        let known = run_helper(&program(answer), "reg.example").await.unwrap();
        assert_eq!(pair(known), Some(("reg.example".to_owned(), "s".to_owned())));
        let token = r#"echo '{"Username": "<token>", "Secret": "t"}'"#;
        let known = run_helper(&program(token), "reg.example").await.unwrap().unwrap();
        assert_eq!((known.username, known.identity_token.as_deref()), (None, Some("t")));
        let none = "echo 'credentials not found in native keychain'; exit 1";
        assert_eq!(run_helper(&program(none), "reg.example").await, Ok(None));
        let broken = run_helper(&program("echo hunter2; exit 3"), "reg.example")
            .await
            .unwrap_err();
        assert!(
            broken.contains("exit status: 3") && !broken.contains("hunter2"),
            "{broken}"
        );
        let garbage = run_helper(&program("echo hunter2"), "reg.example").await.unwrap_err();
        assert!(
            garbage.contains("cannot be read") && !garbage.contains("hunter2"),
            "{garbage}"
        );
        let told = ask_helper("../x", "reg.example").await.unwrap_err();
        assert!(told.contains("characters"), "{told}");
        let missing = ask_helper("no-such-helper", "reg.example").await.unwrap_err();
        assert!(missing.contains("docker-credential-no-such-helper"), "{missing}");
    }
}
