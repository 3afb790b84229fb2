use serde_json::{Value, json};

use super::browser::looked_in;
use sandcell_e2e::browser::Browser;
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, name_of};

/// Roles whose node must have a name for a screen reader.
const NAMED_ROLES: [&str; 16] = [
    "button",
    "textbox",
    "searchbox",
    "combobox",
    "spinbutton",
    "link",
    "image",
    "meter",
    "table",
    "dialog",
    "region",
    "article",
    "navigation",
    "heading",
    "columnheader",
    "DisclosureTriangle",
];

/// Fails on barriers for users with a keyboard, a screen reader or low vision.
#[track_caller]
fn no_barriers(browser: &mut Browser, state: &str) {
    let faults = browser.value(include_str!("accessibility.js"));
    assert_eq!(faults, json!([]), "{state}");
    let tree = browser.call("Accessibility.getFullAXTree", json!({}));
    let mut seen = 0;
    for node in tree["nodes"].as_array().unwrap() {
        let role = node["role"]["value"].as_str().unwrap_or_default();
        if node["ignored"] == true || !NAMED_ROLES.contains(&role) {
            continue;
        }
        seen += 1;
        let name = node["name"]["value"].as_str().unwrap_or_default().trim();
        assert!(!name.is_empty(), "{state}: a {role} without a name: {node}");
    }
    assert!(seen > 2, "{state}: the tree has names");
}

/// Goes through the page with Tab and returns the focused elements in order. Each must show the focus.
fn tab_through(browser: &mut Browser) -> Vec<String> {
    // A reloaded page, since Tab continues at the last focus.
    browser.value("window.old = true; location.reload()");
    browser.wait("window.old === undefined && document.querySelector('#history li')");
    let mut places: Vec<String> = Vec::new();
    for _ in 0..300 {
        browser.key("Tab");
        let at: Value = browser.value(
            "(() => { const at = document.activeElement; if (!at || at === document.body) return null; \
             const style = getComputedStyle(at); window.order ??= new Map(); \
             if (!window.order.has(at)) window.order.set(at, window.order.size); \
             return [`${window.order.get(at)} ${at.tagName} ${at.id} ${(at.ariaLabel ?? at.textContent).slice(0, 30)}`, \
             style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1]; })()",
        );
        let Some(place) = at[0].as_str() else { break };
        assert_eq!(at[1], true, "{place} does not show that it has the focus");
        if places.iter().any(|one| one == place) {
            break;
        }
        places.push(place.to_owned());
    }
    places
}

#[test]
fn the_page_works_by_keyboard_and_for_screen_readers_in_every_state() {
    fn here() {}
    let _turn = begin!();
    let place = TestDir::new();
    let Some((_server, ann, mut browser)) = looked_in(&place, &name_of(here)) else {
        return;
    };
    let made = ann.call("create_sandbox", json!({"label": "analysis"}));
    let sandbox = made.data()["sandbox_id"].as_str().unwrap().to_owned();
    ann.call(
        "execute_code",
        json!({"code": "rows = [1, 2, 3]\nprint('loaded\\n' * 200)\nopen('a.txt', 'w').write('x\\n' * 500)", "sandbox_id": sandbox}),
    );
    ann.run("rows['mean']");
    let waits = json!({"code": "import time\nprint('on')\ntime.sleep(300)", "timeout_s": 300});
    let call = ann.tool("execute_code", &waits);
    let _running = ann.begin(&call, "Connection: close\r\n");
    browser.wait("document.querySelectorAll('#history li').length === 2");
    browser.wait("document.querySelector('#running .row .status')?.dataset.is === 'running'");
    for (scheme, width) in [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)] {
        browser.look(width, 900, scheme);
        let state = |what: &str| format!("{what}, {scheme}, {width}");
        no_barriers(&mut browser, &state("lists"));
        browser.value("document.querySelector('#isolation details').open = true");
        browser.click("#running .row");
        browser.wait("document.getElementById('cancel')");
        no_barriers(&mut browser, &state("running"));
        browser.click("#detail [data-focus=back]");
        browser.click("#history .row");
        browser.wait("document.querySelector('#detail .cause, #detail pre.bad')");
        no_barriers(&mut browser, &state("execution"));
        browser.click("#detail [data-focus=back]");
        browser.click(&format!("[data-box={sandbox}]"));
        browser.wait("document.querySelector('#variables table') && document.querySelector('#entries li')");
        browser.click("#entries [data-name='a.txt']");
        browser.wait("document.querySelector('#preview pre')");
        no_barriers(&mut browser, &state("sandbox"));
        assert_eq!(
            browser.value("document.documentElement.scrollWidth <= innerWidth"),
            true,
            "{}",
            state("sandbox")
        );
        // On a narrow screen, covered elements cannot be focused.
        assert_eq!(browser.value("document.getElementById('lists').inert"), width < 600);
        browser.click("#inside-back");
        browser.wait(&format!("document.activeElement.dataset.box === {}", json!(sandbox)));
        for (button, dialog) in [
            ("#make-open", "make"),
            ("#keys-open", "keys"),
            ("#sandboxes .danger", "ask"),
        ] {
            browser.click(button);
            browser.wait(&format!("document.getElementById('{dialog}').open"));
            no_barriers(&mut browser, &state(dialog));
            browser.key("Escape");
            browser.wait(&format!("!document.getElementById('{dialog}').open"));
        }
    }
    // Tab alone reaches every element, in the order of the page.
    browser.look(1280, 900, "light");
    let places = tab_through(&mut browser);
    for wanted in [
        "Skip",
        "Keys",
        "run-code",
        "run-language",
        "run-where",
        "run-seconds",
        "Run",
        "make-open",
        "Close sandbox",
        "Look inside",
        "filter",
        "filter-status",
    ] {
        assert!(
            places.iter().any(|place| place.contains(wanted)),
            "{wanted}: {places:?}"
        );
    }
    let at = |wanted: &str| places.iter().position(|place| place.contains(wanted)).unwrap();
    assert!(
        at("Skip") < at("Keys") && at("Keys") < at("run-code") && at("make-open") < at("filter"),
        "{places:?}"
    );
    // The token form is also free of barriers.
    browser.click("#leave");
    browser.wait("!document.getElementById('door').hidden");
    for scheme in ["light", "dark"] {
        browser.look(1280, 900, scheme);
        no_barriers(&mut browser, &format!("door, {scheme}"));
    }
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}
