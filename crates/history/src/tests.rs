//! The database and its thread: stored rows, their owners, the limits, and the behaviour when the database fails.

use std::path::Path;
use std::time::{Duration, SystemTime};

use sandcell_engine::{
    ExecutionId, FinishedExecution, HistoryQuery, HistoryRecord, HistorySink as _, Principal, Status, StoredPicture,
    ToolCallCount,
};
use sandcell_sandbox::ByteSize;

use crate::row::Row;
use crate::{Database, Filter, HistoryError, Retention, Writer, WriterRole};

const ONE_DAY: Duration = Duration::from_secs(86_400);
const TEST_LIMITS: Retention = Retention {
    rows: 1000,
    age: ONE_DAY,
    bytes: 64 << 20,
};

fn id(number: u32) -> String {
    // The alphabet of ids has no 0 and 1, but the parser accepts them.
    format!("ex{number:026}")
}

fn finished(number: u32, owner: &str, code: &str) -> FinishedExecution {
    FinishedExecution {
        owner: Principal::new(owner),
        record: HistoryRecord {
            execution_id: ExecutionId::parse(&id(number)).unwrap(),
            sandbox_id: None,
            language: "python".to_owned(),
            status: Status::Ok,
            timestamp: "2026-01-01T00:00:00.000Z".to_owned(),
            success: true,
            duration_ms: 7,
            code_preview: code.chars().take(100).collect(),
            stdout_preview: String::new(),
            error: None,
        },
        shown: true,
        started: SystemTime::now(),
        code: code.to_owned(),
        stdout: "printed".to_owned(),
        stderr: String::new(),
        result: Some("42".to_owned()),
        traceback: None,
        cause: None,
        exit_code: Some(0),
        cpu: Duration::from_millis(3),
        peak_memory: ByteSize::mib(9),
        stdout_bytes: 7,
        stderr_bytes: 0,
        pictures: Vec::new(),
        tool_calls: Vec::new(),
    }
}

fn file(folder: &tempfile::TempDir) -> std::path::PathBuf {
    Database::file(folder.path())
}

#[tokio::test]
async fn a_row_is_visible_to_its_owner_only_and_before_it_is_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let writer = Writer::start(file(&folder), TEST_LIMITS, WriterRole::Server).unwrap();
    writer.record(finished(1, "ann", "x = 'whole'"));
    let (ann, bob) = (Principal::new("ann"), Principal::new("bob"));
    let kept = writer.find(&ann, &id(1)).await.unwrap();
    assert_eq!((kept.code.as_str(), kept.stdout.as_str()), ("x = 'whole'", "printed"));
    assert!(writer.find(&bob, &id(1)).await.is_none());
    assert!(writer.find(&ann, &id(2)).await.is_none());
    let mut old = finished(3, "ann", "old");
    old.started = SystemTime::now() - 2 * ONE_DAY;
    writer.record(old);
    assert!(writer.find(&ann, &id(3)).await.is_none(), "older than what is shown");
}

fn about(words: &[&str]) -> HistoryQuery {
    HistoryQuery {
        words: words.iter().map(|word| (*word).to_owned()).collect(),
        limit: 50,
        ..HistoryQuery::default()
    }
}

