//! Finds the cluster, and opens connections to agents in it.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use sandcell_sandbox::{SandboxError, with_sources};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::cluster::PodState;
use super::config::{Connect, KubernetesSettings};
use super::failure::{shortened, unavailable};
use super::objects::Objects;
use super::pod::AGENT_PORT;
use super::view::View;

/// A variable that the cluster sets in each Pod.
const IN_CLUSTER_VARIABLE: &str = "KUBERNETES_SERVICE_HOST";
const ADVICE: &str = "set `kubernetes.kubeconfig` and `kubernetes.context` so that `kubectl get pods` works with them, or run the server in a Pod";

/// The host and port of the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApiServer {
    pub(super) host: String,
    pub(super) port: u16,
}

/// Reads the configuration of the cluster; does not connect yet.
pub(super) async fn objects(settings: &KubernetesSettings) -> Result<(Objects, ApiServer), SandboxError> {
    let wrong = |error: &(dyn std::error::Error + 'static)| {
        unavailable(
            format!("no cluster is configured: {}", shortened(&with_sources(error))),
            ADVICE,
        )
    };
    let options = KubeConfigOptions {
        context: settings.context.clone(),
        ..KubeConfigOptions::default()
    };
    let config = match &settings.kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path).map_err(|error| wrong(&error))?;
            Config::from_custom_kubeconfig(read, &options)
                .await
                .map_err(|error| wrong(&error))?
        }
        None if settings.context.is_some() => Config::from_kubeconfig(&options).await.map_err(|error| wrong(&error))?,
        None => Config::infer().await.map_err(|error| wrong(&error))?,
    };
    let server = ApiServer {
        host: config.cluster_url.host().unwrap_or_default().to_owned(),
        port: config.cluster_url.port_u16().unwrap_or(443),
    };
    let namespace = settings
        .namespace
        .clone()
        .unwrap_or_else(|| config.default_namespace.clone());
    let client = Client::try_from(config).map_err(|error| wrong(&error))?;
    Ok((Objects { client, namespace }, server))
}

/// The way to agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    PodIp,
    PortForward,
}

impl Way {
    pub(super) fn of(setting: Connect) -> Self {
        match setting {
            Connect::PodIp => Self::PodIp,
            Connect::PortForward => Self::PortForward,
            Connect::Auto if std::env::var_os(IN_CLUSTER_VARIABLE).is_some() => Self::PodIp,
            Connect::Auto => Self::PortForward,
        }
    }
}

/// A connection to an agent.
pub(super) trait AgentStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> AgentStream for S {}

/// A connection of either way.
pub(super) type BoxedStream = Box<dyn AgentStream>;

fn boxed(stream: impl AgentStream + 'static) -> BoxedStream {
    Box::new(stream)
}

/// Connects to the agent of a Pod. The link limits the time.
pub(super) async fn dial(pods: Api<Pod>, pod: Arc<PodState>, way: Way) -> io::Result<BoxedStream> {
    match way {
        Way::PodIp => {
            let View::Running { ip: Some(ip) } = pod.view.borrow().clone() else {
                return Err(io::Error::new(ErrorKind::NotConnected, "the Pod has no address yet"));
            };
            let ip: IpAddr = ip
                .parse()
                .map_err(|_| io::Error::other("the Pod's address is unreadable"))?;
            let stream = TcpStream::connect((ip, AGENT_PORT)).await?;
            stream.set_nodelay(true)?;
            Ok(boxed(stream))
        }
        Way::PortForward => {
            let forwarder = pods.portforward(&pod.life.name, &[AGENT_PORT]).await;
            let mut forwarder = forwarder.map_err(|error| io::Error::other(shortened(&with_sources(&error))))?;
            let stream = forwarder.take_stream(AGENT_PORT);
            stream
                .map(boxed)
                .ok_or_else(|| io::Error::other("the port is not forwarded"))
        }
    }
}
