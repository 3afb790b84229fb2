//! Rich values that code displays, as artifacts: one for each, in its best representation.

use bytes::Bytes;
use sandcell_sandbox::MimeBundle;

use crate::Artifact;
use crate::admission::policy::bytes_of;

/// The maximum number of artifacts of one execution.
const MAX_ARTIFACTS: usize = 64;
/// The maximum size of one execution's artifacts together, in bytes.
const MAX_ARTIFACT_BYTES: u64 = 16 << 20;

/// Representations that become an artifact, best first, with the file name's extension. Text is not among them: it is
/// part of the output.
const PICTURE_TYPES: [(&str, &str); 5] = [
    ("image/png", "png"),
    ("image/jpeg", "jpg"),
    ("image/gif", "gif"),
    ("image/webp", "webp"),
    ("image/svg+xml", "svg"),
];
const DOCUMENT_TYPES: [(&str, &str); 6] = [
    ("audio/wav", "wav"),
    ("audio/mpeg", "mp3"),
    ("application/pdf", "pdf"),
    ("text/html", "html"),
    ("application/json", "json"),
    ("text/markdown", "md"),
];

/// The specifications of interactive charts: separate artifacts in addition to picture and page.
const CHART_TYPES: [(&str, &str); 3] = [
    ("application/vnd.sandcell.chart+json", "chart.json"),
    ("application/vnd.plotly.v1+json", "plotly.json"),
    ("application/vnd.vegalite.v5+json", "vegalite.json"),
];
/// The MIME type that marks a table. Only a table's text is useful.
const TABLE_MIME: &str = "application/vnd.sandcell.table+json";

/// The trace of a displayed value in the output.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OutputTrace {
    /// Its text.
    Text(String),
    /// The name and the text of its picture, which is an artifact.
    Picture(String),
    /// Nothing.
    None,
}

/// The artifacts of an execution, bounded.
#[derive(Debug, Default)]
pub(crate) struct Artifacts {
    pub(crate) all: Vec<Artifact>,
    bytes: u64,
    dropped: u32,
}

impl Artifacts {
    /// Adds the values of a `display()` call.
    pub(crate) fn display(&mut self, bundle: &MimeBundle) -> OutputTrace {
        let text = Some(bundle.text()).filter(|text| !text.is_empty());
        let picture = best(bundle, &PICTURE_TYPES);
        let pictured = picture.is_some();
        let mut name = None;
        if let Some((mime, end, bytes)) = picture {
            name = self.push("plot", end, mime, bytes, text.clone());
        }
        let interactive = self.charts(bundle);
        if (interactive || !pictured)
            && bundle.get(TABLE_MIME).is_none()
            && let Some((mime, end, bytes)) = best(bundle, &DOCUMENT_TYPES)
        {
            self.push("display", end, mime, bytes, text.clone());
        }
        match (text, name) {
            (text, Some(name)) => OutputTrace::Picture(match text {
                Some(text) => format!("{name}: {text}"),
                None => name,
            }),
            (Some(text), None) if !pictured => OutputTrace::Text(text),
            (_, None) => OutputTrace::None,
        }
    }

    /// Adds the data of charts. Returns true if one of them is interactive in a page.
    fn charts(&mut self, bundle: &MimeBundle) -> bool {
        let mut interactive = false;
        for (mime, end) in CHART_TYPES {
            if let Some(bytes) = bundle.get(mime).filter(|bytes| !bytes.is_empty()) {
                interactive |= end != "chart.json";
                self.push("plot", end, mime, bytes.clone(), None);
            }
        }
        interactive
    }

    /// Adds the last expression's value. Its text is the result. Pictures, charts and sounds are artifacts. The HTML
    /// page of a value is one, too, but not that of a table.
    pub(crate) fn result(&mut self, bundle: &MimeBundle) {
        let text = || Some(bundle.text()).filter(|text| !text.is_empty());
        if let Some((mime, end, bytes)) = best(bundle, &PICTURE_TYPES) {
            self.push("plot", end, mime, bytes, text());
        }
        let interactive = self.charts(bundle);
        if let Some((mime, end, bytes)) = best(bundle, &DOCUMENT_TYPES)
            && (interactive || !matches!(end, "json" | "md"))
            && (interactive || end != "html" || bundle.get(TABLE_MIME).is_none())
        {
            self.push("display", end, mime, bytes, text());
        }
    }

