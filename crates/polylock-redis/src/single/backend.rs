//! The store of one server.

use std::{
    collections::HashMap,
    fmt, str,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    Backend, BreakNotice, BreakOrder, Capabilities, Clock, Entry, FencingToken, FirstStep, Grant, HoldAlerts,
    Inspect, KeepAlive, LockName, LockStatus, LostReason, Mode, Moment, Operation, OwnerId, PerRuntime,
    Place, Reach, Release, Request, RequestId, Result, Standing, Store, SystemClock, Wake, WakeUp,
    hub::{Handed, Hub},
};
use redis::{ScriptInvocation, Value};

use super::{
    NAME,
    config::Config,
    scripts::{Scripts, in_micros},
};
use crate::{
    keys,
    link::{self, Call, Endpoint, INSPECT_TIMEOUT, Link, Peer, Push, Reply},
};

/// The lease times it gives: far above its clock's step and the deadline's margin, and at most a day, which is how long one may have
/// to wait for a holder that has died.
const TTL: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(24 * 3600);

/// How often a waiter claims again, though it is notified: with the time that it takes to notice a dead connection, no wait is longer
/// than a second past its turn.
const RECHECK: Duration = Duration::from_millis(500);

/// For how much longer than the client waits for the reply a claim is valid at the server: more than a reply takes, by which the
/// estimate of the server's clock may be late.
const VALIDITY: Duration = Duration::from_secs(1);

/// How often a claim is sent that the server takes for an expired one, because its clock was set forward.
const TRIES: u32 = 3;

/// Opens the store.
///
/// # Errors
/// [`polylock_core::Error::Config`] if the configuration makes no sense, [`polylock_core::Error::Unavailable`] if the server
/// can't be reached, refuses the user, or has a setting that breaks locks.
///
/// # Cancel safety
/// Yes: nothing is left behind.
pub async fn connect(config: Config) -> Result<Store> {
    polylock_core::io::run(NAME, open(config)).await?
}

async fn open(Config(settings): Config) -> Result<Store> {
    settings.check()?;
    let (hub, alerts) = (Arc::<Hub>::default(), Arc::<HoldAlerts>::default());
    let channel = link::own_channel(&settings.prefix);
    let handler = {
        let hub = hub.clone();
        Arc::new(move |push: Push<'_>| match push {
            Push::Message(message) => match str::from_utf8(message).ok().and_then(Handed::parse) {
                Some(handed) => hub.hand_over(handed),
                // Not a message of this store. Waking everybody is allowed at any time.
                None => hub.ring_all(),
            },
            Push::Lost => hub.ring_all(),
        })
    };
    let endpoint = settings.endpoint(NAME, 0, channel.clone(), handler, alerts.clone())?;
    let link = Link::new(endpoint);
    link.live().await.map_err(|cause| link.failed(Operation::Connect, cause))?;
    let mut capabilities = Capabilities::new(NAME, TTL);
    capabilities.reach = Reach::Machines;
    capabilities.wake = WakeUp::Pushed;
    capabilities.first_step = FirstStep::Thread;
    let shared = Shared {
        capabilities,
        hub,
        scripts: Scripts::new(&settings.prefix),
        channel,
        break_channel: link::break_channel(&settings.prefix),
        command_timeout: settings.command_timeout,
        late_claims: Mutex::default(),
    };
    let server = Server { shared: Arc::new(shared), link, callers: PerRuntime::default() };
    Ok(Store::inspectable(Arc::new(server)).alerting(alerts))
}

/// The locks of one server, on one connection.
struct Server {
    shared: Arc<Shared>,
    link: Link,
    /// The same on connections of the callers' runtimes.
    callers: PerRuntime<Self>,
}

/// What all connections of the store share.
struct Shared {
    capabilities: Capabilities,
    hub: Arc<Hub>,
    scripts: Scripts,
    channel: String,
    break_channel: String,
    command_timeout: Duration,
    /// The requests of which a copy of a claim may still be delivered.
    late_claims: Mutex<HashMap<RequestId, LateClaim>>,
}

/// A copy of a claim that may still be delivered.
#[derive(Debug, Clone, Copy)]
struct LateClaim {
    /// When it expires, by the server's clock.
    expires_us: i64,
    /// When it has expired in any case.
    until: Moment,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("server", &self.link.address()).finish_non_exhaustive()
    }
}

