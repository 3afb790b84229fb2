use serde_json::json;

use super::*;

fn field(name: &'static str, kind: Kind) -> Field {
    Field::new(name, kind, json!("an example"))
}

fn fields() -> Vec<Field> {
    vec![
        field("code", Kind::Content).required(),
        field("sandbox_id", Kind::Text),
        field("timeout_s", Kind::Number { min: 0.0, max: 1e9 }),
        field("path", Kind::Text),
        field("content", Kind::Content),
    ]
}

fn named_as(given: Value) -> Value {
    let Value::Object(given) = given else {
        panic!("an object")
    };
    Value::Object(named(&fields(), given))
}

#[test]
fn the_whole_arguments_may_be_text_or_an_empty_list() {
    let code = json!({"code": "1"});
    for sent in [
        code.clone(),
        json!(code.to_string()),
        json!(json!(code.to_string()).to_string()),
    ] {
        assert_eq!(whole_arguments(&sent).map(Value::Object), Some(code.clone()), "{sent}");
    }
    let lines = json!("{\"code\": \"a\n\tb\"}");
    assert_eq!(
        whole_arguments(&lines).map(Value::Object),
        Some(json!({"code": "a\n\tb"}))
    );
    for nothing in [json!([]), json!(""), json!(null), json!("{}"), json!("[]")] {
        assert_eq!(whole_arguments(&nothing), Some(Map::new()), "{nothing}");
    }
    for other in [
        json!([1]),
        json!(5),
        json!(true),
        json!("print(1)"),
        json!("[1]"),
        json!("{"),
    ] {
        assert_eq!(whole_arguments(&other), None, "{other}");
    }
}

#[test]
fn names_are_found_in_other_spellings_and_in_wrappers() {
    let plain = json!({"code": "1", "sandbox_id": "sb", "timeout_s": 3});
    for sent in [
        plain.clone(),
        json!({"Code": "1", "sandboxId": "sb", "timeout-s": 3}),
        json!({"code": "1", "sandbox id": "sb", "TimeoutS": 3}),
        json!({"arguments": plain}),
        json!({"input": plain.to_string()}),
        json!({"kwargs": {"params": plain}}),
        json!({"code": "1", "sandbox_id": "sb", "timeout_s": 3, "lang": null}),
        json!({"toolCallId": "call_1", "sessionId": "s", "action": "sendMessage", "chatInput": "hi", "tool": "x", "code": "1", "sandbox_id": "sb", "timeout_s": 3}),
    ] {
        assert_eq!(named_as(sent.clone()), plain, "{sent}");
    }
}

#[test]
fn names_that_can_mean_something_else_are_left_for_the_error() {
    for sent in [
        json!({"code": "1", "session_id": "s"}),
        json!({"code": "1", "action": "x"}),
        json!({"something": {"code": "1"}}),
        json!({"input": "print(1)"}),
        json!({"code": "1", "Code": "2"}),
    ] {
        assert_eq!(named_as(sent.clone()), sent);
    }
}

#[test]
fn the_content_of_a_json_file_may_be_a_json_value() {
    let sent = json!({"path": "a.json", "content": {"a": [1]}});
    assert_eq!(named_as(sent)["content"], json!("{\n  \"a\": [\n    1\n  ]\n}"));
    let other = json!({"path": "a.csv", "content": {"a": [1]}});
    assert_eq!(named_as(other.clone()), other);
}

fn taken(name: &'static str, kind: Kind, sent: Value) -> Option<Value> {
    value(&field(name, kind), sent)
}

