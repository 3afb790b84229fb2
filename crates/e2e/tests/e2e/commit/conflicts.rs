//! Commits after changes of the host, and what they never lose.

use std::os::unix::fs::MetadataExt as _;

use serde_json::{Value, json};

use super::{Project, applied, make_project, paths, refused, settle};
use sandcell_e2e::begin;
use sandcell_e2e::test_dir::TestDir;

#[test]
fn a_moved_file_is_never_lost() {
    let _turn = begin!();
    let project = Project::start(",commit=ask");
    project.run("import os; os.chdir('/mnt/p'); os.mkdir('lib'); os.rename('a.txt', 'lib/a.txt')");
    let moved = project.commit(&[]);
    assert_eq!(applied(&moved), ["a.txt", "lib", "lib/a.txt"], "{moved}");
    assert_eq!(project.text("lib/a.txt"), "one\ntwo\nthree\n");
    assert!(!project.at("a.txt").exists());
    // The commit before has changed this folder.
    project.run("import os; os.chdir('/mnt/p'); os.rename('same.txt', 'renamed.txt')");
    assert_eq!(applied(&project.commit(&[])), ["renamed.txt", "same.txt"]);
    // The new place is refused, so the old one stays.
    project.run("import os; os.chdir(b'/mnt/p'); os.rename(b'gone.txt', b'gone\\xff')");
    let held = project.commit(&[]);
    assert_eq!(refused(&held, "gone.txt"), "incomplete", "{held}");
    assert_eq!(project.text("gone.txt"), "gone\n");
    assert!(applied(&held).is_empty(), "{held}");
    // A person can name it.
    assert_eq!(applied(&project.commit(&["/mnt/p/gone.txt"])), ["gone.txt"]);
    assert!(!project.at("gone.txt").exists());
}

#[test]
fn a_folder_that_the_host_has_moved_into_place_stays() {
    let _turn = begin!();
    let project = Project::start(",commit=ask");
    std::fs::create_dir(project.at("precious")).unwrap();
    std::fs::write(project.at("precious/x"), "precious").unwrap();
    settle(&project.at("precious"));
    project.run("import shutil; shutil.rmtree('/mnt/p/old')");
    std::fs::rename(project.at("old"), project.place.work().join("old")).unwrap();
    std::fs::rename(project.at("precious"), project.at("old")).unwrap();
    let held = project.commit(&[]);
    assert_eq!(refused(&held, "old"), "conflict", "{held}");
    assert!(applied(&held).is_empty(), "{held}");
    assert_eq!(project.text("old/x"), "precious");
}

#[test]
fn what_is_undone_in_the_sandbox_is_undone_on_the_host() {
    let _turn = begin!();
    let project = Project::start(",commit=ask");
    project.run(
        "import os, shutil; os.chdir('/mnt/p')\nopen('a.txt', 'w').write('two'); os.remove('gone.txt')\nopen('new.txt', \
         'w').write('n'); os.mkdir('d'); open('d/x', 'w').write('x'); open('src/new', 'w').write('n')",
    );
    assert_eq!(applied(&project.commit(&[])).len(), 6);
    assert!(project.commit(&[])["applied"].as_array().unwrap().is_empty());
    project.run(
        "open('a.txt', 'w').write('one\\ntwo\\nthree\\n'); open('gone.txt', 'w').write('gone\\n')\nos.rename('new.txt', \
         'new2.txt'); shutil.rmtree('d'); shutil.rmtree('src')",
    );
    let diff = project.command("diff", &["--mounts"]);
    let diff = String::from_utf8(diff.stdout).unwrap();
    assert!(diff.contains("-two\n") && diff.contains("+three\n"), "{diff}");
    let undone = project.commit(&[]);
    assert_eq!(
        applied(&undone),
        [
            "a.txt",
            "d",
            "d/x",
            "gone.txt",
            "new.txt",
            "new2.txt",
            "src",
            "src/main.py",
            "src/new"
        ],
        "{undone}"
    );
    assert_eq!(
        (project.text("a.txt"), project.text("gone.txt")),
        ("one\ntwo\nthree\n".into(), "gone\n".into())
    );
    for gone in ["new.txt", "d", "src"] {
        assert!(!project.at(gone).exists(), "{gone}");
    }
    assert_eq!(project.text("new2.txt"), "n");
}

