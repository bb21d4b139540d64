//! The layer around a handler that the test controls.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use http::{Request, Response, StatusCode};
use polylock_tower::{Fencing, FencingLayer, FencingToken, MemoryTokens};
use tokio::sync::Semaphore;
use tower_layer::Layer;
use tower_service::Service;

/// Records the tokens of the requests that it handles, and ends each when the gate has a permit.
#[derive(Clone)]
struct Handler {
    handled: Arc<Mutex<Vec<Option<u64>>>>,
    gate: Arc<Semaphore>,
}

type Reply<R = Response<String>> = Pin<Box<dyn Future<Output = Result<R, Infallible>> + Send>>;

impl Service<Request<()>> for Handler {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Reply;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Reply {
        let Self { handled, gate } = self.clone();
        Box::pin(async move {
            let token = request.extensions().get::<FencingToken>().map(|token| token.get());
            handled.lock().unwrap().push(token);
            gate.acquire().await.unwrap().forget();
            Ok(Response::new("done".to_owned()))
        })
    }
}

struct Guarded {
    service: Fencing<Handler, MemoryTokens>,
    handler: Handler,
}

impl Guarded {
    fn new(change: impl FnOnce(FencingLayer<MemoryTokens>) -> FencingLayer<MemoryTokens>) -> Self {
        let handler = Handler { handled: Arc::default(), gate: Arc::new(Semaphore::new(0)) };
        let layer = FencingLayer::by_header(MemoryTokens::with_capacity(2), "lock-name".parse().unwrap());
        Self { service: change(layer).layer(handler.clone()), handler }
    }

    fn send(&mut self, request: Request<()>) -> Reply {
        self.service.call(request)
    }

    fn put(&mut self, resource: &str, token: u64) -> Reply {
        let request = Request::put("/orders").header("lock-name", resource).header("Fencing-Token", token);
        self.send(request.body(()).unwrap())
    }

    /// Lets this many requests end.
    fn open(&self, requests: usize) {
        self.handler.gate.add_permits(requests);
    }

    fn handled(&self) -> Vec<Option<u64>> {
        self.handler.handled.lock().unwrap().clone()
    }
}

/// Returns the reply if there is one already.
fn poll(reply: &mut Reply) -> Option<Response<String>> {
    match reply.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => Some(reply.unwrap()),
        Poll::Pending => None,
    }
}

fn status(mut reply: Reply) -> StatusCode {
    poll(&mut reply).unwrap().status()
}

#[test]
fn a_smaller_token_gets_412_and_is_not_handled() {
    let mut guarded = Guarded::new(|layer| layer);
    guarded.open(9);
    for (token, expected) in
        [(0, 200), (7, 200), (7, 200), (6, 412), (10, 200), (9, 412), (i64::MAX.unsigned_abs(), 200)]
    {
        assert_eq!(status(guarded.put("orders/42", token)), expected, "{token}");
    }
    assert_eq!(guarded.handled(), [0, 7, 7, 10, i64::MAX.unsigned_abs()].map(Some));
    // Another resource has tokens of its own.
    assert_eq!(status(guarded.put("orders/43", 1)), 200);
    let refused = poll(&mut guarded.put("orders/42", 11)).unwrap();
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    let details: serde_json::Value = serde_json::from_str(refused.body()).unwrap();
    assert_eq!(
        (details["status"].as_u64(), details["title"].as_str()),
        (Some(412), Some("Precondition Failed"))
    );
    let detail = details["detail"].as_str().unwrap();
    assert!(
        detail.starts_with("fencing token 11 is stale for orders/42: token 9223372036854775807"),
        "{detail}"
    );
}

#[test]
fn a_greater_token_waits_for_the_request_that_is_being_handled() {
    let mut guarded = Guarded::new(|layer| layer);
    let (mut first, mut next) = (guarded.put("orders/42", 1), guarded.put("orders/42", 2));
    let mut other = guarded.put("orders/43", 1);
    assert!(poll(&mut first).is_none() && poll(&mut next).is_none() && poll(&mut other).is_none());
    assert_eq!(guarded.handled(), [Some(1), Some(1)], "one of each resource");
    // The gate serves the requests in order.
    drop(other);
    guarded.open(1);
    assert!(poll(&mut first).is_some());
    assert!(poll(&mut next).is_none());
    assert_eq!(guarded.handled(), [Some(1), Some(1), Some(2)]);
    // A smaller token that waits for the greater one is refused.
    let mut late = guarded.put("orders/42", 1);
    assert!(poll(&mut late).is_none());
    guarded.open(1);
    assert!(poll(&mut next).is_some());
    assert_eq!(status(late), 412);
}

#[test]
fn a_request_that_is_dropped_frees_its_resource_and_leaves_its_token() {
    let mut guarded = Guarded::new(|layer| layer);
    let mut dropped = guarded.put("orders/42", 5);
    assert!(poll(&mut dropped).is_none());
    drop(dropped);
    assert_eq!(status(guarded.put("orders/42", 4)), 412);
    guarded.open(1);
    assert_eq!(status(guarded.put("orders/42", 5)), 200);
}

#[test]
fn a_request_without_a_valid_token_is_refused() {
    let mut guarded = Guarded::new(|layer| layer);
    guarded.open(9);
    let request = || Request::put("/orders").header("lock-name", "orders/42");
    assert_eq!(status(guarded.send(request().body(()).unwrap())), 428);
    for value in ["", "x", "-1", "+1", "1.0", " 1x", "9223372036854775808", "1, 2", "0x1"] {
        let request = request().header("fencing-token", value);
        assert_eq!(status(guarded.send(request.body(()).unwrap())), 400, "{value:?}");
    }
    let twice = request().header("fencing-token", "1").header("fencing-token", "1");
    assert_eq!(status(guarded.send(twice.body(()).unwrap())), 400);
    let nameless = Request::put("/orders").header("fencing-token", "1");
    assert_eq!(status(guarded.send(nameless.body(()).unwrap())), 400);
    let long = "x".repeat(256);
    assert_eq!(status(guarded.put(&long, 1)), 400);
    assert!(guarded.handled().is_empty());
}

#[test]
fn requests_that_are_not_guarded_pass() {
    let mut guarded = Guarded::new(|layer| layer.token_header("x-token".parse().unwrap()).optional());
    guarded.open(9);
    assert_eq!(status(guarded.send(Request::get("/orders").body(()).unwrap())), 200);
    let request = || Request::put("/orders").header("lock-name", "orders/42");
    assert_eq!(status(guarded.send(request().body(()).unwrap())), 200);
    assert_eq!(status(guarded.send(request().header("x-token", 2).body(()).unwrap())), 200);
    assert_eq!(status(guarded.send(request().header("x-token", 1).body(()).unwrap())), 412);
    assert_eq!(guarded.handled(), [None, None, Some(2)]);
}

#[test]
fn a_full_store_refuses_further_resources_and_forgets_no_token() {
    let mut guarded = Guarded::new(|layer| layer);
    guarded.open(9);
    assert_eq!(status(guarded.put("a", 5)), 200);
    assert_eq!(status(guarded.put("b", 5)), 200);
    let refused = poll(&mut guarded.put("c", 5)).unwrap();
    assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (503, &"1".parse().unwrap()));
    assert_eq!(status(guarded.put("a", 4)), 412);
    assert_eq!(status(guarded.put("b", 6)), 200);
}
