//! `read_file`: text in pages of lines, pictures to look at, anything else as a link.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt as _;
use sandcell_engine::FileAnswer;
use sandcell_sandbox::{Failure, FileChunk, SandboxPath};
use serde_json::{Value, json};

use super::files::{path_field, required_path, shown_name};
use super::{Call, Effect, Tool, cancelled_by_client, count_field, sandbox_field};
use crate::answer::{Answer, Block, Link, notice_lines};
use crate::content::pictures;
use crate::limits::{PICTURE_BYTES, PICTURES_ANSWER_BYTES, READ_CHUNK_BYTES, READ_TEXT_BYTES};
use crate::resources::{file_uri, mime_of};
use crate::schema::{Field, Kind};

/// Bytes at the start of a file that decide whether it is text.
const SNIFF_BYTES: usize = 8192;

pub(super) fn read_file() -> Tool {
    Tool {
        name: "read_file",
        description:
            "Read a file of a sandbox. Text comes in pages of lines (at most 20 KB; next_offset says where the \
                      next one starts), PNG and JPEG as pictures, other files as a link with size and type."
                .into(),
        fields: vec![
            path_field().required(),
            count_field("offset", 0, 200).about("First line, from 0 (bytes with base64)"),
            count_field("limit", 1, 100).about("Lines (bytes with base64)"),
            Field::new("base64", Kind::Flag, json!(true)).about("Return bytes as base64"),
            sandbox_field(),
        ],
        output: None,
        effect: Effect::Reads,
        run: |call| read(call).boxed(),
    }
}

/// A file that a call is about.
struct Target {
    call: Call,
    path: SandboxPath,
    sandbox: Option<String>,
    offset: u64,
    limit: Option<u64>,
}

impl Target {
    async fn chunk(&self, offset: u64, len: u64) -> Result<FileAnswer<FileChunk>, Failure> {
        self.call
            .engine
            .read_file(&self.call.caller, self.sandbox.as_deref(), &self.path, offset, len)
            .await
    }

    /// The maximum bytes that one call reads.
    fn most(&self) -> u64 {
        self.call.engine.config().file_bytes.as_bytes()
    }
}

async fn read(mut call: Call) -> Result<Answer, Failure> {
    let path = required_path(&mut call.arguments)?;
    let base64 = call.arguments.flag("base64");
    let target = Target {
        path,
        sandbox: call.arguments.text("sandbox_id"),
        offset: call.arguments.count("offset").unwrap_or(0),
        limit: call.arguments.count("limit"),
        call,
    };
    if base64 {
        return bytes(&target).await;
    }
    if !target.call.room.take(PICTURES_ANSWER_BYTES).await {
        return Err(cancelled_by_client());
    }
    let first = target.chunk(0, READ_CHUNK_BYTES.min(target.most())).await?;
    let head = first.value.bytes.get(..SNIFF_BYTES).unwrap_or(&first.value.bytes);
    if pictures::is_picture(head) {
        return picture(&target, first).await;
    }
    if is_text(head, first.value.total) {
        return lines(&target, first).await;
    }
    Ok(finish(
        &target,
        &first,
        vec![],
        &format!("binary, {}", mime_of(target.path.as_str(), head)),
        true,
    ))
}

/// Text has no NUL and is almost entirely UTF-8. Replacement marks stand for the bytes of old encodings.
fn is_text(head: &[u8], total: u64) -> bool {
    if head.contains(&0) {
        return false;
    }
    let whole = u64::try_from(head.len()).is_ok_and(|len| len == total);
    // The end of the inspected piece may cut the last character.
    let cut = if whole { 0 } else { 3 };
    let strange: usize = head.utf8_chunks().map(|chunk| chunk.invalid().len()).sum();
    strange.saturating_sub(cut) * 20 <= head.len()
}

