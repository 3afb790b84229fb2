//! Caches interpreters' answers on disk, so that a server need not run the interpreter at every start (about 10 ms).
//!
//! The cache is one file in the operator's data folder. It is used only if no other user could have written it, and
//! only for exactly the same files: path, device, inode, size and change time of the interpreter and of the
//! `pyvenv.cfg` near it. If anything is wrong with it, the interpreter is asked instead.

use std::path::Path;

use crate::disk_cache::{read_own, state, write_own};

/// Must change with the question.
const QUESTION_VERSION: u64 = 2;

/// Returns the cached answer of `path`, if there is one and it is still valid.
pub(super) fn recall(memory: &Path, path: &Path) -> Option<Vec<u8>> {
    let bytes = read_own(&memory.join(CACHE_FILE))?;
    let answer = bytes.strip_prefix(key(path)?.as_bytes())?.strip_suffix(END_MARK)?;
    Some(answer.to_vec())
}

/// Caches an answer. A failure only costs time at the next start.
pub(super) fn keep(memory: &Path, path: &Path, answer: &[u8]) {
    let Some(key) = key(path) else { return };
    if let Err(error) = write_own(memory, CACHE_FILE, &[key.as_bytes(), answer, END_MARK].concat()) {
        tracing::debug!(%error, "the interpreter's answers could not be remembered");
    }
}

const CACHE_FILE: &str = "python";
/// The end of a completely written cache.
const END_MARK: &[u8] = b"\nend\n";

/// Returns the inputs of the answer as a key. It ends with a line feed, which no part contains.
fn key(path: &Path) -> Option<String> {
    let real = path.canonicalize().ok()?;
    let mut key = format!("{QUESTION_VERSION}");
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
    fn a_cache_writable_by_others_is_ignored() {
        let (_folder, python, memory) = place();
        let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        keep(&memory, &python, b"3.11.2\0");
        for (path, loose, tight) in [(memory.clone(), 0o777, 0o700), (memory.join(CACHE_FILE), 0o666, 0o600)] {
            mode(&path, loose);
            assert_eq!(recall(&memory, &python), None, "{}", path.display());
            mode(&path, tight);
            assert!(recall(&memory, &python).is_some());
        }
        let real = memory.join("elsewhere");
        std::fs::rename(memory.join(CACHE_FILE), &real).unwrap();
        std::os::unix::fs::symlink(&real, memory.join(CACHE_FILE)).unwrap();
        assert_eq!(recall(&memory, &python), None, "it is a link");
    }

    #[test]
    fn a_truncated_cache_is_ignored() {
        let (_folder, python, memory) = place();
        keep(&memory, &python, b"3.11.2\0/usr\0");
        let file = memory.join(CACHE_FILE);
        let whole = std::fs::read(&file).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&file, &whole[..length]).unwrap();
            assert_eq!(recall(&memory, &python), None, "cut at {length}");
        }
    }
}