#[tokio::test]
async fn a_search_finds_whole_texts_in_all_rows_of_its_caller_page_by_page() {
    let folder = tempfile::tempdir().unwrap();
    let writer = Writer::start(file(&folder), TEST_LIMITS, WriterRole::Server).unwrap();
    for number in 0..300 {
        let mut row = finished(number, "ann", &format!("{}# 100%_{number}\n", "x = 1\n".repeat(100)));
        row.stderr = format!("Warning {}", number % 3);
        writer.record(row);
    }
    writer.record(finished(900, "bob", "needle of bob"));
    let (ann, bob) = (Principal::new("ann"), Principal::new("bob"));
    let mut query = about(&["WARNING 2"]);
    let mut pages = Vec::new();
    loop {
        let page = writer.search(&ann, &query).await.unwrap();
        assert_eq!((page.total, page.complete), (100, true));
        query.before = page.records.last().map(|record| record.execution_id.to_string());
        pages.push(page.records);
        if !page.more {
            break;
        }
    }
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [50, 50]);
    assert_eq!(pages[0][0].execution_id.as_str(), id(299));
    assert_eq!(pages[1][49].execution_id.as_str(), id(2));
    // Wildcards match literally, all words must match, and a search finds a row that was stored just before it.
    assert_eq!(writer.search(&ann, &about(&["100%_29"])).await.unwrap().total, 11);
    assert_eq!(
        writer
            .search(&ann, &about(&["%_7\n", "warning 1"]))
            .await
            .unwrap()
            .total,
        1
    );
    assert_eq!(writer.search(&ann, &about(&["' OR 1=1 --"])).await.unwrap().total, 0);
    // A search neither finds another caller's rows nor accepts one as its cursor.
    assert_eq!(writer.search(&ann, &about(&["needle"])).await.unwrap().total, 0);
    assert_eq!(writer.search(&bob, &about(&["needle"])).await.unwrap().total, 1);
    let from = HistoryQuery {
        before: Some(id(900)),
        ..about(&[])
    };
    let page = writer.search(&ann, &from).await.unwrap();
    assert_eq!((page.records, page.total), (vec![], 300));
    for (query, found) in [
        (
            HistoryQuery {
                status: Some(Status::Killed),
                ..about(&[])
            },
            0,
        ),
        (
            HistoryQuery {
                status: Some(Status::Ok),
                ..about(&[])
            },
            300,
        ),
        (
            HistoryQuery {
                language: Some("bash".to_owned()),
                ..about(&[])
            },
            0,
        ),
        (
            HistoryQuery {
                sandbox: Some("sbx".to_owned()),
                ..about(&[])
            },
            0,
        ),
    ] {
        assert_eq!(writer.search(&ann, &query).await.unwrap().total, found, "{query:?}");
    }
    writer.reset(&ann, SystemTime::now());
    writer.record(finished(301, "ann", "a new view"));
    assert_eq!(writer.search(&ann, &about(&[])).await.unwrap().total, 1);
}

#[tokio::test]
async fn a_search_that_takes_too_long_ends_and_reports_that() {
    let folder = tempfile::tempdir().unwrap();
    let writer = Writer::start(file(&folder), TEST_LIMITS, WriterRole::Server).unwrap();
    (0..200).for_each(|number| writer.record(finished(number, "ann", "x")));
    writer.close().await;
    let page = crate::search::search(&file(&folder), "ann", &about(&["x"]), 0, Duration::ZERO).unwrap();
    assert!(!page.complete && page.total > 0 && page.total < 200, "{page:?}");
    let page = crate::search::search(&file(&folder), "ann", &about(&["x"]), 0, Duration::MAX).unwrap();
    assert_eq!((page.complete, page.total), (true, 200));
}

fn rows(path: &Path, owner: &str) -> Vec<String> {
    let filter = Filter {
        owner: Some(owner.to_owned()),
        max_rows: 10_000,
        ..Filter::default()
    };
    let rows = Database::open_existing(path).unwrap().list(&filter, true).unwrap();
    rows.into_iter().map(|row| row.code).collect()
}

async fn codes(writer: &Writer, owner: &str, last_n: usize) -> Option<(u64, Vec<String>)> {
    let view = writer.view(&Principal::new(owner), last_n, None).await?;
    Some((
        view.total,
        view.records.into_iter().map(|row| row.code_preview).collect(),
    ))
}

#[tokio::test]
async fn rows_outlive_the_server_and_belong_to_their_callers() {
    let folder = tempfile::tempdir().unwrap();
    let writer = Writer::start(file(&folder), TEST_LIMITS, WriterRole::Server).unwrap();
    writer.record(finished(1, "a", "one"));
    writer.record(finished(2, "b", "two"));
    writer.record(finished(3, "a", "three"));
    let expected = Some((2, vec!["three".to_owned(), "one".to_owned()]));
    assert_eq!(codes(&writer, "a", 10).await, expected);
    writer.close().await;
    drop(writer);
    let again = Writer::start(file(&folder), TEST_LIMITS, WriterRole::Server).unwrap();
    assert_eq!(codes(&again, "a", 10).await, expected);
    assert_eq!(codes(&again, "b", 10).await, Some((1, vec!["two".to_owned()])));
    assert_eq!(codes(&again, "nobody", 10).await, Some((0, Vec::new())));
}

