use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use sandcell_e2e::begin;
use sandcell_e2e::client::Client;
use sandcell_e2e::test_dir::TestDir;

fn server(place: &TestDir) -> Client {
    Client::start(&mut place.command(&["serve"]))
}

#[test]
fn a_file_that_was_written_is_read_back_and_listed() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let written = server.call("write_file", json!({"path": "deep/er/note.txt", "content": "grüße\n"}));
    assert!(!written.is_error(), "{written:?}");
    assert!(written.all().contains('8'), "bytes, not characters: {written:?}");
    server.call(
        "write_file",
        json!({"path": "deep/er/note.txt", "content": "mehr\n", "append": true}),
    );
    let read = server.call("read_file", json!({"path": "/home/user/deep/er/note.txt"}));
    assert!(read.all().contains("grüße\nmehr\n"), "{read:?}");
    let listed = server.call("list_files", json!({"recursive": true}));
    assert!(listed.all().contains("deep/er/note.txt"), "{listed:?}");
    assert_eq!(
        server.text("print(open('deep/er/note.txt').read())").trim(),
        "grüße\nmehr"
    );
}

#[test]
fn binary_files_are_written_and_read_unchanged() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let (head, tail) = bytes.split_at(60_000);
    for (part, append) in [(head, false), (tail, true)] {
        let answer = server.call(
            "upload_file",
            json!({"path": "raw.bin", "content_base64": STANDARD.encode(part), "append": append}),
        );
        assert!(!answer.is_error(), "{answer:?}");
    }
    assert_eq!(
        server
            .text("b = open('raw.bin', 'rb').read()\nprint(b == bytes(i % 256 for i in range(100000)))")
            .trim(),
        "True"
    );
    let read = server.call("read_file", json!({"path": "raw.bin"}));
    let link = read
        .of_kind("resource_link")
        .next()
        .expect("a link instead of bytes")
        .clone();
    assert_eq!(link["size"], 100_000, "{link}");
    let content = server.request("resources/read", json!({"uri": link["uri"]}));
    assert_eq!(
        STANDARD
            .decode(content["contents"][0]["blob"].as_str().unwrap())
            .unwrap(),
        bytes
    );
    let inline = server.call("read_file", json!({"path": "raw.bin", "base64": true}));
    assert!(
        !inline.is_error() && inline.0.to_string().contains(&STANDARD.encode(&bytes[..300])),
        "{:.300?}",
        inline
    );
}

#[test]
fn a_long_text_is_read_in_pages_of_whole_lines() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    server.text("open('long.txt', 'w').writelines(f'line {i}\\n' for i in range(20000))");
    let first = server.call("read_file", json!({"path": "long.txt"}));
    let text = first.all();
    assert!(text.contains("line 0\n") && text.len() < 24_000, "{} bytes", text.len());
    assert_eq!(first.page()["total_lines"], 20_000, "{:?}", first.page());
    let next = first.page()["next_offset"].as_u64().expect("where to go on");
    let second = server.call("read_file", json!({"path": "long.txt", "offset": next, "limit": 2}));
    let text = second.all();
    assert!(
        text.contains(&format!("line {next}\n")) || text.contains(&format!("line {}\n", next - 1)),
        "{text}"
    );
    assert!(!text.contains(&format!("line {}\n", next + 3)), "{text}");
}

#[test]
fn a_picture_is_shown() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    server.call("upload_file", json!({"path": "dot.png", "content_base64": png}));
    let read = server.call("read_file", json!({"path": "dot.png"}));
    let image = read.of_kind("image").next().expect("an image block");
    assert_eq!(image["mimeType"], "image/png");
}

#[test]
fn paths_with_traversal_or_invalid_names_are_refused() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    for path in [
        "../../etc/passwd",
        "a/../../b",
        "/tmp/../etc/passwd",
        "..",
        "",
        "a\0b",
        &"n".repeat(300),
        &"n/".repeat(3000),
    ] {
        for (tool, arguments) in [
            ("read_file", json!({"path": path})),
            ("write_file", json!({"path": path, "content": "x"})),
            ("upload_file", json!({"path": path, "content_base64": "eA=="})),
            ("list_files", json!({"path": path})),
        ] {
            // An empty path of a listing means the home folder.
            if tool != "list_files" || !path.is_empty() {
                server.call(tool, arguments).refused("invalid_argument");
            }
        }
    }
}

