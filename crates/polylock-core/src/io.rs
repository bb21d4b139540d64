//! The library's own thread: every store operation, renewal and background release runs on `polylock-io`. (The first step
//! of an operation may be taken by the caller, in this thread's context; the rest never is.)
//!
//! The end of the user's runtime can't cut a release short there, and a blocked executor can't starve a renewal. It is
//! a current-thread tokio runtime, started at first use, one per process. It lives as long as the process; who needs
//! its work done before the end waits for it (see [`Locks::close`](crate::Locks::close)).

use std::{
    any::Any,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, OnceLock, PoisonError},
    task::{Context, Poll, Waker},
    thread::{self, ThreadId},
};

use tokio::{
    runtime::{Builder, Handle},
    task::{JoinError, JoinHandle},
};

use crate::{Error, Fault, FirstStep, Operation, Result, Unavailable};

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
    spawn(future)?.await.map_err(|error| failed("polylock-io", Operation::Connect, cut_off(error)))
}

/// Starts `future` on the thread.
pub(crate) fn spawn<F>(future: F) -> Result<JoinHandle<F::Output>>
where
    F: Future<Output: Send> + Send + 'static,
{
    Ok(io()?.runtime.spawn(future))
}

/// Begins `future` here, unless the thread is to take the first step, and leaves the rest to the thread: it is polled once by the
/// caller, in the thread's context, and if that does not end it, it goes on there and never here again.
///
/// What ends at once, as the in-memory store does, saves two hops between threads, and any other operation one: its
/// request is on its way before the thread has woken up. Nothing is left to the mercy of the caller's executor.
pub(crate) fn begin<F>(first_step: FirstStep, future: F) -> Result<Begun<F::Output>>
where
    F: Future<Output: Send> + Send + 'static,
{
    if first_step == FirstStep::Thread && !is_current() {
        return spawn(future).map(Begun::GoesOn);
    }
    let _context = io()?.runtime.enter();
    let mut future = Box::pin(future);
    // Nobody has to be woken: who takes it over polls it again at once.
    let mut nobody = Context::from_waker(Waker::noop());
    Ok(match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut nobody))) {
        Ok(Poll::Ready(output)) => Begun::Ended(Some(Ok(output))),
        Ok(Poll::Pending) => Begun::GoesOn(tokio::spawn(future)),
        Err(panic) => Begun::Ended(Some(Err(panicked(&*panic)))),
    })
}

/// What was begun. Dropping it stops nothing.
#[derive(Debug)]
pub(crate) enum Begun<T> {
    /// It has ended, or panicked; empty once that was told.
    Ended(Option<Result<T, String>>),
    /// It goes on, on the thread.
    GoesOn(JoinHandle<T>),
}

impl<T> Begun<T> {
    /// What it returns, or why it did not. May be dropped and called again until it has answered.
    pub(crate) async fn end(&mut self) -> Result<T, String> {
        match self {
            Self::Ended(output) => output.take().unwrap_or_else(|| Err("it has been told".to_owned())),
            Self::GoesOn(task) => task.await.map_err(cut_off),
        }
    }
}

/// Whether this is the thread itself, which must never wait for its own work.
pub(crate) fn is_current() -> bool {
    IO.get().is_some_and(|io| io.thread == thread::current().id())
}

/// What a store's operation that panicked, or was cut off by the runtime, looks like to the caller.
pub(crate) fn failed(backend: &'static str, operation: Operation, cause: String) -> Error {
    Unavailable::new(backend, operation, Fault::Permanent, cause).into()
}

fn cut_off(error: JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => panicked(&*panic),
        Err(error) => error.to_string(),
    }
}

pub(crate) fn panicked(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the store panicked: {}", text.unwrap_or("no message"))
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
