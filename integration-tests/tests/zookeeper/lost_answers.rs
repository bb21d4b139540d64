//! Answers that are lost, of every operation.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{clock::PATIENCE, proxy::Proxy, servers::zookeeper};

use crate::{Spot, waiters};

const SESSION: Duration = Duration::from_secs(10);

/// What a request of this kind begins with: its number in the protocol, and the first bytes of a path's length.
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

/// Exactly one node is made, whatever answer is lost, and it goes.
#[tokio::test(flavor = "multi_thread")]
async fn of_any_kind_leave_no_ghost() {
    let server = zookeeper::start(&[]).unwrap();
    let (spot, proxy) = (Spot::of(&server), Proxy::to(server.port()));
    let raw = spot.raw().await;
    let there = Locks::connect(&spot.with(SESSION)).await.unwrap();
    let here = Locks::connect(&proxy.url(&spot.with(SESSION))).await.unwrap();
    for kind in [CREATE, CREATE_CONTAINER, DELETE, EXISTS, GET_DATA, GET_CHILDREN, SYNC] {
        for (waits, tries) in [(false, false), (true, false), (false, true)] {
            // A new one, whose node is not there yet.
            let name = format!("{kind}/{waits}/{tries}");
            let before = if waits { Some(there.lock(&name).acquire().await.unwrap()) } else { None };
            let cuts = proxy.counts().connections;
            proxy.cut_reply_to(request(kind));
            let lock = here.lock(&name);
            let taking = tokio::spawn(async move {
                if tries {
                    lock.try_acquire().await.map(|guard| guard.unwrap())
                } else {
                    lock.acquire().await
                }
            });
            if let Some(before) = before {
                waiters(&there, &name, 1).await;
                assert_eq!(spot.requests(&raw).await, 2, "{name}: the holder's and the waiter's");
                before.release().await.unwrap();
            }
            let taken = tokio::time::timeout(PATIENCE, taking).await.expect("it ends").unwrap();
            match taken {
                Ok(guard) => {
                    assert_eq!(spot.requests(&raw).await, 1, "{name}: the holder's");
                    // A release whose answer is lost is sent again.
                    guard.release().await.unwrap();
                }
                // Who does not wait does not try again either.
                Err(error) => assert!(tries && error.is_temporary(), "{name}: {error:?}"),
            }
            spot.is_clean().await;
            println!("{name}: {} connections more", proxy.counts().connections - cuts);
        }
    }
    assert!(proxy.counts().connections > 7, "answers were lost");
}
