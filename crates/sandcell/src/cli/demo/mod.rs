//! `sandcell demo`: the main use of the server on real input, seen from a client's side.

mod client;
mod data;
mod scenes;

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use base64::Engine as _;
use clap::Args;
use sandcell_sandbox::{Code, Failure};
use serde_json::{Value, json};

use super::output::{self, Style, safe};
use crate::config::USERS_FILE;
use client::{Answer, Client, ClientError};
use scenes::Scene;

/// Shows the main use of the server on real data, from a client's side
///
/// Starts the real server, speaks MCP to it, uploads a data set, analyses it over several calls that build on each
/// other, attacks its own sandbox, and prints the results and the time of each call. Installs nothing and needs no
/// network. Exits with 1 if any result is not the expected one.
#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// Makes data libraries available instead (through the machine's package index), draws a plot, and prints its path
    /// and the total time
    #[arg(long)]
    data: bool,
}

/// The width of a line of the story, with the time at its end.
const LINE_WIDTH: usize = 78;
/// The maximum number of lines shown of an answer.
const MAX_LINES_SHOWN: usize = 14;

/// The reason that the demo stopped.
#[derive(Debug, thiserror::Error)]
enum DemoError {
    #[error("stdout cannot be written: {0}")]
    Output(#[from] io::Error),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("{title}: {what}")]
    Unexpected { title: String, what: String },
}

pub(super) fn main(args: &DemoArgs, config: Option<&Path>) -> ExitCode {
    let style = Style::of(&io::stdout());
    let began = Instant::now();
    match play(style, config, args, began) {
        Ok(()) => ExitCode::SUCCESS,
        Err(DemoError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            output::failure(&Failure::new(
                Code::Internal,
                format!("the demo did not go as expected: {error}"),
                "`sandcell doctor` shows the isolation of this machine, and remedies for its gaps",
            ));
            ExitCode::FAILURE
        }
    }
}

fn play(style: Style, config: Option<&Path>, args: &DemoArgs, began: Instant) -> Result<(), DemoError> {
    let program = std::env::current_exe()?;
    let arguments: Vec<String> = config
        .map(|file| vec!["--config".to_owned(), file.display().to_string()])
        .unwrap_or_default();
    output::text(&format!(
        "\n{}\n{}\n\n",
        style.bold("sandcell demo — what an MCP client sees"),
        style.dim("A real server, a real client, a real data set: the Nile at Aswan, 1871–1970.")
    ))?;

    let (mut client, hello, took) = Client::start(&program, &arguments)?;
    let tools = client.tools()?;
    say_server(style, &client, &hello, &tools, took)?;
    if args.data {
        chapter(style, "From nothing to a plot")?;
        data::play(style, &mut client, began)?;
        client.end()?;
        return Ok(());
    }

    chapter(
        style,
        "An analysis in steps: each call uses what the one before left behind",
    )?;
    let mut counter = Counter::default();
    let first = upload(style, &mut client, &mut counter)?;
    for scene in scenes::ANALYSIS_SCENES {
        act(style, &mut client, scene, &mut counter)?;
    }
    chapter(style, "The same session attacks: refusals and their cost")?;
    for scene in scenes::ATTACK_SCENES {
        act(style, &mut client, scene, &mut counter)?;
    }
    let ended = client.end()?;
    say_end(style, &counter, &first, ended)?;
    output::text(&next_steps(style, &program))?;
    Ok(())
}

/// Totals of the whole run.
#[derive(Debug, Default)]
struct Counter {
    calls: usize,
    /// Times of calls that only ran code and were not throttled.
    quick: Vec<Duration>,
    isolation: Value,
}

fn say_server(style: Style, client: &Client, hello: &Value, tools: &[String], took: Duration) -> Result<(), DemoError> {
    let text = |pointer: &str| hello.pointer(pointer).and_then(Value::as_str).unwrap_or("?").to_owned();
    output::text(&format!(
        "{} {} {} (process {}), MCP {}, first answer {} after its start\n  {} tools: {}\n",
        style.green("●"),
        text("/serverInfo/name"),
        text("/serverInfo/version"),
        client.server_pid(),
        text("/protocolVersion"),
        time(took),
        tools.len(),
        style.dim(&fold(&tools.join(", "), LINE_WIDTH - 12, 12)),
    ))?;
    Ok(())
}

fn chapter(style: Style, title: &str) -> Result<(), DemoError> {
    output::text(&format!(
        "\n{}\n{}\n",
        style.bold(title),
        style.dim(&"─".repeat(LINE_WIDTH))
    ))?;
    Ok(())
}

/// Uploads the data set. This first call also makes the sandbox.
fn upload(style: Style, client: &mut Client, counter: &mut Counter) -> Result<Duration, DemoError> {
    let encoded = base64::engine::general_purpose::STANDARD.encode(scenes::NILE_CSV);
    let answer = client.call("upload_file", json!({"path": "nile.csv", "content_base64": encoded}))?;
    heading(style, counter, "upload_file", "Bring the data", answer.took)?;
    if answer.is_error {
        return Err(unexpected("upload_file", &answer, "it was refused"));
    }
    body(style, &answer)?;
    moral(
        style,
        "The first call made a separate sandbox; nothing had to be set up.",
    )?;
    Ok(answer.took)
}

fn act(style: Style, client: &mut Client, scene: &Scene, counter: &mut Counter) -> Result<(), DemoError> {
    let answer = client.call(scene.tool, scene.arguments())?;
    heading(style, counter, scene.tool, scene.title, answer.took)?;
    let mut code = String::new();
    for line in scene.code.lines() {
        // Writing to a String cannot fail.
        let gap = if line.is_empty() { "" } else { " " };
        let _infallible = writeln!(code, "    {}{gap}{}", style.dim("│"), style.cyan(line));
    }
    output::text(&code)?;
    check(scene, &answer)?;
    body(style, &answer)?;
    moral(style, scene.moral)?;
    if scene.timeout_s.is_none() {
        counter.quick.push(answer.took);
    }
    if let Some(isolation) = answer.execution.get("isolation") {
        counter.isolation = isolation.clone();
    }
    Ok(())
}

/// Checks the answer against the scene's promise.
fn check(scene: &Scene, answer: &Answer) -> Result<(), DemoError> {
    let wrong = |what: String| Err(unexpected(scene.title, answer, &what));
    let meta = |pointer: &str| answer.execution.pointer(pointer).and_then(Value::as_str).unwrap_or("");
    if answer.is_error {
        return wrong("the call was refused".to_owned());
    }
    if meta("/status") != scene.status {
        return wrong(format!("status {:?} instead of {:?}", meta("/status"), scene.status));
    }
    let cause = meta("/cause/code");
    if !(scene.causes.contains(&cause) || scene.causes.is_empty() && cause.is_empty()) {
        return wrong(format!("cause {cause:?} instead of {:?}", scene.causes));
    }
    let all = answer.texts.join("\n");
    match scene.answers.iter().find(|part| !all.contains(**part)) {
        Some(part) => wrong(format!("the answer lacks {part:?}")),
        None => Ok(()),
    }
}

fn unexpected(title: &str, answer: &Answer, what: &str) -> DemoError {
    DemoError::Unexpected {
        title: title.to_owned(),
        what: format!("{what}; the server answered:\n{}", safe(&answer.texts.join("\n"))),
    }
}

fn heading(style: Style, counter: &mut Counter, tool: &str, title: &str, took: Duration) -> Result<(), DemoError> {
    counter.calls += 1;
    let number = format!("{:>2}", counter.calls);
    let time = time(took);
    let used = number.len() + 2 + title.chars().count() + 2 + tool.len() + time.chars().count();
    output::text(&format!(
        "\n{}  {}  {}{}{}\n",
        style.dim(&number),
        style.bold(title),
        style.dim(tool),
        " ".repeat(LINE_WIDTH.saturating_sub(used).max(2)),
        style.yellow(&time),
    ))?;
    Ok(())
}

/// Formats the answer's text, indented and bounded. The text comes from inside a sandbox, so control characters are
/// escaped.
fn body(style: Style, answer: &Answer) -> Result<(), DemoError> {
    let mut text = String::new();
    let lines: Vec<String> = answer.texts.iter().flat_map(|block| block.lines()).map(safe).collect();
    for line in lines.iter().filter(|line| !line.is_empty()).take(MAX_LINES_SHOWN) {
        // Lines of code in a traceback keep their indentation.
        let shown = if line.starts_with(' ') {
            line.clone()
        } else {
            fold(line, LINE_WIDTH - 4, 4)
        };
        let _infallible = writeln!(text, "    {shown}");
    }
    if lines.len() > MAX_LINES_SHOWN {
        let _infallible = writeln!(
            text,
            "    {}",
            style.dim(&format!("… {} more lines", lines.len() - MAX_LINES_SHOWN))
        );
    }
    output::text(&text)?;
    Ok(())
}

fn moral(style: Style, text: &str) -> Result<(), DemoError> {
    output::text(&format!(
        "  {} {}\n",
        style.green("✓"),
        style.dim(&fold(text, LINE_WIDTH - 4, 4))
    ))?;
    Ok(())
}

fn say_end(style: Style, counter: &Counter, first: &Duration, ended: Duration) -> Result<(), DemoError> {
    let mut quick = counter.quick.clone();
    quick.sort_unstable();
    let middle = quick.get(quick.len() / 2).copied().unwrap_or_default();
    let word = |key: &str| {
        counter
            .isolation
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or("?")
            .to_owned()
    };
    let list = |key: &str| {
        let items = counter.isolation.get(key).and_then(Value::as_array);
        items
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(safe)
            .collect::<Vec<_>>()
    };
    chapter(style, "What happened")?;
    let mut text = format!(
        "  {} calls, all as expected: half of them under {}, the first one {}\n  \
         the server ended {} after its client had gone, and all sandboxes with it\n  \
         isolation level {}, by the {} back end:\n    {}\n",
        counter.calls,
        style.yellow(&time(middle)),
        style.yellow(&time(*first)),
        style.yellow(&time(ended)),
        style.bold(&word("level")),
        word("backend"),
        style.dim(&fold(&list("layers").join(", "), LINE_WIDTH - 4, 4)),
    );
    let weaker = list("degraded");
    if !weaker.is_empty() {
        // Each entry is `name: reason`; `sandcell doctor` prints the reasons and their remedies.
        let names: Vec<&str> = weaker.iter().filter_map(|text| text.split(':').next()).collect();
        let line = format!("{}; `sandcell doctor` shows the reasons and remedies", names.join(", "));
        let _infallible = writeln!(
            text,
            "  {} {}",
            style.yellow("weaker here:"),
            fold(&line, LINE_WIDTH - 16, 4)
        );
    }
    output::text(&text)?;
    Ok(())
}

fn next_steps(style: Style, program: &Path) -> String {
    let program = program.display();
    // JSON escapes any path correctly.
    let entry = format!(
        "{{\"mcpServers\": {{\"sandcell\": {{\"command\": {}, \"args\": [\"serve\"]}}}}}}",
        json!(program.to_string())
    );
    // The shells of Windows quote JSON in different ways.
    let vscode = if cfg!(windows) {
        format!("\"{program}\" install vscode")
    } else {
        format!("code --add-mcp '{{\"name\":\"sandcell\",\"command\":\"{program}\",\"args\":[\"serve\"]}}'")
    };
    let mut text = format!(
        "\n{}\n{}\n",
        style.bold("Data libraries"),
        style.dim(&"─".repeat(LINE_WIDTH))
    );
    text.push_str(&if cfg!(all(target_os = "linux", feature = "native")) {
        String::from(
            "  The demo used what Python has. Models get more with install_package. To give every sandbox\n  \
             pandas and plots from the start:\n\n    \
             sandcell base build data numpy pandas matplotlib --use\n\n",
        )
    } else {
        format!(
            "  The demo used what the image has. Another image has more, at the end of {USERS_FILE}:\n\n    \
             [docker]\n    image = \"an/image:with-pandas\"\n\n"
        )
    });
    let _infallible = write!(
        text,
        "{}\n{}\n  {} writes the server into the settings of one: claude-desktop,\n  \
         claude-code, codex, cursor, vscode and others. By hand, most take this:\n\n    {}\n\n  \
         Claude Code:  claude mcp add sandcell -- {program} serve\n  \
         VS Code:      {vscode}\n\n  \
         {} says what this machine isolates, and attacks itself.\n\n",
        style.bold("Your client"),
        style.dim(&"─".repeat(LINE_WIDTH)),
        style.bold("sandcell install CLIENT"),
        style.cyan(&entry),
        style.bold("sandcell doctor"),
    );
    text
}

/// Formats a time for people: three digits and a unit.
fn time(took: Duration) -> String {
    let us = took.as_micros();
    let tenths = |unit: u128| format!("{}.{}", us / unit, us % unit * 10 / unit);
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..100_000 => format!("{} ms", tenths(1_000)),
        100_000..1_000_000 => format!("{} ms", us / 1_000),
        _ => format!("{} s", tenths(1_000_000)),
    }
}

