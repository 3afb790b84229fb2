//! Commits: the path of a request from the list of changes to the host's folders.

mod question;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use futures::stream::{self, StreamExt as _};
use sandcell_host_folder::HostStatus;
use sandcell_sandbox::{Code, Consent, Failure, MountEntryKind, Sandbox};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::apply::{ContentHash, Target};
use super::conflicts::{Decision, Make, Refusal, Work, decide, only_mode, refusal};
use super::select::{RemovedFiles, parse, select};
use super::{MountChange, MountFolder};
use crate::api::sync::lock;
use crate::records::sinks::{EventKind, SecurityEvent};
use crate::sandbox::sandboxes::Sandboxes;
use crate::sandbox::state::Record;
use crate::{
    AppliedChange, CommitAuthority, CommitQuestion, CommitRequest, CommitView, Fingerprint, OnConflict, Principal,
    RefusalCode, RefusedChange,
};

/// The maximum time of a commit. Changes that are not applied by then are refused.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// The number of files that are written at once.
const MAX_CONCURRENT_FILES: usize = 16;
/// A change with what a commit does about it.
struct Item {
    change: MountChange,
    folder: Option<Arc<MountFolder>>,
    /// The path below the folder.
    path: String,
    state: ItemState,
    /// The content that a person has seen.
    content: Option<ContentHash>,
}

enum ItemState {
    Unchanged,
    Refused(Refusal),
    Waiting {
        work: Box<Work>,
        /// True if the host's entry is not the one that the sandbox began with.
        overwrites: bool,
    },
    Applied,
}

/// A commit in progress.
struct Commit {
    record: Arc<Record>,
    sandbox: Arc<dyn Sandbox>,
    items: Vec<Item>,
    missing: Vec<String>,
    omitted: u64,
    deadline: Instant,
    on_conflict: OnConflict,
    /// True if a file is left out that can have been moved.
    leaves_moved_files: bool,
    /// False if new entries were not stored permanently.
    is_stored: bool,
    /// The paths of the request.
    named: BTreeSet<String>,
}

impl Sandboxes {
    /// Applies the changes of a sandbox in its copy-on-write mounts to the host's folders.
    pub(crate) async fn commit(
        self: &Arc<Self>,
        principal: &Principal,
        id: Option<&str>,
        request: &CommitRequest,
        authority: CommitAuthority,
    ) -> Result<CommitView, Failure> {
        let record = self.existing(principal, id)?;
        let guard = record.start_use()?;
        let (sandboxes, request) = (Arc::clone(self), request.clone());
        // A caller that gives up must not leave a commit half done.
        let work = tokio::spawn(async move {
            let _guard = guard;
            sandboxes.commit_of(record, &request, authority).await
        });
        work.await.unwrap_or_else(|_| {
            Err(Failure::new(
                Code::Internal,
                "the commit failed in the server",
                "compare the host's folder with the sandbox (`sandcell diff`); the log of the server has the reason",
            ))
        })
    }

    async fn commit_of(
        &self,
        record: Arc<Record>,
        request: &CommitRequest,
        authority: CommitAuthority,
    ) -> Result<CommitView, Failure> {
        let dry_run = authority == CommitAuthority::DryRun;
        // One after another: the second one begins with the state that the first one has left.
        let folders = self.mount_folders.with_commits();
        let mut turns = Vec::with_capacity(folders.len());
        if !dry_run {
            for folder in &folders {
                turns.push(folder.turn.lock().await);
            }
            nothing_runs(&record)?;
        }
        let mut commit = self.begin_commit(record, request).await?;
        let approver = match authority {
            CommitAuthority::DryRun => {
                let fingerprint = commit.fingerprint().await;
                return Ok(commit.view(Some(fingerprint)));
            }
            CommitAuthority::Operator { expected: None } => "the operator",
            CommitAuthority::Operator {
                expected: Some(expected),
            } => {
                if commit.fingerprint().await != expected {
                    return Err(not_expected());
                }
                "the operator"
            }
            CommitAuthority::Person(consent) => {
                let name = commit.fingerprint().await.name();
                if commit.has_work() {
                    agreed(&consent, &name)?;
                }
                "the user of the client"
            }
        };
        commit.run().await;
        let view = commit.view(None);
        drop(turns);
        self.note_commit(&commit, &view, approver);
        Ok(view)
    }

