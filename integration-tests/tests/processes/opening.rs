//! Opening one store from many processes, and again and again.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{on_stores, stores::spot};

use crate::{at_once, worker};

const BRIEF: Duration = Duration::from_millis(200);

on_stores! {
    eight_processes_make_the_tables_at_once
    tokens_go_on_growing_over_processes_and_reopening
}

fn token(words: &[String]) -> u64 {
    words[0].parse().unwrap()
}

async fn eight_processes_make_the_tables_at_once(store: &str) {
    for _ in 0..10 {
        let spot = spot(store).await;
        let mut workers = at_once(8, || worker("open", spot.url(), "fresh", &[]));
        let mut tokens: Vec<u64> = workers.iter_mut().map(|worker| token(&worker.hears("token"))).collect();
        assert!(workers.iter_mut().all(|worker| worker.ends().success()));
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), 8, "everybody had a token of its own");
    }
}

async fn tokens_go_on_growing_over_processes_and_reopening(store: &str) {
    let spot = spot(store).await;
    let mut last = 0;
    let mut grows = |token: u64| {
        assert!(token > last, "{token} after {last}");
        last = token;
    };
    for _ in 0..spot.times(5) {
        let mut other = at_once(1, || worker("open", spot.url(), "grows", &[])).remove(0);
        grows(token(&other.hears("token")));
        assert!(other.ends().success());
        // Nobody has the store open now: what comes next stands on what is in it.
        let locks = Locks::connect(spot.url()).await.unwrap();
        let guard = locks.lock("grows").acquire().await.unwrap();
        grows(guard.fencing_token().get());
        guard.release().await.unwrap();
        // Killed while it holds: its token counts, too.
        let url = spot.url_with("polylock.ttl", &format!("{}ms", spot.lease(BRIEF).as_millis()));
        let mut killed = worker("hold", &url, "grows", &["1"]);
        grows(token(&killed.hears("held")));
        killed.kill();
    }
}
