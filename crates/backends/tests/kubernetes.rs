//! Tests of the Kubernetes back end: the contract of every back end, refusals of a cluster, and the loss of its parts.
//!
//! Needs a cluster (`SANDCELL_TEST_KUBECONFIG`) whose nodes have `SANDCELL_TEST_KUBERNETES_IMAGE`, an image with `sh` and `python3`;
//! `.ci/kubernetes` makes both, and kills parts of the cluster.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test program"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command as Program;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use libtest_mimic::{Failed, Trial};
use sandcell_backends::kubernetes::{
    Connect, KubernetesBackend, KubernetesConfig, KubernetesSettings, NetworkGuard, Pull,
};
use sandcell_sandbox::{
    Backend, ByteSize, Code, Command, Cpus, Degree, EndReason, Exit, Failure, Gathered, Level, Sandbox, SandboxError,
    SandboxSpec, StdinMode, gather,
};
use tokio::time::{Instant, sleep, timeout};

/// The deadline of each case. Fifty Pods at once take long on two processors.
const DEADLINE: Duration = Duration::from_secs(240);
/// The cases of the contract that do not apply.
const WITHOUT: &[(&str, &str)] = &[(
    "too_many_files_are_refused",
    "a folder in memory of a Pod has no limit of files",
)];

fn main() {
    if std::env::var_os("SANDCELL_TEST_KUBECONFIG").is_none() {
        sandcell_contract::skip(
            "kubernetes",
            "not required: no SANDCELL_TEST_KUBECONFIG; `cargo xtask cluster` runs them all",
        );
    }
    macro_rules! trials {
        ($($name:ident),* $(,)?) => {
            vec![$(Trial::test(concat!("kubernetes::", stringify!($name)), || run($name())),)*]
        };
    }
    let more = trials![
        a_sandbox_is_reached_through_the_api_server,
        code_has_the_images_variables_and_learns_nothing_of_the_cluster,
        code_that_floods_the_agents_port_disturbs_no_call,
        a_folder_is_attached,
        alone_fifty_sandboxes_run_at_once_on_two_nodes,
        an_account_without_rights_is_told_what_it_lacks,
        an_image_that_is_missing_is_named,
        a_quota_is_a_limit,
        a_runtime_class_decides_the_level_and_a_missing_one_is_named,
        an_open_network_is_refused_unless_it_was_accepted,
        a_pod_that_somebody_deletes_ends_its_sandbox,
        what_a_killed_server_left_is_removed,
        alone_the_api_server_restarts_and_no_execution_is_lost,
        alone_a_node_is_lost_and_its_sandboxes_end,
        alone_a_killed_agent_ends_its_sandbox,
    ];
    sandcell_contract::run_within(DEADLINE, "kubernetes", WITHOUT, more, || async {
        let backend: Arc<dyn Backend> = start(settings()).await.unwrap();
        backend
    });
}

fn run(test: impl Future<Output = ()>) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let ended = timeout(DEADLINE, test).await;
        ended.map_err(|_| Failed::from("the test did not end in time"))
    })
}

fn settings() -> KubernetesSettings {
    KubernetesSettings {
        kubeconfig: Some(std::env::var_os("SANDCELL_TEST_KUBECONFIG").unwrap().into()),
        context: None,
        namespace: None,
        image: std::env::var("SANDCELL_TEST_KUBERNETES_IMAGE").unwrap(),
        runtime_class: None,
        pull: Pull::Never,
        pull_secrets: vec![],
        node_selector: vec![],
        architecture: "amd64".to_owned(),
        connect: Connect::PodIp,
        // The network plugin of the test cluster does not enforce policies.
        network: NetworkGuard::Open,
    }
}

async fn start(settings: KubernetesSettings) -> Result<Arc<KubernetesBackend>, SandboxError> {
    KubernetesBackend::start(KubernetesConfig {
        settings,
        isolation_min: Level::Container,
        limits_min: Degree::Enforced,
    })
    .await
}

