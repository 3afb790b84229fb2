use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use sandcell_e2e::begin;
use sandcell_e2e::client::Client;
use sandcell_e2e::test_dir::TestDir;

const CLIENT_SETTINGS: [(&str, &str, &str); 11] = [
    (
        "claude-desktop",
        ".config/Claude/claude_desktop_config.json",
        "mcpServers",
    ),
    ("claude-code", ".claude.json", "mcpServers"),
    ("cursor", ".cursor/mcp.json", "mcpServers"),
    ("vscode", ".config/Code/User/mcp.json", "servers"),
    ("codex", ".codex/config.toml", "mcp_servers"),
    ("gemini", ".gemini/settings.json", "mcpServers"),
    ("windsurf", ".codeium/windsurf/mcp_config.json", "mcpServers"),
    ("zed", ".config/zed/settings.json", "context_servers"),
    ("jetbrains", ".junie/mcp/mcp.json", "mcpServers"),
    (
        "cline",
        ".config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        "mcpServers",
    ),
    (
        "cline-cli",
        ".cline/data/settings/cline_mcp_settings.json",
        "mcpServers",
    ),
];

/// Parses the settings of a client, in their format.
fn parsed(file: &Path) -> Value {
    let text = std::fs::read_to_string(file).unwrap();
    match file.extension().is_some_and(|end| end == "toml") {
        true => serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap(),
        false => serde_json::from_str(&text).unwrap(),
    }
}

fn install(place: &TestDir, arguments: &[&str]) -> Output {
    let mut all = vec!["install"];
    all.extend(arguments);
    place.command(&all).stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn files_below(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut todo = vec![folder.to_owned()];
    while let Some(next) = todo.pop() {
        for entry in std::fs::read_dir(next).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                todo.push(entry.path());
            } else {
                found.push(entry.path().strip_prefix(folder).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    found
}

#[test]
fn the_written_client_settings_start_a_working_server() {
    let _turn = begin!();
    for (client, path, table) in CLIENT_SETTINGS {
        let place = TestDir::new();
        let words = said(&install(&place, &[client]));
        assert!(words.contains(path) && words.contains("Next: "), "{words}");
        let file = place.path("home").join(path);
        assert_eq!(
            file.metadata().unwrap().mode() & 0o777,
            0o600,
            "a new file is the user's alone"
        );
        let json = parsed(&file);
        let entry = &json[table]["sandcell"];
        let mut command = Command::new(entry["command"].as_str().unwrap());
        command.args(
            entry["args"]
                .as_array()
                .unwrap()
                .iter()
                .map(|one| one.as_str().unwrap()),
        );
        command
            .env_clear()
            .env("HOME", place.path("home"))
            .env("TMPDIR", place.path("tmp"));
        command
            .env("PATH", "/usr/bin:/bin")
            .env("SANDCELL_DATA_DIR", place.path("data"));
        let server = Client::start(&mut command);
        assert_eq!(server.text("print(6 * 7)").trim(), "42", "{client}");
        drop(server);

        assert!(said(&install(&place, &[client])).contains("already"), "a second time");
        said(&install(&place, &[client, "--undo"]));
        assert_eq!(files_below(&place.path("home")), Vec::<String>::new(), "{client}");
        assert!(
            said(&install(&place, &[client, "--undo"])).contains("not in"),
            "a second time"
        );
    }
}

#[test]
fn existing_content_stays_and_is_restored_byte_for_byte() {
    let place = TestDir::new();
    let file = place.path("home").join(".claude.json");
    let former = "{\n    // mine\n    \"numStartups\": 7,\n    \"mcpServers\": {\n        \"sandcell\": {\"command\": \"old\"},\n        \"db\": {\"command\": \"db\", \"env\": {\"KEY\": \"s3cret\"}}\n    }\n}";
    std::fs::write(&file, former).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    let shown = install(&place, &["claude-code", "--print", "--", "--mount", "/data"]);
    assert!(said(&shown).contains("would be"));
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert_eq!(
        std::fs::read_to_string(&file).unwrap(),
        former,
        "--print changes nothing"
    );

    said(&install(&place, &["claude-code", "--", "--mount", "/data"]));
    let now = std::fs::read_to_string(&file).unwrap();
    assert_eq!(now, shown);
    for kept in [
        "// mine",
        "\"numStartups\": 7",
        "{\"command\": \"db\", \"env\": {\"KEY\": \"s3cret\"}}",
        "\"/data\"",
    ] {
        assert!(now.contains(kept), "{kept}: {now}");
    }
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o640);
    // A second installation with other arguments keeps the original entry for the undo.
    said(&install(&place, &["claude-code"]));
    said(&install(&place, &["claude-code", "--undo"]));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), former);
    assert_eq!(files_below(&place.path("home")), [".claude.json"]);
}

