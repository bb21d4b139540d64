//! Connections that belong to the runtimes of the callers.
//!
//! A socket and a timer work only while the runtime that created them runs. So a connection of a caller's runtime serves only the
//! tasks of that runtime; renewals, and operations that must outlive a caller, use the connection of the I/O thread.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{
    runtime::{self, Handle},
    task::AbortHandle,
};

use crate::{Clock, Moment, Result, SystemClock, io, process, sync::lock};

/// The use of the store at which a runtime opens its own connection: a program that acquires and releases one lock needs none.
const WARM_UP: u32 = 3;

/// The number of runtimes from which those without a connection are removed.
const REMEMBERED: usize = 64;

/// The time from a connection that failed, or turned out to be unusable, to the next one. Otherwise an address that leads to
/// several servers would cost a connection for each operation.
const PAUSE: Duration = Duration::from_secs(1);

/// A connection for each tokio runtime that uses a store, opened by that runtime itself and dropped with it.
///
/// A caller's task that uses the connection of its own runtime needs no other thread.
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

/// The state of one runtime.
struct Entry<C> {
    /// The number of uses of the store without a connection.
    used: u32,
    /// The time from which it may open a connection.
    again: Moment,
    /// The number of the connection that it opens or has opened.
    number: Option<u64>,
    connection: Option<Arc<C>>,
    owner: Option<OwnerTask>,
}

impl<C> Default for Entry<C> {
    fn default() -> Self {
        Self { used: 0, again: Moment::default(), number: None, connection: None, owner: None }
    }
}

impl<C> Entry<C> {
    /// Removes the connection. The caller must drop the returned values without the lock.
    fn give_up(&mut self, again: Moment) -> (Option<Arc<C>>, Option<OwnerTask>) {
        (self.again, self.number) = (again, None);
        (self.connection.take(), self.owner.take())
    }
}

/// The task that opens a connection and keeps it on its runtime; dropping this ends the task.
struct OwnerTask(AbortHandle);

/// The number of the next connection of the process.
static LAST: AtomicU64 = AtomicU64::new(0);

impl Drop for OwnerTask {
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
    /// Returns the connection of the current runtime, if there is one and `is_usable` returns true. Otherwise the runtime opens one
    /// with `open` in the background, once it has used the store a few times, and after a pause if it has given one up. Returns
    /// `None` on the threads of the library, and outside of any runtime.
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
            Some(_) => Some(entry.give_up(now + PAUSE)),
            None => None,
        };
        entry.used = entry.used.saturating_add(1);
        let begins = entry.number.is_none() && entry.used >= WARM_UP && entry.again <= now;
        let number = begins.then(|| *entry.number.insert(LAST.fetch_add(1, Ordering::Relaxed)));
        // A drop may run any code, and a runtime that ends drops the task at once.
        drop(entries);
        drop(unusable);
        if let Some(number) = number {
            let entry_ref = EntryRef { entries: Arc::downgrade(&self.0), runtime: runtime.id(), number };
            let owner = OwnerTask(process::spawn(keep_connection(entry_ref.clone(), open())).abort_handle());
            drop(entry_ref.change(|entry| entry.owner.replace(owner)));
        }
        None
    }
}

/// Opens a connection on the current runtime and keeps it until the runtime ends.
async fn keep_connection<C: Send + Sync>(
    entry_ref: EntryRef<C>,
    open: impl Future<Output = Result<C>> + Send,
) {
    let entry_guard = EndOnDrop(entry_ref);
    match open.await {
        Ok(connection) => drop(entry_guard.0.change(|entry| entry.connection.replace(Arc::new(connection)))),
        Err(error) => {
            tracing::debug!(error = &error as &dyn std::error::Error, "no connection for this runtime");
            return drop(entry_guard.0.change(|entry| entry.give_up(SystemClock.now() + PAUSE)));
        }
    }
    std::future::pending::<()>().await;
}

/// The key of a connection's entry.
struct EntryRef<C> {
    entries: Weak<Entries<C>>,
    runtime: runtime::Id,
    number: u64,
}

impl<C> Clone for EntryRef<C> {
    fn clone(&self) -> Self {
        Self { entries: self.entries.clone(), runtime: self.runtime, number: self.number }
    }
}

impl<C> EntryRef<C> {
    /// Changes the entry, unless it belongs to a later connection.
    fn change<T>(&self, change: impl FnOnce(&mut Entry<C>) -> T) -> Option<T> {
        let entries = self.entries.upgrade()?;
        let mut entries = lock(&entries);
        entries.get_mut(&self.runtime).filter(|entry| entry.number == Some(self.number)).map(change)
    }
}

/// Removes the connection at the end of its task.
struct EndOnDrop<C>(EntryRef<C>);

impl<C> Drop for EndOnDrop<C> {
    fn drop(&mut self) {
        // A runtime with disabled timers or sockets panics at each attempt, so there is no other one.
        let again = if thread::panicking() { Moment::NEVER } else { SystemClock.now() };
        drop(self.0.change(|entry| entry.give_up(again)));
    }
}
