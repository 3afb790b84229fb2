//! The simple index: parses an index's list of a project's files, as JSON (PEP 691) or HTML (PEP 503), and writes the
//! filtered list.
//!
//! The HTML is parsed here, in some hundred lines without a tree. The tokenizer `html5gum` (0.9, no `unsafe`) would do,
//! but adds 370 KB to the program, most of it names of characters that no index uses. `html5ever` and `scraper` are
//! larger, and build a tree of each hostile page.

use std::collections::BTreeMap;

use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The maximum number of files of one project. The largest project of the public index has about ten thousand.
const FILES_MAX: usize = 100_000;

/// A file of a project.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct File {
    /// The file name, which contains the version.
    pub(crate) filename: String,
    /// The address. In an index's page it may be relative to the page.
    pub(crate) url: String,
    /// The hashes by algorithm.
    #[serde(default)]
    pub(crate) hashes: BTreeMap<String, String>,
    /// The required versions of Python.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) requires_python: Option<String>,
    /// The availability of separate metadata: a bool or its hashes.
    #[serde(default, alias = "dist-info-metadata", alias = "data-dist-info-metadata")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) core_metadata: Option<Value>,
    /// The withdrawal of the file: a bool or the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) yanked: Option<Value>,
    /// The size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) size: Option<u64>,
    /// The upload time: RFC 3339 in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) upload_time: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Page {
    #[serde(deserialize_with = "first_files")]
    files: Vec<File>,
}

/// Reads at most [`FILES_MAX`] files of a list. The rest is checked and not stored.
fn first_files<'de, D: serde::Deserializer<'de>>(list: D) -> Result<Vec<File>, D::Error> {
    struct FirstFiles;

    impl<'de> serde::de::Visitor<'de> for FirstFiles {
        type Value = Vec<File>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a list of files")
        }

        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<Vec<File>, A::Error> {
            let mut files = Vec::new();
            while files.len() < FILES_MAX {
                match list.next_element()? {
                    Some(file) => files.push(file),
                    None => return Ok(files),
                }
            }
            while list.next_element::<serde::de::IgnoredAny>()?.is_some() {}
            Ok(files)
        }
    }

    list.deserialize_seq(FirstFiles)
}

/// Parses a page of an index. Addresses become absolute. Files without an `http(s)` address are omitted.
pub(crate) fn parse(body: &[u8], is_json: bool, page: &Url) -> Result<Vec<File>, String> {
    let files = if is_json {
        serde_json::from_slice::<Page>(body)
            .map_err(|error| format!("the answer is not package index JSON: {error}"))?
            .files
    } else {
        html(&String::from_utf8_lossy(body), page)
    };
    let absolute = |mut file: File| {
        let url = page.join(&file.url).ok()?;
        if !matches!(url.scheme(), "http" | "https") || !sound_name(&file.filename) {
            return None;
        }
        file.url = url.into();
        Some(file)
    };
    Ok(files.into_iter().filter_map(absolute).collect())
}

/// Returns the JSON page with these files.
pub(crate) fn render(name: &str, files: &[File]) -> Vec<u8> {
    let page = serde_json::json!({
        "meta": {"api-version": "1.1"},
        "name": name,
        "files": files,
        "versions": [],
    });
    serde_json::to_vec(&page).unwrap_or_default()
}

/// Returns true for a file name of plain characters, without folders and without characters that have a meaning in an
/// address.
fn sound_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '+' | '!');
    !name.is_empty() && name.len() <= 255 && !name.starts_with('.') && name.chars().all(plain)
}

/// Returns the version in a file name, if it can be found.
pub(crate) fn version_of<'a>(filename: &'a str, project: &str) -> Option<&'a str> {
    if let Some(stem) = filename.strip_suffix(".whl") {
        return stem.split('-').nth(1);
    }
    let stem = [".tar.gz", ".zip", ".tar.bz2", ".tgz", ".tar.xz"]
        .iter()
        .find_map(|end| filename.strip_suffix(end))?;
    // The project's name may contain hyphens. It is the part that normalises to `project`.
    let cuts = stem.char_indices().filter(|(_, c)| *c == '-').map(|(place, _)| place);
    cuts.filter_map(|place| stem.split_at_checked(place))
        .find(|(name, _)| normalised(name) == project)
        .and_then(|(_, version)| version.strip_prefix('-'))
}

