//! Advice for failures that only a sandbox has: no network, no browser, a system that cannot be changed, few programs.
//!
//! One table for all languages and front ends. The program's output selects a row, so a program can make any of them
//! appear. The advice is text next to the output in a result. No decision depends on it.

use crate::Hints;

/// The condition of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    /// The code failed.
    Failed,
    /// The code may have continued, with a warning on stderr.
    Warned,
}

/// Texts that together indicate a failure, and the advice. `{packages}` and `{data}` are replaced with the front end's
/// text.
struct Row(Condition, &'static [&'static str], &'static str);

use Condition::{Failed, Warned};

const NO_VIDEO: &str = "there is no ffmpeg here: save an animation as .gif with writer=\"pillow\"; for video use the package imageio-ffmpeg, which \
                        brings a program (imageio_ffmpeg.get_ffmpeg_exe()): {packages}";
const NO_CHROME: &str = "there is no Chrome here, which static pictures of plotly need: write the figure with fig.write_html(path), or draw it \
                         with matplotlib";
const NO_SYSTEM: &str = "nothing can be installed into the system of a sandbox; {packages}";
const NO_PIP: &str = "pip has no network here: {packages}";
const NO_NETWORK: &str = "this sandbox does not reach that host: {data}";
const NO_MODULES: &str =
    "Go modules cannot be downloaded here: use the standard library, or add the package's source next to the program";
const OLD_JAVA: &str =
    "this code needs a newer Java: `java -version` prints the installed release; write for that release";
const NO_MODEL: &str =
    "models and data sets of Hugging Face cannot be fetched here: {data}, and load them by their path";
const NO_EXTENSION: &str =
    "extensions of DuckDB cannot be fetched here: files of the sandbox (Parquet, CSV, JSON) need none; {data}";
const NO_PROCESSES: &str = "the sandbox has as many processes and threads as it may have: start fewer at once, or ask the operator to raise \
                            limits.processes";
const NO_NPM: &str = "npm has no network here: {packages}";

const ADVICE_TABLE: &[Row] = &[
    Row(
        Failed,
        &["IProgress not found"],
        "notebook widgets are not available here: `from tqdm import tqdm` draws the bar as text",
    ),
    Row(Failed, &["MovieWriter", "not available"], NO_VIDEO),
    Row(Failed, &["MovieWriter ffmpeg unavailable"], NO_VIDEO),
    Row(Failed, &["No such file or directory: 'ffmpeg'"], NO_VIDEO),
    Row(Failed, &["No such file or directory: 'ffprobe'"], NO_VIDEO),
    Row(Failed, &["ffmpeg: command not found"], NO_VIDEO),
    Row(Failed, &["ffmpeg: not found"], NO_VIDEO),
    Row(Failed, &["No ffmpeg exe could be found"], NO_VIDEO),
    Row(Warned, &["MovieWriter ffmpeg unavailable"], NO_VIDEO),
    Row(Warned, &["Couldn't find ffmpeg or avconv"], NO_VIDEO),
    Row(
        Warned,
        &["Glyph ", "missing from"],
        "the font lacks these characters: matplotlib.font_manager.get_font_names() lists the fonts here, \
         plt.rcParams[\"font.family\"] chooses one; where none has them, label in Latin letters",
    ),
    Row(Failed, &["Kaleido requires Google Chrome"], NO_CHROME),
    Row(Failed, &["ChromeNotFoundError"], NO_CHROME),
    Row(
        Failed,
        &["kaleido", "package"],
        "static pictures of plotly need kaleido and Chrome, which is not here: write the figure with \
                                          fig.write_html(path), or draw it with matplotlib",
    ),
    Row(Failed, &["no required module provides package"], NO_MODULES),
    Row(Failed, &["cannot find module providing package"], NO_MODULES),
    Row(Failed, &["module lookup disabled by GOPROXY=off"], NO_MODULES),
    Row(Failed, &["cannot find package", ".go:"], NO_MODULES),
    Row(Failed, &["is not in GOROOT", ".go:"], NO_MODULES),
    Row(Failed, &["is not in std", ".go:"], NO_MODULES),
    Row(Failed, &["invalid source release"], OLD_JAVA),
    Row(Failed, &["error: release version", "not supported"], OLD_JAVA),
    Row(Failed, &["UnsupportedClassVersionError"], OLD_JAVA),
    Row(Failed, &["are a preview feature and are disabled by default"], OLD_JAVA),
    Row(Failed, &["is a preview feature and is disabled by default"], OLD_JAVA),
    Row(
        Failed,
        &["there is no package called"],
        "packages of R cannot be fetched here: rownames(installed.packages()) lists those that are there; the operator adds one with the \
         host's packages (apt-get install r-cran-NAME)",
    ),
    Row(
        Failed,
        &["nltk.download("],
        "NLTK data cannot be downloaded here: {data}, into ~/nltk_data",
    ),
    Row(
        Failed,
        &["[E050]"],
        "models of spaCy cannot be fetched here: spacy.blank(\"en\") needs none; {data}, and spacy.load(path) loads a model's folder",
    ),
    Row(Failed, &["https://huggingface.co"], NO_MODEL),
    Row(Failed, &["huggingface_hub", "LocalEntryNotFoundError"], NO_MODEL),
    Row(Failed, &["host='huggingface.co'"], NO_MODEL),
    Row(Failed, &["Failed to download extension"], NO_EXTENSION),
    Row(Failed, &["install the required extension"], NO_EXTENSION),
    Row(Failed, &["duckdb", "Extension", "not found"], NO_EXTENSION),
    Row(Failed, &["externally-managed-environment"], NO_PIP),
    Row(
        Failed,
        &["Could not find a version that satisfies the requirement"],
        NO_PIP,
    ),
    Row(Failed, &["npm ERR! network"], NO_NPM),
    Row(Failed, &["npm error network"], NO_NPM),
    Row(Failed, &["registry.npmjs.org", "EAI_AGAIN"], NO_NPM),
    Row(Failed, &["E: Could not open lock file"], NO_SYSTEM),
    Row(Failed, &["E: Unable to locate package"], NO_SYSTEM),
    Row(Failed, &["E: List directory /var/lib/apt"], NO_SYSTEM),
    Row(
        Failed,
        &["dpkg: error: requested operation requires superuser"],
        NO_SYSTEM,
    ),
    Row(Failed, &["sudo: command not found"], NO_SYSTEM),
    Row(Failed, &["sudo: not found"], NO_SYSTEM),
    Row(Failed, &["apt-get: command not found"], NO_SYSTEM),
    Row(Failed, &["apt: command not found"], NO_SYSTEM),
    Row(Failed, &["apk: command not found"], NO_SYSTEM),
    Row(Failed, &["effective uid is not 0"], NO_SYSTEM),
    Row(Failed, &["can't start new thread"], NO_PROCESSES),
    Row(
        Failed,
        &["pthread_create", "Resource temporarily unavailable"],
        NO_PROCESSES,
    ),
    Row(Failed, &["fork: ", "Resource temporarily unavailable"], NO_PROCESSES),
    Row(Failed, &["unable to create native thread"], NO_PROCESSES),
    Row(Failed, &["failed to create new OS thread"], NO_PROCESSES),
    Row(Failed, &["curl: (6)"], NO_NETWORK),
    Row(Failed, &["curl: (7)"], NO_NETWORK),
    Row(Failed, &["unable to resolve host address"], NO_NETWORK),
    Row(Failed, &["fatal: unable to access"], NO_NETWORK),
    Row(Failed, &["Could not resolve host"], NO_NETWORK),
    Row(
        Failed,
        &["ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX"],
        "Node only leaves types out: write a const object in place of an enum, and declare fields in place of parameter properties; deno, bun \
         or tsx on the host run all of TypeScript",
    ),
];

