//! The routes, with the in-memory store and without a connection.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use axum::{Router, body::Body, response::Response};
use futures_util::StreamExt;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use polylock_core::{Clock, SystemClock, memory};
use polylock_protocol::{CLOCK, paths};
use serde_json::{Value, json};
use tower_service::Service as _;

use crate::{
    Access, Service,
    access::hash,
    serve::{api, routes},
};

/// A service with these callers. The token of each is its name.
pub(crate) fn restricted(callers: &[(&str, &str)]) -> Router {
    let text: String = callers
        .iter()
        .map(|(name, fields)| {
            let hex: String = hash(name.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
            format!("[[caller]]\nname = \"{name}\"\ntoken_sha256 = \"{hex}\"\n{fields}\n")
        })
        .collect();
    let access = Access::parse(&text).unwrap();
    routes(&Service::new(memory::connect()).unwrap().access(access))
}

pub(crate) fn open() -> Router {
    routes(&Service::new(memory::connect()).unwrap())
}

pub(crate) fn request(
    method: Method,
    path: &str,
    token: Option<&str>,
    body: Option<&Value>,
) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(path).header(header::HOST, "127.0.0.1:7420");
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    match body {
        Some(body) => request
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string()))
            .unwrap(),
        None => request.body(Body::empty()).unwrap(),
    }
}

pub(crate) async fn send(routes: &Router, request: Request<Body>) -> Response {
    routes.clone().call(request).await.unwrap()
}

async fn json_of(response: Response) -> Value {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&bytes).unwrap()
}

/// Every operation on the lock `b/1`, with a body if it has one.
fn operations() -> Vec<(Method, String, Option<Value>)> {
    let id = "0123456789abcdef0123456789abcdef";
    let request = json!({
        "id": id, "name": "b/1", "mode": "EX", "ttl_us": 30_000_000, "queues": true, "wants_position": false, "owner": "o",
    });
    let post = |path: &str, body: Value| (Method::POST, path.to_owned(), Some(body));
    let expires = json!("0000000000000000;0");
    let notice = json!({ "reason": null, "by": null });
    vec![
        post(paths::CLAIM, json!({ "request": request, "expires": expires })),
        post(paths::WAIT, request.clone()),
        post(paths::KEEP_ALIVE, json!({ "requests": [request] })),
        post(paths::RELEASE, request.clone()),
        post(
            paths::CONVERT,
            json!({ "request": request, "from": 1, "held": "EX", "to": "PR", "waits": false }),
        ),
        post(paths::PARK, json!({ "request": request, "token": 7, "left_us": 1 })),
        post(paths::RAISE, json!({ "request": request, "to": 7 })),
        post(paths::INSPECT, json!({ "name": "b/1" })),
        post(paths::BREAK, json!({ "name": "b/1", "notice": notice, "tokens": [7], "force": false })),
        post(paths::READ_RECORD, json!({ "name": "b/1" })),
        post(
            paths::WRITE_RECORD,
            json!({ "name": "b/1", "record": { "token": 1, "revision": 0, "text": "" }, "keep_us": 1 }),
        ),
        (Method::GET, "/v1/locks/b%2F1".to_owned(), None),
        (Method::POST, "/v1/locks/b%2F1".to_owned(), Some(json!({ "wait": "0s" }))),
        (Method::POST, "/v1/locks/b%2F1/break".to_owned(), Some(json!({ "reason": "r" }))),
        (Method::PUT, format!("/v1/holds/{id}"), Some(json!({ "name": "b/1" }))),
        (Method::DELETE, format!("/v1/holds/{id}?name=b%2F1"), None),
        (Method::GET, "/v1/jobs/b%2F1".to_owned(), None),
        (Method::POST, "/v1/jobs/b%2F1".to_owned(), Some(json!({ "wait": "0s" }))),
        post("/v1/jobs/b%2F1/outcome", json!({ "fencing_token": 1, "outcome": "succeeded" })),
    ]
}

