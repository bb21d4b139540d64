//! Memory: a lock between the tasks of one process, without any server; also suitable for tests.
//!
//! ```text
//! cargo run -p polylock --example memory
//! ```

use std::time::Duration;

use polylock::Locks;

#[tokio::main]
async fn main() -> polylock::Result<()> {
    let locks = Locks::connect("memory:").await?;
    let first = locks.lock("door").acquire().await?;
    let refused = locks.lock("door").wait(Duration::from_millis(50)).acquire().await;
    println!("while token {} holds it: {}", first.fencing_token(), refused.expect_err("the lock is held"));
    first.release().await?;
    println!("then: token {}", locks.lock("door").acquire().await?.fencing_token());
    Ok(())
}
