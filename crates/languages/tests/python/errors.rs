//! Errors that teach: the caller's view of failed code.

use crate::python;
use crate::support::Python;

async fn failure(python: &mut Python, code: &str) -> (String, String, String) {
    let ran = python.run(code).await;
    let error = ran.error();
    assert!(!error.traceback.contains("sandcell "), "{}", error.traceback);
    assert!(!error.traceback.ends_with('\n'));
    (error.traceback.clone(), error.hint.clone(), error.class.clone())
}

#[tokio::test]
async fn a_traceback_points_at_the_callers_lines() {
    let mut python = python!();
    python.run("def f(a):\n    return 10 / a").await.ok();
    let (traceback, ..) = failure(&mut python, "x = 1\nf(0)").await;
    assert_eq!(
        traceback.lines().filter(|line| !line.contains('^')).collect::<Vec<_>>(),
        [
            "Traceback (most recent call last):",
            "  File \"<cell 2>\", line 2, in <module>",
            "    f(0)",
            "  File \"<cell 1>\", line 2, in f",
            "    return 10 / a",
            "    where a = 0",
            "ZeroDivisionError: division by zero",
        ]
    );
}

#[tokio::test]
async fn calls_inside_libraries_become_one_line() {
    let mut python = python!();
    let (traceback, ..) = failure(&mut python, "import json\njson.loads('{')").await;
    let lines: Vec<_> = traceback.lines().filter(|line| !line.contains('^')).collect();
    assert_eq!(
        lines[1..3],
        ["  File \"<cell 1>\", line 2, in <module>", "    json.loads('{')"]
    );
    assert!(lines[3].contains("calls inside json, the last at File"), "{traceback}");
    assert_eq!(lines.len(), 5, "{traceback}");
    assert!(lines[4].starts_with("json.decoder.JSONDecodeError: Expecting property name"));
}

#[tokio::test]
async fn chains_keep_their_causes() {
    let mut python = python!();
    let (traceback, ..) = failure(
        &mut python,
        "try:\n    {}['k']\nexcept KeyError as e:\n    raise ValueError('bad') from e",
    )
    .await;
    assert!(traceback.contains("KeyError: 'k'"), "{traceback}");
    assert!(traceback.contains("direct cause"), "{traceback}");
    assert!(traceback.ends_with("ValueError: bad"), "{traceback}");
    let (traceback, ..) = failure(
        &mut python,
        "try:\n    {}['k']\nexcept KeyError as e:\n    raise ValueError('bad') from None",
    )
    .await;
    assert!(!traceback.contains("KeyError"), "{traceback}");
}

#[tokio::test]
async fn a_syntax_error_shows_its_line_and_nothing_of_the_driver() {
    let mut python = python!();
    let (traceback, ..) = failure(&mut python, "x = 1\nif x\n    pass").await;
    assert!(
        traceback.starts_with("  File \"<cell 1>\", line 2\n    if x\n"),
        "{traceback}"
    );
    assert!(traceback.contains("SyntaxError: "), "{traceback}");
    assert!(!traceback.contains("Traceback"), "{traceback}");
    let (traceback, ..) = failure(&mut python, "return 1").await;
    assert!(traceback.contains("'return' outside function"), "{traceback}");
    let (traceback, ..) = failure(&mut python, "x = 'open").await;
    assert!(traceback.contains("line 1"), "{traceback}");
    let (traceback, ..) = failure(&mut python, "compile('1 +', 'other', 'exec')").await;
    assert!(
        traceback.contains("File \"<cell 4>\", line 1, in <module>"),
        "{traceback}"
    );
    let (traceback, ..) = failure(&mut python, "x = 1\0").await;
    assert!(traceback.contains("null bytes"), "{traceback}");
}

#[tokio::test]
async fn a_syntax_error_after_a_magic_is_the_one_reported() {
    let mut python = python!();
    let (traceback, ..) = failure(&mut python, "!true\nx = = 1").await;
    assert!(traceback.contains("line 2"), "{traceback}");
}

#[tokio::test]
async fn the_traceback_of_deep_recursion_is_short() {
    let mut python = python!();
    let (traceback, ..) = failure(&mut python, "def f(n):\n    return f(n + 1)\nf(0)").await;
    assert!(traceback.len() < 2000, "{traceback}");
    assert!(traceback.contains("Previous line repeated"), "{traceback}");
    assert!(
        traceback.contains("RecursionError: maximum recursion depth exceeded"),
        "{traceback}"
    );
}

#[tokio::test]
async fn long_messages_are_cut() {
    let mut python = python!();
    let ran = python.run("raise ValueError('x' * 10_000_000)").await;
    assert!(ran.error().message.len() < 5000);
    assert!(ran.error().message.ends_with("(10000000 characters in all)"));
    assert!(ran.error().traceback.len() < 10_000);
}

