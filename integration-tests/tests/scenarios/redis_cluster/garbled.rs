//! Replies behind a message that the driver takes for a reply.
//!
//! When a slot leaves a node, the node ends the subscriptions in it by a push message `sunsubscribe`. The driver matches that message
//! with the oldest command in flight, and each reply behind it with the command after its own. Here a proxy sends the message at the
//! moment where it does most harm.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{
    clock,
    proxy::{Direction, Flow, Proxy, RequestFault},
    servers::{PrivateServer, redis_cluster},
};

/// Long enough that no renewal is sent in the meantime.
const TTL: Duration = Duration::from_secs(600);

/// A cluster of one node, which clients find at the address of a proxy.
struct Setup {
    node: PrivateServer,
    proxy: Proxy,
    locks: Locks,
    other: Locks,
}

impl Setup {
    async fn new() -> Self {
        let node = redis_cluster::start_one(&[]).unwrap();
        let proxy = Proxy::to(node.port());
        let port = proxy.address().port().to_string();
        query::<()>(&node, &["CONFIG", "SET", "cluster-announce-port", &port]).await;
        let url =
            format!("redis-cluster://{}?polylock.namespace=p&polylock.operation_timeout=1m", proxy.address());
        let (locks, other) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
        Self { node, proxy, locks, other }
    }

    /// The number of the connection that carries the commands of `locks`.
    async fn connection(&self) -> u64 {
        self.proxy.watch_for("}:h:probe");
        self.locks.lock("probe").acquire().await.unwrap().release().await.unwrap();
        self.proxy.watched()[0]
    }

    /// Runs `first` and then `second`, of which each sends one command about the lock of that name, and has the client receive
    /// `sunsubscribe`, the reply to the first and the reply to the second, all at once.
    async fn run_shifted<A, B>(
        &self,
        (name, first): (&str, impl Future<Output = A> + Send + 'static),
        second: impl Future<Output = B> + Send + 'static,
    ) -> (A, B)
    where
        A: Send + 'static,
        B: Send + 'static,
    {
        let connection = self.connection().await;
        let channels: Vec<String> = query(&self.node, &["PUBSUB", "SHARDCHANNELS", "{p:*"]).await;
        let channel = &channels[0];
        let push = format!(">3\r\n$12\r\nsunsubscribe\r\n${}\r\n{channel}\r\n:0\r\n", channel.len());
        self.proxy.set_one(connection, Direction::ToClient, Flow::Hold);
        self.proxy.watch_for("}:h:");
        self.proxy.fault_next([format!("}}:h:{name}")], RequestFault::PushBeforeReply(push.into_bytes()));
        let first = tokio::spawn(first);
        clock::until("the first is sent", async || self.proxy.watched() == [connection]).await;
        let second = tokio::spawn(second);
        clock::until("the second is sent", async || self.proxy.watched() == [connection; 2]).await;
        assert_eq!(self.proxy.counts().faulted, 1);
        self.proxy.set_one(connection, Direction::ToClient, Flow::Pass);
        (first.await.unwrap(), second.await.unwrap())
    }
}

async fn query<T: redis::FromRedisValue>(node: &PrivateServer, command: &[&str]) -> T {
    let client = redis::Client::open(node.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    redis::cmd(command[0]).arg(&command[1..]).query_async(&mut connection).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_lock_is_not_granted_by_the_reply_to_another_claim() {
    let setup = Setup::new().await;
    let held = setup.other.lock("taken").ttl(TTL).acquire().await.unwrap();
    let free = setup.locks.lock("free").ttl(TTL).try_acquire();
    let taken = setup.locks.lock("taken").ttl(TTL).try_acquire();
    let (free, taken) = setup.run_shifted(("free", free), taken).await;
    assert!(taken.unwrap().is_none(), "it has two holders");
    let free = free.unwrap().unwrap();
    let holders = setup.other.inspect("free").await.unwrap().holders;
    assert!(holders.len() == 1 && holders[0].token == Some(free.fencing_token()), "{holders:?}");
    free.release().await.unwrap();
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_not_reported_lost_by_the_reply_to_another_release() {
    let setup = Setup::new().await;
    let gone = setup.locks.lock("gone").ttl(TTL).acquire().await.unwrap();
    let kept = setup.locks.lock("kept").ttl(TTL).acquire().await.unwrap();
    let keys: Vec<String> = query(&setup.node, &["KEYS", "{p:*}:h:gone"]).await;
    assert_eq!(query::<u64>(&setup.node, &["DEL", &keys[0]]).await, 1);
    let (_, kept) = setup.run_shifted(("gone", gone.release()), kept.release()).await;
    kept.unwrap();
    assert!(setup.other.inspect("kept").await.unwrap().is_free());
}
