//! The first line of the report: the answer to "may code run here", and the reason for a no.

use super::Report;
use super::attack_run::State;
use crate::cli::output::{Style, safe};

pub(super) fn text(report: &Report, style: Style) -> String {
    if report.ok() {
        let level = style.bold(report.level.as_str());
        return format!(
            "{} This machine isolates at level {level}, and every attack held.\n\n",
            style.green("✓")
        );
    }
    format!("{} Not ready: {}.\n\n", style.red("✗"), why(report))
}

fn why(report: &Report) -> String {
    if report.backends.iter().all(|backend| backend.failure.is_some()) {
        return format!(
            "no sandbox can be made here at level {} or above, so sandcell runs no code",
            report.floor
        );
    }
    if report.python.is_err() {
        return "there is no interpreter to run code with".to_owned();
    }
    let Some(attack_run) = &report.attack_run else {
        return "no sandbox can be made with these settings".to_owned();
    };
    if attack_run.count(State::Breached) > 0 {
        return "an attack was not held; do not run code from strangers here".to_owned();
    }
    let attacks = match attack_run.count(State::NotTried) {
        1 => "1 attack".to_owned(),
        count => format!("{count} attacks"),
    };
    format!(
        "{attacks} could not be tried ({}), so that it is not known what they would do",
        safe(attack_run.skip_reason().unwrap_or("there were none"))
    )
}
