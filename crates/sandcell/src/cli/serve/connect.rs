//! `sandcell serve --connect`: a proxy from stdin and stdout to a running server.

use std::process::ExitCode;

use sandcell_mcp::{ProxyError, Wake};
use sandcell_sandbox::{Code, Failure};

use super::ServeArgs;
use crate::signals;

/// The variable that holds the token. An argument would be readable by every user of the machine.
const TOKEN_VARIABLE: &str = "SANDCELL_TOKEN";

/// Returns the token for a running server, if there is one.
pub(in crate::cli) fn token() -> Result<Option<String>, Failure> {
    match std::env::var(TOKEN_VARIABLE) {
        Ok(token) if !token.trim().is_empty() => Ok(Some(token.trim().to_owned())),
        Ok(_) | Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(failure(&ProxyError::Token)),
    }
}

/// Passes messages on until stdin is closed or a signal arrives.
pub(super) async fn serve(args: &ServeArgs, url: &str) -> Result<ExitCode, Failure> {
    if let Some(flag) = args.flags().iter().find(|flag| !flag.texts.is_empty()) {
        return Err(Failure::invalid(
            format!("{} has no effect on a server that runs already", flag.flag),
            "give it to that server, or leave --connect out",
        ));
    }
    let token = token()?;
    #[cfg(unix)]
    if let Some(path) = url.strip_prefix("unix:").filter(|path| path.starts_with('/')) {
        // An absent server is reported call by call. A server of another user is reported at once.
        crate::service::ask(std::path::Path::new(path)).await?;
        return pass_on(url, None, None).await;
    }
    pass_on(url, token.as_deref(), None).await
}

/// Passes messages on until stdin is closed or a signal arrives.
pub(super) async fn pass_on(to: &str, token: Option<&str>, wake: Option<Wake>) -> Result<ExitCode, Failure> {
    let mut stop = signals::Stop::listen()?;
    tokio::select! {
        ended = sandcell_mcp::proxy_stdio(to, token, wake) => {
            ended.map_err(|error| failure(&error)).map(|()| ExitCode::SUCCESS)
        }
        _signal = stop.next() => Ok(ExitCode::SUCCESS),
    }
}

fn failure(error: &ProxyError) -> Failure {
    match error {
        ProxyError::Address(..) => Failure::invalid(
            format!("--connect: {error}"),
            "give the address that the server printed, such as http://127.0.0.1:8123/mcp",
        ),
        ProxyError::Token => Failure::invalid(format!("{TOKEN_VARIABLE}: {error}"), "put the token alone there"),
        ProxyError::Client(_) | ProxyError::Pipe(_) => {
            Failure::new(Code::Internal, error.to_string(), "look at the client and its log")
        }
    }
}
