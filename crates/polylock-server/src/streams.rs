//! Locks as streams, for any language: the reply to one request has the place in the queue, the grant, the renewals and the loss.
//!
//! `POST /v1/locks/NAME` replies with lines of JSON:
//!
//! | event | fields |
//! |---|---|
//! | `queued` | `position`, counted from 1 with the holders as the first ones, if the store counts them |
//! | `granted` | `fencing_token`, `until`, `id`, `ttl_ms`; `slot` of a semaphore, from 0; of several locks `fencing_tokens` and `ids`, by name |
//! | `renewed` | `until` |
//! | `lost` | `lock`; `reason`, as one word; `notice` of a break |
//! | `failed` | `problem`: the lock was not acquired |
//!
//! A client renews its locks by `PUT /v1/holds/ID` with `If-Match: *`, and releases them with `DELETE /v1/holds/ID`, on any server, before it closes the stream. With `renew`, the server renews
//! them as long as the stream is open: see [`renewals`](crate::renewals).
//!
//! **The end of a stream is no release.**
//! 1. The network cuts the connection, and the server reads its end.
//! 2. The client has not noticed this, and works under the lock until its deadline.
//! 3. If the server had released the lock in step 1, another client would hold it in step 2.
//!
//! So the lock stays taken until the end of its lease. The same holds when a server shuts down, and when this server has not renewed the lock in time: the
//! client may have renewed it itself, by `PUT /v1/holds/ID` with `If-Match: *`, on any server.
//!
//! If the renewals of a client reach another server, the stream ends with `lost` and the reason `deadline`, and the client still holds the lock.
//!
//! **The deadline of the client.** `until` is the end of the lease by the clock of the server, as the header `polylock-clock` of the reply. A line
//! may be delayed on its way for any time, so the client must not count from its arrival:
//! 1. The client notes the time `S` by its own clock, and sends the request.
//! 2. The header contains the time `C` of the server, which has passed `S`.
//! 3. A lease until `U` lasts for at least `U - C` from `S`, less the drift between the two clocks: the client stops its work at `S + U - C`.
//!
//! A client that keeps a stream for minutes repeats 1 and 2 with any other request.

use std::{
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use axum::{
    extract::{Path, State},
    response::Response,
};
use futures_util::stream;
use http::HeaderMap;
use polylock_core::{
    Clock, Error, Guard, HoldHandle, LockName, LostReason, Mode, Moment, MultiGuard, Progress, Result,
    SlotGuard, SystemClock,
};
use polylock_protocol::{
    InvalidBody, Problem,
    values::{mode_or_exclusive, owner_of, time_of},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    access::Right,
    body::{OptionalBody, Refused},
    caller::Caller,
    expiry::limit_of,
    lines::{self, HEARTBEAT},
    objects::ms,
    renewals::StreamLocks,
    service::Inner,
};

/// The time after which a request that waits has a stream. A failure before it is the status of the reply.
const BEGIN: Duration = Duration::from_millis(100);
/// The longest time between two lines of a hold: its renewals are lines, and the deadline limits the time for which a client believes in a silent server.
const HELD_HEARTBEAT: Duration = Duration::from_secs(15);
/// The time between two looks at the position in the queue.
const LOOK: Duration = Duration::from_millis(500);

/// The greatest number of further locks of one stream.
const FURTHER_LOCKS: usize = 63;

/// The body of an acquisition. Times are texts, as `30s`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AcquireOptions {
    mode: Option<String>,
    ttl: Option<String>,
    wait: Option<String>,
    slots: Option<u32>,
    also: Vec<String>,
    owner: Option<String>,
    label: Option<String>,
    /// True if the server renews the locks.
    renew: bool,
}

/// The end of an acquisition.
pub(crate) enum Acquired {
    /// The locks, and the fields of the event `granted`.
    Held { guard: MultiGuard, granted: Map<String, Value> },
    /// The line instead of it.
    Not(Value),
}

