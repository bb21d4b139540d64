//! A release wakes one waiter, however many there are.

use std::{collections::HashMap, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use polylock::Locks;
use polylock_integration_tests::{
    clock::{PATIENCE, now},
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
