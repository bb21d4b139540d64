//! The client of the [queue server](super::queue_server): a store like those of Redis and PostgreSQL.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    Backend, BreakOrder, Capabilities, ClaimOutcome, Clock, Conversion, ConversionOutcome, Convert, Entry,
    Error, Fault, FencingToken, Grant, Inspect, KeepAlive, LockName, LockStatus, Moment, Notifications,
    Operation, Park, PerRuntime, QueuePosition, RaiseToken, Release, Request, RequestId, Result, SystemClock,
    Unavailable, Wake, requests::RequestTable, server_clock::ServerClock, sync::lock, time_limit,
    wakeups::Wakeups,
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::{
    plan::Planted,
    queue_call::{Call, Kept, Reply, Subscriber},
};

/// The name of the store.
const NAME: &str = "simulated-queue";

/// The interval at which a waiter claims again although it is notified.
const RECHECK: Duration = Duration::from_millis(500);

/// The time for which a claim stays valid at the server after the client has stopped waiting for the reply.
const VALIDITY: Duration = Duration::from_secs(1);

/// The longest time limit for a reply.
const LONGEST_TIMEOUT: Duration = Duration::from_millis(500);

/// The receiver of the reply to a call, with the server's clock in microseconds.
pub type ReplySender = UnboundedSender<(i64, Reply)>;

/// The server, behind the network.
pub trait Endpoint: fmt::Debug + Send + Sync {
    /// Sends `call` on `link`.
    fn call(self: Arc<Self>, link: usize, call: Call, reply: ReplySender);
}

/// The store as one process uses it.
#[derive(Debug)]
pub struct QueueClient {
    context: Arc<Context>,
    callers: PerRuntime<Self>,
}

#[derive(Debug)]
struct Context {
    server: Arc<dyn Endpoint>,
    subscriber: Subscriber,
    capabilities: Capabilities,
    clock: ServerClock,
    /// The requests with a claim of which a copy may still be delivered.
    late_claims: Mutex<RequestTable<LateClaim>>,
    planted: Option<Planted>,
    /// The requests in the queue, for the planted bug.
    queued: Mutex<BTreeSet<RequestId>>,
}

/// A claim of which a copy may still be delivered.
#[derive(Debug, Default)]
struct LateClaim {
    /// Its expiry by the server's clock.
    expires_us: i64,
    /// True if core does not know of the copy: it knows of those of claims without a reply.
    is_reported: bool,
}

/// The time limit for a reply about `request`.
fn timeout(request: &Request) -> Duration {
    (request.ttl / 3).max(Duration::from_millis(50)).min(LONGEST_TIMEOUT)
}

impl Context {
    /// Returns the time from which a call about `request` that is sent now has no effect.
    fn expiry_us(&self, request: &Request) -> i64 {
        self.expiry_within(timeout(request) + VALIDITY)
    }

    /// Returns the time from which a call that is sent now has no effect: after `limit`, or when its caller gives it up.
    fn expiry_within(&self, limit: Duration) -> i64 {
        let limit = match self.planted {
            Some(Planted::ServiceLateMessage) => limit,
            _ => time_limit::within(limit),
        };
        self.clock.expiry_us(limit).unwrap_or(i64::MAX)
    }
}

impl QueueClient {
    /// Opens the store of `server` in the process at the end of `link`, in its life `life`.
    #[must_use]
    pub fn open(server: Arc<dyn Endpoint>, (link, life): (usize, u64), planted: Option<Planted>) -> Self {
        let ttl = Duration::from_millis(100)..=Duration::from_secs(60);
        let mut capabilities = Capabilities::new(NAME, ttl);
        capabilities.notifications = Notifications::Pushed;
        let context = Context {
            server,
            subscriber: Subscriber { link, life, wakeups: Arc::new(Wakeups::default()) },
            capabilities,
            clock: ServerClock::default(),
            late_claims: Mutex::default(),
            planted,
            queued: Mutex::default(),
        };
        Self { context: Arc::new(context), callers: PerRuntime::default() }
    }

