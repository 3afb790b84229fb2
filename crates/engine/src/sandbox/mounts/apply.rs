//! Applies changes to a folder of the host, one after another. Each step on the host runs outside the async runtime.

use std::io::Read as _;
use std::sync::Arc;

use bytes::Bytes;
use sandcell_host_folder::{HostError, HostFolder, HostStatus};
use sandcell_sandbox::{EntryKind, FileError, MountEntryKind, Sandbox, SandboxPath};
use sha2::{Digest as _, Sha256};

use super::conflicts::{HostFacts, Make, Refusal, is_changed, is_moved, refusal};
use super::{MountChange, MountFolder};
use crate::RefusalCode;
use crate::sandbox::files::read;

/// The size of the pieces in which a file is read, in bytes.
const PIECE_BYTES: u64 = 4 << 20;
const NANOSECONDS_PER_MILLISECOND: i64 = 1_000_000;

/// The SHA-256 of a file's content.
pub(super) type ContentHash = [u8; 32];

/// A change on its way into a folder of the host.
pub(super) struct Target<'a> {
    pub(super) sandbox: &'a dyn Sandbox,
    pub(super) folder: &'a Arc<MountFolder>,
    /// The path below the folder.
    pub(super) path: &'a str,
    pub(super) change: &'a MountChange,
}

