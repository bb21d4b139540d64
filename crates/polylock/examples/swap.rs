//! One program, any store: the only thing that changes is the URL.
//!
//! ```text
//! cargo run -p polylock --example swap memory:
//! cargo run -p polylock --example swap --features sqlite sqlite:///tmp/swap.db
//! ```
//!
//! Some tasks add to one number, which nothing but the lock protects, and pass the lock from hand to hand. It prints
//! each fencing token and fails if two tasks ever met, a token did not grow, or an addition got lost.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};

use polylock::Locks;

const TASKS: u64 = 4;
const TURNS: u64 = 5;

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
                for _ in 0..TURNS {
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
    if sum != TASKS * TURNS {
        return Err(format!("{sum} additions arrived, {} were made", TASKS * TURNS).into());
    }
    println!("sum: {sum}, as it should be");
    Ok(())
}

/// A file for temporary things if SQLite was compiled in, else the memory of this process.
fn default_url() -> String {
    if cfg!(feature = "sqlite") {
        format!("sqlite:{}", std::env::temp_dir().join("polylock-swap.db").display())
    } else {
        "memory:".to_owned()
    }
}

/// Reads, lets others run, writes: wrong without a lock.
async fn add_one(protected: &Protected, task: u64, token: u64) -> Result<(), String> {
    if protected.busy.swap(true, SeqCst) {
        return Err(format!("task {task} met another"));
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
