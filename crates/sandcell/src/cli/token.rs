//! `sandcell token`: manages the tokens for the server's HTTP access.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use sandcell_engine::{EventKind, SecurityEvent};
use sandcell_mcp::{NewToken, Token, TokenError, TokenForm, TokenStore, TokenUse};
use sandcell_sandbox::{Code, Failure};
use serde_json::json;

use super::{output, printed};
use crate::config::Settings;
use crate::wiring::sinks;

const DAY_S: u64 = 86_400;

/// Makes, lists and revokes the tokens that `serve --http` takes
///
/// Each token is a separate caller with its own sandboxes, history and limits. As soon as one exists, a token is
/// required. A running server applies changes at once.
#[derive(Debug, Args)]
pub(super) struct TokenArgs {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Makes a token and prints it; it cannot be shown again
    Create {
        /// The token's owner or purpose
        name: String,

        /// The number of days until the token expires
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u64).range(1..=36_500))]
        expires: Option<u64>,

        /// Allows only /metrics
        #[arg(long)]
        metrics: bool,

        /// Makes a token in the form of E2B's keys, which E2B's SDKs demand. It also opens /mcp and /v1
        #[arg(long, conflicts_with = "metrics")]
        e2b: bool,

        /// Prints {id, name, token, expires_at}
        #[arg(long)]
        json: bool,
    },
    /// Lists the tokens, without their secrets
    List {
        /// Prints a list of {id, name, use, created_at, expires_at, expired}
        #[arg(long)]
        json: bool,
    },
    /// Revokes a token
    Revoke {
        /// Its id, as `token list` shows it
        id: String,
    },
}

pub(super) fn run(args: &TokenArgs, settings: &Settings) -> Result<ExitCode, Failure> {
    let folder = settings.data_dir.as_deref().ok_or_else(|| {
        Failure::new(
            Code::InvalidArgument,
            "there is no folder to keep tokens in",
            "set data_dir or SANDCELL_DATA_DIR",
        )
    })?;
    let store = TokenStore::new(folder);
    match &args.command {
        TokenCommand::Create {
            name,
            expires,
            metrics,
            e2b,
            json,
        } => {
            let lifetime = expires.map(|days| Duration::from_secs(days.saturating_mul(DAY_S)));
            let usage = if *metrics { TokenUse::Metrics } else { TokenUse::Mcp };
            let form = if *e2b { TokenForm::E2b } else { TokenForm::Own };
            let made = store.create_as(form, name, lifetime, usage).map_err(failure)?;
            let end = made.token.expires_at().unwrap_or_else(|| "never".to_owned());
            let detail = format!("{} for {name:?}, expires: {end}", made.token.id);
            sinks::note(settings, SecurityEvent::new(EventKind::TokenCreated, detail));
            show_new(&made, *json)
        }
        TokenCommand::List { json } => show_all(&store.list().map_err(failure)?, *json),
        TokenCommand::Revoke { id } => {
            let token = store.revoke(id).map_err(failure)?;
            let detail = format!("{} of {:?}", token.id, token.name);
            sinks::note(settings, SecurityEvent::new(EventKind::TokenRevoked, detail));
            printed(
                output::text(&format!("revoked {} ({})\n", token.id, output::safe(&token.name)))
                    .map(|()| ExitCode::SUCCESS),
            )
        }
    }
}

fn show_new(made: &NewToken, json: bool) -> Result<ExitCode, Failure> {
    let written = if json {
        output::json(&json!({
            "id": made.token.id,
            "name": made.token.name,
            "token": made.secret,
            "expires_at": made.token.expires_at(),
        }))
    } else {
        output::text(&format!("{}\n", made.secret))
    };
    printed(written.map(|()| ExitCode::SUCCESS))
}

fn show_all(tokens: &[Token], json: bool) -> Result<ExitCode, Failure> {
    let written = if json {
        output::json(&tokens.iter().map(as_json).collect())
    } else {
        output::text(&as_text(tokens))
    };
    printed(written.map(|()| ExitCode::SUCCESS))
}

fn as_json(token: &Token) -> serde_json::Value {
    json!({
        "id": token.id,
        "name": token.name,
        "use": token.usage,
        "created_at": token.created_at(),
        "expires_at": token.expires_at(),
        "expired": token.has_expired(),
    })
}

fn as_text(tokens: &[Token]) -> String {
    if tokens.is_empty() {
        return "no tokens (sandcell token create NAME makes one)\n".to_owned();
    }
    let line = |token: &Token| {
        let end = match token.expires_at() {
            None => "never expires".to_owned(),
            Some(_) if token.has_expired() => "has expired".to_owned(),
            Some(end) => format!("expires {end}"),
        };
        let usage = match token.usage {
            TokenUse::Mcp => "mcp    ",
            TokenUse::Metrics => "metrics",
        };
        let name = output::safe(&token.name);
        format!("{}  {usage}  {}  {end}  {name}\n", token.id, token.created_at())
    };
    tokens.iter().map(line).collect()
}

fn failure(error: TokenError) -> Failure {
    let mut message = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(inner) = source {
        message = format!("{message}: {inner}");
        source = inner.source();
    }
    let (code, remedy) = match error {
        TokenError::Name => (
            Code::InvalidArgument,
            "choose a short name, such as the person's or the program's",
        ),
        TokenError::Full => (
            Code::LimitReached,
            "revoke tokens that are not used (sandcell token revoke ID)",
        ),
        TokenError::Unknown(_) => (Code::NotFound, "`sandcell token list` shows the ids"),
        TokenError::Form { .. } => (
            Code::Internal,
            "restore the file from a copy, or delete it and make new tokens",
        ),
        TokenError::File { .. } => (Code::Internal, "check data_dir, its owner and the room on its disk"),
        TokenError::Random(_) => (Code::Internal, "try again"),
    };
    Failure::new(code, message, remedy)
}
