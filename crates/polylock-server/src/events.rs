//! The events of all locks, as a stream of lines.
//!
//! `GET /v1/events?prefix=PREFIX` begins with the present state, as `held` and `waiting`. Then come the events of
//! [`Watch`](polylock_core::Watch) as they are seen: a hold that comes and goes between two reads of the store is not shown. All readers of
//! a prefix share one watch.

use std::{
    ops::{
        Bound::{self, Excluded, Unbounded},
        RangeBounds,
    },
    sync::Arc,
};

use axum::{
    extract::{Query, State},
    response::Response,
};
use futures_util::{StreamExt, stream};
use http::HeaderMap;
use polylock_core::{Clock, LockName, LockStatus, SystemClock};
use polylock_protocol::Problem;
use serde_json::json;
use tokio::sync::watch;

use crate::{
    access::Right,
    body::Refused,
    caller::Caller,
    lines::{self, HEARTBEAT},
    readers::READERS,
    service::Inner,
    status::Prefix,
    watches::{TooSlow, Watched, of, unavailable},
};

/// Sends the events of the locks that the caller may inspect. All readers of a prefix together cost the store as much as a waiter.
pub(crate) async fn events(
    State(service): State<Arc<Inner>>,
    caller: Caller,
    Query(Prefix { prefix }): Query<Prefix>,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let place_of_caller = caller.enter_readers(&prefix)?;
    let place = service.readers.clone().try_acquire_owned().map_err(|_| {
        let detail =
            format!("this server has {READERS} readers of events: use another one, or try again later");
        Refused(Problem::new("too-many-requests", "there are too many readers of events", 429, detail))
    })?;
    let watched = service.watches.join(&service.locks, &prefix).await.map_err(Refused)?;
    let closes = async move { service.closes().await };
    // The stream has its place among the readers until its end.
    let begin = (Reader::new(watched, caller), (place, place_of_caller));
    let lines = stream::unfold(begin, |(mut reader, places)| async move {
        let line = reader.next().await?;
        Some((line, (reader, places)))
    });
    Ok(lines::reply(&headers, lines.take_until(closes)))
}

/// A reader of the events of a watch. It has a position in the shared state and in the log of its events, and the rest of one lock, so that its
/// memory is bounded however slow it is. If it is further behind than the log reaches back, it receives `reset` and the present state again.
///
/// The present state is sent lock by lock, in the order of the names. What is sent agrees with the state at the position in the log: before the
/// lines of a lock, all events before its state are read, and from then on its events are sent. The events of locks that are not sent yet
/// are skipped, because their lines contain them.
#[derive(Debug)]
struct Reader {
    watched: watch::Receiver<Watched>,
    caller: Caller,
    /// The position of the next event.
    event: u64,
    /// The outage of the store at the begin.
    outage: Option<Arc<str>>,
    /// The locks of the present state that are not sent yet; `None` once all are sent.
    unsent: Option<Bound<LockName>>,
    /// The lock that is being sent, and the number of its lines that are sent.
    lock: Option<(LockStatus, usize)>,
}

impl Reader {
    fn new(watched: watch::Receiver<Watched>, caller: Caller) -> Self {
        let mut reader = Self { watched, caller, event: 0, outage: None, unsent: None, lock: None };
        reader.begin();
        reader
    }

    /// Begins with the present state.
    fn begin(&mut self) {
        let watched = self.watched.borrow();
        self.event = watched.next_event();
        self.outage =
            watched.state.outage.as_ref().map(|outage| unavailable(&outage.error).to_string().into());
        self.unsent = Some(Unbounded);
    }

    /// Waits for the next line, or returns a heartbeat; `None` if the watch has ended.
    async fn next(&mut self) -> Option<Option<Arc<str>>> {
        let heartbeat = SystemClock.now() + HEARTBEAT;
        loop {
            if let Some(line) = self.take() {
                return Some(Some(line));
            }
            match SystemClock.before(heartbeat, self.watched.changed()).await {
                None => return Some(None),
                Some(changed) => changed.ok()?,
            }
        }
    }

