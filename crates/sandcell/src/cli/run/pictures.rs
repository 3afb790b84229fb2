//! Pictures that a program shows. Each is saved as a file, and drawn if the terminal supports it.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use sandcell_engine::{Artifact, ExecutionView};

use crate::cli::output::Style;
use crate::screen::is_screen;

/// The maximum number of file names tried in one folder.
const MAX_NUMBER: u32 = 10_000;
/// The number of characters in one chunk of a picture in kitty's protocol.
const KITTY_CHUNK: usize = 4096;

/// A picture that was saved.
#[derive(Debug)]
pub(super) struct Saved {
    /// The file.
    pub(super) path: PathBuf,
    bytes: bytes::Bytes,
}

/// Saves the pictures, and never overwrites a file. If the folder is not writable, the temporary folder is used.
pub(super) fn save(view: &ExecutionView, folder: &Path) -> Vec<Saved> {
    let pictures = view
        .artifacts
        .iter()
        .filter(|artifact| artifact.shown && ending(artifact).is_some());
    let mut saved = Vec::new();
    for picture in pictures {
        let written = write_new(folder, picture).or_else(|error| {
            let elsewhere = std::env::temp_dir();
            say(&format!(
                "{} cannot be written ({error}), so a picture is saved in {}",
                folder.display(),
                elsewhere.display()
            ));
            write_new(&elsewhere, picture)
        });
        match written {
            Ok(path) => saved.push(Saved {
                path,
                bytes: picture.bytes.clone(),
            }),
            Err(error) => say(&format!("a picture cannot be saved: {error}")),
        }
    }
    saved
}

fn ending(artifact: &Artifact) -> Option<&'static str> {
    match artifact.mime.as_str() {
        "image/png" => Some("png"),
        "image/jpeg" => Some("jpg"),
        _ => None,
    }
}

/// Creates `plot-1.png`, or the next free number.
fn write_new(folder: &Path, picture: &Artifact) -> io::Result<PathBuf> {
    let ending = ending(picture).unwrap_or("png");
    for number in 1..=MAX_NUMBER {
        let path = folder.join(format!("plot-{number}.{ending}"));
        match std::fs::File::create_new(&path) {
            Ok(mut file) => {
                file.write_all(&picture.bytes)?;
                return Ok(path.strip_prefix(".").map_or(path.clone(), Path::to_owned));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("each number is taken"))
}

/// Prints the files' names on stderr, below the pictures if the terminal draws them.
pub(super) fn name(saved: &[Saved]) {
    let style = Style::of(&io::stderr());
    let protocol = is_screen(&io::stderr())
        .then(|| Protocol::of(|name| std::env::var(name).ok()))
        .flatten();
    for one in saved {
        let drawn = protocol.map(|protocol| protocol.draw(&one.bytes)).unwrap_or_default();
        say(&format!(
            "{drawn}{} {} ({} KB)",
            style.bold("picture:"),
            one.path.display(),
            one.bytes.len().div_ceil(1024)
        ));
    }
}

fn say(line: &str) {
    // A closed stderr is ignored: there is no other place for the message.
    let _nobody_listens = io::stderr().lock().write_all(format!("{line}\n").as_bytes());
}

/// A terminal's picture protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Kitty,
    Iterm,
}

impl Protocol {
    /// Returns the protocol by the variables that terminals set. A terminal multiplexer passes neither protocol on.
    fn of(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let term = variable("TERM").unwrap_or_default();
        if variable("TMUX").is_some() || term.starts_with("screen") || term.starts_with("tmux") {
            return None;
        }
        if term.contains("kitty") || term.contains("ghostty") {
            return Some(Self::Kitty);
        }
        match variable("TERM_PROGRAM").as_deref() {
            Some("iTerm.app" | "WezTerm") => Some(Self::Iterm),
            Some("ghostty") => Some(Self::Kitty),
            Some(_) | None => None,
        }
    }

    /// Returns the sequence that draws the picture, and a line break.
    fn draw(self, bytes: &[u8]) -> String {
        let encoded = base64::engine::general_purpose::STANDARD.encode(bytes);
        match self {
            Self::Iterm => format!("\u{1b}]1337;File=inline=1;size={}:{encoded}\u{7}\n", bytes.len()),
            Self::Kitty => {
                let mut text = String::new();
                let mut rest = encoded.as_str();
                let mut control = "a=T,f=100,";
                while !rest.is_empty() {
                    let (chunk, more) = rest.split_at_checked(KITTY_CHUNK).unwrap_or((rest, ""));
                    let follows = u8::from(!more.is_empty());
                    text.push_str(&format!("\u{1b}_G{control}m={follows};{chunk}\u{1b}\\"));
                    (rest, control) = (more, "");
                }
                text.push('\n');
                text
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(bytes: &'static [u8]) -> Artifact {
        Artifact {
            number: 0,
            name: "plot-1.png".to_owned(),
            mime: "image/png".to_owned(),
            bytes: bytes.into(),
            shown: true,
            text: None,
        }
    }

    #[test]
    fn a_picture_never_replaces_a_file() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("plot-1.png"), "mine").unwrap();
        let path = write_new(folder.path(), &picture(b"new")).unwrap();
        assert_eq!(path, folder.path().join("plot-2.png"));
        assert_eq!(std::fs::read(folder.path().join("plot-1.png")).unwrap(), b"mine");
        assert_eq!(std::fs::read(path).unwrap(), b"new");
    }

    #[test]
    fn a_terminal_gets_pictures_in_its_own_protocol() {
        let of = |set: &'static [(&str, &str)]| {
            Protocol::of(|name| {
                let found = set.iter().find(|(own, _)| *own == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(of(&[("TERM", "xterm-kitty")]), Some(Protocol::Kitty));
        assert_eq!(of(&[("TERM_PROGRAM", "iTerm.app")]), Some(Protocol::Iterm));
        assert_eq!(of(&[("TERM", "xterm-256color")]), None);
        assert_eq!(of(&[("TERM", "xterm-kitty"), ("TMUX", "/tmp/x")]), None);
        let drawn = Protocol::Kitty.draw(&[0; 4000]);
        assert_eq!(drawn.matches("\u{1b}_G").count(), 2, "{drawn}");
        assert!(drawn.starts_with("\u{1b}_Ga=T,f=100,m=1;") && drawn.contains("\u{1b}_Gm=0;"));
        assert!(Protocol::Iterm.draw(b"abc").contains("size=3:YWJj\u{7}"));
    }
}