#[test]
fn missing_files_and_folders_are_named() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let text = server
        .call("read_file", json!({"path": "none.txt"}))
        .refused("not_found");
    assert!(text.contains("/home/user/none.txt"), "{text}");
    server.call("list_files", json!({"path": "none"})).refused("not_found");
    server
        .call("read_file", json!({"path": "/tmp"}))
        .refused("invalid_argument");
    server
        .call("write_file", json!({"path": "/tmp", "content": "x"}))
        .refused("invalid_argument");
    server.text("open('plain', 'w').close()");
    server
        .call("write_file", json!({"path": "plain/below", "content": "x"}))
        .refused("invalid_argument");
}

#[test]
fn links_never_leave_the_sandbox() {
    let _turn = begin!();
    let place = TestDir::new();
    let secret = place.write("secret.txt", "the host's");
    let server = server(&place);
    server.text(&format!(
        "import os\nos.symlink({secret:?}, 'out')\nos.symlink('/', 'top')\nos.symlink('loop', 'loop')\n\
         os.symlink('/proc/self/root', 'magic')\nos.symlink('/proc/1/root/etc/shadow', 'shadow')\n\
         open('real.txt', 'w').write('inside')\nos.symlink('real.txt', 'fine')\nos.symlink('/etc', 'etc')"
    ));
    server.call("read_file", json!({"path": "out"})).refused("not_found");
    assert!(
        server
            .call("read_file", json!({"path": "fine"}))
            .all()
            .contains("inside")
    );
    assert!(
        server
            .call("read_file", json!({"path": "top/home/user/real.txt"}))
            .all()
            .contains("inside")
    );
    server
        .call("read_file", json!({"path": "loop"}))
        .refused("invalid_argument");
    for path in ["magic/etc/passwd", "shadow", "etc/shadow", "/proc/self/root/etc/passwd"] {
        let answer = server.call("read_file", json!({"path": path}));
        assert!(answer.is_error(), "{path}: {answer:?}");
    }
    let through = server.call("write_file", json!({"path": "etc/made", "content": "x"}));
    through.refused("denied_by_policy");
    // A listing does not follow a link to the root.
    let listed = server.call("list_files", json!({"recursive": true}));
    assert!(!listed.all().contains("top/home"), "{listed:?}");
}

#[test]
fn anything_but_a_regular_file_is_refused_at_once() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    server.text("import os, socket\nos.mkfifo('fifo')\ns = socket.socket(socket.AF_UNIX)\ns.bind('sock')");
    let start = Instant::now();
    for path in ["fifo", "sock", "/dev/full", "/dev/null", "/dev/tty", "/dev/urandom"] {
        for (tool, arguments) in [
            ("read_file", json!({"path": path})),
            ("write_file", json!({"path": path, "content": "x"})),
            ("write_file", json!({"path": path, "content": "x", "append": true})),
        ] {
            let answer = server.call(tool, arguments);
            assert!(answer.is_error(), "{tool} {path}: {answer:?}");
        }
    }
    for path in [
        "/proc/self/environ",
        "/proc/1/environ",
        "/proc/1/mem",
        "/proc/self/fd/0",
        "/proc/version",
        "/sys/kernel/notes",
    ] {
        let answer = server.call("read_file", json!({"path": path}));
        assert!(answer.is_error(), "{path}: {answer:?}");
    }
    assert!(start.elapsed() < Duration::from_secs(20), "none of them hangs");
}

#[test]
fn only_the_writable_folders_of_the_sandbox_can_be_written() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    for path in ["/etc/passwd", "/usr/bin/x", "/x", "/bin/sh", "/home/other"] {
        server
            .call("write_file", json!({"path": path, "content": "x"}))
            .refused("denied_by_policy");
    }
    for path in ["/tmp/ok", "/home/user/ok", "/dev/shm/ok"] {
        let answer = server.call("write_file", json!({"path": path, "content": "x"}));
        assert!(!answer.is_error(), "{path}: {answer:?}");
    }
    server.text("import os\nopen('mine', 'w').write('x')\nos.chmod('mine', 0)\nos.mkdir('shut')\nos.chmod('shut', 0)");
    server
        .call("read_file", json!({"path": "mine"}))
        .refused("denied_by_policy");
    server
        .call("read_file", json!({"path": "shut/x"}))
        .refused("denied_by_policy");
}

#[test]
fn invalid_or_oversized_base64_is_refused() {
    let _turn = begin!();
    let place = TestDir::with_settings("[limits]\nfile_mb = 1\n");
    let server = server(&place);
    let text = server
        .call("upload_file", json!({"path": "f", "content_base64": "not base64!"}))
        .refused("invalid_argument");
    assert!(text.contains("content_base64"), "{text}");
    let big = "x".repeat((1 << 20) + 1);
    for (tool, arguments) in [
        ("write_file", json!({"path": "f", "content": big})),
        (
            "upload_file",
            json!({"path": "f", "content_base64": STANDARD.encode(&big)}),
        ),
    ] {
        let text = server.call(tool, arguments).refused("limit_reached");
        assert!(text.contains("append"), "it says how to send more: {text}");
    }
    server.call("read_file", json!({"path": "f"})).refused("not_found");
    server
        .call("upload_file", json!({"path": "f"}))
        .refused("invalid_argument");
    server
        .call(
            "upload_file",
            json!({"path": "f", "content_base64": "", "local_path": "/etc/passwd"}),
        )
        .refused("invalid_argument");
}

