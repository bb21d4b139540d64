//! What a ZooKeeper server has used, and who waits in it.

use futures_util::future::join_all;
use polylock_integration_tests::servers::{Private, zookeeper};
use zookeeper_client::Client;

use crate::databases::{Done, cpu};

/// The packets that it has received, pings included.
pub(crate) async fn done(server: &Private) -> Done {
    let packets = zookeeper::packets(server).await;
    Done { cpu: cpu(server.id().unwrap()), calls: packets, statements: packets }
}

/// The labels of those who wait for the lock `n`, which one holds, in their order.
pub(crate) async fn queue(url: &str) -> Vec<String> {
    let client = Client::connect(url.split_once("://").unwrap().1).await.unwrap();
    let mut nodes = client.list_children("/polylock/n").await.unwrap();
    nodes.sort_by_key(|node| node.rsplit_once('_').unwrap().1.to_owned());
    let label = async |node: &String| {
        let (data, _) = client.get_data(&format!("/polylock/n/{node}")).await.unwrap();
        String::from_utf8(data).unwrap().lines().nth(2).unwrap().to_owned()
    };
    join_all(nodes.iter().skip(1).map(label)).await
}
