//! A web page: shows a caller's sandboxes with their present and past executions, and runs code in them. Off unless the
//! operator turns it on.
//!
//! Two parts. The files of the page (`/` and `/page/…`) are the same for everybody and hold no data, so they need no
//! token, only a right Host. The data is below `/api/…`, and each caller sees only its own. The API has the same
//! admission, rate and places as `/mcp`. It refuses pages of other origins, even those that the operator allowed for
//! MCP, and it requires a header that no form, picture or script element of any page can send. The server sets and
//! reads no cookie, so a browser sends no credentials by itself.
//!
//! The decision taken here: anything that came from code leaves as JSON, or as bytes of a type that no browser treats
//! as a document. The page inserts it as text; its policy forbids any other way of making elements.

mod api;
mod notebook;
mod query;
mod runs;
mod sandbox_files;

use bytes::Bytes;
use hyper::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::{HeaderMap, Method, Response, StatusCode};
use sandcell_sandbox::{Code, Failure};
use serde_json::{Value, json};

use super::body::{Body, whole_body};
use super::rejection::Rejection;

/// The switch for the page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Page {
    /// No page is served.
    #[default]
    Absent,
    /// The page is served at `/`.
    Served,
}

/// The header that every request to `/api` must have.
const ASKED_BY: HeaderName = HeaderName::from_static("sandcell-page");

/// The page may load its own files, show pictures that it made itself, and query this server. It has no inline script,
/// makes no elements from text, and cannot be framed.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";
/// The policy for responses that are no page, in case a browser shows them as one.
const NO_PAGE: &str = "default-src 'none'; frame-ancestors 'none'; sandbox";

/// A file of the page: where it is, its type, its bytes.
const PAGE_FILES: [(&str, &str, &[u8]); 10] = [
    ("/", "text/html; charset=utf-8", include_bytes!("files/index.html")),
    (
        "/page/page.css",
        "text/css; charset=utf-8",
        include_bytes!("files/page.css"),
    ),
    (
        "/page/page.js",
        "text/javascript; charset=utf-8",
        include_bytes!("files/page.js"),
    ),
    (
        "/page/approvals.js",
        "text/javascript; charset=utf-8",
        include_bytes!("files/approvals.js"),
    ),
    (
        "/page/execution.js",
        "text/javascript; charset=utf-8",
        include_bytes!("files/execution.js"),
    ),
    (
        "/page/history.js",
        "text/javascript; charset=utf-8",
        include_bytes!("files/history.js"),
    ),
    (
        "/page/lib.js",
        "text/javascript; charset=utf-8",
        include_bytes!("files/lib.js"),
    ),
    (
        "/page/run.js",
        "text/javascript; charset=utf-8",
        include_bytes!("files/run.js"),
    ),
    (
        "/page/sandbox.js",
        "text/javascript; charset=utf-8",
        include_bytes!("files/sandbox.js"),
    ),
    ("/page/icon.svg", "image/svg+xml", include_bytes!("files/icon.svg")),
];

/// Returns true if the page has a file at this path.
pub(super) fn has_file(path: &str) -> bool {
    PAGE_FILES.iter().any(|(served, ..)| *served == path)
}

/// Returns true if this path belongs to the page's API.
pub(super) fn is_api(path: &str) -> bool {
    path.starts_with("/api/")
}

/// A file of the page.
pub(super) fn file(method: &Method, path: &str) -> Result<Response<Body>, Rejection> {
    if method != Method::GET && method != Method::HEAD {
        return Err(Rejection::method("GET, HEAD"));
    }
    let (_, kind, bytes) = PAGE_FILES
        .iter()
        .find(|(served, ..)| *served == path)
        .ok_or_else(Rejection::no_such_address)?;
    Ok(answer(
        StatusCode::OK,
        kind,
        CONTENT_POLICY,
        "no-cache",
        Bytes::from_static(bytes),
    ))
}

/// Checks that the page itself sent the request.
fn asked_by_the_page(headers: &HeaderMap) -> Result<(), Rejection> {
    let mut values = headers.get_all(ASKED_BY).iter();
    match (values.next(), values.next()) {
        (Some(value), None) if value == "1" => Ok(()),
        _ => Err(Rejection::not_the_page()),
    }
}