#[test]
fn the_host_wins_where_the_sandbox_has_changed_nothing_since_a_commit() {
    let _turn = begin!();
    let project = Project::start(",commit=ask");
    project.run("import os; os.chdir('/mnt/p'); open('a.txt', 'w').write('mine'); os.remove('gone.txt')");
    assert_eq!(applied(&project.commit(&[])).len(), 2);
    std::fs::write(project.at("a.txt"), "mine, and the user's").unwrap();
    std::fs::write(project.at("gone.txt"), "again").unwrap();
    project.run("open('src/main.py', 'w').write('x'); os.remove('same.txt')");
    let diff = project.command("diff", &["--mounts"]);
    let diff = String::from_utf8(diff.stdout).unwrap();
    assert!(diff.contains("-mine, and the user's\n"), "{diff}");
    for force in [&["--force", "--dry-run"][..], &[]] {
        let result = project.commit(force);
        assert_eq!(applied(&result), ["same.txt", "src/main.py"], "{result}");
        assert_eq!(
            (paths(&result, "refused").len(), &result["unchanged"]),
            (0, &json!(2)),
            "{result}"
        );
    }
    assert_eq!(project.text("a.txt"), "mine, and the user's");
    assert_eq!(project.text("gone.txt"), "again");
    project.run("open('a.txt', 'a').write(' more')");
    assert_eq!(refused(&project.commit(&[]), "a.txt"), "conflict");
}

#[test]
fn no_failure_of_a_type_change_loses_a_file() {
    let _turn = begin!();
    let project = Project::start(",commit=ask");
    project.run(
        "import os, shutil; os.chdir('/mnt/p')\nos.rename('a.txt', 't'); os.mkdir('a.txt'); os.rename('t', 'a.txt/a.txt'); \
         shutil.rmtree('src'); open('src', 'w').write('f')",
    );
    let refusals = project.commit(&["--force"]);
    for path in ["a.txt", "a.txt/a.txt", "src", "src/main.py"] {
        assert_eq!(refused(&refusals, path), "type_change", "{refusals}");
    }
    assert_eq!(project.text("a.txt"), "one\ntwo\nthree\n");
    assert_eq!(project.text("src/main.py"), "print(1)\n");
    // As the refusal says.
    for name in ["a.txt", "src"] {
        std::fs::rename(project.at(name), project.at(&format!("{name}.old"))).unwrap();
    }
    let result = project.commit(&[]);
    assert_eq!(applied(&result), ["a.txt", "a.txt/a.txt", "src"], "{result}");
    assert_eq!(project.text("a.txt/a.txt"), "one\ntwo\nthree\n");
}

#[test]
fn a_selection_removes_no_file_that_has_moved_out_of_it() {
    let _turn = begin!();
    let project = Project::start(",commit=ask");
    project.run(
        "import os; os.chdir('/mnt/p'); os.mkdir('lib'); os.rename('src/main.py', 'lib/main.py'); os.remove('old/x'); \
         open('src/other', 'w').write('o')",
    );
    let part = project.commit(&["/mnt/p/src"]);
    assert_eq!(
        (applied(&part), refused(&part, "src/main.py").as_str()),
        (vec!["src/other"], "incomplete")
    );
    assert_eq!(applied(&project.commit(&["/mnt/p/old/x"])), ["old/x"]);
    // Another program changes the folders.
    std::fs::write(project.at("src/unrelated"), "").unwrap();
    std::fs::write(project.at("unrelated"), "").unwrap();
    assert_eq!(applied(&project.commit(&[])), ["lib", "lib/main.py", "src/main.py"]);
}

#[test]
fn a_refusal_without_content_holds_no_removal() {
    let _turn = begin!();
    let project = Project::start(",commit=ask");
    project.run(
        "import os; os.chdir('/mnt/p'); os.chmod('a.txt', 0o600); os.symlink('/usr/bin/python3', 'python'); os.mkfifo('fifo'); \
         os.remove('gone.txt')\nopen('t', 'w').write('saved'); os.chmod('t', 0o600); os.replace('t', 'same.txt'); \
         os.mkdir('shared'); os.chmod('shared', 0o777)",
    );
    let result = project.commit(&[]);
    for (path, code) in [("a.txt", "mode"), ("python", "link"), ("fifo", "type")] {
        assert_eq!(refused(&result, path), code, "{result}");
    }
    assert_eq!(applied(&result), ["gone.txt", "same.txt", "shared"], "{result}");
    assert_eq!(project.at("same.txt").metadata().unwrap().mode() & 0o7777, 0o644);
    assert_eq!(project.at("shared").metadata().unwrap().mode() & 0o7777, 0o755);
    // A mode that the commit itself has left is no refusal.
    let again = project.commit(&[]);
    assert_eq!(paths(&again, "refused"), ["a.txt", "fifo", "python"], "{again}");
}

