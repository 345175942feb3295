//! Chromium without a window, driven through the pipe of its debugging
//! protocol.

#![allow(dead_code, reason = "each user takes its part of this")]

use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub struct Browser {
    process: Child,
    to: File,
    from: BufReader<File>,
    session: Option<String>,
    next: u64,
    /// Every event that came since the page was opened.
    pub events: Vec<Value>,
    _folder: tempfile::TempDir,
}

impl Browser {
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (to, from) = (folder.path().join("to"), folder.path().join("from"));
        for pipe in [&to, &from] {
            assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
        }
        // The browser reads from descriptor 3 and writes to descriptor 4.
        let process = Command::new("sh")
            .arg("-c")
            .arg(
                "exec chromium --headless --no-sandbox --disable-gpu --hide-scrollbars \
                 --remote-debugging-pipe --user-data-dir=\"$1/profile\" about:blank \
                 3<\"$1/to\" 4>\"$1/from\"",
            )
            .args(["sh", folder.path().to_str().unwrap()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh starts");
        // Opening a pipe waits for the other side, in this order.
        let to = File::options().write(true).open(to).unwrap();
        let from = BufReader::new(File::open(from).unwrap());
        let mut browser = Browser {
            process,
            to,
            from,
            session: None,
            next: 1,
            events: Vec::new(),
            _folder: folder,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached = browser.call(
            "Target.attachToTarget",
            json!({ "targetId": target["targetId"], "flatten": true }),
        );
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_string());
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Calls a method of the protocol and waits for its answer.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        let id = self.next;
        self.next += 1;
        let mut message = json!({ "id": id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.to.write_all(message.to_string().as_bytes()).unwrap();
        self.to.write_all(b"\0").unwrap();
        loop {
            let answer = self.receive();
            if answer["id"] == id {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.events.push(answer);
        }
    }

    fn receive(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes).unwrap();
        assert_eq!(bytes.pop(), Some(0), "the browser went away");
        serde_json::from_slice(&bytes).unwrap()
    }

    /// Shows a window of this size, light or dark.
    pub fn window(&mut self, width: u32, height: u32, dark: bool) {
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 }),
        );
        let scheme = if dark { "dark" } else { "light" };
        self.call(
            "Emulation.setEmulatedMedia",
            json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] }),
        );
    }

    /// Opens a file and waits until it has been drawn.
    pub fn open(&mut self, file: &Path) {
        self.events.clear();
        self.call(
            "Page.navigate",
            json!({ "url": format!("file://{}", file.display()) }),
        );
        while !self
            .events
            .iter()
            .any(|event| event["method"] == "Page.loadEventFired")
        {
            let event = self.receive();
            self.events.push(event);
        }
    }

    /// The value of a JavaScript expression in the page.
    pub fn eval(&mut self, expression: &str) -> Value {
        let answer = self.call(
            "Runtime.evaluate",
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true }),
        );
        assert!(
            answer.get("exceptionDetails").is_none(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].clone()
    }

    /// Presses and releases a key.
    pub fn key(&mut self, key: &str) {
        let text = if key.chars().count() == 1 {
            json!(key)
        } else {
            Value::Null
        };
        let mut down = json!({ "type": "keyDown", "key": key });
        if !text.is_null() {
            down["text"] = text;
        }
        self.call("Input.dispatchKeyEvent", down);
        self.call(
            "Input.dispatchKeyEvent",
            json!({ "type": "keyUp", "key": key }),
        );
        // Hash changes are told to the page in a task of their own.
        self.eval("new Promise((done) => setTimeout(done, 0))");
    }

    /// Keeps a picture of the window where people can look at it.
    pub fn picture(&mut self, name: &str) {
        let answer = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        let bytes = from_base64(answer["data"].as_str().unwrap());
        let folder =
            Path::new(option_env!("CARGO_TARGET_TMPDIR").unwrap_or("/tmp")).join("pictures");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(name), bytes).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Best effort: a browser that is gone already is just as well.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn from_base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut bytes = Vec::new();
    for group in text.trim_end_matches('=').as_bytes().chunks(4) {
        let bits = group
            .iter()
            .fold(0u32, |bits, byte| bits << 6 | u32::from(digit(*byte)));
        let bits = bits << (6 * (4 - group.len()));
        bytes.extend(&bits.to_be_bytes()[1..group.len()]);
    }
    bytes
}
