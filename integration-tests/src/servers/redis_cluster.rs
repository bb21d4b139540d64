//! A Redis Cluster: three primaries with a replica each.

use std::ops::Deref;

use polylock_testkit::Missing;
use redis::{FromRedisValue, RedisResult};

use super::{
    private::{self, Failure, PrivateServer, Server, blocking},
    redis::{self as server, Tls},
};
use crate::clock;

/// The number of primaries.
pub const PRIMARIES: usize = 3;
/// The number of slots.
pub const SLOTS: usize = 16_384;

/// Starts one with `settings`: lines of each node's `redis.conf`. A primary that does not reply for a second is replaced by its
/// replica.
///
/// # Errors
/// [`Missing`] if Redis is not installed.
///
/// # Panics
/// If it does not start, with the log of a server.
pub fn start(settings: &[&str]) -> Result<Cluster, Missing> {
    start_or_fail(settings, Tls::No).map_err(private::missing)
}

/// Starts one that accepts only TLS, between the nodes too; see [`redis::start_tls`](server::start_tls).
///
/// # Errors
/// [`Missing`] if Redis is not installed.
///
/// # Panics
/// If it does not start, with the log of a server.
pub fn start_tls(settings: &[&str]) -> Result<Cluster, Missing> {
    start_or_fail(&[&["tls-cluster yes"], settings].concat(), Tls::Own).map_err(private::missing)
}

/// Starts one node that serves all slots, with `settings`: lines of its `redis.conf`.
///
/// # Errors
/// [`Missing`] if Redis is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn start_one(settings: &[&str]) -> Result<PrivateServer, Missing> {
    let node = node(settings, Tls::No).map_err(private::missing)?;
    let ready = blocking(async {
        ask::<()>(&node, &["CLUSTER", "ADDSLOTSRANGE", "0", &(SLOTS - 1).to_string()]).await?;
        clock::until("the cluster is healthy", || is_healthy(&node)).await;
        RedisResult::Ok(())
    });
    let ready = ready.and_then(|ready| ready.map_err(|error| error.to_string()));
    ready.unwrap_or_else(|why| panic!("can't create a cluster: {why}\n{}", node.log()));
    Ok(node)
}

/// Starts the durable cluster that the tests of a process share.
pub(super) fn shared() -> Result<Cluster, Failure> {
    start_or_fail(server::DURABLE, Tls::No)
}

/// A cluster, of which the first [`PRIMARIES`] nodes were made primaries. It is killed when this is dropped.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<PrivateServer>,
    server: Server,
}

impl Deref for Cluster {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Cluster {
    /// Returns all nodes; the node `n + PRIMARIES` is the replica of the node `n` until a failover.
    #[must_use]
    pub fn nodes(&self) -> &[PrivateServer] {
        &self.nodes
    }

    /// Sends a command to a node, without the store.
    ///
    /// # Panics
    /// If it fails.
    pub async fn ask<T: FromRedisValue>(&self, node: usize, command: &[&str]) -> T {
        let answer = ask(&self.nodes[node], command).await;
        answer.unwrap_or_else(|error| panic!("{command:?} of node {node}: {error}"))
    }

    /// Returns the id of a node.
    ///
    /// # Panics
    /// If it does not reply.
    pub async fn id(&self, node: usize) -> String {
        self.ask(node, &["CLUSTER", "MYID"]).await
    }

    /// Waits until every running node reports a healthy cluster in which `primary` serves `slot`.
    ///
    /// # Panics
    /// If that takes too long.
    pub async fn wait_until_agreed(&self, slot: u16, primary: usize) {
        let id = self.id(primary).await;
        clock::until(&format!("node {primary} serves slot {slot}"), || async {
            for node in self.nodes.iter().filter(|node| node.id().is_some()) {
                let table = ask::<String>(node, &["CLUSTER", "NODES"]).await.unwrap_or_default();
                let served = table.lines().any(|line| line.starts_with(&id) && serves(line, slot));
                if !served || !is_healthy(node).await {
                    return false;
                }
            }
            true
        })
        .await;
    }

    /// Returns the index of the node that serves `slot`, in the view of the node `viewer`; `None` if there is none.
    ///
    /// # Panics
    /// If `viewer` does not reply.
    pub async fn primary_of(&self, slot: u16, viewer: usize) -> Option<usize> {
        let table: String = self.ask(viewer, &["CLUSTER", "NODES"]).await;
        let line = table.lines().find(|line| serves(line, slot))?;
        let address = line.split([' ', '@']).nth(1)?;
        self.nodes.iter().position(|node| node.url().ends_with(address))
    }

    /// Returns the keys of `slot` in a node.
    ///
    /// # Panics
    /// If it does not reply.
    pub async fn keys_in(&self, node: usize, slot: u16) -> Vec<String> {
        self.ask(node, &["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "1000"]).await
    }

    /// Starts to move `slot` between nodes: from now on, each key is on one of them.
    ///
    /// # Panics
    /// If one refuses.
    pub async fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let (slot, source, target) = (slot.to_string(), self.id(from).await, self.id(to).await);
        self.ask::<()>(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]).await;
        self.ask::<()>(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]).await;
    }

