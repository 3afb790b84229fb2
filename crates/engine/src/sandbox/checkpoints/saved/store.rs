//! Saved states on the disk.
//!
//! A state `NAME` of an owner consists of the file `FOLDER/OWNER/NAME.json` (a [`Description`]) and of a folder with the
//! files `files` and `memory`. The description contains the name of that folder.
//!
//! A writer writes the folder first. Then it writes the description under a temporary name, and renames it to `NAME.json`.
//! So a reader finds either the old state or the new one. A writer locks the owner's folder, also against other servers
//! with the same data folder. It removes the folders that no description names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use sandcell_sandbox::{ImageFile, PackageVersion, StateImage};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Principal;

/// The format of [`Description`].
const DESCRIPTION_FORMAT: u32 = 1;
/// The maximum size of a description, in bytes.
const MAX_DESCRIPTION: u64 = 8 << 20;
const DESCRIPTION_SUFFIX: &str = ".json";
const FILES_NAME: &str = "files";
const MEMORY_NAME: &str = "memory";
const LOCK_NAME: &str = ".lock";
/// The beginning of the names of the folders of states. A description that is written has the same one.
const DATA_PREFIX: &str = ".data-";
const COPY_BYTES: usize = 1 << 20;
/// The maximum number of attempts to open a state that a writer replaces at the same time.
const MAX_READ_ATTEMPTS: usize = 5;

/// The origin of a saved state, and the requirements of a sandbox that loads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Description {
    pub(super) format: u32,
    /// The folder of its files.
    pub(super) data: String,
    /// The time of the save, in milliseconds since 1970.
    pub(crate) created_ms: u64,
    /// The sandbox that was saved.
    pub(crate) sandbox_id: String,
    /// The executions that had ended in it.
    pub(crate) executions: u64,
    /// The programs that can load the memory ([`Language::image_format`](sandcell_sandbox::Language::image_format)).
    pub(crate) image_format: String,
    pub(crate) memory_bytes: u64,
    pub(crate) cpus_milli: u32,
    pub(crate) disk_bytes: u64,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) network: Vec<String>,
    pub(crate) session: Option<SavedSession>,
    pub(crate) attached: Vec<PathBuf>,
    /// Each with its language.
    pub(crate) packages: Vec<(String, PackageVersion)>,
    pub(super) files: Part,
    pub(super) memory: Option<Part>,
}

/// The session whose memory a state has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedSession {
    pub(crate) language: String,
    pub(crate) name: Option<String>,
    pub(crate) cells: u32,
}

/// The table of contents of a file of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Part {
    position: u64,
    bytes: u64,
}

impl Part {
    fn of(file: &ImageFile) -> Self {
        Self {
            position: file.position,
            bytes: file.bytes,
        }
    }

    /// Returns the size of the file. The table is its last part.
    const fn size(self) -> u64 {
        self.position.saturating_add(self.bytes)
    }
}

impl Description {
    /// Returns an empty description of this image.
    pub(crate) fn of(image: &StateImage) -> Self {
        Self {
            format: DESCRIPTION_FORMAT,
            data: String::new(),
            created_ms: 0,
            sandbox_id: String::new(),
            executions: 0,
            image_format: String::new(),
            memory_bytes: 0,
            cpus_milli: 0,
            disk_bytes: 0,
            env: BTreeMap::new(),
            network: Vec::new(),
            session: None,
            attached: Vec::new(),
            packages: Vec::new(),
            files: Part::of(&image.files),
            memory: image.memory.as_ref().map(Part::of),
        }
    }

    /// Returns the size of its files on the disk, holes included.
    pub(crate) fn bytes(&self) -> u64 {
        let memory = self.memory.map_or(0, Part::size);
        self.files.size().saturating_add(memory)
    }
}

/// The bounds of one owner's states.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoreBounds {
    pub(crate) states: usize,
    pub(crate) bytes: u64,
}

/// The reason why a state was not written.
#[derive(Debug)]
pub(crate) enum WriteError {
    /// There are this many already.
    TooMany(usize),
    /// It has this many bytes, and this many are free.
    TooLarge {
        bytes: u64,
        free: u64,
    },
    Io(io::Error),
}

/// A lock of an owner's folder. Nobody else writes there while it lives.
#[derive(Debug)]
pub(crate) struct Lock {
    folder: PathBuf,
    _file: File,
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The folder of saved states.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    folder: PathBuf,
}

impl Store {
    pub(crate) const fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Returns the folder of an owner. Owners have any name, so it is a digest.
    fn of(&self, owner: &Principal) -> PathBuf {
        let digest = Sha256::digest(owner.0.as_bytes());
        let name: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(name)
    }

