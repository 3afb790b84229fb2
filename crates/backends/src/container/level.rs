//! The level of isolation that a container runtime gives, by its name.

use sandcell_sandbox::Level;

/// Derives the isolation level from a runtime's name in the settings of a daemon or a cluster.
pub(crate) fn of(runtime: &str) -> Level {
    // A name (`runsc-kvm`), a shim (`io.containerd.kata.v2`) or a path, whose folders mean nothing.
    let file = runtime.rsplit('/').next().unwrap_or(runtime);
    let says = |word: &str| {
        file.split('.')
            .any(|part| part == word || part.starts_with(&format!("{word}-")))
    };
    if says("runsc") || says("gvisor") {
        Level::Gvisor
    } else if says("kata") {
        Level::Microvm
    } else {
        Level::Container
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_decides_the_level() {
        for (runtime, wanted) in [
            ("runc", Level::Container),
            ("io.containerd.runc.v2", Level::Container),
            ("crun", Level::Container),
            ("runsc", Level::Gvisor),
            ("runsc-kvm", Level::Gvisor),
            ("io.containerd.runsc.v1", Level::Gvisor),
            ("kata-runtime", Level::Microvm),
            ("io.containerd.kata.v2", Level::Microvm),
            ("/opt/kata/bin/kata-qemu", Level::Microvm),
            ("gvisor", Level::Gvisor),
            ("kata", Level::Microvm),
            ("not-runsc", Level::Container),
        ] {
            assert_eq!(of(runtime), wanted, "{runtime}");
        }
    }
}