    /// Waits for the first reply, which carries the server's clock: from then on, every claim expires.
    pub async fn connect(&self) {
        while self.call(Operation::Connect, LONGEST_TIMEOUT, || Call::Draw).await.is_err() {}
    }

    /// Returns the registry of the process's waiters.
    #[must_use]
    pub fn wakeups(&self) -> Arc<Wakeups> {
        self.context.subscriber.wakeups.clone()
    }

    /// Sends a call, and once more if there is no reply soon. Returns the reply, and true if the other copy may be executed later.
    async fn call(
        &self,
        operation: Operation,
        timeout: Duration,
        call: impl Fn() -> Call + Send + Sync,
    ) -> Result<(Reply, bool)> {
        let context = &self.context;
        let (sender, mut replies) = unbounded_channel();
        let sent = SystemClock.now();
        let mut copies = 0;
        for by in [sent + timeout / 3, sent + timeout] {
            copies += 1;
            context.server.clone().call(context.subscriber.link, call(), sender.clone());
            if let Some(Some((clock_us, reply))) = SystemClock.before(by, replies.recv()).await {
                context.clock.observe(sent, clock_us);
                return match reply {
                    Reply::Refused => Err(unavailable(operation, "refused")),
                    reply => Ok((reply, copies > 1)),
                };
            }
        }
        Err(unavailable(operation, "no reply in time"))
    }

    /// Draws a token, for the planted bug.
    async fn drawn_before(&self) -> Result<Option<u64>> {
        if self.context.planted != Some(Planted::EarlyToken) {
            return Ok(None);
        }
        match self.call(Operation::Claim, LONGEST_TIMEOUT, || Call::Draw).await? {
            (Reply::Drawn(number), _) => Ok(Some(number)),
            _ => Ok(None),
        }
    }

    /// Returns the lease that core is to count from `sent`.
    fn lease(&self, sent: Moment, lease: Duration) -> Duration {
        match self.context.planted {
            Some(Planted::ReplyDeadline) => lease + SystemClock.now().since(sent),
            _ => lease,
        }
    }

    fn relies_on_notification(&self, request: &Request) -> bool {
        self.context.planted == Some(Planted::NoRecheck) && lock(&self.context.queued).contains(&request.id)
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

fn unavailable(operation: Operation, cause: &'static str) -> Error {
    Unavailable::new(NAME, operation, Fault::Temporary, cause).into()
}

/// A claim without a reply yet. Dropping it records that the claim may be delivered late.
struct PendingClaim<'a> {
    context: &'a Context,
    request: &'a Request,
    expires_us: &'a AtomicI64,
    is_settled: bool,
    is_answered: bool,
}

impl Drop for PendingClaim<'_> {
    fn drop(&mut self) {
        if !self.is_settled {
            let now = SystemClock.now();
            let until = now + 2 * (timeout(self.request) + VALIDITY);
            let expires_us = self.expires_us.load(Ordering::Relaxed);
            let mut late_claims = lock(&self.context.late_claims);
            let late = late_claims.update(self.request.id, now, until, LateClaim::default);
            late.expires_us = expires_us.max(late.expires_us);
            late.is_reported |= self.is_answered;
        }
    }
}

#[async_trait]
impl Backend for QueueClient {
    fn capabilities(&self) -> &Capabilities {
        &self.context.capabilities
    }

