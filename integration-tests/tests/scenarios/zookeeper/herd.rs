//! A release wakes one waiter, however many there are.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use polylock::Locks;
use polylock_integration_tests::{
    clock::{self, TIMEOUT, now},
    servers::{PrivateServer, zookeeper},
    stores::wait_for_waiters,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::Namespace;

/// Returns the counters of the server.
async fn counters(server: &PrivateServer) -> HashMap<String, u64> {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).await.unwrap();
    stream.write_all(b"mntr").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let count = |line: &str| {
        let (name, count) = line.strip_prefix("zk_")?.split_once('\t')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    answer.lines().filter_map(count).collect()
}

/// The cost of all hand-overs.
#[derive(Debug)]
struct Cost {
    events: u64,
    /// The maximum for the deletion of one node.
    at_once: u64,
    packets: u64,
    /// The packets that depend on time only: the checks and pings of each session.
    idle: u64,
}

const HAND_OVERS: u64 = 200;

/// Hands the lock over among this many waiters, each in a separate session. A former holder joins the end of the queue again.
async fn hand_overs(contenders: u64) -> Cost {
    let server = zookeeper::start(&[]).unwrap();
    let namespace = Namespace::of(&server);
    let url = namespace.url_with_session(Duration::from_secs(60));
    let mut sessions = Vec::new();
    for _ in 0..contenders {
        sessions.push(Locks::connect(&url).await.unwrap());
    }
    let acquire = async |session: usize| {
        let guard = sessions[session].lock("n").acquire().await.unwrap();
        (session, guard)
    };
    let mut waiting = FuturesUnordered::new();
    let (mut last, mut guard) = acquire(0).await;
    for session in 1..sessions.len() {
        waiting.push(acquire(session));
    }
    let all = sessions.len() - 1;
    let inspected = async { wait_for_waiters(&sessions[0], "n", all).await };
    tokio::select! {
        biased;
        _ = waiting.next() => panic!("the lock is held"),
        () = inspected => {}
    }
    let (before, began) = (counters(&server).await, now());
    for _ in 0..HAND_OVERS {
        guard.release().await.unwrap();
        // Any of them: they join the queue again in any order.
        let next = tokio::time::timeout(TIMEOUT, waiting.next())
            .await
            .expect("a waiter is granted the lock")
            .unwrap();
        waiting.push(acquire(last));
        (last, guard) = next;
    }
    let (after, took) = (counters(&server).await, now().since(began));
    let more = |name: &str| after[name] - before[name];
    let seconds = took.as_secs() + 1;
    let cost = Cost {
        events: more("sum_node_deleted_watch_count"),
        at_once: after["max_node_deleted_watch_count"],
        packets: more("packets_received") + more("packets_sent"),
        // Each checks every second, pings and renews: a request and a reply each.
        idle: 2 * 4 * contenders * seconds,
    };
    println!("{contenders} contenders, {HAND_OVERS} hand-overs in {took:.1?}: {cost:?}");
    cost
}

/// In one process, a waiter needs neither a list nor a watch.
#[tokio::test]
async fn an_acquisition_among_many_waiters_of_a_process_is_three_requests() {
    const WAITERS: u64 = 300;
    let server = zookeeper::start(&[]).unwrap();
    let namespace = Namespace::of(&server);
    let (locks, raw) = (
        Locks::connect(&namespace.url_with_session(Duration::from_secs(60))).await.unwrap(),
        namespace.client().await,
    );
    let first = locks.lock("n").acquire().await.unwrap();
    let (before, began) = (counters(&server).await["packets_received"], now());
    let mut waiting = FuturesUnordered::new();
    for _ in 0..WAITERS {
        let lock = locks.lock("n");
        waiting.push(tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() }));
    }
    let checks = AtomicU64::new(0);
    clock::until("they wait", async || {
        checks.fetch_add(1, Ordering::Relaxed);
        let stat = raw.check_stat(&format!("{}/n", namespace.root)).await.unwrap().unwrap();
        u64::try_from(stat.num_children).unwrap() == WAITERS + 1
    })
    .await;
    first.release().await.unwrap();
    while let Some(done) = waiting.next().await {
        done.unwrap();
    }
    let seconds = now().since(began).as_secs() + 1;
    let packets = counters(&server).await["packets_received"] - before;
    println!("{WAITERS} acquisitions in {seconds} s: {packets} requests");
    // A create, a read of the own node, and a delete; and the packets that depend on time only.
    assert!(packets <= 3 * WAITERS + checks.load(Ordering::Relaxed) + 20 * seconds, "{packets}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cost_of_a_hand_over_is_independent_of_the_number_of_waiters() {
    for contenders in [4, 16] {
        let cost = hand_overs(contenders).await;
        assert_eq!(cost.at_once, 1, "each deletion wakes one waiter");
        assert!(cost.events <= HAND_OVERS, "one event for each hand-over: {cost:?}");
        // A delete, an event, a read; a create with a list, and a watch: eleven packets, regardless of the number of waiters.
        assert!(cost.packets <= 12 * HAND_OVERS + cost.idle, "{cost:?}");
    }
}
