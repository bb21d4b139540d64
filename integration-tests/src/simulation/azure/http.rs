//! The protocol between the SDK and the service: HTTP/1.1.

use std::{collections::BTreeMap, fmt::Write as _, mem};

use polylock_azure::azure_core::{
    http::Url,
    time::{OffsetDateTime, to_rfc7231},
};

/// A request. No request of the client has a body.
#[derive(Debug)]
pub struct Request {
    /// The method, such as `PUT`.
    pub method: String,
    /// The path, decoded.
    pub path: String,
    /// The parameters of the URL.
    pub query: BTreeMap<String, String>,
    /// The headers, with lower-case names.
    headers: BTreeMap<String, String>,
}

impl Request {
    /// Returns the value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// Returns the value of a parameter of the URL; an empty text if there is none.
    #[must_use]
    pub fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    /// Returns the request in a readable form: without the account, and with the begin of the lease id.
    #[must_use]
    pub fn shown(&self) -> String {
        let path = self.path.trim_start_matches("/devstoreaccount1/");
        let action = self.header("x-ms-lease-action").unwrap_or_else(|| self.parameter("comp"));
        let id = self.header("x-ms-proposed-lease-id").or_else(|| self.header("x-ms-lease-id"));
        let token = self.header("x-ms-meta-polylockfence").map_or(String::new(), |token| format!(" {token}"));
        let id = id.map_or(String::new(), |id| format!(" #{id:.8}"));
        format!("{} {action} {path}{id}{token}", self.method)
    }

    /// Returns the metadata in the headers.
    #[must_use]
    pub fn metadata(&self) -> BTreeMap<String, String> {
        let metadata = self.headers.iter();
        metadata
            .filter_map(|(name, value)| Some((name.strip_prefix("x-ms-meta-")?.to_owned(), value.clone())))
            .collect()
    }
}

/// Removes the request from `input`; `None` if it is not complete yet. A client sends the next one after the reply.
///
/// # Panics
/// If it is not valid.
pub fn take_request(input: &mut Vec<u8>) -> Option<Request> {
    let is_complete = input.ends_with(b"\r\n\r\n");
    let bytes = is_complete.then(|| mem::take(input))?;
    let head = String::from_utf8_lossy(&bytes);
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let url: Url = target.parse().unwrap_or_else(|error| panic!("{target}: {error}"));
    let header =
        |line: &str| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned()));
    let headers: BTreeMap<_, _> = lines.filter_map(header).collect();
    assert!(headers.get("content-length").is_none_or(|length| length == "0"), "a request with a body");
    Some(Request {
        method: method.to_owned(),
        path: url.path().replace("%2F", "/"),
        query: url.query_pairs().into_owned().collect(),
        headers,
    })
}

/// A reply.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: Vec<(String, String)>,
    body: String,
}

impl Reply {
    /// Creates a reply without headers.
    #[must_use]
    pub const fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: String::new() }
    }

    /// Creates the reply to a request that is refused.
    #[must_use]
    pub fn refusal(status: u16, code: &str) -> Self {
        Self::new(status).header("x-ms-error-code", code)
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// Adds a body in XML.
    #[must_use]
    pub fn xml(mut self, body: String) -> Self {
        self.body = body;
        self.header("Content-Type", "application/xml")
    }

    /// Returns the reply in a readable form.
    #[must_use]
    pub fn shown(&self) -> String {
        let is_it = |name: &str| {
            matches!(name, "x-ms-error-code" | "Retry-After" | "x-ms-retry-after-ms" | "x-ms-lease-state")
        };
        let shown = self.headers.iter().filter(|(name, _)| is_it(name)).map(|(_, value)| format!(" {value}"));
        format!("{}{}", self.status, shown.collect::<String>())
    }

    /// Returns the bytes of the reply.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut text = format!("HTTP/1.1 {} x\r\nContent-Length: {}\r\n", self.status, self.body.len());
        for (name, value) in &self.headers {
            write!(text, "{name}: {value}\r\n").ok();
        }
        format!("{text}\r\n{}", self.body).into_bytes()
    }
}

/// Returns a time in microseconds since 1970 as the text of a header, to the second.
///
/// # Panics
/// If it is out of range.
#[must_use]
pub fn date(us: i64) -> String {
    let time = OffsetDateTime::from_unix_timestamp(us.div_euclid(1_000_000));
    to_rfc7231(&time.unwrap_or_else(|error| panic!("{us} us: {error}")))
}