    /// Returns the next line, if there is one now.
    fn take(&mut self) -> Option<Arc<str>> {
        loop {
            if let Some(line) = self.outage.take().or_else(|| self.line_of_lock()) {
                return Some(line);
            }
            let watched = self.watched.borrow_and_update();
            match watched.event(self.event) {
                Ok(Some(event)) => {
                    self.event += 1;
                    let is_shown = event.name.as_ref().is_none_or(|name| {
                        let is_unsent = |begin: &Bound<LockName>| (begin.as_ref(), Unbounded).contains(name);
                        !self.unsent.as_ref().is_some_and(is_unsent)
                            && self.caller.may(Right::Inspect, name.as_str())
                    });
                    if is_shown {
                        return Some(event.line.clone());
                    }
                    continue;
                }
                Ok(None) => {}
                Err(TooSlow) => {
                    drop(watched);
                    self.begin();
                    let reason =
                        "this reader is too slow: it has missed events, and the present state follows";
                    return Some(json!({ "event": "reset", "reason": reason }).to_string().into());
                }
            }
            let unsent = self.unsent.as_ref()?;
            let next = watched.state.locks.range((unsent.as_ref(), Unbounded)).next();
            let next = next.map(|(name, lock)| (name.clone(), lock.clone()));
            drop(watched);
            let Some((name, lock)) = next else {
                self.unsent = None;
                return None;
            };
            if self.caller.may(Right::Inspect, name.as_str()) {
                self.lock = Some((lock.at(SystemClock.now()), 0));
            }
            self.unsent = Some(Excluded(name));
        }
    }

