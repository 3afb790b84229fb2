//! Calls of the host's tools by code of a session. A stub of the tools port answers them.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::support::{HostSandbox, Python, language};

/// A grey pixel, in base64.
const GREY_PIXEL_BASE64: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mP4DwABAQEAHLCMmQAAAABJRU5ErkJggg==";

/// A call that the stub has received.
#[derive(Debug, Clone)]
struct Call {
    /// The number of its connection, in the order of their arrival.
    connection: usize,
    execution: Option<String>,
    server: String,
    tool: String,
    arguments: Value,
}

/// An event of a call of `wait`, which the stub never answers.
#[derive(Debug, PartialEq, Eq)]
enum Waiting {
    Begun,
    ConnectionClosed,
}

/// A stub of the tools port, with a thread for each connection. The threads end with the test program.
struct Stub {
    url: String,
    calls: Arc<Mutex<Vec<Call>>>,
    waiting: mpsc::UnboundedReceiver<Waiting>,
}

impl Stub {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let calls = Arc::new(Mutex::new(Vec::new()));
        let (events, waiting) = mpsc::unbounded_channel();
        let seen = Arc::clone(&calls);
        std::thread::spawn(move || {
            for (connection, stream) in listener.incoming().enumerate() {
                let (seen, events) = (Arc::clone(&seen), events.clone());
                std::thread::spawn(move || serve(connection, &stream.unwrap(), &seen, &events));
            }
        });
        Self { url, calls, waiting }
    }

    /// Returns the calls since the last request for them.
    fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    async fn next_event(&mut self) -> Waiting {
        let event = tokio::time::timeout(Duration::from_secs(60), self.waiting.recv());
        event.await.expect("the call arrives").unwrap()
    }

    /// Starts a session with the stub's tools; none if this machine has no Python.
    async fn session(&self) -> Option<Python> {
        let sandbox = HostSandbox::with_variables(&[("SANDCELL_TOOLS_URL", self.url.as_str())]);
        Some(Python::inside(&language()?, sandbox).await)
    }
}

/// Answers requests until the client closes the connection.
fn serve(connection: usize, stream: &TcpStream, calls: &Mutex<Vec<Call>>, events: &mpsc::UnboundedSender<Waiting>) {
    stream.set_nodelay(true).unwrap();
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    while let Some((path, execution, body)) = read_request(&mut reader) {
        let (status, answer) = if path == "/v1/call" {
            let text = |name: &str| body[name].as_str().unwrap().to_owned();
            let call = Call {
                connection,
                execution,
                server: text("server"),
                tool: text("tool"),
                arguments: body["arguments"].clone(),
            };
            calls.lock().unwrap().push(call.clone());
            if call.tool == "wait" {
                let _ = events.send(Waiting::Begun);
                let closed = matches!(reader.read(&mut [0]), Ok(0) | Err(_));
                assert!(closed, "a client sends nothing before the answer");
                let _ = events.send(Waiting::ConnectionClosed);
                return;
            }
            result_of(&call)
        } else {
            (200, listing(&path))
        };
        let text = answer.to_string();
        let mut response = format!("HTTP/1.1 {status} Status\r\nContent-Type: application/json\r\n");
        write!(response, "Content-Length: {}\r\n\r\n{text}", text.len()).unwrap();
        if writer.write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}

/// Returns (path, execution, body) of the next request; none at the end of the connection.
fn read_request(reader: &mut impl BufRead) -> Option<(String, Option<String>, Value)> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|size| *size > 0)?;
    let path = line.split(' ').nth(1).unwrap().to_owned();
    let (mut execution, mut size) = (None, 0);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(": ") else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "sandcell-execution" => execution = Some(value.to_owned()),
            "content-length" => size = value.parse().unwrap(),
            _ => {}
        }
    }
    let mut body = vec![0; size];
    reader.read_exact(&mut body).ok()?;
    let body = match size {
        0 => Value::Null,
        _ => serde_json::from_slice(&body).unwrap(),
    };
    Some((path, execution, body))
}

