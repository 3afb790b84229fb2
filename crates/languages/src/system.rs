//! The distribution packages that provide a language, for images that lack it.

/// A language that package managers of images can install.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemPackages {
    /// The language's name.
    pub language: &'static str,
    /// Programs, any of which provides it.
    pub programs: &'static [&'static str],
    /// Its packages on Debian and derived distributions.
    pub apt: &'static [&'static str],
    /// Its packages on Alpine.
    pub apk: &'static [&'static str],
}

const fn called(
    language: &'static str,
    programs: &'static [&'static str],
    apt: &'static [&'static str],
    apk: &'static [&'static str],
) -> SystemPackages {
    SystemPackages {
        language,
        programs,
        apt,
        apk,
    }
}

/// The known languages.
pub const SYSTEM_PACKAGES: &[SystemPackages] = &[
    called("python", &["python3", "python"], &["python3"], &["python3"]),
    called("javascript", &["node"], &["nodejs"], &["nodejs"]),
    called("bash", &["bash"], &["bash"], &["bash"]),
    called("ruby", &["ruby"], &["ruby"], &["ruby"]),
    called("perl", &["perl"], &["perl"], &["perl"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_system_entry_is_a_language_with_packages_and_programs() {
        let names: Vec<String> = crate::table::built_in().into_iter().map(|entry| entry.name).collect();
        for known in SYSTEM_PACKAGES {
            let is_known = known.language == "python" || names.iter().any(|name| name == known.language);
            assert!(is_known, "{}", known.language);
            assert!(!known.programs.is_empty() && !known.apt.is_empty() && !known.apk.is_empty());
        }
    }
}
