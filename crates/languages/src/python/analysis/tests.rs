use std::collections::BTreeSet;
use std::time::Duration;

use super::*;

fn advice() -> Advice {
    Advice {
        network: false,
        stdin: false,
        modules: Some(BTreeSet::from(["numpy".to_owned()])),
    }
}

/// The findings as `rule line:column`, in order.
fn found(source: &str) -> Vec<String> {
    analyse(source, &advice())
        .iter()
        .map(|finding| format!("{} {}:{}", finding.rule, finding.line, finding.column))
        .collect()
}

fn denied(source: &str) -> bool {
    analyse(source, &advice())
        .iter()
        .any(|finding| finding.severity == Severity::Deny)
}

#[test]
fn every_strict_finding_is_found_in_any_spelling() {
    for source in [
        "import os",
        "import os.path as p",
        "import json, sys",
        "from os import path",
        "from urllib.request import urlopen",
        "from urllib import request",
        "from http.client import HTTPConnection",
        "from http import (json, client as c)",
        "import xml; import subprocess",
        "if True: import shutil",
        "try: from socket import *\nexcept: pass",
        "def f():\n    import ctypes",
        "import \\\n  pickle",
        "eval('1')",
        "x = [exec(y)]",
        "e = eval\ne('1')",
        "import builtins as b\nb.eval('1')",
        "from builtins import eval as e\ne('x')",
        "getattr(x, 'y')",
        "import importlib as i\ni.import_module('os')",
        "f(compile('x', 'y', 'exec'))",
        "def f(:",
        "x = 'abc",
        "print((1)",
    ] {
        assert!(denied(source), "{source}: {:?}", found(source));
    }
}

#[test]
fn ordinary_code_has_no_strict_findings() {
    for source in [
        "import math, json\nfrom collections import Counter\nprint(Counter('abc'))",
        "import numpy as np\nnp.random.default_rng(1).normal(size=3)",
        "x = 'import os; eval(1)'  # import sys",
        "\"\"\"\nimport os\n\"\"\"",
        "model.eval()\nre.compile('x')\ndf.eval('a + b')\nself.exec()",
        "def eval(x):\n    return x",
        "class compile(object): pass",
        "osmium = 1\nimport osmium_local_thing if False else None",
        "d = {'a': [1, (2, 3)]}\nf'{d[\"a\"]}'\nr'\\''\nb''",
        "x = 5 if y else 6; z = x",
        "@decorator\nasync def f(): await g()",
        "print(f\"{'nested'}\")",
    ] {
        assert!(!denied(source), "{source}: {:?}", found(source));
    }
}

#[test]
fn hints_say_where_and_what() {
    assert_eq!(found("x = 1\nname = input('? ')"), ["input-without-stdin 2:8"]);
    assert_eq!(found("import requests"), ["network 1:8", "missing-import 1:8"]);
    assert_eq!(found("import PIL.Image"), ["missing-import 1:8"]);
    let pil = analyse("from PIL import Image", &advice());
    assert!(pil[0].message.contains("pillow"), "{pil:?}");
    assert_eq!(
        found("import uvicorn as u\nu.run(app)").last().map(String::as_str),
        Some("blocking 2:1")
    );
    assert_eq!(found("while True: pass"), ["blocking 1:1"]);
    assert_eq!(found("from .near import x\nfrom . import y"), [""; 0]);
    assert_eq!(found("é = 1; exec(é)"), ["call 1:8", "opaque 1:8"]);
    let open = Advice {
        network: true,
        stdin: true,
        modules: None,
    };
    assert_eq!(analyse("import requests\ninput()", &open), []);
}

/// The maximum cost of a mebibyte of any source, as a multiple of a mebibyte of plain lines (on this machine, in this
/// build). The most expensive source has many short statements. It costs three times as much, and on a busy machine up to
/// six times as much. Quadratic time would cost a thousand times as much.
const MAX_COST_FACTOR: u32 = 30;

/// Returns the minimum of this thread's processor time over some rounds, which excludes other load on the machine.
fn processor_time(work: impl Fn() -> Vec<Finding>) -> (Duration, usize) {
    let now = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
    };
    let round = |_| {
        let began = now();
        let found = work().len();
        (now() - began, found)
    };
    (0..3).map(round).min().unwrap()
}

#[test]
fn a_mebibyte_of_deep_nesting_takes_bounded_time_and_stack() {
    let deep = 100_000;
    let sources = [
        "(".repeat(deep) + &")".repeat(deep),
        "[".repeat(1 << 20),
        "1+".repeat(deep) + "1",
        format!("f{}", "()".repeat(deep)),
        format!("a{}", ".b".repeat(deep)),
        format!("x = a{}\nx()", ".b".repeat(deep)),
        "-".repeat(1 << 20),
        "not ".repeat(1 << 18),
        "lambda: ".repeat(deep),
        "eval(".repeat(deep),
        (0..400).map(|depth| format!("{}if x:\n", " ".repeat(depth))).collect(),
        "import ".repeat(1 << 17),
        "import a,".repeat(1 << 16),
        "from a import b; ".repeat(1 << 16),
        "a = b\n".repeat(1 << 17),
        "\"".repeat(1 << 20),
        "x".repeat(1 << 20),
        "é;".repeat(1 << 18),
    ];
    let plain = |length: usize| {
        let source = "total = total + 1\n".repeat(length / 18);
        processor_time(|| analyse(&source, &advice())).0
    };
    // Linear time: about eight times as much, not sixty-four times.
    let (eighth, plain) = (plain(1 << 17), plain(1 << 20));
    assert!(plain < 16 * eighth, "{plain:?}, an eighth {eighth:?}");
    for source in sources {
        let (took, findings) = processor_time(|| analyse(&source, &advice()));
        assert!(findings <= FINDINGS_MAX);
        assert!(
            took < MAX_COST_FACTOR * plain,
            "{took:?}, plain lines {plain:?}: {:?}",
            source.get(..20)
        );
    }
}

#[test]
fn notebook_syntax_is_refused_and_operators_are_not() {
    let advice = Advice {
        network: false,
        stdin: true,
        modules: None,
    };
    let denied = |source: &str| analyse(source, &advice).iter().any(|found| found.rule == "notebook");
    for source in [
        "!ls",
        "x = !ls -l",
        "%time x = 1",
        "x = 1\n!id",
        "if x:\n    !id",
        "%%bash\nid",
    ] {
        assert!(denied(source), "{source}");
    }
    for source in [
        "a != b",
        "x = a!=b",
        "print(f'{a!r}')",
        "a % b",
        "x = (a\n % b)",
        "x = a % b",
        "# !ls",
        "'''\n!ls\n'''",
    ] {
        assert!(!denied(source), "{source}");
    }
}
