//! Secrets of sandboxes.

use hyper::StatusCode;

use crate::problem::Problem;

/// Random bytes of a secret.
const SECRET_BYTES: usize = 24;

/// Returns a new secret: lower-case hexadecimal digits.
pub(crate) fn secret() -> Result<String, Problem> {
    let mut bytes = [0; SECRET_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the system returned no random bytes: {error}"),
        )
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