/// Returns a project's normalised name, by which indexes compare names.
pub(crate) fn normalised(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        if matches!(c, '-' | '_' | '.') {
            if !out.ends_with('-') {
                out.push('-');
            }
        } else {
            out.push(c.to_ascii_lowercase());
        }
    }
    out
}

/// Returns the links of a page. The parser is tolerant, because many programs write such pages. The page's size bounds
/// its work.
fn html(text: &str, page: &Url) -> Vec<File> {
    let mut files = Vec::new();
    let mut base = page.clone();
    let mut rest = text;
    while let Some(start) = rest.find('<').filter(|_| files.len() < FILES_MAX) {
        rest = rest.get(start + 1..).unwrap_or_default();
        let Some(end) = tag_end(rest) else { break };
        let (tag, after) = rest.split_at(end);
        rest = after.get(1..).unwrap_or_default();
        let (name, attributes) = tag.split_once(char::is_whitespace).unwrap_or((tag, ""));
        if name.eq_ignore_ascii_case("base") {
            if let Some(url) = attribute(attributes, "href").and_then(|href| page.join(&href).ok()) {
                base = url;
            }
        } else if name.eq_ignore_ascii_case("a") {
            files.extend(link(attributes, &base));
        }
    }
    files
}

/// Returns the end of a tag: the first `>` outside quotation marks.
fn tag_end(text: &str) -> Option<usize> {
    let mut quote = None;
    for (place, c) in text.char_indices() {
        match (quote, c) {
            (None, '>') => return Some(place),
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
    }
    None
}

fn link(attributes: &str, base: &Url) -> Option<File> {
    let url = base.join(&attribute(attributes, "href")?).ok()?;
    let filename = url
        .path_segments()?
        .next_back()?
        .replace("%2B", "+")
        .replace("%2b", "+");
    let hash = |text: &str| {
        text.split_once('=')
            .map(|(kind, hash)| (kind.to_owned(), hash.to_owned()))
    };
    let metadata =
        attribute(attributes, "data-core-metadata").or_else(|| attribute(attributes, "data-dist-info-metadata"));
    let mut plain = url.clone();
    plain.set_fragment(None);
    Some(File {
        filename,
        hashes: url.fragment().and_then(hash).into_iter().collect(),
        url: plain.into(),
        requires_python: attribute(attributes, "data-requires-python"),
        core_metadata: metadata.map(|text| match hash(&text) {
            Some((kind, hash)) => serde_json::json!({ kind: hash }),
            None => Value::Bool(text != "false"),
        }),
        yanked: attribute(attributes, "data-yanked").map(|reason| match reason.as_str() {
            "" => Value::Bool(true),
            reason => Value::from(reason),
        }),
        size: None,
        upload_time: None,
    })
}

/// Returns the value of an attribute, with escapes decoded. A value may be absent, and is then empty.
fn attribute(attributes: &str, wanted: &str) -> Option<String> {
    let mut rest = attributes.trim_start();
    while !rest.is_empty() {
        let end = rest.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let after = after.trim_start();
        let (value, later) = match after.strip_prefix('=').map(str::trim_start) {
            None => ("", after),
            Some(given) => match given.chars().next().filter(|c| matches!(c, '"' | '\'')) {
                Some(quote) => {
                    let inner = given.get(1..).unwrap_or_default();
                    inner.split_once(quote).unwrap_or((inner, ""))
                }
                None => given.split_once(char::is_whitespace).unwrap_or((given, "")),
            },
        };
        if name.eq_ignore_ascii_case(wanted) {
            return Some(unescape(value));
        }
        let next = later.trim_start();
        // Without this check, a lone `=` would cause an endless loop.
        rest = if next.len() < rest.len() { next } else { "" };
    }
    None
}

fn unescape(text: &str) -> String {
    text.replace("&gt;", ">")
        .replace("&lt;", "<")
        .replace("&quot;", "\"")
        .replace("&#39;", "'")
        .replace("&#x27;", "'")
        .replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Url {
        Url::parse("https://index.example/simple/demo/").unwrap()
    }

    #[test]
    fn files_are_parsed_from_an_html_page() {
        let text = r#"<!DOCTYPE html><A HREF="../../f/demo-1.0-py3-none-any.whl#sha256=ab" data-requires-python="&gt;=3.8"
            data-dist-info-metadata='sha256=cd'>x</a><a href='demo-1.1.tar.gz' data-yanked>y</a>
            <a href="javascript:x">z</a><a>"#;
        let files = parse(text.as_bytes(), false, &page()).unwrap();
        assert_eq!(files.len(), 2, "{files:?}");
        assert_eq!(files[0].url, "https://index.example/f/demo-1.0-py3-none-any.whl");
        assert_eq!(files[0].hashes["sha256"], "ab");
        assert_eq!(files[0].requires_python.as_deref(), Some(">=3.8"));
        assert_eq!(files[0].core_metadata, Some(serde_json::json!({"sha256": "cd"})));
        assert_eq!(files[1].url, "https://index.example/simple/demo/demo-1.1.tar.gz");
        assert_eq!(files[1].yanked, Some(Value::Bool(true)));
    }

    #[test]
    fn files_are_parsed_from_a_json_page_without_foreign_schemes() {
        let text = r#"{"meta":{"api-version":"1.0"},"name":"demo","files":[
            {"filename":"demo-1.0-py3-none-any.whl","url":"/f/a.whl","hashes":{"sha256":"ab"},"dist-info-metadata":true},
            {"filename":"demo-2.0-py3-none-any.whl","url":"file:///etc/passwd","hashes":{}},
            {"filename":"../demo-3.0.whl","url":"/x","hashes":{}}]}"#;
        let files = parse(text.as_bytes(), true, &page()).unwrap();
        assert_eq!(files.len(), 1);
        assert_eq!(files[0].core_metadata, Some(Value::Bool(true)));
    }

    #[test]
    fn garbage_is_an_error_or_nothing() {
        assert!(parse(b"\xff\x00{", true, &page()).is_err());
        for text in [
            "<a",
            "<a href",
            "<a href=",
            "<a =\"x\">",
            "<<<>>>",
            "<a href='x",
            "\0<a\0>",
        ] {
            assert_eq!(parse(text.as_bytes(), false, &page()).unwrap(), vec![], "{text}");
        }
    }

    #[test]
    fn a_page_of_one_endless_tag_gives_nothing_and_a_page_of_many_links_ends_at_the_bound() {
        let endless: String = (0..300_000).map(|number| format!(" a{number}='&#x41;'")).collect();
        assert_eq!(parse(format!("<a{endless}").as_bytes(), false, &page()), Ok(vec![]));
        assert_eq!(parse(format!("<a{endless}>").as_bytes(), false, &page()), Ok(vec![]));
        let many = "<a href=a.whl>".repeat(FILES_MAX + 1);
        assert_eq!(html(&many, &page()).len(), FILES_MAX);
        let file = r#"{"filename":"a.whl","url":"a.whl"}"#;
        let many_files = format!(r#"{{"files":[{}]}}"#, vec![file; FILES_MAX + 1].join(","));
        let read: Page = serde_json::from_str(&many_files).unwrap();
        assert_eq!(read.files.len(), FILES_MAX);
        assert!(parse(br#"{"files":[{"filename":"a.whl","url":"a.whl"},]}"#, true, &page()).is_err());
        assert_eq!(parse(many.as_bytes(), false, &page()).unwrap().len(), FILES_MAX);
    }

    proptest::proptest! {
        #[test]
        fn any_page_is_read(text in "[<>a/ !='\"&#x;h-r\u{0}\u{e9}]{0,200}") {
            parse(text.as_bytes(), false, &page()).unwrap();
        }

        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(proptest::arbitrary::any::<u8>(), 0..500)) {
            parse(&bytes, false, &page()).unwrap();
        }
    }

    #[test]
    fn versions_are_parsed_from_file_names() {
        assert_eq!(
            version_of("scikit_learn-1.5.0-cp311-cp311-linux.whl", "scikit-learn"),
            Some("1.5.0")
        );
        assert_eq!(version_of("scikit-learn-1.5.0.tar.gz", "scikit-learn"), Some("1.5.0"));
        assert_eq!(version_of("readme.txt", "readme"), None);
    }
}