    /// Adds one, if there is room. Returns its name.
    fn push(&mut self, stem: &str, end: &str, mime: &str, bytes: Bytes, text: Option<String>) -> Option<String> {
        let size = bytes_of(bytes.len());
        if self.all.len() >= MAX_ARTIFACTS || self.bytes.saturating_add(size) > MAX_ARTIFACT_BYTES {
            self.dropped = self.dropped.saturating_add(1);
            return None;
        }
        self.bytes += size;
        let number = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        let name = format!("{stem}-{}.{end}", number.saturating_add(1));
        self.all.push(Artifact {
            number,
            name: name.clone(),
            mime: mime.to_owned(),
            bytes,
            shown: true,
            text,
        });
        Some(name)
    }

    /// Adds a requested file. The caller checks the bound on these files.
    pub(crate) fn file(&mut self, name: &str, bytes: Bytes) {
        self.bytes = self.bytes.saturating_add(bytes_of(bytes.len()));
        self.all.push(Artifact {
            number: u32::try_from(self.all.len()).unwrap_or(u32::MAX),
            name: name.to_owned(),
            mime: mime_of(name, &bytes).to_owned(),
            bytes,
            shown: false,
            text: None,
        });
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns a sentence about dropped artifacts.
    pub(crate) fn notice(&self) -> Option<String> {
        (self.dropped > 0).then(|| {
            format!(
                "{} displayed values were dropped: one execution keeps {MAX_ARTIFACTS} with {} MiB together",
                self.dropped,
                MAX_ARTIFACT_BYTES >> 20
            )
        })
    }
}

fn best<'a>(bundle: &MimeBundle, kinds: &'a [(&str, &str)]) -> Option<(&'a str, &'a str, Bytes)> {
    kinds.iter().find_map(|(mime, end)| {
        let bytes = bundle.get(mime).filter(|bytes| !bytes.is_empty())?;
        Some((*mime, *end, bytes.clone()))
    })
}

/// Returns a file's MIME type by its name, else by a check for text.
fn mime_of(name: &str, bytes: &[u8]) -> &'static str {
    let end = name.rsplit_once('.').map(|(_, end)| end.to_ascii_lowercase());
    match end.as_deref().unwrap_or_default() {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "svg" => "image/svg+xml",
        "pdf" => "application/pdf",
        "json" => "application/json",
        "csv" => "text/csv",
        "html" | "htm" => "text/html",
        "md" => "text/markdown",
        "zip" => "application/zip",
        "gz" | "tgz" => "application/gzip",
        "parquet" => "application/vnd.apache.parquet",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        _ if std::str::from_utf8(bytes).is_ok_and(|text| !text.contains('\0')) => "text/plain",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(parts: &[(&str, &[u8])]) -> MimeBundle {
        MimeBundle(
            parts
                .iter()
                .map(|(mime, bytes)| ((*mime).to_owned(), Bytes::copy_from_slice(bytes)))
                .collect(),
        )
    }

    #[test]
    fn a_plot_is_one_picture_with_a_text_stand_in() {
        let mut artifacts = Artifacts::default();
        let text = artifacts.display(&bundle(&[
            ("text/plain", b"<Figure>"),
            ("image/png", b"PNG"),
            ("text/html", b"<img>"),
        ]));
        assert_eq!(text, OutputTrace::Picture("plot-1.png: <Figure>".to_owned()));
        assert_eq!(artifacts.all.len(), 1);
        assert_eq!(
            (artifacts.all[0].name.as_str(), artifacts.all[0].text.as_deref()),
            ("plot-1.png", Some("<Figure>"))
        );
    }

    #[test]
    fn displayed_text_is_part_of_the_output() {
        let mut artifacts = Artifacts::default();
        assert_eq!(
            artifacts.display(&bundle(&[("text/plain", b"hello")])),
            OutputTrace::Text("hello".to_owned())
        );
        assert!(artifacts.all.is_empty());
    }

    #[test]
    fn too_many_or_too_large_artifacts_are_dropped_and_reported() {
        let mut artifacts = Artifacts::default();
        for _ in 0..70 {
            artifacts.display(&bundle(&[("image/png", b"x")]));
        }
        assert_eq!(artifacts.all.len(), 64);
        assert!(
            artifacts
                .notice()
                .is_some_and(|text| text.starts_with("6 displayed values"))
        );
        let mut artifacts = Artifacts::default();
        let huge = vec![0; (10 << 20) + 1];
        artifacts.display(&bundle(&[("image/png", &huge)]));
        artifacts.display(&bundle(&[("image/png", &huge)]));
        assert_eq!(artifacts.all.len(), 1);
    }

    #[test]
    fn files_get_a_mime_type_from_their_name_or_their_bytes() {
        for (name, bytes, mime) in [
            ("a.CSV", &b"1,2"[..], "text/csv"),
            ("noend", b"text", "text/plain"),
            ("noend", b"\xff\x00", "application/octet-stream"),
        ] {
            assert_eq!(mime_of(name, bytes), mime);
        }
    }
}
