//! The locks of streams, and who renews them: the client, unless it asks the server to do it.
//!
//! A server that renews the lock of a stream can renew it for nobody:
//! 1. A server sends the line `granted`, and the network loses it without an error. Or the client receives it, and its machine vanishes, or is suspended.
//! 2. The connection stays open: a proxy keeps it, or nothing is sent on it that the network could reject.
//! 3. The server renews the lock until it notices the end of the connection.
//!
//! So the lease of a client is extended only by its own messages, and the lock is free a lease after the last of them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use polylock_core::{Clock, Guard, Moment, MultiGuard, Request, RequestId, SystemClock, sync::lock};

/// The locks of a stream. When this is dropped they stay taken for their lease.
#[derive(Debug)]
pub(crate) struct StreamLocks {
    guard: Option<MultiGuard>,
    /// Set if the client renews them.
    renewals: Option<Arc<Renewals>>,
}

impl StreamLocks {
    /// Returns locks that the server renews.
    pub(crate) const fn renewed_by_server(guard: MultiGuard) -> Self {
        Self { guard: Some(guard), renewals: None }
    }

    /// Returns the locks; `None` only while this is dropped.
    pub(crate) const fn guard(&self) -> Option<&MultiGuard> {
        self.guard.as_ref()
    }
}

impl Drop for StreamLocks {
    fn drop(&mut self) {
        let Some(guard) = self.guard.take() else { return };
        if let Some(renewals) = &self.renewals {
            let mut holds = lock(&renewals.holds);
            for handle in guard.guards().iter().filter_map(|guard| guard.handle().ok()) {
                holds.remove(&handle.id());
            }
        }
        // Some may be lost: they are not released either.
        guard.leave_to_expire().ok();
    }
}

/// The holds of streams that their clients renew.
#[derive(Debug, Default)]
pub(crate) struct Renewals {
    holds: Mutex<HashMap<RequestId, Hold>>,
}

/// One lock of a stream.
#[derive(Debug, Clone)]
struct Hold {
    locks: Weak<StreamLocks>,
    index: usize,
    ttl: Duration,
}

impl Renewals {
    /// Returns locks that only [`renew`](Self::renew) extends.
    pub(crate) fn by_client(self: &Arc<Self>, guard: MultiGuard) -> Arc<StreamLocks> {
        guard.guards().iter().for_each(Guard::stop_renewals);
        Arc::new_cyclic(|locks| {
            let mut holds = lock(&self.holds);
            for (index, guard) in guard.guards().iter().enumerate() {
                if let Ok(handle) = guard.handle() {
                    holds.insert(handle.id(), Hold { locks: locks.clone(), index, ttl: handle.ttl() });
                }
            }
            StreamLocks { guard: Some(guard), renewals: Some(self.clone()) }
        })
    }

