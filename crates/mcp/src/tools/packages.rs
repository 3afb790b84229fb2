//! Installing packages.

use futures::FutureExt as _;
use sandcell_engine::{InHistory, InstallRequest};
use sandcell_sandbox::Failure;
use serde_json::json;

use super::code::wait_field;
use super::{Call, Effect, Tool, ToolFacts, sandbox_field, seconds_field};
use crate::answer::Answer;
use crate::content::execution;
use crate::schema::{Field, Kind, ListOf};

/// The default timeout of an installation, in seconds.
const TIMEOUT_S: u64 = 120;

/// Packages that are installed from the start.
pub(super) fn packages_field(facts: &ToolFacts) -> Field {
    let npm = facts.package_languages.iter().any(|language| language == "javascript");
    Field::new("packages", Kind::Texts(ListOf::Packages), json!(["numpy"]))
        .about(if npm {
            "Installed first; npm:NAME is npm's"
        } else {
            "Installed first"
        })
        .hidden_if(facts.package_languages.is_empty())
}

pub(super) fn install_package(facts: &ToolFacts) -> Tool {
    let mut languages = facts.package_languages.clone();
    if languages.is_empty() {
        languages.push("python".to_owned());
    }
    let default = languages.first().cloned().unwrap_or_default();
    let npm = if languages.iter().any(|language| language == "javascript") {
        " With language javascript those of npm (zod, lodash@^4, @types/node@20)."
    } else {
        ""
    };
    Tool {
        name: "install_package",
        description: format!(
            "Make packages importable in a sandbox, also in a running session: variables stay. Use it when an import \
             fails. Names with versions as for pip (numpy, pandas>=2,<3); no options, files or URLs.{npm} The sandbox \
             itself gets no network."
        ),
        fields: vec![
            Field::new(
                "packages",
                Kind::Texts(ListOf::Packages),
                json!(["numpy", "pandas>=2,<3"]),
            ),
            Field::new("package", Kind::Text, json!("numpy")).about("A single package"),
            Field::new("language", Kind::Choice(languages), json!(default)).default(json!(default)),
            sandbox_field(),
            seconds_field("timeout_s", 0.001, 3600.0, 300).default(json!(TIMEOUT_S)),
            wait_field(facts),
        ],
        output: None,
        effect: Effect::ChangesSandbox,
        run: |call| install(call).boxed(),
    }
}

async fn install(mut call: Call) -> Result<Answer, Failure> {
    let arguments = &mut call.arguments;
    let waits = call.wait_limits.of(arguments);
    let mut packages = arguments.texts("packages");
    packages.extend(arguments.text("package"));
    let first = call.engine.package_languages().into_iter().next();
    let request = InstallRequest {
        packages,
        language: arguments
            .text("language")
            .or(first)
            .unwrap_or_else(|| "python".to_owned()),
        sandbox_id: arguments.text("sandbox_id"),
        timeout: arguments.seconds("timeout_s"),
        wait: Some(waits.time),
        in_history: InHistory::Shown,
        consent: call.consent,
    };
    let view = call.engine.install(&call.caller, request, call.cancel).await?;
    let notes = Vec::from_iter(waits.notes(&view));
    Ok(execution::answer(&view, call.engine.config().output_inline, &notes, &call.room).await)
}
