//! Listing many locks.

use futures_util::future::join_all;
use polylock_integration_tests::proxy::RequestFault;

use super::{Namespace, server};

/// An empty page with a marker for the next one. The emulator's markers are names of blobs, and this one precedes all of them.
const PAGE: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults ServiceEndpoint=\"http://s/\" \
                    ContainerName=\"c\"><Blobs></Blobs><NextMarker>!</NextMarker></EnumerationResults>";

#[tokio::test(flavor = "multi_thread")]
async fn requests_one_page_at_a_time() {
    let namespace = Namespace::of(server());
    let (proxy, locks) = namespace.through(server()).await;
    let held = join_all(["a", "z"].map(|name| locks.lock(name).acquire())).await;
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {}\r\n\r\n{PAGE}",
        PAGE.len()
    );
    // The service's own limit of 5,000 blobs would be megabytes in one reply.
    proxy.fault_next(["comp=list", "maxresults=500"], RequestFault::Reply(head.into()));
    let listed = locks.list("").await.unwrap();
    assert_eq!(proxy.counts().faulted, 1, "no limit");
    assert_eq!(listed.iter().map(|lock| lock.name.as_str()).collect::<Vec<_>>(), ["a", "z"]);
    for guard in held {
        guard.unwrap().release().await.unwrap();
    }
}