    /// Returns the question about a commit to a person. None: there is nothing to apply.
    pub(crate) async fn commit_question(
        &self,
        principal: &Principal,
        id: Option<&str>,
        request: &CommitRequest,
    ) -> Result<Option<CommitQuestion>, Failure> {
        let record = self.existing(principal, id)?;
        let _guard = record.start_use()?;
        nothing_runs(&record)?;
        let mut commit = self.begin_commit(record, request).await?;
        let name = commit.fingerprint().await.name();
        let text = commit.question();
        Ok(commit.has_work().then_some(CommitQuestion { name, text }))
    }

    /// Lists the changes and decides about each.
    async fn begin_commit(&self, record: Arc<Record>, request: &CommitRequest) -> Result<Commit, Failure> {
        if self.mount_folders.with_commits().is_empty() {
            return Err(Failure::new(
                Code::DeniedByPolicy,
                "no mount allows commits: the host's folders are never written",
                "let the operator mount the folder with mode = \"cow\" and commit = \"ask\" (--mount \
                 HOST:SANDBOX:cow,commit=ask)",
            ));
        }
        let sandbox = record.ready().await?;
        let paths = parse(&request.paths)?;
        let mut found = self.list_changes(&record, sandbox.as_ref()).await?;
        if paths.is_empty() {
            // The other mounts were not meant.
            let takes_commits = |change: &MountChange| self.folder_of(&change.path).is_some();
            found.changes.retain(takes_commits);
        }
        let removed = RemovedFiles::of(found.changes.iter());
        let selected = select(found.changes, &paths);
        let began = record.created.duration_since(UNIX_EPOCH).unwrap_or_default();
        let began_ns = i128::try_from(began.as_nanos()).unwrap_or(i128::MAX);
        let mut commit = Commit {
            items: Vec::with_capacity(selected.changes.len()),
            missing: selected.missing,
            omitted: found.omitted,
            deadline: Instant::now() + COMMIT_TIMEOUT,
            sandbox: Arc::clone(&sandbox),
            leaves_moved_files: selected.leaves_moved_files,
            is_stored: true,
            record,
            on_conflict: request.on_conflict,
            named: paths.iter().map(|path| path.as_str().to_owned()).collect(),
        };
        // The last entry whose state is that of everything below it. Its entries follow directly.
        let mut covering: Option<(String, Covering)> = None;
        for change in selected.changes {
            let mut item = self.item(&commit, change, (began_ns, &removed)).await;
            match &covering {
                Some((above, state)) if is_below(&item.change.path, above) => {
                    item.state = match state {
                        Covering::Refused(refusal) => ItemState::Refused(refusal.clone()),
                        Covering::Unchanged => ItemState::Unchanged,
                    };
                }
                _ => covering = item.covers().map(|state| (item.change.path.clone(), state)),
            }
            commit.items.push(item);
        }
        commit.hold_removals();
        commit.check_size()?;
        Ok(commit)
    }

    /// Returns the folder of a path, if it takes commits, and the path below it.
    fn folder_of<'p>(&self, path: &'p str) -> Option<(&Arc<MountFolder>, &'p str)> {
        self.mount_folders
            .find(path)
            .filter(|(folder, _)| folder.takes_commits())
    }

    async fn item(&self, commit: &Commit, change: MountChange, began: (i128, &RemovedFiles)) -> Item {
        let Some((folder, path)) = self.folder_of(&change.path) else {
            let is_taken_apart = |(folder, _): (&Arc<MountFolder>, &str)| folder.is_taken_apart;
            let reason = match self.mount_folders.find(&change.path).is_some_and(is_taken_apart) {
                true => "other file systems are mounted below its folder, so its sandboxes see copies of older files",
                false => "its mount allows no commits (commit = \"never\")",
            };
            return Item {
                path: String::new(),
                folder: None,
                state: ItemState::Refused(refusal(RefusalCode::NotAllowed, reason)),
                content: None,
                change,
            };
        };
        let (folder, path) = (Arc::clone(folder), path.to_owned());
        let target = Target {
            sandbox: commit.sandbox.as_ref(),
            folder: &folder,
            path: &path,
            change: &change,
        };
        let state = state(&target, commit, began).await;
        Item {
            state: state.unwrap_or_else(ItemState::Refused),
            folder: Some(folder),
            path,
            content: None,
            change,
        }
    }

    fn note_commit(&self, commit: &Commit, view: &CommitView, approver: &str) {
        let folders: Vec<String> = self
            .mount_folders
            .0
            .iter()
            .filter(|folder| commit.items.iter().any(|item| item.is_applied_in(folder)))
            .map(|folder| folder.host.display().to_string())
            .collect();
        self.records.observers.note(|| SecurityEvent {
            principal: Some(commit.record.owner.clone()),
            sandbox: Some(commit.record.id.clone()),
            ..SecurityEvent::new(
                EventKind::ChangesCommitted,
                format!(
                    "{approver} approved a commit: {} changes were applied to {}, {} were refused",
                    view.applied.len(),
                    match folders.as_slice() {
                        [] => "no folder".to_owned(),
                        folders => folders.join(", "),
                    },
                    view.refused.len()
                ),
            )
        });
    }
}

