//! Selects the back ends: those that the settings name, in their order, if they work here and are strong enough. Every
//! result reports the skipped back ends with their reasons.

use std::sync::Arc;

use futures::future::BoxFuture;
use sandcell_engine::SkippedBackend;
use sandcell_languages::Detected;
use sandcell_sandbox::{Backend, Code, Failure, Language};

use super::absent::AbsentBackend;
use super::{BackendState, Launcher};
use crate::config::Settings;

/// The inputs for making a back end.
pub(super) struct BackendContext<'a> {
    /// The settings.
    pub(super) settings: &'a Settings,
    /// The languages of this machine.
    #[cfg_attr(
        not(all(target_os = "linux", feature = "native")),
        expect(dead_code, reason = "only the native back end shows programs of this machine")
    )]
    pub(super) found: &'a Detected,
    /// The launcher, for the native back end.
    #[cfg_attr(
        not(all(target_os = "linux", feature = "native")),
        expect(dead_code, reason = "only the native back end makes jails")
    )]
    pub(super) launcher: &'a mut Option<Launcher>,
}

/// The future of a back end under construction.
pub(super) type BackendFuture<'a> = BoxFuture<'a, Result<Arc<dyn Backend>, Failure>>;

/// A back end of this build.
pub(super) struct Maker {
    /// Its name in the settings.
    pub(super) name: &'static str,
    /// Makes the back end, or returns the reason that it does not work here.
    pub(super) make: for<'a> fn(BackendContext<'a>) -> BackendFuture<'a>,
    /// The programs inside its sandboxes.
    pub(super) inside: Inside,
}

/// The source of the programs inside a sandbox.
#[derive(Clone, Copy)]
#[allow(dead_code, reason = "the features of the build decide which there are")]
pub(super) enum Inside {
    /// This machine's programs, or programs at this machine's paths.
    ThisMachine,
    /// Remote programs: the back end has its own languages, and none of our packages or idle sandboxes.
    Own {
        /// Its languages.
        languages: fn() -> Vec<Arc<dyn Language>>,
    },
}

/// The result of the setting `backend`.
pub(super) struct SelectedBackends {
    /// The working back ends, in order.
    pub(super) working: Vec<Arc<dyn Backend>>,
    /// All back ends named in the settings.
    pub(super) backends: Vec<BackendState>,
    /// The back ends that do not work, for the engine to report.
    pub(super) absent: Vec<sandcell_engine::AbsentBackend>,
}

/// Makes the back ends that the settings name.
pub(super) async fn choose(
    list: &[Maker],
    settings: &Settings,
    found: &Detected,
    launcher: Launcher,
) -> SelectedBackends {
    let mut chosen = SelectedBackends {
        working: Vec::new(),
        backends: Vec::new(),
        absent: Vec::new(),
    };
    let mut launcher = Some(launcher);
    for name in &settings.backends {
        let context = BackendContext {
            settings,
            found,
            launcher: &mut launcher,
        };
        let mut state = BackendState {
            name: name.clone(),
            level: None,
            failure: None,
        };
        match make(list, name, context).await {
            Ok(backend) => {
                state.level = Some(backend.isolation().level);
                chosen.working.push(backend);
            }
            Err(failure) => {
                chosen.absent.push(sandcell_engine::AbsentBackend {
                    after: chosen.working.len(),
                    skipped: SkippedBackend::new(name.as_str(), failure.clone()),
                });
                state.failure = Some(failure);
            }
        }
        chosen.backends.push(state);
    }
    if let Some(used) = chosen.working.first() {
        for absent in chosen.absent.iter().filter(|absent| absent.after == 0) {
            tracing::warn!(
                "{} is used instead of {}: {}",
                used.name(),
                absent.skipped.backend,
                absent.skipped.message
            );
        }
    }
    chosen
}

/// Returns the languages of a working back end whose sandboxes bring their own programs.
pub(super) fn own_languages(list: &[Maker], backend: &dyn Backend) -> Option<Vec<Arc<dyn Language>>> {
    let maker = list.iter().find(|maker| maker.name == backend.name())?;
    match maker.inside {
        Inside::Own { languages } => Some(languages()),
        Inside::ThisMachine => None,
    }
}

/// Returns stand-ins for back ends of which none works. Each returns its reason.
pub(super) fn broken(backends: &[BackendState]) -> Vec<Arc<dyn Backend>> {
    let failures = backends.iter().filter_map(|backend| backend.failure.clone());
    failures
        .map(|failure| {
            let backend: Arc<dyn Backend> = Arc::new(AbsentBackend::new(failure));
            backend
        })
        .collect()
}
/// Makes the back end of this name, if this build has it and it is strong enough.
pub(super) async fn make(list: &[Maker], name: &str, context: BackendContext<'_>) -> Result<Arc<dyn Backend>, Failure> {
    let floor = context.settings.isolation_min;
    let Some(maker) = list.iter().find(|maker| maker.name == name) else {
        return Err(unknown(name));
    };
    let backend = (maker.make)(context).await?;
    let level = backend.isolation().level;
    if !level.satisfies(floor) {
        backend.shutdown().await;
        return Err(Failure::new(
            Code::IsolationUnavailable,
            format!("isolation layer {floor} is not available: back end {name} isolates at level {level}"),
            format!("choose another back end, or set isolation_min = \"{level}\""),
        ));
    }
    Ok(backend)
}

