//! `cargo xtask profile`: a flame graph of the time of a call, over the server, its launcher and the sandboxes.
//!
//! Linux' `perf` samples stacks a thousand times a second while a client calls. The samples are folded into one tree
//! and drawn as an SVG whose boxes show names and shares.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::command::{cargo, must, nothing_may_be_skipped, output, root, works};

/// The repeated call of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Calls {
    /// A fresh sandbox for each call
    Fresh,
    /// Calls of one session
    Session,
}

impl Calls {
    fn request(self, id: u64) -> Value {
        let (tool, code) = match self {
            Self::Fresh => ("create_run_close", "print(1)"),
            Self::Session => ("execute_code", "x = globals().get('x', 0) + 1"),
        };
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool, "arguments": {"code": code}}})
    }
}

/// Profiles these calls for the given time and draws the picture.
pub fn run(calls: Calls, time: Duration, picture: Option<PathBuf>) -> Result<()> {
    if !works(Command::new("perf").arg("--version")) {
        if nothing_may_be_skipped() {
            bail!("perf is not installed (Debian: linux-perf)");
        }
        println!("skipped: perf is not installed (Debian: linux-perf)");
        return Ok(());
    }
    let mut build = cargo();
    build.args([
        "build",
        "--profile",
        "profiling",
        "--package",
        "sandcell",
        "--bin",
        "sandcell",
    ]);
    // Stacks are walked by frame pointers: the other ways copy too much.
    must(build.env("RUSTFLAGS", "-C force-frame-pointers=yes"))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let scratch = tempfile::tempdir().context("no folder for what is measured")?;
    let data = scratch.path().join("perf.data");
    let count = call(&target.join("profiling/sandcell"), calls, time, &data)?;
    let seen = output(
        Command::new("perf")
            .args(["script", "-F", "comm,ip,sym", "-i"])
            .arg(&data),
    )?;
    let tree = fold(&seen);
    let title = format!("{calls:?}: {count} calls in {:.0} s", time.as_secs_f64());
    let picture = picture.unwrap_or_else(|| target.join("profile.svg"));
    std::fs::write(&picture, draw(&tree, &title)).with_context(|| format!("cannot write {}", picture.display()))?;
    println!("{title}; {} looks. The picture is {}", tree.count, picture.display());
    Ok(())
}

/// Calls a server that perf observes. Returns the number of calls.
fn call(binary: &Path, calls: Calls, time: Duration, data: &Path) -> Result<u64> {
    let mut server = Command::new("perf")
        .args(["record", "--quiet", "-F", "997", "-g", "-o"])
        .arg(data)
        .arg("--")
        .arg(binary)
        .arg("serve")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("perf cannot be started")?;
    let mut input = server.stdin.take().context("no stdin")?;
    let mut answers = BufReader::new(server.stdout.take().context("no stdout")?).lines();
    let mut ask = |message: Value, answered: bool| -> Result<()> {
        writeln!(input, "{message}").context("the server does not listen")?;
        if !answered {
            return Ok(());
        }
        loop {
            let line = answers
                .next()
                .context("the server ended (may perf look at it? see kernel.perf_event_paranoid)")??;
            let answer: Value = serde_json::from_str(&line).context("an answer is no JSON")?;
            if answer["result"]["isError"] == true || answer["error"].is_object() {
                bail!("a call failed: {answer}");
            }
            if answer["id"] == message["id"] {
                return Ok(());
            }
        }
    };
    let client =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "profile", "version": "1"}});
    ask(
        json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": client}),
        true,
    )?;
    ask(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}), false)?;
    let begun = Instant::now();
    let mut count = 0;
    while begun.elapsed() < time {
        count += 1;
        ask(calls.request(count), true)?;
    }
    drop(input);
    if !server.wait().context("perf did not end")?.success() {
        bail!("perf failed (as an ordinary user it needs kernel.perf_event_paranoid below 3)");
    }
    Ok(count)
}

/// Frames, with the number of samples of each.
#[derive(Debug, Default)]
struct Frame {
    count: u64,
    below: BTreeMap<String, Frame>,
}

