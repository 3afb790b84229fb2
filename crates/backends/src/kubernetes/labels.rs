//! Names and labels of our objects in the cluster.

/// On everything that we create; the value is its kind.
pub(super) const KIND_LABEL: &str = "sandcell.dev/kind";
/// On everything that belongs to one server; the value is the server's name.
pub(super) const SERVER_LABEL: &str = "sandcell.dev/server";
/// The kind of a sandbox's Pod.
pub(super) const SANDBOX_KIND: &str = "sandbox";
/// The kind of a server's lease.
pub(super) const SERVER_KIND: &str = "server";

/// Selects the Pods of a server.
pub(super) fn pods_of(server: &str) -> String {
    format!("{KIND_LABEL}={SANDBOX_KIND},{SERVER_LABEL}={server}")
}
