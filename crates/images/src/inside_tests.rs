use super::*;

/// Returns a tar archive of (name, kind, mode, content or target). Names are written unchanged, `..` included.
fn archive(entries: &[(&[u8], EntryType, u32, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, kind, mode, text) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(*mode);
        let is_link = matches!(kind, EntryType::Symlink | EntryType::Link);
        if name.len() < 100 {
            header.as_old_mut().name[..name.len()].copy_from_slice(name);
        }
        if is_link {
            header.as_old_mut().linkname[..text.len()].copy_from_slice(text);
        }
        let content: &[u8] = if is_link { b"" } else { text };
        header.set_size(u64::try_from(content.len()).unwrap());
        header.set_cksum();
        builder.append(&header, content).unwrap();
    }
    builder.into_inner().unwrap()
}

fn records(bytes: &[u8]) -> Result<(Vec<Record>, Summary), String> {
    let mut output = Vec::new();
    unpack(Kind::Layer, 1 << 20, bytes, &mut output)?;
    let mut from = output.as_slice();
    let mut found = Vec::new();
    loop {
        let record = Record::read(&mut from).unwrap();
        let (content, rest) = from.split_at(usize::try_from(record.size).unwrap());
        from = rest;
        if record.kind == RecordKind::End {
            assert!(rest.is_empty());
            return Ok((found, serde_json::from_slice(content).unwrap()));
        }
        found.push(record);
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_layer_is_the_same_however_it_is_packed() {
    let plain = archive(&[
        (b"./", EntryType::Directory, 0o755, b""),
        (b"etc/", EntryType::Directory, 0o700, b""),
        (b"bin/tool", EntryType::Regular, 0o4755, b"run"),
        (b"bin/again", EntryType::Link, 0o755, b"./bin/tool"),
        (b"lib", EntryType::Symlink, 0o777, b"/usr/lib"),
    ]);
    let (found, summary) = records(&plain).unwrap();
    let found_records: Vec<(RecordKind, &[u8], &[u8], bool)> = found
        .iter()
        .map(|one| (one.kind, one.path.as_bytes(), one.target.as_slice(), one.runs))
        .collect();
    assert_eq!(
        found_records,
        [
            (RecordKind::Folder, &b"etc"[..], &b""[..], true),
            (RecordKind::File, b"bin/tool", b"", true),
            (RecordKind::HardLink, b"bin/again", b"bin/tool", true),
            (RecordKind::Symlink, b"lib", b"/usr/lib", true),
        ]
    );
    assert_eq!(summary.setuid, 1);
    assert_eq!(summary.diff_id, Some(Digest::of(&plain)));
    assert_eq!(records(&gzip(&plain)).unwrap(), (found.clone(), summary.clone()));
    // A sequence of two gzip members is one stream.
    let (first, second) = plain.split_at(700);
    let parts = [gzip(first), gzip(second)].concat();
    assert_eq!(records(&parts).unwrap(), (found.clone(), summary.clone()));
    let zstd = ruzstd::encoding::compress_to_vec(plain.as_slice(), ruzstd::encoding::CompressionLevel::Fastest);
    // A skippable frame between two frames with data.
    let skipped = [&0x184D_2A50_u32.to_le_bytes()[..], &3_u32.to_le_bytes(), b"xyz"].concat();
    let parts = [
        ruzstd::encoding::compress_to_vec(first, ruzstd::encoding::CompressionLevel::Fastest),
        skipped,
        ruzstd::encoding::compress_to_vec(second, ruzstd::encoding::CompressionLevel::Fastest),
    ];
    assert_eq!(records(&zstd).unwrap(), (found.clone(), summary.clone()));
    assert_eq!(records(&parts.concat()).unwrap(), (found, summary));
}

#[test]
fn whiteouts_remove_files_and_invalid_ones_are_refused() {
    let (found, _) = records(&archive(&[
        (b"a/.wh.b", EntryType::Regular, 0o644, b""),
        (b"a/.wh..wh..opq", EntryType::Regular, 0o644, b""),
        (b".wh..wh.plnk/1", EntryType::Regular, 0o644, b"x"),
    ]))
    .unwrap();
    let found_records: Vec<_> = found.iter().map(|one| (one.kind, one.path.as_bytes())).collect();
    assert_eq!(
        found_records,
        [(RecordKind::Whiteout, &b"a/b"[..]), (RecordKind::Opaque, &b"a"[..])]
    );
    for name in [&b"a/.wh."[..], b"a/.wh...", b".wh.."] {
        assert!(records(&archive(&[(name, EntryType::Regular, 0o644, b"")])).is_err());
    }
}

#[test]
fn unsupported_entries_are_skipped_and_counted() {
    let (found, summary) = records(&archive(&[
        (b"dev/sda", EntryType::Block, 0o666, b""),
        (b"dev/mem", EntryType::Char, 0o666, b""),
        (b"pipe", EntryType::Fifo, 0o666, b""),
    ]))
    .unwrap();
    assert_eq!((found.len(), summary.left_out), (0, 3));
}

#[test]
fn hostile_layers_are_refused_with_a_reason() {
    for (name, kind, target) in [
        (&b"../escape"[..], EntryType::Regular, &b""[..]),
        (b"a/../../escape", EntryType::Directory, b""),
        (b"link", EntryType::Link, b"../../etc/shadow"),
        (b"link", EntryType::Link, b""),
        (b"link", EntryType::Symlink, b""),
    ] {
        assert!(records(&archive(&[(name, kind, 0o644, target)])).is_err(), "{name:?}");
    }
    let good = archive(&[(b"a", EntryType::Regular, 0o644, b"content of a file")]);
    assert!(records(&good[..520]).is_err());
    let packed = gzip(&good);
    assert!(records(&packed[..packed.len() - 4]).is_err());
    assert!(records(b"\x1f\x8bgarbage").is_err());
    assert!(records(b"\x28\xb5\x2f\xfdgarbage").is_err());
    assert!(records(&[0x41; 4096]).is_err());
}

#[test]
fn a_decompression_bomb_stops_at_the_limit() {
    let zeros = vec![0; 4 << 20];
    let error = records(&gzip(&archive(&[(b"zeros", EntryType::Regular, 0o644, &zeros)]))).unwrap_err();
    assert!(error.contains("more than is allowed"), "{error}");
    // The limit also covers the bytes after the end of the archive.
    let tail = [archive(&[]), zeros].concat();
    assert!(records(&gzip(&tail)).is_err());
}

#[test]
fn long_names_of_both_kinds_are_read_and_endless_ones_refused() {
    let long = format!("{}/file", "d".repeat(180));
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(0);
    builder.append_data(&mut header, &long, &b""[..]).unwrap();
    let gnu = builder.into_inner().unwrap();
    assert_eq!(records(&gnu).unwrap().0[0].path.as_bytes(), long.as_bytes());
    let pax = |name: &str| {
        let field = |length: usize| format!("{length} path={name}\n");
        let mut length = name.len() + 8;
        while field(length).len() != length {
            length = field(length).len();
        }
        archive(&[
            (b"pax", EntryType::XHeader, 0o644, field(length).as_bytes()),
            (b"short", EntryType::Regular, 0o644, b""),
        ])
    };
    assert_eq!(records(&pax(&long)).unwrap().0[0].path.as_bytes(), long.as_bytes());
    assert!(records(&pax(&"x".repeat(300))).is_err());
    assert!(records(&pax("a/../../b")).is_err());
    let sparse = archive(&[
        (b"pax", EntryType::XHeader, 0o644, b"22 GNU.sparse.major=1\n"),
        (b"s", EntryType::Regular, 0o644, b"1\n0\n1\n"),
    ]);
    assert!(records(&sparse).unwrap_err().contains("sparse"));
}
