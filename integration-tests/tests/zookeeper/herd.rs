//! A release wakes one waiter, however many there are.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use polylock::Locks;
use polylock_integration_tests::{
    clock::{self, PATIENCE, now},
    servers::{Private, zookeeper},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{Spot, waiters};

/// What the server has counted so far.
async fn counted(server: &Private) -> HashMap<String, u64> {
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

/// What a number of hand-overs among so many has cost.
#[derive(Debug)]
struct Cost {
    events: u64,
    /// The most for a single node that went.
    at_once: u64,
    packets: u64,
    /// Such as come with time alone: the looks and pings of each session.
    idle: u64,
}

const HAND_OVERS: u64 = 200;

/// So many wait, each in a session of its own; who has had it stands at the end again.
async fn hand_overs(contenders: u64) -> Cost {
    let server = zookeeper::start(&[]).unwrap();
    let spot = Spot::of(&server);
    let url = spot.with(Duration::from_secs(60));
    let mut sessions = Vec::new();
    for _ in 0..contenders {
        sessions.push(Locks::connect(&url).await.unwrap());
    }
    let take = async |session: usize| {
        let guard = sessions[session].lock("n").acquire().await.unwrap();
        (session, guard)
    };
    let mut waiting = FuturesUnordered::new();
    let (mut last, mut guard) = take(0).await;
    for session in 1..sessions.len() {
        waiting.push(take(session));
    }
    let all = sessions.len() - 1;
    let inspected = async { waiters(&sessions[0], "n", all).await };
    tokio::select! {
        biased;
        _ = waiting.next() => panic!("the lock is held"),
        () = inspected => {}
    }
    let (before, began) = (counted(&server).await, now());
    for _ in 0..HAND_OVERS {
        guard.release().await.unwrap();
        // Whoever it is: they come again in any order.
        let next = tokio::time::timeout(PATIENCE, waiting.next()).await.expect("it goes on").unwrap();
        waiting.push(take(last));
        (last, guard) = next;
    }
    let (after, took) = (counted(&server).await, now().since(began));
    let more = |name: &str| after[name] - before[name];
    let seconds = took.as_secs() + 1;
    let cost = Cost {
        events: more("sum_node_deleted_watch_count"),
        at_once: after["max_node_deleted_watch_count"],
        packets: more("packets_received") + more("packets_sent"),
        // Each looks again every second, pings, and renews: a question and an answer each.
        idle: 2 * 4 * contenders * seconds,
    };
    println!("{contenders} contenders, {HAND_OVERS} hand-overs in {took:.1?}: {cost:?}");
    cost
}

/// In one process, where a waiter needs neither a list nor a watch to know that it waits.
#[tokio::test]
async fn an_acquisition_by_one_of_many_waiters_of_a_process_is_three_requests() {
    const WAITERS: u64 = 300;
    // A log that shows positions in the queue, such as another test may have, takes a list for each.
    let _no_log = tracing::subscriber::set_default(tracing::subscriber::NoSubscriber::new());
    let server = zookeeper::start(&[]).unwrap();
    let spot = Spot::of(&server);
    let (locks, raw) = (Locks::connect(&spot.with(Duration::from_secs(60))).await.unwrap(), spot.raw().await);
    let first = locks.lock("n").acquire().await.unwrap();
    let (before, began) = (counted(&server).await["packets_received"], now());
    let mut waiting = FuturesUnordered::new();
    for _ in 0..WAITERS {
        let lock = locks.lock("n");
        waiting.push(tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() }));
    }
    let looks = AtomicU64::new(0);
    clock::until("they wait", async || {
        looks.fetch_add(1, Ordering::Relaxed);
        let stat = raw.check_stat(&format!("{}/n", spot.root)).await.unwrap().unwrap();
        u64::try_from(stat.num_children).unwrap() == WAITERS + 1
    })
    .await;
    first.release().await.unwrap();
    while let Some(done) = waiting.next().await {
        done.unwrap();
    }
    let seconds = now().since(began).as_secs() + 1;
    let packets = counted(&server).await["packets_received"] - before;
    println!("{WAITERS} acquisitions in {seconds} s: {packets} requests");
    // A create, a look at the own node, and a delete; and what comes with time alone.
    assert!(packets <= 3 * WAITERS + looks.load(Ordering::Relaxed) + 20 * seconds, "{packets}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_costs_the_same_however_many_wait() {
    for contenders in [4, 16] {
        let cost = hand_overs(contenders).await;
        assert_eq!(cost.at_once, 1, "a node that goes wakes one");
        assert!(cost.events <= HAND_OVERS, "one event for each hand-over: {cost:?}");
        // A delete, an event, a look; a create with a look, and a watch: eleven packets, and none that grows.
        assert!(cost.packets <= 12 * HAND_OVERS + cost.idle, "{cost:?}");
    }
}
