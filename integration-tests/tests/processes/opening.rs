//! Opening one store from many processes, and repeatedly.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{on_stores, stores::namespace};

use crate::{start_together, worker};

const BRIEF: Duration = Duration::from_millis(200);

on_stores! {
    eight_processes_create_the_tables_at_the_same_time
    tokens_grow_across_processes_and_reopening
}

fn token(words: &[String]) -> u64 {
    words[0].parse().unwrap()
}

async fn eight_processes_create_the_tables_at_the_same_time(store: &str) {
    for _ in 0..10 {
        let namespace = namespace(store).await;
        let mut workers = start_together(8, || worker("open", namespace.url(), "fresh", &[]));
        let mut tokens: Vec<u64> =
            workers.iter_mut().map(|worker| token(&worker.expect_line("token"))).collect();
        assert!(workers.iter_mut().all(|worker| worker.wait_for_exit().success()));
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), 8, "expected eight different tokens");
    }
}

async fn tokens_grow_across_processes_and_reopening(store: &str) {
    let namespace = namespace(store).await;
    let mut last = 0;
    let mut grows = |token: u64| {
        assert!(token > last, "{token} after {last}");
        last = token;
    };
    for _ in 0..namespace.times(5) {
        let mut other = start_together(1, || worker("open", namespace.url(), "grows", &[])).remove(0);
        grows(token(&other.expect_line("token")));
        assert!(other.wait_for_exit().success());
        // No process has the store open now, so the next token depends only on the stored data.
        let locks = Locks::connect(namespace.url()).await.unwrap();
        let guard = locks.lock("grows").acquire().await.unwrap();
        grows(guard.fencing_token().get());
        guard.release().await.unwrap();
        // A holder that is killed: its token counts, too.
        let url = namespace.url_with("polylock.ttl", &format!("{}ms", namespace.lease(BRIEF).as_millis()));
        let mut killed = worker("hold", &url, "grows", &["1"]);
        grows(token(&killed.expect_line("held")));
        killed.kill();
    }
}
