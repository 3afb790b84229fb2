//! Tests of the precedence of layers and of the error messages.

use super::*;
use sandcell_sandbox::Failure;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

fn env(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
}

fn with_file(text: &str) -> Result<Layered, ConfigError> {
    let folder = Folder::new();
    read(&Surroundings {
        files: vec![folder.file("config.toml", text)],
        ..Surroundings::default()
    })
}

fn with_env(pairs: &[(&str, &str)]) -> Result<Layered, ConfigError> {
    read(&Surroundings {
        env: env(pairs),
        ..Surroundings::default()
    })
}

fn with_dotenv(text: &str) -> Result<Layered, ConfigError> {
    let folder = Folder::new();
    read(&Surroundings {
        dotenv: Some(folder.file(".env", text)),
        ..Surroundings::default()
    })
}

fn message(result: Result<Layered, ConfigError>) -> String {
    let failure = Failure::from(result.unwrap_err());
    format!("{} | {}", failure.message, failure.remedy)
}

#[test]
fn each_layer_wins_over_the_one_before_it() {
    let folder = Folder::new();
    let line = |cpus: u32| format!("[limits]\ncpus = {cpus}\n");
    let system = folder.file("system.toml", &format!("{}idle_s = 77\n", line(2)));
    let user = folder.file("user.toml", &line(3));
    let named = folder.file("named.toml", &line(4));
    let dotenv = folder.file(".env", "SANDCELL_LIMITS__CPUS=5\n");
    let mut around = Surroundings::default();
    let cpus = |around: &Surroundings| read(around).unwrap().remove("limits.cpus").unwrap();

    assert_eq!(cpus(&around), (Value::Number(1.0), Origin::Default));
    around.files.push(system.clone());
    assert_eq!(cpus(&around), (Value::Number(2.0), Origin::File(system.clone())));
    around.files.push(user.clone());
    assert_eq!(cpus(&around), (Value::Number(3.0), Origin::File(user)));
    around.named_file = Some(named.clone());
    assert_eq!(cpus(&around), (Value::Number(4.0), Origin::File(named)));
    around.dotenv = Some(dotenv.clone());
    let name = "SANDCELL_LIMITS__CPUS".to_owned();
    assert_eq!(
        cpus(&around),
        (Value::Number(5.0), Origin::DotEnv(dotenv, name.clone()))
    );
    around.env = env(&[("SANDCELL_LIMITS__CPUS", "6")]);
    assert_eq!(cpus(&around), (Value::Number(6.0), Origin::Environment(name)));
    around.flags.push(FlagValue {
        key: "limits.cpus",
        flag: "--cpus",
        texts: vec!["7".to_owned()],
    });
    assert_eq!(cpus(&around), (Value::Number(7.0), Origin::Flag("--cpus")));

    let layers = read(&around).unwrap();
    assert_eq!(layers["limits.idle_s"], (Value::Integer(77), Origin::File(system)));
}

#[test]
fn an_unknown_key_names_the_file_the_key_and_the_nearest_known_one() {
    let text = message(with_file("[limits]\nmemory = 5\n"));
    assert!(text.contains("config.toml"), "{text}");
    assert!(text.contains("`limits.memory`"), "{text}");
    assert!(text.contains("`limits.memory_mb`"), "{text}");
    let text = message(with_file("bakend = \"native\"\n"));
    assert!(text.contains("`bakend`") && text.contains("`backend`"), "{text}");
}

#[test]
fn an_unknown_variable_names_the_nearest_known_one() {
    let text = message(with_env(&[("SANDCELL_LIMITS_MEMORY_MB", "5")]));
    assert!(
        text.contains("SANDCELL_LIMITS_MEMORY_MB") && text.contains("SANDCELL_LIMITS__MEMORY_MB"),
        "{text}"
    );
    let text = message(with_env(&[("SANDCELL_LOGS", "5")]));
    assert!(text.contains("`SANDCELL_LOG`"), "{text}");
}

#[test]
fn variables_that_are_not_settings_are_left_alone() {
    with_env(&[
        ("SANDCELL_LOG", "debug"),
        ("SANDCELL_TEST_REQUIRE", "x"),
        ("SANDCELL_BIN", "/usr/bin/sandcell"),
        ("E2B_API_KEY", "e2b_0"),
        ("DOCKER_HOST", "unix:///x"),
        ("SANDCELLAR", "x"),
        ("PATH", "/bin"),
        ("INTERPRETER_TYPE", ""),
    ])
    .unwrap();
}

#[test]
fn unimplemented_values_are_refused_by_name() {
    let said = [
        message(with_file("backend = \"kubernetes\"\n")),
        message(with_env(&[("SANDCELL_BACKEND", "kubernetes")])),
    ];
    for text in said {
        assert!(
            text.contains("kubernetes") && text.contains("not supported by this build yet"),
            "{text}"
        );
    }
}

