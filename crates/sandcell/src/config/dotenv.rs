//! `.env` files: lines of `NAME=value`, as the usual tools read them. Nothing is expanded and nothing is exported.

/// A line that is not `NAME=value`, by its number from 1.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadLine(pub(crate) usize);

/// Reads the variables that `ours` accepts. Other lines are ignored, valid or not: the file belongs to the user's
/// project.
pub(crate) fn parse(text: &str, ours: impl Fn(&str) -> bool) -> Result<Vec<(String, String)>, BadLine> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let line = line.strip_prefix("export ").unwrap_or(line);
        let Some((name, value)) = line.split_once('=') else {
            continue;
        };
        let name = name.trim();
        if line.starts_with('#') || !ours(name) {
            continue;
        }
        let value = unquote(value.trim()).ok_or(BadLine(index + 1))?;
        found.push((name.to_owned(), value));
    }
    Ok(found)
}

/// Removes quotes, and a comment after the value.
fn unquote(value: &str) -> Option<String> {
    for quote in ['"', '\''] {
        if let Some(rest) = value.strip_prefix(quote) {
            let (inner, after) = rest.split_once(quote)?;
            let after = after.trim();
            return (after.is_empty() || after.starts_with('#')).then(|| inner.to_owned());
        }
    }
    let end = [" #", "\t#"].iter().filter_map(|mark| value.find(mark)).min();
    let value = match end {
        Some(end) => value.get(..end)?,
        None => value,
    };
    Some(value.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_comments_and_export_are_understood() {
        let text = "# X=0\nexport A=1\nB = \"two words\" # why\nC='#3'\nD=e2b  # Default\nE=a#b\nOTHER=\"open\nF=\n";
        let found = parse(text, |name| name != "OTHER").unwrap();
        let found: Vec<(&str, &str)> = found.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(
            found,
            [
                ("A", "1"),
                ("B", "two words"),
                ("C", "#3"),
                ("D", "e2b"),
                ("E", "a#b"),
                ("F", "")
            ]
        );
    }

    #[test]
    fn an_open_quote_of_ours_is_an_error_with_its_line() {
        assert_eq!(parse("X=1\nA=\"open\n", |name| name == "A"), Err(BadLine(2)));
        assert_eq!(parse("A=\"x\" y\n", |_| true), Err(BadLine(1)));
    }

    #[test]
    fn any_text_is_read_without_a_panic() {
        for text in [
            "",
            "=",
            "==\n'",
            "export ",
            "export =",
            "A='",
            "\u{feff}A=1",
            "A=\u{1F600} #",
        ] {
            let _ = parse(text, |_| true);
        }
    }
}
