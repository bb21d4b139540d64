//! The watches of a server: one for each prefix, which all readers of its events share.
//!
//! A watch has the state of all of its locks. A reader has only its position in it, so the memory of a server does not grow with the number of
//! readers, or with their slowness. The bounds of a slow reader are those of the log: see [`Reader`](crate::events::Reader).

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, Weak},
};

use polylock_core::{Change, ChangeKind, Entry, Error, LockName, Locks, WatchEvent, WatchState, sync::lock};
use polylock_protocol::Problem;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::objects::{EntryObject, NameObject, ms};

/// The number of prefixes that are watched at the same time. For each, the server has the state of its locks, about a kilobyte for each one.
pub(crate) const WATCHES: usize = 64;

/// The number of the last events of a watch that are kept for slow readers.
pub(crate) const LOGGED: usize = 16_384;

/// The watches with readers, by prefix.
#[derive(Debug, Default)]
pub(crate) struct Watches(Mutex<HashMap<String, Weak<watch::Sender<Watched>>>>);

/// The state of the locks with a prefix, and the last events that have led to it.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// The result of the first read, once it is known.
    opened: Option<Result<(), Problem>>,
    pub(crate) state: Arc<WatchState>,
    log: VecDeque<Logged>,
    /// The number of events that are no longer in the log.
    dropped: u64,
}

/// An event, as the line that all readers receive.
#[derive(Debug)]
pub(crate) struct Logged {
    /// The lock, unless the event is one of the store.
    pub(crate) name: Option<LockName>,
    pub(crate) line: Arc<str>,
}

impl Watches {
    /// Joins the watch of `prefix`, or begins it.
    pub(crate) async fn join(
        self: &Arc<Self>,
        locks: &Locks,
        prefix: &str,
    ) -> Result<watch::Receiver<Watched>, Problem> {
        let mut watched = self.subscribe(locks, prefix)?;
        // All readers of a prefix wait for the same read, and receive its error.
        let opened = watched.wait_for(|watched| watched.opened.is_some()).await;
        // The task ends only with the server.
        let opened = opened.map_err(|_| Problem::from(&Error::ShutDown))?.opened.clone();
        opened.unwrap_or(Ok(())).map(|()| watched)
    }

    fn subscribe(self: &Arc<Self>, locks: &Locks, prefix: &str) -> Result<watch::Receiver<Watched>, Problem> {
        let mut watches = lock(&self.0);
        if let Some(watch) = watches.get(prefix).and_then(Weak::upgrade) {
            return Ok(watch.subscribe());
        }
        watches.retain(|_, watch| watch.strong_count() > 0);
        if watches.len() >= WATCHES {
            let detail = format!(
                "the readers of this server have {WATCHES} different prefixes: use one of them, or another server, or try again later"
            );
            return Err(Problem::new(
                "too-many-requests",
                "there are too many prefixes of events",
                429,
                detail,
            ));
        }
        let (sender, receiver) = watch::channel(Watched::default());
        let sender = Arc::new(sender);
        watches.insert(prefix.to_owned(), Arc::downgrade(&sender));
        tokio::spawn(self.clone().publish(locks.clone(), prefix.to_owned(), sender));
        Ok(receiver)
    }

    /// Opens a watch, and publishes its events until it has no more readers.
    async fn publish(self: Arc<Self>, locks: Locks, prefix: String, sender: Arc<watch::Sender<Watched>>) {
        let opened = locks.watch(&prefix).await;
        sender.send_modify(|watched| {
            watched.opened = Some(opened.as_ref().map(drop).map_err(Problem::from));
            if let Ok(watch) = &opened {
                watched.state = watch.state().clone();
            }
        });
        let Ok(mut watch) = opened else { return };
        loop {
            tokio::select! {
                events = watch.refresh() => {
                    sender.send_if_modified(|watched| watched.append(&events, watch.state()));
                }
                () = sender.closed() => {
                    // Until the drop, nobody can join.
                    let _watches = lock(&self.0);
                    if sender.receiver_count() == 0 {
                        return drop(sender);
                    }
                }
            }
        }
    }
}

impl Watched {
    /// Replaces the state, and logs the events that have led to it. Returns true if there are some.
    pub(crate) fn append(&mut self, events: &[WatchEvent], state: &Arc<WatchState>) -> bool {
        self.state = state.clone();
        self.log.extend(events.iter().map(Logged::from));
        let surplus = self.log.len().saturating_sub(LOGGED);
        self.log.drain(..surplus);
        self.dropped += surplus as u64;
        !events.is_empty()
    }

    /// Returns the number of events that have led to the state: the position of the next one.
    pub(crate) fn next_event(&self) -> u64 {
        self.dropped + self.log.len() as u64
    }

    /// Returns the event at this position; an error if it is no longer in the log.
    pub(crate) fn event(&self, position: u64) -> Result<Option<&Logged>, TooSlow> {
        let at = position.checked_sub(self.dropped).ok_or(TooSlow)?;
        Ok(usize::try_from(at).ok().and_then(|at| self.log.get(at)))
    }
}

/// A reader is further behind than the log reaches back.
#[derive(Debug)]
pub(crate) struct TooSlow;

impl From<&WatchEvent> for Logged {
    fn from(event: &WatchEvent) -> Self {
        let (name, line) = match event {
            WatchEvent::Changed(change) => (Some(change.name().clone()), changed(change)),
            WatchEvent::Unavailable(outage) => (None, unavailable(&outage.error)),
            WatchEvent::Available => (None, json!({ "event": "available" })),
            // The server is built with the library, so it knows all of its events.
            _ => (None, json!({ "event": "unknown" })),
        };
        Self { name, line: line.to_string().into() }
    }
}

pub(crate) fn unavailable(error: &str) -> Value {
    json!({ "event": "unavailable", "reason": error })
}

/// An event of a lock.
#[derive(Serialize)]
struct Line<'e> {
    event: &'e str,
    #[serde(flatten)]
    name: NameObject,
    entry: EntryObject,
}

/// Returns the line of a holder or a waiter.
pub(crate) fn of(event: &str, name: &LockName, entry: &Entry) -> Value {
    json!(Line { event, name: name.into(), entry: entry.into() })
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