    /// Returns the states of an owner, by name. Unreadable ones have the time of their save instead of a description.
    pub(crate) fn list(&self, owner: &Principal) -> io::Result<Vec<(String, Result<Description, SystemTime>)>> {
        let mut found = Vec::new();
        for (name, path) in descriptions(&self.of(owner))? {
            match describe(&path) {
                Ok(description) => found.push((name, Ok(description))),
                // It was removed in this moment.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(%name, %error, "a saved state is unreadable");
                    let saved = fs::symlink_metadata(&path).and_then(|metadata| metadata.modified());
                    found.push((name, Err(saved.unwrap_or(SystemTime::UNIX_EPOCH))));
                }
            }
        }
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(found)
    }

    /// Returns true if there is a state of this name, perhaps an unreadable one.
    pub(crate) fn has(&self, owner: &Principal, name: &str) -> bool {
        place(&self.of(owner), name).exists()
    }

    /// Takes the lock of an owner's folder, which is made if there is none. None: another writer has it.
    pub(crate) fn lock(&self, owner: &Principal) -> io::Result<Option<Lock>> {
        let folder = self.of(owner);
        make_private(&folder)?;
        lock(folder)
    }

    /// Removes what killed writers have left, for all owners. Folders that a writer has locked are left out.
    pub(crate) fn clean(&self) -> io::Result<()> {
        let owners = match fs::read_dir(&self.folder) {
            Ok(owners) => owners,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for owner in owners {
            let owner = owner?;
            if owner.file_type()?.is_dir()
                && let Some(lock) = lock(owner.path())?
            {
                remove_unnamed(&lock.folder)?;
            }
        }
        Ok(())
    }

    /// Opens a state, perhaps without its memory. None: there is none of this name.
    pub(crate) fn read(
        &self,
        owner: &Principal,
        name: &str,
        only_files: bool,
    ) -> io::Result<Option<(Description, StateImage)>> {
        let folder = self.of(owner);
        let mut gone = None;
        for _ in 0..MAX_READ_ATTEMPTS {
            let description = match describe(&place(&folder, name)) {
                Ok(description) => description,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            };
            let data = folder.join(&description.data);
            let memory = description.memory.filter(|_| !only_files);
            let opened = open(&data, FILES_NAME, description.files).and_then(|files| {
                let memory = memory.map(|part| open(&data, MEMORY_NAME, part)).transpose()?;
                Ok(StateImage { files, memory })
            });
            match opened {
                Ok(image) => return Ok(Some((description, image))),
                // It was replaced or removed in this moment.
                Err(error) if error.kind() == io::ErrorKind::NotFound => gone = Some(error),
                Err(error) => return Err(error),
            }
        }
        gone.map_or(Ok(None), Err)
    }

    /// Writes a state. One of the same name is replaced.
    pub(crate) fn write(
        lock: &Lock,
        name: &str,
        mut description: Description,
        image: &StateImage,
        bounds: StoreBounds,
    ) -> Result<(), WriteError> {
        let folder = lock.folder.as_path();
        remove_unnamed(folder)?;
        let place = place(folder, name);
        let others = descriptions(folder)?.iter().filter(|(_, path)| *path != place).count();
        if others >= bounds.states {
            return Err(WriteError::TooMany(others));
        }
        let replaced = data_of(&place).map(|data| folder.join(data));
        let replaced_bytes = replaced.as_deref().map_or(Ok(0), size_of).unwrap_or_default();
        let used = size_of_all(folder)?.saturating_sub(replaced_bytes);
        let (bytes, free) = (description.bytes(), bounds.bytes.saturating_sub(used));
        if bytes > free {
            return Err(WriteError::TooLarge { bytes, free });
        }
        description.data = format!("{DATA_PREFIX}{}", random_name()?);
        let data = folder.join(&description.data);
        let written = write_data(&data, image).and_then(|()| {
            let new = folder.join(format!("{}{DESCRIPTION_SUFFIX}", description.data));
            let put = write_description(&new, &description).and_then(|()| fs::rename(&new, &place));
            if put.is_err() {
                let _ = fs::remove_file(&new);
            }
            put?;
            sync(folder)
        });
        if written.is_err() && data_of(&place).is_none_or(|now| now != description.data) {
            let _ = fs::remove_dir_all(&data);
        }
        written?;
        // If that fails, the next writer does it.
        let _ = replaced.map(fs::remove_dir_all);
        Ok(())
    }

    /// Removes a state. Returns false if there is none of this name.
    pub(crate) fn remove(lock: &Lock, name: &str) -> io::Result<bool> {
        let place = place(&lock.folder, name);
        let data = data_of(&place);
        match fs::remove_file(&place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            removed => removed?,
        }
        match data.map_or(Ok(()), |data| fs::remove_dir_all(lock.folder.join(data))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        remove_unnamed(&lock.folder).map(|()| true)
    }
}

fn place(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}{DESCRIPTION_SUFFIX}"))
}

/// Returns the names and files of all descriptions.
fn descriptions(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().into_string().unwrap_or_default();
        if let Some(name) = name
            .strip_suffix(DESCRIPTION_SUFFIX)
            .filter(|name| !name.starts_with('.'))
        {
            found.push((name.to_owned(), entry.path()));
        }
    }
    Ok(found)
}