#[test]
fn undo_keeps_later_changes_of_the_client() {
    let place = TestDir::new();
    let file = place.path("home").join(".claude.json");
    std::fs::write(&file, "{\"numStartups\": 7}").unwrap();
    said(&install(&place, &["claude-code"]));
    let changed = std::fs::read_to_string(&file).unwrap().replace('7', "8");
    std::fs::write(&file, changed).unwrap();
    said(&install(&place, &["claude-code", "--undo"]));
    let json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(json["numStartups"], 8);
    assert!(json["mcpServers"].get("sandcell").is_none(), "{json}");
}

#[test]
fn an_unparsable_file_is_not_touched() {
    let place = TestDir::new();
    let file = place.path("home").join(".cursor/mcp.json");
    std::fs::create_dir(file.parent().unwrap()).unwrap();
    for bytes in [&b"{\"mcpServers\": "[..], b"{\"mcpServers\": []}", b"\xff\xfe{}", b"[]"] {
        std::fs::write(&file, bytes).unwrap();
        for how in [&["cursor"][..], &["cursor", "--print"]] {
            let output = install(&place, how);
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(
                !output.status.success() && words.contains("mcp.json") && words.contains("fix:"),
                "{words}"
            );
        }
        assert_eq!(std::fs::read(&file).unwrap(), bytes);
    }
    assert_eq!(files_below(&place.path("home")), [".cursor/mcp.json"]);
    let unknown = install(&place, &["emacs"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("claude-desktop"));
}

#[test]
fn a_link_stays_a_link_and_a_project_has_a_separate_file() {
    let place = TestDir::new();
    let real = place.write("dotfiles.json", "{}\n");
    let link = place.path("home").join(".claude.json");
    std::os::unix::fs::symlink(&real, &link).unwrap();
    said(&install(&place, &["claude-code"]));
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert!(std::fs::read_to_string(&real).unwrap().contains("sandcell"));
    said(&install(&place, &["vscode", "--project"]));
    let json: Value = serde_json::from_slice(&std::fs::read(place.work().join(".vscode/mcp.json")).unwrap()).unwrap();
    assert_eq!(json["servers"]["sandcell"]["type"], "stdio");
}

#[test]
fn completions_and_the_manual_name_the_commands() {
    let place = TestDir::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = place.command(&["completions", shell]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success() && text.contains("doctor") && text.contains("install"),
            "{shell}"
        );
    }
    let script = "eval \"$(\"$0\" completions bash)\" && COMP_WORDS=(sandcell do) COMP_CWORD=1 && _sandcell sandcell do sandcell && echo \"${COMPREPLY[@]}\"";
    let output = Command::new("bash")
        .args(["-c", script])
        .arg(sandcell_e2e::binary())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "doctor", "{output:?}");
    let folder = place.path("man");
    let output = place
        .command(&["manual", "--out", folder.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let pages = files_below(&folder);
    assert!(
        pages.contains(&"sandcell.1".to_owned()) && pages.contains(&"sandcell-run.1".to_owned()),
        "{pages:?}"
    );
    let page = place.command(&["manual"]).output().unwrap();
    assert!(String::from_utf8_lossy(&page.stdout).starts_with(".ie"), "{page:?}");
}

#[test]
fn a_relative_mount_is_written_as_an_absolute_path() {
    let place = TestDir::new();
    let data = place.work().join("data").display().to_string();
    for (mount, written) in [
        (&["--mount", "data"][..], vec!["--mount".to_owned(), data.clone()]),
        (&["--mount=data:/d:cow"], vec![format!("--mount={data}:/d:cow")]),
        (
            &["--mount", "/data:/d"],
            vec!["--mount".to_owned(), "/data:/d".to_owned()],
        ),
        (
            &["--toolset", "script"],
            vec!["--toolset".to_owned(), "script".to_owned()],
        ),
    ] {
        let all: Vec<&str> = ["cursor", "--print", "--"].iter().chain(mount).copied().collect();
        let shown: Value = serde_json::from_slice(&install(&place, &all).stdout).unwrap();
        assert_eq!(
            shown["mcpServers"]["sandcell"]["args"].as_array().unwrap()[1..],
            written,
            "{mount:?}"
        );
    }
}

#[test]
fn codex_settings_keep_their_comments_and_are_restored_byte_for_byte() {
    let place = TestDir::new();
    let file = place.path("home").join(".codex/config.toml");
    std::fs::create_dir(file.parent().unwrap()).unwrap();
    let own = "# my model\nmodel = \"o4\"   # fast\n\n[mcp_servers.docs]\ncommand = \"npx\" # keep\n\n[tui]\nnotifications = true\n";
    std::fs::write(&file, own).unwrap();
    let shown = install(&place, &["codex", "--print"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), own);
    said(&install(&place, &["codex"]));
    let now = std::fs::read_to_string(&file).unwrap();
    assert_eq!(String::from_utf8_lossy(&shown.stdout), now);
    for line in own.lines().filter(|line| !line.is_empty()) {
        assert!(now.contains(line), "{line:?} in\n{now}");
    }
    assert_eq!(parsed(&file)["mcp_servers"]["sandcell"]["args"][0], "serve");
    said(&install(&place, &["codex", "--undo"]));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), own);
}

