use super::*;

fn request() -> Request {
    Request {
        memory: 512 << 20,
        cpu_milli: 1000,
        processes: 128,
        disk: 512 << 20,
        inodes: 50_000,
        fault: None,
    }
}

fn template() -> Template {
    Template {
        trees: vec![],
        config: vec![],
        added: vec![],
        mounts: vec![],
        process_level: false,
        spares: 1,
        enterable: false,
        disabled: None,
        skipped: None,
    }
}

fn tree(source: &str, path: &str) -> Tree {
    Tree {
        view: View::Overlay(source.to_owned()),
        path: path.to_owned(),
        inner: Vec::new(),
    }
}

fn position(steps: &[Step], name: &str) -> usize {
    steps.iter().position(|step| step.name() == name).unwrap()
}

#[test]
fn lockdown_steps_are_in_a_working_order() {
    let steps = make(&Host::default(), &template(), &request());
    let order = [
        "take the inside identity",
        "die with the launcher",
        "make the root",
        "mount /proc",
        "change the root",
        "limit Processes",
        "drop capabilities",
        "forbid new privileges",
        "restrict files with Landlock",
        "restrict system calls",
    ];
    let positions: Vec<usize> = order.iter().map(|name| position(&steps, name)).collect();
    assert!(positions.is_sorted(), "{positions:?}");
    assert_eq!(positions.last(), Some(&(steps.len() - 1)));
}

#[test]
fn an_interpreter_below_a_private_folder_is_mounted_after_that_folder() {
    let trees = vec![tree("/l/0", "/usr"), tree("/l/1", "/tmp/venv")];
    let steps = make(
        &Host {
            trees,
            ..Host::default()
        },
        &template(),
        &request(),
    );
    assert!(position(&steps, "mount private /tmp") < position(&steps, "mount /tmp/venv"));
    assert!(position(&steps, "mount /usr") < position(&steps, "mount private /tmp"));
}

#[test]
fn the_first_process_is_hidden_in_proc_where_sandboxes_run_as_root() {
    let name = "make /proc/1 read-only";
    for first_is_reached in [false, true] {
        let host = Host {
            first_is_reached,
            ..Host::default()
        };
        let steps = make(&host, &template(), &request());
        assert_eq!(steps.iter().any(|step| step.name() == name), first_is_reached);
        if first_is_reached {
            assert!(position(&steps, "mount /proc") < position(&steps, name));
            assert!(position(&steps, name) < position(&steps, "change the root"));
        }
    }
}

#[test]
fn the_target_of_a_link_gets_no_separate_mount() {
    let host = Host {
        links: vec![("/lib".into(), "usr/lib".into())],
        trees: vec![tree("/l/0", "/lib/firmware"), tree("/l/1", "/srv")],
        ..Host::default()
    };
    let made = skeleton(&host);
    let folder = |path: &str| Step::Folder { path: path.into() };
    assert!(made.contains(&folder("/srv")) && !made.contains(&folder("/lib/firmware")));
}

#[test]
fn a_rule_for_a_folder_is_not_repeated_for_its_contents() {
    let host = Host {
        trees: vec![
            tree("/l/0", "/usr"),
            tree("/l/1", "/usr/local"),
            tree("/l/2", "/usr2"),
            tree("/l/3", "/opt/x/lib"),
            tree("/l/4", "/opt/x"),
        ],
        ..Host::default()
    };
    let Step::Landlock { readable, .. } = landlock(&host, &template(), Signals::Inside) else {
        panic!("no rules");
    };
    assert_eq!(
        readable,
        ["/etc", "/opt/sandcell", "/opt/x", "/proc", "/sys", "/usr", "/usr2"]
    );
}

#[test]
fn every_step_names_a_layer_known_to_the_report() {
    for step in make(&Host::default(), &template(), &request()) {
        if let Some(layer) = step.layer() {
            assert!(NAMESPACE_LEVEL_LAYERS.contains(&layer), "{layer}");
        }
    }
}

