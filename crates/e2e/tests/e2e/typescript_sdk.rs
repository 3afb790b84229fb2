use std::process::{Command, Stdio};

use sandcell_e2e::http::Server;
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, name_of, skip, sources};

/// Runs the script with one generation of the official SDK: over standard input and output, over HTTP, and over
/// standard input and output to a running server.
fn client(test: &str, generation: &str) {
    let of = |name| std::env::var_os(name);
    let (Some(node), Some(modules)) = (of("SANDCELL_TEST_NODE"), of("SANDCELL_TEST_NODE_MODULES")) else {
        skip(
            test,
            "no Node 22 with the official MCP SDKs (see CONTRIBUTING.md; SANDCELL_TEST_NODE and \
             SANDCELL_TEST_NODE_MODULES name them)",
        );
        return;
    };
    let place = TestDir::new();
    let stdio = place.command(&["serve"]);
    let program = stdio.get_program().to_string_lossy().into_owned();
    let http = Server::start(&place, &[]);
    let url = format!("http://{}/mcp", http.address);
    for way in [
        &["stdio", &program, "serve"][..],
        &["http", &url],
        &["stdio", &program, "serve", "--connect", &url],
    ] {
        let output = Command::new(&node)
            .arg(sources().join("crates/e2e/tests/node_clients/client.mjs"))
            .arg(generation)
            .arg(&modules)
            .args(way)
            .env_clear()
            .envs(stdio.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .current_dir(place.work())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(output.status.success(), "{said}");
        assert!(said.contains("all steps passed"), "{said}");
    }
}

#[test]
fn the_first_generation_works_over_both_transports() {
    let _turn = begin!();
    client(&name_of(the_first_generation_works_over_both_transports), "v1");
}

#[test]
fn the_second_generation_works_over_both_transports() {
    let _turn = begin!();
    client(&name_of(the_second_generation_works_over_both_transports), "v2");
}
