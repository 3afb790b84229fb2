use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, machine, until};

#[test]
fn the_demo_shows_the_main_job_and_cleans_up() {
    let _turn = begin!(alone);
    let place = TestDir::new();
    let out = std::fs::File::create(place.path("out")).unwrap();
    let mut child = place
        .command(&["demo"])
        .stdin(Stdio::null())
        .stdout(out.try_clone().unwrap())
        .stderr(out)
        .spawn()
        .unwrap();
    // All processes of the demo are recorded, to check afterwards that they have ended.
    let (mut held, mut groups) = (BTreeSet::new(), BTreeSet::new());
    let status = until(Duration::from_secs(120), "the demo ends", || {
        held.extend(machine::descendants(child.id()));
        groups.extend(machine::groups_of(&held));
        child.try_wait().unwrap()
    });
    let said = std::fs::read_to_string(place.path("out")).unwrap();
    assert!(status.success(), "{said}");
    for word in ["execute_code", "upload_file", "network", "process", " ms"] {
        assert!(said.contains(word), "{word} is missing: {said}");
    }
    assert!(
        said.contains("sandcell base build"),
        "it says how to get data libraries: {said}"
    );
    assert!(
        !said.contains('\u{1b}'),
        "no terminal codes where no terminal is: {said:?}"
    );
    assert!(held.len() > 2, "a server, its launcher and sandboxes: {held:?}");
    until(Duration::from_secs(2), "nothing is left", || {
        let gone = held.iter().all(|seen| !seen.lives()) && groups.iter().all(|folder| !folder.exists());
        (gone && place.temporary_files().is_empty()).then_some(())
    });
}
