//! The report for people.

use sandcell_languages::Choice;
use sandcell_sandbox::{Failure, LayerReport, LayerState, LeftOut};

use super::attack_run::{AttackRun, State};
use super::host::Advice;
use super::{Configured, GET_NPM, GET_UV, NO_DATA, NO_NPM, NO_UV, Report, verdict};
use crate::cli::output::{Style, safe};

/// Returns the whole report.
pub(super) fn of(report: &Report, style: Style) -> String {
    let mut text = String::from("\n");
    text.push_str(&verdict::text(report, style));
    for backend in &report.backends {
        match &backend.failure {
            None => text.push_str(&format!("{} back end {}\n", style.green("✓"), backend.name)),
            Some(failure) => text.push_str(&trouble(style, &format!("back end {}", backend.name), failure)),
        }
    }
    match &report.python {
        // Python in an image that cannot be inspected is assumed, and its version is unknown.
        Ok(version) if version.is_empty() => {}
        Ok(version) => {
            text.push_str(&format!("{} Python {version}\n", style.green("✓")));
            // The first program on PATH is the expected choice. Other choices are worth a line each.
            let shown = |choice: &&Choice| choice.language == "python" || choice.reason.contains("skipped: ");
            for Choice {
                language,
                program,
                reason,
            } in report.choices.iter().filter(shown)
            {
                text.push_str(&style.dim(&format!("    {language} is {}: {reason}\n", program.display())));
            }
        }
        Err(failure) => text.push_str(&trouble(style, "Python", failure)),
    }
    for problem in &report.problems {
        text.push_str(&trouble(style, "sandboxes", problem));
    }
    if let Some(problem) = &report.data_folder {
        text.push_str(&trouble(style, "data folder", problem));
    }
    if let Some(remedy) = &report.data {
        text.push_str(&format!(
            "{} {NO_DATA}\n    {} {remedy}\n",
            style.yellow("!"),
            style.bold("fix:")
        ));
    }
    match &report.uv {
        Some(Ok(path)) => text.push_str(&format!(
            "{} packages are installed with uv ({})\n",
            style.green("✓"),
            path.display()
        )),
        Some(Err(())) => text.push_str(&format!(
            "{} {NO_UV}\n    {} {GET_UV}\n",
            style.yellow("!"),
            style.bold("fix:")
        )),
        None => {}
    }
    match &report.npm {
        Some(Ok(path)) => text.push_str(&format!(
            "{} packages of npm are installed with {}\n",
            style.green("✓"),
            path.display()
        )),
        Some(Err(())) => text.push_str(&format!(
            "{} {NO_NPM}\n    {} {GET_NPM}\n",
            style.yellow("!"),
            style.bold("fix:")
        )),
        None => {}
    }
    if !report.layers.is_empty() {
        text.push_str(&format!("\n{}\n", style.bold("Layers")));
        let mut shown: Option<&str> = None;
        for group in report.layers.chunk_by(same_trouble) {
            let remedy = group.first().and_then(|layer| layer.remedy.as_deref());
            text.push_str(&layer_line(
                group,
                style,
                remedy.filter(|remedy| shown != Some(*remedy)),
            ));
            shown = remedy.or(shown);
        }
    }
    text.push_str(&left_out_text(&report.left_out, style));
    text.push_str(
        &report
            .attack_run
            .as_ref()
            .map(|attack_run| attacks_text(attack_run, style))
            .unwrap_or_default(),
    );
    let (stricter, outer) = ("The host could be stricter", "Limits from outside");
    text.push_str(&report.room.as_text(style));
    text.push_str(&advice_text(&report.outer, &format!("{}\n", style.bold(outer)), style));
    let title = format!("{}  (lasting in /etc/sysctl.d)\n", style.bold(stricter));
    text.push_str(&advice_text(&report.host, &title, style));
    text.push_str(&clients_text(&report.clients, style));
    text
}

/// Returns the commands that the user's clients start, or a suggested command.
fn clients_text(clients: &[Configured], style: Style) -> String {
    let mut text = format!("\n{}\n", style.bold("Your clients"));
    for row in clients {
        match (&row.trouble, &row.program) {
            (None, program) => text.push_str(&format!(
                "  {} {} starts {}\n",
                style.green("✓"),
                row.client,
                safe(program.as_deref().unwrap_or_default())
            )),
            (Some((reason, remedy)), _) => text.push_str(&format!(
                "  {} {} ({}): {}\n      {} {remedy}\n",
                style.red("✗"),
                row.client,
                row.file.display(),
                safe(reason),
                style.bold("fix:")
            )),
        }
    }
    if clients.is_empty() {
        text.push_str(&format!(
            "  `sandcell install CLIENT`, or an entry in its MCP settings: command {}, arguments [\"serve\"]\n",
            std::env::current_exe().map_or_else(|_| "sandcell".to_owned(), |path| format!("\"{}\"", path.display())),
        ));
    }
    text.push('\n');
    text
}

