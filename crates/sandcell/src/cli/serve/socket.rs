//! `sandcell serve --socket`: the server in the background. It listens at a socket of the file system for programs of
//! the same user, and ends when no client needs it any more.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandcell_engine::Engine;
use sandcell_mcp::{Activity, HttpServer};
use sandcell_sandbox::{Code, Failure};
use tokio_util::sync::CancellationToken;

use super::{ServeArgs, http, output};
use crate::config::{Settings, Surroundings};
use crate::reload::Reloader;
use crate::service::{self, SocketState};
use crate::signals::{self, OnHangUp};
use crate::wiring::{self, Launcher};

/// The interval between checks that a client still needs the server.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Serves until a signal arrives, or no client used it for `service.idle_s`.
pub(super) async fn serve(
    args: &ServeArgs,
    socket: &Path,
    mut settings: Settings,
    around: Surroundings,
    launcher: Launcher,
) -> Result<ExitCode, Failure> {
    // A new session protects the server from its terminal's hang-up and from an interrupt meant for the client. The
    // call fails if this process already leads a process group; then it shares no group with the client.
    let _own_session = rustix::process::setsid();
    let mut stop = signals::Stop::listen_but(OnHangUp::Reloads)?;
    settings.apply_toolset();
    let listener = listen(socket).await?;
    let identity = identity(socket);
    http::allow_many_connections();
    let idle = settings.service.idle;
    let limits = settings.http.limits.clone();
    let options = args.options(&settings);
    let reloader = Reloader::new(around, OnHangUp::Reloads)?;
    let wired = wiring::wire(settings, launcher).await;
    for problem in &wired.problems {
        output::failure(problem);
    }
    let engine = wired.engine.clone();
    let server = match HttpServer::on_socket(engine.clone(), options, limits, listener) {
        Ok(server) => server,
        Err(error) => {
            engine.shutdown().await;
            return Err(http::failure(&socket.display().to_string(), error));
        }
    };
    let activity = server.activity();
    let second = CancellationToken::new();
    let first = async {
        tokio::select! {
            _signal = stop.next() => {}
            () = wait_until_unneeded(&engine, &activity, idle) => tracing::info!("no client needs this server any more"),
        }
    };
    let following = reloader.start(wired.running().with_http_control(server.control()));
    let trimming = tokio::spawn(http::trim_heap_when_quiet(server.activity()));
    server.serve(first, second.cancelled()).await;
    drop(following);
    trimming.abort();
    remove(socket, identity);
    tokio::select! {
        () = engine.shutdown() => {}
        _second = stop.next() => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Binds the socket, and replaces a socket that an ended server left behind.
async fn listen(socket: &Path) -> Result<UnixListener, Failure> {
    let cannot = |error: io::Error| {
        Failure::new(
            Code::InvalidArgument,
            format!("{} cannot be listened on: {error}", socket.display()),
            "choose another path with --socket",
        )
    };
    if let SocketState::Server(..) = service::ask(socket).await? {
        return Err(Failure::new(
            Code::Busy,
            format!("a server listens at {} already", socket.display()),
            "use that one (`sandcell serve --connect unix:PATH`), or end it (`sandcell service stop`)",
        ));
    }
    match std::fs::symlink_metadata(socket) {
        Ok(meta) if meta.file_type().is_socket() => std::fs::remove_file(socket).map_err(cannot)?,
        Ok(_) => return Err(cannot(io::ErrorKind::AlreadyExists.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(cannot(error)),
    }
    // No other user can connect before the mode is set either: the server checks each peer in any case.
    let listener = UnixListener::bind(socket).map_err(cannot)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600)).map_err(cannot)?;
    Ok(listener)
}

/// Returns the file's identity.
fn identity(socket: &Path) -> Option<(u64, u64)> {
    let meta = std::fs::symlink_metadata(socket).ok()?;
    Some((meta.dev(), meta.ino()))
}

/// Removes the socket, unless another server has replaced it meanwhile. A socket that stays behind is harmless: it
/// refuses connections, and the next server replaces it.
fn remove(socket: &Path, own: Option<(u64, u64)>) {
    if own.is_some() && identity(socket) == own {
        let _left_behind = std::fs::remove_file(socket);
    }
}

/// Waits until there was no sandbox and no call for the duration `idle`.
async fn wait_until_unneeded(engine: &Arc<Engine>, activity: &Activity, idle: Duration) {
    let mut quiet_since = Instant::now();
    let mut begun = activity.begun();
    loop {
        tokio::time::sleep(IDLE_CHECK_INTERVAL.min(idle)).await;
        let counts = engine.counts();
        let now = activity.begun();
        if counts.sandboxes > 0 || counts.running > 0 || activity.calls() > 0 || now != begun {
            quiet_since = Instant::now();
            begun = now;
        } else if quiet_since.elapsed() >= idle {
            return;
        }
    }
}
