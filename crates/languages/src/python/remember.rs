//! Caches interpreters' answers and the compiled driver on disk, so that a server need not run the interpreter at every
//! start (about 10 and 100 ms).
//!
//! Each cache is one file in the operator's data folder. It is used only if no other user could have written it, and
//! only for exactly the same files: path, device, inode, size and change time of the interpreter and of the
//! `pyvenv.cfg` near it, and for the driver also of this program. If anything is wrong with it, the interpreter is
//! asked instead.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use crate::memory::{read_own, state, write_own};

/// Must change with the question.
const QUESTION: u64 = 2;

/// Returns the cached answer of `path`, if there is one and it is still valid.
pub(super) fn recall(memory: &Path, path: &Path) -> Option<Vec<u8>> {
    recall_as(FILE, &key(path)?, memory)
}

/// Caches an answer. A failure only costs time at the next start.
pub(super) fn keep(memory: &Path, path: &Path, answer: &[u8]) {
    if let Some(key) = key(path) {
        keep_as(FILE, &key, memory, answer);
    }
}

/// Returns the cached driver that the interpreter `path` compiled for this program.
pub(super) fn recall_driver(memory: &Path, path: &Path) -> Option<Vec<u8>> {
    let mut code = recall_as(DRIVER, &key_of_driver(path)?, memory)?;
    let end = code.split_off(code.len().checked_sub(size_of::<u64>())?);
    (end == sum(&code)).then_some(code)
}

/// Caches the driver with a checksum: an interpreter that loads invalid code may crash. `key` dates from before the
/// compilation. If the interpreter was replaced in the meantime, nothing is cached.
pub(super) fn keep_driver(memory: &Path, path: &Path, key: &str, code: &[u8]) {
    if key_of_driver(path).as_deref() == Some(key) {
        keep_as(DRIVER, key, memory, &[code, &sum(code)].concat());
    }
}

/// Removes the cached driver, with which an interpreter failed to start.
pub(super) fn forget_driver(memory: &Path) {
    if let Err(error) = std::fs::remove_file(memory.join(DRIVER)) {
        tracing::debug!(%error, "the compiled driver could not be removed");
    }
}

const FILE: &str = "python";
const DRIVER: &str = "python-driver";
/// The end of a completely written cache.
const END: &[u8] = b"\nend\n";

fn recall_as(file: &str, key: &str, memory: &Path) -> Option<Vec<u8>> {
    let bytes = read_own(&memory.join(file))?;
    let answer = bytes.strip_prefix(key.as_bytes())?.strip_suffix(END)?;
    Some(answer.to_vec())
}

fn keep_as(file: &str, key: &str, memory: &Path, answer: &[u8]) {
    if let Err(error) = write_own(memory, file, &[key.as_bytes(), answer, END].concat()) {
        tracing::debug!(%error, file, "what Python is here could not be remembered");
    }
}

/// Returns the key of the cached driver.
pub(super) fn key_of_driver(path: &Path) -> Option<String> {
    let own = state(&std::env::current_exe().ok()?)?;
    Some(format!("{own}\t{}", key(path)?))
}

fn sum(bytes: &[u8]) -> [u8; size_of::<u64>()] {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish().to_le_bytes()
}