#[test]
fn a_folder_that_the_host_has_added_to_stays() {
    let _turn = begin!();
    let project = Project::start(",commit=ask");
    project.run("import shutil; shutil.rmtree('/mnt/p/old')");
    std::fs::write(project.at("old/precious"), "p").unwrap();
    for force in [&["--force"][..], &[]] {
        let result = project.commit(force);
        assert!(applied(&result).is_empty(), "{result}");
        for path in ["old", "old/precious", "old/x", "old/y"] {
            assert_eq!(refused(&result, path), "conflict", "{result}");
        }
    }
    assert_eq!(project.text("old/precious"), "p");
}

#[test]
fn what_the_host_adds_to_a_committed_folder_stays() {
    let _turn = begin!();
    let project = Project::start(",commit=ask");
    project.run(
        "import os, shutil; os.chdir('/mnt/p'); os.mkdir('new'); open('new/f', 'w').write('f')\nshutil.rmtree('old'); \
         os.mkdir('old'); open('old/f', 'w').write('f')",
    );
    assert_eq!(
        applied(&project.commit(&[])),
        ["new", "new/f", "old/f", "old/x", "old/y"]
    );
    for name in ["new/host", "old/host"] {
        std::fs::write(project.at(name), "host").unwrap();
    }
    project.run("open('new/g', 'w').write('g'); open('old/g', 'w').write('g')");
    for force in [&["--force", "--dry-run"][..], &[]] {
        let result = project.commit(force);
        assert_eq!(
            (applied(&result), paths(&result, "refused").len()),
            (vec!["new/g", "old/g"], 0),
            "{result}"
        );
    }
    assert_eq!(
        (project.text("new/host"), project.text("old/host")),
        ("host".into(), "host".into())
    );
    // Both have changed the same file.
    std::fs::write(project.at("old/f"), "theirs").unwrap();
    project.run("open('old/f', 'w').write('mine')");
    assert_eq!(refused(&project.commit(&[]), "old/f"), "conflict");
}

#[test]
fn files_that_the_host_moves_into_a_committed_folder_stay() {
    let _turn = begin!();
    let place = TestDir::new();
    let folder = make_project(&place);
    for name in ["photos", "backup"] {
        std::fs::create_dir(place.work().join(name)).unwrap();
        std::fs::write(place.work().join(name).join("1"), "precious").unwrap();
    }
    settle(&folder);
    let project = Project::of(place, ",commit=ask");
    project.run(
        "import os, shutil; os.chdir('/mnt/p'); os.mkdir('new'); open('new/f', 'w').write('f'); shutil.rmtree('old')",
    );
    assert_eq!(applied(&project.commit(&[])).len(), 5);
    // Another program changes each folder after it has moved.
    for (from, to) in [("photos", "new/photos"), ("backup", "old")] {
        std::fs::rename(project.place.work().join(from), project.at(to)).unwrap();
        std::fs::write(project.at(to).join("thumbnail"), "").unwrap();
    }
    project.run("open('new/g', 'w').write('g')");
    let result = project.commit(&[]);
    assert_eq!(
        (applied(&result), paths(&result, "refused").len()),
        (vec!["new/g"], 0),
        "{result}"
    );
    for name in ["new/photos/1", "old/1"] {
        assert_eq!(project.text(name), "precious", "{name}");
    }
}

