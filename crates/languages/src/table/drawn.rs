//! Pictures that a language's programs leave in the home folder for want of a window, such as R's plots. Those of a
//! cell are displayed, and stay in place.

use std::collections::BTreeMap;

use bytes::Bytes;
use sandcell_sandbox::{Entry, EntryKind, Files, HOME, MimeBundle, SandboxPath, SessionEvent};
use tokio::sync::mpsc;

use super::one_shot::hand_on;

/// The maximum number of entries of the home folder that are examined.
const ENTRIES_MAX: usize = 5000;
/// The maximum number of displayed pictures per cell, and the maximum size of each in bytes.
const PICTURES_MAX: usize = 8;
const BYTES_MAX: u64 = 10 << 20;

/// The present pictures: name, size and time.
#[derive(Debug, Default)]
pub(super) struct Drawn(BTreeMap<String, (u64, i64)>);

impl Drawn {
    /// Lists the pictures whose names begin with `prefix`.
    pub(super) async fn look(files: &dyn Files, prefix: &str) -> Self {
        let Ok(home) = SandboxPath::parse(HOME) else {
            return Self::default();
        };
        let listing = files.list(&home, false, ENTRIES_MAX).await;
        let entries = listing.map(|listing| listing.entries).unwrap_or_default();
        let is_picture = |entry: &Entry| {
            entry.kind == EntryKind::File && entry.name.starts_with(prefix) && entry.name.ends_with(".png")
        };
        let pictures = entries.into_iter().filter(is_picture);
        Self(
            pictures
                .map(|entry| (entry.name, (entry.size, entry.modified_ms)))
                .collect(),
        )
    }

    /// Displays the pictures drawn since `before`. Unreadable ones are left out.
    pub(super) async fn display(self, before: &Self, files: &dyn Files, events: &mpsc::Sender<SessionEvent>) {
        let new = self
            .0
            .iter()
            .filter(|(name, state)| before.0.get(*name) != Some(*state));
        for (name, (size, _)) in new.take(PICTURES_MAX) {
            let Ok(path) = SandboxPath::parse(&format!("{HOME}/{name}")) else {
                continue;
            };
            let chunk = match files.read(&path, 0, (*size).min(BYTES_MAX)).await {
                Ok(chunk) if chunk.total <= BYTES_MAX => chunk,
                Ok(_) | Err(_) => continue,
            };
            let bundle = [
                ("image/png", chunk.bytes),
                ("text/plain", Bytes::copy_from_slice(name.as_bytes())),
            ];
            let bundle = bundle.map(|(mime, bytes)| (mime.to_owned(), bytes));
            hand_on(events, SessionEvent::Display(MimeBundle(bundle.into()))).await;
        }
    }
}