fn listing(path: &str) -> Value {
    let tool = |server: &str, name: &str, properties: Value, required: Value| {
        let schema = json!({"type": "object", "properties": properties, "required": required});
        json!({
            "server": server, "name": name, "title": null, "description": format!("Stub {name}."),
            "input_schema": schema, "output_schema": null, "read_only": false, "asks": false,
        })
    };
    let demo = [
        tool(
            "demo",
            "echo",
            json!({"x": {}, "limit": {"type": "integer", "default": 30}}),
            json!(["x"]),
        ),
        tool("demo", "result", json!({"value": {"type": "object"}}), json!(["value"])),
        tool("demo", "fail", json!({"code": {"type": "string"}}), json!([])),
        tool("demo", "wait", json!({}), json!([])),
    ];
    let odd = ["search-issues", "2fast", "import"].map(|name| tool("my.server-x", name, json!({}), json!([])));
    match path {
        "/v1/servers" => json!({"servers": [
            {"name": "demo", "description": "Stub tools"}, {"name": "my.server-x", "description": ""},
        ]}),
        "/v1/tools?server=demo" => json!({"tools": demo, "total": demo.len(), "failed": []}),
        "/v1/tools?server=my.server-x" => json!({"tools": odd, "total": odd.len(), "failed": []}),
        _ => panic!("an unexpected request: {path}"),
    }
}

/// Returns the status and the body of the answer to a call.
fn result_of(call: &Call) -> (u16, Value) {
    match call.tool.as_str() {
        "result" => (200, call.arguments["value"].clone()),
        "fail" => {
            let error = json!({"code": call.arguments["code"], "message": "it went wrong", "remedy": "do it right"});
            (500, json!({"error": error}))
        }
        _ => (200, json!({"kind": "json", "value": call.arguments})),
    }
}

/// Starts a session with the stub's tools, or returns from the test if this machine has no Python.
macro_rules! session {
    ($stub:expr) => {
        match $stub.session().await {
            Some(python) => python,
            None => return,
        }
    };
}

#[tokio::test]
async fn a_tool_is_called_with_keyword_arguments_and_each_kind_of_result_is_a_python_value() {
    let stub = Stub::start();
    let mut python = session!(stub);
    for (code, expected) in [
        (
            "tools.demo.echo(x={'a': [1, 2.5, None, True, 'é']}, limit=3)",
            "{'limit': 3, 'x': {'a': [1, 2.5, None, True, 'é']}}",
        ),
        ("def result(**value): return tools.demo.result(value=value)", ""),
        ("result(kind='json', value=[1, {'a': None}])", "[1, {'a': None}]"),
        ("result(kind='text', text='héllo')", "'héllo'"),
        ("result(kind='nothing') is None", "True"),
        (
            "sound = result(kind='audio', mime='audio/wav', data='AAAA')\nsound, bytes(sound), sound.mime",
            "(<audio/wav, 3 bytes>, b'\\x00\\x00\\x00', 'audio/wav')",
        ),
        (
            "page = result(kind='resource', uri='file:///a', mime='text/plain', text='content')\npage, page.uri, page.mime",
            "('content', 'file:///a', 'text/plain')",
        ),
        (
            "result(kind='resource', uri='file:///b', mime=None, data='AAAA')",
            "<bytes, 3 bytes of file:///b>",
        ),
        (
            "result(kind='link', uri='https://x', name='X')",
            "ToolLink(uri='https://x', name='X')",
        ),
        (
            "result(kind='list', items=[{'kind': 'text', 'text': 'a'}, {'kind': 'json', 'value': 1}])",
            "['a', 1]",
        ),
    ] {
        assert_eq!(python.run(code).await.ok().text(), expected, "{code}");
    }
    let calls = stub.take_calls();
    assert_eq!((calls[0].server.as_str(), calls[0].tool.as_str()), ("demo", "echo"));
    let arguments = json!({"x": {"a": [1, 2.5, null, true, "é"]}, "limit": 3});
    assert_eq!(calls[0].arguments, arguments);
}

