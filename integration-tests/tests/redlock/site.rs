//! Nodes behind proxies, with keys of their own, and a look past the store at what they keep.

use std::{net::ToSocketAddrs, time::Duration};

use polylock::{Error, Locks};
use polylock_core::url::StoreUrl;
use polylock_integration_tests::{
    clock::{self, now, pause},
    proxy::{End, Flow, Proxy},
    servers::{self, Private},
};
use polylock_redis::redlock::{self, Config};
use redis::{Client, FromRedisValue, aio::MultiplexedConnection};

/// How soon a lock that nobody has must be free on all nodes that answer.
pub(crate) const SOON: Duration = Duration::from_secs(1);

/// Nodes, and one way to them.
#[derive(Debug)]
pub(crate) struct Site {
    servers: Vec<String>,
    prefix: String,
    pub(crate) proxies: Vec<Proxy>,
    /// Those that belong to this test, and may be hurt.
    pub(crate) nodes: Vec<Private>,
}

impl Site {
    /// As many of the nodes that all tests share.
    pub(crate) fn shared(count: usize) -> Self {
        let servers = &servers::redlock().unwrap()[..count];
        let urls = servers.iter().map(|server| server.url().to_owned()).collect();
        Self::of(urls, servers[0].name(), Vec::new())
    }

    /// Nodes of its own with these settings.
    pub(crate) fn private(count: usize, settings: &[&str]) -> Self {
        let nodes = tokio::task::block_in_place(|| servers::redlock::start(count, settings)).unwrap();
        let urls = nodes.iter().map(|node| node.url().to_owned()).collect();
        Self::of(urls, "p".to_owned(), nodes)
    }

    /// Servers of its own that keep nothing, without proxies, under the default prefix.
    pub(crate) fn private_direct(count: usize) -> Self {
        let nodes = tokio::task::block_in_place(|| servers::redlock::start(count, &[])).unwrap();
        let servers = nodes.iter().map(|node| node.url().to_owned()).collect();
        Self { servers, prefix: "polylock".to_owned(), proxies: Vec::new(), nodes }
    }

    /// The URL of the servers themselves, with these options.
    pub(crate) fn direct_url(&self, options: &str) -> String {
        format!("{}?{options}", servers::redlock::url(self.servers.iter().map(String::as_str)))
    }

    /// The servers at `url` were never used before: their votes count at once.
    pub(crate) async fn admit(&self, url: &str) -> Vec<String> {
        redlock::admit(config(url)).await.unwrap()
    }

    fn of(servers: Vec<String>, prefix: String, nodes: Vec<Private>) -> Self {
        let address = |url: &String| {
            let host = url.rsplit(['/', '@']).next().unwrap();
            host.to_socket_addrs().unwrap().next().unwrap()
        };
        let proxies = servers.iter().map(|url| Proxy::start(address(url))).collect();
        Self { servers, prefix, proxies, nodes }
    }

    /// Another way to the same nodes.
    pub(crate) fn other_way(&self) -> Self {
        Self::of(self.servers.clone(), self.prefix.clone(), Vec::new())
    }

    /// Its URL; nodes are trusted to remember.
    pub(crate) fn url(&self, more: &str) -> String {
        self.url_without_trust(&format!("&polylock.restart=trust{more}"))
    }

    /// Its URL with the defaults.
    pub(crate) fn url_without_trust(&self, more: &str) -> String {
        let urls: Vec<String> =
            self.proxies.iter().zip(&self.servers).map(|(proxy, of)| proxy.url(of)).collect();
        let url = servers::redlock::url(urls.iter().map(String::as_str));
        format!("{url}?polylock.prefix={}{more}", self.prefix)
    }

    pub(crate) async fn open(&self, more: &str) -> Locks {
        Locks::connect(&self.url(more)).await.unwrap()
    }

    /// This node is down: who is connected is cut off, and new connections are refused.
    pub(crate) fn kill(&self, node: usize) {
        tokio::task::block_in_place(|| {
            self.proxies[node].refuse(true);
            self.proxies[node].cut(End::Reset);
        });
    }

    pub(crate) fn revive(&self, node: usize) {
        tokio::task::block_in_place(|| self.proxies[node].refuse(false));
    }

    /// This node answers no more, and hears what it is told when it is thawed.
    pub(crate) fn freeze(&self, node: usize) {
        self.proxies[node].set_both(Flow::Stall);
    }

    pub(crate) fn thaw(&self, node: usize) {
        self.proxies[node].set_both(Flow::Pass);
    }

    /// Where clients find this node.
    pub(crate) fn address(&self, node: usize) -> String {
        self.proxies[node].address().to_string()
    }

    /// Asks a node past the proxy.
    pub(crate) async fn ask<T: FromRedisValue>(&self, node: usize, command: &[&str]) -> T {
        let mut connection = connection(&self.servers[node]).await;
        redis::cmd(command[0]).arg(&command[1..]).query_async(&mut connection).await.unwrap()
    }

    /// The key of this kind of a lock.
    pub(crate) fn key(&self, kind: &str, name: &str) -> String {
        format!("{{{}}}:{kind}:{name}", self.prefix)
    }

    /// How many locks are held on each node, by whomever.
    pub(crate) async fn votes(&self) -> Vec<usize> {
        self.votes_of(&(0..self.servers.len()).collect::<Vec<_>>()).await
    }

    /// The same on these servers alone.
    pub(crate) async fn votes_of(&self, nodes: &[usize]) -> Vec<usize> {
        let mut votes = Vec::new();
        for node in nodes {
            votes.push(self.ask::<Vec<String>>(*node, &["KEYS", &self.key("r", "*")]).await.len());
        }
        votes
    }

    /// Waits until the votes are these.
    pub(crate) async fn has(&self, votes: &[usize]) {
        clock::until(&format!("votes {votes:?}"), || async { self.votes().await == votes }).await;
    }

    /// Soon, no node keeps a lock.
    pub(crate) async fn is_free_soon(&self) {
        let until = now() + SOON;
        loop {
            let votes = self.votes().await;
            if votes.iter().all(|votes| *votes == 0) {
                return;
            }
            assert!(now() < until, "locks are left behind: {votes:?}");
            pause(Duration::from_millis(5)).await;
        }
    }

    /// The id of the request that has the lock, on each node.
    pub(crate) async fn holders(&self, name: &str) -> Vec<Option<Vec<u8>>> {
        let mut holders = Vec::new();
        for node in 0..self.servers.len() {
            let value: Option<Vec<u8>> = self.ask(node, &["GET", &self.key("r", name)]).await;
            holders.push(value.map(|value| value[..16].to_vec()));
        }
        holders
    }
}

/// The store's part of a URL.
pub(crate) fn config(url: &str) -> Config {
    let url = StoreUrl::parse(url).unwrap();
    Config::from_url(&url, &mut url.keys()).unwrap()
}

async fn connection(url: &str) -> MultiplexedConnection {
    Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

/// An error and its causes, in one line.
pub(crate) fn told(error: &Error) -> String {
    let (mut text, mut cause) = (error.to_string(), std::error::Error::source(error));
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