#[tokio::test]
async fn a_reset_begins_a_new_view_for_its_caller_and_keeps_the_rows() {
    let folder = tempfile::tempdir().unwrap();
    let writer = Writer::start(file(&folder), TEST_LIMITS, WriterRole::Server).unwrap();
    writer.record(finished(1, "a", "old"));
    writer.record(finished(2, "b", "other"));
    writer.reset(&Principal::new("a"), SystemTime::now());
    writer.record(finished(3, "a", "new"));
    assert_eq!(codes(&writer, "a", 10).await, Some((1, vec!["new".to_owned()])));
    assert_eq!(codes(&writer, "b", 10).await, Some((1, vec!["other".to_owned()])));
    assert_eq!(rows(&file(&folder), "a"), ["new", "old"]);
}

#[tokio::test]
async fn a_hidden_row_is_stored_for_the_operator_only() {
    let folder = tempfile::tempdir().unwrap();
    let writer = Writer::start(file(&folder), TEST_LIMITS, WriterRole::Server).unwrap();
    writer.record(finished(1, "a", "seen"));
    writer.record(FinishedExecution {
        shown: false,
        ..finished(2, "a", "unseen")
    });
    assert_eq!(codes(&writer, "a", 10).await, Some((1, vec!["seen".to_owned()])));
    assert_eq!(rows(&file(&folder), "a"), ["unseen", "seen"]);
}

#[tokio::test]
async fn a_busy_caller_does_not_evict_the_rows_of_a_quiet_one() {
    let folder = tempfile::tempdir().unwrap();
    let keep = Retention {
        rows: 10,
        ..TEST_LIMITS
    };
    let writer = Writer::start(file(&folder), keep, WriterRole::Server).unwrap();
    writer.record(finished(1, "quiet", "kept"));
    (2..300).for_each(|number| writer.record(finished(number, "busy", &number.to_string())));
    assert_eq!(codes(&writer, "quiet", 10).await, Some((1, vec!["kept".to_owned()])));
    let (total, shown) = codes(&writer, "busy", 50).await.unwrap();
    assert_eq!((total, shown.len()), (298, 9));
    assert_eq!(shown[0], "299");
}

#[tokio::test]
async fn the_size_of_the_rows_and_of_the_file_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let keep = Retention {
        bytes: 2 << 20,
        ..TEST_LIMITS
    };
    let writer = Writer::start(file(&folder), keep, WriterRole::Server).unwrap();
    let large = "x".repeat(900_000);
    for number in 0..60 {
        writer.record(finished(number, "a", &large));
        // Closing keeps the queue short: this test is not about the queue.
        writer.close().await;
    }
    assert_eq!(rows(&file(&folder), "a").len(), 2);
    let size = std::fs::metadata(file(&folder)).unwrap().len();
    assert!(size < keep.file_bytes(), "{size}");
}

#[tokio::test]
async fn old_rows_are_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let writer = Writer::start(file(&folder), TEST_LIMITS, WriterRole::Server).unwrap();
    let mut old = finished(1, "a", "old");
    old.started = SystemTime::now() - ONE_DAY - Duration::from_secs(1);
    writer.record(old);
    writer.record(finished(2, "a", "new"));
    assert_eq!(codes(&writer, "a", 10).await.unwrap().1, ["new"]);
    drop(writer);
    let again = Writer::start(file(&folder), TEST_LIMITS, WriterRole::Server).unwrap();
    again.close().await;
    assert_eq!(rows(&file(&folder), "a"), ["new"]);
}

#[tokio::test]
async fn a_corrupt_file_is_left_alone_and_memory_answers_instead() {
    let folder = tempfile::tempdir().unwrap();
    let garbage: Vec<u8> = (0..40_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0])
        .collect();
    std::fs::write(file(&folder), &garbage).unwrap();
    let writer = Writer::start(file(&folder), TEST_LIMITS, WriterRole::Server).unwrap();
    writer.record(finished(1, "a", "one"));
    assert_eq!(codes(&writer, "a", 10).await, None);
    writer.close().await;
    assert_eq!(std::fs::read(file(&folder)).unwrap(), garbage);
    let error = Database::open_existing(&file(&folder)).unwrap_err();
    assert!(
        error.remedy().contains("move the file away"),
        "{error}: {}",
        error.remedy()
    );
}

