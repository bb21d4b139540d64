//! The events of all locks, as a stream of lines.
//!
//! `GET /v1/events?prefix=PREFIX` begins with the present state, as `held` and `waiting`. Then come the events of
//! [`Watch`](polylock_core::Watch) as they are seen: a hold that comes and goes between two reads of the store is not shown.

use std::{ops::Bound, sync::Arc};

use axum::{
    extract::{Query, State},
    response::Response,
};
use futures_util::{StreamExt, stream};
use http::HeaderMap;
use polylock_core::{
    Change, ChangeKind, Clock, Entry, LockName, LockStatus, SystemClock, WatchEvent, WatchState,
};
use polylock_protocol::Problem;
use serde_json::{Value, json};

use crate::{
    access::Right,
    body::Refused,
    caller::Caller,
    lines::{self, HEARTBEAT},
    service::{Inner, READERS},
    status::{EntryObject, Prefix, ms},
};

/// Sends the events of the locks that the caller may inspect. A reader costs the store as much as a waiter.
pub(crate) async fn events(
    State(service): State<Arc<Inner>>,
    caller: Caller,
    Query(Prefix { prefix }): Query<Prefix>,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let reads = service.readers.clone().try_acquire_owned().map_err(|_| {
        let detail =
            format!("this server has {READERS} readers of events: use another one, or try again later");
        Refused(Problem::new("too-many-requests", "there are too many readers of events", 429, detail))
    })?;
    let watch = service.locks.watch(&prefix).await?;
    let closes = async move { service.closes().await };
    // The stream has its place among the readers until its end.
    let begin = (watch, Some(Present::default()), caller, reads);
    let lines = stream::unfold(begin, |(mut watch, mut present, caller, reads)| async move {
        // Until its end, the watch reads no other state.
        if let Some(lines) = &mut present {
            match lines.next(watch.state(), &caller) {
                Some(line) => return Some((Some(line), (watch, present, caller, reads))),
                None => present = None,
            }
        }
        let heartbeat = SystemClock.now() + HEARTBEAT;
        loop {
            let event = SystemClock.before(heartbeat, watch.next()).await;
            let line = match event {
                None => None,
                Some(WatchEvent::Changed(change)) if !caller.may(Right::Inspect, change.name().as_str()) => {
                    continue;
                }
                Some(event) => Some(line(&event)),
            };
            return Some((line, (watch, present, caller, reads)));
        }
    });
    Ok(lines::reply(&headers, lines.take_until(closes)))
}

fn of(event: &str, name: &LockName, entry: &Entry) -> Value {
    json!({ "event": event, "name": name.to_string(), "entry": EntryObject::from(entry) })
}

/// The lines of the present state: one for each holder and each waiter that the caller may inspect. They are made one after the other, because
/// a slow reader must not keep those of thousands of locks.
struct Present {
    /// The lock of the next line, unless it has no more entries.
    lock: Bound<LockName>,
    /// The next one of its holders and waiters.
    entry: usize,
}

impl Default for Present {
    fn default() -> Self {
        Self { lock: Bound::Unbounded, entry: 0 }
    }
}

impl Present {
    fn next(&mut self, state: &WatchState, caller: &Caller) -> Option<Value> {
        loop {
            let (name, lock) = state.locks.range((self.lock.as_ref(), Bound::Unbounded)).next()?;
            if caller.may(Right::Inspect, name.as_str()) {
                let (entry, LockStatus { holders, waiters, .. }) = (self.entry, &lock.status);
                let line = holders.get(entry).map(|holder| of("held", name, holder)).or_else(|| {
                    let position = entry - holders.len();
                    let mut line = of("waiting", name, waiters.get(position)?);
                    line["position"] = (position + 1).into();
                    Some(line)
                });
                if line.is_some() {
                    *self = Self { lock: Bound::Included(name.clone()), entry: entry + 1 };
                    return line;
                }
            }
            *self = Self { lock: Bound::Excluded(name.clone()), entry: 0 };
        }
    }
}

fn line(event: &WatchEvent) -> Value {
    match event {
        WatchEvent::Changed(change) => changed(change),
        WatchEvent::Unavailable(outage) => {
            json!({ "event": "unavailable", "reason": outage.error.to_string() })
        }
        WatchEvent::Available => json!({ "event": "available" }),
        // The server is built with the library, so it knows all of its events.
        _ => json!({ "event": "unknown" }),
    }
}

fn changed(change: &Change) -> Value {
    let mut line = of(change.kind.as_str(), change.name(), &change.entry);
    match change.kind {
        ChangeKind::Queued { position } => line["position"] = position.into(),
        ChangeKind::Granted { waited } => line["waited_ms"] = waited.map(ms).into(),
        _ => {}
    }
    line
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::time::Duration;

    use http::{Method, StatusCode};
    use polylock_core::memory;

    use super::*;
    use crate::{
        Service,
        serve::routes,
        serve_tests::{event_of, open, request, send},
    };

    #[tokio::test]
    async fn a_reader_of_events_begins_with_the_present_state_and_reads_each_change_once() {
        let routes = open();
        let acquire = async |name: &str| {
            let path = format!("/v1/locks/{name}");
            send(&routes, request(Method::POST, &path, None, None)).await
        };
        let mut streams = Vec::new();
        for name in ["b", "a", "b"] {
            streams.push(acquire(name).await);
        }
        let events = send(&routes, request(Method::GET, "/v1/events", None, None)).await;
        let mut events = events.into_body().into_data_stream();
        let mut next = async || {
            let line: Value = serde_json::from_slice(&events.next().await.unwrap().unwrap()).unwrap();
            (line["event"].clone(), line["name"].clone(), line["position"].clone())
        };
        assert_eq!(next().await, (json!("held"), json!("a"), Value::Null));
        assert_eq!(next().await, (json!("held"), json!("b"), Value::Null));
        assert_eq!(next().await, (json!("waiting"), json!("b"), json!(1)));
        // Behind the last name of the state at the begin.
        for name in ["c", "d"] {
            streams.push(acquire(name).await);
            assert_eq!(next().await, (json!("granted"), json!(name), Value::Null));
        }
    }

    #[tokio::test]
    async fn all_streams_end_at_a_shutdown() {
        let service = Service::new(memory::connect()).unwrap();
        let routes = routes(&service);
        let mut streams = Vec::new();
        // A holder, a waiter, and a reader of events.
        for (method, path) in
            [(Method::POST, "/v1/locks/n"), (Method::POST, "/v1/locks/n"), (Method::GET, "/v1/events")]
        {
            let mut stream =
                send(&routes, request(method, path, None, None)).await.into_body().into_data_stream();
            event_of(&mut stream).await;
            streams.push(stream);
        }
        service.inner().close();
        for stream in streams {
            let end = SystemClock.before(SystemClock.now() + Duration::from_secs(30), stream.count());
            assert!(end.await.is_some());
        }
    }

    #[tokio::test]
    async fn the_readers_of_events_are_bounded() {
        let routes = open();
        let read = async || send(&routes, request(Method::GET, "/v1/events", None, None)).await;
        let mut readers = Vec::new();
        for _ in 0..READERS {
            readers.push(read().await);
        }
        assert!(readers.iter().all(|reader| reader.status() == StatusCode::OK));
        assert_eq!(read().await.status(), StatusCode::TOO_MANY_REQUESTS);
        readers.pop();
        assert_eq!(read().await.status(), StatusCode::OK);
    }
}
