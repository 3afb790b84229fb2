//! Names in a source and their targets, and packages whose modules have a different name.

use std::collections::BTreeMap;

/// The maximum number of recorded names per source.
const NAMES_MAX: usize = 10_000;

/// The targets of names: imports under another name, and aliases of functions.
#[derive(Debug, Default)]
pub(super) struct Names(BTreeMap<String, String>);

impl Names {
    pub(super) fn bind(&mut self, name: &str, target: &str) {
        if self.0.len() < NAMES_MAX && target.len() < 200 {
            self.0.insert(name.to_owned(), target.to_owned());
        }
    }

    /// Returns the dotted name with its first part replaced by that part's target.
    pub(super) fn resolve(&self, dotted: &str) -> String {
        let (first, rest) = dotted.split_once('.').unwrap_or((dotted, ""));
        match self.0.get(first) {
            Some(target) if rest.is_empty() => target.clone(),
            Some(target) => format!("{target}.{rest}"),
            None => dotted.to_owned(),
        }
    }
}

/// Returns the package that provides a module; most have the same name.
#[must_use]
pub fn distribution(module: &str) -> &str {
    match module {
        "PIL" => "pillow",
        "cv2" => "opencv-python-headless",
        "sklearn" => "scikit-learn",
        "skimage" => "scikit-image",
        "yaml" => "PyYAML",
        "bs4" => "beautifulsoup4",
        "dateutil" => "python-dateutil",
        "dotenv" => "python-dotenv",
        "docx" => "python-docx",
        "pptx" => "python-pptx",
        "fitz" => "PyMuPDF",
        "Crypto" => "pycryptodome",
        "jwt" => "PyJWT",
        "serial" => "pyserial",
        "git" => "GitPython",
        "OpenSSL" => "pyOpenSSL",
        "attr" => "attrs",
        "mpl_toolkits" => "matplotlib",
        other => other,
    }
}
