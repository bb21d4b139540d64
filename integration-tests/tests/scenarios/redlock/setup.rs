//! Nodes behind proxies, with their own keys, and direct access to the keys, bypassing the store.

use std::{net::ToSocketAddrs, time::Duration};

use polylock::Locks;
use polylock_core::url::StoreUrl;
use polylock_integration_tests::{
    clock::{self, now, pause},
    proxy::{End, Flow, Proxy},
    servers::{self, PrivateServer},
};
use polylock_redis::redlock::{self, Config};
use redis::{FromRedisValue, aio::MultiplexedConnection};

/// The longest time until a released lock is free on all nodes that reply: a second, and the time that a busy machine may add. A test
/// that looks for votes which are left behind has a longer lease.
pub(crate) const MAX_FREE_TIME: Duration = Duration::from_secs(3);

/// Options of a client that waits for a node which a busy machine delays, and does not regard it as silent.
pub(crate) const PATIENT: &str = "&polylock.operation_timeout=5s";

/// The time at which a message expires that never does, in us by the node's clock.
pub(crate) const NEVER: &str = "9223372036854775807";

/// Nodes, and one route to them.
#[derive(Debug)]
pub(crate) struct Setup {
    servers: Vec<String>,
    prefix: String,
    pub(crate) proxies: Vec<Proxy>,
    /// The nodes of this test alone, which it may disturb.
    pub(crate) nodes: Vec<PrivateServer>,
}

impl Setup {
    /// Returns `count` of the nodes that all tests share.
    pub(crate) fn shared(count: usize) -> Self {
        let servers = &servers::redlock().unwrap()[..count];
        let urls = servers.iter().map(|server| server.url().to_owned()).collect();
        Self::of(urls, servers[0].name(), Vec::new())
    }

    /// Starts nodes for this test alone, with these settings.
    pub(crate) fn private(count: usize, settings: &[&str]) -> Self {
        let nodes = tokio::task::block_in_place(|| servers::redlock::start(count, settings)).unwrap();
        let urls = nodes.iter().map(|node| node.url().to_owned()).collect();
        Self::of(urls, "p".to_owned(), nodes)
    }

    /// Starts volatile servers for this test alone, without proxies, with the default prefix.
    pub(crate) fn private_direct(count: usize) -> Self {
        let nodes = tokio::task::block_in_place(|| servers::redlock::start(count, &[])).unwrap();
        let servers = nodes.iter().map(|node| node.url().to_owned()).collect();
        Self { servers, prefix: "polylock".to_owned(), proxies: Vec::new(), nodes }
    }

    /// Returns the URL of the servers without proxies, with these options.
    pub(crate) fn direct_url(&self, options: &str) -> String {
        format!("{}?{options}", servers::redlock::url(self.servers.iter().map(String::as_str)))
    }

    /// Admits the servers at `url`, which were never used before: their votes count at once.
    pub(crate) async fn admit(&self, url: &str) -> Vec<String> {
        let config = config(url).operation_timeout(Duration::from_secs(5));
        redlock::admit(config).await.unwrap()
    }

    fn of(servers: Vec<String>, prefix: String, nodes: Vec<PrivateServer>) -> Self {
        let address = |url: &String| {
            let host = url.rsplit(['/', '@']).next().unwrap();
            host.to_socket_addrs().unwrap().next().unwrap()
        };
        let proxies = servers.iter().map(|url| Proxy::start(address(url))).collect();
        Self { servers, prefix, proxies, nodes }
    }

    /// Returns another route to the same nodes.
    pub(crate) fn other_route(&self) -> Self {
        Self::of(self.servers.clone(), self.prefix.clone(), Vec::new())
    }

    /// Returns the URL, with `restart=trust`.
    pub(crate) fn url(&self, more: &str) -> String {
        self.url_without_trust(&format!("&polylock.restart=trust{more}"))
    }

    /// Returns the URL with the defaults.
    pub(crate) fn url_without_trust(&self, more: &str) -> String {
        let urls: Vec<String> =
            self.proxies.iter().zip(&self.servers).map(|(proxy, of)| proxy.url(of)).collect();
        let url = servers::redlock::url(urls.iter().map(String::as_str));
        format!("{url}?polylock.namespace={}{more}", self.prefix)
    }

    pub(crate) async fn open(&self, more: &str) -> Locks {
        Locks::connect(&self.url(more)).await.unwrap()
    }

