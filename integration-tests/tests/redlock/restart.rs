//! Servers that forget, in a restart or without one, and for how long their votes do not count then.

use std::{path::Path, time::Duration};

use polylock::{Error, Fault, Locks, Mode};
use polylock_integration_tests::{
    cargo,
    clock::{self, now, pause},
    proxy::Fate,
    servers::{self, redis},
};
use polylock_redis::redlock;
use polylock_testkit::history::{self, Recorder};

use crate::{
    load::{self, Load},
    site::{Site, config, told},
};

/// The votes of a server that has forgotten do not count for three seconds.
const DELAY: &str = "&polylock.max_ttl=2s&polylock.ttl=1s";

/// Acquires the lock once and releases it.
async fn acquires(locks: &Locks, name: &str) {
    locks.lock(name).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_votes_of_new_servers_count_after_a_delay_that_the_error_states() {
    let site = Site::private(3, &[]);
    let began = now();
    // The delay is no outage.
    let url = site.url_without_trust(&format!("{DELAY}&polylock.outage=100ms"));
    let locks = Locks::connect(&url).await.unwrap();
    let error = locks.lock("n").try_acquire().await.expect_err("they may have forgotten");
    let text = told(&error);
    assert!(error.is_temporary() && error.retry_after().is_some(), "{error:?}");
    // Two of three are too many, whatever the third says.
    let new = (0..3).filter(|node| text.contains(&site.address(*node))).count();
    assert!(new >= 2 && text.contains("servers are new or have lost their data"), "{text}");
    assert!(text.contains("their votes count in 3s") && text.contains("polylock admit"), "{text}");
    assert!(!text.contains("no answer"), "{text}");
    site.is_free_soon().await;

    let error = locks.lock("n").wait(Duration::from_millis(300)).acquire().await.expect_err("too short");
    assert!(error.retry_after().is_some_and(|left| left < Duration::from_secs(3)), "{error:?}");
    let guard = locks.lock("n").acquire().await.unwrap();
    let took = now().since(began);
    println!("{text}\nafter {took:?}");
    assert!(took > Duration::from_secs(3) && took < Duration::from_secs(8), "{took:?}");
    guard.release().await.unwrap();
    site.is_free_soon().await;
    // From now on they count for everybody, at once.
    let other = Locks::connect(&url).await.unwrap();
    assert!(other.lock("n").try_acquire().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_ends_the_delay_of_new_servers_but_not_while_a_lock_is_held() {
    let site = Site::private(3, &[]);
    let url = site.url_without_trust("&polylock.max_ttl=60s");
    let addresses: Vec<String> = (0..3).map(|node| site.address(node)).collect();
    assert_eq!(site.admit(&url).await, addresses);
    assert_eq!(site.admit(&url).await, [""; 0], "they count already");
    let locks = Locks::connect(&url).await.unwrap();
    let guard = locks.lock("n").try_acquire().await.unwrap().expect("it is free");
    site.has(&[1; 3]).await;
    tokio::task::block_in_place(|| site.nodes[1].restart());
    let error = redlock::admit(config(&url)).await.expect_err("it may have forgotten votes");
    assert!(told(&error).contains("lock n is held"), "{}", told(&error));
    guard.release().await.unwrap();
    site.is_free_soon().await;
    assert_eq!(site.admit(&url).await, [site.address(1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_admits_new_servers_once() {
    let site = Site::private(3, &[]);
    let url = site.url_without_trust("&polylock.max_ttl=60s");
    let admit = |format: &'static [&'static str]| {
        let polylock = cargo::program("polylock-cli", "polylock", Path::new(env!("CARGO_BIN_EXE_worker")));
        let mut polylock = std::process::Command::new(polylock);
        polylock.args(["-S", &url, "admit", "--yes"]).args(format);
        let output = tokio::task::block_in_place(|| polylock.output()).unwrap();
        let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert_eq!(output.status.code(), Some(0), "{stdout}{stderr}");
        (stdout, stderr)
    };
    let addresses = (0..3).map(|node| site.address(node));
    let lines: Vec<String> = addresses.map(|address| format!("{address}: its votes count now\n")).collect();
    assert_eq!(admit(&[]).0, lines.concat());
    let locks = Locks::connect(&url).await.unwrap();
    assert!(locks.lock("n").try_acquire().await.unwrap().is_some());
    let (stdout, stderr) = admit(&[]);
    assert_eq!(stdout, "");
    assert!(stderr.contains("count already"), "{stderr}");

    tokio::task::block_in_place(|| site.nodes[1].restart());
    let line = format!("{{\"event\":\"admitted\",\"server\":\"{}\"}}\n", site.address(1));
    assert_eq!(admit(&["--output", "jsonl"]).0, line);
}

/// Each waits for less than the delay.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_end_early_leave_the_time_that_they_have_observed() {
    let site = Site::private(3, &[]);
    let url = site.url_without_trust("&polylock.max_ttl=5s&polylock.ttl=5s");
    for _ in 0..2 {
        let locks = Locks::connect(&url).await.unwrap();
        let error = locks.lock("n").wait(Duration::from_secs(2)).acquire().await.expect_err("too short");
        assert!(error.retry_after().is_some(), "{error:?}");
    }
    let began = now();
    acquires(&Locks::connect(&url).await.unwrap(), "n").await;
    let took = now().since(began);
    println!("after {took:?} more");
    assert!(took < Duration::from_secs(5), "{took:?}: as if it had begun anew");
}

#[tokio::test(flavor = "multi_thread")]
async fn restarts_in_turn_under_load_give_no_lock_twice() {
    let site = Site::private(3, &[]);
    let url = site.url_without_trust(DELAY);
    site.admit(&url).await;
    let mut stores = Vec::new();
    for _ in 0..8 {
        stores.push(Locks::connect(&url).await.unwrap());
    }
    let outcome = Load { more_than: 300, ..load::one("n", Duration::from_secs(16)) }
        .on(stores, async {
            for node in [0, 1, 2, 1] {
                // Shorter and longer than the delay.
                pause(Duration::from_millis(if node == 2 { 1500 } else { 4000 })).await;
                tokio::task::block_in_place(|| site.nodes[node].restart());
            }
        })
        .await;
    outcome.is_clean();
    assert!(outcome.sections.len() > 300, "it goes on");
}

/// How a server loses its data.
#[derive(Clone, Copy)]
enum Loss {
    Restart,
    Flush,
}

/// A holds by the votes of two of three servers. One of them forgets, and B gets its vote and that of the third: what comes of it.
async fn after_a_loss(loss: Loss, more: &str) -> Vec<history::Violation> {
    let site = Site::private(3, &[]);
    let url = site.url_without_trust(&format!("&polylock.ttl=2s&polylock.max_ttl=2s{more}"));
    site.admit(&url).await;
    let (a, b) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    let recorder = Recorder::new();
    site.kill(2);
    let attempt = recorder.invoke("n", "a", Mode::Exclusive);
    let guard = a.lock("n").acquire().await.unwrap();
    let (hold, mut deadline) = (attempt.acquired(&guard), guard.deadline());
    let holding = tokio::spawn(async move {
        while let Some(later) = guard.renewed().await {
            deadline = later;
        }
        hold.lost(deadline);
    });
    match loss {
        Loss::Restart => tokio::task::block_in_place(|| site.nodes[1].restart()),
        Loss::Flush => site.ask::<()>(1, &["FLUSHALL"]).await,
    }
    site.revive(2);
    // A is cut off from the one that has its vote, so that it can't restore the other.
    site.freeze(0);
    let attempt = recorder.invoke("n", "b", Mode::Exclusive);
    let other = b.lock("n").acquire().await.unwrap();
    let other_hold = attempt.acquired(&other);
    holding.await.unwrap();
    other_hold.releasing(&other);
    site.thaw(0);
    history::overlaps(&recorder.sections())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_forgotten_does_not_give_the_lock_to_another() {
    let (restart, flush) = tokio::join!(after_a_loss(Loss::Restart, ""), after_a_loss(Loss::Flush, ""));
    assert_eq!((restart, flush), (Vec::new(), Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn planted_trust_in_servers_that_forget_is_found() {
    let trust = "&polylock.restart=trust";
    let (restart, flush) = tokio::join!(after_a_loss(Loss::Restart, trust), after_a_loss(Loss::Flush, trust));
    assert_eq!((restart.len(), flush.len()), (1, 1), "the checker finds nothing");
}

/// 1. B's first command is sent, and held back on the way;
/// 2. A renews its lease, and is cut off. Two of three servers lose their data;
/// 3. the command is delivered. The delay counts from its reply: since it was sent, more than A's lease has passed.
#[tokio::test(flavor = "multi_thread")]
async fn the_delay_does_not_count_from_the_sending_of_a_command_that_was_late() {
    let site = Site::private(3, &[]);
    let url = |site: &Site| {
        let timeouts = "&polylock.connect_timeout=10s&polylock.command_timeout=8s";
        site.url_without_trust(&format!("&polylock.ttl=2s&polylock.max_ttl=2s{timeouts}"))
    };
    site.admit(&url(&site)).await;
    let way_of_a = site.other_way();
    let a = Locks::connect(&url(&way_of_a)).await.unwrap();
    let recorder = Recorder::new();
    let attempt = recorder.invoke("n", "a", Mode::Exclusive);
    let guard = a.lock("n").acquire().await.unwrap();
    let hold = attempt.acquired(&guard);
    for proxy in &site.proxies {
        proxy.next(["EVALSHA"], Fate::Late(Duration::from_millis(2600)));
    }
    let b = tokio::spawn({
        let url = url(&site);
        async move { Locks::connect(&url).await.unwrap() }
    });
    clock::until("it is sent", || async { site.proxies.iter().all(|proxy| proxy.counts().fated > 0) }).await;
    pause(Duration::from_millis(1700)).await;
    guard.renewed().await.expect("it is held");
    for node in 0..3 {
        way_of_a.kill(node);
    }
    for node in [1, 2] {
        site.ask::<()>(node, &["FLUSHALL"]).await;
    }
    let holding = tokio::spawn(async move {
        guard.lost().await;
        hold.lost(guard.deadline());
    });
    let b = b.await.unwrap();
    let attempt = recorder.invoke("n", "b", Mode::Exclusive);
    let other = b.lock("n").acquire().await.unwrap();
    let other_hold = attempt.acquired(&other);
    holding.await.unwrap();
    other_hold.releasing(&other);
    assert_eq!(history::overlaps(&recorder.sections()), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn durable_servers_keep_their_votes_over_a_restart_and_vote_at_once() {
    let site = Site::private(3, redis::DURABLE);
    let url = site.url_without_trust("&polylock.ttl=20s");
    site.admit(&url).await;
    let (a, b) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    let guard = a.lock("n").acquire().await.unwrap();
    site.has(&[1; 3]).await;
    for node in &site.nodes {
        tokio::task::block_in_place(|| node.restart());
    }
    let began = now();
    clock::until("they can be reached", || async { b.lock("m").try_acquire().await.is_ok() }).await;
    let took = now().since(began);
    assert!(took < Duration::from_secs(5), "{took:?}: they vote at once");
    assert!(b.lock("n").try_acquire().await.unwrap().is_none(), "held since before the restart");
    guard.release().await.unwrap();
    acquires(&b, "n").await;
}

/// The last second of a file that is synced every second may be lost, though the file says nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_not_durable_before_its_restart_has_a_delay_though_it_has_its_data() {
    let site = Site::private(3, &["appendonly yes", "appendfsync everysec"]);
    let url = site.url_without_trust(DELAY);
    site.admit(&url).await;
    let locks = Locks::connect(&url).await.unwrap();
    acquires(&locks, "n").await;
    for node in 1..3 {
        // Durable from now on.
        site.ask::<()>(node, &["CONFIG", "SET", "appendfsync", "always"]).await;
        site.ask::<()>(node, &["CONFIG", "REWRITE"]).await;
        tokio::task::block_in_place(|| site.nodes[node].restart());
    }
    assert!(site.ask::<bool>(1, &["EXISTS", &site.key("n", "n")]).await, "it has its data");
    let began = now();
    acquires(&locks, "n").await;
    let took = now().since(began);
    println!("after {took:?}");
    assert!(took > Duration::from_secs(2), "{took:?}: at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_not_read_the_run_id_must_trust() {
    let nodes: Vec<_> = tokio::task::block_in_place(|| {
        let user = "user app on >secret ~* &* +@all -info";
        (0..3).map(|_| redis::start_as("app:secret", &["user default off", user]).unwrap()).collect()
    });
    let url = servers::redlock::url(nodes.iter().map(|node| node.url()));
    let error = Locks::connect(&format!("{url}?polylock.max_ttl=2s")).await.expect_err("nobody knows");
    let text = told(&error);
    assert!(matches!(&error, Error::Unavailable(failure) if failure.fault == Fault::Denied), "{error:?}");
    assert!(text.contains("+info") && text.contains("polylock.restart=trust"), "{text}");
    assert!(!text.contains("secret"), "{text}");
    let locks = Locks::connect(&format!("{url}?polylock.restart=trust")).await.unwrap();
    acquires(&locks, "n").await;
}
