//! `kill -9` of the server.

use std::time::Duration;

use polylock::LostReason;
use polylock_integration_tests::servers::redis;
use tokio::task::block_in_place;

use super::{Namespace, SLACK};

/// Exclusion is broken, as the warning at connect states; fencing tokens still grow.
#[tokio::test(flavor = "multi_thread")]
async fn a_volatile_server_grants_again_with_greater_tokens() {
    let server = redis::start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    let (locks, others) = (namespace.locks().await, namespace.locks().await);
    let mut last = None;
    // The first renewal is after the restart.
    for _ in 0..3 {
        let guard = locks.lock("forgotten").ttl(Duration::from_secs(12)).acquire().await.unwrap();
        assert!(Some(guard.fencing_token()) > last);
        block_in_place(|| {
            server.kill();
            server.restart();
        });
        let other_guard = others.lock("forgotten").try_acquire().await.unwrap().expect("it is forgotten");
        assert!(other_guard.fencing_token() > guard.fencing_token());
        last = Some(other_guard.fencing_token());
        assert!(guard.is_held(), "it knows nothing of it before it asks");
        assert_eq!(guard.lost().await, LostReason::Gone);
        assert!(other_guard.is_held() && other_guard.remaining() > SLACK);
        other_guard.release().await.unwrap();
    }
}