#[test]
fn an_entering_process_is_locked_down_like_the_first_one() {
    let made = make(&Host::default(), &template(), &request());
    let entered = enter(&Host::default(), &template(), &request());
    for step in &made[position(&made, "limit Core")..] {
        if *step != Step::NotDumpable {
            assert!(entered.contains(step), "{}", step.name());
        }
    }
}

#[test]
fn attached_folders_have_prepared_mount_points_and_no_more() {
    let made = skeleton(&Host::default());
    for number in 0..MAX_ATTACHMENTS {
        let path = attach("/l/9", number).unwrap().path;
        assert!(made.contains(&Step::Folder { path }));
    }
    assert_eq!(attach("/l/9", MAX_ATTACHMENTS), None);
}

#[test]
fn without_memory_cgroups_a_process_is_limited_a_little_below_the_limit() {
    let limit = |charged| {
        resource_limits(
            &Host {
                memory_is_charged: charged,
                ..Host::default()
            },
            &request(),
        )
        .into_iter()
        .find_map(|step| match step {
            Step::ResourceLimit {
                resource: Resource::Data,
                hard,
                ..
            } => Some(hard),
            _ => None,
        })
    };
    assert_eq!(limit(false), Some(503 << 20));
    assert_eq!(limit(true), Some(1024 << 20));
}

#[test]
fn the_private_layers_of_a_copy_on_write_folder_are_shown_and_no_other_folders() {
    let folder = |source: &str, path: &str, copy_on_write| Folder {
        tree: Tree {
            inner: vec![Inner {
                view: InnerView::Tree(View::Overlay(format!("{source}x"))),
                path: "data".into(),
            }],
            ..tree(source, path)
        },
        copy_on_write,
    };
    let host = Host {
        mounts: vec![folder("/l/0", "/mnt/ro", false), folder("/l/1", "/mnt/p", true)],
        ..Host::default()
    };
    let shown: Vec<String> = make(&host, &template(), &request())
        .iter()
        .map(Step::name)
        .filter(|name| name.contains("show the layer"))
        .collect();
    assert_eq!(shown, ["show the layer cow1", "show the layer cow1.0"]);
    let made = skeleton(&host);
    for (name, mount) in [("cow1", "/mnt/p"), ("cow1.0", "/mnt/p/data")] {
        let path = format!("/opt/sandcell/mounts/{name}/mount");
        let target = mount.to_owned();
        assert!(made.contains(&Step::Link { path, target }), "{name}");
    }
    assert!(!made.iter().any(|step| step.name().contains("cow0")));
}

/// The number of mount-related calls that a step makes.
fn mount_calls(step: &Step) -> usize {
    match step {
        Step::Work { .. }
        | Step::Root
        | Step::TopLayer
        | Step::ImageRoot
        | Step::Tree { .. }
        | Step::WorkFolder { .. }
        | Step::Proc
        | Step::MaskProc { .. } => 1,
        Step::Devices { own_folder: false, .. } | Step::ReadOnlySysctl | Step::Pivot => 2,
        Step::Folder { .. } | Step::Machine { .. } => 0,
        step if step
            .layer()
            .is_some_and(|layer| layer.ends_with("root") || layer.ends_with("proc")) =>
        {
            panic!("{} makes an unknown number of calls", step.name())
        }
        _ => 0,
    }
}

#[test]
fn a_sandbox_takes_few_mount_calls_besides_the_covers_in_proc() {
    for shows in [Shows::System, Shows::Image] {
        let host = Host {
            root: true,
            trees: vec![tree("/l/0", "/usr")],
            shows,
            ..Host::default()
        };
        let steps = make(&host, &template(), &request());
        let covers = |step: &&Step| matches!(step, Step::MaskProc { .. });
        assert_eq!(steps.iter().filter(covers).count(), 45);
        let others = steps.iter().filter(|step| !covers(step)).map(mount_calls);
        assert_eq!(others.sum::<usize>(), 14, "{shows:?}");
    }
}