#[tokio::test]
async fn a_picture_of_a_tool_is_displayed() {
    let stub = Stub::start();
    let mut python = session!(stub);
    let picture =
        format!("tools.demo.result(value={{'kind': 'image', 'mime': 'image/png', 'data': '{GREY_PIXEL_BASE64}'}})");
    let ran = python.run(&picture).await.ok();
    assert_eq!(ran.text(), "<image/png, 67 bytes>");
    assert!(ran.result.unwrap().get("image/png").unwrap().starts_with(b"\x89PNG"));
    let ran = python.run(&format!("display({picture})")).await.ok();
    assert!(ran.displays[0].get("image/png").unwrap().starts_with(b"\x89PNG"));
}

#[tokio::test]
async fn a_call_names_the_execution_of_its_cell() {
    let stub = Stub::start();
    let mut python = session!(stub);
    for execution in [Some("exec-7"), Some("exec-8"), None] {
        python.execution = execution.map(str::to_owned);
        python.run("tools.demo.echo(x=1)").await.ok();
        let calls = stub.take_calls();
        assert_eq!(calls.len(), 1);
        assert_eq!(calls[0].execution.as_deref(), execution);
    }
}

#[tokio::test]
async fn a_failed_call_raises_the_class_of_its_error() {
    let stub = Stub::start();
    let mut python = session!(stub);
    for (code, class, base) in [
        ("tool_failed", "ToolError", "Exception"),
        ("tool_denied", "ToolDenied", "tools.ToolError"),
        ("tool_unavailable", "ToolUnavailable", "tools.ToolError"),
        ("timeout", "ToolTimeout", "TimeoutError"),
        ("limit_reached", "ToolLimit", "tools.ToolError"),
        ("invalid_argument", "ToolArgumentError", "TypeError"),
        ("not_found", "ToolNotFound", "LookupError"),
        ("cancelled", "ToolError", "Exception"),
        ("a_later_code", "ToolError", "Exception"),
    ] {
        let ran = python.run(&format!("tools.demo.fail(code='{code}')")).await;
        let error = ran.error();
        assert_eq!(
            (error.name.as_str(), error.message.as_str()),
            (class, "it went wrong; do it right")
        );
        assert!(!error.traceback.contains("<sandcell"), "{}", error.traceback);
        let caught = format!(
            "try: tools.demo.fail(code='{code}')\nexcept {base} as error: caught = error\n\
             type(caught) is tools.{class}, caught.code, caught.message, caught.remedy, caught.tool"
        );
        assert_eq!(
            python.run(&caught).await.ok().text(),
            format!("(True, '{code}', 'it went wrong', 'do it right', 'demo.fail')")
        );
    }
}

#[tokio::test]
async fn an_unknown_tool_or_server_names_similar_ones() {
    let stub = Stub::start();
    let mut python = session!(stub);
    for (code, class, similar) in [
        ("tools.demo.ehco(x=1)", "AttributeError", "tools.demo.echo"),
        ("tools.demmo", "AttributeError", "tools.demo"),
        ("tools.demo['ehco']", "ToolNotFound", "tools.demo.echo"),
        ("tools['my_servr_x']", "ToolNotFound", "tools.my_server_x"),
        ("from tools.demo import ehco", "ImportError", "ehco"),
        ("import tools.demmo", "ModuleNotFoundError", "tools.demmo"),
    ] {
        let ran = python.run(code).await;
        let error = ran.error();
        assert_eq!(error.name, class, "{code}");
        assert!(error.message.contains(similar), "{code}: {}", error.message);
    }
    assert!(stub.take_calls().is_empty());
}

#[tokio::test]
async fn a_positional_argument_is_a_type_error_that_shows_the_signature() {
    let stub = Stub::start();
    let mut python = session!(stub);
    let ran = python.run("tools.demo.echo(1)").await;
    let message = &ran.error().message;
    assert!(message.contains("echo(*, x, limit: int = 30)"), "{message}");
    let ran = python
        .run("try: tools.demo.echo(1)\nexcept TypeError as error: print(error.code)")
        .await
        .ok();
    assert_eq!(ran.stdout, "invalid_argument\n");
    assert!(stub.take_calls().is_empty());
}

