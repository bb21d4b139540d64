//! Locks without a connection, for scripts, functions and agents: `PUT /v1/holds/ID` claims a lock or renews it, `DELETE` releases it.
//!
//! The id is a random one of the client, and a secret, because it suffices to release the lock. Both operations may be repeated, on any server. A lock is
//! not renewed by the server, so it ends with its lease unless the client renews it.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Path, Query, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use polylock_core::{
    Backend, ClaimOutcome, Clock, Fault, InvalidName, KeepAlive, LockName, LostReason, Moment, Operation,
    QueueLease, QueuePosition, Release, Request, Result, SystemClock, Unavailable, deadline, time_limit,
};
use polylock_protocol::{
    InvalidBody, Problem,
    values::{id_of, label_of, mode_or_exclusive, owner_of, time_of},
};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::{
    access::Right,
    body::{Body, Refused},
    caller::{Caller, only_renews},
    expiry::{api_limit_of, late},
    service::Inner,
};

/// The longest wait of one request.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The body of a claim. Times are texts, as `30s`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hold {
    name: String,
    slot: Option<u32>,
    mode: Option<String>,
    ttl: Option<String>,
    owner: Option<String>,
    label: Option<String>,
}

/// The lock of a release.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Held {
    name: String,
    slot: Option<u32>,
    mode: Option<String>,
}

/// The outcome of a claim or a renewal.
enum Outcome {
    Held {
        token: u64,
        until: Moment,
    },
    Renewed(Moment),
    Queued(QueuePosition),
    Lost(LostReason),
    Released,
    /// The claim was not sent in time.
    Late,
}

/// Returns a request of this caller, which has the right to it.
fn request(
    service: &Inner,
    caller: &Caller,
    id: &str,
    (name, slot): (&str, Option<u32>),
    mode: Option<&str>,
) -> Result<Request, Refused> {
    let invalid = |error: InvalidName| InvalidBody::new("name", error.to_string());
    let mut name = LockName::new(name).map_err(invalid)?;
    if let Some(slot) = slot {
        name = LockName::of_slot(name.as_str(), slot).map_err(invalid)?;
    }
    let mode = mode_or_exclusive(mode)?;
    caller.ensure(Right::to_hold(mode), name.as_str())?;
    let ttl = service.locks.options().ttl;
    let mut request = Request::new(name, mode, ttl);
    request.id = id_of(id)?;
    request.outlives_process = true;
    Ok(request)
}

