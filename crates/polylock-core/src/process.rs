//! The process that code runs in: the real one or, with the feature `simulation`, a simulated one.
//!
//! Everything by which core depends on its process is here: the clock, random bits, and the executor of its tasks.

#[cfg(feature = "simulation")]
use crate::simulation::{Current, current, spawn_in};
#[cfg(feature = "simulation")]
pub(crate) use crate::simulation::{
    fill, has_bug, is_io_task, is_simulated, nanos, sleep_until, spawn, spawn_on,
};
#[cfg(not(feature = "simulation"))]
use real::{Current, current, spawn_in};
#[cfg(not(feature = "simulation"))]
pub(crate) use real::{fill, has_bug, is_io_task, is_simulated, nanos, sleep_until, spawn, spawn_on};
use tokio::{
    runtime::Handle,
    task::{JoinError, JoinHandle},
};

/// Starts tasks beside the task that has created it: on the same runtime and, in tests, in the same simulated process.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let executor = polylock_core::Executor::current();
/// assert_eq!(executor.spawn(async { 7 }).await.unwrap(), 7);
/// # });
/// ```
#[derive(Debug, Clone)]
pub struct Executor {
    runtime: Handle,
    process: Option<Current>,
}

impl Executor {
    /// Returns the executor of the current task.
    ///
    /// # Panics
    /// Outside of any tokio runtime.
    #[must_use]
    pub fn current() -> Self {
        Self { runtime: Handle::current(), process: current() }
    }

    /// Starts `future` as a task.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        spawn_in(self.process.as_ref(), &self.runtime, future)
    }

    /// Runs `work`, which may block, on a thread for such work; in a simulated process, at once.
    ///
    /// # Errors
    /// If `work` panics.
    ///
    /// # Cancel safety
    /// `work` runs to its end.
    pub async fn blocking<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        match self.process {
            Some(_) => Ok(work()),
            None => self.runtime.spawn_blocking(work).await,
        }
    }
}

#[cfg(not(feature = "simulation"))]
mod real {
    use std::future::Ready;

    pub(crate) use tokio::spawn;
    use tokio::{runtime::Handle, task::JoinHandle};

    /// A simulated process. Builds without the feature have none.
    #[derive(Debug, Clone)]
    pub(super) enum Current {}

    pub(super) const fn current() -> Option<Current> {
        None
    }

    pub(super) fn spawn_in<F>(_: Option<&Current>, runtime: &Handle, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        runtime.spawn(future)
    }

    pub(crate) const fn is_simulated() -> bool {
        false
    }

    pub(crate) const fn has_bug(_: crate::bug::Bug) -> bool {
        false
    }

    pub(crate) const fn is_io_task() -> bool {
        false
    }

    pub(crate) const fn nanos() -> Option<u64> {
        None
    }

    pub(crate) const fn sleep_until(_: u64) -> Option<Ready<()>> {
        None
    }

    pub(crate) const fn fill(_: &mut [u8]) -> bool {
        false
    }

    pub(crate) fn spawn_on<F>(runtime: &Handle, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        runtime.spawn(future)
    }
}
