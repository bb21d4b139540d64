//! A release wakes one waiter, however many there are.

use std::{collections::HashMap, time::Duration};

use polylock::Locks;
use polylock_integration_tests::{
    clock::now,
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
    let mut holder = sessions[0].lock("n").acquire().await.unwrap();
    let mut waiting = std::collections::VecDeque::new();
    for (before, locks) in sessions.iter().skip(1).enumerate() {
        waiting.push_back(tokio::spawn(locks.lock("n").acquire()));
        waiters(&sessions[0], "n", before + 1).await;
    }
    // By inspecting nothing is watched, but much is asked.
    let (before, began) = (counted(&server).await, now());
    for turn in 1..=HAND_OVERS {
        holder.release().await.unwrap();
        holder = waiting.pop_front().unwrap().await.unwrap().unwrap();
        let last = usize::try_from((turn - 1) % contenders).unwrap();
        waiting.push_back(tokio::spawn(sessions[last].lock("n").acquire()));
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
