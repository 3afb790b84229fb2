//! Names: what they stand for in a source, and what packages bring modules that are called otherwise.

use std::collections::BTreeMap;

/// The most names that are remembered of one source.
const NAMES_MAX: usize = 10_000;

/// What names stand for: imports under another name, and names that were given to functions.
#[derive(Debug, Default)]
pub(super) struct Names(BTreeMap<String, String>);

impl Names {
    pub(super) fn bind(&mut self, name: &str, target: &str) {
        if self.0.len() < NAMES_MAX && target.len() < 200 {
            self.0.insert(name.to_owned(), target.to_owned());
        }
    }

    /// The dotted name with its first part replaced by what it stands for.
    pub(super) fn resolve(&self, dotted: &str) -> String {
        let (first, rest) = dotted.split_once('.').unwrap_or((dotted, ""));
        match self.0.get(first) {
            Some(target) if rest.is_empty() => target.clone(),
            Some(target) => format!("{target}.{rest}"),
            None => dotted.to_owned(),
        }
    }
}

/// The package that brings a module, where it is called otherwise.
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
