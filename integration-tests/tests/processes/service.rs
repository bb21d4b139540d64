//! The lock service: two servers in front of one store, of which one is killed or stopped.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{
    cargo::polylock,
    clock::{TIMEOUT, now, pause, until},
    load::Load,
    on_stores,
    process::Process,
    stores::{namespace, wait_for_waiters},
    targets::Namespace,
};
use tokio::task::block_in_place;

/// Longer than a client tries one server.
const FREEZE: Duration = Duration::from_millis(1500);

/// Two servers in front of a store.
pub(crate) struct Pair {
    pub(crate) store: Namespace,
    pub(crate) servers: [Server; 2],
}

pub(crate) struct Server {
    pub(crate) address: String,
    pub(crate) process: Process,
}

impl Server {
    pub(crate) fn start(store: &str, listen: &str) -> Self {
        block_in_place(|| {
            let mut process = Process::start(polylock(), ["serve", "-S", store, "--listen", listen]);
            let line = process.next_line(TIMEOUT).unwrap_or_else(|| panic!("no server on {listen}"));
            let address = line.strip_prefix("http://").unwrap_or_else(|| panic!("{line}")).to_owned();
            Self { address, process }
        })
    }

    fn kill(&mut self) {
        block_in_place(|| self.process.kill());
    }

    fn restart(&mut self, store: &str) {
        *self = Self::start(store, &self.address);
    }
}

impl Pair {
    pub(crate) async fn start(store: &str) -> Self {
        let store = namespace(store).await;
        let servers = [(); 2].map(|()| Server::start(store.url(), "127.0.0.1:0"));
        Self { store, servers }
    }

    /// The URL of the service, with these keys. Clients begin with the first server.
    fn url(&self, keys: &str) -> String {
        let [first, second] = &self.servers;
        format!("polylock+http://{},{}?{keys}", first.address, second.address)
    }
}

on_stores! {
    [sqlite_full postgres redis]
    [
        servers_killed_and_stopped_under_load_grant_no_lock_twice
        a_client_continues_on_another_server
        a_claim_in_a_stopped_server_takes_no_lock_for_nobody
    ]
}

async fn servers_killed_and_stopped_under_load_grant_no_lock_twice(store: &str) {
    let mut pair = Pair::start(store).await;
    let (url, min_holds) = (pair.url("polylock.ttl=2s"), 200);
    let load = Load {
        duration: Duration::from_secs(4),
        min_holds,
        wait: Duration::from_secs(30),
        ..Load::default()
    };
    let faults = async {
        for round in 0..4 {
            pause(Duration::from_millis(400)).await;
            let server = &mut pair.servers[round % 2];
            if round < 2 {
                server.kill();
                pause(Duration::from_millis(300)).await;
                server.restart(pair.store.url());
            } else {
                block_in_place(|| server.process.stop());
                // Longer than a lease.
                pause(Duration::from_millis(2500)).await;
                server.process.resume();
            }
        }
    };
    let outcome = load.run(&url, faults).await;
    outcome.assert_consistent();
    assert!(outcome.sections.len() > min_holds, "too few sections: {}", outcome.sections.len());
    assert_eq!(outcome.losses, 0, "another server renews in time");
    // Nothing is left: neither in the store nor behind a server that was stopped.
    let locks = Locks::connect(pair.store.url()).await.unwrap();
    until("all locks are free", async || locks.list("").await.unwrap().iter().all(|lock| lock.is_free()))
        .await;
}

async fn a_client_continues_on_another_server(store: &str) {
    let mut pair = Pair::start(store).await;
    let url = pair.url("polylock.ttl=4s");
    let (holder, waiter) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    let guard = holder.lock("kept").acquire().await.unwrap();
    let (token, acquiring) = (guard.fencing_token(), waiter.lock("kept").acquire());
    let waiting = tokio::spawn(async move { acquiring.await.unwrap() });
    wait_for_waiters(&holder, "kept", 1).await;
    pair.servers[0].kill();
    let killed = now();
    // More than a lease.
    while now() < killed + Duration::from_secs(5) {
        guard.ensure_held().unwrap();
        pause(Duration::from_millis(20)).await;
    }
    assert!(!waiting.is_finished());
    let status = holder.inspect("kept").await.unwrap();
    assert_eq!((status.holders[0].token, status.waiters.len()), (Some(token), 1));
    guard.release().await.unwrap();
    let released = now();
    let next = waiting.await.unwrap();
    assert!(next.fencing_token() > token);
    println!("{store}: granted {:?} after the release", now().since(released));
    next.release().await.unwrap();
}

async fn a_claim_in_a_stopped_server_takes_no_lock_for_nobody(store: &str) {
    let pair = Pair::start(store).await;
    let locks = Locks::connect(&pair.url("polylock.ttl=60s")).await.unwrap();
    let direct = Locks::connect(pair.store.url()).await.unwrap();
    block_in_place(|| pair.servers[0].process.stop());
    // Its claim is in the first server, and another one in the second server.
    let guard = locks.lock("late").acquire().await.unwrap();
    assert!(direct.lock("late").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    direct.lock("late").acquire().await.unwrap().release().await.unwrap();
    // Before or after the claim has expired by the clock of the server.
    if store == "redis" {
        pause(FREEZE).await;
    }
    pair.servers[0].process.resume();
    let until = now() + Duration::from_secs(1);
    while now() < until {
        let busy = direct.inspect("late").await.unwrap();
        if !busy.is_free() {
            // The release that follows the claim.
            pause(Duration::from_millis(100)).await;
        }
        assert!(direct.inspect("late").await.unwrap().is_free(), "{busy:?}");
        pause(Duration::from_millis(20)).await;
    }
}
