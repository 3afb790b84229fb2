//! Numbers for the operator, in Prometheus's text format. Labels are fixed words: nothing that a caller sends becomes
//! one, so there are few of them and they reveal nothing about callers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sandcell_engine::Counts;
use sandcell_sandbox::Capacity;

/// Counts events of the request pipeline since the server started.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) connections: AtomicU64,
    /// Connections that were evicted for new ones.
    pub(crate) evicted: AtomicU64,
    answered: Mutex<BTreeMap<(&'static str, u16), u64>>,
    refused: Mutex<BTreeMap<&'static str, u64>>,
}

impl Metrics {
    /// Counts an answered request.
    pub(crate) fn answered(&self, route: &'static str, status: u16) {
        add(&self.answered, (route, status));
    }

    /// Counts a rejected request.
    pub(crate) fn refused(&self, reason: &'static str) {
        add(&self.refused, reason);
    }

    /// Everything as text.
    pub(crate) fn render(
        &self,
        engine: &Counts,
        capacity: Option<&Capacity>,
        (callers, sessions): (usize, usize),
        calls: usize,
    ) -> String {
        let mut page = Page::default();
        page.head(
            "sandcell_http_requests_total",
            "counter",
            "Requests by address and status.",
        );
        for ((route, status), count) in &*lock(&self.answered) {
            page.line(&format!("{{route=\"{route}\",status=\"{status}\"}}"), *count);
        }
        page.head(
            "sandcell_http_refused_total",
            "counter",
            "Requests that were not let in, by reason.",
        );
        for (reason, count) in &*lock(&self.refused) {
            page.line(&format!("{{reason=\"{reason}\"}}"), *count);
        }
        let one = |page: &mut Page, name: &str, kind: &str, help: &str, value: u64| {
            page.head(name, kind, help);
            page.line("", value);
        };
        let whole = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let gauges = [
            ("sandcell_http_calls", "Calls that are being answered.", whole(calls)),
            (
                "sandcell_http_connections",
                "Open connections.",
                read(&self.connections),
            ),
            (
                "sandcell_http_callers",
                "Callers that were here lately.",
                whole(callers),
            ),
            (
                "sandcell_http_sessions",
                "MCP sessions of the older protocols.",
                whole(sessions),
            ),
            ("sandcell_executions_running", "Executions that run.", engine.running),
            (
                "sandcell_executions_queued",
                "Executions that wait for others to end.",
                engine.queued,
            ),
            ("sandcell_sandboxes", "Live sandboxes.", engine.sandboxes),
            (
                "sandcell_sandboxes_most",
                "Sandboxes that may be live at once.",
                engine.sandboxes_most,
            ),
            (
                "sandcell_sandbox_owners",
                "Callers that have a sandbox.",
                engine.callers,
            ),
            (
                "sandcell_pool_waiting",
                "Sandboxes that wait for a call.",
                engine.waiting,
            ),
        ];
        for (name, help, value) in gauges {
            one(&mut page, name, "gauge", help, value);
        }
        let evicted = read(&self.evicted);
        let help = "Connections that were given up for new ones.";
        one(
            &mut page,
            "sandcell_http_connections_evicted_total",
            "counter",
            help,
            evicted,
        );
        if let Some(capacity) = capacity {
            page.capacity(capacity);
        }
        page.engine(engine);
        page.text
    }
}

#[derive(Debug, Default)]
struct Page {
    text: String,
    name: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        name.clone_into(&mut self.name);
        self.put(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    fn line(&mut self, labels: &str, value: impl std::fmt::Display) {
        let name = std::mem::take(&mut self.name);
        self.put(format_args!("{name}{labels} {value}\n"));
        self.name = name;
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing into a string cannot fail.
        let _written = self.text.write_fmt(text);
    }

    /// The capacity under the machine's limits. Unlimited values are left out.
    fn capacity(&mut self, capacity: &Capacity) {
        let help = "Idle sandboxes that fit within each limit of this machine.";
        self.head("sandcell_sandboxes_capacity", "gauge", help);
        for bound in &capacity.bounds {
            self.line(&format!("{{limit=\"{}\"}}", bound.name), bound.sandboxes);
        }
        self.head("sandcell_open_files", "gauge", "Files that the server has open.");
        self.line("", capacity.open_files);
        if let Some(most) = capacity.open_files_max {
            self.head(
                "sandcell_open_files_most",
                "gauge",
                "Files that the server may have open.",
            );
            self.line("", most);
        }
    }

    fn engine(&mut self, counts: &Counts) {
        self.head(
            "sandcell_executions_total",
            "counter",
            "Executions that have ended, by status.",
        );
        for (status, count) in &counts.executions {
            self.line(&format!("{{status=\"{status}\"}}"), count);
        }
        let help = "Why executions were not ok and calls were refused, by code.";
        self.head("sandcell_causes_total", "counter", help);
        for (code, count) in &counts.causes {
            self.line(&format!("{{code=\"{code}\"}}"), count);
        }
        self.head("sandcell_execution_seconds", "histogram", "How long executions ran.");
        for (bound_ms, count) in &counts.durations {
            let bound = Duration::from_millis(*bound_ms).as_secs_f64();
            self.line(&format!("_bucket{{le=\"{bound}\"}}"), count);
        }
        self.line("_bucket{le=\"+Inf\"}", counts.duration_count);
        self.line("_sum", counts.duration_sum.as_secs_f64());
        self.line("_count", counts.duration_count);
        let help = "Processor time that executions used.";
        self.head("sandcell_execution_cpu_seconds_total", "counter", help);
        self.line("", counts.cpu_sum.as_secs_f64());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn add<K: Ord>(counts: &Mutex<BTreeMap<K, u64>>, key: K) {
    *lock(counts).entry(key).or_default() += 1;
}

#[cfg(test)]
mod tests {
    use sandcell_sandbox::Bound;

    use super::*;

    #[test]
    fn the_page_is_in_the_prometheus_format() {
        let metrics = Metrics::default();
        metrics.answered("/mcp", 200);
        metrics.answered("/mcp", 200);
        metrics.refused("token");
        let counts = Counts {
            sandboxes: 3,
            durations: vec![(5, 1), (10_000, 2)],
            duration_count: 2,
            duration_sum: Duration::from_millis(1500),
            ..Counts::default()
        };
        let bound = Bound {
            name: "open_files".to_owned(),
            sandboxes: 40,
            limit: "open files: 256".to_owned(),
            remedy: "raise it".to_owned(),
        };
        let capacity = Capacity::of(vec![bound], 12, Some(256));
        let page = metrics.render(&counts, Some(&capacity), (1, 2), 4);
        for line in [
            "sandcell_http_requests_total{route=\"/mcp\",status=\"200\"} 2",
            "sandcell_http_refused_total{reason=\"token\"} 1",
            "# TYPE sandcell_sandboxes gauge",
            "sandcell_sandboxes 3",
            "sandcell_http_sessions 2",
            "sandcell_sandboxes_capacity{limit=\"open_files\"} 40",
            "sandcell_open_files 12",
            "sandcell_open_files_most 256",
            "sandcell_execution_seconds_bucket{le=\"0.005\"} 1",
            "sandcell_execution_seconds_bucket{le=\"+Inf\"} 2",
            "sandcell_execution_seconds_sum 1.5",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
        let is_sample = |line: &str| line.starts_with("# ") || line.split(' ').count() == 2;
        assert!(page.lines().all(is_sample), "{page}");
    }
}
