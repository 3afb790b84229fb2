//! The query of an address: known fields, each at most once. Anything else is refused before the caller is known, so
//! that a token in an address is noticed at once.

use std::collections::BTreeMap;

use sandcell_sandbox::Failure;

/// All fields that any resource takes.
const QUERY_FIELDS: [&str; 9] = [
    "text", "status", "language", "sandbox", "before", "limit", "path", "offset", "append",
];

/// A query with known fields only.
#[derive(Debug, Default)]
pub(super) struct Query(BTreeMap<&'static str, String>);

impl Query {
    /// Reads a query. None if a field is unknown or appears twice.
    pub(super) fn parse(query: Option<&str>) -> Option<Self> {
        let mut fields = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            let name = QUERY_FIELDS.into_iter().find(|field| *field == name)?;
            if fields.insert(name, value.into_owned()).is_some() {
                return None;
            }
        }
        Some(Self(fields))
    }

    /// Returns true if the query has no fields other than these.
    pub(super) fn has_only(&self, fields: &[&str]) -> bool {
        self.0.keys().all(|name| fields.contains(name))
    }

    /// Returns the text of a field. None if the field is absent or empty.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|text| !text.is_empty())
    }

    /// The whole number of a field.
    ///
    /// # Errors
    ///
    /// Fails for any other value.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, Failure> {
        let read = |text: &str| {
            let number = text.parse();
            number.map_err(|_| Failure::invalid(format!("`{name}` is not a whole number"), "give a number from 0 on"))
        };
        self.text(name).map(read).transpose()
    }

    /// Returns true if a field is `true`.
    ///
    /// # Errors
    ///
    /// Fails for any value but `true` and `false`.
    pub(super) fn flag(&self, name: &str) -> Result<bool, Failure> {
        match self.text(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(Failure::invalid(
                format!("`{name}` is not a flag"),
                "give true or false",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_known_field_is_accepted_once() {
        let query = Query::parse(Some("path=%2Ftmp%2Fa%20%26+b&append=true&offset=")).unwrap();
        assert_eq!(query.text("path"), Some("/tmp/a & b"));
        assert!(query.flag("append").unwrap() && query.flag("path").is_err());
        assert_eq!(query.number("offset").unwrap(), None);
        assert!(query.has_only(&["path", "append", "offset"]) && !query.has_only(&["path"]));
        for wrong in ["token=x", "path=a&path=b", "Path=a", "path=a&x", "%74oken=x"] {
            assert!(Query::parse(Some(wrong)).is_none(), "{wrong}");
        }
        assert!(Query::parse(None).unwrap().has_only(&[]));
    }
}
