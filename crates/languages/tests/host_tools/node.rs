use std::process::{Command, Stdio};

use sandcell_languages::{Settings, detect};
use sandcell_sandbox::{CellStatus, Program};

use crate::stub::Stub;
use crate::support::HostSandbox;
use crate::{EXECUTION_ID, Live, Ran, find, session};

impl Live {
    async fn value(&mut self, code: &str) -> String {
        let ran = self.run(code).await;
        assert_eq!(ran.status, CellStatus::Ok, "{code}: {ran:?}");
        ran.result
    }
}

/// Returns (name, message, traceback) of the error that a cell ended with.
fn error_of(ran: &Ran) -> (&str, &str, &str) {
    match &ran.status {
        CellStatus::Error(error) => (&error.name, &error.message, &error.traceback),
        _ => panic!("not an error: {ran:?}"),
    }
}

#[tokio::test]
async fn a_session_calls_tools_as_functions() {
    let stub = Stub::start();
    let mut node = session!("javascript", Some(&stub));
    for (code, expected) in [
        (
            "await tools.demo.echo({n: [1, null], x: 'é'})",
            "{ n: [ 1, null ], x: 'é' }",
        ),
        ("await tools.demo.echo()", "{}"),
        ("await tools.call('demo.get-item', {x: 1})", "{ x: 1 }"),
        ("await tools.demo.text()", "'héllo\\n'"),
        (
            "const b = await tools.demo.bytes(); [b.toString('hex'), b.mime]",
            "[ '000102', 'image/png' ]",
        ),
        ("await tools.demo.list()", "[ 'a', [ 1 ] ]"),
        ("await tools.demo.nothing() === undefined", "true"),
        ("(await tools.demo.repeat({count: 300_000})).length", "300000"),
        ("(await tools.demo.echo({x: 'é'.repeat(300_000)})).x.length", "300000"),
        ("(await tools.servers())[0].name", "'demo'"),
        (
            "(await tools.search('a é', {limit: 2}))[0].description",
            "'At /v1/tools?query=a%20%C3%A9&limit=2.'",
        ),
        ("(await tools.list('demo')).length", "2"),
    ] {
        assert_eq!(node.value(code).await, expected, "{code}");
    }
    let listed = node.value("await tools.list('demo')").await;
    assert!(
        listed.contains("tools.demo.get_item({x: string}) — At /v1/tools?server=demo."),
        "{listed}"
    );
    let calls = stub.take_calls();
    assert!(
        calls.iter().all(|(execution, _)| execution == EXECUTION_ID),
        "{calls:?}"
    );
    assert_eq!(stub.connections(), 1, "sequential calls share a connection");
}

#[tokio::test]
async fn only_names_of_tools_are_calls() {
    let stub = Stub::start();
    let mut node = session!("javascript", Some(&stub));
    let code = "await tools; await tools.demo; console.log(tools, `${typeof tools.then} ${typeof tools.demo[Symbol.iterator]}`); \
                JSON.stringify(tools.demo)";
    assert_eq!(node.value(code).await, "'{}'");
    assert_eq!(stub.take_calls(), []);
    // A name of a tool with other letters than an identifier has.
    let code = "await tools.demo.get_item({x: 1}); await tools.demo.set_item(); await tools.demo['get-item']()";
    node.value(code).await;
    let called: Vec<String> = stub.take_calls().into_iter().map(|(_, name)| name).collect();
    assert_eq!(called, ["demo.get-item", "demo.set_item", "demo.get-item"]);
}

#[tokio::test]
async fn a_failed_call_throws_an_error_with_the_remedy() {
    let stub = Stub::start();
    let mut node = session!("javascript", Some(&stub));
    let caught = "try { await tools.demo.fail() } catch (e) { \
                  console.log(e instanceof tools.ToolError, e.name, e.code, e.tool, '|', e.message, '|', e.remedy) }";
    let ran = node.run(caught).await;
    assert_eq!(
        ran.stdout, "true ToolError tool_failed demo.fail | it went wrong | do it right\n",
        "{ran:?}"
    );
    let ran = node.run("const one = 1;\nawait tools.demo.fail()").await;
    assert_eq!(
        error_of(&ran),
        (
            "ToolError",
            "it went wrong",
            "ToolError: it went wrong; do it right\n    at async cell2.js:2:1"
        )
    );
    // Nobody waits for it: it is reported as any other rejection.
    let ran = node
        .run("tools.demo.fail(); await new Promise((done) => setTimeout(done, 50)); 1")
        .await;
    assert_eq!(error_of(&ran).1, "it went wrong");
    for (arguments, expected) in [
        ("1", "one object"),
        ("[1]", "one object"),
        ("{a: {b: NaN}}", "b is NaN"),
        ("{a: 1n}", "a is a BigInt"),
        ("{a: new Map()}", "a is a Map"),
        ("{a: Buffer.from('x')}", "a has bytes"),
        ("globalThis", "circular"),
    ] {
        stub.take_calls();
        let ran = node.run(&format!("await tools.demo.echo({arguments})")).await;
        assert!(error_of(&ran).1.contains(expected), "{ran:?}");
        assert_eq!(stub.take_calls(), [], "{arguments}");
    }
}

