//! Deployment files: the systemd units, and the Dockerfile.

use std::io::Write as _;
use std::process::{Command, Stdio};

use sandcell_e2e::docker::Daemon;
use sandcell_e2e::{binary, is_root, name_of, not_required, sources};

#[test]
fn systemd_accepts_the_units() {
    fn here() {}
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        not_required(&name_of(here), "no systemd-analyze");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (unit, program) in [
        ("sandcell.service", "/usr/local/bin/sandcell"),
        ("sandcell-user.service", "%h/.local/bin/sandcell"),
    ] {
        let text = std::fs::read_to_string(sources().join("packaging/systemd").join(unit)).unwrap();
        assert!(
            text.contains(&format!("ExecStart={program} serve --http 127.0.0.1:")),
            "{unit}"
        );
        assert!(text.contains("\nDelegate="), "{unit}");
        // The features that sandboxes need must not be restricted.
        for forbidden in [
            "ProtectProc",
            "ProtectKernel",
            "ProtectControlGroups",
            "RestrictNamespaces",
            "SystemCallFilter",
            "PrivateUsers",
        ] {
            assert!(!text.contains(&format!("\n{forbidden}")), "{unit}: {forbidden}");
        }
        let there = text.replace(program, &binary().display().to_string());
        std::fs::write(folder.path().join(unit), there).unwrap();
        let output = Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(folder.path().join(unit))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains(unit), "{unit}: {said}");
    }
}

/// Returns the `docker run` options that the recipe documents.
fn documented_options(recipe: &str) -> Vec<String> {
    let comments = recipe.lines().filter_map(|line| line.strip_prefix("#"));
    let words: Vec<&str> = comments
        .flat_map(str::split_whitespace)
        .filter(|word| *word != "\\")
        .collect();
    let start = words
        .windows(2)
        .position(|pair| pair == ["docker", "run"])
        .expect("a docker run");
    let mut options = Vec::new();
    for pair in words[start..].windows(2) {
        if ["--security-opt", "--cap-drop", "--memory", "--pids-limit"].contains(&pair[0]) {
            options.extend([pair[0].to_owned(), pair[1].to_owned()]);
        }
    }
    assert_eq!(options.len(), 12, "{options:?}");
    options
}

#[test]
fn the_container_recipe_builds_and_runs_code_as_it_is_documented() {
    let _turn = sandcell_e2e::begin!();
    fn here() {}
    if !is_root() {
        println!("{}: root has made this image already", name_of(here));
        return;
    }
    let Some(daemon) = Daemon::find(&name_of(here)) else {
        return;
    };
    let file = sources().join("packaging/container/Containerfile");
    let recipe = std::fs::read_to_string(&file).unwrap();
    let guide = std::fs::read_to_string(sources().join("docs/guides/service.md")).unwrap();
    let options = documented_options(&recipe);
    for pair in options.chunks(2) {
        assert!(guide.contains(&pair.join(" ")), "the guide lacks {pair:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(binary(), folder.path().join("sandcell")).unwrap();
    let tag = format!("sandcell-recipe-{}", std::process::id());
    let docker = |arguments: &[&str]| {
        let mut command = daemon.command(arguments);
        command.env("DOCKER_BUILDKIT", "0");
        command
    };
    let base = format!("BASE={}", daemon.image);
    let built = docker(&["build", "--network", "none", "--build-arg", &base, "-t", &tag, "-f"])
        .arg(&file)
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let run = |more: &[&str], words: &[&str]| {
        let mut command = docker(&["run", "--rm", "--interactive", "--network", "none"]);
        command.args(&options).args(more).arg(&tag).args(words);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(b"print(6 * 7)").unwrap();
        let output = child.wait_with_output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    let strict = ["--read-only", "--tmpfs", "/tmp", "--security-opt", "no-new-privileges"];
    let ran = [run(&[], &["run", "-"]), run(&strict, &["run", "--json", "-"])];
    // An address that others can reach is not served without a token.
    let open = run(&[], &["serve", "--http", "0.0.0.0:8808"]);
    let removed = docker(&["rmi", "--force", &tag]).output().unwrap();
    assert!(removed.status.success(), "{removed:?}");
    assert_eq!(ran[0].trim(), "42");
    assert!(
        ran[1].contains("\"level\": \"namespace\"") && ran[1].contains("\"42\\n\""),
        "{}",
        ran[1]
    );
    assert!(open.contains("token create"), "{open}");
}
