//! A call's output is in the result of that call, complete, and in no other.

use serde_json::json;

use crate::languages::{command, execute, has, output, server, text};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, name_of, skip};

/// The size of the output: more than a pipe's capacity, and a line break.
const PRINTED_BYTES: u64 = 70_001;

/// Programs that print a large output and end at once with status 3, and programs that print `mine`.
const TEST_PROGRAMS: [(&str, &str, &str, &str); 11] = [
    (
        "javascript",
        "node",
        "console.log('F'.repeat(70000)); process.exit(3)",
        "console.log('mine')",
    ),
    (
        "python",
        "python3",
        "print('F' * 70000); raise SystemExit(3)",
        "print('mine')",
    ),
    (
        "bash",
        "bash",
        "head -c 70000 /dev/zero | tr '\\0' F; echo; exit 3",
        "echo mine",
    ),
    ("ruby", "ruby", "puts 'F' * 70000; exit 3", "puts 'mine'"),
    (
        "perl",
        "perl",
        "print 'F' x 70000, \"\\n\"; exit 3",
        "print \"mine\\n\"",
    ),
    (
        "php",
        "php",
        "<?php echo str_repeat('F', 70000), \"\\n\"; exit(3);",
        "<?php echo \"mine\\n\";",
    ),
    (
        "lua",
        "lua",
        "print(string.rep('F', 70000)); os.exit(3)",
        "print('mine')",
    ),
    (
        "r",
        "Rscript",
        "cat(strrep('F', 70000), '\\n', sep = ''); quit(status = 3)",
        "cat('mine\\n')",
    ),
    (
        "awk",
        "awk",
        "BEGIN { for (i = 0; i < 70000; i++) printf \"F\"; print \"\"; exit 3 }",
        "BEGIN { print \"mine\" }",
    ),
    (
        "c",
        "gcc",
        "#include <stdio.h>\nint main(void) { for (int i = 0; i < 70000; i++) putchar('F'); putchar('\\n'); return 3; }",
        "#include <stdio.h>\nint main(void) { puts(\"mine\"); }",
    ),
    (
        "scheme",
        "guile",
        "(display (make-string 70000 #\\F)) (newline) (exit 3)",
        "(display \"mine\") (newline)",
    ),
];

#[test]
fn large_output_before_an_exit_arrives_whole_and_in_its_own_call() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    for (language, program, prints, mine) in TEST_PROGRAMS {
        fn here() {}
        if !has(program, here) {
            continue;
        }
        let first = execute(&server, language, prints);
        assert_eq!(
            first.meta()["stdout_bytes"],
            PRINTED_BYTES,
            "{language}: {:.300}",
            first.all()
        );
        assert_eq!(first.meta()["exit_code"], 3, "{language}");
        let next = execute(&server, language, mine);
        assert_eq!(next.output(), "mine\n", "{language}: {:.300}", next.all());
        let once = server.call("create_run_close", json!({"language": language, "code": prints}));
        assert_eq!(
            once.meta()["stdout_bytes"],
            PRINTED_BYTES,
            "{language}: {:.300}",
            once.all()
        );
    }
}

#[test]
fn all_output_before_an_error_arrives_in_its_own_call() {
    let _turn = begin!();
    fn here() {}
    let place = TestDir::new();
    let server = server(&place);
    for (language, program, raises, mine) in [
        (
            "javascript",
            "node",
            "console.log('F'.repeat(70000)); throw new Error('x')",
            "console.log('mine')",
        ),
        (
            "python",
            "python3",
            "print('F' * 70000); raise ValueError('x')",
            "print('mine')",
        ),
        (
            "bash",
            "bash",
            "set -e; head -c 70000 /dev/zero | tr '\\0' F; echo; false; echo never",
            "set +e; echo mine",
        ),
        ("ruby", "ruby", "puts 'F' * 70000; raise 'x'", "puts 'mine'"),
        (
            "perl",
            "perl",
            "print 'F' x 70000, \"\\n\"; die 'x'",
            "print \"mine\\n\"",
        ),
    ] {
        if !has(program, here) {
            continue;
        }
        let first = execute(&server, language, raises);
        assert_eq!(first.status(), "error", "{language}: {:.300}", first.all());
        assert_eq!(
            first.meta()["stdout_bytes"],
            PRINTED_BYTES,
            "{language}: {:.300}",
            first.all()
        );
        let next = execute(&server, language, mine);
        assert_eq!(next.output(), "mine\n", "{language}: {:.300}", next.all());
    }
}