    /// Renews the hold of a stream, and returns the new deadline. Returns `None` if no stream of this server has this
    /// hold, with this TTL, or if the renewal has no result.
    pub(crate) async fn renew(&self, request: &Request) -> Option<Moment> {
        let Hold { locks, index, ttl } = lock(&self.holds).get(&request.id).cloned()?;
        let locks = locks.upgrade()?;
        let guard = locks.guard()?.guards().get(index)?;
        if (guard.name(), guard.mode(), ttl) != (&request.name, request.mode, request.ttl) {
            return None;
        }
        // The store answers the renewal that follows if it answers at all.
        SystemClock.before(SystemClock.now() + ttl / 6, guard.renew()).await?.ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::time::Duration;

    use axum::{Router, body::BodyDataStream};
    use futures_util::StreamExt;
    use http::{Method, StatusCode, header};
    use polylock_core::{Clock, deadline};
    use serde_json::{Value, json};

    use super::*;
    use crate::serve_tests::{event_of, open, request, send};

    const TTL: Duration = Duration::from_secs(1);

    /// Returns the stream of a client, and its grant.
    async fn acquire_for_a_second(routes: &Router) -> (BodyDataStream, Value) {
        let response = acquire(routes, json!({ "ttl": "1s" })).await;
        let mut stream = response.into_body().into_data_stream();
        let granted = event_of(&mut stream).await;
        (stream, granted)
    }

    async fn acquire(routes: &Router, body: Value) -> axum::response::Response {
        send(routes, request(Method::POST, "/v1/locks/n", None, Some(&body))).await
    }

    /// Returns the status of the reply to a renewal of this version.
    async fn renewed(routes: &Router, path: &str, version: &str, body: &Value) -> StatusCode {
        let mut renewal = request(Method::PUT, path, None, Some(body));
        renewal.headers_mut().insert(header::IF_MATCH, version.parse().unwrap());
        send(routes, renewal).await.status()
    }

    #[tokio::test]
    async fn a_grant_that_its_client_does_not_renew_lasts_for_one_lease() {
        let routes = open();
        let asked = SystemClock.now();
        let (mut stream, granted) = acquire_for_a_second(&routes).await;
        let begun = SystemClock.now();
        let lost = event_of(&mut stream).await;
        assert_eq!((&lost["event"], &lost["reason"]), (&"lost".into(), &"deadline".into()), "{lost}");
        let ended = SystemClock.now();
        // The server counts from the grant, before this client has received it.
        assert!(
            ended >= asked + deadline::of(Moment::default(), TTL).since(Moment::default())
                && ended < begun + TTL,
            "{:?}",
            ended.since(begun)
        );
        assert!(stream.next().await.is_none());
        // The client may be alive.
        assert_eq!(acquire(&routes, json!({ "wait": "0s" })).await.status(), StatusCode::CONFLICT);
        let mut next = acquire(&routes, json!({})).await.into_body().into_data_stream();
        let mut line = event_of(&mut next).await;
        while line["event"] == "queued" {
            line = event_of(&mut next).await;
        }
        assert!(line["fencing_token"].as_u64() > granted["fencing_token"].as_u64());
        assert!(SystemClock.now() < begun + TTL + TTL / 2, "it was renewed");
    }

    #[tokio::test]
    async fn each_renewal_by_the_client_extends_the_lease_and_nothing_else_does() {
        let routes = open();
        let (mut stream, granted) = acquire_for_a_second(&routes).await;
        let path = format!("/v1/holds/{}", granted["id"].as_str().unwrap());
        let renew = async || {
            let body = json!({ "name": "n", "ttl": "1s" });
            assert_eq!(renewed(&routes, &path, "*", &body).await, StatusCode::OK);
        };
        let end = SystemClock.now() + 2 * TTL;
        let mut last = SystemClock.now();
        while SystemClock.now() < end {
            SystemClock.sleep_until(SystemClock.now() + TTL / 3).await;
            renew().await;
            last = SystemClock.now();
            assert_eq!(event_of(&mut stream).await["event"], "renewed");
        }
        assert_eq!(acquire(&routes, json!({ "wait": "0s" })).await.status(), StatusCode::CONFLICT);
        assert_eq!(event_of(&mut stream).await["event"], "lost");
        let mut next = acquire(&routes, json!({})).await.into_body().into_data_stream();
        while event_of(&mut next).await["event"] != "granted" {}
        assert!(SystemClock.now() < last + TTL + TTL / 2, "the server has renewed it");
    }

    #[tokio::test]
    async fn a_lock_that_was_released_can_not_be_renewed() {
        let routes = open();
        let (stream, granted) = acquire_for_a_second(&routes).await;
        let id = granted["id"].as_str().unwrap();
        let release = request(Method::DELETE, &format!("/v1/holds/{id}?name=n"), None, None);
        assert_eq!(send(&routes, release).await.status(), StatusCode::OK);
        let path = format!("/v1/holds/{id}");
        assert_eq!(renewed(&routes, &path, "*", &json!({ "name": "n" })).await, StatusCode::GONE);
        drop(stream);
    }

    #[tokio::test]
    async fn a_server_that_is_asked_to_renew_does_so_while_the_stream_is_open() {
        let routes = open();
        let response = acquire(&routes, json!({ "ttl": "1s", "renew": true })).await;
        let mut stream = response.into_body().into_data_stream();
        let begun = SystemClock.now();
        event_of(&mut stream).await;
        while SystemClock.now() < begun + 2 * TTL {
            assert_eq!(event_of(&mut stream).await["event"], "renewed");
        }
        drop(stream);
        let ended = SystemClock.now();
        let mut next = acquire(&routes, json!({})).await.into_body().into_data_stream();
        while event_of(&mut next).await["event"] != "granted" {}
        assert!(SystemClock.now() < ended + TTL + TTL / 2, "it was renewed for nobody");
    }

    #[tokio::test]
    async fn a_renewal_of_a_version_is_refused_and_claims_nothing() {
        let routes = open();
        let path = format!("/v1/holds/{:032x}", 1);
        let reply = renewed(&routes, &path, "\"1\"", &json!({ "name": "n" })).await;
        assert_eq!(reply, StatusCode::PRECONDITION_FAILED);
        assert_eq!(acquire(&routes, json!({ "wait": "0s" })).await.status(), StatusCode::OK);
    }
}
