//! Operations that a caller drives on connections of its own runtime: the clean-up when that runtime ends, and the servers to
//! which these connections lead.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use polylock::{Guard, Locks};
use polylock_integration_tests::{
    clock::{self, now, pause},
    proxy::{Direction, Flow},
};
use tokio::runtime::{Builder, Runtime};

use super::setup::Setup;

/// Longer than any test, so a lock that is free before was withdrawn.
const TTL: &str = "&polylock.ttl=60s";

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// The numbers of holders of a few locks, counted by the holders.
#[derive(Debug, Default)]
struct Sections {
    inside: [AtomicUsize; 3],
    entered: AtomicUsize,
    overlaps: AtomicUsize,
}

/// A lock that is held. The section ends before the lock is released, however the task ends.
struct Section {
    sections: Arc<Sections>,
    lock: usize,
    guard: Option<Guard>,
}

impl Section {
    async fn enter(sections: &Arc<Sections>, locks: &Locks, lock: usize) -> Option<Self> {
        let guard = locks.lock(format!("n{lock}")).wait(Duration::from_secs(20)).acquire().await.ok()?;
        sections.entered.fetch_add(1, SeqCst);
        sections.overlaps.fetch_add(sections.inside[lock].fetch_add(1, SeqCst), SeqCst);
        Some(Self { sections: sections.clone(), lock, guard: Some(guard) })
    }

    fn end(&mut self) -> Option<Guard> {
        let guard = self.guard.take()?;
        self.sections.inside[self.lock].fetch_sub(1, SeqCst);
        Some(guard)
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        drop(self.end());
    }
}

async fn compete(sections: Arc<Sections>, locks: Locks, first: usize) {
    for turn in first.. {
        let Some(mut section) = Section::enter(&sections, &locks, turn % 3).await else { continue };
        pause(Duration::from_micros(fastrand::u64(0..500))).await;
        if let (Some(guard), true) = (section.end(), fastrand::bool()) {
            guard.release().await.ok();
        }
    }
}

/// Returns the number of runtimes that end.
fn rounds() -> usize {
    std::env::var("POLYLOCK_TEST_RUNTIMES").map_or(12, |rounds| rounds.parse().unwrap())
}

#[test]
fn a_runtime_that_ends_during_claims_leaves_no_vote() {
    let outer = runtime();
    let _inside = outer.enter();
    let setup = Setup::shared(5);
    let other_route = setup.other_route();
    let (locks, others) = outer.block_on(async { (setup.open(TTL).await, other_route.open(TTL).await) });
    // Different delays provide many points between the first message and the last reply.
    for (node, proxy) in setup.proxies.iter().enumerate() {
        proxy.set(Direction::ToServer, Flow::Delay(Duration::from_micros(700 * node as u64)));
    }
    let sections = Arc::<Sections>::default();
    let competing = outer.spawn(compete(sections.clone(), others, 0));
    for round in 0..rounds() {
        let ends = runtime();
        let before = setup.proxies[0].counts().open;
        for task in 0..4 {
            ends.spawn(compete(sections.clone(), locks.clone(), task));
        }
        // Some end before they have their own connections.
        if round % 4 != 0 {
            clock::within(Duration::from_secs(2), || setup.proxies[0].counts().open > before);
        }
        clock::within(Duration::from_millis(fastrand::u64(5..60)), || false);
        ends.shutdown_background();
    }
    // On a busy machine, the runtimes may end before they have a lock.
    clock::within(Duration::from_secs(30), || sections.entered.load(SeqCst) > rounds());
    competing.abort();
    let (entered, overlaps) = (sections.entered.load(SeqCst), sections.overlaps.load(SeqCst));
    println!("{} runtimes, {entered} holds", rounds());
    assert_eq!(overlaps, 0, "of {entered} holds");
    assert!(entered > rounds(), "{entered}");
    outer.block_on(setup.wait_for_votes(&[0; 5]));
}

/// Loses withdrawals to two servers, and then calls `end` with the runtime of their caller.
fn lose_withdrawals<T>(caller: Runtime, end: impl FnOnce(Runtime) -> T) {
    let outer = runtime();
    let _inside = outer.enter();
    let setup = Setup::shared(5);
    let locks = outer.block_on(setup.open(&format!("{TTL}&polylock.operation_timeout=500ms")));
    caller.block_on(async {
        setup.warm_up(&locks).await;
        let guard = locks.lock("n").acquire().await.unwrap();
        setup.wait_for_votes(&[1; 5]).await;
        // Messages to these servers on the present connections are lost.
        for node in [3, 4] {
            setup.proxies[node].set_existing(Direction::ToServer, Flow::Drop);
        }
        guard.release().await.unwrap();
    });
    let _ended = end(caller);
    outer.block_on(setup.wait_for_votes(&[0; 5]));
}

#[test]
fn a_withdrawal_that_ends_with_its_runtime_is_repeated() {
    lose_withdrawals(runtime(), Runtime::shutdown_background);
}

#[test]
fn a_withdrawal_of_a_runtime_that_is_not_driven_is_repeated() {
    let caller = Builder::new_current_thread().enable_all().build().unwrap();
    lose_withdrawals(caller, |caller| caller);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_leads_to_another_server_is_not_used() {
    for moved in [vec![1, 2], vec![2]] {
        let setup = Setup::private(5, &[]);
        let proxies: Vec<String> =
            (0..3).map(|node| format!("redis://{}", setup.proxies[node].address())).collect();
        let url = polylock_integration_tests::servers::redlock::url(proxies.iter().map(String::as_str));
        // A connection that is only slow is not replaced by one that leads to another server.
        let options = "polylock.restart=trust&polylock.namespace=p&polylock.operation_timeout=5s";
        let locks = Locks::connect(&format!("{url}?{options}")).await.unwrap();
        let direct = Locks::connect(&direct_url(&setup, options)).await.unwrap();
        // The addresses of some servers lead to others by now, and the I/O thread is still connected to the former ones.
        for node in &moved {
            setup.proxies[*node].redirect_to(([127, 0, 0, 1], setup.nodes[node + 2].port()).into());
        }
        clock::until("connections of this runtime", || async {
            locks.lock("warm").acquire().await.unwrap().release().await.unwrap();
            (0..3).all(|node| setup.proxies[node].counts().open >= 2)
        })
        .await;
        let until = now() + Duration::from_millis(300);
        while now() < until {
            let guard = locks.lock("n").acquire().await.unwrap();
            assert_eq!(setup.votes_of(&[3, 4]).await, [0, 0], "another server has voted");
            clock::until("all vote", || async { setup.votes_of(&[0, 1, 2]).await == [1; 3] }).await;
            assert!(direct.lock("n").try_acquire().await.unwrap().is_none(), "it has two holders");
            guard.release().await.unwrap();
            clock::until("it is free", || async { setup.votes().await == [0; 5] }).await;
        }
    }
}

/// Returns the URL of the first three servers, without proxies.
fn direct_url(setup: &Setup, options: &str) -> String {
    let servers: Vec<String> =
        (0..3).map(|node| format!("redis://127.0.0.1:{}", setup.nodes[node].port())).collect();
    let url = polylock_integration_tests::servers::redlock::url(servers.iter().map(String::as_str));
    format!("{url}?{options}")
}