/// Decides about one change of a sandbox that began at this time, and that has removed these files.
async fn state(
    target: &Target<'_>,
    commit: &Commit,
    (began_ns, removed): (i128, &RemovedFiles),
) -> Result<ItemState, Refusal> {
    let (path, committed) = (&target.change.path, &commit.record.committed);
    let is_named = commit.named.contains(path);
    // Of an entry that only the host has.
    let hidden_by = target
        .change
        .hidden_by
        .as_deref()
        .filter(|_| target.change.now.is_none());
    let forces = commit.on_conflict == OnConflict::Overwrite;
    let mut host = target.facts(began_ns).await?;
    host.left_by_commit = committed.has_left(path, host.entry.as_ref());
    if committed.has_applied(target.change) && !(forces && is_named) {
        let is_file = target
            .change
            .now
            .as_ref()
            .is_some_and(|now| now.kind == MountEntryKind::File);
        // Times can be the same for different contents, so only the content tells whether the host's state is this one.
        if !host.left_by_commit || !is_file || target.has_same_content().await? {
            return Ok(ItemState::Unchanged);
        }
    }
    host.may_have_moved = removed.may_be_source(target.change);
    for folders in [&mut host.moved_folders, &mut host.changed_folders] {
        folders.retain(|(path, status)| !committed.has_left(&target.folder.path_inside(path), Some(status)));
    }
    let above = path.rsplit_once('/').map_or("", |(above, _)| above);
    if committed.has_left_folder(above, host.parent_modified_ns) {
        // Its last change was a commit of this sandbox.
        host.parent_modified_ns = Some(i128::MIN);
    }
    match decide(target.path, target.change, &host, began_ns) {
        Decision::Unchanged => Ok(ItemState::Unchanged),
        Decision::Refused(refusal) => Err(refusal),
        Decision::Apply {
            conflict: Some(reason),
            work,
        } => match (forces, work) {
            // The host has added it to a folder that is the sandbox's since a commit.
            _ if !is_named && hidden_by.is_some_and(|above| committed.has_applied_from(above, path)) => {
                Ok(ItemState::Unchanged)
            }
            (false, _) => Err(refusal(RefusalCode::Conflict, reason)),
            // The sandbox perhaps never had this entry.
            (true, Work::Remove(_)) if !is_named => Err(refusal(
                RefusalCode::Conflict,
                format!("{reason}; to remove it, name its path as well"),
            )),
            (true, work) => Ok(ItemState::Waiting {
                work: Box::new(work),
                overwrites: true,
            }),
        },
        Decision::Apply { conflict: None, work } => match only_mode(target.change) {
            Some(refusal)
                if target.change.bytes() == target.change.bytes_before() && target.has_same_content().await? =>
            {
                Err(refusal)
            }
            _ => Ok(ItemState::Waiting {
                work: Box::new(work),
                overwrites: false,
            }),
        },
    }
}

/// The state of everything below an entry.
enum Covering {
    Refused(Refusal),
    /// The entries are the host's own.
    Unchanged,
}

impl Item {
    fn is_applied_in(&self, folder: &Arc<MountFolder>) -> bool {
        let own = self.folder.as_ref().is_some_and(|own| Arc::ptr_eq(own, folder));
        own && matches!(self.state, ItemState::Applied)
    }

    fn is_waiting(&self) -> bool {
        matches!(self.state, ItemState::Waiting { .. })
    }

