//! Saved states: the state of a sandbox goes on in another life of the server.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use sandcell_e2e::client::{Answer, Client};
use sandcell_e2e::machine::{descendants, descriptors, kill};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, begin, settled, until};

use crate::checkpoints::{GENERATOR_CODE, THREAD_CODE};

fn place() -> TestDir {
    TestDir::with_settings("[pool]\nparked = 0\nwarm_parents = true\n")
}

fn start(place: &TestDir) -> Client {
    Client::start(&mut place.command(&["serve"]))
}

#[track_caller]
fn good(server: &Client, tool: &str, arguments: Value) -> Value {
    let answer = server.call(tool, arguments);
    assert!(!answer.is_error(), "{answer:?}\n{}", server.log());
    answer.0["structuredContent"].clone()
}

#[track_caller]
fn run(server: &Client, sandbox: &Value, code: &str) -> String {
    let answer = server.call("execute_code", json!({"sandbox_id": sandbox, "code": code}));
    assert_eq!(answer.status(), "ok", "{answer:?}\n{}", server.log());
    answer.output().trim().to_owned()
}

#[track_caller]
fn new(server: &Client) -> Value {
    good(server, "create_sandbox", json!({}))["sandbox_id"].clone()
}

#[track_caller]
fn save(server: &Client, sandbox: &Value, name: &str) -> Value {
    good(server, "save_sandbox", json!({"sandbox_id": sandbox, "name": name}))["saved"].clone()
}

fn try_open(server: &Client, name: &str) -> Answer {
    server.call("create_sandbox", json!({"from_saved": name}))
}

#[track_caller]
fn open(server: &Client, name: &str) -> Value {
    good(server, "create_sandbox", json!({"from_saved": name}))["sandbox_id"].clone()
}

/// Returns the names of the saved states.
fn names(server: &Client) -> Vec<String> {
    let saved = good(server, "list_saved", json!({}))["saved"].clone();
    let saved = saved.as_array().unwrap();
    saved
        .iter()
        .map(|one| one["name"].as_str().unwrap().to_owned())
        .collect()
}

/// Returns the only owner's folder.
fn owner(place: &TestDir) -> PathBuf {
    let folder = place.path("data").join("saved");
    let mut owners = fs::read_dir(folder).unwrap();
    let owner = owners.next().unwrap().unwrap().path();
    assert!(owners.next().is_none());
    owner
}

/// Returns the folder of a state's files.
fn data(place: &TestDir, name: &str) -> PathBuf {
    let owner = owner(place);
    let description = fs::read(owner.join(format!("{name}.json"))).unwrap();
    let description: Value = serde_json::from_slice(&description).unwrap();
    owner.join(description["data"].as_str().unwrap())
}

/// Writes a file that nobody may write.
fn replace(path: &Path, content: &[u8]) {
    fs::remove_file(path).unwrap();
    fs::write(path, content).unwrap();
}

#[test]
fn a_state_goes_on_in_another_life_of_the_server() {
    let _turn = begin!();
    let place = place();
    let state = "random.seed(0); print(state())";
    let mut expected = Vec::new();
    {
        let server = start(&place);
        let source = new(&server);
        run(&server, &source, GENERATOR_CODE);
        for seed in 0..5 {
            run(&server, &source, &format!("mutate({seed})"));
            expected.push(run(&server, &source, state));
            let saved = save(&server, &source, &format!("s{seed}"));
            assert_eq!(saved["sessions"], json!(["python"]));
            assert!(saved["bytes"].as_u64().unwrap() > 0);
        }
    }
    let server = start(&place);
    assert_eq!(names(&server), ["s0", "s1", "s2", "s3", "s4"]);
    for (seed, expected) in expected.iter().enumerate() {
        let sandbox = open(&server, &format!("s{seed}"));
        assert_eq!(run(&server, &sandbox, state), *expected, "seed {seed}");
        run(&server, &sandbox, &format!("mutate({})", seed + 1000));
        // Another one begins in the saved state again.
        let other = open(&server, &format!("s{seed}"));
        assert_eq!(run(&server, &other, state), *expected, "seed {seed}");
        for one in [sandbox, other] {
            good(&server, "close_sandbox", json!({"sandbox_id": one}));
        }
    }
}

