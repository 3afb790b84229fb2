//! The operator's rules about the tools of a server. Pure.

/// The maximum length of a pattern.
const MAX_PATTERN_BYTES: usize = 200;

/// The rules of one server. `deny` wins over `ask`, and `ask` over `allow`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// Tools that are never called.
    pub deny: Vec<Pattern>,
    /// Tools whose calls a person must approve.
    pub ask: Vec<Pattern>,
    /// Tools that are called without a question.
    pub allow: Vec<Pattern>,
    /// True if tools that the server describes as read-only are called without a question, too.
    pub allow_read_only: bool,
}

/// The decision about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The call is made.
    Allow,
    /// A person is asked.
    Ask,
    /// The call is refused.
    Deny,
}

impl Rules {
    /// Decides about the calls of a tool. A tool that no rule names needs a person's approval.
    #[must_use]
    pub fn decide(&self, tool: &str, read_only: bool) -> Decision {
        let names = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(tool));
        if names(&self.deny) {
            Decision::Deny
        } else if names(&self.ask) {
            Decision::Ask
        } else if names(&self.allow) || (self.allow_read_only && read_only) {
            Decision::Allow
        } else {
            Decision::Ask
        }
    }
}

/// A pattern for the names of tools. `*` matches any number of characters. Matching is case-sensitive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// The reason to refuse it, for people.
    pub fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > MAX_PATTERN_BYTES || text.chars().any(char::is_control) {
            return Err(format!(
                "{text:?} is not a pattern: 1 to {MAX_PATTERN_BYTES} bytes, such as \"get_*\""
            ));
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns true if the whole name fits.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
            return false;
        };
        let mut parts = parts.peekable();
        if parts.peek().is_none() {
            return rest.is_empty();
        }
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                return rest.ends_with(part);
            }
            match rest.find(part) {
                Some(at) => rest = rest.get(at + part.len()..).unwrap_or_default(),
                None => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|text| Pattern::read(text).unwrap()).collect()
    }

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, name, fits) in [
            ("get_*", "get_issue", true),
            ("get_*", "forget_issue", false),
            ("*_issue", "get_issue", true),
            ("get", "get", true),
            ("get", "gets", false),
            ("*", "", true),
            ("a*b*c", "a1b2c", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("**", "x", true),
            ("get_*", "GET_issue", false),
            // A look-alike letter (Cyrillic) is another letter.
            ("get_*", "gеt_issue", false),
        ] {
            assert_eq!(Pattern::read(pattern).unwrap().matches(name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn deny_wins_over_ask_and_ask_over_allow() {
        let rules = Rules {
            deny: patterns(&["delete_*"]),
            ask: patterns(&["*_file"]),
            allow: patterns(&["*"]),
            allow_read_only: true,
        };
        assert_eq!(rules.decide("delete_file", true), Decision::Deny);
        assert_eq!(rules.decide("write_file", true), Decision::Ask);
        assert_eq!(rules.decide("list", false), Decision::Allow);
    }

    #[test]
    fn a_tool_that_no_rule_names_needs_approval() {
        assert_eq!(Rules::default().decide("x", true), Decision::Ask);
        let read_only = Rules {
            allow_read_only: true,
            ..Rules::default()
        };
        assert_eq!(read_only.decide("x", true), Decision::Allow);
        assert_eq!(read_only.decide("x", false), Decision::Ask);
    }
}