/// Folds the output of `perf script`: for each sample a line with the program, the stack from its top, and an empty
/// line.
fn fold(text: &str) -> Frame {
    let mut tree = Frame::default();
    for look in text.split("\n\n") {
        let mut lines = look.lines().filter(|line| !line.trim().is_empty());
        let Some(program) = lines.next() else { continue };
        let mut stack: Vec<&str> = lines
            .map(|line| line.trim().split_once(' ').map_or("?", |(_, symbol)| symbol))
            .collect();
        stack.push(program.trim());
        let mut at = &mut tree;
        at.count += 1;
        for name in stack.into_iter().rev() {
            at = at.below.entry(name.to_owned()).or_default();
            at.count += 1;
        }
    }
    tree
}

const IMAGE_WIDTH: f64 = 1600.0;
const ROW_HEIGHT: f64 = 17.0;
/// Boxes that are narrower than this are left out.
const MIN_BOX_WIDTH: f64 = 0.4;
/// The width of a letter.
const LETTER_WIDTH: f64 = 6.6;

fn draw(tree: &Frame, title: &str) -> String {
    let mut boxes = String::new();
    let rows = place(tree, "all", 0.0, IMAGE_WIDTH, 0, tree.count, &mut boxes);
    let height = f64::from(rows + 2) * ROW_HEIGHT;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {IMAGE_WIDTH} {height}\" font-family=\"monospace\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"4\" y=\"12\">{}</text>\n{boxes}</svg>\n",
        escaped(title)
    )
}

/// Draws a frame and the frames below it. Returns the number of rows drawn.
fn place(frame: &Frame, name: &str, left: f64, width: f64, row: u32, all: u64, boxes: &mut String) -> u32 {
    let top = f64::from(row + 1) * ROW_HEIGHT;
    let hue = name
        .bytes()
        .fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)))
        % 50;
    let share = ratio(frame.count, all) * 100.0;
    let fits = name.chars().scan(0.0, |used, letter| {
        *used += LETTER_WIDTH;
        (*used < width - 4.0).then_some(letter)
    });
    let shown: String = if width < 20.0 { String::new() } else { fits.collect() };
    // A string takes whatever is written to it.
    let _ = writeln!(
        boxes,
        "<g><title>{} — {share:.2} %</title><rect x=\"{left:.2}\" y=\"{top}\" width=\"{width:.2}\" height=\"{}\" \
         fill=\"hsl({hue}, 80%, 72%)\"/><text x=\"{:.2}\" y=\"{}\">{}</text></g>",
        escaped(name),
        ROW_HEIGHT - 1.0,
        left + 2.0,
        top + 12.0,
        escaped(&shown)
    );
    let (mut left, mut rows) = (left, row + 1);
    for (name, below) in &frame.below {
        let part = width * ratio(below.count, frame.count);
        if part >= MIN_BOX_WIDTH {
            rows = rows.max(place(below, name, left, part, row + 1, all, boxes));
        }
        left += part;
    }
    rows
}

#[allow(
    clippy::cast_precision_loss,
    clippy::as_conversions,
    reason = "counts of looks are small"
)]
fn ratio(part: u64, all: u64) -> f64 {
    part as f64 / all.max(1) as f64
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_become_one_tree_and_a_flame_graph() {
        let text = "sandcell \n\tffff0001 write\n\tffff0002 main<T>\n\nsandcell \n\tffff0003 read\n\tffff0002 main<T>\n\n\
                    python3 \n\tffff0004 main<T>\n\n";
        let tree = fold(text);
        assert_eq!(tree.count, 3);
        let server = &tree.below["sandcell"];
        assert_eq!((server.count, server.below["main<T>"].count), (2, 2));
        assert_eq!(server.below["main<T>"].below["read"].count, 1);
        let picture = draw(&tree, "a & b");
        assert!(
            picture.contains("a &amp; b") && picture.contains("main&lt;T&gt; — 66.67 %"),
            "{picture}"
        );
        assert_eq!(picture.matches("<rect x=").count(), 7, "{picture}");
    }
}
