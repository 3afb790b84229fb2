//! The executions of a sandbox as a notebook, for the page. It contains the newest within bounds; its first cell states
//! the number of older ones that are missing.

use std::sync::Arc;
use std::time::Duration;

use hyper::header::{CONTENT_DISPOSITION, HeaderValue};
use hyper::{Response, StatusCode};
use sandcell_engine::{
    Engine, ExecutionView, HistoryQuery, HistoryRecord, Principal, StoredExecution, StoredPicture, StreamName,
    StreamPart,
};
use sandcell_sandbox::{Code, Failure};
use serde_json::{Value, json};

use super::super::body::Body;
use super::data;
use crate::notebook::notebook;

/// The maximum number of cells.
const MAX_CELLS: usize = 500;
/// Bytes of texts and pictures together.
const MAX_BYTES: usize = 8 << 20;
/// The number of rows per history query.
const PAGE_ROWS: usize = 100;
/// The maximum bytes of an execution's code.
const MAX_CODE_BYTES: u64 = 1 << 20;
/// The time limit for collecting the executions.
const GATHER_TIMEOUT: Duration = Duration::from_secs(30);

/// The notebook of a sandbox, also of one that has ended, as a download.
pub(super) async fn download(engine: &Arc<Engine>, caller: &Principal, id: &str) -> Result<Response<Body>, Failure> {
    let gathered = tokio::time::timeout(GATHER_TIMEOUT, gather(engine, caller, id)).await;
    let (cells, total) = gathered.map_err(|_| {
        let message = "the executions could not be gathered in time";
        Failure::new(Code::Timeout, message, "try again")
    })??;
    let mut made = notebook(&cells);
    let left_out = total.saturating_sub(u64::try_from(cells.len()).unwrap_or(u64::MAX));
    if let (Some(all), true) = (made.get_mut("cells").and_then(Value::as_array_mut), left_out > 0) {
        all.insert(0, note(left_out, cells.len()));
    }
    let mut response = data(StatusCode::OK, &made);
    let disposition = HeaderValue::from_static("attachment; filename=\"sandcell.ipynb\"");
    response.headers_mut().insert(CONTENT_DISPOSITION, disposition);
    Ok(response)
}

fn note(left_out: u64, shown: usize) -> Value {
    let text = format!("{left_out} executions of this sandbox are not in this notebook. It has the newest {shown}.");
    json!({"cell_type": "markdown", "id": "left-out", "metadata": {}, "source": text})
}

/// The newest executions of a sandbox, oldest first, and the number of all.
async fn gather(engine: &Arc<Engine>, caller: &Principal, id: &str) -> Result<(Vec<StoredExecution>, u64), Failure> {
    let mut query = HistoryQuery {
        sandbox: Some(id.to_owned()),
        limit: PAGE_ROWS,
        ..HistoryQuery::default()
    };
    let (mut cells, mut bytes, mut total) = (Vec::new(), 0, 0);
    'pages: loop {
        let page = engine.search(caller, &query).await?;
        if page.total == 0 {
            // A live sandbox without executions has an empty notebook; one of another caller has none.
            engine.status(caller, Some(id)).await?;
        }
        total = total.max(page.total);
        query.before = page.records.last().map(|record| record.execution_id.to_string());
        let is_last = !page.more || page.records.is_empty();
        for record in page.records {
            let Some(cell) = whole(engine, caller, record).await else {
                continue;
            };
            bytes += weight(&cell);
            if cells.len() >= MAX_CELLS || bytes > MAX_BYTES {
                break 'pages;
            }
            cells.push(cell);
        }
        if is_last {
            break;
        }
    }
    cells.reverse();
    Ok((cells, total))
}

fn weight(cell: &StoredExecution) -> usize {
    let texts = [&cell.code, &cell.stdout, &cell.stderr].map(String::len);
    let more = [&cell.result, &cell.traceback].map(|text| text.as_ref().map_or(0, String::len));
    // Base64 needs a third more bytes.
    let pictures = cell.pictures.iter().map(|picture| picture.bytes.len() * 4 / 3);
    texts.into_iter().chain(more).chain(pictures).sum()
}

/// Returns an execution in full: the lasting history has its code as it was given. None if it is gone by now.
async fn whole(engine: &Arc<Engine>, caller: &Principal, record: HistoryRecord) -> Option<StoredExecution> {
    let id = record.execution_id.to_string();
    if let Ok(kept) = engine.stored_execution(caller, &id).await {
        return Some(kept);
    }
    let view = engine.execution(caller, &id, Duration::ZERO).await.ok()?;
    let part = StreamPart {
        stream: StreamName::Code,
        offset: 0,
        limit: MAX_CODE_BYTES,
        find: None,
    };
    let code = engine.stream(caller, &id, &part).await.ok()?;
    Some(from_memory(record, view, code.text))
}

fn from_memory(record: HistoryRecord, view: ExecutionView, code: String) -> StoredExecution {
    let pictures = view.artifacts.into_iter().filter(|file| file.shown);
    StoredExecution {
        record,
        code,
        stdout_bytes: view.stdout.total_bytes,
        stderr_bytes: view.stderr.total_bytes,
        stdout: view.stdout.text,
        stderr: view.stderr.text,
        result: view.result,
        traceback: view.error.map(|error| error.traceback),
        cause: view.cause.map(|cause| cause.code.to_string()),
        exit_code: view.exit_code,
        cpu_ms: u64::try_from(view.cpu.as_millis()).unwrap_or(u64::MAX),
        peak_memory_bytes: view.peak_memory.as_bytes(),
        tool_calls: view.tool_calls,
        pictures: pictures
            .map(|file| StoredPicture {
                number: file.number,
                size: u64::try_from(file.bytes.len()).unwrap_or(u64::MAX),
                name: file.name,
                mime: file.mime,
                bytes: file.bytes,
            })
            .collect(),
    }
}
