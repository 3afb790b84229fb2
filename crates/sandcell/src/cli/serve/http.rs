//! `sandcell serve --http`: addresses, access and shutdown.

use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sandcell_e2b_server::{E2bOptions, E2bServer, Templates};
use sandcell_mcp::{Activity, Anonymous, HttpError, HttpOptions, HttpServer, Page, Permits, TlsFiles, TokenStore};
use sandcell_rest::Rest;
#[cfg(unix)]
use sandcell_sandbox::System;
use sandcell_sandbox::{Code, Failure};
use tokio_util::sync::CancellationToken;

use super::{ServeArgs, output, unknown_tool};
use crate::config::{Settings, Surroundings};
use crate::reload::Reloader;
use crate::signals::{self, OnHangUp};
use crate::wiring::{self, Launcher};

/// The interval between checks that all calls are over.
const QUIET_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The address to listen on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Listen(SocketAddr);

impl FromStr for Listen {
    type Err = String;

    /// Parses `ADDRESS:PORT`, `localhost:PORT`, or a port on loopback.
    fn from_str(text: &str) -> Result<Self, String> {
        let loopback = |port: &str| {
            let port: Result<u16, _> = port.parse();
            port.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        };
        let address = match text.strip_prefix("localhost:") {
            Some(port) => loopback(port).ok(),
            None => text.parse().ok().or_else(|| loopback(text).ok()),
        };
        address.map(Self).ok_or_else(|| {
            "not an address with a port, such as 127.0.0.1:8123, [::1]:8123 or 0.0.0.0:8123, nor a port".to_owned()
        })
    }
}

/// Serves until a signal arrives.
pub(super) async fn serve(
    args: &ServeArgs,
    listen: Listen,
    mut settings: Settings,
    around: Surroundings,
    launcher: Launcher,
) -> Result<ExitCode, Failure> {
    let mut stop = signals::Stop::listen_but(OnHangUp::Reloads)?;
    settings.apply_toolset();
    // Bound first: a failure here leaves nothing else to shut down.
    let listener = TcpListener::bind(listen.0).map_err(|error| cannot_listen(&listen.0, &error))?;
    allow_many_connections();
    let open = is_open_to_others(listen.0.ip());
    let dangerous = args.dangerously_without_authentication;
    let mut http = HttpOptions {
        hosts: settings.http.hosts.clone(),
        origins: settings.http.origins.clone(),
        limits: settings.http.limits.clone(),
        tokens: settings.data_dir.as_deref().map(TokenStore::new),
        anonymous: if open && !dangerous {
            Anonymous::Refused
        } else {
            Anonymous::Allowed
        },
        oauth: settings.http.oauth.clone(),
        page: settings.http.page,
        endpoints: Vec::new(),
        tls: settings
            .http
            .tls
            .clone()
            .map(|(certificate, key)| TlsFiles { certificate, key }),
    };
    let (secure, page) = (http.tls.is_some(), http.page);
    let options = args.options(&settings);
    let (rest, e2b) = (settings.http.rest, settings.http.e2b.clone());
    let permits = settings.data_dir.as_deref().map(Permits::new);
    let port = listener.local_addr().map_or(listen.0.port(), |address| address.port());
    let reloader = Reloader::new(around, OnHangUp::Reloads)?;
    settings.engine.tools.answered_elsewhere = settings.answers_tool_questions();
    let wired = wiring::wire(settings, launcher).await;
    for problem in &wired.problems {
        output::failure(problem);
    }
    let engine = wired.engine.clone();
    if rest {
        http.endpoints.push(Arc::new(Rest::new(engine.clone(), permits)));
    }
    let domain = match e2b.domain.as_str() {
        "" => format!("localhost:{port}"),
        domain => domain.to_owned(),
    };
    if e2b.enabled {
        let options = E2bOptions {
            domain: domain.clone(),
            public_ports: e2b.public_ports,
            // The table was checked when it was read.
            templates: Templates::read(&e2b.templates).unwrap_or_default(),
        };
        http.endpoints.push(Arc::new(E2bServer::new(engine.clone(), options)));
    }
    let server = match HttpServer::new(engine.clone(), options, http, listener) {
        Ok(server) => server,
        Err(error) => {
            engine.shutdown().await;
            return Err(failure(&listen.0.to_string(), error));
        }
    };
    let e2b = e2b.enabled.then_some(domain.as_str());
    announce(&server, open, secure, page, rest, e2b).map_err(|error| cannot_listen(&listen.0, &error))?;
    let (first, second) = (CancellationToken::new(), CancellationToken::new());
    let signals = tokio::spawn({
        let (first, second) = (first.clone(), second.clone());
        async move {
            let _which = stop.next().await;
            first.cancel();
            let _which = stop.next().await;
            second.cancel();
        }
    });
    let following = reloader.start(wired.running().with_http_control(server.control()));
    let trimming = tokio::spawn(trim_heap_when_quiet(server.activity()));
    server.serve(first.cancelled(), second.cancelled()).await;
    drop(following);
    trimming.abort();
    tokio::select! {
        () = engine.shutdown() => {}
        () = second.cancelled() => {}
    }
    signals.abort();
    Ok(ExitCode::SUCCESS)
}

/// Returns freed memory to the system whenever calls have ended and none is running.
pub(super) async fn trim_heap_when_quiet(activity: Activity) {
    let mut given = activity.begun();
    loop {
        tokio::time::sleep(QUIET_CHECK_INTERVAL).await;
        let begun = activity.begun();
        if begun != given && activity.calls() == 0 {
            wiring::trim_heap();
            given = begun;
        }
    }
}

