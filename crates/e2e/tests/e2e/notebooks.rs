use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, name_of, skip, sources};

/// The minimum percentage of cells that must give Jupyter's result (see `tests/notebooks/compare.py` for the
/// comparison).
const MIN_EQUAL_PERCENT: u64 = 99;
const MIN_PROGRAMS: u64 = 200;
const PART_COUNT: usize = 8;

#[test]
fn notebooks_produce_the_output_of_a_jupyter_kernel() {
    let name = name_of(notebooks_produce_the_output_of_a_jupyter_kernel);
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
    // With session snapshots, which is the default, and without.
    let mut sums = [Sum::default(), Sum::default()];
    for part in 0..PART_COUNT {
        // Tests that must run alone get their turn between the parts.
        let _turn = begin!();
        let folder = tempfile::tempdir().unwrap();
        let kept = folder.path().join("jupyter");
        for (restore, sum) in [true, false].into_iter().zip(&mut sums) {
            sum.add(&compared(&kernel, &data, restore, part, &kept));
        }
    }
    for (restore, sum) in [true, false].into_iter().zip(sums) {
        let Sum {
            programs, cells, equal, ..
        } = sum;
        println!("{equal} of {cells} cells of {programs} notebooks are equal (restore = {restore})");
        assert!(programs >= MIN_PROGRAMS);
        assert!(
            equal * 100 >= cells * MIN_EQUAL_PERCENT,
            "{equal} of {cells}: {:#}",
            Value::Array(sum.differences)
        );
    }
}

#[derive(Default)]
struct Sum {
    programs: u64,
    cells: u64,
    equal: u64,
    differences: Vec<Value>,
}

impl Sum {
    fn add(&mut self, report: &Value) {
        self.programs += report["programs"].as_u64().unwrap();
        self.cells += report["cells"].as_u64().unwrap();
        self.equal += report["equal"].as_u64().unwrap();
        self.differences
            .extend(report["differences"].as_array().unwrap().iter().cloned());
    }
}

/// Returns the report of one part of the programs. A file keeps the kernel's results for the next time.
fn compared(kernel: &OsStr, data: &OsStr, restore: bool, part: usize, kept: &Path) -> Value {
    let settings = format!(
        "python = {:?}\n[sessions]\nrestore = {restore}\n",
        data.to_string_lossy()
    );
    let place = TestDir::with_settings(&settings);
    let folder = sources().join("crates/e2e/tests/notebooks");
    let server = place.command(&["serve"]);
    let output = Command::new(kernel)
        .args(["-I", "-B"])
        .arg(folder.join("compare.py"))
        .arg(folder.join("programs"))
        .args(["--part", &format!("{part}/{PART_COUNT}"), "--kept"])
        .arg(kept)
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
    said.lines()
        .last()
        .and_then(|line| serde_json::from_str(line).ok())
        .unwrap_or_else(|| panic!("no report: {said}\n{}", String::from_utf8_lossy(&output.stderr)))
}
