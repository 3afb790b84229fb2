//! How containers and volumes of ours are told from others, and those of a server that is gone from those of one that lives.

use std::collections::HashMap;

/// On everything of ours; the value says what it is.
pub(super) const KIND: &str = "dev.sandcell";
/// The server that made it: machine, process id and when that process began.
pub(super) const SERVER: &str = "dev.sandcell.server";

/// The kind of an image that something was installed into.
pub(super) const IMAGE: &str = "image";
/// On such an image: the name and the digest of what it was made of, and the languages that were added.
pub(super) const NAME: &str = "dev.sandcell.of";
const DIGEST: &str = "dev.sandcell.of.digest";
pub(super) const ADDS: &str = "dev.sandcell.adds";

/// Of an image that languages were installed into.
pub(super) fn of_image(name: &str, digest: &str, adds: &str) -> HashMap<String, String> {
    [(KIND, IMAGE), (NAME, name), (DIGEST, digest), (ADDS, adds)]
        .map(|(label, value)| (label.to_owned(), value.to_owned()))
        .into()
}

/// Of the volume with the agent.
pub(super) fn of_agent() -> HashMap<String, String> {
    HashMap::from([(KIND.to_owned(), "agent".to_owned())])
}

/// Of a container's volume for packages.
pub(super) fn of_packages() -> HashMap<String, String> {
    HashMap::from([(KIND.to_owned(), "packages".to_owned())])
}

pub(super) fn of_container() -> HashMap<String, String> {
    HashMap::from([
        (KIND.to_owned(), "sandbox".to_owned()),
        (SERVER.to_owned(), this_server()),
    ])
}

/// This process, told from every other one that may use the same daemon.
pub(super) fn this_server() -> String {
    let pid = std::process::id();
    format!("{}/{pid}/{}", machine(), began(pid).unwrap_or_default())
}

/// Whether the server of this label is certainly gone: one of this machine whose process is no more. Others are never
/// judged.
pub(super) fn is_gone(server: &str) -> bool {
    let mut parts = server.rsplitn(3, '/');
    let (Some(start), Some(pid), Some(at)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let Ok(pid) = pid.parse() else { return false };
    at == machine() && !at.is_empty() && began(pid).unwrap_or_default() != start
}

/// This start of this machine, as seen from this process namespace; empty where it cannot be told.
fn machine() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    match (boot.trim(), namespace.to_string_lossy().as_ref()) {
        ("", _) | (_, "") => String::new(),
        (boot, namespace) => format!("{boot}/{namespace}"),
    }
}

/// When a process began, in the kernel's ticks.
fn began(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_gone_when_its_process_is() {
        let own = this_server();
        assert!(!is_gone(&own));
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id();
        let other = format!("{}/{pid}/{}", machine(), began(pid).unwrap());
        assert!(!is_gone(&other));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_gone(&other));
        // The number was given out again.
        assert!(is_gone(&format!("{}/{}/1", machine(), std::process::id())));
    }

    #[test]
    fn servers_of_other_machines_and_strange_labels_are_left_alone() {
        for label in ["", "/", "a/b/c", "other/pid:[1]/999999/1", "//1/1", "x/999999999/1"] {
            assert!(!is_gone(label), "{label}");
        }
    }
}
