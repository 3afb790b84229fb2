//! The operator's settings for Pods.

use std::path::PathBuf;

use sandcell_settings::{Kind, SettingType, Value, operator, project};

sandcell_settings::settings! {
    /// The operator's settings for Pods.
    #[derive(Debug, Clone, PartialEq)]
    pub struct KubernetesSettings in "kubernetes." {
        /// The file that names the cluster and the credentials. Empty: `KUBECONFIG`, then `~/.kube/config`, then the service
        /// account of the Pod that this server runs in.
        "kubeconfig" => kubeconfig: Option<PathBuf> = operator(Kind::Path, ""),

        /// The context of that file. Empty: its current context.
        "context" => context: Option<String> = operator(Kind::Text, ""),

        /// The namespace of the Pods. Empty: the namespace of the context or of this server's Pod.
        "namespace" => namespace: Option<String> = operator(Kind::Text, ""),

        /// The image of sandboxes that name none. Its programs are the languages that calls can use.
        "image" => image: String = project(Kind::RequiredText, "python:3.13-slim"),

        /// The RuntimeClass of the Pods. Its handler decides the level of isolation: `runsc` or `gvisor` is gVisor, `kata` is a
        /// micro virtual machine. Empty: the cluster's own choice, which counts as `container`.
        "runtime_class" => runtime_class: Option<String> = operator(Kind::Text, ""),

        /// When nodes pull images: `missing`, `always` or `never`.
        "pull" => pull: Pull = operator(Kind::OneOf(&["missing", "always", "never"]), "missing"),

        /// The names of Secrets with logins for image registries, in the same namespace.
        "pull_secrets" => pull_secrets: Vec<String> = operator(Kind::Texts, ""),

        /// Labels that a node must have, each as `name=value`.
        "node_selector" => node_selector: Vec<String> = operator(Kind::Texts, ""),

        /// The architecture of the nodes, as Kubernetes names it.
        "architecture" => architecture: String = operator(Kind::OneOf(&["amd64", "arm64"]), "amd64"),

        /// How this server reaches the agent of a Pod: `pod_ip` by the Pod's address, which takes a network that leads to Pods;
        /// `port_forward` through the API server; `auto` by the address if this server runs in a Pod.
        "connect" => connect: Connect = operator(Kind::OneOf(&["auto", "pod_ip", "port_forward"]), "auto"),

        /// What keeps code in a Pod from the cluster's network: `policy` is a NetworkPolicy, which is tried before the first
        /// sandbox is handed out; `open` leaves the network open to code.
        "network" => network: NetworkGuard = operator(Kind::OneOf(&["policy", "open"]), "policy"),
    }
}

/// When nodes pull images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pull {
    /// If the node lacks the image.
    Missing,
    /// For each Pod.
    Always,
    /// Never.
    Never,
}

impl Pull {
    /// Returns the name that Kubernetes gives it.
    pub(super) const fn as_policy(self) -> &'static str {
        match self {
            Self::Missing => "IfNotPresent",
            Self::Always => "Always",
            Self::Never => "Never",
        }
    }
}

/// How this server reaches the agent of a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connect {
    /// By the Pod's address if this server runs in a Pod, else through the API server.
    Auto,
    /// By the Pod's address.
    PodIp,
    /// Through the API server.
    PortForward,
}

/// What keeps code in a Pod from the cluster's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkGuard {
    /// A NetworkPolicy that denies everything.
    Policy,
    /// Nothing.
    Open,
}

/// Makes a setting's type of an enumeration whose values are words.
macro_rules! words {
    ($kind:ty, $($word:literal => $value:ident),* $(,)?) => {
        impl SettingType for $kind {
            fn from_value(_key: &str, value: &Value) -> Option<Self> {
                match value {
                    Value::Word(word) => match word.as_ref() {
                        $($word => Some(Self::$value),)*
                        _ => None,
                    },
                    _ => None,
                }
            }
        }
    };
}

words!(Pull, "missing" => Missing, "always" => Always, "never" => Never);
words!(Connect, "auto" => Auto, "pod_ip" => PodIp, "port_forward" => PortForward);
words!(NetworkGuard, "policy" => Policy, "open" => Open);