#[test]
fn an_empty_optional_name_is_absent() {
    for nothing in ["", "  ", "null", "None", "undefined", "default"] {
        assert_eq!(taken("sandbox_id", Kind::Text, json!(nothing)), None, "{nothing}");
    }
    for nothing in [json!(null), json!(""), json!("null")] {
        let kind = Kind::Choice(vec!["python".to_owned()]);
        assert_eq!(taken("language", kind, nothing.clone()), None, "{nothing}");
    }
    for (name, word) in [
        ("label", "default"),
        ("path", "none"),
        ("path", "null"),
        ("local_path", "nil"),
    ] {
        assert_eq!(taken(name, Kind::Text, json!(word)), Some(json!(word)));
    }
    assert_eq!(taken("path", Kind::Text, json!(" ")), None);
    assert_eq!(taken("key", Kind::Text, json!(7)), Some(json!("7")));
    assert_eq!(taken("package", Kind::Text, json!(["numpy"])), Some(json!("numpy")));
    let required = field("execution_id", Kind::Text).required();
    assert_eq!(value(&required, json!("null")), Some(json!("null")));
    assert_eq!(value(&required, json!("")), None);
    let kind = || Kind::Choice(vec!["python".to_owned(), "javascript".to_owned()]);
    assert_eq!(
        taken("language", kind(), json!(" JavaScript ")),
        Some(json!("javascript"))
    );
    assert_eq!(taken("language", kind(), json!("py")), Some(json!("py")));
}

#[test]
fn content_keeps_every_character() {
    for sent in ["", "null", " None ", "default", "[1]", "{}"] {
        assert_eq!(taken("stdin", Kind::Content, json!(sent)), Some(json!(sent)));
    }
    assert_eq!(taken("stdin", Kind::Content, json!(42)), Some(json!("42")));
    assert_eq!(
        taken("code", Kind::Content, json!(["a = 1", "a"])),
        Some(json!("a = 1\na"))
    );
    assert_eq!(
        taken("code", Kind::Content, json!(["a = 1\n", "a"])),
        Some(json!("a = 1\na"))
    );
}

#[test]
fn numbers_may_be_text_with_the_fields_unit() {
    let kind = || Kind::Number { min: 0.0, max: 1e9 };
    for (name, sent, number) in [
        ("timeout_s", json!("60s"), json!(60.0)),
        ("timeout_s", json!("60 seconds"), json!(60.0)),
        ("timeout_s", json!("2 min"), json!(120.0)),
        ("timeout_s", json!("500ms"), json!(0.5)),
        ("timeout_s", json!("1_000"), json!(1000.0)),
        ("memory_mb", json!("512MB"), json!(512.0)),
        ("memory_mb", json!("2 GB"), json!(2048.0)),
        ("memory_mb", json!([256]), json!(256)),
        ("timeout_s", json!("1e2"), json!("1e2")),
        ("timeout_s", json!("2 GB"), json!("2 GB")),
        ("count", json!("3 boxes"), json!("3 boxes")),
        ("timeout_s", json!("soon"), json!("soon")),
    ] {
        assert_eq!(taken(name, kind(), sent.clone()), Some(number), "{sent}");
    }
    for nothing in ["", "null", "None"] {
        assert_eq!(taken("timeout_s", kind(), json!(nothing)), None);
    }
}

#[test]
fn flags_have_the_usual_words() {
    for sent in [json!("true"), json!("True"), json!("YES"), json!(1), json!("on")] {
        assert_eq!(taken("append", Kind::Flag, sent), Some(json!(true)));
    }
    for sent in [json!("false"), json!("no"), json!(0), json!("off")] {
        assert_eq!(taken("append", Kind::Flag, sent), Some(json!(false)));
    }
    assert_eq!(taken("append", Kind::Flag, json!("")), None);
    assert_eq!(taken("append", Kind::Flag, json!("maybe")), Some(json!("maybe")));
}