/// Runs a program of the tests' cluster and returns its output.
fn kubectl(arguments: &[&str]) -> String {
    let output = Program::new(std::env::var_os("SANDCELL_TEST_KUBECTL").unwrap())
        .arg("--kubeconfig")
        .arg(std::env::var_os("SANDCELL_TEST_KUBECONFIG").unwrap())
        .args(arguments)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    said
}

/// Kills a part of the cluster, or starts it again.
fn cluster(verb: &str, part: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/kubernetes");
    let status = Program::new(script).args([verb, part]).status().unwrap();
    assert!(status.success(), "{verb} {part}");
}

fn command(sandbox: &dyn Sandbox, code: &str) -> Command {
    Command {
        argv: ["python3", "-c", code].map(str::to_owned).to_vec(),
        env: sandbox.base_env().clone(),
        cwd: sandcell_sandbox::HOME.to_owned(),
        stands_alone: false,
        stdin: StdinMode::Null,
        control: false,
        terminal: None,
    }
}

async fn python(sandbox: &dyn Sandbox, code: &str) -> String {
    let Gathered {
        exit, stdout, stderr, ..
    } = gather(sandbox.spawn(command(sandbox, code)).await.unwrap(), 10_000).await;
    assert_eq!(exit, Some(Exit::Code(0)), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8_lossy(&stdout).into_owned()
}

/// The failure of a back end that cannot start or a sandbox that cannot be made.
async fn failure(settings: KubernetesSettings) -> Failure {
    match start(settings).await {
        Err(error) => error.into(),
        Ok(backend) => {
            let made = backend.create(&SandboxSpec::default()).await;
            backend.shutdown().await;
            made.map(drop).unwrap_err().into()
        }
    }
}

async fn a_sandbox_is_reached_through_the_api_server() {
    let mut settings = settings();
    settings.connect = Connect::PortForward;
    let backend = start(settings).await.unwrap();
    let sandbox = backend.create(&SandboxSpec::default()).await.unwrap();
    assert_eq!(python(&*sandbox, "print(sum(range(10)))").await, "45\n");
    let much = python(&*sandbox, "print('x' * 9000)").await;
    assert_eq!(much.len(), 9001);
    backend.shutdown().await;
}

async fn code_has_the_images_variables_and_learns_nothing_of_the_cluster() {
    let backend = start(settings()).await.unwrap();
    let sandbox = backend.create(&SandboxSpec::default()).await.unwrap();
    let code = "import os, errno
def refused(call):
    try:
        call()
        return 0
    except OSError as error:
        return errno.errorcode[error.errno]
status = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)
print(os.environ.get('FROM_THE_IMAGE'), os.environ['HOME'], os.getuid() >= 30000, [n for n in os.environ if 'KUBERNETES' in n or 'LINK' in n])
print(refused(lambda: open('/proc/1/environ').read()), refused(lambda: open('/proc/1/mem', 'rb')), refused(lambda: os.listdir('/proc/1/fd')))
print(refused(lambda: open('/x', 'w')), refused(lambda: open('/.sandcell/agent', 'r+')), refused(lambda: os.listdir('/var/run/secrets')))
print(int(status['CapEff'], 16), int(status['CapBnd'], 16), status['NoNewPrivs'], status['Seccomp'])
print(refused(lambda: os.kill(1, 9)), refused(lambda: os.setuid(0)))";
    let wanted = "yes /home/user True []\nEACCES EACCES EACCES\nEROFS EACCES ENOENT\n0 0 1 2\n0 EPERM\n";
    assert_eq!(python(&*sandbox, code).await, wanted);
    backend.shutdown().await;
}

async fn code_that_floods_the_agents_port_disturbs_no_call() {
    let backend = start(settings()).await.unwrap();
    let sandbox = backend.create(&SandboxSpec::default()).await.unwrap();
    let code = "import socket, os
kept = []
print('begins', flush=True)
while True:
    try:
        s = socket.create_connection(('127.0.0.1', 7070), 1)
        s.setblocking(False)
        s.send(os.urandom(len(kept) * 7 % 300 + 1))
        kept.append(s)
    except OSError:
        pass
    if len(kept) > 400:
        kept.clear()";
    let mut flood = sandbox.spawn(command(&*sandbox, code)).await.unwrap();
    flood.events.recv().await.unwrap();
    for number in 0..30 {
        let said = timeout(Duration::from_secs(10), python(&*sandbox, &format!("print({number})"))).await;
        assert_eq!(said.expect("a call waits"), format!("{number}\n"));
    }
    assert_eq!(sandbox.ended().now_or_never(), None);
    backend.shutdown().await;
}

