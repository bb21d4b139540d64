//! Leader election: of several processes one leads, and another one takes over when it ends.
//!
//! ```text
//! cargo run -p polylock --example leader --features sqlite     # in two terminals; end the first one with Ctrl-C
//! ```
//!
//! The leader does its work only while it holds the lock: the work is dropped when the lock is lost, before another process can lead.
//! A leader that ends releases the lock, so the next process leads at once; after a crash it leads when the lease has expired.

#[path = "shared/metrics.rs"]
mod metrics;

use std::time::Duration;

use polylock::{FencingToken, Locks};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut arguments = std::env::args().skip(1).collect();
    metrics::listen(&mut arguments)?;
    let url = arguments.into_iter().next().unwrap_or_else(default_url);
    let locks = Locks::builder(&url).ttl(Duration::from_secs(10)).connect().await?;
    let end = tokio::signal::ctrl_c();
    tokio::pin!(end);
    loop {
        println!("waiting for the leadership");
        let guard = tokio::select! {
            guard = locks.lock("example/leader").acquire() => guard?,
            _ = &mut end => break,
        };
        let token = guard.fencing_token();
        let ended = tokio::select! {
            outcome = guard.run(lead(token)) => outcome.expect_err("it leads until it loses the lock"),
            // This drops the work and the guard, which releases the lock.
            _ = &mut end => break,
        };
        println!("not the leader any more: {ended}");
    }
    println!("released");
    // Waits until the store has confirmed the release.
    locks.close(Duration::from_secs(5)).await;
    Ok(())
}

/// The work of a leader. Everything that it writes carries the token, so that a resource can refuse a former leader.
async fn lead(token: FencingToken) {
    println!("leader with token {token}");
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    loop {
        ticks.tick().await;
    }
}

/// Returns a file that all processes share if SQLite was compiled in, else the memory of this process.
fn default_url() -> String {
    if cfg!(feature = "sqlite") {
        format!("sqlite:{}", std::env::temp_dir().join("polylock-leader.db").display())
    } else {
        "memory:".to_owned()
    }
}
