//! Installing packages.

use futures::FutureExt as _;
use sandcell_engine::{InHistory, InstallRequest};
use sandcell_sandbox::Failure;
use serde_json::json;

use super::code::{language, wait, wait_field};
use super::{Call, Effect, Facts, Tool, sandbox_field, seconds_field};
use crate::answer::Answer;
use crate::content::execution;
use crate::schema::{Field, Kind};

/// How long an installation may take when a call does not say, in seconds.
const TIMEOUT_S: u64 = 120;

/// Packages that are there from the start.
pub(super) fn packages_field(facts: &Facts) -> Field {
    Field::new("packages", Kind::Texts, json!(["numpy"]))
        .about("Installed first")
        .hidden_if(facts.package_language.is_none())
}

pub(super) fn install_package(facts: &Facts) -> Tool {
    let language = facts.package_language.as_deref().unwrap_or("python");
    Tool {
        name: "install_package",
        description: "Make packages importable in a sandbox, also in a session that runs: variables stay. Use it when \
                      an import fails. Names with versions as for pip (numpy, pandas>=2,<3); no options, files or URLs. \
                      The sandbox itself gets no network."
            .into(),
        fields: vec![
            Field::new("packages", Kind::Texts, json!(["numpy", "pandas>=2,<3"])),
            Field::new("package", Kind::Text, json!("numpy")).about("The same for one"),
            Field::new("language", Kind::Choice(vec![language.to_owned()]), json!(language)).default(json!(language)),
            sandbox_field(),
            seconds_field("timeout_s", 0.001, 3600.0, 300).default(json!(TIMEOUT_S)),
            wait_field(),
        ],
        output: None,
        effect: Effect::ChangesSandbox,
        run: |call| install(call).boxed(),
    }
}

async fn install(mut call: Call) -> Result<Answer, Failure> {
    let arguments = &mut call.arguments;
    let mut packages = arguments.texts("packages");
    packages.extend(arguments.text("package"));
    let request = InstallRequest {
        packages,
        language: language(arguments, &*call.host),
        sandbox_id: arguments.text("sandbox_id"),
        timeout: arguments.seconds("timeout_s"),
        wait: Some(wait(arguments)),
        in_history: InHistory::Shown,
    };
    let view = call.host.install(&call.who, request, call.cancel).await?;
    Ok(execution::answer(&view, call.host.config().output_inline, &[]).await)
}
