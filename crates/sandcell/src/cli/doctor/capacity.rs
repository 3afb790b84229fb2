//! The number of sandboxes that fit on this machine, and the limits to raise for more.

use sandcell_sandbox::Capacity;
use serde_json::{Value, json};

use super::Style;

/// The machine's capacity, and the number that the settings allow.
#[derive(Debug)]
pub(super) struct CapacityReport {
    /// None where the machine does not bound them.
    pub(super) capacity: Option<Capacity>,
    /// `limits.sandboxes`.
    pub(super) allowed: u64,
}

impl CapacityReport {
    pub(super) fn as_json(&self) -> Value {
        json!({
            "sandboxes": self.capacity.as_ref().map(|capacity| capacity.sandboxes),
            "allowed": self.allowed,
            "limits": self.capacity.as_ref().map(|capacity| &capacity.bounds),
        })
    }

    pub(super) fn as_text(&self, style: Style) -> String {
        let Some(capacity) = &self.capacity else {
            return String::new();
        };
        let fits = capacity.sandboxes >= self.allowed;
        let mark = if fits { style.green("✓") } else { style.yellow("~") };
        let mut text = format!(
            "\n{}\n  {mark} {} idle sandboxes fit here at once; limits.sandboxes allows {}\n",
            style.bold("Room for sandboxes"),
            capacity.sandboxes,
            self.allowed
        );
        for bound in capacity.bounds.iter().filter(|bound| bound.sandboxes < self.allowed) {
            text.push_str(&format!(
                "  {} {} fit within: {}\n      {} {}\n",
                style.yellow("~"),
                bound.sandboxes,
                bound.limit,
                style.bold("fix:"),
                bound.remedy
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use sandcell_sandbox::Bound;

    use super::*;

    fn room(sandboxes: u64, allowed: u64) -> CapacityReport {
        let bound = Bound {
            name: "open_files".to_owned(),
            sandboxes,
            limit: "open files: 256".to_owned(),
            remedy: "`ulimit -n 65536`".to_owned(),
        };
        CapacityReport {
            capacity: Some(Capacity::of(vec![bound], 20, Some(256))),
            allowed,
        }
    }

    #[test]
    fn a_limit_below_the_setting_is_named_with_its_remedy() {
        let text = room(40, 256).as_text(Style::plain());
        for part in ["40 idle sandboxes", "allows 256", "open files: 256", "ulimit -n 65536"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!room(300, 256).as_text(Style::plain()).contains("ulimit"));
        assert_eq!(room(40, 256).as_json()["limits"][0]["name"], "open_files");
    }
}
