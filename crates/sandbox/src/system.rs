use std::path::PathBuf;

/// An operating system that this program runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// Linux, and every system without an entry here.
    Linux,
    /// Apple's macOS.
    MacOs,
    /// Microsoft's Windows.
    Windows,
}

impl System {
    /// Returns the system that this program was built for.
    #[must_use]
    pub const fn of_this_machine() -> Self {
        if cfg!(windows) {
            Self::Windows
        } else if cfg!(target_os = "macos") {
            Self::MacOs
        } else {
            Self::Linux
        }
    }
}

/// Returns a path in the form that people and other programs use. Removes the prefix of canonical paths on Windows
/// (`\\?\C:\x`, `\\?\UNC\server\share`), which no daemon or client of ours understands.
#[must_use]
pub fn plain_path(real: PathBuf) -> PathBuf {
    let Some(rest) = real.to_str().and_then(|text| text.strip_prefix(r"\\?\")) else {
        return real;
    };
    match (rest.strip_prefix(r"UNC\"), rest.as_bytes()) {
        (Some(share), _) => PathBuf::from(format!(r"\\{share}")),
        (None, [letter, b':', ..]) if letter.is_ascii_alphabetic() => PathBuf::from(rest),
        (None, _) => real,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbatim_windows_paths_become_plain_and_others_stay() {
        for (real, plain) in [
            (r"\\?\C:\Users\me", r"C:\Users\me"),
            (r"\\?\UNC\server\share\x", r"\\server\share\x"),
            (r"\\?\Volume{1}\x", r"\\?\Volume{1}\x"),
            (r"C:\x", r"C:\x"),
            ("/home/me", "/home/me"),
        ] {
            assert_eq!(plain_path(real.into()), PathBuf::from(plain));
        }
    }
}
