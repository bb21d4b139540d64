//! Listing many locks.

use futures_util::future::join_all;
use polylock_integration_tests::proxy::Fate;

use crate::{Spot, server};

/// A page without a blob that another one follows: the emulator's markers are names of blobs, and this one is before all of them.
const PAGE: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults ServiceEndpoint=\"http://s/\" \
                    ContainerName=\"c\"><Blobs></Blobs><NextMarker>!</NextMarker></EnumerationResults>";

#[tokio::test(flavor = "multi_thread")]
async fn asks_for_a_page_at_a_time() {
    let spot = Spot::of(server());
    let (proxy, locks) = spot.through(server()).await;
    let held = join_all(["a", "z"].map(|name| locks.lock(name).acquire())).await;
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {}\r\n\r\n{PAGE}",
        PAGE.len()
    );
    // A limit of 5,000 blobs, which is the service's own, would be megabytes at once.
    proxy.next(["comp=list", "maxresults=500"], Fate::Answer(head.into()));
    let listed = locks.list("").await.unwrap();
    assert_eq!(proxy.counts().fated, 1, "no limit");
    assert_eq!(listed.iter().map(|lock| lock.name.as_str()).collect::<Vec<_>>(), ["a", "z"]);
    for guard in held {
        guard.unwrap().release().await.unwrap();
    }
}
