use serde_json::json;

use crate::packages::{command, kept, stocked};
use sandcell_e2e::begin;
use sandcell_e2e::http::{Caller, Server, token};
use sandcell_e2e::test_dir::TestDir;

/// A server with this quota, and two callers.
fn two(place: &TestDir) -> (Server, Caller, Caller) {
    let token = |name: &str| {
        let made = place.command(&["token", "create", name]).output().unwrap();
        String::from_utf8(made.stdout).unwrap().trim().to_owned()
    };
    let (ann, bob) = (token("ann"), token("bob"));
    let server = Server::start(place, &[]);
    let (ann, bob) = (server.with_token(&ann), server.with_token(&bob));
    (server, ann, bob)
}

#[test]
fn an_exhausted_cpu_quota_affects_only_its_caller() {
    let _turn = begin!();
    let place = TestDir::with_settings("[quota]\ncpu_s = 1\n");
    let (_server, ann, bob) = two(&place);
    let busy = "import time\nend = time.process_time() + 1.3\nwhile time.process_time() < end: pass\nx = 7";
    let first = ann.call("execute_code", json!({"code": busy}));
    assert_eq!(first.status(), "ok", "{}", first.all());
    let refused = ann.call("execute_code", json!({"code": "x"})).refused("limit_reached");
    assert!(
        refused.contains("processor time") && refused.contains("wait about"),
        "{refused}"
    );
    assert!(bob.call("execute_code", json!({"code": "6 * 7"})).all().contains("42"));
}

#[test]
fn the_total_memory_of_a_callers_sandboxes_is_bounded() {
    let _turn = begin!();
    let place = TestDir::with_settings("[quota]\nmemory_mb = 1100\n");
    let (_server, ann, bob) = two(&place);
    let made = ann.call("create_sandbox", json!({"count": 2}));
    assert!(!made.is_error(), "{}", made.all());
    let refused = ann.call("create_sandbox", json!({})).refused("limit_reached");
    assert!(refused.contains("1024 MiB of memory together"), "{refused}");
    let small = ann.call("create_sandbox", json!({"memory_mb": 64}));
    assert!(!small.is_error(), "what still fits is made: {}", small.all());
    assert!(!bob.call("create_sandbox", json!({"count": 2})).is_error());
}

#[test]
fn packages_are_bounded_for_each_caller_and_a_refused_one_leaves_nothing() {
    let _turn = begin!();
    let (place, index) = (TestDir::with_settings("[quota]\npackages = 2\n"), stocked());
    let (_, ann) = token(&place, &["ann"]);
    let (_, bob) = token(&place, &["bob"]);
    index.add(&sandcell_e2e::index::Wheel::new("third", "1.0").file("third.py", "x = 3\n"));
    let server = Server::spawn(&mut command(&place, &index.url(), &["serve", "--http", "127.0.0.1:0"]));
    let (ann, bob) = (server.with_token(&ann), server.with_token(&bob));
    let install = |who: &Caller, name: &str| who.call("install_package", json!({"packages": [name]}));
    // One package and its dependency.
    assert!(install(&ann, "demo-one").all().contains("helper-one 1.5"));
    let refused = install(&ann, "third").refused("limit_reached");
    assert!(
        refused.contains("2 packages") && refused.contains("quota.packages"),
        "{refused}"
    );
    assert_eq!(kept(&place), (1, 0), "neither a layer nor a draft of it is left");
    assert_eq!(ann.text("import demo_one\nprint(demo_one.answer)").trim(), "2");
    // An installed package does not count again, and other callers have separate quotas.
    ann.call("create_sandbox", json!({"packages": ["demo-one"]})).data();
    assert!(install(&bob, "third").all().contains("third 1.0"));
}
