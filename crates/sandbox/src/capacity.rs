//! The number of sandboxes that fit on this machine at once, and the limit that decides it.

use serde::{Deserialize, Serialize};

/// One system limit that bounds the number of sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// The limited resource: `open_files`, `processes`, `memory` or `namespaces`.
    pub name: String,
    /// The number of idle sandboxes that fit within it, including existing ones.
    pub sandboxes: u64,
    /// The system's name and value of the limit, in words.
    pub limit: String,
    /// The command or setting that raises it.
    pub remedy: String,
}

/// The limits of the system, and the number of idle sandboxes that fit within all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// The number of sandboxes that fit: the smallest bound.
    pub sandboxes: u64,
    /// The limits that were found, the tightest first. An unlimited resource has no entry.
    pub bounds: Vec<Bound>,
    /// The number of files that the server has open.
    pub open_files: u64,
    /// The number of files that the server may have open. Null if unlimited.
    pub open_files_max: Option<u64>,
}

impl Capacity {
    /// Sorts the bounds and takes the smallest.
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

    /// Returns the tightest bound.
    #[must_use]
    pub fn tightest(&self) -> Option<&Bound> {
        self.bounds.first()
    }

    /// Returns the bound with this name.
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
