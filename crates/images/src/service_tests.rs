use super::*;
use sandcell_sandbox::{Isolation, LayerReport, Level, Sandbox, SandboxSpec};

/// A back end that makes no sandbox.
#[derive(Debug)]
struct NoBackend(Isolation);

#[async_trait]
impl Backend for NoBackend {
    fn name(&self) -> &'static str {
        "none"
    }

    fn isolation(&self) -> &Isolation {
        &self.0
    }

    fn layers(&self) -> &[LayerReport] {
        &[]
    }

    async fn create(&self, _spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        Err(SandboxError::Unsupported("everything".to_owned()))
    }

    async fn shutdown(&self) {}
}

/// Returns a store with one layer that belongs to no name yet, as in the middle of a pull.
fn store_with_a_layer() -> (tempfile::TempDir, Store, Digest) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path());
    store.prepare().unwrap();
    let (draft, digest) = (store.draft().unwrap(), Digest::of(b"layer"));
    std::fs::create_dir(draft.path().join("files")).unwrap();
    std::fs::write(draft.path().join("files/here"), "text").unwrap();
    store.publish_layer(&draft, &digest, &Layer::default()).unwrap();
    (folder, store, digest)
}

#[test]
fn an_aborted_pull_that_still_writes_keeps_its_layers_and_its_permit() {
    let (_folder, store, digest) = store_with_a_layer();
    let permits = Arc::new(Semaphore::new(1));
    // The only blocking thread is busy, so the work is still queued when its caller gives up.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    runtime.block_on(async {
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || gone.recv());
        let held = Arc::new(PullGuard {
            _lock: store.prevent_removal().unwrap(),
            _permit: Arc::clone(&permits).try_acquire_owned().unwrap(),
        });
        let mut work = Box::pin(build_tree(
            store.clone(),
            held,
            vec![digest.clone()],
            vec![Layer::default()],
        ));
        assert!(futures::poll!(&mut work).is_pending());
        drop(work);
        assert_eq!(store.remove(&|_| true).unwrap(), None, "it is not over");
        store.make_room(0, "none");
        assert!(store.layer(&digest).unwrap().1.join("here").exists());
        assert_eq!(permits.available_permits(), 0);
        drop(go);
        let _ = busy.await.unwrap();
        tokio::task::spawn_blocking(|| {}).await.unwrap();
    });
    let tree = store.tree(&tree_key(std::slice::from_ref(&digest))).unwrap();
    assert_eq!(std::fs::read_to_string(tree.0.join("here")).unwrap(), "text");
    assert_eq!(permits.available_permits(), 1);
    drop(tree);
    assert!(store.remove(&|_| true).unwrap().is_some() && store.layer(&digest).is_none());
}

#[test]
fn a_runtime_shutdown_blocks_no_caller() {
    let folder = tempfile::tempdir().unwrap();
    let images = LocalImages::new(Config {
        data: folder.path().to_owned(),
        program: PathBuf::new(),
        allow: Vec::new(),
        folders: Vec::new(),
        pull: true,
        insecure: Vec::new(),
        mirrors: Vec::new(),
        logins: Vec::new(),
        download_max: 0,
        unpacked_max: 0,
        kept_max: 0,
    });
    let backend: Arc<dyn Backend> = Arc::new(NoBackend(Isolation {
        backend: "none".to_owned(),
        level: Level::Process,
        memory: None,
        layers: Vec::new(),
        degraded: Vec::new(),
    }));
    let (result_sender, seen) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let handle = runtime.handle().clone();
        drop(runtime);
        let _entered = handle.enter();
        let stage = images.join("localhost:1/a".parse().unwrap(), backend).unwrap();
        let left = images.pulls.lock().unwrap().len();
        result_sender.send((stage.has_changed().is_err(), left)).unwrap();
    });
    assert_eq!(seen.recv_timeout(Duration::from_secs(20)), Ok((true, 0)));
}
