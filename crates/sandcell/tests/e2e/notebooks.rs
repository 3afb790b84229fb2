use std::ffi::OsStr;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::place::Place;
use crate::support::{begin, name_of, skip, sources};

/// Of a hundred cells, how many must give what Jupyter gives (see `tests/notebooks/compare.py` for what is compared).
const EQUAL_PERCENT: u64 = 99;
const PROGRAMS_LEAST: u64 = 200;

#[test]
fn notebooks_give_what_a_jupyter_kernel_gives() {
    let _turn = begin!();
    let name = name_of(notebooks_give_what_a_jupyter_kernel_gives);
    let (Some(kernel), Some(data)) = (
        std::env::var_os("SANDCELL_TEST_JUPYTER_PYTHON"),
        std::env::var_os("SANDCELL_TEST_DATA_PYTHON"),
    ) else {
        skip(
            &name,
            "no Pythons with Jupyter and data libraries (see CONTRIBUTING.md; SANDCELL_TEST_JUPYTER_PYTHON and \
             SANDCELL_TEST_DATA_PYTHON name them)",
        );
        return;
    };
    // With frozen copies of sessions, as it is by default, and without.
    for restore in [true, false] {
        compared(&kernel, &data, restore);
    }
}

fn compared(kernel: &OsStr, data: &OsStr, restore: bool) {
    let settings = format!(
        "python = {:?}\n[sessions]\nrestore = {restore}\n",
        data.to_string_lossy()
    );
    let place = Place::with_settings(&settings);
    let folder = sources().join("crates/sandcell/tests/notebooks");
    let server = place.command(&["serve"]);
    let output = Command::new(kernel)
        .args(["-I", "-B"])
        .arg(folder.join("compare.py"))
        .arg(folder.join("programs"))
        .arg("--")
        .arg(server.get_program())
        .args(server.get_args())
        .env_clear()
        .envs(server.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .current_dir(place.work())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let report: Value = said
        .lines()
        .last()
        .and_then(|line| serde_json::from_str(line).ok())
        .unwrap_or_else(|| panic!("no report: {said}\n{}", String::from_utf8_lossy(&output.stderr)));
    let count = |name: &str| report[name].as_u64().unwrap();
    let (cells, equal) = (count("cells"), count("equal"));
    println!(
        "{equal} of {cells} cells of {} notebooks are equal (restore = {restore})",
        count("programs")
    );
    assert!(count("programs") >= PROGRAMS_LEAST);
    assert!(
        equal * 100 >= cells * EQUAL_PERCENT,
        "{equal} of {cells}: {:#}",
        report["differences"]
    );
}
