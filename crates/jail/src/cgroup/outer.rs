//! Reads the limits of the control groups that this process is in. They bound everything that it starts.

use super::find::Mounts;
use super::read;

/// The smallest limit of this kind on the way from this process' group up to the topmost one that it sees. `controller` is the name on
/// version 1, where memory's limit has another file. None: nobody has set one.
#[must_use]
pub fn outer_limit(controller: &str, file: &str) -> Option<u64> {
    let own = read("/proc/self/cgroup").ok()?;
    let mounts = read("/proc/self/mountinfo").ok()?;
    let found = Mounts::parse(&mounts, &own, "");
    let groups = found.own_groups(controller);
    let files = match file {
        "memory.max" => [file, "memory.limit_in_bytes"],
        _ => [file, file],
    };
    let limits = groups.iter().flat_map(|(folder, top)| {
        let ways = std::path::Path::new(folder).ancestors();
        let within = ways
            .take_while(|way| way.starts_with(top))
            .map(|way| way.display().to_string());
        within
            .flat_map(|way| files.map(|file| format!("{way}/{file}")))
            .collect::<Vec<_>>()
    });
    let found = limits.filter_map(|path| read(&path).ok()?.trim().parse::<u64>().ok());
    // Version 1 writes "no limit" as a number that no machine has.
    found.filter(|limit| *limit < 1 << 60).min()
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_no_group_limits_has_no_limit() {
        assert_eq!(super::outer_limit("pids", "no.such.file"), None);
    }
}