#[test]
fn a_javascript_call_waits_for_its_asynchronous_work() {
    let _turn = begin!();
    fn here() {}
    if !has("node", here) {
        return;
    }
    let place = TestDir::new();
    let server = server(&place);
    let worker = "new (require('worker_threads').Worker)";
    for (code, expected) in [
        (
            "process.stdout.write('a'.repeat(100), () => console.log('then'))".to_owned(),
            "then\n",
        ),
        (
            "let n = 0; const f = () => { console.log(n); if (++n < 4) setImmediate(f) }; f()".to_owned(),
            "0\n1\n2\n3\n",
        ),
        (
            format!("{worker}('console.log(\"from a worker\")', {{eval: true}}); 0"),
            "from a worker\n",
        ),
        (
            format!(
                "{worker}('require(\"worker_threads\").parentPort.postMessage(5)', {{eval: true}}).on('message', (v) => console.log('got', v)); 0"
            ),
            "got 5\n",
        ),
        (
            "require('crypto').pbkdf2('a', 'b', 100000, 64, 'sha512', () => console.log('derived')); 0".to_owned(),
            "derived\n",
        ),
        (
            "require('zlib').gzip('x'.repeat(2000000), () => console.log('packed')); 0".to_owned(),
            "packed\n",
        ),
        (
            "require('fs').createReadStream('/etc/passwd').pipe(process.stdout); 0".to_owned(),
            "/home/user:",
        ),
        (
            "require('child_process').exec('yes | head -n 50000', (e, out) => console.log(out.length)); 0".to_owned(),
            "100000\n",
        ),
        (
            "require('child_process').spawn('sh', ['-c', 'sleep 0.2; echo child'], {stdio: 'inherit'}); 0".to_owned(),
            "child\n",
        ),
        (
            "const http = require('http'); const s = http.createServer((q, r) => r.end('hi')).listen(0, () => http.get({port: s.address().port}, \
             (r) => r.on('data', (d) => console.log('got ' + d)).on('end', () => s.close()))); 0"
                .to_owned(),
            "got hi\n",
        ),
        (
            "process.stdout.cork(); process.stdout.write('corked\\n')".to_owned(),
            "corked\n",
        ),
        (
            "require('child_process').spawnSync('node', ['-e', '1'], {stdio: 'inherit'}); console.log('G'.repeat(200000) + 'end'); throw 5"
                .to_owned(),
            "Gend\n",
        ),
        (
            "require('fs').writeSync(1, 'w'.repeat(100000) + 'written\\n')".to_owned(),
            "written\n",
        ),
    ] {
        let first = execute(&server, "javascript", &code);
        assert!(first.all().contains(expected), "{code}: {:.600}", first.all());
        let next = execute(&server, "javascript", "console.log('mine')");
        assert_eq!(next.output(), "mine\n", "{code}: {:.600}", next.all());
    }
}

/// As in a program, an error, an exit or an interrupt ends the timers.
#[test]
fn timers_of_a_javascript_call_end_with_its_failure() {
    let _turn = begin!();
    fn here() {}
    if !has("node", here) {
        return;
    }
    let place = TestDir::new();
    let server = server(&place);
    for code in [
        "setTimeout(() => console.log('late'), 40); throw new Error('now')",
        "setTimeout(() => console.log('late'), 40); process.exit(4)",
        "setInterval(() => console.log('late'), 40); Promise.reject(new Error('now'))",
        "const again = () => { console.log('late'); setTimeout(again, 5) }; again(); await new Promise(() => {})",
        "const soon = () => { console.log('late'); setImmediate(soon) }; soon()",
    ] {
        let call = json!({"language": "javascript", "code": code, "timeout_s": 0.7});
        let first = server.call("execute_code", call);
        assert!(["error", "timeout"].contains(&first.status()), "{code}: {first:?}");
        let wait = "await new Promise((r) => setTimeout(r, 100)); console.log('mine')";
        let next = execute(&server, "javascript", wait);
        assert_eq!(next.output(), "mine\n", "{code}: {:.600}", next.all());
    }
}

#[test]
fn an_interval_of_an_earlier_javascript_call_continues_and_delays_no_call() {
    let _turn = begin!();
    fn here() {}
    if !has("node", here) {
        return;
    }
    let place = TestDir::new();
    let server = server(&place);
    let run = |code: &str| execute(&server, "javascript", code);
    run("var count = 0; var timer = setInterval(() => { count += 1 }, 5); 0");
    let counted = run("while (count < 3) await new Promise((r) => setTimeout(r, 5)); 'counted'");
    assert_eq!(counted.output(), "result: 'counted'", "{counted:?}");
    assert_eq!(run("clearInterval(timer); 'cleared'").output(), "result: 'cleared'");
    assert_eq!(
        run("util.promisify(setTimeout)(1, 'waited')").output(),
        "result: 'waited'"
    );
}