async fn a_folder_is_attached() {
    let backend = start(settings()).await.unwrap();
    let sandbox = backend.create(&SandboxSpec::default()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("module")).unwrap();
    std::fs::write(folder.path().join("module/__init__.py"), "answer = 42\n").unwrap();
    let inside = sandbox.attach(folder.path()).await.unwrap();
    let code = format!("import sys; sys.path.insert(0, '{inside}'); import module; print(module.answer)");
    assert_eq!(python(&*sandbox, &code).await, "42\n");
    assert_eq!(sandbox.attachments().unwrap().attached().await, [folder.path()]);
    backend.shutdown().await;
}

async fn alone_fifty_sandboxes_run_at_once_on_two_nodes() {
    let backend = start(settings()).await.unwrap();
    // A Pod requests what it may have, and each node has two processors.
    let mut spec = SandboxSpec::default();
    spec.limits.cpus = Cpus::milli(60);
    spec.limits.memory = ByteSize::mib(64);
    spec.limits.disk = ByteSize::mib(16);
    let all = (0..50).map(|number| {
        let (backend, spec) = (Arc::clone(&backend), spec.clone());
        async move {
            let sandbox = backend.create(&spec).await.unwrap();
            let said = python(&*sandbox, &format!("print({number})")).await;
            assert_eq!(said, format!("{number}\n"));
            sandbox
        }
    });
    let all = futures::future::join_all(all).await;
    let output = "jsonpath={range .items[*]}{.spec.nodeName} {end}";
    let name = pod_of(&*all[0]).await.0;
    let server = name.rsplit_once('-').unwrap().0;
    let nodes = kubectl(&[
        "get",
        "pods",
        "--selector",
        &format!("sandcell.dev/server={server}"),
        "--output",
        output,
    ]);
    for node in ["node1", "node2"] {
        let count = nodes.split_whitespace().filter(|found| *found == node).count();
        assert!(count >= 10, "{count} of 50 Pods are on {node}");
    }
    backend.shutdown().await;
}

async fn an_account_without_rights_is_told_what_it_lacks() {
    let mut settings = settings();
    settings.kubeconfig = Some(std::env::var_os("SANDCELL_TEST_KUBECONFIG_NOBODY").unwrap().into());
    let told = failure(settings).await;
    assert_eq!(told.code, Code::BackendUnavailable, "{told}");
    assert!(told.message.contains("leases"), "{told}");
    assert!(told.remedy.contains("Role"), "{told}");
}

async fn an_image_that_is_missing_is_named() {
    let mut settings = settings();
    settings.image = "sandcell/no-such-image".to_owned();
    let told = failure(settings).await;
    assert_eq!(told.code, Code::ImageUnavailable, "{told}");
    assert!(told.message.contains("sandcell/no-such-image"), "{told}");
}

async fn a_quota_is_a_limit() {
    let namespace = format!("quota-{}", std::process::id());
    kubectl(&["create", "namespace", &namespace]);
    kubectl(&["--namespace", &namespace, "create", "quota", "none", "--hard=pods=0"]);
    let mut settings = settings();
    settings.namespace = Some(namespace.clone());
    let mut told = failure(settings.clone()).await;
    // The namespace's account is made a moment later.
    while told.message.contains("serviceaccount") {
        sleep(Duration::from_millis(200)).await;
        told = failure(settings.clone()).await;
    }
    kubectl(&["delete", "namespace", &namespace, "--wait=false"]);
    assert_eq!(told.code, Code::LimitReached, "{told}");
    assert!(told.message.contains("pods=0"), "{told}");
}

