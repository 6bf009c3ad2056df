//! The console at `/`: plain ES modules and styles, embedded in the binary and served as they are. It is a
//! client of the public operator API and has no other access to the server.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hyper::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use sha2::{Digest, Sha256};

use crate::problem::{Problem, ProblemKind};

/// The console loads its own files and calls its own server; inline scripts and styles are refused, so that
/// a key or payload that became markup by mistake could still not run.
const CONSOLE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

const SHELL: &str = "index.html";

macro_rules! assets {
    ($($name:literal)*) => {
        /// The name beneath `/console/` and the text of each file.
        const ASSETS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("assets/", $name)))),*];
    };
}

assets! {
    "index.html"
    "icon.svg"
    "base.css"
    "shell.css"
    "content.css"
    "main.js"
    "api.js"
    "attention.js"
    "chart.js"
    "dialog.js"
    "dom.js"
    "format.js"
    "live.js"
    "page.js"
    "pages.js"
    "session.js"
    "shell.js"
    "sign_in.js"
    "table.js"
    "tasks.js"
    "pages/audit.js"
    "pages/conflicts.js"
    "pages/dead.js"
    "pages/jobs.js"
    "pages/key.js"
    "pages/line.js"
    "pages/locks.js"
    "pages/overview.js"
    "pages/queues.js"
    "pages/streams.js"
    "pages/suppressed.js"
    "pages/tenants.js"
    "pages/unknown.js"
}

/// One tag for all files: a console never mixes modules of two versions for longer than one load.
static CONSOLE_TAG: LazyLock<HeaderValue> = LazyLock::new(|| {
    let mut hash = Sha256::new();
    for (name, text) in ASSETS {
        hash.update(name);
        hash.update(text);
    }
    let tag = format!("\"{}\"", &BASE64_URL_SAFE_NO_PAD.encode(hash.finalize())[..16]);
    HeaderValue::from_str(&tag).expect("base64 is a header value")
});

/// The console itself; its address needs no session, because it shows nothing without the API.
pub(crate) async fn console_page(headers: HeaderMap) -> Response {
    serve(SHELL, &headers)
}

/// One file of the console.
pub(crate) async fn console_file(Path(file): Path<String>, headers: HeaderMap) -> Response {
    // The page has one address, so that its relative one is never the base of a link.
    if file == SHELL { no_such_file() } else { serve(&file, &headers) }
}

fn serve(file: &str, request: &HeaderMap) -> Response {
    let Some((name, text)) = ASSETS.iter().find(|(name, _)| *name == file) else {
        return no_such_file();
    };
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(content_type(name))),
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONSOLE_POLICY)),
        // The browser keeps files and asks whether they are current: an upgrade is seen at once.
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (ETAG, CONSOLE_TAG.clone()),
    ];
    if is_current(request) {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    (headers, *text).into_response()
}

fn is_current(request: &HeaderMap) -> bool {
    let tag = CONSOLE_TAG.to_str().unwrap_or_default();
    let given = request.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    given
        .is_some_and(|given| given.split(',').any(|one| one.trim().trim_start_matches("W/") == tag))
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        _ => "image/svg+xml",
    }
}

fn no_such_file() -> Response {
    Problem::new(ProblemKind::NotFound, "the console has no such file").into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn files(folder: &Path, prefix: &str, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            match entry.file_type().unwrap().is_dir() {
                true => files(&entry.path(), &format!("{name}/"), found),
                false => {
                    found.insert(name);
                }
            }
        }
    }

    #[test]
    fn console_serves_every_file_of_its_folder() {
        let mut found = BTreeSet::new();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/console/assets");
        files(Path::new(folder), "", &mut found);
        let served: BTreeSet<_> = ASSETS.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(served, found);
    }

    #[test]
    fn console_never_turns_text_into_markup_or_inline_style() {
        let banned = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "style=",
            ".style.",
            "javascript:",
            "//cdn",
        ];
        for (name, text) in ASSETS {
            for word in banned {
                assert!(!text.contains(word), "{name} has {word}");
            }
            let code = text.replace("http://www.w3.org/", "");
            assert!(!code.contains("http://") && !code.contains("https://"), "{name}");
        }
    }

    #[test]
    fn console_files_import_only_files_that_exist() {
        for (name, text) in ASSETS.iter().filter(|(name, _)| name.ends_with(".js")) {
            for line in text.lines().filter(|line| line.starts_with("import ")) {
                let target = line.rsplit('\'').nth(1).unwrap();
                let folder = if name.starts_with("pages/") { "pages/" } else { "" };
                let target = match target.strip_prefix("../") {
                    Some(rest) => rest.to_owned(),
                    None => format!("{folder}{}", target.trim_start_matches("./")),
                };
                assert!(ASSETS.iter().any(|(one, _)| *one == target), "{name}: {line}");
            }
        }
    }
}