#[tokio::test]
async fn groups_of_exceptions_show_each_member() {
    let mut python = python!();
    if python.run("import sys; sys.version_info >= (3, 11)").await.ok().text() != "True" {
        println!("skipped: this Python has no exception groups");
        return;
    }
    let (traceback, ..) = failure(
        &mut python,
        "raise ExceptionGroup('many', [ValueError('a'), KeyError('b')])",
    )
    .await;
    for part in [
        "ExceptionGroup: many (2 sub-exceptions)",
        "ValueError: a",
        "KeyError: 'b'",
    ] {
        assert!(traceback.contains(part), "{traceback}");
    }
}

#[tokio::test]
async fn an_absent_module_names_the_package_to_install() {
    let mut python = python!();
    for (module, package) in [
        ("cv2", "opencv-python-headless"),
        ("skimage.io", "scikit-image"),
        ("no_such_thing_at_all", "no-such-thing-at-all"),
    ] {
        let ran = python.run(&format!("import {module}")).await;
        if ran
            .status
            .as_ref()
            .is_ok_and(|status| *status == sandcell_sandbox::CellStatus::Ok)
        {
            println!("skipped: {module} is here");
            continue;
        }
        assert!(ran.error().hint.contains(package), "{}", ran.error().hint);
    }
}

#[tokio::test]
async fn errors_with_known_causes_are_classified() {
    let mut python = python!();
    for (code, class) in [
        ("raise MemoryError", "memory"),
        ("x = bytearray(1 << 60)", "memory"),
        (
            "import socket\nraise socket.gaierror(-3, 'Temporary failure in name resolution')",
            "network",
        ),
        ("raise OSError(101, 'Network is unreachable')", "network"),
        (
            "try:\n    raise OSError(101, 'Network is unreachable')\nexcept OSError as e:\n    raise RuntimeError('fetch') from e",
            "network",
        ),
        (
            "s = socket.socket()\nclass S(socket.socket):\n    def connect(self, a): raise PermissionError(1, 'x')\nS().connect(1)",
            "",
        ),
        ("raise OSError(28, 'No space left on device')", "disk"),
        ("raise RuntimeError(\"can't start new thread\")", "processes"),
        ("def fork(): raise BlockingIOError(11, 'x')\nfork()", ""),
        (
            "import os\nclass X:\n    def fork(self): raise BlockingIOError(11, 'x')\ndef f(): return X().fork()\nf()",
            "",
        ),
        ("1/0", ""),
        ("open('/etc/shadow-that-is-not')", ""),
    ] {
        let (_, hint, found) = failure(&mut python, code).await;
        assert_eq!(found, class, "{code}: {hint}");
    }
}

#[tokio::test]
async fn near_misses_are_suggested() {
    let mut python = python!();
    python.run("customers = 1\nopen('data.csv', 'w').close()").await.ok();
    for (code, part) in [
        ("custmers", "customers"),
        ("np.zeros(3)", "import numpy as np"),
        ("json.dumps(1)", "import json"),
        ("true", "True"),
        ("open('dta.csv')", "data.csv"),
        ("pip install x", "pip"),
        ("```python\n1\n```", "fence"),
    ] {
        let (_, hint, _) = failure(&mut python, code).await;
        assert!(hint.contains(part), "{code}: {hint}");
    }
}

#[tokio::test]
async fn a_warning_is_shown_once_for_each_place() {
    let mut python = python!();
    let ran = python
        .run("import warnings\nfor i in range(3): warnings.warn('careful')")
        .await
        .ok();
    assert_eq!(
        ran.stderr.matches("<cell 1>:2: UserWarning: careful").count(),
        1,
        "{}",
        ran.stderr
    );
    let ran = python.run("\nwarnings.warn('careful')").await.ok();
    assert_eq!(
        ran.stderr.matches("<cell 2>:2: UserWarning: careful").count(),
        1,
        "{}",
        ran.stderr
    );
    python.run("def f():\n    warnings.warn('deep')").await.ok();
    assert_eq!(python.run("f()").await.ok().stderr.matches("deep").count(), 2);
    assert_eq!(python.run("f()").await.ok().stderr, "");
    python.run("warnings.simplefilter('always')").await.ok();
    assert_eq!(
        python
            .run("f(); f()")
            .await
            .ok()
            .stderr
            .matches("UserWarning: deep")
            .count(),
        2
    );
}

#[tokio::test]
async fn errors_are_reported_when_warnings_are_errors() {
    let mut python = python!();
    let strict = "import warnings\nwarnings.simplefilter('error')\n{}['k']";
    let (traceback, ..) = failure(&mut python, strict).await;
    assert!(
        traceback.ends_with("KeyError: 'k'") && traceback.contains("line 3"),
        "{traceback}"
    );
    let renamed = "class E(Exception): pass\nE.__name__, E.__module__ = 'Other', 'lib'\nraise E('x')";
    let (traceback, ..) = failure(&mut python, renamed).await;
    assert!(traceback.ends_with("lib.Other: x"), "{traceback}");
}
