//! Elections on the in-memory store: behaviour of core that the conformance suite does not reach.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    Backend, BreakOrder, Capabilities, ClaimOutcome, Clock, Entry, Fault, Inspect, KeepAlive, Leadership,
    LockName, LockStatus, Locks, Moment, Operation, Options, Order, OwnerId, Release, Request, Result, Store,
    SystemClock, Term, Unavailable, Wake, memory,
};
use polylock_testkit::{
    ManualClock,
    faults::{Flaky, InjectedFault, wrap},
};
use tokio::sync::mpsc;

const LIMIT: Duration = Duration::from_secs(20);

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let limit = SystemClock.now() + LIMIT;
    SystemClock.before(limit, future).await.unwrap_or_else(|| panic!("{what}: not within {LIMIT:?}"))
}

async fn until(what: &str, condition: impl Fn() -> bool + Send + Sync) {
    let wait = async {
        while !condition() {
            SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(1)).await;
        }
    };
    soon(what, wait).await;
}

/// Runs an election that sends each of its terms to the receiver, and leads until the term ends.
fn candidate(
    locks: &Locks,
    label: &str,
) -> (tokio::task::JoinHandle<Result<()>>, mpsc::UnboundedReceiver<Term>) {
    let (sender, terms) = mpsc::unbounded_channel();
    let election = locks.election("n").label(label);
    let run = election.run(async move |term: Term| {
        sender.send(term).unwrap();
        pending::<()>().await;
    });
    (tokio::spawn(run), terms)
}

async fn next(terms: &mut mpsc::UnboundedReceiver<Term>) -> Term {
    soon("the next term", terms.recv()).await.unwrap()
}

#[tokio::test]
async fn the_return_of_the_work_ends_the_election() {
    let locks = Locks::new(memory::connect());
    let output = soon("the election", locks.election("n").run(async |term| (term.is_leading(), term))).await;
    let (was_leading, term) = output.unwrap();
    assert!(was_leading && !term.is_leading());
    soon("the end of the term", term.ended()).await;
    assert!(locks.lock("n").try_acquire().await.unwrap().is_some());
    term.resign();
    assert!(!term.is_leading());
}

#[tokio::test]
async fn a_resignation_in_the_last_poll_of_the_work_counts() {
    let locks = Locks::new(memory::connect());
    let mut terms = 0;
    let election = locks.election("n").run(async |term: Term| {
        terms += 1;
        if terms < 3 {
            term.resign();
        }
        terms
    });
    assert_eq!(soon("the election", election).await.unwrap(), 3);
}

#[tokio::test]
async fn a_broken_leader_campaigns_behind_the_others() {
    let locks = Locks::new(memory::connect());
    let (first, mut terms_of_first) = candidate(&locks, "first");
    let term = next(&mut terms_of_first).await;
    let (second, mut terms_of_second) = candidate(&locks, "second");
    while locks.inspect("n").await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    let lost = term.lost();
    assert_eq!(locks.break_lock("n").await.unwrap().len(), 1);
    soon("the loss", lost).await;
    let after = next(&mut terms_of_second).await;
    assert!(after.fencing_token() > term.fencing_token() && !term.is_leading());
    // A candidate pauses before it campaigns again.
    while locks.inspect("n").await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    after.resign();
    assert!(next(&mut terms_of_first).await.is_leading());
    first.abort();
    assert!(next(&mut terms_of_second).await.is_leading());
    second.abort();
}

/// By default each of these acquisitions would be tried once.
#[tokio::test]
async fn a_candidate_waits_for_the_store_and_for_the_leader_without_a_limit() {
    let mut flaky = None;
    let store = wrap(memory::connect(), |inner| flaky.insert(Arc::new(Flaky::new(inner))).clone());
    let flaky = flaky.unwrap();
    let mut options = Options::default();
    (options.wait, options.outage) = (Some(Duration::ZERO), Duration::ZERO);
    let locks = Locks::builder(store).options(options).build();
    flaky.fail_next(Operation::Claim, InjectedFault::RequestLost, 5);
    let (leader, mut terms) = candidate(&locks, "leader");
    next(&mut terms).await;
    assert_eq!(flaky.failed(), 5);
    let (follower, mut terms) = candidate(&locks, "follower");
    while locks.inspect("n").await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    leader.abort();
    next(&mut terms).await;
    follower.abort();
}

