use super::*;

const BEGAN_NS: i128 = 1_000_000_000_000;

fn inside(kind: MountEntryKind) -> MountEntry {
    MountEntry {
        kind,
        bytes: 3,
        mode: 0o644,
        modified_ns: 0,
        target: (kind == MountEntryKind::Link).then(|| "target".to_owned()),
    }
}

fn on_host(kind: HostKind, changed_ns: i128) -> HostStatus {
    HostStatus {
        kind,
        bytes: 3,
        mode: 0o640,
        target: (kind == HostKind::Link).then(|| b"old".to_vec()),
        modified_ns: 0,
        changed_ns,
        identity: (1, 2, 3, 4),
    }
}

fn change(now: Option<MountEntryKind>, before: Option<MountEntryKind>) -> MountChange {
    MountChange {
        path: "/mnt/p/a".to_owned(),
        escaped: false,
        copied: false,
        hidden_by: None,
        kind: match (now, before) {
            (Some(_), Some(_)) => SavedChangeKind::Modified,
            (Some(_), None) => SavedChangeKind::Created,
            (None, _) => SavedChangeKind::Removed,
        },
        now: now.map(inside),
        before: before.map(inside),
    }
}

fn host(entry: Option<HostStatus>) -> HostFacts {
    HostFacts {
        entry,
        parent_modified_ns: Some(0),
        ..HostFacts::default()
    }
}