#[test]
fn a_bash_call_has_the_output_of_its_process_substitutions() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    for (code, expected) in [
        ("echo hi > >(cat)", "hi\n"),
        ("exec > >(tee log.txt); echo hello", "hello\n"),
        (
            "for i in 1 2; do echo $i; done > >(sed s/^/x/) 2> >(cat >&2)",
            "x1\nx2\n",
        ),
        ("exec > >(tee -a log.txt) 2>&1; echo out; exit 3", "out\n"),
        ("set -e; exec > >(tr a-z A-Z); echo pre; false", "PRE\n"),
        ("set +e; sleep 30 & echo z > >(gzip | gunzip)", "z\n"),
    ] {
        let first = execute(&server, "bash", code);
        assert!(first.output().starts_with(expected), "{code}: {first:?}");
        let next = execute(&server, "bash", "echo mine");
        assert_eq!(next.output(), "mine\n", "{code}: {next:?}");
    }
    execute(&server, "bash", "exec > file.txt; echo inside");
    let kept = execute(&server, "bash", "cat file.txt log.txt");
    assert_eq!(kept.output(), "inside\nhello\nout\n", "{kept:?}");
    let job = execute(&server, "bash", "sleep 30 & echo $! > job");
    assert_eq!(job.status(), "ok", "{job:?}");
    assert_eq!(
        execute(&server, "bash", "[ $! = $(cat job) ] && kill $! && echo same").output(),
        "same\n"
    );
}

#[test]
fn output_of_compiled_code_is_in_the_call_that_ran_it() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let code = "import ctypes\nprint('one')\n_ = ctypes.CDLL(None).printf(b'two\\n')\nprint('three')\n_ = ctypes.CDLL(None).printf(b'four')";
    for _ in 0..2 {
        assert_eq!(server.run(code).output(), "one\ntwo\nthree\nfour");
        assert_eq!(server.run("print('mine')").output(), "mine\n");
    }
}

#[test]
fn a_program_of_the_command_line_loses_nothing_that_it_printed() {
    let _turn = begin!();
    let place = TestDir::new();
    let mut cases = vec![("a.sh", "exec > >(tee log.txt); echo hello; exit 3", 6)];
    if std::path::Path::new("/usr/bin/node").exists() {
        cases.push(("a.js", "console.log('F'.repeat(70000)); process.exit(3)", 70_001));
        cases.push((
            "b.js",
            "'use strict'; console.log('F'.repeat(70000)); process.exitCode = 3",
            70_001,
        ));
    } else {
        fn here() {}
        skip(&name_of(here), "no node");
    }
    for (name, code, bytes) in cases {
        let file = place.write(name, code).display().to_string();
        let told = output(&mut command(&place, &["run", &file]));
        assert_eq!(told.stdout.len(), bytes, "{name}: {}", text(&told.stderr));
        assert_eq!(told.status.code(), Some(3), "{name}: {}", text(&told.stderr));
    }
}

/// An uncaught error arrives after the value, which is known by then.
#[test]
fn a_javascript_value_is_returned_with_a_late_error() {
    let _turn = begin!();
    fn here() {}
    if !has("node", here) {
        return;
    }
    let place = TestDir::new();
    let server = server(&place);
    for (code, error) in [
        ("Promise.reject(new Error('u')); 'value'", "Error: u"),
        (
            "setTimeout(() => { throw new Error('later') }, 10); 'value'",
            "Error: later",
        ),
        (
            "(async () => { await null; throw new TypeError('asy') })(); 'value'",
            "TypeError: asy",
        ),
        ("queueMicrotask(() => { throw new Error('mt') }); 'value'", "Error: mt"),
        (
            "process.nextTick(() => { throw new Error('nt') }); 'value'",
            "Error: nt",
        ),
        (
            "require('child_process').spawn('nonexistent'); 'value'",
            "spawn nonexistent ENOENT",
        ),
        (
            "setImmediate(() => new (require('events'))().emit('error', new Error('ee'))); 'value'",
            "Error: ee",
        ),
        ("require('fs').createReadStream('/nonexistent'); 'value'", "ENOENT"),
    ] {
        let answer = execute(&server, "javascript", code);
        assert_eq!(answer.status(), "error", "{code}: {answer:?}");
        assert!(answer.all().contains("result: 'value'"), "{code}: {answer:?}");
        assert!(answer.all().contains(error), "{code}: {answer:?}");
        let next = execute(&server, "javascript", "console.log('mine')");
        assert_eq!(next.output(), "mine\n", "{code}: {next:?}");
    }
    let both = execute(
        &server,
        "javascript",
        "Promise.reject(new Error('a')); Promise.reject(new Error('b')); 'value'",
    );
    for part in ["Error: a", "Error: b", "result: 'value'"] {
        assert!(both.all().contains(part), "{both:?}");
    }
    let exit = execute(&server, "javascript", "setTimeout(() => process.exit(2), 10); 'value'");
    assert_eq!(exit.meta()["exit_code"], 2, "{exit:?}");
    assert!(exit.all().contains("result: 'value'"), "{exit:?}");
}
