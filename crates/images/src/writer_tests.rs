use super::*;

/// Returns a stream of records as a hostile unpacker could write it.
fn stream(records: &[(RecordKind, &str, &str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, path, target, content) in records {
        let mut record = Record::new(*kind, Path::parse(path.as_bytes()).unwrap());
        record.target = target.as_bytes().to_vec();
        record.size = u64::try_from(content.len()).unwrap();
        record.write(&mut bytes).unwrap();
        bytes.extend_from_slice(content.as_bytes());
    }
    let mut end = Record::new(RecordKind::End, Path::default());
    let text = br#"{"diff_id":null,"left_out":0,"setuid":0}"#;
    end.size = u64::try_from(text.len()).unwrap();
    end.write(&mut bytes).unwrap();
    bytes.extend_from_slice(text);
    bytes
}

const TEST_LIMITS: UnpackLimits = UnpackLimits {
    bytes: 1 << 20,
    entries: 1000,
};

fn written(records: &[(RecordKind, &str, &str, &str)]) -> (tempfile::TempDir, Result<Written, ImageError>) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("outside"), "untouched").unwrap();
    let result = write(
        &mut stream(records).as_slice(),
        &folder.path().join("files"),
        TEST_LIMITS,
    );
    assert_eq!(std::fs::read(folder.path().join("outside")).unwrap(), b"untouched");
    (folder, result)
}

#[test]
fn files_folders_and_links_are_there_with_plain_rights() {
    use std::os::unix::fs::PermissionsExt as _;
    let (folder, result) = written(&[
        (RecordKind::Folder, "a", "", ""),
        (RecordKind::File, "a/f", "", "text"),
        (RecordKind::HardLink, "b/g", "a/f", ""),
        (RecordKind::Symlink, "l", "/etc/passwd", ""),
    ]);
    let result = result.unwrap();
    let files = folder.path().join("files");
    assert_eq!(std::fs::read(files.join("b/g")).unwrap(), b"text");
    assert_eq!(
        std::fs::read_link(files.join("l")).unwrap().to_str(),
        Some("/etc/passwd")
    );
    assert_eq!(
        files.join("a/f").metadata().unwrap().permissions().mode() & 0o7777,
        0o644
    );
    assert_eq!(result.implied, BTreeSet::from([Path::parse(b"b").unwrap()]));
    assert_eq!(result.entries, 5);
}

#[test]
fn no_link_leaves_the_tree() {
    // An absolute link, a link with `..`, and a link to a file outside the folder.
    let (folder, result) = written(&[
        (RecordKind::Symlink, "abs", "/tmp", ""),
        (RecordKind::Folder, "tmp", "", ""),
        (RecordKind::File, "abs/f", "", "x"),
        (RecordKind::Symlink, "up", "../../../../..", ""),
        (RecordKind::File, "up/g", "", "x"),
    ]);
    result.unwrap();
    let files = folder.path().join("files");
    assert!(files.join("tmp/f").exists() && files.join("g").exists());
    for records in [
        // Overwriting the target of a link.
        vec![
            (RecordKind::Symlink, "x", "../outside", ""),
            (RecordKind::File, "x", "", "hostile"),
        ],
        // A hard link to the target of a link, and a write through it.
        vec![
            (RecordKind::Symlink, "x", "../outside", ""),
            (RecordKind::HardLink, "y", "x", ""),
            (RecordKind::File, "y", "", "hostile"),
        ],
        vec![
            (RecordKind::Symlink, "d", "..", ""),
            (RecordKind::File, "d/outside", "", "hostile"),
        ],
    ] {
        let (folder, result) = written(&records);
        result.unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }
    let (_folder, result) = written(&[
        (RecordKind::Symlink, "d", "..", ""),
        (RecordKind::HardLink, "h", "d/outside", ""),
    ]);
    assert!(result.is_err());
}

#[test]
fn the_last_entry_of_a_name_wins() {
    let (folder, result) = written(&[
        (RecordKind::Folder, "x", "", ""),
        (RecordKind::File, "x/y", "", "deep"),
        (RecordKind::File, "x", "", "flat"),
        (RecordKind::Symlink, "x", "y", ""),
        (RecordKind::Folder, "x", "", ""),
        (RecordKind::File, "x/z", "", "1"),
        (RecordKind::File, "x/z", "", "2"),
    ]);
    result.unwrap();
    let files = folder.path().join("files");
    assert_eq!(std::fs::read(files.join("x/z")).unwrap(), b"2");
    assert!(!files.join("x/y").exists());
}

#[test]
fn bytes_and_entries_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut many = Vec::new();
    for number in 0..1001 {
        Record::new(
            RecordKind::Folder,
            Path::parse(format!("d{number}").as_bytes()).unwrap(),
        )
        .write(&mut many)
        .unwrap();
    }
    let error = write(&mut many.as_slice(), &folder.path().join("many"), TEST_LIMITS).unwrap_err();
    assert!(error.to_string().contains("1000 files"), "{error}");
    let mut large = Vec::new();
    let mut record = Record::new(RecordKind::File, Path::parse(b"f").unwrap());
    record.size = u64::MAX;
    record.write(&mut large).unwrap();
    let error = write(&mut large.as_slice(), &folder.path().join("large"), TEST_LIMITS).unwrap_err();
    assert!(error.to_string().contains("1 MiB"), "{error}");
}

#[test]
fn truncated_and_overlong_streams_are_refused() {
    let whole = stream(&[(RecordKind::File, "f", "", "text")]);
    for cut in 0..whole.len() {
        let folder = tempfile::tempdir().unwrap();
        assert!(
            write(&mut &whole[..cut], &folder.path().join("files"), TEST_LIMITS).is_err(),
            "{cut}"
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let more = [whole, vec![b'f']].concat();
    assert!(write(&mut more.as_slice(), &folder.path().join("files"), TEST_LIMITS).is_err());
}
