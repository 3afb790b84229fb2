//! The environment variables of a sandbox's programs. The engine adds its own to the caller's before.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sandcell_sandbox::{Image, SYSTEM_PATH, SandboxSpec, TOOLS_PROGRAMS, TOOLS_VARIABLE, program_places};

/// Returns the search path: programs of packages, then of the chosen interpreters, then of the system.
pub(super) fn search_path(programs: &[PathBuf]) -> String {
    let folders = programs.iter().filter_map(|folder| folder.to_str());
    let folders =
        folders.filter(|folder| !folder.contains(':') && !SYSTEM_PATH.split(':').any(|known| known == *folder));
    let places = program_places();
    let all: Vec<&str> = std::iter::once(places.as_str())
        .chain(folders)
        .chain([SYSTEM_PATH])
        .collect();
    all.join(":")
}

/// Returns the environment of every program in a sandbox without an image.
pub(super) fn of_machine(spec: &SandboxSpec, folder: Option<&str>, path: &str) -> BTreeMap<String, String> {
    let home = folder.map_or_else(|| sandcell_sandbox::HOME.to_owned(), |folder| format!("{folder}/home"));
    let temporary = folder.map_or_else(|| "/tmp".to_owned(), |folder| format!("{folder}/tmp"));
    let cores = spec.limits.cpus.as_milli().div_ceil(1000).max(1).to_string();
    let memory = spec.limits.memory.as_mib().to_string();
    // The program `tools` exists only where it works.
    let path = match spec.env.contains_key(TOOLS_VARIABLE) {
        true => format!("{TOOLS_PROGRAMS}:{path}"),
        false => path.to_owned(),
    };
    let own = [
        // For runtimes that would otherwise read the machine's memory, such as Java's.
        ("MEMORY_LIMIT_MB", memory.as_str()),
        ("PATH", path.as_str()),
        ("HOME", home.as_str()),
        ("USER", "user"),
        ("LOGNAME", "user"),
        ("SHELL", "/bin/bash"),
        ("LANG", "C.UTF-8"),
        ("LC_ALL", "C.UTF-8"),
        ("TERM", "dumb"),
        ("TMPDIR", temporary.as_str()),
        ("TZ", "UTC"),
        // Numeric libraries start a thread for each core of the machine, and a sandbox may use fewer.
        ("OMP_NUM_THREADS", cores.as_str()),
        ("OPENBLAS_NUM_THREADS", cores.as_str()),
        // These two ask the kernel for their processors.
        ("GOMAXPROCS", cores.as_str()),
        ("PYTHON_CPU_COUNT", cores.as_str()),
    ];
    let mut env: BTreeMap<String, String> = own
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    env.extend(spec.env.clone());
    env
}

/// Returns the environment of every program in a sandbox of an image: ours, the image's, our limits and private
/// folders, then the caller's.
pub(super) fn of_image(spec: &SandboxSpec, image: &Image) -> BTreeMap<String, String> {
    let mut env = of_machine(
        &SandboxSpec {
            env: BTreeMap::new(),
            ..spec.clone()
        },
        None,
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    );
    env.insert("SHELL".to_owned(), "/bin/sh".to_owned());
    let ours = [
        "HOME",
        "USER",
        "LOGNAME",
        "TMPDIR",
        "MEMORY_LIMIT_MB",
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "GOMAXPROCS",
        "PYTHON_CPU_COUNT",
    ];
    let theirs = image.env.iter().filter(|(name, _)| !ours.contains(&name.as_str()));
    env.extend(theirs.map(|(name, value)| (name.clone(), value.clone())));
    env.extend(spec.env.clone());
    env
}
