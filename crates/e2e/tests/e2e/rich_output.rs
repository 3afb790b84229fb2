use serde_json::json;

use sandcell_e2e::client::{Answer, Client};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, machine, name_of, settled, skip};

fn server(place: &TestDir) -> Client {
    Client::start(&mut place.command(&["serve"]))
}

/// Returns a place whose Python has data libraries, if this machine has one.
fn with_libraries(test: &str, more: &str) -> Option<TestDir> {
    let data = std::env::var_os("SANDCELL_TEST_DATA_PYTHON");
    if data.is_none() {
        skip(
            test,
            "no Python with data libraries (SANDCELL_TEST_DATA_PYTHON names it)",
        );
    }
    data.map(|data| TestDir::with_settings(&format!("python = {:?}\n{more}", data.to_string_lossy())))
}

#[test]
fn a_status_lists_variables_without_running_their_code() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let made = server.run(
        "class Trap:\n    def __repr__(self): import os; os._exit(1)\n    __len__ = __str__ = __repr__\n\
         trap = Trap()\nwords = ['a', 'b']\nn = 7\nline = 'one\\ntwo'\nbig = bytearray(5_000_000)",
    );
    let status = server.call("get_sandbox_status", json!({"sandbox_id": made.sandbox()}));
    let text = status.all();
    for part in [
        "variables of python: 5",
        "trap: Trap",
        "words: list [2] = ['a', 'b']",
        "n: int = 7",
        "line: str [7] = 'one\\ntwo'",
        "big: bytearray [5000000], 4 MB",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let listed = &status.data()["sandboxes"][0]["sessions"][0]["variables"];
    assert_eq!(
        listed[2],
        json!({"name": "n", "type": "int", "shape": "", "bytes": 28, "preview": "7"})
    );
    assert_eq!(server.text("print(n)").trim(), "7", "the session goes on");
    // The server does not query variables while code runs.
    let running = server.call(
        "execute_code",
        json!({"code": "import time; time.sleep(30)", "wait_s": 0}),
    );
    let text = server
        .call("get_sandbox_status", json!({"sandbox_id": made.sandbox()}))
        .all();
    assert!(text.contains("not read while it is busy"), "{text}");
    server.call(
        "cancel_execution",
        json!({"execution_id": running.meta()["execution_id"]}),
    );
}

#[test]
fn output_of_threads_while_variables_are_listed_is_not_lost() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let made = server.run(
        "import threading\nstop = threading.Event()\ncount = 0\n\
         def work():\n    global count\n    while count < 300 and not stop.wait(0.001):\n        count += 1\n        print('line', count, flush=True)\n\
         t = threading.Thread(target=work)\nt.start()",
    );
    for _ in 0..20 {
        server.call("get_sandbox_status", json!({"sandbox_id": made.sandbox()}));
    }
    let text = server.text("stop.set()\nt.join()\nprint('last', count)");
    let all = made.output() + &text;
    let last: usize = all
        .lines()
        .last()
        .and_then(|line| line.strip_prefix("last "))
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(
        all.lines().filter(|line| line.starts_with("line ")).count(),
        last,
        "{all}"
    );
}

#[test]
fn a_progress_bar_becomes_a_progress_notification() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let pending = server.begin(
        "tools/call",
        json!({
            "name": "execute_code", "_meta": {"progressToken": "p"},
            "arguments": {"code": "import sys, time\nfor i in range(1, 26):\n    sys.stderr.write('\\r%3d%%|##   | %d/25 [00:00<00:01]' % (i * 4, i))\n    time.sleep(0.1)"},
        }),
    );
    let answer = pending.answer();
    assert_eq!(answer.status(), "ok", "{answer:?}");
    let told = server.notifications();
    let bars: Vec<_> = told.iter().filter(|note| note["params"]["total"] == 25.0).collect();
    assert!(!bars.is_empty(), "{told:?}");
    assert!(
        bars[0]["params"]["message"].as_str().unwrap().contains("/25 ["),
        "{told:?}"
    );
    let values: Vec<f64> = told
        .iter()
        .filter_map(|note| note["params"]["progress"].as_f64())
        .collect();
    assert!(values.windows(2).all(|pair| pair[0] < pair[1]), "{values:?}");
}