async fn a_runtime_class_decides_the_level_and_a_missing_one_is_named() {
    let mut settings = settings();
    settings.runtime_class = Some("no-such-class".to_owned());
    let told = failure(settings.clone()).await;
    assert!(told.message.contains("no-such-class"), "{told}");
    let name = format!("kata-{}", std::process::id());
    let class = format!(
        r#"{{"apiVersion":"node.k8s.io/v1","kind":"RuntimeClass","metadata":{{"name":"{name}"}},"handler":"other"}}"#
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), class).unwrap();
    kubectl(&["apply", "-f", file.path().to_str().unwrap()]);
    settings.runtime_class = Some(name.clone());
    let backend = start(settings).await.unwrap();
    // The handler decides, and not the name.
    assert_eq!(backend.isolation().level, Level::Container);
    let sandbox = backend.create(&SandboxSpec::default()).await.unwrap();
    assert_eq!(python(&*sandbox, "print(1)").await, "1\n");
    backend.shutdown().await;
    kubectl(&["delete", "runtimeclass", &name]);
}

async fn an_open_network_is_refused_unless_it_was_accepted() {
    let mut settings = settings();
    settings.network = NetworkGuard::Policy;
    let told = failure(settings).await;
    assert_eq!(told.code, Code::IsolationUnavailable, "{told}");
    assert!(told.message.contains("NetworkPolicy"), "{told}");
    assert!(told.remedy.contains("kubernetes.network"), "{told}");
}

/// Returns the names of the Pods with these labels.
fn pods(selector: &str) -> Vec<String> {
    let names = kubectl(&["get", "pods", "--selector", selector, "--output", "name"]);
    names.lines().map(str::to_owned).collect()
}

/// Returns the name and the node of the Pod of a sandbox, which is found by its address.
async fn pod_of(sandbox: &dyn Sandbox) -> (String, String) {
    let ip = python(
        sandbox,
        "print(open('/etc/hosts').read().split('sandcell')[0].split()[-1])",
    )
    .await;
    let field = format!("status.podIP={}", ip.trim());
    let output = "jsonpath={.items[0].metadata.name} {.items[0].spec.nodeName}";
    let found = kubectl(&["get", "pods", "--field-selector", &field, "--output", output]);
    let (name, node) = found.trim().split_once(' ').unwrap();
    (name.to_owned(), node.to_owned())
}

async fn a_pod_that_somebody_deletes_ends_its_sandbox() {
    let backend = start(settings()).await.unwrap();
    let sandbox = backend.create(&SandboxSpec::default()).await.unwrap();
    let (name, _) = pod_of(&*sandbox).await;
    let began = Instant::now();
    kubectl(&["delete", "pod", &name, "--wait=false"]);
    assert_eq!(sandbox.ended().await.reason, EndReason::Removed);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let error = sandbox.spawn(command(&*sandbox, "1")).await.unwrap_err();
    assert!(matches!(error, SandboxError::Gone(EndReason::Removed)), "{error:?}");
    let next = backend.create(&SandboxSpec::default()).await.unwrap();
    assert_eq!(python(&*next, "print(2)").await, "2\n");
    backend.shutdown().await;
}

async fn what_a_killed_server_left_is_removed() {
    // A server in a runtime that ends at once, with all tasks: nothing of it removes anything.
    let killed = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let name = runtime.block_on(async {
            let backend = start(settings()).await.unwrap();
            let sandbox = backend.create(&SandboxSpec::default()).await.unwrap();
            let (name, _) = pod_of(&*sandbox).await;
            std::mem::forget((backend, sandbox));
            name
        });
        runtime.shutdown_background();
        name
    });
    let name = tokio::task::spawn_blocking(|| killed.join().unwrap()).await.unwrap();
    let server = name.rsplit_once('-').unwrap().0.to_owned();
    let selector = format!("sandcell.dev/server={server}");
    assert_eq!(pods(&selector), [format!("pod/{name}")]);
    // As if it had been gone for long.
    let renewal = r#"{"spec":{"renewTime":"2026-01-01T00:00:00.000000Z"}}"#;
    kubectl(&["patch", "lease", &server, "--type=merge", "--patch", renewal]);
    let other = start(settings()).await.unwrap();
    let gone = async {
        while !pods(&selector).is_empty() || kubectl(&["get", "secrets,configmaps,leases"]).contains(&server) {
            sleep(Duration::from_millis(300)).await;
        }
    };
    timeout(Duration::from_secs(75), gone).await.expect("something is left");
    other.shutdown().await;
}