#[tokio::test]
async fn a_permanent_fault_and_an_invalid_setting_end_the_election() {
    let mut flaky = None;
    let store = wrap(memory::connect(), |inner| flaky.insert(Arc::new(Flaky::new(inner))).clone());
    let locks = Locks::new(store);
    flaky.unwrap().fail_next(Operation::Claim, InjectedFault::Permanent, 1);
    let ended = soon("the election", locks.election("n").run(async |_| ())).await;
    assert!(ended.is_err_and(|error| !error.is_temporary()));
    assert!(locks.election("").run(async |_| ()).await.is_err());
    assert!(locks.election("n").label("a\nb").campaign().await.is_err());
    assert!(locks.election("").observe().await.is_err());
}

/// A store without a queue, as far as it declares.
#[derive(Debug)]
struct Unordered(Arc<dyn Backend>, Capabilities);

#[async_trait]
impl Backend for Unordered {
    fn capabilities(&self) -> &Capabilities {
        &self.1
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        self.0.claim(request).await
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        self.0.wait(request).await
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        self.0.keep_alive(requests).await
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.0.release(request).await
    }
}

/// The clock is a manual one, so the candidate can campaign again only after a pause by that clock.
#[tokio::test]
async fn without_a_queue_a_leader_that_resigns_lets_the_others_try_first() {
    let clock = ManualClock::new();
    let store = wrap(memory::connect(), |inner| {
        let mut capabilities = inner.capabilities().clone();
        capabilities.order = Order::Unordered;
        Arc::new(Unordered(inner, capabilities))
    });
    let locks = Locks::builder(store).clock(Arc::new(clock.clone())).build();
    let (leader, mut terms) = candidate(&locks, "leader");
    let began = clock.now();
    next(&mut terms).await.resign();
    while !locks.inspect("n").await.unwrap().is_free() {
        tokio::task::yield_now().await;
    }
    // Earlier timers of core fire, also those that it sets meanwhile. A leader would have a timer beyond the two seconds, too.
    let seconds = Duration::from_secs(2);
    let fire_before = |end: Moment| {
        let next = clock.next_wake();
        if let Some(early) = next.filter(|at| *at < end) {
            clock.advance(early.since(clock.now()));
        }
        next
    };
    until("a timer", || fire_before(began + seconds).is_some_and(|at| at >= began + seconds)).await;
    assert!(locks.lock("n").try_acquire().await.unwrap().is_some(), "the former leader campaigns");
    assert!(terms.try_recv().is_err());
    clock.advance(seconds);
    next(&mut terms).await;
    leader.abort();
}

/// Inspection that can fail.
#[derive(Debug)]
struct Unreadable(Arc<dyn Inspect>, AtomicBool);

#[async_trait]
impl Inspect for Unreadable {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        if self.1.load(Ordering::Relaxed) {
            let failed = Unavailable::new("memory", Operation::Inspect, Fault::Temporary, "it was unplugged");
            return Err(failed.into());
        }
        self.0.inspect(name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        self.0.list(prefix).await
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        self.0.break_lock(name, order).await
    }
}

#[tokio::test]
async fn an_observer_sees_each_leader_and_an_outage() {
    let store = memory::connect();
    let inspect = Arc::new(Unreadable(store.inspect.clone().unwrap(), AtomicBool::new(false)));
    let locks = Locks::new(Store { inspect: Some(inspect.clone()), ..store });
    let mut watch = locks.election("n").observe().await.unwrap();
    assert_eq!(watch.current(), &Leadership::Vacant);
    let before = SystemClock.now();

    let owner = OwnerId::unique();
    let mut election = locks.election("n").owner(&owner).label("first");
    let guard = election.campaign().await.unwrap();
    let leader = soon("a leader", watch.changed()).await.leader().unwrap().clone();
    assert_eq!((&leader.owner, leader.label.as_str()), (&owner, "first"));
    assert_eq!(leader.token, Some(guard.fencing_token()));
    // The age is exact to a millisecond.
    assert!(leader.since + Duration::from_millis(2) >= before && leader.since <= SystemClock.now());
    assert_eq!(watch.current().leader(), Some(&leader));

    inspect.1.store(true, Ordering::Relaxed);
    assert!(matches!(soon("an outage", watch.changed()).await, Leadership::Unknown(_)));
    let (second, mut terms) = candidate(&locks, "second");
    guard.release().await.unwrap();
    next(&mut terms).await;
    inspect.1.store(false, Ordering::Relaxed);
    assert_eq!(soon("the next leader", watch.changed()).await.leader().unwrap().label, "second");
    second.abort();
    assert_eq!(soon("no leader", watch.changed()).await, &Leadership::Vacant);

    // A store that can't be inspected.
    let blind = Locks::new(Store::new(memory::connect().backend));
    assert!(blind.election("n").observe().await.is_err());
}
