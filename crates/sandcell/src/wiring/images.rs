//! Images that need no container daemon: their settings, and the location of registry logins.

use std::path::PathBuf;
use std::sync::Arc;

use sandcell_images::{Allow, Config, LocalImages};
use sandcell_sandbox::{Code, Failure};

use crate::config::Settings;
use crate::config::table::PullPolicy;

/// Makes the image store from the settings; none without a data folder.
pub(crate) fn of(settings: &Settings) -> Result<Option<Arc<LocalImages>>, Failure> {
    let own = &settings.images;
    let Some(data) = settings.data_dir.clone() else {
        return Ok(None);
    };
    let program = std::env::current_exe().map_err(|error| {
        Failure::new(
            Code::Internal,
            format!("this program cannot be found again: {error}"),
            "check that /proc is mounted",
        )
    })?;
    let allow = own.allow.iter().map(|text| {
        text.parse::<Allow>()
            .map_err(|error| Failure::invalid(format!("{text:?}: {error}"), "correct images.allow"))
    });
    let mirrors = own.mirrors.iter().map(|text| {
        let sound = |text: &&str| !text.is_empty() && !text.contains('/');
        text.split_once('=')
            .filter(|(of, mirror)| sound(of) && sound(mirror))
            .map(|(of, mirror)| (of.to_owned(), mirror.to_owned()))
            .ok_or_else(|| {
                Failure::invalid(
                    format!("{text:?} is not REGISTRY=MIRROR"),
                    "correct images.mirrors, such as docker.io=mirror.example:5000",
                )
            })
    });
    Ok(Some(LocalImages::new(Config {
        data,
        program: real_program(program),
        allow: allow.collect::<Result<_, _>>()?,
        folders: settings.image_folders.clone(),
        pull: own.pull == PullPolicy::Missing,
        insecure: own.insecure.clone(),
        mirrors: mirrors.collect::<Result<_, _>>()?,
        logins: own.auth_file.clone().map_or_else(usual_logins, |file| vec![file]),
        download_max: own.download.as_bytes(),
        unpacked_max: own.unpacked.as_bytes(),
        kept_max: own.kept.as_bytes(),
    })))
}

/// Returns the path of this program, also after a newer one replaced it while it ran.
fn real_program(found: PathBuf) -> PathBuf {
    if found.is_file() {
        found
    } else {
        PathBuf::from("/proc/self/exe")
    }
}

/// Returns the files where other tools store logins.
fn usual_logins() -> Vec<PathBuf> {
    let path = |name: &str| {
        let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
        Some(PathBuf::from(value)).filter(|path| path.is_absolute())
    };
    let folder = |name: &str, rest: &str| path(name).map(|folder| folder.join(rest));
    [
        path("REGISTRY_AUTH_FILE"),
        folder("XDG_RUNTIME_DIR", "containers/auth.json"),
        folder("DOCKER_CONFIG", "config.json").or_else(|| folder("HOME", ".docker/config.json")),
    ]
    .into_iter()
    .flatten()
    .collect()
}
