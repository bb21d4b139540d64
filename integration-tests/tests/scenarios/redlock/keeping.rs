//! Keeping many locks alive: one message to each server, an outcome for each lock, and no loss while the servers are healthy.

use std::{env, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use polylock_core::{Backend, ClaimOutcome, KeepAlive, LockName, Mode, Request, io};
use polylock_integration_tests::clock::{self, now, pause};
use polylock_redis::redlock::connect;

use super::setup::{NEVER, PATIENT, Setup, config};

const KEEP_ALIVE: &str = include_str!("../../../../crates/polylock-redis/src/redlock/scripts/keep_alive.lua");
/// The id of a request.
const ID: &str = "0123456789abcdef";

/// The store waits longer for a silent server than a busy machine delays one.
const TIMEOUT: &str = "&polylock.operation_timeout=2s";

fn request(name: &str, ttl: Duration) -> Arc<Request> {
    Arc::new(Request::new(LockName::new(name).unwrap(), Mode::Exclusive, ttl))
}

async fn on_thread<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    io::run("redlock", work).await.unwrap()
}

/// Opens a store and acquires all locks of `requests`.
async fn hold_all(setup: &Setup, requests: &[Arc<Request>]) -> Arc<dyn Backend> {
    let backend = connect(config(&setup.url(TIMEOUT))).await.unwrap().backend;
    for request in requests {
        let (backend, request) = (backend.clone(), request.clone());
        let outcome = on_thread(async move { backend.claim(&request).await.unwrap() }).await;
        assert!(matches!(outcome, ClaimOutcome::Granted(_)), "{outcome:?}");
    }
    backend
}

async fn keep_alive(backend: &Arc<dyn Backend>, requests: &[Arc<Request>]) -> Vec<KeepAlive> {
    let (backend, requests) = (backend.clone(), requests.to_vec());
    on_thread(async move { backend.keep_alive(&requests).await.unwrap() }).await
}

/// Returns the number of scripts that a server has run.
async fn script_count(setup: &Setup, node: usize) -> usize {
    let stats: String = setup.query(node, &["INFO", "commandstats"]).await;
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    calls.map_or(0, |calls| calls.split(',').next().unwrap().parse().unwrap())
}

async fn release(backend: Arc<dyn Backend>, requests: Vec<Arc<Request>>) {
    on_thread(async move {
        for request in &requests {
            backend.release(request).await.ok();
        }
    })
    .await;
}

/// Of three servers, one has lost the vote for a lock and the second is frozen: the outcome for that lock is unknown until it
/// replies. Another lock has its majority.
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_outcome_does_not_fail_the_rest_of_its_batch() {
    const TTL: Duration = Duration::from_secs(20);
    let setup = Setup::shared(3);
    let requests = [request("whole", TTL), request("torn", TTL), request("also-whole", TTL)];
    let backend = hold_all(&setup, &requests).await;
    setup.wait_for_votes(&[3; 3]).await;
    setup.query::<()>(0, &["DEL", &setup.key("r", "torn")]).await;
    // It does not restore the vote.
    setup.query::<()>(0, &["SET", &setup.key("n", "torn"), "9000000000000000"]).await;
    setup.freeze(2);
    let kept = keep_alive(&backend, &requests).await;
    let held = |outcome: &KeepAlive| matches!(outcome, KeepAlive::Held { lease: TTL, .. });
    assert!(held(&kept[0]) && kept[1] == KeepAlive::Unknown && held(&kept[2]), "{kept:?}");
    setup.thaw(2);
    // It counts as unresponsive until it has replied once.
    clock::until("two of three extend it", || async {
        keep_alive(&backend, &requests).await.iter().all(held)
    })
    .await;
    release(backend, requests.to_vec()).await;
    setup.wait_until_free().await;
}