/// Claims a lock, or renews it if this id holds it; with the header `If-Match: *`, it claims nothing. With the header `Prefer: wait=SECONDS`, it waits for its turn. The place in the queue is kept for
/// five seconds after the reply.
pub(crate) async fn put(
    State(service): State<Arc<Inner>>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    Body(hold): Body<Hold>,
) -> Result<Response, Refused> {
    let mut request = request(&service, &caller, &id, (&hold.name, hold.slot), hold.mode.as_deref())?;
    let only_renews = only_renews(&headers);
    if !only_renews && headers.contains_key(header::IF_MATCH) {
        let detail = "a hold has no versions: If-Match: * renews it";
        return Err(Refused(Problem::new("precondition", "no such version", 412, detail)));
    }
    match time_of("ttl", hold.ttl.as_deref())? {
        Some(ttl) => request.ttl = ttl,
        // A hold keeps its TTL, as far as this server knows it. In any case no renewal shortens a lease.
        None if only_renews => request.ttl = service.ttls.of(request.id).unwrap_or(request.ttl),
        None => {}
    }
    service.ensure_ttl("ttl", request.ttl)?;
    let capabilities = service.store.backend.capabilities();
    if !capabilities.modes.contains(request.mode) {
        return Err(InvalidBody::new("mode", "the store does not support it").into());
    }
    let limit = api_limit_of(&service, &headers)?;
    if let Some(owner) = hold.owner.as_deref().map(owner_of).transpose()?.or_else(|| caller.owner()) {
        request.owner = owner;
    }
    request.label = hold.label.as_deref().map(label_of).transpose()?;
    let wait = wait(&headers)?;
    service.ttls.record(request.id, request.ttl);
    // Dropped with this future, when the client disconnects.
    let (_waits, gone) = oneshot::channel::<()>();
    let outcome = service.run(|service, backend| async move {
        if only_renews {
            if let Some(until) = service.renewals.renew(&request).await {
                return Ok(Outcome::Renewed(until));
            }
            return renew(&*backend, &Arc::new(request)).await;
        }
        claim(&service, &*backend, &request, (wait, limit), gone).await
    });
    Ok(match outcome.await? {
        Outcome::Held { token, until } => {
            Json(json!({ "fencing_token": token, "until": service.clock.at(until) })).into_response()
        }
        Outcome::Renewed(until) => Json(json!({ "until": service.clock.at(until) })).into_response(),
        Outcome::Queued(position) => {
            let position = position.ahead.map(|ahead| ahead.saturating_add(1));
            (StatusCode::ACCEPTED, Json(json!({ "position": position }))).into_response()
        }
        Outcome::Lost(reason) => {
            let problem = Problem::new("lost", "the lock is lost", 410, reason.to_string());
            Refused(Problem { reason: Some(reason.kind().to_owned()), ..problem }).into_response()
        }
        Outcome::Released => {
            let detail = "this id was released, or its place in the queue has ended: choose a new random one";
            Refused(Problem::new("released", "the id was used", 410, detail)).into_response()
        }
        Outcome::Late => late().into_response(),
    })
}

/// Returns the time in the header `Prefer: wait=SECONDS`.
fn wait(headers: &HeaderMap) -> Result<Duration, InvalidBody> {
    let preferences = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let wait =
        preferences.flat_map(|value| value.split(',')).find_map(|one| one.trim().strip_prefix("wait="));
    let Some(seconds) = wait else { return Ok(Duration::ZERO) };
    let seconds = seconds.parse().map_err(|_| InvalidBody::new("Prefer", "wait is a number of seconds"))?;
    Ok(Duration::from_secs(seconds).min(MAX_WAIT))
}

/// Renews a hold.
async fn renew(backend: &dyn Backend, request: &Arc<Request>) -> Result<Outcome> {
    let sent = SystemClock.now();
    let renewed = backend.keep_alive(std::slice::from_ref(request)).await?;
    Ok(match renewed.into_iter().next() {
        Some(KeepAlive::Held { lease, .. }) => Outcome::Renewed(deadline::of(sent, lease)),
        Some(KeepAlive::Lost(reason)) => Outcome::Lost(reason),
        // Another server may renew it at the same time.
        _ => {
            let cause = "the renewal has no result: repeat it";
            let backend = backend.capabilities().backend;
            return Err(Unavailable::new(backend, Operation::Renew, Fault::Temporary, cause).into());
        }
    })
}