/// Core sends none of these, so a store need not survive them.
#[tokio::test]
async fn an_impossible_conversion_is_refused_before_it_reaches_the_store() {
    let routes = open();
    let held = json!({
        "id": "0123456789abcdef0123456789abcdef", "name": "n", "mode": "EX", "ttl_us": 30_000_000, "queues": true,
        "wants_position": false, "owner": "o",
    });
    for [from, to] in [["EX", "NL"], ["NL", "NL"], ["NL", "PR"], ["CW", "PR"]] {
        let body = json!({ "request": held, "from": 1, "held": from, "to": to, "waits": false });
        let reply = send(&routes, request(Method::POST, paths::CONVERT, None, Some(&body))).await;
        assert_eq!(reply.status(), StatusCode::UNPROCESSABLE_ENTITY, "{from} to {to}");
        let detail = json_of(reply).await["detail"].to_string();
        assert!(detail.contains("is not converted"), "{detail}");
    }
}

/// The paths that show what the caller may see.
const VIEWS: [&str; 5] = [paths::STORE, paths::ALERTS, "/v1/locks", "/v1/events", "/v1/caller"];

#[tokio::test]
async fn no_operation_is_carried_out_for_an_unknown_caller() {
    let routes =
        restricted(&[("a", r#"allow = [{ prefix = "", rights = ["exclusive", "break", "raise"] }]"#)]);
    let views = VIEWS.map(|path| (Method::GET, path.to_owned(), None));
    for (method, path, body) in operations().into_iter().chain(views) {
        for token in [None, Some("unknown")] {
            let response = send(&routes, request(method.clone(), &path, token, body.as_ref())).await;
            assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{method} {path}");
            assert_eq!(response.headers()[header::WWW_AUTHENTICATE], "Bearer");
            assert_eq!(json_of(response).await["type"], "urn:polylock:unauthenticated");
        }
        let response = send(&routes, request(method.clone(), &path, Some("a"), body.as_ref())).await;
        let status = response.status();
        assert!(
            status != StatusCode::UNAUTHORIZED && status != StatusCode::FORBIDDEN,
            "{method} {path}: {status}"
        );
    }
}

#[tokio::test]
async fn no_operation_is_carried_out_without_the_right_to_it() {
    let routes = restricted(&[
        ("a", r#"allow = [{ prefix = "a/", rights = ["exclusive", "break", "raise"] }]"#),
        ("viewer", r#"allow = [{ prefix = "", rights = ["inspect"] }]"#),
    ]);
    for (method, path, body) in operations() {
        let response = send(&routes, request(method.clone(), &path, Some("a"), body.as_ref())).await;
        assert_eq!(response.status(), StatusCode::FORBIDDEN, "{method} {path}");
        let problem = json_of(response).await;
        assert_eq!(problem["type"], "urn:polylock:forbidden");
        assert!(problem["detail"].as_str().unwrap().contains("a needs the right"), "{problem}");
        // Inspection alone changes nothing.
        let response = send(&routes, request(method.clone(), &path, Some("viewer"), body.as_ref())).await;
        let reads = [paths::INSPECT, paths::READ_RECORD].contains(&path.as_str()) || method == Method::GET;
        assert_eq!(
            response.status() == StatusCode::FORBIDDEN,
            !reads,
            "{method} {path}: {}",
            response.status()
        );
    }
}

#[tokio::test]
async fn lists_show_what_the_caller_may_inspect() {
    let routes = restricted(&[
        ("a", r#"allow = [{ prefix = "a/", rights = ["exclusive"] }]"#),
        ("b", r#"allow = [{ prefix = "b/", rights = ["exclusive"] }]"#),
    ]);
    for (caller, name) in [("a", "a%2F1"), ("b", "b%2F1")] {
        let id = format!("{:032x}", name.len() + caller.len() * 7);
        let body = json!({ "name": name.replace("%2F", "/") });
        let id = if caller == "a" { id } else { "f".repeat(32) };
        let path = format!("/v1/holds/{id}");
        let response = send(&routes, request(Method::PUT, &path, Some(caller), Some(&body))).await;
        assert_eq!(response.status(), StatusCode::OK);
    }
    for caller in ["a", "b"] {
        let listed =
            json_of(send(&routes, request(Method::GET, "/v1/locks", Some(caller), None)).await).await;
        let names: Vec<&str> =
            listed.as_array().unwrap().iter().map(|lock| lock["name"].as_str().unwrap()).collect();
        assert_eq!(names, [format!("{caller}/1")]);
        let body = json!({ "prefix": "" });
        let listed = send(&routes, request(Method::POST, paths::LIST, Some(caller), Some(&body))).await;
        let listed = json_of(listed).await;
        assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
        let events = send(&routes, request(Method::GET, "/v1/events", Some(caller), None)).await;
        let mut events = events.into_body().into_data_stream();
        let first: Value = serde_json::from_slice(&events.next().await.unwrap().unwrap()).unwrap();
        assert_eq!((&first["event"], &first["name"]), (&json!("held"), &json!(format!("{caller}/1"))));
    }
    let own = json_of(send(&routes, request(Method::GET, "/v1/caller", Some("a"), None)).await).await;
    assert_eq!((&own["name"], &own["rules"][0]["rights"]), (&json!("a"), &json!(["exclusive"])));
}

#[tokio::test]
async fn a_claim_after_the_release_of_its_request_takes_no_lock() {
    let routes = open();
    let response = send(&routes, request(Method::GET, "/healthz", None, None)).await;
    let now = response.headers().get(CLOCK).unwrap().to_str().unwrap().to_owned();
    let (server, us) = now.split_once(';').unwrap();
    let expires = format!("{server};{}", us.parse::<i64>().unwrap() + 60_000_000);
    let claim = |id: u8| {
        let request = json!({
            "id": format!("{id:032x}"), "name": "n", "mode": "EX", "ttl_us": 30_000_000, "queues": false, "wants_position": false,
            "owner": "o",
        });
        json!({ "request": request, "expires": expires })
    };
    let outcome = async |path: &str, body: &Value| {
        json_of(send(&routes, request(Method::POST, path, None, Some(body))).await).await["outcome"].clone()
    };
    assert_eq!(outcome(paths::CLAIM, &claim(1)).await, "granted");
    outcome(paths::RELEASE, &claim(1)["request"]).await;
    // A copy on another connection of its client.
    assert_eq!(outcome(paths::CLAIM, &claim(1)).await, "late");
    assert_eq!(outcome(paths::CLAIM, &claim(2)).await, "granted");
}

/// Returns the next event of a stream.
pub(crate) async fn event_of(stream: &mut axum::body::BodyDataStream) -> Value {
    serde_json::from_slice(&stream.next().await.unwrap().unwrap()).unwrap()
}

#[tokio::test]
async fn a_stream_of_several_locks_holds_all_of_them() {
    let routes = restricted(&[
        ("all", r#"allow = [{ prefix = "", rights = ["exclusive"] }]"#),
        ("b", r#"allow = [{ prefix = "b", rights = ["exclusive"] }]"#),
    ]);
    let acquire = async |caller: &str, name: &str, body: Value| {
        send(&routes, request(Method::POST, &format!("/v1/locks/{name}"), Some(caller), Some(&body))).await
    };
    let refused = acquire("b", "b", json!({ "also": ["a"] })).await;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN, "each lock needs the right");
    let mut several =
        acquire("all", "b", json!({ "also": ["a", "c", "a"] })).await.into_body().into_data_stream();
    let granted = event_of(&mut several).await;
    let tokens = granted["fencing_tokens"].as_object().unwrap();
    assert_eq!(tokens.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(granted["fencing_token"], tokens["b"]);
    for name in ["a", "b", "c"] {
        let tried = acquire("all", name, json!({ "wait": "0s" })).await;
        assert_eq!(tried.status(), StatusCode::CONFLICT, "{name}");
    }
    for (body, problem) in [
        (json!({ "also": vec!["n"; 64] }), "also"),
        (json!({ "also": ["a"], "slots": 2 }), "also"),
        (json!({ "mode": "PR", "slots": 2 }), "mode"),
        (json!({ "also": [""] }), "name"),
    ] {
        let refused = acquire("all", "d", body).await;
        assert_eq!(refused.status(), StatusCode::UNPROCESSABLE_ENTITY);
        assert!(json_of(refused).await["detail"].as_str().unwrap().contains(problem), "{problem}");
    }
    for (name, id) in granted["ids"].as_object().unwrap() {
        let path = format!("/v1/holds/{}?name={name}", id.as_str().unwrap());
        let released = send(&routes, request(Method::DELETE, &path, Some("all"), None)).await;
        assert_eq!(json_of(released).await, json!({ "released": true }));
    }
    let free = acquire("all", "c", json!({ "wait": "0s" })).await;
    assert_eq!(free.status(), StatusCode::OK);
}

#[tokio::test]
async fn the_end_of_a_stream_is_no_release() {
    let routes = open();
    let acquire =
        async |body: Value| send(&routes, request(Method::POST, "/v1/locks/n", None, Some(&body))).await;
    let renew = async |id: &str, body: Value| {
        let mut renewal = request(Method::PUT, &format!("/v1/holds/{id}"), None, Some(&body));
        renewal.headers_mut().insert(header::IF_MATCH, "*".parse().unwrap());
        send(&routes, renewal).await
    };
    for slots in [None, Some(1)] {
        let settings = |wait: &str| json!({ "wait": wait, "ttl": "2s", "slots": slots });
        let mut stream = acquire(settings("10s")).await.into_body().into_data_stream();
        let granted = event_of(&mut stream).await;
        assert_eq!(granted["ttl_ms"], 2000);
        let id = granted["id"].as_str().unwrap();
        // The network cuts the connection: the client works under the lock, and renews it by itself.
        drop(stream);
        let hold = json!({ "name": "n", "ttl": "2s", "slot": granted.get("slot") });
        let deadline = SystemClock.now() + Duration::from_secs(3);
        while SystemClock.now() < deadline {
            assert_eq!(acquire(settings("0s")).await.status(), StatusCode::CONFLICT);
            let renewed = renew(id, hold.clone()).await;
            assert_eq!(renewed.status(), StatusCode::OK);
            assert!(json_of(renewed).await["until"].is_string());
            SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(100)).await;
        }
        // Without a renewal, its lease ends. Then a renewal claims nothing.
        let mut next = acquire(settings("10s")).await.into_body().into_data_stream();
        while event_of(&mut next).await["event"] == "queued" {}
        drop(next);
        let lost = renew(id, hold).await;
        assert_eq!((lost.status(), &json_of(lost).await["reason"]), (StatusCode::GONE, &json!("gone")));
    }
    // A broken lock is lost, and stays taken until its client has released it.
    let mut stream = acquire(json!({ "ttl": "30s" })).await.into_body().into_data_stream();
    let granted = event_of(&mut stream).await;
    drop(stream);
    send(&routes, request(Method::POST, "/v1/locks/n/break", None, Some(&json!({})))).await;
    let lost = renew(granted["id"].as_str().unwrap(), json!({ "name": "n" })).await;
    assert_eq!((lost.status(), &json_of(lost).await["reason"]), (StatusCode::GONE, &json!("broken")));
    assert_eq!(acquire(json!({ "wait": "0s" })).await.status(), StatusCode::CONFLICT);
}

/// A client that does not name the TTL of its hold relies on the one that it has acquired it with.
#[tokio::test]
async fn a_renewal_without_a_ttl_never_shortens_the_lease() {
    let routes = open();
    let put = async |id: &str, only_renews: bool, body: Value| {
        let mut put = request(Method::PUT, &format!("/v1/holds/{id}"), None, Some(&body));
        if only_renews {
            put.headers_mut().insert(header::IF_MATCH, "*".parse().unwrap());
        }
        let reply = send(&routes, put).await;
        assert_eq!(reply.status(), StatusCode::OK, "{body}");
    };
    let left = async |name: &str| {
        let status = send(&routes, request(Method::GET, &format!("/v1/locks/{name}"), None, None)).await;
        json_of(status).await["holders"][0]["expires_in_ms"].as_u64().unwrap()
    };
    let body = json!({ "ttl": "10m" });
    let streams = send(&routes, request(Method::POST, "/v1/locks/stream", None, Some(&body))).await;
    let mut stream = streams.into_body().into_data_stream();
    let granted = event_of(&mut stream).await;
    put(granted["id"].as_str().unwrap(), true, json!({ "name": "stream" })).await;
    assert!(left("stream").await > 590_000);
    let id = format!("{:032x}", 7);
    put(&id, false, json!({ "name": "hold", "ttl": "2m" })).await;
    for (ttl, least) in [(None, 119_000), (Some("10s"), 118_000), (Some("10m"), 599_000), (None, 599_000)] {
        put(&id, true, json!({ "name": "hold", "ttl": ttl })).await;
        assert!(left("hold").await > least, "{ttl:?}");
    }
    drop(stream);
}

#[tokio::test]
async fn the_loss_of_one_of_several_locks_is_the_loss_of_all() {
    let routes = open();
    let acquire = async |name: &str, body: Value| {
        send(&routes, request(Method::POST, &format!("/v1/locks/{name}"), None, Some(&body))).await
    };
    let body = json!({ "also": ["a"], "ttl": "2s" });
    let mut several = acquire("b", body).await.into_body().into_data_stream();
    assert_eq!(event_of(&mut several).await["event"], "granted");
    let broken = json!({ "force": true, "reason": "r" });
    send(&routes, request(Method::POST, "/v1/locks/a/break", None, Some(&broken))).await;
    let lost = loop {
        let event = event_of(&mut several).await;
        if event["event"] != "renewed" {
            break event;
        }
    };
    assert_eq!((&lost["event"], &lost["lock"]), (&json!("lost"), &json!("a")));
    assert_eq!(acquire("b", json!({ "wait": "0s" })).await.status(), StatusCode::CONFLICT);
    // The server renews none of them any more, although the stream is open.
    let free = async {
        while acquire("b", json!({ "wait": "0s" })).await.status() == StatusCode::CONFLICT {
            SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(50)).await;
        }
    };
    SystemClock.before(SystemClock.now() + Duration::from_secs(20), free).await.expect("its lease has ended");
    drop(several);
}

#[tokio::test]
async fn a_job_runs_once_in_its_period() {
    let routes = open();
    let begin = async |body: Value| {
        let response = send(&routes, request(Method::POST, "/v1/jobs/nightly", None, Some(&body))).await;
        assert_eq!(response.status(), StatusCode::OK);
        let mut stream = response.into_body().into_data_stream();
        (event_of(&mut stream).await, stream)
    };
    let record = async |body: Value| {
        send(&routes, request(Method::POST, "/v1/jobs/nightly/outcome", None, Some(&body))).await.status()
    };
    let release = async |granted: &Value| {
        let path = format!("/v1/holds/{}?name=nightly", granted["id"].as_str().unwrap());
        send(&routes, request(Method::DELETE, &path, None, None)).await
    };
    let last =
        async || json_of(send(&routes, request(Method::GET, "/v1/jobs/nightly", None, None)).await).await;
    let yearly = json!({ "every": "365d", "label": "l", "retries": 1 });
    assert_eq!(last().await, json!({ "last_run": null }));
    let (first, stream) = begin(yearly.clone()).await;
    assert_eq!((&first["event"], &first["attempt"]), (&json!("granted"), &json!(1)));
    let failed = json!({ "fencing_token": first["fencing_token"], "outcome": "failed", "reason": "no disk" });
    assert_eq!(record(failed.clone()).await, StatusCode::NO_CONTENT);
    release(&first).await;
    drop(stream);
    let (second, stream) = begin(yearly.clone()).await;
    assert_eq!((&second["event"], &second["attempt"]), (&json!("granted"), &json!(2)));
    assert_eq!(record(failed).await, StatusCode::GONE, "another attempt has begun");
    let done = json!({ "fencing_token": second["fencing_token"], "outcome": "succeeded" });
    assert_eq!(record(done).await, StatusCode::NO_CONTENT);
    release(&second).await;
    drop(stream);
    let (skipped, mut stream) = begin(yearly).await;
    assert_eq!((&skipped["event"], &skipped["last_run"]["attempt"]), (&json!("skipped"), &json!(2)));
    assert!(stream.next().await.is_none(), "the stream has ended");
    let run = &last().await["last_run"];
    assert_eq!((&run["outcome"], &run["label"]), (&json!("succeeded"), &json!("l")));
    let invalid = json!({ "every": "1ms" });
    let refused = send(&routes, request(Method::POST, "/v1/jobs/n", None, Some(&invalid))).await;
    assert_eq!(refused.status(), StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn web_pages_from_elsewhere_are_refused() {
    let all = r#"allow = [{ prefix = "", rights = ["exclusive"] }]"#;
    let (open, restricted) = (open(), restricted(&[("c", all)]));
    for (host, origin, in_open, in_restricted) in [
        ("127.0.0.1:7420", None, 200, 200),
        ("localhost:7420", Some("http://localhost:7420"), 200, 200),
        ("localhost:7420", Some("http://evil.example"), 403, 403),
        ("localhost:7420", Some("null"), 403, 403),
        ("localhost:7420", Some("http://localhost:8000"), 403, 403),
        // A name that leads to this machine.
        ("evil.example:7420", Some("http://evil.example:7420"), 403, 200),
        ("evil.example:7420", None, 403, 200),
    ] {
        for (routes, expected) in [(&open, in_open), (&restricted, in_restricted)] {
            let mut request = request(Method::GET, "/v1/locks", Some("c"), None);
            request.headers_mut().insert(header::HOST, host.parse().unwrap());
            if let Some(origin) = origin {
                request.headers_mut().insert(header::ORIGIN, origin.parse().unwrap());
            }
            assert_eq!(send(routes, request).await.status(), expected, "{host} {origin:?}");
        }
    }
}

#[tokio::test]
async fn the_description_of_the_api_is_that_of_the_routes() {
    let routes = open();
    let described = json_of(send(&routes, request(Method::GET, "/v1/openapi.json", None, None)).await).await;
    let paths = described["paths"].as_object().unwrap();
    for (path, _) in api() {
        assert!(paths.contains_key(path), "{path} is not described");
    }
    for (path, operations) in paths {
        let example = path.replace("{name}", "n").replace("{id}", &"0".repeat(32));
        for method in [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
            let is_described = operations.get(method.as_str().to_lowercase()).is_some();
            let response = send(&routes, request(method.clone(), &example, None, None)).await;
            assert_ne!(response.status(), StatusCode::NOT_FOUND, "{path}");
            let is_served = response.status() != StatusCode::METHOD_NOT_ALLOWED;
            assert_eq!(is_served, is_described, "{method} {path}");
            if is_described && !response.status().is_success() {
                let status = response.status().as_u16().to_string();
                let described = &operations[method.as_str().to_lowercase()]["responses"][&status];
                assert!(described.is_object(), "{method} {path}: {status} is not described");
            }
        }
    }
    let text = described.to_string();
    for (at, _) in text.match_indices("#/components/schemas/") {
        let name: String = text[at + 21..].chars().take_while(char::is_ascii_alphanumeric).collect();
        assert!(described["components"]["schemas"][&name].is_object(), "{name}");
    }
}

#[tokio::test]
async fn health_and_the_console_need_no_caller() {
    let routes = restricted(&[("c", "allow = []")]);
    for path in ["/healthz", "/readyz", "/", "/console.css", "/console.js"] {
        let response = send(&routes, request(Method::GET, path, None, None)).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let is_page = !path.ends_with('z');
        assert_eq!(response.headers().contains_key(header::CONTENT_SECURITY_POLICY), is_page, "{path}");
    }
    let missing = send(&routes, request(Method::GET, "/none", None, None)).await;
    assert_eq!(missing.status(), StatusCode::NOT_FOUND);
}
