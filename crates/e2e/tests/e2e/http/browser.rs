use serde_json::json;

use sandcell_e2e::browser::{Browser, chromium};
use sandcell_e2e::http::{Caller, Reply, Server, token};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, name_of, skip};

/// Starts a server with the page, a caller, and a browser that is signed in with the caller's token.
pub(super) fn looked_in(place: &TestDir, test: &str) -> Option<(Server, Caller, Browser)> {
    looked_in_at(place, test)
}

/// The same for a place with settings.
pub(super) fn looked_in_at(place: &TestDir, test: &str) -> Option<(Server, Caller, Browser)> {
    let Some(program) = chromium() else {
        skip(test, "no browser (apt-get install chromium)");
        return None;
    };
    let (_, secret) = token(place, &["ann"]);
    let server = Server::start(place, &["--page"]);
    let ann = server.with_token(&secret);
    let mut browser = Browser::start(&program);
    browser.look(1280, 900, "light");
    browser.open(&format!("http://{}/", server.address));
    browser.wait("!document.getElementById('door').hidden");
    browser.wait("document.activeElement.id === 'token'");
    browser.shot("door");
    // The keyboard alone is used.
    browser.type_text("sandcell_tkwrong_wrong");
    browser.key("Enter");
    browser.wait("document.getElementById('door-error').textContent.includes('not valid')");
    browser.type_text(&secret);
    browser.key("Enter");
    browser.wait("!document.getElementById('house').hidden");
    Some((server, ann, browser))
}

/// Markup that would run scripts if the page inserted it as HTML.
pub(super) const EVIL_MARKUP: &str =
    "<img src=x onerror=\"window.hit=1\"><script>window.hit=2</script><svg onload=window.hit=3>";

#[test]
fn output_of_code_is_shown_as_text_and_never_runs() {
    fn here() {}
    let _turn = begin!();
    let place = TestDir::new();
    let Some((_server, ann, mut browser)) = looked_in(&place, &name_of(here)) else {
        return;
    };
    let made = ann.call("create_sandbox", json!({"label": EVIL_MARKUP}));
    assert!(!made.is_error(), "{}", made.all());
    let code = format!(
        "# {EVIL_MARKUP}\nimport sys, zlib, struct\nprint({EVIL_MARKUP:?})\nprint({EVIL_MARKUP:?}, file=sys.stderr)\n\
         def chunk(kind, data): return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))\n\
         row = b'\\0' + b'\\x2f\\x6f\\x62' * 240\n\
         png = b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', 240, 80, 8, 2, 0, 0, 0)) \
         + chunk(b'IDAT', zlib.compress(row * 80)) + chunk(b'IEND', b'')\n\
         open('<b onmouseover=hit>.png', 'wb').write(png)\nopen('evil.svg', 'w').write({EVIL_MARKUP:?})\n\
         open('page.html', 'w').write('<script>parent.hit=4</script>')\n# \u{202e}turned around\nraise ValueError({EVIL_MARKUP:?})"
    );
    let files = ["<b onmouseover=hit>.png", "evil.svg", "page.html"];
    let ran = ann.call("create_run_close", json!({"code": code, "outputs": files}));
    assert_eq!(ran.status(), "error", "{}", ran.all());
    let id = ran.meta()["execution_id"].as_str().unwrap().to_owned();
    browser.click(&format!("#history [data-id='{id}']"));
    browser.wait("document.querySelectorAll('#detail pre').length >= 4");
    let shown = browser.text("#detail");
    assert!(shown.matches("<img src=x onerror=").count() >= 4, "{shown}");
    assert!(
        shown.contains("<b onmouseover=hit>.png") && shown.contains("⟨U+202E⟩"),
        "{shown}"
    );
    browser.wait(&format!(
        "document.getElementById('sandboxes').textContent.includes({})",
        json!(EVIL_MARKUP)
    ));
    // The picture is displayed, and the other files are downloads.
    browser.wait("document.querySelector('#detail img')?.naturalWidth === 240");
    assert_eq!(browser.value("document.querySelectorAll('#detail img').length"), 1);
    assert_eq!(
        browser.value("document.querySelectorAll('#detail .files li').length"),
        2
    );
    for (what, count) in [
        ("script", 1),
        ("svg", 0),
        ("iframe", 0),
        ("img[src=x]", 0),
        ("[onerror],[onload]", 0),
        ("b", 0),
    ] {
        let found = browser.value(&format!("document.querySelectorAll({}).length", json!(what)));
        assert_eq!(found, count, "{what}");
    }
    assert!(browser.value("window.hit ?? null").is_null());
    // Even a bug of the page could not run markup from code.
    let tried = "try { document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hit=5\">'); 'made' } catch { 'refused' }";
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    assert_eq!(browser.value(tried), "refused");
    assert!(browser.value("window.hit ?? null").is_null());
    assert_eq!(browser.value("document.cookie + localStorage.length"), "0");
}

