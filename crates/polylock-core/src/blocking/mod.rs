//! The locks for synchronous programs, which need no async runtime.
//!
//! Every call blocks its thread until the operation is done. The renewals run on the library's own thread in any case ([`io`](crate::io)),
//! so a hold is kept while the program computes. A guard may move to another thread.
//!
//! ```
//! use polylock_core::{blocking::Locks, memory};
//!
//! let locks = Locks::new(memory::connect());
//! let guard = locks.lock("orders/42").acquire()?;
//! println!("write with token {}", guard.fencing_token());
//! guard.release()?;                                             // or drop it
//!
//! let sum = locks.lock("nightly").acquire()?.run(|guard| {
//!     let mut sum = 0;
//!     for row in 0..10 {
//!         guard.ensure_held()?;                                 // stops the work if the lock is lost
//!         sum += row;
//!     }
//!     Ok::<_, polylock_core::Error>(sum)
//! })??;
//! assert_eq!(sum, 45);
//! # Ok::<(), polylock_core::Error>(())
//! ```
//!
//! # Threads, and async tasks
//!
//! The calls work on any thread: plain ones, those of a pool, and `tokio::task::spawn_blocking`. In an async task of tokio they would
//! stop the other tasks of its thread, and a task that waits for a lock of such another task would never end. So they return
//! [`Error::AsyncContext`](crate::Error::AsyncContext) there, before anything is sent: await the methods of [`Locks`](crate::Locks) instead,
//! or use `spawn_blocking` or `block_in_place`. The tasks of other executors are not detected; there a call blocks the thread until it is
//! done. A drop never blocks a task, and works everywhere.
//!
//! A thread that waits for a lock runs no other job of its pool. But a job that calls `rayon::join` or a parallel iterator while it has
//! a guard may run another job inside that call, on the same thread. If that job waits for the same lock, it waits for its own thread.
//! Finish parallel work before the acquisition, or set a [`wait`](Lock::wait).
//!
//! [`block_on`] runs every other operation of the library in the same way, for example a [break](crate::Locks::break_lock).

mod guard;
mod lock;
mod locks;
mod wait;

pub use guard::Guard;
pub use lock::Lock;
pub use locks::Locks;
pub use wait::block_on;
