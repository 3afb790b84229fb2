//! Familiar calls from other servers that run code: their own examples and test scripts, as calls of the three sets of
//! tools. The names, fields, booleans, outputs and counts are the same.

use serde_json::{Value, json};

use crate::packages::{command, stocked};
use sandcell_e2e::client::Client;
use sandcell_e2e::docker::Daemon;
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, name_of, skip, turns::Turn};

#[track_caller]
fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

#[track_caller]
fn script(server: &Client, code: &str, more: Value) -> Value {
    let mut arguments = json!({"code": code});
    let more = more.as_object().unwrap().clone();
    arguments.as_object_mut().unwrap().extend(more);
    let answer = server.call("run_code", arguments);
    assert!(!answer.is_error(), "{answer:?}");
    let data = answer.data().clone();
    assert_eq!(keys(&data), ["duration_ms", "error", "stderr", "stdout", "success"]);
    data
}

/// The self-test script of such a server, step by step.
#[test]
fn a_known_test_script_of_the_script_tools_gives_the_same_results() {
    fn here() {}
    let _turn = begin!();
    let Ok(data) = std::env::var("SANDCELL_TEST_DATA_PYTHON") else {
        skip(
            &name_of(here),
            "no Python with data libraries (SANDCELL_TEST_DATA_PYTHON names it)",
        );
        return;
    };
    let place = TestDir::with_settings(&format!("python = \"{data}\"\n"));
    let server = Client::start(&mut place.command(&["serve", "--toolset", "script"]));

    let basic = script(&server, "print('hello from sandbox')\nprint(1 + 1)", json!({}));
    assert_eq!(basic["success"], true, "{basic}");
    assert_eq!(basic["stdout"], "hello from sandbox\n2\n");

    let endless = script(&server, "while True: pass", json!({"timeout": 2}));
    assert_eq!((&endless["success"], &endless["stdout"]), (&json!(false), &json!("")));
    assert!(endless["error"].as_str().unwrap().contains("2 s"), "{endless}");

    let import = script(&server, "import os\nprint(os.getcwd())", json!({}));
    assert_eq!((&import["success"], &import["duration_ms"]), (&json!(false), &json!(0)));
    assert!(import["error"].as_str().unwrap().contains("os"), "{import}");

    let eval = script(&server, "result = eval('1+1')\nprint(result)", json!({}));
    assert_eq!((&eval["success"], &eval["stdout"]), (&json!(false), &json!("")));

    let numpy = "import numpy as np\narr = np.array([1, 2, 3, 4, 5])\n\
                 print(f'mean={arr.mean():.2f}, std={arr.std():.2f}')";
    let numpy = script(&server, numpy, json!({}));
    assert_eq!(numpy["stdout"], "mean=3.00, std=1.41\n", "{numpy}");

    let reset = server.call("reset_session_state", json!({}));
    assert_eq!(keys(reset.data()), ["message", "note", "success"]);
    assert!(reset.data()["message"].as_str().unwrap().contains('5'), "{reset:?}");
    script(&server, "print('step 1')", json!({}));
    script(&server, "print('step 2')", json!({}));
    let history = server.call("get_execution_history", json!({"last_n": 5}));
    let history = history.data();
    assert_eq!(
        keys(history),
        ["installed_packages", "records", "session_start", "total"]
    );
    assert_eq!(
        (&history["total"], &history["installed_packages"]),
        (&json!(2), &json!([]))
    );
    let records = history["records"].as_array().unwrap();
    assert_eq!(records.len(), 2);
    assert_eq!(
        (&records[0]["stdout_preview"], &records[1]["stdout_preview"]),
        (&json!("step 2\n"), &json!("step 1\n"))
    );
    for field in [
        "timestamp",
        "success",
        "duration_ms",
        "code_preview",
        "stdout_preview",
        "error",
    ] {
        assert!(records[0].get(field).is_some(), "{field}: {}", records[0]);
    }

    let plot = "
import matplotlib
matplotlib.use('Agg')  # 非交互式后端,不弹窗
import matplotlib.pyplot as plt
import math
x = [i * 0.1 for i in range(63)]
y = [math.sin(v) for v in x]
plt.figure(figsize=(8, 4))
plt.plot(x, y, 'b-', linewidth=2)
plt.title('Sine Wave')
plt.savefig('/tmp/test_plot.png', dpi=72, bbox_inches='tight')
print('图表已保存到 /tmp/test_plot.png')
";
    let plot = script(&server, plot, json!({"timeout": 15}));
    assert_eq!(plot["stdout"], "图表已保存到 /tmp/test_plot.png\n", "{plot}");
    let png = script(&server, "print(open('/tmp/test_plot.png', 'rb').read(4))", json!({}));
    assert_eq!(png["stdout"], "b'\\x89PNG'\n", "{png}");

    // Such servers warn about displays and encodings; here no display is needed, and no encoding must be set.
    let plain = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nprint('中文', '🎉')";
    let plain = script(&server, plain, json!({"timeout": 15}));
    assert_eq!(
        (&plain["success"], &plain["stdout"]),
        (&json!(true), &json!("[plot-1.png: Figure 640x480: line]\n中文 🎉\n"))
    );
}

