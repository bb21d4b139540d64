//! A release hands the lock over to the next waiters in its own transaction.

use std::{sync::Arc, time::Duration};

use polylock_core::{
    ClaimOutcome, FencingToken, KeepAlive, Label, LockName, Mode, Release, Request, Store, Wake,
    queue::{QueueEntry, blockers},
};
use polylock_integration_tests::{clock, servers, stores, targets::Namespace};
use polylock_testkit::Target;

use super::{connection, counter, run};
use crate::databases::foreign_rows::{claim, run_on_io_thread};

fn request(mode: Mode, label: &str) -> Request {
    let mut request = Request::new(LockName::new("n").unwrap(), mode, Duration::from_secs(60));
    request.label = Some(Label::new(label).unwrap());
    request
}

/// A request that waits.
async fn wait(store: &Store, mode: Mode, label: &str) -> Request {
    let request = request(mode, label);
    assert!(matches!(claim(store, &request).await, ClaimOutcome::Queued(_)), "{label}");
    request
}

async fn release(store: &Store, request: &Request) -> Release {
    let (backend, request) = (store.backend.clone(), request.clone());
    run_on_io_thread(store, async move { backend.release(&request).await }).await
}

async fn woken(store: &Store, request: &Request) -> Wake {
    let (backend, waiter) = (store.backend.clone(), request.clone());
    let waking = run_on_io_thread(store, async move { backend.wait(&waiter).await });
    tokio::time::timeout(clock::TIMEOUT, waking).await.unwrap()
}

/// Returns the holders of the lock with their tokens, and its waiters.
async fn status(store: &Store) -> (Vec<(String, FencingToken)>, Vec<String>) {
    let (inspect, name) = (store.inspect.clone().unwrap(), LockName::new("n").unwrap());
    let status = run_on_io_thread(store, async move { inspect.inspect(&name).await }).await;
    let holders =
        status.holders.iter().map(|entry| (entry.label.to_string(), entry.token.unwrap())).collect();
    (holders, status.waiters.iter().map(|entry| entry.label.to_string()).collect())
}