/// Prints the addresses and the access rule; programs read the first line.
fn announce(
    server: &HttpServer,
    open: bool,
    secure: bool,
    page: Page,
    rest: bool,
    e2b: Option<&str>,
) -> io::Result<()> {
    let address = server.address()?;
    let scheme = if secure { "https" } else { "http" };
    let mut text = format!("listening on {scheme}://{address}/mcp\n");
    if page == Page::Served {
        text.push_str(&format!("a page to look at: {scheme}://{address}/\n"));
    }
    if rest {
        text.push_str(&format!(
            "REST calls: {scheme}://{address}/v1 (described by /v1/openapi.json)\n"
        ));
    }
    if let Some(domain) = e2b {
        text.push_str(&e2b_variables(
            &format!("{scheme}://{address}"),
            domain,
            server.wants_tokens(),
        ));
    }
    text.push_str(match (server.wants_tokens(), open) {
        (true, _) => "callers need a token: Authorization: Bearer TOKEN\n",
        (false, false) => "no token exists: every user of this machine may call (sandcell token create NAME)\n",
        (false, true) => {
            "DANGER: no token exists, and everybody who can reach this address may run code here \
             (sandcell token create NAME)\n"
        }
    });
    if open && !secure {
        text.push_str("tokens and code travel in clear text: set http.tls_certificate, or put a TLS proxy in front\n");
    }
    // A closed stderr is ignored: there is no other place for the message.
    let _nobody_listens = io::stderr().lock().write_all(text.as_bytes());
    Ok(())
}

/// Returns the environment variables of programs that use E2B's SDKs.
fn e2b_variables(origin: &str, domain: &str, wants_tokens: bool) -> String {
    let key = if wants_tokens {
        "KEY    # made by `sandcell token create NAME --e2b`".to_owned()
    } else {
        // The SDKs demand a key of this form.
        format!("e2b_{}", "0".repeat(40))
    };
    format!(
        "E2B SDKs work with these variables:\n  E2B_API_URL={origin}\n  E2B_SANDBOX_URL={origin}\n  E2B_API_KEY={key}\n\
         or, behind a TLS proxy for *.{domain}, with E2B_DOMAIN={domain} instead of the two addresses\n"
    )
}

/// Returns true when users of other machines can reach the address.
fn is_open_to_others(address: IpAddr) -> bool {
    !address.to_canonical().is_loopback()
}

/// Raises the limit of open files, since each connection needs one. Only the server itself gets the higher limit: the
/// launcher was started before.
pub(super) fn allow_many_connections() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = most_files(System::of_this_machine(), limit.maximum);
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "the limit of open files cannot be raised");
        }
    }
}

/// Returns the highest limit of open files that can be set under a hard limit of `maximum` (none: unlimited). macOS
/// refuses more than its `OPEN_MAX`, even with a higher hard limit.
#[cfg(unix)]
fn most_files(system: System, maximum: Option<u64>) -> Option<u64> {
    const OPEN_MAX: u64 = 10_240;
    match system {
        System::MacOs => Some(maximum.map_or(OPEN_MAX, |maximum| maximum.min(OPEN_MAX))),
        System::Linux | System::Windows => maximum,
    }
}

fn cannot_listen(address: &(impl std::fmt::Display + ?Sized), error: &io::Error) -> Failure {
    Failure::new(
        Code::InvalidArgument,
        format!("{address} cannot be listened on: {error}"),
        "choose another address or port with --http, or end the program that uses this one",
    )
}

pub(super) fn failure(address: &str, error: HttpError) -> Failure {
    match error {
        HttpError::UnknownTool(unknown) => unknown_tool(&unknown),
        HttpError::Oauth(error) => Failure::invalid(error.to_string(), "correct the settings of [auth]"),
        HttpError::NoToken => Failure::new(
            Code::Unauthorized,
            format!("others can reach {address}, and no token protects it"),
            "make one with `sandcell token create NAME`, or listen on 127.0.0.1 only",
        ),
        HttpError::Tokens => Failure::new(
            Code::Unauthorized,
            "the list of tokens cannot be read",
            "`sandcell token list` shows the reason",
        ),
        HttpError::Name(error) => {
            Failure::invalid(error.to_string(), "correct http.allowed_hosts or http.allowed_origins")
        }
        HttpError::Tls(error) => Failure::invalid(
            error.to_string(),
            "correct http.tls_certificate and http.tls_key, or leave both out",
        ),
        HttpError::Socket(error) => cannot_listen(address, &error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listen_address_may_be_an_address_or_a_port() {
        for (text, address) in [
            ("127.0.0.1:8123", "127.0.0.1:8123"),
            ("localhost:8123", "127.0.0.1:8123"),
            ("8123", "127.0.0.1:8123"),
            ("[::1]:80", "[::1]:80"),
            ("0.0.0.0:8123", "0.0.0.0:8123"),
        ] {
            assert_eq!(text.parse(), Ok(Listen(address.parse().unwrap())), "{text}");
        }
        for text in [
            "",
            "localhost",
            "127.0.0.1",
            "host:1",
            "70000",
            "::1:80",
            "http://localhost:1",
        ] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn the_open_file_limit_requested_is_within_the_hard_limit() {
        for (system, maximum, most) in [
            (System::Linux, Some(1 << 20), Some(1 << 20)),
            (System::Linux, None, None),
            (System::MacOs, None, Some(10_240)),
            (System::MacOs, Some(4096), Some(4096)),
        ] {
            assert_eq!(most_files(system, maximum), most);
        }
    }

    #[test]
    fn only_loopback_addresses_count_as_local() {
        for (address, open) in [
            ("127.0.0.1", false),
            ("127.8.8.8", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("0.0.0.0", true),
            ("::", true),
            ("192.168.1.1", true),
            ("::ffff:10.0.0.1", true),
        ] {
            assert_eq!(is_open_to_others(address.parse().unwrap()), open, "{address}");
        }
    }
}