pub(super) fn unknown(name: &str) -> Failure {
    let (message, remedy) = if cfg!(target_os = "linux") || name != "native" {
        (
            format!("back end {name} is not available: this build does not have it"),
            format!("build sandcell with the feature `{name}`, or choose another back end with --backend"),
        )
    } else {
        (
            format!(
                "back end {name} is not available: it needs Linux, and this is {}",
                std::env::consts::OS
            ),
            "use --backend docker or --backend e2b, or run sandcell on a Linux machine, in a Linux virtual machine or in WSL 2".to_owned(),
        )
    };
    Failure::new(Code::BackendUnavailable, message, remedy)
}

#[cfg(test)]
mod tests {
    use sandcell_sandbox::{Isolation, LayerReport, Level, Sandbox, SandboxError, SandboxSpec};

    use super::*;
    use crate::config::Surroundings;

    #[derive(Debug)]
    struct Pretence(Isolation);

    #[async_trait::async_trait]
    impl Backend for Pretence {
        fn name(&self) -> &'static str {
            match self.0.level {
                Level::Microvm => "strong",
                _ => "weak",
            }
        }

        fn isolation(&self) -> &Isolation {
            &self.0
        }

        fn layers(&self) -> &[LayerReport] {
            &[]
        }

        async fn create(&self, _spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
            Err(SandboxError::Unsupported("everything".to_owned()))
        }

        async fn shutdown(&self) {}
    }

    fn pretend(name: &str, level: Level) -> BoxFuture<'static, Result<Arc<dyn Backend>, Failure>> {
        let backend: Arc<dyn Backend> = Arc::new(Pretence(Isolation {
            backend: name.to_owned(),
            level,
            memory: None,
            layers: Vec::new(),
            degraded: Vec::new(),
        }));
        Box::pin(async { Ok(backend) })
    }

    const TEST_BACKENDS: &[Maker] = &[
        Maker {
            name: "weak",
            make: |_| pretend("weak", Level::Process),
            inside: Inside::ThisMachine,
        },
        Maker {
            name: "strong",
            make: |_| pretend("strong", Level::Microvm),
            inside: Inside::ThisMachine,
        },
        Maker {
            name: "down",
            make: |_| {
                let failure = Failure::new(
                    Code::BackendUnavailable,
                    "back end down is not available: no",
                    "mend it",
                );
                Box::pin(async { Err(failure) })
            },
            inside: Inside::ThisMachine,
        },
    ];

    async fn chosen(names: &[&str], floor: Level) -> SelectedBackends {
        let mut settings = Settings::load(&Surroundings::default()).unwrap();
        settings.backends = names.iter().map(|&name| name.to_owned()).collect();
        settings.isolation_min = floor;
        choose(TEST_BACKENDS, &settings, &Detected::default(), Launcher::none()).await
    }

    fn names(chosen: &SelectedBackends) -> Vec<&'static str> {
        chosen.working.iter().map(|backend| backend.name()).collect()
    }

    #[tokio::test]
    async fn back_ends_are_tried_in_order_and_the_reasons_are_reported() {
        let all = chosen(&["down", "strong", "nowhere", "weak"], Level::None).await;
        assert_eq!(names(&all), ["strong", "weak"]);
        let absent: Vec<_> = all
            .absent
            .iter()
            .map(|one| (one.after, one.skipped.backend.as_str()))
            .collect();
        assert_eq!(absent, [(0, "down"), (1, "nowhere")]);
        assert_eq!(all.absent[0].skipped.remedy, "mend it");
        assert_eq!(all.backends.len(), 4);
    }

    #[tokio::test]
    async fn no_back_end_below_the_isolation_floor_is_used() {
        let some = chosen(&["weak", "strong"], Level::Namespace).await;
        assert_eq!(names(&some), ["strong"]);
        assert_eq!(some.absent[0].skipped.code, Code::IsolationUnavailable);
        assert!(
            some.absent[0]
                .skipped
                .message
                .contains("weak isolates at level process")
        );
        let none = chosen(&["down", "weak"], Level::Namespace).await;
        assert!(none.working.is_empty());
        for (backend, part) in broken(&none.backends).iter().zip(["back end down", "weak isolates"]) {
            let failure = Failure::from(backend.create(&SandboxSpec::default()).await.unwrap_err());
            assert!(failure.message.contains(part), "{failure}");
        }
    }
}