#[test]
fn previews_are_cut_and_counts_are_kept_as_other_servers_do() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Client::start(&mut place.command(&["serve", "--toolset", "script"]));
    let long = format!("print('x' * 300) #{}", "y".repeat(200));
    script(&server, &long, json!({}));
    script(&server, "import socket", json!({}));
    let history = |last_n: i64| {
        server
            .call("get_execution_history", json!({"last_n": last_n}))
            .data()
            .clone()
    };
    let all = history(50);
    assert_eq!(all["total"], 2, "what was rejected counts: {all}");
    let first = &all["records"][1];
    assert_eq!(first["code_preview"], format!("{}...", &long[..100]));
    assert_eq!(first["stdout_preview"], format!("{}...", "x".repeat(200)));
    assert_eq!((&first["success"], &first["error"]), (&json!(true), &json!("")));
    // Values out of range become the nearest value in range.
    for (last_n, count) in [(0, 1), (-3, 1), (1000, 2)] {
        assert_eq!(history(last_n)["records"].as_array().unwrap().len(), count, "{last_n}");
    }
}

/// The tools of a server of sandboxes, in the order of its list.
#[test]
fn the_tools_of_other_sandbox_servers_behave_as_named() {
    let _turn = begin!();
    let place = TestDir::new();
    let index = stocked();
    let server = Client::start(&mut command(&place, &index.url(), &["serve"]));
    let made = server.call("create_sandbox", json!({}));
    let id = made.data()["sandbox_id"].clone();
    assert!(id.is_string(), "{made:?}");
    let with = |mut arguments: Value| {
        arguments["sandbox_id"] = id.clone();
        arguments
    };
    let status = server.call("get_sandbox_status", with(json!({})));
    assert!(!status.is_error(), "{status:?}");

    let ran = server.call("execute_code", with(json!({"code": "x = 41\nprint(x + 1)"})));
    assert_eq!((ran.status(), ran.output().trim()), ("ok", "42"), "{ran:?}");
    let installed = server.call("install_package", with(json!({"package": "demo-one==1.0"})));
    assert!(installed.all().contains("demo-one"), "{installed:?}\n{}", server.log());
    let used = server.call(
        "execute_code",
        with(json!({"code": "import demo_one\nprint(demo_one.answer, x)"})),
    );
    assert_eq!(used.output().trim(), "42 41", "{used:?}");

    let written = server.call("write_file", with(json!({"path": "notes/a.txt", "content": "héllo\n"})));
    assert!(!written.is_error(), "{written:?}");
    let uploaded = server.call(
        "upload_file",
        with(json!({"path": "data.bin", "content_base64": "AAEC"})),
    );
    assert!(!uploaded.is_error(), "{uploaded:?}");
    let listed = server.call("list_files", with(json!({"recursive": true})));
    assert!(
        listed.all().contains("notes/a.txt") && listed.all().contains("data.bin"),
        "{listed:?}"
    );
    let read = server.call("read_file", with(json!({"path": "notes/a.txt"})));
    assert!(read.all().contains("héllo"), "{read:?}");
    let seen = server.call(
        "execute_code",
        with(json!({"code": "print(list(open('data.bin', 'rb').read()))"})),
    );
    assert_eq!(seen.output().trim(), "[0, 1, 2]");

    let once = server.call(
        "create_run_close",
        json!({"code": "print('x' in globals())", "packages": ["demo-one==1.0"]}),
    );
    assert_eq!(once.output().trim(), "False", "{once:?}");
    assert_ne!(json!(once.sandbox()), id);
    let closed = server.call("close_sandbox", with(json!({})));
    assert!(!closed.is_error(), "{closed:?}");
    // The sandbox is gone for every tool.
    for (tool, arguments) in [
        ("execute_code", json!({"code": "1"})),
        ("read_file", json!({"path": "notes/a.txt"})),
        ("close_sandbox", json!({})),
    ] {
        assert!(server.call(tool, with(arguments)).is_error(), "{tool}");
    }
}

