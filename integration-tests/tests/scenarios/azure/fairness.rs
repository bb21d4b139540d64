//! No process starves while another one hands the lock over among its own waiters.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::clock::{self, TIMEOUT, now};

use super::{Namespace, server};

/// A streak of half a second, the check for markers, and a second in which each process polls once; three times that for a busy
/// machine.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// One waiter competes with eight tasks of another process that acquire the lock again and again.
#[tokio::test(flavor = "multi_thread")]
async fn one_waiter_is_granted_the_lock_despite_a_busy_process() {
    let namespace = Namespace::of(server());
    let (busy, alone) = (namespace.locks().await, namespace.locks().await);
    let again = |locks: Locks| async move {
        loop {
            locks.lock("a").acquire().await.unwrap().release().await.unwrap();
        }
    };
    let others: Vec<_> = (0..8).map(|_| tokio::spawn(again(busy.clone()))).collect();
    let mut longest = Duration::ZERO;
    for _ in 0..8 {
        let began = now();
        alone.lock("a").wait(TIMEOUT).acquire().await.unwrap().release().await.unwrap();
        longest = longest.max(now().since(began));
    }
    println!("granted after {longest:.1?} at the latest");
    assert!(others.iter().all(|other| !other.is_finished()));
    others.iter().for_each(tokio::task::JoinHandle::abort);
    assert!(longest < MAX_WAIT, "{longest:?}");
}

/// Acquires the lock again and again for a while, and returns the longest time between two grants and their number.
async fn longest_gap(locks: &Locks, name: &str) -> (Duration, u32) {
    let (began, mut last, mut longest, mut grants) = (now(), now(), Duration::ZERO, 0);
    while now().since(began) < Duration::from_secs(9) {
        let guard = locks.lock(name).acquire().await.unwrap();
        longest = longest.max(now().since(last));
        last = now();
        grants += 1;
        guard.release().await.unwrap();
    }
    (longest, grants)
}

/// The waiter above might be granted the lock by chance, so this test checks the mechanism.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_process_yields_only_to_waiters_of_other_processes() {
    let namespace = Namespace::of(server());
    let (here, there) = (namespace.locks().await, namespace.locks().await);
    // There is a marker of another process beside one of the locks.
    let marker = "x-ms-blob-type: BlockBlob\nx-ms-meta-polylock: 1\nx-ms-meta-polylockwaits: another";
    namespace.expect_reply(&format!("PUT {}/b_waits\n{marker}", namespace.path), " 201 ").await;
    let (unmarked, marked) = tokio::join!(longest_gap(&here, "a"), longest_gap(&there, "b"));
    println!("with a marker: {marked:.1?}; without: {unmarked:.1?}");
    assert!(marked.0 > Duration::from_millis(950), "{marked:?}");
    assert!(marked.1 * 3 < unmarked.1 * 2, "yielded without a marker: {unmarked:?}, and {marked:?}");
    // A waiter writes such a marker.
    let guard = here.lock("c").acquire().await.unwrap();
    let waiting = tokio::spawn(there.lock("c").acquire());
    clock::until("it writes a marker", async || {
        namespace.send(&format!("HEAD {}/c_waits", namespace.path)).await.contains("x-ms-meta-polylockwaits")
    })
    .await;
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}
