//! A `java` wrapper for programs inside, with the memory and the processors of the sandbox.
//!
//! Java queries the kernel in ways that no file can answer. It would let its heap grow to a quarter of the machine's
//! memory before it collects garbage. Its option variables (`JAVA_TOOL_OPTIONS`) make each start print a line, so a
//! script comes first on the search path instead. Options of the command line come later and win.

use std::path::PathBuf;

use crate::table::Finder;

/// The path of the script.
const SCRIPT_PATH: &str = "/opt/sandcell/bin/java";

/// Returns the script and its path, if the machine has Java.
pub(crate) fn with_limits(finder: &Finder) -> Option<(PathBuf, String)> {
    let java = finder.path_of("java")?;
    let java = java.to_str().filter(|path| !path.contains('\''))?;
    let options = "-XX:MaxRAM=\"${MEMORY_LIMIT_MB:-512}m\" -XX:MaxRAMPercentage=60 -XX:ActiveProcessorCount=\"${OMP_NUM_THREADS:-1}\"";
    Some((
        PathBuf::from(SCRIPT_PATH),
        format!("#!/bin/sh\nexec '{java}' {options} \"$@\"\n"),
    ))
}