fn data(status: StatusCode, data: &Value) -> Response<Body> {
    let text = Bytes::from(data.to_string());
    answer(status, "application/json", NO_PAGE, "no-store", text)
}

/// Makes an answer with bytes that code made. Only pure picture types are declared; all other types are sent as a
/// download.
fn bytes(bytes: Bytes) -> Response<Body> {
    let kind = picture(&bytes).unwrap_or("application/octet-stream");
    let mut response = answer(StatusCode::OK, kind, NO_PAGE, "no-store", bytes);
    let disposition = HeaderValue::from_static("attachment");
    response.headers_mut().insert(CONTENT_DISPOSITION, disposition);
    response
}

/// Returns the picture type that browsers show without treating it as a document.
fn picture(bytes: &[u8]) -> Option<&'static str> {
    const IMAGE_KINDS: [(&[u8], &str); 3] = [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (b"GIF8", "image/gif"),
    ];
    let kind = IMAGE_KINDS.iter().find(|(magic, _)| bytes.starts_with(magic));
    kind.map(|(_, kind)| *kind)
}

/// A failed call, in the common format of failures.
fn failed(failure: &Failure) -> Response<Body> {
    let status = match failure.code {
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::Expired => StatusCode::GONE,
        Code::InvalidArgument => StatusCode::BAD_REQUEST,
        Code::LimitReached | Code::Busy => StatusCode::TOO_MANY_REQUESTS,
        Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::CONFLICT,
    };
    data(status, &json!({"error": {"data": failure}}))
}

fn answer(
    status: StatusCode,
    kind: &'static str,
    policy: &'static str,
    cache: &'static str,
    bytes: Bytes,
) -> Response<Body> {
    let mut response = Response::new(whole_body(bytes));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, policy),
        (CACHE_CONTROL, cache),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_no_inline_script_or_style_and_loads_nothing_from_other_origins() {
        let html = std::str::from_utf8(PAGE_FILES[0].2).unwrap();
        assert_eq!(html.matches("<script").count(), 1, "one module, by its address");
        assert!(html.contains("<script type=\"module\" src=\"page/page.js\"></script>"));
        for forbidden in ["<style", "style=", "http://", "https://", "javascript:"] {
            assert!(!html.contains(forbidden), "{forbidden}");
        }
        let handler = |rest: &str| {
            rest.trim_start_matches(|c: char| c.is_ascii_lowercase())
                .starts_with('=')
        };
        assert!(handler("focus=\"x\"") && !handler(" this page"));
        assert!(!html.split(" on").skip(1).any(handler));
        let scripts = PAGE_FILES.iter().filter(|(file_path, ..)| file_path.ends_with(".js"));
        for (file_path, _, bytes) in scripts {
            let script = std::str::from_utf8(bytes).unwrap();
            for forbidden in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "localStorage",
                "document.cookie",
                ".srcdoc",
                "DOMParser",
                "setHTMLUnsafe",
                "createContextualFragment",
                "http://",
                "https://",
            ] {
                assert!(!script.contains(forbidden), "{file_path}: {forbidden}");
            }
        }
        let style = std::str::from_utf8(PAGE_FILES[1].2).unwrap();
        assert!(!style.contains("url(") && !style.contains("@import"));
    }

    #[test]
    fn the_page_is_as_small_as_its_guide_states() {
        let bytes: usize = PAGE_FILES.iter().map(|(_, _, bytes)| bytes.len()).sum();
        assert!(bytes < 80_000, "{bytes} bytes: docs/guides/http.md states the size");
    }

    #[test]
    fn only_pictures_get_a_mime_type() {
        for (content, kind) in [
            (&b"\x89PNG\r\n\x1a\nrest"[..], "image/png"),
            (b"\xff\xd8\xffrest", "image/jpeg"),
            (
                b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
                "application/octet-stream",
            ),
            (b"<html><script>alert(1)</script>", "application/octet-stream"),
            (b"", "application/octet-stream"),
        ] {
            let response = bytes(Bytes::from_static(content));
            assert_eq!(response.headers()[CONTENT_TYPE], kind);
            assert_eq!(response.headers()[CONTENT_DISPOSITION], "attachment");
            assert_eq!(response.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
        }
    }
}