/// The first proposal of a claim is delayed on its way to one server, and arrives there; the second one, for a greater number, reaches the
/// others. A process that adopts the hold does not know the number.
#[tokio::test(flavor = "multi_thread")]
async fn votes_for_different_numbers_extend_no_hold() {
    const CHANGE: &str = "local vote = redis.call('GET', KEYS[1]); local entry = cmsgpack.unpack(string.sub(vote, 17)); \
                          entry[1] = entry[1] - 1000; \
                          redis.call('SET', KEYS[1], string.sub(vote, 1, 16) .. cmsgpack.pack(entry), 'KEEPTTL')";
    let setup = Setup::shared(3);
    let held = [request("mixed", Duration::from_secs(20))];
    let holder = hold_all(&setup, &held).await;
    setup.wait_for_votes(&[1; 3]).await;
    setup.query::<()>(0, &["EVAL", CHANGE, "1", &setup.key("r", "mixed")]).await;
    let mut longer = Request::clone(&held[0]);
    (longer.ttl, longer.outlives_process) = (Duration::from_secs(60), true);
    let longer = Arc::new(longer);
    let adopter = connect(config(&setup.url("&polylock.operation_timeout=500ms"))).await.unwrap().backend;
    setup.freeze(2);
    let renewed = {
        let (adopter, longer) = (adopter.clone(), longer.clone());
        on_thread(async move { adopter.keep_alive(&[longer]).await }).await
    };
    assert!(renewed.is_err(), "only one vote has the number of the hold: {renewed:?}");
    setup.thaw(2);
    let renew = async || {
        let (adopter, longer) = (adopter.clone(), longer.clone());
        on_thread(async move { adopter.keep_alive(&[longer]).await }).await
    };
    let by_adopter = async || renew().await.ok().and_then(|mut kept| kept.pop());
    clock::until("two of three extend it", async || {
        matches!(by_adopter().await, Some(KeepAlive::Held { lease, terms: Some(_) }) if lease >= longer.ttl)
    })
    .await;
    let terms = |kept: Option<KeepAlive>| match kept {
        Some(KeepAlive::Held { terms, .. }) => terms,
        other => panic!("{other:?}"),
    };
    assert_eq!(terms(by_adopter().await), terms(keep_alive(&holder, &held).await.pop()), "one number");
    release(holder, held.to_vec()).await;
    release(adopter, vec![longer]).await;
    setup.wait_until_free().await;
}

/// 1. A server has lost a vote, and its client sends it again; the message is late.
/// 2. Another process releases the hold by its handle. Its withdrawal names no number.
/// 3. The message arrives.
#[tokio::test(flavor = "multi_thread")]
async fn a_vote_that_is_restored_after_a_release_elsewhere_is_refused() {
    const REFUSE: &str = include_str!("../../../../crates/polylock-redis/src/redlock/scripts/refuse.lua");
    let setup = Setup::shared(3);
    let restore = async |number: &str| {
        setup.run_script(KEEP_ALIVE, "a", &["", "1", "", "60000", "1", ID, number, "30000", "me", ""]).await;
        setup.votes_of(&[0]).await == [1]
    };
    assert!(restore("5").await, "the server has no vote");
    setup.query::<()>(0, &["DEL", &setup.key("r", "a")]).await;
    for time in ["30000", "300"] {
        setup.run_script(REFUSE, "a", &[ID, time, NEVER]).await;
    }
    assert!(!restore("5").await, "a released request has a vote");
    pause(Duration::from_millis(400)).await;
    assert!(!restore("5").await, "the second refusal has shortened the first one");
}

/// 1. Another process ends a hold at a later time. One server has its vote, and another one has none.
/// 2. The hold ends.
/// 3. The first process, which has not heard of it, renews the hold.
#[tokio::test(flavor = "multi_thread")]
async fn a_vote_of_a_parked_hold_is_not_restored() {
    const PARK: &str = include_str!("../../../../crates/polylock-redis/src/redlock/scripts/park.lua");
    let setup = Setup::shared(3);
    for has_vote in [true, false] {
        let name = if has_vote { "voted" } else { "absent" };
        let restore = async || {
            let arguments = ["", "1", "", "60000", "1", ID, "5", "30000", "me", ""];
            setup.run_script(KEEP_ALIVE, name, &arguments).await;
            setup.votes_of(&[0]).await == [1]
        };
        if has_vote {
            assert!(restore().await, "the server has no vote");
        }
        setup.run_script(PARK, name, &[ID, "5", "100", "60000", NEVER]).await;
        clock::until("the hold has ended", async || setup.votes_of(&[0]).await == [0]).await;
        assert!(!restore().await, "{name}: the hold has come back");
    }
}

/// 1. Another request has the vote of a server. The proposal of a waiter is under way.
/// 2. The waiter gives up, and withdraws its number on another connection.
/// 3. The proposal arrives. A later one of the same client waits again.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_proposal_of_a_request_that_was_withdrawn_waits_for_nothing() {
    const PROPOSE: &str = include_str!("../../../../crates/polylock-redis/src/redlock/scripts/propose.lua");
    const RELEASE: &str = include_str!("../../../../crates/polylock-redis/src/redlock/scripts/release.lua");
    const IDS: [&str; 2] = [ID, "fedcba9876543210"];
    let setup = Setup::shared(3);
    let propose = async |id: &str, number: &str, channel: &str| {
        let arguments = ["", "1", "", id, number, "0", "30000", "60000", "me", "", channel, "5000"];
        setup.run_script(PROPOSE, "a", &arguments).await;
        setup.query::<bool>(0, &["EXISTS", &setup.key("w", "a")]).await
    };
    assert!(!propose(IDS[0], "5", "").await);
    assert!(propose(IDS[1], "7", "me").await, "a waiter is recorded");
    setup.run_script(RELEASE, "a", &[IDS[1], "9", "60000", "me", "a", NEVER]).await;
    assert!(!propose(IDS[1], "9", "me").await, "a late proposal is recorded as waiting");
    assert!(propose(IDS[1], "11", "me").await, "the next one is recorded");
}