    /// Uses a lock until the present runtime has a connection to each server, besides that of the I/O thread, and uses it.
    pub(crate) async fn warm_up(&self, locks: &Locks) {
        let cycle = async || locks.lock("warm").acquire().await.unwrap().release().await.unwrap();
        clock::until("connections of this runtime", || async {
            cycle().await;
            self.proxies.iter().all(|proxy| proxy.counts().open >= 2)
        })
        .await;
        cycle().await;
        self.wait_until_free().await;
    }

    /// Closes the connections to this node, and refuses new ones.
    pub(crate) fn disconnect(&self, node: usize) {
        tokio::task::block_in_place(|| {
            self.proxies[node].refuse(true);
            self.proxies[node].cut(End::Reset);
        });
    }

    pub(crate) fn reconnect(&self, node: usize) {
        tokio::task::block_in_place(|| self.proxies[node].refuse(false));
    }

    /// Stops the traffic of this node. Messages are delivered when it is thawed.
    pub(crate) fn freeze(&self, node: usize) {
        self.proxies[node].set_both(Flow::Stall);
    }

    pub(crate) fn thaw(&self, node: usize) {
        self.proxies[node].set_both(Flow::Pass);
    }

    /// Returns the address of this node for clients.
    pub(crate) fn address(&self, node: usize) -> String {
        self.proxies[node].address().to_string()
    }

    /// Sends a command to a node, bypassing the proxy.
    pub(crate) async fn query<T: FromRedisValue>(&self, node: usize, command: &[&str]) -> T {
        let mut connection = connection(&self.servers[node]).await;
        redis::cmd(command[0]).arg(&command[1..]).query_async(&mut connection).await.unwrap()
    }

    /// Runs a script of the store at the first node with these arguments, as a copy of its message would, and returns the reply.
    pub(crate) async fn run_script(&self, script: &str, name: &str, arguments: &[&str]) -> redis::Value {
        const PREFIX: &str = concat!(
            include_str!("../../../../crates/polylock-redis/src/redlock/scripts/membership.lua"),
            include_str!("../../../../crates/polylock-redis/src/redlock/scripts/common.lua")
        );
        let (text, keys) =
            (format!("{PREFIX}{script}"), ["r", "n", "b", "w"].map(|kind| self.key(kind, name)));
        let mut command = vec!["EVAL", &text, "4"];
        command.extend(keys.iter().map(String::as_str));
        command.extend(arguments);
        self.query(0, &command).await
    }

    /// Returns the key of this kind of a lock.
    pub(crate) fn key(&self, kind: &str, name: &str) -> String {
        format!("{{{}}}:{kind}:{name}", self.prefix)
    }

    /// Returns the number of votes of each node, for any request.
    pub(crate) async fn votes(&self) -> Vec<usize> {
        self.votes_of(&(0..self.servers.len()).collect::<Vec<_>>()).await
    }

    /// Returns the number of votes of these nodes.
    pub(crate) async fn votes_of(&self, nodes: &[usize]) -> Vec<usize> {
        let mut votes = Vec::new();
        for node in nodes {
            votes.push(self.query::<Vec<String>>(*node, &["KEYS", &self.key("r", "*")]).await.len());
        }
        votes
    }

    /// Waits until the nodes have these numbers of votes.
    pub(crate) async fn wait_for_votes(&self, votes: &[usize]) {
        clock::until(&format!("votes {votes:?}"), || async { self.votes().await == votes }).await;
    }

    /// Waits until no node has a vote, for [`MAX_FREE_TIME`] at most.
    pub(crate) async fn wait_until_free(&self) {
        let until = now() + MAX_FREE_TIME;
        loop {
            let votes = self.votes().await;
            if votes.iter().all(|votes| *votes == 0) {
                return;
            }
            assert!(now() < until, "locks are left behind: {votes:?}");
            pause(Duration::from_millis(5)).await;
        }
    }

    /// Returns by node the id of the request that has its vote.
    pub(crate) async fn holders(&self, name: &str) -> Vec<Option<Vec<u8>>> {
        let mut holders = Vec::new();
        for node in 0..self.servers.len() {
            let value: Option<Vec<u8>> = self.query(node, &["GET", &self.key("r", name)]).await;
            holders.push(value.map(|value| value[..16].to_vec()));
        }
        holders
    }
}

/// Reads the store's configuration from a URL.
pub(crate) fn config(url: &str) -> Config {
    let url = StoreUrl::parse(url).unwrap();
    Config::from_url(&url, &mut url.keys()).unwrap()
}

async fn connection(url: &str) -> MultiplexedConnection {
    servers::redis::connect(url).await.unwrap()
}