/// Returns the inputs of the answer as a key. It ends with a line feed, which no part contains.
fn key(path: &Path) -> Option<String> {
    let real = path.canonicalize().ok()?;
    let mut key = format!("{QUESTION}");
    let near = path.parent()?;
    let configs = [near.join("pyvenv.cfg"), near.parent()?.join("pyvenv.cfg")];
    let needed = [real.as_path(), path].map(|part| (part, true));
    let optional = configs.iter().map(|part| (part.as_path(), false));
    for (part, needed) in needed.into_iter().chain(optional) {
        let name = part.to_str().filter(|name| !name.contains(['\0', '\n']))?;
        let state = match (state(part), needed) {
            (Some(state), _) => state,
            (None, true) => return None,
            (None, false) => "absent".to_owned(),
        };
        key.push_str(&format!("\t{name}\t{state}"));
    }
    key.push('\n');
    Some(key)
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn place() -> (tempfile::TempDir, std::path::PathBuf, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let python = folder.path().join("bin/python3");
        std::fs::create_dir(folder.path().join("bin")).unwrap();
        std::fs::write(&python, "one").unwrap();
        let memory = folder.path().join("data/sandcell");
        (folder, python, memory)
    }

    #[test]
    fn an_answer_is_recalled_for_the_same_interpreter_only() {
        let (folder, python, memory) = place();
        assert_eq!(recall(&memory, &python), None);
        keep(&memory, &python, b"3.11.2\0");
        assert_eq!(recall(&memory, &python), Some(b"3.11.2\0".to_vec()));
        std::fs::write(folder.path().join("pyvenv.cfg"), "home = /x").unwrap();
        assert_eq!(recall(&memory, &python), None, "it has become a virtual environment");
        keep(&memory, &python, b"3.11.2\0");
        std::fs::write(&python, "another").unwrap();
        assert_eq!(recall(&memory, &python), None, "it was replaced");
        assert_eq!(recall(&memory, Path::new("/dev/null/python3")), None);
    }

    #[test]
    fn a_memory_that_others_can_write_is_not_believed() {
        let (_folder, python, memory) = place();
        let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        keep(&memory, &python, b"3.11.2\0");
        for (path, loose, tight) in [(memory.clone(), 0o777, 0o700), (memory.join(FILE), 0o666, 0o600)] {
            mode(&path, loose);
            assert_eq!(recall(&memory, &python), None, "{}", path.display());
            mode(&path, tight);
            assert!(recall(&memory, &python).is_some());
        }
        let real = memory.join("elsewhere");
        std::fs::rename(memory.join(FILE), &real).unwrap();
        std::os::unix::fs::symlink(&real, memory.join(FILE)).unwrap();
        assert_eq!(recall(&memory, &python), None, "it is a link");
    }

    #[test]
    fn the_driver_is_recalled_whole_or_not_at_all() {
        let (folder, python, memory) = place();
        keep(&memory, &python, b"3.11.2\0");
        assert_eq!(recall_driver(&memory, &python), None);
        let key = key_of_driver(&python).unwrap();
        keep_driver(&memory, &python, "another", b"code");
        assert_eq!(recall_driver(&memory, &python), None, "it was replaced meanwhile");
        // A leftover of a process that was killed while writing.
        std::fs::write(memory.join(format!("{DRIVER}.{}", std::process::id())), "co").unwrap();
        keep_driver(&memory, &python, &key, b"code");
        assert_eq!(recall_driver(&memory, &python), Some(b"code".to_vec()));
        let file = memory.join(DRIVER);
        let whole = std::fs::read(&file).unwrap();
        let place = whole.windows(4).position(|part| part == b"code").unwrap();
        for wrong in [&b"c\0\0\0"[..], b"codf"] {
            let mut bytes = whole.clone();
            bytes[place..place + 4].copy_from_slice(wrong);
            std::fs::write(&file, bytes).unwrap();
            assert_eq!(recall_driver(&memory, &python), None);
        }
        // A cache of another program or another interpreter.
        let mut other = whole.clone();
        other[0] ^= 1;
        std::fs::write(&file, other).unwrap();
        assert_eq!(recall_driver(&memory, &python), None);
        std::fs::write(&file, whole).unwrap();
        assert!(recall_driver(&memory, &python).is_some());
        std::fs::write(folder.path().join("bin/python3"), "another").unwrap();
        assert_eq!(recall_driver(&memory, &python), None);
    }

    #[test]
    fn a_memory_that_was_cut_is_not_believed() {
        let (_folder, python, memory) = place();
        keep(&memory, &python, b"3.11.2\0/usr\0");
        let file = memory.join(FILE);
        let whole = std::fs::read(&file).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&file, &whole[..length]).unwrap();
            assert_eq!(recall(&memory, &python), None, "cut at {length}");
        }
    }
}
