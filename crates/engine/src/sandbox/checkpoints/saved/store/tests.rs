use super::*;

fn image(folder: &Path, bytes: &[u8]) -> StateImage {
    let path = folder.join("image");
    fs::write(&path, bytes).unwrap();
    let file = ImageFile {
        file: Arc::new(File::open(path).unwrap()),
        position: 0,
        bytes: u64::try_from(bytes.len()).unwrap(),
        shared: true,
    };
    StateImage {
        files: file.clone(),
        memory: Some(file),
    }
}

fn write(
    store: &Store,
    owner: &Principal,
    name: &str,
    description: Description,
    image: &StateImage,
    bounds: StoreBounds,
) -> Result<(), WriteError> {
    let lock = store.lock(owner).unwrap().unwrap();
    Store::write(&lock, name, description, image, bounds)
}

fn remove(store: &Store, owner: &Principal, name: &str) -> bool {
    Store::remove(&store.lock(owner).unwrap().unwrap(), name).unwrap()
}

fn owner(name: &str) -> Principal {
    Principal(Arc::from(name))
}

const STORE_BOUNDS: StoreBounds = StoreBounds {
    states: 2,
    bytes: 1 << 30,
};

fn contents(image: &ImageFile) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut file = image.file.as_ref();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_state_is_written_read_replaced_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path().join("saved"));
    let (mine, other) = (owner("a"), owner("b"));
    assert_eq!(store.list(&mine).unwrap(), []);
    assert!(store.read(&mine, "one", false).unwrap().is_none());
    assert!(!remove(&store, &mine, "one"));
    for text in ["first", "second"] {
        // A block of zeros, and a part of a block.
        let mut bytes = vec![0; COPY_BYTES + 10];
        bytes.extend_from_slice(text.as_bytes());
        let image = image(folder.path(), &bytes);
        let description = Description {
            sandbox_id: text.to_owned(),
            ..Description::of(&image)
        };
        write(&store, &mine, "one", description, &image, STORE_BOUNDS).unwrap();
        let (read, opened) = store.read(&mine, "one", false).unwrap().unwrap();
        assert_eq!(read.sandbox_id, text);
        assert_eq!(contents(&opened.files), bytes);
        assert_eq!(contents(opened.memory.as_ref().unwrap()), bytes);
    }
    assert_eq!(store.list(&mine).unwrap().len(), 1);
    assert_eq!(folders(&store, &mine), 1);
    assert_eq!(store.list(&other).unwrap(), []);
    assert!(store.read(&other, "one", false).unwrap().is_none());
    let opened = store.read(&mine, "one", true).unwrap().unwrap().1;
    assert!(opened.memory.is_none());
    assert!(remove(&store, &mine, "one"));
    assert_eq!(store.list(&mine).unwrap(), []);
    assert_eq!(folders(&store, &mine), 0);
    // One that was opened before can still be read.
    assert!(contents(&opened.files).ends_with(b"second"));
}

/// Returns the number of folders of states.
fn folders(store: &Store, owner: &Principal) -> usize {
    let entries = fs::read_dir(store.of(owner)).unwrap();
    entries
        .filter(|entry| entry.as_ref().unwrap().file_type().unwrap().is_dir())
        .count()
}

#[test]
fn the_states_of_an_owner_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path().join("saved"));
    let image = image(folder.path(), b"0123456789");
    let write = |owner: &Principal, name: &str, bounds| {
        self::write(&store, owner, name, Description::of(&image), &image, bounds)
    };
    let mine = owner("a");
    write(&mine, "one", STORE_BOUNDS).unwrap();
    write(&mine, "two", STORE_BOUNDS).unwrap();
    assert!(matches!(
        write(&mine, "three", STORE_BOUNDS),
        Err(WriteError::TooMany(2))
    ));
    write(&mine, "two", STORE_BOUNDS).unwrap();
    write(&owner("b"), "three", STORE_BOUNDS).unwrap();
    let small = StoreBounds { states: 9, bytes: 50 };
    let refused = write(&mine, "three", small).unwrap_err();
    assert!(
        matches!(refused, WriteError::TooLarge { bytes: 20, free: 10 }),
        "{refused:?}"
    );
    // One that cannot be read counts, too.
    fs::remove_file(place(&store.of(&mine), "one")).unwrap();
    fs::write(place(&store.of(&mine), "one"), "{}").unwrap();
    assert!(matches!(
        write(&mine, "three", STORE_BOUNDS),
        Err(WriteError::TooMany(2))
    ));
    assert!(matches!(
        write(&mine, "three", small),
        Err(WriteError::TooLarge { free: 10, .. })
    ));
    assert_eq!(folders(&store, &mine), 2);
    let huge = Description {
        env: BTreeMap::from([("A".to_owned(), "x".repeat(9 << 20))]),
        ..Description::of(&image)
    };
    assert!(self::write(&store, &owner("c"), "one", huge, &image, STORE_BOUNDS).is_err());
    assert_eq!(folders(&store, &owner("c")), 0);
}