#[test]
fn doctor_reads_the_settings_written_into_the_project() {
    let _turn = begin!();
    let place = TestDir::new();
    said(&install(&place, &["zed", "--project"]));
    let doctor = place.command(&["doctor"]).output().unwrap();
    let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(
        text.contains("Zed starts ") && !text.contains("install CLIENT"),
        "{text}"
    );
}

#[test]
fn servers_of_a_client_become_tools_of_code() {
    let _turn = begin!();
    let place = TestDir::new();
    let stub = place.write("server.py", include_str!("host_tools/server.py"));
    let client = place.path("home").join(".cursor/mcp.json");
    std::fs::create_dir_all(client.parent().unwrap()).unwrap();
    let settings = serde_json::json!({"mcpServers": {
        "The Stub": {"command": "python3", "args": [stub], "env": {"TOKEN": "secret-of-the-client"}},
        "editor": {"command": "x", "args": ["${workspaceFolder}"]},
    }});
    std::fs::write(&client, settings.to_string()).unwrap();
    // With --print nothing is written.
    let printed = install(&place, &["cursor", "--tools", "--print"]);
    let text = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert!(text.contains("[tools.the_stub]"), "{text}");
    let own = place.path("home").join(".config/sandcell/config.toml");
    assert!(!own.exists());
    let text = said(&install(&place, &["cursor", "--tools"]));
    assert!(
        text.contains("the tools of the_stub")
            && text.contains("The server editor was left out: args has the reference ${workspaceFolder}"),
        "{text}"
    );
    assert!(!text.contains("secret-of-the-client"), "{text}");
    let mode = own.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "the file holds credentials: {mode:o}");
    let before = std::fs::read_to_string(&own).unwrap();
    assert!(before.contains("secret-of-the-client"), "{before}");
    // The client keeps its servers; a second time changes nothing.
    let kept = parsed(&client);
    assert_eq!(kept["mcpServers"]["The Stub"]["command"], "python3");
    assert!(kept["mcpServers"]["sandcell"]["command"].is_string());
    said(&install(&place, &["cursor", "--tools"]));
    assert_eq!(std::fs::read_to_string(&own).unwrap(), before);
    // A table of the operator stays as it is.
    std::fs::write(&own, format!("# mine\n{}", before.replace("python3", "other"))).unwrap();
    let text = said(&install(&place, &["cursor", "--tools"]));
    assert!(text.contains("[tools.the_stub] is already in"), "{text}");
    assert!(std::fs::read_to_string(&own).unwrap().contains("other"));
    // Settings that cannot take the tables leave the client as it is, too.
    let client_before = std::fs::read_to_string(&client).unwrap();
    std::fs::write(&own, "tools = {}\n").unwrap();
    std::fs::remove_file(client.with_file_name("mcp.json.before-sandcell")).unwrap();
    std::fs::write(&client, settings.to_string()).unwrap();
    let failed = install(&place, &["cursor", "--tools"]);
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert_eq!(std::fs::read_to_string(&client).unwrap(), settings.to_string());
    std::fs::write(&client, client_before).unwrap();
    // The programs of a repository do not become the user's.
    let refused = install(&place, &["claude-code", "--project", "--tools"]);
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("cannot be used with"),
        "{refused:?}"
    );
    std::fs::write(&own, format!("# mine\n{before}")).unwrap();
    // The written table works, and asks: nobody can answer here.
    let server = Client::start(&mut place.command(&["serve", "--config", own.to_str().unwrap()]));
    let ran = server.run(
        "print(tools.the_stub.add.__name__)\ntry: tools.the_stub.add(a=1, b=1)\nexcept tools.ToolDenied as e: print(e)",
    );
    assert!(
        ran.output().contains("add\n") && ran.output().contains("has to approve"),
        "{}",
        ran.all()
    );
}
