//! Servers and proxies that close idle connections.

use std::time::Duration;

use polylock_integration_tests::{
    clock::{TIMEOUT, pause, within},
    on_stores,
    proxy::{End, Proxy},
};

use super::{connect, use_lock, victim::Victim};

/// The time for which connections are idle before they are closed.
const IDLE: Duration = Duration::from_secs(1);

on_stores! {
    [postgres mariadb redis redlock3 zookeeper]
    [
        a_connection_that_is_closed_again_while_it_is_idle_is_replaced_before_the_next_operation
    ]
}

async fn a_connection_that_is_closed_again_while_it_is_idle_is_replaced_before_the_next_operation(
    store: &str,
) {
    let victim = <dyn Victim>::start(store).await;
    let (proxies, url) = victim.route(Duration::from_secs(30), Duration::from_secs(5));
    let locks = connect(&url).await;
    let open = |proxy: &Proxy| proxy.counts().open > 0;
    for round in 0..3 {
        // It finds connections closed, so the store knows that they are.
        use_lock(&locks, "n").await;
        pause(IDLE).await;
        let connections: Vec<u64> = proxies.iter().map(|proxy| proxy.counts().connections).collect();
        for proxy in &proxies {
            proxy.cut(End::Close);
        }
        let is_replaced =
            |(proxy, before): (&Proxy, &u64)| open(proxy) && proxy.counts().connections > *before;
        let are_replaced = || proxies.iter().zip(&connections).all(is_replaced);
        // A server that has closed none yet may close none.
        if round > 0 {
            let replaced = tokio::task::block_in_place(|| within(TIMEOUT, are_replaced));
            assert!(replaced, "{store}: {:?}", proxies.iter().map(Proxy::counts).collect::<Vec<_>>());
        }
    }
    use_lock(&locks, "n").await;
}
