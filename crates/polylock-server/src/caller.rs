//! The caller of a request. Its rights are those of [`access`](crate::access).

use std::{net::IpAddr, sync::Arc};

use axum::{
    Json,
    extract::{FromRequestParts, Request, State},
    middleware::Next,
    response::Response,
};
use http::{HeaderMap, Method, Uri, header, request::Parts};
use polylock_core::OwnerId;
use polylock_protocol::{Problem, paths};
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    access::{Access, Account, Peer, Right, Rule},
    body::Refused,
    readers::Place,
    service::Inner,
};

/// The time after which a caller with too many requests repeats one, in microseconds.
const RETRY_US: u64 = 1_000_000;
/// The path of a hold, without its id.
const HOLDS: &str = "/v1/holds/";

/// The caller of a request that was admitted. The request counts as one of the caller's until all copies are dropped.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    account: Arc<Account>,
    _permit: Arc<OwnedSemaphorePermit>,
}

impl Caller {
    /// Checks that the caller has this right for the lock `name`.
    pub(crate) fn ensure(&self, right: Right, name: &str) -> Result<(), Refused> {
        if self.account.may(right, name) { Ok(()) } else { Err(self.refused(right, name)) }
    }

    /// Returns the owner of what the caller does without stating one: its name in the access file, or `None` without a file.
    pub(crate) fn owner(&self) -> Option<OwnerId> {
        let Account { name, is_known, .. } = &*self.account;
        (*is_known && !name.is_empty()).then(|| OwnerId::sanitized(name))
    }

    /// Takes a place for a reader of events. Refuses a prefix with which the caller may inspect no lock.
    pub(crate) fn enter_readers(&self, prefix: &str) -> Result<Place, Refused> {
        if !self.account.may_below(Right::Inspect, prefix) {
            return Err(self.refused(Right::Inspect, prefix));
        }
        self.account.readers.enter(prefix).map_err(Refused)
    }

    fn refused(&self, right: Right, name: &str) -> Refused {
        let detail = format!(
            "{} needs the right {} for a prefix of {:?} in the access file of the server",
            self.account.name,
            right.as_str(),
            name
        );
        Refused(Problem::new("forbidden", "the caller has no right to do this", 403, detail))
    }

    /// Returns true if the caller has this right for the lock `name`.
    pub(crate) fn may(&self, right: Right, name: &str) -> bool {
        self.account.may(right, name)
    }
}

#[cfg(test)]
impl Caller {
    /// Returns a caller with all rights.
    pub(crate) fn anyone() -> Self {
        let account = Access::open().account(None, None).unwrap();
        let permit = account.requests.clone().try_acquire_owned().unwrap();
        Self { account, _permit: Arc::new(permit) }
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        parts.extensions.get().cloned().ok_or_else(|| {
            // A route without `admit`: refused rather than open.
            Refused(Problem::new("forbidden", "the path has no callers", 403, "the request was not admitted"))
        })
    }
}

/// A caller, for itself.
#[derive(Debug, Serialize)]
pub(crate) struct CallerObject {
    name: String,
    rules: Vec<Rule>,
    store: &'static str,
}

/// Returns the name and the rights of the caller.
pub(crate) async fn describe(State(service): State<Arc<Inner>>, caller: Caller) -> Json<CallerObject> {
    let Account { name, rules, .. } = &*caller.account;
    let store = service.store.backend.capabilities().backend;
    Json(CallerObject { name: name.clone(), rules: rules.clone(), store })
}

/// Admits a request of a known caller within its limits.
pub(crate) async fn admit(
    State(access): State<Arc<Access>>,
    mut request: Request,
    next: Next,
) -> Result<Response, Refused> {
    let peer = request.extensions().get::<Peer>().and_then(|Peer(certificate)| *certificate);
    let account = access.account(bearer(request.headers()), peer).ok_or_else(|| {
        let detail = "send the header Authorization: Bearer TOKEN with a token of the server's access file";
        Refused(Problem::new("unauthenticated", "the caller is unknown", 401, detail))
    })?;
    let permit = if is_upkeep(&request) {
        // A caller at its limits could release nothing otherwise. This waits at most for other requests of this kind.
        account.upkeep.clone().acquire_owned().await.ok()
    } else {
        account.requests.clone().try_acquire_owned().ok().filter(|_| account.is_within_rate())
    };
    let permit = permit.ok_or_else(|| {
        let detail =
            format!("{} has too many requests: see requests and rate in the access file", account.name);
        let problem = Problem::new("too-many-requests", "the caller has too many requests", 429, detail);
        Refused(Problem { retry_after_us: Some(RETRY_US), ..problem })
    })?;
    let caller = Caller { account: account.clone(), _permit: Arc::new(permit) };
    request.extensions_mut().insert(caller.clone());
    let response = next.run(request).await;
    drop(caller);
    Ok(response)
}

/// Returns true if a request for a hold renews it, and does not claim a lock.
pub(crate) fn only_renews(headers: &HeaderMap) -> bool {
    headers.get(header::IF_MATCH).is_some_and(|value| value == "*")
}

/// Returns true if the request keeps or ends a hold, or a request that waits.
fn is_upkeep(request: &Request) -> bool {
    let path = request.uri().path();
    match *request.method() {
        Method::DELETE => path.starts_with(HOLDS),
        Method::PUT => path.starts_with(HOLDS) && only_renews(request.headers()),
        Method::POST => [paths::KEEP_ALIVE, paths::RELEASE, paths::PARK].contains(&path),
        _ => false,
    }
}

