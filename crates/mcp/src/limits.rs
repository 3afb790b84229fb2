//! Limits of one message, one answer and one connection. The engine has the limits of sandboxes and executions.

use std::time::Duration;

/// Bytes of one incoming message. A file of 10 MiB fits, in base64 and with its frame.
pub(crate) const MESSAGE_BYTES: usize = 24 << 20;
/// The maximum levels of brackets in a message. The JSON parser refuses more levels as well, but then the client gets
/// no answer.
pub(crate) const MESSAGE_DEPTH: u32 = 128;
/// The maximum number of brackets, commas and colons in a message. Each value takes hundreds of bytes of memory once it
/// is read, and much longer to read than a byte of a string. Calls have some dozens.
pub(crate) const MESSAGE_MARKS: u32 = 10_000;
/// The maximum bytes of a message other than a tool call. Only tool calls carry files or code.
pub(crate) const PLAIN_MESSAGE_BYTES: usize = 256 << 10;
/// The maximum bytes of a request's `_meta` and of its id. Both are kept until the request is answered.
pub(crate) const ABOUT_BYTES: usize = 16 << 10;
/// The maximum number of concurrent requests of one connection; more are refused.
pub(crate) const REQUESTS_IN_FLIGHT: usize = 256;
/// Extra permits for requests that end something or report a state (control requests).
pub(crate) const CONTROL_REQUESTS: usize = 64;
/// The maximum number of answers that wait for a client which does not read. Then the server stops reading from the
/// client.
pub(crate) const UNWRITTEN_ANSWERS: usize = 16;
/// The maximum bytes of all large answers (files, resources, pictures) of one connection, finished or not.
pub(crate) const BULK_BYTES: usize = 32 << 20;
/// The size that one bulk answer counts as: a file of 10 MiB in base64.
pub(crate) const BULK_ANSWER_BYTES: usize = 16 << 20;
/// The size that a result with pictures counts as: [`RESULT_BYTES`], and the same again as a message.
pub(crate) const PICTURES_ANSWER_BYTES: usize = 2 << 20;
/// The maximum time that a result waits for room for its pictures. It holds the files meanwhile, and has links to them.
pub(crate) const ROOM_TIMEOUT: Duration = Duration::from_secs(2);
/// The time that requests in flight get after the client closed its end.
pub(crate) const GRACE_AFTER_EOF: Duration = Duration::from_millis(500);
/// The maximum time for ending a connection after its client is gone.
pub(crate) const DISCONNECT_TIMEOUT: Duration = Duration::from_millis(700);
/// The maximum time for sending the last answers when a connection ends.
pub(crate) const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The time that a call waits for an execution by default.
pub(crate) const DEFAULT_WAIT: Duration = Duration::from_secs(45);
/// The longest wait of a call for an execution. Common clients give up after 60 s.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(55);
/// The minimum time that is left for the answer before the client's timeout. A tenth of the timeout is left if that is
/// longer.
pub(crate) const MIN_ANSWER_TIME: Duration = Duration::from_millis(500);
/// The run time after which a client that takes messages but no progress gets the id of the execution.
pub(crate) const ANNOUNCE_DELAY: Duration = Duration::from_secs(3);
/// The minimum interval between progress notifications.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum time that an answer waits for a progress notification in transit.
pub(crate) const PROGRESS_SEND_TIMEOUT: Duration = Duration::from_millis(100);

/// Bytes of a whole encoded result with pictures.
pub(crate) const RESULT_BYTES: usize = 900_000;
/// Pictures in one result.
pub(crate) const MAX_RESULT_PICTURES: usize = 4;
/// The longer side of a picture in a result, in pixels.
pub(crate) const PICTURE_SIDE: u32 = 1568;
/// Encoded bytes of one picture in a result (in base64).
pub(crate) const PICTURE_BYTES: usize = 500_000;
/// Bytes of one piece of chart data that are shown in the text.
pub(crate) const CHART_BYTES: usize = 1024;
/// Resource links in one result; the others are counted.
pub(crate) const MAX_RESULT_LINKS: usize = 32;

/// Bytes of text that one `read_file` call hands back.
pub(crate) const READ_TEXT_BYTES: usize = 20_000;
/// Bytes that `read_file` asks the engine for at once.
pub(crate) const READ_CHUNK_BYTES: u64 = 1 << 20;
/// Entries of one listing.
pub(crate) const LIST_ENTRIES: usize = 300;
/// Records of one history answer.
pub(crate) const HISTORY_RECORDS: u64 = 50;
/// Bytes that one stream part may have.
pub(crate) const STREAM_BYTES: u64 = 20_000;
/// Bytes of the MCP instructions.
pub(crate) const INSTRUCTIONS_BYTES: usize = 1500;
