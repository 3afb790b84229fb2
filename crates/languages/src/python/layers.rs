//! Makes a sandbox's packages available to every Python in it, not only to its session: to programs that code starts,
//! workers, and scripts of packages.
//!
//! It uses a `.pth` file among the interpreter's own packages. `PYTHONPATH` would not do: programs that set it for
//! their children replace it, it comes before the standard library, and `python -I` ignores it.

use std::path::PathBuf;

use sandcell_sandbox::{LAYERS, LAYERS_MAX};

use super::PythonRuntime;

/// The file's name. A file of that name on the host is not changed.
const PTH_NAME: &str = "sandcell.pth";

/// Runs at every start of an interpreter with `site`. Packages of sandboxes take precedence over those of the machine,
/// the newest first, as in sessions; their own `.pth` files count. It is one line that begins with `import`, because
/// `site` runs nothing else.
const PTH_SOURCE: &str = r"
places = ['LAYERS/%d' % number for number in range(MAX - 1, -1, -1)]
if places[0] not in sys.path:
    at = [number for number, item in enumerate(sys.path) if item.endswith('-packages')] or [len(sys.path)]
    sys.path[at[0]:at[0]] = places
    for place in places:
        if os.path.isdir(place) and any([name.endswith('.pth') for name in os.listdir(place)]):
            site.addsitedir(place)
";

/// Returns the file and its text; none if the interpreter has no folder for packages.
pub(crate) fn layers_file(runtime: &PythonRuntime) -> Option<(PathBuf, String)> {
    let folder = runtime.site.first()?.canonicalize().ok()?;
    Some((folder.join(PTH_NAME), text()))
}

/// Returns Python code that makes packages available to the interpreter that runs it, unless they are already. It needs
/// `os`, `site` and `sys`.
pub(super) fn code() -> String {
    PTH_SOURCE
        .replace("LAYERS", LAYERS)
        .replace("MAX", &LAYERS_MAX.to_string())
}

fn text() -> String {
    let code = code().replace('\n', "\\n");
    format!("import os, site, sys; exec(\"{code}\", {{'os': os, 'site': site, 'sys': sys}})\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_file_is_one_line_that_site_runs() {
        let text = text();
        assert!(text.starts_with("import ") && text.ends_with(")\n"), "{text}");
        assert_eq!(text.lines().count(), 1);
        assert!(
            text.contains("'/opt/sandcell/%d' % number for number in range(16 - 1, -1, -1)"),
            "{text}"
        );
    }
}
