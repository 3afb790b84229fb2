//! `/run_code`, in the form of SandboxFusion.

use serde_json::{Value, json};

use super::rest::Client;
use sandcell_e2e::http::Server;
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, name_of, skip};

fn open(place: &TestDir) -> (Server, Client) {
    let server = Server::start(place, &[]);
    let client = Client::new(&server, None);
    (server, client)
}

#[track_caller]
fn run(client: &Client, request: &Value) -> Value {
    let reply = client.post("/run_code", request);
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.message()
}

fn is_here(program: &str) -> bool {
    ["/usr/bin", "/usr/local/bin", "/bin"]
        .iter()
        .any(|folder| std::path::Path::new(folder).join(program).exists())
}

#[test]
fn programs_of_many_languages_read_their_input_and_end_well() {
    fn here() {}
    let _turn = begin!();
    let place = TestDir::new();
    let (_server, client) = open(&place);
    let cases = [
        ("python", "python3", "print(input())"),
        ("bash", "bash", "read x; echo $x"),
        (
            "nodejs",
            "node",
            "console.log(require('fs').readFileSync(0, 'utf8').trim())",
        ),
        (
            "cpp",
            "g++",
            "#include <iostream>\nint main() { std::string s; std::cin >> s; std::cout << s << '\\n'; }",
        ),
        (
            "go",
            "go",
            "package main\nimport \"fmt\"\nfunc main() { var s string; fmt.Scan(&s); fmt.Println(s) }",
        ),
        (
            "java",
            "javac",
            "public class Main { public static void main(String[] a) { System.out.println(new java.util.Scanner(System.in).next()); } }",
        ),
        ("perl", "perl", "print scalar <STDIN>"),
        ("ruby", "ruby", "puts gets"),
        ("php", "php", "echo fgets(STDIN);"),
        ("lua", "lua5.4", "print(io.read())"),
        ("R", "Rscript", "cat(readLines('stdin'), '\\n', sep = '')"),
    ];
    for (language, program, code) in cases {
        if !is_here(program) {
            skip(&name_of(here), &format!("no {program}"));
            continue;
        }
        let request = json!({
            "code": code, "language": language, "stdin": "word\n", "compile_timeout": 120, "run_timeout": 60,
        });
        let answer = run(&client, &request);
        assert_eq!(answer["status"], "Success", "{language}: {answer}");
        assert_eq!(answer["run_result"]["stdout"], "word\n", "{language}: {answer}");
        let result = &answer["run_result"];
        assert_eq!(
            (&result["status"], &result["return_code"]),
            (&json!("Finished"), &json!(0)),
            "{language}: {answer}"
        );
        let is_compiled = ["cpp", "go", "java"].contains(&language);
        assert_eq!(
            answer["compile_result"].is_object(),
            is_compiled,
            "{language}: {answer}"
        );
    }
}