#[tokio::test]
async fn a_file_that_is_removed_or_replaced_is_made_again_and_takes_the_next_rows() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let path = Database::file(&data);
    let writer = Writer::start(path.clone(), TEST_LIMITS, WriterRole::Server).unwrap();
    writer.record(finished(1, "a", "one"));
    assert_eq!(codes(&writer, "a", 10).await.unwrap().1, ["one"]);
    // Removes the whole folder, like `rm -r`.
    std::fs::remove_dir_all(&data).unwrap();
    writer.record(finished(2, "a", "two"));
    assert_eq!(codes(&writer, "a", 10).await.unwrap().1, ["two"]);
    assert_eq!(rows(&path, "a"), ["two"]);
    // Another database replaces the file. The old write-ahead log is not applied to it.
    let other = folder.path().join("other.db");
    let mut database = Database::open(&other, 64 << 20).unwrap();
    database.add(&[Row::of(finished(3, "a", "three"))], 0).unwrap();
    drop(database);
    for end in ["db-wal", "db-shm"] {
        std::fs::remove_file(path.with_extension(end)).unwrap();
    }
    std::fs::rename(&other, &path).unwrap();
    writer.record(finished(4, "a", "four"));
    writer.close().await;
    drop(writer);
    assert_eq!(rows(&path, "a"), ["four", "three"]);
}

#[tokio::test]
async fn a_file_that_is_overwritten_is_left_alone_and_a_new_one_takes_the_rows_that_waited() {
    let folder = tempfile::tempdir().unwrap();
    let writer = Writer::start(file(&folder), TEST_LIMITS, WriterRole::Server).unwrap();
    writer.record(finished(1, "a", "one"));
    assert!(codes(&writer, "a", 10).await.is_some());
    let garbage = vec![0xa5; 8192];
    std::fs::write(file(&folder), &garbage).unwrap();
    writer.record(finished(2, "a", "two"));
    assert_eq!(codes(&writer, "a", 10).await, None, "memory has to answer");
    assert_eq!(std::fs::read(file(&folder)).unwrap(), garbage);
    std::fs::rename(file(&folder), folder.path().join("broken")).unwrap();
    writer.close().await;
    drop(writer);
    assert_eq!(rows(&file(&folder), "a"), ["two"]);
}

#[test]
fn a_file_that_breaks_later_is_an_error_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let mut database = Database::open(&file(&folder), 64 << 20).unwrap();
    let many: Vec<Row> = (0..200).map(|n| Row::of(finished(n, "a", &"y".repeat(3000)))).collect();
    database.add(&many, 0).unwrap();
    drop(database);
    let mut bytes = std::fs::read(file(&folder)).unwrap();
    bytes[8192..200_000].fill(0xa5);
    std::fs::write(file(&folder), bytes).unwrap();
    let database = Database::open_existing(&file(&folder)).unwrap();
    let filter = Filter {
        max_rows: 1000,
        ..Filter::default()
    };
    let error = database.list(&filter, true).unwrap_err();
    assert!(error.remedy().contains("corrupt"), "{error:?}");
}

#[test]
fn a_command_leaves_the_write_ahead_log_to_the_next_process() {
    let folder = tempfile::tempdir().unwrap();
    let log = file(&folder).with_extension("db-wal");
    let mut database = Database::open(&file(&folder), 64 << 20).unwrap();
    database.skip_checkpoint_on_close().unwrap();
    database.add(&[Row::of(finished(0, "a", "one"))], 0).unwrap();
    drop(database);
    assert!(log.exists());
    assert_eq!(rows(&file(&folder), "a"), ["one"]);
    assert!(!log.exists(), "who looks at it has the time");
}

#[tokio::test]
async fn a_file_locked_at_the_start_gets_the_rows_later() {
    let folder = tempfile::tempdir().unwrap();
    drop(Database::open(&file(&folder), 64 << 20).unwrap());
    let other = rusqlite::Connection::open(file(&folder)).unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let writer = Writer::start(file(&folder), TEST_LIMITS, WriterRole::Command).unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    drop(other);
    writer.record(finished(0, "a", "one"));
    writer.close().await;
    assert_eq!(rows(&file(&folder), "a"), ["one"]);
}

#[test]
fn a_full_file_writes_nothing_of_a_batch_and_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let mut database = Database::open(&file(&folder), 600 << 10).unwrap();
    database.add(&[Row::of(finished(0, "a", "small"))], 0).unwrap();
    let many: Vec<Row> = (1..20)
        .map(|n| Row::of(finished(n, "a", &"y".repeat(100_000))))
        .collect();
    let error = database.add(&many, 0).unwrap_err();
    assert!(error.remedy().contains("make room"), "{error:?}");
    assert_eq!(rows(&file(&folder), "a"), ["small"]);
    database.add(&[Row::of(finished(99, "a", "later"))], 0).unwrap();
    assert_eq!(rows(&file(&folder), "a"), ["later", "small"]);
}