fn prefix(namespace: &Namespace) -> &str {
    let (_, query) = namespace.url().split_once('?').unwrap();
    query.split('&').find_map(|key| key.strip_prefix("polylock.namespace=")).unwrap_or("polylock")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_grants_the_lock_to_the_next_waiters() {
    let namespace = stores::namespace("mariadb").await;
    let (store, other) = (namespace.connect().await.unwrap(), namespace.connect().await.unwrap());
    let readers = [request(Mode::Shared, "first"), request(Mode::Shared, "second")];
    for reader in &readers {
        assert!(matches!(claim(&store, reader).await, ClaimOutcome::Granted(_)));
    }
    let writer = wait(&store, Mode::Exclusive, "writer").await;
    // Its process does not keep it alive.
    let third = namespace.connect().await.unwrap();
    wait(&third, Mode::Exclusive, "dead").await;
    let here = wait(&store, Mode::Shared, "here").await;
    let there = wait(&other, Mode::Shared, "there").await;
    let last = wait(&store, Mode::Exclusive, "last").await;
    let sql = format!("UPDATE {}_waiters SET expires_at = 1 WHERE label = 'dead'", prefix(&namespace));
    run(&mut connection(servers::mariadb().unwrap()).await, &sql).await;
    assert_eq!(woken(&other, &there).await, Wake::Stale, "the request that it waits for has gone");
    assert!(matches!(claim(&other, &there).await, ClaimOutcome::Queued(_)));
    let labels = |holders: &[(String, FencingToken)]| {
        holders.iter().map(|(label, _)| label.clone()).collect::<Vec<_>>()
    };

    assert_eq!(release(&store, &readers[0]).await, Release::Released);
    let (before, waiters) = status(&store).await;
    assert_eq!(labels(&before), ["second"], "the writer conflicts with the other reader");
    assert_eq!(waiters, ["writer", "here", "there", "last"]);

    assert_eq!(release(&store, &readers[1]).await, Release::Released);
    let (first, waiters) = status(&store).await;
    assert_eq!(
        (labels(&first), waiters),
        (vec!["writer".to_owned()], ["here", "there", "last"].map(Into::into).into())
    );
    assert!(first[0].1 > before[0].1);
    // In the process of the release nothing more is sent.
    match woken(&store, &writer).await {
        Wake::Granted(grant) => {
            assert_eq!(grant.token, first[0].1);
            assert!(grant.lease <= Request::MAX_QUEUE_LEASE && !grant.lease.is_zero(), "{grant:?}");
        }
        Wake::Stale => panic!("the release has returned the grant"),
    }

    assert_eq!(release(&store, &writer).await, Release::Released);
    let (shared, waiters) = status(&store).await;
    assert_eq!(
        (labels(&shared), waiters),
        (["here", "there"].map(Into::into).into(), vec!["last".to_owned()])
    );
    assert!(first[0].1 < shared[0].1 && shared[0].1 < shared[1].1, "{first:?} {shared:?}");
    // The other process finds it with the statement for all its waiters.
    // It may have noticed the end of the dead one twice: once before the last claim of the waiter.
    let mut wake = woken(&other, &there).await;
    if wake == Wake::Stale {
        wake = woken(&other, &there).await;
    }
    match wake {
        Wake::Granted(grant) => assert_eq!(grant.token, shared[1].1),
        Wake::Stale => panic!("the poller has returned the grant"),
    }
    let ClaimOutcome::Granted(grant) = claim(&store, &here).await else { panic!("it holds the lock") };
    assert_eq!(grant.token, shared[0].1, "a claim finds the grant");

    for reader in [&here, &there] {
        assert_eq!(release(&other, reader).await, Release::Released);
    }
    let (exclusive, _) = status(&store).await;
    assert_eq!(labels(&exclusive), ["last"]);
    assert!(exclusive[0].1 > shared[1].1);
    let (backend, kept) = (store.backend.clone(), last.clone());
    let kept = run_on_io_thread(&store, async move { backend.keep_alive(&[kept.into()]).await }).await;
    assert!(matches!(kept.as_slice(), [KeepAlive::Held { .. }]), "{kept:?}");
    // A waiter that leaves after it was granted the lock leaves nothing behind.
    assert_eq!(release(&store, &last).await, Release::Released);
    assert_eq!(namespace.leftovers().await.unwrap(), Some(0));
    let next = request(Mode::Exclusive, "next");
    let ClaimOutcome::Granted(next) = claim(&store, &next).await else { panic!("it is free") };
    assert!(next.token > exclusive[0].1);
}

/// A request, and where the rule has it.
struct Entry {
    request: Request,
    standpoint: QueueEntry,
    token: Option<FencingToken>,
}

/// Extends all entries.
async fn keep_alive(store: &Store, entries: &[Entry]) {
    let backend = store.backend.clone();
    let requests: Vec<Arc<Request>> = entries.iter().map(|entry| entry.request.clone().into()).collect();
    run_on_io_thread(store, async move { backend.keep_alive(&requests).await }).await;
}

/// Newcomers of any mode, and others that claim again or leave, through two processes: all are granted by the rule of core.
#[tokio::test(flavor = "multi_thread")]
async fn grants_follow_the_queue_rule() {
    let namespace = stores::namespace("mariadb").await;
    let stores = [namespace.connect().await.unwrap(), namespace.connect().await.unwrap()];
    let mut random = fastrand::Rng::with_seed(7);
    let (mut entries, mut former): (Vec<Entry>, Vec<(Mode, FencingToken)>) = Default::default();
    for seq in 1..=400 {
        if seq % 20 == 0 {
            // No queue entry expires, however slow the server is.
            keep_alive(&stores[0], &entries).await;
        }
        let store = &stores[random.usize(..2)];
        let is_new = entries.is_empty() || (entries.len() < 10 && random.u8(..3) == 0);
        if !is_new && random.bool() {
            let Entry { request, token, .. } = entries.swap_remove(random.usize(..entries.len()));
            assert_eq!(release(store, &request).await, Release::Released);
            former.extend(token.map(|token| (request.mode, token)));
            continue;
        }
        if is_new {
            let mode = Mode::ALL[random.usize(..Mode::ALL.len())];
            let standpoint = QueueEntry { seq, mode, held: false };
            entries.push(Entry { request: request(mode, &seq.to_string()), standpoint, token: None });
        }
        let at = if is_new { entries.len() - 1 } else { random.usize(..entries.len()) };
        let all: Vec<QueueEntry> = entries.iter().map(|entry| entry.standpoint).collect();
        let (me, ahead) = (all[at], blockers(&all, all[at].seq, all[at].mode).count());
        match claim(store, &entries[at].request).await {
            ClaimOutcome::Granted(grant) => {
                assert!(me.held || ahead == 0, "{me:?} overtook one of {all:?}");
                let conflicting = former.iter().filter(|(mode, _)| mode.conflicts_with(me.mode));
                for (mode, token) in conflicting {
                    assert!(me.held || grant.token > *token, "{grant:?} after {token:?} of {mode:?}");
                }
                assert!(entries[at].token.replace(grant.token).is_none_or(|token| token == grant.token));
                entries[at].standpoint.held = true;
            }
            ClaimOutcome::Queued(_) => {
                assert!(!me.held && ahead > 0, "{me:?} is kept from the lock by {all:?}");
            }
        }
    }
    for entry in entries {
        assert_eq!(release(&stores[0], &entry.request).await, Release::Released);
    }
    assert_eq!(namespace.leftovers().await.unwrap(), Some(0));
}

/// The waiters of one process cost the server nothing but keep-alives and the claims of the first one, as long as this process has the
/// lock.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_behind_a_hold_of_their_process_are_not_polled() {
    let server = servers::mariadb::start(&[]).unwrap();
    let (url, _) = super::tables(&server, "&polylock.ttl=1h&polylock.poll=5ms");
    let locks = polylock::Locks::connect(&url).await.unwrap();
    let guard = locks.lock("n").acquire().await.unwrap();
    let pair = || {
        let acquisition = locks.lock("n").acquire();
        tokio::spawn(async move { acquisition.await.unwrap().release().await.unwrap() })
    };
    let waiters: Vec<_> = (0..8).map(|_| pair()).collect();
    clock::until("they wait", async || locks.inspect("n").await.unwrap().waiters.len() == 8).await;
    let mut observer = connection(&server).await;
    let before = counter(&mut observer, "com_call_procedure").await;
    clock::pause(Duration::from_millis(500)).await;
    let calls = counter(&mut observer, "com_call_procedure").await - before;
    // A claim that was answered late was repeated. Polls would be sixty and more.
    assert!(calls < 20, "{calls}");
    let before = counter(&mut observer, "com_call_procedure").await;
    guard.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
    // One release each, and another one if the answer is late. If each waiter claimed after each release, they would be 45.
    let calls = counter(&mut observer, "com_call_procedure").await - before;
    assert!((9..30).contains(&calls), "{calls}");
}
