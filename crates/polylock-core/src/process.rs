//! The process that code runs in: the real one or, with the feature `simulation`, a simulated one.
//!
//! Everything by which core depends on its process is here: the clock, random bits, and the executor of its tasks.

#[cfg(feature = "simulation")]
pub(crate) use crate::simulation::{fill, is_io_task, is_simulated, nanos, sleep_until, spawn, spawn_on};
#[cfg(not(feature = "simulation"))]
pub(crate) use real::{fill, is_io_task, is_simulated, nanos, sleep_until, spawn, spawn_on};

#[cfg(not(feature = "simulation"))]
mod real {
    use std::future::Ready;

    pub(crate) use tokio::spawn;
    use tokio::{runtime::Handle, task::JoinHandle};

    pub(crate) const fn is_simulated() -> bool {
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