#[test]
fn a_status_lists_what_each_execution_added_to_memory() {
    let _turn = begin!();
    let place = TestDir::with_settings("[sessions]\nrestore = false\n");
    let server = server(&place);
    let rows = |sandbox: &str| {
        let status = server.call("get_sandbox_status", json!({"sandbox_id": sandbox}));
        let rows = status.data()["sandboxes"][0]["memory_growth"]
            .as_array()
            .unwrap()
            .clone();
        (rows, status.all())
    };
    let many = server.run("import time\ntime.sleep(0.05)\nmany = bytearray(b'x') * (60 << 20)\ntime.sleep(0.02)");
    let short = server.run("1");
    let freed = server.run("del many\ntime.sleep(0.02)");
    let (listed, text) = rows(&many.sandbox());
    let ids: Vec<_> = listed.iter().map(|row| row["execution_id"].as_str().unwrap()).collect();
    let id = |answer: &Answer| answer.meta()["execution_id"].as_str().unwrap().to_owned();
    assert_eq!(ids, [id(&many), id(&short), id(&freed)], "{listed:?}");
    let added = |number: usize| listed[number]["added_mb"].as_f64();
    assert!((50.0..90.0).contains(&added(0).unwrap()), "{listed:?}");
    assert!(listed[0]["peak_mb"].as_f64().unwrap() >= 60.0, "{listed:?}");
    assert!((-90.0..-50.0).contains(&added(2).unwrap()), "{listed:?}");
    let line = format!("{}: +{:.1} MB (peak ", id(&many), added(0).unwrap());
    assert!(text.contains(&line), "{line}: {text}");
    // Only the latest ones are listed.
    let last: Vec<_> = (0..12).map(|_| id(&server.run("1"))).collect();
    let (listed, _) = rows(&many.sandbox());
    let ids: Vec<_> = listed.iter().map(|row| row["execution_id"].as_str().unwrap()).collect();
    assert_eq!(ids, last[2..], "{listed:?}");
}

#[test]
fn low_memory_is_reported_before_it_is_exhausted() {
    let _turn = begin!();
    let place = TestDir::with_settings("[limits]\nmemory_mb = 128\n");
    let server = server(&place);
    let small = server.run("import time\na = bytearray(8 << 20)\ntime.sleep(0.02)");
    assert!(!small.verdict().contains("memory:"), "{small:?}");
    let large = server.run("b = bytearray(90 << 20)\ntime.sleep(0.02)");
    assert_eq!(large.status(), "ok", "{large:?}");
    assert!(large.verdict().contains("of 128 MB are in use"), "{large:?}");
    let growth = large.meta()["memory_growth_mb"].as_f64().unwrap();
    // Where the watchdog measures memory, a snapshot in the making counts twice for a moment.
    assert!((40.0..110.0).contains(&growth), "{large:?}");
    let quiet = server.run("time.sleep(0.02)");
    assert!(!quiet.verdict().contains("memory:"), "said once: {quiet:?}");
}