pub(crate) type Acquisition = Pin<Box<dyn Future<Output = Result<Acquired>> + Send>>;

impl Acquired {
    /// One lock, or the slot of a semaphore.
    pub(crate) fn one(guard: Guard) -> Self {
        let mut granted = Map::new();
        granted.insert("fencing_token".to_owned(), guard.fencing_token().get().into());
        granted.insert("id".to_owned(), id_of(&guard));
        if let Some((_, slot)) = guard.name().slot() {
            granted.insert("slot".to_owned(), slot.into());
        }
        Self::Held { guard: guard.into(), granted }
    }

    /// Several locks, of which `name` is the one that the request names first.
    fn several(name: &str, guard: MultiGuard) -> Self {
        let tokens =
            guard.fencing_tokens().map(|(name, token)| (name.as_str().to_owned(), token.get().into()));
        let tokens: Map<String, Value> = tokens.collect();
        let mut granted = Map::new();
        granted.insert("fencing_token".to_owned(), tokens.get(name).cloned().unwrap_or_default());
        granted.insert("fencing_tokens".to_owned(), tokens.into());
        let ids = guard.guards().iter().map(|guard| (guard.name().as_str().to_owned(), id_of(guard)));
        granted.insert("ids".to_owned(), ids.collect::<Map<_, _>>().into());
        Self::Held { guard, granted }
    }

    /// Adds a field to the event `granted`.
    pub(crate) fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        if let Self::Held { granted, .. } = &mut self {
            granted.insert(field.to_owned(), value.into());
        }
        self
    }
}

/// Returns the id with which the client renews and releases the lock by itself. The store is one with leases, so there is one.
fn id_of(guard: &Guard) -> Value {
    guard.handle().ok().map(|handle| format!("{:032x}", u128::from_be_bytes(handle.id().to_bytes()))).into()
}

impl AcquireOptions {
    fn mode(&self) -> Result<Mode, InvalidBody> {
        mode_or_exclusive(self.mode.as_deref())
    }

    /// Returns the acquisition with these settings, and true if the request is not to wait.
    fn acquisition(
        self,
        service: &Inner,
        name: String,
        progress: &Progress,
    ) -> Result<(Acquisition, bool), InvalidBody> {
        let (ttl, wait) = (time_of("ttl", self.ttl.as_deref())?, time_of("wait", self.wait.as_deref())?);
        let (mode, owner) = (self.mode()?, self.owner.as_deref().map(owner_of).transpose()?);
        if self.also.len() > FURTHER_LOCKS {
            return Err(InvalidBody::new("also", format!("at most {FURTHER_LOCKS} further locks")));
        }
        // All have the same settings.
        macro_rules! configured {
            ($lock:expr) => {{
                let mut lock = $lock.progress(progress);
                if let Some(ttl) = ttl {
                    lock = lock.ttl(ttl);
                }
                if let Some(wait) = wait {
                    lock = lock.wait(wait);
                }
                if let Some(owner) = &owner {
                    lock = lock.owner(owner);
                }
                if let Some(label) = &self.label {
                    lock = lock.label(label);
                }
                lock
            }};
        }
        let locks = &service.locks;
        let acquisition: Acquisition = match self.slots {
            None if self.also.is_empty() => {
                let lock = configured!(locks.lock(&name).mode(mode));
                Box::pin(async move { Ok(Acquired::one(lock.acquire().await?)) })
            }
            None => {
                let names = self.also.iter().chain([&name]);
                let locks = configured!(locks.lock_many(names).mode(mode));
                Box::pin(async move { Ok(Acquired::several(&name, locks.acquire().await?)) })
            }
            Some(_) if mode != Mode::Exclusive => {
                return Err(InvalidBody::new("mode", "a slot of a semaphore is exclusive"));
            }
            Some(_) if !self.also.is_empty() => {
                return Err(InvalidBody::new("also", "a slot of a semaphore is acquired by itself"));
            }
            Some(slots) => {
                let semaphore = configured!(locks.semaphore(name, slots));
                Box::pin(
                    async move { Ok(Acquired::one(semaphore.acquire().await.map(SlotGuard::into_guard)?)) },
                )
            }
        };
        Ok((acquisition, wait.is_some_and(|wait| wait.is_zero())))
    }
}

