//! The environment of programs in containers.

use std::collections::BTreeMap;

use sandcell_sandbox::{HOME, SandboxSpec};

/// Returns the environment of every program inside: our variables, the image's, then the caller's.
pub(crate) fn environment(spec: &SandboxSpec, image: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let cores = spec.limits.cpus.as_milli().div_ceil(1000).max(1).to_string();
    let memory = spec.limits.memory.as_mib().to_string();
    let mut env: BTreeMap<String, String> = [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("LANG", "C.UTF-8"),
        ("LC_ALL", "C.UTF-8"),
        ("SHELL", "/bin/sh"),
        ("TERM", "dumb"),
        ("TZ", "UTC"),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect();
    env.extend(image.clone());
    // The image cannot know the writable folders and the limits.
    let own = [
        ("HOME", HOME),
        ("USER", "user"),
        ("LOGNAME", "user"),
        ("TMPDIR", "/tmp"),
        ("MEMORY_LIMIT_MB", memory.as_str()),
        ("OMP_NUM_THREADS", cores.as_str()),
        ("OPENBLAS_NUM_THREADS", cores.as_str()),
        ("GOMAXPROCS", cores.as_str()),
        ("PYTHON_CPU_COUNT", cores.as_str()),
    ];
    env.extend(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
    env.extend(spec.env.clone());
    env
}
