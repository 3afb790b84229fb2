//! A headless Chromium, driven by the DevTools protocol over its two pipes: a message is JSON with a zero byte after it.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use base64::Engine as _;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{DEFAULT_TIMEOUT, until};

/// Returns this machine's browser.
pub fn chromium() -> Option<PathBuf> {
    let folders = ["/usr/bin/chromium", "/usr/bin/chromium-browser"];
    folders.into_iter().map(PathBuf::from).find(|path| path.exists())
}

/// A running browser with one tab. Ended when dropped.
pub struct Browser {
    child: Child,
    send: File,
    receive: Receiver<Value>,
    next: u64,
    session: String,
    /// Errors in the page: exceptions, console errors, and violations of its policy.
    pub complaints: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    pub fn start(program: &Path) -> Self {
        let profile = tempfile::Builder::new().prefix("cell-browser-").tempdir().unwrap();
        let pipe = |name: &str| {
            let path = profile.path().join(name);
            assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
            path
        };
        let (there, back) = (pipe("there"), pipe("back"));
        let child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<\"$THERE\" 4>\"$BACK\""])
            .arg(program)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-extensions",
                "--remote-debugging-pipe",
            ])
            .arg(format!("--user-data-dir={}", profile.path().join("profile").display()))
            .arg("about:blank")
            .env("THERE", &there)
            .env("BACK", &back)
            .env("HOME", profile.path())
            // In the C locale it cannot open files with other names than ASCII.
            .env("LC_ALL", "C.UTF-8")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let send = OpenOptions::new().write(true).open(&there).unwrap();
        let mut from = BufReader::new(File::open(&back).unwrap());
        let (messages, receive) = channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            while from.read_until(0, &mut bytes).is_ok_and(|read| read > 0) {
                bytes.pop();
                let message = serde_json::from_slice(&bytes).unwrap();
                bytes.clear();
                if messages.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            child,
            send,
            receive,
            next: 0,
            session: String::new(),
            complaints: Vec::new(),
            _profile: profile,
        };
        let made = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let joined = browser.call(
            "Target.attachToTarget",
            json!({"targetId": made["targetId"], "flatten": true}),
        );
        browser.session = joined["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, json!({}));
        }
        browser
    }

    /// Sends a command to the browser and waits for the answer.
    #[track_caller]
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = self.next;
        let mut message = json!({"id": id, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.send.write_all(message.to_string().as_bytes()).unwrap();
        self.send.write_all(&[0]).unwrap();
        loop {
            let answer = self.receive.recv_timeout(DEFAULT_TIMEOUT).expect("the browser answers");
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.hear(&answer);
        }
    }

    fn hear(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.complaints.push(params["exceptionDetails"].to_string()),
            Some("Page.javascriptDialogOpening") => self.complaints.push(format!("dialog: {params}")),
            // A refusal by the server is no error of the page; a violation of its policy is.
            Some("Log.entryAdded") if params["entry"]["source"] != "network" => {
                self.complaints.push(params["entry"].to_string());
            }
            _ => {}
        }
    }

    pub fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({"url": url}));
        self.wait("document.readyState === 'complete'");
    }

    /// Returns the value of an expression in the page.
    #[track_caller]
    pub fn value(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let found = self.call("Runtime.evaluate", asked);
        assert!(found["exceptionDetails"].is_null(), "{expression}: {found}");
        found["result"]["value"].clone()
    }

    #[track_caller]
    pub fn text(&mut self, selector: &str) -> String {
        let found = self.value(&format!("document.querySelector({})?.innerText ?? ''", json!(selector)));
        found.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub fn wait(&mut self, expression: &str) {
        until(DEFAULT_TIMEOUT, expression, || {
            std::thread::sleep(Duration::from_millis(20));
            (self.value(&format!("Boolean({expression})")) == true).then_some(())
        });
    }

    /// Clicks an element with a mouse event, once it exists.
    #[track_caller]
    pub fn click(&mut self, selector: &str) {
        let quoted = json!(selector);
        self.wait(&format!("document.querySelector({quoted})"));
        self.value(&format!("document.querySelector({quoted}).click()"));
    }

    /// Presses a key.
    pub fn key(&mut self, key: &str) {
        self.press(key, 0);
    }

    /// Presses a key with modifiers: 1 is Alt, 2 Ctrl, 4 Meta, 8 Shift.
    pub fn press(&mut self, key: &str, held: u32) {
        let text = if key.chars().count() == 1 { key } else { "" };
        let text = if key == "Enter" { "\r" } else { text };
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "Tab" => 9,
            _ => 0,
        };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({"type": kind, "key": key, "text": if kind == "keyDown" { text } else { "" },
                "windowsVirtualKeyCode": code, "modifiers": held});
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    pub fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }

    /// Sets the window's size and the colour scheme.
    pub fn look(&mut self, width: u32, height: u32, scheme: &str) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", size);
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", media);
    }

    /// Saves a screenshot in the folder that `SANDCELL_TEST_SHOTS` names, for people.
    pub fn shot(&mut self, name: &str) {
        let Some(folder) = std::env::var_os("SANDCELL_TEST_SHOTS") else {
            return;
        };
        let shot = self.call("Page.captureScreenshot", json!({"format": "png"}));
        let bytes = base64::engine::general_purpose::STANDARD.decode(shot["data"].as_str().unwrap());
        std::fs::write(PathBuf::from(folder).join(format!("{name}.png")), bytes.unwrap()).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}
