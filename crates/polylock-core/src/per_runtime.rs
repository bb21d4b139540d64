//! Connections that belong to the runtimes of the callers.
//!
//! A socket and a timer work only while the runtime that made them runs. So a connection of a caller's runtime serves the tasks of that
//! runtime and nothing else; renewals and whatever must outlive a caller use the connection of the I/O thread.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{
    runtime::{self, Handle},
    task::AbortHandle,
};

use crate::{Clock, Moment, Result, SystemClock, io};

/// How often a runtime uses the store until it has a connection of its own: a program that takes one lock and releases it needs none.
const WARM_UP: u32 = 3;

/// How many runtimes are remembered besides those with a connection.
const REMEMBERED: usize = 64;

/// The time from a failed attempt to the next one.
const PAUSE: Duration = Duration::from_secs(1);

/// A connection for each tokio runtime that uses a store, made by that runtime itself and dropped with it.
///
/// The task of a caller that uses the connection of its own runtime needs no other thread.
///
/// ```
/// use polylock_core::PerRuntime;
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let connections = PerRuntime::<String>::default();
/// let get = || connections.get(|_| true, || async { Ok("of this runtime".to_owned()) });
/// // Not yet: a program that takes one lock and releases it needs no further connection.
/// assert_eq!(get(), None);
/// while get().is_none() {
///     tokio::task::yield_now().await;
/// }
/// # });
/// ```
pub struct PerRuntime<C>(Arc<Entries<C>>);

type Entries<C> = Mutex<HashMap<runtime::Id, Entry<C>>>;

/// What is known of one runtime.
struct Entry<C> {
    /// How often it has used the store without a connection.
    used: u32,
    /// When it may open one.
    again: Moment,
    /// The number of the connection that it opens or has opened.
    number: Option<u64>,
    connection: Option<Arc<C>>,
    owner: Option<Owner>,
}

impl<C> Default for Entry<C> {
    fn default() -> Self {
        Self { used: 0, again: Moment::default(), number: None, connection: None, owner: None }
    }
}

impl<C> Entry<C> {
    /// Gives up the connection. What is returned is to be dropped without the lock.
    fn give_up(&mut self, again: Moment) -> (Option<Arc<C>>, Option<Owner>) {
        (self.again, self.number) = (again, None);
        (self.connection.take(), self.owner.take())
    }
}

/// The task of a runtime that opens a connection and keeps it; dropping this ends the task.
struct Owner(AbortHandle);

/// The number of the last connection of the process.
static LAST: AtomicU64 = AtomicU64::new(0);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<C> Default for PerRuntime<C> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<C> fmt::Debug for PerRuntime<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerRuntime").finish_non_exhaustive()
    }
}

impl<C: Send + Sync + 'static> PerRuntime<C> {
    /// The connection of the present runtime, if there is one and `is_usable`. Otherwise the runtime opens one with `open` in the
    /// background, once it has used the store a few times. `None` on the threads of the library, and outside of any runtime.
    pub fn get<F>(&self, is_usable: impl FnOnce(&C) -> bool, open: impl FnOnce() -> F) -> Option<Arc<C>>
    where
        F: Future<Output = Result<C>> + Send + 'static,
    {
        if io::is_current() {
            return None;
        }
        let runtime = Handle::try_current().ok()?;
        let now = SystemClock.now();
        let mut entries = lock(&self.0);
        if entries.len() >= REMEMBERED && !entries.contains_key(&runtime.id()) {
            // Some of these runtimes may have ended.
            entries.retain(|_, entry| entry.number.is_some());
        }
        let entry = entries.entry(runtime.id()).or_default();
        let unusable = match &entry.connection {
            Some(connection) if is_usable(connection) => return Some(connection.clone()),
            Some(_) => Some(entry.give_up(now)),
            None => None,
        };
        entry.used = entry.used.saturating_add(1);
        let begins = entry.number.is_none() && entry.used >= WARM_UP && entry.again <= now;
        let number = begins.then(|| *entry.number.insert(LAST.fetch_add(1, Ordering::Relaxed)));
        // A drop may call anything, and a runtime that ends drops the task at once.
        drop(entries);
        drop(unusable);
        if let Some(number) = number {
            let place = Place { entries: Arc::downgrade(&self.0), runtime: runtime.id(), number };
            let owner = Owner(runtime.spawn(own(place.clone(), open())).abort_handle());
            drop(place.change(|entry| entry.owner.replace(owner)));
        }
        None
    }
}

/// Opens a connection of the present runtime and keeps it until the runtime ends.
async fn own<C: Send + Sync>(place: Place<C>, open: impl Future<Output = Result<C>> + Send) {
    let ends = Ends(place);
    match open.await {
        Ok(connection) => drop(ends.0.change(|entry| entry.connection.replace(Arc::new(connection)))),
        Err(error) => {
            tracing::debug!(error = &error as &dyn std::error::Error, "no connection for this runtime");
            return drop(ends.0.change(|entry| entry.give_up(SystemClock.now() + PAUSE)));
        }
    }
    std::future::pending::<()>().await;
}

/// The place of a connection among all.
struct Place<C> {
    entries: Weak<Entries<C>>,
    runtime: runtime::Id,
    number: u64,
}

impl<C> Clone for Place<C> {
    fn clone(&self) -> Self {
        Self { entries: self.entries.clone(), runtime: self.runtime, number: self.number }
    }
}

impl<C> Place<C> {
    /// Changes the entry, unless it belongs to a later connection.
    fn change<T>(&self, change: impl FnOnce(&mut Entry<C>) -> T) -> Option<T> {
        let entries = self.entries.upgrade()?;
        let mut entries = lock(&entries);
        entries.get_mut(&self.runtime).filter(|entry| entry.number == Some(self.number)).map(change)
    }
}

/// Gives up the connection at the end of its task.
struct Ends<C>(Place<C>);

impl<C> Drop for Ends<C> {
    fn drop(&mut self) {
        // A runtime whose timers or sockets are disabled panics each time.
        let again = if thread::panicking() { Moment::NEVER } else { SystemClock.now() };
        drop(self.0.change(|entry| entry.give_up(again)));
    }
}

fn lock<C>(entries: &Entries<C>) -> MutexGuard<'_, HashMap<runtime::Id, Entry<C>>> {
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}
