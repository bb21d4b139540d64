//! What many names leave behind on a ZooKeeper server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use polylock_integration_tests::clock::{now, pause};
use serde_json::{Value, json};
use zookeeper_client::Client;

use crate::site::Site;

/// Has `tasks` tasks lock one name after another for `lasts`, each once.
pub(crate) async fn names(site: &Site, tasks: usize, lasts: Duration) -> Value {
    let (locks, url) = (site.open("polylock.ttl=30s").await, site.url());
    let client = Client::connect(url.split_once("://").unwrap().1).await.unwrap();
    let nodes = async || client.check_stat("/polylock").await.unwrap().map_or(0, |stat| stat.num_children);
    let (until, names) = (now() + lasts, Arc::new(AtomicUsize::new(0)));
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let (locks, names) = (locks.clone(), names.clone());
            tokio::spawn(async move {
                while now() < until {
                    let name = format!("job-{}", names.fetch_add(1, Ordering::Relaxed));
                    locks.lock(name).acquire().await.unwrap().release().await.unwrap();
                }
            })
        })
        .collect();
    let (mut most, mut samples) = (0, Vec::new());
    while now() < until {
        pause(Duration::from_secs(1)).await;
        let count = nodes().await;
        most = most.max(count);
        samples.push(count);
    }
    for task in tasks {
        task.await.unwrap();
    }
    let end = nodes().await;
    pause(Duration::from_secs(10)).await;
    let names = names.load(Ordering::Relaxed);
    json!({
        "measured": "names", "store": site.store.name(), "names": names, "lasted_s": lasts.as_secs_f64(),
        "nodes_at_most": most, "nodes_at_the_end": end, "nodes_10_s_later": nodes().await, "nodes_each_second": samples,
    })
}