#[test]
fn errors_have_the_format_of_sandbox_fusion() {
    fn here() {}
    let _turn = begin!();
    let place = TestDir::new();
    let (_server, client) = open(&place);
    let python = |code: &str| json!({"code": code, "language": "python"});
    let failed = run(&client, &python("import sys\nprint('out')\nsys.exit(3)"));
    assert_eq!(
        (&failed["status"], &failed["run_result"]["return_code"]),
        (&json!("Failed"), &json!(3)),
        "{failed}"
    );
    assert_eq!(
        (&failed["run_result"]["stdout"], &failed["compile_result"]),
        (&json!("out\n"), &Value::Null)
    );
    let mut slow = python("print('before', flush=True)\nwhile True: pass");
    slow["run_timeout"] = json!(1);
    let slow = run(&client, &slow);
    let result = &slow["run_result"];
    assert_eq!(
        (&slow["status"], &result["status"]),
        (&json!("Failed"), &json!("TimeLimitExceeded")),
        "{slow}"
    );
    assert_eq!(
        (&result["return_code"], &result["stdout"]),
        (&Value::Null, &json!("before\n"))
    );
    let mut large = python("b = bytearray(300 << 20)\nprint(len(b))");
    large["memory_limit_MB"] = json!(64);
    let large = run(&client, &large);
    assert_eq!(
        (&large["status"], &large["run_result"]["status"]),
        (&json!("Failed"), &json!("Finished")),
        "{large}"
    );
    assert_ne!(large["run_result"]["return_code"], 0, "{large}");
    let empty = run(&client, &python(" "));
    assert_eq!(
        (&empty["status"], &empty["run_result"]),
        (&json!("SandboxError"), &Value::Null),
        "{empty}"
    );
    let absent = run(&client, &json!({"code": "1", "language": "cuda"}));
    assert_eq!(absent["status"], "SandboxError", "{absent}");
    if !is_here("g++") {
        return skip(&name_of(here), "no g++");
    }
    let cpp = |code: &str| json!({"code": code, "language": "cpp", "compile_timeout": 120});
    let wrong = run(&client, &cpp("int main() { return x; }"));
    let result = &wrong["compile_result"];
    assert_eq!(
        (&wrong["status"], &result["status"]),
        (&json!("Failed"), &json!("Finished")),
        "{wrong}"
    );
    assert_eq!(
        (&result["return_code"], &wrong["run_result"]),
        (&json!(1), &Value::Null),
        "{wrong}"
    );
    assert!(result["stderr"].as_str().unwrap().contains("error"), "{wrong}");
    // The compiler's output and the program's are separate.
    let warned = run(
        &client,
        &cpp("#include <cstdio>\n#warning careful\nint main() { fputs(\"own\", stderr); }"),
    );
    assert!(
        warned["compile_result"]["stderr"].as_str().unwrap().contains("careful"),
        "{warned}"
    );
    assert_eq!(warned["run_result"]["stderr"], "own", "{warned}");
    let mut endless = cpp("#include <bits/stdc++.h>\n#include <regex>\nint main() {}");
    endless["compile_timeout"] = json!(0.05);
    let endless = run(&client, &endless);
    assert_eq!(endless["compile_result"]["status"], "TimeLimitExceeded", "{endless}");
    assert_eq!(
        (&endless["status"], &endless["run_result"]),
        (&json!("Failed"), &Value::Null),
        "{endless}"
    );
}

#[test]
fn files_are_uploaded_and_returned_in_base64() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_server, client) = open(&place);
    let code =
        "from pathlib import Path\nPath('b/x').parent.mkdir()\nPath('b/x').write_bytes(Path('a/x').read_bytes() * 2)";
    let request = json!({
        "code": code, "language": "python", "files": {"a/x": "AP8=", "none": null},
        "fetch_files": ["c/x", "b/x", "a/x"], "unknown_field": 1,
    });
    let answer = run(&client, &request);
    assert_eq!(answer["status"], "Success", "{answer}");
    assert_eq!(answer["files"], json!({"b/x": "AP8A/w==", "a/x": "AP8="}), "{answer}");
    let broken = json!({"code": "1", "language": "python", "files": {"a": "!"}});
    assert_eq!(run(&client, &broken)["status"], "SandboxError");
    let above = json!({"code": "1", "language": "python", "files": {"../a": ""}});
    assert_eq!(run(&client, &above)["status"], "SandboxError");
}

#[test]
fn malformed_requests_are_refused_with_the_field() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_server, client) = open(&place);
    for (request, field) in [
        (json!({"code": "1", "language": "pyton"}), json!(["body", "language"])),
        (json!({"code": 1, "language": "python"}), json!(["body", "code"])),
        (
            json!({"code": "1", "language": "python", "run_timeout": "x"}),
            json!(["body", "run_timeout"]),
        ),
        (json!({"language": "python"}), json!(["body"])),
        (json!([]), json!(["body"])),
    ] {
        let reply = client.post("/run_code", &request);
        assert_eq!(reply.status, 422, "{reply:?}");
        let detail = &reply.message()["detail"][0];
        assert_eq!(detail["loc"], field, "{detail}");
        assert!(!detail["msg"].as_str().unwrap().is_empty());
    }
}

#[test]
fn programs_beyond_the_sandbox_limit_wait_in_a_queue() {
    let _turn = begin!();
    let place = TestDir::with_settings("[limits]\nsandboxes_per_caller = 2\n");
    let (_server, client) = open(&place);
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..8)
            .map(|n| {
                let client = &client;
                scope.spawn(move || run(client, &json!({"code": format!("print({n})"), "language": "python"})))
            })
            .collect();
        for (n, call) in calls.into_iter().enumerate() {
            let answer = call.join().unwrap();
            assert_eq!(answer["run_result"]["stdout"], format!("{n}\n"), "{answer}");
        }
    });
}
