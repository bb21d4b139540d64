//! Servers that lose their data, in a restart or without one, and the delay until their votes count again.

use std::time::Duration;

use polylock::{Error, Fault, Locks, Mode};
use polylock_integration_tests::{
    cargo,
    clock::{self, now, pause},
    load::{self, Load},
    proxy::RequestFault,
    refusals::describe,
    servers::{self, redis},
};
use polylock_redis::redlock;
use polylock_testkit::history::{self, Recorder};

use super::setup::{PATIENT, Setup, config};

/// The votes of a server that has lost its data do not count for three seconds.
const DELAY: &str = "&polylock.max_ttl=2s&polylock.ttl=1s";

/// Acquires the lock once and releases it.
async fn acquire_and_release(locks: &Locks, name: &str) {
    locks.lock(name).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_votes_of_new_servers_count_after_a_delay_that_the_error_states() {
    let setup = Setup::private(3, &[]);
    let began = now();
    // The delay is not an outage.
    // A busy machine delays a server for less than the timeout, a fifth of the lease.
    let url = setup.url_without_trust(
        "&polylock.max_ttl=5s&polylock.ttl=5s&polylock.operation_timeout=1s&polylock.outage=100ms",
    );
    let locks = Locks::connect(&url).await.unwrap();
    let error = locks.lock("n").try_acquire().await.expect_err("they may have forgotten");
    let text = describe(&error).1;
    assert!(error.is_temporary() && error.retry_after().is_some(), "{error:?}");
    // Two of three are too many; the reply of the third does not matter.
    let new = (0..3).filter(|node| text.contains(&setup.address(*node))).count();
    assert!(new >= 2 && text.contains("servers are new or have lost their data"), "{text}");
    let states_delay = (4..=6).any(|left| text.contains(&format!("their votes count in {left}s")));
    assert!(states_delay && text.contains("polylock admit"), "{text}");
    assert!(!text.contains("no reply"), "{text}");
    setup.wait_until_free().await;

    let error = locks.lock("n").wait(Duration::from_secs(2)).acquire().await.expect_err("too short");
    assert!(error.retry_after().is_some_and(|left| left < Duration::from_secs(6)), "{error:?}");
    let guard = locks.lock("n").acquire().await.unwrap();
    let took = now().since(began);
    println!("{text}\nafter {took:?}");
    assert!(took > Duration::from_secs(6) && took < Duration::from_secs(11), "{took:?}");
    guard.release().await.unwrap();
    setup.wait_until_free().await;
    // From now on they count for all clients, at once.
    let other = Locks::connect(&url).await.unwrap();
    assert!(other.lock("n").try_acquire().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_ends_the_delay_of_new_servers_but_not_while_a_lock_is_held() {
    let setup = Setup::private(3, &[]);
    let url = setup.url_without_trust(&format!("&polylock.max_ttl=60s{PATIENT}"));
    let addresses: Vec<String> = (0..3).map(|node| setup.address(node)).collect();
    assert_eq!(setup.admit(&url).await, addresses);
    assert_eq!(setup.admit(&url).await, [""; 0], "they count already");
    let locks = Locks::connect(&url).await.unwrap();
    let guard = locks.lock("n").try_acquire().await.unwrap().expect("it is free");
    setup.wait_for_votes(&[1; 3]).await;
    tokio::task::block_in_place(|| setup.nodes[1].restart());
    let error = redlock::admit(config(&url)).await.expect_err("it may have forgotten votes");
    assert!(describe(&error).1.contains("lock n is held"), "{}", describe(&error).1);
    // One that may be the last to know of a lock does not reply.
    setup.proxies[0].refuse(true);
    let error = redlock::admit(config(&url)).await.expect_err("it may have the only vote that is left");
    let (address, text) = (setup.address(0), describe(&error).1);
    assert!(error.is_temporary() && text.contains(&address) && text.contains("does not reply"), "{text}");
    setup.proxies[0].refuse(false);
    guard.release().await.unwrap();
    setup.wait_until_free().await;
    assert_eq!(setup.admit(&url).await, [setup.address(1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_admits_new_servers_once() {
    let setup = Setup::private(3, &[]);
    let url = setup.url_without_trust(&format!("&polylock.max_ttl=60s{PATIENT}"));
    let admit = |format: &'static [&'static str]| {
        let mut polylock = std::process::Command::new(cargo::polylock());
        polylock.args(["-S", &url, "admit", "--yes"]).args(format);
        let output = tokio::task::block_in_place(|| polylock.output()).unwrap();
        let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert_eq!(output.status.code(), Some(0), "{stdout}{stderr}");
        (stdout, stderr)
    };
    let addresses = (0..3).map(|node| setup.address(node));
    let lines: Vec<String> = addresses.map(|address| format!("{address}: its votes count now\n")).collect();
    assert_eq!(admit(&[]).0, lines.concat());
    let locks = Locks::connect(&url).await.unwrap();
    let guard = locks.lock("n").try_acquire().await.unwrap().expect("it is free");
    guard.release().await.unwrap();
    setup.wait_until_free().await;
    let (stdout, stderr) = admit(&[]);
    assert_eq!(stdout, "");
    assert!(stderr.contains("count already"), "{stderr}");

    tokio::task::block_in_place(|| setup.nodes[1].restart());
    let line = format!("{{\"event\":\"admitted\",\"server\":\"{}\"}}\n", setup.address(1));
    assert_eq!(admit(&["--output", "jsonl"]).0, line);
}

/// Each client waits for less than the delay.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_end_early_leave_the_time_that_they_have_observed() {
    let setup = Setup::private(3, &[]);
    let timeout = "&polylock.operation_timeout=1s";
    let url = setup.url_without_trust(&format!("&polylock.max_ttl=5s&polylock.ttl=5s{timeout}"));
    for _ in 0..2 {
        let locks = Locks::connect(&url).await.unwrap();
        let error = locks.lock("n").wait(Duration::from_secs(2)).acquire().await.expect_err("too short");
        assert!(error.retry_after().is_some(), "{error:?}");
    }
    let began = now();
    acquire_and_release(&Locks::connect(&url).await.unwrap(), "n").await;
    let took = now().since(began);
    println!("after {took:?} more");
    assert!(took < Duration::from_secs(5), "{took:?}: as if it had begun anew");
}

#[tokio::test(flavor = "multi_thread")]
async fn restarts_in_turn_under_load_grant_no_lock_twice() {
    let setup = Setup::private(3, &[]);
    let url = setup.url_without_trust(DELAY);
    setup.admit(&url).await;
    let mut stores = Vec::new();
    for _ in 0..8 {
        stores.push(Locks::connect(&url).await.unwrap());
    }
    let outcome = Load { min_holds: 300, ..load::one("n", Duration::from_secs(16)) }
        .on(stores, async {
            for node in [0, 1, 2, 1] {
                // Shorter and longer than the delay.
                pause(Duration::from_millis(if node == 2 { 1500 } else { 4000 })).await;
                tokio::task::block_in_place(|| setup.nodes[node].restart());
            }
        })
        .await;
    outcome.assert_consistent();
    assert!(outcome.sections.len() > 300, "clients make progress");
}

/// The way in which a server loses its data.
#[derive(Clone, Copy)]
enum Loss {
    Restart,
    Flush,
}

/// A holds by the votes of two of three servers. One of them loses its data, and B gets its vote and that of the third. Returns the
/// violations. `ttl` is the longest lease.
async fn after_a_loss(loss: Loss, ttl: &str, more: &str) -> Vec<history::Violation> {
    let setup = Setup::private(3, &[]);
    let url = setup.url_without_trust(&format!("&polylock.ttl={ttl}&polylock.max_ttl={ttl}{more}"));
    setup.admit(&url).await;
    let (a, b) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    let recorder = Recorder::new();
    setup.disconnect(2);
    let attempt = recorder.invoke("n", "a", Mode::Exclusive);
    let guard = a.lock("n").acquire().await.unwrap();
    let (hold, mut deadline) = (attempt.acquired(&guard), guard.deadline());
    let hold_task = tokio::spawn(async move {
        while let Some(later) = guard.renewed().await {
            deadline = later;
        }
        hold.lost(deadline);
    });
    match loss {
        Loss::Restart => tokio::task::block_in_place(|| setup.nodes[1].restart()),
        Loss::Flush => setup.query::<()>(1, &["FLUSHALL"]).await,
    }
    setup.reconnect(2);
    // A is disconnected from the server that has its vote, so that it can't restore the other one.
    setup.freeze(0);
    let attempt = recorder.invoke("n", "b", Mode::Exclusive);
    let other = b.lock("n").acquire().await.unwrap();
    let other_hold = attempt.acquired(&other);
    hold_task.await.unwrap();
    other_hold.releasing(&other);
    setup.thaw(0);
    history::overlaps(&recorder.sections())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_lost_its_votes_elects_no_second_holder() {
    let (restart, flush) =
        tokio::join!(after_a_loss(Loss::Restart, "2s", ""), after_a_loss(Loss::Flush, "2s", ""));
    assert_eq!((restart, flush), (Vec::new(), Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn planted_trust_in_servers_that_forget_is_detected() {
    let trust = "&polylock.restart=trust";
    // A asks first after a third of its lease: B is granted the lock before, even on a busy machine.
    let (restart, flush) =
        tokio::join!(after_a_loss(Loss::Restart, "24s", trust), after_a_loss(Loss::Flush, "24s", trust));
    assert_eq!((restart.len(), flush.len()), (1, 1), "the checker finds nothing");
}

/// 1. B's first command is sent, and held back on the way;
/// 2. A renews its lease, and is disconnected. Two of three servers lose their data;
/// 3. the command is delivered. The delay counts from its reply: since it was sent, more than A's lease has passed.
#[tokio::test(flavor = "multi_thread")]
async fn the_delay_does_not_count_from_the_sending_of_a_late_command() {
    let setup = Setup::private(3, &[]);
    let url = |setup: &Setup| {
        let timeouts = "&polylock.connect_timeout=10s&polylock.operation_timeout=8s";
        setup.url_without_trust(&format!("&polylock.ttl=4s&polylock.max_ttl=4s{timeouts}"))
    };
    setup.admit(&url(&setup)).await;
    let route_of_a = setup.other_route();
    let a = Locks::connect(&url(&route_of_a)).await.unwrap();
    let recorder = Recorder::new();
    let attempt = recorder.invoke("n", "a", Mode::Exclusive);
    let guard = a.lock("n").acquire().await.unwrap();
    let hold = attempt.acquired(&guard);
    for proxy in &setup.proxies {
        proxy.fault_next(["EVALSHA"], RequestFault::Delay(Duration::from_millis(5200)));
    }
    let b = tokio::spawn({
        let url = url(&setup);
        async move { Locks::connect(&url).await.unwrap() }
    });
    clock::until("it is sent", || async { setup.proxies.iter().all(|proxy| proxy.counts().faulted > 0) })
        .await;
    pause(Duration::from_millis(3400)).await;
    guard.renewed().await.expect("it is held");
    for node in 0..3 {
        route_of_a.disconnect(node);
    }
    for node in [1, 2] {
        setup.query::<()>(node, &["FLUSHALL"]).await;
    }
    let hold_task = tokio::spawn(async move {
        guard.lost().await;
        hold.lost(guard.deadline());
    });
    let b = b.await.unwrap();
    let attempt = recorder.invoke("n", "b", Mode::Exclusive);
    let other = b.lock("n").acquire().await.unwrap();
    let other_hold = attempt.acquired(&other);
    hold_task.await.unwrap();
    other_hold.releasing(&other);
    assert_eq!(history::overlaps(&recorder.sections()), []);
}

/// Whatever a server reports, the file that it has read may be older than its votes, or a copy of another server's; and its votes have expired
/// if its clock was ahead when it read them.
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_server_has_a_delay_although_it_has_its_data() {
    for settings in [redis::DURABLE, &["appendonly yes", "appendfsync everysec"]] {
        let setup = Setup::private(3, settings);
        let url = setup.url_without_trust(DELAY);
        setup.admit(&url).await;
        let locks = Locks::connect(&url).await.unwrap();
        acquire_and_release(&locks, "n").await;
        // A majority was sufficient, and the others may be late.
        clock::until("all have accepted a number", async || {
            let mut number_keys = 0;
            for node in 0..3 {
                number_keys += setup.query::<usize>(node, &["EXISTS", &setup.key("n", "n")]).await;
            }
            number_keys == 3
        })
        .await;
        setup.wait_until_free().await;
        for node in 1..3 {
            tokio::task::block_in_place(|| setup.nodes[node].restart());
        }
        assert!(setup.query::<bool>(1, &["EXISTS", &setup.key("n", "n")]).await, "it has its data");
        let began = now();
        acquire_and_release(&locks, "n").await;
        let took = now().since(began);
        println!("{settings:?}: after {took:?}");
        assert!(took > Duration::from_secs(2), "{settings:?}, {took:?}: at once");
    }
}

/// A job of cron, on a machine with no other program that uses the servers.
#[tokio::test(flavor = "multi_thread")]
async fn programs_that_run_for_a_moment_see_the_end_of_the_delay() {
    let setup = Setup::private(3, redis::DURABLE);
    let url = setup.url_without_trust(DELAY);
    let runs_once = async || {
        let locks = Locks::connect(&url).await.unwrap();
        let outcome = locks.lock("n").try_acquire().await;
        let guard = outcome.unwrap_or_else(|error| {
            assert!(error.is_temporary(), "{error}");
            None
        });
        match guard {
            Some(guard) => guard.release().await.is_ok(),
            None => false,
        }
    };
    let began = now();
    while now().since(began) < Duration::from_millis(1500) {
        let was_granted = runs_once().await;
        // The delay may end in a run that takes long on a busy machine.
        assert!(!was_granted || now().since(began) > Duration::from_secs(2), "the servers are new");
        pause(Duration::from_millis(100)).await;
    }
    // What was seen of the servers before says nothing of them now.
    for node in &setup.nodes {
        tokio::task::block_in_place(|| node.restart());
    }
    let began = now();
    clock::until("the delay has ended", async || {
        pause(Duration::from_millis(100)).await;
        runs_once().await
    })
    .await;
    let took = now().since(began);
    println!("after {took:?}");
    assert!(took > Duration::from_secs(2), "{took:?}: too early");
    // The two others may have granted the lock.
    clock::until("nothing is left of the delay", async || {
        runs_once().await;
        setup.query::<usize>(0, &["EXISTS", &setup.key("member", "seen")]).await == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_access_to_the_run_id_requires_trust() {
    let nodes: Vec<_> = tokio::task::block_in_place(|| {
        let user = "user app on >secret ~* &* +@all -info";
        (0..3).map(|_| redis::start_as("app:secret", &["user default off", user]).unwrap()).collect()
    });
    let url = servers::redlock::url(nodes.iter().map(|node| node.url()));
    let error =
        Locks::connect(&format!("{url}?polylock.max_ttl=2s")).await.expect_err("the run id is unknown");
    let text = describe(&error).1;
    assert!(matches!(&error, Error::Unavailable(failure) if failure.fault == Fault::Denied), "{error:?}");
    assert!(text.contains("+info") && text.contains("polylock.restart=trust"), "{text}");
    assert!(!text.contains("secret"), "{text}");
    let locks = Locks::connect(&format!("{url}?polylock.restart=trust")).await.unwrap();
    acquire_and_release(&locks, "n").await;
}
