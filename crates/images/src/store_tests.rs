use super::*;

fn digest(text: &str) -> Digest {
    Digest::of(text.as_bytes())
}

fn put(store: &Store, name: &str, layers: &[&str]) {
    let layers: Vec<Digest> = layers.iter().map(|text| digest(text)).collect();
    for layer in &layers {
        let draft = store.draft().unwrap();
        std::fs::create_dir(draft.path().join("files")).unwrap();
        let record = Layer {
            bytes: 10,
            ..Layer::default()
        };
        store.publish_layer(&draft, layer, &record).unwrap();
    }
    let draft = store.draft().unwrap();
    std::fs::create_dir(draft.path().join("root")).unwrap();
    store.publish_tree(&draft, &tree_key(&layers)).unwrap();
    let name_record = NameRecord {
        name: name.to_owned(),
        digest: digest(name),
        stamp: None,
        env: BTreeMap::new(),
        bytes: 10,
        layers,
        left_out: 0,
        setuid: 0,
    };
    store.remember(&name_record).unwrap();
}

fn store() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path());
    store.prepare().unwrap();
    (folder, store)
}

fn layers(store: &Store) -> usize {
    entries(&store.folder("layers")).len()
}

#[test]
fn images_in_use_and_their_shared_layers_stay() {
    let (_folder, store) = store();
    put(&store, "one", &["base", "one"]);
    put(&store, "two", &["base", "two"]);
    assert_eq!(layers(&store), 3);
    let key = tree_key(&store.name_record("one").unwrap().layers);
    let held = store.tree(&key).unwrap();
    let pruned = store.remove(&|_| true).unwrap().unwrap();
    assert_eq!(pruned, Pruned { images: 1, bytes: 10 });
    assert!(held.0.is_dir() && layers(&store) == 2);
    assert_eq!(store.list().iter().map(|kept| kept.in_use).collect::<Vec<_>>(), [true]);
    drop(held);
    assert_eq!(store.remove(&|_| true).unwrap().unwrap().images, 1);
    assert_eq!(layers(&store), 0);
    assert!(entries(&store.folder("trees")).is_empty() && entries(&store.folder("drafts")).is_empty());
}

#[test]
fn nothing_is_removed_while_an_image_is_pulled() {
    let (_folder, store) = store();
    put(&store, "one", &["one"]);
    let work = store.prevent_removal().unwrap();
    assert_eq!(store.remove(&|_| true).unwrap(), None);
    store.make_room(0, "");
    assert!(store.name_record("one").is_some());
    drop(work);
    assert!(store.remove(&|_| true).unwrap().is_some());
}

#[test]
fn the_least_recently_used_image_is_removed_first() {
    let (_folder, store) = store();
    for (age, name) in [(3, "old"), (2, "middle"), (1, "new")] {
        put(&store, name, &[name]);
        let used = SystemTime::now() - std::time::Duration::from_secs(age * 1000);
        File::open(store.name_file(name)).unwrap().set_modified(used).unwrap();
    }
    store.make_room(20, "new");
    let names: Vec<String> = store.list().into_iter().map(|kept| kept.name).collect();
    assert_eq!(names, ["middle", "new"]);
    store.make_room(0, "new");
    assert_eq!(store.list().len(), 1);
}

#[test]
fn leftovers_of_a_dead_server_are_removed() {
    let (_folder, store) = store();
    // Process 1 is alive, but the draft belongs to an ended server: its id was reused, or came from another PID
    // namespace.
    std::fs::create_dir(store.folder("drafts").join("1-0")).unwrap();
    let own = store.draft().unwrap();
    store.sweep();
    assert_eq!(entries(&store.folder("drafts")), [own.path()]);
}

#[test]
fn the_unpack_program_is_stored_once_in_its_own_folder() {
    let (folder, store) = store();
    let program = folder.path().join("program");
    std::fs::write(&program, "1").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let tool = store.tool(&program).unwrap();
    assert_eq!(store.tool(&program).unwrap(), tool);
    assert_eq!(entries(&tool), [tool.join(UNPACKER_NAME)]);
    assert_eq!(tool.join(UNPACKER_NAME).metadata().unwrap().mode() & 0o777, 0o755);
    assert_eq!(program.metadata().unwrap().mode() & 0o777, 0o700);
    std::fs::write(&program, "22").unwrap();
    assert_ne!(store.tool(&program).unwrap(), tool);
    assert!(!tool.exists());
}