/// The state of a stream.
enum Stage {
    Waiting {
        acquisition: Acquisition,
        progress: Progress,
        position: Option<Option<u32>>,
    },
    Acquired(Acquired),
    Held(Held),
    /// The locks exclude others until the client releases them, or the lease ends.
    Lost,
    Ended,
}

/// The locks of a client.
struct Held {
    locks: Arc<StreamLocks>,
    /// The deadline that the client knows.
    until: Moment,
    /// Counts the locks of all streams.
    _counted: Arc<()>,
}

/// Acquires a lock, or several. The reply is their stream.
pub(crate) async fn acquire(
    State(service): State<Arc<Inner>>,
    caller: Caller,
    Path(name): Path<String>,
    headers: HeaderMap,
    OptionalBody(mut options): OptionalBody<AcquireOptions>,
) -> Result<Response, Refused> {
    let right = Right::to_hold(options.mode()?);
    for name in options.also.iter().chain([&name]) {
        caller.ensure(right, name)?;
    }
    limit_of(&service, &headers)?;
    let progress = Progress::default();
    let server_renews = options.renew;
    options.owner = options.owner.or_else(|| caller.owner().map(|owner| owner.to_string()));
    let (acquisition, is_try) = options.acquisition(&service, name, &progress)?;
    open(service, caller, &headers, Call { acquisition, progress, is_try, server_renews }).await
}

/// An acquisition for a client.
pub(crate) struct Call {
    pub(crate) acquisition: Acquisition,
    pub(crate) progress: Progress,
    /// True if the request is not to wait.
    pub(crate) is_try: bool,
    /// True if the server renews the locks as long as the connection is open.
    pub(crate) server_renews: bool,
}

/// Returns the stream of an acquisition: its failure within a moment, or at any time if it is a try, is the status of the reply.
pub(crate) async fn open(
    service: Arc<Inner>,
    caller: Caller,
    headers: &HeaderMap,
    call: Call,
) -> Result<Response, Refused> {
    let Call { mut acquisition, progress, is_try, server_renews } = call;
    let begun = if is_try {
        Some(acquisition.as_mut().await)
    } else {
        SystemClock.before(SystemClock.now() + BEGIN, acquisition.as_mut()).await
    };
    let stage = match begun {
        Some(acquired) => Stage::Acquired(acquired?),
        None => Stage::Waiting { acquisition, progress, position: None },
    };
    let lines = stream::unfold(stage, move |stage| {
        // The stream is a request of the caller until its end.
        let (service, _caller) = (service.clone(), caller.clone());
        async move { next(&service, server_renews, stage).await }
    });
    Ok(lines::reply(headers, lines))
}

/// A change of a hold.
enum Change {
    Renewed(Moment),
    Lost((LockName, LostReason)),
    /// The server shuts down.
    Ended,
}

