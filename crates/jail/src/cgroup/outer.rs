//! Reads the memory limit of the cgroups that this process is in. It applies to all processes that it starts.

use super::find::Mounts;
use super::read;

/// Returns the smallest memory limit, in bytes, from this process's group up to the topmost visible one. None if no
/// limit is set.
#[must_use]
pub fn outer_memory_limit() -> Option<u64> {
    const LIMIT_FILES: [&str; 2] = ["memory.max", "memory.limit_in_bytes"];
    let own = read("/proc/self/cgroup").ok()?;
    let mounts = read("/proc/self/mountinfo").ok()?;
    let found = Mounts::parse(&mounts, &own, "");
    let groups = found.own_groups("memory");
    let limits = groups.iter().flat_map(|(folder, top)| {
        let ways = std::path::Path::new(folder).ancestors();
        let within = ways
            .take_while(|way| way.starts_with(top))
            .map(|way| way.display().to_string());
        within
            .flat_map(|way| LIMIT_FILES.map(|file| format!("{way}/{file}")))
            .collect::<Vec<_>>()
    });
    limits.filter_map(|path| parse(&read(&path).ok()?)).min()
}

/// Reads a limit. Version 1 writes "no limit" as a number that no machine has.
fn parse(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|limit| *limit < 1 << 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_and_unlimited_mean_no_limit_in_both_versions() {
        let read = ["max\n", "9223372036854771712\n", "42\n"].map(parse);
        assert_eq!(read, [None, None, Some(42)]);
    }
}