impl Target<'_> {
    /// Reads the host's state at the path. The sandbox was made at `began_ns`.
    pub(super) async fn facts(&self, began_ns: i128) -> Result<HostFacts, Refusal> {
        let link = self.change.now.as_ref().and_then(|now| now.target.clone());
        let is_copied = self.change.copied;
        let hidden_by = self.change.hidden_by.as_deref();
        let hidden_by = hidden_by.and_then(|path| path.strip_prefix(self.folder.inside.as_str())?.strip_prefix('/'));
        let hidden_by = hidden_by.map(str::to_owned);
        self.on_host(move |folder, path| {
            let entry = folder.status(path)?;
            if entry.is_some() && folder.status_inside(path)?.is_none() {
                // Code cannot find it, so nothing about it is reported.
                return Err(HostError::Denied);
            }
            Ok(HostFacts {
                entry,
                parent_modified_ns: match is_copied {
                    true => folder.parent_modified_ns(path)?,
                    false => None,
                },
                moved_folders: folders(folder, path, 0, |status| is_moved(status, began_ns))?,
                changed_folders: match hidden_by {
                    Some(above) => folders(folder, path, above.len(), |status| is_changed(status, began_ns))?,
                    None => Vec::new(),
                },
                left_by_commit: false,
                may_have_moved: false,
                link_leads_out: match link {
                    Some(target) => folder.link_leads_out(path, &target)?,
                    None => false,
                },
            })
        })
        .await
    }

    /// Removes the host's entry.
    pub(super) async fn remove(&self, expected: HostStatus) -> Result<(), Refusal> {
        self.on_host(move |folder, path| folder.remove(path, &expected)).await
    }

    /// Returns the state of the folder that the entry is in, and the time of its last change. The mounted folder has no
    /// state: no commit changes it.
    pub(super) async fn parent(&self) -> Result<(Option<HostStatus>, Option<i128>), Refusal> {
        self.on_host(|folder, path| {
            let state = match path.rsplit_once('/') {
                Some((above, _)) => folder.status(above)?,
                None => None,
            };
            Ok((state, folder.parent_modified_ns(path)?))
        })
        .await
    }

    /// Stores the names in the entry's folder permanently.
    pub(super) async fn sync_parent(&self) -> Result<(), Refusal> {
        self.on_host(HostFolder::sync_parent).await
    }

    /// Makes an entry. A file must have this content, if it is given.
    pub(super) async fn make(&self, make: Make, content: Option<ContentHash>) -> Result<HostStatus, Refusal> {
        match make {
            Make::Folder { mode } => self.on_host(move |folder, path| folder.make_folder(path, mode)).await,
            Make::Link { target, replaces } => {
                self.on_host(move |folder, path| folder.make_link(path, &target, replaces.as_ref()))
                    .await
            }
            Make::File { replaces, mode } => self.write(replaces, mode, content).await,
        }
    }

    async fn write(
        &self,
        replaces: Option<HostStatus>,
        mode: u32,
        content: Option<ContentHash>,
    ) -> Result<HostStatus, Refusal> {
        let mut pieces = Pieces::new(self);
        let mut file = None;
        loop {
            let piece = pieces.next().await?;
            let is_last = piece.is_none();
            if is_last {
                pieces.check(content).await?;
            }
            // A small file takes one step on the host, after its last piece.
            let begun = file.take();
            let whole = is_last.then(|| replaces.clone());
            let done = self
                .on_host(move |folder, path| {
                    let mut file = match begun {
                        Some(file) => file,
                        None => folder.begin_file(path)?,
                    };
                    file.write(piece.as_deref().unwrap_or_default())?;
                    match whole {
                        Some(replaces) => file.finish(replaces.as_ref(), mode).map(Written::Finished),
                        None => Ok(Written::InProgress(file)),
                    }
                })
                .await?;
            match done {
                Written::Finished(status) => return Ok(status),
                Written::InProgress(begun) => file = Some(begun),
            }
        }
    }

    /// Returns true if the host's file has the content of the sandbox's. False: they differ, or code may not read it.
    pub(super) async fn has_same_content(&self) -> Result<bool, Refusal> {
        let Ok(mut file) = self.on_host(HostFolder::read_inside).await else {
            return Ok(false);
        };
        let mut pieces = Pieces::new(self);
        while let Some(piece) = pieces.next().await? {
            let compared = tokio::task::spawn_blocking(move || {
                let mut read = vec![0; piece.len()];
                let same = file.read_exact(&mut read).is_ok() && read == piece;
                (file, same)
            });
            let Ok((back, true)) = compared.await else {
                return Ok(false);
            };
            file = back;
        }
        Ok(true)
    }

    /// Reads the host's file, if code may. At most `max` bytes: a longer one is refused.
    pub(super) async fn host_text(&self, max: u64) -> Result<Vec<u8>, Refusal> {
        self.on_host(move |folder, path| {
            let mut text = Vec::new();
            let read = folder
                .read_inside(path)?
                .take(max.saturating_add(1))
                .read_to_end(&mut text);
            match read {
                Ok(length) if u64::try_from(length).is_ok_and(|length| length <= max) => Ok(text),
                Ok(_) => Err(HostError::TooLarge),
                Err(error) => Err(HostError::Other(error.to_string())),
            }
        })
        .await
    }

    /// Returns the hash of the file's content. None: it is no file.
    pub(super) async fn content(&self) -> Result<Option<ContentHash>, Refusal> {
        let is_file = |now: &sandcell_sandbox::MountEntry| now.kind == MountEntryKind::File;
        if !self.change.now.as_ref().is_some_and(is_file) {
            return Ok(None);
        }
        let mut pieces = Pieces::new(self);
        while pieces.next().await?.is_some() {}
        Ok(Some(pieces.hash.finalize().into()))
    }

    /// Does something with the host's folder.
    async fn on_host<T: Send + 'static>(
        &self,
        work: impl FnOnce(&HostFolder, &str) -> Result<T, HostError> + Send + 'static,
    ) -> Result<T, Refusal> {
        let (folder, path) = (Arc::clone(self.folder), self.path.to_owned());
        let done = tokio::task::spawn_blocking(move || match &folder.folder {
            Ok(folder) => work(folder, &path).map_err(of_host),
            Err(reason) => Err(refusal(
                RefusalCode::Host,
                format!("the host's folder could not be opened: {reason}"),
            )),
        });
        done.await
            .unwrap_or_else(|_| Err(refusal(RefusalCode::Host, "the server made a mistake")))
    }
}