/// Claims until the lock is granted, or the time to wait is over, or the client has `gone`. The first claim counts until `limit`.
///
/// The client may have given this server up, without a sign that the server could notice, and have released the request on another one. The store then
/// refuses claims of the request for [`LONGEST`](time_limit::LONGEST), and a claim after that would take the lock for nobody. So
/// 1. each claim but the first follows a proof that the request still waits: its place in the queue was extended, and is not created again;
/// 2. that claim counts for no longer than [`LONGEST`](time_limit::LONGEST) after the proof was requested. A release that the proof does not show is
///    later than it, so the store refuses the claim.
async fn claim(
    service: &Inner,
    backend: &dyn Backend,
    request: &Request,
    (wait, limit): (Duration, Moment),
    mut gone: oneshot::Receiver<()>,
) -> Result<Outcome> {
    let requests = [Arc::new(request.clone())];
    let has_queue = backend.capabilities().queue_lease != QueueLease::Absent;
    let arrival = SystemClock.now();
    // Without a queue there is no proof, so all claims count as the first one does.
    let end = arrival + if has_queue { wait } else { wait.min(time_limit::LONGEST) };
    let mut limit = limit;
    loop {
        // Before the claim is sent: its reply may be late.
        let claimed;
        let outcome = {
            let turn = service.turns.next(request).await;
            claimed = SystemClock.now();
            if turn.is_released() {
                return Ok(Outcome::Released);
            }
            if claimed >= limit || gone.try_recv() == Err(TryRecvError::Closed) {
                return Ok(Outcome::Late);
            }
            service.waiters.insert(request, claimed);
            time_limit::until(limit, backend.claim(request)).await?
        };
        let position = match outcome {
            ClaimOutcome::Granted(grant) => {
                service.waiters.remove(request);
                // A claim that finds its own grant does not extend it.
                let sent = SystemClock.now();
                let renewed = backend.keep_alive(&requests).await?;
                return Ok(match renewed.into_iter().next() {
                    Some(KeepAlive::Held { lease, .. }) => {
                        Outcome::Held { token: grant.token.get(), until: deadline::of(sent, lease) }
                    }
                    Some(KeepAlive::Lost(reason)) => Outcome::Lost(reason),
                    _ => {
                        Outcome::Held { token: grant.token.get(), until: deadline::of(claimed, grant.lease) }
                    }
                });
            }
            ClaimOutcome::Queued(position) => position,
        };
        let now = SystemClock.now();
        if now >= end {
            return Ok(Outcome::Queued(position));
        }
        let next = position.recheck_after.min(QueuePosition::MAX_RECHECK).min(request.queue_lease() / 3);
        tokio::select! {
            woken = SystemClock.before((now + next).min(end), backend.wait(request)) => woken.transpose()?,
            _ = &mut gone => return Ok(Outcome::Queued(position)),
        };
        if !has_queue {
            limit = arrival + time_limit::LONGEST;
            continue;
        }
        let sent = SystemClock.now();
        match backend.keep_alive(&requests).await?.into_iter().next() {
            Some(KeepAlive::Held { lease, terms: Some(terms) }) => {
                service.waiters.remove(request);
                return Ok(Outcome::Held { token: terms.token.get(), until: deadline::of(sent, lease) });
            }
            Some(KeepAlive::Held { .. } | KeepAlive::Queued) => limit = sent + time_limit::LONGEST,
            Some(KeepAlive::Lost(reason)) => {
                service.waiters.remove(request);
                backend.drop_waiter(request);
                return Ok(if reason == LostReason::Gone {
                    Outcome::Released
                } else {
                    Outcome::Lost(reason)
                });
            }
            Some(KeepAlive::Unknown) | None => {}
        }
    }
}

