use std::process::Stdio;

use crate::support::place::Place;
use crate::support::{begin, machine, until};

#[test]
fn the_demo_shows_the_main_job_and_cleans_up() {
    let _turn = begin!(alone);
    let place = Place::new();
    let before = machine::groups();
    let output = place.command(&["demo"]).stdin(Stdio::null()).output().unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{said}");
    for word in ["execute_code", "upload_file", "network", "process", " ms"] {
        assert!(said.contains(word), "{word} is missing: {said}");
    }
    assert!(said.contains("pip install"), "it says how to get data libraries: {said}");
    assert!(
        !said.contains('\u{1b}'),
        "no terminal codes where no terminal is: {said:?}"
    );
    until(std::time::Duration::from_secs(2), "nothing is left", || {
        (machine::groups() == before && place.temporary_files().is_empty()).then_some(())
    });
}
