//! The operations of a store by the id of a request: see [`polylock_protocol`].

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{Json, extract::State, http::HeaderMap};
use polylock_core::{
    ClaimOutcome, Clock, Convert, Error, Inspect, KeepRecord, LockStatus, Operation, OwnerId, Park,
    RaiseToken, Request, SystemClock, Wake, time_limit,
};
use polylock_protocol::{
    BreakBody, ClaimBody, ClaimReply, ConvertBody, ConvertReply, EntryBody, InvalidBody, KeepAliveBody,
    KeepAliveReply, ListBody, NameBody, ParkBody, RaiseBody, RaiseReply, RecordReply, ReleaseReply,
    RequestBody, StatusBody, StoreBody, WakeReply, WriteRecordBody,
};
use tokio::sync::oneshot;

use crate::{
    access::Right,
    body::{Body, Refused},
    caller::Caller,
    clock::ServerClock,
    expiry::limit_of,
    service::Inner,
};

/// The longest time until the reply to a wait.
const MAX_WAIT: Duration = Duration::from_secs(30);

type Reply<T> = Result<Json<T>, Refused>;
type Of = State<Arc<Inner>>;

/// How far a caller may raise the tokens above the present time in microseconds, which they follow: ten years. Without this limit, one caller
/// could use up the numbers of all locks.
const FARTHEST_RAISE: u64 = 10 * 365 * 24 * 3600 * 1_000_000;

/// Checks that the caller may use this request: its mode is the one that was claimed, or the store does not find it.
fn ensure_holds(caller: &Caller, request: &Request) -> Result<(), Refused> {
    caller.ensure(Right::to_hold(request.mode), request.name.as_str())
}

/// Returns a request of the caller, with a lease that the store accepts.
fn request_of(service: &Inner, caller: &Caller, body: &RequestBody) -> Result<Request, Refused> {
    let request = Request::try_from(body)?;
    ensure_holds(caller, &request)?;
    service.ensure_ttl("ttl_us", request.ttl)?;
    Ok(request)
}

pub(crate) async fn describe(State(service): Of, _: Caller) -> Json<StoreBody> {
    Json(service.description())
}

/// Claims, unless the client has given the claim up by now.
pub(crate) async fn claim(
    State(service): Of,
    caller: Caller,
    Body(body): Body<ClaimBody>,
) -> Reply<ClaimReply> {
    let request = request_of(&service, &caller, &body.request)?;
    let claim = Arc::new((request, body.expires, AtomicBool::new(false)));
    let locks = service.locks.clone();
    let reply = locks.on_store(Operation::Claim, move |backend| {
        let (service, claim) = (service.clone(), claim.clone());
        async move {
            let (request, expires, has_begun) = &*claim;
            let turn = service.turns.next(request).await;
            // A claim that its client has dropped may arrive after the release.
            if turn.is_released() || expires.has_passed(service.clock.now()) {
                return Ok(ClaimReply::Late);
            }
            // Before the claim: its client may go away meanwhile.
            service.waiters.insert(request, SystemClock.now());
            let is_repeated = has_begun.swap(true, Ordering::Relaxed);
            let claiming = time_limit::until(ServerClock::moment(*expires), backend.claim(request));
            let outcome = claiming.await.map(|outcome| match outcome {
                // The first attempt may still be on its way.
                ClaimOutcome::Queued(position) if is_repeated => {
                    ClaimOutcome::Queued(position.may_be_granted_late(true))
                }
                outcome => outcome,
            });
            if matches!(outcome, Ok(ClaimOutcome::Granted(_))) || !request.queues {
                service.waiters.remove(request);
            }
            outcome.map(|outcome| (&outcome).into())
        }
    });
    Ok(Json(reply.await?))
}

