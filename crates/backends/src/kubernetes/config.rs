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

        /// The RuntimeClass of the Pods. The name of its handler decides the level of isolation: `gvisor` for `runsc` or `gvisor`, and
        /// `microvm` for `kata`. Empty: the default of the cluster, with the level `container`.
        "runtime_class" => runtime_class: Option<String> = operator(Kind::Text, ""),

        /// When nodes pull images: `missing`, `always` or `never`.
        "pull" => pull: Pull = operator(Kind::OneOf(&["missing", "always", "never"]), "missing"),

        /// The names of Secrets with logins for image registries, in the same namespace.
        "pull_secrets" => pull_secrets: Vec<String> = operator(Kind::Texts, ""),

        /// Labels that a node must have, each as `name=value`.
        "node_selector" => node_selector: Vec<String> = operator(Kind::Texts, ""),

        /// The architecture of the nodes, as Kubernetes names it.
        "architecture" => architecture: String = operator(Kind::OneOf(&["amd64", "arm64"]), "amd64"),

        /// The way from this server to the agent in a Pod. `pod_ip`: a connection to the address of the Pod; the server's network must
        /// lead to Pods. `port_forward`: a connection through the API server. `auto`: `pod_ip` if this server runs in a Pod, else
        /// `port_forward`.
        "connect" => connect: Connect = operator(Kind::OneOf(&["auto", "pod_ip", "port_forward"]), "auto"),

        /// The network access of code in a Pod. `policy`: none; the server makes a NetworkPolicy, and makes no sandbox if the cluster
        /// does not enforce it. `open`: code can reach everything that Pods can reach.
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

/// The way from this server to the agent in a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connect {
    /// `PodIp` if this server runs in a Pod, else `PortForward`.
    Auto,
    /// A connection to the Pod's address.
    PodIp,
    /// A connection through the API server.
    PortForward,
}

/// The network access of code in a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkGuard {
    /// None, by a NetworkPolicy.
    Policy,
    /// The access that Pods have.
    Open,
}

/// Implements the type of a setting whose values are words.
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
