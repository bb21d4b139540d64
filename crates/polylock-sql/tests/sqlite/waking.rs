//! Wake-ups: the ways in which a waiter learns that it is its turn.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use polylock_core::{BreakNotice, BreakOrder, Clock, FencingToken, Mode, SystemClock, Wake};
use tokio::sync::Mutex;

use crate::common::{TestFile, acquire, held, queued, request};

#[tokio::test]
async fn a_release_in_the_same_store_hands_over_and_wakes_only_the_next_waiter() {
    let file = TestFile::new();
    let store = file.store().await;
    let [a, b, c] = [(); 3].map(|()| request("n", Mode::Exclusive));
    held(&store, &a).await;
    queued(&store, &b).await;
    queued(&store, &c).await;
    assert!(store.backend.wait(&b).now_or_never().is_none());
    store.backend.release(&a).await.unwrap();
    let Wake::Granted(granted) = store.backend.wait(&b).now_or_never().unwrap().unwrap() else {
        panic!("not handed over")
    };
    assert!(store.backend.wait(&c).now_or_never().is_none());
    assert_eq!(held(&store, &b).await.token, granted.token);
}

#[tokio::test]
async fn a_release_in_another_store_wakes_the_next_waiter_soon() {
    let file = TestFile::new();
    let (one, two) = (file.store().await, file.store().await);
    let mut delays = Vec::new();
    for _ in 0..10 {
        let [a, b] = [(); 2].map(|()| request("n", Mode::Exclusive));
        held(&one, &a).await;
        queued(&two, &b).await;
        // Long enough for the poller to have slowed down.
        let quiet = tokio::time::timeout(Duration::from_millis(60), two.backend.wait(&b)).await;
        assert!(quiet.is_err(), "woken for nothing");
        one.backend.release(&a).await.unwrap();
        let released = SystemClock.now();
        tokio::time::timeout(Duration::from_secs(5), two.backend.wait(&b)).await.unwrap().unwrap();
        delays.push(SystemClock.now().since(released));
        held(&two, &b).await;
        two.backend.release(&b).await.unwrap();
    }
    delays.sort();
    // A busy machine may delay most of them.
    assert!(delays[2] < Duration::from_millis(100), "{delays:?}");
}

#[tokio::test]
async fn a_broken_lock_wakes_its_waiters() {
    let file = TestFile::new();
    let (one, two) = (file.store().await, file.store().await);
    let [a, b] = [(); 2].map(|()| request("n", Mode::Exclusive));
    let token = held(&one, &a).await.token;
    queued(&one, &b).await;
    let order = BreakOrder::new(BreakNotice::default(), [Some(token)]).force();
    two.inspect.clone().unwrap().break_lock(&a.name, &order).await.unwrap();
    tokio::time::timeout(Duration::from_secs(5), one.backend.wait(&b)).await.unwrap().unwrap();
    held(&one, &b).await;
}

#[tokio::test]
async fn a_release_between_claim_and_wait_is_not_missed() {
    let file = TestFile::new();
    let (one, two) = (file.store().await, file.store().await);
    for _ in 0..20 {
        let [a, b] = [(); 2].map(|()| request("n", Mode::Exclusive));
        held(&one, &a).await;
        queued(&two, &b).await;
        one.backend.release(&a).await.unwrap();
        let woken = tokio::time::timeout(Duration::from_secs(5), two.backend.wait(&b));
        woken.await.unwrap().unwrap();
        two.backend.release(&b).await.unwrap();
    }
}

/// 16 tasks on two stores of one file: no two hold the lock at once, tokens grow, and every task gets its turns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contenders_of_two_stores_exclude_each_other_and_all_are_served() {
    let file = TestFile::new();
    let stores = [file.store().await, file.store().await];
    let inside: Arc<Mutex<Option<FencingToken>>> = Arc::default();
    let tasks: Vec<_> = (0..16)
        .map(|number| {
            let (store, inside) = (stores[number % 2].clone(), inside.clone());
            tokio::spawn(async move {
                for _ in 0..12 {
                    let a = request("n", Mode::Exclusive);
                    let grant = acquire(&store, &a).await;
                    {
                        let mut last = inside.try_lock().expect("nobody else is inside");
                        assert!(Some(grant.token) > *last);
                        *last = Some(grant.token);
                        tokio::task::yield_now().await;
                    }
                    store.backend.release(&a).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(60), task).await.unwrap().unwrap();
    }
    assert_eq!(file.rows().await, 0);
}
