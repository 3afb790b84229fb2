use std::fmt::Write as _;

use serde_json::json;

use sandcell_e2e::client::{Answer, Client};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, name_of, skip};

/// Common failures of code written by language models, as `(description, code)`. Each is a cell of one session.
const COMMON_FAILURES: &[(&str, &str)] = &[
    ("a module whose package has another name", "import cv2"),
    ("another one", "from sklearn.linear_model import LinearRegression"),
    ("and one more", "import bs4, yaml"),
    ("a module that is misspelt", "import panda as pd"),
    (
        "a name that a module does not have",
        "from collections import OrderDict",
    ),
    ("Colab", "from google.colab import drive"),
    (
        "a file that is elsewhere",
        "import os\nos.makedirs('data', exist_ok=True)\nopen('data/sales.csv', 'w').write('a,b\\n1,2\\n')\nimport pandas as pd\ndf = pd.read_csv('sales.csv')",
    ),
    (
        "a file that is nowhere",
        "with open('/mnt/data/input.txt') as f:\n    text = f.read()",
    ),
    (
        "a column that is misspelt",
        "df = pd.DataFrame({'Name': ['Ann'], 'Total Sales': [3]})\ndf['total sales'].sum()",
    ),
    ("several columns", "df[['Name', 'Age']]"),
    (
        "a key that is not there",
        "config = {'host': 'localhost', 'port': 80}\nprint(config['hostname'])",
    ),
    (
        "an index out of range",
        "rows = [1, 2, 3]\nfor i in range(4):\n    last = rows[i]",
    ),
    ("a removed method", "df = df.append({'Name': 'Bob'}, ignore_index=True)"),
    ("an attribute that is misspelt", "text = 'abc'\ntext.uppercase()"),
    (
        "nothing where something should be",
        "import re\nm = re.search('x', 'abc')\nm.group(0)",
    ),
    ("types that do not add", "total = '5'\ntotal + 10"),
    (
        "shapes that do not fit",
        "import numpy as np\na = np.ones((3, 2))\nb = np.ones((3, 3))\na @ b",
    ),
    ("a conversion", "values = ['1', '2', 'n/a']\n[int(v) for v in values]"),
    (
        "an error deep in functions",
        "def load(rows):\n    return [parse(r) for r in rows]\ndef parse(row):\n    name, age = row.split(',')\n    return name, int(age)\nload(['Ann,31', 'Bob'])",
    ),
    (
        "a chain",
        "def read(path):\n    try:\n        return open(path).read()\n    except FileNotFoundError as error:\n        raise RuntimeError('no settings') from error\nread('settings.ini')",
    ),
    ("a name that is misspelt", "customers = [1]\nprint(len(custmers))"),
    ("a usual import forgotten", "np2 = 1\nplt2 = json.dumps({})"),
    ("JSON that is none", "import json\njson.loads(\"{'a': 1}\")"),
    (
        "bytes that are no UTF-8",
        "open('latin.txt', 'wb').write('caf\u{e9}'.encode('latin-1'))\nopen('latin.txt').read()",
    ),
    (
        "no network",
        "import urllib.request\nurllib.request.urlopen('https://example.com/data.csv')",
    ),
    ("no network for pandas", "pd.read_csv('https://example.com/data.csv')"),
    (
        "a server that is not there",
        "import socket\nsocket.create_connection(('127.0.0.1', 8000))",
    ),
    (
        "a server that never ends",
        "import http.server\nhttp.server.HTTPServer(('127.0.0.1', 8000), http.server.SimpleHTTPRequestHandler).serve_forever()",
    ),
    ("an endless loop", "n = 0\nwhile True:\n    n += 1"),
    ("input without standard input", "name = input('Your name: ')"),
    ("a read-only place", "open('/usr/share/out.txt', 'w')"),
    ("a system folder", "import os\nos.mkdir('/opt2')"),
    ("too much memory", "x = [0] * (10 ** 10)"),
    ("recursion", "def down(n):\n    return down(n + 1)\ndown(0)"),
    (
        "a full disk",
        "with open('big.bin', 'wb') as f:\n    for _ in range(10000):\n        f.write(bytes(1 << 20))",
    ),
    (
        "a program that is not there",
        "import os\nos.remove('big.bin')\nimport subprocess\nsubprocess.run(['no-such-program', '-version'])",
    ),
    ("a command that is not there", "!no-such-command --version"),
    ("a Markdown fence", "```python\nprint('hello')\n```"),
    ("typographic quotes", "print(\u{201c}hello\u{201d})"),
    ("a shell command as code", "pip install numpy"),
    (
        "a bracket that is never closed",
        "data = {\n    'a': [1, 2,\n    'b': 3\nprint(data)",
    ),
    ("a missing colon", "for i in range(3)\n    print(i)"),
    ("an indentation", "def f():\n    a = 1\n     b = 2\n    return a"),
    ("JavaScript's words", "ok = true"),
    (
        "a module called like a function",
        "import datetime\ndatetime(2024, 1, 1)",
    ),
    (
        "a failing check",
        "def mean(xs):\n    assert len(xs) > 0, 'xs is empty'\n    return sum(xs) / len(xs)\nmean([])",
    ),
    ("a dead interpreter", "import ctypes\nctypes.string_at(0)"),
    ("what came before it is gone", "print(len(customers))"),
];

/// Returns the text for a model, without parts that differ from run to run.
fn read(answer: &Answer, number: usize) -> String {
    let mut text = answer.all();
    for id in [
        answer.meta()["execution_id"].as_str(),
        answer.meta()["sandbox_id"].as_str(),
    ] {
        text = text.replace(id.unwrap_or("?"), "ID");
    }
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut line = line.replace(&format!("<cell {number}>"), "<cell>");
        // Times and library paths.
        if line.starts_with('[') && line.contains("ID") {
            line = line
                .split(' ')
                .filter(|word| !word.starts_with(|c: char| c.is_ascii_digit()) && *word != "ms" && *word != "s")
                .collect::<Vec<_>>()
                .join(" ");
        }
        if let Some((before, after)) = line.split_once("the last at File \"") {
            let place = after.rsplit(", in ").next().unwrap_or_default();
            line = format!("{before}the last in {place}");
        }
        if !line.starts_with("degraded isolation") {
            lines.push(line.trim_end().to_owned());
        }
    }
    lines.join("\n")
}

#[test]
fn failures_state_the_next_step() {
    let _turn = begin!();
    let Some(data) = std::env::var_os("SANDCELL_TEST_DATA_PYTHON") else {
        skip(
            &name_of(failures_state_the_next_step),
            "no Python with data libraries (SANDCELL_TEST_DATA_PYTHON names it)",
        );
        return;
    };
    let settings = format!(
        "python = {:?}\n[limits]\ndisk_mb = 16\n[sessions]\nrestore = false\n",
        data.to_string_lossy()
    );
    let place = TestDir::with_settings(&settings);
    let server = Client::start(&mut place.command(&["serve"]));
    let mut transcript = String::new();
    let mut cells = 0;
    for (what, code) in COMMON_FAILURES {
        // Loading takes longer from a disk that other programs keep busy.
        let seconds = if code.contains("import pandas") { 60 } else { 2 };
        let answer = server.call("execute_code", json!({"code": code, "timeout_s": seconds}));
        cells += 1;
        let shown = read(&answer, cells);
        write!(transcript, "#### {what}\n{code}\n----\n{shown}\n\n").unwrap();
        if answer.state_lost() {
            cells = 0;
        }
    }
    insta::assert_snapshot!("failures", transcript);
}