    fn work(&self) -> Option<&Work> {
        match &self.state {
            ItemState::Waiting { work, .. } => Some(work),
            ItemState::Unchanged | ItemState::Refused(_) | ItemState::Applied => None,
        }
    }

    fn makes_folder(&self) -> bool {
        matches!(self.work(), Some(Work::Make(Make::Folder { .. })))
    }

    fn removes(&self) -> Option<&HostStatus> {
        match self.work() {
            Some(Work::Remove(expected)) => Some(expected),
            Some(Work::Make(_)) | None => None,
        }
    }

    /// Returns the state of the entry if everything below it has the same: its type changes, the host has changed or restored
    /// a folder that the sandbox has removed, or the host has removed a folder.
    fn covers(&self) -> Option<Covering> {
        let is_removed = self.change.now.is_none();
        match &self.state {
            ItemState::Refused(refusal) if refusal.code == RefusalCode::TypeChange => {
                Some(Covering::Refused(refusal.clone()))
            }
            ItemState::Refused(refusal)
                if refusal.code == RefusalCode::Conflict && (is_removed || self.change.before.is_none()) =>
            {
                Some(Covering::Refused(refusal.clone()))
            }
            ItemState::Unchanged if is_removed => Some(Covering::Unchanged),
            ItemState::Refused(_) | ItemState::Unchanged | ItemState::Waiting { .. } | ItemState::Applied => None,
        }
    }

    /// Returns true for a refused entry that can be the new place of a file which the sandbox has moved.
    fn may_lose_content(&self) -> bool {
        let ItemState::Refused(refusal) = &self.state else {
            return false;
        };
        let has_content = self.change.now.as_ref().is_some_and(|now| match now.kind {
            MountEntryKind::File | MountEntryKind::Folder => true,
            MountEntryKind::Link | MountEntryKind::Fifo | MountEntryKind::Socket | MountEntryKind::Device => false,
        });
        has_content && refusal.code != RefusalCode::Mode
    }
}

impl Commit {
    fn has_work(&self) -> bool {
        self.items.iter().any(Item::is_waiting)
    }

    /// Refuses files that are larger in all than the sandbox's disk: sparse files.
    fn check_size(&self) -> Result<(), Failure> {
        let waiting = self.items.iter().filter(|item| item.is_waiting());
        let bytes = waiting.fold(0_u64, |sum, item| sum.saturating_add(item.change.bytes()));
        let limit = self.record.params.limits.disk.as_bytes();
        if bytes <= limit {
            return Ok(());
        }
        Err(Failure::new(
            Code::LimitReached,
            format!("the changed files have {bytes} bytes in all, more than the sandbox's disk ({limit} bytes)"),
            "name fewer files; sparse files count with their whole size",
        ))
    }

    /// Reads the contents of all files, and returns the fingerprint of exactly these changes.
    async fn fingerprint(&mut self) -> Fingerprint {
        let mut hash = Sha256::new();
        for index in 0..self.items.len() {
            if !self.items.get(index).is_some_and(Item::is_waiting) {
                continue;
            }
            let content = match self.target(index) {
                Some(target) => target.content().await,
                None => continue,
            };
            let Some(item) = self.items.get_mut(index) else { break };
            match content {
                Ok(content) => item.content = content,
                Err(refusal) => {
                    item.state = ItemState::Refused(refusal);
                    continue;
                }
            }
            let now = item.change.now.as_ref();
            let parts = [
                item.change.kind.as_str(),
                item.change.path.as_str(),
                now.map_or("", |now| now.kind.as_str()),
                now.and_then(|now| now.target.as_deref()).unwrap_or_default(),
            ];
            for part in parts {
                hash.update(part.as_bytes());
                // No path and no target has this byte.
                hash.update([0]);
            }
            hash.update(now.map_or(0, |now| now.mode).to_be_bytes());
            // It has the state of the host's entry.
            hash.update(format!("{:?}", item.work()));
            hash.update(item.content.unwrap_or_default());
        }
        // Files that could not be read are refused by now.
        self.hold_removals();
        let hash = hash.finalize();
        Fingerprint(hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect())
    }

