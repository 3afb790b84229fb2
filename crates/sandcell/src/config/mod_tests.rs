use sandcell_sandbox::MountMode;

use super::*;

#[test]
fn the_defaults_are_the_documented_ones() {
    let settings = Settings::load(&Surroundings::default()).unwrap();
    assert_eq!(settings.backends, ["native"]);
    assert_eq!(settings.isolation_min, Level::Namespace);
    assert_eq!(settings.limits_min, Degree::Watched);
    assert_eq!(settings.engine.limits, Limits::default());
    assert_eq!(settings.engine.timeout, Duration::from_secs(30));
    assert_eq!(settings.engine.output_inline, ByteSize::kib(20));
    assert_eq!(settings.engine.output_kept, ByteSize::mib(16));
    assert_eq!(settings.engine.file_bytes, ByteSize::mib(10));
    assert_eq!(settings.engine.code_bytes, ByteSize::mib(1));
    assert_eq!(settings.engine.sandboxes_per_caller, 16);
    assert_eq!(settings.engine.sandboxes, 256);
    assert_eq!(settings.engine.idle, Duration::from_secs(1800));
    assert_eq!(settings.engine.history_rows, 10_000);
    assert_eq!(settings.engine.history_age, Duration::from_secs(30 * 86_400));
    assert!(settings.engine.upload_from.is_empty() && settings.mounts.is_empty());
}

#[test]
fn default_limits_are_within_the_limits_of_a_call() {
    let huge = Limits {
        memory: ByteSize::mib(1 << 20),
        cpus: Cpus::milli(1_024_000),
        processes: 1 << 16,
        disk: ByteSize::mib(1 << 20),
        inodes: 100_000_000,
    };
    assert_eq!(max_limits(&huge), huge);
}

#[test]
fn preload_modules_are_deduplicated_and_must_be_names() {
    let names = |text: &str| modules(text.split(',').map(str::to_owned).collect());
    assert_eq!(
        names("numpy,matplotlib.pyplot,numpy").unwrap(),
        ["numpy", "matplotlib.pyplot"]
    );
    for wrong in ["", "a b", "a..b", ".a", "1a", "os;print", "a-b", &"a".repeat(201)] {
        assert!(names(wrong).is_err(), "{wrong}");
    }
    let many: Vec<String> = (0..65).map(|number| format!("m{number}")).collect();
    assert!(modules(many).is_err());
}

#[test]
fn every_accepted_word_has_a_meaning() {
    for setting in table::settings() {
        let sandcell_settings::Kind::OneOf(words) = setting.declaration.kind else {
            continue;
        };
        for word in words {
            let mut layers = read(&Surroundings::default()).unwrap();
            let value = Value::Word((*word).to_owned());
            layers.insert(setting.key, (value, Origin::Flag("--test")));
            read_all_tables(&layers).unwrap();
        }
    }
}

/// Reads the settings of this crate, and the tables of the back ends.
fn read_all_tables(layers: &Layered) -> Result<(), ConfigError> {
    Settings::from_layers(layers)?;
    #[cfg(feature = "docker")]
    sandcell_backends::docker::DockerSettings::read(value_in(layers))?;
    #[cfg(feature = "e2b")]
    sandcell_backends::e2b::E2bConfig::read(value_in(layers))?;
    Ok(())
}

#[test]
fn a_word_without_a_meaning_is_an_error_and_never_the_default() {
    for key in [
        "toolset",
        "analysis",
        "history.store",
        "images.pull",
        #[cfg(feature = "docker")]
        "docker.pull",
        #[cfg(feature = "e2b")]
        "e2b.level",
        "isolation_min",
        "limits_min",
    ] {
        let mut layers = read(&Surroundings::default()).unwrap();
        layers.insert(key, (Value::Word("strictest".to_owned()), Origin::Flag("--test")));
        let error = read_all_tables(&layers).unwrap_err();
        assert!(error.to_string().contains(key), "{key}: {error}");
    }
}

#[test]
fn a_project_cannot_set_an_operators_setting_by_another_way_of_writing_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(".env");
    for line in [
        "SANDCELL_E2B__DOMAIN=evil.example",
        "SANDCELL_BACKEND__E2B__DOMAIN=evil.example",
        "SANDCELL_BACKEND__DOCKER__HOST=tcp://evil.example:1",
        "sandcell_e2b__domain=evil.example",
        "DOCKER_HOST=tcp://evil.example:1",
        "E2B_DOMAIN=evil.example",
    ] {
        std::fs::write(&file, line).unwrap();
        let around = Surroundings {
            dotenv: Some(file.clone()),
            ..Surroundings::default()
        };
        let Ok(layers) = read(&around) else { continue };
        let reached = layers.values().any(|(value, _)| format!("{value:?}").contains("evil"));
        assert!(!reached, "{line}");
    }
}

#[test]
fn no_commit_writes_into_the_data_folder() {
    let place = tempfile::tempdir().unwrap();
    let (home, data) = (place.path().join("home"), place.path().join("home/.local/sandcell"));
    std::fs::create_dir_all(home.join("project")).unwrap();
    std::os::unix::fs::symlink(&home, place.path().join("link")).unwrap();
    let mount = |path: &str, commit| Mount {
        host: place.path().join(path),
        sandbox: "/mnt/p".to_owned(),
        mode: MountMode::Cow,
        commit,
    };
    for path in ["home", "link", "home/.local", "home/.local/sandcell/permits", "."] {
        let error = check_commits(&[mount(path, CommitRule::Ask)], Some(&data)).unwrap_err();
        assert!(error.to_string().contains("approve its own changes"), "{error}");
        assert!(check_commits(&[mount(path, CommitRule::Never)], Some(&data)).is_ok());
    }
    for path in ["home/project", "home/.local/sandcell2", "other"] {
        assert!(
            check_commits(&[mount(path, CommitRule::Ask)], Some(&data)).is_ok(),
            "{path}"
        );
    }
}