/// Returns whether a change is applied without a conflict, and the conflict.
fn conflict_of(change: &MountChange, host: &HostFacts) -> Option<String> {
    match decide("a", change, host, BEGAN_NS) {
        Decision::Apply { conflict, .. } => conflict,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_host_file_from_before_the_sandbox_is_replaced_and_a_later_one_is_a_conflict() {
    use MountEntryKind::File;
    let modified = change(Some(File), Some(File));
    assert_eq!(conflict_of(&modified, &host(Some(on_host(HostKind::File, 5)))), None);
    let later = host(Some(on_host(HostKind::File, BEGAN_NS + 1)));
    assert!(conflict_of(&modified, &later).unwrap().contains("has changed"));
    // Within one tick of the clock the order is unknown.
    let same_tick = host(Some(on_host(HostKind::File, BEGAN_NS - 1)));
    assert!(conflict_of(&modified, &same_tick).is_some());
    assert!(conflict_of(&modified, &host(None)).unwrap().contains("vanished"));
    let link = host(Some(on_host(HostKind::Link, 5)));
    assert!(conflict_of(&modified, &link).unwrap().contains("has become a link"));
    assert!(conflict_of(&change(None, Some(File)), &later).is_some());
}

#[test]
fn times_in_whole_seconds_are_not_exact() {
    let modified = change(Some(MountEntryKind::File), Some(MountEntryKind::File));
    let on = |changed_ns| host(Some(on_host(HostKind::File, changed_ns)));
    assert!(conflict_of(&modified, &on(BEGAN_NS - 1_000_000_000)).is_some());
    assert_eq!(conflict_of(&modified, &on(BEGAN_NS - 1_000_000_001)), None);
    assert_eq!(conflict_of(&modified, &on(BEGAN_NS - 3_000_000_000)), None);
}

#[test]
fn a_moved_folder_is_a_conflict_for_what_is_in_it() {
    use MountEntryKind::File;
    for change in [
        change(Some(File), Some(File)),
        change(Some(File), None),
        change(None, Some(File)),
    ] {
        let mut facts = host(change.before.is_some().then(|| on_host(HostKind::File, 5)));
        assert_eq!(conflict_of(&change, &facts), None);
        facts.moved_folders = vec![("src".to_owned(), on_host(HostKind::Folder, 5))];
        assert!(conflict_of(&change, &facts).unwrap().contains("its folder src"));
    }
}

#[test]
fn a_host_folder_that_the_sandbox_has_made_again_is_removed_only_as_it_was() {
    let gone = change(None, Some(MountEntryKind::File));
    let mut facts = host(Some(on_host(HostKind::File, 5)));
    facts.changed_folders = vec![("src".to_owned(), on_host(HostKind::Folder, BEGAN_NS + 5))];
    assert!(conflict_of(&gone, &facts).unwrap().contains("its folder src"));
    facts.left_by_commit = true;
    assert_eq!(conflict_of(&gone, &facts), None);
}

#[test]
fn a_new_file_conflicts_with_one_of_its_name() {
    let created = change(Some(MountEntryKind::File), None);
    assert_eq!(conflict_of(&created, &host(None)), None);
    let other = host(Some(on_host(HostKind::File, 5)));
    assert!(conflict_of(&created, &other).unwrap().contains("of this name"));
}

#[test]
fn a_copied_file_whose_original_vanished_is_a_conflict() {
    let mut created = change(Some(MountEntryKind::File), None);
    created.copied = true;
    assert_eq!(conflict_of(&created, &host(None)), None);
    let mut facts = host(None);
    facts.parent_modified_ns = Some(BEGAN_NS + 5);
    assert!(conflict_of(&created, &facts).unwrap().contains("vanished"));
    // The sandbox has removed a file, perhaps by moving it here.
    facts.may_have_moved = true;
    assert_eq!(conflict_of(&created, &facts), None);
    // Folders are never moved with this mark.
    let mut folder = change(Some(MountEntryKind::Folder), None);
    assert_eq!(conflict_of(&folder, &facts), None);
    folder.copied = true;
    assert!(conflict_of(&folder, &facts).unwrap().contains("folder has vanished"));
}

#[test]
fn a_folder_that_changed_on_the_host_is_not_removed() {
    use MountEntryKind::Folder;
    let (old, later) = (on_host(HostKind::Folder, 5), on_host(HostKind::Folder, BEGAN_NS + 5));
    let gone = change(None, Some(Folder));
    assert_eq!(conflict_of(&gone, &host(Some(old))), None);
    let mut facts = host(Some(later));
    assert!(conflict_of(&gone, &facts).unwrap().contains("folder has changed"));
    facts.left_by_commit = true;
    assert_eq!(conflict_of(&gone, &facts), None);
}

#[test]
fn what_an_earlier_commit_wrote_is_no_conflict() {
    let written = on_host(HostKind::File, BEGAN_NS + 100);
    let modified = change(Some(MountEntryKind::File), Some(MountEntryKind::File));
    let mut facts = host(Some(written));
    assert!(conflict_of(&modified, &facts).is_some());
    facts.left_by_commit = true;
    assert_eq!(conflict_of(&modified, &facts), None);
    facts.entry = None;
    assert_eq!(conflict_of(&modified, &facts), None);
}

#[test]
fn what_the_host_has_already_is_unchanged() {
    let gone = change(None, Some(MountEntryKind::File));
    assert_eq!(decide("a", &gone, &host(None), BEGAN_NS), Decision::Unchanged);
    let folder = change(Some(MountEntryKind::Folder), None);
    let there = host(Some(on_host(HostKind::Folder, BEGAN_NS + 1)));
    assert_eq!(decide("a", &folder, &there, BEGAN_NS), Decision::Unchanged);
    let mut link = on_host(HostKind::Link, BEGAN_NS + 1);
    link.target = Some(b"target".to_vec());
    let same = change(Some(MountEntryKind::Link), None);
    assert_eq!(decide("a", &same, &host(Some(link)), BEGAN_NS), Decision::Unchanged);
}

#[test]
fn special_files_and_set_id_programs_are_refused() {
    use MountEntryKind::{Device, Fifo, File, Socket};
    for kind in [Fifo, Socket, Device] {
        let decision = decide("a", &change(Some(kind), None), &host(None), BEGAN_NS);
        assert!(
            matches!(
                decision,
                Decision::Refused(Refusal {
                    code: RefusalCode::Type,
                    ..
                })
            ),
            "{decision:?}"
        );
    }
    let mut program = on_host(HostKind::File, 5);
    program.mode = 0o4755;
    let decision = decide("a", &change(Some(File), Some(File)), &host(Some(program)), BEGAN_NS);
    assert!(matches!(
        decision,
        Decision::Refused(Refusal {
            code: RefusalCode::SetId,
            ..
        })
    ));
    let mut escaped = change(Some(File), None);
    escaped.escaped = true;
    let decision = decide("a", &escaped, &host(None), BEGAN_NS);
    assert!(matches!(
        decision,
        Decision::Refused(Refusal {
            code: RefusalCode::Name,
            ..
        })
    ));
}

#[test]
fn a_new_entry_never_gets_set_id_bits_or_rights_for_others_to_write() {
    let mut created = change(Some(MountEntryKind::File), None);
    created.now.as_mut().unwrap().mode = 0o6777;
    let Decision::Apply { work, .. } = decide("a", &created, &host(None), BEGAN_NS) else {
        panic!("not applied");
    };
    assert!(matches!(work, Work::Make(Make::File { mode: 0o755, .. })), "{work:?}");
    let mut folder = change(Some(MountEntryKind::Folder), None);
    folder.now.as_mut().unwrap().mode = 0;
    let Decision::Apply { work, .. } = decide("a", &folder, &host(None), BEGAN_NS) else {
        panic!("not applied");
    };
    assert_eq!(work, Work::Make(Make::Folder { mode: 0o700 }));
}

#[test]
fn only_links_that_stay_below_the_folder_are_applied() {
    for (path, target, out) in [
        ("a", "b", false),
        ("a", "./b//c", false),
        ("x/y/a", "../../b", false),
        ("x/y/a", "../../../b", true),
        ("a", "../b", true),
        ("a", "/etc/passwd", true),
        ("a", "b/../../c", true),
        ("x/a", "b/../c", true),
        ("a", "", true),
        ("a", "b\0c", true),
        ("a", ".", false),
    ] {
        assert_eq!(leads_out(path, target), out, "{path} -> {target:?}");
    }
    let link = change(Some(MountEntryKind::Link), None);
    let mut facts = host(None);
    facts.link_leads_out = true;
    let decision = decide("a", &link, &facts, BEGAN_NS);
    assert!(matches!(
        decision,
        Decision::Refused(Refusal {
            code: RefusalCode::Link,
            ..
        })
    ));
}

#[test]
fn a_folder_never_makes_way_for_a_file_nor_the_other_way_round() {
    use MountEntryKind::{File, Folder, Link};
    for (now, entry) in [
        (File, HostKind::Folder),
        (Link, HostKind::Folder),
        (Folder, HostKind::File),
        (Folder, HostKind::Link),
    ] {
        let facts = host(Some(on_host(entry, 5)));
        let decision = decide("a", &change(Some(now), Some(File)), &facts, BEGAN_NS);
        assert_eq!(decision, Decision::Refused(type_changes()), "{now:?}");
    }
    // A file and a link replace one another at once.
    for (now, entry) in [(File, HostKind::Link), (Link, HostKind::File)] {
        let facts = host(Some(on_host(entry, 5)));
        let decision = decide("a", &change(Some(now), Some(Link)), &facts, BEGAN_NS);
        assert!(matches!(decision, Decision::Apply { .. }), "{decision:?}");
    }
}

#[test]
fn a_change_of_a_mode_alone_is_named() {
    let mut modified = change(Some(MountEntryKind::File), Some(MountEntryKind::File));
    assert_eq!(only_mode(&modified), None);
    modified.now.as_mut().unwrap().mode = 0o755;
    let refused = only_mode(&modified).unwrap();
    assert_eq!(refused.code, RefusalCode::Mode);
    assert!(refused.reason.contains("755 instead of 644"), "{refused:?}");
}
