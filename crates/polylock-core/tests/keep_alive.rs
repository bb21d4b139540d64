//! The effects of the outcomes of keep-alives, and the time from which the lease of a grant counts.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, Clock, Fault, FencingToken, Grant, KeepAlive, Locks, LostReason,
    Mode, Moment, Operation, QueuePosition, Release, Request, Result, Store, SystemClock, Unavailable, Wake,
    memory,
};
use tokio::sync::watch;

const TTL: Duration = Duration::from_millis(2400);

fn locks(backend: Arc<dyn Backend>) -> Locks {
    Locks::new(Store::new(backend))
}

/// The in-memory store with keep-alives of its own.
#[derive(Debug)]
struct Altered<K> {
    inner: Arc<dyn Backend>,
    keep_alives: K,
}

/// The behaviour of the keep-alives of `store`.
#[async_trait]
trait KeepAlives: std::fmt::Debug + Send + Sync + 'static {
    async fn execute(&self, store: &dyn Backend, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>>;

    /// Returns an error if a release is not to be carried out now.
    fn admit_release(&self) -> Result<()> {
        Ok(())
    }
}

fn altered<K>(keep_alives: K) -> Arc<Altered<K>> {
    Arc::new(Altered { inner: memory::connect().backend, keep_alives })
}

#[async_trait]
impl<K: KeepAlives> Backend for Altered<K> {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        self.inner.claim(request).await
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        self.inner.wait(request).await
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        self.keep_alives.execute(&*self.inner, requests).await
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.keep_alives.admit_release()?;
        self.inner.release(request).await
    }
}

/// Every other keep-alive is not carried out and has no result.
#[derive(Debug, Default)]
struct Inconclusive(AtomicU32);

#[async_trait]
impl KeepAlives for Inconclusive {
    async fn execute(&self, store: &dyn Backend, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        if self.0.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            return Ok(vec![KeepAlive::Unknown; requests.len()]);
        }
        store.keep_alive(requests).await
    }
}

