//! The chain: changes to it are found. Several writers, a torn line and a rotated file do not break it.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use sandcell_engine::{Auditor as _, EventKind, Principal, SecurityEvent};

use crate::{AuditFile, AuditWriter, verify};

const MAX_LOG_BYTES: u64 = 1 << 20;

fn event(detail: &str) -> SecurityEvent {
    SecurityEvent {
        principal: Some(Principal::new("a")),
        ..SecurityEvent::new(EventKind::CallRefused, detail.to_owned())
    }
}

fn log(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("audit.jsonl")
}

fn write(path: &Path, details: impl IntoIterator<Item = String>) {
    let mut file = AuditFile::new(path.to_owned(), MAX_LOG_BYTES);
    for detail in details {
        file.note(&event(&detail)).unwrap();
    }
}

fn lines(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn put(path: &Path, lines: &[String]) {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(path, text).unwrap();
}

#[test]
fn an_intact_log_verifies_and_every_change_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let path = log(&folder);
    write(&path, (0..10).map(|n| format!("event \",\"hash\":\"{n}")));
    let report = verify(&path, None).unwrap();
    assert_eq!(
        (report.lines, report.first, report.last, report.fault_count),
        (10, 1, 10, 0)
    );
    let good = lines(&path);
    let at = |change: &dyn Fn(&mut Vec<String>)| {
        let mut changed = good.clone();
        change(&mut changed);
        put(&path, &changed);
        let report = verify(&path, Some(&report.last_hash)).unwrap();
        let first = report.faults.first().map(|fault| fault.line);
        (first, report.has_hash)
    };
    assert_eq!(at(&|_| {}), (None, Some(true)));
    assert_eq!(
        at(&|all| all[4] = all[4].replace("event", "other")),
        (Some(5), Some(true))
    );
    assert_eq!(at(&|all| drop(all.remove(4))), (Some(5), Some(true)));
    assert_eq!(at(&|all| all.swap(2, 3)), (Some(3), Some(true)));
    assert_eq!(at(&|all| all.insert(3, all[2].clone())), (Some(4), Some(true)));
    assert_eq!(at(&|all| all.push("{}".to_owned())), (Some(11), Some(true)));
    // Only the last hash, kept elsewhere, shows that the end is missing.
    assert_eq!(at(&|all| all.truncate(7)), (None, Some(false)));
}

#[test]
fn several_writers_share_one_chain() {
    let folder = tempfile::tempdir().unwrap();
    let path = log(&folder);
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let path = path.clone();
            scope.spawn(move || write(&path, (0..50).map(|n| format!("{writer} {n}"))));
        }
    });
    let report = verify(&path, None).unwrap();
    assert_eq!((report.lines, report.last, report.fault_count), (200, 200, 0));
}

#[test]
fn a_torn_line_is_removed_and_the_removal_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let path = log(&folder);
    write(&path, ["one".to_owned()]);
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"{\"n\":2,\"at\":\"20").unwrap();
    assert_eq!(verify(&path, None).unwrap().fault_count, 1);
    write(&path, ["two".to_owned()]);
    let report = verify(&path, None).unwrap();
    assert_eq!((report.lines, report.fault_count), (3, 0));
    assert!(lines(&path)[1].contains("log_repaired"), "{:?}", lines(&path));
}

#[test]
fn the_log_is_bounded_and_its_chain_continues_in_the_next_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = log(&folder);
    let max_bytes = 40_000;
    let mut files = [
        AuditFile::new(path.clone(), max_bytes),
        AuditFile::new(path.clone(), max_bytes),
    ];
    for n in 0..400 {
        files[n % 2].note(&event(&n.to_string())).unwrap();
        let size = |path: &Path| std::fs::metadata(path).map_or(0, |meta| meta.len());
        assert!(size(&path) + size(&AuditFile::rotated_path(&path)) < max_bytes + 2000);
    }
    let report = verify(&path, None).unwrap();
    assert_eq!((report.last, report.fault_count), (400, 0));
    assert!(report.first > 1 && report.lines == 401 - report.first, "{report:?}");
}

#[test]
fn a_server_that_is_killed_between_two_files_does_not_break_the_chain() {
    let folder = tempfile::tempdir().unwrap();
    let path = log(&folder);
    write(&path, ["one".to_owned(), "two".to_owned()]);
    std::fs::rename(&path, AuditFile::rotated_path(&path)).unwrap();
    // First without a new file, then with an empty one.
    for name in ["three", "four"] {
        write(&path, [name.to_owned()]);
        let report = verify(&path, None).unwrap();
        assert_eq!((report.fault_count, report.lines), (0, 3), "{report:?}");
        std::fs::write(&path, "").unwrap();
    }
}

#[test]
fn only_its_owner_reads_the_log() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    write(&log(&folder), ["one".to_owned()]);
    let mode = std::fs::metadata(log(&folder)).unwrap().permissions().mode();
    assert_eq!(mode & 0o77, 0);
}

#[tokio::test]
async fn a_flood_is_counted_instead_of_written_and_evicts_no_other_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = log(&folder);
    let writer = AuditWriter::start(AuditFile::new(path.clone(), MAX_LOG_BYTES)).unwrap();
    for n in 0..2000 {
        writer.note(event(&n.to_string()));
    }
    writer.note(SecurityEvent {
        principal: Some(Principal::new("b")),
        ..event("of another one")
    });
    writer.close().await;
    let report = verify(&path, None).unwrap();
    assert_eq!((report.lines, report.fault_count), (202, 0));
    let text = lines(&path).join("\n");
    assert!(
        text.contains("of another one") && text.contains("1800 more of call_refused"),
        "{text}"
    );
}

#[tokio::test]
async fn a_log_that_cannot_be_written_blocks_no_caller() {
    let folder = tempfile::tempdir().unwrap();
    // A folder is at the path of the file.
    std::fs::create_dir(log(&folder)).unwrap();
    let writer = AuditWriter::start(AuditFile::new(log(&folder), MAX_LOG_BYTES)).unwrap();
    writer.note(event("lost"));
    writer.close().await;
    assert!(verify(&log(&folder), None).is_err());
}

#[test]
fn a_constant_stream_of_events_is_still_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = log(&folder);
    let writer = AuditWriter::start(AuditFile::new(path.clone(), MAX_LOG_BYTES)).unwrap();
    // 150 events are fewer than one batch, and no pause between them is long enough to end the gathering.
    for n in 0..150 {
        writer.note(event(&n.to_string()));
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // The thread still runs, so only the elapsed time made it write.
    assert!(verify(&path, None).unwrap().lines > 0);
    drop(writer);
}
