//! The wait of a thread for a future.

use std::future::IntoFuture;

use futures_util::FutureExt;
use tokio::{runtime::Handle, task::coop::consume_budget};

use crate::{Error, Result, io, process::is_simulated};

/// Blocks the thread until `future` is ready, and returns its output.
///
/// It is for futures of this library, which need no runtime of the caller.
///
/// # Errors
/// [`Error::AsyncContext`] in an async task of tokio. The future was not polled then.
///
/// ```
/// use polylock_core::{Locks, blocking::block_on, memory};
///
/// let locks = Locks::new(memory::connect());
/// let holders = block_on(locks.break_lock("nightly").reason("host-a is being replaced"))??;
/// assert!(holders.is_empty());
/// # Ok::<(), polylock_core::Error>(())
/// ```
pub fn block_on<F: IntoFuture>(future: F) -> Result<F::Output> {
    check_context()?;
    Ok(pollster::block_on(future))
}

/// Checks that this thread may block.
pub(super) fn check_context() -> Result<()> {
    if is_in_task() { Err(Error::AsyncContext) } else { Ok(()) }
}

/// Returns true if this thread polls a task of tokio, or is a thread of the library, which must not wait for its own work.
fn is_in_task() -> bool {
    if io::is_current() || is_simulated() {
        return true;
    }
    // Tokio limits the steps of a task in one poll, and not those of code that may block. A step beyond the limit is pending. The task has
    // then no steps left, so its next await yields once.
    Handle::try_current().is_ok() && (0..=u8::MAX).any(|_| consume_budget().now_or_never().is_none())
}