/// Waits until the outcome of the last claim on this server may have changed, or the client disconnects.
pub(crate) async fn wait(
    State(service): Of,
    caller: Caller,
    Body(body): Body<RequestBody>,
) -> Reply<WakeReply> {
    let request = request_of(&service, &caller, &body)?;
    // Dropped with this future.
    let (_waits, gone) = oneshot::channel::<()>();
    let wake = service.run(|service, backend| async move {
        let wake = tokio::select! {
            // A wake-up that has arrived is the reply, whatever else is true by now.
            biased;
            wake = backend.wait(&request) => wake,
            _ = gone => Ok(Wake::Stale),
            () = SystemClock.sleep_until(SystemClock.now() + MAX_WAIT) => Ok(Wake::Stale),
        };
        if let Ok(Wake::Granted(_)) = wake {
            service.waiters.remove(&request);
        }
        wake
    });
    Ok(Json(wake.await?.into()))
}

pub(crate) async fn keep_alive(
    State(service): Of,
    caller: Caller,
    Body(body): Body<KeepAliveBody>,
) -> Reply<KeepAliveReply> {
    let longest = service.store.backend.capabilities().keep_alive_batch;
    if body.requests.len() > longest {
        return Err(InvalidBody::new("requests", format!("at most {longest} in one message")).into());
    }
    let requests = body.requests.iter().map(|body| request_of(&service, &caller, body).map(Arc::new));
    let requests = requests.collect::<Result<Vec<_>, _>>()?;
    let now = SystemClock.now();
    requests.iter().for_each(|request| service.waiters.extend(request, now));
    let outcomes = service.run(|_, backend| async move { backend.keep_alive(&requests).await });
    Ok(Json(KeepAliveReply { outcomes: outcomes.await?.iter().map(Into::into).collect() }))
}

pub(crate) async fn park(
    State(service): Of,
    caller: Caller,
    headers: HeaderMap,
    Body(body): Body<ParkBody>,
) -> Reply<ReleaseReply> {
    let request = request_of(&service, &caller, &body.request)?;
    let (token, left) = (body.token()?, body.left());
    let limit = limit_of(&service, &headers)?;
    let park = of(&service, service.store.park.as_ref(), "the end of a hold at a later time")?;
    let outcome = service
        .run(|_, _| time_limit::until(limit, async move { Park::park(&*park, &request, token, left).await }));
    Ok(Json((&outcome.await?).into()))
}

pub(crate) async fn release(
    State(service): Of,
    caller: Caller,
    headers: HeaderMap,
    Body(body): Body<RequestBody>,
) -> Reply<ReleaseReply> {
    let request = Request::try_from(&body)?;
    ensure_holds(&caller, &request)?;
    let release = service.release(request, limit_of(&service, &headers)?).await?;
    Ok(Json((&release).into()))
}

pub(crate) async fn convert(
    State(service): Of,
    caller: Caller,
    headers: HeaderMap,
    Body(body): Body<ConvertBody>,
) -> Reply<ConvertReply> {
    let request = request_of(&service, &caller, &body.request)?;
    let conversion = body.conversion()?;
    caller.ensure(Right::to_hold(conversion.to), request.name.as_str())?;
    let limit = limit_of(&service, &headers)?;
    let convert = of(&service, service.store.convert.as_ref(), "conversions")?;
    let outcome = service.run(|_, _| {
        time_limit::until(limit, async move { Convert::convert(&*convert, &request, &conversion).await })
    });
    Ok(Json((&outcome.await?).into()))
}

pub(crate) async fn raise(
    State(service): Of,
    caller: Caller,
    Body(body): Body<RaiseBody>,
) -> Reply<RaiseReply> {
    let (request, to) = (Request::try_from(&body.request)?, body.token()?);
    caller.ensure(Right::Raise, request.name.as_str())?;
    let farthest = micros_since_1970().saturating_add(FARTHEST_RAISE);
    if to.get() > farthest {
        let problem = format!("at most {farthest}, ten years beyond the tokens of the clock");
        return Err(InvalidBody::new("to", problem).into());
    }
    let raise = of(&service, service.store.raise.as_ref(), "a raise of its tokens")?;
    let last = service.run(|_, _| async move { RaiseToken::raise(&*raise, &request, to).await });
    Ok(Json(RaiseReply { last: last.await?.get() }))
}