    /// Moves these keys of a slot that is being moved.
    ///
    /// # Panics
    /// If one can't be moved.
    pub async fn move_keys(&self, keys: &[String], from: usize, to: usize) {
        let port = self.nodes[to].port().to_string();
        for key in keys {
            // A key that has expired meanwhile is missing.
            self.ask::<String>(from, &["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]).await;
        }
    }

    /// Ends the move of `slot`.
    ///
    /// # Panics
    /// If a node refuses.
    pub async fn end_move(&self, slot: u16, from: usize, to: usize) {
        let (text, target) = (slot.to_string(), self.id(to).await);
        for node in [to, from] {
            self.ask::<()>(node, &["CLUSTER", "SETSLOT", &text, "NODE", &target]).await;
        }
    }

    /// Moves `slot` with all its keys.
    ///
    /// # Panics
    /// If a node refuses.
    pub async fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to).await;
        loop {
            let keys = self.keys_in(from, slot).await;
            if keys.is_empty() {
                break;
            }
            self.move_keys(&keys, from, to).await;
        }
        self.end_move(slot, from, to).await;
    }
}

/// Returns true if the node in this line of `CLUSTER NODES` serves `slot`.
fn serves(line: &str, slot: u16) -> bool {
    line.split(' ').skip(8).any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse::<u16>().ok();
        number(first).zip(number(last)).is_some_and(|(first, last)| (first..=last).contains(&slot))
    })
}

fn start_or_fail(settings: &[&str], tls: Tls) -> Result<Cluster, Failure> {
    let mut nodes = vec![node(settings, tls)?];
    while nodes.len() < 2 * PRIMARIES {
        nodes.push(node(settings, Tls::beside(&nodes[0]))?);
    }
    let hosts: Vec<String> =
        nodes[..PRIMARIES].iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let scheme = nodes[0].url().split(':').next().unwrap_or_default();
    let url = format!("{scheme}-cluster://{}", hosts.join(","));
    let cluster = Cluster { nodes, server: Server::at(url) };
    let joined = blocking(async { join(&cluster).await.map_err(|error| error.to_string()) });
    joined.and_then(|joined| joined).map_err(|why| {
        Failure::Broken(format!("can't create a cluster: {why}\n{}", cluster.nodes[0].log()))
    })?;
    Ok(cluster)
}

fn node(settings: &[&str], tls: Tls) -> Result<PrivateServer, Failure> {
    let bus = private::ports().next().ok_or_else(private::no_free_port)?;
    let bus = format!("cluster-port {bus}");
    let cluster = [
        "cluster-enabled yes",
        &bus,
        "cluster-node-timeout 1000",
        "cluster-replica-validity-factor 0",
        "repl-diskless-sync-delay 0",
    ];
    private::start_or_fail(server::Redis::of(&server::REDIS, &[&cluster[..], settings].concat()).with(tls))
}

/// Joins the nodes to one cluster.
async fn join(cluster: &Cluster) -> RedisResult<()> {
    let nodes = &cluster.nodes;
    for (index, node) in nodes.iter().enumerate() {
        let epoch = (index + 1).to_string();
        ask::<()>(node, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await?;
    }
    for (index, node) in nodes[..PRIMARIES].iter().enumerate() {
        let (first, last) = (index * SLOTS / PRIMARIES, (index + 1) * SLOTS / PRIMARIES - 1);
        ask::<()>(node, &["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]).await?;
    }
    // Each node meets all others: gossip from one node would take seconds.
    for (index, node) in nodes.iter().enumerate() {
        let bus: (String, String) = ask(node, &["CONFIG", "GET", "cluster-port"]).await?;
        let port = node.port().to_string();
        for other in &nodes[..index] {
            ask::<()>(other, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus.1]).await?;
        }
    }
    clock::until("every node knows all", || async {
        for node in nodes {
            let table = ask::<String>(node, &["CLUSTER", "NODES"]).await.unwrap_or_default();
            if table.lines().count() < nodes.len() || table.contains("handshake") {
                return false;
            }
        }
        true
    })
    .await;
    for (index, node) in nodes[PRIMARIES..].iter().enumerate() {
        let primary: String = ask(&nodes[index], &["CLUSTER", "MYID"]).await?;
        ask::<()>(node, &["CLUSTER", "REPLICATE", &primary]).await?;
    }
    clock::until("the cluster is healthy", || async {
        for (index, node) in nodes.iter().enumerate() {
            let replication = ask::<String>(node, &["INFO", "replication"]).await.unwrap_or_default();
            let replicates = replication.contains("master_link_status:up");
            if (index >= PRIMARIES) != replicates || !is_healthy(node).await {
                return false;
            }
            let table = ask::<String>(node, &["CLUSTER", "NODES"]).await.unwrap_or_default();
            let replicas = table.lines().filter(|line| line.split([' ', ',']).any(|word| word == "slave"));
            if replicas.count() != nodes.len() - PRIMARIES {
                return false;
            }
        }
        true
    })
    .await;
    Ok(())
}

async fn is_healthy(node: &PrivateServer) -> bool {
    ask::<String>(node, &["CLUSTER", "INFO"]).await.is_ok_and(|info| info.contains("cluster_state:ok"))
}

async fn ask<T: FromRedisValue>(node: &PrivateServer, command: &[&str]) -> RedisResult<T> {
    let mut connection = server::client(node)?.get_multiplexed_async_connection().await?;
    redis::cmd(command[0]).arg(&command[1..]).query_async(&mut connection).await
}
