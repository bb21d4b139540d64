//! Confirmations of grants: a client that has received one renews the lock itself, once.
//!
//! Without them, a lock could be renewed for nobody:
//! 1. A server sends the line `granted`, and the network loses it without an error.
//! 2. The client notices the silence, and waits on another server.
//! 3. The first server renews the lock until it notices the end of the connection.

use std::{
    collections::HashMap,
    future,
    sync::{Arc, Mutex},
};

use polylock_core::{Moment, RequestId, SystemClock, sync::lock};
use tokio::sync::oneshot;

/// The part of the lease in which a client confirms a grant: before the first renewal, at a third.
pub(crate) const CONFIRMED: u32 = 4;

/// The grants that wait for the confirmation of their clients.
#[derive(Debug, Default)]
pub(crate) struct Confirmations {
    expected: Mutex<HashMap<RequestId, oneshot::Sender<()>>>,
}

impl Confirmations {
    /// Expects a confirmation of the hold with this id until `by`.
    pub(crate) fn expect(self: &Arc<Self>, id: RequestId, by: Moment) -> Confirmation {
        let (confirm, confirmed) = oneshot::channel();
        lock(&self.expected).insert(id, confirm);
        Confirmation { confirmations: self.clone(), id, by, confirmed: Some(confirmed) }
    }

    /// Records that the client has renewed the hold with this id.
    pub(crate) fn confirm(&self, id: &RequestId) {
        if let Some(confirm) = lock(&self.expected).remove(id) {
            // Its stream has ended otherwise.
            confirm.send(()).ok();
        }
    }
}

/// A confirmation that is expected, until this is dropped.
#[derive(Debug)]
pub(crate) struct Confirmation {
    confirmations: Arc<Confirmations>,
    id: RequestId,
    by: Moment,
    /// `None` once it has arrived.
    confirmed: Option<oneshot::Receiver<()>>,
}

impl Confirmation {
    /// Completes if the confirmation does not arrive in time.
    ///
    /// # Cancel safety
    /// It may be called again.
    pub(crate) async fn missing(&mut self) {
        if let Some(confirmed) = &mut self.confirmed {
            match SystemClock.before(self.by, confirmed).await {
                Some(_) => self.confirmed = None,
                None => return,
            }
        }
        future::pending::<()>().await;
    }
}

impl Drop for Confirmation {
    fn drop(&mut self) {
        lock(&self.confirmations.expected).remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::time::Duration;

    use axum::{Router, body::BodyDataStream};
    use futures_util::StreamExt;
    use http::{Method, StatusCode, header};
    use polylock_core::Clock;
    use serde_json::{Value, json};

    use super::*;
    use crate::serve_tests::{event_of, open, request, send};

    const TTL: Duration = Duration::from_secs(1);

    /// Returns the stream of a client that confirms grants, and its grant.
    async fn acquire_with_confirmation(routes: &Router) -> (BodyDataStream, Value) {
        let response = acquire(routes, json!({ "ttl": "1s", "confirm": true })).await;
        let mut stream = response.into_body().into_data_stream();
        let granted = event_of(&mut stream).await;
        (stream, granted)
    }

    async fn acquire(routes: &Router, body: Value) -> axum::response::Response {
        send(routes, request(Method::POST, "/v1/locks/n", None, Some(&body))).await
    }

    #[tokio::test]
    async fn a_grant_without_its_confirmation_lasts_for_one_lease() {
        let routes = open();
        let asked = SystemClock.now();
        let (mut stream, granted) = acquire_with_confirmation(&routes).await;
        let begun = SystemClock.now();
        // It has ended before the first renewal.
        while let Some(line) = stream.next().await {
            assert!(line.unwrap().iter().all(u8::is_ascii_whitespace));
        }
        let ended = SystemClock.now();
        // The server counts from the grant, before this client has received it.
        assert!(ended >= asked + TTL / CONFIRMED && ended < begun + TTL, "{:?}", ended.since(begun));
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
    async fn a_confirmed_grant_is_renewed() {
        let routes = open();
        let (mut stream, granted) = acquire_with_confirmation(&routes).await;
        let path = format!("/v1/holds/{}", granted["id"].as_str().unwrap());
        let body = json!({ "name": "n", "ttl": "1s" });
        let mut renewal = request(Method::PUT, &path, None, Some(&body));
        renewal.headers_mut().insert(header::IF_MATCH, "*".parse().unwrap());
        assert_eq!(send(&routes, renewal).await.status(), StatusCode::OK);
        let end = SystemClock.now() + 2 * TTL;
        while SystemClock.now() < end {
            assert_eq!(event_of(&mut stream).await["event"], "renewed");
        }
        assert_eq!(acquire(&routes, json!({ "wait": "0s" })).await.status(), StatusCode::CONFLICT);
    }
}