#[tokio::test]
async fn at_most_sixteen_calls_run_at_once_and_their_connections_are_reused() {
    let stub = Stub::start();
    let mut node = session!("javascript", Some(&stub));
    let code = "const all = await Promise.all([...Array(200).keys()].map((x) => tools.demo.echo({x}))); \
                all.every(({x}, n) => x === n)";
    assert_eq!(node.value(code).await, "true");
    assert_eq!(
        node.value(
            code.replace("const all", "const more")
                .replace("all.", "more.")
                .as_str()
        )
        .await,
        "true"
    );
    assert_eq!(stub.take_calls().len(), 400);
    assert!(stub.connections() <= 16, "{}", stub.connections());
}

#[tokio::test]
async fn a_pending_call_ends_neither_late_nor_with_its_cell() {
    let stub = Stub::start();
    let mut node = session!("javascript", Some(&stub));
    // The stub never answers.
    assert_eq!(node.value("tools.demo.wait(); 5").await, "5");
    assert_eq!(node.value("await tools.demo.echo({x: 1})").await, "{ x: 1 }");
    let interrupter = node.interrupter();
    let interrupt = async {
        stub.until_waiting(2).await;
        interrupter.interrupt().await.unwrap();
    };
    let (ran, ()) = tokio::join!(node.run("await tools.demo.wait()"), interrupt);
    assert!(matches!(ran.status, CellStatus::Interrupted(_)), "{ran:?}");
    assert_eq!(node.value("await tools.demo.text()").await, "'héllo\\n'");
}

#[tokio::test]
async fn a_variable_of_the_code_wins_and_without_tools_there_is_no_name() {
    let stub = Stub::start();
    for code in [
        "let tools = 3; tools",
        "tools = 3; tools",
        "var tools = 3; tools",
        "globalThis.tools = 3; tools",
    ] {
        let mut node = session!("javascript", Some(&stub));
        assert_eq!(node.value(code).await, "3", "{code}");
    }
    let mut node = session!("javascript", None);
    assert_eq!(node.value("typeof tools").await, "'undefined'");
}

#[tokio::test]
async fn a_program_calls_tools_and_ends() {
    let stub = Stub::start();
    let Some(language) = find(&detect(&Settings::default()), "javascript") else {
        return;
    };
    let place = tempfile::tempdir().unwrap();
    let sandbox = HostSandbox::with_variables(&[("SANDCELL_TOOLS_URL", stub.url.as_str())]);
    let run = |code: &str| {
        use sandcell_sandbox::Sandbox as _;
        let Program { files, run, .. } = language.program(code, &[], sandbox.base_env()).unwrap();
        let names: Vec<&str> = files
            .iter()
            .map(|(path, _)| path.as_str().rsplit('/').next().unwrap())
            .collect();
        for ((_, bytes), name) in files.iter().zip(&names) {
            std::fs::write(place.path().join(name), bytes).unwrap();
        }
        let mut command = Command::new(&run.argv[0]);
        command
            .arg(place.path().join(names[0]))
            .stdin(Stdio::null())
            .env_clear();
        // The script that is loaded first lies elsewhere here.
        let preload = format!("--require {}", place.path().join(names[1]).display());
        let ran = command.envs(&run.env).env("NODE_OPTIONS", preload).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (ran.status.code(), text(&ran.stdout), text(&ran.stderr))
    };
    let module = "export {}; console.log(await tools.demo.echo({x: 1})); tools.demo.text().then(console.log);";
    assert_eq!(run(module), (Some(0), "{ x: 1 }\nhéllo\n\n".to_owned(), String::new()));
    let (status, _, stderr) = run("async function main() { await tools.demo.fail(); }\nmain();");
    assert!(
        status == Some(1) && stderr.contains("ToolError: it went wrong; do it right"),
        "{stderr}"
    );
    assert_eq!(run("const tools = 3; console.log(tools)").1, "3\n");
}