#[tokio::test]
async fn a_keep_alive_without_a_result_is_retried() {
    let inconclusive = altered(Inconclusive::default());
    let locks = locks(inconclusive.clone());
    let guard = locks.lock("a").ttl(TTL).acquire().await.unwrap();
    let waiter = tokio::spawn(locks.lock("a").ttl(TTL).acquire());
    let end = SystemClock.now() + 3 * TTL;
    while SystemClock.now() < end {
        guard.ensure_held().unwrap();
        SystemClock.sleep_until(SystemClock.now() + TTL / 20).await;
    }
    assert!(inconclusive.keep_alives.0.load(Ordering::Relaxed) >= 4);
    assert!(!waiter.is_finished());
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

/// Keep-alives are carried out and not confirmed, and releases are refused until `admits_from`.
#[derive(Debug)]
struct Unconfirmed {
    carried_out: watch::Sender<bool>,
    admits_from: Moment,
}

#[async_trait]
impl KeepAlives for Unconfirmed {
    async fn execute(&self, store: &dyn Backend, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        store.keep_alive(requests).await?;
        self.carried_out.send_replace(true);
        Ok(vec![KeepAlive::Unknown; requests.len()])
    }

    fn admit_release(&self) -> Result<()> {
        if SystemClock.now() >= self.admits_from {
            return Ok(());
        }
        Err(Unavailable::new("memory", Operation::Release, Fault::Temporary, "refused").into())
    }
}

/// 1. A renewal is carried out, and the holder is not told: its deadline stays where it was.
/// 2. The holder releases the lock. The store refuses that until after the deadline.
/// 3. The lease of the renewal has not ended. The next attempt releases the lock, which nobody else could get before.
#[tokio::test]
async fn a_release_is_repeated_until_the_lease_of_an_unconfirmed_renewal_has_ended() {
    // Between the deadline and the end of the renewal's lease, a third later, there is time for attempts on a busy machine.
    let ttl = 3 * TTL;
    let admits_from = SystemClock.now() + ttl + TTL / 6;
    let store = altered(Unconfirmed { carried_out: watch::Sender::default(), admits_from });
    let locks = locks(store.clone());
    let guard = locks.lock("a").ttl(ttl).acquire().await.unwrap();
    store.keep_alives.carried_out.subscribe().wait_for(|it| *it).await.unwrap();
    guard.release().await.unwrap();
    assert!(locks.lock("a").try_acquire().await.unwrap().is_some());
}

/// A program may adopt a hold that it still has. Each of the two guards is renewed, and told of the end of the hold.
#[tokio::test]
async fn a_hold_that_a_process_has_twice_is_renewed_and_lost_for_both_guards() {
    let locks = Locks::new(memory::connect());
    let first = locks.lock("a").ttl(TTL).acquire().await.unwrap();
    let second = locks.adopt(&first.handle().unwrap()).await.unwrap();
    let in_time = |work| tokio::time::timeout(2 * TTL, work);
    let renewed = [first.renewed(), second.renewed()].map(in_time);
    for renewed in renewed {
        assert!(renewed.await.unwrap().is_some());
    }
    second.release().await.unwrap();
    assert_eq!(tokio::time::timeout(2 * TTL, first.lost()).await, Ok(LostReason::Gone));
}

/// No keep-alive has a result.
#[derive(Debug)]
struct Unanswered;

#[async_trait]
impl KeepAlives for Unanswered {
    async fn execute(&self, _: &dyn Backend, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        Ok(vec![KeepAlive::Unknown; requests.len()])
    }
}

#[tokio::test]
async fn a_server_does_not_release_a_hold_that_its_client_renews_elsewhere() {
    let store = altered(Unanswered);
    let locks = Locks::builder(Store::new(store.clone())).holds_outlive_process().build();
    let guard = locks.lock("a").ttl(TTL).acquire().await.unwrap();
    let mut request = Request::new(guard.name().clone(), Mode::Exclusive, TTL);
    request.id = guard.handle().unwrap().id();
    let elsewhere = [Arc::new(request)];
    let mut lost = Box::pin(guard.lost());
    let renew_until = async |end: Moment, lost: &mut (dyn Future<Output = LostReason> + Unpin)| loop {
        let renewed = store.inner.keep_alive(&elsewhere).await.unwrap();
        assert!(matches!(renewed[..], [KeepAlive::Held { .. }]), "{renewed:?}");
        if SystemClock.now() >= end {
            return None;
        }
        let reason = SystemClock.before(SystemClock.now() + TTL / 20, &mut *lost).await;
        if reason.is_some() {
            return reason;
        }
    };
    assert_eq!(renew_until(Moment::NEVER, &mut lost).await, Some(LostReason::DeadlineReached));
    drop(guard);
    let mut never = std::future::pending();
    renew_until(SystemClock.now() + TTL / 2, &mut never).await;
}

#[tokio::test]
async fn a_server_does_not_release_a_broken_lock_before_its_client_does() {
    let locks = Locks::builder(memory::connect()).holds_outlive_process().build();
    let guard = locks.lock("a").ttl(TTL).acquire().await.unwrap();
    locks.break_lock("a").await.unwrap();
    guard.lost().await;
    drop(guard);
    // The holder may work until its lease ends.
    assert!(locks.lock("a").wait(TTL / 4).acquire().await.is_err());
}

/// A store that keeps a request in its queue, and reports a grant with a short lease long after the claim.
#[derive(Debug)]
struct Slow {
    capabilities: Capabilities,
    /// The time at which the notification is delivered.
    notified_at: Moment,
    /// The time at which the last claim or keep-alive was received that found the request in the queue.
    queued_at: Mutex<Moment>,
}

impl Slow {
    fn notifying_after(delay: Duration) -> Arc<Self> {
        let mut capabilities = memory::connect().backend.capabilities().clone();
        capabilities.backend = "slow";
        let now = SystemClock.now();
        Arc::new(Self { capabilities, notified_at: now + delay, queued_at: Mutex::new(now) })
    }
}

#[async_trait]
impl Backend for Slow {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn claim(&self, _: &Request) -> Result<ClaimOutcome> {
        *self.queued_at.lock().unwrap() = SystemClock.now();
        Ok(ClaimOutcome::Queued(QueuePosition::new(None, QueuePosition::MAX_RECHECK)))
    }

    async fn wait(&self, _: &Request) -> Result<Wake> {
        SystemClock.sleep_until(self.notified_at).await;
        Ok(Wake::Granted(Grant::new(FencingToken::new(7).unwrap(), TTL)))
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        if SystemClock.now() >= self.notified_at {
            return Ok(vec![KeepAlive::Held { lease: TTL, terms: None }; requests.len()]);
        }
        *self.queued_at.lock().unwrap() = SystemClock.now();
        Ok(vec![KeepAlive::Queued; requests.len()])
    }

    async fn release(&self, _: &Request) -> Result<Release> {
        Ok(Release::Released)
    }
}

/// 1. A request is queued, and its entry is kept alive for longer than its TTL.
/// 2. The store grants the lock, with a lease from then, and its notification is delivered at some time after that.
///
/// The grant came after the last reply with a queue position, and may have come right after it.
#[tokio::test]
async fn the_lease_of_a_notified_grant_counts_from_the_last_keep_alive_of_the_queue_entry() {
    // Between two keep-alives, which are a third of the TTL apart: the next one renews the hold.
    let slow = Slow::notifying_after(11 * TTL / 6);
    let guard = locks(slow.clone()).lock("a").ttl(TTL).acquire().await.unwrap();
    assert_eq!(guard.fencing_token().get(), 7);
    let latest = *slow.queued_at.lock().unwrap() + TTL;
    assert!(guard.deadline() <= latest, "{:?} after {latest:?}", guard.deadline());
}

/// 1. A request is queued. The first keep-alive of its entry is due a third of the TTL after its claim.
/// 2. Before that, its grant is delivered, with a lease as long as that of the entry. Its first keep-alive is due at the same time.
/// 3. The request leaves the list of waiters, and its hold stays in the list of holds.
#[tokio::test]
async fn a_hold_with_a_keep_alive_due_at_the_time_of_that_of_its_queue_entry_is_renewed() {
    let guard = locks(Slow::notifying_after(TTL / 10)).lock("a").ttl(TTL).acquire().await.unwrap();
    let renewed = SystemClock.before(SystemClock.now() + 10 * TTL, guard.renewed()).await;
    assert!(renewed.flatten().is_some(), "{:?}", guard.ensure_held());
    guard.release().await.unwrap();
}

/// The reply to the first keep-alive that finds a request in the queue is delayed.
#[derive(Debug, Default)]
struct DelayedReply {
    /// True once there is such a reply; `delivered` is true once it may be delivered.
    held_back: watch::Sender<bool>,
    delivered: watch::Sender<bool>,
}

#[async_trait]
impl KeepAlives for DelayedReply {
    async fn execute(&self, store: &dyn Backend, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        let outcomes = store.keep_alive(requests).await?;
        if outcomes.contains(&KeepAlive::Queued) && !self.held_back.send_replace(true) {
            self.delivered.subscribe().wait_for(|delivered| *delivered).await.unwrap();
        }
        Ok(outcomes)
    }
}

/// 1. A keep-alive finds a request in the queue, and its reply is delayed.
/// 2. The request is granted the lock, and its caller has the guard.
/// 3. The reply arrives. It reports the state before the grant.
#[tokio::test]
async fn a_reply_from_the_time_in_the_queue_does_not_end_a_hold() {
    let store = altered(DelayedReply::default());
    let locks = locks(store.clone());
    let holder = locks.lock("a").ttl(TTL).acquire().await.unwrap();
    let waiter = tokio::spawn(locks.lock("a").ttl(TTL).acquire());
    store.keep_alives.held_back.subscribe().wait_for(|held_back| *held_back).await.unwrap();
    holder.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    store.keep_alives.delivered.send_replace(true);
    for _ in 0..2 {
        assert!(guard.renewed().await.is_some(), "{:?}", guard.ensure_held());
    }
    guard.release().await.unwrap();
}

/// The replies to the first keep-alives that find a request in the queue are delayed.
#[derive(Debug, Default)]
struct DelayedReplies {
    /// The times at which such keep-alives were received.
    received: watch::Sender<Vec<Moment>>,
    delivered: watch::Sender<bool>,
}

impl DelayedReplies {
    /// Waits until `count` of them were received.
    async fn received(&self, count: usize) {
        self.received_after(Moment::default(), count).await;
    }

    /// Waits until `count` of them were received after `time`; returns their times.
    async fn received_after(&self, time: Moment, count: usize) -> Vec<Moment> {
        let later = |received: &Vec<Moment>| -> Vec<Moment> {
            received.iter().copied().filter(|at| *at > time).collect()
        };
        let mut changes = self.received.subscribe();
        let received = changes.wait_for(|received| later(received).len() >= count).await.unwrap();
        later(&received)
    }
}

#[async_trait]
impl KeepAlives for DelayedReplies {
    async fn execute(&self, store: &dyn Backend, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        let outcomes = store.keep_alive(requests).await?;
        if outcomes.contains(&KeepAlive::Queued) {
            self.received.send_modify(|received| received.push(SystemClock.now()));
            self.delivered.subscribe().wait_for(|delivered| *delivered).await.unwrap();
        }
        Ok(outcomes)
    }
}

/// 1. A waiter sends a keep-alive every third of its lease, and receives no replies.
/// 2. All replies arrive at once. Each is older than a third of the lease, except the last one.
/// 3. The waiter continues to send a keep-alive every third of its lease.
#[tokio::test]
async fn replies_that_arrive_together_cause_no_burst_of_keep_alives() {
    const DELAYED: usize = 6;
    const LATER: usize = 5;
    let lease = TTL / 2;
    let store = altered(DelayedReplies::default());
    let locks = locks(store.clone());
    let holder = locks.lock("a").ttl(100 * lease).acquire().await.unwrap();
    let waiter = tokio::spawn(locks.lock("a").ttl(lease).acquire());
    store.keep_alives.received(DELAYED).await;
    let ended = SystemClock.now();
    store.keep_alives.delivered.send_replace(true);
    let took = store.keep_alives.received_after(ended, LATER).await[LATER - 1].since(ended);
    let (steady, count) = (lease / 3, u32::try_from(LATER).unwrap());
    assert!(took > steady * count / 2, "{LATER} keep-alives in {took:?}, one each {steady:?} expected");
    holder.release().await.unwrap();
    // On a busy machine, its short lease may end before a release.
    drop(waiter.await.unwrap().unwrap());
}

#[tokio::test]
async fn a_hold_that_stops_its_renewals_lasts_until_its_deadline_or_the_next_renewal() {
    let locks = Locks::new(memory::connect());
    let guard = locks.lock("n").ttl(TTL).acquire().await.unwrap();
    guard.stop_renewals();
    let first = guard.deadline();
    SystemClock.sleep_until(first - TTL / 4).await;
    assert_eq!(guard.deadline(), first, "it was renewed");
    let second = guard.renew().await.unwrap();
    assert!(second > first + TTL / 2 && guard.deadline() == second);
    let lost = SystemClock.before(second + TTL, guard.lost()).await;
    assert_eq!(lost, Some(LostReason::DeadlineReached), "it was renewed again");
    assert!(SystemClock.now() >= second && guard.renew().await.unwrap_err().lost().is_some());
    locks.lock("n").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_renewal_is_repeated_until_it_has_a_result() {
    let locks = locks(altered(Inconclusive::default()));
    let guard = locks.lock("n").ttl(TTL).acquire().await.unwrap();
    guard.stop_renewals();
    let first = guard.deadline();
    assert!(guard.renew().await.unwrap() > first);
    guard.release().await.unwrap();
    let guard = locks.lock("n").ttl(TTL).max_hold(TTL / 2).acquire().await.unwrap();
    assert_eq!(guard.renew().await.unwrap(), guard.deadline(), "it has reached its longest time");
}