#[tokio::test]
async fn help_describes_tools_and_the_ways_to_find_them() {
    let stub = Stub::start();
    let mut python = session!(stub);
    for (thing, text) in [
        ("tools", "tools.demo"),
        ("tools.demo", "echo"),
        ("tools.demo.echo", "limit (int, optional, default 30)"),
        ("tools.search", "Returns the tools that match the words best"),
        ("tools.demo.echo.acall", "without blocking"),
    ] {
        let ran = python.run(&format!("help({thing})")).await.ok();
        assert!(ran.stdout.contains(text), "{thing}: {}", ran.stdout);
    }
}

#[tokio::test]
async fn an_argument_without_a_json_form_is_refused_before_the_call() {
    let stub = Stub::start();
    let mut python = session!(stub);
    for (value, reason) in [
        ("{1}", "sorted(value)"),
        ("b'a'", "base64"),
        ("float('nan')", "nan"),
        ("2 ** 64", "64 bits"),
        ("object()", "type object"),
    ] {
        let ran = python.run(&format!("tools.demo.echo(x={value})")).await;
        let error = ran.error();
        assert_eq!(error.name, "ToolArgumentError", "{value}");
        assert!(error.message.contains("argument x"), "{value}: {}", error.message);
        assert!(error.message.contains(reason), "{value}: {}", error.message);
    }
    assert!(stub.take_calls().is_empty());
}

#[tokio::test]
async fn tools_whose_names_are_no_identifiers_can_be_called() {
    let stub = Stub::start();
    let mut python = session!(stub);
    for (code, tool) in [
        ("tools.my_server_x.search_issues()", "search-issues"),
        ("tools['my.server-x']['search-issues']()", "search-issues"),
        ("tools['my.server-x']['2fast']()", "2fast"),
        ("tools.my_server_x.import_()", "import"),
        ("tools.call('my.server-x.2fast')", "2fast"),
    ] {
        python.run(code).await.ok();
        let calls = stub.take_calls();
        assert_eq!(
            (calls[0].server.as_str(), calls[0].tool.as_str()),
            ("my.server-x", tool),
            "{code}"
        );
    }
    python.run("tools.call('my.server-x.2fast', {'a b': 1})").await.ok();
    assert_eq!(stub.take_calls()[0].arguments, json!({"a b": 1}));
}

#[tokio::test]
async fn tools_can_be_imported() {
    let stub = Stub::start();
    let mut python = session!(stub);
    for code in [
        "import tools\ntools.demo.echo(x=1)",
        "import tools as host\nhost.demo.echo(x=1)",
        "from tools import demo, ToolError\ndemo.echo(x=1)",
        "from tools.demo import echo\necho(x=1)",
        "import tools.my_server_x\ntools.demo.echo(x=1)",
    ] {
        assert_eq!(python.run(code).await.ok().text(), "{'x': 1}", "{code}");
    }
}

#[tokio::test]
async fn the_programs_own_module_tools_wins_once_it_is_imported() {
    let stub = Stub::start();
    let mut python = session!(stub);
    std::fs::write(python.sandbox.home().join("tools.py"), "own = 42\n").unwrap();
    assert_eq!(python.run("tools.demo.echo(x=1)").await.ok().text(), "{'x': 1}");
    assert_eq!(python.run("import tools\ntools.own").await.ok().text(), "42");
    assert_eq!(
        python.run("import tools.demo").await.error().name,
        "ModuleNotFoundError"
    );
    assert_eq!(
        python.run("del tools\ntools.demo.echo(x=2)").await.ok().text(),
        "{'x': 2}"
    );
}