impl Server {
    async fn call<'s>(
        &self,
        operation: Operation,
        timeout: Duration,
        call: &'s (dyn Fn(&Peer) -> ScriptInvocation<'s> + Sync),
    ) -> Reply {
        self.link.call(operation, timeout, Call::Script(call)).await
    }

    /// The same store on a connection of the present runtime.
    async fn open_another(shared: Arc<Shared>, endpoint: Endpoint) -> Result<Self> {
        let link = Link::open_another(endpoint).await?;
        Ok(Self { shared, link, callers: PerRuntime::default() })
    }

    /// How long to wait for a reply about `request` on a connection that may be broken: there must be time for another attempt.
    fn timeout(&self, request: &Request) -> Duration {
        (request.ttl / 3).max(Duration::from_millis(50)).min(self.shared.command_timeout)
    }

    fn late_claims(&self) -> MutexGuard<'_, HashMap<RequestId, LateClaim>> {
        self.shared.late_claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of a claim of `request` may be delivered after its release, until it expires.
    fn may_come_late(&self, request: &Request, expires_us: i64) {
        let now = SystemClock.now();
        let until = now + 2 * (self.timeout(request) + VALIDITY);
        let mut late = self.late_claims();
        late.retain(|_, claim| claim.until > now);
        late.insert(request.id, LateClaim { expires_us, until });
    }

    /// Sends a claim, which expires by the server's clock. The reply is a word, three numbers, and that clock.
    async fn send_claim(&self, request: &Request, place_ttl: u64, ticket: u64) -> Result<[i64; 5]> {
        let timeout = self.timeout(request);
        let expires_us = AtomicI64::new(0);
        let id = request.id.to_bytes();
        let label = request.label.as_ref().map_or("", |label| label.as_str());
        let invoke = |peer: &Peer| {
            // Right before it is sent, on the connection to the server whose clock it is.
            let expires = peer.clock.expiry_us(timeout + VALIDITY).unwrap_or(i64::MAX);
            expires_us.fetch_max(expires, Ordering::Relaxed);
            let mut call = self.shared.scripts.call(&self.shared.scripts.claim, &request.name);
            call.arg(&id).arg(request.mode.bit()).arg(request.mode.conflicts());
            call.arg(in_micros(request.ttl)).arg(place_ttl).arg(&self.shared.channel).arg(ticket);
            call.arg(request.owner.as_str()).arg(label).arg(expires);
            call
        };
        let mut unanswered =
            Unanswered { server: self, request, expires_us: &expires_us, is_answered: false };
        let Reply { outcome, may_come_late, peer, .. } = self.call(Operation::Claim, timeout, &invoke).await;
        unanswered.is_answered = !may_come_late;
        drop(unanswered);
        let reply: [i64; 5] = self.link.read(Operation::Claim, outcome?)?;
        if let Some((peer, sent_at)) = peer {
            peer.clock.observe(sent_at, reply[4]);
        }
        Ok(reply)
    }

    /// The outcome of a keep-alive of `request`, by the script's reply about it.
    fn kept(&self, request: &Request, reply: &Value) -> Result<KeepAlive> {
        Ok(match reply {
            Value::Int(1) => KeepAlive::Held { lease: request.ttl },
            Value::Int(2) => KeepAlive::Queued,
            Value::Int(0) => KeepAlive::Lost(LostReason::Gone),
            reply => match broken(reply) {
                Some(reason) => KeepAlive::Lost(reason),
                None => {
                    return Err(self.link.unexpected(Operation::Renew, "an unknown outcome of a renewal"));
                }
            },
        })
    }

    fn entry(&self, operation: Operation, entry: EntryParts) -> Result<Entry> {
        let (token, mode, age, left, owner, label, notice) = entry;
        let unexpected = || self.link.unexpected(operation, "an entry of a lock that makes no sense");
        let mode = u8::try_from(mode).ok().and_then(Mode::from_bit).ok_or_else(unexpected)?;
        let (owner, token) = (OwnerId::sanitized(&owner), FencingToken::new(token));
        let broken = (!notice.is_empty()).then(|| BreakNotice::from_text(&notice));
        Ok(Entry::new(mode, owner, &label, token, micros(age), micros(left)).broken(broken))
    }

    fn entries(&self, operation: Operation, entries: Vec<EntryParts>) -> Result<Vec<Entry>> {
        let entries = entries.into_iter().map(|entry| self.entry(operation, entry));
        let mut entries = entries.collect::<Result<Vec<_>>>()?;
        entries.sort_by_key(|entry| entry.token);
        Ok(entries)
    }
}

/// A claim that was sent and not answered yet. Dropping it notes that the claim may be delivered late.
struct Unanswered<'a> {
    server: &'a Server,
    request: &'a Request,
    /// Zero until it is sent.
    expires_us: &'a AtomicI64,
    is_answered: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let expires_us = self.expires_us.load(Ordering::Relaxed);
        if !self.is_answered && expires_us != 0 {
            self.server.may_come_late(self.request, expires_us);
        }
    }
}

/// Token or -1, mode, age in us, what is left in us, owner, label, break notice or empty.
type EntryParts = (i64, i64, i64, i64, String, String, String);

fn micros(number: i64) -> Duration {
    Duration::from_micros(u64::try_from(number).unwrap_or(0))
}

