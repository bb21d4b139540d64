//! The lock service for programs in any language: a message that its client has given up has no effect later, although the client has moved on to another
//! server, and other clients have the lock.

#![expect(clippy::future_not_send, reason = "a test is one task, and has its servers to itself")]

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use polylock::{Guard, Locks};
use polylock_core::{RequestId, time_limit::LONGEST};
use polylock_integration_tests::{
    clock::{TIMEOUT, now, pause},
    on_stores,
    proxy::{Direction, Flow, Proxy},
    stores::{namespace, wait_for_waiters},
    targets::Namespace,
};
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::service::{Pair, Server};

/// The time after which the client of a late message gives it up.
const PATIENCE: Duration = Duration::from_millis(300);
/// The time in which a server notices that a request which waits was released.
const NOTICED: Duration = Duration::from_secs(3);
/// The time for which a lock is watched that nobody may take.
const WATCHED: Duration = Duration::from_secs(1);

on_stores! {
    [sqlite_full postgres redis]
    [
        a_wait_ends_when_the_request_is_released_on_another_server
        a_server_that_was_stopped_does_not_claim_for_a_released_request
        a_message_that_its_client_has_given_up_is_not_carried_out
        a_claim_that_arrives_after_the_release_takes_no_lock
    ]
}

/// The stores that a server reaches by a network.
mod networks {
    use polylock_integration_tests::on_stores;

    use super::{
        a_break_that_its_client_has_given_up_does_not_reach_the_next_holder,
        a_release_that_its_client_has_given_up_does_not_end_the_hold,
    };

    on_stores! {
        [postgres redis]
        [
            a_release_that_its_client_has_given_up_does_not_end_the_hold
            a_break_that_its_client_has_given_up_does_not_reach_the_next_holder
        ]
    }
}

/// A request to a server, of which the client has not read the reply.
struct Sent(TcpStream);

impl Sent {
    /// Sends a request with these further headers, each with its end of line.
    fn new(address: &str, method: &str, path: &str, headers: &str, body: &Value) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n{headers}\r\n{body}"
        )
        .unwrap();
        Self(stream)
    }

    /// Returns the status of the reply, and the reply.
    fn reply(mut self) -> (u16, String) {
        let mut text = String::new();
        block_in_place(|| self.0.read_to_string(&mut text)).unwrap();
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.unwrap_or_else(|| panic!("no status: {text:?}")), text)
    }
}

fn call(server: &Server, method: &str, path: &str, headers: &str, body: &Value) -> (u16, String) {
    Sent::new(&server.address, method, path, headers, body).reply()
}

/// Returns the header of a message to `server` that its client gives up after `patience`.
fn expires(server: &Server, patience: Duration) -> String {
    let (_, reply) = call(server, "GET", "/healthz", "", &Value::Null);
    let clock = reply.lines().find_map(|line| line.strip_prefix("polylock-clock: ")).unwrap();
    let (process, us) = clock.split_once(';').unwrap();
    let us = us.parse::<u128>().unwrap() + patience.as_micros();
    // A client behind a load balancer knows the clocks of several servers.
    format!("Polylock-Expires: 0123456789abcdef;1, {process};{us}\r\n")
}

/// Returns the path of a new hold.
fn new_hold() -> String {
    format!("/v1/holds/{:032x}", u128::from_be_bytes(RequestId::random().to_bytes()))
}

fn put(server: &Server, hold: &str, headers: &str) -> (u16, String) {
    call(server, "PUT", hold, headers, &json!({ "name": "n", "ttl": "10m" }))
}

fn delete(server: &Server, hold: &str, headers: &str) -> (u16, String) {
    call(server, "DELETE", &format!("{hold}?name=n"), headers, &Value::Null)
}

/// Fails if somebody takes the lock, or waits for it.
async fn assert_stays_free(locks: &Locks) {
    let end = now() + WATCHED;
    while now() < end {
        let status = locks.inspect("n").await.unwrap();
        assert!(status.is_free(), "{status:?}");
        pause(Duration::from_millis(20)).await;
    }
}

/// A request that waits on the first server, and was released on the second one. Another client holds the lock.
struct Withdrawn {
    pair: Pair,
    locks: Locks,
    holder: Guard,
    waiting: Sent,
}