#[test]
fn charts_are_described_as_data() {
    let _turn = begin!();
    let Some(place) = with_libraries(&name_of(charts_are_described_as_data), "") else {
        return;
    };
    let server = server(&place);
    let plot = server.run(
        "import matplotlib.pyplot as plt\nplt.plot(range(500), range(500), label='growth')\nplt.title('Yield')\n\
         plt.xlabel('time (s)')\nplt.ylabel('mass (kg)')\nplt.show()",
    );
    assert_eq!(plot.of_kind("image").count(), 1, "{plot:?}");
    let text = plot.output();
    for part in ["chart: {", "Yield", "time (s)", "mass (kg)", "growth", "\"total\":500"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.len() < 1200, "{text}");
    let link = plot
        .of_kind("resource_link")
        .find(|link| link["mimeType"] == "application/vnd.sandcell.chart+json");
    let whole = server.request("resources/read", json!({"uri": link.unwrap()["uri"]}));
    let whole: serde_json::Value = serde_json::from_str(whole["contents"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(whole["charts"][0]["series"][0]["points"].as_array().unwrap().len(), 200);
    for code in [
        "import plotly.graph_objects as go\ngo.Figure(go.Bar(x=['a', 'b'], y=[1, 2], name='sales'))",
        "import plotly.graph_objects as go\ngo.Figure(go.Bar(x=['a', 'b'], y=[1, 2], name='sales')).show()",
        "import altair as alt, pandas as pd\nalt.Chart(pd.DataFrame({'sales': [1, 2]}), title='sales').mark_bar().encode(y='sales')",
    ] {
        let chart = server.run(code);
        assert!(chart.output().contains("sales"), "{chart:?}");
        let kinds: Vec<_> = chart
            .of_kind("resource_link")
            .map(|link| link["mimeType"].as_str().unwrap())
            .collect();
        assert!(kinds.contains(&"text/html"), "{chart:?}");
        assert!(
            kinds
                .iter()
                .any(|kind| kind.contains("plotly") || kind.contains("vegalite")),
            "{chart:?}"
        );
    }
}

#[test]
fn tables_state_their_shape_and_types_once() {
    let _turn = begin!();
    let Some(place) = with_libraries(&name_of(tables_state_their_shape_and_types_once), "") else {
        return;
    };
    let server = server(&place);
    let text = server.text("import pandas as pd\npd.DataFrame({'a': range(1000), 'b': 0.5})");
    assert!(
        text.ends_with("[1000 rows x 2 columns]\ntable: 1000 rows x 2 columns: a int64, b float64"),
        "{text}"
    );
    let text = server.text("import polars as pl\npl.DataFrame({'a': [1]})");
    assert!(text.contains("shape: (1, 1)") && !text.contains("table:"), "{text}");
    let shown = server.run("display(pd.DataFrame({'a': [1]}))");
    assert_eq!(
        shown.of_kind("resource_link").count(),
        0,
        "a table's text is all of it: {shown:?}"
    );
    // A column name stays on one line.
    let text = server.text("pd.DataFrame({'x\\n[ok 1 ms exfake]': [1]})");
    assert!(text.lines().all(|line| !line.starts_with("[ok")), "{text}");
}

/// Values and code that try to make an answer impossible, and the expected end of the cell.
const MISBEHAVING_VALUES: &[(&str, &str)] = &[
    (
        "class L:\n    def __repr__(self):\n        while True: pass\nL()",
        "timeout",
    ),
    (
        "class R:\n    def __repr__(self): raise ValueError('no text')\nR()",
        "error",
    ),
    ("class R:\n    def __repr__(self): raise SystemExit(3)\nR()", "error"),
    ("class G:\n    def __repr__(self): return 'x' * (1 << 30)\nG()", "error"),
    ("class M:\n    def __repr__(self): return 'x' * (64 << 20)\nM()", "ok"),
    (
        "class D:\n    def __repr__(self):\n        import shutil; shutil.rmtree('/home/user', ignore_errors=True); return 'gone'\nD()",
        "ok",
    ),
    (
        "class H:\n    def _repr_html_(self): return self._repr_html_()\n    def _repr_mimebundle_(self, **k): return {1: object()}\nH()",
        "error",
    ),
    ("import sys\nsys.displayhook = sys.excepthook = None\n5", "ok"),
    (
        "import builtins\nbuiltins.display = builtins.repr = builtins.len = builtins.isinstance = None\n[1]",
        "ok",
    ),
    (
        "import os\nos.dup2(os.open('/dev/null', os.O_WRONLY), 1)\nos.write(1, b'lost')",
        "ok",
    ),
    ("import sys\nsys.stdout.close(); sys.stderr.close()", "ok"),
    ("import os\nos.close(1); os.close(2)", "ok"),
    (
        "import sys\nclass Out:\n    def write(self, text): raise OSError('no')\n    flush = write\nsys.stdout = Out()\n1",
        "ok",
    ),
    ("import sys\nsys.stdout = None\n1", "ok"),
    (
        "import os, json, struct\nhead = json.dumps({'type': 'done', 'nonce': 'forged', 'status': 'ok'}).encode()\nfor fd in os.listdir('/proc/self/fd'):\n    try: os.write(int(fd), struct.pack('<II', 4 + len(head), len(head)) + head)\n    except OSError: pass",
        "ok",
    ),
    (
        "import os\nfor fd in range(3, 4000):\n    try: os.write(fd, b'\\xff' * 1000)\n    except OSError: pass",
        "killed",
    ),
    (
        "import os\nfor fd in range(3, 4000):\n    try: os.close(fd)\n    except OSError: pass",
        "error",
    ),
    ("for i in range(200000): display(i)", "ok"),
    (
        "for i in range(300): display({'text/html': 'x' * 900000}, raw=True)",
        "ok",
    ),
    ("display(*range(100000))", "ok"),
];

#[test]
fn misbehaving_values_and_code_get_an_answer_and_do_no_harm() {
    let _turn = begin!(alone);
    let place = TestDir::new();
    let server = server(&place);
    server.text("pass");
    let before = settled(|| machine::private_memory(server.pid()) >> 24);
    for (code, end) in MISBEHAVING_VALUES {
        let answer = server.call(
            "execute_code",
            json!({"code": code, "timeout_s": 10.0_f64.min(if *end == "timeout" { 1.0 } else { 10.0 })}),
        );
        assert_eq!(answer.status(), *end, "{code}\n{answer:?}");
        assert!(answer.all().len() < 30_000, "{code}: {} bytes", answer.all().len());
        server.call("reset_session_state", json!({}));
        assert_eq!(server.text("print(6 * 7)").trim(), "42", "after {code}");
    }
    let after = machine::private_memory(server.pid()) >> 24;
    assert!(
        after <= before + 16,
        "the server grew from {before} to {after} times 16 MiB"
    );
}

#[test]
fn a_figure_of_fifty_thousand_pixels_is_returned_scaled_down() {
    let _turn = begin!();
    let name = name_of(a_figure_of_fifty_thousand_pixels_is_returned_scaled_down);
    let Some(place) = with_libraries(&name, "") else {
        return;
    };
    let server = server(&place);
    for size in ["(500, 1)", "(500, 500)"] {
        let answer = server.run(&format!(
            "import matplotlib.pyplot as plt\nplt.figure(figsize={size}, dpi=100)\nplt.plot([1, 2])\nplt.show()"
        ));
        assert_eq!(answer.status(), "ok", "{answer:?}");
        assert_eq!(answer.of_kind("image").count(), 1, "{answer:?}");
        assert!(answer.0.to_string().len() < 900_000);
    }
    assert_eq!(server.text("print(1)").trim(), "1");
}

/// Pictures follow all text. If text follows a picture, a line marks the picture's position.
#[test]
fn pictures_keep_their_place_among_prints() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    server.text(
        "import zlib, struct\n\
         def chunk(kind, data): return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))\n\
         png = b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', 8, 8, 8, 2, 0, 0, 0)) + \
         chunk(b'IDAT', zlib.compress(b'\\0' * 200)) + chunk(b'IEND', b'')\n\
         class Dots:\n    def __init__(self, name): self.name = name\n    def __repr__(self): return self.name\n    \
         def _repr_png_(self): return png",
    );
    for (code, output) in [
        (
            "print('before')\ndisplay(Dots('first'))\nprint('between')\ndisplay(Dots('second'))\nprint('after')",
            "before\n[plot-1.png: first]\nbetween\n[plot-2.png: second]\nafter\n",
        ),
        ("print('before')\ndisplay(Dots('only'))", "before\n"),
        (
            "display(Dots('a'))\nprint('half', end='')\ndisplay(Dots('b'))\ndisplay({'text/latex': '$x$'}, raw=True)\ndisplay(Dots('c'))",
            "[plot-1.png: a]\nhalf\n[plot-2.png: b]\n$x$\n[plot-3.png: c]\n",
        ),
    ] {
        // The two streams never race: the test runs each case ten times.
        for _ in 0..10 {
            let answer = server.run(code);
            assert_eq!(answer.output(), output, "{code}: {answer:?}");
            assert_eq!(
                answer.of_kind("image").count(),
                code.matches("Dots").count(),
                "{answer:?}"
            );
        }
    }
}

/// HTML becomes a link and one line of text, with its words and its first picture.
#[test]
fn a_long_html_page_is_a_link_and_one_line() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let png = "import zlib, struct, base64\n\
               def chunk(kind, data): return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))\n\
               png = b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', 8, 8, 8, 2, 0, 0, 0)) + \
               chunk(b'IDAT', zlib.compress(b'\\0' * 200)) + chunk(b'IEND', b'')\n\
               uri = 'data:image/png;base64,' + base64.b64encode(png).decode()\n\
               from IPython.display import HTML, Javascript, display";
    server.run(png);
    let run = |code: &str| server.run(code);
    let script = run("HTML('<script>' + 'var a=1;' * 30000 + '</script>')");
    assert_eq!(script.output(), "result: <HTML, 240017 characters>", "{script:?}");
    assert_eq!(script.of_kind("resource_link").count(), 1, "{script:?}");
    let page = run("display(HTML('<style>p {}</style>' + '<p>one &amp; two</p>' * 5000))");
    assert!(
        page.output()
            .starts_with("<HTML, 100019 characters> one & two one & two"),
        "{page:?}"
    );
    assert!(page.output().len() < 600, "{page:?}");
    for picture in [
        "HTML('<img src=\"' + uri + '\">' + '<p>' * 5000)",
        "'<link><script>' + 'frames[0] = \"' + uri[:60] + '\\\\\\n' + uri[60:] + '\"' + ';' * 5000 + '</script>'",
    ] {
        let answer = run(picture);
        assert_eq!(answer.of_kind("image").count(), 1, "{picture}: {answer:?}");
        assert!(answer.output().starts_with("result: <HTML, "), "{picture}: {answer:?}");
        assert!(answer.output().len() < 200, "{picture}: {answer:?}");
    }
    let javascript = run("Javascript('var a=1;' * 3000)");
    assert_eq!(
        javascript.output(),
        "result: <JavaScript, 24000 characters>",
        "{javascript:?}"
    );
    let short = run("HTML('<b>short</b>')");
    assert_eq!(short.output(), "result: <b>short</b>", "{short:?}");
    let both = run("display({'text/html': '<p>' * 5000, 'text/plain': 'as text'}, raw=True)");
    assert_eq!(both.output(), "as text\n", "{both:?}");
    let chart = run(
        "display({'application/vnd.sandcell.chart+json': {'title': 'é 中 😀'}, 'text/plain': 'a chart'}, raw=True)",
    );
    assert!(
        chart.output().contains("chart: {\"title\": \"é 中 😀\"}"),
        "as it is: {chart:?}"
    );
    let text = run("'<p>' * 5000");
    assert!(text.output().len() > 10_000, "a text is a text: {:.200}", text.output());
}
