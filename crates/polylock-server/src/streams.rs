//! Locks as streams, for any language: a lock is held as long as its stream is open.
//!
//! `POST /v1/locks/NAME` replies with lines of JSON:
//!
//! | event | fields |
//! |---|---|
//! | `queued` | `position`, counted from 1 with the holders as the first ones, if the store counts them |
//! | `granted` | `fencing_token`, `until`; `slot` of a semaphore, from 0 |
//! | `renewed` | `until` |
//! | `lost` | `reason`, as one word; `notice` of a break |
//! | `failed` | `problem`: the lock was not acquired |
//!
//! The server renews the lock. It releases the lock when the client closes the stream.
//!
//! **The deadline of the client.** `until` is the end of the lease by the clock of the server, as the header `polylock-clock` of the reply. A line
//! may be delayed on its way for any time, so the client must not count from its arrival:
//! 1. The client notes the time `S` by its own clock, and sends the request.
//! 2. The header contains the time `C` of the server, which has passed `S`.
//! 3. A lease until `U` lasts for at least `U - C` from `S`, less the drift between the two clocks: the client stops its work at `S + U - C`.
//!
//! A client that keeps a stream for hours repeats 1 and 2 with any other request.

use std::{pin::Pin, sync::Arc, time::Duration};

use axum::{
    extract::{Path, State},
    response::Response,
};
use futures_util::stream;
use http::HeaderMap;
use polylock_core::{
    Clock, Guard, GuardEvent, GuardEvents, LostReason, Mode, Progress, Result, SlotGuard, SystemClock,
    duration,
};
use polylock_protocol::{
    InvalidBody, Problem,
    values::{mode_of, owner_of},
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    access::Right,
    body::{OptionalBody, Refused},
    caller::Caller,
    lines::{self, HEARTBEAT},
    service::Inner,
};

/// The time after which a request that waits has a stream. A failure before it is the status of the reply.
const BEGIN: Duration = Duration::from_millis(100);
/// The time between two looks at the position in the queue.
const LOOK: Duration = Duration::from_millis(500);

/// The body of an acquisition. Times are texts, as `30s`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AcquireOptions {
    mode: Option<String>,
    ttl: Option<String>,
    wait: Option<String>,
    slots: Option<u32>,
    owner: Option<String>,
    label: Option<String>,
}

fn time(field: &'static str, text: Option<&String>) -> Result<Option<Duration>, InvalidBody> {
    text.map(|text| duration::parse(text)).transpose().map_err(|problem| InvalidBody::new(field, problem))
}

impl AcquireOptions {
    fn mode(&self) -> Result<Mode, InvalidBody> {
        self.mode.as_ref().map_or(Ok(Mode::Exclusive), |mode| mode_of(mode))
    }

    /// Returns the acquisition with these settings, and true if the request is not to wait.
    fn acquisition(
        &self,
        service: &Inner,
        name: &str,
        progress: &Progress,
    ) -> Result<(Acquisition, bool), InvalidBody> {
        let (ttl, wait) = (time("ttl", self.ttl.as_ref())?, time("wait", self.wait.as_ref())?);
        let owner = self.owner.as_deref().map(owner_of).transpose()?;
        // A lock and a semaphore have the same settings.
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
        let acquisition: Acquisition = match (self.slots, self.mode()?) {
            (None, mode) => Box::pin(configured!(service.locks.lock(name).mode(mode)).acquire()),
            (Some(slots), Mode::Exclusive) => {
                let semaphore = configured!(service.locks.semaphore(name, slots));
                Box::pin(async move { semaphore.acquire().await.map(SlotGuard::into_guard) })
            }
            (Some(_), _) => return Err(InvalidBody::new("mode", "a slot of a semaphore is exclusive")),
        };
        Ok((acquisition, wait.is_some_and(|wait| wait.is_zero())))
    }
}

type Acquisition = Pin<Box<dyn Future<Output = Result<Guard>> + Send>>;

/// The state of a stream.
enum Stage {
    Waiting {
        acquisition: Acquisition,
        progress: Progress,
        position: Option<Option<u32>>,
    },
    Acquired(Guard),
    Held {
        guard: Guard,
        events: GuardEvents,
    },
    /// The guard excludes others until the client closes the stream, or the lease ends.
    Lost(#[expect(dead_code, reason = "it releases the lock when it is dropped")] Guard),
    Ended,
}

/// Acquires a lock, and holds it as long as the client reads the reply.
pub(crate) async fn acquire(
    State(service): State<Arc<Inner>>,
    caller: Caller,
    Path(name): Path<String>,
    headers: HeaderMap,
    OptionalBody(options): OptionalBody<AcquireOptions>,
) -> Result<Response, Refused> {
    caller.ensure(Right::to_hold(options.mode()?), &name)?;
    let progress = Progress::default();
    let (mut acquisition, is_try) = options.acquisition(&service, &name, &progress)?;
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
        async move { next(&service, stage).await }
    });
    Ok(lines::reply(&headers, lines))
}

/// Returns the next line of a stream, and its state after it; `None` at its end.
async fn next(service: &Inner, stage: Stage) -> Option<(Option<Value>, Stage)> {
    let heartbeat = SystemClock.now() + HEARTBEAT;
    match stage {
        Stage::Waiting { mut acquisition, progress, position } => loop {
            let look = (SystemClock.now() + LOOK).min(heartbeat);
            if let Some(acquired) = SystemClock.before(look, acquisition.as_mut()).await {
                return Some(match acquired {
                    Ok(guard) => granted(service, guard),
                    Err(error) => {
                        let line = json!({ "event": "failed", "problem": Problem::from(&error) });
                        (Some(line), Stage::Ended)
                    }
                });
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
        Stage::Acquired(guard) => Some(granted(service, guard)),
        Stage::Held { guard, mut events } => loop {
            let Some(event) = SystemClock.before(heartbeat, events.next()).await else {
                return Some((None, Stage::Held { guard, events }));
            };
            match event {
                Some(GuardEvent::Renewed { deadline, .. }) => {
                    let line = json!({ "event": "renewed", "until": service.clock.at(deadline) });
                    return Some((Some(line), Stage::Held { guard, events }));
                }
                Some(GuardEvent::Lost(reason)) => {
                    let mut line = json!({ "event": "lost", "reason": reason.kind() });
                    if let LostReason::Broken(notice) = &reason {
                        line["notice"] = notice.to_string().into();
                    }
                    let is_kept = matches!(reason, LostReason::Broken(_) | LostReason::MaxHold);
                    return Some((Some(line), if is_kept { Stage::Lost(guard) } else { Stage::Ended }));
                }
                Some(_) => {}
                None => return None,
            }
        },
        // The client closes the stream when it has ended its work; until then nobody else has the lock, at most for the lease.
        stage @ Stage::Lost(_) => {
            SystemClock.sleep_until(heartbeat).await;
            Some((None, stage))
        }
        Stage::Ended => None,
    }
}

fn granted(service: &Inner, guard: Guard) -> (Option<Value>, Stage) {
    let mut line = json!({
        "event": "granted",
        "fencing_token": guard.fencing_token().get(),
        "until": service.clock.at(guard.deadline()),
    });
    if let Some((_, slot)) = guard.name().slot() {
        line["slot"] = slot.into();
    }
    let events = guard.events();
    (Some(line), Stage::Held { guard, events })
}