async fn alone_the_api_server_restarts_and_no_execution_is_lost() {
    for connect in [Connect::PodIp, Connect::PortForward] {
        let mut settings = settings();
        settings.connect = connect;
        let backend = start(settings).await.unwrap();
        let sandbox = backend.create(&SandboxSpec::default()).await.unwrap();
        let code = "import time\nfor n in range(60):\n print(n, flush=True)\n time.sleep(0.1)";
        let running = sandbox.spawn(command(&*sandbox, code)).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        cluster("kill", "apiserver");
        sleep(Duration::from_secs(1)).await;
        cluster("again", "apiserver");
        let Gathered { exit, stdout, .. } = gather(running, 10_000).await;
        let wanted: String = (0..60).map(|n| format!("{n}\n")).collect();
        assert_eq!(String::from_utf8_lossy(&stdout), wanted);
        assert_eq!(exit, Some(Exit::Code(0)));
        assert_eq!(python(&*sandbox, "print(3)").await, "3\n");
        // The watch has begun again, too: a new Pod is seen.
        let mut made = backend.create(&SandboxSpec::default()).await;
        for _ in 0..20 {
            if made.is_ok() {
                break;
            }
            sleep(Duration::from_millis(500)).await;
            made = backend.create(&SandboxSpec::default()).await;
        }
        assert_eq!(python(&*made.unwrap(), "print(4)").await, "4\n");
        backend.shutdown().await;
    }
}

async fn alone_a_killed_agent_ends_its_sandbox() {
    let backend = start(settings()).await.unwrap();
    let sandbox = backend.create(&SandboxSpec::default()).await.unwrap();
    let running = sandbox
        .spawn(command(&*sandbox, "import time; time.sleep(1000)"))
        .await
        .unwrap();
    let killed = Program::new("pkill")
        .args(["-9", "-f", "^/.sandcell/agent linked"])
        .status();
    assert!(killed.unwrap().success());
    let began = Instant::now();
    assert_eq!(sandbox.ended().await.reason, EndReason::AgentKilled);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(gather(running, 100).await.exit, None);
    let next = backend.create(&SandboxSpec::default()).await.unwrap();
    assert_eq!(python(&*next, "print(7)").await, "7\n");
    backend.shutdown().await;
}

async fn alone_a_node_is_lost_and_its_sandboxes_end() {
    let backend = start(settings()).await.unwrap();
    let mut all: BTreeMap<String, Vec<Arc<dyn Sandbox>>> = BTreeMap::new();
    while all.len() < 2 {
        let sandbox = backend.create(&SandboxSpec::default()).await.unwrap();
        let (_, node) = pod_of(&*sandbox).await;
        all.entry(node).or_default().push(sandbox);
    }
    let running = {
        let lost = &all["node2"][0];
        lost.spawn(command(&**lost, "import time; time.sleep(1000)"))
            .await
            .unwrap()
    };
    cluster("kill", "node2");
    let began = Instant::now();
    for sandbox in &all["node2"] {
        let reason = sandbox.ended().await.reason;
        assert!(matches!(reason, EndReason::NodeLost | EndReason::Removed), "{reason:?}");
    }
    println!("noticed after {:?}", began.elapsed());
    // The program that ran there does not hang.
    assert_eq!(gather(running, 100).await.exit, None);
    for sandbox in &all["node1"] {
        assert_eq!(python(&**sandbox, "print(5)").await, "5\n");
    }
    let next = backend.create(&SandboxSpec::default()).await.unwrap();
    assert_eq!(python(&*next, "print(6)").await, "6\n");
    cluster("again", "node2");
    let ready = async {
        while !kubectl(&["get", "node", "node2"]).contains(" Ready") {
            sleep(Duration::from_millis(300)).await;
        }
    };
    timeout(Duration::from_secs(40), ready)
        .await
        .expect("the node does not come back");
    backend.shutdown().await;
}
