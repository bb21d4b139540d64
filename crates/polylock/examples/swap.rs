//! One program for any store: only the URL differs.
//!
//! ```text
//! cargo run -p polylock --example swap memory:
//! cargo run -p polylock --example swap --features sqlite sqlite:///tmp/swap.db
//! ```
//!
//! Some tasks increment a number that only the lock protects, and hand the lock over to each other. The program prints each fencing
//! token, and fails if two holds overlapped, a token did not grow, or an increment was lost.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};

use polylock::Locks;

const TASKS: u64 = 4;
const ROUNDS: u64 = 5;

#[derive(Default)]
struct Protected {
    number: AtomicU64,
    busy: AtomicBool,
    last_token: AtomicU64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("POLYLOCK_STORE").ok());
    let locks = Locks::connect(&url.unwrap_or_else(default_url)).await?;
    let name = format!("swap/{}", std::process::id());
    println!("store: {}", locks.capabilities().backend);

    let protected = Arc::new(Protected::default());
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (locks, name, protected) = (locks.clone(), name.clone(), protected.clone());
            tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let guard = locks.lock(&name).acquire().await?;
                    let token = guard.fencing_token().get();
                    guard.run(add_one(&protected, task, token)).await??;
                }
                Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }

    let sum = protected.number.load(SeqCst);
    if sum != TASKS * ROUNDS {
        return Err(format!("the sum is {sum}, but {} additions were made", TASKS * ROUNDS).into());
    }
    println!("sum: {sum}, as expected");
    Ok(())
}

/// Returns a temporary file if SQLite was compiled in, else the memory of this process.
fn default_url() -> String {
    if cfg!(feature = "sqlite") {
        format!("sqlite:{}", std::env::temp_dir().join("polylock-swap.db").display())
    } else {
        "memory:".to_owned()
    }
}

/// Reads, yields to other tasks, writes: incorrect without a lock.
async fn add_one(protected: &Protected, task: u64, token: u64) -> Result<(), String> {
    if protected.busy.swap(true, SeqCst) {
        return Err(format!("task {task} overlaps with another one"));
    }
    let before = protected.last_token.swap(token, SeqCst);
    if token <= before {
        return Err(format!("token {token} came after {before}"));
    }
    let number = protected.number.load(SeqCst);
    tokio::task::yield_now().await;
    protected.number.store(number + 1, SeqCst);
    protected.busy.store(false, SeqCst);
    println!("task {task}: token {token}, number {}", number + 1);
    Ok(())
}