#[tokio::test]
async fn tools_are_not_listed_among_the_variables() {
    let stub = Stub::start();
    let mut python = session!(stub);
    python.run("before = tools\nn = 1").await.ok();
    let code = "import tools\nfrom tools import demo\necho = demo.echo\nn = echo(x=1)['x']";
    for code in ["", code] {
        python.run(code).await.ok();
        let listed = python.session.variables().await.unwrap();
        let names: Vec<_> = listed.iter().map(|variable| variable.name.as_str()).collect();
        assert_eq!(names, ["n"], "{code}");
    }
    // Nor among the values of a failing line.
    let ran = python.run("tools.demo.fail(code=echo.name[n:])").await;
    let traceback = &ran.error().traceback;
    assert!(traceback.contains("where n = 1\n"), "{traceback}");
}

#[tokio::test]
async fn eight_threads_call_at_once_without_a_mix_up() {
    let stub = Stub::start();
    let mut python = session!(stub);
    // The threads also share the first use of the tools, which loads their code.
    let code = "import sys, threading\n\
                path, wrong, gate = list(sys.path), [], threading.Barrier(8)\n\
                def call(thread):\n\
                \x20   gate.wait()\n\
                \x20   for number in range(25):\n\
                \x20       if tools.demo.echo(x=[thread, number]) != {'x': [thread, number]}:\n\
                \x20           wrong.append([thread, number])\n\
                threads = [threading.Thread(target=call, args=(thread,)) for thread in range(8)]\n\
                for thread in threads: thread.start()\n\
                for thread in threads: thread.join()\n\
                wrong, sys.path == path";
    let ran = python.run(code).await.ok();
    assert_eq!((ran.text().as_str(), ran.stderr.as_str()), ("([], True)", ""));
    assert_eq!(stub.take_calls().len(), 8 * 25);
}

#[tokio::test]
async fn many_calls_can_be_awaited_at_once() {
    let stub = Stub::start();
    let mut python = session!(stub);
    let code = "import asyncio\n\
                results = await asyncio.gather(*[tools.demo.echo.acall(x=number) for number in range(40)])\n\
                [result['x'] for result in results] == list(range(40))";
    assert_eq!(python.run(code).await.ok().text(), "True");
    assert_eq!(stub.take_calls().len(), 40);
}

#[tokio::test]
async fn an_interrupt_ends_a_call_and_the_next_call_gets_its_own_result() {
    let mut stub = Stub::start();
    let mut python = session!(stub);
    for round in 0..3 {
        let interrupter = python.interrupter();
        let ((), ran) = tokio::join!(
            async {
                assert_eq!(stub.next_event().await, Waiting::Begun);
                interrupter.interrupt().await.unwrap();
            },
            python.run("kept = 5\ntools.demo.wait()"),
        );
        assert_eq!(ran.interrupted().name, "KeyboardInterrupt");
        assert_eq!(stub.next_event().await, Waiting::ConnectionClosed);
        let next = format!("tools.demo.echo(x={round})['x'], kept");
        assert_eq!(python.run(&next).await.ok().text(), format!("({round}, 5)"));
    }
}

#[tokio::test]
async fn a_fork_opens_its_own_connection() {
    let stub = Stub::start();
    let mut python = session!(stub);
    let code = "import os\n\
                tools.demo.echo(x='before')\n\
                source, sink = os.pipe()\n\
                child = os.fork()\n\
                if not child:\n\
                \x20   os.write(sink, tools.demo.echo(x='child')['x'].encode())\n\
                \x20   os._exit(0)\n\
                os.close(sink)\n\
                os.waitpid(child, 0)\n\
                tools.demo.echo(x='after')['x'], os.read(source, 100)";
    assert_eq!(python.run(code).await.ok().text(), "('after', b'child')");
    let calls = stub.take_calls();
    let connection = |text: &str| {
        let call = calls.iter().find(|call| call.arguments["x"] == text);
        call.unwrap().connection
    };
    assert_eq!(connection("before"), connection("after"));
    assert_ne!(connection("before"), connection("child"));
}

#[tokio::test]
async fn a_session_without_tools_does_not_know_the_name() {
    let mut python = crate::python!();
    assert_eq!(python.run("tools").await.error().name, "NameError");
    assert_eq!(python.run("import tools").await.error().name, "ModuleNotFoundError");
}