    /// Returns the next line of the lock that is being sent. The lines are made one after the other, because a slow reader must not keep those
    /// of thousands of waiters.
    fn line_of_lock(&mut self) -> Option<Arc<str>> {
        let (LockStatus { name, holders, waiters, .. }, sent) = self.lock.as_mut()?;
        let line = holders.get(*sent).map(|holder| of("held", name, holder)).or_else(|| {
            let position = *sent - holders.len();
            let mut line = of("waiting", name, waiters.get(position)?);
            line["position"] = (position + 1).into();
            Some(line)
        });
        *sent += 1;
        if line.is_none() {
            self.lock = None;
        }
        line.map(|line| line.to_string().into())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::{
        sync::atomic::{AtomicBool, Ordering},
        time::Duration,
    };

    use async_trait::async_trait;
    use axum::body::BodyDataStream;
    use http::{Method, StatusCode};
    use polylock_core::{
        BreakOrder, Entry, Fault, Inspect, Operation, Result, Store, Unavailable, WatchEvent, WatchState,
        memory,
    };
    use serde_json::Value;

    use super::*;
    use crate::{
        Service,
        serve::routes,
        serve_tests::{event_of, open, request, restricted, send},
        watches::{LOGGED, WATCHES},
    };

    /// Returns the event and the name of the lock in the next line.
    async fn next(events: &mut BodyDataStream) -> (String, String) {
        let event = event_of(events).await;
        (event["event"].as_str().unwrap().to_owned(), event["name"].as_str().unwrap_or_default().to_owned())
    }

    fn line(event: &str, name: &str) -> (String, String) {
        (event.to_owned(), name.to_owned())
    }

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

    /// The lines of a lock agree with the state after the events that precede them, so each change is sent once, as an event or in the lines.
    #[tokio::test]
    async fn changes_while_the_present_state_is_sent_are_events_or_part_of_it() {
        let routes = open();
        let post = async |path: &str| send(&routes, request(Method::POST, path, None, None)).await;
        let get = async || {
            send(&routes, request(Method::GET, "/v1/events", None, None)).await.into_body().into_data_stream()
        };
        let _held = (post("/v1/locks/b").await, post("/v1/locks/d").await);
        let (mut slow, mut fast) = (get().await, get().await);
        for events in [&mut slow, &mut fast] {
            assert_eq!(next(events).await, line("held", "b"));
        }
        assert_eq!(next(&mut fast).await, line("held", "d"));
        let mut later = Vec::new();
        for name in ["e", "a", "c"] {
            later.push(post(&format!("/v1/locks/{name}")).await);
            assert_eq!(next(&mut fast).await, line("granted", name));
        }
        assert_eq!(next(&mut slow).await, line("granted", "a"));
        for name in ["c", "d", "e"] {
            assert_eq!(next(&mut slow).await, line("held", name));
        }
        later.push(post("/v1/locks/f").await);
        for events in [&mut slow, &mut fast] {
            assert_eq!(next(events).await, line("granted", "f"));
        }
    }

    #[tokio::test]
    async fn a_reader_that_is_too_slow_begins_again_with_the_present_state() {
        let (sender, watched) = watch::channel(Watched::default());
        let mut reader = Reader::new(watched, Caller::anyone());
        let append = |events: usize| {
            let state = Arc::new(WatchState::default());
            sender.send_modify(|watched| _ = watched.append(&vec![WatchEvent::Available; events], &state));
        };
        append(LOGGED);
        for _ in 0..LOGGED {
            assert_eq!(reader.take().unwrap().as_ref(), r#"{"event":"available"}"#);
        }
        assert!(reader.take().is_none());
        append(LOGGED + 1);
        assert!(reader.take().unwrap().contains(r#""event":"reset""#));
        assert!(reader.take().is_none());
        append(1);
        assert!(reader.take().is_some());
    }

    #[tokio::test]
    async fn the_readers_of_a_prefix_share_a_watch_that_ends_with_the_last_one() {
        // A caller has a quarter of the prefixes at most.
        let rights = "allow = [{ prefix = \"\", rights = [\"inspect\"] }]";
        let callers = ["0", "1", "2", "3", "4"];
        let routes = restricted(&callers.map(|caller| (caller, rights)));
        let read = async |prefix: usize| {
            let (path, caller) = (format!("/v1/events?prefix={prefix}"), callers[prefix / (WATCHES / 4)]);
            send(&routes, request(Method::GET, &path, Some(caller), None)).await
        };
        let mut readers = Vec::new();
        for prefix in 0..WATCHES {
            readers.push(read(prefix).await);
            readers.push(read(prefix).await);
        }
        assert!(readers.iter().all(|reader| reader.status() == StatusCode::OK));
        assert_eq!(read(WATCHES).await.status(), StatusCode::TOO_MANY_REQUESTS);
        readers.pop();
        assert_eq!(read(WATCHES).await.status(), StatusCode::TOO_MANY_REQUESTS);
        readers.pop();
        let end = SystemClock.now() + Duration::from_secs(30);
        while read(WATCHES).await.status() != StatusCode::OK {
            assert!(SystemClock.now() < end);
            tokio::task::yield_now().await;
        }
    }

    /// A store that may be unavailable to its readers.
    #[derive(Debug)]
    struct Failing {
        inspect: Arc<dyn Inspect>,
        fails: AtomicBool,
    }

    impl Failing {
        fn check(&self) -> Result<()> {
            if self.fails.load(Ordering::Relaxed) {
                let failed =
                    Unavailable::new("memory", Operation::Inspect, Fault::Temporary, "it was unplugged");
                return Err(failed.into());
            }
            Ok(())
        }
    }

    #[async_trait]
    impl Inspect for Failing {
        async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
            self.check()?;
            self.inspect.inspect(name).await
        }

        async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
            self.check()?;
            self.inspect.list(prefix).await
        }

        async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
            self.inspect.break_lock(name, order).await
        }
    }

    #[tokio::test]
    async fn a_stranger_does_not_learn_why_the_store_is_not_ready() {
        let store = memory::connect();
        let inspect = store.inspect.clone().unwrap();
        let failing = Arc::new(Failing { inspect, fails: AtomicBool::new(true) });
        let routes = routes(&Service::new(Store { inspect: Some(failing), ..store }).unwrap());
        let ready = send(&routes, request(Method::GET, "/readyz", None, None)).await;
        assert_eq!(ready.status(), StatusCode::SERVICE_UNAVAILABLE);
        let body = http_body_util::BodyExt::collect(ready.into_body()).await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert!(body.contains("the log of the server") && !body.contains("unplugged"), "{body}");
    }

    #[tokio::test]
    async fn a_reader_that_begins_during_an_outage_receives_it_and_the_last_state() {
        let store = memory::connect();
        let inspect = store.inspect.clone().unwrap();
        let failing = Arc::new(Failing { inspect, fails: AtomicBool::new(false) });
        let routes = routes(&Service::new(Store { inspect: Some(failing.clone()), ..store }).unwrap());
        let get = async |path| send(&routes, request(Method::GET, path, None, None)).await;
        let _held = send(&routes, request(Method::POST, "/v1/locks/a", None, None)).await;
        let mut first = get("/v1/events").await.into_body().into_data_stream();
        assert_eq!(next(&mut first).await, line("held", "a"));
        failing.fails.store(true, Ordering::Relaxed);
        assert_eq!(next(&mut first).await, line("unavailable", ""));
        let mut second = get("/v1/events").await.into_body().into_data_stream();
        assert_eq!(next(&mut second).await, line("unavailable", ""));
        assert_eq!(next(&mut second).await, line("held", "a"));
        assert_eq!(get("/v1/events?prefix=a").await.status(), StatusCode::SERVICE_UNAVAILABLE);
        failing.fails.store(false, Ordering::Relaxed);
        for events in [&mut first, &mut second] {
            assert_eq!(next(events).await, line("available", ""));
        }
    }

    #[tokio::test]
    async fn a_store_that_cannot_be_inspected_has_no_events() {
        let store = Store { inspect: None, ..memory::connect() };
        let routes = routes(&Service::new(store).unwrap());
        let events = send(&routes, request(Method::GET, "/v1/events", None, None)).await;
        assert_eq!(events.status(), StatusCode::NOT_IMPLEMENTED);
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
