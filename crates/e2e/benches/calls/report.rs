//! The table and the chart: on stdout, and in the folder that `SANDCELL_BENCH_WRITE` names.

use std::fmt::Write as _;
use std::process::Command;

use crate::rounds::{Row, Table};
use crate::statistics::Estimate;
use sandcell_e2e::{is_root, python};

pub fn show(table: &Table, rounds: usize) {
    let text = page(table, rounds);
    println!("{text}");
    if let Some(folder) = std::env::var_os("SANDCELL_BENCH_WRITE") {
        let folder = std::path::PathBuf::from(folder);
        std::fs::write(folder.join("benchmarks.md"), &text).unwrap();
        std::fs::write(folder.join("benchmarks.svg"), picture(&table.rows)).unwrap();
    }
}

fn page(table: &Table, rounds: usize) -> String {
    let mut text = String::from("# Benchmarks\n\n");
    let _ = writeln!(
        text,
        "Written by `cargo xtask bench --rounds {rounds} --write`. {}.\n\n\
         Medians of {rounds} rounds that measure every row once, with the interval in which the median lies with 95 % \
         confidence (by drawing rounds again and again); ratios are of medians of the same rounds. Rows below *processor \
         time* come from one load each and have no interval. Times are as a client sees them, over MCP on standard input \
         and output. On another machine only the ratios mean something.\n\n\
         ![what a run costs, against a bare interpreter](benchmarks.svg)\n",
        machine()
    );
    text.push_str("| | median | against | ratio | goal |\n|---|---|---|---|---|\n");
    for row in &table.rows {
        let (against, ratio) = row.against.map_or_else(Default::default, |(against, ratio)| {
            (against, format!("**{}**{}", number(ratio.value), interval(ratio)))
        });
        let _ = writeln!(
            text,
            "| {} | {} {}{} | {against} | {ratio} | {} |",
            row.name,
            number(row.value.value),
            row.unit,
            interval(row.value),
            goal(row)
        );
    }
    text
}

fn goal(row: &Row) -> String {
    let Some(goal) = row.goal else {
        return String::new();
    };
    let reached = row.against.map_or(row.value.value, |(_, ratio)| ratio.value);
    let (met, word) = if row.unit == "/s" {
        (reached >= goal, "at least")
    } else {
        (reached <= goal, "at most")
    };
    let mark = if met { "" } else { ", missed" };
    let unit = if row.against.is_some() { "" } else { row.unit };
    format!("{word} {goal} {unit}{mark}")
        .replace(" ,", ",")
        .trim()
        .to_owned()
}

/// Formats a number with three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        large if large >= 10.0 => format!("{value:.1}"),
        large if large >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn interval(estimate: Estimate) -> String {
    if estimate.low == estimate.high {
        return String::new();
    }
    format!(" ({}–{})", number(estimate.low), number(estimate.high))
}

/// Describes the measured machine.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let kernel = read("/proc/sys/kernel/osrelease");
    let version = Command::new(python().unwrap()).arg("--version").output().unwrap();
    format!(
        "{}, {cores} cores, Linux {}, {}, as {}",
        model.map_or("an unknown processor", |(_, model)| model),
        kernel.trim(),
        String::from_utf8_lossy(&version.stdout).trim(),
        if is_root() { "root" } else { "an ordinary user" }
    )
}

/// Draws a bar for each row that is compared with a bare interpreter, on a logarithmic scale.
fn picture(rows: &[Row]) -> String {
    const LEFT_MARGIN: f64 = 490.0;
    const CHART_WIDTH: f64 = 420.0;
    const LINE_HEIGHT: f64 = 30.0;
    const MIN_RATIO: f64 = 0.03;
    const MAX_RATIO: f64 = 100.0;
    let compared: Vec<_> = rows
        .iter()
        .filter(|row| row.unit == "ms")
        .filter_map(|row| {
            Some((
                row,
                row.against
                    .filter(|(against, _)| *against == crate::rounds::BARE_INTERPRETER)?
                    .1,
            ))
        })
        .collect();
    let x = |ratio: f64| {
        LEFT_MARGIN + CHART_WIDTH * (ratio.clamp(MIN_RATIO, MAX_RATIO) / MIN_RATIO).ln() / (MAX_RATIO / MIN_RATIO).ln()
    };
    let height = 60.0 + LINE_HEIGHT * compared.len() as f64;
    let total = LEFT_MARGIN + CHART_WIDTH + 80.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {total} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"{total}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT_MARGIN}\" y=\"20\" fill=\"#555\">times a bare interpreter's start (logarithmic; the line is 1)</text>\n"
    );
    for tick in [0.1, 1.0, 10.0, 100.0] {
        let (at, colour) = (x(tick), if tick == 1.0 { "#222" } else { "#ddd" });
        let bottom = height - 22.0;
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"28\" y2=\"{bottom}\" stroke=\"{colour}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" fill=\"#555\" text-anchor=\"middle\">{tick}</text>",
            height - 8.0
        );
    }
    for (number, (row, ratio)) in compared.iter().enumerate() {
        let y = 34.0 + LINE_HEIGHT * number as f64;
        let colour = if row.name.starts_with("rival") {
            "#c58a3d"
        } else {
            "#3a7ca5"
        };
        let (start, end) = (x(MIN_RATIO), x(ratio.value));
        let label = row.name.replace('`', "").replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#222\">{label}</text>\
             <rect x=\"{start:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"18\" fill=\"{colour}\"/>\
             <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"#222\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#222\">{:.2}</text>",
            LEFT_MARGIN - 8.0,
            y + 14.0,
            (end - start).max(1.0),
            x(ratio.low),
            x(ratio.high),
            y + 9.0,
            y + 9.0,
            x(ratio.high).max(end) + 6.0,
            y + 14.0,
            ratio.value
        );
    }
    svg.push_str("</svg>\n");
    svg
}