pub(crate) async fn inspect(
    State(service): Of,
    caller: Caller,
    Body(body): Body<NameBody>,
) -> Reply<StatusBody> {
    let (name, inspect) = (body.name()?, inspector(&service)?);
    caller.ensure(Right::Inspect, name.as_str())?;
    let status = service.run(|_, _| async move { inspect.inspect(&name).await });
    Ok(Json((&status.await?).into()))
}

pub(crate) async fn list(
    State(service): Of,
    caller: Caller,
    Body(body): Body<ListBody>,
) -> Reply<Vec<StatusBody>> {
    let inspect = inspector(&service)?;
    let locks: Vec<LockStatus> = service.run(|_, _| async move { inspect.list(&body.prefix).await }).await?;
    let shown = locks.iter().filter(|lock| caller.may(Right::Inspect, lock.name.as_str()));
    Ok(Json(shown.map(Into::into).collect()))
}

pub(crate) async fn break_lock(
    State(service): Of,
    caller: Caller,
    headers: HeaderMap,
    Body(body): Body<BreakBody>,
) -> Reply<Vec<EntryBody>> {
    let ((name, mut order), inspect) = (body.order()?, inspector(&service)?);
    caller.ensure(Right::Break, name.as_str())?;
    if let Some(caller) = caller.owner() {
        let stated = order.notice.by.take();
        order.notice.by = Some(match stated {
            Some(by) => OwnerId::sanitized(&format!("{caller} ({by})")),
            None => caller,
        });
    }
    let limit = limit_of(&service, &headers)?;
    let holders =
        service.run(|_, _| time_limit::until(limit, async move { inspect.break_lock(&name, &order).await }));
    Ok(Json(holders.await?.iter().map(Into::into).collect()))
}

pub(crate) async fn read_record(
    State(service): Of,
    caller: Caller,
    Body(body): Body<NameBody>,
) -> Reply<RecordReply> {
    let (name, records) = (body.name()?, record_keeper(&service)?);
    caller.ensure(Right::Inspect, name.as_str())?;
    let stored = service.run(|_, _| async move { records.read_record(&name).await });
    Ok(Json((&stored.await?).into()))
}

pub(crate) async fn write_record(
    State(service): Of,
    caller: Caller,
    Body(body): Body<WriteRecordBody>,
) -> Reply<()> {
    let ((name, record, keep), records) = (body.record()?, record_keeper(&service)?);
    caller.ensure(Right::Exclusive, name.as_str())?;
    service.run(|_, _| async move { records.write_record(&name, &record, keep).await }).await?;
    Ok(Json(()))
}

/// Returns the time that the tokens of a store follow.
fn micros_since_1970() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "a token is not a time: this affects no lock")]
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX)
}

fn inspector(service: &Inner) -> Result<Arc<dyn Inspect>, Refused> {
    of(service, service.store.inspect.as_ref(), "inspection")
}

fn record_keeper(service: &Inner) -> Result<Arc<dyn KeepRecord>, Refused> {
    of(service, service.store.records.as_ref(), "records of jobs")
}