/// Returns the advice for a program's output: the end of its streams, and its error.
pub(crate) fn find(failed: bool, texts: &[&str], hints: &Hints) -> Option<String> {
    let counts = |when: Condition| if failed { when == Failed } else { when == Warned };
    let says = |mark: &&str| texts.iter().any(|text| text.contains(*mark));
    let row = ADVICE_TABLE
        .iter()
        .find(|Row(when, marks, _)| counts(*when) && marks.iter().all(&says));
    // A warning may be the reason of a later failure.
    let warned = || {
        ADVICE_TABLE
            .iter()
            .find(|Row(when, marks, _)| failed && *when == Warned && marks.iter().all(&says))
    };
    let Row(_, _, advice) = row.or_else(warned)?;
    Some(
        advice
            .replace("{packages}", &hints.bring_packages)
            .replace("{data}", &hints.bring_data),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(failed: bool, text: &str) -> String {
        find(failed, &[text], &Hints::default()).unwrap_or_default()
    }

    #[test]
    fn each_failure_of_a_sandbox_has_its_advice() {
        for (text, part) in [
            (
                "ImportError: IProgress not found. Please update jupyter",
                "from tqdm import tqdm",
            ),
            ("RuntimeError: Requested MovieWriter (ffmpeg) not available", "pillow"),
            (
                "FileNotFoundError: [Errno 2] No such file or directory: 'ffmpeg'",
                "imageio-ffmpeg",
            ),
            ("Kaleido requires Google Chrome to be installed.", "write_html"),
            (
                "main.go:3:8: no required module provides package github.com/x/y; to add it:",
                "Go modules",
            ),
            ("error: invalid source release: 25", "`java -version`"),
            (
                "Error in library(dplyr) : there is no package called ‘dplyr’",
                "installed.packages",
            ),
            ("  >>> nltk.download('punkt')", "nltk_data"),
            ("OSError: [E050] Can't find model 'en_core_web_sm'.", "spacy.blank"),
            (
                "OSError: We couldn't connect to 'https://huggingface.co' to load",
                "Hugging Face",
            ),
            (
                "_duckdb.IOException: IO Error: Failed to download extension \"httpfs\" at URL",
                "Parquet",
            ),
            ("error: externally-managed-environment", "packages"),
            (
                "E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13)",
                "system of a sandbox",
            ),
            ("bash: line 1: sudo: command not found", "system of a sandbox"),
            (
                "bash: fork: retry: Resource temporarily unavailable",
                "limits.processes",
            ),
            ("RuntimeError: can't start new thread", "limits.processes"),
            ("curl: (6) Could not resolve host: example.org", "bring the data in"),
        ] {
            let found = advice(true, text);
            assert!(found.contains(part), "{text}: {found}");
            assert!(!found.contains('{'), "{found}");
            assert_eq!(advice(false, text), "", "{text}");
        }
        assert_eq!(advice(true, "ZeroDivisionError: division by zero"), "");
    }

    #[test]
    fn a_warning_has_its_advice_though_nothing_failed() {
        let text = "UserWarning: Glyph 20013 (\\N{CJK UNIFIED IDEOGRAPH-4E2D}) missing from font(s) DejaVu Sans.";
        for failed in [true, false] {
            assert!(advice(failed, text).contains("font.family"));
        }
    }

    #[test]
    fn no_rule_is_shadowed_by_an_earlier_one() {
        for (number, Row(when, marks, _)) in ADVICE_TABLE.iter().enumerate() {
            let covers = |earlier: &&Row| earlier.0 == *when && earlier.1.iter().all(|mark| marks.contains(mark));
            assert!(ADVICE_TABLE[..number].iter().find(covers).is_none(), "{marks:?}");
        }
    }
}
