//! `java` as programs inside find it: with the memory and the processors of the sandbox.
//!
//! Java asks the kernel in ways that no file answers, and would take a quarter of the machine's memory for its heap before it
//! collects anything. Its variables for options (`JAVA_TOOL_OPTIONS`) make each start of it print a line, so a script stands
//! first on the search path. Options of the command line come later and win.

use std::path::PathBuf;

use crate::table::Finder;

/// The path of the script.
const PLACE: &str = "/opt/sandcell/bin/java";

/// The script and its place, where the machine has Java.
pub(crate) fn with_limits(finder: &Finder) -> Option<(PathBuf, String)> {
    let java = finder.path_of("java")?;
    let java = java.to_str().filter(|path| !path.contains('\''))?;
    let options = "-XX:MaxRAM=\"${MEMORY_LIMIT_MB:-512}m\" -XX:MaxRAMPercentage=60 -XX:ActiveProcessorCount=\"${OMP_NUM_THREADS:-1}\"";
    Some((
        PathBuf::from(PLACE),
        format!("#!/bin/sh\nexec '{java}' {options} \"$@\"\n"),
    ))
}