#[test]
fn a_saved_state_is_a_sandbox_like_any_other() {
    let _turn = begin!();
    let place = place();
    let server = start(&place);
    let source = new(&server);
    run(
        &server,
        &source,
        "import os, random\nx = [1]; f = open('log', 'a+'); f.write('a'); f.flush()",
    );
    save(&server, &source, "state");
    good(&server, "close_sandbox", json!({"sandbox_id": source}));
    let made = good(&server, "create_sandbox", json!({"from_saved": "state", "count": 2}))["sandbox_ids"].clone();
    let (first, second) = (&made[0], &made[1]);
    // They share neither files nor random numbers, and can be kept, branched, brought back and saved again.
    let numbers = [first, second].map(|one| run(&server, one, "print(random.random(), os.urandom(4))"));
    assert_ne!(numbers[0], numbers[1]);
    run(&server, first, "f.write('b'); f.flush(); x.append(2)");
    assert_eq!(run(&server, second, "print(open('log').read(), x)"), "a [1]");
    good(
        &server,
        "create_checkpoint",
        json!({"sandbox_id": first, "name": "here"}),
    );
    run(&server, first, "x.append(3)");
    let branch = good(&server, "create_sandbox", json!({"from_sandbox": first}))["sandbox_id"].clone();
    assert_eq!(run(&server, &branch, "print(open('log').read(), x)"), "ab [1, 2, 3]");
    let back = server.call("reset_session_state", json!({"sandbox_id": first, "to": "here"}));
    assert!(!back.is_error(), "{back:?}");
    assert_eq!(run(&server, first, "print(x)"), "[1, 2]");
    save(&server, first, "state");
    let again = open(&server, "state");
    assert_eq!(run(&server, &again, "print(open('log').read(), x)"), "ab [1, 2]");
}

#[test]
fn what_cannot_be_saved_or_opened_is_refused_and_nothing_is_lost() {
    let _turn = begin!();
    let place =
        TestDir::with_settings("[pool]\nparked = 0\nwarm_parents = true\n[sessions]\nsaved = 2\nsaved_mb = 40\n");
    let server = start(&place);
    let source = new(&server);
    let try_save = |name: &str| server.call("save_sandbox", json!({"sandbox_id": source, "name": name}));
    run(&server, &source, "x = 1");
    for name in ["", "-1", "a b", "../a", ".a"] {
        try_save(name).refused("invalid_argument");
    }
    save(&server, &source, "one");
    let remedy = try_open(&server, "on").refused("not_found");
    assert!(remedy.contains("one"), "{remedy}");
    server.call("drop_saved", json!({"name": "on"})).refused("not_found");
    for (mut arguments, code) in [
        (json!({"packages": ["numpy"]}), "invalid_argument"),
        (json!({"memory_mb": 64}), "invalid_argument"),
        (json!({"from_sandbox": source}), "invalid_argument"),
        (json!({"network": ["example.com"]}), "network_denied"),
    ] {
        arguments["from_saved"] = json!("one");
        server.call("create_sandbox", arguments).refused(code);
    }
    server
        .call("create_sandbox", json!({"only_files": true}))
        .refused("invalid_argument");
    run(&server, &source, THREAD_CODE);
    try_save("two").refused("checkpoint_unavailable");
    assert_eq!(names(&server), ["one"]);
    // The files do not depend on the threads.
    run(&server, &source, "n = open('kept', 'w').write('old')");
    let files_only = json!({"sandbox_id": source, "name": "two", "only_files": true});
    assert_eq!(
        good(&server, "save_sandbox", files_only)["saved"]["sessions"],
        json!([])
    );
    let opened = open(&server, "two");
    let code = "print('x' in dir(), open('kept').read())";
    assert_eq!(run(&server, &opened, code), "False old");
    good(&server, "drop_saved", json!({"name": "two"}));
    let source = new(&server);
    let try_save = |name: &str| server.call("save_sandbox", json!({"sandbox_id": source, "name": name}));
    run(&server, &source, "import os\nx = os.urandom(50 << 20)");
    try_save("two").refused("limit_reached");
    run(&server, &source, "del x");
    save(&server, &source, "two");
    try_save("three").refused("limit_reached");
    save(&server, &source, "two");
    good(&server, "drop_saved", json!({"name": "one"}));
    save(&server, &source, "three");
    assert_eq!(names(&server), ["three", "two"]);
}