#[test]
fn what_a_killed_writer_has_left_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path().join("saved"));
    let image = image(folder.path(), b"0123456789");
    let mine = owner("a");
    write(&store, &mine, "one", Description::of(&image), &image, STORE_BOUNDS).unwrap();
    let left = store.of(&mine).join(".data-1");
    fs::create_dir(&left).unwrap();
    fs::write(left.join("files"), "half").unwrap();
    fs::write(store.of(&mine).join(".data-1.json"), "{").unwrap();
    write(&store, &mine, "two", Description::of(&image), &image, STORE_BOUNDS).unwrap();
    assert_eq!(folders(&store, &mine), 2);
    assert!(!store.of(&mine).join(".data-1.json").exists());
    let names: Vec<String> = store.list(&mine).unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["one", "two"]);
}

#[test]
fn a_reader_finds_one_whole_state_while_it_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path().join("saved"));
    let mine = owner("a");
    let write = |number: usize| {
        let text = format!("{number:04}").repeat(number % 7 + 1);
        let image = image(folder.path(), text.as_bytes());
        let description = Description {
            sandbox_id: text,
            ..Description::of(&image)
        };
        self::write(&store, &mine, "one", description, &image, STORE_BOUNDS).unwrap();
    };
    write(0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (1..100).for_each(write));
        let mut read = 0;
        while !writer.is_finished() || read == 0 {
            match store.read(&mine, "one", false) {
                Ok(found) => {
                    let (description, image) = found.expect("there is always one");
                    let text = description.sandbox_id.into_bytes();
                    assert_eq!(contents(&image.files), text);
                    assert_eq!(contents(image.memory.as_ref().unwrap()), text);
                    read += 1;
                }
                // It was replaced in each try.
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
            }
        }
    });
}

#[test]
fn a_damaged_state_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path().join("saved"));
    let image = image(folder.path(), b"0123456789");
    let mine = owner("a");
    write(&store, &mine, "one", Description::of(&image), &image, STORE_BOUNDS).unwrap();
    let description = store.list(&mine).unwrap().pop().unwrap().1.unwrap();
    let memory = store.of(&mine).join(description.data).join(MEMORY_NAME);
    fs::remove_file(&memory).unwrap();
    fs::write(&memory, "short").unwrap();
    let error = store.read(&mine, "one", false).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(store.read(&mine, "one", true).unwrap().is_some());
    let place = place(&store.of(&mine), "one");
    fs::remove_file(&place).unwrap();
    for text in ["", "{", "{}"] {
        fs::write(&place, text).unwrap();
        let error = store.read(&mine, "one", false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{text}");
    }
    assert!(matches!(store.list(&mine).unwrap().as_slice(), [(name, Err(_))] if name == "one"));
}

#[test]
fn states_are_dropped_and_replaced_next_to_damaged_ones() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path().join("saved"));
    let image = image(folder.path(), b"0123456789");
    let mine = owner("a");
    let keep = |name: &str| write(&store, &mine, name, Description::of(&image), &image, STORE_BOUNDS).unwrap();
    keep("one");
    keep("two");
    let damage = |text: &str| {
        let place = place(&store.of(&mine), "one");
        fs::remove_file(&place).unwrap();
        fs::write(&place, text).unwrap();
    };
    // One of a later version of sandcell keeps its folder.
    let data = data_of(&place(&store.of(&mine), "one")).unwrap();
    damage(&format!("{{\"format\": 9, \"data\": \"{data}\", \"new\": 1}}"));
    keep("two");
    assert_eq!(folders(&store, &mine), 2);
    assert!(store.of(&mine).join(&data).exists());
    // One that is cut off does not tell its folder.
    damage("{\"format\":");
    keep("two");
    assert_eq!(folders(&store, &mine), 2);
    assert!(remove(&store, &mine, "two"));
    assert_eq!(folders(&store, &mine), 1);
    assert!(remove(&store, &mine, "one"));
    assert_eq!(folders(&store, &mine), 0);
}

#[test]
fn a_start_removes_what_killed_writers_have_left_and_waits_for_no_writer() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path().join("saved"));
    store.clean().unwrap();
    let (mine, other) = (owner("a"), owner("b"));
    let lock = store.lock(&mine).unwrap().unwrap();
    assert!(store.lock(&mine).unwrap().is_none());
    drop(store.lock(&other).unwrap());
    for owner in [&mine, &other] {
        fs::create_dir(store.of(owner).join(".data-1")).unwrap();
    }
    store.clean().unwrap();
    assert_eq!((folders(&store, &mine), folders(&store, &other)), (1, 0));
    drop(lock);
    store.clean().unwrap();
    assert_eq!(folders(&store, &mine), 0);
}
