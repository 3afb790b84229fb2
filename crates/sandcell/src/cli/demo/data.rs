//! `sandcell demo --data`: draws a plot on a machine without data libraries, through the same calls that a model
//! makes. The measured time starts with the command.

use std::path::PathBuf;
use std::time::Instant;

use base64::Engine as _;
use serde_json::json;

use super::super::DATA_BASE;
use super::client::{Answer, Client};
use super::output;
use super::output::Style;
use super::{DemoError, body, scenes, time, unexpected};

/// The packages that the plot needs.
const PLOT_PACKAGES: [&str; 2] = ["pandas", "matplotlib"];
/// The time limit for installing the libraries, in seconds.
const INSTALL_S: u32 = 900;
/// The plot's file, in the working folder, or in the temporary one where the working folder is not writable.
const PLOT_FILE: &str = "sandcell-demo.png";

const PLOT_CODE: &str = r#"import pandas as pd, matplotlib.pyplot as plt
nile = pd.read_csv("nile.csv", index_col="year")
nile["mean of 10 years"] = nile["volume"].rolling(10, center=True).mean()
axes = nile.plot(figsize=(9, 4), title="The Nile at Aswan", ylabel="10⁸ m³ a year")
axes.axvline(1898, color="grey", linestyle=":")
plt.show()
nile.describe().round(1)"#;

/// Makes the libraries available, draws, and prints the plot's path and the time until it existed.
pub(super) fn play(style: Style, client: &mut Client, began: Instant) -> Result<(), DemoError> {
    let encoded = base64::engine::general_purpose::STANDARD.encode(scenes::NILE_CSV);
    let uploaded = client.call("upload_file", json!({"path": "nile.csv", "content_base64": encoded}))?;
    if uploaded.is_error {
        return Err(unexpected("upload_file", &uploaded, "it was refused"));
    }
    let libraries = install(client)?;
    output::text(&format!(
        "  {} install_package {} {}\n",
        style.green("✓"),
        PLOT_PACKAGES.join(" "),
        style.yellow(&time(libraries.took))
    ))?;
    body(style, &libraries)?;
    let drawn = client.call("execute_code", json!({"code": PLOT_CODE, "timeout_s": 120}))?;
    let there = began.elapsed();
    if drawn.is_error || status(&drawn) != "ok" {
        return Err(unexpected("the plot", &drawn, "it was not drawn"));
    }
    let Some(picture) = drawn.pictures.first() else {
        return Err(unexpected("the plot", &drawn, "no picture came back"));
    };
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(picture)
        .map_err(|_| unexpected("the plot", &drawn, "the picture is not base64"))?;
    let path = save(&bytes)?;
    output::text(&format!(
        "  {} execute_code {}\n",
        style.green("✓"),
        style.yellow(&time(drawn.took))
    ))?;
    body(style, &drawn)?;
    output::text(&format!(
        "\n  {} the plot is in {} ({} KB), {} after the start\n\n  To start every sandbox with these libraries:\n    \
         {}\n\n",
        style.green("✓"),
        style.bold(&path.display().to_string()),
        bytes.len() / 1024,
        style.yellow(&time(there)),
        DATA_BASE,
    ))?;
    Ok(())
}

fn status(answer: &Answer) -> &str {
    answer
        .execution
        .get("status")
        .and_then(serde_json::Value::as_str)
        .unwrap_or("")
}

/// Installs the packages and waits for the end. A call answers before the installation ends, as it does to
/// a model, so this polls the execution.
fn install(client: &mut Client) -> Result<Answer, DemoError> {
    let began = Instant::now();
    let mut answer = client.call(
        "install_package",
        json!({"packages": PLOT_PACKAGES, "timeout_s": INSTALL_S}),
    )?;
    while status(&answer) == "running" {
        let id = answer.execution.get("execution_id").cloned().unwrap_or_default();
        answer = client.call("get_execution", json!({"execution_id": id, "wait_s": 20}))?;
    }
    if answer.is_error || status(&answer) != "ok" {
        return Err(unexpected(
            "install_package",
            &answer,
            "the libraries could not be installed",
        ));
    }
    answer.took = began.elapsed();
    Ok(answer)
}

fn save(bytes: &[u8]) -> Result<PathBuf, DemoError> {
    let here = std::env::current_dir()?.join(PLOT_FILE);
    if std::fs::write(&here, bytes).is_ok() {
        return Ok(here);
    }
    let elsewhere = std::env::temp_dir().join(PLOT_FILE);
    std::fs::write(&elsewhere, bytes)?;
    Ok(elsewhere)
}
