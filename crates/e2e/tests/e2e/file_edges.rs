//! Links, odd names and impossible paths in the file tools; special characters at the point where text is cut.

use serde_json::json;

use sandcell_e2e::begin;
use sandcell_e2e::client::Client;
use sandcell_e2e::test_dir::TestDir;

fn server(place: &TestDir) -> Client {
    Client::start(&mut place.command(&["serve"]))
}

#[test]
fn a_listing_shows_the_targets_of_links() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    server.text(
        "import os\nopen('data.txt', 'w').write('x')\nos.makedirs('d')\nos.symlink('data.txt', 'near')\nos.symlink('/etc/passwd', 'far')\n\
         os.symlink('nowhere', 'broken')\nos.symlink('../data.txt', 'd/up')\nos.symlink('d', 'folder')\nos.symlink(b'caf\\xe9', 'odd')",
    );
    let listed = server.call("list_files", json!({"recursive": true}));
    for (name, target) in [
        ("near", "data.txt"),
        ("far", "/etc/passwd"),
        ("broken", "nowhere"),
        ("d/up", "../data.txt"),
        ("folder", "d"),
        ("odd", "caf\\xe9"),
    ] {
        assert!(
            listed.all().contains(&format!("\n{name}  link to {target}  ")),
            "{listed:?}"
        );
        let files = listed.data()["files"].as_array().unwrap();
        let entry = files.iter().find(|entry| entry["name"] == name).unwrap();
        assert_eq!(
            (&entry["type"], &entry["target"]),
            (&json!("link"), &json!(target)),
            "{entry}"
        );
    }
    let plain = listed.data()["files"]
        .as_array()
        .unwrap()
        .iter()
        .find(|entry| entry["name"] == "data.txt");
    assert!(plain.unwrap()["target"].is_null(), "{plain:?}");
    assert!(server.call("read_file", json!({"path": "near"})).all().starts_with('x'));
}

#[test]
fn non_utf8_names_are_listed_and_readable() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    server.text(
        "import os\nfor name in [b'caf\\xe9.txt', b'\\xff\\xfe', b'd\\xe4/in\\xe4.txt', b'caf\\\\xe8.txt']:\n    os.makedirs(os.path.dirname(name) or b'.', exist_ok=True)\n    \
         open(name, 'w').write('in ' + ascii(name))",
    );
    let listed = server.call("list_files", json!({"recursive": true}));
    for (name, bytes) in [
        ("caf\\xe9.txt", "b'caf\\xe9.txt'"),
        ("\\xff\\xfe", "b'\\xff\\xfe'"),
        ("d\\xe4/in\\xe4.txt", "b'd\\xe4/in\\xe4.txt'"),
        // This name contains the escape's characters literally.
        ("caf\\xe8.txt", "b'caf\\\\xe8.txt'"),
    ] {
        assert!(listed.all().contains(&format!("\n{name}  ")), "{name}: {listed:?}");
        let read = server.call("read_file", json!({"path": name}));
        assert!(read.all().starts_with(&format!("in {bytes}")), "{name}: {read:?}");
    }
    let inside = server.call("list_files", json!({"path": "d\\xe4"}));
    assert!(inside.all().contains("\nin\\xe4.txt  "), "{inside:?}");
    let once = json!({"code": "open(b'b\\xe9.txt', 'w').write('x')", "outputs": ["b\\xe9.txt"]});
    let output = server.call("create_run_close", once);
    assert_eq!(output.of_kind("resource_link").count(), 1, "{output:?}");
    let missing = server.call("read_file", json!({"path": "no\\xe9.txt"}));
    assert!(missing.is_error(), "{missing:?}");
}

#[test]
fn names_are_shown_unchanged() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    for name in ["é.txt", "it's.txt", "a\"b.txt", "👨‍👩‍👧.txt", "中文.csv", "e\u{301}.txt"] {
        server.call("write_file", json!({"path": name, "content": "x"}));
        let listed = server.call("list_files", json!({}));
        assert!(listed.all().contains(&format!("\n{name}  ")), "{name}: {listed:?}");
        let read = server.call("read_file", json!({"path": name}));
        assert!(
            read.all().contains(&format!("[/home/user/{name} in ")),
            "{name}: {read:?}"
        );
    }
    server.text("open('a\\nb\\u202e.txt', 'w').close()");
    let listed = server.call("list_files", json!({}));
    assert!(listed.all().contains("a\\nb\\u{202e}.txt"), "{listed:?}");
}

#[test]
fn valid_outputs_are_returned_despite_an_invalid_path() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let code = "open('ok.txt', 'w').write('fine'); open('also.txt', 'w').write('x')";
    for bad in ["../../etc/passwd", "a\0b", "x/../ok.txt"] {
        let once = json!({"code": code, "outputs": ["ok.txt", bad, "also.txt", "none.txt"]});
        let answer = server.call("create_run_close", once);
        assert_eq!(answer.status(), "ok", "{bad}: {answer:?}");
        assert_eq!(answer.of_kind("resource_link").count(), 2, "{bad}: {answer:?}");
        let shown: String = bad.chars().flat_map(char::escape_debug).collect();
        assert!(
            answer.verdict().contains(&format!("given: \"{shown}\"")),
            "{bad}: {answer:?}"
        );
        assert!(answer.verdict().contains("none.txt"), "{answer:?}");
    }
}

#[test]
fn a_cut_keeps_whole_characters() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    for (before, c) in [(19_997, "😀"), (19_998, "中"), (19_999, "é")] {
        server.call(
            "write_file",
            json!({"path": "long.txt", "content": "x".repeat(before) + &c.repeat(10)}),
        );
        let read = server.call("read_file", json!({"path": "long.txt"}));
        assert!(
            !read.all().contains('\u{fffd}'),
            "{before}: {:?}",
            read.all().get(19_900..)
        );
        assert!(read.all().contains("more bytes in this line"), "{before}");
    }
    let printed = server.run("print('ab😀é中', end='')");
    let id = printed.meta()["execution_id"].clone();
    for offset in -11..=11 {
        for limit in 1..=5 {
            let call = json!({"execution_id": id, "stream": "stdout", "offset": offset, "limit": limit});
            let part = server.call("get_execution", call);
            assert!(!part.all().contains('\u{fffd}'), "{offset} {limit}: {part:?}");
        }
    }
    let mut all = String::new();
    let mut offset = 0;
    while offset < 11 {
        let call = json!({"execution_id": id, "stream": "stdout", "offset": offset, "limit": 1});
        let part = server.call("get_execution", call);
        all.push_str(&part.output());
        offset = part.0["_meta"]["sandcell/stream"]["next_offset"].as_i64().unwrap();
    }
    assert_eq!(all, "ab😀é中");
}
