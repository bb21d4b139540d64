//! SQLite: a lock in a file that the processes of one machine share.
//!
//! ```text
//! cargo run -p polylock --example sqlite --features sqlite /tmp/locks.db
//! ```

use std::time::Duration;

use polylock::Locks;

#[tokio::main]
async fn main() -> polylock::Result<()> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "locks.db".to_owned());
    let locks = Locks::connect(&format!("sqlite:{file}?polylock.ttl=10s")).await?;
    let Some(guard) = locks.lock("nightly report").label("sqlite example").try_acquire().await? else {
        for holder in locks.inspect("nightly report").await?.holders {
            println!("held by {} for {:?}", holder.owner, holder.age);
        }
        return Ok(());
    };
    println!("token {}, {:?} left; run me a second time meanwhile", guard.fencing_token(), guard.remaining());
    // If the lock is lost, `run` stops the work.
    guard.run(tokio::task::spawn_blocking(|| std::thread::park_timeout(Duration::from_secs(5)))).await?.ok();
    Ok(())
}
