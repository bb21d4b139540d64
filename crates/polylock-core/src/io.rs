//! The library's own thread: every store operation, renewal and background release runs on `polylock-io`.
//!
//! The end of the user's runtime can't cut a release short there, and a blocked executor can't starve a renewal. It is
//! a current-thread tokio runtime, started at first use, one per process. It lives as long as the process; who needs
//! its work done before the end waits for it (see [`Locks::close`](crate::Locks::close)).

use std::{
    any::Any,
    future::Future,
    sync::{Mutex, OnceLock, PoisonError},
    thread::{self, ThreadId},
};

use tokio::{
    runtime::{Builder, Handle},
    task::{JoinError, JoinHandle},
};

use crate::{Error, Fault, Operation, Result, Unavailable};

struct Io {
    runtime: Handle,
    thread: ThreadId,
}

static IO: OnceLock<Io> = OnceLock::new();

/// Runs `future` on the `polylock-io` thread and returns what it returns.
///
/// A store must open its connections in here: sockets and timers belong to the runtime that they are made on.
///
/// # Errors
/// [`Unavailable`] if the thread can't be started, or if `future` panics.
///
/// # Cancel safety
/// Dropping this does not stop `future`, which runs to its end unheard.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let name = polylock_core::io::run(async { std::thread::current().name().map(str::to_owned) }).await?;
/// assert_eq!(name.as_deref(), Some("polylock-io"));
/// # Ok::<(), polylock_core::Error>(()) }).unwrap();
/// ```
pub async fn run<F>(future: F) -> Result<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    spawn(future)?.await.map_err(|error| failed("polylock-io", Operation::Connect, error))
}

/// Starts `future` on the thread.
pub(crate) fn spawn<F>(future: F) -> Result<JoinHandle<F::Output>>
where
    F: Future<Output: Send> + Send + 'static,
{
    Ok(io()?.runtime.spawn(future))
}

/// Whether this is the thread itself, which must never wait for its own work.
pub(crate) fn is_current() -> bool {
    IO.get().is_some_and(|io| io.thread == thread::current().id())
}

/// What a store's operation that panicked, or was cut off by the runtime, looks like to the caller.
pub(crate) fn failed(backend: &'static str, operation: Operation, error: JoinError) -> Error {
    let cause = match error.try_into_panic() {
        Ok(panic) => format!("the store panicked: {}", message(&*panic)),
        Err(error) => error.to_string(),
    };
    Unavailable::new(backend, operation, Fault::Permanent, cause).into()
}

pub(crate) fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

fn io() -> Result<&'static Io> {
    static STARTING: Mutex<()> = Mutex::new(());
    if let Some(io) = IO.get() {
        return Ok(io);
    }
    let _one_at_a_time = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(io) = IO.get() {
        return Ok(io);
    }
    let io = start()
        .map_err(|cause| Unavailable::new("polylock-io", Operation::Connect, Fault::Permanent, cause))?;
    Ok(IO.get_or_init(|| io))
}

fn start() -> std::io::Result<Io> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let thread = thread::Builder::new()
        .name("polylock-io".into())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    Ok(Io { runtime: handle, thread: thread.thread().id() })
}