/// The answer's frame: notices first, the server's line last.
fn finish(target: &Target, chunk: &FileAnswer<FileChunk>, mut blocks: Vec<Block>, about: &str, linked: bool) -> Answer {
    if !chunk.notices.is_empty() {
        blocks.insert(0, Block::Text(notice_lines(&chunk.notices)));
    }
    let head = chunk.value.bytes.get(..SNIFF_BYTES).unwrap_or(&chunk.value.bytes);
    let mime = mime_of(target.path.as_str(), head);
    if linked {
        blocks.push(Block::Link(Link {
            uri: file_uri(chunk.sandbox_id.as_str(), &target.path),
            name: target.path.name().to_owned(),
            mime: Some(mime.to_owned()),
            size: chunk.value.total,
        }));
    }
    blocks.push(Block::Text(format!(
        "[{} in {}: {} bytes, {about}]",
        shown_name(target.path.as_str()),
        chunk.sandbox_id,
        chunk.value.total
    )));
    Answer {
        blocks,
        ..Answer::default()
    }
    .with_meta("sandcell/file", file_meta(target, chunk, mime))
}

fn file_meta(target: &Target, chunk: &FileAnswer<FileChunk>, mime: &str) -> Value {
    json!({
        "sandbox_id": chunk.sandbox_id, "new_sandbox": chunk.new_sandbox, "path": target.path,
        "size": chunk.value.total, "mime": mime,
    })
}

/// Adds the position of the page to the metadata for programs.
fn with_page(mut answer: Answer, page: Value) -> Answer {
    if let (Some(Value::Object(file)), Value::Object(page)) = (answer.meta.get_mut("sandcell/file"), page) {
        file.extend(page);
    }
    answer
}

async fn bytes(target: &Target) -> Result<Answer, Failure> {
    let limit = target.limit.unwrap_or(u64::MAX).min(target.most());
    let chunk = target.chunk(target.offset, limit).await?;
    let end = target.offset + len(&chunk.value.bytes);
    let next = (end < chunk.value.total && !chunk.value.bytes.is_empty()).then_some(end);
    let about = match next {
        Some(next) => format!("base64 of bytes {} to {end}, next_offset {next}", target.offset),
        None => format!("base64 of bytes {} to {end}, the end", target.offset),
    };
    let blocks = if chunk.value.bytes.is_empty() {
        vec![]
    } else {
        vec![Block::Text(STANDARD.encode(&chunk.value.bytes))]
    };
    let answer = finish(target, &chunk, blocks, &about, false);
    Ok(with_page(answer, json!({"offset": target.offset, "next_offset": next})))
}