/// Why a hold ended, if the reply of a script is a break notice.
fn broken(reply: &Value) -> Option<LostReason> {
    let Value::BulkString(notice) = reply else { return None };
    Some(LostReason::Broken(BreakNotice::from_text(&String::from_utf8_lossy(notice))))
}

#[async_trait]
impl Backend for Server {
    fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    fn here(&self) -> Option<Arc<dyn Backend>> {
        // This connection receives the grants of those who wait.
        if !self.link.is_live() {
            return None;
        }
        let open = || Self::open_another(self.shared.clone(), self.link.endpoint().clone());
        self.callers.get(|caller| caller.link.is_live(), open).map(|caller| caller as _)
    }

    async fn claim(&self, request: &Request) -> Result<Standing> {
        let (place_ttl, ticket) = if request.queues {
            (in_micros(request.place_ttl()), self.shared.hub.enter(request))
        } else {
            (0, 0)
        };
        for _ in 0..TRIES {
            match self.send_claim(request, place_ttl, ticket).await? {
                [1, token, lease, ..] => {
                    let negative = || self.link.unexpected(Operation::Claim, "a negative token");
                    let token = FencingToken::new(token).ok_or_else(negative)?;
                    self.shared.hub.forget(request.id);
                    return Ok(Standing::Held(Grant::new(token, micros(lease))));
                }
                [0, left, ahead, place, _] => {
                    if request.queues {
                        self.shared.hub.placed(request, place.unsigned_abs());
                    }
                    // A third of its own time, so that the place is refreshed before it expires.
                    let recheck = micros(left).min(RECHECK).min(request.place_ttl() / 3);
                    return Ok(Standing::Queued(Place::new(u32::try_from(ahead).ok(), recheck)));
                }
                // It has expired by a clock that was set forward. The reply has corrected the estimate of it.
                [-1, ..] => {}
                _ => return Err(self.link.unexpected(Operation::Claim, "neither a grant nor a place")),
            }
        }
        Err(self.link.failed(Operation::Claim, crate::error::Cause::TimedOut(self.timeout(request))))
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        let wake = self.shared.hub.rung(request.id).await;
        if let Wake::Granted(_) = wake {
            self.shared.hub.forget(request.id);
        }
        Ok(wake)
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        let Some(timeout) = requests.iter().map(|request| self.timeout(request)).max() else {
            return Ok(Vec::new());
        };
        let invoke = |_: &Peer| self.shared.scripts.keep_alive(requests);
        let reply = self.call(Operation::Renew, timeout, &invoke).await.outcome?;
        let replies: Vec<Value> = self.link.read(Operation::Renew, reply)?;
        requests.iter().zip(&replies).map(|(request, reply)| self.kept(request, reply)).collect()
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.shared.hub.forget(request.id);
        let late = self.late_claims().get(&request.id).copied();
        let id = request.id.to_bytes();
        let invoke = |_: &Peer| {
            let mut call = self.shared.scripts.call(&self.shared.scripts.release, &request.name);
            call.arg(&id).arg(late.map_or(0, |claim| claim.expires_us));
            call
        };
        let reply = self.call(Operation::Release, self.timeout(request), &invoke).await;
        let value = reply.outcome?;
        if late.is_some() {
            self.late_claims().remove(&request.id);
        }
        if let Some(reason) = broken(&value) {
            return Ok(Release::Lost(reason));
        }
        Ok(match self.link.read(Operation::Release, value)? {
            1 => Release::Released,
            // A copy that was sent before, on a connection that broke, may have removed the entry.
            _ if reply.may_come_late => Release::Released,
            _ => Release::Lost(LostReason::Gone),
        })
    }
}

#[async_trait]
impl Inspect for Server {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        let invoke = |_: &Peer| self.shared.scripts.call(&self.shared.scripts.inspect, name);
        let reply = self.call(Operation::Inspect, INSPECT_TIMEOUT, &invoke).await.outcome?;
        let (holders, waiters): (Vec<EntryParts>, Vec<EntryParts>) =
            self.link.read(Operation::Inspect, reply)?;
        let holders = self.entries(Operation::Inspect, holders)?;
        Ok(LockStatus::new(name.clone(), holders, self.entries(Operation::Inspect, waiters)?))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        let names = self.shared.scripts.keys.in_use(&self.link, "hq", prefix).await?;
        keys::in_use_of(self, names).await
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        let notice = order.notice.to_text();
        let invoke = |_: &Peer| {
            let mut call = self.shared.scripts.call(&self.shared.scripts.break_lock, name);
            call.arg(name.as_str()).arg(&notice).arg(u8::from(order.force)).arg(&self.shared.break_channel);
            call
        };
        let reply = self.call(Operation::Break, INSPECT_TIMEOUT, &invoke).await.outcome?;
        let holders = self.link.read(Operation::Break, reply)?;
        self.entries(Operation::Break, holders)
    }
}
