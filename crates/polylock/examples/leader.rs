//! Leader election: of several processes one leads, and another one takes over when it ends.
//!
//! ```text
//! cargo run -p polylock --example leader --features sqlite     # in two terminals; end the first one with Ctrl-C
//! ```
//!
//! The leader does its work only while it holds the lock: the work is dropped when the lock is lost, before another process can lead, and the
//! process campaigns again. A leader that ends releases the lock, so the next process leads at once; after a crash it leads when the lease has
//! expired. Each process prints the leader that it sees.

#[path = "shared/metrics.rs"]
mod metrics;

use std::time::Duration;

use polylock::{LeaderWatch, Locks, Term};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut arguments = std::env::args().skip(1).collect();
    metrics::listen(&mut arguments)?;
    let url = arguments.into_iter().next().unwrap_or_else(default_url);
    let locks = Locks::builder(&url).ttl(Duration::from_secs(10)).connect().await?;
    let election = locks.election("example/leader").label("the example");
    println!("waiting for the leadership");
    tokio::select! {
        () = observe(election.observe().await?) => {}
        ended = election.run(lead) => ended?,
        // This drops the work and the lock, or leaves the queue.
        signal = tokio::signal::ctrl_c() => signal?,
    }
    println!("released");
    // Waits until the store has confirmed the release.
    locks.close(Duration::from_secs(5)).await;
    Ok(())
}

/// The work of a leader, until it is dropped. Everything that it writes carries the token, so that a resource can refuse a former leader.
async fn lead(term: Term) {
    println!("leader with token {}", term.fencing_token());
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    loop {
        ticks.tick().await;
    }
}

/// Prints the leader and its changes. The process need not campaign for that.
async fn observe(mut watch: LeaderWatch) {
    loop {
        match watch.current().leader() {
            Some(leader) => println!("{} leads", leader.owner),
            None => println!("no known leader"),
        }
        watch.changed().await;
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