/// Started as the settings of a client start such a server: with only the daemon's address in the environment.
#[test]
fn the_tools_of_container_servers_start_use_and_remove_one() {
    fn here() {}
    let Some(daemon) = Daemon::find(&name_of(here)) else {
        return;
    };
    let _turn = Turn::shared();
    let place = TestDir::new();
    let mut command = place.command(&["serve", "--toolset", "container"]);
    // A server that must pull an image for its list of languages would only wait.
    let server = Client::start(command.envs([
        ("DOCKER_HOST", daemon.host.as_str()),
        ("SANDCELL_DOCKER__IMAGE", daemon.image.as_str()),
        ("SANDCELL_POOL__PARKED", "0"),
    ]));
    let listed = server.request("tools/list", json!({}));
    let tools = listed["tools"].as_array().unwrap();
    let field = |tool: &str, field: &str| {
        let tool = tools.iter().find(|one| one["name"] == tool).unwrap();
        tool["inputSchema"]["properties"][field]["default"].clone()
    };
    assert_eq!(field("initialize_sandbox", "image"), "alpine:latest");
    assert_eq!(field("execute_code", "language"), "python");

    let started = server.call("initialize_sandbox", json!({"image": daemon.image}));
    assert!(!started.is_error(), "{started:?}\n{}", server.log());
    assert_eq!(started.data()["isolation"]["backend"], "docker", "{started:?}");
    assert!(!daemon.containers(server.pid()).is_empty());
    let ran = server.run("import sys\nprint('out')\nprint('err', file=sys.stderr)");
    assert!(ran.all().contains("out") && ran.all().contains("err"), "{ran:?}");
    // No network, no rights, and no more processor and memory than the limits say.
    let away = server.run("import urllib.request\nurllib.request.urlopen('http://192.0.2.1/', timeout=5)");
    assert_eq!(away.cause(), "network_denied", "{away:?}");
    let held = server.text(
        "import os\nprint(os.getuid() != 0, [line.split()[1] for line in open('/proc/self/status') if line.startswith('CapEff')])",
    );
    assert!(held.contains("True ['0000000000000000']"), "{held}");
    let wrong = server.run("print(");
    assert!(wrong.all().contains("SyntaxError"), "{wrong:?}");
    let unknown = server.call("execute_code", json!({"code": "1", "language": "klingon"}));
    assert!(unknown.is_error() && unknown.all().contains("python"), "{unknown:?}");
    let stopped = server.call("stop_sandbox", json!({}));
    assert!(!stopped.is_error(), "{stopped:?}");
    assert!(daemon.containers(server.pid()).is_empty());
}
