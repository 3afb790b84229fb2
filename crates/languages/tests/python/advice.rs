//! Advice on errors whose message does not name the remedy.

use crate::python;

/// `(code, expected part of the advice)`, each a cell of one session.
const ADVICE_CASES: &[(&str, &str)] = &[
    (
        "async def get():\n    return [1]\nrows = get()\nlen(rows)",
        "write rows = await get(...)",
    ),
    ("for row in get():\n    pass", "write await get(...)"),
    ("rows.append(1)", "an await is missing"),
    (
        "for i in range(3)\n    pass",
        "correct line 1 and send the code again: nothing of it has run",
    ),
    ("x = 1\ny = (1 + 2\n", "correct line 2"),
    (
        "def count(n):\n    return count(n + 1)\ncount(0)",
        "count() calls itself without end",
    ),
    (
        "import json\njson.loads(\"{'a': 1}\")",
        "near \"{'a': 1}\": JSON has double quotes",
    ),
    ("json.loads('')", "the text is empty"),
    ("json.loads('<html>')", "it is HTML or XML"),
    ("json.loads('1\\n2')", "several values"),
    ("json.dumps({1})", "default=str"),
    (
        "def area(width, height, unit='cm', *more, exact=False, **rest):\n    pass\narea(3)",
        "it is area(width, height, unit=..., *more, exact=..., **rest)",
    ),
    (
        "class Shape:\n    def __init__(self, sides): pass\n    def grow(self, by): pass\nShape()",
        "it is Shape(sides)",
    ),
    ("Shape(3).grow()", "it is Shape.grow(by)"),
    (
        "values = [1]\nvalues(0)",
        "take items with square brackets, values[...]",
    ),
    ("list = [1]\nlist('ab')", "hides Python's own: del list"),
    (
        "del list\nrecords = [{'a': 1}]\nrecords['a']",
        "records[0][...] takes one",
    ),
    ("'5' + 1", "str(number) makes text of one"),
    ("for key, value in {'ab1': 1}:\n    pass", "use .items()"),
    ("'abc'.append('d')", "''.join(parts)"),
    (
        "from datetime import datetime, timezone\ndatetime.now() - datetime.now(timezone.utc)",
        "give both a time zone",
    ),
    ("from decimal import Decimal\nDecimal('1') * 0.5", "Decimal(str(x))"),
    (
        "import os\nos.environ['API_KEY']",
        "the variable API_KEY is not set in this sandbox",
    ),
    (
        "import pickle\npickle.dumps(lambda: 1)",
        "define the function with def at the top level",
    ),
    (
        "import sqlite3\ndb = sqlite3.connect(':memory:')\ndb.execute('create table users (id, name)')\n\
         db.execute('select * from user')",
        "the tables are users (id, name)",
    ),
    (
        "db.cursor().execute('select nme from users')",
        "the tables are users (id, name)",
    ),
    (
        "def mine(*_):\n    raise SystemExit('called')\ndb.text_factory = db.row_factory = mine\n\
         db.execute('select * from user')",
        "the tables are users (id, name)",
    ),
];

#[tokio::test]
async fn errors_say_what_to_do_next() {
    let mut python = python!();
    for (code, advice) in ADVICE_CASES {
        let ran = python.run(code).await;
        let error = ran.error();
        assert!(
            error.hint.contains(advice),
            "{code}: {advice:?} is not in {:?}",
            error.hint
        );
    }
}

#[tokio::test]
async fn advice_runs_no_code_of_the_callers() {
    let mut python = python!();
    python
        .run(
            "ran = []\nclass Odd:\n    def __getattribute__(self, name): ran.append(name); return object.__getattribute__(self, name)\n    \
             def __repr__(self): ran.append('repr'); return 'x'\n    __str__ = __len__ = __repr__\n    def __eq__(self, other): ran.append('eq')\n\
             odd = Odd()\ndef takes(one, two=odd): pass",
        )
        .await
        .ok();
    for code in [
        "takes(1, 2, odd)",
        "odd + 'a'",
        "odd()",
        "[1][odd]",
        "assert odd is None",
    ] {
        assert!(!python.run(code).await.error().traceback.is_empty());
    }
    assert_eq!(python.run("ran").await.ok().text(), "[]");
}

#[tokio::test]
async fn failed_commands_say_what_a_sandbox_lacks() {
    let mut python = python!();
    let ran = python.run("!nosuchprogram --version").await.ok();
    assert!(
        ran.stderr.contains("there is no such program in this sandbox"),
        "{}",
        ran.stderr
    );
    let ran = python.run("!apt-get install -y graphviz; false").await.ok();
    assert!(
        ran.stderr.contains("nothing can be installed into the system"),
        "{}",
        ran.stderr
    );
    let ran = python.run("!exit 3").await.ok();
    assert_eq!(ran.stderr, "[exit status 3]\n");
}
