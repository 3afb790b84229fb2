//! Files: the permitted reads and writes, and every forbidden path.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use bytes::Bytes;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use sandcell_agent::client::AgentClient;
use sandcell_sandbox::{EntryKind, FileError, WriteMode};

use super::common::*;

struct Place {
    folder: tempfile::TempDir,
    client: AgentClient,
    _server: Server,
}

impl Place {
    async fn new() -> Self {
        let (server, client) = connect().await;
        Self {
            folder: tempfile::tempdir().unwrap(),
            client,
            _server: server,
        }
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    async fn read(&self, at: impl AsRef<Path>) -> Result<Bytes, FileError> {
        self.client
            .files()
            .read(&path(at), 0, 1 << 20)
            .await
            .map(|chunk| chunk.bytes)
    }

    async fn write(&self, at: impl AsRef<Path>, text: &str, mode: WriteMode) -> Result<u64, FileError> {
        self.client
            .files()
            .write(&path(at), Bytes::from(text.to_owned()), mode)
            .await
    }

    /// Returns the names in the folder, including hidden temporary files.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[tokio::test]
async fn a_file_is_written_read_in_parts_and_appended_to() {
    let place = Place::new().await;
    let at = place.at("a/b/c.txt");
    assert_eq!(place.write(&at, "hello", WriteMode::Replace).await.unwrap(), 5);
    assert_eq!(place.write(&at, " world", WriteMode::Append).await.unwrap(), 11);
    assert_eq!(place.read(&at).await.unwrap(), "hello world");
    let chunk = place.client.files().read(&path(&at), 6, 3).await.unwrap();
    assert_eq!((chunk.bytes.as_ref(), chunk.total), (b"wor".as_slice(), 11));
    for offset in [11, 1 << 40, u64::MAX] {
        let chunk = place.client.files().read(&path(&at), offset, 3).await.unwrap();
        assert_eq!((chunk.bytes.len(), chunk.total), (0, 11));
    }
    assert_eq!(place.write(place.at("new"), "", WriteMode::Append).await.unwrap(), 0);
    assert_eq!(place.write(&at, "", WriteMode::Replace).await.unwrap(), 0);
    assert_eq!(place.names(), ["a", "new"]);
}

#[tokio::test]
async fn ten_megabytes_are_written_and_read_in_one_call_and_more_than_sixteen_are_refused() {
    let place = Place::new().await;
    let bytes: Bytes = (0..10_u32 << 20)
        .map(|n| u8::try_from(n % 253).unwrap())
        .collect::<Vec<u8>>()
        .into();
    let at = path(place.at("big"));
    assert_eq!(
        place
            .client
            .files()
            .write(&at, bytes.clone(), WriteMode::Replace)
            .await
            .unwrap(),
        10 << 20
    );
    let chunk = place.client.files().read(&at, 0, 16 << 20).await.unwrap();
    assert!(chunk.bytes == bytes && chunk.total == 10 << 20);
    let error = place.client.files().read(&at, 0, (16 << 20) + 1).await.unwrap_err();
    assert!(matches!(error, FileError::TooLarge { .. }));
    let huge = Bytes::from(vec![0; (16 << 20) + 1]);
    let error = place
        .client
        .files()
        .write(&at, huge, WriteMode::Append)
        .await
        .unwrap_err();
    assert!(matches!(error, FileError::TooLarge { .. }));
}

#[tokio::test]
async fn a_replaced_file_keeps_its_mode_without_set_id_bits_and_a_new_one_has_the_usual() {
    let place = Place::new().await;
    let mode = |name: &str| std::fs::metadata(place.at(name)).unwrap().mode() & 0o7777;
    place.write(place.at("new"), "x", WriteMode::Replace).await.unwrap();
    assert_eq!(mode("new"), 0o644);
    std::fs::write(place.at("old"), "x").unwrap();
    std::fs::set_permissions(place.at("old"), std::fs::Permissions::from_mode(0o4750)).unwrap();
    place.write(place.at("old"), "y", WriteMode::Replace).await.unwrap();
    assert_eq!(mode("old"), 0o750);
    place.write(place.at("sub/new"), "x", WriteMode::Replace).await.unwrap();
    assert_eq!(mode("sub"), 0o755);
}

#[tokio::test]
async fn everything_but_a_regular_file_is_refused_with_its_kind_and_left_unchanged() {
    let place = Place::new().await;
    let mode = Mode::from_raw_mode(0o666);
    mknodat(CWD, place.at("fifo"), FileType::Fifo, mode, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(place.at("socket")).unwrap();
    std::fs::create_dir(place.at("folder")).unwrap();
    symlink("fifo", place.at("link-to-fifo")).unwrap();
    symlink("/dev/zero", place.at("link-to-device")).unwrap();
    symlink("/proc/self/environ", place.at("link-to-environ")).unwrap();
    symlink("/proc/self/fd/0", place.at("magic")).unwrap();
    symlink("/proc/self/root/etc/passwd", place.at("magic-folder")).unwrap();
    let before = place.names();
    let cases = [
        (place.at("fifo"), "FIFO"),
        (place.at("link-to-fifo"), "FIFO"),
        (place.at("socket"), "socket"),
        ("/dev/null".into(), "device"),
        (place.at("link-to-device"), "device"),
        ("/proc/self/environ".into(), "pseudo file"),
        ("/proc/version".into(), "pseudo file"),
        ("/sys/kernel/mm/transparent_hugepage/enabled".into(), "pseudo file"),
        (place.at("link-to-environ"), "pseudo file"),
    ];
    for (at, expected) in cases {
        if !at.exists() {
            println!("skipped: {} is not here", at.display());
            continue;
        }
        for write in [None, Some(WriteMode::Replace), Some(WriteMode::Append)] {
            let error = match write {
                None => place.read(&at).await.map(drop).unwrap_err(),
                Some(mode) => place.write(&at, "x", mode).await.map(drop).unwrap_err(),
            };
            assert!(
                matches!(&error, FileError::NotRegular { kind, .. } if kind == expected),
                "{at:?} {write:?}: {error:?}"
            );
        }
    }
    for at in [place.at("magic"), place.at("magic-folder")] {
        let error = place.read(&at).await.unwrap_err();
        assert!(
            matches!(error, FileError::LinkLoop { .. } | FileError::NotRegular { .. }),
            "{at:?}: {error:?}"
        );
        let error = place.write(&at, "x", WriteMode::Replace).await.unwrap_err();
        assert!(
            matches!(error, FileError::LinkLoop { .. } | FileError::NotRegular { .. }),
            "{at:?}: {error:?}"
        );
    }
    assert!(matches!(
        place.read(place.at("folder")).await,
        Err(FileError::IsDirectory { .. })
    ));
    for mode in [WriteMode::Replace, WriteMode::Append] {
        for at in [place.at("folder"), "/".into()] {
            let error = place.write(&at, "x", mode).await.unwrap_err();
            assert!(matches!(error, FileError::IsDirectory { .. }), "{at:?}: {error:?}");
        }
    }
    for at in ["/proc", "/proc/self", "/sys"] {
        let error = place.client.files().list(&path(at), true, 10).await.unwrap_err();
        assert!(matches!(error, FileError::NotRegular { .. }), "{at}: {error:?}");
    }
    assert_eq!(place.names(), before);
}

#[tokio::test]
async fn links_are_followed_to_their_file_and_loops_end() {
    let place = Place::new().await;
    std::fs::write(place.at("file"), "old").unwrap();
    symlink("file", place.at("one")).unwrap();
    symlink(place.at("one"), place.at("two")).unwrap();
    symlink("loop", place.at("loop")).unwrap();
    symlink("made/later", place.at("dangling")).unwrap();
    assert_eq!(place.read(place.at("two")).await.unwrap(), "old");
    place.write(place.at("two"), "new", WriteMode::Replace).await.unwrap();
    place.write(place.at("one"), "er", WriteMode::Append).await.unwrap();
    assert_eq!(std::fs::read_to_string(place.at("file")).unwrap(), "newer");
    assert!(place.at("two").is_symlink() && place.at("one").is_symlink());
    place
        .write(place.at("dangling"), "x", WriteMode::Replace)
        .await
        .unwrap();
    assert_eq!(std::fs::read_to_string(place.at("made/later")).unwrap(), "x");
    for mode in [WriteMode::Replace, WriteMode::Append] {
        assert!(matches!(
            place.write(place.at("loop"), "x", mode).await,
            Err(FileError::LinkLoop { .. })
        ));
        assert!(matches!(
            place.write(place.at("loop/x"), "x", mode).await,
            Err(FileError::LinkLoop { .. })
        ));
    }
    assert!(matches!(
        place.read(place.at("loop")).await,
        Err(FileError::LinkLoop { .. })
    ));
}

#[tokio::test]
async fn bad_paths_are_refused_with_the_reason() {
    let place = Place::new().await;
    std::fs::write(place.at("file"), "x").unwrap();
    assert!(matches!(
        place.read(place.at("none")).await,
        Err(FileError::NotFound { .. })
    ));
    assert!(matches!(
        place.read(place.at("file/x")).await,
        Err(FileError::NotDirectory { .. })
    ));
    assert!(matches!(
        place.write(place.at("file/x"), "x", WriteMode::Replace).await,
        Err(FileError::NotDirectory { .. })
    ));
    let list = |at: std::path::PathBuf| {
        let client = place.client.clone();
        async move { client.files().list(&path(at), false, 10).await }
    };
    assert!(matches!(
        list(place.at("file")).await,
        Err(FileError::NotDirectory { .. })
    ));
    assert!(matches!(list(place.at("none")).await, Err(FileError::NotFound { .. })));
    // The contract refuses longer names earlier. The longest permitted name works.
    let longest = "n".repeat(255);
    place.write(place.at(&longest), "x", WriteMode::Replace).await.unwrap();
    assert_eq!(place.read(place.at(&longest)).await.unwrap(), "x");
}

#[tokio::test]
async fn a_lease_held_inside_does_not_stop_the_agent() {
    let place = Place::new().await;
    std::fs::write(place.at("leased"), "x").unwrap();
    let script = "import fcntl,sys,time\nf=open(sys.argv[1],'r+')\nfcntl.fcntl(f,fcntl.F_SETLEASE,fcntl.F_WRLCK)\n\
                  import signal\nsignal.signal(signal.SIGIO,signal.SIG_IGN)\nprint('held',flush=True)\ntime.sleep(1000)";
    let mut wanted = command(&[
        "python3",
        "-I",
        "-S",
        "-c",
        script,
        place.at("leased").to_str().unwrap(),
    ]);
    wanted.env.insert("PATH".to_owned(), std::env::var("PATH").unwrap());
    let Ok(mut process) = place.client.spawn(wanted).await else {
        return println!("skipped: no python3");
    };
    until(&mut process, sandcell_sandbox::Channel::Stdout, b"held\n").await;
    let start = std::time::Instant::now();
    let error = place.read(place.at("leased")).await.unwrap_err();
    assert!(error.to_string().contains("lease"), "{error}");
    assert!(place.write(place.at("leased"), "y", WriteMode::Append).await.is_err());
    assert!(
        start.elapsed() < std::time::Duration::from_secs(20),
        "it waited for the lease"
    );
}

#[tokio::test]
async fn a_full_disk_is_reported_and_leaves_no_temporary_file() {
    let place = Place::new().await;
    // /dev/full is a device, so a small file system is needed.
    let at = place.at("small");
    std::fs::create_dir(&at).unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k,nr_inodes=20", "none"])
        .arg(&at)
        .status()
        .is_ok_and(|status| status.success());
    if !mounted {
        return println!("skipped: nothing can be mounted here");
    }
    let big = "x".repeat(200_000);
    std::fs::write(at.join("kept"), "old").unwrap();
    for mode in [WriteMode::Replace, WriteMode::Append] {
        let error = place.write(at.join("kept"), &big, mode).await.unwrap_err();
        assert!(matches!(error, FileError::DiskFull { .. }), "{error:?}");
        assert_eq!(std::fs::read_to_string(at.join("kept")).unwrap(), "old", "{mode:?}");
    }
    assert_eq!(std::fs::read_dir(&at).unwrap().count(), 1);
    for number in 0..30 {
        drop(std::fs::write(at.join(number.to_string()), ""));
    }
    let error = place
        .write(at.join("no inode"), "x", WriteMode::Replace)
        .await
        .unwrap_err();
    assert!(matches!(error, FileError::DiskFull { .. }), "{error:?}");
    let remounted = std::process::Command::new("mount")
        .args(["-o", "remount,ro"])
        .arg(&at)
        .status();
    if remounted.is_ok_and(|status| status.success()) {
        for mode in [WriteMode::Replace, WriteMode::Append] {
            for name in ["kept", "none", "none/below"] {
                let error = place.write(at.join(name), "x", mode).await.unwrap_err();
                assert!(
                    matches!(error, FileError::ReadOnly { .. }),
                    "{name} {mode:?}: {error:?}"
                );
            }
        }
    }
    assert!(
        std::process::Command::new("umount")
            .arg(&at)
            .status()
            .unwrap()
            .success()
    );
}

#[tokio::test]
async fn a_cancelled_write_leaves_the_old_file_and_nothing_else() {
    let place = Place::new().await;
    std::fs::write(place.at("file"), "old").unwrap();
    for mode in [WriteMode::Replace, WriteMode::Append] {
        for delay_us in [0, 50, 200, 1000, 3000] {
            let (files, at) = (place.client.clone(), path(place.at("file")));
            let write = tokio::spawn(async move { files.files().write(&at, vec![b'x'; 15 << 20].into(), mode).await });
            tokio::time::sleep(std::time::Duration::from_micros(delay_us)).await;
            write.abort();
            if let Ok(Ok(_)) = write.await {
                std::fs::write(place.at("file"), "old").unwrap();
            }
        }
    }
    place.client.ping().await.unwrap();
    assert_eq!(std::fs::read_to_string(place.at("file")).unwrap(), "old");
    assert_eq!(place.names(), ["file"]);
}

#[tokio::test]
async fn a_listing_is_sorted_typed_and_bounded() {
    let place = Place::new().await;
    std::fs::write(place.at("b.txt"), "12345").unwrap();
    std::fs::create_dir_all(place.at("a/deep/er")).unwrap();
    std::fs::write(place.at("a/deep/er/x"), "").unwrap();
    symlink("a", place.at("link")).unwrap();
    mknodat(CWD, place.at("pipe"), FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    std::fs::write(place.folder.path().join(std::ffi::OsString::from("o\u{fffd}d")), "").unwrap();
    let odd = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"\xffodd\n");
    std::fs::write(place.folder.path().join(odd), "").unwrap();
    let flat = place
        .client
        .files()
        .list(&path(place.folder.path()), false, 100)
        .await
        .unwrap();
    let names: Vec<(&str, EntryKind)> = flat
        .entries
        .iter()
        .map(|entry| (entry.name.as_str(), entry.kind))
        .collect();
    assert_eq!(
        names,
        [
            ("a", EntryKind::Folder),
            ("b.txt", EntryKind::File),
            ("link", EntryKind::Link),
            ("o\u{fffd}d", EntryKind::File),
            ("pipe", EntryKind::Other),
            ("\\xffodd\n", EntryKind::File),
        ]
    );
    assert_eq!((flat.entries[1].size, flat.omitted), (5, 0));
    assert!((flat.entries[1].modified_ms / 1000 - std::fs::metadata(place.at("b.txt")).unwrap().mtime()).abs() < 2);
    let deep = place
        .client
        .files()
        .list(&path(place.folder.path()), true, 4)
        .await
        .unwrap();
    let names: Vec<&str> = deep.entries.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["a", "a/deep", "a/deep/er", "a/deep/er/x"]);
    assert_eq!(deep.omitted, 5);
    let none = place
        .client
        .files()
        .list(&path(place.folder.path()), false, 0)
        .await
        .unwrap();
    assert_eq!((none.entries.len(), none.omitted), (0, 6));
}

#[tokio::test]
async fn a_recursive_listing_stops_at_sixteen_levels_and_at_links() {
    let place = Place::new().await;
    let deep: Vec<String> = (0..30).map(|level| format!("d{level}")).collect();
    std::fs::create_dir_all(place.at(&deep.join("/"))).unwrap();
    symlink(place.folder.path(), place.at("self")).unwrap();
    let listing = place
        .client
        .files()
        .list(&path(place.folder.path()), true, 100)
        .await
        .unwrap();
    assert_eq!(listing.entries.len(), 17);
    assert_eq!(listing.entries[15].name, deep[..16].join("/"));
}

#[tokio::test]
async fn a_huge_folder_is_listed_in_bounds_while_others_are_served() {
    let place = Place::new().await;
    for number in 0..100_000 {
        std::fs::write(place.at(&format!("f{number:06}")), "").unwrap();
    }
    let listing = {
        let (client, at) = (place.client.clone(), path(place.folder.path()));
        tokio::spawn(async move { client.files().list(&at, true, 1000).await.unwrap() })
    };
    let mut served = 0;
    while !listing.is_finished() {
        place.client.ping().await.unwrap();
        served += 1;
    }
    let listing = listing.await.unwrap();
    assert_eq!((listing.entries.len(), listing.omitted), (1000, 99_000));
    assert_eq!(listing.entries[999].name, "f000999");
    assert!(served > 10, "only {served} others were served meanwhile");
}

#[tokio::test]
async fn usage_counts_disk_and_inodes() {
    let place = Place::new().await;
    let before = place.client.usage().await.unwrap();
    assert!(before.disk > 0 && before.inodes > 0, "{before:?}");
}

#[tokio::test]
async fn an_entry_is_described_itself_and_not_its_target() {
    let place = Place::new().await;
    std::fs::write(place.at("file"), "12345").unwrap();
    std::fs::set_permissions(place.at("file"), PermissionsExt::from_mode(0o4751)).unwrap();
    symlink("file", place.at("link")).unwrap();
    let files = place.client.files();
    let file = files.entry(&path(place.at("file"))).await.unwrap();
    assert_eq!((file.name.as_str(), file.kind, file.size), ("file", EntryKind::File, 5));
    let found = std::fs::metadata(place.at("file")).unwrap();
    assert_eq!((file.mode, file.user, file.group), (0o4751, found.uid(), found.gid()));
    let link = files.entry(&path(place.at("link"))).await.unwrap();
    assert_eq!((link.kind, link.target.as_deref()), (EntryKind::Link, Some("file")));
    assert_eq!(files.entry(&path("/")).await.unwrap().kind, EntryKind::Folder);
    for (at, wanted) in [("/proc/self/status", "NotRegular"), ("/nothing/here", "NotFound")] {
        let error = files.entry(&path(at)).await.unwrap_err();
        assert!(format!("{error:?}").starts_with(wanted), "{at}: {error:?}");
    }
}

#[tokio::test]
async fn a_folder_is_made_with_its_parents_and_only_once() {
    let place = Place::new().await;
    let files = place.client.files();
    assert!(files.make_folder(&path(place.at("a/b/c"))).await.unwrap());
    assert!(!files.make_folder(&path(place.at("a/b"))).await.unwrap());
    std::fs::write(place.at("file"), "").unwrap();
    let over = files.make_folder(&path(place.at("file"))).await.unwrap_err();
    assert!(matches!(over, FileError::Exists { .. }), "{over:?}");
    let below = files.make_folder(&path(place.at("file/x"))).await.unwrap_err();
    assert!(matches!(below, FileError::NotDirectory { .. }), "{below:?}");
    let inside_proc = files.make_folder(&path("/proc/x")).await.unwrap_err();
    assert!(matches!(inside_proc, FileError::NotRegular { .. }), "{inside_proc:?}");
}

#[tokio::test]
async fn a_rename_replaces_a_file_and_no_folder_with_entries() {
    let place = Place::new().await;
    let files = place.client.files();
    for (name, text) in [("one", "1"), ("two", "2"), ("full/entry", "")] {
        place.write(place.at(name), text, WriteMode::Replace).await.unwrap();
    }
    symlink("/nothing", place.at("dangling")).unwrap();
    let rename = async |from: &str, to: &str| files.rename(&path(place.at(from)), &path(place.at(to))).await;
    rename("one", "two").await.unwrap();
    assert_eq!(place.read(place.at("two")).await.unwrap(), "1");
    // The link is moved, not followed.
    rename("dangling", "link").await.unwrap();
    std::fs::create_dir(place.at("folder")).unwrap();
    let onto = rename("folder", "full").await.unwrap_err();
    assert!(matches!(onto, FileError::Exists { .. }), "{onto:?}");
    for (from, to) in [("one", "three"), ("two", "no/such/folder")] {
        let missing = rename(from, to).await.unwrap_err();
        assert!(matches!(missing, FileError::NotFound { .. }), "{missing:?}");
    }
    assert_eq!(place.names(), ["folder", "full", "link", "two"]);
}

#[tokio::test]
async fn a_folder_of_any_depth_is_removed_and_links_are_not_followed() {
    let place = Place::new().await;
    let files = place.client.files();
    std::fs::create_dir(place.at("kept")).unwrap();
    std::fs::write(place.at("kept/file"), "").unwrap();
    std::fs::create_dir(place.at("tree")).unwrap();
    symlink(place.at("kept"), place.at("tree/link")).unwrap();
    // Far deeper than a path can be long.
    let mut folder = std::fs::File::open(place.at("tree")).unwrap();
    for level in 0..2000 {
        rustix::fs::mkdirat(&folder, "a-folder-with-a-long-name", Mode::RWXU).unwrap();
        if level % 10 == 0 {
            mknodat(&folder, "fifo", FileType::Fifo, Mode::RWXU, 0).unwrap();
        }
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
        folder = rustix::fs::openat(&folder, "a-folder-with-a-long-name", flags, Mode::empty())
            .unwrap()
            .into();
    }
    drop(folder);
    for number in 0..3000 {
        std::fs::write(place.at(&format!("tree/{number}")), "").unwrap();
    }
    files.remove(&path(place.at("tree"))).await.unwrap();
    assert_eq!(place.names(), ["kept"]);
    symlink("kept", place.at("link")).unwrap();
    files.remove(&path(place.at("link"))).await.unwrap();
    assert!(place.at("kept/file").exists());
    let again = files.remove(&path(place.at("link"))).await.unwrap_err();
    assert!(matches!(again, FileError::NotFound { .. }), "{again:?}");
    let pseudo = files.remove(&path("/proc/self")).await.unwrap_err();
    assert!(matches!(pseudo, FileError::NotRegular { .. }), "{pseudo:?}");
}

#[tokio::test]
async fn names_that_are_not_utf_8_are_moved_and_removed_as_they_are_shown() {
    use std::os::unix::ffi::OsStrExt as _;
    let place = Place::new().await;
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9");
    std::fs::write(place.folder.path().join(name), "").unwrap();
    let files = place.client.files();
    files
        .rename(&path(place.at("caf\\xe9")), &path(place.at("plain")))
        .await
        .unwrap();
    assert_eq!(place.names(), ["plain"]);
    std::fs::write(place.folder.path().join(name), "").unwrap();
    files.remove(&path(place.at("caf\\xe9"))).await.unwrap();
    assert_eq!(place.names(), ["plain"]);
}