#[test]
fn a_state_that_does_not_fit_this_server_is_refused_and_its_files_can_be_opened() {
    let _turn = begin!();
    let place = place();
    let server = start(&place);
    let source = new(&server);
    run(&server, &source, "x = 1; n = open('kept', 'w').write('old')");
    save(&server, &source, "state");
    let folder = data(&place, "state");
    let description = owner(&place).join("state.json");
    let text = fs::read_to_string(&description).unwrap();
    let mut changed: Value = serde_json::from_str(&text).unwrap();
    changed["image_format"] = json!("another");
    replace(&description, changed.to_string().as_bytes());
    let refused = try_open(&server, "state").refused("checkpoint_unavailable");
    assert!(refused.contains("only_files"), "{refused}");
    let files = good(
        &server,
        "create_sandbox",
        json!({"from_saved": "state", "only_files": true}),
    );
    let code = "print('x' in dir(), open('kept').read())";
    assert_eq!(run(&server, &files["sandbox_id"], code), "False old");
    // Damaged memory ends nothing but the new sandbox.
    replace(&description, text.as_bytes());
    let memory = folder.join("memory");
    let bytes = fs::read(&memory).unwrap();
    for (name, damaged) in [
        ("cut", bytes[..bytes.len() / 2].to_vec()),
        ("zeros", vec![0; bytes.len()]),
        (
            "noise",
            bytes.iter().map(|byte| byte.wrapping_mul(31).wrapping_add(7)).collect(),
        ),
    ] {
        replace(&memory, &damaged);
        assert!(try_open(&server, "state").is_error(), "{name}");
        let files = good(
            &server,
            "create_sandbox",
            json!({"from_saved": "state", "only_files": true}),
        );
        good(&server, "close_sandbox", json!({"sandbox_id": files["sandbox_id"]}));
    }
    replace(&memory, &bytes);
    let again = open(&server, "state");
    assert_eq!(run(&server, &again, "print(x)"), "1");
    assert_eq!(run(&server, &source, "print(x)"), "1");
}

#[test]
fn damaged_states_are_listed_and_dropped_and_hinder_no_others() {
    let _turn = begin!();
    let place = TestDir::with_settings("[pool]\nparked = 0\nwarm_parents = true\n[sessions]\nsaved_mb = 100\n");
    let server = start(&place);
    let source = new(&server);
    run(&server, &source, "import os\nx = os.urandom(20 << 20)");
    save(&server, &source, "damaged");
    replace(&owner(&place).join("damaged.json"), b"{");
    let listed = good(&server, "list_saved", json!({}))["saved"][0].clone();
    assert_eq!(
        (&listed["name"], &listed["readable"]),
        (&json!("damaged"), &json!(false))
    );
    try_open(&server, "damaged").refused("checkpoint_unavailable");
    for _ in 0..5 {
        save(&server, &source, "whole");
    }
    good(&server, "drop_saved", json!({"name": "whole"}));
    save(&server, &source, "whole");
    good(&server, "drop_saved", json!({"name": "damaged"}));
    assert_eq!(names(&server), ["whole"]);
    assert_eq!(folders(&place), 1);
}

/// Returns the number of folders with files of states.
fn folders(place: &TestDir) -> usize {
    let entries = fs::read_dir(owner(place)).unwrap();
    entries.filter(|entry| entry.as_ref().unwrap().path().is_dir()).count()
}

#[test]
fn a_repeated_request_finds_its_sandbox_after_the_state_was_dropped() {
    let _turn = begin!();
    let place = place();
    let server = start(&place);
    let source = new(&server);
    run(&server, &source, "x = 1");
    save(&server, &source, "state");
    let ask = json!({"from_saved": "state", "key": "k"});
    let first = good(&server, "create_sandbox", ask.clone())["sandbox_id"].clone();
    run(&server, &first, "x = 2");
    good(&server, "drop_saved", json!({"name": "state"}));
    let again = good(&server, "create_sandbox", ask)["sandbox_id"].clone();
    assert_eq!(again, first);
    assert_eq!(run(&server, &again, "print(x)"), "2");
    let other = json!({"from_saved": "state", "key": "other"});
    server.call("create_sandbox", other).refused("not_found");
}

#[test]
fn states_stay_readable_where_saving_is_switched_off() {
    let _turn = begin!();
    let place = place();
    {
        let server = start(&place);
        let source = new(&server);
        run(&server, &source, "x = 1");
        save(&server, &source, "state");
        fs::create_dir(owner(&place).join(".data-left")).unwrap();
    }
    let mut command = place.command(&["serve"]);
    let server = Client::start(command.env("SANDCELL_SESSIONS__SAVED", "0"));
    until(DEFAULT_TIMEOUT, "the start removes what was left", || {
        (folders(&place) == 1).then_some(())
    });
    assert_eq!(names(&server), ["state"]);
    let sandbox = open(&server, "state");
    assert_eq!(run(&server, &sandbox, "print(x)"), "1");
    let arguments = json!({"sandbox_id": sandbox, "name": "more"});
    server.call("save_sandbox", arguments).refused("limit_reached");
    good(&server, "drop_saved", json!({"name": "state"}));
    assert_eq!(names(&server), Vec::<String>::new());
}