#[test]
fn a_value_of_the_wrong_kind_or_range_names_file_key_and_range() {
    for (text, parts) in [
        (
            "[limits]\nmemory_mb = 0\n",
            ["`limits.memory_mb`", "16 to 1048576, not 0"],
        ),
        ("[limits]\nmemory_mb = -5\n", ["`limits.memory_mb`", "not -5"]),
        (
            "[limits]\ntimeout_s = 3601\n",
            ["`limits.timeout_s`", "to 3600, not 3601"],
        ),
        (
            "[limits]\nprocesses = 9223372036854775807\n",
            ["`limits.processes`", "not 9223372036854775807"],
        ),
        ("[limits]\ncpus = \"two\"\n", ["`limits.cpus`", "not \"two\""]),
        ("limits = 3\n", ["`limits`", "config.toml"]),
        ("isolation_min = \"strong\"\n", ["`isolation_min`", "\"namespace\""]),
        ("mount = 3\n", ["`mount`", "[[mount]]"]),
        ("[[mount]]\nhost = \"/no/such\"\n", ["`mount`", "/no/such"]),
    ] {
        let text = message(with_file(text));
        assert!(text.contains("config.toml"), "{text}");
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn a_fault_in_the_syntax_names_the_line() {
    let text = message(with_file("backend = \"native\"\n\n[limits\n"));
    assert!(text.contains("config.toml, line 3"), "{text}");
}

#[test]
fn interpreter_type_sets_the_back_end_and_sandcell_backend_wins() {
    let layers = with_env(&[("INTERPRETER_TYPE", "native")]).unwrap();
    assert_eq!(layers["backend"].1, Origin::Environment("INTERPRETER_TYPE".to_owned()));
    let layers = with_env(&[("SANDCELL_BACKEND", "native"), ("INTERPRETER_TYPE", "native")]).unwrap();
    assert_eq!(layers["backend"].1, Origin::Environment("SANDCELL_BACKEND".to_owned()));
}

#[test]
fn a_dotenv_file_sets_our_names_only() {
    let layers = with_dotenv("DATABASE_URL=\"open\nSANDCELL_LIMITS__TIMEOUT_S=5 # short\nE2B_API_KEY=x\n").unwrap();
    assert_eq!(layers["limits.timeout_s"].0, Value::Number(5.0));
    assert!(message(with_dotenv("SANDCELL_FOO=1\n")).contains("SANDCELL_FOO"));
}

#[test]
fn a_dotenv_file_cannot_weaken_isolation_or_set_host_programs_and_folders() {
    for line in [
        "SANDCELL_ISOLATION_MIN=none",
        "SANDCELL_LIMITS_MIN=watched",
        "SANDCELL_PYTHON=/tmp/python",
        "SANDCELL_UPLOAD_FROM=/",
        "SANDCELL_DATA_DIR=/tmp",
        "SANDCELL_MOUNT=/home:/mnt/home",
    ] {
        let text = message(with_dotenv(line));
        assert!(text.contains("not taken from a .env file"), "{text}");
    }
}

#[test]
fn a_named_file_must_be_there_and_the_others_need_not() {
    let gone = PathBuf::from("/no/such/config.toml");
    read(&Surroundings {
        files: vec![gone.clone()],
        dotenv: Some(PathBuf::from("/no/such/.env")),
        ..Surroundings::default()
    })
    .unwrap();
    let named = Surroundings {
        named_file: Some(gone),
        ..Surroundings::default()
    };
    assert!(message(read(&named)).contains("/no/such/config.toml"));
}

#[test]
fn a_binary_or_endless_file_is_refused() {
    let folder = Folder::new();
    let binary = folder.0.path().join("binary.toml");
    std::fs::write(&binary, [0xff, 0xfe]).unwrap();
    for file in [binary, PathBuf::from("/dev/zero"), folder.0.path().to_owned()] {
        let around = Surroundings {
            files: vec![file],
            ..Surroundings::default()
        };
        assert!(read(&around).is_err());
    }
}

#[test]
fn an_error_names_the_flag_and_not_the_key() {
    for (key, flag, text, part) in [
        ("mount", "--mount", "/tmp:/etc", "--mount: /etc belongs to the sandbox"),
        (
            "backend",
            "--backend",
            "nativ",
            "--backend: must be a list of \"native\", \"docker\", \"e2b\", not \"nativ\"",
        ),
        (
            "toolset",
            "--toolset",
            "scrip",
            "--toolset: must be one of \"sandbox\", \"container\", \"script\", not \"scrip\"",
        ),
    ] {
        let texts = vec![text.to_owned()];
        let around = Surroundings {
            flags: vec![FlagValue { key, flag, texts }],
            ..Surroundings::default()
        };
        let text = message(read(&around));
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn mounts_of_flags_add_to_those_of_files_and_win_at_the_same_place() {
    let folder = Folder::new();
    let host = folder.0.path().display();
    let file = folder.file(
        "config.toml",
        &format!(
            "[[mount]]\nhost = \"{host}\"\nsandbox = \"/mnt/a\"\n[[mount]]\nhost = \"{host}\"\nsandbox = \"/mnt/b\"\n"
        ),
    );
    let layers = read(&Surroundings {
        files: vec![file],
        flags: vec![FlagValue {
            key: "mount",
            flag: "--mount",
            texts: vec![format!("{host}:/mnt/b:cow"), format!("{host}:/mnt/c")],
        }],
        ..Surroundings::default()
    })
    .unwrap();
    let Value::Mounts(mounts) = &layers["mount"].0 else {
        panic!()
    };
    let seen: Vec<(&str, bool)> = mounts
        .iter()
        .map(|mount| (mount.sandbox.as_str(), mount.mode == sandcell_sandbox::MountMode::Cow))
        .collect();
    assert_eq!(seen, [("/mnt/a", false), ("/mnt/b", true), ("/mnt/c", false)]);
}

proptest::proptest! {
    #[test]
    fn any_text_is_parsed_without_a_panic(toml in ".{0,200}", dotenv in "(SANDCELL_[A-Z_]{0,20}=.{0,40}\n){0,4}") {
        let _ = merge_toml(&mut Layered::new(), Path::new("x"), &toml);
        let _ = merge_dotenv(&mut Layered::new(), Path::new("x"), &dotenv);
    }
}

#[test]
fn the_names_of_e2b_set_the_back_end_and_its_key_is_never_shown() {
    let layers = with_env(&[
        ("INTERPRETER_TYPE", "e2b"),
        ("E2B_API_KEY", "e2b_hush"),
        ("E2B_API_URL", "http://127.0.0.1:1"),
        ("E2B_DEBUG", "1"),
    ])
    .unwrap();
    assert_eq!(layers["backend"].0, Value::Words(vec!["e2b".to_owned()]));
    assert_eq!(
        layers["e2b.debug"].0,
        Value::Flag(false),
        "as the service's own clients take it"
    );
    let Value::Secret(Some(key)) = &layers["e2b.api_key"].0 else {
        panic!("no key")
    };
    assert_eq!(key.expose(), "e2b_hush");
    assert!(!format!("{layers:?}").contains("hush"));
    assert!(!layers["e2b.api_key"].0.to_json().to_string().contains("hush"));
    for bad in ["e2b_hush\n1", "e2b_hush\u{7f}"] {
        let text = message(with_env(&[("E2B_API_KEY", bad)]));
        assert!(text.contains("E2B_API_KEY") && !text.contains("hush"), "{text}");
    }
    let text = message(with_file("[e2b]\napi_key = [\"e2b_hush\"]\n"));
    assert!(text.contains("e2b.api_key") && !text.contains("hush"), "{text}");
    let layers = with_env(&[("E2B_DEBUG", "TRUE")]).unwrap();
    assert_eq!(layers["e2b.debug"].0, Value::Flag(true));
}

#[test]
fn a_project_may_set_a_key_but_not_the_address_it_is_sent_to() {
    let layers = with_dotenv("E2B_API_KEY=theirs\nE2B_API_URL=http://example.com\nE2B_DOMAIN=example.com\n").unwrap();
    assert!(matches!(layers["e2b.api_key"].0, Value::Secret(Some(_))));
    assert_eq!(layers["e2b.api_url"].0, Value::Text(None));
    assert_eq!(layers["e2b.domain"].0, Value::Text(Some("e2b.app".to_owned())));
    assert!(message(with_dotenv("SANDCELL_E2B__DOMAIN=example.com\n")).contains("not taken from a .env file"));
}

#[test]
fn the_table_of_a_back_end_may_be_nested_below_backend() {
    for text in ["[backend.e2b]\nlevel = \"gvisor\"\n", "[e2b]\nlevel = \"gvisor\"\n"] {
        let layers = with_file(text).unwrap();
        assert_eq!(layers["e2b.level"].0, Value::Word("gvisor".to_owned()), "{text}");
    }
    let layers = with_env(&[("SANDCELL_BACKEND__E2B__LEVEL", "gvisor")]).unwrap();
    assert_eq!(layers["e2b.level"].0, Value::Word("gvisor".to_owned()));
    assert!(message(with_file("[backend.e2b]\nlevl = \"x\"\n")).contains("e2b.level"));
}