enum Written {
    InProgress(sandcell_host_folder::NewFile),
    Finished(HostStatus),
}

/// Reads a file of the sandbox in pieces, up to the size that was listed.
struct Pieces<'a> {
    of: &'a Target<'a>,
    path: Option<SandboxPath>,
    bytes: u64,
    offset: u64,
    hash: Sha256,
}

impl<'a> Pieces<'a> {
    fn new(of: &'a Target<'a>) -> Self {
        Self {
            path: SandboxPath::parse(&of.change.path).ok(),
            bytes: of.change.bytes(),
            of,
            offset: 0,
            hash: Sha256::new(),
        }
    }

    /// Returns the next piece. None: the file is complete.
    async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        let left = self.bytes.saturating_sub(self.offset).min(PIECE_BYTES);
        if left == 0 {
            return Ok(None);
        }
        let path = self.path.as_ref().ok_or_else(changing)?;
        let chunk = read(self.of.sandbox.files(), path, self.offset, left).await;
        let chunk = chunk.map_err(|error| of_sandbox(&error))?;
        let length = u64::try_from(chunk.bytes.len()).unwrap_or(u64::MAX);
        if length != left || chunk.total != self.bytes {
            return Err(changing());
        }
        self.offset = self.offset.saturating_add(length);
        self.hash.update(&chunk.bytes);
        Ok(Some(chunk.bytes))
    }

    /// Fails if the file has changed since it was listed.
    async fn check(&mut self, content: Option<ContentHash>) -> Result<(), Refusal> {
        let path = self.path.as_ref().ok_or_else(changing)?;
        let entry = self.of.sandbox.files().entry(path).await;
        let entry = entry.map_err(|error| of_sandbox(&error))?;
        let listed = self.of.change.now.as_ref().map(|now| now.modified_ns);
        let listed = listed.map(|time| time.div_euclid(NANOSECONDS_PER_MILLISECOND));
        let hash: ContentHash = std::mem::take(&mut self.hash).finalize().into();
        let same = entry.kind == EntryKind::File && entry.size == self.bytes && Some(entry.modified_ms) == listed;
        match same && content.is_none_or(|content| content == hash) {
            true => Ok(()),
            false => Err(changing()),
        }
    }
}

/// Returns the folders above an entry that fulfil a condition, from one whose path has this length on.
fn folders(
    folder: &HostFolder,
    path: &str,
    from: usize,
    is_one: impl Fn(&HostStatus) -> bool,
) -> Result<Vec<(String, HostStatus)>, HostError> {
    let mut found = Vec::new();
    for (end, _) in path.match_indices('/').filter(|(end, _)| *end >= from) {
        let above = path.get(..end).unwrap_or_default();
        match folder.status(above)? {
            Some(status) if is_one(&status) => found.push((above.to_owned(), status)),
            _ => {}
        }
    }
    Ok(found)
}

fn changing() -> Refusal {
    refusal(
        RefusalCode::Changing,
        "the sandbox changed the file after it was listed",
    )
}

/// Returns the refusal for a file that cannot be read inside. The sandbox's words are not repeated.
fn of_sandbox(error: &FileError) -> Refusal {
    match error {
        FileError::Denied { .. } => refusal(
            RefusalCode::Changing,
            "its mode in the sandbox forbids reading; change the mode there first",
        ),
        _ => changing(),
    }
}

fn of_host(error: HostError) -> Refusal {
    let code = match error {
        HostError::Changed | HostError::NotEmpty => RefusalCode::Conflict,
        HostError::DiskFull => RefusalCode::DiskFull,
        HostError::NameTooLong => RefusalCode::Name,
        HostError::Link
        | HostError::NoParent
        | HostError::OtherFileSystem
        | HostError::Denied
        | HostError::Owner
        | HostError::ReadOnly
        | HostError::TooLarge
        | HostError::Unsupported
        | HostError::Other(_) => RefusalCode::Host,
    };
    refusal(code, error.to_string())
}