#[test]
fn host_files_are_uploaded_only_from_folders_the_operator_named() {
    let _turn = begin!();
    let place = TestDir::new();
    let inside = place.write("data.csv", "a,b\n1,2\n");
    let folder = place.work().display().to_string();
    std::os::unix::fs::symlink("/etc/passwd", place.work().join("link")).unwrap();
    let closed = server(&place);
    closed
        .call("upload_file", json!({"path": "d", "local_path": inside}))
        .refused("denied_by_policy");
    drop(closed);
    let place = TestDir::with_settings(&format!("upload_from = [{folder:?}]\n"));
    // The first place must outlive this server: its folder is the allowed one.
    let open = server(&place);
    let answer = open.call("upload_file", json!({"path": "d.csv", "local_path": inside}));
    assert!(
        !answer.is_error(),
        "the file is gone with its place, or not allowed: {answer:?}"
    );
    assert_eq!(open.text("print(open('d.csv').read())").trim(), "a,b\n1,2");
    for path in [
        "/etc/passwd".to_owned(),
        format!("{folder}/../x"),
        format!("{folder}/link"),
        format!("{folder}-other/x"),
    ] {
        let answer = open.call("upload_file", json!({"path": "d", "local_path": path}));
        assert!(answer.is_error(), "{path}: {answer:?}");
    }
}

#[test]
fn a_full_disk_is_named_and_files_can_be_deleted() {
    let _turn = begin!();
    let place = TestDir::with_settings("[limits]\ndisk_mb = 16\ninodes = 500\n");
    let server = server(&place);
    let answer = server.run("f = open('big', 'wb')\nwhile True:\n    f.write(bytes(1 << 20))\n    f.flush()");
    assert_eq!(answer.cause(), "disk_full", "{answer:?}");
    assert!(
        answer.verdict().contains("16"),
        "it names the limit: {}",
        answer.verdict()
    );
    server
        .call("write_file", json!({"path": "more", "content": "x".repeat(1 << 20)}))
        .refused("disk_full");
    server.text("import os\nf.close() if 0 else None\nos.remove('big')");
    assert_eq!(
        server
            .text("open('ok', 'w').write('x')\nprint('fine')")
            .trim()
            .lines()
            .last(),
        Some("fine")
    );
    let many = server.run("for i in range(2000): open(f'n{i}', 'w').close()");
    assert_eq!(many.cause(), "disk_full", "{many:?}");
}

#[test]
fn names_with_invalid_text_or_line_breaks_are_listed_safely() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    server.text(
        "open(b'bad\\xff\\xfe', 'w').close()\nopen('two\\nlines', 'w').close()\nopen('\\x1b[31mred', 'w').close()",
    );
    let listed = server.call("list_files", json!({}));
    assert!(!listed.is_error(), "{listed:?}");
    assert!(listed.all().contains("bad"), "{listed:?}");
    assert!(!listed.all().contains('\u{1b}'), "no terminal codes: {listed:?}");
    server.text("import os\nos.makedirs('many')\nfor i in range(5000): open(f'many/{i}', 'w').close()");
    let many = server.call("list_files", json!({"path": "many"}));
    assert!(many.all().len() < 100_000, "bounded: {}", many.all().len());
    assert!(many.all().contains("more"), "says how many more: {:.300}", many.all());
}

#[test]
fn a_path_whose_folders_are_swapped_for_links_never_leaves_the_sandbox() {
    let _turn = begin!();
    let place = TestDir::new();
    place.write("passwd", "the host's");
    let work = place.work().display().to_string();
    let server = server(&place);
    server.text(&format!(
        "import os, threading\nos.makedirs('a'); open('a/passwd', 'w').write('inside')\nstop = False\n\
         def swap():\n    while not stop:\n        try:\n            os.rename('a', 'b'); os.symlink({work:?}, 'a'); os.unlink('a'); os.rename('b', 'a')\n        except OSError: pass\n\
         t = threading.Thread(target=swap, daemon=True); t.start()"
    ));
    for _ in 0..200 {
        let text = server.call("read_file", json!({"path": "a/passwd"})).all();
        assert!(!text.contains("the host's"), "{text}");
    }
    server.text("stop = True\nt.join()");
}
