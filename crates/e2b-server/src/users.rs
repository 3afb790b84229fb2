//! The user of a call: everything in a sandbox runs as one user.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::{HeaderMap, StatusCode};

use crate::limits::USER_NAME;
use crate::problem::Problem;

/// Refuses programs as another user than the sandbox's own.
pub(crate) fn check_user(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(authorization) = headers.get("authorization").and_then(|value| value.to_str().ok()) else {
        return Ok(());
    };
    let Some(encoded) = authorization.strip_prefix("Basic ") else {
        return Ok(());
    };
    let decoded = STANDARD.decode(encoded).unwrap_or_default();
    let name = decoded.split(|byte| *byte == b':').next().unwrap_or_default();
    check_user_name(&String::from_utf8_lossy(name))
}

pub(crate) fn check_user_name(name: &str) -> Result<(), Problem> {
    match name {
        "" | USER_NAME => Ok(()),
        "root" => Err(Problem::unimplemented(
            "the user root: everything runs as the user \"user\"",
        )),
        other => {
            let shown: String = other.chars().take(32).collect();
            Err(Problem::new(
                StatusCode::UNAUTHORIZED,
                format!("invalid username: '{shown}'"),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn only_the_sandboxs_own_user_runs_programs() {
        let as_user = |name: &str| {
            let mut headers = HeaderMap::new();
            let value = format!("Basic {}", STANDARD.encode(format!("{name}:")));
            headers.insert("authorization", HeaderValue::try_from(value).unwrap());
            check_user(&headers).map_err(|problem| problem.status.as_u16())
        };
        assert_eq!(check_user(&HeaderMap::new()).map_err(|problem| problem.status), Ok(()));
        assert_eq!(as_user("user"), Ok(()));
        assert_eq!(as_user("root"), Err(501));
        assert_eq!(as_user("nobody"), Err(401));
    }
}
