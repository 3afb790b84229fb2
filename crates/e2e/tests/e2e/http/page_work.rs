use std::path::Path;

use serde_json::{Value, json};

use super::browser::{EVIL_MARKUP, looked_in};
use sandcell_e2e::browser::Browser;
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, begin, name_of, until};

/// Returns the only file in a folder of downloads, once it is complete.
fn downloaded(folder: &Path, ending: &str) -> Vec<u8> {
    until(DEFAULT_TIMEOUT, "the download", || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let path = { files }.find(|path| path.to_string_lossy().ends_with(ending))?;
        let bytes = std::fs::read(&path).unwrap();
        // The browser reserves the name with an empty file.
        if bytes.is_empty() {
            return None;
        }
        std::fs::remove_file(&path).unwrap();
        Some(bytes)
    })
}

/// Replaces the text of a field by typing.
fn fill(browser: &mut Browser, field: &str, text: &str) {
    browser.value(&format!(
        "(() => {{ const field = document.querySelector({}); field.value = ''; field.focus(); }})()",
        json!(field)
    ));
    browser.type_text(text);
}

#[test]
fn code_is_written_run_edited_and_run_again_by_keyboard() {
    fn here() {}
    let _turn = begin!();
    let place = TestDir::new();
    let Some((_server, ann, mut browser)) = looked_in(&place, &name_of(here)) else {
        return;
    };
    browser.value("document.body.focus(); document.activeElement.blur()");
    browser.key("r");
    browser.wait("document.activeElement.id === 'run-code'");
    browser.type_text("try: n += 1\nexcept NameError: n = 1\nprint('n is', n, '<b>bold</b>')");
    browser.press("Enter", 2);
    browser.wait("document.querySelector('#detail pre[data-part=Output]')?.textContent.includes('n is 1 <b>')");
    browser.wait("document.getElementById('again')");
    browser.shot("run");
    browser.key("a");
    browser.wait("document.querySelector('#detail pre[data-part=Output]')?.textContent.includes('n is 2')");
    browser.click("#edit");
    browser.wait("document.activeElement.id === 'run-code'");
    assert_eq!(
        browser.value("document.getElementById('run-where').value"),
        "",
        "the default sandbox"
    );
    fill(&mut browser, "#run-code", "print('n' in globals())");
    browser.value("document.getElementById('run-where').value = 'fresh'");
    browser.click("#run button[type=submit]");
    browser.wait("document.querySelector('#detail pre[data-part=Output]')?.textContent === 'False\\n'");
    // Code that cannot run is reported next to the field.
    fill(&mut browser, "#run-code", "  ");
    browser.click("#run button[type=submit]");
    browser.wait("document.getElementById('run-error').textContent.includes('no code')");
    fill(&mut browser, "#run-code", "1");
    fill(&mut browser, "#run-seconds", "99999999");
    browser.value("document.getElementById('run').noValidate = true");
    browser.click("#run button[type=submit]");
    browser.wait("document.getElementById('run-error').textContent.includes('timeout_s')");
    // A sandbox is made; the first try is refused.
    browser.click("#make-open");
    fill(&mut browser, "#make-label", "mine <i>");
    fill(&mut browser, "#make-memory_mb", "1");
    browser.click("#make-yes");
    browser.wait("document.getElementById('make-error').textContent.includes('memory_mb')");
    browser.shot("make");
    fill(&mut browser, "#make-memory_mb", "200");
    browser.click("#make-yes");
    browser.wait("!document.getElementById('make').open");
    browser.wait("document.getElementById('sandboxes').textContent.includes('mine <i>')");
    browser.wait("document.getElementById('sandboxes').textContent.includes('of 200 MB')");
    assert!(ann.call("get_sandbox_status", json!({})).all().contains("mine <i>"));
    assert_eq!(
        browser.value("document.querySelectorAll('#sandboxes i, #detail b').length"),
        0
    );
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

#[test]
fn two_hundred_hostile_executions_are_searched_and_paged_and_the_page_stays_small() {
    fn here() {}
    let _turn = begin!();
    let place = TestDir::new();
    let Some((_server, ann, mut browser)) = looked_in(&place, &name_of(here)) else {
        return;
    };
    for number in 0..200 {
        let code = format!(
            "# {number} {EVIL_MARKUP}\nprint('\\x1b[31m' + {EVIL_MARKUP:?} * 300 + '\\u202e\\x00')\nraise ValueError({EVIL_MARKUP:?} + 'word{number}')"
        );
        ann.run(&code);
    }
    browser.wait("document.getElementById('history-count').textContent === '1–50 of 200'");
    let size = |browser: &mut Browser| {
        let rows = browser.value("document.querySelectorAll('#history li').length");
        let nodes = browser.value("document.querySelectorAll('*').length").as_u64().unwrap();
        let letters = browser.value("document.body.textContent.length").as_u64().unwrap();
        assert!(
            nodes < 1500 && letters < 100_000,
            "{nodes} elements with {letters} characters"
        );
        rows
    };
    assert_eq!(size(&mut browser), 50);
    browser.shot("history");
    for (page, count) in [(2, "51–100"), (3, "101–150"), (4, "151–200")] {
        browser.click("#older");
        browser.wait(&format!(
            "document.getElementById('history-count').textContent === '{count} of 200'"
        ));
        assert_eq!(size(&mut browser), 50, "page {page}");
    }
    assert_eq!(browser.value("document.getElementById('older').disabled"), true);
    browser.wait("document.activeElement.classList.contains('row')");
    let oldest = browser.text("#history li:last-child");
    assert!(oldest.contains("# 0 <img"), "{oldest}");
    // An older page of results stays while new executions run.
    ann.run("'newest'");
    browser.wait("document.querySelector('#sandboxes').textContent.includes('201 cells')");
    assert_eq!(browser.text("#history li:last-child"), oldest);
    browser.click("#newer");
    browser.wait("document.getElementById('history-count').textContent === '101–150 of 201'");
    // The search covers text that no row shows, and all executions.
    fill(&mut browser, "#filter", "valueerror word7");
    browser.wait("document.querySelectorAll('#history li').length === 11");
    browser.value(
        "(() => { const select = document.getElementById('filter-status'); select.value = 'ok'; \
         select.dispatchEvent(new Event('change')); })()",
    );
    browser.wait("document.getElementById('history-empty').checkVisibility()");
    browser.value(
        "(() => { const select = document.getElementById('filter-status'); select.value = ''; \
         select.dispatchEvent(new Event('change')); })()",
    );
    fill(&mut browser, "#filter", "word199");
    browser.wait("document.querySelectorAll('#history li').length === 1");
    browser.click("#history .row");
    browser.wait("document.querySelector('#detail pre[data-part=Output]')");
    let output = browser.text("#detail pre[data-part=Output]");
    assert!(
        output.contains("<script>window.hit=2</script>") && !output.contains('\u{1b}'),
        "{output:.200}"
    );
    assert!(browser.value("window.hit ?? null").is_null());
    assert_eq!(browser.value("document.querySelectorAll('script').length"), 1);
    fill(&mut browser, "#filter", &"x".repeat(300));
    browser.wait("document.getElementById('history-error').textContent.includes('too long')");
    browser.key("Escape");
    browser.wait("document.getElementById('history-error').textContent === ''");
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

#[test]
fn files_variables_and_usage_of_a_sandbox_are_shown_and_its_notebook_is_saved() {
    fn here() {}
    let _turn = begin!();
    let place = TestDir::new();
    let Some((_server, ann, mut browser)) = looked_in(&place, &name_of(here)) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved");
    std::fs::create_dir(&saved).unwrap();
    browser.call(
        "Page.setDownloadBehavior",
        json!({"behavior": "allow", "downloadPath": saved}),
    );
    let code = format!(
        "import zlib, struct, os\nvalue = {EVIL_MARKUP:?}\nclass Evil:\n    def __repr__(self): return value\nthing = Evil()\n\
         def chunk(kind, data): return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))\n\
         png = b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', 40, 20, 8, 2, 0, 0, 0)) \
         + chunk(b'IDAT', zlib.compress((b'\\0' + b'\\x2f\\x6f\\x62' * 40) * 20)) + chunk(b'IEND', b'')\n\
         open('dot.png', 'wb').write(png)\nopen('<img src=x onerror=window.hit=6>', 'w').write(value)\n\
         open('evil.svg', 'w').write(value)\nopen('a\\nb\\u202etxt', 'w').write('turned')\nopen('raw.bin', 'wb').write(bytes(1000))\n\
         os.makedirs('deep/er')\nopen('deep/er/long.txt', 'w').write('line\\n' * 40000)\nprint('made')"
    );
    let sandbox = ann.run(&code).sandbox();
    browser.click(&format!("[data-box={sandbox}]"));
    browser.wait("document.querySelectorAll('#entries li').length >= 6");
    browser.wait("document.querySelector('#variables table')");
    let variables = browser.text("#variables");
    assert!(variables.contains("value") && variables.contains("str"), "{variables}");
    let names = browser.text("#entries");
    assert!(names.contains("<img src=x onerror=window.hit=6>"), "{names}");
    assert!(names.contains("a⟨U+000A⟩b⟨U+202E⟩txt"), "{names}");
    // Text is shown as text, a picture as a picture, and everything else as a download.
    browser.click("#entries [data-name='evil.svg']");
    browser.wait("document.querySelector('#preview pre')?.textContent.startsWith('<img src=x')");
    browser.click("#entries [data-name='dot.png']");
    browser.wait("document.querySelector('#preview img')?.naturalWidth === 40");
    browser.shot("sandbox");
    browser.look(1280, 900, "dark");
    browser.shot("sandbox-dark");
    browser.look(390, 844, "light");
    browser.shot("sandbox-narrow");
    browser.look(1280, 900, "light");
    browser.click("#entries [data-name='raw.bin']");
    browser.wait("document.getElementById('preview').textContent.includes('Not text')");
    browser.click("#entries [data-name='deep']");
    browser.click("#entries [data-name='er']");
    browser.click("#entries [data-name='long.txt']");
    browser.wait("document.querySelector('#preview pre')?.textContent.length === 65536");
    browser.click("#entries [data-focus=download]");
    assert_eq!(downloaded(&saved, "long.txt"), "line\n".repeat(40_000).as_bytes());
    // An upload of several parts, to the shown folder.
    let local = folder.path().join("up & ü.bin");
    let bytes: Vec<u8> = (0..9_000_000_u32).map(|n| u8::try_from(n % 253).unwrap()).collect();
    std::fs::write(&local, &bytes).unwrap();
    let root = browser.call("DOM.getDocument", json!({}))["root"]["nodeId"].clone();
    let input = browser.call("DOM.querySelector", json!({"nodeId": root, "selector": "#upload"}));
    browser.call(
        "DOM.setFileInputFiles",
        json!({"nodeId": input["nodeId"], "files": [local]}),
    );
    browser.wait("document.querySelector('#entries [data-name=\"up & ü.bin\"]')");
    let sum = ann.run("import zlib\nzlib.crc32(open('deep/er/up & ü.bin', 'rb').read())");
    let bytes_there = ann.run("os.path.getsize('deep/er/up & ü.bin')");
    assert!(bytes_there.all().contains("9000000"), "{}", bytes_there.all());
    let own = crc(&bytes);
    assert!(sum.all().contains(&own.to_string()), "{} {own}", sum.all());
    // Back by the breadcrumbs.
    browser.click("#crumbs li:nth-child(3) button");
    browser.wait("document.querySelector('#entries [data-name=\"dot.png\"]')");
    // The list of variables follows the running code, and its use of resources is drawn and reported.
    ann.run("later = [1, 2, 3]");
    browser.wait("document.getElementById('variables').textContent.includes('later')");
    browser.wait("/now [\\d.]+ MB, at most/.test(document.getElementById('use-memory').getAttribute('aria-label'))");
    browser.wait("/now [\\d.]+ % of a core/.test(document.getElementById('use-processor').getAttribute('aria-label'))");
    browser.click("#notebook");
    let notebook: Value = serde_json::from_slice(&downloaded(&saved, ".ipynb")).unwrap();
    assert_eq!(notebook["nbformat"], 4);
    assert_eq!(notebook["cells"].as_array().unwrap().len(), 4);
    assert_eq!(notebook["cells"][0]["outputs"][0]["text"], json!(["made\n"]));
    // Its end is reported, and the notebook is still there.
    ann.call("close_sandbox", json!({"sandbox_id": sandbox}));
    browser.wait("document.getElementById('inside-error').textContent.includes('has ended')");
    browser.click("#notebook");
    assert!(downloaded(&saved, ".ipynb").starts_with(b"{"));
    for (what, count) in [
        ("script", 1),
        ("svg", 0),
        ("iframe", 0),
        ("img[src=x]", 0),
        ("[onerror],[onload]", 0),
    ] {
        let found = browser.value(&format!("document.querySelectorAll({}).length", json!(what)));
        assert_eq!(found, count, "{what}");
    }
    assert!(browser.value("window.hit ?? null").is_null());
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

/// Returns the checksum of Python's zlib.
fn crc(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            if sum & 1 == 1 {
                (sum >> 1) ^ 0xedb8_8320
            } else {
                sum >> 1
            }
        })
    };
    !bytes.iter().fold(u32::MAX, step)
}
