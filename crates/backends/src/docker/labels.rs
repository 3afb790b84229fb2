//! Labels that mark our containers and volumes, and that distinguish dead servers from live ones.

use std::collections::HashMap;

/// On everything that we create; the value is its kind.
pub(super) const KIND_LABEL: &str = "dev.sandcell";
/// The server that created it: machine, process id and the process' start time.
pub(super) const SERVER_LABEL: &str = "dev.sandcell.server";

/// The kind of an image with added languages.
pub(super) const IMAGE_KIND: &str = "image";
/// Labels of such an image: name and digest of its base image, and the added languages.
pub(super) const BASE_NAME_LABEL: &str = "dev.sandcell.of";
const BASE_DIGEST_LABEL: &str = "dev.sandcell.of.digest";
pub(super) const LANGUAGES_LABEL: &str = "dev.sandcell.adds";

/// Labels of an image with added languages.
pub(super) fn of_image(name: &str, digest: &str, adds: &str) -> HashMap<String, String> {
    [
        (KIND_LABEL, IMAGE_KIND),
        (BASE_NAME_LABEL, name),
        (BASE_DIGEST_LABEL, digest),
        (LANGUAGES_LABEL, adds),
    ]
    .map(|(label, value)| (label.to_owned(), value.to_owned()))
    .into()
}

/// Labels of the agent's volume.
pub(super) fn of_agent() -> HashMap<String, String> {
    HashMap::from([(KIND_LABEL.to_owned(), "agent".to_owned())])
}

/// Labels of a container's volume for packages.
pub(super) fn of_packages() -> HashMap<String, String> {
    HashMap::from([(KIND_LABEL.to_owned(), "packages".to_owned())])
}

pub(super) fn of_container() -> HashMap<String, String> {
    HashMap::from([
        (KIND_LABEL.to_owned(), "sandbox".to_owned()),
        (SERVER_LABEL.to_owned(), this_server()),
    ])
}

/// Identifies this process among all servers that use the same daemon.
pub(super) fn this_server() -> String {
    let pid = std::process::id();
    format!("{}/{pid}/{}", machine(), began(pid).unwrap_or_default())
}

/// Returns true if the server of this label is certainly gone: its machine is this one, and its process has ended.
/// Servers of other machines never count as gone.
pub(super) fn is_gone(server: &str) -> bool {
    let mut parts = server.rsplitn(3, '/');
    let (Some(start), Some(pid), Some(at)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let Ok(pid) = pid.parse() else { return false };
    at == machine() && !at.is_empty() && began(pid).unwrap_or_default() != start
}

/// Identifies this boot of this machine and this PID namespace; empty if either is unknown.
fn machine() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    match (boot.trim(), namespace.to_string_lossy().as_ref()) {
        ("", _) | (_, "") => String::new(),
        (boot, namespace) => format!("{boot}/{namespace}"),
    }
}

/// Returns a process' start time, in clock ticks since boot.
fn began(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_counts_as_ended_when_its_process_has_ended() {
        let own = this_server();
        assert!(!is_gone(&own));
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id();
        let other = format!("{}/{pid}/{}", machine(), began(pid).unwrap());
        assert!(!is_gone(&other));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_gone(&other));
        // The process id was used again.
        assert!(is_gone(&format!("{}/{}/1", machine(), std::process::id())));
    }

    #[test]
    fn servers_of_other_machines_and_strange_labels_are_left_alone() {
        for label in ["", "/", "a/b/c", "other/pid:[1]/999999/1", "//1/1", "x/999999999/1"] {
            assert!(!is_gone(label), "{label}");
        }
    }
}
