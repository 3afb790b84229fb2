//! Translates a sandbox specification into a Pod. No I/O.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use sandcell_sandbox::{HOME, LAYERS, Limits, SandboxSpec};
use serde_json::{Value, json};

use super::config::KubernetesSettings;
use super::labels;
use crate::container::agent_program::{AGENT_FOLDER, AGENT_PATH};

/// The port on which an agent listens.
pub(super) const AGENT_PORT: u16 = 7070;
/// The variable with the key of the link. Programs do not get it, and cannot read it from the agent, which is not dumpable.
const KEY_VARIABLE: &str = "SANDCELL_LINK_KEY";
/// The variable with the Pod's UID.
const NAME_VARIABLE: &str = "SANDCELL_LINK_NAME";
/// The entry of the Secret and of the ConfigMap that hold the key and the agent.
pub(super) const KEY_ENTRY: &str = "key";
/// The only container.
pub(super) const CONTAINER: &str = "sandbox";
/// Memory for the agent and the kernel's process structures. It is added to the limit for programs.
const AGENT_MEMORY_BYTES: u64 = 16 << 20;
/// The maximum lifetime of a Pod, in seconds: one day. Usually the server or the agent ends the Pod long before.
const MAX_LIFETIME_S: u64 = 24 * 60 * 60;
/// The maximum size of packages and temporary files on the node's disk, in bytes.
const NODE_DISK_BYTES: u64 = 2 << 30;

/// Properties that all Pods of a server share.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Common {
    /// The server's name. Its Lease, its Secret and its ConfigMap have the same name.
    pub(super) server: String,
    /// The reference to the Lease. The cluster removes the other objects together with it.
    pub(super) owner: OwnerReference,
    pub(super) settings: KubernetesSettings,
}

/// Returns the Pod of a sandbox.
pub(super) fn body(
    spec: &SandboxSpec,
    name: &str,
    image: &str,
    user: u32,
    common: &Common,
) -> Result<Pod, serde_json::Error> {
    let settings = &common.settings;
    let limits = &spec.limits;
    serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "labels": {
                labels::KIND_LABEL: labels::SANDBOX_KIND,
                labels::SERVER_LABEL: common.server,
            },
            "ownerReferences": [common.owner],
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "activeDeadlineSeconds": MAX_LIFETIME_S,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "hostname": "sandcell",
            "setHostnameAsFQDN": false,
            "shareProcessNamespace": false,
            "runtimeClassName": settings.runtime_class,
            "nodeSelector": node_selector(settings),
            "imagePullSecrets": settings.pull_secrets.iter().map(|name| json!({"name": name})).collect::<Vec<_>>(),
            // Code in a sandbox resolves no names itself: the server does this for sandboxes with a network.
            "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["127.0.0.1"]},
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": user,
                "runAsGroup": user,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": CONTAINER,
                "image": image,
                "imagePullPolicy": settings.pull.as_policy(),
                "command": [
                    AGENT_PATH,
                    "linked",
                    AGENT_PORT.to_string(),
                    limits.memory.as_bytes().to_string(),
                    limits.disk.as_bytes().to_string(),
                    limits.processes.to_string(),
                ],
                "args": [],
                "workingDir": "/",
                "env": [
                    {"name": KEY_VARIABLE, "valueFrom": {"secretKeyRef": {"name": common.server, "key": KEY_ENTRY}}},
                    {"name": NAME_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
                ],
                "ports": [{"name": "agent", "containerPort": AGENT_PORT, "protocol": "TCP"}],
                "resources": {"limits": amounts(limits), "requests": amounts(limits)},
                "securityContext": {
                    "privileged": false,
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "runAsNonRoot": true,
                    "capabilities": {"drop": ["ALL"]},
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "terminationMessagePolicy": "File",
                "volumeMounts": [
                    {"name": "agent", "mountPath": AGENT_FOLDER, "readOnly": true},
                    {"name": "home", "mountPath": HOME},
                    {"name": "tmp", "mountPath": "/tmp"},
                    {"name": "var-tmp", "mountPath": "/var/tmp"},
                    {"name": "shm", "mountPath": "/dev/shm"},
                    {"name": "packages", "mountPath": LAYERS},
                ],
            }],
            "volumes": [
                {"name": "agent", "configMap": {
                    "name": common.server,
                    "defaultMode": 0o555,
                }},
                in_memory("home", limits),
                in_memory("tmp", limits),
                in_memory("var-tmp", limits),
                in_memory("shm", limits),
                {"name": "packages", "emptyDir": {"sizeLimit": NODE_DISK_BYTES.to_string()}},
            ],
        },
    }))
}

/// Returns a private folder in memory.
fn in_memory(name: &str, limits: &Limits) -> Value {
    json!({"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": limits.disk.as_bytes().to_string()}})
}

/// Returns the labels that a node must have.
fn node_selector(settings: &KubernetesSettings) -> BTreeMap<&str, &str> {
    let fixed = [
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", settings.architecture.as_str()),
    ];
    let wanted = settings.node_selector.iter().filter_map(|label| label.split_once('='));
    fixed.into_iter().chain(wanted).collect()
}

/// Returns the amounts that a container may have. The kernel charges files in memory like process memory. The container may
/// have both, and the agent holds processes to their share.
fn amounts(limits: &Limits) -> Value {
    let memory = limits
        .memory
        .as_bytes()
        .saturating_add(limits.disk.as_bytes())
        .saturating_add(AGENT_MEMORY_BYTES);
    json!({
        "memory": memory.to_string(),
        "cpu": format!("{}m", limits.cpus.as_milli().max(10)),
        "ephemeral-storage": NODE_DISK_BYTES.to_string(),
    })
}