/// Returns the token of a request.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Refuses the requests of foreign web pages: any page that a user of this machine opens could use the locks.
///
/// * A browser adds the header `Origin` to every request with a body, and to every request of a page from elsewhere. That of the console is the
///   host of the request itself.
/// * A page from a name that leads to this machine after its first load has that name as its host (DNS rebinding). Without authentication, the
///   host must be an address or `localhost`.
pub(crate) async fn refuse_pages(
    State(access): State<Arc<Access>>,
    request: Request,
    next: Next,
) -> Result<Response, Refused> {
    let refused = |detail: &str| {
        Err(Refused(Problem::new("forbidden", "requests of web pages are refused", 403, detail)))
    };
    let host = host(request.uri(), request.headers());
    if access.is_local && host.is_some_and(|host| !is_local(host)) {
        return refused(
            "the service without authentication has no host name: use an address or localhost, or give it an access file",
        );
    }
    if is_of_another_site(request.headers()) {
        return refused("the service has no rights for the pages of another site");
    }
    if let Some(origin) = request.headers().get(header::ORIGIN) {
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        if origin.is_none_or(|(_, origin)| Some(origin) != host) {
            return refused(
                "the service has no rights for the pages of a browser: use a client without the header Origin",
            );
        }
    }
    Ok(next.run(request).await)
}

/// Returns true if a browser states that the request is from a page of another site: it sends no `Origin` with a GET. A link to the console may be
/// on any page.
fn is_of_another_site(headers: &HeaderMap) -> bool {
    let stated = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    matches!(stated("sec-fetch-site"), Some("cross-site" | "same-site"))
        && stated("sec-fetch-dest") != Some("document")
}

/// Returns the host of a request, with its port.
fn host<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> Option<&'r str> {
    uri.authority().map(http::uri::Authority::as_str).or_else(|| headers.get(header::HOST)?.to_str().ok())
}

fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use http::StatusCode;
    use serde_json::json;

    use super::*;
    use crate::serve_tests::{event_of, request, restricted, send};

    #[tokio::test]
    async fn a_stream_is_one_of_the_requests_of_its_caller_until_its_end() {
        let all = r#"allow = [{ prefix = "", rights = ["exclusive"] }]"#;
        let routes = restricted(&[("one", &format!("requests = 1\n{all}")), ("other", all)]);
        let stream = send(&routes, request(Method::POST, "/v1/locks/n", Some("one"), None)).await;
        assert_eq!(stream.status(), StatusCode::OK);
        let look = || request(Method::GET, "/v1/locks", Some("one"), None);
        let refused = send(&routes, look()).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()[header::RETRY_AFTER], "1");
        let other = send(&routes, request(Method::GET, "/v1/locks", Some("other"), None)).await;
        assert_eq!(other.status(), StatusCode::OK);
        drop(stream);
        assert_eq!(send(&routes, look()).await.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn a_caller_at_its_limits_keeps_and_releases_what_it_holds() {
        let routes = restricted(&[(
            "c",
            "requests = 1\nrate = 1\nallow = [{ prefix = \"\", rights = [\"exclusive\"] }]",
        )]);
        let acquire = request(Method::POST, "/v1/locks/n", Some("c"), None);
        let reply = send(&routes, acquire).await;
        assert_eq!(reply.headers()["x-accel-buffering"], "no");
        let mut stream = reply.into_body().into_data_stream();
        let id = event_of(&mut stream).await["id"].as_str().unwrap().to_owned();
        let look = async || send(&routes, request(Method::GET, "/v1/locks", Some("c"), None)).await.status();
        assert_eq!(look().await, StatusCode::TOO_MANY_REQUESTS);
        let path = format!("/v1/holds/{id}");
        for _ in 0..5 {
            let mut renewal = request(Method::PUT, &path, Some("c"), Some(&json!({ "name": "n" })));
            renewal.headers_mut().insert(header::IF_MATCH, "*".parse().unwrap());
            assert_eq!(send(&routes, renewal).await.status(), StatusCode::OK);
        }
        let claim = request(Method::PUT, &path, Some("c"), Some(&json!({ "name": "n" })));
        assert_eq!(send(&routes, claim).await.status(), StatusCode::TOO_MANY_REQUESTS);
        let release = request(Method::DELETE, &format!("{path}?name=n"), Some("c"), None);
        assert_eq!(send(&routes, release).await.status(), StatusCode::OK);
        let stranger = request(Method::DELETE, &format!("{path}?name=n"), Some("x"), None);
        assert_eq!(send(&routes, stranger).await.status(), StatusCode::UNAUTHORIZED);
    }

    #[tokio::test]
    async fn a_page_of_another_site_reads_nothing_and_may_link_to_the_console() {
        let routes = crate::serve_tests::open();
        let get = async |path: &str, site: &str, dest: &str| {
            let mut get = request(Method::GET, path, None, None);
            for (name, value) in [("sec-fetch-site", site), ("sec-fetch-dest", dest)] {
                get.headers_mut().insert(name, value.parse().unwrap());
            }
            send(&routes, get).await.status()
        };
        for (site, dest, status) in [
            ("cross-site", "empty", StatusCode::FORBIDDEN),
            ("same-site", "empty", StatusCode::FORBIDDEN),
            ("cross-site", "iframe", StatusCode::FORBIDDEN),
            ("cross-site", "document", StatusCode::OK),
            ("same-origin", "empty", StatusCode::OK),
            ("none", "document", StatusCode::OK),
        ] {
            assert_eq!(get("/v1/events", site, dest).await, status, "{site} {dest}");
        }
    }

    #[test]
    fn a_host_is_local_without_a_name() {
        for host in ["127.0.0.1", "127.0.0.1:7420", "[::1]:7420", "[::1]", "localhost", "localhost:1"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["evil.example:7420", "localhost.evil.example", "", "127.0.0.1.evil.example:1"] {
            assert!(!is_local(host), "{host}");
        }
    }
}