#[test]
fn a_file_of_a_newer_schema_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let database = Database::open(&file(&folder), 64 << 20).unwrap();
    database.connection().pragma_update(None, "user_version", 7).unwrap();
    drop(database);
    for opened in [
        Database::open(&file(&folder), 64 << 20),
        Database::open_existing(&file(&folder)),
    ] {
        assert!(matches!(opened, Err(HistoryError::Newer { schema_version: 7, .. })));
    }
}

#[cfg(unix)]
#[test]
fn only_its_owner_reads_the_file() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let mut database = Database::open(&file(&folder), 64 << 20).unwrap();
    database.add(&[Row::of(finished(0, "a", "x"))], 0).unwrap();
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o77, 0, "{:?}", entry.path());
    }
}

#[test]
fn rows_are_found_by_their_content_and_can_be_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let mut database = Database::open(&file(&folder), 64 << 20).unwrap();
    let all: Vec<Row> = [(1, "100%"), (2, "100 x"), (3, "a_b"), (4, "a-b")]
        .into_iter()
        .map(|(number, code)| Row::of(finished(number, "a", code)))
        .collect();
    database.add(&all, 0).unwrap();
    let found = |database: &Database, text: &str| {
        let filter = Filter {
            text: Some(text.to_owned()),
            max_rows: 10,
            ..Filter::default()
        };
        let rows = database.list(&filter, true).unwrap();
        rows.into_iter().map(|row| row.code).collect::<Vec<_>>()
    };
    assert_eq!(found(&database, "0%"), ["100%"]);
    assert_eq!(found(&database, "A_B"), ["a_b"]);
    assert_eq!(found(&database, "printed").len(), 4);
    assert!(found(&database, "' OR 1 --").is_empty());
    assert_eq!(database.forget(&[id(1), id(50)]).unwrap(), 1);
    assert!(found(&database, "0%").is_empty());
    let left = std::fs::read(file(&folder)).unwrap();
    assert!(!left.windows(4).any(|four| four == b"100%"), "it is still in the file");
}

#[test]
fn secrets_of_our_tokens_are_not_stored() {
    let secret = "abcdefghijklmnopqrstuvwxyz234567abcdefghijklmnopqrstu";
    let code = format!("t = 'sandcell_tkabcdefghij_{secret}'; u = 'sandcell_tk_x sandcell_tk'");
    let row = Row::of(finished(1, "a", &code));
    assert_eq!(
        row.code,
        "t = 'sandcell_tkabcdefghij_***'; u = 'sandcell_tk_x sandcell_tk'"
    );
    assert!(!row.code_preview.contains("abcdefghijkl"), "{}", row.code_preview);
}

#[tokio::test]
async fn two_servers_share_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let both = [
        Writer::start(file(&folder), TEST_LIMITS, WriterRole::Server).unwrap(),
        Writer::start(file(&folder), TEST_LIMITS, WriterRole::Server).unwrap(),
    ];
    for number in 0..200_u32 {
        both[usize::from(number % 2 == 1)].record(finished(number, "a", &number.to_string()));
    }
    for writer in &both {
        writer.close().await;
    }
    for writer in &both {
        let (total, shown) = codes(writer, "a", 50).await.unwrap();
        assert_eq!((total, shown.len()), (200, 50));
    }
}

/// Returns an execution with this number of pictures of this size.
fn painted(number: u32, owner: &str, pictures: u32, bytes: usize) -> FinishedExecution {
    let picture = |number| StoredPicture {
        number,
        name: format!("plot-{number}.png"),
        mime: "image/png".to_owned(),
        size: u64::try_from(bytes).unwrap(),
        bytes: vec![7; bytes].into(),
    };
    FinishedExecution {
        pictures: (0..pictures).map(picture).collect(),
        ..finished(number, owner, "plot()")
    }
}

fn painted_rows(path: &Path) -> i64 {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection
        .query_row("SELECT count(*) FROM pictures", [], |row| row.get(0))
        .unwrap()
}