fn len(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

async fn picture(target: &Target, first: FileAnswer<FileChunk>) -> Result<Answer, Failure> {
    let _turn = target.call.room.whole_file().await.ok_or_else(cancelled_by_client)?;
    let whole = if len(&first.value.bytes) < first.value.total && first.value.total <= target.most() {
        target.chunk(0, target.most()).await?
    } else {
        first
    };
    let (blocks, about) = match pictures::fit(whole.value.bytes.clone(), PICTURE_BYTES).await {
        Ok(picture) => {
            let about = if picture.shrunk {
                "shown scaled down"
            } else {
                "shown in full size"
            };
            let image = Block::Image {
                mime: picture.mime,
                base64: picture.base64,
            };
            (vec![image], about.to_owned())
        }
        Err(refused) => (vec![], format!("not shown: {refused}")),
    };
    Ok(finish(target, &whole, blocks, &about, true))
}

/// A page of lines, gathered from pieces of the file.
struct Page {
    /// The line that the page starts at.
    offset: u64,
    /// The maximum number of lines.
    limit: u64,
    text: Vec<u8>,
    /// Lines in `text`.
    taken: u64,
    /// Lines seen so far, the unfinished one not counted.
    seen: u64,
    /// Bytes of the unfinished line that do not fit a page.
    long: u64,
    /// The unfinished line, as far as it can fit a page.
    line: Vec<u8>,
    full: bool,
}

impl Page {
    fn new(offset: u64, limit: u64) -> Self {
        Self {
            offset,
            limit,
            text: Vec::new(),
            taken: 0,
            seen: 0,
            long: 0,
            line: Vec::new(),
            full: false,
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let wanted = self.seen >= self.offset && !self.full;
            if wanted {
                let room = READ_TEXT_BYTES.saturating_sub(self.line.len());
                let fitting = piece.get(..room.min(piece.len())).unwrap_or_default();
                self.line.extend_from_slice(fitting);
                self.long += len(piece) - len(fitting);
            }
            if piece.ends_with(b"\n") {
                self.end_line();
            }
        }
    }

    fn end_line(&mut self) {
        if self.seen >= self.offset && !self.full {
            self.take_line();
        }
        self.seen += 1;
    }

    fn take_line(&mut self) {
        let fits = self.text.len() + self.line.len() <= READ_TEXT_BYTES;
        if self.taken >= self.limit || !(fits || self.text.is_empty()) {
            self.full = true;
            return;
        }
        if self.long > 0 {
            let whole = whole_characters(&self.line);
            self.long += len(&self.line) - len(whole);
            self.line.truncate(whole.len());
        }
        self.text.append(&mut self.line);
        self.taken += 1;
        if self.long > 0 {
            let note = format!("... {} more bytes in this line; base64 reads them ...\n", self.long);
            self.text.extend_from_slice(note.as_bytes());
            self.long = 0;
        }
    }

    /// Handles the end of the file: the rest after the last line feed is a line too.
    fn end(&mut self, unfinished: bool) {
        if unfinished {
            self.end_line();
        }
    }
}

/// Removes a partial character at the cut.
fn whole_characters(cut: &[u8]) -> &[u8] {
    let last = cut
        .utf8_chunks()
        .last()
        .map(|chunk| chunk.invalid())
        .unwrap_or_default();
    let is_begun = std::str::from_utf8(last).is_err_and(|error| error.error_len().is_none());
    let end = if is_begun { cut.len() - last.len() } else { cut.len() };
    cut.get(..end).unwrap_or(cut)
}

async fn lines(target: &Target, first: FileAnswer<FileChunk>) -> Result<Answer, Failure> {
    let mut page = Page::new(target.offset, target.limit.unwrap_or(u64::MAX));
    let total = first.value.total;
    let mut position = len(&first.value.bytes);
    let mut last = first.value.bytes.last().copied();
    page.add(&first.value.bytes);
    // Files larger than one call's size are not counted to their end: reading stops when the page is full.
    while position < total && (total <= target.most() || !page.full) {
        let piece = target.chunk(position, READ_CHUNK_BYTES.min(target.most())).await?;
        if piece.value.bytes.is_empty() {
            break;
        }
        position += len(&piece.value.bytes);
        last = piece.value.bytes.last().copied().or(last);
        page.add(&piece.value.bytes);
    }
    let at_end = position >= total;
    if at_end {
        page.end(last.is_some_and(|byte| byte != b'\n'));
    }
    Ok(page_answer(target, &first, &page, at_end))
}

fn page_answer(target: &Target, first: &FileAnswer<FileChunk>, page: &Page, counted: bool) -> Answer {
    let next = page.offset + page.taken;
    let next_offset = (page.full || next < page.seen).then_some(next);
    let total_lines = counted.then_some(page.seen);
    let total_text = total_lines.map_or_else(|| "many lines".to_owned(), |total| format!("total_lines {total}"));
    let about = match (page.taken, next_offset) {
        (0, _) if page.seen <= page.offset && page.offset > 0 => {
            format!("{total_text}, none from line {}", page.offset)
        }
        (0, _) => format!("{total_text}, empty"),
        (_, None) if page.offset == 0 => total_text,
        (_, None) => format!("{total_text}, lines {} to the end", page.offset),
        (_, Some(next)) => format!(
            "{total_text}, lines {} to {}, next_offset {next}",
            page.offset,
            next - 1
        ),
    };
    let text = String::from_utf8_lossy(&page.text).into_owned();
    let blocks = if text.is_empty() {
        vec![]
    } else {
        vec![Block::Text(text)]
    };
    let answer = finish(target, first, blocks, &about, false);
    with_page(
        answer,
        json!({"offset": page.offset, "lines": page.taken, "total_lines": total_lines, "next_offset": next_offset}),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &[u8], offset: u64, limit: u64) -> (String, u64, u64, bool) {
        let mut page = Page::new(offset, limit);
        for piece in text.chunks(7) {
            page.add(piece);
        }
        page.end(text.last().is_some_and(|byte| *byte != b'\n'));
        (String::from_utf8(page.text).unwrap(), page.taken, page.seen, page.full)
    }

    #[test]
    fn a_page_has_the_requested_lines() {
        let text = b"one\ntwo\n\nfour";
        assert_eq!(page(text, 0, u64::MAX), ("one\ntwo\n\nfour".into(), 4, 4, false));
        assert_eq!(page(text, 1, 2), ("two\n\n".into(), 2, 4, true));
        assert_eq!(page(text, 3, 5), ("four".into(), 1, 4, false));
        assert_eq!(page(text, 9, 5), (String::new(), 0, 4, false));
        assert_eq!(page(b"", 0, 5), (String::new(), 0, 0, false));
        assert_eq!(page(b"\n", 0, 5), ("\n".into(), 1, 1, false));
    }

    #[test]
    fn a_page_ends_before_the_line_that_does_not_fit() {
        let text = "x".repeat(999).to_owned() + "\n";
        let (page, taken, seen, full) = page(text.repeat(50).as_bytes(), 3, u64::MAX);
        assert_eq!((page.len(), taken, seen, full), (20_000, 20, 50, true));
    }

    #[test]
    fn a_line_longer_than_a_page_is_cut_and_marked() {
        let text = "x".repeat(50_000) + "\nnext\n";
        let (first, taken, seen, full) = page(text.as_bytes(), 0, u64::MAX);
        assert!(
            first.ends_with("xx... 30001 more bytes in this line; base64 reads them ...\n"),
            "{first}"
        );
        assert_eq!((taken, seen, full), (1, 2, true));
        assert_eq!(page(text.as_bytes(), 1, 10).0, "next\n");
    }

    #[test]
    fn a_cut_line_ends_with_a_whole_character() {
        for (before, c) in [
            (19_997, "😀"),
            (19_998, "中"),
            (19_999, "é"),
            (19_996, "😀"),
            (20_000, "😀"),
        ] {
            let text = "x".repeat(before) + &c.repeat(10) + "\n";
            let (first, ..) = page(text.as_bytes(), 0, u64::MAX);
            let (shown, note) = first.split_once("... ").unwrap();
            let kept = before + shown.matches(c).count() * c.len();
            assert_eq!(shown.len(), kept, "{before}");
            assert_eq!(
                note,
                format!("{} more bytes in this line; base64 reads them ...\n", text.len() - kept)
            );
        }
        assert_eq!(whole_characters(b"a\xff"), b"a\xff");
        assert_eq!(whole_characters(b"a\xff\xe4\xb8"), b"a\xff");
        assert_eq!(whole_characters(b""), b"");
    }

    #[test]
    fn text_and_binary_are_distinguished() {
        assert!(is_text("Grüße".as_bytes(), 7));
        assert!(is_text(b"", 0));
        assert!(is_text(&"a".repeat(50).bytes().chain([0xe4]).collect::<Vec<_>>(), 51));
        assert!(is_text(&"ab".bytes().chain([0xc3]).collect::<Vec<_>>(), 9000));
        assert!(!is_text(b"\x7fELF\0", 5));
        assert!(!is_text(&[0x80; 100], 100));
    }
}
