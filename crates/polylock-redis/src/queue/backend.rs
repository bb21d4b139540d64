//! The store: queues with hand-over, on one server or in a cluster.

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
    Backend, BreakNotice, BreakOrder, Capabilities, Clock, Entry, Fencing, FencingToken, FirstStep, Grant,
    HoldAlerts, Inspect, KeepAlive, LockName, LockStatus, LostReason, Mode, Moment, Operation, OwnerId,
    PerRuntime, Place, Reach, Release, Request, RequestId, Result, Standing, Store, SystemClock, Wake,
    WakeUp,
    hub::{Handed, Hub},
};
use redis::{ScriptInvocation, Value};

use super::{
    scripts::{Scripts, in_micros},
    servers::Servers,
};
use crate::{
    call::Call,
    cluster::Nodes,
    config::Settings,
    keys::{self, Keys},
    link::{self, Endpoint, INSPECT_TIMEOUT, Link, Peer, Push, PushHandler, Reply},
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

/// What the connections of a store share.
#[derive(Clone)]
pub(crate) struct Client {
    /// What no other client has.
    pub(crate) id: String,
    pub(crate) on_push: PushHandler,
    pub(crate) alerts: Arc<HoldAlerts>,
}

/// A store whose servers are not found yet.
pub(crate) struct Opening {
    backend: &'static str,
    settings: Settings,
    hub: Arc<Hub>,
    pub(crate) client: Client,
}

impl Opening {
    /// # Errors
    /// [`polylock_core::Error::Config`] if the settings make no sense.
    pub(crate) fn new(backend: &'static str, settings: Settings) -> Result<Self> {
        settings.check()?;
        let (hub, alerts) = (Arc::<Hub>::default(), Arc::<HoldAlerts>::default());
        let on_push = {
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
        let client = Client { id: link::client_id(), on_push, alerts };
        Ok(Self { backend, settings, hub, client })
    }

    /// How to reach the one server that has all locks, if it is this one.
    ///
    /// # Errors
    /// If a certificate can't be read.
    pub(crate) fn endpoint(&self) -> Result<Endpoint> {
        let Client { id, on_push, alerts } = self.client.clone();
        let channel = link::own_channel(&self.settings.prefix, &id);
        let server = &self.settings.servers[0];
        Ok(self.settings.endpoint(self.backend, server, Some(channel), on_push, alerts)?)
    }

    /// The store in the one server at this end of a connection.
    ///
    /// # Errors
    /// If it can't be reached, or used.
    pub(crate) async fn on_one(self, endpoint: Endpoint, fencing: Fencing) -> Result<Store> {
        let link = Link::new(endpoint);
        link.live().await.map_err(|cause| link.failed(Operation::Connect, cause))?;
        let channel = link::own_channel(&self.settings.prefix, &self.client.id);
        let keys = Keys::new(&self.settings.prefix);
        Ok(self.store(Servers::One { link: Box::new(link), channel }, keys, fencing))
    }

    /// The store in a cluster.
    ///
    /// # Errors
    /// If it can't be reached, or used.
    pub(crate) async fn in_cluster(self) -> Result<Store> {
        let nodes = Nodes::connect(self.backend, self.settings.clone(), self.client.clone()).await?;
        let keys = Keys::bucketed(&self.settings.prefix);
        // A replica whose clock is behind may become a primary.
        Ok(self.store(Servers::Cluster(nodes), keys, Fencing::WhileRunning))
    }

    fn store(self, servers: Servers, keys: Keys, fencing: Fencing) -> Store {
        let mut capabilities = Capabilities::new(self.backend, TTL);
        capabilities.reach = Reach::Machines;
        capabilities.wake = WakeUp::Pushed;
        capabilities.first_step = FirstStep::Thread;
        capabilities.fencing = fencing;
        let shared = Shared {
            capabilities,
            hub: self.hub,
            scripts: Arc::new(Scripts::new(keys)),
            break_channel: link::break_channel(&self.settings.prefix),
            command_timeout: self.settings.command_timeout,
            late_claims: Mutex::default(),
        };
        let server = Server { shared: Arc::new(shared), servers, callers: PerRuntime::default() };
        Store::inspectable(Arc::new(server)).alerting(self.client.alerts)
    }
}

/// The locks of one server or of a cluster, on the connections of one runtime.
struct Server {
    shared: Arc<Shared>,
    servers: Servers,
    /// The same on connections of the callers' runtimes.
    callers: PerRuntime<Self>,
}

/// What a store has whatever the connection.
struct Shared {
    capabilities: Capabilities,
    hub: Arc<Hub>,
    scripts: Arc<Scripts>,
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
        f.debug_struct("Redis").field("servers", &self.servers).finish_non_exhaustive()
    }
}

impl Server {
    async fn call<'s>(
        &self,
        name: &LockName,
        operation: Operation,
        timeout: Duration,
        call: &'s (dyn Fn(&Peer) -> ScriptInvocation<'s> + Sync),
    ) -> Reply {
        self.servers.call(name, operation, timeout, Call::Script(call), false).await
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
        let channel = self.servers.channel(&request.name);
        let invoke = |peer: &Peer| {
            // Right before it is sent, on the connection to the server whose clock it is.
            let expires = peer.clock.expiry_us(timeout + VALIDITY).unwrap_or(i64::MAX);
            expires_us.fetch_max(expires, Ordering::Relaxed);
            let mut call = self.shared.scripts.call(&self.shared.scripts.claim, &request.name);
            call.arg(&id).arg(request.mode.bit()).arg(request.mode.conflicts());
            call.arg(in_micros(request.ttl)).arg(place_ttl).arg(&*channel).arg(ticket);
            call.arg(request.owner.as_str()).arg(label).arg(expires);
            call
        };
        let mut unanswered =
            Unanswered { server: self, request, expires_us: &expires_us, is_answered: false };
        let Reply { outcome, may_come_late, peer, .. } = self
            .servers
            .call(&request.name, Operation::Claim, timeout, Call::Script(&invoke), place_ttl > 0)
            .await;
        unanswered.is_answered = !may_come_late;
        drop(unanswered);
        let reply: [i64; 5] = self.servers.read(Operation::Claim, outcome?)?;
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
                    return Err(self.servers.unexpected(Operation::Renew, "an unknown outcome of a renewal"));
                }
            },
        })
    }

    /// Extends what `requests` have in a cluster. The outcome for a request whose node does not reply is unknown; it is an error if
    /// that is so for all of them.
    async fn keep_alive_in(
        &self,
        nodes: &Arc<Nodes>,
        requests: &[Arc<Request>],
        longest: Duration,
    ) -> Result<Vec<KeepAlive>> {
        let shortest = requests.iter().map(|request| self.timeout(request)).min().unwrap_or(longest);
        let replies = nodes.keep_alive(&self.shared.scripts, requests, [shortest, longest]).await;
        let (mut failed, mut known) = (None, 0);
        let outcomes = requests.iter().zip(replies).map(|(request, reply)| {
            Ok(match reply {
                Ok(reply) => {
                    known += 1;
                    self.kept(request, &reply)?
                }
                Err(error) => {
                    failed.get_or_insert(error);
                    KeepAlive::Unknown
                }
            })
        });
        let outcomes = outcomes.collect::<Result<Vec<_>>>()?;
        match failed {
            Some(error) if known == 0 => Err(error),
            Some(error) => {
                let unknown = outcomes.len() - known;
                tracing::warn!(unknown, %error, "some renewals of a batch are unknown, retrying these");
                Ok(outcomes)
            }
            None => Ok(outcomes),
        }
    }

    fn entry(&self, operation: Operation, entry: EntryParts) -> Result<Entry> {
        let (token, mode, age, left, owner, label, notice) = entry;
        let unexpected = || self.servers.unexpected(operation, "an entry of a lock that makes no sense");
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
        // A node of a cluster follows from the lock, so a runtime would need a connection to each of them.
        let Servers::One { link, channel } = &self.servers else { return None };
        // This connection receives the grants of those who wait, and keeps the holds alive. After a failover, or behind an address that
        // leads elsewhere by now, a connection that is late to follow would grant locks at another server.
        let run = link.run()?;
        let is_usable = |caller: &Self| matches!(&caller.servers, Servers::One { link, .. } if link.run().as_ref() == Some(&run));
        let open = || {
            let (shared, endpoint, channel) = (self.shared.clone(), link.endpoint().clone(), channel.clone());
            async {
                let link = Box::new(Link::open_another(endpoint).await?);
                Ok(Self { shared, servers: Servers::One { link, channel }, callers: PerRuntime::default() })
            }
        };
        self.callers.get(is_usable, open).map(|caller| caller as _)
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
                    let negative = || self.servers.unexpected(Operation::Claim, "a negative token");
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
                _ => return Err(self.servers.unexpected(Operation::Claim, "neither a grant nor a place")),
            }
        }
        Err(self.servers.failed(Operation::Claim, crate::error::Cause::TimedOut(self.timeout(request))))
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
        let link = match &self.servers {
            Servers::One { link, .. } => link,
            Servers::Cluster(nodes) => return self.keep_alive_in(nodes, requests, timeout).await,
        };
        let invoke = |_: &Peer| self.shared.scripts.keep_alive(requests);
        let reply = link.call(Operation::Renew, timeout, Call::Script(&invoke)).await.outcome?;
        let replies: Vec<Value> = link.read(Operation::Renew, reply)?;
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
        let reply = self.call(&request.name, Operation::Release, self.timeout(request), &invoke).await;
        let value = reply.outcome?;
        if late.is_some() {
            self.late_claims().remove(&request.id);
        }
        if let Some(reason) = broken(&value) {
            return Ok(Release::Lost(reason));
        }
        Ok(match self.servers.read(Operation::Release, value)? {
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
        let reply = self.call(name, Operation::Inspect, INSPECT_TIMEOUT, &invoke).await.outcome?;
        let (holders, waiters): (Vec<EntryParts>, Vec<EntryParts>) =
            self.servers.read(Operation::Inspect, reply)?;
        let holders = self.entries(Operation::Inspect, holders)?;
        Ok(LockStatus::new(name.clone(), holders, self.entries(Operation::Inspect, waiters)?))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        let names = self.servers.in_use(&self.shared.scripts.keys, "hq", prefix).await?;
        keys::in_use_of(self, names).await
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        let notice = order.notice.to_text();
        let invoke = |_: &Peer| {
            let mut call = self.shared.scripts.call(&self.shared.scripts.break_lock, name);
            call.arg(name.as_str()).arg(&notice).arg(u8::from(order.force)).arg(&self.shared.break_channel);
            call
        };
        let reply = self.call(name, Operation::Break, INSPECT_TIMEOUT, &invoke).await.outcome?;
        let holders = self.servers.read(Operation::Break, reply)?;
        self.entries(Operation::Break, holders)
    }
}