    fn target(&self, index: usize) -> Option<Target<'_>> {
        let item = self.items.get(index)?;
        Some(Target {
            sandbox: self.sandbox.as_ref(),
            folder: item.folder.as_ref()?,
            path: &item.path,
            change: &item.change,
        })
    }

    /// Applies the changes. First makes entries, folders before their entries, and stores them. Only then removes entries,
    /// each before its folder. So a file that the sandbox has moved is at its new place before it leaves the old one, also if
    /// the server is killed.
    async fn run(&mut self) {
        self.make_all().await;
        self.is_stored = self.sync().await;
        self.hold_removals();
        for index in (0..self.items.len()).rev() {
            let Some(expected) = self.items.get(index).and_then(Item::removes).cloned() else {
                continue;
            };
            let removed = match (self.in_time(), self.target(index)) {
                (Ok(()), Some(target)) => target.remove(expected).await,
                (Err(refusal), _) => Err(refusal),
                (Ok(()), None) => continue,
            };
            self.applied(index, removed.map(|()| None));
        }
        // A removal that a loss of power undoes loses nothing.
        let _is_stored = self.sync().await;
        self.remember_folders().await;
    }

    /// Refuses removals while the contents of other changes are not applied: one of those can be the new place of a removed
    /// file. A path of the request is removed all the same.
    fn hold_removals(&mut self) {
        let is_known = self.omitted == 0 && !self.leaves_moved_files;
        let is_whole = is_known && self.is_stored && !self.items.iter().any(Item::may_lose_content);
        if is_whole {
            return;
        }
        // A request that names a removed folder also names all entries in the folder.
        let mut named_folder: Option<String> = None;
        for item in &mut self.items {
            let path = &item.change.path;
            if item.removes().is_some() && self.named.contains(path) {
                named_folder = Some(path.clone());
            }
            let is_named = named_folder
                .as_ref()
                .is_some_and(|above| path == above || is_below(path, above));
            if item.removes().is_some() && !is_named {
                item.state = ItemState::Refused(refusal(
                    RefusalCode::Incomplete,
                    "other changes are refused, not listed or not selected, and one of them may be the new place of this \
                     entry; name its path to remove it",
                ));
            }
        }
    }

    /// Makes the entries, folders first.
    async fn make_all(&mut self) {
        let (folders, others): (Vec<usize>, Vec<usize>) = (0..self.items.len())
            .filter(|index| matches!(self.items.get(*index).and_then(Item::work), Some(Work::Make(_))))
            .partition(|index| self.items.get(*index).is_some_and(Item::makes_folder));
        for index in folders {
            let made = self.make(index).await;
            self.applied(index, made);
        }
        // Files do not depend on each other. Disks store several at once in the time of one.
        let this = &*self;
        let making = stream::iter(others).map(|index| async move { (index, this.make(index).await) });
        let all: Vec<_> = making.buffer_unordered(MAX_CONCURRENT_FILES).collect().await;
        for (index, made) in all {
            self.applied(index, made);
        }
    }

    /// Remembers the state of the folders in which entries were applied: their times are those of this commit.
    async fn remember_folders(&self) {
        let mut known = BTreeSet::new();
        for (index, item) in self.items.iter().enumerate() {
            let Some((above, _)) = item.change.path.rsplit_once('/') else {
                continue;
            };
            if !matches!(item.state, ItemState::Applied) || !known.insert(above) {
                continue;
            }
            if let Some(target) = self.target(index)
                && let Ok((status, Some(modified_ns))) = target.parent().await
            {
                self.record.committed.set_folder(above, status, modified_ns);
            }
        }
    }

    /// Makes the entry of one change. Returns its state.
    async fn make(&self, index: usize) -> Result<Option<HostStatus>, Refusal> {
        self.in_time()?;
        let item = self.items.get(index);
        match (item.and_then(Item::work), self.target(index)) {
            (Some(Work::Make(make)), Some(target)) => {
                let content = item.and_then(|item| item.content);
                target.make(make.clone(), content).await.map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Records the result of one change: the host's entry, or none if it was removed.
    fn applied(&mut self, index: usize, result: Result<Option<HostStatus>, Refusal>) {
        let Some(item) = self.items.get_mut(index) else { return };
        let creates = match item.work() {
            Some(Work::Make(Make::Folder { .. })) => true,
            Some(Work::Make(Make::File { replaces, .. } | Make::Link { replaces, .. })) => replaces.is_none(),
            Some(Work::Remove(_)) | None => false,
        };
        item.state = match result {
            Ok(status) => {
                self.record.committed.set(&item.change, status, creates);
                ItemState::Applied
            }
            Err(refusal) => ItemState::Refused(refusal),
        };
    }

    /// Stores the names in all changed folders permanently. Returns false if that failed.
    async fn sync(&self) -> bool {
        let mut is_stored = true;
        let mut synced = BTreeSet::new();
        for (index, item) in self.items.iter().enumerate() {
            let folder = item.change.path.rsplit_once('/').map_or("", |(folder, _)| folder);
            let is_applied = matches!(item.state, ItemState::Applied);
            if !is_applied || !synced.insert(folder) {
                continue;
            }
            // A folder that the commit has removed has nothing to store.
            if let Some(target) = self.target(index)
                && let Err(refusal) = target.sync_parent().await
            {
                tracing::warn!(reason = refusal.reason, "a folder was not synchronised after a commit");
                is_stored = false;
            }
        }
        is_stored
    }

    fn in_time(&self) -> Result<(), Refusal> {
        match Instant::now() < self.deadline {
            true => Ok(()),
            false => Err(refusal(
                RefusalCode::Timeout,
                format!(
                    "the commit took {} min, which is the maximum",
                    COMMIT_TIMEOUT.as_secs() / 60
                ),
            )),
        }
    }

    /// Returns the result. `fingerprint` is that of a dry run.
    fn view(&self, fingerprint: Option<Fingerprint>) -> CommitView {
        let mut view = CommitView {
            sandbox_id: self.record.id.clone(),
            fingerprint,
            applied: Vec::new(),
            refused: Vec::new(),
            unchanged: 0,
            omitted: self.omitted,
        };
        for item in &self.items {
            let change = &item.change;
            match &item.state {
                ItemState::Unchanged => view.unchanged += 1,
                ItemState::Refused(refusal) => view.refused.push(RefusedChange {
                    path: change.path.clone(),
                    kind: Some(change.kind),
                    code: refusal.code,
                    reason: refusal.reason.clone(),
                }),
                ItemState::Waiting { .. } | ItemState::Applied => view.applied.push(AppliedChange {
                    path: change.path.clone(),
                    kind: change.kind,
                    bytes: change.bytes(),
                }),
            }
        }
        view.refused.extend(self.missing.iter().map(|path| RefusedChange {
            path: path.clone(),
            kind: None,
            code: RefusalCode::NotFound,
            reason: match self.omitted {
                0 => "the sandbox has changed nothing there".to_owned(),
                _ => "no change is listed there, and not all changes could be listed".to_owned(),
            },
        }));
        view
    }
}

fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
}

/// Refuses a commit while code runs: its changes would be half done.
fn nothing_runs(record: &Record) -> Result<(), Failure> {
    let running = lock(&record.slots).values().find_map(|slot| slot.running());
    match running {
        None => Ok(()),
        Some(id) => Err(Failure::new(
            Code::Busy,
            format!("execution {id} runs in the sandbox, so its changes are not complete"),
            "wait for its end (get_execution), or end it (cancel_execution), and call again",
        )),
    }
}

fn not_expected() -> Failure {
    Failure::new(
        Code::DeniedByPolicy,
        "nothing was applied: the changes, or the files of the host, are no longer those of the fingerprint",
        "make a dry run again with the same paths, look at the changes, and name its fingerprint",
    )
}

/// Checks that a person has agreed to exactly these changes.
fn agreed(consent: &Consent, name: &str) -> Result<(), Failure> {
    if consent.covers(name) {
        return Ok(());
    }
    let (reason, remedy) = match consent {
        Consent::Declined => ("the user was asked and declined", "continue without it"),
        Consent::NoAnswer => (
            "the user was asked and did not answer in time",
            "make the same call again when the user is available: the question is repeated",
        ),
        Consent::CannotAsk | Consent::NotAsked => (
            "a person has to approve it, and this client has no way to ask (MCP elicitation)",
            "use a client that can ask its user, or let the operator run `sandcell commit` on the server's machine",
        ),
        Consent::Given(_) => (
            "the changes are not those that the user has seen",
            "make the same call again: the user is asked about the changes as they are now",
        ),
    };
    Err(Failure::new(
        Code::DeniedByPolicy,
        format!("the changes are not applied: {reason}"),
        remedy,
    ))
}
