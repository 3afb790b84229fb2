//! A caller's package request: `name` or `@scope/name`, each with an optional `@` and a version, a range or a tag.
//! Pure.

use sandcell_sandbox::{Failure, PackageVersion};

/// The maximum number of packages in one request.
const SPECS_MAX: usize = 100;
/// The maximum length of one requested package in bytes.
const SPEC_MAX: usize = 200;

/// The modules that are part of Node.
const BUILT_IN: [&str; 34] = [
    "assert",
    "async_hooks",
    "buffer",
    "child_process",
    "cluster",
    "console",
    "crypto",
    "dgram",
    "diagnostics_channel",
    "dns",
    "domain",
    "events",
    "fs",
    "http",
    "http2",
    "https",
    "inspector",
    "module",
    "net",
    "os",
    "path",
    "perf_hooks",
    "process",
    "querystring",
    "readline",
    "stream",
    "timers",
    "tls",
    "url",
    "util",
    "v8",
    "vm",
    "worker_threads",
    "zlib",
];

/// One requested package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) name: String,
    /// A version, range or tag. The default is `*`.
    pub(crate) range: String,
}

impl Spec {
    /// Returns the text of the question to the user.
    pub(crate) fn shown(&self) -> String {
        match self.range.as_str() {
            "*" => format!("npm:{}", self.name),
            range => format!("npm:{}@{range}", self.name),
        }
    }

    /// Returns true if an installed package certainly satisfies the request.
    pub(crate) fn is_satisfied_by(&self, held: &PackageVersion) -> bool {
        held.name == self.name && (self.range == "*" || self.range == held.version)
    }
}

/// Parses all packages of a request.
pub(crate) fn parse_all(packages: &[String]) -> Result<Vec<Spec>, Failure> {
    if packages.len() > SPECS_MAX {
        return Err(Failure::invalid(
            format!("{} packages are too many", packages.len()),
            format!("ask for at most {SPECS_MAX} at once"),
        ));
    }
    let specs: Vec<Spec> = packages.iter().map(|text| parse(text)).collect::<Result<_, _>>()?;
    if specs.is_empty() {
        return Err(Failure::invalid(
            "no package is named",
            "name one, such as lodash or zod@^3",
        ));
    }
    Ok(specs)
}

fn parse(text: &str) -> Result<Spec, Failure> {
    let shown: String = text.chars().filter(|c| !c.is_control()).take(80).collect();
    let refused = |why: &str| {
        Failure::invalid(
            format!("{shown:?} cannot be installed: {why}"),
            "name packages like lodash, zod@^3 or @types/node@20",
        )
    };
    if text.len() > SPEC_MAX || text.chars().any(char::is_control) {
        return Err(refused("it is too long or has a control character"));
    }
    let text = text.trim();
    if text.starts_with('-') {
        return Err(refused("options are not taken"));
    }
    if text.contains("://") || text.contains("git+") || text.contains(':') {
        return Err(refused(
            "addresses, version control, files and aliases are not accepted",
        ));
    }
    let cut = text.get(1..).and_then(|rest| rest.find('@')).map(|place| place + 1);
    let (name, range) = match cut.and_then(|place| text.split_at_checked(place)) {
        Some((name, range)) => (name, range.trim_start_matches('@').trim()),
        None => (text, "*"),
    };
    if !name.starts_with('@') && (name.contains('/') || name.starts_with('.')) {
        return Err(refused("files and repositories are not accepted"));
    }
    if !is_name(name) {
        return Err(refused("it is not a package name"));
    }
    if BUILT_IN.contains(&name) {
        return Err(refused("it is built in: require it without installing"));
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || b" .*^~<>=|-+".contains(&b);
    if range.is_empty() || range.starts_with('-') || !range.bytes().all(plain) {
        return Err(refused("the text after the name is not a version or range"));
    }
    Ok(Spec {
        name: name.to_owned(),
        range: range.to_owned(),
    })
}

/// Returns true for `name` and `@scope/name` of plain characters.
pub(crate) fn is_name(text: &str) -> bool {
    let word = |word: &str| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~');
        !word.is_empty() && !word.starts_with(['.', '_', '-']) && word.bytes().all(plain)
    };
    let parts = match text.strip_prefix('@') {
        Some(rest) => rest.split_once('/').map(|(scope, name)| word(scope) && word(name)),
        None => Some(word(text)),
    };
    text.len() <= 214 && parts == Some(true) && !matches!(text, "node_modules" | "favicon.ico")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ranges_are_parsed() {
        for (text, name, range) in [
            ("lodash", "lodash", "*"),
            (" zod@^3 ", "zod", "^3"),
            ("@types/node@20.1.0", "@types/node", "20.1.0"),
            ("@types/node", "@types/node", "*"),
            ("express@>=4 <5 || 6.x", "express", ">=4 <5 || 6.x"),
            ("left-pad@latest", "left-pad", "latest"),
        ] {
            let spec = parse(text).unwrap();
            assert_eq!((spec.name.as_str(), spec.range.as_str()), (name, range));
        }
    }

    #[test]
    fn everything_but_a_name_is_refused_with_the_reason() {
        for (text, why) in [
            ("-g", "options"),
            ("--registry=http://evil.example", "options"),
            ("git+ssh://git@host/x", "version control"),
            ("https://evil.example/x.tgz", "addresses"),
            ("file:../x", "files"),
            ("x@npm:y@1", "aliases"),
            ("github:me/x", "version control"),
            ("me/x", "repositories"),
            ("./x", "files"),
            ("../x", "files"),
            ("x@../y", "not a version or range"),
            ("x@", "not a version or range"),
            ("x@-1", "not a version or range"),
            ("x;touch y", "not a package name"),
            ("x@1;y", "not a version or range"),
            ("$(x)", "not a package name"),
            ("l\u{f6}dash", "not a package name"),
            ("a\nb", "control character"),
            ("", "not a package name"),
            ("@", "not a package name"),
            ("@x", "not a package name"),
            ("@x/y/z", "not a package name"),
            ("node_modules", "not a package name"),
            ("fs", "built in"),
        ] {
            let failure = parse(text).unwrap_err();
            assert!(failure.message.contains(why), "{text:?}: {}", failure.message);
        }
        assert!(parse_all(&vec!["x".to_owned(); 101]).is_err() && parse_all(&[]).is_err());
    }
}
