use std::path::PathBuf;

/// A system that this program runs on, where it matters at run time which one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// And whatever else is like it.
    Linux,
    /// Apple's.
    MacOs,
    /// Microsoft's.
    Windows,
}

impl System {
    /// The one that this program was built for.
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

/// A path as people and other programs write it: without what Windows puts before one that was made real
/// (`\\?\C:\x`, `\\?\UNC\server\share`), which no daemon and no client of ours understands.
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
    fn paths_that_windows_made_real_become_plain_and_others_stay() {
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
