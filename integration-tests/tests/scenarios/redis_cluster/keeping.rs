//! One batch of requests whose locks are on different nodes.

use std::{sync::Arc, time::Duration};

use polylock_core::{
    Backend, ClaimOutcome, KeepAlive, LockName, LostReason, Mode, Request, io, url::StoreUrl,
};
use polylock_integration_tests::{
    clock::now,
    servers::redis_cluster::{self, Cluster},
};
use polylock_redis::cluster::{Config, connect};
use tokio::task::block_in_place;

fn request(name: &str, ttl: Duration) -> Arc<Request> {
    Arc::new(Request::new(LockName::new(name).unwrap(), Mode::Exclusive, ttl))
}

async fn on_thread<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    io::run("redis-cluster", work).await.unwrap()
}

async fn open(cluster: &Cluster, prefix: &str) -> Arc<dyn Backend> {
    let url = StoreUrl::parse(&super::url(cluster, prefix)).unwrap();
    connect(Config::from_url(&url, &mut url.keys()).unwrap()).await.unwrap().backend
}

/// Returns a request for a lock on each primary. All are held.
async fn hold_on_each_primary(
    cluster: &Cluster,
    prefix: &str,
    backend: &Arc<dyn Backend>,
    ttl: Duration,
) -> Vec<Arc<Request>> {
    let names = super::names_by_primary(cluster, prefix).await;
    let requests: Vec<_> = names.iter().map(|(name, _)| request(name, ttl)).collect();
    for request in &requests {
        let (backend, request) = (backend.clone(), request.clone());
        let outcome = on_thread(async move { backend.claim(&request).await.unwrap() }).await;
        assert!(matches!(outcome, ClaimOutcome::Granted(_)), "{outcome:?}");
    }
    requests
}

async fn keep_alive(backend: &Arc<dyn Backend>, requests: &[Arc<Request>]) -> Vec<KeepAlive> {
    let (backend, requests) = (backend.clone(), requests.to_vec());
    on_thread(async move { backend.keep_alive(&requests).await.unwrap() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_extends_holds_at_all_primaries_and_returns_an_outcome_for_each() {
    const TTL: Duration = Duration::from_secs(20);
    let cluster = super::shared();
    let backend = open(cluster, "batch").await;
    let mut requests = hold_on_each_primary(cluster, "batch", &backend, TTL).await;
    // No request holds these. The last one is for a lock that another request holds.
    for number in 0..20 {
        requests.insert(1, request(&format!("absent/{number}"), TTL));
    }
    requests.push(request(requests[0].name.as_str(), TTL));
    let outcomes = keep_alive(&backend, &requests).await;
    assert_eq!(outcomes.len(), requests.len());
    for (index, outcome) in outcomes.iter().enumerate() {
        match outcome {
            KeepAlive::Held { lease: TTL, .. } => assert!([0, 21, 22].contains(&index), "{outcomes:?}"),
            outcome => assert_eq!(*outcome, KeepAlive::Lost(LostReason::Gone), "{index}"),
        }
    }
    on_thread(async move {
        for request in &requests {
            backend.release(request).await.unwrap();
        }
    })
    .await;
}

/// The outcomes of the others are known within the time that their leases allow, although the node has more time for a longer lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_reply_delays_no_outcome_of_the_others() {
    let cluster = redis_cluster::start(&["cluster-require-full-coverage no"]).unwrap();
    let backend = open(&cluster, "p").await;
    let mut requests = hold_on_each_primary(&cluster, "p", &backend, Duration::from_millis(900)).await;
    requests[0] = request(requests[0].name.as_str(), Duration::from_secs(30));
    block_in_place(|| cluster.nodes()[0].freeze());
    let began = now();
    let outcomes = keep_alive(&backend, &requests).await;
    let took = now().since(began);
    let [KeepAlive::Unknown, KeepAlive::Held { lease, .. }, KeepAlive::Held { .. }] = outcomes[..] else {
        panic!("{outcomes:?}")
    };
    assert_eq!(lease, Duration::from_millis(900));
    // A third of the shortest lease. It takes one and a half seconds to detect that the node is unreachable.
    assert!(took < Duration::from_millis(900), "{took:?}");
}