/// Returns the next line of a stream, and its state after it; `None` at its end.
async fn next(service: &Inner, server_renews: bool, stage: Stage) -> Option<(Option<Value>, Stage)> {
    let silence = if matches!(stage, Stage::Waiting { .. }) { HEARTBEAT } else { HELD_HEARTBEAT };
    let heartbeat = SystemClock.now() + silence;
    match stage {
        Stage::Waiting { mut acquisition, progress, position } => loop {
            let look = (SystemClock.now() + LOOK).min(heartbeat);
            if let Some(acquired) = SystemClock.before(look, acquisition.as_mut()).await {
                return Some(match acquired {
                    Ok(acquired) => begin(service, server_renews, acquired),
                    Err(error) => {
                        let line = json!({ "event": "failed", "problem": Problem::from(&error) });
                        (Some(line), Stage::Ended)
                    }
                });
            }
            if service.is_closing() {
                // The client waits on another server.
                let line = json!({ "event": "failed", "problem": Problem::from(&Error::ShutDown) });
                return Some((Some(line), Stage::Ended));
            }
            let now = progress.queue_position();
            if position != Some(now) {
                let mut line = json!({ "event": "queued" });
                if let Some(now) = now {
                    line["position"] = now.into();
                }
                return Some((Some(line), Stage::Waiting { acquisition, progress, position: Some(now) }));
            }
            if SystemClock.now() >= heartbeat {
                return Some((None, Stage::Waiting { acquisition, progress, position }));
            }
        },
        Stage::Acquired(acquired) => Some(begin(service, server_renews, acquired)),
        Stage::Held(mut held) => {
            let Held { locks, until, .. } = &held;
            let guard = locks.guard()?;
            // Its locals are in its memory once; what it captured would be there twice.
            let change = async {
                // A renewal before the deadline is read is not missed.
                let renewed = pin!(guard.renewed());
                let deadline = guard.deadline();
                if deadline != *until && guard.is_held() {
                    return Change::Renewed(deadline);
                }
                tokio::select! {
                    biased;
                    renewed = renewed => match renewed {
                        Some(until) => Change::Renewed(until),
                        None => Change::Lost(guard.lost().await),
                    },
                    // The locks stay taken for the lease.
                    () = service.closes() => Change::Ended,
                }
            };
            // In a box: the future of a stream exists as long as the stream.
            match SystemClock.before(heartbeat, Box::pin(change)).await {
                None => Some((None, Stage::Held(held))),
                Some(Change::Renewed(until)) => {
                    held.until = until;
                    let line = json!({ "event": "renewed", "until": service.clock.at(until) });
                    Some((Some(line), Stage::Held(held)))
                }
                Some(Change::Ended) => None,
                Some(Change::Lost((lock, reason))) => {
                    let mut line = json!({ "event": "lost", "lock": lock.as_str(), "reason": reason.kind() });
                    if let LostReason::Broken(notice) = &reason {
                        line["notice"] = notice.to_string().into();
                    }
                    // Of several locks, those that are not lost exclude others, too.
                    let is_kept = matches!(reason, LostReason::Broken(_) | LostReason::MaxHold)
                        || guard.guards().len() > 1;
                    // From here on, none of them is renewed.
                    drop(held);
                    Some((Some(line), if is_kept { Stage::Lost } else { Stage::Ended }))
                }
            }
        }
        // The client releases the lock when it has ended its work; until then nobody else has it, at most for the lease.
        Stage::Lost => {
            tokio::select! {
                () = service.closes() => None,
                () = SystemClock.sleep_until(heartbeat) => Some((None, Stage::Lost)),
            }
        }
        Stage::Ended => None,
    }
}

/// Returns the line of an acquisition that has ended, and the state after it.
fn begin(service: &Inner, server_renews: bool, acquired: Acquired) -> (Option<Value>, Stage) {
    match acquired {
        Acquired::Held { guard, mut granted } => {
            let until = guard.deadline();
            granted.insert("event".to_owned(), "granted".into());
            granted.insert("until".to_owned(), json!(service.clock.at(until)));
            let handles: Vec<HoldHandle> =
                guard.guards().iter().filter_map(|guard| guard.handle().ok()).collect();
            for handle in &handles {
                service.ttls.record(handle.id(), handle.ttl());
            }
            granted.insert("ttl_ms".to_owned(), handles.first().map(|handle| ms(handle.ttl())).into());
            let locks = if server_renews {
                Arc::new(StreamLocks::renewed_by_server(guard))
            } else {
                service.renewals.by_client(guard)
            };
            let held = Held { locks, until, _counted: service.held.clone() };
            (Some(granted.into()), Stage::Held(held))
        }
        Acquired::Not(line) => (Some(line), Stage::Ended),
    }
}