#[test]
fn content_with_the_same_size_and_time_is_applied() {
    let _turn = begin!();
    let project = Project::start(",commit=ask");
    let write = |text: &str| {
        project.run(&format!(
            "import os\nfor name in ('/mnt/p/lib', '/mnt/p/a.txt'):\n    open(name, 'w').write('{text}'); os.utime(name, (1, 1))"
        ));
    };
    write("one");
    assert_eq!(applied(&project.commit(&[])), ["a.txt", "lib"]);
    write("two");
    assert_eq!(applied(&project.commit(&[])), ["a.txt", "lib"]);
    assert_eq!(
        (project.text("a.txt"), project.text("lib")),
        ("two".into(), "two".into())
    );
}

#[test]
fn commits_at_once_apply_each_change_once() {
    let _turn = begin!();
    let project = Project::start(",commit=ask");
    project.run("import os; os.chdir('/mnt/p')\nfor n in range(200): open(f'n{n}', 'w').write(str(n))");
    let results: Vec<Value> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..3).map(|_| scope.spawn(|| project.commit(&[]))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let counts: usize = results.iter().map(|result| applied(result).len()).sum();
    assert_eq!(counts, 200, "{results:?}");
    assert!(
        results.iter().all(|result| paths(result, "refused").is_empty()),
        "{results:?}"
    );
}

#[test]
fn another_folder_in_the_place_of_a_changed_one_stays() {
    let _turn = begin!();
    let place = TestDir::new();
    let folder = make_project(&place);
    std::fs::create_dir(folder.join("precious")).unwrap();
    for name in ["main.py", "util.py"] {
        std::fs::write(folder.join("src").join(name), "print(1)\n").unwrap();
        std::fs::write(folder.join("precious").join(name), "precious").unwrap();
    }
    settle(&folder.join("precious"));
    let project = Project::of(place, ",commit=ask");
    project.run(
        "import os; os.chdir('/mnt/p/src'); open('main.py', 'w').write('2'); os.remove('util.py'); open('new', 'w')",
    );
    std::fs::rename(project.at("src"), project.at("src.old")).unwrap();
    std::fs::rename(project.at("precious"), project.at("src")).unwrap();
    // The files were not touched, so only the folder tells that they are others.
    let result = project.commit(&[]);
    assert!(applied(&result).is_empty(), "{result}");
    for name in ["src/main.py", "src/new", "src/util.py"] {
        assert_eq!(refused(&result, name), "conflict", "{result}");
    }
    assert_eq!(project.text("src/main.py"), "precious");
    assert_eq!(project.text("src/util.py"), "precious");
}

#[test]
fn what_the_host_has_changed_meanwhile_is_a_conflict() {
    let _turn = begin!();
    let project = Project::start(",commit=ask");
    project.run(
        "import os; os.chdir('/mnt/p')\nfor name in ('a.txt', 'same.txt', 'src/main.py', 'new.txt', 'equal.txt', 'old/x'): open(name, \
         'w').write('mine')\nos.remove('gone.txt')",
    );
    std::fs::write(project.at("a.txt"), "theirs").unwrap();
    std::fs::write(project.at("gone.txt"), "theirs").unwrap();
    std::fs::write(project.at("new.txt"), "theirs").unwrap();
    std::fs::write(project.at("equal.txt"), "mine").unwrap();
    std::fs::remove_file(project.at("old/x")).unwrap();
    std::fs::remove_dir_all(project.at("src")).unwrap();
    let result = project.commit(&[]);
    for path in ["a.txt", "gone.txt", "new.txt", "old/x", "src", "src/main.py"] {
        assert_eq!(refused(&result, path), "conflict", "{path}: {result}");
    }
    assert_eq!(
        (applied(&result), &result["unchanged"]),
        (vec!["same.txt"], &json!(0)),
        "{result}"
    );
    assert_eq!(project.text("a.txt"), "theirs");
    assert!(!project.at("src/main.py").exists());
    let forced = project.commit(&["--force"]);
    assert_eq!(
        applied(&forced),
        ["a.txt", "new.txt", "old/x", "src", "src/main.py"],
        "{forced}"
    );
    assert_eq!(
        (project.text("a.txt"), project.text("src/main.py")),
        ("mine".into(), "mine".into())
    );
    // A file that the host has changed is removed only if it is named.
    assert_eq!(refused(&forced, "gone.txt"), "conflict");
    assert_eq!(project.text("gone.txt"), "theirs");
    assert_eq!(applied(&project.commit(&["--force", "/mnt/p/gone.txt"])), ["gone.txt"]);
    assert!(!project.at("gone.txt").exists());
}
