//! Nobody starves because another process hands the lock around among its own.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::clock::{self, PATIENCE, now};

use crate::{Spot, server};

/// Half a second of its own, a moment until it has looked, and a second in which everybody asks once; and as much again for a
/// busy machine.
const ITS_TURN: Duration = Duration::from_secs(3);

/// One who waits for a lock that eight others, in one other process, want again and again.
#[tokio::test(flavor = "multi_thread")]
async fn one_waiter_has_its_turn_against_a_busy_process() {
    let spot = Spot::of(server());
    let (busy, alone) = (spot.locks().await, spot.locks().await);
    let again = |locks: Locks| async move {
        loop {
            locks.lock("a").acquire().await.unwrap().release().await.unwrap();
        }
    };
    let others: Vec<_> = (0..8).map(|_| tokio::spawn(again(busy.clone()))).collect();
    let mut longest = Duration::ZERO;
    for _ in 0..8 {
        let began = now();
        alone.lock("a").wait(PATIENCE).acquire().await.unwrap().release().await.unwrap();
        longest = longest.max(now().since(began));
    }
    println!("its turn came after {longest:.1?} at the latest");
    assert!(others.iter().all(|other| !other.is_finished()));
    others.iter().for_each(tokio::task::JoinHandle::abort);
    assert!(longest < ITS_TURN, "{longest:?}");
}

/// The longest time between two grants to one who takes the lock again and again for a while, and how many there are.
async fn longest_gap(locks: &Locks, name: &str) -> (Duration, u32) {
    let (began, mut last, mut longest, mut grants) = (now(), now(), Duration::ZERO, 0);
    while now().since(began) < Duration::from_secs(3) {
        let guard = locks.lock(name).acquire().await.unwrap();
        longest = longest.max(now().since(last));
        last = now();
        grants += 1;
        guard.release().await.unwrap();
    }
    (longest, grants)
}

/// That it comes by chance can't be told apart above, so this looks at what makes it sure.
#[tokio::test(flavor = "multi_thread")]
async fn the_lock_is_left_free_while_others_wait_and_only_then() {
    let spot = Spot::of(server());
    let (here, there) = (spot.locks().await, spot.locks().await);
    // Another process waits for both, and leaves its mark beside one lock.
    let mark = "x-ms-blob-type: BlockBlob\nx-ms-meta-polylock: 1\nx-ms-meta-polylockwaits: another";
    spot.does(&format!("PUT {}/b_waits\n{mark}", spot.path), " 201 ").await;
    let (unmarked, marked) = tokio::join!(longest_gap(&here, "a"), longest_gap(&there, "b"));
    println!("where another waits: {marked:.1?}; where nobody does: {unmarked:.1?}");
    assert!(marked.0 > Duration::from_millis(950), "{marked:?}");
    assert!(marked.1 * 3 < unmarked.1 * 2, "left free for nobody: {unmarked:?}, and {marked:?}");
    // And who waits leaves such a mark.
    let guard = here.lock("c").acquire().await.unwrap();
    let waiting = tokio::spawn(there.lock("c").acquire());
    clock::until("it leaves a mark", async || {
        spot.ask(&format!("HEAD {}/c_waits", spot.path)).await.contains("x-ms-meta-polylockwaits")
    })
    .await;
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}
