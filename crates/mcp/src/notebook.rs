//! Executions as a Jupyter notebook (nbformat 4.5): their code in cells, with the shown output below.
//!
//! Python is the notebook's language; Bash becomes `%%bash` cells. Code that Jupyter could not run, and code that never
//! ran here, becomes text, so that "run all" gives the results given here. The notebook contains no HTML or JavaScript.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandcell_engine::{Status, StoredExecution};
use serde_json::{Value, json};

const SVG_MIME: &str = "image/svg+xml";
/// The picture types that every notebook reader supports.
const NOTEBOOK_MIMES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", SVG_MIME];

/// A notebook of these executions, in this order.
#[must_use]
pub fn notebook(rows: &[StoredExecution]) -> Value {
    let mut count = 0;
    let cells: Vec<Value> = rows.iter().map(|row| cell(row, &mut count)).collect();
    json!({
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    })
}

fn cell(row: &StoredExecution, count: &mut u32) -> Value {
    // Refused code has no sandbox.
    let ran = row.record.sandbox_id.is_some();
    let source = match row.record.language.as_str() {
        "python" if ran => installation(&row.code).unwrap_or_else(|| row.code.clone()),
        "bash" if ran => format!("%%bash\n{}", row.code),
        _ => return text(row),
    };
    *count += 1;
    json!({
        "cell_type": "code",
        "id": row.record.execution_id,
        "metadata": metadata(row),
        "execution_count": *count,
        "source": lines(&source),
        "outputs": outputs(row, *count),
    })
}

/// Returns the notebook form of a package installation.
fn installation(code: &str) -> Option<String> {
    let list = code.strip_prefix("install_package(packages=")?.strip_suffix(')')?;
    let packages: Vec<String> = serde_json::from_str(list).ok()?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-<>=!~,[]+ *".contains(c);
    packages
        .iter()
        .all(|one| !one.starts_with('-') && one.chars().all(is_plain))
        .then(|| {
            let quoted: Vec<String> = packages.iter().map(|one| format!("\"{one}\"")).collect();
            format!("%pip install {}", quoted.join(" "))
        })
}

/// Code that is shown and not run.
fn text(row: &StoredExecution) -> Value {
    let why = match &row.record.error {
        Some(error) if row.record.sandbox_id.is_none() => format!("refused: {error}"),
        _ => format!("ran as {}", row.record.language),
    };
    // The fence must be longer than any fence in the code.
    let longest = row.code.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    let source = format!(
        "{}\n\n{fence}{}\n{}\n{fence}",
        why.replace(['\n', '`'], " "),
        row.record.language,
        row.code.trim_end_matches('\n')
    );
    json!({
        "cell_type": "markdown",
        "id": row.record.execution_id,
        "metadata": metadata(row),
        "source": lines(&source),
    })
}

fn metadata(row: &StoredExecution) -> Value {
    json!({"sandcell": {
        "execution_id": row.record.execution_id,
        "sandbox_id": row.record.sandbox_id,
        "status": row.record.status,
        "timestamp": row.record.timestamp,
        "duration_ms": row.record.duration_ms,
        "cpu_ms": row.cpu_ms,
        "peak_memory_bytes": row.peak_memory_bytes,
    }})
}

fn outputs(row: &StoredExecution, count: u32) -> Vec<Value> {
    let mut outputs = Vec::new();
    for (name, text) in [("stdout", &row.stdout), ("stderr", &row.stderr)] {
        if !text.is_empty() {
            outputs.push(json!({"output_type": "stream", "name": name, "text": lines(text)}));
        }
    }
    for picture in row
        .pictures
        .iter()
        .filter(|one| NOTEBOOK_MIMES.contains(&one.mime.as_str()))
    {
        // A picture in text form stays unchanged.
        let data = match std::str::from_utf8(&picture.bytes) {
            Ok(text) if picture.mime == SVG_MIME => json!(lines(text)),
            _ => json!(STANDARD.encode(&picture.bytes)),
        };
        outputs.push(json!({
            "output_type": "display_data",
            "metadata": {},
            "data": {picture.mime.as_str(): data, "text/plain": [format!("<{}>", picture.name)]},
        }));
    }
    if let Some(result) = &row.result {
        outputs.push(json!({
            "output_type": "execute_result",
            "execution_count": count,
            "metadata": {},
            "data": {"text/plain": lines(result)},
        }));
    }
    if row.record.status != Status::Ok {
        let line = row.record.error.clone().unwrap_or_default();
        let (name, value) = line.split_once(": ").unwrap_or((row.record.status.as_str(), &line));
        let traceback = row.traceback.as_deref().unwrap_or(&line);
        outputs.push(json!({
            "output_type": "error",
            "ename": name,
            "evalue": value,
            "traceback": traceback.lines().collect::<Vec<_>>(),
        }));
    }
    outputs
}

/// Lines with their ends, as notebooks have texts.
fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::views::kept;

    #[test]
    fn outputs_are_texts_and_pictures_and_never_active_content() {
        let mut row = kept("6 * 7");
        row.stdout = "<script>hit()</script>\n".to_owned();
        row.result = Some("42".to_owned());
        let made = notebook(&[row.clone()]);
        assert_eq!(
            made["cells"][0]["outputs"][0]["text"],
            json!(["<script>hit()</script>\n"])
        );
        assert_eq!(made["cells"][0]["outputs"][1]["data"], json!({"text/plain": ["42"]}));
        assert!(!made.to_string().contains("text/html"));
        row.record.language = "ruby".to_owned();
        row.code = "puts '```'".to_owned();
        let made = notebook(&[row]);
        assert_eq!(made["cells"][0]["cell_type"], "markdown");
        assert_eq!(made["cells"][0]["source"][2], "````ruby\n");
    }
}
