//! Faults that a test injects, and layers that a test skips. Builds without `fault-injection`, such as every release,
//! contain none of it: their functions do nothing.

#[cfg(feature = "fault-injection")]
pub(in crate::launcher) use injected::{
    any_skipped, at, empty_environment, environment_is_kept, in_place_of, layer, needs_own, skipped, step,
};
#[cfg(not(feature = "fault-injection"))]
pub(in crate::launcher) use none::{
    any_skipped, at, empty_environment, environment_is_kept, in_place_of, layer, needs_own, skipped, step,
};

#[cfg(not(feature = "fault-injection"))]
mod none {
    use std::io;

    use crate::plan::Step;
    use crate::spec::{Request, Site, Template};

    pub(in crate::launcher) const fn skipped(_template: &Template, _layer: &str) -> bool {
        false
    }

    pub(in crate::launcher) const fn any_skipped(_template: &Template, _layers: &[&str]) -> bool {
        false
    }

    pub(in crate::launcher) const fn in_place_of(_template: &Template, _step: &Step) -> Option<io::Result<()>> {
        None
    }

    #[expect(clippy::unnecessary_wraps, reason = "builds for tests answer otherwise")]
    pub(in crate::launcher) const fn step(
        _template: &Template,
        _request: &Request,
        _number: usize,
        _step: &Step,
    ) -> io::Result<()> {
        Ok(())
    }

    #[expect(clippy::unnecessary_wraps, reason = "builds for tests answer otherwise")]
    pub(in crate::launcher) const fn at(_request: Option<&Request>, _site: Site) -> io::Result<()> {
        Ok(())
    }

    pub(in crate::launcher) const fn needs_own(_request: &Request) -> bool {
        false
    }

    #[expect(clippy::unnecessary_wraps, reason = "builds for tests answer otherwise")]
    pub(in crate::launcher) const fn layer(_template: &Template, _layer: &str) -> io::Result<()> {
        Ok(())
    }

    pub(in crate::launcher) const fn environment_is_kept() -> bool {
        false
    }

    pub(in crate::launcher) const fn empty_environment(_template: &Template, empty: bool) -> bool {
        empty
    }
}

#[cfg(feature = "fault-injection")]
mod injected {
    use std::io;

    use crate::paths;
    use crate::plan::Step;
    use crate::spec::{Request, Site, Template};
    use crate::steps;

    fn names(list: Option<&str>, layer: &str) -> bool {
        list.is_some_and(|list| list.split(',').any(|name| name == layer))
    }

    /// Returns true if this layer is skipped. A template may name several, separated by commas.
    pub(in crate::launcher) fn skipped(template: &Template, layer: &str) -> bool {
        names(template.skipped.as_deref(), layer)
    }

    /// Returns true if one of these layers is skipped.
    pub(in crate::launcher) fn any_skipped(template: &Template, layers: &[&str]) -> bool {
        layers.iter().any(|layer| skipped(template, layer))
    }

    /// Runs the replacement of a step whose layer is skipped: the state as if the layer did not exist. Without a
    /// private root it shows the host's folders, and without a private /proc the host's.
    pub(in crate::launcher) fn in_place_of(template: &Template, step: &Step) -> Option<io::Result<()>> {
        step.layer()
            .is_some_and(|layer| skipped(template, layer))
            .then(|| instead(step))
    }

    fn instead(step: &Step) -> io::Result<()> {
        let below = |path: &str| format!("{}{path}", paths::NEW_ROOT);
        let show =
            |source: &str, path: &str| steps::copy_of(source).and_then(|mount| steps::attach(&mount, &below(path)));
        match step {
            Step::Root | Step::TopLayer => {
                if *step == Step::TopLayer {
                    steps::run(step)?;
                } else {
                    root_that_can_be_changed()?;
                }
                for path in ["/etc", "/root", "/run", "/srv", "/sys", "/var"] {
                    match rustix::fs::mkdir(below(path), rustix::fs::Mode::from_raw_mode(0o755)) {
                        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                        Err(error) => return Err(error.into()),
                    }
                    show(&format!("{}{path}", paths::host()), path)?;
                }
                Ok(())
            }
            Step::Tree { view, path } => show(view.source(), path),
            Step::Devices { .. } => show(&format!("{}/dev", paths::host()), "/dev"),
            Step::Proc => show(&format!("{}/proc", paths::host()), "/proc"),
            // A sandbox without a private root has private files, too.
            Step::Work { .. } | Step::Pivot => steps::run(step),
            // A process that changes its id becomes undumpable as well.
            Step::NotDumpable => Ok(rustix::process::set_dumpable_behavior(
                rustix::process::DumpableBehavior::Dumpable,
            )?),
            _ => Ok(()),
        }
    }

    fn root_that_can_be_changed() -> io::Result<()> {
        let [upper, work] = ["upper", "work"].map(|name| format!("{}/{name}", paths::PRIVATE_FILES));
        for folder in [&upper, &work] {
            rustix::fs::mkdir(folder.as_str(), rustix::fs::Mode::from_raw_mode(0o755))?;
        }
        let layers = format!("{}:{}", paths::TOP_LAYER, paths::NEW_ROOT);
        steps::attach(&steps::overlay(&layers, Some((&upper, &work)))?, paths::NEW_ROOT)
    }

    /// Returns an error if this step or its layer shall fail.
    pub(in crate::launcher) fn step(
        template: &Template,
        request: &Request,
        number: usize,
        step: &Step,
    ) -> io::Result<()> {
        at(Some(request), Site::Step(number))?;
        step.layer().map_or(Ok(()), |name| layer(template, name))
    }

    /// Returns an error if this site shall fail for this sandbox.
    pub(in crate::launcher) fn at(request: Option<&Request>, site: Site) -> io::Result<()> {
        match request.and_then(|request| request.fault) {
            Some(fault) if fault.at == site => Err(io::Error::from_raw_os_error(fault.errno)),
            Some(_) | None => Ok(()),
        }
    }

    /// Returns true if the fault happens before a process knows its sandbox. The request then needs a process that is
    /// made for it.
    pub(in crate::launcher) fn needs_own(request: &Request) -> bool {
        request.fault.is_some_and(|fault| {
            matches!(
                fault.at,
                Site::Socket
                    | Site::Group
                    | Site::Ways
                    | Site::Devices
                    | Site::Order
                    | Site::Clone
                    | Site::Ids
                    | Site::Join
                    | Site::Namespaces
            )
        })
    }

    /// Returns an error if this layer shall fail.
    pub(in crate::launcher) fn layer(template: &Template, layer: &str) -> io::Result<()> {
        if names(template.disabled.as_deref(), layer) {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        Ok(())
    }

    /// Returns true if a test skips the empty environment.
    pub(in crate::launcher) fn environment_is_kept() -> bool {
        std::env::var("SANDCELL_TEST_SKIP").is_ok_and(|list| names(Some(&list), "empty_environment"))
    }

    /// Returns true if the environment counts as empty.
    pub(in crate::launcher) fn empty_environment(template: &Template, empty: bool) -> bool {
        layer(template, "empty_environment").is_ok() && (empty || skipped(template, "empty_environment"))
    }
}
