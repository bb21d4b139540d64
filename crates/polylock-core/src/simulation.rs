//! Simulated processes, for tests of the real code in virtual time. This module is unstable: it is no part of the interface that
//! versions promise.
//!
//! A thread runs many simulated processes as tasks of one current-thread runtime. While a task of a process is polled, core takes the
//! time and random bits from the [`Environment`] of that process, and starts further tasks in it instead of on a thread of the
//! library. Log events are not forwarded, and nothing blocks the thread: a drop of a store does not wait for its releases.

use std::{
    cell::RefCell,
    fmt,
    future::Future,
    io, mem,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::Handle,
    task::JoinHandle,
};

pub use crate::bug::Bug;
use crate::sync::lock;

/// A connection of a simulated process.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A future that opens a connection.
pub type Connecting = Pin<Box<dyn Future<Output = io::Result<Box<dyn Stream>>> + Send>>;

/// The clock, the random source and the network of a simulated process.
pub trait Environment: fmt::Debug + Send + Sync + 'static {
    /// Returns the time of the process's clock, in nanoseconds.
    fn nanos(&self) -> u64;

    /// Returns a future that completes when the process's clock shows `nanos`.
    fn sleep_until(&self, nanos: u64) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// Fills `bytes` with random bits.
    fn fill(&self, bytes: &mut [u8]);

    /// Opens a connection to the server at `address`. By default the process has no network.
    fn connect(&self, address: &str) -> Connecting {
        let error = io::Error::other(format!("no server at {address}"));
        Box::pin(async { Err(error) })
    }

    /// Returns the bug that the code of the process has. By default it has none.
    fn bug(&self) -> Option<Bug> {
        None
    }
}

/// A simulated process: tasks that can be paused and stopped together.
#[derive(Debug)]
pub struct Process {
    environment: Box<dyn Environment>,
    runtime: Handle,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Running,
    /// No task is polled. The wakers are those of the tasks that were due.
    Paused(Vec<Waker>),
    /// No task is polled any more.
    Crashed,
}

#[derive(Debug, Clone)]
pub(crate) struct Current {
    process: Arc<Process>,
    is_io: bool,
}

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

impl Process {
    /// Creates a process with tasks on `runtime`, a current-thread runtime.
    #[must_use]
    pub fn new(runtime: Handle, environment: Box<dyn Environment>) -> Arc<Self> {
        Arc::new(Self { environment, runtime, state: Mutex::new(State::Running) })
    }

    /// Starts `future` as a task of the process.
    pub fn spawn<F>(self: &Arc<Self>, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        Current { process: self.clone(), is_io: false }.spawn(future)
    }

    /// Stops polling the tasks until [`resume`](Self::resume). The clock and the timers continue.
    pub fn pause(&self) {
        let mut state = lock(&self.state);
        if let State::Running = *state {
            *state = State::Paused(Vec::new());
        }
    }

    /// Polls the tasks again.
    pub fn resume(&self) {
        let mut state = lock(&self.state);
        let State::Paused(due) = &mut *state else { return };
        let due = mem::take(due);
        *state = State::Running;
        drop(state);
        due.into_iter().for_each(Waker::wake);
    }

    /// Ends the process: no task is polled any more. The tasks are dropped with the runtime.
    pub fn crash(&self) {
        *lock(&self.state) = State::Crashed;
    }

    /// Returns true if the process has not [crashed](Self::crash) and is not [paused](Self::pause).
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(*lock(&self.state), State::Running)
    }
}

impl Current {
    fn spawn<F>(self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let runtime = self.process.runtime.clone();
        runtime.spawn(InProcess { current: self, future: Some(Box::pin(future)) })
    }

    /// Runs `call` in the process.
    fn enter<T>(&self, call: impl FnOnce() -> T) -> T {
        struct Leave(Option<Current>);
        impl Drop for Leave {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _leave = Leave(CURRENT.replace(Some(self.clone())));
        call()
    }
}

/// A task of a process.
struct InProcess<F: Future> {
    current: Current,
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> Future for InProcess<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { current, future } = &mut *self;
        match &mut *lock(&current.process.state) {
            State::Running => {}
            State::Paused(due) => {
                due.push(cx.waker().clone());
                return Poll::Pending;
            }
            State::Crashed => return Poll::Pending,
        }
        match future {
            Some(future) => current.enter(|| future.as_mut().poll(cx)),
            None => Poll::Pending,
        }
    }
}

impl<F: Future> Drop for InProcess<F> {
    fn drop(&mut self) {
        let future = self.future.take();
        self.current.enter(|| drop(future));
    }
}

/// Returns the current process; `None` in the real one, also while the thread ends and its variables are gone.
pub(crate) fn current() -> Option<Current> {
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

/// Opens a connection to the server at `address` in the current process; `None` in the real one.
#[must_use]
pub fn connect(address: &str) -> Option<Connecting> {
    Some(current()?.process.environment.connect(address))
}

/// Returns true if the code of the current process has this bug.
#[must_use]
pub fn has_bug(bug: Bug) -> bool {
    current().is_some_and(|current| current.process.environment.bug() == Some(bug))
}

pub(crate) fn is_simulated() -> bool {
    current().is_some()
}

/// Returns true in a task that belongs to an I/O thread in a real process.
pub(crate) fn is_io_task() -> bool {
    current().is_some_and(|current| current.is_io)
}

pub(crate) fn nanos() -> Option<u64> {
    Some(current()?.process.environment.nanos())
}

pub(crate) fn sleep_until(nanos: u64) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
    Some(current()?.process.environment.sleep_until(nanos))
}

pub(crate) fn fill(bytes: &mut [u8]) -> bool {
    let current = current();
    if let Some(current) = &current {
        current.process.environment.fill(bytes);
    }
    current.is_some()
}

/// Starts `future` in `process`, or else on `runtime`.
pub(crate) fn spawn_in<F>(process: Option<&Current>, runtime: &Handle, future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    match process {
        Some(process) => process.clone().spawn(future),
        None => runtime.spawn(future),
    }
}

/// Starts `future` in the current process, like the current task.
pub(crate) fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    match current() {
        Some(current) => current.spawn(future),
        None => tokio::spawn(future),
    }
}

/// Starts `future` on the I/O thread with this runtime; in a simulated process, as a task of the process.
pub(crate) fn spawn_on<F>(runtime: &Handle, future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    match current() {
        Some(current) => Current { is_io: true, ..current }.spawn(future),
        None => runtime.spawn(future),
    }
}