fn describe(path: &Path) -> io::Result<Description> {
    let text = text_of(path)?;
    let unreadable = |error: serde_json::Error| damaged(format!("its description is damaged: {error}"));
    let Version { format } = serde_json::from_slice(&text).map_err(unreadable)?;
    if format != DESCRIPTION_FORMAT {
        return Err(damaged(format!(
            "its format is {format}, and this server reads {DESCRIPTION_FORMAT}"
        )));
    }
    let description: Description = serde_json::from_slice(&text).map_err(unreadable)?;
    if is_data(&description.data) {
        Ok(description)
    } else {
        Err(damaged("its description is damaged".to_owned()))
    }
}

/// The part of a description that every version of sandcell has.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

/// The part of a description that names its folder.
#[derive(Deserialize)]
struct Named {
    data: String,
}

/// Returns the name of the folder of a state, also of another version of sandcell. None: there is no state, or its
/// description is damaged.
fn data_of(path: &Path) -> Option<String> {
    let Named { data } = serde_json::from_slice(&text_of(path).ok()?).ok()?;
    Some(data).filter(|data| is_data(data))
}

fn is_data(name: &str) -> bool {
    name.starts_with(DATA_PREFIX) && !name.contains(['/', '\\'])
}

fn text_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    check_plain(path, "its description")?;
    File::open(path)?.take(MAX_DESCRIPTION).read_to_end(&mut text)?;
    Ok(text)
}

/// Fails if something else than a file is there: a FIFO would stop its reader.
fn check_plain(path: &Path, what: &str) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_file() {
        Ok(())
    } else {
        Err(damaged(format!("{what} is not a file")))
    }
}

fn damaged(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

fn open(folder: &Path, name: &str, part: Part) -> io::Result<ImageFile> {
    let path = folder.join(name);
    check_plain(&path, name)?;
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    if size != part.size() {
        return Err(damaged(format!("{name} has {size} bytes instead of {}", part.size())));
    }
    Ok(ImageFile {
        file: Arc::new(file),
        position: part.position,
        bytes: part.bytes,
        // Others can change it, so nothing is mapped from it.
        shared: false,
    })
}

fn make_private(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Makes a file that no other user can read. A new sandbox gets a descriptor of it, for reading.
fn make_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o400);
    options.open(path)
}

fn lock(folder: PathBuf) -> io::Result<Option<Lock>> {
    let file = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(false)
        .open(folder.join(LOCK_NAME))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(Lock { folder, _file: file })),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn random_name() -> io::Result<String> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Removes what no description names: replaced and removed states, and what a killed writer has left. Only the holder of
/// the lock may do so. Keeps everything while a description does not tell its folder.
fn remove_unnamed(folder: &Path) -> io::Result<()> {
    let states = descriptions(folder)?;
    let named: Option<BTreeSet<String>> = states.iter().map(|(_, path)| data_of(path)).collect();
    let Some(named) = named else { return Ok(()) };
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().into_string().unwrap_or_default();
        if !name.starts_with(DATA_PREFIX) || named.contains(&name) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Returns the size of the files of all states, holes included.
fn size_of_all(folder: &Path) -> io::Result<u64> {
    let mut size = 0_u64;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            size = size.saturating_add(size_of(&entry.path())?);
        }
    }
    Ok(size)
}

/// Returns the size of the files of a state, holes included.
fn size_of(folder: &Path) -> io::Result<u64> {
    let mut size = 0_u64;
    for file in fs::read_dir(folder)? {
        size = size.saturating_add(file?.metadata()?.len());
    }
    Ok(size)
}

fn write_data(folder: &Path, image: &StateImage) -> io::Result<()> {
    make_private(folder)?;
    copy(&image.files, &folder.join(FILES_NAME))?;
    if let Some(memory) = &image.memory {
        copy(memory, &folder.join(MEMORY_NAME))?;
    }
    sync(folder)
}

fn write_description(path: &Path, description: &Description) -> io::Result<()> {
    let text = serde_json::to_vec(description)?;
    if u64::try_from(text.len()).is_ok_and(|size| size >= MAX_DESCRIPTION) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "its description is too large",
        ));
    }
    let mut file = make_file(path)?;
    file.write_all(&text)?;
    file.sync_all()
}

/// Makes the names in a folder durable.
fn sync(folder: &Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// Copies an image up to the end of its table. Blocks of zeros become holes.
fn copy(image: &ImageFile, to: &Path) -> io::Result<()> {
    let mut source = image.file.as_ref();
    source.seek(SeekFrom::Start(0))?;
    let mut out = make_file(to)?;
    let mut buffer = vec![0; COPY_BYTES];
    let mut left = Part::of(image).size();
    while left > 0 {
        let most = usize::try_from(left).map_or(COPY_BYTES, |left| left.min(COPY_BYTES));
        let count = source.read(buffer.get_mut(..most).unwrap_or_default())?;
        let read = buffer.get(..count).unwrap_or_default();
        if read.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the image is cut off"));
        }
        if read.iter().all(|byte| *byte == 0) {
            out.seek_relative(i64::try_from(count).unwrap_or_default())?;
        } else {
            out.write_all(read)?;
        }
        left = left.saturating_sub(u64::try_from(count).unwrap_or_default());
    }
    out.set_len(Part::of(image).size())?;
    out.sync_all()
}

#[cfg(test)]
mod tests;