#[test]
fn running_executions_appear_at_once_and_can_be_cancelled_and_closed() {
    fn here() {}
    let _turn = begin!();
    let place = TestDir::new();
    let Some((server, ann, mut browser)) = looked_in(&place, &name_of(here)) else {
        return;
    };
    ann.text("rows = [n * n for n in range(1000)]\nprint('loaded', len(rows), 'rows')");
    ann.run("import statistics\nstatistics.mean(rows)");
    ann.run("rows['mean']");
    let call = ann.tool(
        "execute_code",
        &json!({"code": "import time\nfor n in range(600):\n    print('step', n, flush=True)\n    time.sleep(0.1)", "timeout_s": 60}),
    );
    let mut running = ann.begin(&call, "Connection: close\r\n");
    browser.wait("document.querySelector('#running .row .status')?.dataset.is === 'running'");
    browser.click("#running .row");
    browser.wait("document.querySelector('#detail pre[data-part=Output]')?.textContent.includes('step 1')");
    // Output updates without user action.
    browser.wait("document.querySelector('#detail pre[data-part=Output]').textContent.includes('step 9')");
    browser.shot("light");
    browser.look(1280, 900, "dark");
    browser.shot("dark");
    browser.look(390, 844, "light");
    browser.shot("narrow-detail");
    assert_eq!(
        browser.value("document.documentElement.scrollWidth <= innerWidth"),
        true
    );
    browser.key("Escape");
    browser.wait("document.getElementById('detail').hidden");
    browser.shot("narrow");
    assert_eq!(
        browser.value("document.documentElement.scrollWidth <= innerWidth"),
        true
    );
    browser.look(1280, 900, "light");
    // By keyboard: select the first row, open it, cancel it, and confirm.
    browser.key("j");
    browser.key("k");
    browser.wait("document.activeElement.closest('#running')");
    browser.key("Enter");
    browser.wait("document.getElementById('cancel')");
    browser.key("c");
    browser.wait("document.getElementById('ask').open");
    browser.shot("ask");
    browser.key("Escape");
    browser.wait("!document.getElementById('ask').open");
    browser.click("#cancel");
    browser.wait("document.getElementById('ask').open");
    browser.click("#ask-yes");
    let reply = Reply::read(&mut running).unwrap();
    assert_eq!(
        reply.message()["result"]["_meta"]["sandcell/execution"]["status"],
        "cancelled",
        "{reply:?}"
    );
    browser.wait("document.querySelector('#detail .status').dataset.is === 'cancelled'");
    browser.wait("document.getElementById('said').textContent !== ''");
    // The filter, and closing the sandbox.
    browser.key("/");
    browser.wait("document.activeElement.id === 'filter'");
    browser.type_text("statistics");
    browser.wait("document.querySelectorAll('#history li').length === 1");
    browser.key("Escape");
    browser.wait("document.querySelectorAll('#history li').length === 4");
    browser.click("#sandboxes button");
    browser.click("#ask-yes");
    browser.wait("document.querySelectorAll('#sandboxes li').length === 0");
    assert!(ann.call("get_sandbox_status", json!({})).all().contains("no sandbox"));
    // Another caller in the same tab sees none of this.
    let (_, bob) = token(&place, &["bob"]);
    browser.click("#leave");
    browser.wait("!document.getElementById('door').hidden");
    assert_eq!(browser.value("document.body.textContent.includes('statistics')"), false);
    assert!(browser.value("sessionStorage.getItem('sandcell-token')").is_null());
    browser.type_text(&bob);
    browser.key("Enter");
    browser.wait("!document.getElementById('house').hidden");
    assert_eq!(
        browser.value("document.querySelectorAll('.row, .card[data-key^=sb]').length"),
        0
    );
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    // The page shows the end of the server.
    drop(server);
    browser.wait("document.getElementById('pulse').dataset.state === 'lost'");
}
