//! Tests of the table: the entries that it refuses, and the programs that it builds.

use super::*;
use sandcell_sandbox::Language as _;

fn table(text: &str) -> Result<Table, Failure> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("mine.toml"), text).unwrap();
    Table::load(&[folder.path().to_owned()])
}

const FORTH_TABLE: &str = r#"
[forth]
aliases = ["fth"]
extensions = ["fs"]
install = "apt-get install gforth"
[[forth.way]]
programs = ["sh"]
run = ["{sh}", "{src}", "{args}"]
"#;

#[test]
fn the_built_in_table_is_complete() {
    let table = Table::load(&[]).unwrap();
    assert!(table.0.len() >= 30, "{}", table.0.len());
    for name in [
        "javascript",
        "typescript",
        "bash",
        "go",
        "rust",
        "c",
        "cpp",
        "java",
        "sql",
    ] {
        assert!(table.0.contains_key(name), "{name}");
    }
}

#[test]
fn an_operator_file_adds_a_language_and_replaces_one() {
    assert!(table(FORTH_TABLE).unwrap().0.contains_key("forth"));
    let replaced = table(&FORTH_TABLE.replace("forth", "ruby")).unwrap();
    assert_eq!(replaced.0["ruby"].install, "apt-get install gruby");
}

#[test]
fn an_error_in_a_table_is_named_with_its_file() {
    for (change, expected) in [
        (("install =", "instal ="), "instal"),
        (("{src}", "{source}"), "{source}"),
        (("[\"fth\"]", "[\"py\"]"), "means both"),
        (("[\"fth\"]", "[\"js\"]"), "means both"),
        (("[\"fth\"]", "[\"Fth\"]"), "lower-case"),
        (("[\"fs\"]", "[]"), "extensions"),
        (("[\"fs\"]", "[\"a/b\"]"), "extensions"),
        (("programs = [\"sh\"]", "programs = []"), "programs"),
        (
            ("programs = [\"sh\"]", "programs = [\"sh\"]\nshows = [\"/home\"]"),
            "cannot be shown",
        ),
        (
            ("programs = [\"sh\"]", "programs = [\"sh\"]\ncompile_timeout_s = 0"),
            "compile_timeout_s",
        ),
        (("install =", "config = [\"/etc/*\"]\ninstall ="), "/etc"),
        (("[[forth.way]]", "[forth.way]"), "mine.toml"),
    ] {
        let text = FORTH_TABLE.replace(change.0, change.1);
        assert_ne!(text, FORTH_TABLE, "{change:?}");
        let failure = table(&text).unwrap_err();
        assert_eq!(failure.code, Code::InvalidArgument);
        assert!(failure.message.contains(expected), "{change:?}: {}", failure.message);
    }
}

#[test]
fn a_table_that_is_too_large_is_refused() {
    let failure = table(&"#".repeat(300 << 10)).unwrap_err();
    assert!(failure.message.contains("bytes"), "{}", failure.message);
}

#[cfg(unix)]
fn language(text: &str, name: &str) -> TableLanguage {
    let mut found = Detected::default();
    table(text)
        .unwrap()
        .detect(&Finder::of_this_machine(), None, &mut found);
    let here = found.table.into_iter().find(|language| language.info().name == name);
    here.unwrap()
}

#[test]
#[cfg(unix)]
fn arguments_and_sources_are_substituted_once() {
    let forth = language(FORTH_TABLE, "forth");
    let args = ["{src}".to_owned(), "a b".to_owned(), "$(id)".to_owned()];
    let program = forth.program("code", &args, &BTreeMap::new()).unwrap();
    assert_eq!(program.run.argv[1..], ["main.fs", "{src}", "a b", "$(id)"]);
    assert_eq!(program.files[0].0.as_str(), "/home/user/main.fs");
    assert_eq!(program.compile, None);
}

#[test]
#[cfg(unix)]
fn a_compiled_run_has_a_build_folder_and_reports_its_time() {
    let text = FORTH_TABLE.replace(
        "run = [",
        "compile = [\"{sh}\", \"-o\", \"{bin}\", \"{src}\"]\ncompile_timeout_s = 7\nenv = { CACHE = \"{dir}/c\" }\nrun = [\"{bin}\", \"{memory_mb}\", ",
    );
    let forth = language(&text, "forth");
    let env = BTreeMap::from([("MEMORY_LIMIT_MB".to_owned(), "77".to_owned())]);
    let program = forth.program("code", &[], &env).unwrap();
    let compile = program.compile.unwrap();
    assert_eq!(compile.timeout, Duration::from_secs(7));
    assert_eq!(compile.command.argv[2..], ["/tmp/.sandcell-forth/program", "main.fs"]);
    assert_eq!(compile.command.env["CACHE"], "/tmp/.sandcell-forth/c");
    assert_eq!(program.run.argv[..2], ["/tmp/.sandcell-forth/program", "77"]);
    assert!(
        program
            .files
            .iter()
            .any(|(path, _)| path.as_str().starts_with("/tmp/.sandcell-forth/"))
    );
}

#[test]
fn an_absent_language_has_an_install_hint() {
    let mut found = Detected::default();
    let finder = Finder::new(Vec::new(), Vec::new(), None);
    Table::load(&[]).unwrap().detect(&finder, None, &mut found);
    assert!(found.table.is_empty());
    let ruby = found.missing.iter().find(|missing| missing.name == "ruby").unwrap();
    assert_eq!(ruby.failure.code, Code::LanguageUnavailable);
    assert!(
        ruby.failure.remedy.contains("apt-get install ruby"),
        "{}",
        ruby.failure.remedy
    );
}