/// Breaks a text at spaces so that no line is wider than `width`; further lines are indented.
fn fold(text: &str, width: usize, indent: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut folded = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        let long = word.chars().count();
        if column > 0 && column + 1 + long > width {
            folded.push('\n');
            folded.push_str(&" ".repeat(indent));
            column = 0;
        } else if column > 0 {
            folded.push(' ');
            column += 1;
        }
        folded.push_str(word);
        column += long;
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_and_a_unit() {
        for (us, text) in [
            (7, "7 µs"),
            (999, "999 µs"),
            (1_000, "1.0 ms"),
            (12_345, "12.3 ms"),
            (123_456, "123 ms"),
            (1_012_000, "1.0 s"),
        ] {
            assert_eq!(time(Duration::from_micros(us)), text);
        }
    }

    #[test]
    fn long_lines_break_at_spaces() {
        assert_eq!(fold("a bb ccc dddd", 6, 2), "a bb\n  ccc\n  dddd");
        assert_eq!(fold("short", 20, 2), "short");
    }

    fn answer(text: &str, execution: Value) -> Answer {
        Answer {
            texts: vec![text.to_owned()],
            pictures: Vec::new(),
            is_error: false,
            execution,
            took: Duration::ZERO,
        }
    }

    #[test]
    fn an_unexpected_answer_ends_the_demo() {
        let scene = &scenes::ANALYSIS_SCENES[0];
        let good = json!({"status": "ok", "cause": null});
        assert!(check(scene, &answer("100 years, 1871 to 1970", good.clone())).is_ok());
        assert!(check(scene, &answer("99 years", good)).is_err());
        assert!(check(scene, &answer("100 years, 1871 to 1970", json!({"status": "error"}))).is_err());
        let refused = Answer {
            is_error: true,
            ..answer("no", Value::Null)
        };
        assert!(check(scene, &refused).is_err());
    }

    #[test]
    fn the_next_steps_hold_a_client_entry_that_parses() {
        let text = next_steps(Style::plain(), Path::new("/opt/sandcell"));
        let start = text.find('{').unwrap();
        let end = text.find("\n\n  Claude Code").unwrap();
        let entry: Value = serde_json::from_str(&text[start..end]).unwrap();
        assert_eq!(entry["mcpServers"]["sandcell"]["args"][0], "serve");
    }
}
