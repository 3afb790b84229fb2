//! How many sandboxes fit on this machine at once, and which limit says so.

use serde::{Deserialize, Serialize};

/// One limit of the system that bounds the number of sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// What is limited: `open_files`, `processes`, `memory` or `namespaces`.
    pub name: String,
    /// How many idle sandboxes fit within it, with those that are there.
    pub sandboxes: u64,
    /// The limit as the system has it, in words: its names and numbers.
    pub limit: String,
    /// The command or setting that raises it.
    pub remedy: String,
}

/// The limits of the system, and how many idle sandboxes fit within all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// How many fit: the smallest of the bounds.
    pub sandboxes: u64,
    /// The limits that were found, the tightest first. What has no limit has no entry.
    pub bounds: Vec<Bound>,
    /// Files that the server has open.
    pub open_files: u64,
    /// Files that the server may have open; null: as many as it likes.
    pub open_files_max: Option<u64>,
}

impl Capacity {
    /// Puts the bounds in order.
    #[must_use]
    pub fn of(mut bounds: Vec<Bound>, open_files: u64, open_files_max: Option<u64>) -> Self {
        bounds.sort_by_key(|bound| bound.sandboxes);
        Self {
            sandboxes: bounds.first().map_or(u64::MAX, |bound| bound.sandboxes),
            bounds,
            open_files,
            open_files_max,
        }
    }

    /// The limit that says how many fit.
    #[must_use]
    pub fn tightest(&self) -> Option<&Bound> {
        self.bounds.first()
    }

    /// The limit of this name.
    #[must_use]
    pub fn bound(&self, name: &str) -> Option<&Bound> {
        self.bounds.iter().find(|bound| bound.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_bound_is_the_capacity() {
        let bound = |name: &str, sandboxes| Bound {
            name: name.to_owned(),
            sandboxes,
            limit: String::new(),
            remedy: String::new(),
        };
        let found = Capacity::of(vec![bound("memory", 400), bound("open_files", 30)], 12, Some(256));
        assert_eq!(found.sandboxes, 30);
        assert_eq!(found.tightest().map(|bound| bound.name.as_str()), Some("open_files"));
        assert_eq!(found.bound("memory").map(|bound| bound.sandboxes), Some(400));
        assert_eq!(Capacity::of(Vec::new(), 12, None).sandboxes, u64::MAX);
    }
}