#[tokio::test]
async fn pictures_outlive_the_server_and_are_deleted_with_their_execution() {
    let folder = tempfile::tempdir().unwrap();
    let writer = Writer::start(file(&folder), TEST_LIMITS, WriterRole::Server).unwrap();
    writer.record(painted(1, "ann", 2, 1000));
    writer.close().await;
    drop(writer);
    let writer = Writer::start(file(&folder), TEST_LIMITS, WriterRole::Server).unwrap();
    let (ann, bob) = (Principal::new("ann"), Principal::new("bob"));
    let kept = writer.find(&ann, &id(1)).await.unwrap();
    assert_eq!(kept.pictures, painted(1, "ann", 2, 1000).pictures);
    assert!(writer.find(&bob, &id(1)).await.is_none());
    let second = writer.picture(&ann, &id(1), 1).await;
    assert_eq!(second.as_ref(), painted(1, "ann", 2, 1000).pictures.get(1));
    assert_eq!(writer.picture(&ann, &id(1), 2).await, None);
    assert_eq!(writer.picture(&ann, &id(2), 1).await, None);
    assert_eq!(writer.picture(&bob, &id(1), 1).await, None);
    writer.close().await;
    drop(writer);
    let mut database = Database::open_existing(&file(&folder)).unwrap();
    assert_eq!(database.forget(&[id(1)]).unwrap(), 1);
    assert_eq!(painted_rows(&file(&folder)), 0);
}

#[tokio::test]
async fn pictures_count_toward_the_size_and_those_of_one_execution_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let keep = Retention {
        bytes: 4 << 20,
        ..TEST_LIMITS
    };
    let writer = Writer::start(file(&folder), keep, WriterRole::Server).unwrap();
    for number in 0..10 {
        writer.record(painted(number, "ann", 1, 1 << 20));
    }
    writer.close().await;
    drop(writer);
    let left = painted_rows(&file(&folder));
    assert!((1..=4).contains(&left), "{left}");
    assert_eq!(rows(&file(&folder), "ann").len(), usize::try_from(left).unwrap());
    let other = tempfile::tempdir().unwrap();
    let writer = Writer::start(file(&other), TEST_LIMITS, WriterRole::Server).unwrap();
    // A picture above the limit is dropped, and later pictures still fit.
    let mut many = painted(1, "ann", 40, 1000);
    many.pictures[1] = painted(1, "ann", 1, 5 << 20).pictures.remove(0);
    writer.record(many);
    let kept = writer.find(&Principal::new("ann"), &id(1)).await.unwrap();
    let numbers: Vec<u32> = kept.pictures.iter().map(|picture| picture.number).collect();
    assert_eq!((numbers.len(), numbers[0], numbers[1]), (16, 0, 2));
}

#[tokio::test]
async fn tool_calls_are_stored_with_their_execution_and_deleted_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let counts = |tool: &str, ok| ToolCallCount {
        tool: tool.to_owned(),
        ok,
        failed: 1,
        refused: 0,
    };
    let writer = Writer::start(file(&folder), TEST_LIMITS, WriterRole::Server).unwrap();
    writer.record(FinishedExecution {
        tool_calls: vec![counts("files.read", 2), counts("web.get", 7)],
        ..finished(1, "ann", "1")
    });
    let ann = Principal::new("ann");
    let stored = writer.find(&ann, &id(1)).await.unwrap();
    assert_eq!(stored.tool_calls, [counts("files.read", 2), counts("web.get", 7)]);
    writer.close().await;
    let mut database = Database::open_existing(&file(&folder)).unwrap();
    database.forget(&[id(1)]).unwrap();
    let left: i64 = database
        .connection()
        .query_row("SELECT count(*) FROM tool_calls", [], |row| row.get(0))
        .unwrap();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn an_old_file_without_pictures_is_readable_and_upgraded_on_the_first_write() {
    let folder = tempfile::tempdir().unwrap();
    let writer = Writer::start(file(&folder), TEST_LIMITS, WriterRole::Server).unwrap();
    writer.record(finished(1, "ann", "before"));
    writer.close().await;
    drop(writer);
    let connection = rusqlite::Connection::open(file(&folder)).unwrap();
    connection
        .execute_batch("DROP TABLE pictures; DROP TABLE tool_calls; PRAGMA user_version = 1;")
        .unwrap();
    drop(connection);
    assert_eq!(rows(&file(&folder), "ann"), ["before"]);
    let writer = Writer::start(file(&folder), TEST_LIMITS, WriterRole::Server).unwrap();
    writer.record(painted(2, "ann", 1, 10));
    let ann = Principal::new("ann");
    assert_eq!(writer.find(&ann, &id(2)).await.unwrap().pictures.len(), 1);
    assert_eq!(writer.find(&ann, &id(1)).await.unwrap().code, "before");
}
