//! The check for deadlocks against random graphs of owners, and against a contended load without cycles, in memory.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use fastrand::Rng;
use polylock_core::{Clock, Error, Guard, Locks, Moment, OwnerId, SystemClock, memory};
use tokio::task::JoinSet;

const GRAPHS: u64 = 100;
const INTERVAL: Duration = Duration::from_millis(500);
/// The greatest time between the formation of a cycle and its report.
const REPORT: Duration = Duration::from_secs(2);

async fn pause() {
    SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(2)).await;
}

/// Each owner holds the lock of its own number; `waits[owner]` is the number of the lock that it waits for.
struct Graph {
    waits: Vec<Option<usize>>,
}

impl Graph {
    fn random(rng: &mut Rng) -> Self {
        let owners = rng.usize(2..8);
        let wait = |owner: usize, rng: &mut Rng| {
            let other = rng.usize(0..owners);
            (other != owner && (rng.f64() < 0.9)).then_some(other)
        };
        Self { waits: (0..owners).map(|owner| wait(owner, rng)).collect() }
    }

    /// Returns the owners of the cycle that `owner` is in; empty if it is in none.
    fn cycle_of(&self, owner: usize) -> BTreeSet<usize> {
        let mut members = BTreeSet::new();
        let mut at = owner;
        while let Some(next) = self.waits[at] {
            if !members.insert(at) {
                break;
            }
            at = next;
        }
        if at == owner { members } else { BTreeSet::new() }
    }

    fn cycles(&self) -> BTreeSet<BTreeSet<usize>> {
        (0..self.waits.len()).map(|owner| self.cycle_of(owner)).filter(|cycle| !cycle.is_empty()).collect()
    }
}

/// Runs the graph until every owner has had its lock or was refused, and checks that one owner of each cycle was refused in time.
async fn run(graph: Graph, order: Vec<usize>) {
    let locks = Locks::new(memory::connect());
    let owners: Vec<OwnerId> =
        (0..graph.waits.len()).map(|owner| OwnerId::new(format!("owner-{owner}")).unwrap()).collect();
    let lock = |number: usize, owner: usize| {
        locks.lock(number.to_string()).owner(&owners[owner]).deadlock_check(INTERVAL)
    };
    let mut guards: HashMap<usize, Guard> = HashMap::new();
    for owner in 0..owners.len() {
        guards.insert(owner, lock(owner, owner).acquire().await.unwrap());
    }
    let mut formed: HashMap<usize, Moment> = HashMap::new();
    let mut waits = JoinSet::new();
    for owner in order {
        let Some(number) = graph.waits[owner] else { continue };
        let waiting = locks.inspect(&number.to_string()).await.unwrap().waiters.len();
        let request = lock(number, owner).acquire();
        waits.spawn(async move { (owner, request.await, SystemClock.now()) });
        while locks.inspect(&number.to_string()).await.unwrap().waiters.len() == waiting {
            pause().await;
        }
        formed.insert(owner, SystemClock.now());
    }
    // The owners without a wait keep their locks for longer than a check takes.
    let release_at = SystemClock.now() + 2 * INTERVAL + Duration::from_millis(300);
    let mut reported = BTreeSet::new();
    let mut is_waiting_for_chains = true;
    loop {
        let ended = tokio::select! {
            ended = waits.join_next(), if !waits.is_empty() => ended.unwrap().unwrap(),
            () = SystemClock.sleep_until(release_at), if is_waiting_for_chains => {
                is_waiting_for_chains = false;
                for owner in (0..owners.len()).filter(|owner| graph.waits[*owner].is_none()) {
                    guards.remove(&owner).unwrap().release().await.unwrap();
                }
                continue;
            }
            else => break,
        };
        let (owner, outcome, at) = ended;
        match outcome {
            Ok(granted) => granted.release().await.unwrap(),
            Err(Error::Deadlock { cycle, .. }) => {
                let members = graph.cycle_of(owner);
                assert!(!members.is_empty(), "a report without a cycle: {cycle}");
                for (member, name) in owners.iter().enumerate() {
                    assert_eq!(cycle.contains(name.as_str()), members.contains(&member), "{cycle}: {name}");
                }
                let began = members.iter().map(|member| formed[member]).max().unwrap();
                assert!(at.since(began) < REPORT, "reported after {:?}: {cycle}", at.since(began));
                assert!(reported.insert(members), "the second victim of a cycle: {cycle}");
            }
            Err(error) => panic!("owner {owner}: {error}"),
        }
        guards.remove(&owner).unwrap().release().await.unwrap();
    }
    assert_eq!(reported, graph.cycles());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_cycle_of_random_graphs_is_reported_once() {
    let mut rng = Rng::with_seed(17);
    let mut graphs = JoinSet::new();
    let mut cycles = 0;
    for _ in 0..GRAPHS {
        let graph = Graph::random(&mut rng);
        let mut order: Vec<usize> = (0..graph.waits.len()).collect();
        rng.shuffle(&mut order);
        cycles += graph.cycles().len();
        graphs.spawn(run(graph, order));
    }
    assert!((20..=90).contains(&cycles), "{cycles} cycles: graphs with and without");
    while let Some(ended) = graphs.join_next().await {
        ended.unwrap();
    }
}

/// 200 owners acquire two of four locks, always in the same order, and wait for longer than the interval of the check.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_acquisitions_without_a_cycle_are_all_granted() {
    const OWNERS: u64 = 200;
    const ACQUISITIONS: usize = 50;
    let locks = Locks::new(memory::connect());
    let mut owners = JoinSet::new();
    for number in 0..OWNERS {
        let locks = locks.clone();
        owners.spawn(async move {
            let (owner, mut rng) = (OwnerId::unique(), Rng::with_seed(number));
            let mut longest = Duration::ZERO;
            for _ in 0..ACQUISITIONS / 2 {
                let first = rng.usize(0..3);
                let second = rng.usize(first + 1..4);
                let lock = |number: usize| {
                    locks.lock(number.to_string()).owner(&owner).deadlock_check(Duration::from_millis(100))
                };
                let began = SystemClock.now();
                let first = lock(first).acquire().await.unwrap();
                longest = longest.max(SystemClock.now().since(began));
                let second = lock(second).acquire().await.unwrap();
                pause().await;
                second.release().await.unwrap();
                first.release().await.unwrap();
            }
            longest
        });
    }
    let mut longest = Duration::ZERO;
    while let Some(ended) = owners.join_next().await {
        longest = longest.max(ended.unwrap());
    }
    assert!(longest > Duration::from_millis(300), "the longest wait was {longest:?}: no request was checked");
}
