//! The last holder of a free lock.

use super::{Namespace, server};

#[tokio::test(flavor = "multi_thread")]
async fn a_free_lock_shows_its_last_grant() {
    let namespace = Namespace::of(server());
    let (_proxy, locks) = namespace.through(server()).await;
    assert_eq!(locks.inspect("a").await.unwrap().last_grant, None);
    let guard = locks.lock("a").label("nightly").acquire().await.unwrap();
    let token = guard.fencing_token();
    assert_eq!(locks.inspect("a").await.unwrap().last_grant, None, "it is held");
    guard.release().await.unwrap();
    let status = locks.inspect("a").await.unwrap();
    let last = status.last_grant.clone().unwrap();
    assert_eq!((last.token, last.label.as_str()), (token, "nightly"));
    assert!(status.is_free());
}