/// Releases a lock, or withdraws the request.
pub(crate) async fn delete(
    State(service): State<Arc<Inner>>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    Query(held): Query<Held>,
) -> Result<Response, Refused> {
    let request = request(&service, &caller, &id, (&held.name, held.slot), held.mode.as_deref())?;
    let release = service.release(request, api_limit_of(&service, &headers)?).await?;
    let had_entry = matches!(release, Release::Released);
    Ok(Json(json!({ "released": had_entry })).into_response())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use async_trait::async_trait;
    use polylock_core::{Capabilities, FencingToken, Grant, Mode, Wake, memory};

    use super::*;
    use crate::Service;

    const LEASE: Duration = Duration::from_secs(10);

    /// A store with a late reply to a claim, and without a reply to the renewal that follows.
    #[derive(Debug)]
    struct Late(Capabilities);

    #[async_trait]
    impl Backend for Late {
        fn capabilities(&self) -> &Capabilities {
            &self.0
        }

        async fn claim(&self, _: &Request) -> Result<ClaimOutcome> {
            SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(300)).await;
            Ok(ClaimOutcome::Granted(Grant::new(FencingToken::new(1).unwrap(), LEASE)))
        }

        async fn wait(&self, _: &Request) -> Result<Wake> {
            Ok(Wake::Stale)
        }

        async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
            Ok(vec![KeepAlive::Unknown; requests.len()])
        }

        async fn release(&self, _: &Request) -> Result<Release> {
            Ok(Release::Released)
        }
    }

    #[tokio::test]
    async fn a_late_reply_to_a_claim_does_not_extend_the_hold() {
        let service = Service::new(memory::connect()).unwrap();
        let store = Late(service.inner().store.backend.capabilities().clone());
        let request = Request::new(LockName::new("n").unwrap(), Mode::Exclusive, LEASE);
        let (_waits, gone) = oneshot::channel();
        let sent = SystemClock.now();
        let outcome =
            claim(service.inner(), &store, &request, (Duration::ZERO, Moment::NEVER), gone).await.unwrap();
        let Outcome::Held { until, .. } = outcome else { panic!("it is granted") };
        assert!(until < sent + LEASE, "the hold is shown for longer than its lease");
    }

    #[tokio::test]
    async fn a_renewal_without_a_result_is_no_loss() {
        let store = Late(memory::connect().backend.capabilities().clone());
        let request = Request::new(LockName::new("n").unwrap(), Mode::Exclusive, LEASE);
        let outcome = renew(&store, &Arc::new(request)).await;
        assert!(outcome.is_err_and(|error| error.is_temporary()), "the client repeats it");
    }

    /// A store in which the request waits, and a keep-alive has this outcome.
    #[derive(Debug)]
    struct Waiting(Capabilities, KeepAlive);

    #[async_trait]
    impl Backend for Waiting {
        fn capabilities(&self) -> &Capabilities {
            &self.0
        }

        async fn claim(&self, _: &Request) -> Result<ClaimOutcome> {
            Ok(ClaimOutcome::Queued(QueuePosition::new(None, Duration::from_millis(10))))
        }

        async fn wait(&self, _: &Request) -> Result<Wake> {
            std::future::pending().await
        }

        async fn keep_alive(&self, _: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
            Ok(vec![self.1.clone()])
        }

        async fn release(&self, _: &Request) -> Result<Release> {
            Ok(Release::Released)
        }
    }

    #[tokio::test]
    async fn each_further_claim_follows_a_proof_that_the_request_waits() {
        let service = Service::new(memory::connect()).unwrap();
        let outcome_of = async |proof| {
            let store = Waiting(service.inner().store.backend.capabilities().clone(), proof);
            let request = Request::new(LockName::new("n").unwrap(), Mode::Exclusive, LEASE);
            let (_waits, gone) = oneshot::channel();
            let (wait, limit) = (Duration::from_millis(400), SystemClock.now() + Duration::from_millis(200));
            claim(service.inner(), &store, &request, (wait, limit), gone).await.unwrap()
        };
        assert!(matches!(outcome_of(KeepAlive::Queued).await, Outcome::Queued(_)), "it waits to the end");
        assert!(matches!(outcome_of(KeepAlive::Unknown).await, Outcome::Late), "the first claim is too old");
        assert!(matches!(outcome_of(KeepAlive::Lost(LostReason::Gone)).await, Outcome::Released));
    }

    #[tokio::test]
    async fn no_claim_is_sent_for_a_client_that_has_gone() {
        let service = Service::new(memory::connect()).unwrap();
        let store = service.inner().store.backend.clone();
        let request = Request::new(LockName::new("n").unwrap(), Mode::Exclusive, LEASE);
        let (waits, gone) = oneshot::channel();
        drop(waits);
        let outcome = claim(service.inner(), &*store, &request, (LEASE, Moment::NEVER), gone).await.unwrap();
        assert!(matches!(outcome, Outcome::Late));
        assert!(service.inner().locks.inspect("n").await.unwrap().is_free());
    }
}