    fn here(&self) -> Option<Arc<dyn Backend>> {
        let context = self.context.clone();
        let open = || async { Ok(Self { context, callers: PerRuntime::default() }) };
        self.callers.get(|_| true, open).map(|caller| caller as _)
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        if self.relies_on_notification(request) {
            return Ok(ClaimOutcome::Queued(QueuePosition::new(None, QueuePosition::MAX_RECHECK)));
        }
        let context = &*self.context;
        let waiter = context.subscriber.wakeups.register(request);
        let (shared, ticket, token) =
            (Arc::new(request.clone()), waiter.ticket(), self.drawn_before().await?);
        let (sent, expires_us) = (SystemClock.now(), AtomicI64::new(0));
        let call = || {
            let expires = context.expiry_us(request);
            expires_us.fetch_max(expires, Ordering::Relaxed);
            let (request, subscriber) = (shared.clone(), context.subscriber.clone());
            let earliest_us = context.clock.earliest_us().unwrap_or_default();
            Call::Claim { request, subscriber, ticket, earliest_us, expires_us: expires, token }
        };
        let (is_settled, is_answered, expires_us) = (false, false, &expires_us);
        let mut pending = PendingClaim { context, request, expires_us, is_settled, is_answered };
        let (reply, may_execute_late) = self.call(Operation::Claim, timeout(request), call).await?;
        (pending.is_settled, pending.is_answered) = (!may_execute_late, true);
        drop(pending);
        match reply {
            Reply::Granted(grant) => {
                waiter.granted();
                let lease = self.lease(sent, grant.lease);
                Ok(ClaimOutcome::Granted(Grant::new(grant.token, lease)))
            }
            Reply::Queued { position, ahead, left } => {
                waiter.queued_at(position);
                if request.queues {
                    lock(&context.queued).insert(request.id);
                }
                let recheck = left.min(RECHECK).min(request.queue_lease() / 3);
                let late_claims = lock(&context.late_claims);
                let is_late = late_claims.get(&request.id).is_some_and(|late| late.is_reported);
                let is_reported = context.planted != Some(Planted::UnreportedCopy);
                let position = QueuePosition::new(u32::try_from(ahead).ok(), recheck);
                Ok(ClaimOutcome::Queued(position.may_be_granted_late(is_late && is_reported)))
            }
            _ => Err(unavailable(Operation::Claim, "the claim has expired")),
        }
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        let wake = self.context.subscriber.wakeups.notified(request.id).await;
        if let Wake::Granted(_) = wake {
            lock(&self.context.queued).remove(&request.id);
        }
        Ok(wake)
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        let Some(limit) = requests.iter().map(|request| timeout(request)).max() else {
            return Ok(Vec::new());
        };
        let sent = SystemClock.now();
        let call = || Call::KeepAlive(requests.to_vec());
        let (Reply::Kept(kept), _) = self.call(Operation::Renew, limit, call).await? else {
            return Err(unavailable(Operation::Renew, "unexpected reply"));
        };
        let outcome = |(request, kept): (&Arc<Request>, Kept)| match kept {
            Kept::Held(..) if self.relies_on_notification(request) => KeepAlive::Queued,
            Kept::Held(left, terms) => KeepAlive::Held { lease: self.lease(sent, left), terms: Some(terms) },
            Kept::Queued => KeepAlive::Queued,
            Kept::Lost(reason) => KeepAlive::Lost(reason),
        };
        Ok(requests.iter().zip(kept).map(outcome).collect())
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        let context = &*self.context;
        context.subscriber.wakeups.remove(request.id);
        lock(&context.queued).remove(&request.id);
        let late_us = lock(&context.late_claims).get(&request.id).map(|late| late.expires_us);
        let shared = Arc::new(request.clone());
        let call = || {
            let (mut refused_us, mut expires_us) = (late_us.unwrap_or(0), i64::MAX);
            if request.outlives_process {
                // Another process may have sent a claim just before, and may renew the hold after this release was given up.
                expires_us = context.expiry_us(request);
                if context.planted != Some(Planted::ForgottenCopies) {
                    refused_us = refused_us.max(expires_us + micros(time_limit::LONGEST));
                }
            }
            Call::Release { request: shared.clone(), refused_us, expires_us }
        };
        let (reply, was_repeated) = self.call(Operation::Release, timeout(request), call).await?;
        if let Reply::Expired = reply {
            return Err(unavailable(Operation::Release, "the release has expired"));
        }
        if late_us.is_some() {
            lock(&context.late_claims).remove(&request.id);
        }
        Ok(match reply {
            Reply::Lost(reason) if !was_repeated => Release::Lost(reason),
            _ => Release::Released,
        })
    }