#[test]
fn many_calls_save_open_and_drop_at_once() {
    let _turn = begin!();
    let place = place();
    let server = start(&place);
    let source = new(&server);
    run(&server, &source, "x = [1]");
    save(&server, &source, "base");
    let calls: Vec<_> = (0..60)
        .map(|number| {
            let name = format!("s{}", number % 4);
            match number % 5 {
                0 | 3 => server.begin_call("save_sandbox", json!({"sandbox_id": source, "name": name})),
                1 => server.begin_call("create_sandbox", json!({"from_saved": "base"})),
                _ => server.begin_call("drop_saved", json!({"name": name})),
            }
        })
        .collect();
    for (number, call) in calls.into_iter().enumerate() {
        let answer = call.answer();
        match number % 5 {
            1 => {
                assert!(!answer.is_error(), "{answer:?}");
                let opened = &answer.data()["sandbox_id"];
                assert_eq!(run(&server, opened, "x.append(2); print(x)"), "[1, 2]");
                good(&server, "close_sandbox", json!({"sandbox_id": opened}));
            }
            2 | 4 if answer.is_error() => drop(answer.refused("not_found")),
            _ => assert!(!answer.is_error(), "{answer:?}"),
        }
    }
    assert_eq!(run(&server, &source, "print(x)"), "[1]");
    let names = names(&server);
    assert_eq!(folders(&place), names.len(), "{names:?}");
    for name in names {
        let opened = open(&server, &name);
        assert_eq!(run(&server, &opened, "print(x)"), "[1]", "{name}");
        good(&server, "close_sandbox", json!({"sandbox_id": opened}));
    }
}

#[test]
fn a_killed_server_leaves_whole_states_only() {
    let _turn = begin!();
    let place = place();
    {
        let server = start(&place);
        let source = new(&server);
        run(&server, &source, "x = 0");
        save(&server, &source, "state");
    }
    for round in 1..=12 {
        let server = start(&place);
        let source = open(&server, "state");
        run(
            &server,
            &source,
            &format!("import os\nx += 1; data = os.urandom({round} << 20)"),
        );
        let arguments = json!({"sandbox_id": source, "name": "state"});
        let saving = server.begin_call("save_sandbox", arguments);
        std::thread::sleep(std::time::Duration::from_millis(round * 12));
        kill(server.pid());
        drop(saving);
        drop(server);
        let server = start(&place);
        let again = open(&server, "state");
        let x: u64 = run(&server, &again, "print(x)").parse().unwrap();
        assert!(x <= round, "{x}");
        // The next writer removes what was left.
        run(&server, &again, &format!("x = {round}"));
        save(&server, &again, "state");
        let left: Vec<String> = { fs::read_dir(owner(&place)).unwrap() }
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with(".data-"))
            .collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}

#[test]
fn only_the_owner_reads_saved_states_and_nothing_grows() {
    let _turn = begin!();
    let place = place();
    let server = start(&place);
    let source = new(&server);
    run(&server, &source, "x = bytearray(b'1') * (5 << 20)");
    save(&server, &source, "state");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = owner(&place);
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o077, 0);
        let data = data(&place, "state");
        for file in [folder.join("state.json"), data.join("files"), data.join("memory")] {
            let mode = fs::metadata(&file).unwrap().permissions().mode();
            assert_eq!(mode & 0o377, 0, "{file:?}");
        }
    }
    let cycle = || {
        save(&server, &source, "state");
        let sandbox = open(&server, "state");
        assert_eq!(run(&server, &sandbox, "print(len(x))"), (5 << 20).to_string());
        good(&server, "close_sandbox", json!({"sandbox_id": sandbox}));
    };
    for _ in 0..5 {
        cycle();
    }
    let look = || (descriptors(server.pid()), descendants(server.pid()).len());
    let before = settled(look);
    for _ in 0..30 {
        cycle();
    }
    until(DEFAULT_TIMEOUT, "nothing has grown", || {
        let (files, processes) = look();
        (files <= before.0 + 4 && processes <= before.1 + 2).then_some(())
    });
}