/// 1. One of three servers has the vote of another request, and records that this one waits.
/// 2. The other two vote for it: it has the lock.
/// 3. Its release ends the wait, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_one_server_has_refused_does_not_wait_there_after_its_release() {
    const PROPOSE: &str = include_str!("../../../../crates/polylock-redis/src/redlock/scripts/propose.lua");
    let setup = Setup::shared(3);
    let arguments = ["", "1", "", ID, "5", "0", "30000", "60000", "me", "", "", "0"];
    setup.run_script(PROPOSE, "a", &arguments).await;
    let locks = setup.open(PATIENT).await;
    let guard = locks.lock("a").acquire().await.unwrap();
    let waiting = setup.key("w", "a");
    // What follows does not depend on the time at which the record ends by itself.
    clock::until("the server has refused it", async || setup.query(0, &["PERSIST", &waiting]).await).await;
    guard.release().await.unwrap();
    // A majority is enough for the release, and it was sent to this server as well.
    clock::until("it does not wait", async || !setup.query::<bool>(0, &["EXISTS", &waiting]).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_votes_of_a_server_are_restored_in_one_message() {
    const LOCKS: usize = 40;
    let setup = Setup::private(3, &[]);
    let requests: Vec<_> =
        (0..LOCKS).map(|n| request(&format!("lock-{n}"), Duration::from_secs(20))).collect();
    let backend = hold_all(&setup, &requests).await;
    setup.wait_for_votes(&[LOCKS; 3]).await;
    setup.query::<()>(1, &["FLUSHALL"]).await;
    setup.query::<()>(1, &["CONFIG", "RESETSTAT"]).await;
    let mut rounds = 0;
    loop {
        // A majority of the others may reply first; then the next renewal detects the lost votes.
        rounds += 1;
        assert!(rounds < 50, "votes {:?}", setup.votes().await);
        let before = script_count(&setup, 1).await;
        keep_alive(&backend, &requests).await;
        // A server that is late does not use up the rounds.
        clock::until("the server has received it", async || script_count(&setup, 1).await > before).await;
        if setup.votes().await == [LOCKS; 3] {
            break;
        }
        pause(Duration::from_millis(20)).await;
    }
    // A renewal and a restoration in each round; both may have to load the script first.
    let scripts = script_count(&setup, 1).await;
    assert!(scripts <= 2 * rounds + 2, "{scripts} scripts for {LOCKS} locks in {rounds} rounds");
    assert!(scripts < LOCKS, "{scripts} scripts for {LOCKS} locks");
    release(backend, requests).await;
    setup.wait_until_free().await;
}

/// Ten thousand with `POLYLOCK_TEST_HELD=10000`, for a minute with `POLYLOCK_TEST_SECONDS=60`.
#[tokio::test(flavor = "multi_thread")]
async fn many_locks_are_kept_while_the_servers_are_healthy() {
    const TTL: Duration = Duration::from_secs(12);
    let number = |key, default| env::var(key).map_or(default, |number| number.parse().unwrap());
    let (count, seconds) = (number("POLYLOCK_TEST_HELD", 1_500), number("POLYLOCK_TEST_SECONDS", 13));
    let setup = Setup::private_direct(5);
    let options = format!("polylock.restart=trust&polylock.ttl={}ms", TTL.as_millis());
    let locks = polylock::Locks::connect(&setup.direct_url(&options)).await.unwrap();
    let guards: Vec<_> = stream::iter(0..count)
        .map(|number| locks.lock(format!("lock-{number}")).acquire())
        .buffer_unordered(64)
        .map(Result::unwrap)
        .collect()
        .await;
    // Longer than a lease, so each lock is renewed.
    let before = script_count(&setup, 0).await;
    let (until, mut least) = (now() + Duration::from_secs(seconds), TTL);
    while now() < until {
        pause(TTL / 20).await;
        least = guards.iter().map(polylock::Guard::remaining).min().unwrap_or_default().min(least);
        let lost = guards.iter().filter(|guard| !guard.is_held()).count();
        assert_eq!(lost, 0, "of {count}");
    }
    let renewals = script_count(&setup, 0).await - before;
    println!(
        "{count} locks: the least that remained of a lease of {TTL:?} was {least:?}, with {renewals} messages"
    );
    assert!(seconds > 20 || renewals < guards.len(), "{renewals} messages: one contains many renewals");
    let failures: Vec<_> = stream::iter(guards)
        .map(polylock::Guard::release)
        .buffer_unordered(64)
        .filter_map(|released| std::future::ready(released.err()))
        .collect()
        .await;
    assert!(failures.is_empty(), "{failures:?}");
    setup.wait_until_free().await;
}