fn trouble(style: Style, what: &str, failure: &Failure) -> String {
    format!(
        "{} {what}: {}\n    {} {}\n",
        style.red("✗"),
        failure.message,
        style.bold("fix:"),
        failure.remedy
    )
}

/// Returns true when two layers share one line: both lack something for the same reason.
fn same_trouble(one: &LayerReport, two: &LayerReport) -> bool {
    one.reason.is_some() && (one.state, &one.reason, &one.remedy) == (two.state, &two.reason, &two.remedy)
}

/// Formats a group of layers. `remedy` is left out when it equals the line before.
fn layer_line(group: &[LayerReport], style: Style, remedy: Option<&str>) -> String {
    let Some(layer) = group.first() else {
        return String::new();
    };
    let names: Vec<&str> = group.iter().map(|layer| layer.name.as_str()).collect();
    let (mark, state) = match layer.state {
        LayerState::Active => (style.green("✓"), String::new()),
        LayerState::Degraded => (style.yellow("~"), style.yellow(" (weaker)")),
        LayerState::Missing => (style.red("✗"), style.red(" (missing)")),
    };
    let mut text = format!("  {mark} {}{state}", names.join(", "));
    if let Some(reason) = &layer.reason {
        text.push_str(&format!(": {reason}"));
    }
    text.push('\n');
    if let Some(remedy) = remedy {
        text.push_str(&format!("      {} {remedy}\n", style.bold("fix:")));
    }
    text
}

/// The mounts of the host that sandboxes do not show.
fn left_out_text(left_out: &[LeftOut], style: Style) -> String {
    if left_out.is_empty() {
        return String::new();
    }
    let mut text = format!("\n{}\n", style.bold("Mounts of this machine that sandboxes do not see"));
    for mount in left_out {
        text.push_str(&format!(
            "  {} {}: {}\n",
            style.yellow("~"),
            safe(&mount.path),
            safe(&mount.reason)
        ));
    }
    text
}

/// Returns advice for the operator on the server's environment.
fn advice_text(advice: &[Advice], title: &str, style: Style) -> String {
    if advice.is_empty() {
        return String::new();
    }
    let mut text = format!("\n{title}");
    for one in advice {
        text.push_str(&format!(
            "  {} {} is {}: {}\n      {} {}\n",
            style.yellow("~"),
            one.name,
            one.now,
            one.reason,
            style.bold("fix:"),
            one.remedy
        ));
    }
    text
}

/// Returns one line for each layer that was attacked, and one for each attack that was not held.
fn attacks_text(attack_run: &AttackRun, style: Style) -> String {
    let held = attack_run.count(State::Held);
    let left = match attack_run.count(State::NotTried) {
        0 => String::new(),
        count => format!(", {count} could not be tried"),
    };
    let mut text = format!(
        "\n{}  {} tried, {held} held{left}, in {:.1} s\n",
        style.bold("Attacks on a sandbox of this machine"),
        held + attack_run.count(State::Breached),
        attack_run.took.as_secs_f64()
    );
    let mut layers: Vec<&str> = Vec::new();
    for result in &attack_run.results {
        if !layers.contains(&result.layer) {
            layers.push(result.layer);
        }
    }
    for layer in layers {
        let of_layer: Vec<_> = attack_run
            .results
            .iter()
            .filter(|result| result.layer == layer)
            .collect();
        let held = of_layer.iter().filter(|result| result.held).count();
        let mark = if of_layer.iter().any(|result| result.state == State::Breached) {
            style.red("✗")
        } else if held == of_layer.len() {
            style.green("✓")
        } else {
            style.yellow("?")
        };
        let names: Vec<&str> = of_layer.iter().map(|result| result.name).collect();
        text.push_str(&format!(
            "  {mark} {layer:<17} {held:>2}/{:<2}  {}\n",
            of_layer.len(),
            style.dim(&shorten(&names.join(" · "), 54))
        ));
        for result in of_layer.iter().filter(|result| !result.held) {
            let name = match result.state {
                State::NotTried => style.yellow(&format!("{}: not tried:", result.name)),
                State::Held | State::Breached => style.red(&format!("{}:", result.name)),
            };
            text.push_str(&format!("      {name} {}\n", safe(&result.detail)));
        }
    }
    text
}

fn shorten(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let head: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{head}…")
}
