//! Makes packages of a sandbox known to every Python there, not only to its session: programs that code starts, workers,
//! scripts of packages.
//!
//! A `.pth` file among the interpreter's own packages does it. `PYTHONPATH` would be replaced by everybody who sets it for a
//! program of their own, comes before the standard library, and is ignored by `python -I`.

use std::path::PathBuf;

use sandcell_sandbox::{LAYERS, LAYERS_MAX};

use super::PythonRuntime;

/// Its name. A file of that name on the host stays what it is.
const NAME: &str = "sandcell.pth";

/// Run by every start of the interpreter that looks for packages. Packages of sandboxes win over those of the machine, the newest
/// first, as in sessions; `.pth` files of their own count. One line that begins with `import` is all that `site` runs.
const FIND: &str = r"
places = ['LAYERS/%d' % number for number in range(MAX - 1, -1, -1)]
if places[0] not in sys.path:
    at = [number for number, item in enumerate(sys.path) if item.endswith('-packages')] or [len(sys.path)]
    sys.path[at[0]:at[0]] = places
    for place in places:
        if os.path.isdir(place) and any([name.endswith('.pth') for name in os.listdir(place)]):
            site.addsitedir(place)
";

/// The file and its text; none where the interpreter has no folder for packages.
pub(crate) fn layers_file(runtime: &PythonRuntime) -> Option<(PathBuf, String)> {
    let folder = runtime.site.first()?.canonicalize().ok()?;
    Some((folder.join(NAME), text()))
}

/// Python code that makes packages known to the interpreter that runs it, unless they are already. It needs `os`, `site` and `sys`.
pub(super) fn code() -> String {
    FIND.replace("LAYERS", LAYERS).replace("MAX", &LAYERS_MAX.to_string())
}

fn text() -> String {
    let code = code().replace('\n', "\\n");
    format!("import os, site, sys; exec(\"{code}\", {{'os': os, 'site': site, 'sys': sys}})\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_one_line_that_site_runs() {
        let text = text();
        assert!(text.starts_with("import ") && text.ends_with(")\n"), "{text}");
        assert_eq!(text.lines().count(), 1);
        assert!(
            text.contains("'/opt/sandcell/%d' % number for number in range(16 - 1, -1, -1)"),
            "{text}"
        );
    }
}
