//! Fuzz targets: URLs, and the names, metadata and ETags of blobs, which other programs can write, too.

use std::{collections::HashMap, time::Duration};

use azure_core::{
    error::ErrorKind,
    http::{Etag, RawResponse, headers::Headers},
    time::OffsetDateTime,
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use polylock_core::{LockName, OwnerId, url::checks};

use crate::{
    Config,
    blobs::Acquired,
    error::Cause,
    inspect::holder_entry,
    names,
    record::{self, Content, GrantNotice},
    tokens::next_token,
};

polylock_fuzz::fuzz_targets!(tests: urls, blobs, metadata, tokens, refusals);

fn urls(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    drop(Config::new(&text));
    for key in ["polylock.account_key", "sig"] {
        let url = |secret: &str| {
            format!("az://locks@account/p?{key}={}", utf8_percent_encode(secret, NON_ALPHANUMERIC))
        };
        checks::hides_password(Config::new, &text, url);
    }
}

fn blobs(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Some(name) = names::lock("p", &text) {
        assert_eq!(names::blob("p", &name), text);
    }
    if let Ok(name) = LockName::new(&text) {
        let blob = names::blob("p", &name);
        assert!(blob.starts_with(&names::under("p", "")) && !blob.ends_with(['.', '/']), "{blob}");
        assert_eq!(names::lock("p", &blob), Some(name.clone()));
        for other in [names::marker("p", &name), names::notice("p", &name)] {
            assert_eq!(names::lock("p", &other), None, "{other}");
        }
    }
}

/// Reads `key=value` lines.
fn pairs(text: &str) -> HashMap<&str, &str> {
    text.lines().filter_map(|line| line.split_once('=')).collect()
}

fn metadata(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let pairs = pairs(&text);
    let get = |key: &str| pairs.get(key).copied();
    let content = Content::read(get);
    drop(holder_entry(&content, false, Duration::MAX));
    if let Content::Grant(record) = content {
        assert!(record.token.as_i64() >= 0 && OwnerId::new(record.owner.as_str()).is_ok(), "{record:?}");
        let written = record.metadata();
        assert_eq!(Content::read(|key| written.get(key).map(String::as_str)), Content::Grant(record));
    }
    if let Some(notice) = GrantNotice::read(get) {
        let written = notice.metadata();
        assert_eq!(GrantNotice::read(|key| written.get(key).map(String::as_str)), Some(notice));
    }
    assert_eq!(record::marker_process(get), get("polylockwaits"));
}

fn tokens(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (etag, seconds) = text.split_once(' ').unwrap_or((&text, ""));
    let time = seconds.parse().ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    let acquired = |modified, date| Acquired {
        etag: Some(Etag::from(etag.to_owned())),
        modified,
        date,
        was_resent: false,
    };
    let exact = next_token(None, &acquired(time, None));
    let seconds = next_token(None, &acquired(None, time));
    if let (Some(exact), Some(seconds)) = (exact, seconds) {
        assert!(seconds <= exact && exact.get() - seconds.get() < 1_000_000, "{exact} {seconds}");
    }
}

fn refusals(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let pairs = pairs(&text);
    let status = pairs.get("status").and_then(|status| status.parse::<u16>().ok()).unwrap_or(503);
    let mut headers = Headers::new();
    // The driver panics for other names, and receives none from its HTTP library.
    let is_name =
        |name: &&str| name.bytes().all(|byte| byte.is_ascii_lowercase() || b"0123456789-".contains(&byte));
    for (name, value) in pairs.iter().filter(|(name, _)| is_name(name)) {
        headers.insert((*name).to_owned(), (*value).to_owned());
    }
    let response = RawResponse::from_bytes(status.into(), headers, Vec::new());
    let kind = ErrorKind::HttpResponse {
        status: status.into(),
        error_code: pairs.get("code").map(|code| (*code).to_owned()),
        raw_response: Some(Box::new(response)),
    };
    let cause = Cause::from(kind.into_error());
    assert!(cause.refusal().is_none() || cause.retry_after().is_none());
    assert!(!cause.was_resent() || pairs.contains_key("polylock-resent"));
    cause.is_temporary();
    drop(cause.at(polylock_core::Operation::Claim, "endpoint").to_string());
}
