//! Lost replies, of every operation.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{
    clock::TIMEOUT, proxy::Proxy, servers::zookeeper, stores::wait_for_waiters,
};

use super::Namespace;

const SESSION: Duration = Duration::from_secs(10);

/// Returns the first bytes of a request of this kind: its code in the protocol, and a part of the path's length.
fn request(kind: u8) -> Vec<u8> {
    vec![0, 0, 0, kind, 0, 0, 0]
}

const CREATE: u8 = 15;
const CREATE_CONTAINER: u8 = 19;
const DELETE: u8 = 2;
const EXISTS: u8 = 3;
const GET_DATA: u8 = 4;
const GET_CHILDREN: u8 = 8;
const SYNC: u8 = 9;

/// Exactly one node is created and deleted, whichever reply is lost.
#[tokio::test(flavor = "multi_thread")]
async fn of_any_operation_leave_no_node() {
    let server = zookeeper::start(&[]).unwrap();
    let (namespace, proxy) = (Namespace::of(&server), Proxy::to(server.port()));
    let raw = namespace.client().await;
    let there = Locks::connect(&namespace.url_with_session(SESSION)).await.unwrap();
    let here = Locks::connect(&proxy.url(&namespace.url_with_session(SESSION))).await.unwrap();
    for kind in [CREATE, CREATE_CONTAINER, DELETE, EXISTS, GET_DATA, GET_CHILDREN, SYNC] {
        for (waits, tries) in [(false, false), (true, false), (false, true)] {
            // A new lock without a node.
            let name = format!("{kind}/{waits}/{tries}");
            let before = if waits { Some(there.lock(&name).acquire().await.unwrap()) } else { None };
            let cuts = proxy.counts().connections;
            proxy.reset_before_reply_to(request(kind));
            let lock = here.lock(&name);
            let acquiring = tokio::spawn(async move {
                if tries {
                    lock.try_acquire().await.map(|guard| guard.unwrap())
                } else {
                    lock.acquire().await
                }
            });
            if let Some(before) = before {
                wait_for_waiters(&there, &name, 1).await;
                assert_eq!(namespace.requests(&raw).await, 2, "{name}: the holder's and the waiter's");
                before.release().await.unwrap();
            }
            let acquired =
                tokio::time::timeout(TIMEOUT, acquiring).await.expect("the acquisition ends").unwrap();
            match acquired {
                Ok(guard) => {
                    assert_eq!(namespace.requests(&raw).await, 1, "{name}: the holder's");
                    // A release with a lost reply is sent again.
                    guard.release().await.unwrap();
                }
                // A try is not repeated.
                Err(error) => assert!(tries && error.is_temporary(), "{name}: {error:?}"),
            }
            namespace.wait_until_empty().await;
            println!("{name}: {} more connections", proxy.counts().connections - cuts);
        }
    }
    assert!(proxy.counts().connections > 7, "no replies were lost");
}