impl Withdrawn {
    /// Releases the request after `before`.
    async fn new(store: &str, before: impl FnOnce(&mut Server)) -> Self {
        let mut pair = Pair::start(store).await;
        let locks = Locks::connect(pair.store.url()).await.unwrap();
        let (holder, hold) = (locks.lock("n").acquire().await.unwrap(), new_hold());
        let body = json!({ "name": "n", "ttl": "10m" });
        let waiting = Sent::new(&pair.servers[0].address, "PUT", &hold, "Prefer: wait=60\r\n", &body);
        wait_for_waiters(&locks, "n", 1).await;
        before(&mut pair.servers[0]);
        let (status, reply) = put(&pair.servers[1], &hold, "");
        assert_eq!(status, 202, "{reply}");
        let (status, reply) = delete(&pair.servers[1], &hold, "");
        assert!(status == 200 && reply.ends_with(r#"{"released":true}"#), "{reply}");
        Self { pair, locks, holder, waiting }
    }
}

async fn a_wait_ends_when_the_request_is_released_on_another_server(store: &str) {
    let Withdrawn { pair: _pair, locks, holder, waiting } = Withdrawn::new(store, |_| {}).await;
    let released = now();
    let (status, reply) = waiting.reply();
    assert!(status == 410 && reply.contains("urn:polylock:released"), "{reply}");
    assert!(now() < released + NOTICED, "after {:?}", now().since(released));
    holder.release().await.unwrap();
    assert_stays_free(&locks).await;
}

async fn a_server_that_was_stopped_does_not_claim_for_a_released_request(store: &str) {
    let stop = |server: &mut Server| block_in_place(|| server.process.stop());
    let Withdrawn { pair, locks, holder, waiting } = Withdrawn::new(store, stop).await;
    holder.release().await.unwrap();
    // By then the store may have forgotten the release.
    pause(LONGEST + WATCHED).await;
    pair.servers[0].process.resume();
    assert_stays_free(&locks).await;
    let (status, reply) = waiting.reply();
    assert!(status == 410 || status == 409, "{reply}");
}

/// Each message of the API arrives after its expiry, while another client relies on the state that it would change.
async fn a_message_that_its_client_has_given_up_is_not_carried_out(store: &str) {
    let pair = Pair::start(store).await;
    let ([first, second], locks) = (&pair.servers, Locks::connect(pair.store.url()).await.unwrap());
    let proxy = Proxy::start(first.address.parse().unwrap());
    let late = async |method: &str, path: &str, headers: &str, body: Value| {
        let headers = format!("{headers}{}", expires(first, PATIENCE));
        proxy.set(Direction::ToServer, Flow::Hold);
        let sent = Sent::new(&proxy.address().to_string(), method, path, &headers, &body);
        pause(2 * PATIENCE).await;
        proxy.set(Direction::ToServer, Flow::Pass);
        let (status, reply) = sent.reply();
        assert!(status == 409 && reply.contains("urn:polylock:late"), "{method} {path}: {reply}");
        // It names the clock with which the client may repeat it.
        assert!(reply.contains("polylock-clock: "), "{reply}");
    };
    let (hold, body) = (new_hold(), json!({ "name": "n", "ttl": "10m" }));
    late("PUT", &hold, "", body.clone()).await;
    late("PUT", &hold, "Prefer: wait=5\r\n", body.clone()).await;
    late("POST", "/v1/locks/n", "", json!({})).await;
    late("POST", "/v1/jobs/n", "", json!({ "every": "1d" })).await;
    assert!(locks.inspect("n").await.unwrap().is_free());
    // A late message has no effect on the same id, either.
    let (status, reply) = put(second, &hold, "");
    assert_eq!(status, 200, "{reply}");
    let held = locks.inspect("n").await.unwrap().holders;
    late("DELETE", &format!("{hold}?name=n"), "", Value::Null).await;
    late("PUT", &hold, "If-Match: *\r\n", json!({ "name": "n", "ttl": "1h" })).await;
    for force in [false, true] {
        late("POST", "/v1/locks/n/break", "", json!({ "force": force })).await;
    }
    let after = locks.inspect("n").await.unwrap().holders;
    assert_eq!((after[0].token, &after[0].broken), (held[0].token, &None));
    assert!(after[0].expires_in < held[0].expires_in, "{after:?}");
    // In time, the same messages have their effect.
    let in_time = expires(first, LONGEST);
    let (status, reply) = put(first, &hold, &in_time);
    assert_eq!(status, 200, "{reply}");
    let (status, reply) = delete(first, &hold, &in_time);
    assert!(status == 200 && reply.ends_with(r#"{"released":true}"#), "{reply}");
}

/// A client gives a claim up early, and continues on another server. The claim arrives before its expiry.
async fn a_claim_that_arrives_after_the_release_takes_no_lock(store: &str) {
    let pair = Pair::start(store).await;
    let ([first, second], locks) = (&pair.servers, Locks::connect(pair.store.url()).await.unwrap());
    let (proxy, hold) = (Proxy::start(first.address.parse().unwrap()), new_hold());
    let (headers, sent_at) = (expires(first, LONGEST), now());
    proxy.set(Direction::ToServer, Flow::Hold);
    let body = json!({ "name": "n", "ttl": "10m" });
    let sent = Sent::new(&proxy.address().to_string(), "PUT", &hold, &headers, &body);
    let (status, reply) = put(second, &hold, "");
    assert_eq!(status, 200, "{reply}");
    let (status, reply) = delete(second, &hold, "");
    assert_eq!(status, 200, "{reply}");
    pause((sent_at + LONGEST / 2).since(now())).await;
    proxy.set(Direction::ToServer, Flow::Pass);
    let (status, reply) = sent.reply();
    assert!(status == 202 || (status == 409 && reply.contains("urn:polylock:late")), "{reply}");
    assert_stays_free(&locks).await;
}

/// A server that reaches its store through a proxy, and the store itself.
struct Apart {
    store: Namespace,
    proxy: Proxy,
    server: Server,
    locks: Locks,
}

impl Apart {
    async fn start(store: &str) -> Self {
        let store = namespace(store).await;
        let (proxy, url) = Proxy::in_front_of(store.url()).unwrap();
        let server = Server::start(&url, "127.0.0.1:0");
        let locks = Locks::connect(store.url()).await.unwrap();
        // Its connections exist from here on, and it knows the clock of the store.
        let hold = new_hold();
        put(&server, &hold, "");
        delete(&server, &hold, "");
        Self { store, proxy, server, locks }
    }

    /// Sends a message that the server receives in time, and the store only after `meanwhile`, when the client has given it up.
    async fn late(
        &self,
        method: &str,
        path: &str,
        body: &Value,
        meanwhile: impl AsyncFnOnce(),
    ) -> (u16, String) {
        let headers = expires(&self.server, PATIENCE);
        self.proxy.set(Direction::ToServer, Flow::Hold);
        let sent = Sent::new(&self.server.address, method, path, &headers, body);
        pause(2 * PATIENCE).await;
        meanwhile().await;
        self.proxy.set(Direction::ToServer, Flow::Pass);
        sent.reply()
    }
}

async fn a_release_that_its_client_has_given_up_does_not_end_the_hold(store: &str) {
    let apart = Apart::start(store).await;
    let other = Server::start(apart.store.url(), "127.0.0.1:0");
    let hold = new_hold();
    assert_eq!(put(&other, &hold, "").0, 200);
    let path = format!("{hold}?name=n");
    let reply = apart.late("DELETE", &path, &Value::Null, async || {
        assert_eq!(put(&other, &hold, "If-Match: *\r\n").0, 200);
    });
    let (status, reply) = reply.await;
    assert!(status != 200, "{reply}");
    pause(WATCHED).await;
    assert_eq!(apart.locks.inspect("n").await.unwrap().holders.len(), 1, "{reply}");
}

async fn a_break_that_its_client_has_given_up_does_not_reach_the_next_holder(store: &str) {
    let apart = Apart::start(store).await;
    let first = apart.locks.lock("n").acquire().await.unwrap();
    let mut next = None;
    let body = json!({ "force": true });
    let reply = apart.late("POST", "/v1/locks/n/break", &body, async || {
        first.release().await.unwrap();
        next = Some(apart.locks.lock("n").acquire().await.unwrap());
    });
    let (_, reply) = reply.await;
    pause(WATCHED).await;
    let status = apart.locks.inspect("n").await.unwrap();
    assert_eq!(status.holders.len(), 1, "{reply}");
    next.unwrap().ensure_held().unwrap();
}
