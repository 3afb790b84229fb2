//! The results of the suite, as text: the table of layers and classes in the threat model, and the list of every
//! attack. `UPDATE_REFERENCE=1` writes both; without it, the test compares.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use sandcell_jail::plan::NAMESPACE_LEVEL_LAYERS;

use sandcell_attacks::{Attack, OTHER_LAYERS, classes};

const BEGIN_MARK: &str = "<!-- generated: attacks by layer and class; UPDATE_REFERENCE=1 cargo test -p sandcell-e2e --test escapes table -->\n";
const END_MARK: &str = "<!-- end of generated -->\n";

fn root() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("THREAT_MODEL.md").exists().then_some(root)
}

fn layers() -> impl Iterator<Item = &'static str> {
    NAMESPACE_LEVEL_LAYERS.into_iter().chain(OTHER_LAYERS)
}

/// Returns true when a test shows that the attack succeeds without its layer.
fn is_proved(attack: &Attack) -> bool {
    attack.unproven.is_none() && (NAMESPACE_LEVEL_LAYERS.contains(&attack.layer) || !attack.raised.is_empty())
}

/// Returns a table of layers by classes with the number of attacks, and the number that succeed without their layer.
fn matrix(attacks: &[Attack]) -> String {
    let classes: Vec<&str> = classes().into_iter().collect();
    let mut text = format!(
        "| layer | {} | all | shown |\n|---|{}---|---|\n",
        classes.join(" | "),
        "---|".repeat(classes.len())
    );
    for layer in layers() {
        let of: Vec<&Attack> = attacks.iter().filter(|attack| attack.layer == layer).collect();
        write!(text, "| `{layer}` |").unwrap();
        for class in &classes {
            let count = of.iter().filter(|attack| attack.class == *class).count();
            write!(
                text,
                " {} |",
                if count == 0 { String::new() } else { count.to_string() }
            )
            .unwrap();
        }
        let proved = of.iter().filter(|attack| is_proved(attack)).count();
        writeln!(text, " {} | {proved} |", of.len()).unwrap();
    }
    let proved = attacks.iter().filter(|attack| is_proved(attack)).count();
    writeln!(
        text,
        "\n{} attacks in {} classes, each named in [docs/reference/attacks.md](docs/reference/attacks.md) with the layer that holds it. \
         \"Shown\": {proved} of them are also made with exactly that layer left out (or that limit raised), and then come \
         through; why the others do not is said there.",
        attacks.len(),
        classes.len()
    )
    .unwrap();
    text
}

fn list(attacks: &[Attack]) -> String {
    let mut text = String::from(
        "# Every attack of the escape suite\n\n\
         Generated from the files in `crates/attacks/catalogue/` by `UPDATE_REFERENCE=1 cargo test -p sandcell-e2e --test escapes table`.\n\n\
         *Held by*: the layer that holds the attack. *Shown*: the proof by a test: `without it` (the attack succeeds when \
         that layer is left out), `without it, with … off` (both runs leave these layers out: the attack is held with the \
         layer and succeeds without it), `limit raised`, or `not provable here:` and the reason.\n",
    );
    let mut classes: BTreeMap<&str, Vec<&Attack>> = BTreeMap::new();
    for attack in attacks {
        classes.entry(attack.class).or_default().push(attack);
    }
    for (class, attacks) in classes {
        write!(
            text,
            "\n## {class}\n\n| attack | what it tries | held by | shown |\n|---|---|---|---|\n"
        )
        .unwrap();
        for attack in attacks {
            let name = attack.name.split_once('/').unwrap().1;
            let what = attack.what.replace('|', "\\|");
            writeln!(text, "| `{name}` | {what} | `{}` | {} |", attack.layer, shown(attack)).unwrap();
        }
    }
    text
}

fn shown(attack: &Attack) -> String {
    let mut text = match &attack.unproven {
        Some(reason) => format!("not provable here: {reason}"),
        None if !attack.raised.is_empty() => "limit raised".to_owned(),
        None if !NAMESPACE_LEVEL_LAYERS.contains(&attack.layer) => {
            "nothing to leave out: the test checks its effect".to_owned()
        }
        None if attack.also_off.is_empty() => "without it".to_owned(),
        None => format!("without it, with `{}` off", attack.also_off.join("`, `")),
    };
    if attack.proof_needs_root && attack.unproven.is_none() {
        text.push_str(" (as root)");
    }
    text
}

#[test]
fn the_tables_in_the_documentation_are_fresh() {
    let Some(root) = root() else {
        println!("the documentation is not staged with these tests; the build machine checks it");
        return;
    };
    let attacks = sandcell_attacks::all().unwrap();
    let model = std::fs::read_to_string(root.join("THREAT_MODEL.md")).unwrap();
    let (before, rest) = model
        .split_once(BEGIN_MARK)
        .expect("THREAT_MODEL.md has the mark where the table begins");
    let (_, after) = rest
        .split_once(END_MARK)
        .expect("THREAT_MODEL.md has the mark where the table ends");
    let wanted = [
        (
            "THREAT_MODEL.md",
            format!("{before}{BEGIN_MARK}\n{}\n{END_MARK}{after}", matrix(&attacks)),
        ),
        ("docs/reference/attacks.md", list(&attacks)),
    ];
    for (file, text) in wanted {
        let path = root.join(file);
        if std::env::var_os("UPDATE_REFERENCE").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == text, "{file} is out of date; UPDATE_REFERENCE=1 writes it");
    }
}

/// Returns the attacks that a text names between backquotes, as `class/name`.
fn named_attacks(text: &str) -> impl Iterator<Item = &str> {
    let classes = classes();
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(move |name| {
        name.split_once('/')
            .is_some_and(|(class, attack)| !attack.is_empty() && classes.contains(class))
    })
}

#[test]
fn each_shared_limit_names_a_test_that_exists_or_is_open() {
    const LIMITS_PAGE: &str = "docs/reference/shared-limits.md";
    let Some(root) = root() else {
        println!("the documentation is not staged with these tests; the build machine checks it");
        return;
    };
    let page = std::fs::read_to_string(root.join(LIMITS_PAGE)).unwrap();
    let attacks = sandcell_attacks::all().unwrap();
    for name in named_attacks(&page) {
        assert!(
            attacks.iter().any(|attack| attack.name == name),
            "{LIMITS_PAGE}: {name}"
        );
    }
    let tests = std::fs::read_to_string(root.join("crates/e2e/tests/e2e/shared_counts.rs")).unwrap();
    let rows: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| resource"))
        .collect();
    assert!(rows.len() > 30, "{LIMITS_PAGE} has {} rows", rows.len());
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 6, "{LIMITS_PAGE}: {row}");
        let shown = cells[5];
        let by_attack = named_attacks(shown).next().is_some();
        let by_test = shown
            .split('`')
            .any(|name| name.len() > 20 && tests.contains(&format!("fn {name}()")));
        let said = ["refused", "open", "settings"]
            .iter()
            .any(|word| shown.starts_with(word));
        assert!(by_attack || by_test || said, "{LIMITS_PAGE}: no test: {row}");
    }
}