/// Returns an optional interface of the store.
fn of<T: ?Sized>(
    service: &Inner,
    interface: Option<&Arc<T>>,
    capability: &'static str,
) -> Result<Arc<T>, Refused> {
    let backend = service.store.backend.capabilities().backend;
    interface.cloned().ok_or_else(|| Error::Unsupported { backend, capability }.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use http::{Method, StatusCode};
    use polylock_protocol::{EXPIRES, paths};
    use serde_json::{Value, json};

    use crate::serve_tests::{event_of, open, request, restricted, send};

    /// A client gives up a message, whose expiry names a time of this server, or of the process before it.
    #[tokio::test]
    async fn no_hold_ends_by_a_message_that_its_client_has_given_up() {
        let routes = open();
        let acquire = request(Method::POST, "/v1/locks/n", None, Some(&json!({ "wait": "0s" })));
        let mut stream = send(&routes, acquire).await.into_body().into_data_stream();
        let granted = event_of(&mut stream).await;
        let token = granted["fencing_token"].as_u64().unwrap();
        let held = json!({
            "id": granted["id"], "name": "n", "mode": "EX", "ttl_us": 30_000_000, "queues": true,
            "wants_position": false, "owner": "o",
        });
        let breaks = |force: bool| {
            let notice = json!({ "reason": null, "by": null });
            json!({ "name": "n", "notice": notice, "tokens": [token], "force": force })
        };
        let messages: [(&str, Value); 4] = [
            (paths::PARK, json!({ "request": held, "token": token, "left_us": 1 })),
            (paths::RELEASE, held.clone()),
            (paths::BREAK, breaks(false)),
            (paths::BREAK, breaks(true)),
        ];
        for (path, body) in &messages {
            let mut late = request(Method::POST, path, None, Some(body));
            late.headers_mut().insert(EXPIRES, "0000000000000000;0".parse().unwrap());
            assert_eq!(send(&routes, late).await.status(), StatusCode::CONFLICT, "{path} {body}");
            let renewal = json!({ "requests": [held] });
            let reply = send(&routes, request(Method::POST, paths::KEEP_ALIVE, None, Some(&renewal))).await;
            let reply = http_body_util::BodyExt::collect(reply.into_body()).await.unwrap().to_bytes();
            let reply: Value = serde_json::from_slice(&reply).unwrap();
            assert_eq!(reply["outcomes"][0]["state"], "held", "{path} {body}");
        }
    }

    fn raise(to: u64) -> Value {
        let holder = json!({
            "id": format!("{:032x}", 1), "name": "n", "mode": "EX", "ttl_us": 30_000_000, "queues": true, "wants_position": false,
            "owner": "o",
        });
        json!({ "request": holder, "to": to })
    }

    #[tokio::test]
    async fn tokens_are_raised_with_a_right_of_its_own_and_not_used_up() {
        let routes = restricted(&[
            ("holder", r#"allow = [{ prefix = "", rights = ["exclusive", "break"] }]"#),
            ("migration", r#"allow = [{ prefix = "", rights = ["raise"] }]"#),
        ]);
        let status = async |caller: &str, to: u64| {
            send(&routes, request(Method::POST, paths::RAISE, Some(caller), Some(&raise(to)))).await.status()
        };
        assert_eq!(status("holder", 7).await, StatusCode::FORBIDDEN);
        assert_eq!(status("migration", 7).await, StatusCode::OK);
        let farthest = super::micros_since_1970() + super::FARTHEST_RAISE;
        assert_eq!(status("migration", farthest - 1).await, StatusCode::OK);
        for to in [farthest + 60_000_000, i64::MAX.unsigned_abs(), u64::MAX] {
            assert_eq!(status("migration", to).await, StatusCode::UNPROCESSABLE_ENTITY, "{to}");
        }
    }

    #[tokio::test]
    async fn values_that_no_store_accepts_are_refused() {
        let routes = open();
        let with_ttl = |ttl_us: u64| {
            json!({
                "id": format!("{:032x}", 1), "name": "n", "mode": "EX", "ttl_us": ttl_us, "queues": true, "wants_position": false,
                "owner": "o",
            })
        };
        let refused = async |path: &str, body: Value| {
            let reply = send(&routes, request(Method::POST, path, None, Some(&body))).await;
            assert_eq!(reply.status(), StatusCode::UNPROCESSABLE_ENTITY, "{path} {body}");
        };
        for ttl_us in [0, 1, 10 * 365 * 24 * 3600 * 1_000_000, 1 << 63] {
            refused(paths::CLAIM, json!({ "request": with_ttl(ttl_us), "expires": "0000000000000000;0" }))
                .await;
            refused(paths::WAIT, with_ttl(ttl_us)).await;
            refused(paths::KEEP_ALIVE, json!({ "requests": [with_ttl(ttl_us)] })).await;
            refused(paths::PARK, json!({ "request": with_ttl(ttl_us), "token": 7, "left_us": 1 })).await;
        }
        refused(paths::KEEP_ALIVE, json!({ "requests": vec![with_ttl(30_000_000); 257] })).await;
        let record = json!({ "token": 1, "revision": 0, "text": "" });
        refused(paths::WRITE_RECORD, json!({ "name": "n", "record": record, "keep_us": 1_u64 << 63 })).await;
    }
}