    fn request_records(&self) -> Option<usize> {
        Some(lock(&self.context.late_claims).len())
    }
}

#[async_trait]
impl Park for QueueClient {
    async fn park(&self, request: &Request, token: FencingToken, left: Duration) -> Result<Release> {
        let (context, shared) = (&*self.context, Arc::new(request.clone()));
        let late_us = lock(&context.late_claims).get(&request.id).map(|late| late.expires_us);
        let call = || {
            let expires_us = context.expiry_us(request);
            let may_arrive = late_us.is_some() || request.outlives_process;
            // Also after the end of the hold.
            let refused = if may_arrive { left + time_limit::LONGEST } else { Duration::ZERO };
            Call::Park { request: shared.clone(), token, left, refused, expires_us }
        };
        match self.call(Operation::Renew, timeout(request), call).await?.0 {
            Reply::Ended => Ok(Release::Released),
            Reply::Lost(reason) => Ok(Release::Lost(reason)),
            _ => Err(unavailable(Operation::Renew, "the call has expired")),
        }
    }
}

#[async_trait]
impl Convert for QueueClient {
    async fn convert(&self, request: &Request, conversion: &Conversion) -> Result<ConversionOutcome> {
        let shared = Arc::new(request.clone());
        let call = || Call::Convert(shared.clone(), *conversion);
        match self.call(Operation::Convert, timeout(request), call).await?.0 {
            Reply::Converted(token) => Ok(ConversionOutcome::Converted(token)),
            Reply::OtherToken(token) => Ok(ConversionOutcome::OtherToken(token)),
            Reply::Lost(reason) => Ok(ConversionOutcome::Lost(reason)),
            _ => Err(unavailable(Operation::Convert, "unexpected reply")),
        }
    }
}

#[async_trait]
impl RaiseToken for QueueClient {
    async fn raise(&self, request: &Request, to: FencingToken) -> Result<FencingToken> {
        // The reply to a second copy may count `to` as drawn, which costs another number and no promise.
        match self.call(Operation::Claim, timeout(request), || Call::Raise(to)).await?.0 {
            Reply::Drawn(last) => FencingToken::new(last)
                .ok_or_else(|| unavailable(Operation::Claim, "no token was drawn before the raise")),
            _ => Err(unavailable(Operation::Claim, "unexpected reply")),
        }
    }
}

#[async_trait]
impl Inspect for QueueClient {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        let mut locks = self.list(name.as_str()).await?;
        locks.retain(|lock| lock.name == *name);
        Ok(locks.pop().unwrap_or_else(|| LockStatus::new(name.clone(), Vec::new(), Vec::new())))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        let call = || Call::List(prefix.to_owned());
        match self.call(Operation::Inspect, LONGEST_TIMEOUT, call).await?.0 {
            Reply::Locks(locks) => Ok(locks),
            _ => Err(unavailable(Operation::Inspect, "unexpected reply")),
        }
    }

    fn lists_semaphores(&self) -> bool {
        true
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        let context = &*self.context;
        let call = || {
            let expires_us = context.expiry_within(LONGEST_TIMEOUT + VALIDITY);
            Call::Break { name: name.clone(), order: order.clone(), expires_us }
        };
        match self.call(Operation::Break, LONGEST_TIMEOUT, call).await?.0 {
            Reply::Locks(locks) => Ok(locks.into_iter().flat_map(|lock| lock.holders).collect()),
            _ => Err(unavailable(Operation::Break, "the break has expired")),
        }
    }
}