#[test]
fn lists_may_be_text() {
    let packages = |sent: Value| taken("packages", Kind::Texts(ListOf::Packages), sent);
    for (sent, expected) in [
        (json!("[\"tabulate\"]"), json!(["tabulate"])),
        (json!("tabulate"), json!(["tabulate"])),
        (json!("['numpy', 'pandas>=2,<3']"), json!(["numpy", "pandas>=2,<3"])),
        (json!("[numpy, pandas]"), json!(["numpy", "pandas"])),
        (json!("numpy, pandas"), json!(["numpy", "pandas"])),
        (json!("numpy pandas"), json!(["numpy", "pandas"])),
        (json!("numpy\npandas\n"), json!(["numpy", "pandas"])),
        (json!("pandas>=2,<3, numpy"), json!(["pandas>=2,<3", "numpy"])),
        (json!("numpy >= 1.2, < 2, scipy"), json!(["numpy>=1.2,<2", "scipy"])),
        (json!("pandas[excel,plot] six"), json!(["pandas[excel,plot]", "six"])),
        (json!("@types/node@20, zod"), json!(["@types/node@20", "zod"])),
        (json!("a; python_version < '3'"), json!(["a; python_version < '3'"])),
        (json!(["numpy", null, ""]), json!(["numpy"])),
        (json!("\"numpy\""), json!(["numpy"])),
    ] {
        assert_eq!(packages(sent.clone()), Some(expected), "{sent}");
    }
    for nothing in [
        json!(""),
        json!([]),
        json!("[]"),
        json!(["null"]),
        json!("null"),
        json!(false),
        json!("['']"),
    ] {
        assert_eq!(packages(nothing.clone()), None, "{nothing}");
    }
    for other in [
        json!(true),
        json!({"numpy": "1"}),
        json!("{\"numpy\": \"1\"}"),
        json!("['a"),
        json!(5),
    ] {
        assert_eq!(packages(other.clone()), Some(other));
    }
    let hosts = taken("network", Kind::Texts(ListOf::Hosts), json!("a.example, *.b.example"));
    assert_eq!(hosts, Some(json!(["a.example", "*.b.example"])));
    let outputs = |sent: Value| taken("outputs", Kind::Texts(ListOf::Paths), sent);
    assert_eq!(outputs(json!("my plot.png")), Some(json!(["my plot.png"])));
    assert_eq!(outputs(json!("a.png\nb.png")), Some(json!(["a.png", "b.png"])));
    assert_eq!(outputs(json!(["none", "null"])), Some(json!(["none", "null"])));
    assert_eq!(outputs(json!("a.png, b.png")), Some(json!("a.png, b.png")));
    assert_eq!(outputs(json!("[a.png, b.png]")), Some(json!(["a.png", "b.png"])));
}

#[test]
fn variables_may_be_numbers_lines_and_lists() {
    let env = |sent: Value| taken("env", Kind::TextMap(MapOf::Variables), sent);
    for sent in [
        json!({"PORT": 8080, "DEBUG": true, "UNSET": null}),
        json!("{\"PORT\": 8080, \"DEBUG\": true}"),
        json!("PORT=8080\nDEBUG=true"),
        json!(["PORT=8080", "DEBUG=true"]),
        json!([{"name": "PORT", "value": 8080}, {"name": "DEBUG", "value": "true"}]),
    ] {
        assert_eq!(
            env(sent.clone()),
            Some(json!({"PORT": "8080", "DEBUG": "true"})),
            "{sent}"
        );
    }
    assert_eq!(env(json!("A=1 2")), Some(json!({"A": "1 2"})));
    for other in [json!("A=1 B=2"), json!("A"), json!(["A"]), json!(5), json!("5=1")] {
        assert_eq!(env(other.clone()), Some(other));
    }
    for nothing in [json!(""), json!("null"), json!(null)] {
        assert_eq!(env(nothing), None);
    }
}

#[test]
fn files_may_be_lists_and_json_content_may_be_a_value() {
    let files = |sent: Value| taken("files", Kind::TextMap(MapOf::Files), sent);
    let expected = json!({"a.csv": "a,b\n1,2\n"});
    for sent in [
        expected.clone(),
        json!(expected.to_string()),
        json!([{"path": "a.csv", "content": "a,b\n1,2\n"}]),
        json!([{"name": "a.csv", "text": "a,b\n1,2\n"}]),
        json!({"a.csv": {"content": "a,b\n1,2\n"}}),
        json!({"a.csv": ["a,b\n", "1,2\n"]}),
    ] {
        assert_eq!(files(sent.clone()), Some(expected.clone()), "{sent}");
    }
    assert_eq!(files(json!({"a.json": [1]})), Some(json!({"a.json": "[\n  1\n]"})));
    assert_eq!(files(json!({"n.txt": 5})), Some(json!({"n.txt": "5"})));
    for other in [
        json!({"a.csv": {"a": 1}}),
        json!({"a.json": {"content": "1"}}),
        json!("a.csv"),
        json!([["a.csv", "x"]]),
    ] {
        assert_eq!(files(other.clone()), Some(other));
    }
}
